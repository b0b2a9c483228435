"""Calls that wait for a person, unfinished turns, and usage."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.server.auth import Approver, Reader
from holdfast.server.errors import ERRORS
from holdfast.server.field_rights import DEVICE_DECISION_FIELDS, check_device_fields
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import Serving, SessionId, actor_of, field_error, json_response, pending_dict
from holdfast.session.session import Session

router = APIRouter(route_class=StrictRoute, tags=["approvals"], responses=ERRORS)


@router.get(
    "/sessions/{session_id}/approvals",
    operation_id="list_approvals",
    summary="Calls that wait for a person",
    response_model=responses.Approvals,
)
def list_approvals(caller: Reader, session_id: SessionId) -> Response:
    """The calls that wait for a decision."""
    return json_response(_list_pending(caller.open_session(session_id)))


@router.get(
    "/approvals",
    operation_id="list_waiting",
    summary="Calls of all sessions that wait for a person",
    response_model=responses.WaitingCalls,
)
def list_waiting(
    caller: Reader,
    user_id: Annotated[str | None, Query(max_length=512)] = None,
    app_name: Annotated[str | None, Query(max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: str | None = None,
) -> Response:
    """The waiting calls of up to `limit` sessions, newest session first; `after` is the last session of a page."""
    found = Session.waiting(
        store=caller.store, user_id=caller.resolve_owner(user_id), app_name=app_name, limit=limit, after=after
    )
    return json_response({"waiting": [pending_dict(each) | {"since": each.since.isoformat()} for each in found]})


@router.post(
    "/sessions/{session_id}/approvals/{call_id:path}",
    operation_id="decide_approval",
    summary="Approve or refuse a call",
    response_model=responses.Approvals,
)
def decide_approval(
    caller: Approver, server: Serving, session_id: SessionId, call_id: str, body: requests.Decision
) -> Response:
    """Approve or refuse a call. The turn goes on with the next resume. Returns the calls that still wait."""
    if body.approved and body.reason is not None:
        raise field_error("reason", "a reason is for a refusal, and is told to the model: leave it out")
    given = body.fields_sent()
    check_device_fields(caller, given, DEVICE_DECISION_FIELDS)
    if not body.approved and given.keys() & {"arguments", "answer"}:
        raise field_error("approved", "arguments and answers are for approved calls: send true, or leave them out")
    if "answer" in given and body.arguments is not None:
        raise field_error("answer", "a call has an answer or other arguments, not both")
    session = caller.open_session(session_id)
    actor = actor_of(caller, body.actor)
    if "answer" in given:
        session.answer(call_id, body.answer, actor=actor)
    elif body.approved:
        session.approve(call_id, arguments=body.arguments, actor=actor)
    else:
        session.deny(call_id, body.reason, actor=actor)
    server.feed.notify_append(session.log)
    return json_response(_list_pending(session))


def _list_pending(session: Session) -> dict[str, object]:
    return {"pending": [pending_dict(call) for call in session.pending]}


@router.get(
    "/sessions/{session_id}/unfinished",
    operation_id="get_unfinished",
    summary="A turn that a crash cut",
    response_model=responses.Unfinished,
)
def get_unfinished(caller: Reader, session_id: SessionId) -> Response:
    """The unfinished turn; null if there is none, or if a process works on it."""
    found = caller.open_session(session_id).unfinished
    return json_response({"unfinished": None if found is None else asdict(found)})


@router.get(
    "/sessions/{session_id}/usage", operation_id="get_usage", summary="Usage and cost", response_model=responses.Used
)
def get_usage(caller: Reader, session_id: SessionId) -> Response:
    """The tokens of all model calls, their cost, and the budget."""
    session = caller.open_session(session_id)
    budget = session.budget
    return json_response(
        {
            "usage": session.usage.to_dict(),
            "cost": session.cost,
            "budget": None if budget is None else budget.to_dict(),
        }
    )
