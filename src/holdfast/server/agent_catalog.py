"""Who can answer: agents from code, and those that were stored over HTTP.

Stored agents are the state of one log for each tenant, named by their ids, so they are durable, numbered and shared by
all servers like everything else. A stored agent is data: tools are names of what this server has, and keys and
addresses of providers come from its environment alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.agent import Agent
from holdfast.errors import AgentError, Conflict, InvalidArgument, NotFound, SessionExists
from holdfast.log.events import Draft
from holdfast.log.identifiers import checked_id
from holdfast.models.registry import DEFAULT_MODEL, parse_name
from holdfast.policy.budget import Budget
from holdfast.server.app_loader import load_app as load_app
from holdfast.server.schemas.serializers import refused
from holdfast.stores.base import Log, Store
from holdfast.tools import file_tools, remember
from holdfast.tools.tool import Tool

KIND = "agents"  # of the log, and its id
MOST = 1000  # stored agents of one tenant
BUILT_IN: dict[str, Tool] = {tool.name: tool for tool in [*file_tools, remember]}
_FIELDS = ("name", "description", "instructions", "provider", "model", "tools", "options", "output_schema", "budget")


class AgentExists(AgentError):
    """An agent was to be made under an id that is taken."""

    code, status = "agent_exists", 409

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"agent {id!r} exists already: PUT /agents/{id} replaces it, or choose another id")


class AgentFromCode(AgentError):
    """An agent that the server's own code defines cannot be changed over HTTP."""

    code, status = "agent_from_code", 409

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"agent {id!r} comes from the server's code: change it there")


class Stored(NamedTuple):
    """An agent as its log has it."""

    seq: int  # of the event that holds it
    value: dict[str, Any]


class _Shelf(NamedTuple):
    """The stored agents of a tenant as they were at a head."""

    log: int
    head: int
    agents: dict[str, Stored]


