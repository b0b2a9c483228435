"""Detectors of seeded bugs: proofs at a small size. What they return is what they found; nothing means all is well."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast import Message, Session
from holdfast.errors import InvalidArgument, NotJSON, StaleEpoch
from holdfast.log import chain, codec
from holdfast.log.events import SALT, Draft, Row
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.lease import Claim, holder
from holdfast.testing.powerloss import survey
from properties.fields import FIELDS
from properties.game import Game
from properties.strings import CORPUS
from properties.table import World
from prove.models import (
    carried,
    database,
    directory,
    every_fault,
    family,
    lost_on_the_wire,
    played,
    snapshots_every,
    unexplained,
)


def _game(seed: int) -> list[str]:
    with _stores() as (memory, sqlite):
        for episode in range(1, 80):
            if found := played([memory, sqlite], seed, episode, 200):
                return found
    return []


def _families(seed: int) -> list[str]:
    with _stores() as stores:
        for number in range(150):
            if found := family(stores[number % 2], f"{seed}/{number}", free=False):
                return found
    return []


def _rebuild(seed: int) -> list[str]:
    with _stores() as stores, snapshots_every(7):
        for episode in range(1, 8):
            game = Game(stores, seed, episode)
            game.play(200)
            if found := unexplained(game.worlds[1], game.shelf.made, Counter()):
                return found
    return []


def _text(seed: int) -> list[str]:
    found: list[str | None] = []
    with _stores() as stores:
        for number, text in enumerate(CORPUS[:20]):
            found += [
                carried([World(store) for store in stores], f"{name}{number}", text, name, Counter()) for name in FIELDS
            ]
    for value in (float("nan"), float("inf"), 2**64, b"x", (1,), {1: 2}, "\ud800"):
        try:
            codec.encode({"value": value})
            found.append(f"{value!r} was taken for JSON")
        except NotJSON:
            pass
    return [complaint for complaint in found if complaint]


def _power(seed: int) -> list[str]:
    def workload(path: str, vfs: str, acknowledge: Callable[[int], None]) -> None:
        with SQLiteStore(path, vfs=vfs) as store:
            session = Session("s", store=store)
            for number in range(25):
                session.add_message(Message.user(str(number)))
                acknowledge(number)

    def check(path: str, acknowledged: Sequence[int]) -> str | None:
        with SQLiteStore(path) as store:
            log = store.find("session", "s")
            said = [] if log is None else [message.text for message in Session.open("s", store=store).messages]
            lost = [number for number in acknowledged if str(number) not in said]
            return f"lost {lost} of {len(acknowledged)} acknowledged" if lost else None

    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    found = survey(workload, check, seed=seed, states=120, directory=place)
    return [f"{found.complaints} of {found.states}: {found.first}"] if found.complaints else []


def _tenants(seed: int) -> list[str]:
    found: list[str] = []
    with _stores() as stores:
        for store in stores:
            ours, theirs = store.for_tenant("ours"), store.for_tenant("theirs")
            Session("s", store=ours, user_id="u").add_message(Message.user("secret"))
            for what, seen in (
                ("exists", theirs.exists("s")),
                ("load", theirs.load("s")),
                ("list", theirs.list_sessions() or Session.list(store=theirs, user_id="u")),
                ("delete", theirs.delete("s")),
                ("messages", Session("s", store=theirs).messages),
            ):
                found += [f"{store!r}: {what} of another tenant gives {seen!r}"] if seen else []
            found += [] if len(Session.open("s", store=ours)) == 1 else [f"{store!r}: ours is gone"]
    return found


def _tampering(seed: int) -> list[str]:
    """Alter an event together with its own hash: the link to the next one must show it."""
    store = MemoryStore()
    session = Session("s", store=store)
    session.add_messages([Message.user(text) for text in "abc"])
    rows = [Row(*row.columns()) for row in store.read(session._log)]
    rows[1].body = (rows[1].body or b"").replace(b'"a"', b'"X"')
    rows[1].hash = chain.link(rows[0].hash, rows[1]) or b""
    verdict = chain.verify(session._log.origin, rows)
    return [] if verdict.first_bad == 3 else [f"an altered event was not noticed: {verdict}"]


def _salts(seed: int) -> list[str]:
    with _stores() as stores:
        for store in stores:
            session = Session("s", store=store)
            session.add_message(Message.user("same"))
            session.add_message(Message.user("same"))
            salts = [row.body[:SALT] for row in store.read(session._log, 2) if row.body]
            if len(set(salts)) != len(salts):
                return [f"{store!r}: the same text has the same commitment"]
    return []


def _group(seed: int) -> list[str]:
    """Jobs that write and are then refused, in one transaction with jobs that are not."""
    errors: list[str] = []
    with _stores() as (_, store):
        session = Session("s", store=store)
        gate = threading.Event()

        def refused(db: Any) -> None:
            db.execute("INSERT INTO indexed VALUES(987654, 1)")
            raise InvalidArgument("after it had written")

        def broken(db: Any) -> None:
            raise TypeError("a bug of its own")

        def attempt(act: Callable[[], Any], expected: type[Exception] | None) -> None:
            try:
                act()
                raised: type[Exception] | None = None
            except Exception as error:
                raised = type(error)
            if raised is not expected:
                errors.append(f"{raised} instead of {expected}")

        write = store.file.write  # type: ignore[attr-defined]
        jobs = [
            (lambda: write(lambda db: gate.wait(10)), None),
            (lambda: session.add_message(Message.user("one")), None),
            (lambda: write(refused), InvalidArgument),
            (lambda: write(broken), TypeError),
            (lambda: session.add_message(Message.user("two")), None),
        ]
        threads = [threading.Thread(target=attempt, args=job) for job in jobs]
        for number, thread in enumerate(threads):
            thread.start()
            while number and len(store.file._queue) < number:  # type: ignore[attr-defined]
                threading.Event().wait(0.001)
            while not number and store.file._queue:  # type: ignore[attr-defined]
                threading.Event().wait(0.001)
        gate.set()
        for thread in threads:
            thread.join()
        left = store.file.read(lambda db: db.execute("SELECT count(*) FROM indexed WHERE log = 987654").fetchone()[0])  # type: ignore[attr-defined]
        texts = [message.text for message in session.messages]
    return (
        errors
        + ([f"{left} rows of the refused job"] if left else [])
        + ([] if texts == ["one", "two"] else [f"{texts}"])
    )


def _rivals(seed: int) -> list[str]:
    """Two processes' stores on one database, each with its own idea of where the log stands and who may write."""
    rng, found = random.Random(seed), []
    with database() as dsn, PostgresStore(dsn) as mine, PostgresStore(dsn) as yours:
        sessions = [Session(f"rivals {seed}", store=store) for store in (mine, yours)]
        for number in range(30):
            rng.choice(sessions).add_message(Message.user(str(number)))
        sessions[0].close()
        sessions[1].reopen()
        sessions[0].pause()
        log, claim = sessions[0]._log, Claim(holder=holder("me"), seconds=100)
        note = Draft(type="state.set", data={"name": "n", "value": 1})
        epoch = mine.append(log, [], claim=claim).epoch
        mine.append(log, [note], epoch=epoch)
        yours.append(log, [], claim=claim, epoch=epoch)
        try:
            mine.append(log, [note], epoch=epoch)
            found.append("an append in an old epoch was taken")
        except StaleEpoch:
            pass
        texts = [message.text for message in sessions[0].messages]
        if texts != [str(number) for number in range(30)]:
            found.append(f"not what was said: {texts}")
        if not sessions[1].verify():
            found.append(f"{sessions[1].verify()}")
    return found


