"""The page at `/` and the OpenAPI document. The page loads nothing from elsewhere and runs no script."""

from __future__ import annotations

from importlib.metadata import version
from string import Template

import orjson
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from holdfast.server.auth import Anyone
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute

VERSION = version("holdfast")

router = APIRouter(route_class=StrictRoute, include_in_schema=False, responses={403: ERRORS[403]})

CSP = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>holdfast</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 3em auto; padding: 0 1em }
pre { background: #f4f4f4; color: #222; padding: 1em; overflow: auto }
</style>
<h1>holdfast</h1>
<p>Durable sessions for AI agents. Version $version.</p>
<p><a href="/openapi.json">The API</a> · <a href="/health">health</a></p>
<p>Every request needs a key, unless the server was started with <code>--open</code>: the server's token, whose file was
named when it started, or one that <code>holdfast keys create</code> made.</p>
<pre>
export TOKEN=...

curl -X POST http://localhost:$port/agents \\
  -H "Authorization: Bearer $$TOKEN" -H "Content-Type: application/json" \\
  -d '{"id": "assistant", "name": "Assistant", "provider": "echo"}'

curl -X POST http://localhost:$port/sessions \\
  -H "Authorization: Bearer $$TOKEN" -H "Content-Type: application/json" \\
  -d '{"id": "first"}'

curl -X POST http://localhost:$port/sessions/first/message \\
  -H "Authorization: Bearer $$TOKEN" -H "Content-Type: application/json" \\
  -d '{"agent_id": "assistant", "message": "Hello"}'

curl -N http://localhost:$port/sessions/first/events \\
  -H "Authorization: Bearer $$TOKEN" -H "Accept: text/event-stream"
</pre>
</html>
""")


@router.get("/", dependencies=[Anyone])
async def page(request: Request) -> HTMLResponse:
    """A page that says how to begin."""
    port = request.scope.get("server", (None, None))[1] or request.app.state.server.config.port
    return HTMLResponse(PAGE.substitute(version=VERSION, port=port), headers={"Content-Security-Policy": CSP})


@router.get("/openapi.json", dependencies=[Anyone])
async def openapi(request: Request) -> Response:
    """The OpenAPI document; built at the first request."""
    state = request.app.state
    if not hasattr(state, "openapi"):
        state.openapi = orjson.dumps(request.app.openapi())
    return Response(state.openapi, media_type="application/json")
