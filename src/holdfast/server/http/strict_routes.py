"""How a route reads a request: who asks comes first, then the body, under the same rules as everything we store.

FastAPI alone would parse the body of whoever sends one, and with the lenient parser of the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from holdfast.concurrency import off_thread
from holdfast.errors import BodyTooLarge, Forbidden, InvalidArgument
from holdfast.log import codec
from holdfast.server.auth import Require, dependency_of
from holdfast.server.idempotency import once

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Model = TypeVar("Model", bound=BaseModel)
MAX_NODES = 10_000
INLINE = 16 * 1024  # bytes: what is larger is parsed on a thread, and others are served meanwhile
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
# Possessive, so that a long text costs no memory per character.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)


def parse_body(body: bytes) -> Any:  # noqa: ANN401 - a JSON value
    """JSON of at most `MAX_NODES` values; those are counted before anything is built from them."""
    tokens = 0
    for _ in _TOKEN.finditer(body):
        tokens += 1
        if tokens > 3 * MAX_NODES:  # a value, its key and its comma
            raise BodyTooLarge(MAX_NODES, "values")
    value = codec.parse(body)
    if tokens >= MAX_NODES and _nodes(value) > MAX_NODES:
        raise BodyTooLarge(MAX_NODES, "values")
    return value


def _nodes(value: object) -> int:
    waiting, found = [value], 0
    while waiting:
        each = waiting.pop()
        found += 1
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


class StrictRequest(Request):
    """A request whose JSON was read strictly."""

    async def read(self) -> None:
        body = await self.body()
        if body:
            self._json = parse_body(body) if len(body) <= INLINE else await off_thread(parse_body, body)


def goes_straight(handler: Callable[[Request, Any], Coroutine[Any, Any, Response]]) -> Callable[[Endpoint], Endpoint]:
    """For a route that is asked often and takes little: `handler` answers it, and FastAPI only documents the endpoint.
    What FastAPI does for five query parameters takes as long as reading a page from the store."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.straight = handler  # type: ignore[attr-defined]
        return endpoint

    return mark


def query_of(request: Request, kind: type[Model]) -> Model:
    """The query of a request as a model has it; refused in the words of every other route."""
    given = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems = [{**each, "loc": ("query", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(problems) from error


class StrictRoute(APIRoute):
    """For every router of the server: `APIRouter(route_class=StrictRoute)`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # Every route is asked about every request: most are told apart by how they end, without their pattern.
        if scope["type"] == "http" and not scope["path"].endswith(self._end):
            return Match.NONE, {}
        return super().matches(scope)

    async def go_straight(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer without FastAPI, under the same rules."""
        assert self.straight is not None
        if not isinstance(self._permission, Require):
            raise Forbidden("this address declares no permission, so nobody has it")
        request = Request(scope, receive, send)
        who = await self._permission(request)
        if b"&" in scope["query_string"]:
            self._refuse_repeated(scope["query_string"])
        response: Response = await self.straight(request, who)
        await response(scope, receive, send)

    def _refuse_repeated(self, query: bytes) -> None:
        """A parameter given twice: which one is meant? Only those that are lists may be."""
        several = {each.alias for each in self.dependant.query_params if "list[" in str(each.field_info.annotation)}
        names = [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
        for name in names:
            if name not in several and names.count(name) > 1:
                raise InvalidArgument(f"{name[:40]!r} is given twice in the query: give it once")

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        self._end = self.path.rpartition("}")[2]
        answer = super().get_route_handler()
        permission = dependency_of(self)
        has_own_answers = getattr(self.endpoint, "own_answers", False)
        self._permission, self.straight = permission, getattr(self.endpoint, "straight", None)

        async def handle(received: Request) -> Response:
            request = StrictRequest(received.scope, received.receive, received._send)
            if permission is None:
                raise Forbidden("this address declares no permission, so nobody has it")
            who = await permission(request) if isinstance(permission, Require) else None
            if b"&" in request.scope["query_string"]:
                self._refuse_repeated(request.scope["query_string"])
            if request.method not in WITH_BODY:
                return await answer(request)
            await request.read()
            if who is None or has_own_answers:
                return await answer(request)
            return await once(request, who, lambda: answer(request))

        return handle
