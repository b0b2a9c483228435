"""Detectors of bugs in the fair use of a server. They return what they found; nothing means all is well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx2

import holdfast.server.auth as auth
import holdfast.server.event_stream as event_stream
import holdfast.server.http.header_limits as header_limits
from holdfast import Agent, Message, Session
from holdfast.errors import StoreError, StoreFull
from holdfast.server.api_keys import create_key, revoke_key
from holdfast.server.large_answers import PLACES_PER_TENANT
from holdfast.server.schemas import serializers
from holdfast.stores import MemoryStore
from tests.kit.local_server import LocalServer
from tests.kit.server_process import RawConnection

PATIENCE = 4.0  # seconds for an answer that takes a few milliseconds
RUNS = 4


class _Provider:
    """A model that answers nothing until it is let."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, _: Any) -> str:
        self.go.wait(60)
        return "at last"


class _FullStore(MemoryStore):
    """A store whose disk may be full, and that names its file."""

    is_full: threading.Event

    @property
    def write_fault(self) -> StoreError | None:
        return StoreFull("no space left for /secret/place") if self.is_full.is_set() else None

    def kv_put(self, space: str, key: str, value: bytes, **more: Any) -> bytes | None:
        if self.is_full.is_set():
            raise StoreFull("no space left for /secret/place")
        return super().kv_put(space, key, value, **more)

    def find(self, kind: str, id: str) -> Any:
        if id == "lost":
            raise StoreFull("no space left for /secret/place")
        return super().find(kind, id)


class _Shared:
    """A server for two tenants, acme and globex."""

    def __init__(self, **settings: Any) -> None:
        self.store, self.provider = _FullStore(), _Provider()
        self.store.is_full = threading.Event()
        agents = {
            "quick": Agent(name="quick", provider="scripted", script=lambda _: "at once"),
            "slow": Agent(name="slow", provider="scripted", script=self.provider),
        }
        self.serving = LocalServer(self.store, agents=agents, **{"runs": RUNS, "ping": 0.2, **settings})
        for tenant in ("acme", "globex"):
            for number in range(80):
                Session(f"s{number}", store=self.store.for_tenant(tenant))

    def client(self, tenant: str) -> httpx2.Client:
        self.key, self.info = create_key(self.store, role="write", tenant=tenant)
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx2.Client(base_url=self.serving.url, headers=headers, timeout=PATIENCE)

    def leave_runs(self, client: httpx2.Client, number: int, agent: str = "slow") -> list[int]:
        """Ask in so many sessions and hang up; returns what was answered before that, 0 for nothing."""
        body = {"agent_id": agent, "message": "x"}
        return [_post(client, f"/sessions/s{each}/message", body, 0.15) for each in range(number)]


def _post(client: httpx2.Client, path: str, body: Any, seconds: float = PATIENCE) -> int:
    try:
        return client.post(path, json=body, timeout=seconds).status_code
    except httpx2.TransportError:
        return 0


def _get(client: httpx2.Client, path: str) -> int:
    try:
        return client.get(path).status_code
    except httpx2.TransportError:
        return 0


@contextmanager
def _share(**settings: Any) -> Iterator[_Shared]:
    shared = _Shared(**settings)
    with shared.serving:
        try:
            yield shared
        finally:
            shared.provider.go.set()


def _list_refused(shared: _Shared) -> list[str]:
    """What another tenant is not answered."""
    with shared.client("globex") as other:
        asked = {"agent_id": "quick", "message": "x"}
        answers = {
            "/ready": _get(other, "/ready"),
            "/sessions": _get(other, "/sessions"),
            "/sessions/s0": _get(other, "/sessions/s0"),
            "a message": _post(other, "/sessions/s0/message", asked),
        }
    return [f"another tenant: {what} -> {status}" for what, status in answers.items() if status != 200]


def _leave_many_runs(seed: int) -> list[str]:
    """Hung-up runs of one tenant, more than there are threads."""
    with _share() as shared, shared.client("acme") as client:
        shared.leave_runs(client, 20)
        return _list_refused(shared)


def _leave_many_admissions(seed: int) -> list[str]:
    """More hung-up runs than the server has threads of any kind."""
    with _share(runs=2, runs_per_tenant=1000) as shared, shared.client("acme") as client:
        shared.leave_runs(client, 70)
        return _list_refused(shared)


def _ask_models_outside_of_runs(seed: int) -> list[str]:
    """More requests of one key that ask a model than there are threads for requests."""
    with _share() as shared, shared.client("acme") as client:
        session = Session.open("s0", store=shared.store.for_tenant("acme"))
        session.add_messages([Message.user(f"My number is {n}.") for n in range(20)])
        for _ in range(64):
            _post(client, "/sessions/s0/memory", {"agent_id": "slow"}, 0.05)
        return _list_refused(shared)


def _escape_the_limit(seed: int) -> list[str]:
    """Ask, hang up or cancel, and ask again."""
    found = []
    with _share(runs_per_key=2) as shared, shared.client("acme") as client:
        shared.leave_runs(client, 2)
        if (status := _post(client, "/sessions/s5/message", {"agent_id": "quick", "message": "x"})) != 429:
            found.append(f"a third run after two that were left -> {status}")
        for number in range(2):
            (run,) = client.get(f"/sessions/s{number}/runs").json()["runs"]
            client.post(f"/sessions/s{number}/runs/{run['run_id']}/cancel")
        if (status := _post(client, "/sessions/s6/message", {"agent_id": "quick", "message": "x"})) != 429:
            found.append(f"a third run while two threads hang -> {status}")
    return found


