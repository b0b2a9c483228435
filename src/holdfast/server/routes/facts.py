"""Facts of a session: statements that survive every change of the view, so that a successor knows them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from holdfast.errors import NotFound
from holdfast.log.events import Draft
from holdfast.server.auth import Caller, Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import create_once
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import Serving, SessionId, fact_dict, json_response
from holdfast.session.facts import Fact
from holdfast.session.session import Session

router = APIRouter(route_class=StrictRoute, tags=["facts"], responses=ERRORS)


@router.get(
    "/sessions/{session_id}/facts", operation_id="list_facts", summary="All facts", response_model=responses.Facts
)
def list_facts(caller: Reader, session_id: SessionId) -> Response:
    """Every fact, in the order in which they were added."""
    return json_response({"facts": [fact_dict(each) for each in caller.open_session(session_id).facts.all()]})


@router.post(
    "/sessions/{session_id}/facts",
    operation_id="add_fact",
    summary="Add a fact",
    status_code=201,
    response_model=responses.Fact,
)
def add_fact(
    caller: Writer, server: Serving, request: Request, session_id: SessionId, body: requests.NewFact
) -> Response:
    """Add a statement that a successor must know; it survives every change of the view."""
    session = caller.open_session(session_id)
    fact = create_once(
        caller, request, None, lambda id: _find_fact(session, id), lambda id: _append_fact(session, id, body)
    )
    server.feed.notify_append(session.log)
    return json_response(fact_dict(fact), 201)


def _find_fact(session: Session, id: str) -> Fact | None:
    found = session.store.value(session.log, "fact/" + id)
    return None if found is None else Fact(**found)


def _append_fact(session: Session, id: str, body: requests.NewFact) -> Fact:
    data = {name: value for name, value in body.model_dump().items() if value is not None}
    session.store.append(session.log, [Draft(type="fact.added", data={"id": id, **data})])
    return Fact(id=id, **data)


@router.put(
    "/sessions/{session_id}/facts/{fact_id}",
    operation_id="change_fact",
    summary="Change a fact",
    response_model=responses.Fact,
)
def change_fact(
    caller: Writer, server: Serving, session_id: SessionId, fact_id: str, body: requests.FactChange
) -> Response:
    """Change the fields that are sent and keep the others."""
    session = _open_with_fact(caller, session_id, fact_id)
    fact = session.facts.update(fact_id, **body.fields_sent())
    server.feed.notify_append(session.log)
    return json_response(fact_dict(fact))


@router.delete(
    "/sessions/{session_id}/facts/{fact_id}",
    operation_id="remove_fact",
    summary="Remove a fact",
    response_model=responses.Removed,
)
def remove_fact(caller: Writer, server: Serving, session_id: SessionId, fact_id: str) -> Response:
    session = _open_with_fact(caller, session_id, fact_id)
    session.facts.remove(fact_id)
    server.feed.notify_append(session.log)
    return json_response({"deleted": True})


def _open_with_fact(caller: Caller, session_id: str, fact_id: str) -> Session:
    session = caller.open_session(session_id)
    if _find_fact(session, fact_id) is None:
        raise NotFound("fact", fact_id)
    return session