def _faults(seed: int) -> list[str]:
    with directory() as home, SQLiteStore(home / "log.db") as faulty, SQLiteStore(home / "log.db") as observer:
        return every_fault(faulty, observer, str(seed), Counter(), kinds=("after a write", "at a crash point"))


def _wire(seed: int) -> list[str]:
    return lost_on_the_wire(120, seed).failures


def _copies(seed: int) -> list[str]:
    with _stores() as stores:
        for store in stores:
            mine = {"a": {"b": 1}}
            session = Session("s", store=store, metadata=mine, state={"v": [1]})
            mine["a"]["b"] = 2
            session.metadata["a"]["b"] = 3
            session.state["v"].append(2)
            found = session.metadata, session.state
            if found != ({"a": {"b": 1}}, {"v": [1]}):
                return [f"{store!r}: changing what was handed out changed the store: {found}"]
    return []


@contextmanager
def _stores() -> Iterator[list[Store]]:
    with directory() as home, SQLiteStore(home / "log.db") as sqlite:
        yield [MemoryStore(), sqlite]


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "game": _game,
    "families": _families,
    "rebuild": _rebuild,
    "text": _text,
    "power": _power,
    "tenants": _tenants,
    "tampering": _tampering,
    "salts": _salts,
    "group": _group,
    "rivals": _rivals,
    "faults": _faults,
    "wire": _wire,
    "copies": _copies,
}
