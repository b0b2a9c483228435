"""Finding the route of a request by the shape of its path, instead of asking every route.

Routes are kept by method, number of segments and last segment; the few that share all three are asked in their order.
Whatever is not found here goes the usual way, which also knows the wrong method and the address that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi.routing import APIRoute, APIRouter
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from holdfast.server.http.strict_routes import StrictRoute

Shape = tuple[str, int, str]
ANY = "{}"


class RouteTable:
    """In front of a router that has all its routes."""

    def __init__(self, router: APIRouter) -> None:
        self._router = router
        self._routes: dict[Shape, list[APIRoute]] = {}
        for route in router.routes:
            if isinstance(route, APIRoute):
                for shape in _shapes(route):
                    self._routes.setdefault(shape, []).append(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            parts = scope["path"].split("/")
            method, count = scope["method"], len(parts)
            for last in (parts[-1], ANY):  # a word of ours before an id that is spelled like it
                for route in self._routes.get((method, count, last), ()):
                    match, found = route.matches(scope)
                    if match == Match.FULL:
                        scope["router"], scope["route"] = self._router, route
                        scope.update(found)
                        if isinstance(route, StrictRoute) and route.straight is not None:
                            await route.go_straight(scope, receive, send)
                        else:
                            await route.handle(scope, receive, send)
                        return
            self._refuse_method(scope)
        await self._router.app(scope, receive, send)

    def _refuse_method(self, scope: Scope) -> None:
        """If there is something at this address, but not for this method, say for which."""
        allowed: set[str] = set()
        for route in self._router.routes:
            match, _ = route.matches(scope)
            if match == Match.FULL:
                return
            if match == Match.PARTIAL and isinstance(route, APIRoute):
                allowed |= set(route.methods or ())
        if allowed:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})


def _shapes(route: APIRoute) -> Iterable[Shape]:
    parts = route.path.split("/")
    if any(":path" in part for part in parts):
        return  # it has any number of segments
    last = ANY if "{" in parts[-1] else parts[-1]
    for method in route.methods or ():
        yield method, len(parts), last
