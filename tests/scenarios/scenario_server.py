"""The scenarios over HTTP: `Session` and `Agent` in a scenario are replaced by classes that use a real server.

A scenario gets the store of the server, so it can read the store as it does without a server. Agents come from the
code of the scenario, and are registered with the server at their first use.
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
from tests.kit import agents
from tests.kit.local_server import TOKEN, LocalServer

numbers = itertools.count()


class ScenarioServer:
    """A server, a client of it, and the agents that are registered with it."""

    def __init__(self, local_server: LocalServer, store: Store) -> None:
        self.local_server, self.store = local_server, store
        server = self

        class ServedSession(RemoteSession):
            """A remote session that knows what a scenario asks of a local one."""

            store = server.store

            @property
            def log(self) -> Log:
                return server.store.require("session", self.id)

            def _agent_id(self, agent: Any) -> str | None:
                return super()._agent_id(server.register_agent(agent) if isinstance(agent, holdfast.Agent) else agent)

            def prune(self, strategy: Any = "sliding_window", **options: Any) -> Any:
                """A function cannot travel: where a scenario uses one among other things, the store is pruned by it."""
                if not callable(strategy):
                    return super().prune(strategy, **options)
                return holdfast.Session.open(self.id, store=server.store).prune(strategy, **options)

        class ServedClient(Client):
            _session_class = ServedSession

        self.client = ServedClient(local_server.url, token=TOKEN, timeout=60)
        self.request_count = 0  # how often the client was used
        wire, send_request = self.client._transport, self.client._transport._request

        def count_request(call: Call) -> dict[str, Any]:
            self.request_count += 1
            return send_request(call)

        wire._request = count_request  # type: ignore[method-assign]
        self.session, self.agent = _make_session_class(self), _make_agent_class(self)

    def register_agent(self, agent: holdfast.Agent) -> str:
        """The id under which the server has an agent."""
        for id, each in self.local_server.server.catalog._code_agents.items():
            if each is agent:
                return id
        id = f"agent-{next(numbers)}"
        self.local_server.register(id, agent)
        return id

    def owns_store(self, options: Mapping[str, Any], agent: Any = None) -> bool:
        store = options.get("store")
        is_mine = (store if store is not None else getattr(agent, "store", None)) is self.store
        self.request_count += is_mine
        return is_mine


def _make_session_class(server: ScenarioServer) -> Any:
    class Session(holdfast.Session):
        """What `Session` means in a scenario: in the server's store one of the server, elsewhere a local one."""

        def __new__(cls, *args: Any, **options: Any) -> Any:
            if cls is Session and server.owns_store(options, options.get("agent")):
                options.pop("store", None)
                agent = options.pop("agent", None)
                return server.client.session(
                    *args, **options, agent=None if agent is None else server.register_agent(agent)
                )
            return super().__new__(cls)

        @classmethod
        def open(cls, id: str, **options: Any) -> Any:
            agent = options.get("agent")
            if not server.owns_store(options, agent):
                return holdfast.Session.open(id, **options)
            return server.client.open(id, agent=None if agent is None else server.register_agent(agent))

        @classmethod
        def list(cls, **options: Any) -> Any:
            if not server.owns_store(options):
                return holdfast.Session.list(**options)
            return server.client.sessions(**{name: value for name, value in options.items() if name != "store"})

        @classmethod
        def import_(cls, source: str | Path, **options: Any) -> Any:
            if not server.owns_store(options):
                return holdfast.Session.import_(source, **options)
            return server.client.import_(source, **{name: each for name, each in options.items() if name != "store"})

    return Session


def _make_agent_class(server: ScenarioServer) -> Any:
    class Agent(holdfast.Agent):
        def session(self, session_id: str | None = None, **options: Any) -> Any:
            if not server.owns_store(options, self):
                return super().session(session_id, **options)
            options.pop("store", None)
            return server.client.session(session_id, agent=server.register_agent(self), **options)

    return Agent


