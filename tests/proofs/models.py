"""B5, B9, B20 and B22: the stores against each other, against a model, against their own events, and against faults.

The random operations and the model they are held against are in `properties`, where property tests use them too.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.clock import FixedClock
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores import append as planning
from holdfast.stores.base import Store
from tests.kit.postgres import PostgresServer
from tests.kit.proxy import PostgresProxy
from tests.proofs import Report, proof
from tests.proofs.faulty_stores import (
    INJECTORS,
    ClientWork,
    fail_statements,
    find_unsound,
    read_store,
    record_reference,
    work_with_fault,
)
from tests.properties.families import SessionFamily
from tests.properties.fields import FIELDS
from tests.properties.random_operations import Difference, RandomOperations
from tests.properties.rebuild import find_complaints, find_complaints_without_caches
from tests.properties.store_comparison import StoreSide, run_operation
from tests.properties.strings import LARGE, draw_hostile_text, is_valid

SERVER = "HOLDFAST_PROVE_SERVER"  # a database to use instead of a server of one's own
EPISODE = 200
ALWAYS, *OTHERS = FIELDS
SHARE = 2  # of the other fields, each string goes through so many, in turn
ENOUGH = 5  # failures, after which a proof stops looking for more


@contextmanager
def make_directory() -> Iterator[Path]:
    """Files in memory: what a disk does to them is proved elsewhere."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hf-models-", dir=place) as found:
        yield Path(found)


@contextmanager
def open_database() -> Iterator[str]:
    if SERVER in os.environ:
        yield os.environ[SERVER]
        return
    with PostgresServer() as server:
        yield server.database()


@contextmanager
def open_stores() -> Iterator[list[Store]]:
    with (
        make_directory() as home,
        open_database() as dsn,
        SQLiteStore(home / "log.db") as sqlite,
        PostgresStore(dsn) as postgres,
    ):
        yield [MemoryStore(), sqlite, postgres]


