"""Agents and tools over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from holdfast.errors import NotFound
from holdfast.server.auth import Admin, Caller, Reader
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import create_once
from holdfast.server.schemas import requests, responses
from holdfast.server.schemas.serializers import Serving, actor_of, field_error, json_response

router = APIRouter(route_class=StrictRoute, tags=["agents"], responses=ERRORS)


@router.post(
    "/agents", operation_id="create_agent", summary="Make an agent", status_code=201, response_model=responses.Agent
)
def create_agent(caller: Admin, server: Serving, request: Request, body: requests.AgentGiven | None = None) -> Response:
    """Tools are named; keys and addresses of providers come from the server's environment, never from a request. The
    budget bounds each session that this agent runs in; a budget of the session can only be stricter."""
    catalog, given = server.catalog, (body or requests.AgentGiven()).fields_sent()

    def find(id: str) -> dict[str, object] | None:
        return _find_description(server, caller, id)

    def make(id: str) -> dict[str, object]:
        return catalog.create(caller.store, id, given, actor=actor_of(caller))

    return json_response(create_once(caller, request, given.get("id"), find, make), 201)


def _find_description(server: Serving, caller: Caller, id: str) -> dict[str, object] | None:
    try:
        return server.catalog.describe(caller.store, id)
    except NotFound:
        return None


@router.get("/agents", operation_id="list_agents", summary="All agents", response_model=responses.Agents)
def list_agents(caller: Reader, server: Serving) -> Response:
    """Agents from the server's code first, then stored agents."""
    return json_response({"agents": server.catalog.list(caller.store)})


@router.get("/agents/{agent_id}", operation_id="get_agent", summary="One agent", response_model=responses.Agent)
def get_agent(caller: Reader, server: Serving, agent_id: str) -> Response:
    """An agent by its id, or by its name if one agent has it."""
    return json_response(server.catalog.describe(caller.store, agent_id))


@router.put(
    "/agents/{agent_id}", operation_id="replace_agent", summary="Replace an agent", response_model=responses.Agent
)
def replace_agent(caller: Admin, server: Serving, agent_id: str, body: requests.AgentGiven) -> Response:
    """Replace an agent; a field that is left out is removed. Turns that run go on with the old agent."""
    if body.id is not None and body.id != agent_id:
        raise field_error("id", "an agent keeps its id: leave it out, or make another agent")
    return json_response(server.catalog.replace(caller.store, agent_id, body.fields_sent(), actor=actor_of(caller)))


@router.delete(
    "/agents/{agent_id}", operation_id="delete_agent", summary="Delete an agent", response_model=responses.Deleted
)
def delete_agent(caller: Admin, server: Serving, agent_id: str) -> Response:
    """Delete a stored agent. The sessions that it ran in stay as they are."""
    server.catalog.delete(caller.store, agent_id, actor=actor_of(caller))
    return json_response({"status": "deleted"})


@router.get(
    "/tools", operation_id="list_tools", summary="Tools that agents can be given", response_model=responses.Tools
)
async def list_tools(caller: Reader, server: Serving) -> Response:
    """The built-in tools and the tools of the server's code."""
    return json_response(
        {
            "tools": [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in server.catalog.tools.values()
            ]
        }
    )
