"""Running an agent or a flow, in a session or without one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.agent_base import BaseAgent
from holdfast.concurrency import off_thread
from holdfast.errors import InvalidArgument
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.messages import Message
from holdfast.session.session import Session
from holdfast.stores.messages import message_of

if TYPE_CHECKING:
    from holdfast.session.turns import AsyncStream
    from holdfast.turn.response import Response
    from holdfast.turn.stream_events import StreamEvent


class Runner:
    """Asks an agent, or a flow of agents: `Runner(flow).run("Write about bees", session=session)`.

    The session may be given here or with each run; without one, each run has a throw-away session of its own.
    """

    def __init__(self, agent: BaseAgent, *, session: Session | None = None) -> None:
        if not isinstance(agent, BaseAgent):
            raise InvalidArgument(f"Runner takes an agent or a flow, not {type(agent).__name__}")
        self.agent, self.session = agent, session

    def __repr__(self) -> str:
        return f"Runner({self.agent!r})"

    def _session_for(self, session: Session | None) -> Session:
        found = session if session is not None else self.session
        return found if found is not None else self.agent.default_session()

    def run(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        session: Session | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Response:
        """Ask, and wait for the answer. Takes what `Session.run` takes."""
        return self._session_for(session).run(message, agent=self.agent, **options)

    async def run_async(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        session: Session | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Response:
        return await self._session_for(session).run_async(message, agent=self.agent, **options)

    def stream(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        session: Session | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Iterator[StreamEvent]:
        """Ask, and see what happens as it happens; each event has the name of its agent."""
        return self._session_for(session).stream(message, agent=self.agent, **options)

    def stream_async(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        session: Session | None = None,
        **options: Any,  # noqa: ANN401
    ) -> AsyncStream:
        return self._session_for(session).stream_async(message, agent=self.agent, **options)

    def run_stream(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        session: Session | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Iterator[Message]:
        """Ask, and get each message of the run as soon as it is stored, with its author: replies, and results of tools.
        Leaving early cancels the run."""
        found = self._session_for(session)
        news = _NewMessages(found)
        events = Session.stream(found, message, agent=self.agent, **options)
        try:
            for event in events:
                if news.may_have_new(event):
                    yield from news.read()
        finally:
            events.close()  # type: ignore[attr-defined]

    async def run_stream_async(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        session: Session | None = None,
        **options: Any,  # noqa: ANN401
    ) -> AsyncIterator[Message]:
        found = self._session_for(session)
        news = await off_thread(_NewMessages, found)
        events = Session.stream_async(found, message, agent=self.agent, **options)
        try:
            async for event in events:
                if news.may_have_new(event):
                    for each in await off_thread(news.read):
                        yield each
        finally:
            await events.aclose()


class _NewMessages:
    """The messages of a run, read from the log as they come in."""

    def __init__(self, session: Session) -> None:
        self._store, self._log = session.store, session.log
        self._after = session.head
        self._run = ""
        self._has_seen_question = False  # the question was seen, which is no news to the caller

    def may_have_new(self, event: StreamEvent) -> bool:
        """Whether something may have been stored. A reply is, at the latest, when the next thing begins."""
        if event.type == "message_start":
            self._run = event.run_id
        return event.type in ("message_start", "tool_result", "done")

    def read(self) -> list[Message]:
        found: list[Message] = []
        for row in self._store.read(self._log, self._after + 1):
            self._after, event = row.seq, Event(row)
            if row.type not in MESSAGE_TYPES or event.run != self._run or row.type == "summary.added":
                continue
            if not self._has_seen_question:
                self._has_seen_question = True
            elif not event.data.get("rejected") and not event.data.get("aside"):
                found.append(message_of(self._store, self._log, row))
        return found