def _make_memory_class(server: ScenarioServer) -> Any:
    class Memory(holdfast.Memory):
        """What `Memory` means in a scenario: in the server's store, that of the server, which finds things as the
        scenario wishes. What a loop is given of it is local, because agents are the scenario's own."""

        def __init__(self, service: Any = None, *, store: Any = None, **owner: Any) -> None:
            super().__init__(service, store=store, **owner)
            if store is server.store:
                server.local_server.server.memory = holdfast.Memory(service)
                self._use_remote(RemoteMemory(server.client._transport, **owner))

        def _use_remote(self, remote: RemoteMemory) -> None:
            self._remote = remote
            for name in ("store", "recall", "search", "forget", "list"):
                setattr(self, name, getattr(remote, name))

        def for_user(self, user_id: str, *, app_name: str | None = None) -> Any:
            bound = super().for_user(user_id, app_name=app_name)
            bound._use_remote(self._remote.for_user(user_id, app_name=app_name))
            return bound

        def ingest_from_session(self, session: Any, *, model: Any = None, shared: bool = False) -> Any:
            if not isinstance(session, RemoteSession):
                return super().ingest_from_session(session, model=model, shared=shared)
            agent_id = None if model is None else server.register_agent(model)
            return self._remote.ingest_from_session(session, model=agent_id, shared=shared)

    return Memory


def route_names_to_server(server: ScenarioServer, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the classes that a scenario's module, and the helpers it imports, use by those of the server."""
    monkeypatch.setattr(module, "Session", server.session)
    monkeypatch.setattr(module, "Agent", server.agent)
    monkeypatch.setattr(agents, "Agent", server.agent)
    if hasattr(module, "Memory"):
        monkeypatch.setattr(module, "Memory", _make_memory_class(server))


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
        "test_a_cancelled_stream_can_be_retried",
        "test_a_waiter_gives_up_after_its_timeout",
        "test_a_cancelled_turn_does_not_hide_what_its_tools_did",
        "test_an_undo_waits_for_a_turn_that_is_open_elsewhere",
        "test_pruning_during_a_turn_elsewhere_loses_nothing_of_the_turn",
        "test_a_running_session_is_left_alone",
        "test_nothing_that_a_local_turn_says_after_a_redacted_event_repeats_it",
        "test_a_redacted_question_of_a_local_turn_is_gone_from_everything_that_shows_it",
    ),
    "it looks at the exception behind an error, which stays at the server": (
        "test_a_bug_inside_a_turn_is_an_agent_error_and_the_turn_is_recorded_as_failed",
    ),
    "the agent's own output class stays at the server: its answers are JSON, unless json() names a class": (
        "test_invalid_output_is_repaired_by_asking_again",
    ),
    "a server checks an answer by the JSON Schema of a class, not by its validators": (
        "test_a_rejected_answer_of_a_callers_class_is_no_difference",
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
        "test_the_reply_of_a_call_is_found_among_parallel_agents",
        "test_a_flow_whose_tools_keep_state_is_no_difference",
        "test_a_routing_agent_shows_names_and_descriptions_as_they_are",
        "test_agents_that_share_a_session_share_its_state",
        "test_each_agent_of_a_flow_is_asked_when_it_begins",
        "test_parallel_agents_may_have_functions",
        "test_a_later_agent_whose_function_fails_fails_the_turn",
        "test_a_router_goes_on_with_the_next_agent",
        "test_a_routing_agent_may_have_a_function",
        "test_a_replay_compares_what_a_routing_agent_asks",
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
        "test_temp_state_is_no_difference",
        "test_temp_state_comes_before_session_state_unless_a_scope_is_named",
        "test_temp_state_is_shown_if_it_is_named",
    ),
    "an asyncio.Event of the test's loop is set by a tool, which runs in another loop at the server": (
        "test_a_cancelled_task_cancels_the_turn_and_frees_the_session",
        "test_a_cancelled_call_is_reported_as_unknown",
    ),
}
CLOCK = "the store gets a clock of the test's own, and the server's threads would sleep by it"


def find_reason_to_skip(request: pytest.FixtureRequest) -> str | None:
    """Why a scenario does not run over HTTP; None if it does."""
    if "clock" in request.fixturenames:
        return CLOCK
    if hasattr(request.module, "NOT_SERVED"):
        return str(request.module.NOT_SERVED)
    node = request.node
    return next((why for why, names in NOT_OVER_HTTP.items() if {node.name, node.originalname} & {*names}), None)
