"""Quotas of tenants and keys on the wire: no race gets above a limit, and what is deleted can be used again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Agent, tool
from holdfast.client import Client
from holdfast.clock import FixedClock
from holdfast.errors import InvalidArgument, QuotaExceeded
from holdfast.policy.quota import DAY, Quota, parse_quota
from holdfast.server.api_keys import create_key
from holdfast.server.config import Config
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.quotas import ADDING
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.usage import Allowance
from holdfast.testing import call
from tests.kit.local_server import TOKEN, Listener, LocalServer
from tests.kit.postgres import PostgresServer
from tests.kit.server_process import AUTHORIZED, ServerProcess
from tests.kit.stores import open_store

# Requests that add no content: they are answered also when the bytes are used up.
GIVING_BACK = {
    "archive_session", "cancel", "clear_session", "close_session", "decide_approval", "delete_agent", "delete_session",
    "delete_state_value", "erase_session", "forget_memory", "hold_session", "pause_session", "prune_session",
    "redact_event", "release_session", "remove_fact", "reopen_session", "resume", "resume_stream", "retry",
    "rewind_session", "search_memories", "undo_prune",
}  # fmt: skip


@tool
def again() -> str:
    """Go on."""
    return "go on"


def make_agents() -> dict[str, Agent]:
    return {
        "say": Agent(name="say", provider="scripted", script=lambda request: "an answer of some length"),
        "loop": Agent(
            name="loop", provider="scripted", script=lambda request: call("again", {}), tools=[again], max_steps=50
        ),
    }


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def counting_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, request, tmp_path)


@contextmanager
def serve(store: Store, listener: Listener, *quotas: str, key: str = TOKEN, **more: Any) -> Iterator[httpx2.Client]:
    server = LocalServer(store, agents=make_agents(), listener=listener, quotas=quotas, **more).start()
    try:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
            yield client
    finally:
        server.stop()


def ask(client: httpx2.Client, session: str, agent: str = "say", **more: Any) -> httpx2.Response:
    return client.post(f"/sessions/{session}/message", json={"agent_id": agent, "message": "hello"}, **more)


def quota_of(client: httpx2.Client, name: str) -> dict[str, Any]:
    (found,) = [each for each in client.get("/quota").json()["quotas"] if each["name"] == name]
    return dict(found)


def test_sessions_above_the_quota_are_refused_until_one_is_deleted(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "sessions=2") as client:
        first = client.post("/sessions", json={"id": "a"})
        assert (first.status_code, first.headers["ratelimit"]) == (201, '"sessions";r=1')
        assert first.headers["ratelimit-policy"] == '"sessions";q=2'
        assert client.post("/sessions", json={"id": "b"}).status_code == 201
        refused = client.post("/sessions", json={"id": "c"})
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        assert refused.headers["ratelimit"] == '"sessions";r=0'
        details = refused.json()["details"]
        assert (details["quota"], details["limit"], details["used"]) == ("sessions", 2, 2)
        assert client.get("/sessions/c").status_code == 404
        assert client.delete("/sessions/a").status_code == 200
        assert client.post("/sessions", json={"id": "c"}).status_code == 201


def test_sessions_of_before_the_quota_count(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener) as client:
        assert client.post("/sessions", json={"id": "a"}).status_code == 201
        assert "ratelimit" not in client.post("/sessions", json={"id": "b"}).headers
        assert client.get("/quota").json() == {"quotas": []}
    with serve(counting_store, listener, "sessions=2") as client:
        assert client.post("/sessions", json={"id": "c"}).status_code == 429


def test_every_way_to_a_new_session_counts(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "sessions=2", "forks=1") as client:
        client.post("/sessions", json={"id": "a"})
        assert ask(client, "a").status_code == 200
        export = client.get("/sessions/a/export", params={"format": "jsonl"}).text
        assert client.post("/sessions/a/fork", json={"id": "f"}).status_code == 201
        assert client.post("/sessions/a/fork").json()["details"]["quota"] in ("sessions", "forks")
        assert client.post("/sessions/import", json={"data": export, "id": "i"}).status_code == 429
        assert client.post("/sessions/a/successor").status_code == 429
        assert client.post("/sessions", json={"id": "e", "exist_ok": True}).status_code == 429
        assert client.post("/sessions/a/replay", json={"agent_id": "say"}).status_code == 429
        assert client.delete("/sessions/f").status_code == 200
        replayed = client.post("/sessions/a/replay", json={"agent_id": "say"})
        assert (replayed.status_code, quota_of(client, "forks")["left"]) == (200, 0)
        assert {each["id"] for each in client.get("/sessions").json()["sessions"]} == {
            "a",
            replayed.json()["session_id"],
        }


def test_memories_above_the_quota_are_refused_until_one_is_forgotten(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "memories=2") as client:
        for key in ("a", "b"):
            assert client.put(f"/memory/{key}", params={"user_id": "u"}, json={"text": f"{key} is here"}).is_success
        assert client.put("/memory/c", params={"app_name": "x"}, json={"text": "no room"}).status_code == 429
        assert client.put("/memory/a", params={"user_id": "u"}, json={"text": "a has moved"}).is_success
        assert client.delete("/memory/a", params={"user_id": "u"}).json() == {"deleted": True}
        assert client.put("/memory/c", params={"app_name": "x"}, json={"text": "room again"}).is_success
        assert quota_of(client, "memories")["used"] == 2


def test_a_key_with_a_user_counts_the_sessions_of_that_user(counting_store: Store, listener: Listener) -> None:
    key, _ = create_key(counting_store, role="write", tenant="acme", user="alice", quota=Quota(sessions=1))
    other, _ = create_key(counting_store, role="write", tenant="acme", user="bob")
    with serve(counting_store, listener, "acme:sessions=3", "sessions=1", key=key) as client:
        assert client.post("/sessions", json={"id": "a"}).status_code == 201
        refused = client.post("/sessions", json={"id": "b"})
        assert (refused.status_code, refused.json()["details"]["user_id"]) == (429, "alice")
        client.headers["Authorization"] = f"Bearer {other}"
        assert [client.post("/sessions", json={"id": each}).status_code for each in "xyz"] == [201, 201, 429]


def test_bytes_above_the_quota_are_refused_until_a_session_is_deleted(
    counting_store: Store, listener: Listener
) -> None:
    text = {"messages": [{"role": "user", "content": "x" * 40_000}]}
    with serve(counting_store, listener, "bytes=100000") as client:
        client.post("/sessions", json={"id": "a"})
        client.post("/sessions", json={"id": "b"})
        assert client.post("/sessions/a/messages", json=text).is_success
        assert client.post("/sessions/b/messages", json=text).is_success
        refused = client.post("/sessions/b/messages", json=text)
        assert (refused.status_code, refused.json()["details"]["quota"]) == (429, "bytes")
        large = client.post("/sessions/b/message", json={"agent_id": "say", "message": "x" * 40_000})
        assert large.status_code == 429
        assert client.delete("/sessions/a").is_success  # what removes is never refused
        while client.post("/sessions/b/messages", json=text).status_code == 429:
            pass  # bytes are measured again after a second


def test_a_day_of_tokens_ends_with_429_and_begins_again(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "tokens_per_day=20") as client:
        client.post("/sessions", json={"id": "a"})
        answers = [ask(client, "a") for _ in range(6)]
        statuses = [each.status_code for each in answers]
        used = sum(sum(each.json()["usage"][name] for name in ("input_tokens", "output_tokens")) for each in answers
                   if each.is_success)  # fmt: skip
        assert statuses == sorted(statuses)
        assert statuses[-1] == 429
        assert quota_of(client, "tokens_per_day")["used"] == used >= 20
        refused = answers[-1]
        assert (refused.json()["code"], refused.json()["details"]["quota"]) == ("quota_exceeded", "tokens_per_day")
        assert 0 < int(refused.headers["retry-after"]) <= 86_400
        assert refused.json()["details"]["resets_at"].endswith("T00:00:00Z")
        assert ";w=86400" in refused.headers["ratelimit-policy"]


def test_a_run_stops_when_the_day_is_used_up(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "tokens_per_day=60") as client:
        client.post("/sessions", json={"id": "a"})
        stopped = ask(client, "a", "loop")
        assert (stopped.status_code, stopped.json()["code"]) == (429, "quota_exceeded")
        events = client.get("/sessions/a/export", params={"format": "jsonl"}).text
        assert 1 < events.count('"model.called"') < 50
        assert "turn.failed" in events


def test_a_repeated_request_is_answered_when_the_quota_is_used_up(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "sessions=1", "tokens_per_day=1") as client:
        for _ in range(2):
            assert client.post("/sessions", json={"id": "a"}, headers={"Idempotency-Key": "k"}).status_code == 201
            assert ask(client, "a", headers={"Idempotency-Key": "m"}).status_code == 200
        assert ask(client, "a", headers={"Idempotency-Key": "n"}).status_code == 429


def test_money_is_counted_by_the_prices_and_not_spent_without_them(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "cost_per_day=1e-4") as client:
        client.post("/sessions", json={"id": "a"})
        refused = ask(client, "a")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
    with serve(counting_store, listener, "cost_per_day=1e-4", prices=("input=1", "output=10")) as client:
        statuses = [ask(client, "a").status_code for _ in range(9)]
        assert (statuses[0], statuses[-1]) == (200, 429)
        assert quota_of(client, "cost_per_day")["used"] >= 1e-4


def test_the_client_raises_what_it_needs_to_know(counting_store: Store, listener: Listener) -> None:
    with serve(counting_store, listener, "sessions=1") as http, Client(str(http.base_url), token=TOKEN) as client:
        client.session("a")
        with pytest.raises(QuotaExceeded) as caught:
            client.session("b")
        assert (caught.value.quota, caught.value.limit, caught.value.used) == ("sessions", 1, 1)
        assert caught.value.retry_after is None
        assert [(each["name"], each["left"]) for each in client.quotas()] == [("sessions", 0)]


def test_a_new_day_has_its_own_tokens(tmp_path: Path) -> None:
    clock = FixedClock(start=DAY * 20_000)
    with SQLiteStore(tmp_path / "log.db", clock=clock) as sqlite:
        for store in (MemoryStore(clock=clock), sqlite):
            log = _new_session(store)
            store.settle_usage(log, {"input_tokens": 100}, lambda _: 1.0)  # of before
            assert store.usage(None).tokens_per_day == 0
            for _ in range(2):  # settled once
                store.settle_usage(log, {"input_tokens": 107, "output_tokens": 3}, lambda _: 0.5)
            for user in ("u", None):
                assert (store.usage(user).tokens_per_day, store.usage(user).cost_per_day) == (10, 0.5)
            clock.time += DAY
            assert store.usage(None).tokens_per_day == 0
            store.settle_usage(log, {"input_tokens": 108, "output_tokens": 3}, lambda _: 0.5)
            assert (store.usage(None).tokens_per_day, store.usage("u").cost_per_day) == (1, 0.5)


def _new_session(store: Store) -> Any:
    from holdfast import Session

    limited = store.limited([Allowance(None, Quota(sessions=9)), Allowance("u", Quota(sessions=9))])
    limited.start_counting()
    return Session("s", store=store, user_id="u").log


def test_every_request_that_changes_something_is_charged_or_gives_back() -> None:
    from holdfast.server.routes import agents, events, memory, runs, sessions

    routers = (runs.router, events.router, *sessions.routers, memory.router, agents.router)
    routes = [route for router in routers for route in router.routes if isinstance(route, StrictRoute)]
    changing = {route.operation_id for route in routes if (route.methods or set()) & {"POST", "PUT", "PATCH", "DELETE"}}
    assert changing == ADDING | GIVING_BACK
    assert not ADDING & GIVING_BACK


@pytest.mark.parametrize("text", ["sessions", "sessions=x", "sesions=3", "sessions=-1", "sessions=0.5", "bytes=inf"])
def test_a_quota_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_quota([text])
    with pytest.raises(InvalidArgument):
        Config(quotas=(f"acme:{text}",)).check()


def test_two_servers_on_one_database_never_get_above_a_limit(postgres_server: PostgresServer, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("from holdfast import Agent\nsay = Agent(name='say', provider='echo')\n")
    dsn = postgres_server.database(tcp=True)
    quotas = "sessions=12,forks=3,memories=5"
    with ExitStack() as stack:
        servers = [ServerProcess(app, dsn, quotas=quotas) for _ in range(2)]
        for each in servers:
            stack.enter_context(each)
        clients = [stack.enter_context(httpx2.Client(base_url=each.url, headers=AUTHORIZED, timeout=60))
                   for each in servers]  # fmt: skip
        threads = stack.enter_context(ThreadPoolExecutor(16))

        def race(count: int, request: Any) -> list[int]:
            jobs = [threads.submit(request, clients[at % 2], at) for at in range(count)]
            return [job.result().status_code for job in jobs]

        made = race(40, lambda client, at: client.post("/sessions", json={"id": f"s{at}"}))
        assert (made.count(201), made.count(429)) == (12, 28)
        gone = [each["id"] for each in clients[0].get("/sessions").json()["sessions"]][:5]
        assert [clients[1].delete(f"/sessions/{each}").status_code for each in gone] == [200] * 5
        parent = clients[0].get("/sessions").json()["sessions"][0]["id"]
        forked = race(20, lambda client, at: client.post(f"/sessions/{parent}/fork"))
        assert (forked.count(201), forked.count(429)) == (3, 17)
        more = race(20, lambda client, at: client.post("/sessions", json={"id": f"t{at}"}))
        assert (more.count(201), more.count(429)) == (2, 18)
        kept = race(30, lambda client, at: client.put(
            f"/memory/k{at}", params={"user_id": f"u{at % 3}"}, json={"text": f"fact number {at}"}))  # fmt: skip
        assert (kept.count(200), kept.count(429)) == (5, 25)
        shown = {each["name"]: each["used"] for each in clients[1].get("/quota").json()["quotas"]}
        assert shown == {"sessions": 12, "forks": 3, "memories": 5}
    postgres_server.drop(dsn)


def test_a_key_of_the_command_line_has_its_quota(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from holdfast.cli.main import main

    url = f"sqlite:///{tmp_path}/keys.db"
    made = CliRunner().invoke(
        main, ["keys", "create", "--store", url, "--json", "--quota", "sessions=5", "--quota", "tokens_per_day=1e6"]
    )
    assert json.loads(made.stdout)["quota"] == {"sessions": 5, "tokens_per_day": 1_000_000}
    wrong = CliRunner().invoke(main, ["keys", "create", "--store", url, "--quota", "sesions=5"])
    assert (wrong.exit_code, "sessions" in wrong.output) == (2, True)
