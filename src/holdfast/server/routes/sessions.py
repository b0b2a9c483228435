"""Sessions over HTTP: making, finding, changing and ending them. The rest of what they can do is in the modules beside
this one; `routers` has them all."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.concurrency import off_thread
from holdfast.errors import InvalidArgument, SessionExists, SessionNotFound
from holdfast.log.events import Draft
from holdfast.log.identifiers import checked_id, checked_owner
from holdfast.policy.budget import Budget
from holdfast.policy.retention import Retention
from holdfast.server.auth import Reader, Who, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute, goes_straight, query_of
from holdfast.server.new_resources import NewSession, allowed_work_dir, made_once, own_session, sees
from holdfast.server.routes import approvals, forks, history, state
from holdfast.server.routes import compliance as keeping
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import Serving, SessionId, actor_of, reply, session_full, session_listed
from holdfast.session.session import Session

router = APIRouter(route_class=StrictRoute, tags=["sessions"], responses=ERRORS)


@router.post(
    "/sessions",
    operation_id="create_session",
    summary="Make a session",
    status_code=201,
    response_model=schemas.FullSession,
    responses={200: {"model": schemas.FullSession, "description": "It was there, and `exist_ok` was sent."}},
)
def create_session(who: Writer, server: Serving, request: Request, body: bodies.NewSession | None = None) -> Response:
    """Make a session. An id that exists is a conflict, unless `exist_ok` says to open it."""
    body = body or bodies.NewSession()
    options = body.model_dump(exclude_unset=True, exclude={"id", "exist_ok", "user_id", "work_dir"})
    options["user_id"] = who.owner(body.user_id)
    if body.work_dir is not None:
        options["work_dir"] = allowed_work_dir(body.work_dir, server.config.work_roots)
    if body.id is not None and body.exist_ok:
        session, status = _opened(who, checked_id(body.id), options)
    else:
        session = made_once(
            who,
            request,
            body.id,
            lambda id: own_session(who, id),
            lambda id: NewSession(id, store=who.store, **options),
        )
        status = 201
    server.feed.nudge(session._log)
    return reply(session_full(session), status)


def _opened(who: Who, id: str, options: dict[str, Any]) -> tuple[Session, int]:
    """A session that may be there. Another user's is no more than a name that is taken."""
    log = who.store.find("session", id)
    if log is not None and not sees(who, log):
        raise SessionExists(id)
    return Session(id, store=who.store, **options), 201 if log is None else 200


class SessionsQuery(BaseModel):
    """Which sessions are listed."""

    user_id: str | None = Field(default=None, max_length=512, description="Only sessions of this user.")
    app_name: str | None = Field(default=None, max_length=512)
    status: schemas.Status | None = None
    limit: int = Field(default=50, ge=1, le=200)
    after: str | None = Field(default=None, description="`next` of the page before.")


async def _listed(request: Request, who: Who) -> Response:
    return await off_thread(_page, who, query_of(request, SessionsQuery))


def _page(who: Who, query: SessionsQuery) -> Response:
    owner = who.owner(checked_owner(query.user_id, "user_id"))
    if query.after is not None:
        known = who.store.find("session", checked_id(query.after, "after"))
        if known is None or not sees(who, known):
            raise InvalidArgument(f"after={query.after!r} is not a session here: start from the first page")
    found = who.store.sessions(
        user_id=owner,
        app_name=checked_owner(query.app_name, "app_name"),
        status=query.status,
        limit=query.limit + 1,
        after=query.after,
    )
    page = found[: query.limit]
    more = page[-1].log.id if len(found) > query.limit else None
    return reply({"sessions": [session_listed(info) for info in page], "next": more})


@router.get("/sessions", operation_id="list_sessions", summary="List sessions", response_model=schemas.SessionPage)
@goes_straight(_listed)
async def list_sessions(who: Reader, query: Annotated[SessionsQuery, Query()]) -> Response:
    """Sessions, newest first. Reads no history, however long it is."""
    return await off_thread(_page, who, query)


