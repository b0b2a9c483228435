"""Errors as JSON: every failure is `{"error": text, "code": code, "request_id": id}`, and never a traceback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from holdfast.errors import (
    AgentError,
    CorruptLog,
    KeyNeeded,
    ProviderError,
    SchemaTooNew,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StorePoisoned,
    StoreReadOnly,
    StoreUnavailable,
    UnsafeSQLite,
    WrongKey,
)
from holdfast.server.logging import extra_fields, log
from holdfast.server.metrics import Metrics

REQUEST_ID = "holdfast.request_id"  # in the scope of a request
MAX_ERROR_TEXT = 1000  # characters of an error's text
UNEXPECTED = "internal error: see the server's log"
_STORE_TEXTS: dict[type, str] = {
    StoreError: "the store failed: see the server's log",
    StoreBusy: "the store took too long: try again",
    StoreFull: "the store has no space left: nothing was written; free some space and try again",
    StoreReadOnly: "the store cannot be written: see the server's log",
    StoreUnavailable: "the store cannot be reached: try again, and see the server's log",
    StorePoisoned: "the store takes no writes until the server is started again: see the server's log",
    StoreClosed: "the store was closed: this server is stopping, ask another one",
    UnsafeSQLite: "the store cannot be opened: see the server's log",
    CorruptLog: "a record in the store cannot be read: verify the session, and see the server's log",
    WrongKey: "a record in the store cannot be decrypted: see the server's log",
}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
_HTTP_TEXTS = {404: "there is nothing at this address", 405: "this address does not take this method"}


class ErrorBody(BaseModel):
    """The body of every failure. Match on the code, never on the text."""

    error: str = Field(description="What is wrong, and what to do next.")
    code: str = Field(description="Stable: what a program should look at.")
    request_id: str = Field(description="Also in the header X-Request-ID and in the server's log.")
    field: str | None = Field(default=None, description="Which part of the input is meant.")
    retry_after: float | None = Field(default=None, description="Seconds after which to try again.")
    details: dict[str, Any] | None = Field(default=None, description="The facts of the error, by name.")


def error_body(error: BaseException, request_id: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of an error."""
    body: dict[str, Any] = {"error": UNEXPECTED, "code": "internal_error", "request_id": request_id}
    status = 500
    if isinstance(error, RequestValidationError):
        status, body["code"] = 400, "invalid_argument"
        body["error"], body["field"] = _first_problem(error)
    elif isinstance(error, HTTPException):
        status = error.status_code
        body["error"] = _HTTP_TEXTS.get(status, str(error.detail))
        body["code"] = _HTTP_CODES.get(status, "invalid_argument" if status < 500 else "internal_error")
    elif isinstance(error, AgentError):
        status, body["code"], body["error"] = error.status, error.code, public_text(error)
        if isinstance(field := getattr(error, "field", None), str):
            body["field"] = field
        if (wait := _retry_seconds(error)) is not None:
            body["retry_after"] = wait
        if details := {name: value for name, value in error.details.items() if name not in body}:
            body["details"] = _make_sendable(details)
    body["error"] = _make_sendable(body["error"][:MAX_ERROR_TEXT])
    return status, body


