"""Taking sessions out and in, checking them, and what of them must go or must stay."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.server.auth import Admin, Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.routes.imports import import_session
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import Serving, SessionId, actor_of, reply, session_full

router = APIRouter(route_class=StrictRoute, tags=["keeping"], responses=ERRORS)
_MEDIA = {"jsonl": "application/x-ndjson", "markdown": "text/markdown", "html": "text/html"}
_SUFFIX = {"jsonl": "jsonl", "markdown": "md", "html": "html"}


@router.get(
    "/sessions/{session_id}/export",
    operation_id="export_session",
    summary="Export",
    response_class=Response,
    responses={
        200: {
            "description": "The whole log as JSON lines, verifiable without a database; or the messages for people.",
            "content": {f"{media}; charset=utf-8": {"schema": {"type": "string"}} for media in _MEDIA.values()},
        }
    },
)
def export_session(
    who: Reader, session_id: SessionId, format: Annotated[Literal["jsonl", "markdown", "html"], Query()] = "jsonl"
) -> Response:
    """A file to keep. What it says came from people and models: a browser must not run it."""
    session = who.open(session_id)
    name = quote(f"{session.id}.{_SUFFIX[format]}", safe="")
    headers = {
        "Content-Disposition": f"attachment; filename=\"session.{_SUFFIX[format]}\"; filename*=UTF-8''{name}",
        "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
        "X-Content-Type-Options": "nosniff",
    }
    # Not through `media_type`, which adds a charset to some of them only.
    headers["Content-Type"] = f"{_MEDIA[format]}; charset=utf-8"
    return Response(session.export(format).encode(), headers=headers)


@router.post(
    "/sessions/import",
    operation_id="import_session",
    summary="Import",
    status_code=201,
    response_model=schemas.FullSession,
)
def post_import(who: Writer, server: Serving, request: Request, body: bodies.Imported) -> Response:
    """A session from a jsonl export, with its whole log; the chain is checked first."""
    return reply(session_full(import_session(who, server, request, body)), 201)


@router.get(
    "/sessions/{session_id}/verify",
    operation_id="verify_session",
    summary="Check the hash chain",
    response_model=schemas.Verification,
)
def verify_session(who: Reader, session_id: SessionId) -> Response:
    """Of the whole log; names the first event that fails."""
    return reply(asdict(who.open(session_id).verify()))


@router.get(
    "/sessions/{session_id}/document",
    operation_id="get_document",
    summary="The whole view",
    response_model=schemas.Document,
)
def get_document(who: Reader, session_id: SessionId) -> Response:
    """Messages, state, facts and the rest as one JSON document, as `Session.to_dict` gives it."""
    return reply(who.open(session_id).to_dict())


@router.post(
    "/sessions/{session_id}/redact",
    operation_id="redact_event",
    summary="Remove the payload of an event",
    response_model=schemas.Redacted,
)
def redact_event(who: Admin, server: Serving, session_id: SessionId, body: bodies.Redaction) -> Response:
    """And of every event that repeats its text. Their hashes stay, so the chain still verifies."""
    session = who.open(session_id)
    done = session.redact(body.seq, reason=body.reason, actor=actor_of(who, body.actor))
    server.forget(who.store, session._log)
    server.feed.nudge(session._log)
    return reply(asdict(done))


@router.post(
    "/sessions/{session_id}/hold",
    operation_id="hold_session",
    summary="Put under a legal hold",
    response_model=schemas.FullSession,
)
def hold_session(who: Writer, server: Serving, session_id: SessionId, body: bodies.Reasoned) -> Response:
    """Nothing of it is removed, whatever the retention says, until it is released."""
    session = who.open(session_id)
    session.hold(body.reason, actor=actor_of(who, body.actor))
    server.feed.nudge(session._log)
    return reply(session_full(session))


@router.post(
    "/sessions/{session_id}/release",
    operation_id="release_session",
    summary="End a hold",
    response_model=schemas.FullSession,
)
def release_session(who: Admin, server: Serving, session_id: SessionId, body: bodies.Move | None = None) -> Response:
    """Or let a session whose turn is parked, failed or waiting go when its time is up."""
    asked = body or bodies.Move()
    session = who.open(session_id)
    session.release(asked.reason, actor=actor_of(who, asked.actor))
    server.feed.nudge(session._log)
    return reply(session_full(session))


@router.post(
    "/sessions/{session_id}/erase",
    operation_id="erase_session",
    summary="Erase everything it says",
    response_model=schemas.Erased,
)
def erase_session(who: Admin, server: Serving, session_id: SessionId, body: bodies.Reasoned) -> Response:
    """For good, immutable or not; only the hashes stay. A hold forbids it."""
    session = who.open(session_id)
    done = session.erase(reason=body.reason, actor=actor_of(who, body.actor))
    server.forget(who.store, session._log)
    server.feed.nudge(session._log)
    return reply(asdict(done))
