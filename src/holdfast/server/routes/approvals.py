"""Calls that wait for a person, unfinished turns, and usage."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.server.auth import Reader, Writer
from holdfast.server.errors import ERRORS
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


@router.post(
    "/sessions/{session_id}/approvals/{call_id:path}",
    operation_id="decide_approval",
    summary="Approve or refuse a call",
    response_model=responses.Approvals,
)
def decide_approval(
    caller: Writer, server: Serving, session_id: SessionId, call_id: str, body: requests.Decision
) -> Response:
    """Approve or refuse a call. The turn goes on with the next resume. Returns the calls that still wait."""
    if body.approved and body.reason is not None:
        raise field_error("reason", "a reason is for a refusal, and is told to the model: leave it out")
    session = caller.open_session(session_id)
    actor = actor_of(caller, body.actor)
    if body.approved:
        session.approve(call_id, actor=actor)
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
