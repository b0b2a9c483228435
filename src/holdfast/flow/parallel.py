"""Agents at the same time."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.errors import InvalidArgument
from holdfast.flow.base import Flow, checked_number
from holdfast.plan import AtOnce

AT_ONCE = 8


class ParallelAgent(Flow):
    """Agents that are asked at the same time; none sees the others until all are done.

    ParallelAgent(name="views", sub_agents=[optimist, sceptic], max_concurrency=4).run("Should we?")

    What they did stands in their order, whoever was faster; the answer is their texts one after the other. The first
    error stops the others and fails the run; with `on_error="collect"` the others go on, and the conversation is told
    who could not answer. If nobody could, it is a `RoutingError`.
    """

    def __init__(
        self,
        sub_agents: Any = (),  # noqa: ANN401 - as Flow has it
        *,
        max_concurrency: int = AT_ONCE,
        on_error: Literal["raise", "collect"] = "raise",
        **options: Any,  # noqa: ANN401 - those of Flow
    ) -> None:
        super().__init__(sub_agents, **options)
        self.max_concurrency = checked_number(max_concurrency, "max_concurrency")
        if on_error not in ("raise", "collect"):
            raise InvalidArgument(f"on_error={on_error!r}: use 'raise' or 'collect'")
        self.on_error = on_error

    def plan(self) -> AtOnce:
        return AtOnce(
            name=self.name, steps=self._plans(), most=self.max_concurrency, collects=self.on_error == "collect"
        )
