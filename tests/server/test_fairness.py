"""No tenant, no slow provider and no client that stops reading takes what others need; on a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

from holdfast import Agent, Message, Session
from holdfast.errors import StoreError, StoreFull, StorePoisoned, StoreUnavailable
from holdfast.server import auth, large_answers
from holdfast.server.api_keys import create_key, revoke_key
from holdfast.server.http import header_limits
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.worker.admission import cancel_run
from tests.kit.local_server import LocalServer

PATIENCE = 20.0


class SlowProvider:
    """A model that answers nothing until the test lets it."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Semaphore(0), threading.Event()

    def __call__(self, request: Any) -> str:
        self.entered.release()
        assert self.go.wait(60)
        return "at last"

    def wait_for_requests(self, number: int) -> None:
        for _ in range(number):
            assert self.entered.acquire(timeout=PATIENCE), "the model was not asked"


class SharedServer:
    """A server with an instant agent and an agent whose provider hangs, for several tenants."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store, self.provider = store, SlowProvider()
        agents = {
            "quick": Agent(name="quick", provider="scripted", script=lambda _: "at once"),
            "slow": Agent(name="slow", provider="scripted", script=self.provider),
        }
        settings = {"runs_per_key": 8, "runs_per_tenant": 1000, "ping": 0.2, **settings}
        self.local_server = LocalServer(store, agents=agents, **settings)

    def client(self, tenant: str, **more: Any) -> httpx2.Client:
        """A client with a key of its own."""
        key, self.last_key = create_key(self.store, role="write", tenant=tenant)
        headers = {"Authorization": f"Bearer {key}"}
        return httpx2.Client(base_url=self.local_server.url, headers=headers, **{"timeout": PATIENCE, **more})

    def make_sessions(self, tenant: str, number: int) -> None:
        for each in range(number):
            Session(f"s{each}", store=self.store.for_tenant(tenant))


@contextmanager
def serve(store: Store, **settings: Any) -> Iterator[SharedServer]:
    server = SharedServer(store, **settings)
    with server.local_server:
        try:
            yield server
        finally:
            server.provider.go.set()


def hang_up(client: httpx2.Client, path: str, body: dict[str, Any]) -> int:
    """Ask, and do not wait for the answer; 0 if none came."""
    try:
        return client.post(path, json=body, timeout=0.4).status_code
    except httpx2.TimeoutException:
        return 0


def ask(client: httpx2.Client, agent: str, session: str = "s0") -> httpx2.Response:
    return client.post(f"/sessions/{session}/message", json={"agent_id": agent, "message": "hello"})


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def check_others_are_served(server: SharedServer) -> None:
    """Another tenant, whose key was never used before, lists, reads and is answered; and the server is ready."""
    server.make_sessions("globex", 1)
    with server.client("globex") as other:
        assert other.get("/health").status_code == 200
        assert other.get("/ready").json() == {"status": "ready", "reason": None}
        assert other.get("/sessions").status_code == 200
        assert other.get("/sessions/s0").status_code == 200
        assert ask(other, "quick").json()["response"] == "at once"


class TestSlowProviders:
    def test_with_runs_that_were_left_alone_leave_other_tenants_their_share(self, durable_store: Store) -> None:
        with serve(durable_store, runs=32) as server:
            server.make_sessions("acme", 80)
            clients = [server.client("acme") for _ in range(10)]
            with ThreadPoolExecutor(40) as pool:
                found = list(
                    pool.map(
                        lambda n: hang_up(
                            clients[n // 8], f"/sessions/s{n}/message", {"agent_id": "slow", "message": "x"}
                        ),
                        range(80),
                    )
                )
            assert set(found) == {0}
            server.provider.wait_for_requests(32)
            assert not server.provider.entered.acquire(timeout=0.5), "one tenant runs no more than its share"
            check_others_are_served(server)
            for client in clients:
                client.close()

    def test_asked_outside_of_runs_leave_other_tenants_their_threads(self, durable_store: Store) -> None:
        with serve(durable_store) as server, server.client("acme") as client:
            server.make_sessions("acme", 1)
            session = Session.open("s0", store=durable_store.for_tenant("acme"))
            session.add_messages([Message.user(f"My favourite number is {n}.") for n in range(30)])
            prune = "/sessions/s0/prune", {"strategy": "summarize_old", "threshold": 2, "agent_id": "slow"}
            learn = "/sessions/s0/memory", {"agent_id": "slow"}
            with ThreadPoolExecutor(64) as pool:
                asked = [pool.submit(client.post, path, json=body) for path, body in [prune, learn] * 32]
                wait_until(lambda: sum(each.done() for each in asked) == 48)
                assert {each.result().status_code for each in asked if each.done()} == {429}
                check_others_are_served(server)
                server.provider.go.set()

    def test_do_not_let_a_client_escape_its_limit_by_hanging_up(self, store: Store) -> None:
        with serve(store, runs_per_key=3) as server, server.client("acme") as client:
            server.make_sessions("acme", 5)
            body = {"agent_id": "slow", "message": "x"}
            assert [hang_up(client, f"/sessions/s{n}/message", body) for n in range(3)] == [0, 0, 0]
            server.provider.wait_for_requests(3)
            assert ask(client, "slow", "s3").status_code == 429
            with client.stream("POST", "/sessions/s4/message/stream", json=body) as refused:
                assert refused.status_code == 429
            server.provider.go.set()
            wait_until(lambda: ask(client, "quick", "s4").status_code == 200)

    def test_do_not_let_a_client_escape_its_limit_by_cancelling(self, store: Store) -> None:
        with serve(store, runs_per_key=2) as server, server.client("acme") as client:
            server.make_sessions("acme", 3)
            for n in range(2):
                assert hang_up(client, f"/sessions/s{n}/message", {"agent_id": "slow", "message": "x"}) == 0
                (run,) = client.get(f"/sessions/s{n}/runs").json()["runs"]
                assert client.post(f"/sessions/s{n}/runs/{run['run_id']}/cancel").json()["status"] == "cancelled"
            assert ask(client, "quick", "s2").status_code == 429, "two threads still hang in the provider"
            server.provider.go.set()
            wait_until(lambda: ask(client, "quick", "s2").status_code == 200)

    def test_are_counted_for_all_keys_of_a_tenant(self, store: Store) -> None:
        with serve(store, runs_per_tenant=2) as server, server.client("acme") as one, server.client("acme") as two:
            server.make_sessions("acme", 3)
            body = {"agent_id": "slow", "message": "x"}
            assert [hang_up(client, f"/sessions/s{n}/message", body) for n, client in enumerate((one, two))] == [0, 0]
            refused = ask(one, "quick", "s2")
            assert refused.status_code == 429
            assert "this tenant has 2 runs under way" in refused.json()["error"]
            check_others_are_served(server)

    def test_that_answer_at_once_cost_a_client_nothing(self, store: Store) -> None:
        with serve(store, runs_per_key=1) as server, server.client("acme") as client:
            server.make_sessions("acme", 1)
            assert [ask(client, "quick").status_code for _ in range(30)] == [200] * 30

    def test_free_the_count_of_runs_that_ended_in_another_process(self, store: Store) -> None:
        with serve(store, runs_per_key=1, runs=1) as server, server.client("acme") as client:
            server.make_sessions("acme", 3)
            with server.client("acme") as first:
                assert hang_up(first, "/sessions/s0/message", {"agent_id": "slow", "message": "x"}) == 0
            assert hang_up(client, "/sessions/s1/message", {"agent_id": "quick", "message": "x"}) == 0
            assert ask(client, "quick", "s2").status_code == 429
            session = Session.open("s1", store=store.for_tenant("acme"))
            (queued,) = client.get("/sessions/s1/runs").json()["runs"]
            assert cancel_run(session.store, session.log, queued["run_id"])
            wait_until(lambda: hang_up(client, "/sessions/s2/message", {"agent_id": "quick", "message": "x"}) == 0)


class FaultyStore(MemoryStore):
    """A store whose faults a test decides."""

    fault: list[StoreError]
    silence: threading.Event

    @property
    def write_fault(self) -> StoreError | None:
        return self.fault[0] if self.fault else None

    def kv_put(self, space: str, key: str, value: bytes, **more: Any) -> bytes | None:
        if self.fault:
            raise self.fault[0]
        return super().kv_put(space, key, value, **more)

    def find(self, kind: str, id: str) -> Any:
        if kind == "session" and id == "ready?":
            assert self.silence.wait(60)
        elif id == "lost":
            raise StoreUnavailable("connection to /secret/place failed")
        return super().find(kind, id)


@pytest.fixture
def faulty_store() -> FaultyStore:
    store = FaultyStore()
    store.fault, store.silence = [], threading.Event()
    store.silence.set()
    return store


class TestReadiness:
    @pytest.mark.parametrize("error", [StoreFull("no space for /secret/place"), StorePoisoned("/secret/place is bad")])
    def test_is_refused_while_no_write_succeeds(self, faulty_store: FaultyStore, error: StoreError) -> None:
        with serve(faulty_store) as server, server.client("acme") as client:
            assert client.get("/ready").status_code == 200
            faulty_store.fault.append(error)
            answer = client.get("/ready")
            assert (answer.status_code, answer.json()["reason"]) == (503, error.code)
            assert client.get("/health").status_code == 200
            faulty_store.fault.clear()
            assert client.get("/ready").status_code == 200

    def test_is_refused_while_the_store_does_not_answer(self, faulty_store: FaultyStore) -> None:
        with serve(faulty_store) as server, server.client("acme") as client:
            faulty_store.silence.clear()
            answers = [client.get("/ready") for _ in range(2)]
            assert [(each.status_code, each.json()["reason"]) for each in answers] == [(503, "store_unavailable")] * 2
            assert client.get("/sessions").status_code == 200
            faulty_store.silence.set()
            wait_until(lambda: client.get("/ready").status_code == 200)

    def test_errors_of_a_store_do_not_name_its_place(self, faulty_store: FaultyStore) -> None:
        with serve(faulty_store) as server, server.client("acme") as client:
            answer = client.get("/sessions/lost")
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
            assert "secret" not in answer.text

    def test_of_a_sqlite_file_that_was_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "sessions.db"
        with SQLiteStore(path) as store, serve(store) as server, server.client("acme") as client:
            assert store.write_fault is None
            path.rename(tmp_path / "moved.db")
            answer = client.post("/sessions", json={"id": "s"})
            assert answer.status_code == 503
            assert str(tmp_path) not in answer.text
            assert isinstance(store.write_fault, StorePoisoned)
            answer = client.get("/ready")
            assert (answer.status_code, answer.json()["reason"]) == (503, "store_poisoned")


class TestRevokedKeys:
    @pytest.fixture(autouse=True)
    def check_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(auth, "CACHED_SECONDS", 0.1)
        monkeypatch.setattr("holdfast.server.event_stream.CACHED_SECONDS", 0.1)
        monkeypatch.setattr("holdfast.server.run_waiter.CLIENT_CHECK_SECONDS", 0.1)

    def test_lose_their_streams(self, store: Store) -> None:
        with serve(store) as server, server.client("acme") as client:
            server.make_sessions("acme", 1)
            with client.stream("GET", "/sessions/s0/events", headers={"Accept": "text/event-stream"}) as stream:
                lines = stream.iter_lines()
                assert next(lines) == "id: 1"
                assert revoke_key(store, server.last_key.id)
                found = "\n".join(lines)
            assert "event: error" in found
            assert '"code":"unauthorized"' in found

    def test_do_not_wait_for_their_runs(self, store: Store) -> None:
        with serve(store) as server, server.client("acme") as client, ThreadPoolExecutor(1) as pool:
            server.make_sessions("acme", 1)
            waiting = pool.submit(ask, client, "slow")
            server.provider.wait_for_requests(1)
            assert revoke_key(store, server.last_key.id)
            assert waiting.result(PATIENCE).status_code == 401


class TestAnswersThatAreNotRead:
    @pytest.fixture
    def large_store(self, tmp_path: Path) -> Iterator[Store]:
        with SQLiteStore(tmp_path / "sessions.db") as store:
            session = Session("large", store=store.for_tenant("acme"))
            for _ in range(12):
                session.add_message(Message.user("x" * (1 << 20)))
            yield store

    def ask_and_read_nothing(self, server: SharedServer, key: str, path: str) -> socket.socket:
        wire = socket.socket()
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(("127.0.0.1", server.local_server.port))
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
        wire.sendall(head.encode())
        return wire

    def test_are_bounded_in_bytes_and_time(self, large_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(header_limits, "STALL_SECONDS", 1.5)
        with serve(large_store) as server, server.client("acme") as client:
            key = client.headers["Authorization"].removeprefix("Bearer ")
            held, mine = server.local_server.server.limits.answer_bytes, server.last_key.id
            wires = [self.ask_and_read_nothing(server, key, "/sessions/large/history") for _ in range(6)]
            wait_until(lambda: held.count_held(mine) > 20 << 20)
            assert held.count_held(mine) <= 32 << 20
            refused = client.get("/sessions/large/history")
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
            check_others_are_served(server)
            wait_until(lambda: held.count_held(mine) == 0)
            wait_until(lambda: client.get("/sessions/large/history").status_code == 200)
            for wire in wires:
                wire.close()

    def test_are_built_a_few_at_a_time(self, large_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(large_answers, "PATIENCE", 0.2)
        Session("small", store=large_store.for_tenant("acme")).add_message(Message.user("hello"))
        with serve(large_store) as server, server.client("acme") as client, server.client("globex") as other:
            Session("s0", store=large_store.for_tenant("globex"))
            answers = server.local_server.server.large_answers
            callers = [SimpleNamespace(key_id="k", tenant=tenant) for tenant in ("acme", "acme", "initech", "initech")]
            builders = [answers.begin(cast(auth.Caller, each)) for each in callers]
            for each in builders:
                each.add_whole_session()
            for path in ("document", "export", "history", "events?after=0", "search?q=x", "context"):
                refused = client.get(f"/sessions/large/{path}")
                assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests"), path
                assert refused.headers["Retry-After"] == "1"
            for path in ("history", "events", "search?q=hello", "context"):
                assert client.get(f"/sessions/small/{path}").status_code == 200, path
            assert other.get("/sessions/s0/export").status_code == 200
            builders[0].__exit__(None, None, None)
            assert client.get("/sessions/large/document").status_code == 200

    def test_arrive_whole_when_they_are_read(self, large_store: Store) -> None:
        with serve(large_store) as server, server.client("acme") as client:
            found = client.get("/sessions/large/history").json()["messages"]
            assert [len(each["content"]) for each in found] == [1 << 20] * 12

    def test_of_events_are_cut_into_pages(self, large_store: Store) -> None:
        with serve(large_store) as server, server.client("acme") as client:
            seqs: list[int] = []
            after: int | None = 0
            while after is not None:
                page = client.get("/sessions/large/events", params={"after": after, "limit": 1000}).json()
                assert 1 <= len(page["events"]) <= 5
                seqs += [each["seq"] for each in page["events"]]
                after = page["next"]
            assert seqs == list(range(1, 14))
            assert client.get("/sessions/large/events").status_code == 413
            assert len(client.get("/sessions/large/events", params={"limit": 2}).json()["events"]) == 2

    def test_leave_the_server_able_to_say_that_it_lives(self, store: Store) -> None:
        with serve(store, connections=3) as server, server.client("acme") as client:
            idle = [socket.create_connection(("127.0.0.1", server.local_server.port)) for _ in range(4)]
            wait_until(lambda: client.get("/sessions").status_code == 503)
            assert client.get("/health").status_code == 200
            assert client.get("/ready").status_code == 200
            for wire in idle:
                wire.close()
            wait_until(lambda: client.get("/sessions").status_code == 200)
