"""Agents in rounds, until it is good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument
from holdfast.flow.base import Flow, check_positive
from holdfast.plan import LoopPlan
from holdfast.tools.tool import EXIT_LOOP, tool

if TYPE_CHECKING:
    from holdfast.turn.response import Response


class LoopAgent(Flow):
    """Agents that are asked one after the other, in rounds.

    LoopAgent(name="writing", max_iterations=3, condition=lambda output: "good" not in output.text,
              sub_agents=[writer, reviewer])

    `condition`, a function or a coroutine function, sees the last response of each full round and says whether to go
    on. An agent with the tool `exit_loop` can end the loop itself. Reaching `max_iterations` is a normal end.
    """

    def __init__(
        self,
        sub_agents: Any = (),  # noqa: ANN401 - as Flow has it
        *,
        max_iterations: int = 10,
        condition: Callable[[Response], bool | Awaitable[bool]] | None = None,
        **options: Any,  # noqa: ANN401 - those of Flow
    ) -> None:
        super().__init__(sub_agents, **options)
        self.max_iterations = check_positive(max_iterations, "max_iterations")
        if condition is not None and not callable(condition):
            raise InvalidArgument("condition= is a function of a round's last response: True means go on")
        self.condition = condition

    def plan(self) -> LoopPlan:
        return LoopPlan(
            name=self.name, steps=self._plans(), max_rounds=self.max_iterations, should_continue=self.condition
        )


def _exit(reason: str | None = None) -> str:
    """End the loop: the result is good enough, and no agent needs to be asked again.

    Args:
        reason: Why the loop ends, in one sentence; may be left out.
    """
    raise AssertionError("the loop answers this call itself")


exit_loop = replace(tool(name="exit_loop")(_exit), signal=EXIT_LOOP)
