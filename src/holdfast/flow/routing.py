"""One of several: chosen by a model, or kept for a conversation as long as it answers."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from holdfast.agent import Agent, Instructions
from holdfast.agent_base import BaseAgent
from holdfast.errors import BadOutput, InvalidArgument
from holdfast.flow.base import Flow
from holdfast.log import codec
from holdfast.log.messages import Message
from holdfast.plan import FallbackPlan, RoutingPlan
from holdfast.schema.output import OutputShape

CHOOSER_PROMPT = """Decide who answers the user's last message. You do not answer it yourself.

{agents}

Reply with JSON: {{"agent": "<one of these names>"}}"""

Strategy = Callable[[Message, Sequence[BaseAgent]], BaseAgent | str | Awaitable[BaseAgent | str]]


class RoutingAgent(Flow):
    """A model reads the message and picks which of the agents answers.

    RoutingAgent(name="desk", model="openai:gpt-4o-mini", sub_agents=[billing, tech])

    It goes by their names and descriptions. A model that names no agent is asked again; after that `default` answers,
    and without a default a `RoutingError` is raised. The replies of the router's own model are in the log only.
    """

    def __init__(
        self,
        sub_agents: Any = (),  # noqa: ANN401 - as Flow has it
        *,
        instructions: Instructions | None = None,
        default: BaseAgent | str | None = None,
        name: str | None = None,
        description: str | None = None,
        timeout: float = 120,
        store: Any = None,  # noqa: ANN401 - as Flow has it
        session: Any = None,  # noqa: ANN401
        **options: Any,  # noqa: ANN401 - those of the agent that decides: model, provider, api_key, ...
    ) -> None:
        super().__init__(sub_agents, name=name, description=description, timeout=timeout, store=store, session=session)
        self._places = self._index_by_name()
        self._default = None if default is None else self._default_index(default)
        lines = [f"- {each.name}: {each.description or 'no description'}" for each in self.sub_agents]
        self._task = CHOOSER_PROMPT.format(agents="\n".join(lines))
        self._chooser = Agent(name=name, instructions=instructions, timeout=timeout, **options)

    def _default_index(self, wanted: BaseAgent | str) -> int:
        name = wanted if isinstance(wanted, str) else wanted.name
        if name not in self._places:
            raise InvalidArgument(f"default={name!r} is none of the agents: {', '.join(self._places)}")
        return self._places[name]

    def plan(self) -> RoutingPlan:
        chooser = replace(self._chooser.settings(), shape=_AgentChoice(self._places), task=self._task)
        return RoutingPlan(name=self.name, chooser=chooser, steps=self._plans(), default_step=self._default)


class _AgentChoice(OutputShape):
    """The shape of a choice. A model that only says a name is understood too."""

    def __init__(self, places: dict[str, int]) -> None:
        self._places = places
        properties = {"agent": {"type": "string", "enum": list(places)}}
        # Set as it is, without a check: this schema is ours, and the check imports jsonschema.
        self.schema = {"type": "object", "properties": properties, "required": ["agent"]}

    def read(self, text: str) -> int:
        said = _parse_agent_name(text)
        if said in self._places:
            return self._places[said]
        folded = said.casefold()
        named = [
            place
            for name, place in self._places.items()
            if re.search(rf"(?<![\w-]){re.escape(name.casefold())}(?![\w-])", folded)
        ]
        if len(named) == 1:
            return named[0]
        raise BadOutput(f"{said[:80]!r} is none of {', '.join(self._places)}")


def _parse_agent_name(text: str) -> str:
    """The name in a reply: in its JSON, wherever that stands; else the reply itself."""
    for piece in (text, *re.findall(r"\{[^{}]*\}", text)):
        try:
            found = codec.parse(piece.strip())
        except ValueError:
            continue
        if isinstance(found, dict):
            found = found.get("agent")
        if isinstance(found, str):
            return found.strip()
    return text.strip().strip("`\"'.* \n")


class Router(Flow):
    """Agents that can stand in for each other: a conversation stays with the one that answers it.

        router = Router([main, spare], strategy="fallback")
        router.session("user-1").run("Hello")

    When that one fails (its provider is down, it comes to no end), the conversation moves to the next, history and
    all, and stays there. `strategy` says who gets a new conversation: "fallback" the first, "round_robin" one after
    the other, or a function of the message and the agents that names one. If all fail it is a `RoutingError` with
    each cause.
    """

    def __init__(
        self,
        sub_agents: Any = (),  # noqa: ANN401 - as Flow has it
        *,
        strategy: Literal["fallback", "round_robin"] | Strategy = "fallback",
        **options: Any,  # noqa: ANN401 - those of Flow
    ) -> None:
        super().__init__(sub_agents, **options)
        if not callable(strategy) and strategy not in ("fallback", "round_robin"):
            raise InvalidArgument(f"strategy={strategy!r}: use 'fallback', 'round_robin', or a function")
        self.strategy = strategy
        self._places = self._index_by_name()
        self._turns = itertools.count()

    def plan(self) -> FallbackPlan:
        return FallbackPlan(name=self.name, steps=self._plans(), order=self._choose_order)

    def _choose_order(self, question: Message) -> list[int] | Awaitable[list[int]]:
        if self.strategy == "fallback":
            return [0]
        if self.strategy == "round_robin":
            return [next(self._turns) % len(self.sub_agents)]
        assert callable(self.strategy)
        found = self.strategy(question, list(self.sub_agents))
        return self._choose_async(found) if inspect.isawaitable(found) else [self._index_of_choice(found)]

    async def _choose_async(self, found: Awaitable[BaseAgent | str]) -> list[int]:
        return [self._index_of_choice(await found)]

    def _index_of_choice(self, found: object) -> int:
        name = found.name if isinstance(found, BaseAgent) else found
        if not isinstance(name, str) or name not in self._places:
            raise InvalidArgument(f"the strategy chose {name!r}, which is none of {', '.join(self._places)}")
        return self._places[name]
