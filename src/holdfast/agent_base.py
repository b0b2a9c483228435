"""Whoever can be asked: one agent, or several that answer together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import AgentError, InvalidArgument, TurnCancelled
from holdfast.log.identifiers import session_of_call
from holdfast.log.messages import Message
from holdfast.log.view import view_of
from holdfast.session.session import Session
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.models.base import Model
    from holdfast.plan import Plan
    from holdfast.policy.budget import Budget
    from holdfast.session.turns import AsyncStream
    from holdfast.tools.tool import Tool, ToolContext
    from holdfast.turn.response import Response
    from holdfast.turn.stream_events import StreamEvent


class Askable(ABC):
    """What agents and flows have in common: they answer in sessions, and can be tools of others."""

    name: str | None
    description: str | None
    model: Model  # of whoever is asked first
    store: Store | None = None
    timeout: float = 120
    _session: Session | None = None

    @abstractmethod
    def plan(self) -> Plan:
        """Who answers, as the loop needs to know it."""

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

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float = 1800,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> Tool:
        """This agent as a tool of another one: each call is a session of its own, in the caller's store.

        The session is named after the call, so a caller that is resumed after a crash resumes it too. What it uses
        counts in the caller's session and is bounded by the caller's budget.
        """
        from holdfast.tools.tool import ToolContext, tool, tool_name

        called = name or self.name
        if not called:
            raise InvalidArgument("an agent without a name needs as_tool(name=...)")

        def ask(request: str, ctx: ToolContext) -> object:
            return _called(self, request, ctx, budget)

        ask.__annotations__ = {"request": str, "ctx": ToolContext, "return": object}
        about = description or self.description or f"Ask {called}."
        return tool(name=tool_name(called), description=about, idempotent=True, timeout=timeout)(ask)


def _called(agent: Askable, request: str, ctx: ToolContext, budget: Budget | Mapping[str, Any] | None) -> object:
    """One call of an agent as a tool: begun, gone on with, or answered from its log."""
    from holdfast.tools.tool import METER, Spent

    caller: Session = ctx.session
    session = Session(
        session_of_call(ctx.idempotency_key),
        agent=agent,
        store=caller.store,
        user_id=caller.user_id,
        app_name=caller.app_name,
        metadata={"caller": caller.id, "agent": agent.name},
        work_dir=caller.work_dir,
        budget=budget,
        retention=caller.retention,  # it is kept as the conversation is that it belongs to
    )
    token, is_error = METER.set(ctx._meter), False
    try:
        text = _answer(session, request, ctx)
    except AgentError as error:  # what it used until then counts all the same
        text, is_error = str(error), True
    finally:
        METER.reset(token)
    used = view_of(session.store.head(session._log).view).usage
    counted = {name: amount for name, amount in used.items() if name != "milliseconds"}  # the caller's clock runs too
    return Spent(content=text, usage=counted, session=session.id, is_error=is_error)


def _answer(session: Session, request: str, ctx: ToolContext) -> str:
    from holdfast.tools.tool import Interrupt
    from holdfast.turn.run_outcome import outcome_of, recent_runs

    view = view_of(session.store.head(session._log).view)
    if view.turn is None and view.turns:  # it was answered, and whoever asked has gone before it could tell
        last = recent_runs(session.store, session._log, 1)[0]
        found = outcome_of(session.store, session._log, last.run_id)
        return "" if found is None or found.response is None else found.response.text
    waiting = session.pending
    if not waiting:
        response = _asked(session, request, ctx, is_open=view.turn is not None)
        if response.status != "waiting":
            return response.text
        waiting = response.pending
    calls = [{"call_id": each.call_id, "name": each.name} for each in waiting]
    raise Interrupt({"session": session.id, "pending": calls})  # whoever decides there lets this call go on


def _asked(session: Session, request: str, ctx: ToolContext, *, is_open: bool) -> Response:
    if is_open:
        found = session.resume()
        if found is not None:
            return found
    response: Response | None = None
    events = session.stream(request)
    for event in events:
        if event.type == "done":
            response = event.response
        elif ctx.cancelled:  # whoever called has gone: leaving the stream cancels the turn
            events.close()  # type: ignore[attr-defined]
            break
    if response is None:
        raise TurnCancelled
    return response
