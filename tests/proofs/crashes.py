"""B1 and B2: processes killed at random instants and at every crash point, on real files and a real server."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.testing.crash import crash_points, run_in_child
from tests.kit.crash_workload import (
    Workspace,
    compare_with_model,
    find_damage,
    generate_steps,
    list_every_step,
    make_work,
)
from tests.kit.postgres import PostgresServer
from tests.proofs import Report, proof

LONGEST_LIFE = 0.12  # seconds: a child opens its store and takes some twenty steps in it
PART = 200  # kills of one database: checking all of it takes longer the more there is

Opener = Callable[[], Store]


@contextmanager
def make_scratch_directory(*, memory: bool = False) -> Iterator[Path]:
    """A directory of one's own: on the disk, or in memory where flushing is of no interest."""
    place = "/dev/shm" if memory and os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hf-prove-", dir=place) as directory:
        yield Path(directory)


@contextmanager
def shorten_leases(seconds: float) -> Iterator[None]:
    """For processes that outlive a broken turn: no other process sees that they gave up, so their leases must end."""
    before = os.environ.get("HOLDFAST_LEASE_SECONDS")
    os.environ["HOLDFAST_LEASE_SECONDS"] = str(seconds)
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOLDFAST_LEASE_SECONDS"]
        else:
            os.environ["HOLDFAST_LEASE_SECONDS"] = before


@contextmanager
def make_openers(*, durable: bool) -> Iterator[dict[str, Callable[[], Opener]]]:
    """For each durable store, a way to get a fresh database: a function that opens it, from any process."""
    with make_scratch_directory(memory=not durable) as directory, PostgresServer(durable=durable) as server:
        numbers = count()

        def sqlite() -> Opener:
            path = directory / f"{next(numbers)}.db"
            return lambda: SQLiteStore(path)

        def postgres() -> Opener:
            dsn = server.database(tcp=True)
            return lambda: PostgresStore(dsn)

        yield {"sqlite": sqlite, "postgres": postgres}


@proof("B1", ci=100, long=12_500)
def kill_at_random(size: int, seed: int) -> Report:
    """Kill -9 at a random instant, `size` times on each store: what was acknowledged is there, once."""
    figures, failures = [], []
    with make_openers(durable=True) as fresh:
        for kind, new in fresh.items():
            acknowledged = unacknowledged = 0
            for start in range(0, size, PART):
                cycles = range(start, min(size, start + PART))
                told, silent, found = kill_children(new(), f"{seed} {kind}", cycles)
                acknowledged, unacknowledged = acknowledged + told, unacknowledged + silent
                failures += [f"{kind}, {failure}" for failure in found]
            figures.append(f"{kind} {size} kills, {acknowledged} acknowledged, {unacknowledged} stored unheard")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} lost, doubled or torn", failures=failures)


def kill_children(opener: Opener, seed: str, cycles: range) -> tuple[int, int, list[str]]:
    """Kill a child per cycle, all of them in one database: how much was acknowledged, how much not, what is wrong."""
    acknowledged = unacknowledged = 0
    failures: list[str] = []
    opener().close()  # so that the first child does not spend its time on the schema; `crash_points` kills it there
    for cycle in cycles:
        name, own = f"c{cycle}", f"{seed} {cycle}"
        end = run_in_child(
            make_work(opener, name, generate_steps(own)), after=random.Random(own).uniform(0.0, LONGEST_LIFE)
        )
        if end.error or not end.killed:
            failures.append(f"cycle {cycle}: {end.error or 'the child was not killed'}")
        with opener() as store:
            verdict = compare_with_model(
                Workspace(store, name), generate_steps(own), len(end.acknowledged), eager=cycle % 4 == 0
            )
        failures += [f"cycle {cycle}: {failure}" for failure in verdict.failures]
        acknowledged += len(end.acknowledged)
        unacknowledged += verdict.unacknowledged
    with opener() as store:
        failures += [f"at the end: {failure}" for failure in _verify_all(store)]
    return acknowledged, unacknowledged, failures


def _verify_all(store: Store) -> list[str]:
    """No later crash may harm what an earlier one left."""
    logs = [store.require("session", name) for name in store.list_sessions()]
    broken = [log.id for log in logs if not store.verify(log)]
    return [f"{name} does not verify" for name in broken] + find_damage(store)


@proof("B2", ci=1, long=20)
def kill_at_crash_points(size: int, seed: int) -> Report:
    """Kill -9 at every crash point of a script of every kind of step, each in a fresh database."""
    figures, failures = [], []
    with make_openers(durable=False) as fresh:
        for kind, new in fresh.items():
            todo = list_every_step()
            points = crash_points(make_work(new(), "s", todo))
            for point in points * size:
                opener = new()
                end = run_in_child(make_work(opener, "s", todo), at=point)
                if not end.killed:
                    failures.append(f"{kind}, {point}: {end.error or 'the child came to its end'}")
                with opener() as store:
                    verdict = compare_with_model(Workspace(store, "s"), todo, len(end.acknowledged))
                failures += [f"{kind}, {point}: {failure}" for failure in verdict.failures]
            names = len({point.name for point in points})
            figures.append(f"{kind} {len(points) * size} deaths at {names} named points")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} not all-or-nothing", failures=failures)