def _ask_a_full_store(seed: int) -> list[str]:
    """Whether a server is ready while its disk is full, and whether it names its file."""
    with _share() as shared, shared.client("acme") as client:
        found = [f"/ready of a good store -> {status}" for status in (_get(client, "/ready"),) if status != 200]
        answer = client.get("/sessions/lost")
        if "secret" in answer.text:
            found.append(f"the place of the store is told: {answer.text}")
        shared.store.is_full.set()
        return [
            *found,
            *(f"/ready of a full store -> {status}" for status in (_get(client, "/ready"),) if status != 503),
        ]


def _revoke_a_key(seed: int) -> list[str]:
    """A stream and a waiting request of a key that is revoked."""
    auth.CACHED_SECONDS = event_stream.CACHED_SECONDS = 0.1  # type: ignore[attr-defined]
    with _share() as shared, shared.client("acme") as client:
        session = Session.open("s0", store=shared.store.for_tenant("acme"))
        headers = {"Accept": "text/event-stream"}
        with client.stream("GET", "/sessions/s0/events", headers=headers) as stream:
            lines = stream.iter_lines()
            next(lines)
            revoke_key(shared.store, shared.info.id)
            time.sleep(0.5)
            session.add_message(Message.user("told too late"))
            deadline = time.monotonic() + PATIENCE
            for line in lines:
                if "told too late" in line or time.monotonic() > deadline:
                    return [f"the stream of a revoked key goes on: {line[:80]}"]
    return []


def _read_nothing(seed: int) -> list[str]:
    """Clients that ask for a large page and do not read it."""
    header_limits.STALL_SECONDS = 1.0
    with _share() as shared, shared.client("acme"):
        session = Session.open("s0", store=shared.store.for_tenant("acme"))
        for _ in range(12):
            session.add_message(Message.user("x" * (1 << 20)))
        key, path = {"Authorization": f"Bearer {shared.key}"}, "/sessions/s0/history"
        wires = [RawConnection(shared.serving.port, "GET", path, headers=key, room=4096) for _ in range(8)]
        for wire in wires:
            wire.send()
        connections, held = shared.serving._uvicorn.server_state.connections, shared.serving.server.limits.answer_bytes
        most, has_begun, deadline = 0, False, time.monotonic() + 3 * PATIENCE
        while time.monotonic() < deadline:
            waiting = sum(each.transport.get_write_buffer_size() for each in list(connections))
            under_way = held.count_held(shared.info.id)
            most, has_begun = max(most, waiting), has_begun or under_way > 0
            if has_begun and not under_way and not waiting:
                break
            time.sleep(0.01)
        else:
            return [f"{under_way} bytes are under way, and {waiting} wait for their clients"]
        for wire in wires:
            wire.reset()
    return [f"{most} bytes waited for clients"] if most > 8 << 20 else []


def _guess_keys(seed: int) -> list[str]:
    """A client that guesses, and another one with a valid key at the same address."""
    with _share() as shared, shared.client("acme") as client:
        for number in range(80):
            client.get("/sessions", headers={"Authorization": f"Bearer hf_guess{number:03}_{'A' * 43}"})
        guessed = _get_with(client, f"hf_guess999_{'A' * 43}")
        found = [f"a guess after eighty -> {guessed}"] if guessed != 429 else []
        status = _get(client, "/sessions")
        return [*found, f"a valid key at the address of a guesser -> {status}"] if status != 200 else found


def _build_large_answers(seed: int) -> list[str]:
    """One tenant asks for whole sessions and for large pages, more at once than may be built."""
    found: list[str] = []
    with _share() as shared, shared.client("acme") as client:
        Session("large", store=shared.store.for_tenant("acme")).add_messages([Message.user("x" * 800_000)] * 4)
        for path in ("/sessions/large/document", "/sessions/large/history", "/sessions/large/events"):
            with count_builders() as builders, ThreadPoolExecutor(8) as threads:
                statuses = list(threads.map(lambda path: _get(client, path), [path] * 8))
            if builders.most > PLACES_PER_TENANT or statuses != [200] * 8:
                found.append(f"{path}: {builders.most} are built at once, answers {statuses}")
    return found


@contextmanager
def count_builders() -> Iterator[SimpleNamespace]:
    """Count how many large answers are made into JSON at the same time."""
    counts, lock, orjson = SimpleNamespace(now=0, most=0), threading.Lock(), vars(serializers)["orjson"]

    def dumps(value: Any) -> bytes:
        with lock:
            counts.now += 1
            counts.most = max(counts.most, counts.now)
        try:
            time.sleep(0.05)
            return bytes(orjson.dumps(value))
        finally:
            with lock:
                counts.now -= 1

    vars(serializers)["orjson"] = SimpleNamespace(dumps=dumps)
    try:
        yield counts
    finally:
        vars(serializers)["orjson"] = orjson


def _get_with(client: httpx2.Client, key: str) -> int:
    return client.get("/sessions", headers={"Authorization": f"Bearer {key}"}).status_code


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "runs that were left": _leave_many_runs,
    "more runs left than threads": _leave_many_admissions,
    "models asked outside of runs": _ask_models_outside_of_runs,
    "an escape from the limit of runs": _escape_the_limit,
    "a full store": _ask_a_full_store,
    "a revoked key": _revoke_a_key,
    "clients that read nothing": _read_nothing,
    "guesses at one address": _guess_keys,
    "large answers": _build_large_answers,
}
