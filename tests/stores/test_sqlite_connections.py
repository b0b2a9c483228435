"""What is special about a SQLite file: its version, its mode, its backup, its batches."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from holdfast import Message, Session
from holdfast.errors import Conflict, InvalidArgument, StoreClosed, StoreReadOnly, UnsafeSQLite
from holdfast.stores import SQLiteStore
from holdfast.stores.sqlite_connections import check_version


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.7.0"])
def test_a_library_with_the_wal_reset_bug_is_refused_by_name(version: str) -> None:
    with pytest.raises(UnsafeSQLite, match=version):
        check_version(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0"])
def test_a_fixed_library_is_accepted(version: str) -> None:
    check_version(version)


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        Session(store=store)
        for name in ("a.db", "a.db-wal", "a.db-shm"):
            assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600, name


def test_a_backup_of_a_store_in_use_is_a_whole_store(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        session = Session("s", store=store)
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                session.add_messages([Message.user("x"), Message.assistant("y")])

        writer = threading.Thread(target=write)
        writer.start()
        for n in range(3):
            store.backup(tmp_path / f"copy{n}.db")
        stop.set()
        writer.join()
    for n in range(3):
        with SQLiteStore(tmp_path / f"copy{n}.db") as copy:
            restored = Session.open("s", store=copy)
            assert restored.verify()
            assert len(restored) % 2 == 0


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    session = Session("s", store=store)
    store.close()
    store.close()
    for use in (lambda: session.messages, lambda: session.add_message(Message.user("x"))):
        with pytest.raises(StoreClosed):
            use()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match="does its folder exist"):
        SQLiteStore(tmp_path / "nowhere" / "a.db")
    with pytest.raises(InvalidArgument, match="FULL"):
        SQLiteStore(tmp_path / "a.db", synchronous="OFF")


def test_waiting_writers_share_a_commit(tmp_path: Path) -> None:
    """While one batch is being committed the others queue, and the next leader takes them all."""
    with SQLiteStore(tmp_path / "a.db") as store:
        sessions = [Session(f"s{n}", store=store) for n in range(12)]
        sizes: list[int] = []
        real, gate = store.file._commit, threading.Event()

        def commit_batch(batch: list) -> None:
            if not sizes:
                sizes.append(len(batch))
                gate.wait(30)  # until all other writers wait
            else:
                sizes.append(len(batch))
            real(batch)

        store.file._commit = commit_batch  # type: ignore[method-assign]
        threads = [threading.Thread(target=s.add_message, args=(Message.user("x"),)) for s in sessions]
        for thread in threads:
            thread.start()
        while len(store.file._queue) < 12:
            pass
        gate.set()
        for thread in threads:
            thread.join()
        assert sizes == [1, 11]
        assert all(len(session) == 1 for session in sessions)


def test_a_refused_job_leaves_nothing_of_itself_in_a_shared_commit(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        session = Session("s", store=store)
        log = session.log
        gate, real = threading.Event(), store.file._commit
        seen: list[int] = []

        def commit_batch(batch: list) -> None:
            seen.append(len(batch))
            if len(seen) == 1:
                gate.wait(30)
            real(batch)

        store.file._commit = commit_batch  # type: ignore[method-assign]
        from holdfast.testing.contract import note

        errors: list[Exception] = []

        def append_behind_the_head() -> None:
            try:
                store.append(log, [note("never")], expected=0)
            except Conflict as error:
                errors.append(error)

        calls = [
            lambda: store.append(log, [note("a")]),
            append_behind_the_head,
            lambda: store.append(log, [note("b")]),
            append_behind_the_head,
        ]
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        while len(store.file._queue) < 4:
            pass
        gate.set()
        for thread in threads:
            thread.join()
        assert len(errors) == 2
        assert sorted(message.text for message in session.messages) == ["a", "b"]
        assert session.verify()
