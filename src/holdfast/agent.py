"""The agent: who answers. A name, a model, tools and instructions; it keeps no conversation of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument
from holdfast.log.messages import Message
from holdfast.loop.settings import Settings
from holdfast.session import Session
from holdfast.stores.base import SessionStore, Store
from holdfast.stores.opening import open_store

if TYPE_CHECKING:
    from holdfast.loop.output import OutputShape
    from holdfast.loop.response import Response
    from holdfast.loop.stream import StreamEvent
    from holdfast.loop.tools import Tool
    from holdfast.models.base import Model
    from holdfast.turns import AsyncStream


class Agent:
    """Who answers in a session.

        agent = Agent(provider="openai", model="gpt-4o", tools=[get_user_orders])
        agent.session().run("What did I order?")

    Without a model it is the configured default (`HOLDFAST_MODEL`). `instructions` (or `system`) may name state:
    "Improve: {draft}".
    """

    def __init__(
        self,
        *,
        provider: str | None = None,
        model: str | Model | None = None,
        tools: object = None,
        name: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        system: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 120,
        max_retries: int = 2,
        temperature: float | None = None,
        max_tokens: int | None = None,
        max_steps: int = 50,
        output_schema: object = None,
        output_key: str | None = None,
        extract: Callable[[Response], Mapping[str, Any] | None] | None = None,
        store: Store | SessionStore | str | None = None,
        session: Session | None = None,
        script: Sequence[Any] | Callable[..., Any] | None = None,
    ) -> None:
        if instructions is not None and system is not None and instructions != system:
            raise InvalidArgument("instructions= and system= are the same thing: give one of them")
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise InvalidArgument(f"max_steps={max_steps!r}: use a whole number above 0")
        self.name, self.description = name, description
        self.instructions = instructions if instructions is not None else system
        self.timeout, self.max_steps = timeout, max_steps
        self.output_key, self.extract = output_key, extract
        self.shape = None if output_schema is None else _shape(output_schema)
        self.tools = {} if tools is None else _tools(tools)
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

    def settings(self) -> Settings:
        """This agent, as the loop needs it."""
        return Settings(
            name=self.name,
            model=self.model,
            tools=self.tools,
            instructions=self.instructions,
            max_steps=self.max_steps,
            timeout=self.timeout,
            output_key=self.output_key,
            extract=self.extract,
            options=self._options,
        )

    def session(self, session_id: str | None = None, **options: Any) -> Session:  # noqa: ANN401 - those of Session
        """A session with this agent: opened if the id exists, else created. Takes what `Session` takes."""
        return Session(session_id, agent=self, **options)

    def _own(self) -> Session:
        """The session of a question that names none: the agent's, else a throw-away one."""
        from holdfast.stores.memory import MemoryStore

        return self._session if self._session is not None else Session(agent=self, store=MemoryStore())

    def run(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        """Ask in the agent's session, or in a throw-away one. Takes what `Session.run` takes."""
        return self._own().run(message, agent=self, **options)

    async def run_async(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        return await self._own().run_async(message, agent=self, **options)

    def stream(self, message: str | Message | Mapping[str, Any], **options: Any) -> Iterator[StreamEvent]:  # noqa: ANN401
        return self._own().stream(message, agent=self, **options)

    def stream_async(self, message: str | Message | Mapping[str, Any], **options: Any) -> AsyncStream:  # noqa: ANN401
        return self._own().stream_async(message, agent=self, **options)

    def json(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        return self._own().json(message, agent=self, **options)

    async def json_async(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        return await self._own().json_async(message, agent=self, **options)


# What needs pydantic is loaded by those who use it.


def _shape(schema: object) -> OutputShape:
    from holdfast.loop.output import OutputShape

    return OutputShape(schema)


def _tools(given: object) -> dict[str, Tool]:
    from holdfast.loop.tools import as_tools

    return {tool.name: tool for tool in as_tools(given)}
