"""The scenarios over HTTP: the names that a scenario uses (`Session`, `Agent`) lead to a real server, unchanged.

The store that a scenario gets is the server's own, so it can look behind the scenes as it does everywhere. Agents come
from the scenario's code and are made known to the server when they are first used.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client import Client
from holdfast.client.memory import RemoteMemory
from holdfast.client.requests import Call
from holdfast.client.session import RemoteSession
from holdfast.stores.base import Log, Store
from tests.kit.serving import TOKEN, Serving

numbers = itertools.count()


class Door:
    """A server, a client of it, and the agents that it has been told about."""

    def __init__(self, serving: Serving, store: Store) -> None:
        self.serving, self.store = serving, store
        door = self

        class ServedSession(RemoteSession):
            """A remote session that knows what a scenario asks of a local one."""

            store = door.store

            @property
            def log(self) -> Log:
                return door.store.require("session", self.id)

            def _agent_id(self, agent: Any) -> str | None:
                return super()._agent_id(door.known(agent) if isinstance(agent, holdfast.Agent) else agent)

            def prune(self, strategy: Any = "sliding_window", **options: Any) -> Any:
                """A function cannot travel: where a scenario uses one among other things, the store is pruned by it."""
                if not callable(strategy):
                    return super().prune(strategy, **options)
                return holdfast.Session.open(self.id, store=door.store).prune(strategy, **options)

        class ServedClient(Client):
            _session_class = ServedSession

        self.client = ServedClient(serving.url, token=TOKEN, timeout=60)
        self.asked = 0  # how often the client was used
        wire, made = self.client._transport, self.client._transport._request

        def counted(call: Call) -> dict[str, Any]:
            self.asked += 1
            return made(call)

        wire._request = counted  # type: ignore[method-assign]
        self.session, self.agent = _session_for(self), _agent_for(self)

    def known(self, agent: holdfast.Agent) -> str:
        """The id under which the server has an agent."""
        for id, each in self.serving.server.catalog._code_agents.items():
            if each is agent:
                return id
        id = f"agent-{next(numbers)}"
        self.serving.register(id, agent)
        return id

    def is_mine(self, options: Mapping[str, Any], agent: Any = None) -> bool:
        store = options.get("store")
        is_mine = (store if store is not None else getattr(agent, "store", None)) is self.store
        self.asked += is_mine
        return is_mine


def _session_for(door: Door) -> Any:
    class Session(holdfast.Session):
        """What `Session` means in a scenario: in the server's store one of the server, elsewhere a local one."""

        def __new__(cls, *args: Any, **options: Any) -> Any:
            if cls is Session and door.is_mine(options, options.get("agent")):
                options.pop("store", None)
                agent = options.pop("agent", None)
                return door.client.session(*args, **options, agent=None if agent is None else door.known(agent))
            return super().__new__(cls)

        @classmethod
        def open(cls, id: str, **options: Any) -> Any:
            agent = options.get("agent")
            if not door.is_mine(options, agent):
                return holdfast.Session.open(id, **options)
            return door.client.open(id, agent=None if agent is None else door.known(agent))

        @classmethod
        def list(cls, **options: Any) -> Any:
            if not door.is_mine(options):
                return holdfast.Session.list(**options)
            return door.client.sessions(**{name: value for name, value in options.items() if name != "store"})

        @classmethod
        def import_(cls, source: str | Path, **options: Any) -> Any:
            if not door.is_mine(options):
                return holdfast.Session.import_(source, **options)
            return door.client.import_(source, **{name: each for name, each in options.items() if name != "store"})

    return Session


def _agent_for(door: Door) -> Any:
    class Agent(holdfast.Agent):
        def session(self, session_id: str | None = None, **options: Any) -> Any:
            if not door.is_mine(options, self):
                return super().session(session_id, **options)
            options.pop("store", None)
            return door.client.session(session_id, agent=door.known(self), **options)

    return Agent


def _memory_for(door: Door) -> Any:
    class Memory(holdfast.Memory):
        """What `Memory` means in a scenario: in the server's store, that of the server, which finds things as the
        scenario wishes. What a loop is given of it is local, because agents are the scenario's own."""

        def __init__(self, service: Any = None, *, store: Any = None, **scope: Any) -> None:
            super().__init__(service, store=store, **scope)
            if store is not door.store or scope:  # a client's memory has no scope by default
                return
            door.serving.server.memory = holdfast.Memory(service)
            remote: Any = RemoteMemory(door.client._transport)
            for name in ("store", "recall", "search", "forget", "list"):
                setattr(self, name, getattr(remote, name))
            self._remote = remote

        def ingest_from_session(self, session: Any, *, model: Any = None) -> Any:
            if not isinstance(session, RemoteSession):
                return super().ingest_from_session(session, model=model)
            return self._remote.ingest_from_session(session, model=None if model is None else door.known(model))

    return Memory


