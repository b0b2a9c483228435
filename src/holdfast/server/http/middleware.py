"""What every request passes before it is routed, and what every answer carries. Plain ASGI, so that it costs little.

A page in somebody's browser can reach a server on loopback: through a name that it lets point here, or by sending what
browsers send without asking. So the Host must be one of ours, the Origin too, and a body must be declared as JSON,
whatever the address asked for and whether or not a key comes along.
"""

from __future__ import annotations

import asyncio
import logging
import re
from itertools import count
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.clock import REAL
from holdfast.errors import AgentError, BodyTooLarge, RequestTimeout, UnsupportedMediaType
from holdfast.server import logging as logs
from holdfast.server.auth import WHO
from holdfast.server.config import Config
from holdfast.server.errors import REQUEST_ID, error_response, unexpected
from holdfast.server.http.origins import Headers, Sites
from holdfast.server.metrics import Metrics

READ_HERE = frozenset(
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
ON_EVERY_ANSWER = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
UNLESS_SET = (  # a page says itself what it may load
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
LARGE = ("/message", "/message/stream", "/messages", "/sessions/import")  # these carry files
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
WITH_BODY = frozenset(("POST", "PUT", "PATCH", "DELETE"))
QUIET = frozenset(("/health", "/ready", "/metrics"))  # asked for all day long, by machines
WORTH_CLOSING = 64 * 1024  # bytes of a body that we will not read: the connection is not kept for it
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

STRAIGHT = "holdfast.send"  # in the scope: the way out that passes nobody, for the frames of a stream


class Guarded(Protocol):
    """What the guard needs of a server."""

    @property
    def config(self) -> Config: ...

    @property
    def metrics(self) -> Metrics: ...


class Guard:
    """ASGI around the application."""

    def __init__(self, app: ASGIApp, server: Guarded) -> None:
        self.app, self.config, self.metrics = app, server.config, server.metrics
        self.sites = Sites(server.config)
        # Asking the system for randomness gives the interpreter's lock away: once, not for every request.
        self._process, self._requests = REAL.new(), count()

    def new_id(self) -> str:
        """An id for a request: unique, and in the order in which they came."""
        return f"{self._process}-{next(self._requests):x}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        headers: Headers = {}
        for name, value in scope["headers"]:
            if name in READ_HERE:
                headers.setdefault(name, []).append(value)
        exchange = Exchange(self, scope, headers, send)
        try:
            self.sites.check(headers)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers and exchange.origin:
                await Response(None, 204, self.sites.preflight)(scope, receive, exchange.send)
            else:
                await self.app(scope, self._body(scope, headers, receive, exchange), exchange.send)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered, noted, and never shown
            await exchange.fail(error, receive)
        finally:
            exchange.end()

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: a 403

    def _body(self, scope: Scope, headers: Headers, receive: Receive, exchange: Exchange) -> Receive:
        """Check what is said about the body, and watch over what comes of it."""
        lengths, kinds = headers.get(b"content-length"), headers.get(b"content-type")
        is_chunked = b"transfer-encoding" in headers
        has_body = is_chunked or (lengths is not None and lengths != [b"0"])
        if (has_body or kinds) and scope["method"] in WITH_BODY and not _is_json(kinds):
            exchange.leaves_unread = has_body
            raise UnsupportedMediaType
        if not has_body:
            return receive
        limit = self.config.large_body if scope["path"].endswith(LARGE) else self.config.body
        announced = int(lengths[0]) if lengths and lengths[0].isdigit() and len(lengths[0]) < 20 else None
        exchange.leaves_unread = announced is None or announced > WORTH_CLOSING
        if announced is not None and announced > limit:
            raise BodyTooLarge(limit)
        return Body(receive, limit, self.config.body_seconds, exchange)


class Exchange:
    """One request and its answer."""

    def __init__(self, guard: Guard, scope: Scope, headers: Headers, send: Send) -> None:
        self._guard, self._scope, self._send = guard, scope, send
        self._started = REAL.elapsed()
        asked = headers.get(b"x-request-id")
        is_theirs = asked is not None and len(asked) == 1 and _REQUEST_ID.fullmatch(asked[0])
        self.request_id: str = asked[0].decode() if asked and is_theirs else guard.new_id()
        self.origin = guard.sites.allowed_origin(headers)
        self.status = 0
        self.leaves_unread = False  # a large body may still be on its way
        scope[REQUEST_ID], scope[STRAIGHT] = self.request_id, send
        logs.request_id.set(self.request_id)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._completed(message["headers"])
            seconds = REAL.elapsed() - self._started
            self._guard.metrics.observed(self._route(), self._method(), self.status, seconds)
        await self._send(message)

    def _completed(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        there = {name for name, _ in headers}
        added = [*headers, *ON_EVERY_ANSWER, (b"x-request-id", self.request_id.encode())]
        added += [each for each in UNLESS_SET if each[0] not in there]
        if self.origin:
            added.append((b"access-control-allow-origin", self.origin))
            added.append((b"access-control-expose-headers", b"x-request-id, retry-after, idempotency-replayed"))
        if self._guard.sites.has_origins:
            added.append((b"vary", b"origin"))
        if self.status >= 400 and self.leaves_unread and b"connection" not in there:
            added.append((b"connection", b"close"))
        return added

    async def fail(self, error: Exception, receive: Receive) -> None:
        """Answer what the application did not answer. If it had begun to, the connection is simply cut."""
        if not isinstance(error, AgentError):
            unexpected(error, metrics=self._guard.metrics, where=self._route())
        elif not self.status:
            self._guard.metrics.refused.labels(error.code).inc()
        if not self.status:
            await error_response(error, self.request_id)(self._scope, receive, self.send)

    def end(self) -> None:
        route = self._route()
        level = logging.DEBUG if route in QUIET else logging.INFO
        who = self._scope.get(WHO)
        facts = {
            "request_id": self.request_id,
            "key_id": None if who is None else who.key_id,
            "method": self._method(),
            "route": route,
            "status": self.status,
            "milliseconds": round((REAL.elapsed() - self._started) * 1000, 2),
        }
        logs.note_request(level, facts)

    def _route(self) -> str:
        """The template of the route, never the path: that has ids in it, and whatever a stranger writes there."""
        route = getattr(self._scope.get("route"), "path", None)
        return route if isinstance(route, str) else "(none)"

    def _method(self) -> str:
        method: str = self._scope["method"]
        return method if method in METHODS else "(other)"


class Body:
    """Receives a body, within its limit and its time."""

    def __init__(self, receive: Receive, limit: int, seconds: float, exchange: Exchange) -> None:
        self._receive, self._limit, self._seconds, self._exchange = receive, limit, seconds, exchange
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._size, self._is_over = 0, False

    async def __call__(self) -> Message:
        if self._is_over:  # what comes now is that the client leaves
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(self._seconds) from None
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_over, self._exchange.leaves_unread = True, False
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise BodyTooLarge(self._limit)
        return message


def _is_json(kinds: list[bytes] | None) -> bool:
    if kinds == [b"application/json"]:
        return True
    return kinds is not None and len(kinds) == 1 and kinds[0].partition(b";")[0].strip().lower() == b"application/json"
