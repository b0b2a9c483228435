"""Event streams over HTTP: the log of a session as pages or as a stream, and one run as a stream.

The tail of a log is open before the run is admitted, so that no event or delta of the run is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from holdfast.concurrency import off_thread
from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.log.events import Event
from holdfast.log.view import decode_view
from holdfast.server.app import Server
from holdfast.server.auth import Caller, Chatter, Reader
from holdfast.server.errors import ERRORS
from holdfast.server.event_stream import EventStream, LogFrames, RunFrames, position_of
from holdfast.server.field_rights import DEVICE_MESSAGE_FIELDS, check_device_fields, sent_fields
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import handles_idempotency_itself, key_of, scope_of
from holdfast.server.large_answers import GrowingAnswer
from holdfast.server.rate_limits import Slot
from holdfast.server.row_portions import read_portions
from holdfast.server.run_requests import queue_message, reopen_turn
from holdfast.server.schemas import serializers
from holdfast.server.schemas.requests import MessageBody, ResumeBody
from holdfast.server.schemas.responses import EventsShape
from holdfast.server.schemas.serializers import json_response
from holdfast.server.schemas.stream_frames import LOG_STREAM, RUN_STREAM
from holdfast.session.session import parse_since
from holdfast.stores.base import MAX_SEQ, Log, TenantLog
from holdfast.worker.admission import AdmittedRun
from holdfast.worker.feed import Tail

router = APIRouter(route_class=StrictRoute, tags=["runs"], responses=ERRORS)
SSE = "text/event-stream"
MAX_BYTES = 4 << 20  # of the events in one page; a page of one event may have more


@router.post(
    "/sessions/{session_id}/message/stream",
    operation_id="message_stream",
    response_class=Response,
    responses={200: RUN_STREAM},
)
@handles_idempotency_itself
async def message_stream(
    caller: Chatter,
    request: Request,
    session_id: str,
    body: MessageBody,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Send a message and stream the answer. With the Idempotency-Key of an earlier run, the stream follows that
    run."""
    check_device_fields(caller, sent_fields(body), DEVICE_MESSAGE_FIELDS)
    server: Server = request.app.state.server
    key = key_of(request)
    return await _stream_new_run(
        server, caller, session_id, last_event_id, lambda: queue_message(server, caller, session_id, body, key)
    )


@router.post(
    "/sessions/{session_id}/resume/stream",
    operation_id="resume_stream",
    response_class=Response,
    responses={200: RUN_STREAM},
)
@handles_idempotency_itself
async def resume_stream(
    caller: Chatter,
    request: Request,
    session_id: str,
    body: ResumeBody,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Resume the session as `resume` does, and stream the turn. A session without an unfinished turn is an error."""
    server: Server = request.app.state.server
    key_scope = scope_of(request, caller)

    def reopen() -> tuple[Log, AdmittedRun]:
        log, run = reopen_turn(server, caller, session_id, body, key_scope)
        if run is None:
            raise InvalidArgument(f"session {session_id!r} has no unfinished turn: send a message")
        return log, run

    return await _stream_new_run(server, caller, session_id, last_event_id, reopen)


async def _stream_new_run(
    server: Server,
    caller: Caller,
    session_id: str,
    last_event_id: str | None,
    admit: Callable[[], tuple[Log, AdmittedRun]],
) -> EventStream:
    """Open the tail of a session, admit a run with `admit` on a thread, and return the stream of the run.

    The stream owns the slot and the tail; both are given back here if a step fails.
    """
    reader_position = position_of(last_event_id, None)
    with ExitStack() as undo:
        slot = undo.enter_context(server.limits.streams.hold(caller.key_id, caller.tenant))
        log = (await off_thread(caller.open_session, session_id)).log
        tail = await server.feed.open_tail(caller.store, log)
        undo.callback(server.feed.release_tail, tail)
        run_slot = await server.runs_under_way.hold(caller.key_id, caller.store)
        log, run = await off_thread(run_slot.admit, admit)
        server.runs.schedule_session(TenantLog(caller.tenant, log))
        undo.pop_all()
    return _stream_run(server, caller, tail, run, reader_position, slot)


def _stream_run(
    server: Server, caller: Caller, tail: Tail, run: AdmittedRun, reader_position: tuple[int, int], slot: Slot
) -> EventStream:
    where = max((run.seq, 0), reader_position)
    has_all_deltas = where[1] == 0 or any((item.seq, item.n) == where for item in tail.items)

    async def return_tail() -> Tail:
        return tail

    return EventStream(
        server,
        caller,
        return_tail,
        where=where,
        frames=lambda tail: RunFrames(tail, run.run_id, where[1], has_all_deltas),
        slot=slot,
    )


@router.get(
    "/sessions/{session_id}/events",
    operation_id="events",
    response_model=EventsShape,
    responses={200: LOG_STREAM},
)
async def events(
    caller: Reader,
    request: Request,
    session_id: str,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    types: Annotated[list[str] | None, Query()] = None,
    since: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
    accept: Annotated[str | None, Header()] = None,
) -> Response:
    """The log: one page of it, or with `Accept: text/event-stream` all events after `after`, then new ones as they
    are appended."""
    server: Server = request.app.state.server
    if accept is not None and SSE in accept:
        where = position_of(last_event_id, after)
        log = (await off_thread(caller.open_session, session_id)).log
        return EventStream(
            server,
            caller,
            lambda: server.feed.open_tail(caller.store, log),
            where=where,
            frames=lambda _: LogFrames(types or ()),
        )

    def answer_page() -> Response:
        with server.large_answers.begin(caller) as answer:
            return json_response(_event_page(caller, session_id, after, limit, types, since, answer))

    async with server.limits.share_of(caller.tenant):
        return await off_thread(answer_page)


def _event_page(
    caller: Caller,
    session_id: str,
    after: int | None,
    limit: int,
    types: list[str] | None,
    since: str | None,
    answer: GrowingAnswer,
) -> dict[str, Any]:
    session = caller.open_session(session_id)
    start = None if since is None else parse_since(since)
    first = 1 if after is None else min(after, MAX_SEQ) + 1
    portions = read_portions(session.store, session.log, first, reverse=after is None, types=types or (), since=start)
    unverified = decode_view(session.store.head(session.log).view).unverified
    page: list[Event] = []
    has_more = False
    for row in (row for rows in portions for row in rows):
        size = answer.add(len(row.body or b""))
        has_more = len(page) == limit or (size > MAX_BYTES and bool(page))
        if has_more:
            break
        page.append(Event(row, unverified=unverified))
    if after is None:
        if has_more and len(page) < limit:
            hint = "use after=0, and `next` of each page"
            raise LimitExceeded("this page", size=answer.size, limit=MAX_BYTES, hint=hint)
        page.reverse()
    return {
        "events": [serializers.event_dict(event) for event in page],
        "next": page[-1].seq if has_more and after is not None else None,
        "head": session.head,
    }
