"""Agents and tools over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from holdfast.errors import NotFound
from holdfast.server.auth import Admin, Reader, Who
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.new_resources import made_once
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import Serving, actor_of, refused, reply

router = APIRouter(route_class=StrictRoute, tags=["agents"], responses=ERRORS)


@router.post(
    "/agents", operation_id="create_agent", summary="Make an agent", status_code=201, response_model=schemas.Agent
)
def create_agent(who: Admin, server: Serving, request: Request, body: bodies.AgentGiven | None = None) -> Response:
    """Tools are named; keys and addresses of providers come from the server's environment, never from a request. The
    budget is given to sessions that have none when this agent first runs there."""
    catalog, given = server.catalog, (body or bodies.AgentGiven()).given()

    def find(id: str) -> dict[str, object] | None:
        return _described(server, who, id)

    def make(id: str) -> dict[str, object]:
        return catalog.create(who.store, id, given, actor=actor_of(who))

    return reply(made_once(who, request, given.get("id"), find, make), 201)


def _described(server: Serving, who: Who, id: str) -> dict[str, object] | None:
    try:
        return server.catalog.describe(who.store, id)
    except NotFound:
        return None


@router.get("/agents", operation_id="list_agents", summary="All agents", response_model=schemas.Agents)
def list_agents(who: Reader, server: Serving) -> Response:
    """Those from the server's code first, then the stored ones."""
    return reply({"agents": server.catalog.list(who.store)})


@router.get("/agents/{agent_id}", operation_id="get_agent", summary="One agent", response_model=schemas.Agent)
def get_agent(who: Reader, server: Serving, agent_id: str) -> Response:
    """By its id, or by its name if only one has it."""
    return reply(server.catalog.describe(who.store, agent_id))


@router.put(
    "/agents/{agent_id}", operation_id="replace_agent", summary="Replace an agent", response_model=schemas.Agent
)
def replace_agent(who: Admin, server: Serving, agent_id: str, body: bodies.AgentGiven) -> Response:
    """What is left out is taken away. Turns that run go on with the old one."""
    if body.id is not None and body.id != agent_id:
        raise refused("id", "an agent keeps its id: leave it out, or make another agent")
    return reply(server.catalog.replace(who.store, agent_id, body.given(), actor=actor_of(who)))


@router.delete(
    "/agents/{agent_id}", operation_id="delete_agent", summary="Delete an agent", response_model=schemas.Deleted
)
def delete_agent(who: Admin, server: Serving, agent_id: str) -> Response:
    """Sessions that it ran in stay as they are."""
    server.catalog.delete(who.store, agent_id, actor=actor_of(who))
    return reply({"status": "deleted"})


@router.get("/tools", operation_id="list_tools", summary="Tools that agents can be given", response_model=schemas.Tools)
async def list_tools(who: Reader, server: Serving) -> Response:
    """Those built in, and those of the server's code."""
    return reply(
        {
            "tools": [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in server.catalog.tools.values()
            ]
        }
    )
