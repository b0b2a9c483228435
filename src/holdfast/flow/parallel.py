"""Agents at the same time."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.errors import InvalidArgument
from holdfast.flow.base import Flow, check_positive
from holdfast.plan import ParallelPlan

DEFAULT_CONCURRENCY = 8


class ParallelAgent(Flow):
    """Agents that are asked at the same time; none sees the others until all are done.

    ParallelAgent(name="views", sub_agents=[optimist, sceptic], max_concurrency=4).run("Should we?")

    Their messages are ordered by agent, not by time; the answer is their texts one after the other. The first error
    stops the others and fails the run. With `on_error="collect"` the others go on, and a message names the agents that
    could not answer. If no agent could, a `RoutingError` is raised.
    """

    def __init__(
        self,
        sub_agents: Any = (),  # noqa: ANN401 - as Flow has it
        *,
        max_concurrency: int = DEFAULT_CONCURRENCY,
        on_error: Literal["raise", "collect"] = "raise",
        **options: Any,  # noqa: ANN401 - those of Flow
    ) -> None:
        super().__init__(sub_agents, **options)
        self.max_concurrency = check_positive(max_concurrency, "max_concurrency")
        if on_error not in ("raise", "collect"):
            raise InvalidArgument(f"on_error={on_error!r}: use 'raise' or 'collect'")
        self.on_error = on_error

    def plan(self) -> ParallelPlan:
        return ParallelPlan(
            name=self.name,
            steps=self._plans(),
            max_concurrency=self.max_concurrency,
            collects_errors=self.on_error == "collect",
        )
