"""Other ways for a session to go: forks, comparisons, replays, successors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.server.auth import Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.new_resources import made_once, own_session, sees
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import (
    Serving,
    SessionId,
    comparison_dict,
    replay_dict,
    reply,
    session_full,
    session_listed,
)
from holdfast.session.session import MAX_PAGE

router = APIRouter(route_class=StrictRoute, tags=["forks"], responses=ERRORS)


@router.post(
    "/sessions/{session_id}/fork",
    operation_id="fork_session",
    summary="Fork",
    status_code=201,
    response_model=schemas.FullSession,
)
def fork_session(
    who: Writer, request: Request, session_id: SessionId, body: bodies.ForkAsked | None = None
) -> Response:
    """A new session that shares the past up to an event and goes its own way. The original stays as it is."""
    asked = body or bodies.ForkAsked()
    session = who.open(session_id)
    fork = made_once(who, request, asked.id, lambda id: own_session(who, id), lambda id: session.fork(id, at=asked.at))
    return reply(session_full(fork), 201)


@router.get(
    "/sessions/{session_id}/forks", operation_id="list_forks", summary="Its forks", response_model=schemas.Sessions
)
def list_forks(who: Reader, session_id: SessionId) -> Response:
    """The sessions that were forked from this one, oldest first."""
    session = who.open(session_id)
    found = who.store.sessions(parent=session._log.number, limit=MAX_PAGE)
    return reply({"sessions": [session_listed(info) for info in reversed(found) if sees(who, info.log)]})


@router.get(
    "/sessions/{session_id}/compare",
    operation_id="compare_sessions",
    summary="Compare with another session",
    response_model=schemas.Comparison,
)
def compare_sessions(
    who: Reader, session_id: SessionId, other: Annotated[str, Query(alias="with", description="The other session.")]
) -> Response:
    """The messages both share, then those of each side."""
    return reply(comparison_dict(who.open(session_id).compare(who.open(other))))


@router.post(
    "/sessions/{session_id}/replay",
    operation_id="replay_session",
    summary="Run the logged turns again",
    response_model=schemas.Replay,
)
def replay_session(
    who: Writer, server: Serving, session_id: SessionId, body: bodies.AgentAsked | None = None
) -> Response:
    """In a fork, with the recorded replies and results as the world: no model is asked and no tool runs. Names the
    first thing that this agent would do differently."""
    session = who.open(session_id)
    agent = server.catalog.find(who.store, None if body is None else body.agent_id)
    return reply(replay_dict(session.replay(agent)))


@router.get(
    "/sessions/{session_id}/brief",
    operation_id="get_brief",
    summary="What a successor needs",
    response_model=schemas.Brief,
)
def get_brief(who: Reader, session_id: SessionId) -> Response:
    """Facts by kind, open work, last decisions, last words, the git head of `work_dir`, as Markdown."""
    return reply({"brief": who.open(session_id).brief()})


@router.post(
    "/sessions/{session_id}/successor",
    operation_id="succeed_session",
    summary="Go on in a new session",
    status_code=201,
    response_model=schemas.FullSession,
)
def succeed_session(
    who: Writer, request: Request, session_id: SessionId, body: bodies.NewIdAsked | None = None
) -> Response:
    """A new session for the same task, which begins with the brief and has this one's facts, system prompt, owner,
    metadata, work_dir, budget and retention."""
    session = who.open(session_id)
    asked = None if body is None else body.id
    made = made_once(who, request, asked, lambda id: own_session(who, id), session.successor)
    return reply(session_full(made), 201)
