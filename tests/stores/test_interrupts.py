"""Exceptions that strike in the middle of a write, writes inside of writes, servers that fall silent, files that are
replaced. The proofs do this at size."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Message, Session
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import StoreError, StorePoisoned, StoreReentered, StoreUnavailable
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from tests.kit.agents import make_scripted_agent
from tests.kit.postgres import PostgresServer
from tests.kit.proxy import PostgresProxy
from tests.kit.server_process import PATIENCE
from tests.proofs.attacks import interrupts_detectors

POINTS = ("before events", "between events and head", "before commit", "after commit")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_a_store_works_after_an_interrupt_inside_a_write(
    durable_store: Store, point: str, interrupt: type[BaseException]
) -> None:
    session = Session(store=durable_store)

    def strike(name: str) -> None:
        if name == point:
            arm_crashpoints(None)
            raise interrupt

    arm_crashpoints(strike)
    try:
        with pytest.raises(interrupt):
            session.title = point
    finally:
        arm_crashpoints(None)
    session.add_message(Message.user("from this thread"))
    other = threading.Thread(target=session.add_message, args=(Message.user("from another"),), daemon=True)
    other.start()
    other.join(PATIENCE)
    assert [message.text for message in session.messages] == ["from this thread", "from another"]
    assert session.verify()


def test_an_interrupt_of_the_leader_is_no_answer_for_the_others() -> None:
    assert interrupts_detectors.detect_interrupted_leader(1) == []


def test_a_write_inside_a_write_of_the_same_thread_is_refused_at_once(durable_store: Store) -> None:
    session = Session(store=durable_store)
    refused: list[Exception] = []

    def write(name: str) -> None:
        if name == "before commit":
            arm_crashpoints(None)
            try:
                session.add_message(Message.user("inside"))
            except StoreReentered as error:
                refused.append(error)

    arm_crashpoints(write)
    try:
        session.add_message(Message.user("outside", metadata={"once": "x"}))
    finally:
        arm_crashpoints(None)
    assert len(refused) == 1
    assert "signal handler" in str(refused[0])
    assert [message.text for message in session.messages] == ["outside"]


def test_a_stream_that_is_collected_inside_a_write_is_cancelled_by_another_thread(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        session = make_scripted_agent("an answer of several pieces", store=store).session("s")

        def leave() -> None:
            stream = session.stream("go")
            cycle: list[Any] = [stream]
            cycle.append(cycle)
            next(event for event in stream if event.type == "text_delta")

        gc.disable()
        try:
            leave()
            store.file.write(lambda db: gc.collect())
        finally:
            gc.enable()
        deadline = time.monotonic() + PATIENCE
        while session.events()[-1].type != "turn.cancelled":
            assert time.monotonic() < deadline
            time.sleep(0.01)


class TestSilentPostgres:
    def test_a_caller_gets_an_error_and_the_store_works_when_the_server_is_back(
        self, postgres_server: PostgresServer
    ) -> None:
        dsn = postgres_server.database(tcp=True)
        with PostgresProxy(postgres_server.port) as proxy, PostgresStore(proxy.dsn(dsn), patience=1.0) as store:
            session = Session(store=store)
            proxy.delay(3600.0)
            with pytest.raises(StoreError):
                session.add_message(Message.user("into the silence"))
            proxy.pass_all()
            proxy.cut_all()
            session.add_message(Message.user("back"))
            assert session.messages[-1].text == "back"
            assert session.verify()
        postgres_server.drop(dsn)

    def test_connecting_to_a_silent_server_ends(self, postgres_server: PostgresServer) -> None:
        with PostgresProxy(postgres_server.port) as proxy:
            proxy.delay(3600.0)
            with pytest.raises(StoreUnavailable):
                PostgresStore(f"{proxy.dsn(postgres_server.tcp_dsn)}?connect_timeout=2", patience=1.0)


class TestReplacedFile:
    def test_reads_notice_it(self, tmp_path: Path) -> None:
        path, other = tmp_path / "a.db", tmp_path / "b.db"
        with SQLiteStore(path) as store, SQLiteStore(other) as second:
            session = Session("s", store=store, title="the first file")
            Session("s", store=second, title="the second file")
            assert session.title == "the first file"
            second.backup(tmp_path / "copy.db")
            os.replace(tmp_path / "copy.db", path)
            for _ in range(3):
                with pytest.raises(StorePoisoned, match="replaced"):
                    session.history()

    def test_reads_notice_that_it_is_gone(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        with SQLiteStore(path) as store:
            session = Session("s", store=store)
            path.unlink()
            with pytest.raises(StorePoisoned):
                session.history()
