"""State and facts of a session."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.errors import Conflict, Forbidden, NotFound
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.identifiers import checked_name
from holdfast.server.auth import Reader, Who, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.new_resources import made_once
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import Serving, SessionId, fact_dict, refused, reply
from holdfast.session.facts import Fact
from holdfast.session.session import Session
from holdfast.stores.base import MAX_SEQ

router = APIRouter(route_class=StrictRoute, tags=["state"], responses=ERRORS)
facts_router = APIRouter(route_class=StrictRoute, tags=["facts"], responses=ERRORS)


class ValueChanged(Conflict):
    """The value is not what the writer thought it was."""

    def __init__(self, session_id: SessionId, name: str, head: int) -> None:
        self.session_id, self.name, self.head, self.expected = session_id, name, head, head
        Exception.__init__(self, f"state {name!r} is not what was expected: read it again and try again")


@router.get(
    "/sessions/{session_id}/state", operation_id="get_state", summary="All values", response_model=schemas.State
)
def get_state(
    who: Reader,
    session_id: SessionId,
    scope: Annotated[bodies.Scope, Query()] = "session",
    at: Annotated[int | None, Query(ge=0, le=MAX_SEQ, description="As it was after this event.")] = None,
) -> Response:
    """The values of a scope, now or, for the session's own, at any past point."""
    session = who.open(session_id)
    if at is None:
        return reply({"state": session.scope_state(scope)})
    if scope != "session":
        raise refused("at", "only the session's own state has a past: leave at or scope out")
    return reply({"state": session.state_at(at)})


@router.get(
    "/sessions/{session_id}/state/{name:path}",
    operation_id="get_state_value",
    summary="One value",
    response_model=schemas.StateFound,
)
def get_state_value(
    who: Reader, session_id: SessionId, name: str, scope: Annotated[bodies.Scope, Query()] = "session"
) -> Response:
    """The value of a name now, whoever set it."""
    session = who.open(session_id)
    found, value = _value(session, checked_name(name, "a state name"), scope)
    return reply({"name": name, "found": found, "value": value})


@router.put(
    "/sessions/{session_id}/state/{name:path}",
    operation_id="set_state_value",
    summary="Give a name a value",
    response_model=schemas.StateSet,
)
def set_state_value(
    who: Writer,
    server: Serving,
    session_id: SessionId,
    name: str,
    body: bodies.StateValue,
    scope: Annotated[bodies.Scope | None, Query()] = None,
) -> Response:
    """With `expected`, only if the name still has that value: compare and set."""
    if scope is not None and body.scope is not None and scope != body.scope:
        raise refused("scope", "the address and the body name different scopes: name one")
    chosen = scope or body.scope or "session"
    session = who.open(session_id)
    _refuse_app(who, chosen)
    if body.expected is None:
        session.set_state(name, body.value, chosen)
    else:
        _compare_and_set(session, checked_name(name, "a state name"), chosen, body.value, body.expected)
    server.feed.nudge(session._log)
    return reply({"name": name, "value": body.value})


@router.delete(
    "/sessions/{session_id}/state/{name:path}",
    operation_id="delete_state_value",
    summary="Remove a name",
    response_model=schemas.Removed,
)
def delete_state_value(
    who: Writer, server: Serving, session_id: SessionId, name: str, scope: Annotated[bodies.Scope, Query()] = "session"
) -> Response:
    """False if it had no value."""
    session = who.open(session_id)
    _refuse_app(who, scope)
    deleted = session.delete_state(name, scope)
    server.feed.nudge(session._log)
    return reply({"deleted": deleted})


def _refuse_app(who: Who, scope: str) -> None:
    """What all users of an app share is not for one of them to write."""
    if scope == "app" and who.user is not None and not who.may("admin"):
        raise Forbidden("app state is shared by all users: writing it needs a key without a user, or an admin's")


def _value(session: Session, name: str, scope: str, at: int | None = None) -> tuple[bool, Any]:
    log = session._scope_log(scope)
    event = None if log is None else session.store.lookup(log, "state/" + name, at)
    if log is None or event is None or event.erased:
        return False, None
    return True, session.store.value(log, "state/" + name, at=at)


def _compare_and_set(session: Session, name: str, scope: str, value: Any, expected: bodies.Expected) -> None:  # noqa: ANN401
    store = session.store
    wanted = codec.encode(expected.value) if expected.found else None
    while True:
        log = session._scope_log(scope) or session._new_scope_log(scope)
        head = store.head(log).head
        found, now = _value(session, name, scope, head)
        if (codec.encode(now) if found else None) != wanted:  # as bytes: 1, 1.0 and true are different values
            raise ValueChanged(session.id, name, head)
        try:
            store.append(log, [Draft(type="state.set", data={"name": name, "value": value})], expected=head)
            return
        except Conflict:
            continue  # something else was written: look again


# -- facts -------------------------------------------------------------------------------------------------------------


@facts_router.get(
    "/sessions/{session_id}/facts", operation_id="list_facts", summary="All facts", response_model=schemas.Facts
)
def list_facts(who: Reader, session_id: SessionId) -> Response:
    """Every fact, in the order in which they were added."""
    return reply({"facts": [fact_dict(each) for each in who.open(session_id).facts.all()]})


@facts_router.post(
    "/sessions/{session_id}/facts",
    operation_id="add_fact",
    summary="Add a fact",
    status_code=201,
    response_model=schemas.Fact,
)
def add_fact(who: Writer, server: Serving, request: Request, session_id: SessionId, body: bodies.NewFact) -> Response:
    """Something that a successor must know; it survives every change of the view."""
    session = who.open(session_id)
    fact = made_once(who, request, None, lambda id: _fact(session, id), lambda id: _added(session, id, body))
    server.feed.nudge(session._log)
    return reply(fact_dict(fact), 201)


def _fact(session: Session, id: str) -> Fact | None:
    found = session.store.value(session._log, "fact/" + id)
    return None if found is None else Fact(**found)


def _added(session: Session, id: str, body: bodies.NewFact) -> Fact:
    data = {name: value for name, value in body.model_dump().items() if value is not None}
    session.store.append(session._log, [Draft(type="fact.added", data={"id": id, **data})])
    return Fact(id=id, **data)


@facts_router.put(
    "/sessions/{session_id}/facts/{fact_id}",
    operation_id="change_fact",
    summary="Change a fact",
    response_model=schemas.Fact,
)
def change_fact(who: Writer, server: Serving, session_id: SessionId, fact_id: str, body: bodies.FactChange) -> Response:
    """Change what is sent and keep the rest."""
    session = _with_fact(who, session_id, fact_id)
    fact = session.facts.update(fact_id, **body.given())
    server.feed.nudge(session._log)
    return reply(fact_dict(fact))


@facts_router.delete(
    "/sessions/{session_id}/facts/{fact_id}",
    operation_id="remove_fact",
    summary="Remove a fact",
    response_model=schemas.Removed,
)
def remove_fact(who: Writer, server: Serving, session_id: SessionId, fact_id: str) -> Response:
    session = _with_fact(who, session_id, fact_id)
    session.facts.remove(fact_id)
    server.feed.nudge(session._log)
    return reply({"deleted": True})


def _with_fact(who: Who, session_id: str, fact_id: str) -> Session:
    session = who.open(session_id)
    if _fact(session, fact_id) is None:
        raise NotFound("fact", fact_id)
    return session
