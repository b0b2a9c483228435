"""Opening, forking, state and lists. Their time must not depend on the length of a session or of a list."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import ours
from benchmarks.raw import RawSQLite
from benchmarks.report import Figure, at_most, duration
from benchmarks.timing import Act, Race, Scale, fastest, folder, places, race
from benchmarks.workload import history
from holdfast import Session
from holdfast.stores import SQLiteStore

WINDOW = 20
SHORT = 10
MIDDLE = 100  # messages of a session that is longer than one window
KEYS = 100
FLAT_BOUND = 1.2


def _compared(job: str, found: Race, mine: str, raw: str, bound: float) -> Figure:
    return at_most(
        job,
        found.ratio(mine, raw),
        bound,
        ours=duration(found.seconds(mine)),
        limit=duration(found.seconds(raw)),
    )


def _stores(stack: ExitStack, place: Path) -> tuple[SQLiteStore, RawSQLite, Path]:
    path = stack.enter_context(folder(place))
    store = stack.enter_context(SQLiteStore(path / "ours.db"))
    raw = RawSQLite(path / "raw.db")
    stack.callback(raw.close)
    return store, raw, path


def opening(scale: Scale) -> Iterator[Figure]:
    with ExitStack() as stack:
        store, raw, _ = _stores(stack, fastest())
        for length in (MIDDLE, scale.long):
            ours.seeded(store, f"s{length}", length)
            raw.add(f"s{length}", history(length))
        assert len(Session.open(f"s{scale.long}", store=store).history(WINDOW)) == WINDOW

        def mine(length: int) -> Act:
            return lambda: Session.open(f"s{length}", store=store).history(WINDOW)

        found = race(
            {
                "ours": lambda: mine(scale.long),
                "ours, short": lambda: mine(MIDDLE),
                "raw": lambda: lambda: raw.last(f"s{scale.long}", WINDOW),
            },
            rounds=scale.rounds,
            calls=scale.calls * 5,
        )
    job = f"open a session and read its last {WINDOW}"
    yield _compared(f"{job}, at {scale.long:,}", found, "ours", "raw", 4)
    yield at_most(f"{job}, growth from {MIDDLE} to {scale.long:,}", found.ratio("ours", "ours, short"), FLAT_BOUND)


def forking(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        yield from _forking(scale, name, place)


def _forking(scale: Scale, name: str, place: Path) -> Iterator[Figure]:
    with ExitStack() as stack:
        store, raw, _ = _stores(stack, place)
        sessions = {length: ours.seeded(store, f"s{length}", length) for length in (SHORT, MIDDLE, scale.long)}
        for length, session in sessions.items():
            raw.add(f"s{length}", history(length))
            for key in range(KEYS):
                session.set_state(f"key{key}", f"value {key}")
        fork = sessions[scale.long].fork()
        assert fork.get_state("key7") == "value 7"
        assert fork.history(WINDOW) == sessions[scale.long].history(WINDOW)
        count = itertools.count()

        def raw_fork() -> Act:
            new = f"fork{next(count)}"
            return lambda: raw.fork(f"s{scale.long}", new)

        def with_history(length: int) -> Act:
            return lambda: sessions[length].fork().history(WINDOW)

        found = race(
            {
                "short": lambda: sessions[SHORT].fork,
                "long": lambda: sessions[scale.long].fork,
                "raw": raw_fork,
                "short with history": lambda: with_history(MIDDLE),
                "long with history": lambda: with_history(scale.long),
            },
            rounds=scale.rounds,
            calls=scale.calls,
        )
    job = f"fork with {KEYS} state keys, {name}"
    yield _compared(f"{job}, at {SHORT}", found, "short", "raw", 8)
    yield _compared(f"{job}, at {scale.long:,}", found, "long", "raw", 8)
    growth = found.ratio("long with history", "short with history")
    yield at_most(
        f"fork and read its last {WINDOW}, {name}, growth from {MIDDLE} to {scale.long:,}", growth, FLAT_BOUND
    )


def state(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        yield from _state(scale, name, place)


def _state(scale: Scale, name: str, place: Path) -> Iterator[Figure]:
    with ExitStack() as stack:
        store, raw, _ = _stores(stack, place)
        session = ours.seeded(store, "s", 1_000)
        for key in range(KEYS):
            session.set_state(f"key{key}", f"value {key}")
            raw.set_state("s", f"key{key}", f"value {key}")
        count = itertools.count()

        def setting() -> Act:
            number = next(count)
            return lambda: session.set_state(f"key{number % KEYS}", f"value {number}")

        def raw_setting() -> Act:
            number = next(count)
            return lambda: raw.set_state("s", f"key{number % KEYS}", f"value {number}")

        found = race(
            {
                "set": setting,
                "raw set": raw_setting,
                "get": lambda: lambda: session.get_state("key7"),
                "raw get": lambda: lambda: raw.get_state("s", "key7"),
            },
            rounds=scale.rounds,
            calls=scale.calls * 2,
        )
    yield _compared(f"set one state key of {KEYS}, {name}", found, "set", "raw set", 8)
    yield _compared(f"read one state key of {KEYS}, {name}", found, "get", "raw get", 5)


def listing(scale: Scale) -> Iterator[Figure]:
    with ExitStack() as stack:
        store, raw, path = _stores(stack, fastest())
        metadata = {"channel": "web", "priority": 3}
        rows = [(f"s{number}", "alice", f"Title {number}", metadata) for number in range(scale.sessions)]
        for id, owner, title, fields in rows:
            Session(id, store=store, user_id=owner, title=title, metadata=fields)
        raw.add_sessions(rows)
        wanted = [id for id, *_ in rows[: -WINDOW - 1 : -1]]
        listed = Session.list(store=store, user_id="alice", limit=WINDOW)
        assert [session.id for session in listed] == wanted
        unread = _listed_without_events(store, path / "copy.db") == wanted
        found = race(
            {
                "ours": lambda: lambda: Session.list(store=store, user_id="alice", limit=WINDOW),
                "raw": lambda: lambda: raw.list("alice", WINDOW),
            },
            rounds=scale.rounds,
            calls=scale.calls * 5,
        )
    job = f"list {WINDOW} of a user's {scale.sessions:,} sessions"
    yield _compared(job, found, "ours", "raw", 5)
    yield Figure(job=f"{job}, events read", ours="none" if unread else "some", bound="none", ok=unread)


def _listed_without_events(store: SQLiteStore, copy: Path) -> list[str]:
    """Return the list of sessions from a copy without a table of events: this proves that listing reads no event."""
    original = copy.with_name("backup.db")
    store.backup(original)
    shutil.copy(original, copy)
    with sqlite3.connect(copy) as db:
        db.execute("DROP TABLE events")
    db.close()
    with SQLiteStore(copy) as bare:
        return [session.id for session in Session.list(store=bare, user_id="alice", limit=WINDOW)]
