"""The agents of a server: agents from code, and agents that were stored over HTTP.

The stored agents of a tenant are the state of one log, by their ids, so they are durable, numbered and shared by all
servers. A stored agent is data: its tools are names of tools of this server, and keys and addresses of providers come
only from the server's environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.agent import Agent
from holdfast.errors import AgentExists, AgentFromCode, Conflict, InvalidArgument, NotFound, SessionExists
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_id
from holdfast.models.registry import DEFAULT_MODEL, parse_name
from holdfast.policy.budget import Budget
from holdfast.server.app_loader import load_app as load_app
from holdfast.server.schemas.serializers import field_error
from holdfast.stores.base import Log, Store
from holdfast.tools import file_tools, remember
from holdfast.tools.tool import Tool

KIND = "agents"  # of the log, and its id
MAX_STORED_AGENTS = 1000  # of one tenant
BUILT_IN: dict[str, Tool] = {tool.name: tool for tool in [*file_tools, remember]}
_FIELDS = ("name", "description", "instructions", "provider", "model", "tools", "options", "output_schema", "budget")


class StoredAgent(NamedTuple):
    """An agent as the log holds it."""

    seq: int  # number of the event that holds it
    value: dict[str, Any]


class _AgentsSnapshot(NamedTuple):
    """The stored agents of a tenant at a head of their log."""

    log: int
    head: int
    agents: dict[str, StoredAgent]


class AgentCatalog:
    """The agents of a server. Every method with a store needs one that is bound to the tenant, and blocks."""

    def __init__(self, *, agents: Mapping[str, Agent] | None = None, tools: Mapping[str, Tool] | None = None) -> None:
        self._code_agents = dict(agents or {})
        self.tools = BUILT_IN | dict(tools or {})
        self._lock = threading.Lock()
        self._snapshots: dict[str, _AgentsSnapshot] = {}  # by tenant
        self._agent_cache: dict[tuple[str, str], tuple[int, Agent]] = {}  # by tenant and id; the seq is its version
        self._default: Agent | None = None

    # -- finding agents --------------------------------------------------------------------------------------------

    def find(self, store: Store, agent_id: str | None) -> Agent:
        """Return an agent by its id, or by its name if one agent has it; for None the server's default agent."""
        if agent_id is None:
            return self._default_agent()
        id, stored = self._locate_agent(store, agent_id)
        return self._code_agents[id] if stored is None else self._find_or_build_agent(store, id, stored)

    def budget_of(self, store: Store, agent_id: str | None) -> Budget | None:
        """Return the budget of a stored agent: the ceiling of each session that it runs in."""
        if agent_id is None:
            return None
        _, stored = self._locate_agent(store, agent_id)
        found = None if stored is None else stored.value.get("budget")
        return None if found is None else Budget.of(found)

    def _default_agent(self) -> Agent:
        if len(self._code_agents) == 1:
            return next(iter(self._code_agents.values()))
        if not os.environ.get(DEFAULT_MODEL):
            several = f" of {', '.join(self._code_agents)}" if self._code_agents else ""
            raise field_error(
                "agent_id", f"which agent{several}? Send agent_id, or start the server with {DEFAULT_MODEL}"
            )
        with self._lock:
            if self._default is None:
                self._default = Agent()
            return self._default

    def _locate_agent(self, store: Store, agent_id: str) -> tuple[str, StoredAgent | None]:
        """Return the id for an id or name, and the stored agent; None in its place for an agent from code."""
        if agent_id in self._code_agents:
            return agent_id, None
        stored = self._load_stored_agents(store)
        if agent_id in stored:
            return agent_id, stored[agent_id]
        found: list[tuple[str, StoredAgent | None]] = [(id, each) for id, each in self._find_code_agents(agent_id)]
        found += [(id, each) for id, each in stored.items() if each.value.get("name") == agent_id]
        if not found:
            raise NotFound("agent", agent_id)
        if len(found) > 1:
            ids = ", ".join(id for id, _ in found)
            raise field_error("agent_id", f"{len(found)} agents are named {agent_id!r}: use the id, one of {ids}")
        return found[0]

    def _find_code_agents(self, name: str) -> list[tuple[str, None]]:
        return [(id, None) for id, agent in self._code_agents.items() if agent.name == name]

    def _find_or_build_agent(self, store: Store, id: str, stored: StoredAgent) -> Agent:
        """Return the built agent; built once per version, because its HTTP client keeps connections."""
        key = (store.tenant, id)
        with self._lock:
            known = self._agent_cache.get(key)
        if known is not None and known[0] == stored.seq:
            return known[1]
        agent = self._build_agent(id, stored.value)
        with self._lock:
            known = self._agent_cache.get(key)
            if known is not None and known[0] == stored.seq:
                return known[1]  # another thread was faster
            self._agent_cache[key] = (stored.seq, agent)
        return agent

    def _build_agent(self, id: str, value: Mapping[str, Any]) -> Agent:
        """Build the agent that a value describes; raise an error that names the wrong field."""
        missing = [name for name in value["tools"] if name not in self.tools]
        if missing:
            known = ", ".join(sorted(self.tools))
            raise field_error("tools", f"this server has no tool {', '.join(map(repr, missing))}: use some of {known}")
        if len(set(value["tools"])) < len(value["tools"]):
            raise field_error("tools", "a tool is named twice")
        provider = value["provider"] or (parse_name(value["model"])[0] if value["model"] else None)
        if provider == "scripted":
            raise field_error("provider", "a scripted agent has a script, so it comes from the server's code")
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

    # -- stored agents ---------------------------------------------------------------------------------------------

    def _load_stored_agents(self, store: Store) -> dict[str, StoredAgent]:
        """Return the stored agents; read again only if the log has moved."""
        log = store.find(KIND, KIND)
        return {} if log is None else self._load_snapshot(store, log).agents

    def _load_snapshot(self, store: Store, log: Log) -> _AgentsSnapshot:
        head = store.head(log).head
        with self._lock:
            shelf = self._snapshots.get(store.tenant)
        if shelf is not None and (shelf.log, shelf.head) == (log.number, head):
            return shelf
        found: dict[str, StoredAgent] = {}
        for name, ref in store.refs(log, "state/", head).items():
            if ref is not None:
                found[name.removeprefix("state/")] = StoredAgent(ref, store.event(log, ref).data["value"])
        shelf = _AgentsSnapshot(log.number, head, found)
        with self._lock:
            self._snapshots[store.tenant] = shelf
            for key in [key for key in self._agent_cache if key[0] == store.tenant and key[1] not in found]:
                del self._agent_cache[key]
        return shelf

    def list(self, store: Store) -> list[dict[str, Any]]:
        """Return every agent as HTTP shows it: agents from code first, then stored agents by id."""
        stored = [
            _describe_stored_agent(id, each.value)
            for id, each in self._load_stored_agents(store).items()
            if id not in self._code_agents
        ]
        return [_describe_code_agent(id, agent) for id, agent in self._code_agents.items()] + stored

    def describe(self, store: Store, agent_id: str) -> dict[str, Any]:
        id, stored = self._locate_agent(store, agent_id)
        return (
            _describe_code_agent(id, self._code_agents[id])
            if stored is None
            else _describe_stored_agent(id, stored.value)
        )

    def create(self, store: Store, id: str, agent_fields: Mapping[str, Any], *, actor: str) -> dict[str, Any]:
        """Store a new agent; raise AgentExists if the id is taken."""
        if check_id(id, "id of an agent") in self._code_agents:
            raise AgentFromCode(id)
        value = self._check_fields(id, agent_fields)
        while True:
            log = store.find(KIND, KIND) or _create_log(store)
            shelf = self._load_snapshot(store, log)
            if id in shelf.agents:
                raise AgentExists(id)
            if len(shelf.agents) >= MAX_STORED_AGENTS:
                raise InvalidArgument(f"there are {MAX_STORED_AGENTS} agents already: delete one that is not needed")
            try:
                store.append(log, [_agent_draft(id, value, actor)], expected=shelf.head)
                return _describe_stored_agent(id, value)
            except Conflict:
                continue  # another request has stored an agent since the snapshot

    def replace(self, store: Store, agent_id: str, agent_fields: Mapping[str, Any], *, actor: str) -> dict[str, Any]:
        """Replace a stored agent; turns that run go on with the old one."""
        id = self._require_stored_agent(store, agent_id)
        value = self._check_fields(id, agent_fields)
        store.append(store.require(KIND, KIND), [_agent_draft(id, value, actor)])
        return _describe_stored_agent(id, value)

    def delete(self, store: Store, agent_id: str, *, actor: str) -> None:
        id = self._require_stored_agent(store, agent_id)
        draft = Draft(type="state.deleted", data={"name": id}, actor=actor)
        store.append(store.require(KIND, KIND), [draft])

    def _require_stored_agent(self, store: Store, agent_id: str) -> str:
        id, stored = self._locate_agent(store, agent_id)
        if stored is None:
            raise AgentFromCode(id)
        return id

    def _check_fields(self, id: str, agent_fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value to store; raise if no agent can be built from it."""
        value: dict[str, Any] = {name: agent_fields.get(name) for name in _FIELDS}
        value["tools"] = list(agent_fields.get("tools") or ())
        value["options"] = {
            name: each for name, each in (agent_fields.get("options") or {}).items() if each is not None
        }
        value["budget"] = None if agent_fields.get("budget") is None else Budget.of(agent_fields["budget"]).to_dict()
        self._build_agent(id, value)
        return value


def _agent_draft(id: str, value: dict[str, Any], actor: str) -> Draft:
    return Draft(type="state.set", data={"name": id, "value": value}, actor=actor)


def _create_log(store: Store) -> Log:
    try:
        return store.create(KIND, KIND, [Draft(type="entity.created")])
    except SessionExists:
        return store.require(KIND, KIND)


def _describe_stored_agent(id: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": id, **{name: value.get(name) for name in _FIELDS}, "source": "stored"}


def _describe_code_agent(id: str, agent: Agent) -> dict[str, Any]:
    options: dict[str, Any] = {"max_steps": agent.max_steps, "timeout": agent.timeout, **agent._options}
    return {
        "id": id,
        "name": agent.name,
        "description": agent.description,
        "instructions": agent.instructions if isinstance(agent.instructions, str) else None,  # a function is no JSON
        "provider": _model_attribute(agent, "provider"),
        "model": _model_attribute(agent, "name"),
        "tools": list(agent.tools),
        "options": options,
        "output_schema": None if agent.shape is None else agent.shape.schema,
        "budget": None,
        "source": "code",
    }


def _model_attribute(agent: Agent, field: str) -> str | None:
    """Return an attribute of the agent's model; None for a default model that is not configured."""
    try:
        found = getattr(agent.model, field, None)
    except InvalidArgument:
        return None
    return None if found is None else str(found)
