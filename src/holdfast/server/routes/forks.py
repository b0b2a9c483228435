"""Other ways for a session to go: forks, comparisons, replays, successors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.server.auth import Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import create_once
from holdfast.server.new_resources import find_own_session, may_see
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import (
    Serving,
    SessionId,
    comparison_dict,
    json_response,
    replay_dict,
    session_dict,
    session_summary_dict,
)
from holdfast.server.work_dirs import guard_work_dir
from holdfast.session.session import MAX_PAGE

router = APIRouter(route_class=StrictRoute, tags=["forks"], responses=ERRORS)


@router.post(
    "/sessions/{session_id}/fork",
    operation_id="fork_session",
    summary="Fork",
    status_code=201,
    response_model=responses.FullSession,
)
def fork_session(
    caller: Writer, request: Request, session_id: SessionId, body: requests.ForkAsked | None = None
) -> Response:
    """A new session that shares the past up to an event and goes its own way. The original stays as it is."""
    asked = body or requests.ForkAsked()
    session = caller.open_session(session_id)
    fork = create_once(
        caller, request, asked.id, lambda id: find_own_session(caller, id), lambda id: session.fork(id, at=asked.at)
    )
    return json_response(session_dict(fork), 201)


@router.get(
    "/sessions/{session_id}/forks", operation_id="list_forks", summary="Its forks", response_model=responses.Sessions
)
def list_forks(caller: Reader, session_id: SessionId) -> Response:
    """The sessions that were forked from this one, oldest first."""
    session = caller.open_session(session_id)
    found = caller.store.sessions(parent=session.log.number, limit=MAX_PAGE)
    return json_response(
        {"sessions": [session_summary_dict(info) for info in reversed(found) if may_see(caller, info.log)]}
    )


@router.get(
    "/sessions/{session_id}/compare",
    operation_id="compare_sessions",
    summary="Compare with another session",
    response_model=responses.Comparison,
)
def compare_sessions(
    caller: Reader,
    server: Serving,
    session_id: SessionId,
    other: Annotated[str, Query(alias="with", description="The other session.")],
) -> Response:
    """The messages both share, then those of each side."""
    one, two = caller.open_session(session_id), caller.open_session(other)
    with server.large_answers.begin(caller) as answer:
        answer.add_whole_session()
        return json_response(comparison_dict(one.compare(two)))


@router.post(
    "/sessions/{session_id}/replay",
    operation_id="replay_session",
    summary="Run the logged turns again",
    response_model=responses.Replay,
)
async def replay_session(
    caller: Writer, server: Serving, session_id: SessionId, body: requests.AgentAsked | None = None
) -> Response:
    """In a fork, with the recorded replies and results as the world: no model is asked and no tool runs. Names the
    first thing that this agent would do differently."""

    def replay() -> Response:
        session = caller.open_session(session_id)
        agent = server.catalog.find(caller.store, None if body is None else body.agent_id)
        return json_response(replay_dict(session.replay(agent)))

    return await server.call_blocking(caller, True, replay)  # the agent's instructions may be a slow function


@router.get(
    "/sessions/{session_id}/brief",
    operation_id="get_brief",
    summary="What a successor needs",
    response_model=responses.Brief,
)
def get_brief(caller: Reader, server: Serving, session_id: SessionId) -> Response:
    """Facts by kind, open work, last decisions, last words, the git head of `work_dir`, as Markdown."""
    session = caller.open_session(session_id)
    guard_work_dir(session, server.config.work_roots)
    return json_response({"brief": session.brief()})


@router.post(
    "/sessions/{session_id}/successor",
    operation_id="succeed_session",
    summary="Go on in a new session",
    status_code=201,
    response_model=responses.FullSession,
)
def succeed_session(
    caller: Writer, server: Serving, request: Request, session_id: SessionId, body: requests.NewIdAsked | None = None
) -> Response:
    """A new session for the same task, which begins with the brief and has this one's facts, system prompt, owner,
    metadata, work_dir, budget and retention."""
    session = caller.open_session(session_id)
    guard_work_dir(session, server.config.work_roots)
    asked = None if body is None else body.id
    made = create_once(caller, request, asked, lambda id: find_own_session(caller, id), session.successor)
    return json_response(session_dict(made), 201)
