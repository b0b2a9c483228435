"""Asking an agent over HTTP. A message is admitted to the log before anything runs; the request only waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from holdfast.concurrency import off_thread
from holdfast.errors import InvalidArgument, NotFound, QueueFull, SessionBusy, StoreError, Unavailable, from_code
from holdfast.log.messages import Message
from holdfast.log.view import View, view_of
from holdfast.server.app import Server
from holdfast.server.auth import Reader, Who, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.event_stream import EventStream, LogFrames, RunFrames, position_of
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import KEPT, key_of, own_answers, scope_of
from holdfast.server.rate_limits import Slot
from holdfast.server.schemas import serializers as shapes
from holdfast.server.schemas.requests import CancelBody, MessageBody, ResumeBody
from holdfast.server.schemas.responses import AnswerShape, EventsShape, RunShape, RunsShape
from holdfast.server.schemas.serializers import reply
from holdfast.server.schemas.stream_frames import LOG_STREAM, RUN_STREAM
from holdfast.stores.append import Head
from holdfast.stores.base import Due, Log, Store
from holdfast.turn.response import Response as Answer
from holdfast.turn.run_outcome import Outcome, outcome_of, recent_runs
from holdfast.worker.feed import Tail
from holdfast.worker.run_pool import Admitted, Asked, Result, admit, refuse_waiting, run_of_key

router = APIRouter(route_class=StrictRoute, tags=["runs"], responses=ERRORS)
SSE = "text/event-stream"
LOOK_FOR_CLIENT = 2.0  # seconds between two looks whether anybody still waits for an answer
RESUMED = "resumed"  # slips: which turn a key has resumed


# -- asking -----------------------------------------------------------------------------------------------------------


@router.post("/sessions/{session_id}/message", response_model=AnswerShape, operation_id="message")
@own_answers
async def message(who: Writer, request: Request, session_id: str, body: MessageBody) -> Response:
    """Ask, and wait for the answer. The run goes on if the connection breaks; the same Idempotency-Key finds it."""
    server: Server = request.app.state.server
    with server.limits.runs.hold(who.key_id):
        waiting = _Waiting(server)
        key = key_of(request)
        found = await _on_a_run_thread(request, lambda over: _ask(server, who, session_id, body, key, over))
        if found is None:
            return reply({})  # nobody reads it; the run goes on
        if isinstance(found, Answer):
            return reply(shapes.answer_dict(found))
        log, run = found
        waiting.begin(who.store, log, run.run_id)
        if run.repeated:
            waiting.look_first()
        return reply(await waiting.answer(request, body.timeout))


@router.post(
    "/sessions/{session_id}/message/stream",
    operation_id="message_stream",
    response_class=Response,
    responses={200: RUN_STREAM},
)
@own_answers
async def message_stream(
    who: Writer,
    request: Request,
    session_id: str,
    body: MessageBody,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Ask, and see the answer come. With the Idempotency-Key of a run that there is, attach to it."""
    server: Server = request.app.state.server
    asked = position_of(last_event_id, None)
    slot = server.limits.streams.hold(who.key_id)
    try:
        log = (await off_thread(who.open, session_id))._log
        tail = await server.feed.tail(who.store, log)  # before the run begins, so that nothing of it is missed
        try:
            log, run = await off_thread(_admit, server, who, session_id, body, key_of(request))
            server.runs.start(Due(who.tenant, log))
        except BaseException:
            server.feed.leave(tail)
            raise
    except BaseException:
        slot.release()
        raise
    return _run_stream(server, who, tail, run.run_id, run.seq, asked, slot)


@router.post("/sessions/{session_id}/resume", response_model=AnswerShape, operation_id="resume")
@own_answers
async def resume(who: Writer, request: Request, session_id: str, body: ResumeBody) -> Response:
    """Un-pause if paused; then finish the unfinished or decided turn, if there is one."""
    server: Server = request.app.state.server
    with server.limits.runs.hold(who.key_id):
        waiting = _Waiting(server)
        log, run = await off_thread(_resume, server, who, session_id, body, scope_of(request, who))
        if run is None:
            return reply(shapes.NOTHING_TO_RESUME)
        waiting.begin(who.store, log, run.run_id)
        if run.repeated and not server.runs.is_here(run.run_id, log.number):
            waiting.look_first()
        return reply(await waiting.answer(request, None))


