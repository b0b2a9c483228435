"""The agent: who answers. A name, a model, tools and instructions; it keeps no conversation of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.agent_base import BaseAgent
from holdfast.errors import InvalidArgument
from holdfast.log.arguments import check_option, check_options, suggest_keywords
from holdfast.plan import AgentSpec, Plan
from holdfast.session.session import Session
from holdfast.stores.base import Log, SessionStore, Store
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast.memory.memory import Memory
    from holdfast.models.base import Model
    from holdfast.schema.output import OutputShape
    from holdfast.tools.tool import Tool
    from holdfast.turn.response import Response


# A text with placeholders, or a function of the session that gives the text; None for no instructions.
Instructions = str | Callable[[Session], str | Awaitable[str | None] | None]


class Agent(BaseAgent):
    """Who answers in a session.

        agent = Agent(provider="openai", model="gpt-4o", tools=[get_user_orders])
        agent.session().run("What did I order?")

    With `handoffs=[billing, tech]` its model can hand the conversation to another agent, which sees all of it and has
    it from then on. With `memory=` what is remembered about the question is put before the model.

    Without a model it is the configured default (`HOLDFAST_MODEL`). `instructions` (or `system`) may name state,
    as in "Improve: {draft}", or be a function of the session that is called in each turn. With
    `share_state=["topic", "user:theme"]` the model is shown these state values, with True all of the session scope.
    """

    @suggest_keywords
    def __init__(
        self,
        *,
        provider: str | None = None,
        model: str | Model | None = None,
        tools: object = None,
        name: str | None = None,
        description: str | None = None,
        instructions: Instructions | None = None,
        system: Instructions | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 120,
        max_retries: int = 2,
        temperature: float | None = None,
        max_tokens: int | None = None,
        max_steps: int = 50,
        output_schema: object = None,
        output_key: str | None = None,
        share_state: Sequence[str] | bool | None = None,
        extract: Callable[[Response], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None] | None = None,
        store: Store | SessionStore | str | None = None,
        session: Session | None = None,
        memory: Memory | None = None,
        handoffs: Sequence[BaseAgent] = (),
        script: Sequence[Any] | Callable[..., Any] | None = None,
    ) -> None:
        if instructions is not None and system is not None and instructions != system:
            raise InvalidArgument("instructions= and system= are the same thing: give one of them")
        check_option("timeout", timeout)
        check_options({"temperature": temperature, "max_tokens": max_tokens, "max_retries": max_retries})
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise InvalidArgument(f"max_steps={max_steps!r}: use a whole number above 0")
        self.name, self.description = name, description
        self.instructions = instructions if instructions is not None else system
        if not (self.instructions is None or isinstance(self.instructions, str) or callable(self.instructions)):
            found = type(self.instructions).__name__
            raise InvalidArgument(f"instructions= is a text, or a function of the session that gives one, not {found}")
        self.timeout, self.max_steps = timeout, max_steps
        self.output_key, self.extract = output_key, extract
        self.share_state = () if share_state is None else _shared_names(share_state)
        self.shape = None if output_schema is None else _output_shape(output_schema)
        self.own_tools = {} if tools is None else _tools_by_name(tools)
        self.memory = memory
        reminders = {} if memory is None else {each.name: each for each in memory.tools()}
        self.tools = {**reminders, **self.own_tools}
        self.handoffs = list(handoffs)
        _transfer_tools(self)  # refuses what cannot be handed over to, here and not in the middle of a turn
        self.store: Store | None = None if store is None else open_store(store)
        self._session = session
        self._options = {
            name: value
            for name, value in (("temperature", temperature), ("max_tokens", max_tokens))
            if value is not None
        }
        if model is None or isinstance(model, str):
            options: dict[str, Any] = {"timeout": timeout, "max_retries": max_retries}
            if script is not None:
                options["script"] = script
            from holdfast.models.registry import LanguageModel

            self.model: Model = LanguageModel(provider, model, api_key=api_key, base_url=base_url, **options)
        elif hasattr(model, "stream") and hasattr(model, "stream_async"):
            self.model = model
        else:
            raise InvalidArgument(f"model={model!r}: use a name such as 'openai:gpt-4o', or a LanguageModel")

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, model={self.model!r})"

    def settings(self) -> AgentSpec:
        """This agent, as the loop needs it."""
        memory = self.memory
        transfers = _transfer_tools(self) if self.handoffs else {}
        return AgentSpec(
            name=self.name,
            model=self.model,
            tools={**self.tools, **transfers},
            instructions=self.instructions,
            max_steps=self.max_steps,
            timeout=self.timeout,
            description=self.description,
            shape=self.shape,
            output_key=self.output_key,
            share_state=self.share_state,
            extract=self.extract,
            handoffs={each.name or "": each.plan for each in self.handoffs},
            find_handoff_plan=self._find_handoff_plan if self.handoffs else None,
            recall=None if memory is None else partial(_recall_for_prompt, memory),
            options=self._options,
        )

    plan = settings

    def _find_handoff_plan(self, name: str) -> Plan | None:
        """Return the plan of the agent with this name, if handoffs from here can reach it."""
        seen: list[BaseAgent] = []
        waiting: list[BaseAgent] = [self]
        while waiting:
            each = waiting.pop(0)
            if any(each is one for one in seen):
                continue
            if each.name == name:
                return each.plan()
            seen.append(each)
            waiting += getattr(each, "handoffs", ())
        return None


def _recall_for_prompt(memory: Memory, store: Store, log: Log, question: str, room: int) -> str:
    """What is remembered about a question, for the user and the app of the session that it is asked in."""
    return memory.for_prompt(log.user_id, log.app_name, question, room, store=store)


def _transfer_tools(agent: Agent) -> dict[str, Tool]:
    """The tools that hand the conversation to others."""
    found: dict[str, Tool] = {}
    for other in agent.handoffs:
        if not isinstance(other, BaseAgent):
            raise InvalidArgument(f"handoffs= is a list of agents, and a {type(other).__name__} is none")
        if not other.name:
            raise InvalidArgument("an agent that a conversation is handed to needs a name: Agent(name='billing', ...)")
        tool = _transfer_tool(other)
        if tool.name in found or tool.name in agent.tools:
            raise InvalidArgument(f"two tools would be named {tool.name!r}: give the agents names that differ")
        found[tool.name] = tool
    return found


def _transfer_tool(other: BaseAgent) -> Tool:
    from dataclasses import replace

    from holdfast.prompt.perspective import HANDOFF_TOOL_PREFIX
    from holdfast.tools.tool import tool, tool_name

    def hand_over(reason: str = "") -> str:
        """Hand the conversation over.

        Args:
            reason: What the other one should know, in a sentence.
        """
        raise AssertionError("the loop answers this call itself")

    about = f"Hand the conversation over to {other.name}, who sees all of it and answers from then on."
    name = tool_name(HANDOFF_TOOL_PREFIX + (other.name or ""))
    made = tool(name=name, description=f"{about} {other.description or ''}".strip())(hand_over)
    return replace(made, signal=other.name)


# What needs pydantic is loaded by those who use it.


def _output_shape(schema: object) -> OutputShape:
    from holdfast.schema.output import OutputShape

    return OutputShape(schema)


def _shared_names(given: object) -> Sequence[str] | bool:
    from holdfast.prompt.state_values import check_shared_names

    return check_shared_names(given)


def _tools_by_name(given: object) -> dict[str, Tool]:
    from holdfast.tools.tool import as_tools

    return {tool.name: tool for tool in as_tools(given)}
