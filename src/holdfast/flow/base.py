"""What every flow has: a name, agents, and nothing that is kept between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from holdfast.agent_base import BaseAgent
from holdfast.errors import InvalidArgument
from holdfast.log.arguments import suggest_keywords
from holdfast.plan import Plan, first_agent
from holdfast.stores.base import SessionStore, Store
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.models.base import Model
    from holdfast.session.session import Session


class Flow(BaseAgent):
    """Agents that answer together."""

    def __new__(cls, *agents: Any, **_: Any) -> Self:  # noqa: ANN401 - as the class has them
        """Refuse agents that are not in a list, in the words of every flow."""
        if len(agents) > 1:
            raise TypeError(f"{cls.__name__} takes its agents as one list: {cls.__name__}([first, second])")
        return super().__new__(cls)

    @suggest_keywords
    def __init__(
        self,
        sub_agents: Sequence[BaseAgent],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float = 120,
        store: Store | SessionStore | str | None = None,
        session: Session | None = None,
    ) -> None:
        kind = type(self).__name__
        if isinstance(sub_agents, BaseAgent) or not isinstance(sub_agents, Sequence):
            raise InvalidArgument(f"{kind}(sub_agents=[...]) takes a list of agents")
        for each in sub_agents:
            if not isinstance(each, BaseAgent):
                raise InvalidArgument(f"{kind}(sub_agents=[...]) takes agents, and a {type(each).__name__} is none")
        if not sub_agents:
            raise InvalidArgument(f"{kind}(sub_agents=[...]) needs at least one agent")
        self.sub_agents = list(sub_agents)
        self.name, self.description, self.timeout = name, description, timeout
        self.store = None if store is None else open_store(store)
        self._session = session

    def __repr__(self) -> str:
        names = ", ".join(repr(each.name) for each in self.sub_agents)
        return f"{type(self).__name__}(name={self.name!r}, sub_agents=[{names}])"

    @property
    def model(self) -> Model:  # type: ignore[override]  # an agent has one of its own, a flow that of its first agent
        return first_agent(self.plan()).model

    def _plans(self) -> list[Plan]:
        return [each.plan() for each in self.sub_agents]

    def _index_by_name(self) -> dict[str, int]:
        """Return the index of each agent by its name, for flows that choose agents by name."""
        found: dict[str, int] = {}
        for place, each in enumerate(self.sub_agents):
            if not each.name:
                raise InvalidArgument(f"the agents of a {type(self).__name__} need names: Agent(name='billing', ...)")
            if each.name in found:
                raise InvalidArgument(f"two agents of a {type(self).__name__} are named {each.name!r}: rename one")
            found[each.name] = place
        return found


def check_positive(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"{what}={value!r}: use a whole number above 0")
    return value