@proof("B9", ci=10_000, long=1_000_000)
def same_on_every_store(size: int, seed: int) -> Report:
    """Random operations: equal results, equal errors, equal bytes, and all of it what the model says."""
    failures: list[str] = []
    with open_stores() as stores:
        episodes = -(-size // EPISODE)
        for episode in range(episodes):
            failures += run_episode(stores, seed, episode, EPISODE)
            if len(failures) >= ENOUGH:
                break
    return Report(
        figures=f"{episodes * EPISODE:,} operations in {episodes} histories, 3 stores and a model", failures=failures
    )


def run_episode(stores: list[Store], seed: int, episode: int, operations: int) -> list[str]:
    try:
        RandomOperations(stores, seed, episode).run(operations)
    except Difference as difference:
        return [str(difference)]
    return []


@proof("B9", ci=6, long=800)
def rebuilt_from_events(size: int, seed: int) -> Report:
    """Every projection at every point, against a fold of the events; then again with the caches thrown away."""
    failures: list[str] = []
    seen: Counter[str] = Counter()
    with open_stores() as stores:
        for episode in range(size):
            with take_snapshots_every(64 if episode % 2 else 7):
                operations = RandomOperations(stores, seed, episode)
                operations.run(2 * EPISODE)
                for side in operations.sides:
                    failures += find_unexplained(side, operations.tenant.live_names, seen)
    return Report(figures=f"{seen['logs']} logs, {seen['events']:,} points on 3 stores", failures=failures)


@contextmanager
def take_snapshots_every(marks: int) -> Iterator[None]:
    """Take snapshots more often, so that short logs have many."""
    usual, planning.SNAPSHOT_EVERY = planning.SNAPSHOT_EVERY, marks
    try:
        yield
    finally:
        planning.SNAPSHOT_EVERY = usual


def find_unexplained(side: StoreSide, names: list[str], seen: Counter[str]) -> list[str]:
    found: list[str] = []
    for check in (find_complaints, find_complaints_without_caches):
        for name in names:
            log = side.store.require("session", name)
            found += [f"{side.name} {complaint}" for complaint in check(side.store, log)]
            seen += Counter(logs=1, events=side.store.head(log).head)
    return found


# -- hostile text ------------------------------------------------------------------------------------------------------


@proof("B22", ci=500, long=1_000_000)
def hostile_text(size: int, seed: int) -> Report:
    """Every text field gives back what it was given, or refuses it on every store alike and stores nothing."""
    failures: list[str] = []
    outcomes: Counter[str] = Counter()
    with open_stores() as stores:
        for number in range(size):
            text = LARGE[number] if number < len(LARGE) else draw_hostile_text(random.Random(f"{seed}/{number}"))
            for store in stores:
                store.clock = FixedClock(start=1_700_000_000_000_000 + number * 10_000_000)
            worlds = [StoreSide(store.for_tenant(f"t{number % 100}")) for store in stores]
            some = [OTHERS[(number * SHARE + place) % len(OTHERS)] for place in range(SHARE)]
            for name in FIELDS if number < len(LARGE) else [ALWAYS, *some]:
                complaint = check_field(worlds, f"{name}-{number}", text, name, outcomes)
                if complaint:
                    failures.append(f"string {number} {text[:60]!r}: {complaint}")
            if len(failures) >= ENOUGH:
                break
    kept, refused = outcomes["ok"], outcomes["refused"]
    figures = f"{size:,} strings, {outcomes.total():,} times through fields: {kept:,} kept, {refused:,} refused"
    return Report(figures=figures, failures=failures)


def check_field(worlds: list[StoreSide], id: str, text: str, name: str, outcomes: Counter[str]) -> str | None:
    found = [run_operation(lambda side: FIELDS[name](side.store, id, text), side)[1] for side in worlds]
    outcomes[found[0][0]] += 1
    if any(outcome != found[0] for outcome in found):
        return f"{name} differs: {found!r}"
    if found[0][0] == "broke":
        return f"{name}: {found[0]!r}"
    if not is_valid(text) and found[0][0] == "ok":
        return f"{name} took a lone surrogate"
    return None


# -- families ----------------------------------------------------------------------------------------------------------


@proof("B20", ci=2_500, long=1_000_000)
def families(size: int, seed: int) -> Report:
    """Interleavings of fork, append, clear, rewind and delete: no event changes, and no deleted session comes back."""
    failures: list[str] = []
    shares: Counter[str] = Counter()
    with open_stores() as (memory, sqlite, postgres):
        for number in range(size):
            # Most are scheduled; three in twenty are left to the real scheduler. PostgreSQL takes five times as long.
            store = postgres if number % 25 == 0 else memory if number % 5 < 2 else sqlite
            free = number % 20 in (0, 1, 2)
            shares[f"{type(store).__name__} {'free' if free else 'scheduled'}"] += 1
            failures += run_family(store, f"{seed}/{number}", free=free)
            if len(failures) >= ENOUGH:
                break
    return Report(figures=", ".join(f"{count:,} {name}" for name, count in sorted(shares.items())), failures=failures)


def run_family(store: Store, seed: str, *, free: bool) -> list[str]:
    bound = store.for_tenant(f"family {seed}")
    found = SessionFamily(bound, random.Random(seed)).run(seed, threads=3, steps=3, free=free)
    return [f"{type(store).__name__} family {seed}{' free' if free else ''}: {complaint}" for complaint in found]


# -- faults ------------------------------------------------------------------------------------------------------------


@proof("B5", ci=1_000, long=200_000)
def store_faults(size: int, seed: int) -> Report:
    """A fault at every place of a client's work: all or nothing of each step, and done again it is done once."""
    failures: list[str] = []
    points: Counter[str] = Counter()
    with make_directory() as home, open_database() as dsn:
        pairs = [
            (SQLiteStore(home / "log.db"), SQLiteStore(home / "log.db")),
            (PostgresStore(dsn), PostgresStore(dsn)),
        ]
        rounds = 0
        while points.total() < size and not failures:
            for faulty, observer in pairs:
                if points.total() < size:
                    failures += inject_every_fault(faulty, observer, f"{seed}/{rounds}", points)
            rounds += 1
        for pair in pairs:
            for store in pair:
                store.close()
    return Report(figures=", ".join(f"{count} {name}" for name, count in points.items()), failures=failures)


def inject_every_fault(
    faulty: Store, observer: Store, seed: str, points: Counter[str], kinds: Sequence[str] = tuple(INJECTORS)
) -> list[str]:
    """Each kind of fault, at each of its places."""
    failures: list[str] = []
    tenants = (f"faults {seed} {number}" for number in range(1_000_000))
    pictures = record_reference(observer.for_tenant(next(tenants)), seed)
    for name in kinds:
        inject = INJECTORS[name]
        if inject is fail_statements and not isinstance(faulty, SQLiteStore):
            continue
        at, landed = 0, True
        while landed and len(failures) < ENOUGH:
            tenant = next(tenants)
            fault, found = work_with_fault(
                faulty.for_tenant(tenant), observer.for_tenant(tenant), inject, at, seed, pictures
            )
            landed, at = fault.landed is not None, at + 1
            points[name] += landed
            failures += [f"{type(faulty).__name__}, {name} {fault.at}, seed {seed}: {complaint}" for complaint in found]
    return failures


@proof("B5", ci=200, long=20_000)
def lost_on_the_wire(size: int, seed: int) -> Report:
    """Every request to PostgreSQL and every answer lost in turn: each step happens once, with or without a key."""
    failures: list[str] = []
    points: Counter[str] = Counter()
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of every connection that we cut
    with PostgresServer() as server, PostgresProxy(server.port) as proxy:
        dsn = server.database()
        with PostgresStore(proxy.dsn(dsn)) as store, PostgresStore(dsn) as observer:
            rounds = 0
            while points.total() < size and not failures:
                script = f"{seed}/{rounds}"
                pictures = record_reference(observer.for_tenant(f"wire {script}"), script, heads=True)
                place, fired = 0, 1
                while fired and not failures and points.total() < size:
                    fired = 0
                    for kind in ("request", "reply"):
                        tenant = f"wire {script} {place} {kind}"
                        pair = store.for_tenant(tenant), observer.for_tenant(tenant)
                        hits, found = lose_request(proxy, *pair, kind, place, script, pictures)
                        points[kind] += hits
                        fired += hits
                        failures += [f"{kind} {place}, round {rounds}: {complaint}" for complaint in found]
                    place += 1
                rounds += 1
    return Report(figures=", ".join(f"{count} lost: {name}" for name, count in points.items()), failures=failures)


def lose_request(
    proxy: PostgresProxy,
    store: Store,
    observer: Store,
    kind: str,
    place: int,
    script: str,
    pictures: list[dict[str, Any]],
) -> tuple[int, list[str]]:
    """Do the work; in each step the `place`-th request, or the reply to it, is lost."""
    hits = 0
    for number, step in enumerate(ClientWork(store, random.Random(script)).steps()):
        before = proxy.requests_cut + proxy.replies_lost
        rule = proxy.cut_before if kind == "request" else proxy.cut_replies_after
        rule(_match_nth(place), times=1)
        step.act()
        proxy.pass_all()
        if proxy.requests_cut + proxy.replies_lost == before:
            continue
        hits += 1
        if read_store(observer, heads=True) != pictures[number + 1]:
            return hits, [f"{step.name!r}: {read_store(observer, heads=True)} instead of {pictures[number + 1]}"]
    return hits, find_unsound(observer)


def _match_nth(place: int) -> Callable[[bytes], bool]:
    seen = -1

    def matches(request: bytes) -> bool:
        nonlocal seen
        seen += 1
        return seen == place

    return matches
