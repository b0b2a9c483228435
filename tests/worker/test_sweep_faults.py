"""A session that cannot be judged, and a clock that is wrong, do no harm to the other sessions."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Message, Session
from holdfast.clock import Clock
from holdfast.errors import ClocksDisagree, CorruptLog, InvalidArgument, StoreUnavailable
from holdfast.log.events import Draft
from holdfast.server.app import Server
from holdfast.server.config import Config
from holdfast.stores import MemoryStore, PostgresStore
from holdfast.stores.base import Log, Store
from tests.kit.odd_payloads import replace_payload
from tests.kit.stores import open_store

MOMENT = 1 / 86_400_000_000  # a microsecond, in days
DAY = 86_400_000_000


class ShiftedClock(Clock):
    """The clock of a machine that is some days ahead, or behind."""

    def __init__(self, days: float) -> None:
        super().__init__()
        self._shift = int(days * DAY)

    def now(self) -> int:
        return super().now() + self._shift


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, request, tmp_path)


def make_due(store: Store, *names: str) -> list[Session]:
    made = [Session(name, store=store, retention={"ttl_days": MOMENT}) for name in names]
    time.sleep(0.001)
    return made


@pytest.mark.parametrize(
    "payload",
    [b'{"ttl_days":1e-9,"prune_strategy":"nonsense"}', b'{"ttl_days":"soon"}', b"[]", b"7", b'{"unknown":1}', b"\xff{"],
    ids=str,
)
def test_a_session_that_cannot_be_judged_is_put_off_and_the_others_are_swept(
    store: Store, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, bad, _ = make_due(store, "a", "bad", "z")
    replace_payload(store, bad.log, 2, payload)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        preview = Session.sweep(store, dry_run=True)
        report = Session.sweep(store)
    assert (sorted(preview.purged), preview.failed) == (["a", "z"], ["bad"])
    assert (sorted(report.purged), report.failed) == (["a", "z"], ["bad"])
    assert "could not judge session bad" in caplog.text
    assert Session.sweep(store).looked == 0  # it is looked at again in an hour, not at once
    assert store.delete("bad")


def test_a_store_that_is_away_ends_the_sweep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make_due(store, "a", "b")

    def fail(log: Log) -> Any:
        raise StoreUnavailable("it is away")

    bound = store.for_tenant(store.tenant)
    monkeypatch.setattr(type(bound), "lease", lambda self, log: fail(log))
    with pytest.raises(StoreUnavailable):
        Session.sweep(bound)


@pytest.mark.parametrize(
    "retention",
    [{"ttl_days": float("inf")}, {"ttl_days": float("nan")}, {"ttl_days": -1}, {"prune_strategy": "nonsense"}],
    ids=str,
)
def test_a_retention_that_makes_no_sense_is_refused(store: Store, retention: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Session("s", store=store, retention=retention)
    session = Session("s", store=store)
    with pytest.raises(InvalidArgument):
        session.retention = retention
    document = session.to_dict() | {"retention": retention}
    with pytest.raises(ValueError):
        store.save("d", document)


@pytest.mark.parametrize("days", [400, -400, 0.01])
def test_a_sweep_is_refused_if_the_clock_of_the_database_is_another_one(
    shared_postgres: PostgresStore, request: pytest.FixtureRequest, days: float
) -> None:
    store = shared_postgres.for_tenant(request.node.name)
    Session("s", store=store, retention={"ttl_days": 365}).add_message(Message.user("hello"))
    wrong = store.for_tenant(store.tenant)
    wrong.clock = ShiftedClock(days)
    for dry_run in (True, False):
        with pytest.raises(ClocksDisagree, match="differ by") as caught:
            Session.sweep(wrong, dry_run=dry_run)
    assert abs(caught.value.seconds - days * 86_400) < 60
    assert store.exists("s")
    assert Session.sweep(store).purged == []


def test_a_process_whose_clock_is_behind_does_not_make_a_session_older(store: Store) -> None:
    session = Session("s", store=store, retention={"ttl_days": 365})
    session.add_message(Message.user("hello"))
    active = session.updated_at
    behind = store.for_tenant(store.tenant)
    behind.clock = ShiftedClock(-400)
    Session.open("s", store=behind).add_message(Message.user("more"))
    assert session.updated_at == active
    assert Session.sweep(store).purged == []


# -- the server --------------------------------------------------------------------------------------------------------


def serve_for(store: Store, seconds: float, **settings: Any) -> Server:
    """Run the maintenance of a server for some time."""
    server = Server(store, Config(rate=0, **settings), token="t" * 40)

    async def run() -> None:
        await server.open()
        await asyncio.sleep(seconds)
        await server.close()

    asyncio.run(run())
    return server


def test_a_server_without_an_interval_does_not_sweep() -> None:
    store = MemoryStore()
    make_due(store, "due")
    serve_for(store, 0.3, sweep_every=0)
    assert store.exists("due")
    assert store.find("sweep", "sweep") is None
    serve_for(store, 0.3, sweep_every=0.05)
    assert not store.exists("due")


def test_kept_answers_expire_although_the_sweep_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server survives every error of a sweep: it purges the answers, and tries the next sweep."""
    store = MemoryStore()
    store.kv_put("answers", "k", b"{}", expires=store.clock.now() + 1000)
    (due,) = make_due(store, "due")
    calls: list[int] = []

    def fail(*_: Any, **__: Any) -> Any:
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(MemoryStore, "due_for_sweep", fail)
    serve_for(store, 0.5, sweep_every=0.05)
    assert len(calls) > 1
    assert store.kv_purge(store.clock.now()) == 0
    monkeypatch.undo()
    serve_for(store, 0.3, sweep_every=0.05)
    assert not store.exists(due.id)


def test_a_forged_retention_is_no_event_of_an_import() -> None:
    draft = Draft(type="retention.set", data={"ttl_days": 1e-9, "prune_strategy": "nonsense"})
    store = MemoryStore()
    session = Session("s", store=store)
    store.append(session.log, [draft])
    with pytest.raises(CorruptLog, match=r"event 2 \(retention.set\) is not one that holdfast writes"):
        Session.import_(session.export(), session_id="copy", store=store)
