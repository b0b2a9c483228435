"""Two processes at one key, and a process that dies at any point: one living version, nothing lost, nothing left."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Memory, Message, Session, VectorMemoryService
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import InvalidArgument
from holdfast.memory.memory_log import MemoryLog
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store

WRITER = """
import sys
from holdfast import Memory, Session
from holdfast.stores.urls import open_store
url, writer = sys.argv[1:]
store = open_store(url)
memory = Memory(store=store, user_id="alice")
sys.stdin.readline()
for turn in range(15):
    memory.store("same", f"by {writer} turn {turn}")
    memory.store(f"own-{writer}-{turn}", f"kept by {writer}")
memory.ingest_from_session(Session.open("talk", store=store))
"""


def test_processes_that_write_one_key_leave_one_version_and_lose_nothing(durable_store: Store, database: str) -> None:
    url = database if isinstance(durable_store, PostgresStore) else f"sqlite:///{durable_store.file.path}"  # type: ignore[attr-defined]
    session = Session("talk", store=durable_store, user_id="alice")
    session.add_message(Message.user("My name is Alice. I like tea."))
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, url, str(n)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(3)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        _, said = writer.communicate()
        assert writer.returncode == 0, said.decode()
    memory = Memory(store=durable_store, user_id="alice")
    found = [each.key for each in memory.list(limit=1000)]
    assert len(found) == len(set(found)) == 3 * 15 + 1 + 2
    (same,) = memory.recall("same")
    assert same.text.endswith("turn 14")
    log = MemoryLog(durable_store, "alice", None).find()
    assert log is not None
    assert durable_store.verify(log)
    types = [row.type for row in durable_store.walk(log)]
    assert types.count("memory.ingested") == 1


class ProcessDied(BaseException):
    """What a process that is killed would be."""


def open_session(store: Store) -> Session:
    session = Session("s", store=store, user_id="alice")
    if not session.messages:
        session.add_message(Message.user("I am allergic to peanuts."))
    return session


def forget(store: Store) -> None:
    Memory(store=store, user_id="alice").forget("secret")


def redact(store: Store) -> None:
    try:
        open_session(store).redact(2, reason="r")
    except InvalidArgument:  # the killed process did it, except for the memories
        pass


def erase(store: Store) -> None:
    session = Session.open("s", store=store)
    if session.status != "erased":
        session.erase(reason="r", actor="me")


def erase_user(store: Store) -> None:
    Session.erase_user("alice", reason="r", actor="me", store=store)


@pytest.mark.parametrize(
    ("act", "gone"),
    [(forget, b"amethyst"), (redact, b"peanut"), (erase, b"peanut"), (erase_user, b"amethyst")],
)
def test_an_erasure_that_dies_anywhere_is_finished_by_asking_again(
    tmp_path: Path, act: Callable[[Store], None], gone: bytes
) -> None:
    for point in itertools.count():
        folder = tmp_path / str(point)
        folder.mkdir()
        with SQLiteStore(folder / "s.db") as store:
            memory = Memory(VectorMemoryService(), store=store, user_id="alice")
            memory.store("secret", "an amethyst")
            memory.store("secret", "an amethyst again")
            memory.ingest_from_session(open_session(store))
            Memory(store=store).ingest_from_session(open_session(store), shared=True)
            assert memory.search("amethyst")
            assert memory.search("peanuts")
            passed = itertools.count()

            def die(name: str, passed: itertools.count[int] = passed, point: int = point) -> None:
                if next(passed) == point:
                    raise ProcessDied(name)

            arm_crashpoints(die)
            try:
                act(store)
                died = False
            except ProcessDied:
                died = True
            finally:
                arm_crashpoints(None)
        with SQLiteStore(folder / "s.db") as store:
            log = MemoryLog(store, "alice", None).find()
            assert log is None or store.verify(log)
            act(store)
            assert Memory(store=store, user_id="alice").search(gone.decode()) == []
            assert act is forget or Memory(store=store).search("peanuts") == []
            log = MemoryLog(store, "alice", None).find()
            assert log is None or store.verify(log)
        assert gone not in b"".join(path.read_bytes() for path in folder.iterdir())
        if not died:
            assert point > 0
            return