class Catalog:
    """The agents of a server. Every method that takes a store takes one that is bound to the tenant, and blocks."""

    def __init__(self, *, agents: Mapping[str, Agent] | None = None, tools: Mapping[str, Tool] | None = None) -> None:
        self._code = dict(agents or {})
        self.tools = BUILT_IN | dict(tools or {})
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}  # by tenant
        self._built: dict[tuple[str, str], tuple[int, Agent]] = {}  # by tenant and id: with the seq it was built from
        self._default: Agent | None = None

    # -- who answers -----------------------------------------------------------------------------------------------

    def find(self, store: Store, agent_id: str | None) -> Agent:
        """An agent by its id, or by its name if only one has it; None: the server's default."""
        if agent_id is None:
            return self._default_agent()
        id, stored = self._located(store, agent_id)
        return self._code[id] if stored is None else self._agent(store, id, stored)

    def budget_of(self, store: Store, agent_id: str | None) -> Budget | None:
        """What a stored agent gives to a session that has no budget of its own when it first runs there."""
        if agent_id is None:
            return None
        _, stored = self._located(store, agent_id)
        found = None if stored is None else stored.value.get("budget")
        return None if found is None else Budget.of(found)

    def _default_agent(self) -> Agent:
        if len(self._code) == 1:
            return next(iter(self._code.values()))
        if not os.environ.get(DEFAULT_MODEL):
            several = f" of {', '.join(self._code)}" if self._code else ""
            raise refused("agent_id", f"which agent{several}? Send agent_id, or start the server with {DEFAULT_MODEL}")
        with self._lock:
            if self._default is None:
                self._default = Agent()
            return self._default

    def _located(self, store: Store, agent_id: str) -> tuple[str, Stored | None]:
        """The id behind an id or name, and what is stored under it; None for an agent from code."""
        if agent_id in self._code:
            return agent_id, None
        stored = self._stored(store)
        if agent_id in stored:
            return agent_id, stored[agent_id]
        found: list[tuple[str, Stored | None]] = [(id, each) for id, each in self._code_named(agent_id)]
        found += [(id, each) for id, each in stored.items() if each.value.get("name") == agent_id]
        if not found:
            raise NotFound("agent", agent_id)
        if len(found) > 1:
            ids = ", ".join(id for id, _ in found)
            raise refused("agent_id", f"{len(found)} agents are named {agent_id!r}: use the id, one of {ids}")
        return found[0]

    def _code_named(self, name: str) -> list[tuple[str, None]]:
        return [(id, None) for id, agent in self._code.items() if agent.name == name]

    def _agent(self, store: Store, id: str, stored: Stored) -> Agent:
        """Built once for each version: an agent has an HTTP client, which keeps its connections."""
        key = (store.tenant, id)
        with self._lock:
            known = self._built.get(key)
        if known is not None and known[0] == stored.seq:
            return known[1]
        agent = self._made(id, stored.value)
        with self._lock:
            known = self._built.get(key)
            if known is not None and known[0] == stored.seq:
                return known[1]  # somebody else was faster
            self._built[key] = (stored.seq, agent)
        return agent

    def _made(self, id: str, value: Mapping[str, Any]) -> Agent:
        """The agent that a value describes, or an error that says what is wrong with it."""
        missing = [name for name in value["tools"] if name not in self.tools]
        if missing:
            known = ", ".join(sorted(self.tools))
            raise refused("tools", f"this server has no tool {', '.join(map(repr, missing))}: use some of {known}")
        if len(set(value["tools"])) < len(value["tools"]):
            raise refused("tools", "a tool is named twice")
        provider = value["provider"] or (parse_name(value["model"])[0] if value["model"] else None)
        if provider == "scripted":
            raise refused("provider", "a scripted agent has a script, so it comes from the server's code")
        return Agent(
            provider=value["provider"],
            model=value["model"],
            tools=[self.tools[name] for name in value["tools"]],
            name=value["name"] or id,
            description=value["description"],
            instructions=value["instructions"],
            output_schema=value["output_schema"],
            **value["options"],
        )

    # -- what is stored --------------------------------------------------------------------------------------------

    def _stored(self, store: Store) -> dict[str, Stored]:
        """Read again only when something was written since."""
        log = store.find(KIND, KIND)
        return {} if log is None else self._shelf(store, log).agents

    def _shelf(self, store: Store, log: Log) -> _Shelf:
        head = store.head(log).head
        with self._lock:
            shelf = self._shelves.get(store.tenant)
        if shelf is not None and (shelf.log, shelf.head) == (log.number, head):
            return shelf
        found: dict[str, Stored] = {}
        for name, ref in store.refs(log, "state/", head).items():
            if ref is not None:
                found[name.removeprefix("state/")] = Stored(ref, store.event(log, ref).data["value"])
        shelf = _Shelf(log.number, head, found)
        with self._lock:
            self._shelves[store.tenant] = shelf
            for key in [key for key in self._built if key[0] == store.tenant and key[1] not in found]:
                del self._built[key]
        return shelf

    def list(self, store: Store) -> list[dict[str, Any]]:
        """Every agent as HTTP shows it: those from code first, then the stored ones by id."""
        stored = [_shown(id, each.value) for id, each in self._stored(store).items() if id not in self._code]
        return [_coded(id, agent) for id, agent in self._code.items()] + stored

    def describe(self, store: Store, agent_id: str) -> dict[str, Any]:
        id, stored = self._located(store, agent_id)
        return _coded(id, self._code[id]) if stored is None else _shown(id, stored.value)

    def create(self, store: Store, id: str, given: Mapping[str, Any], *, actor: str) -> dict[str, Any]:
        """Store a new agent; AgentExists if the id is taken."""
        if checked_id(id, "id of an agent") in self._code:
            raise AgentFromCode(id)
        value = self._checked(id, given)
        while True:
            log = store.find(KIND, KIND) or _new_log(store)
            shelf = self._shelf(store, log)
            if id in shelf.agents:
                raise AgentExists(id)
            if len(shelf.agents) >= MOST:
                raise InvalidArgument(f"there are {MOST} agents already: delete one that is not needed")
            try:
                store.append(log, [_draft(id, value, actor)], expected=shelf.head)
                return _shown(id, value)
            except Conflict:
                continue  # somebody stored another one meanwhile

    def replace(self, store: Store, agent_id: str, given: Mapping[str, Any], *, actor: str) -> dict[str, Any]:
        """Store an agent in place of one that is there; sessions that run go on with the old one."""
        id = self._writable(store, agent_id)
        value = self._checked(id, given)
        store.append(store.require(KIND, KIND), [_draft(id, value, actor)])
        return _shown(id, value)

    def delete(self, store: Store, agent_id: str, *, actor: str) -> None:
        id = self._writable(store, agent_id)
        draft = Draft(type="state.deleted", data={"name": id}, actor=actor)
        store.append(store.require(KIND, KIND), [draft])

    def _writable(self, store: Store, agent_id: str) -> str:
        id, stored = self._located(store, agent_id)
        if stored is None:
            raise AgentFromCode(id)
        return id

    def _checked(self, id: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The value to store: what can be built, and nothing else."""
        value: dict[str, Any] = {name: given.get(name) for name in _FIELDS}
        value["tools"] = list(given.get("tools") or ())
        value["options"] = {name: each for name, each in (given.get("options") or {}).items() if each is not None}
        value["budget"] = None if given.get("budget") is None else Budget.of(given["budget"]).to_dict()
        self._made(id, value)
        return value


def _draft(id: str, value: dict[str, Any], actor: str) -> Draft:
    return Draft(type="state.set", data={"name": id, "value": value}, actor=actor)


def _new_log(store: Store) -> Log:
    try:
        return store.create(KIND, KIND, [Draft(type="entity.created")])
    except SessionExists:
        return store.require(KIND, KIND)


def _shown(id: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": id, **{name: value.get(name) for name in _FIELDS}, "source": "stored"}


def _coded(id: str, agent: Agent) -> dict[str, Any]:
    options: dict[str, Any] = {"max_steps": agent.max_steps, "timeout": agent.timeout, **agent._options}
    return {
        "id": id,
        "name": agent.name,
        "description": agent.description,
        "instructions": agent.instructions,
        "provider": _said(agent, "provider"),
        "model": _said(agent, "name"),
        "tools": list(agent.tools),
        "options": options,
        "output_schema": None if agent.shape is None else agent.shape.schema,
        "budget": None,
        "source": "code",
    }


def _said(agent: Agent, field: str) -> str | None:
    """What a model says of itself; None for a default that is not configured."""
    try:
        found = getattr(agent.model, field, None)
    except InvalidArgument:
        return None
    return None if found is None else str(found)