def error_response(error: BaseException, request_id: str) -> Response:
    """Return the answer for an error, also from outside of FastAPI."""
    status, body = error_body(error, request_id)
    headers = dict(getattr(error, "headers", None) or {})  # a 405 names the allowed methods
    if "retry_after" in body:
        headers["Retry-After"] = str(max(1, math.ceil(body["retry_after"])))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the server does not wait for the rest of the body
    return Response(orjson.dumps(body), status, headers, "application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Answer every failure inside the app as JSON; the middleware around the app logs unexpected exceptions."""

    async def answer_error(request: Request, error: Exception) -> Response:
        count_error(error, request.app.state.server.metrics)
        return error_response(error, request_id_of(request))

    async def ignore_disconnect(request: Request, error: Exception) -> Response:
        # The client is gone, so this answer is never read.
        return Response(status_code=499)

    for kind in (AgentError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(ClientDisconnect, ignore_disconnect)


def count_error(error: BaseException, metrics: Metrics) -> None:
    """Count and log a fault of the server. A client's mistake is in its answer and in the access log."""
    if isinstance(error, StoreError):
        metrics.store_errors.labels(error.code).inc()
        log.warning("the store failed", extra=extra_fields(code=error.code, error=str(error)))
    elif isinstance(error, AgentError) and error.status >= 500 and not isinstance(error, ProviderError):
        log.warning("a request failed", extra=extra_fields(code=error.code))


def log_unexpected_error(error: BaseException, *, metrics: Metrics, where: str) -> None:
    """Count and log an unexpected exception by its class and its traceback lines: its text may hold content."""
    metrics.unexpected_errors.inc()
    log.error("an unexpected error", exc_info=error, extra=extra_fields(where=where))


def request_id_of(request: Request | Scope) -> str:
    """Return the id that the middleware gave to this request."""
    scope = request.scope if isinstance(request, Request) else request
    return str(scope.get(REQUEST_ID, ""))


def _make_sendable(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    """Return a value that can be encoded as JSON: a text may quote half a character of a file name."""
    if isinstance(value, dict):
        return {name: _make_sendable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_make_sendable(each) for each in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def public_text(error: AgentError) -> str:
    """Return the text of an error for a client. The text of a store names its file or its database server: that is for
    the server's log only."""
    if not isinstance(error, StoreError) or isinstance(error, SchemaTooNew | KeyNeeded):
        return str(error)
    return next(_STORE_TEXTS[kind] for kind in type(error).__mro__ if kind in _STORE_TEXTS)


def _retry_seconds(error: AgentError) -> float | None:
    wait = getattr(error, "retry_after", None)
    if isinstance(wait, int | float) and math.isfinite(wait):
        return max(0.0, float(wait))
    # An unavailable store may be back soon, so a retry after one second is right.
    return 1.0 if isinstance(error, StoreError) and error.status == 503 else None


def _first_problem(error: RequestValidationError) -> tuple[str, str | None]:
    """Return the first problem that pydantic found and its field, without the value that was sent."""
    found = error.errors()
    first: Mapping[str, Any] = found[0] if found else {"loc": (), "msg": "invalid input"}
    places = [str(each) for each in first["loc"]]
    if places and places[0] in ("body", "query", "path", "header", "cookie"):
        places = places[1:] or ["body" if places[0] == "body" else places[0]]
    field = ".".join(places) or None
    message = str(first["msg"]).removeprefix("Value error, ")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return (f"{field}: {message}{more}" if field else f"{message}{more}"), field


def _document_error(status: int, description: str, code: str, text: str, **more: object) -> dict[str, Any]:
    example = {"error": text, "code": code, "request_id": "01JD3V9M5QW8YB7TCKZ4N2E6RH", **more}
    return {"model": ErrorBody, "description": description, "content": {"application/json": {"example": example}}}


# For `responses=` of a router.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: _document_error(status, description, code, text, **more)
    for status, description, code, text, more in (
        (400, "Bad input", "invalid_argument", "title: Input should be a valid string", {"field": "title"}),
        (401, "No valid key", "unauthorized", "a valid key is needed: send 'Authorization: Bearer KEY'", {}),
        (403, "Not allowed", "forbidden", "this key may read, and this needs write", {}),
        (404, "Not found, or not yours", "session_not_found", "session not found: s-1", {}),
        (405, "Wrong method", "method_not_allowed", _HTTP_TEXTS[405], {}),
        (408, "The body did not arrive in time", "request_timeout", "the body did not arrive within 30 s", {}),
        (409, "In conflict with what is there", "session_exists", "session 's-1' exists already", {}),
        (413, "Too large", "body_too_large", "the body has more than 2097152 bytes", {}),
        (415, "Not JSON", "unsupported_media_type", "only JSON is read here", {}),
        (422, "An Idempotency-Key with another body", "key_reused", "key 'k' was used with other content", {}),
        (429, "Too much", "too_many_requests", "this key asks too often: try again in 1 s", {"retry_after": 0.4}),
        (500, "Our fault", "internal_error", UNEXPECTED, {}),
        (502, "The model's provider failed", "provider_unavailable", "the provider cannot be reached", {}),
        (503, "The store is away, or the server stops", "store_unavailable", "no connection", {"retry_after": 1.0}),
        (507, "The disk is full", "store_full", "no space is left", {}),
    )
}
