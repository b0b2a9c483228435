"""`BaseAgent`, the base class of `Agent` and of flows: everything that a session can ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.concurrency import off_thread
from holdfast.errors import AgentError, InvalidArgument, TurnCancelled
from holdfast.log.identifiers import session_of_call
from holdfast.log.messages import Message
from holdfast.log.view import decode_view
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


class BaseAgent(ABC):
    """The common part of agents and flows: they answer in sessions, and can be tools of other agents.

    The `_async` methods call those of `Session`, which run on the event loop itself, so they are no twins.
    """

    name: str | None
    description: str | None
    model: Model  # the model of the agent that is asked first
    store: Store | None = None
    timeout: float = 120  # seconds to wait for other turns of the session
    _session: Session | None = None  # the session of `run`, `stream` and `json`

    @abstractmethod
    def plan(self) -> Plan:
        """Return the agents that answer, in the form that the turn loop reads."""

    def session(self, session_id: str | None = None, **options: Any) -> Session:  # noqa: ANN401 - those of Session
        """Open the session with this id, or create it, with this agent. Takes the options of `Session`."""
        return Session(session_id, agent=self, **options)

    async def session_async(self, session_id: str | None = None, **options: Any) -> Session:  # noqa: ANN401
        """Do as `session`, without blocking the event loop."""
        return await off_thread(self.session, session_id, **options)

    def default_session(self) -> Session:
        """Return the session of `run`, `stream` and `json`: the agent's own, else a new one in memory."""
        from holdfast.stores.memory import MemoryStore

        return self._session if self._session is not None else Session(agent=self, store=MemoryStore())

    def run(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        """Do as `Session.run` in the agent's own session, else in a new one in memory. Takes the same options."""
        return self.default_session().run(message, agent=self, **options)

    async def run_async(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        """Do as `Session.run_async` in the session that `run` uses."""
        return await self.default_session().run_async(message, agent=self, **options)

    def stream(self, message: str | Message | Mapping[str, Any], **options: Any) -> Iterator[StreamEvent]:  # noqa: ANN401
        """Do as `Session.stream` in the session that `run` uses."""
        return self.default_session().stream(message, agent=self, **options)

    def stream_async(self, message: str | Message | Mapping[str, Any], **options: Any) -> AsyncStream:  # noqa: ANN401
        """Do as `Session.stream_async` in the session that `run` uses."""
        return self.default_session().stream_async(message, agent=self, **options)

    def json(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        """Do as `Session.json` in the session that `run` uses."""
        return self.default_session().json(message, agent=self, **options)

    async def json_async(self, message: str | Message | Mapping[str, Any], **options: Any) -> Response:  # noqa: ANN401
        """Do as `Session.json_async` in the session that `run` uses."""
        return await self.default_session().json_async(message, agent=self, **options)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float = 1800,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> Tool:
        """Return this agent as a tool for another agent. Each call has a session of its own, in the caller's store.

        The id of that session comes from the call, so a caller that is resumed after a crash resumes the session too.
        Its usage counts in the caller's session, and the caller's budget bounds it.
        """
        from holdfast.tools.tool import ToolContext, tool, tool_name

        called = name or self.name
        if not called:
            raise InvalidArgument("an agent without a name needs as_tool(name=...)")

        def ask(request: str, ctx: ToolContext) -> object:
            return _call_as_tool(self, request, ctx, budget)

        ask.__annotations__ = {"request": str, "ctx": ToolContext, "return": object}
        about = description or self.description or f"Ask {called}."
        return tool(name=tool_name(called), description=about, idempotent=True, timeout=timeout)(ask)


def _call_as_tool(
    agent: BaseAgent, request: str, ctx: ToolContext, budget: Budget | Mapping[str, Any] | None
) -> object:
    """Run one call of an agent as a tool: start its session, resume it, or read the answer from its log."""
    from holdfast.tools.tool import CALLER_BUDGET, MeteredResult

    caller: Session = ctx.session
    session = Session(
        session_of_call(ctx.idempotency_key),
        agent=agent,
        store=caller.store,
        user_id=caller.user_id,
        app_name=caller.app_name,
        metadata={"caller": caller.id, "agent": agent.name},
        work_dir=ctx.work_dir,
        budget=budget,
        retention=caller.retention,  # kept as long as the conversation that it belongs to
    )
    token, is_error = CALLER_BUDGET.set(ctx.report_usage), False
    try:
        text = _answer_tool_call(session, request, ctx)
    except AgentError as error:  # the usage until the error still counts
        text, is_error = str(error), True
    finally:
        CALLER_BUDGET.reset(token)
    used = decode_view(session.store.head(session.log).view).usage
    counted = {
        name: amount for name, amount in used.items() if name != "milliseconds"
    }  # the caller counts this time itself
    return MeteredResult(content=text, usage=counted, session=session.id, is_error=is_error)


def _answer_tool_call(session: Session, request: str, ctx: ToolContext) -> str:
    """Return the answer of the agent. Raises Interrupt if calls of the agent wait for a decision."""
    from holdfast.tools.tool import Interrupt
    from holdfast.turn.run_outcome import outcome_of, recent_runs

    view = decode_view(session.store.head(session.log).view)
    if (
        view.turn is None and view.turns
    ):  # the turn is finished: the calling process ended before it recorded the answer
        last = recent_runs(session.store, session.log, 1)[0]
        found = outcome_of(session.store, session.log, last.run_id)
        return "" if found is None or found.response is None else found.response.text
    waiting = session.pending
    if not waiting:
        response = _run_request(session, request, ctx, is_open=view.turn is not None)
        if response.status != "waiting":
            return response.text
        waiting = response.pending
    calls = [{"call_id": each.call_id, "name": each.name} for each in waiting]
    raise Interrupt({"session": session.id, "pending": calls})  # the decisions in that session let this call continue


def _run_request(session: Session, request: str, ctx: ToolContext, *, is_open: bool) -> Response:
    """Resume the open turn, or ask anew. Raises TurnCancelled if the caller cancels the tool call."""
    if is_open:
        found = session.resume()
        if found is not None:
            return found
    response: Response | None = None
    events = session.stream(request)
    for event in events:
        if event.type == "done":
            response = event.response
        elif ctx.cancelled:  # the caller no longer waits: closing the stream cancels the turn
            events.close()  # type: ignore[attr-defined]
            break
    if response is None:
        raise TurnCancelled
    return response
