"""Memories over HTTP: those of a user, or of no user, in one app.

Whose they are comes from the key: a key of a user reaches that user's only, and never what belongs to nobody.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.errors import NotFound
from holdfast.log.identifiers import checked_owner
from holdfast.memory.memory import Memory
from holdfast.memory.service import MAX_LIMIT
from holdfast.server.auth import Reader, Who, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import forget_memories, own_answers, tells_of_memories
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import Serving, SessionId, memory_dict, refused, reply
from holdfast.session.session import Session

router = APIRouter(route_class=StrictRoute, tags=["memory"], responses=ERRORS)
UserId = Annotated[
    str | None,
    Query(
        max_length=512, description="Whose memories; a key of a user is for that user's. Left out: those of no user."
    ),
]
AppName = Annotated[str | None, Query(max_length=512, description="Of which app; left out: of none.")]


def _memory(server: Serving, who: Who, user_id: str | None, app_name: str | None) -> Memory:
    """The memory of one user and app, in the tenant of whoever asks."""
    owner = who.owner(checked_owner(user_id, "user_id"))
    memory: Memory = server.memory.on(who.store).of(owner, checked_owner(app_name, "app_name"))
    return memory


@router.get("/memory", operation_id="list_memories", summary="List memories", response_model=schemas.MemoryPage)
def list_memories(
    who: Reader,
    server: Serving,
    user_id: UserId = None,
    app_name: AppName = None,
    kind: Annotated[str | None, Query(description="Only those of this kind.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT - 1)] = 100,
    after: Annotated[str | None, Query(description="`next` of the page before.")] = None,
) -> Response:
    """In order of key."""
    found = _memory(server, who, user_id, app_name).list(kind, limit + 1, after)
    page = found[:limit]
    more = page[-1].key if len(found) > limit else None
    return reply({"memories": [memory_dict(each) for each in page], "next": more})


@router.post("/memory/search", operation_id="search_memories", summary="Find memories", response_model=schemas.Memories)
@own_answers  # it changes nothing that anybody sees, and what it tells must not be kept a day
def search_memories(who: Reader, server: Serving, body: bodies.MemorySearch) -> Response:
    """Those that fit the query, best first."""
    memory = _memory(server, who, body.user_id, body.app_name)
    found = memory.search(body.query, body.limit, kind=body.kind, min_confidence=body.min_confidence)
    return reply({"memories": [memory_dict(each) for each in found]})


@router.get("/memory/{key:path}", operation_id="get_memory", summary="One memory", response_model=schemas.Memory)
def get_memory(who: Reader, server: Serving, key: str, user_id: UserId = None, app_name: AppName = None) -> Response:
    """What is kept under a key."""
    found = _memory(server, who, user_id, app_name).recall(key)
    if not found:
        raise NotFound("memory", key)
    return reply(memory_dict(found[0]))


@router.put(
    "/memory/{key:path}", operation_id="store_memory", summary="Keep or update a memory", response_model=schemas.Memory
)
def store_memory(
    who: Writer,
    server: Serving,
    key: str,
    body: bodies.MemoryGiven,
    user_id: UserId = None,
    app_name: AppName = None,
) -> Response:
    """The same key again replaces what was there. With a `source`, it belongs to that session's user and app."""
    source: Any = None
    if body.source is not None:
        session = who.open(body.source.session_id)
        source, user_id, app_name = (
            (session, body.source.seqs),
            user_id or session.user_id,
            app_name or session.app_name,
        )
    memory = _memory(server, who, user_id, app_name)
    kept = memory.store(
        key,
        body.text,
        kind=body.kind,
        confidence=body.confidence,
        expires=_expiry(body),
        source=source,
        user_id=user_id,
        app_name=app_name,
    )
    return tells_of_memories(reply(memory_dict(kept)), memory.user_id, memory.app_name)


@router.delete(
    "/memory/{key:path}", operation_id="forget_memory", summary="Forget a memory", response_model=schemas.Removed
)
def forget_memory(who: Writer, server: Serving, key: str, user_id: UserId = None, app_name: AppName = None) -> Response:
    """Its text goes for good, with every earlier version; false if there was none."""
    memory = _memory(server, who, user_id, app_name)
    deleted = memory.forget(key)
    forget_memories(who.store, memory.user_id, memory.app_name)
    return reply({"deleted": deleted})


@router.post(
    "/sessions/{session_id}/memory",
    operation_id="ingest_session",
    summary="Learn from a session",
    response_model=schemas.Memories,
)
def ingest_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Ingest | None = None) -> Response:
    """Keep what is new in it, for its own user and app, with the messages that say so. The model of `agent_id` is
    asked; without one, plain statements of the user and the session's facts are taken."""
    session: Session = who.open(session_id)
    agent_id = None if body is None else body.agent_id
    model = None if agent_id is None else server.catalog.find(who.store, agent_id)
    found = server.memory.on(who.store).ingest_from_session(session, model=model)
    answer = reply({"memories": [memory_dict(each) for each in found]})
    return tells_of_memories(answer, session.user_id, session.app_name)


def _expiry(body: bodies.MemoryGiven) -> timedelta | datetime | None:
    if body.expires_in is not None and body.expires_at is not None:
        raise refused("expires_in", "give expires_in or expires_at, not both")
    if body.expires_in is not None:
        return timedelta(seconds=body.expires_in)
    if body.expires_at is None:
        return None
    try:
        return datetime.fromisoformat(body.expires_at)
    except ValueError as error:
        raise refused("expires_at", "write an ISO time, such as 2030-01-31T12:00:00Z") from error
