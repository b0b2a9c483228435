"""The middleware around the application: checks before routing, and headers of every answer. Plain ASGI, for speed.

A web page in a browser on this machine can reach a server on loopback: through a host name that points here, or with
requests that browsers send without a preflight. So the Host must be one of the server's, the Origin must be allowed,
and a body must be declared as JSON, for every address and with or without a key.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from itertools import count
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import (
    AgentError,
    BodyTooLarge,
    RequestTimeout,
    TooManyRequests,
    Unavailable,
    UnsupportedMediaType,
)
from holdfast.server import logging as server_logging
from holdfast.server.auth import CALLER
from holdfast.server.config import Config
from holdfast.server.errors import REQUEST_ID, error_response, log_unexpected_error
from holdfast.server.http.header_limits import CONNECTIONS
from holdfast.server.http.origins import Headers, OriginPolicy
from holdfast.server.metrics import Metrics
from holdfast.server.quotas import quota_headers
from holdfast.server.rate_limits import RequestLimits, Slot

CHUNK = 64 << 10  # bytes that wait for a client at once; an answer is large from two of them on
CHECKED_HEADERS = frozenset(
    (
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"content-type",
        b"content-length",
        b"transfer-encoding",
        b"x-request-id",
        b"access-control-request-method",
    )
)
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
DEFAULT_HEADERS = (  # the page at / sends its own policy
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
EXPOSED_HEADERS = b"x-request-id, retry-after, idempotency-replayed, ratelimit, ratelimit-policy"
LARGE_BODY_PATHS = ("/message", "/message/stream", "/messages", "/sessions/import")  # their bodies carry files
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
WITH_BODY = frozenset(("POST", "PUT", "PATCH", "DELETE"))
QUIET_ROUTES = frozenset(("/health", "/ready", "/metrics"))  # monitoring requests them all the time
MAX_UNREAD_BYTES = 64 * 1024  # of a refused body; above this the connection is closed
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

DIRECT_SEND = "holdfast.send"  # in the scope: `send` without the middleware, for the frames of a stream


class ServerLike(Protocol):
    """The parts of a server that the middleware needs. A protocol, because the app imports this module."""

    @property
    def config(self) -> Config: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def limits(self) -> RequestLimits: ...


class SecurityMiddleware:
    """The ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, server: ServerLike) -> None:
        self.app, self.config, self.metrics, self.limits = app, server.config, server.metrics, server.limits
        self.origin_policy = OriginPolicy(server.config)
        # Reading randomness from the system releases the interpreter lock: do it once, not for every request.
        self._process, self._requests = SYSTEM_CLOCK.new_id(), count()

    def new_request_id(self) -> str:
        """Return a unique id for a request; ids are in the order of arrival."""
        return f"{self._process}-{next(self._requests):x}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._handle_other_scope(scope, receive, send)
            return
        headers: Headers = {}
        for name, value in scope["headers"]:
            if name in CHECKED_HEADERS:
                headers.setdefault(name, []).append(value)
        exchange = Exchange(self, scope, headers, send)
        try:
            self.origin_policy.check(headers)
            self._check_crowd(scope)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers and exchange.origin:
                await Response(None, 204, self.origin_policy.preflight)(scope, receive, exchange.send)
            else:
                await self.app(scope, self._check_body(scope, headers, receive, exchange), exchange.send)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 - every error is answered and logged, and none is shown
            await exchange.answer_error(error, receive)
        finally:
            exchange.end()

    def _check_crowd(self, scope: Scope) -> None:
        """Raise Unavailable if too many connections are open; monitoring is answered always."""
        found = scope.get("extensions", {}).get(CONNECTIONS)
        if found is not None and found["count"] > self.config.connections and scope["path"] not in QUIET_ROUTES:
            raise Unavailable("this server has too many connections: try again", retry_after=1.0)

    async def _handle_other_scope(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send(
                {"type": "websocket.close", "code": 1008}
            )  # before the handshake is accepted, so the client gets a 403

    def _check_body(self, scope: Scope, headers: Headers, receive: Receive, exchange: Exchange) -> Receive:
        """Check the headers of a body; return a `receive` that enforces its limits."""
        lengths, kinds = headers.get(b"content-length"), headers.get(b"content-type")
        is_chunked = b"transfer-encoding" in headers
        has_body = is_chunked or (lengths is not None and lengths != [b"0"])
        if (has_body or kinds) and scope["method"] in WITH_BODY and not _is_json(kinds):
            exchange.has_unread_body = has_body
            raise UnsupportedMediaType
        if not has_body:
            return receive
        limit = self.config.large_body if scope["path"].endswith(LARGE_BODY_PATHS) else self.config.body
        announced = int(lengths[0]) if lengths and lengths[0].isdigit() and len(lengths[0]) < 20 else None
        exchange.has_unread_body = announced is None or announced > MAX_UNREAD_BYTES
        if announced is not None and announced > limit:
            raise BodyTooLarge(limit)
        return LimitedBody(receive, limit, self.config.body_seconds, exchange)


class Exchange:
    """A request and its answer."""

    def __init__(self, middleware: SecurityMiddleware, scope: Scope, headers: Headers, send: Send) -> None:
        self._middleware, self._scope, self._send = middleware, scope, send
        self._started = SYSTEM_CLOCK.monotonic()
        asked = headers.get(b"x-request-id")
        is_theirs = asked is not None and len(asked) == 1 and _REQUEST_ID.fullmatch(asked[0])
        self.request_id: str = asked[0].decode() if asked and is_theirs else middleware.new_request_id()
        self.origin = middleware.origin_policy.match_origin(headers)
        self.status = 0
        self._bytes: Slot | None = None  # of a large answer, until its client has taken it
        self._is_refused = False  # whether a refusal was sent in place of the answer
        self.has_unread_body = False  # whether a large body may still arrive
        scope[REQUEST_ID], scope[DIRECT_SEND] = self.request_id, send
        server_logging.request_id.set(self.request_id)

    async def send(self, message: Message) -> None:
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            size = _announced_size(message["headers"])
            if size >= 2 * CHUNK:
                try:
                    self._hold_bytes(size)
                except TooManyRequests as error:
                    await self._refuse(error)
                    return
            self.status = message["status"]
            message["headers"] = self._complete_headers(message["headers"])
            seconds = SYSTEM_CLOCK.monotonic() - self._started
            self._middleware.metrics.observe_request(self._route_template(), self._method_label(), self.status, seconds)
        elif self._bytes is not None:
            await self._send_in_chunks(message)
            return
        await self._send(message)

    def _hold_bytes(self, size: int) -> None:
        caller = self._scope.get(CALLER)
        client = self._scope.get("client")
        key = caller.key_id if caller is not None else f"address {client[0] if client else ''}"
        slots = self._middleware.limits.answer_bytes
        self._bytes = slots.hold(key, None if caller is None else caller.tenant, size)

    async def _refuse(self, error: TooManyRequests) -> None:
        """Send a refusal in place of an answer that would take too much memory while its client reads it."""
        response = error_response(error, self.request_id)
        headers = list(response.raw_headers)
        await self.send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await self.send({"type": "http.response.body", "body": response.body})
        self._is_refused = True

    async def _send_in_chunks(self, message: Message) -> None:
        """Send a large answer as its client takes it: the connection holds one chunk of it, not all of it."""
        body = message.get("body", b"")
        for start in range(0, len(body), CHUNK):
            chunk = body[start : start + CHUNK]
            has_more = start + CHUNK < len(body) or message.get("more_body", False)
            await self._send({"type": "http.response.body", "body": chunk, "more_body": has_more})
        if not body:
            await self._send(message)

    def _complete_headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        there = {name for name, _ in headers}
        added = [*headers, *SECURITY_HEADERS, (b"x-request-id", self.request_id.encode())]
        added += [each for each in DEFAULT_HEADERS if each[0] not in there]
        caller = self._scope.get(CALLER)
        if caller is not None and caller.store.allowances:
            added += quota_headers(caller.store)
        if self.origin:
            added.append((b"access-control-allow-origin", self.origin))
            added.append((b"access-control-expose-headers", EXPOSED_HEADERS))
        if self._middleware.origin_policy.has_origins:
            added.append((b"vary", b"origin"))
        if self.status >= 400 and self.has_unread_body and b"connection" not in there:
            added.append((b"connection", b"close"))
        return added

    async def answer_error(self, error: Exception, receive: Receive) -> None:
        """Answer an error that the application did not answer. If an answer has begun, the connection is cut."""
        if not isinstance(error, AgentError):
            log_unexpected_error(error, metrics=self._middleware.metrics, where=self._route_template())
        elif not self.status:
            self._middleware.metrics.refusals.labels(error.code).inc()
        if not self.status:
            await error_response(error, self.request_id)(self._scope, receive, self.send)

    def end(self) -> None:
        """Give back what the answer held, and write the line of the request."""
        if self._bytes is not None:
            self._bytes.release()
        route = self._route_template()
        level = logging.DEBUG if route in QUIET_ROUTES else logging.INFO
        caller = self._scope.get(CALLER)
        facts = {
            "request_id": self.request_id,
            "key_id": None if caller is None else caller.key_id,
            "method": self._method_label(),
            "route": route,
            "status": self.status,
            "milliseconds": round((SYSTEM_CLOCK.monotonic() - self._started) * 1000, 2),
        }
        server_logging.log_request(level, facts)

    def _route_template(self) -> str:
        """Return the template of the route, never the path: a path has ids and any text that a client sends."""
        route = getattr(self._scope.get("route"), "path", None)
        return route if isinstance(route, str) else "(none)"

    def _method_label(self) -> str:
        method: str = self._scope["method"]
        return method if method in METHODS else "(other)"


class LimitedBody:
    """Receives a body within its size limit and its time."""

    def __init__(self, receive: Receive, limit: int, seconds: float, exchange: Exchange) -> None:
        self._receive, self._limit, self._seconds, self._exchange = receive, limit, seconds, exchange
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._size, self._is_over = 0, False

    async def __call__(self) -> Message:
        if self._is_over:  # the next message is the disconnect
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(self._seconds) from None
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_over, self._exchange.has_unread_body = True, False
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise BodyTooLarge(self._limit)
        return message


def _announced_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _is_json(kinds: list[bytes] | None) -> bool:
    if kinds == [b"application/json"]:
        return True
    return kinds is not None and len(kinds) == 1 and kinds[0].partition(b";")[0].strip().lower() == b"application/json"
