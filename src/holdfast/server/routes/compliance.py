"""Export, import, verification, redaction, legal holds and erasure of sessions."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.server.auth import Admin, Reader, Writer
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import removes_content
from holdfast.server.routes.imports import import_session
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import Serving, SessionId, actor_of, json_response, session_dict
from holdfast.session.export import export_lines
from holdfast.session.session import Session
from holdfast.stores.signing_keys import PublicKeys

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
    caller: Reader,
    server: Serving,
    session_id: SessionId,
    format: Annotated[Literal["jsonl", "markdown", "html"], Query()] = "jsonl",
) -> Response:
    """The session as a file. Its text comes from people and models, so a browser must not run it."""
    session = caller.open_session(session_id)
    name = quote(f"{session.id}.{_SUFFIX[format]}", safe="")
    headers = {
        "Content-Disposition": f"attachment; filename=\"session.{_SUFFIX[format]}\"; filename*=UTF-8''{name}",
        "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
        "X-Content-Type-Options": "nosniff",
    }
    # Not through `media_type`, which adds a charset to some of them only.
    headers["Content-Type"] = f"{_MEDIA[format]}; charset=utf-8"
    with server.large_answers.begin(caller) as answer:
        answer.add_whole_session()
        return Response(_export(session, format), headers=headers)


def _export(session: Session, format: str) -> bytes:
    if format != "jsonl":
        return session.export(format).encode()
    found = io.BytesIO()  # the whole text is in memory once, not as lines, text and bytes
    found.writelines(export_lines(session.store, session.log))
    return found.getvalue()


@router.post(
    "/sessions/import",
    operation_id="import_session",
    summary="Import",
    status_code=201,
    response_model=responses.FullSession,
)
def post_import(caller: Writer, server: Serving, request: Request, body: requests.Imported) -> Response:
    """A session from a jsonl export, with its whole log; the chain is checked first."""
    return json_response(session_dict(import_session(caller, server, request, body)), 201)


@router.get(
    "/sessions/{session_id}/verify",
    operation_id="verify_session",
    summary="Check the hash chain",
    response_model=responses.Verification,
)
def verify_session(caller: Reader, session_id: SessionId) -> Response:
    """Check the hash chain of the whole log, and its signed head if the server knows a public key; names the first
    event that fails. `signed` is the last event that a signature covers; null while the session is not signed yet."""
    session = caller.open_session(session_id)
    return json_response(asdict(session.store.verify(session.log, PublicKeys.from_environment())))


@router.get(
    "/sessions/{session_id}/document",
    operation_id="get_document",
    summary="The whole view",
    response_model=responses.Document,
)
def get_document(caller: Reader, server: Serving, session_id: SessionId) -> Response:
    """Messages, state, facts and the rest as one JSON document, as `Session.to_dict` gives it."""
    session = caller.open_session(session_id)
    with server.large_answers.begin(caller) as answer:
        answer.add_whole_session()
        return json_response(session.to_dict())


@router.post(
    "/sessions/{session_id}/redact",
    operation_id="redact_event",
    summary="Remove the payload of an event",
    response_model=responses.Redacted,
)
@removes_content
def redact_event(caller: Admin, server: Serving, session_id: SessionId, body: requests.Redaction) -> Response:
    """Remove the payload of an event and of every event that repeats its text. The hashes stay, so the chain still
    verifies."""
    session = caller.open_session(session_id)
    done = session.redact(body.seq, reason=body.reason, actor=actor_of(caller, body.actor))
    server.drop_session_object(caller.store, session.log)
    server.feed.notify_append(session.log)
    return json_response(asdict(done))


@router.post(
    "/sessions/{session_id}/hold",
    operation_id="hold_session",
    summary="Put under a legal hold",
    response_model=responses.FullSession,
)
def hold_session(caller: Admin, server: Serving, session_id: SessionId, body: requests.Reasoned) -> Response:
    """Until the hold is released, nothing of the session is removed, also if retention says so."""
    session = caller.open_session(session_id)
    session.hold(body.reason, actor=actor_of(caller, body.actor))
    server.feed.notify_append(session.log)
    return json_response(session_dict(session))


@router.post(
    "/sessions/{session_id}/release",
    operation_id="release_session",
    summary="End a hold",
    response_model=responses.FullSession,
)
def release_session(
    caller: Admin, server: Serving, session_id: SessionId, body: requests.Move | None = None
) -> Response:
    """End a hold; or allow retention to remove a session whose turn is parked, failed or waiting."""
    asked = body or requests.Move()
    session = caller.open_session(session_id)
    session.release(asked.reason, actor=actor_of(caller, asked.actor))
    server.feed.notify_append(session.log)
    return json_response(session_dict(session))


@router.post(
    "/sessions/{session_id}/erase",
    operation_id="erase_session",
    summary="Erase everything it says",
    response_model=responses.Erased,
)
@removes_content
def erase_session(caller: Admin, server: Serving, session_id: SessionId, body: requests.Reasoned) -> Response:
    """Erase all content for good, also of an immutable session; only the hashes stay. A hold forbids it."""
    session = caller.open_session(session_id)
    done = session.erase(reason=body.reason, actor=actor_of(caller, body.actor))
    server.drop_session_object(caller.store, session.log)
    server.feed.notify_append(session.log)
    return json_response(asdict(done))
