"""What was said in a session, and what a model sees of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.log.events import MESSAGE_TYPES, Row
from holdfast.log.messages import File, Image, Message
from holdfast.log.view import cut, view_of
from holdfast.server.auth import Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import scope_of
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import (
    Serving,
    SessionId,
    actor_of,
    context_dict,
    message_dict,
    pruned_dict,
    reply,
    session_full,
)
from holdfast.session.session import Session
from holdfast.stores.base import MAX_SEQ, PAGE
from holdfast.stores.documents import message_of

router = APIRouter(route_class=StrictRoute, tags=["history"], responses=ERRORS)
MAX_BYTES = 64 << 20  # of the files in one page of messages


@router.get(
    "/sessions/{session_id}/history",
    operation_id="get_history",
    summary="The last messages",
    response_model=schemas.Messages,
)
def get_history(
    who: Reader,
    session_id: SessionId,
    limit: Annotated[int, Query(ge=0, le=1000)] = 10,
    role: Annotated[schemas.Role | None, Query()] = None,
    skip: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Leave out so many of the newest.")] = 0,
) -> Response:
    """The last messages, oldest first."""
    found = _page(who.open(session_id), limit, role, skip)
    return reply({"messages": [message_dict(each) for each in found]})


def _page(session: Session, limit: int, role: str | None, skip: int) -> list[Message]:
    """The last messages before the newest `skip`, oldest first; in memory there is never more than the page."""
    found: list[Message] = []
    size = 0
    if not limit:
        return found
    for row in _newest_first(session):
        if role is None and skip:
            skip -= 1  # nobody needs to know what it says
            continue
        message = message_of(session.store, session._log, row)
        if role is not None and message.role != role:
            continue
        if skip:
            skip -= 1
            continue
        size += sum(len(part.data or b"") for part in message.parts if isinstance(part, Image | File))
        if size > MAX_BYTES and found:
            raise LimitExceeded("this page", size=size, limit=MAX_BYTES, hint="ask for fewer messages with limit=")
        found.append(message)
        if len(found) == limit:
            break
    return found[::-1]


def _newest_first(session: Session) -> Iterator[Row]:
    store, log = session.store, session._log
    head = store.head(log)
    for first, last in reversed(cut(view_of(head.view).visible, head.head)):
        while rows := store.read(log, first, last, limit=PAGE, reverse=True, types=MESSAGE_TYPES):
            yield from rows
            last = rows[-1].seq - 1
            if len(rows) < PAGE or last < first:
                break


@router.post(
    "/sessions/{session_id}/messages",
    operation_id="add_messages",
    summary="Record messages",
    response_model=schemas.Appended,
)
def add_messages(
    who: Writer, server: Serving, request: Request, session_id: SessionId, body: bodies.MessagesGiven
) -> Response:
    """Record messages without asking a model; all of them or none."""
    session = who.open(session_id)
    seq = session.add_messages(body.messages, once=scope_of(request, who))
    server.feed.nudge(session._log)
    return reply({"seq": seq})


@router.post(
    "/sessions/{session_id}/clear",
    operation_id="clear_session",
    summary="Empty the messages",
    response_model=schemas.FullSession,
)
def clear_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Act | None = None) -> Response:
    """System, state and facts stay, and so does the log."""
    session = who.open(session_id)
    session.clear(actor=actor_of(who, None if body is None else body.actor))
    server.feed.nudge(session._log)
    return reply(session_full(session))


@router.post(
    "/sessions/{session_id}/rewind",
    operation_id="rewind_session",
    summary="Go back to an event",
    response_model=schemas.FullSession,
)
def rewind_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Rewind) -> Response:
    """Messages and session state become what they were. What is undone stays in the log."""
    session = who.open(session_id)
    session.rewind(body.to, actor=actor_of(who, body.actor))
    server.feed.nudge(session._log)
    return reply(session_full(session))


@router.get(
    "/sessions/{session_id}/search",
    operation_id="search_session",
    summary="Find messages by their words",
    response_model=schemas.Messages,
)
def search_session(
    who: Reader,
    session_id: SessionId,
    q: Annotated[str, Query(max_length=1000, description="Every word must be there.")],
    limit: Annotated[int, Query(ge=0, le=200)] = 20,
) -> Response:
    """The last messages that hold every word, oldest first."""
    return reply({"messages": [message_dict(each) for each in who.open(session_id).search(q, limit)]})


@router.post(
    "/sessions/{session_id}/prune",
    operation_id="prune_session",
    summary="Take old messages out of the view",
    response_model=schemas.Pruned,
)
def prune_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Prune | None = None) -> Response:
    """The log keeps them, and undo_prune brings them back. With `dry_run`, only the report."""
    asked = body or bodies.Prune()
    session = who.open(session_id)
    report = session.prune(
        asked.strategy,
        window_size=asked.window_size,
        threshold=asked.threshold,
        max_tokens=asked.max_tokens,
        dry_run=asked.dry_run,
        agent=None if asked.agent_id is None else server.catalog.find(who.store, asked.agent_id),
        actor=actor_of(who, asked.actor),
    )
    server.feed.nudge(session._log)
    return reply(pruned_dict(report))


@router.post(
    "/sessions/{session_id}/undo_prune",
    operation_id="undo_prune",
    summary="Bring back what the last prune took out",
    response_model=schemas.Undone,
)
def undo_prune(who: Writer, server: Serving, session_id: SessionId, body: bodies.Act | None = None) -> Response:
    """False if there is none to undo."""
    session = who.open(session_id)
    undone = session.undo_prune(actor=actor_of(who, None if body is None else body.actor))
    server.feed.nudge(session._log)
    return reply({"undone": undone})


@router.get(
    "/sessions/{session_id}/context",
    operation_id="get_context",
    summary="What the model is sent",
    response_model=schemas.Context,
)
def get_context(
    who: Reader,
    server: Serving,
    session_id: SessionId,
    call: Annotated[int | None, Query(ge=1, le=MAX_SEQ, description="The number of a model.called event.")] = None,
    agent_id: str | None = None,
) -> Response:
    """What the model would be sent now, part by part; with `call`, what it was sent then."""
    session = who.open(session_id)
    agent = None
    if call is None:
        try:
            agent = server.catalog.find(who.store, agent_id)
        except InvalidArgument:
            if agent_id is not None:
                raise  # nobody to ask yet, and nobody was named: what would be sent does not depend on it
    return reply(context_dict(session.context(call, agent=agent)))
