"""State of a session over HTTP: named values in three scopes, with compare-and-set."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.errors import Conflict, Forbidden
from holdfast.log import codec
from holdfast.log.identifiers import check_name
from holdfast.server.auth import Caller, Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import Serving, SessionId, field_error, json_response
from holdfast.session.session import Session
from holdfast.stores.base import MAX_SEQ

router = APIRouter(route_class=StrictRoute, tags=["state"], responses=ERRORS)


@router.get(
    "/sessions/{session_id}/state", operation_id="get_state", summary="All values", response_model=responses.State
)
def get_state(
    caller: Reader,
    session_id: SessionId,
    scope: Annotated[requests.Scope, Query()] = "session",
    at: Annotated[int | None, Query(ge=0, le=MAX_SEQ, description="As it was after this event.")] = None,
) -> Response:
    """The values of a scope now; for the session's own scope also at any past event."""
    session = caller.open_session(session_id)
    if at is None:
        return json_response({"state": session.scope_state(scope)})
    if scope != "session":
        raise field_error("at", "only the session's own state has a past: leave at or scope out")
    return json_response({"state": session.state_at(at)})


@router.get(
    "/sessions/{session_id}/state/{name:path}",
    operation_id="get_state_value",
    summary="One value",
    response_model=responses.StateFound,
)
def get_state_value(
    caller: Reader, session_id: SessionId, name: str, scope: Annotated[requests.Scope, Query()] = "session"
) -> Response:
    """The value of a name now."""
    session = caller.open_session(session_id)
    found, value = _find_value(session, check_name(name, "a state name"), scope)
    return json_response({"name": name, "found": found, "value": value})


@router.put(
    "/sessions/{session_id}/state/{name:path}",
    operation_id="set_state_value",
    summary="Give a name a value",
    response_model=responses.StateSet,
)
def set_state_value(
    caller: Writer,
    server: Serving,
    session_id: SessionId,
    name: str,
    body: requests.StateValue,
    scope: Annotated[requests.Scope | None, Query()] = None,
) -> Response:
    """Set a value. With `expected`, only if the name still has that value: compare and set."""
    if scope is not None and body.scope is not None and scope != body.scope:
        raise field_error("scope", "the address and the body name different scopes: name one")
    chosen = scope or body.scope or "session"
    session = caller.open_session(session_id)
    _check_app_write(caller, chosen)
    if body.expected is None:
        session.set_state(name, body.value, scope=chosen)
    else:
        _compare_and_set(session, check_name(name, "a state name"), chosen, body.value, body.expected)
    server.feed.notify_append(session.log)
    return json_response({"name": name, "value": body.value})


@router.delete(
    "/sessions/{session_id}/state/{name:path}",
    operation_id="delete_state_value",
    summary="Remove a name",
    response_model=responses.Removed,
)
def delete_state_value(
    caller: Writer,
    server: Serving,
    session_id: SessionId,
    name: str,
    scope: Annotated[requests.Scope, Query()] = "session",
) -> Response:
    """Remove a name; false if it had no value."""
    session = caller.open_session(session_id)
    _check_app_write(caller, scope)
    deleted = session.delete_state(name, scope=scope)
    server.feed.notify_append(session.log)
    return json_response({"deleted": deleted})


def _check_app_write(caller: Caller, scope: str) -> None:
    """Raise Forbidden if a key of one user would write the state that all users of an app share."""
    if scope == "app" and not caller.is_application:
        raise Forbidden("app state is shared by all users: writing it needs a key without a user, or an admin's")


def _find_value(session: Session, name: str, scope: str) -> tuple[bool, Any]:
    """Return whether a name has a value now, and the value."""
    log = session._scope_log(scope)
    event = None if log is None else session.store.lookup(log, "state/" + name)
    if log is None or event is None or event.erased:
        return False, None
    return True, session.store.value(log, "state/" + name)


def _compare_and_set(session: Session, name: str, scope: str, value: Any, expected: requests.Expected) -> None:  # noqa: ANN401
    """Set a value if the name still has the expected one; raise Conflict if not.

    The check runs inside `update_state`, which appends only if the log has not moved since it called the check.
    """
    wanted = codec.encode(expected.value) if expected.found else None

    def check_expected(_: Any) -> Any:  # noqa: ANN401 - any JSON; None does not say whether the name has a value
        found, now = _find_value(session, name, scope)
        if (codec.encode(now) if found else None) != wanted:  # as bytes: 1, 1.0 and true are different values
            log = session._scope_log(scope)
            head = 0 if log is None else session.store.head(log).head
            raise Conflict(session.id, expected=head, head=head, name=name)
        return value

    session.update_state(name, check_expected, scope=scope)
