"""The persisted turn: four messages in one durable append, at several lengths of the session.

A short session is replaced by a new one before it gets long; a long session is used for all turns.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from benchmarks import ours
from benchmarks.raw import RawSQLite
from benchmarks.raw_drivers import RawPostgres
from benchmarks.report import Figure, at_most, duration
from benchmarks.timing import Act, Race, Scale, folder, places, race
from benchmarks.workload import Plain, history, turn
from holdfast.stores import SQLiteStore
from holdfast.stores.base import Store

SHORT = 10
REPLACED_AFTER = 10  # turns before a short session is replaced
STRETCH = 10_000  # messages that bring a write-ahead log to its full size
SQLITE_BOUND, POSTGRES_BOUND, GROWTH_BOUND = 2.0, 1.6, 1.2


class RawStore(Protocol):
    def add(self, session: str, messages: list[Plain]) -> None: ...


class OurTurns:
    """Appends turns to a holdfast session that has `length` messages."""

    def __init__(self, store: Store, length: int) -> None:
        self.store, self.length = store, length
        self._count = itertools.count()
        self._renew()

    def _renew(self) -> None:
        self._session = ours.seeded(self.store, f"at-{self.length}-{next(self._count)}", self.length)
        self._left = REPLACED_AFTER if self.length == SHORT else sys.maxsize

    def __call__(self) -> Act:
        if not self._left:
            self._renew()
        self._left -= 1
        messages = ours.prepared(turn("t", next(self._count)))
        add = self._session.add_messages
        return lambda: add(messages)


class RawTurns:
    """Appends the same turns to a raw table."""

    def __init__(self, store: RawStore, length: int) -> None:
        self.store, self.length = store, length
        self._count = itertools.count()
        self._renew()

    def _renew(self) -> None:
        self._session = f"at-{self.length}-{next(self._count)}"
        self.store.add(self._session, list(history(self.length)))
        self._left = REPLACED_AFTER if self.length == SHORT else sys.maxsize

    def __call__(self) -> Act:
        if not self._left:
            self._renew()
        self._left -= 1
        messages, session, add = turn("t", next(self._count)), self._session, self.store.add
        return lambda: add(session, messages)


def lengths(scale: Scale) -> tuple[int, ...]:
    return SHORT, 1_000, scale.long


def on_sqlite(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        with ExitStack() as stack:
            path = stack.enter_context(folder(place))
            contestants: dict[str, OurTurns | RawTurns] = {}
            for length in lengths(scale):  # one file per length, so that the growth includes that of the file
                store = stack.enter_context(SQLiteStore(path / f"ours-{length}.db"))
                raw = RawSQLite(path / f"raw-{length}.db")
                stack.callback(raw.close)
                _stretch(store, raw)
                contestants[f"ours at {length}"] = OurTurns(store, length)
                contestants[f"raw at {length}"] = RawTurns(raw, length)
            found = race(contestants, rounds=scale.rounds, calls=scale.calls)
        yield from _figures(f"turn, SQLite FULL, {name}", found, scale, SQLITE_BOUND)


def _stretch(store: Store, raw: RawStore) -> None:
    """Write until the write-ahead log has its full size: a growing log flushes slower, and short sessions would pay."""
    ours.seeded(store, "other", STRETCH)
    for _ in range(STRETCH // ours.CHUNK):
        raw.add("other", list(history(ours.CHUNK)))


def on_postgres(scale: Scale) -> Iterator[Figure]:
    for name, durable in (("in memory, fsync off", False), ("on disk, durable", True)):
        with ExitStack() as stack:
            dsn = stack.enter_context(database(durable))
            from holdfast.stores.postgres import PostgresStore  # an optional dependency that only this job needs

            store = stack.enter_context(PostgresStore(dsn))
            raw, short = RawPostgres(dsn), RawPostgres(dsn, autocommit=True)
            stack.callback(raw.close)
            stack.callback(short.close)
            contestants: dict[str, OurTurns | RawTurns] = {}
            for length in lengths(scale):
                contestants[f"ours at {length}"] = OurTurns(store, length)
                contestants[f"raw at {length}"] = RawTurns(raw, length)
            short_turns = RawTurns(short, 0)
            found = race(contestants | {"autocommit": short_turns}, rounds=scale.rounds, calls=scale.calls)
        job = f"turn, PostgreSQL {name}"
        yield from _figures(job, found, scale, POSTGRES_BOUND)
        yield Figure(
            job=f"{job}, beside one autocommitted statement (no bound)",
            ours=duration(found.seconds(f"ours at {scale.long}")),
            limit=duration(found.seconds("autocommit")),
            ratio=f"{found.ratio(f'ours at {scale.long}', 'autocommit'):.2f} x",
        )


@contextmanager
def database(durable: bool) -> Iterator[str]:
    from tests.kit.postgres import PostgresServer

    with PostgresServer(durable=durable) as server:
        yield server.database()


def _figures(job: str, found: Race, scale: Scale, bound: float) -> Iterator[Figure]:
    for length in lengths(scale):
        mine, raw = f"ours at {length}", f"raw at {length}"
        yield at_most(
            f"{job}, at {length:,}",
            found.ratio(mine, raw),
            bound,
            ours=duration(found.seconds(mine)),
            limit=duration(found.seconds(raw)),
        )
    growth = found.ratio(f"ours at {scale.long}", f"ours at {SHORT}")
    yield at_most(f"{job}, growth from {SHORT} to {scale.long:,}", growth, GROWTH_BOUND)
