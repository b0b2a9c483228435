"""One agent after the other."""

from __future__ import annotations

from typing import Any

from holdfast.flow.base import Flow
from holdfast.plan import SequentialPlan


class SequentialAgent(Flow):
    """Agents that are asked one after the other; each sees what those before it did.

    SequentialAgent(name="report", sub_agents=[researcher, writer, editor]).run("Bees")

    The answer is that of the last one.
    """

    def __init__(self, sub_agents: Any = (), **options: Any) -> None:  # noqa: ANN401 - those of Flow
        super().__init__(sub_agents, **options)

    def plan(self) -> SequentialPlan:
        return SequentialPlan(name=self.name, steps=self._plans())