@router.post(
    "/sessions/{session_id}/resume/stream",
    operation_id="resume_stream",
    response_class=Response,
    responses={200: RUN_STREAM},
)
@own_answers
async def resume_stream(
    who: Writer,
    request: Request,
    session_id: str,
    body: ResumeBody,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The same, seen as it comes. With nothing to resume it is a conflict."""
    server: Server = request.app.state.server
    asked = position_of(last_event_id, None)
    slot = server.limits.streams.hold(who.key_id)
    try:
        log = (await off_thread(who.open, session_id))._log
        tail = await server.feed.tail(who.store, log)
        try:
            log, run = await off_thread(_resume, server, who, session_id, body, scope_of(request, who))
            if run is None:
                raise InvalidArgument(f"session {session_id!r} has no unfinished turn: send a message")
            server.runs.start(Due(who.tenant, log))
        except BaseException:
            server.feed.leave(tail)
            raise
    except BaseException:
        slot.release()
        raise
    return _run_stream(server, who, tail, run.run_id, run.seq, asked, slot)


Found = Answer | tuple[Log, Admitted]


async def _on_a_run_thread(
    request: Request, work: Callable[[Callable[[Found | BaseException], None]], Found]
) -> Found | None:
    """Do something on a thread that runs turns, if one is free: whoever admits a message may go on with it at once.
    If none is, others wait already, and it is only admitted. None if the client has gone meanwhile."""
    server: Server = request.app.state.server
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Found | BaseException] = loop.create_future()

    def tell(found: Found | BaseException) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if told.done() else told.set_result(found))

    def run() -> None:
        try:
            tell(work(tell))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            tell(error)

    if not server.runs.submit(run):
        return await off_thread(work, tell)
    while not told.done():
        await asyncio.wait({told}, timeout=LOOK_FOR_CLIENT)
        if not told.done() and await request.is_disconnected():
            return None
    found = told.result()
    if isinstance(found, BaseException):
        raise found
    return found


def _asked(server: Server, who: Who, log: Log, body: MessageBody, key: str | None) -> tuple[Head, View, Asked]:
    """A message as the log will have it, if the session takes one."""
    store = who.store
    once = None if key is None else _once(who, key)
    head = store.head(log)
    view = view_of(head.view)
    known = once is not None and store.lookup(log, "run/" + run_of_key(log, once)) is not None
    if not known:
        refuse_waiting(view, log.id)
        if len(view.queue) >= server.config.queue:
            raise QueueFull(server.config.queue)
        server.catalog.find(store, body.agent_id)  # an agent that is not there is the client's mistake
    return (
        head,
        view,
        Asked(
            message=Message.of(body.message),
            agent=body.agent_id,
            options=body.options(),
            metadata=body.metadata,
            on_busy=body.on_busy,
            once=once,
            actor=shapes.actor_of(who),
        ),
    )


def _ask(
    server: Server,
    who: Who,
    session_id: str,
    body: MessageBody,
    key: str | None,
    over: Callable[[Found | BaseException], None],
) -> Found:
    """Admit a message, and run it if nothing is before it. `over` hears of a run's end, if that comes first."""
    _refuse_draining(server)
    log = who.open(session_id)._log
    head, view, asked = _asked(server, who, log, body, key)
    if view.turn is None and not view.queue:

        def ended(run: str, result: Result) -> None:
            over((log, Admitted(run_id=run, seq=0, repeated=True)) if result is None else result)

        found = server.runs.ask(who.store, log, head, asked, ended)
        if not isinstance(found, Answer):
            _interrupt(server, who, log, asked, found)
        return found if isinstance(found, Answer) else (log, found)
    return log, _admitted(server, who, log, asked)


def _admit(server: Server, who: Who, session_id: str, body: MessageBody, key: str | None) -> tuple[Log, Admitted]:
    """Take a message into the log; on a thread."""
    _refuse_draining(server)
    log = who.open(session_id)._log
    _, _, asked = _asked(server, who, log, body, key)
    return log, _admitted(server, who, log, asked)


def _admitted(server: Server, who: Who, log: Log, asked: Asked) -> Admitted:
    run = admit(who.store, log, asked)
    server.feed.nudge(log)
    _interrupt(server, who, log, asked, run)
    return run


def _interrupt(server: Server, who: Who, log: Log, asked: Asked, run: Admitted) -> None:
    """End the turn that was open when an interrupting message came in."""
    if asked.on_busy == "interrupt" and not run.repeated:
        turn = view_of(who.store.head(log).view).turn
        if turn is not None and turn.run != run.run_id and turn.first < run.seq:
            server.runs.cancel(who.store, log, turn.run, actor=asked.actor)


def _once(who: Who, key: str) -> str:
    """What a key is unique in: the session, and whoever asks."""
    return f"{who.user or ''}\n{key}"


def _resume(
    server: Server, who: Who, session_id: str, body: ResumeBody, place: str | None
) -> tuple[Log, Admitted | None]:
    """Make an open turn one that is to be run; on a thread. A key that resumed a turn before finds that turn again."""
    _refuse_draining(server)
    session = who.open(session_id)
    store, log = who.store, session._log
    known = None if place is None else store.slip(RESUMED, place)
    if known is not None:
        run, seq = known.decode().split()
        return log, Admitted(run_id=run, seq=int(seq), repeated=True)
    if body.agent_id is not None and view_of(store.head(log).view).turn is not None:
        server.catalog.find(store, body.agent_id)  # before anything is written
    if session.status in ("paused", "closed", "archived"):
        session._move("session.resumed", body.reason, shapes.actor_of(who, body.actor))
        server.feed.nudge(log)
    found = server.runs.reopen(store, log, body.agent_id)
    if found is not None and place is not None:
        value = f"{found.run_id} {found.seq}".encode()
        store.put_slip(RESUMED, place, value, expires=store.ids.now() + KEPT)
    return log, found


def _refuse_draining(server: Server) -> None:
    if server.draining:
        raise Unavailable("this server is shutting down: try again, another one may answer", retry_after=1.0)


class _Waiting:
    """A request that waits for a run: told by the thread that runs it here, else by looking at the log."""

    def __init__(self, server: Server) -> None:
        self._server, self._loop = server, asyncio.get_running_loop()
        self._told: asyncio.Future[Answer | BaseException | None] = self._loop.create_future()
        self._look = False

    def begin(self, store: Store, log: Log, run: str) -> None:
        self._store, self._log, self._run = store, log, run
        self._forget = self._server.runs.when_over(
            run, lambda result: self._loop.call_soon_threadsafe(self._resolve, result)
        )
        self._server.runs.start(Due(store.tenant, log))

    def look_first(self) -> None:
        self._look = True

    def _resolve(self, result: Answer | BaseException | None) -> None:
        if not self._told.done():
            self._told.set_result(result)

    async def answer(self, request: Request, timeout: float | None) -> dict[str, Any]:
        """What came of the run. `timeout` bounds the time that it stays in the queue."""
        server, ids = self._server, self._store.ids
        deadline = None if timeout is None else ids.elapsed() + timeout
        look_again = ids.elapsed() + LOOK_FOR_CLIENT
        try:
            while True:
                result = None
                if not self._look:
                    await asyncio.wait({self._told}, timeout=server.config.poll)
                    result = self._told.result() if self._told.done() else None
                if isinstance(result, Answer):
                    return shapes.answer_dict(result)
                if isinstance(result, BaseException):
                    raise result
                if self._look or self._told.done() or not server.runs.is_here(self._run, self._log.number):
                    found = await self._from_log()
                    if found is not None:
                        return found
                    self._told = self._loop.create_future() if self._told.done() else self._told
                self._look = False
                if server.draining and not server.runs.is_here(self._run, self._log.number):
                    _refuse_draining(server)
                if ids.elapsed() > look_again:
                    look_again = ids.elapsed() + LOOK_FOR_CLIENT
                    if await request.is_disconnected():
                        return {}  # nobody reads it; the run goes on
                if deadline is not None and ids.elapsed() > deadline:
                    await self._give_up()
                    deadline = None
        finally:
            self._forget()

    async def _from_log(self) -> dict[str, Any] | None:
        try:
            outcome = await off_thread(outcome_of, self._store, self._log, self._run)
        except StoreError:
            return None  # it is away for a moment, the run is not
        if outcome is None:
            raise NotFound("run", self._run)
        return outcome_answer(outcome)

    async def _give_up(self) -> None:
        """Its time in the queue is over: take it out, unless it has begun."""
        view = view_of((await off_thread(self._store.head, self._log)).view)
        begun = view.turn is not None and view.turn.run == self._run
        if not begun and await off_thread(self._server.runs.cancel, self._store, self._log, self._run):
            raise SessionBusy(self._log.id, retry_after=1.0)


def outcome_answer(outcome: Outcome) -> dict[str, Any] | None:
    """The answer to a request that waited for this run; None while there is none."""
    if outcome.response is not None:
        return shapes.answer_dict(outcome.response)
    if outcome.status in ("failed", "cancelled", "interrupted", "parked"):
        default = {"failed": "turn_failed", "parked": "turn_parked"}.get(outcome.status, "turn_cancelled")
        error = outcome.error or {"code": default, "text": f"the run was {outcome.status}"}
        raise from_code(error["code"], error["text"], error.get("details"))
    return None


def _run_stream(
    server: Server, who: Who, tail: Tail, run: str, seq: int, asked: tuple[int, int], slot: Slot
) -> EventStream:
    where = max((seq, 0), asked)
    sure = where[1] == 0 or any((item.seq, item.n) == where for item in tail.items)

    async def opened() -> Tail:
        return tail

    return EventStream(
        server,
        who.key_id,
        opened,
        where=where,
        frames=lambda tail: RunFrames(tail, run, where[1], sure),
        slot=slot,
    )


# -- looking ----------------------------------------------------------------------------------------------------------


@router.get(
    "/sessions/{session_id}/events",
    operation_id="events",
    response_model=EventsShape,
    responses={200: LOG_STREAM},
)
async def events(
    who: Reader,
    request: Request,
    session_id: str,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    types: Annotated[list[str] | None, Query()] = None,
    since: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
    accept: Annotated[str | None, Header()] = None,
) -> Response:
    """The log: a page of it, or with `Accept: text/event-stream` all of it from `after` on, then what comes."""
    server: Server = request.app.state.server
    if accept is not None and SSE in accept:
        where = position_of(last_event_id, after)
        log = (await off_thread(who.open, session_id))._log
        return EventStream(
            server,
            who.key_id,
            lambda: server.feed.tail(who.store, log),
            where=where,
            frames=lambda _: LogFrames(types or ()),
        )
    return reply(await off_thread(_page, who, session_id, after, limit, types, since))


def _page(
    who: Who, session_id: str, after: int | None, limit: int, types: list[str] | None, since: str | None
) -> dict[str, Any]:
    session = who.open(session_id)
    found = session.events(since=since, limit=limit, types=types, after=after)
    more = len(found) == limit and after is not None
    return {
        "events": [shapes.event_dict(event) for event in found],
        "next": found[-1].seq if more else None,
        "head": session.head,
    }


@router.get("/sessions/{session_id}/runs", operation_id="runs", response_model=RunsShape)
def runs(who: Reader, session_id: str, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Response:
    """The newest runs of a session, queued ones included."""
    session = who.open(session_id)
    return reply({"runs": [shapes.run_dict(run) for run in recent_runs(who.store, session._log, limit)]})


@router.get("/sessions/{session_id}/runs/{run_id}", operation_id="run", response_model=RunShape)
def run(who: Reader, session_id: str, run_id: str) -> Response:
    """How far a run is; with its response once it has one."""
    return reply(shapes.run_dict(_found(who, who.open(session_id)._log, run_id)))


@router.post("/sessions/{session_id}/runs/{run_id}/cancel", operation_id="cancel", response_model=RunShape)
def cancel(who: Writer, request: Request, session_id: str, run_id: str, body: CancelBody | None = None) -> Response:
    """End a run, queued or under way, on whichever server it is. One that is over stays as it is."""
    server: Server = request.app.state.server
    log = who.open(session_id)._log
    found = _found(who, log, run_id)
    server.runs.cancel(who.store, log, found.run_id, actor=shapes.actor_of(who))
    server.runs.start(Due(who.tenant, log))  # what is queued behind it
    return reply(shapes.run_dict(_found(who, log, found.run_id)))


def _found(who: Who, log: Log, run_id: str) -> Outcome:
    """A run by its id, or by the Idempotency-Key of the message that it answers."""
    found = outcome_of(who.store, log, run_id) or outcome_of(who.store, log, run_of_key(log, _once(who, run_id)))
    if found is None:
        raise NotFound("run", run_id)
    return found
