"""Memories over HTTP: those of a user, or of no user, in one app.

The API key decides the user: a key of a user reaches only that user's memories, and none without a user.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.errors import NotFound
from holdfast.log.identifiers import check_owner
from holdfast.memory import ngrams
from holdfast.memory.keyword import KeywordMemoryService
from holdfast.memory.memory import Memory
from holdfast.memory.service import MAX_LIMIT
from holdfast.server.auth import Caller, Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import handles_idempotency_itself, tag_with_memories
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import Serving, SessionId, field_error, json_response, memory_dict
from holdfast.session.session import Session

router = APIRouter(route_class=StrictRoute, tags=["memory"], responses=ERRORS)
UserId = Annotated[
    str | None,
    Query(
        max_length=512, description="Whose memories; a key of a user is for that user's. Left out: those of no user."
    ),
]
AppName = Annotated[str | None, Query(max_length=512, description="Of which app; left out: of none.")]


def _open_memory(server: Serving, caller: Caller, user_id: str | None, app_name: str | None) -> Memory:
    """Return the memory of one user and app, in the tenant of the caller."""
    owner = caller.resolve_owner(check_owner(user_id, "user_id"))
    memory: Memory = server.memory.on(caller.store).of(owner, check_owner(app_name, "app_name"))
    return memory


@router.get("/memory", operation_id="list_memories", summary="List memories", response_model=responses.MemoryPage)
def list_memories(
    caller: Reader,
    server: Serving,
    user_id: UserId = None,
    app_name: AppName = None,
    kind: Annotated[str | None, Query(description="Only those of this kind.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT - 1)] = 100,
    after: Annotated[str | None, Query(description="`next` of the page before.")] = None,
) -> Response:
    """Memories in the order of their keys."""
    found = _open_memory(server, caller, user_id, app_name).list(kind, limit + 1, after)
    page = found[:limit]
    more = page[-1].key if len(found) > limit else None
    return json_response({"memories": [memory_dict(each) for each in page], "next": more})


@router.post(
    "/memory/search", operation_id="search_memories", summary="Find memories", response_model=responses.Memories
)
@handles_idempotency_itself  # it changes nothing, and its answer must not be kept for a day
async def search_memories(caller: Reader, server: Serving, body: requests.MemorySearch) -> Response:
    """The memories that fit the query, best first."""

    def search() -> Response:
        memory = _open_memory(server, caller, body.user_id, body.app_name)
        found = memory.search(body.query, body.limit, kind=body.kind, min_confidence=body.min_confidence)
        return json_response({"memories": [memory_dict(each) for each in found]})

    return await server.call_blocking(caller, _asks_embedder(server), search)


@router.get("/memory/{key:path}", operation_id="get_memory", summary="One memory", response_model=responses.Memory)
def get_memory(caller: Reader, server: Serving, key: str, user_id: UserId = None, app_name: AppName = None) -> Response:
    """The memory with this key."""
    found = _open_memory(server, caller, user_id, app_name).recall(key)
    if not found:
        raise NotFound("memory", key)
    return json_response(memory_dict(found[0]))


@router.put(
    "/memory/{key:path}",
    operation_id="store_memory",
    summary="Keep or update a memory",
    response_model=responses.Memory,
)
async def store_memory(
    caller: Writer,
    server: Serving,
    key: str,
    body: requests.MemoryGiven,
    user_id: UserId = None,
    app_name: AppName = None,
) -> Response:
    """Store a memory; an existing key is replaced. With a `source` it belongs to the user and app of that session."""
    store = partial(_store, caller, server, key, body, user_id, app_name)
    return await server.call_blocking(caller, _asks_embedder(server), store)


def _store(
    caller: Caller, server: Serving, key: str, body: requests.MemoryGiven, user_id: str | None, app_name: str | None
) -> Response:
    source: Any = None
    if body.source is not None:
        session = caller.open_session(body.source.session_id)
        source, user_id, app_name = (
            (session, body.source.seqs),
            user_id or session.user_id,
            app_name or session.app_name,
        )
    memory = _open_memory(server, caller, user_id, app_name)
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
    return tag_with_memories(json_response(memory_dict(kept)), memory.user_id, memory.app_name)


@router.delete(
    "/memory/{key:path}", operation_id="forget_memory", summary="Forget a memory", response_model=responses.Removed
)
def forget_memory(
    caller: Writer, server: Serving, key: str, user_id: UserId = None, app_name: AppName = None
) -> Response:
    """Erase a memory and all its earlier versions for good; false if there was none."""
    memory = _open_memory(server, caller, user_id, app_name)
    deleted = memory.forget(key)
    return json_response({"deleted": deleted})


@router.post(
    "/sessions/{session_id}/memory",
    operation_id="ingest_session",
    summary="Learn from a session",
    response_model=responses.Memories,
)
async def ingest_session(
    caller: Writer, server: Serving, session_id: SessionId, body: requests.Ingest | None = None
) -> Response:
    """Keep what is new in it, for its own user and app, with the messages that say so. With `shared` it is kept for the
    user and the app that the body names, or for none: a memory that is wider than the session. The model of `agent_id`
    is asked; without one, plain statements of the user and the session's facts are taken."""
    asked = body or requests.Ingest()
    asks_model = asked.agent_id is not None or server.memory.model is not None or _asks_embedder(server)
    return await server.call_blocking(caller, asks_model, partial(_ingest, caller, server, session_id, asked))


def _ingest(caller: Caller, server: Serving, session_id: str, asked: requests.Ingest) -> Response:
    session: Session = caller.open_session(session_id)
    owner = session.user_id, session.app_name
    if asked.shared:
        owner = caller.resolve_owner(asked.user_id), asked.app_name
    elif (asked.user_id, asked.app_name) != (None, None):
        raise field_error("shared", "user_id and app_name need shared: memories are kept for the session's own")
    model = None if asked.agent_id is None else server.catalog.find(caller.store, asked.agent_id)
    memory = server.memory.on(caller.store).of(*owner)
    found = memory.ingest_from_session(session, model=model, shared=asked.shared)
    return tag_with_memories(json_response({"memories": [memory_dict(each) for each in found]}), *owner)


def _asks_embedder(server: Serving) -> bool:
    """Whether keeping and finding memories asks a model for vectors, or runs code that is not ours."""
    service = server.memory.service
    return not isinstance(service, KeywordMemoryService) and getattr(service, "embedder", "") != ngrams.NAME


def _expiry(body: requests.MemoryGiven) -> timedelta | datetime | None:
    if body.expires_in is not None and body.expires_at is not None:
        raise field_error("expires_in", "give expires_in or expires_at, not both")
    if body.expires_in is not None:
        return timedelta(seconds=body.expires_in)
    if body.expires_at is None:
        return None
    try:
        return datetime.fromisoformat(body.expires_at)
    except ValueError as error:
        raise field_error("expires_at", "write an ISO time, such as 2030-01-31T12:00:00Z") from error
