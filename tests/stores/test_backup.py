"""Copies of a SQLite store: made under load, private from the first byte, whole or not there, and restored."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from holdfast import Message, Session
from holdfast.errors import InvalidArgument, StoreError, StoreFull
from holdfast.stores import SQLiteStore
from tests.kit.file_modes import ModeVFS
from tests.kit.sqlite_faults import FaultVFS

FAULTS: tuple[tuple[Literal["EIO", "ENOSPC"], Literal["write", "sync"]], ...] = (
    ("ENOSPC", "write"),
    ("EIO", "write"),
    ("EIO", "sync"),
)
PATIENCE = 60.0  # seconds for what takes less than one
WRITER = """
import sys
from holdfast import Message, Session
from holdfast.stores import SQLiteStore

session = Session("written", store=SQLiteStore(sys.argv[1]))
while True:
    session.add_message(Message.user("x" * 100))
    print(flush=True)
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[SQLiteStore]:
    """A store of 24 MB, to which another process writes as fast as it can."""
    with SQLiteStore(tmp_path / "a.db") as store:
        Session("large", store=store).add_messages([Message.user("x" * 100_000) for _ in range(240)])
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "a.db")], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        drain = threading.Thread(target=writer.stdout.read)
        drain.start()
        try:
            yield store
        finally:
            writer.kill()
            writer.wait()
            drain.join()
            writer.stdout.close()


def test_a_backup_ends_while_another_process_keeps_writing(loaded: SQLiteStore, tmp_path: Path) -> None:
    session = Session.open("written", store=loaded)
    for n in range(3):
        before = len(session)
        copying = threading.Thread(target=loaded.backup, args=(tmp_path / f"copy{n}.db",), daemon=True)
        copying.start()
        copying.join(PATIENCE)
        assert not copying.is_alive(), "the copy began again and again"
        after = len(session)
        with SQLiteStore(tmp_path / f"copy{n}.db") as copy:
            assert before <= len(Session.open("written", store=copy)) <= after
            assert Session.open("written", store=copy).verify()
            assert Session.open("large", store=copy).verify()
    assert after > before, "the writer was not at work"


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_no_file_of_a_store_or_a_backup_is_ever_open_to_others(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with ModeVFS() as vfs, SQLiteStore(tmp_path / "a.db", vfs=vfs.name) as store:
            Session("s", store=store).add_message(Message.user("a secret"))
            store.backup(tmp_path / "copy.db")
            (tmp_path / "link.db").symlink_to(tmp_path / "named.db")  # follows to a file that does not exist yet
            SQLiteStore(tmp_path / "link.db", vfs=vfs.name).close()
            names = {name for name, _ in vfs.modes}
            assert {"a.db", "a.db-wal", "named.db"} <= names
            assert any("copy.db" in name for name in names)
            assert [(name, mode) for name, mode in vfs.modes if mode != 0o600] == []
            for file in tmp_path.iterdir():
                assert file.stat().st_mode & 0o777 == 0o600, file.name
    finally:
        os.umask(before)


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
def test_a_backup_touches_no_file_that_exists(tmp_path: Path, suffix: str) -> None:
    taken = tmp_path / f"copy.db{suffix}"
    taken.write_text("mine")
    with SQLiteStore(tmp_path / "a.db") as store:
        with pytest.raises(InvalidArgument, match="exists already"):
            store.backup(tmp_path / "copy.db")
        assert taken.read_text() == "mine"
        assert sorted(each.name for each in tmp_path.glob("*copy*")) == [taken.name]
        with pytest.raises(StoreError, match="cannot be written"):
            store.backup(tmp_path / "missing" / "copy.db")


def test_a_backup_that_fails_leaves_nothing_and_the_store_works(tmp_path: Path) -> None:
    with FaultVFS() as vfs, SQLiteStore(tmp_path / "a.db", vfs=vfs.name) as store:
        session = Session("s", store=store)
        session.add_messages([Message.user("x" * 10_000) for _ in range(50)])
        for error, kind in FAULTS:
            vfs.fail(at=0, error=error, op=kind)
            expected = StoreFull if error == "ENOSPC" else StoreError
            with pytest.raises(expected, match="nothing was left"):
                store.backup(tmp_path / "copy.db")
            vfs.heal()
            assert list(tmp_path.glob("*copy*")) == []
            assert session.add_message(Message.user("still works"))
        store.backup(tmp_path / "copy.db")


def test_a_backup_says_how_far_it_is(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        Session("s", store=store).add_messages([Message.user("x" * 1000) for _ in range(10_000)])
        sizes: list[int] = []
        store.backup(tmp_path / "copy.db", on_progress=sizes.append)
        assert sizes == sorted(sizes)
        assert sizes[-1] <= (tmp_path / "copy.db").stat().st_size


def test_an_interrupt_ends_a_backup_and_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(size: int) -> None:
        raise KeyboardInterrupt

    with SQLiteStore(tmp_path / "a.db") as store:
        session = Session("s", store=store)
        session.add_messages([Message.user("x" * 1000) for _ in range(10_000)])
        with pytest.raises(KeyboardInterrupt):
            store.backup(tmp_path / "copy.db", on_progress=interrupt)
        assert list(tmp_path.glob("*copy*")) == []
        store.backup(tmp_path / "copy.db")
        with SQLiteStore(tmp_path / "copy.db") as copy:
            assert Session.open("s", store=copy).messages == session.messages
