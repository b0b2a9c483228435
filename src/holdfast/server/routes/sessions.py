"""Sessions over HTTP: create, find, change and end them. `routers` lists this router and those of the modules beside
it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.clock import is_ulid
from holdfast.concurrency import off_thread
from holdfast.errors import InvalidArgument, SessionExists, SessionNotFound
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_id, check_owner
from holdfast.policy.budget import Budget
from holdfast.policy.retention import Retention
from holdfast.server.auth import Caller, Chatter, Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.field_rights import (
    DEVICE_SESSION_FIELDS,
    check_application_fields,
    check_device_fields,
    sent_fields,
)
from holdfast.server.http.strict_routes import StrictRoute, fast_path, parse_query
from holdfast.server.idempotency import create_once, removes_content
from holdfast.server.new_resources import NewSession, find_own_session, may_see
from holdfast.server.routes import approvals, compliance, facts, forks, history, state
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import (
    Serving,
    SessionId,
    actor_of,
    json_response,
    session_dict,
    session_summary_dict,
)
from holdfast.server.work_dirs import resolve_work_dir
from holdfast.session.session import Session
from holdfast.stores.base import Log

router = APIRouter(route_class=StrictRoute, tags=["sessions"], responses=ERRORS)


@router.post(
    "/sessions",
    operation_id="create_session",
    summary="Create a session",
    status_code=201,
    response_model=responses.FullSession,
    responses={200: {"model": responses.FullSession, "description": "It was there, and `exist_ok` was sent."}},
)
def create_session(
    caller: Chatter, server: Serving, request: Request, body: requests.NewSession | None = None
) -> Response:
    """Create a session. An id that exists is a conflict, unless `exist_ok` says to open it."""
    body = body or requests.NewSession()
    check_device_fields(caller, sent_fields(body), DEVICE_SESSION_FIELDS)
    check_application_fields(caller, body.model_fields_set)
    options = body.model_dump(exclude_unset=True, exclude={"id", "exist_ok", "user_id", "work_dir"})
    options["user_id"] = caller.resolve_owner(body.user_id)
    if body.work_dir is not None:
        known = caller.store.find("session", body.id) if body.id is not None and body.exist_ok else None
        owner = options["user_id"] if known is None else known.user_id  # a session that exists keeps its owner
        options["work_dir"] = resolve_work_dir(
            body.work_dir, server.config.work_roots, tenant=caller.tenant, user=owner
        )
    if body.id is not None and body.exist_ok:
        session, status = _open_or_create(caller, check_id(body.id), options)
    else:
        session = create_once(
            caller,
            request,
            body.id,
            lambda id: find_own_session(caller, id),
            lambda id: NewSession(id, store=caller.store, **options),
        )
        status = 201
    server.feed.notify_append(session.log)
    return json_response(session_dict(session), status)


def _open_or_create(caller: Caller, id: str, options: dict[str, Any]) -> tuple[Session, int]:
    """Open or create a session; return it and the status. The id of another user's session is taken."""
    log = caller.store.find("session", id)
    if log is not None and not may_see(caller, log):
        raise SessionExists(id)
    return Session(id, store=caller.store, **options), 201 if log is None else 200


class SessionsQuery(BaseModel):
    """Which sessions are listed."""

    user_id: str | None = Field(default=None, max_length=512, description="Only sessions of this user.")
    app_name: str | None = Field(default=None, max_length=512)
    status: responses.Status | None = None
    limit: int = Field(default=50, ge=1, le=200)
    after: str | None = Field(default=None, description="`next` of the page before.")


async def _list_fast(request: Request, caller: Caller) -> Response:
    return await off_thread(_session_page, caller, parse_query(request, SessionsQuery))


def _session_page(caller: Caller, query: SessionsQuery) -> Response:
    owner = caller.resolve_owner(check_owner(query.user_id, "user_id"))
    found = caller.store.sessions(
        user_id=owner,
        app_name=check_owner(query.app_name, "app_name"),
        status=query.status,
        limit=query.limit + 1,
        after=None if query.after is None else _find_position(caller, query.after),
    )
    page = found[: query.limit]
    # With the uid, a session that is deleted before the next page is asked for still says where it stood.
    more = f"{page[-1].log.id}/{page[-1].log.uid}" if len(found) > query.limit else None
    return json_response({"sessions": [session_summary_dict(info) for info in page], "next": more})


def _find_position(caller: Caller, after: str) -> str | Log:
    """Return the last session of the page before: its log, or a time-sorted id if it was deleted since."""
    id, _, uid = after.partition("/")
    known = caller.store.find("session", check_id(id, "after"))
    if known is not None and may_see(caller, known) and uid in ("", known.uid):
        return known
    if not is_ulid(uid or id):
        raise InvalidArgument(f"after={after!r} is not a session here: start from the first page")
    return uid or id


