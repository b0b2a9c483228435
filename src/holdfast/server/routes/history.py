"""The messages of a session, and the context that a model is sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.errors import InstructionsFailed, InvalidArgument, LimitExceeded
from holdfast.log.events import MESSAGE_TYPES, Row
from holdfast.log.messages import File, Image, Message
from holdfast.log.ranges import clip_ranges
from holdfast.log.view import decode_view
from holdfast.server.auth import Caller, Reader, Writer
from holdfast.server.errors import ERRORS, log_unexpected_error
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import scope_of
from holdfast.server.large_answers import GrowingAnswer, estimate_bytes
from holdfast.server.row_portions import read_portions
from holdfast.server.schemas import requests, responses, sent_messages
from holdfast.server.schemas.serializers import (
    Serving,
    SessionId,
    actor_of,
    context_dict,
    json_response,
    message_dict,
    prune_report_dict,
    session_dict,
)
from holdfast.session.session import Session
from holdfast.stores.base import MAX_SEQ
from holdfast.stores.messages import message_of
from holdfast.turn.instructions import hide_cause

router = APIRouter(route_class=StrictRoute, tags=["history"], responses=ERRORS)
MAX_BYTES = 16 << 20  # of the messages and their files in one page; a page of one message may have more


@router.get(
    "/sessions/{session_id}/history",
    operation_id="get_history",
    summary="The last messages",
    response_model=responses.Messages,
)
def get_history(
    caller: Reader,
    server: Serving,
    session_id: SessionId,
    limit: Annotated[int, Query(ge=0, le=1000)] = 100,
    role: Annotated[sent_messages.Role | None, Query()] = None,
    skip: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Leave out so many of the newest.")] = 0,
) -> Response:
    """The last messages, oldest first."""
    with server.large_answers.begin(caller) as answer:
        found = _message_page(caller.open_session(session_id), limit, role, skip, answer)
        return json_response({"messages": [message_dict(each) for each in found]})


def _message_page(session: Session, limit: int, role: str | None, skip: int, answer: GrowingAnswer) -> list[Message]:
    """Return the last messages before the newest `skip`, oldest first; holds one page in memory at most."""
    found: list[Message] = []
    if not limit:
        return found
    for row in _rows_newest_first(session):
        if role is None and skip:
            skip -= 1  # a skipped message is not decoded
            continue
        message = message_of(session.store, session.log, row)
        if role is not None and message.role != role:
            continue
        if skip:
            skip -= 1
            continue
        files = sum(len(part.data or b"") for part in message.parts if isinstance(part, Image | File))
        size = answer.add(len(row.body or b"") + files)
        if size > MAX_BYTES and found:
            raise LimitExceeded("this page", size=size, limit=MAX_BYTES, hint="ask for fewer messages with limit=")
        found.append(message)
        if len(found) == limit:
            break
    return found[::-1]


def _rows_newest_first(session: Session) -> Iterator[Row]:
    store, log = session.store, session.log
    head = store.head(log)
    for first, last in reversed(clip_ranges(decode_view(head.view).visible, head.head)):
        for rows in read_portions(store, log, first, last, reverse=True, types=MESSAGE_TYPES):
            yield from rows


@router.post(
    "/sessions/{session_id}/messages",
    operation_id="add_messages",
    summary="Record messages",
    response_model=responses.Appended,
)
def add_messages(
    caller: Writer, server: Serving, request: Request, session_id: SessionId, body: requests.MessagesGiven
) -> Response:
    """Record messages without asking a model; all of them or none."""
    session = caller.open_session(session_id)
    seq = session.add_messages(body.messages, once=scope_of(request, caller))
    server.feed.notify_append(session.log)
    return json_response({"seq": seq})


@router.post(
    "/sessions/{session_id}/clear",
    operation_id="clear_session",
    summary="Empty the messages",
    response_model=responses.FullSession,
)
def clear_session(caller: Writer, server: Serving, session_id: SessionId, body: requests.Act | None = None) -> Response:
    """Remove all messages from the view. System prompt, state, facts and the log stay."""
    session = caller.open_session(session_id)
    session.clear(actor=actor_of(caller, None if body is None else body.actor))
    server.feed.notify_append(session.log)
    return json_response(session_dict(session))


@router.post(
    "/sessions/{session_id}/rewind",
    operation_id="rewind_session",
    summary="Go back to an event",
    response_model=responses.FullSession,
)
def rewind_session(caller: Writer, server: Serving, session_id: SessionId, body: requests.Rewind) -> Response:
    """Set messages and session state back to an event. The later events stay in the log."""
    session = caller.open_session(session_id)
    session.rewind(body.to, actor=actor_of(caller, body.actor))
    server.feed.notify_append(session.log)
    return json_response(session_dict(session))


@router.get(
    "/sessions/{session_id}/search",
    operation_id="search_session",
    summary="Find messages by their words",
    response_model=responses.Messages,
)
def search_session(
    caller: Reader,
    server: Serving,
    session_id: SessionId,
    q: Annotated[str, Query(max_length=1000, description="Every word must be there.")],
    limit: Annotated[int, Query(ge=0, le=200)] = 20,
) -> Response:
    """The last messages that contain every word, oldest first."""
    with server.large_answers.begin(caller) as answer:
        session = caller.open_session(session_id)
        answer.add(estimate_bytes(session))
        return json_response({"messages": [message_dict(each) for each in session.search(q, limit)]})


@router.post(
    "/sessions/{session_id}/prune",
    operation_id="prune_session",
    summary="Take old messages out of the view",
    response_model=responses.Pruned,
)
async def prune_session(
    caller: Writer, server: Serving, session_id: SessionId, body: requests.Prune | None = None
) -> Response:
    """Remove messages from the view. The log keeps them, and undo_prune brings them back. With `dry_run` nothing
    changes and the report shows what would."""
    asked = body or requests.Prune()
    asks_model = asked.agent_id is not None
    return await server.call_blocking(caller, asks_model, partial(_prune, caller, server, session_id, asked))


def _prune(caller: Caller, server: Serving, session_id: str, asked: requests.Prune) -> Response:
    session = caller.open_session(session_id)
    report = session.prune(
        asked.strategy,
        window_size=asked.window_size,
        threshold=asked.threshold,
        max_tokens=asked.max_tokens,
        dry_run=asked.dry_run,
        agent=None if asked.agent_id is None else server.catalog.find(caller.store, asked.agent_id),
        actor=actor_of(caller, asked.actor),
    )
    server.feed.notify_append(session.log)
    return json_response(prune_report_dict(report))


@router.post(
    "/sessions/{session_id}/undo_prune",
    operation_id="undo_prune",
    summary="Bring back what the last prune took out",
    response_model=responses.Undone,
)
def undo_prune(caller: Writer, server: Serving, session_id: SessionId, body: requests.Act | None = None) -> Response:
    """Undo the last prune; false if there is none."""
    session = caller.open_session(session_id)
    undone = session.undo_prune(actor=actor_of(caller, None if body is None else body.actor))
    server.feed.notify_append(session.log)
    return json_response({"undone": undone})


@router.get(
    "/sessions/{session_id}/context",
    operation_id="get_context",
    summary="What the model is sent",
    response_model=responses.Context,
)
async def get_context(
    caller: Reader,
    server: Serving,
    session_id: SessionId,
    call: Annotated[int | None, Query(ge=1, le=MAX_SEQ, description="The number of a model.called event.")] = None,
    agent_id: str | None = None,
) -> Response:
    """The context that the model would be sent now, part by part; with `call`, the context of that call."""
    # An agent's instructions may be a function, which takes its time like a model.
    return await server.call_blocking(
        caller, call is None, partial(_context, caller, server, session_id, call, agent_id)
    )


def _context(caller: Caller, server: Serving, session_id: str, call: int | None, agent_id: str | None) -> Response:
    session = caller.open_session(session_id)
    agent = None
    if call is None:
        try:
            agent = server.catalog.find(caller.store, agent_id)
        except InvalidArgument:
            if agent_id is not None:
                raise  # without a named agent the context does not depend on one
    try:
        with server.large_answers.begin(caller) as answer:
            answer.add(estimate_bytes(session))
            return json_response(context_dict(session.context(call, agent=agent)))
    except InstructionsFailed as error:
        hidden = hide_cause(error, error.__cause__)
        if hidden is error:
            raise
        log_unexpected_error(error.__cause__ or error, metrics=server.metrics, where="a context")
        raise hidden from error
