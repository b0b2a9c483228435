"""What a person has to decide or to look at: waiting calls, unfinished turns, and what it all took."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.server.auth import Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import Serving, SessionId, actor_of, pending_dict, refused, reply
from holdfast.session.session import Session

router = APIRouter(route_class=StrictRoute, tags=["approvals"], responses=ERRORS)


@router.get(
    "/sessions/{session_id}/approvals",
    operation_id="list_approvals",
    summary="Calls that wait for a person",
    response_model=schemas.Approvals,
)
def list_approvals(who: Reader, session_id: SessionId) -> Response:
    """The calls that wait for a decision."""
    return reply(_pending(who.open(session_id)))


@router.post(
    "/sessions/{session_id}/approvals/{call_id:path}",
    operation_id="decide_approval",
    summary="Approve or refuse a call",
    response_model=schemas.Approvals,
)
def decide_approval(
    who: Writer, server: Serving, session_id: SessionId, call_id: str, body: bodies.Decision
) -> Response:
    """The turn goes on with the next resume. Answers with what still waits."""
    if body.approved and body.reason is not None:
        raise refused("reason", "a reason is for a refusal, and is told to the model: leave it out")
    session = who.open(session_id)
    actor = actor_of(who, body.actor)
    if body.approved:
        session.approve(call_id, actor=actor)
    else:
        session.deny(call_id, body.reason, actor=actor)
    server.feed.nudge(session._log)
    return reply(_pending(session))


def _pending(session: Session) -> dict[str, object]:
    return {"pending": [pending_dict(call) for call in session.pending]}


@router.get(
    "/sessions/{session_id}/unfinished",
    operation_id="get_unfinished",
    summary="A turn that a crash cut",
    response_model=schemas.Unfinished,
)
def get_unfinished(who: Reader, session_id: SessionId) -> Response:
    """Null if there is none, or if somebody is at work on it."""
    found = who.open(session_id).unfinished
    return reply({"unfinished": None if found is None else asdict(found)})


@router.get(
    "/sessions/{session_id}/usage", operation_id="get_usage", summary="What it took", response_model=schemas.Used
)
def get_usage(who: Reader, session_id: SessionId) -> Response:
    """Tokens of every model call, what they cost, and the budget."""
    session = who.open(session_id)
    budget = session.budget
    return reply(
        {
            "usage": session.usage.to_dict(),
            "cost": session.cost,
            "budget": None if budget is None else budget.to_dict(),
        }
    )