def enter(door: Door, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the names of a scenario's module lead to the server."""
    monkeypatch.setattr(module, "Session", door.session)
    monkeypatch.setattr(module, "Agent", door.agent)
    if hasattr(module, "Memory"):
        monkeypatch.setattr(module, "Memory", _memory_for(door))


# What a scenario needs that no server can give it, and the scenarios that do.
NOT_OVER_HTTP: dict[str, tuple[str, ...]] = {
    "it counts the events and commits of a turn, and at a server the question is a message.queued": (
        "test_a_turn_with_a_tool_is_recorded_whole",
        "test_a_turn_with_one_call_is_four_commits",
        "test_what_the_model_was_sent_is_named_by_the_log",
        "test_an_export_with_tombstones_verifies_and_can_be_imported",
        "test_an_open_turn_is_not_redacted",
        "test_turns_compact_while_others_prune_and_write",
    ),
    "it needs a turn that stops while nobody reads its stream, and a server's turn goes on": (
        "test_breaking_out_of_a_stream_cancels_the_turn",
        "test_a_new_turn_closes_an_abandoned_stream_first",
        "test_a_waiter_gives_up_after_its_timeout",
        "test_a_cancelled_turn_does_not_hide_what_its_tools_did",
        "test_an_undo_waits_for_a_turn_that_is_open_elsewhere",
        "test_pruning_during_a_turn_elsewhere_loses_nothing_of_the_turn",
        "test_a_running_session_is_left_alone",
    ),
    "it looks at the exception behind an error, which stays at the server": (
        "test_a_bug_inside_a_turn_is_an_agent_error_and_the_turn_is_recorded_as_failed",
    ),
    "the agent's own output class stays at the server: its answers are JSON, unless json() names a class": (
        "test_invalid_output_is_repaired_by_asking_again",
    ),
    "a function cannot travel to a server": (
        "test_a_function_is_a_strategy",
        "test_a_function_cannot_split_an_exchange_or_drop_the_opening",
        "test_a_function_that_gives_something_else_is_a_clear_error",
    ),
    "the awaited client opens its sessions by awaiting: tests/client asks it the same": (
        "test_the_awaited_names",
        "test_the_same_names_are_awaited_in_aio",
        "test_in_aio_the_plain_names_are_awaited",
        "test_auto_prune_of_awaited_messages",
        "test_an_immutable_session_refuses_awaited_changes_as_well",
    ),
    "a memory takes in sessions of its own process; the client asks its server to": (
        "test_memory_of_a_session_is_there_in_the_next_one",
    ),
    "flows are not served by name yet": (
        "test_every_agent_of_a_flow_may_have_a_memory",
        "test_a_routing_agent_shows_names_and_descriptions_as_they_are",
        "test_agents_that_share_a_session_share_its_state",
    ),
    "entities are not served": (
        "test_an_entity_has_one_writer_at_a_time",
        "test_an_entity_is_saved_on_success_only",
        "test_an_entity_may_have_typed_state",
        "test_an_entity_method_may_be_async",
        "test_reading_an_entity_does_not_wait_for_its_writer",
    ),
    "temp stays with the client, so tools at the server do not see it": (
        "test_temp_is_there_for_one_run_and_gone_after_it",
        "test_temp_state_comes_before_session_state_unless_a_scope_is_named",
        "test_temp_state_is_shown_if_it_is_named",
    ),
    "an asyncio.Event of the test's loop is set by a tool, which runs in another loop at the server": (
        "test_a_cancelled_task_cancels_the_turn_and_frees_the_session",
        "test_a_cancelled_call_is_told_as_unknown",
    ),
}
CLOCK = "the store gets a clock of the test's own, and the server's threads would sleep by it"


def reason_against(request: pytest.FixtureRequest) -> str | None:
    """Why a scenario does not run over HTTP; None if it does."""
    if "clock" in request.fixturenames:
        return CLOCK
    if hasattr(request.module, "NOT_SERVED"):
        return str(request.module.NOT_SERVED)
    node = request.node
    return next((why for why, names in NOT_OVER_HTTP.items() if {node.name, node.originalname} & {*names}), None)