@router.get("/sessions", operation_id="list_sessions", summary="List sessions", response_model=responses.SessionPage)
@fast_path(_list_fast)
async def list_sessions(caller: Reader, query: Annotated[SessionsQuery, Query()]) -> Response:
    """Sessions, newest first. Reads no history, however long it is."""
    return await off_thread(_session_page, caller, query)


@router.get(
    "/sessions/{session_id}", operation_id="get_session", summary="One session", response_model=responses.FullSession
)
def get_session(caller: Reader, session_id: SessionId) -> Response:
    """A session, without its messages."""
    return json_response(session_dict(caller.open_session(session_id)))


@router.put(
    "/sessions/{session_id}",
    operation_id="change_session",
    summary="Change a session",
    response_model=responses.FullSession,
)
def change_session(caller: Writer, server: Serving, session_id: SessionId, body: requests.SessionChange) -> Response:
    """Change the fields that are sent and keep the others; all changes or none."""
    check_application_fields(caller, body.model_fields_set)
    session = caller.open_session(session_id)
    given = body.fields_sent()
    if given.get("work_dir") is not None:
        given["work_dir"] = resolve_work_dir(
            given["work_dir"], server.config.work_roots, tenant=caller.tenant, user=session.user_id
        )
    drafts, actor = [], actor_of(caller)
    if fields := _collect_changes(session, given):
        drafts.append(Draft(type="session.changed", data=fields, actor=actor))
    if "retention" in given:
        kept = Retention.of(given["retention"]).to_dict()
        if kept != session.retention:
            drafts.append(Draft(type="retention.set", data=kept, actor=actor))
    if "active_agent" in given and given["active_agent"] != session.active_agent:
        drafts.append(Draft(type="agent.assigned", data={"agent": given["active_agent"]}, actor=actor))
    if drafts:
        done = caller.store.append(session.log, drafts)
        if done.has_retention:
            session.prune_if_due()
        server.feed.notify_append(session.log)
    return json_response(session_dict(session))


def _collect_changes(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    named = {name: given.get(name) for name in ("title", "metadata", "work_dir", "system")}
    fields = session._build_fields(**named)  # checks what is there, and leaves out what is null
    fields |= {name: None for name in named if name in given and given[name] is None}
    if "budget" in given:
        fields["budget"] = None if given["budget"] is None else Budget.of(given["budget"]).to_dict()
    return fields


@router.delete(
    "/sessions/{session_id}",
    operation_id="delete_session",
    summary="Delete a session",
    response_model=responses.Deleted,
)
@removes_content
def delete_session(caller: Writer, server: Serving, session_id: SessionId) -> Response:
    """Remove a session. Refused while it runs, is held, or is immutable."""
    session = caller.open_session(session_id)
    if not caller.store.remove("session", session.id):
        raise SessionNotFound(session_id)
    server.drop_session_object(caller.store, session.log)
    return json_response({"status": "deleted"})


# -- life --------------------------------------------------------------------------------------------------------------


def _move_session(caller: Caller, server: Serving, session_id: str, move: str, body: requests.Move | None) -> Response:
    asked = body or requests.Move()
    session = caller.open_session(session_id)
    getattr(session, move)(asked.reason, actor=actor_of(caller, asked.actor))
    server.feed.notify_append(session.log)
    return json_response(session_dict(session))


@router.post(
    "/sessions/{session_id}/pause",
    operation_id="pause_session",
    summary="Pause",
    response_model=responses.FullSession,
)
def pause_session(
    caller: Writer, server: Serving, session_id: SessionId, body: requests.Move | None = None
) -> Response:
    """Pause the session. A running turn stops at its next step and stays unfinished; resume finishes it."""
    return _move_session(caller, server, session_id, "pause", body)


@router.post(
    "/sessions/{session_id}/close",
    operation_id="close_session",
    summary="Close",
    response_model=responses.FullSession,
)
def close_session(
    caller: Writer, server: Serving, session_id: SessionId, body: requests.Move | None = None
) -> Response:
    """End the session; everything stays readable, and reopen brings it back."""
    return _move_session(caller, server, session_id, "close", body)


@router.post(
    "/sessions/{session_id}/archive",
    operation_id="archive_session",
    summary="Archive",
    response_model=responses.FullSession,
)
def archive_session(
    caller: Writer, server: Serving, session_id: SessionId, body: requests.Move | None = None
) -> Response:
    """Put the session away; reopen brings it back."""
    return _move_session(caller, server, session_id, "archive", body)


@router.post(
    "/sessions/{session_id}/reopen",
    operation_id="reopen_session",
    summary="Reopen",
    response_model=responses.FullSession,
)
def reopen_session(
    caller: Writer, server: Serving, session_id: SessionId, body: requests.Move | None = None
) -> Response:
    """Bring a closed or archived session back."""
    return _move_session(caller, server, session_id, "reopen", body)


routers = (
    router,
    history.router,
    forks.router,
    state.router,
    facts.router,
    approvals.router,
    compliance.router,
)