@router.get(
    "/sessions/{session_id}", operation_id="get_session", summary="One session", response_model=schemas.FullSession
)
def get_session(who: Reader, session_id: SessionId) -> Response:
    """A session, without its messages."""
    return reply(session_full(who.open(session_id)))


@router.put(
    "/sessions/{session_id}",
    operation_id="change_session",
    summary="Change a session",
    response_model=schemas.FullSession,
)
def change_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.SessionChange) -> Response:
    """Change what is sent and keep the rest; all of it or nothing."""
    session = who.open(session_id)
    given = body.given()
    if given.get("work_dir") is not None:
        given["work_dir"] = allowed_work_dir(given["work_dir"], server.config.work_roots)
    drafts, actor = [], actor_of(who)
    if fields := _changed(session, given):
        drafts.append(Draft(type="session.changed", data=fields, actor=actor))
    if "retention" in given:
        kept = Retention.of(given["retention"]).to_dict()
        if kept != session.retention:
            drafts.append(Draft(type="retention.set", data=kept, actor=actor))
    if "active_agent" in given and given["active_agent"] != session.active_agent:
        drafts.append(Draft(type="agent.assigned", data={"agent": given["active_agent"]}, actor=actor))
    if drafts:
        done = who.store.append(session._log, drafts)
        if done.retained:
            session._prune_if_asked()
        server.feed.nudge(session._log)
    return reply(session_full(session))


def _changed(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    named = {name: given.get(name) for name in ("title", "metadata", "work_dir", "system")}
    fields = session._fields(**named)  # checks what is there, and leaves out what is null
    fields |= {name: None for name in named if name in given and given[name] is None}
    if "budget" in given:
        fields["budget"] = None if given["budget"] is None else Budget.of(given["budget"]).to_dict()
    return fields


@router.delete(
    "/sessions/{session_id}",
    operation_id="delete_session",
    summary="Delete a session",
    response_model=schemas.Deleted,
)
def delete_session(who: Writer, server: Serving, session_id: SessionId) -> Response:
    """Remove a session. Refused while it runs, is held, or is immutable."""
    session = who.open(session_id)
    if not who.store.remove("session", session.id):
        raise SessionNotFound(session_id)
    server.forget(who.store, session._log)
    return reply({"status": "deleted"})


# -- life --------------------------------------------------------------------------------------------------------------


def _moved(who: Who, server: Serving, session_id: str, move: str, body: bodies.Move | None) -> Response:
    asked = body or bodies.Move()
    session = who.open(session_id)
    getattr(session, move)(asked.reason, actor=actor_of(who, asked.actor))
    server.feed.nudge(session._log)
    return reply(session_full(session))


@router.post(
    "/sessions/{session_id}/pause",
    operation_id="pause_session",
    summary="Pause",
    response_model=schemas.FullSession,
)
def pause_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Move | None = None) -> Response:
    """A turn under way stops at its next step and stays unfinished; resume takes it up."""
    return _moved(who, server, session_id, "pause", body)


@router.post(
    "/sessions/{session_id}/close",
    operation_id="close_session",
    summary="Close",
    response_model=schemas.FullSession,
)
def close_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Move | None = None) -> Response:
    """End the session; everything stays readable, and reopen brings it back."""
    return _moved(who, server, session_id, "close", body)


@router.post(
    "/sessions/{session_id}/archive",
    operation_id="archive_session",
    summary="Archive",
    response_model=schemas.FullSession,
)
def archive_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Move | None = None) -> Response:
    """Put the session away; reopen brings it back."""
    return _moved(who, server, session_id, "archive", body)


@router.post(
    "/sessions/{session_id}/reopen",
    operation_id="reopen_session",
    summary="Reopen",
    response_model=schemas.FullSession,
)
def reopen_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Move | None = None) -> Response:
    """Bring a closed or archived session back."""
    return _moved(who, server, session_id, "reopen", body)


routers = (
    router,
    history.router,
    forks.router,
    state.router,
    state.facts_router,
    approvals.router,
    keeping.router,
)
