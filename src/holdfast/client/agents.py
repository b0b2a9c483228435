"""The agents of a server: who can be asked there. They are plain dicts, as the server tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast.client.base import drop_none
from holdfast.client.requests import Flow, async_method, delete, get, post, put, sync_method, url_path
from holdfast.errors import AgentError

if TYPE_CHECKING:
    from holdfast.client.transport import Transport

AgentData = dict[str, Any]


class Fields(TypedDict, total=False):
    """What an agent is made of. Keys and addresses of providers come from the server's environment."""

    name: str
    description: str
    instructions: str
    provider: str
    model: str
    tools: list[str]
    options: dict[str, Any]  # temperature, max_tokens, max_steps, timeout
    output_schema: dict[str, Any]
    budget: dict[str, Any]


class Base:
    def __init__(self, wire: Transport) -> None:
        self._transport = wire


def create(self: Base, /, *, id: str | None = None, **fields: Unpack[Fields]) -> Flow[AgentData]:
    """A new agent. Its tools are named; `client.tools()` lists them."""
    found: AgentData = yield post("/agents", drop_none(id=id, **fields))
    return found


def all(self: Base) -> Flow[list[AgentData]]:
    """Every agent of the server."""
    found: list[AgentData] = (yield get("/agents"))["agents"]
    return found


def get_one(self: Base, id: str) -> Flow[AgentData]:
    """An agent by its id, or by its name if only one has it."""
    found: AgentData = yield get(url_path("agents", id))
    return found


def replace(self: Base, /, id: str, **fields: Unpack[Fields]) -> Flow[AgentData]:
    """Put another agent in its place: what is not given is not kept. Turns that run go on with the old one."""
    found: AgentData = yield put(url_path("agents", id), fields)
    return found


def remove(self: Base, id: str) -> Flow[bool]:
    """Delete an agent; False if there is none."""
    try:
        yield delete(url_path("agents", id))
    except AgentError as error:
        if error.code != "not_found":
            raise
        return False
    return True


class Agents(Base):
    """`client.agents.create(name="support", provider="openai", model="gpt-4o")`."""

    create = sync_method(create)
    all = sync_method(all)
    get = sync_method(get_one)
    replace = sync_method(replace)
    delete = sync_method(remove)


class AsyncAgents(Base):
    """`await client.agents.create(...)`."""

    create = async_method(create)
    all = async_method(all)
    get = async_method(get_one)
    replace = async_method(replace)
    delete = async_method(remove)
