"""Detectors of bugs in quotas. They return what they found; nothing means all is well."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx2

from holdfast import Agent, Session, tool
from holdfast.errors import QuotaExceeded
from holdfast.memory.memory import Memory
from holdfast.policy.quota import Quota
from holdfast.server.api_keys import create_key
from holdfast.stores import MemoryStore, PostgresStore
from holdfast.stores.base import Store
from holdfast.stores.usage import Allowance
from holdfast.testing import call
from tests.kit.local_server import TOKEN, LocalServer
from tests.proofs.models import open_stores

USERS = ("ann", "bob", None)
STEPS = 60
TENANTS = 12  # races
THREADS = 6
LIMIT = 5


class Counted:
    """One store under a wide quota, with the operations that change its counts."""

    def __init__(self, store: Store, tenant: str) -> None:
        self.store = store.for_tenant(tenant)
        Session("first", store=self.store, user_id="ann")  # of before the quota
        quotas = [Allowance(user, Quota(sessions=10**6)) for user in USERS]
        self.limited = self.store.limited(quotas)
        self.limited.start_counting()

    def step(self, kind: str, at: int, user: str | None) -> None:
        ids = sorted(each for each in self.store.list_sessions())
        memory = Memory().on(self.store).of(user, None)
        if kind == "create" or not ids:
            Session(f"s{at:03}", store=self.store, user_id=user)
        elif kind == "fork":
            Session.open(ids[at % len(ids)], store=self.store).fork(f"f{at:03}")
        elif kind == "remove":
            self.store.remove("session", ids[at % len(ids)])
        elif kind == "erase":
            Session.open(ids[at % len(ids)], store=self.store).erase(reason="asked", actor="admin")
        elif kind == "learn":
            memory.store(f"k{at % 4}", f"fact {at} of {user}")
        elif kind == "forget":
            memory.forget(f"k{at % 4}")
        elif kind == "forget user" and (log := self.store.find("memory", "ann")) is not None:
            self.store.remove("memory", log.id)

    def counts(self) -> list[tuple[int, int, int]]:
        found = [self.store.usage(user) for user in USERS]
        return [(each.sessions, each.forks, each.memories) for each in found]


def counters(seed: int) -> list[str]:
    """The counters of the SQL stores after random operations, beside those of the store in memory, which counts."""
    rng = random.Random(seed)
    kinds = ["create", "create", "fork", "remove", "erase", "learn", "learn", "learn", "forget", "forget user"]
    steps = [(rng.choice(kinds), at, rng.choice(USERS)) for at in range(STEPS)]
    found = []
    with open_stores() as stores:
        sides = [Counted(store, f"counted-{seed}") for store in stores]
        for step in steps:
            for side in sides:
                with suppress(ValueError):
                    side.step(*step)
            first, *others = [side.counts() for side in sides]
            found += [f"after {step}: {other}, and it is {first}" for other in others if other != first]
            if found:
                break
    return found[:3]


def limits(seed: int) -> list[str]:
    """Threads with two store objects on one database create above a limit, while the first of them begins to count."""
    found = []
    with open_stores() as stores, ThreadPoolExecutor(THREADS) as threads:
        dsn = stores[-1].server.pool._conninfo  # type: ignore[attr-defined]
        with PostgresStore(dsn) as second:
            for number in range(TENANTS):
                tenant = f"limited-{seed}-{number}"

                def create(at: int, tenant: str = tenant, limited: bool = True, second: Store = second) -> bool:
                    store = (stores[-1], second)[at % 2].for_tenant(tenant)
                    if limited:
                        store = store.limited([Allowance(None, Quota(sessions=LIMIT))])
                        store.start_counting()
                    try:
                        Session(f"s{at}", store=store)
                    except QuotaExceeded:
                        return False
                    return True

                made = sum(threads.map(create, range(4 * THREADS)))
                there = len(stores[-1].for_tenant(tenant).list_sessions())
                if made != LIMIT or there != LIMIT:
                    found.append(f"{made} were admitted and {there} exist, where {LIMIT} may")
                unlimited = [threads.submit(create, at, tenant + "x", at % 5 == 4) for at in range(6 * THREADS)]
                for each in unlimited:
                    each.result()
                store = stores[-1].for_tenant(tenant + "x")
                if store.usage(None).sessions != len(store.list_sessions()):
                    found.append(f"{store.usage(None).sessions} counted, {len(store.list_sessions())} exist")
    return found[:3]


@tool
def again() -> str:
    """Go on."""
    return "go on"


class QuotaServer:
    """A server with quotas on a store in memory."""

    def __init__(self, *quotas: str) -> None:
        self.store = MemoryStore()
        memory = Memory()
        notes = [call("save_memory", {"text": f"note {at}", "key": f"k{at}"}) for at in range(4)]
        agents = {
            "say": Agent(name="say", provider="scripted", script=lambda _: "an answer of some length"),
            "loop": Agent(name="loop", provider="scripted", script=lambda _: call("again", {}), tools=[again]),
            "note": Agent(name="note", provider="scripted", script=[*notes, "done"], memory=memory),
        }
        self._server = LocalServer(self.store, agents=agents, quotas=quotas).start()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.http = httpx2.Client(base_url=self._server.url, headers=headers, timeout=30)
        self.http.post("/sessions", json={"id": "a", "user_id": "ann"})

    def __enter__(self) -> QuotaServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._server.stop()

    def ask(self, agent: str, **headers: str) -> httpx2.Response:
        body = {"agent_id": agent, "message": "hello"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post("/sessions/a/message", json=body, headers=named)

    def used(self, name: str) -> Any:
        return next(each["used"] for each in self.http.get("/quota").json()["quotas"] if each["name"] == name)


def days(seed: int) -> list[str]:
    """Tokens of a day: settled once, refused when used up, and a run that uses them up stops."""
    found = []
    with QuotaServer("tokens_per_day=30") as server:
        answers, counted = [], []
        for _ in range(6):
            answers.append(server.ask("say"))
            counted.append(server.used("tokens_per_day"))
        spent = [sum(each.json()["usage"][name] for name in ("input_tokens", "output_tokens")) for each in answers
                 if each.is_success]  # fmt: skip
        if answers[-1].status_code != 429 or "retry-after" not in answers[-1].headers:
            found.append(f"the last answer is {answers[-1].status_code} after {sum(spent)} of 30 tokens")
        if counted[: len(spent)] != [sum(spent[: at + 1]) for at in range(len(spent))]:
            found.append(f"{counted} tokens are counted, run by run, and {spent} were used")
        if sum(spent[:-1]) >= 30:
            found.append("a run began when the day was used up")
    with QuotaServer("tokens_per_day=60") as server:
        server.ask("loop")
        called = server.http.get("/sessions/a/export", params={"format": "jsonl"}).text.count('"model.called"')
        if not 1 < called < 20:
            found.append(f"a run went on for {called} model calls")
    with open_stores() as stores:
        for store in stores:
            found += _settle_twice(store.for_tenant(f"days-{seed}"))
    return found[:3]


def _settle_twice(store: Store) -> list[str]:
    store.limited([Allowance(None, Quota(tokens_per_day=9))]).start_counting()
    log = Session("s", store=store).log
    for total in (100, 107, 107, 109):
        store.settle_usage(log, {"input_tokens": total}, lambda _: 0.0)
    used = store.usage(None).tokens_per_day
    return [] if used == 9 else [f"{type(store).__name__}: {used} tokens are settled, 9 were used"]


def charges(seed: int) -> list[str]:
    """What requests and runs are charged: bytes, memories of tools, the quota of a key, and retries for nothing."""
    found = []
    with QuotaServer("bytes=50000", "memories=2") as server:
        text = {"messages": [{"role": "user", "content": "x" * 30_000}]}
        statuses = [server.http.post("/sessions/a/messages", json=text).status_code for _ in range(3)]
        if statuses.count(429) != 2:
            found.append(f"30,000 bytes, three times, within 50,000: {statuses}")
        if server.http.post("/sessions/a/message", json={"agent_id": "say", "message": "x" * 30_000}).is_success:
            found.append("a message is not charged")
        if not server.http.post("/sessions/a/clear").is_success:
            found.append("what removes content is refused")
        server.ask("note")
        kept = server.store.usage(None).memories
        if kept != 2:
            found.append(f"a run keeps {kept} memories, where 2 may be")
    with QuotaServer("sessions=9", "tokens_per_day=1") as server:
        key, _ = create_key(server.store, role="write", user="ann", quota=Quota(sessions=2))
        headers = {"Authorization": f"Bearer {key}"}
        made = [server.http.post("/sessions", json={"id": each}, headers=headers) for each in "bc"]
        if [each.status_code for each in made] != [201, 429]:
            found.append(f"the quota of a key: {[each.status_code for each in made]}")
        if made[1].headers.get("ratelimit", "").split(",")[0] != '"sessions";r=0':
            found.append(f"what is left: {made[1].headers.get('ratelimit')}")
        again = [server.ask("say", Idempotency_Key="k").status_code for _ in range(2)]
        if again != [200, 200]:
            found.append(f"a repeated message gets {again}")
    return found[:3]


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "quota counters": counters,
    "quota limits": limits,
    "quota days": days,
    "quota charges": charges,
}
