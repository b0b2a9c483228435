"""How a route reads a request: the permission is checked first, then the query and the body are read strictly.

FastAPI alone would parse a body before it knows the caller, and with the lenient parser of the standard library. Bodies
follow the same rules as everything in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from holdfast.concurrency import off_thread
from holdfast.errors import BodyTooLarge, Forbidden, InvalidArgument
from holdfast.log import codec
from holdfast.log.arguments import suggest_name
from holdfast.server.auth import Caller, Require, dependency_of
from holdfast.server.idempotency import answer_once
from holdfast.server.quotas import charge_request

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Model = TypeVar("Model", bound=BaseModel)
MAX_NODES = 10_000
MAX_INLINE_BYTES = 16 * 1024  # a larger body is parsed on a thread, so that the event loop serves other requests
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
# Possessive, so that a long text costs no memory per character.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)


def parse_body(body: bytes) -> Any:  # noqa: ANN401 - a JSON value
    """Parse JSON of at most `MAX_NODES` values; raise BodyTooLarge if it has more. Values are counted before they are
    built."""
    tokens = 0
    for _ in _TOKEN.finditer(body):
        tokens += 1
        if tokens > 3 * MAX_NODES:  # a value has at most a key and a comma beside it
            raise BodyTooLarge(MAX_NODES, "values")
    value = codec.parse(body)
    if tokens >= MAX_NODES and _count_nodes(value) > MAX_NODES:
        raise BodyTooLarge(MAX_NODES, "values")
    return value


def _count_nodes(value: object) -> int:
    waiting, count = [value], 0
    while waiting:
        each = waiting.pop()
        count += 1
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return count


class StrictRequest(Request):
    """A request whose JSON is parsed strictly."""

    async def read_json(self) -> None:
        """Parse the body, so that FastAPI finds it parsed."""
        body = await self.body()
        if body:
            self._json = parse_body(body) if len(body) <= MAX_INLINE_BYTES else await off_thread(parse_body, body)


def fast_path(handler: Callable[[Request, Any], Coroutine[Any, Any, Response]]) -> Callable[[Endpoint], Endpoint]:
    """Mark an endpoint whose requests `handler` answers; FastAPI only documents it.

    For GET /sessions, whose bar is 4 times `Session.list`. FastAPI takes as long for its five query parameters as for
    reading the page from the store: a page of 50 takes 3.6, 3.7 and 4.0 times as long as `Session.list` with
    this, and 4.8, 9.1 and 5.7 times as long without it.
    """

    def mark_endpoint(endpoint: Endpoint) -> Endpoint:
        endpoint.straight = handler  # type: ignore[attr-defined]
        return endpoint

    return mark_endpoint


def parse_query(request: Request, kind: type[Model]) -> Model:
    """Return the query of a request as a model; raise RequestValidationError, as FastAPI does for other routes."""
    given = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems = [{**each, "loc": ("query", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(problems) from error


def _find_query_parameters(dependant: Dependant) -> dict[str, bool]:
    """Return the query parameters of a route by name, and whether each is a list; those of a model one by one."""
    found: dict[str, bool] = {}
    for inner in dependant.dependencies:
        found |= _find_query_parameters(inner)
    for each in dependant.query_params:
        kind = each.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= {field.alias or name: False for name, field in kind.model_fields.items()}
        else:
            found[each.alias] = "list[" in str(kind)
    return found


class StrictRoute(APIRoute):
    """The route class of every router of the server: `APIRouter(route_class=StrictRoute)`."""

    async def answer_fast(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the fast handler instead of FastAPI, after the same checks."""
        assert self.fast_handler is not None
        if not isinstance(self._permission, Require):
            raise Forbidden("this address declares no permission, so nobody has it")
        request = Request(scope, receive, send)
        caller = await self._permission(request)
        if scope["query_string"]:
            self._check_query(scope["query_string"])
        response: Response = await self.fast_handler(request, caller)
        await response(scope, receive, send)

    def _check_query(self, query: bytes) -> None:
        """Raise InvalidArgument if the query names a parameter that the route does not have, or one that is no list
        twice: no rule says which value counts."""
        names = [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
        known = self._query_parameters
        unknown = [name for name in dict.fromkeys(names) if name not in known]
        if unknown:
            listed = ", ".join(repr(name[:40]) for name in unknown[:10])
            error = InvalidArgument(f"unknown in the query: {listed}: {suggest_name(unknown[0][:40], known)}")
            error.field = unknown[0][:40]  # type: ignore[attr-defined]
            raise error
        for name in names:
            if not known[name] and names.count(name) > 1:
                raise InvalidArgument(f"{name[:40]!r} is given twice in the query: give it once")

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        permission = dependency_of(self)
        has_own_answers = getattr(self.endpoint, "own_answers", False)
        has_content = not getattr(self.endpoint, "removes_content", False)
        self._permission, self.fast_handler = permission, getattr(self.endpoint, "straight", None)
        self._query_parameters = _find_query_parameters(self.dependant)
        is_blocking = not iscoroutinefunction(self.endpoint)

        async def answer_in_share(request: Request, caller: Caller) -> Response:
            """Answer on a thread in the share of the caller's tenant; the rest of its requests wait without one."""
            if not is_blocking:
                return await answer(request)
            async with request.app.state.server.limits.share_of(caller.tenant):
                return await answer(request)

        async def handle(received: Request) -> Response:
            request = StrictRequest(received.scope, received.receive, received._send)
            if permission is None:
                raise Forbidden("this address declares no permission, so nobody has it")
            caller = await permission(request) if isinstance(permission, Require) else None
            has_body = request.method in WITH_BODY
            if has_body:
                await request.read_json()
            if request.scope["query_string"]:  # after the body: an unread one would cost the client its connection
                self._check_query(request.scope["query_string"])
            if caller is None:
                return await answer(request)
            if not has_body or has_own_answers:
                return await answer_in_share(request, caller)

            async def charge_and_answer() -> Response:
                """A request that is answered from its first answer is not charged again."""
                if caller.store.allowances:
                    size = len(await request.body())
                    await off_thread(charge_request, caller.store, self.operation_id, size)
                return await answer_in_share(request, caller)

            return await answer_once(request, caller, charge_and_answer, has_content=has_content)

        return handle
