"""One SQLite file, shared by many threads and processes: one writer connection with a group commit, a few readers.

A failed flush poisons the file: the state on disk is unknown, and more writes could hide that.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import apsw

from holdfast.clock import Clock
from holdfast.crashpoints import crashpoint
from holdfast.errors import (
    AgentError,
    CorruptLog,
    InvalidArgument,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StorePoisoned,
    StoreReadOnly,
    UnsafeSQLite,
)
from holdfast.operating_system import create_private_file, register_at_fork
from holdfast.stores.group_commit import GroupCommit
from holdfast.stores.migrations import Migration, migrate
from holdfast.stores.places import Call, Places

T = TypeVar("T")
Connection = apsw.Connection

OLDEST_SAFE = (3, 51, 3)  # before it, two connections checkpointing at once can corrupt the file
MAX_READERS = 4

SYNCHRONOUS = {"FULL": "PRAGMA synchronous=FULL", "NORMAL": "PRAGMA synchronous=NORMAL"}

HAS_MIGRATIONS = "SELECT 1 FROM sqlite_master WHERE name = 'migrations'"
MIGRATIONS = "SELECT version, digest FROM migrations"
CREATE_MIGRATIONS = """CREATE TABLE IF NOT EXISTS migrations(
    version INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL) STRICT"""
RECORD_MIGRATION = "INSERT INTO migrations VALUES(?,?,?)"

_files: weakref.WeakSet[SQLiteFile] = weakref.WeakSet()  # files that a fork must pause
_fork_lock = threading.RLock()  # no thread opens or closes a file while this process forks
_paused_files: list[SQLiteFile] = []  # files that are paused for a fork


def _before_fork() -> None:
    _fork_lock.acquire()
    _paused_files.extend(_files)
    for file in _paused_files:
        file.pause_for_fork()


def _after_fork_in_parent() -> None:
    for file in _paused_files:
        file.resume_after_fork()
    _paused_files.clear()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    global _fork_lock
    for file in _paused_files:
        file.leave_to_parent()
    _paused_files.clear()
    _fork_lock = threading.RLock()


register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class _ErrorTranslation:
    """Turns what SQLite raises inside a block into ours. A class, because a generator costs four times as much."""

    __slots__ = ("_file",)

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, apsw.Error):
            raise self._file._translate(error) from error
        if isinstance(error, FileNotFoundError):
            raise StoreError(f"{self._file.path} is gone: was it moved or deleted while it was open?") from error


class SQLiteFile(GroupCommit):
    """The connections of this process to one file."""

    def __init__(
        self, path: str | Path, *, synchronous: str, busy_seconds: float, vfs: str | None, clock: Clock
    ) -> None:
        check_version(apsw.sqlite_lib_version())
        if synchronous not in SYNCHRONOUS:
            raise InvalidArgument(f"synchronous={synchronous!r}: use 'FULL' (durable) or 'NORMAL' (may lose the last)")
        _refuse_url(str(path))
        self.path = os.path.realpath(path)  # SQLite follows a link too, and names the WAL after the file
        self.synchronous, self.busy_seconds, self.vfs, self.clock = synchronous, busy_seconds, vfs, clock
        self.closed = False
        self._reset_locks()
        with _fork_lock:
            self._open()
            _files.add(self)

    def _reset_locks(self) -> None:
        self._reopen_lock = threading.Lock()
        self._reset_queue()
        self._readers: list[Connection] = []
        self._reader_slots = Places(MAX_READERS)
        self._fork_call, *self._fork_slots = [Call(None) for _ in range(MAX_READERS + 1)]

    def _open(self) -> None:
        self.poison_reason: str | None = None
        self.write_fault: StoreError | None = None  # of the last write
        self._writer = self._open_writer()
        self._identity = self._file_identity()
        self._needs_reopen = False

    def _file_identity(self) -> tuple[int, int, int]:
        """The identity of the file and of its WAL: no write may follow after one of them was replaced or removed."""
        found, wal = os.stat(self.path), os.stat(self.path + "-wal")
        return found.st_dev, found.st_ino, wal.st_ino

    # -- os.fork ---------------------------------------------------------------------------------------------------
    # SQLite remembers in memory which file locks this process holds. A child inherits that memory but not the locks, so
    # a connection it opens while an inherited one is still there would take none. The child therefore closes what it
    # inherited (without a checkpoint, so that nothing is written) and opens its own; and no connection may be in use at
    # the moment of the fork.

    def pause_for_fork(self) -> None:
        self._lead.take(self._fork_call)
        for slot in self._fork_slots:
            self._reader_slots.take(slot)

    def resume_after_fork(self) -> None:
        for slot in self._fork_slots:
            self._reader_slots.release(slot)
        self._give_up_lead(self._fork_call)

    def leave_to_parent(self) -> None:
        if not self.closed and not self._needs_reopen:
            for db in (*self._readers, self._writer):
                db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                db.close()
        self._reset_locks()
        self._needs_reopen = True

    # -- opening ---------------------------------------------------------------------------------------------------

    def _connect(self, flags: int) -> Connection:
        db = apsw.Connection(self.path, flags=flags, vfs=self.vfs)
        db.set_busy_handler(self._busy_handler())
        # Plans do not depend on values here. Without this, SQLite (built with STAT4) plans anew at each binding, which
        # made a look-up seven times slower.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return db

    def _busy_handler(self) -> Callable[[int], bool]:
        """Wait a little and try again, until the deadline. Short waits: the lock is mostly held for one flush."""
        began = [0.0]

        def wait(count: int) -> bool:
            now = time.monotonic()
            if count == 0:
                began[0] = now
            if now - began[0] > self.busy_seconds:
                return False
            # Waiters spread out by process and try, so that they do not all come back at the same moment.
            spread = 0.2 + (os.getpid() * 31 + count * 17) % 64 / 80
            time.sleep(spread * min(0.0005 * (count + 1), 0.01))
            return True

        return wait

    def _open_writer(self) -> Connection:
        # Before SQLite opens it, which would create it with the mode that the umask gives. No other thread of this
        # process has a new file open, so closing it drops no lock. What cannot be created here, SQLite reports.
        with suppress(OSError):
            create_private_file(self.path)
        with self._translate_errors():
            db = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                if db.readonly("main"):
                    raise StoreReadOnly(f"{self.path} cannot be written: check the permissions of the file")
                self._retry_while_busy(lambda: db.execute("PRAGMA journal_mode=WAL").get)
                db.execute(SYNCHRONOUS[self.synchronous])
                db.execute("PRAGMA fullfsync=ON")  # on macOS a flush else ends in the cache of the drive
                db.execute("PRAGMA foreign_keys=ON")
                db.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, not only unlinked
                self._migrate(db)
            except BaseException:
                db.close()
                raise
        return db

    def _retry_while_busy(self, action: Callable[[], object]) -> None:
        """SQLite answers busy at once, without asking the handler, while another process switches to WAL."""
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                action()
                return
            except (apsw.BusyError, apsw.LockedError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _migrate(self, db: Connection) -> None:
        def apply(migration: Migration) -> None:
            for _ in db.execute(migration.sql):
                pass
            crashpoint("migration applied")
            db.execute(RECORD_MIGRATION, (migration.version, migration.name, migration.digest))

        if fetch_one(db, HAS_MIGRATIONS) is not None:
            applied = dict(fetch_all(db, MIGRATIONS))
            missing: list[Migration] = []
            migrate("sqlite", applied, missing.append)
            if not missing:
                return  # the common case, and no reason to wait for a writer
        self._retry_while_busy(lambda: db.execute("BEGIN IMMEDIATE"))
        try:
            db.execute(CREATE_MIGRATIONS)
            migrate("sqlite", dict(fetch_all(db, MIGRATIONS)), apply)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, job: Callable[[Connection], T]) -> T:
        """Run a query on a reader. The job must fetch what it needs before it returns."""
        self._check_open()
        self._refuse_replaced()
        call = Call(sys._getframe())
        # A thread that was interrupted inside a read of its own gets a connection beside the slots: it holds a slot.
        has_slot = self._reader_slots.take(call)
        try:
            with self._translate_errors():
                try:
                    db = self._readers.pop()
                except IndexError:
                    db = self._connect(apsw.SQLITE_OPEN_READWRITE)
                try:
                    result = job(db)
                except (AgentError, apsw.Error):
                    self._give_back(db, has_slot)
                    raise
                except BaseException:
                    db.close(True)  # interrupted: a statement may be open, and would hold its snapshot of the file
                    raise
                self._give_back(db, has_slot)
                return result
        finally:
            if has_slot:
                self._reader_slots.release(call)
            call.end()

    def _refuse_replaced(self) -> None:
        """Raise StorePoisoned if another file has this name: connections that are open would read the old one, and new
        ones the other. This file is asked for by its name only, which costs a microsecond."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._identity[:2]:
            self.poison_reason = f"{self.path} was replaced while it was open: close this store and open it again"
            raise StorePoisoned(self.poison_reason)

    def _give_back(self, db: Connection, has_slot: bool) -> None:
        if self.closed or not has_slot:
            db.close()
        else:
            self._readers.append(db)

    # -- writing: see `GroupCommit` ----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        self._check_open()
        if self.poison_reason:
            raise StorePoisoned(self.poison_reason)

    def check_file(self) -> None:
        if self.closed:
            raise StoreClosed(f"the store of {self.path} was closed: open a new one")
        if self.poison_reason:
            raise StorePoisoned(self.poison_reason)
        if self._is_replaced():
            self.poison_reason = f"{self.path} was replaced while it was open: close this store and open it again"
            raise StorePoisoned(self.poison_reason)

    def _is_replaced(self) -> bool:
        try:
            return self._file_identity() != self._identity
        except FileNotFoundError:
            return True

    def truncate_wal(self) -> bool:
        """Move everything into the file and empty the log beside it; False if readers of other processes stayed."""
        self._check_open()

        def checkpoint(db: Connection) -> bool:
            if self.closed or self.poison_reason:
                return False
            busy, _, _ = fetch_one(db, "PRAGMA wal_checkpoint(TRUNCATE)") or (1, 0, 0)
            return not busy

        with self._translate_errors():
            return self._run_alone(checkpoint)

    def vacuum(self) -> None:
        """Rewrite the whole file. Readers go on; writers wait."""
        self._check_open()

        def rewrite(db: Connection) -> None:
            if not self.closed and not self.poison_reason:
                db.execute("VACUUM")

        with self._translate_errors():
            self._run_alone(rewrite)

    # -- faults ----------------------------------------------------------------------------------------------------

    def _translate_errors(self) -> _ErrorTranslation:
        return _ErrorTranslation(self)

    def _translate(self, error: apsw.Error) -> StoreError:
        path = self.path
        if isinstance(error, (apsw.BusyError, apsw.LockedError)):
            return StoreBusy(f"{path} stayed locked for {self.busy_seconds:g} s: another process writes; try again")
        if isinstance(error, apsw.FullError):
            return StoreFull(f"no space left for {path}: nothing was written; free some space and try again")
        if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError)):
            return StoreReadOnly(f"{path} cannot be written: check the permissions of the file and of its folder")
        if isinstance(error, apsw.CantOpenError) and os.path.isdir(path):
            return StoreReadOnly(f"{path} is a directory: name a file in it, as in SQLiteStore('{path}/sessions.db')")
        if isinstance(error, apsw.CantOpenError):
            return StoreReadOnly(f"{path} cannot be opened: does its folder exist, and may this user write there?")
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            return CorruptLog(f"{path} is not a readable SQLite database: restore it from a copy")
        if isinstance(error, apsw.IOError):
            self.poison_reason = (
                f"a read, write or flush of {path} failed ({error}): what was being written may or may not be there; "
                "close this store, check the disk, open it again"
            )
            return StorePoisoned(self.poison_reason)
        return StoreError(f"SQLite failed on {path}: {error}")

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"the store of {self.path} was closed: open a new one")
        if self._needs_reopen:
            with _fork_lock, self._reopen_lock:
                if self._needs_reopen:
                    self._open()

    def close(self) -> None:
        """Close every connection of this process. Writes under way are finished first."""
        with _fork_lock:
            if not self.closed:
                self._run_alone(self._close_connections)

    def _close_connections(self, writer: Connection) -> None:
        if self.closed:
            return
        self.closed = True
        if self._needs_reopen:
            return
        for db in (*self._readers, writer):
            try:
                db.close()
            except apsw.Error:  # the last checkpoint failed: the log stays, and is read when the file is opened again
                db.close(True)
        self._readers.clear()


def fetch_one(db: Connection, query: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    """The first row of a query."""
    return db.execute(query, values).fetchone()


def fetch_all(db: Connection, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every row of a query."""
    return db.execute(query, values).fetchall()


def _refuse_url(path: str) -> None:
    scheme, is_url, rest = path.partition("://")
    if is_url and scheme in ("sqlite", "file"):
        file = rest.removeprefix("/")
        raise InvalidArgument(f"{path!r} is a URL: write SQLiteStore({file!r}), or store='sqlite:///{file}'")
    if is_url:  # not quoted: it may hold a password
        raise InvalidArgument(
            f"SQLiteStore takes the path of a file, not a URL with {scheme!r}: give the URL as store="
        )


def check_version(version: str) -> None:
    """Refuse a SQLite library with the WAL-reset bug by name."""
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST_SAFE:
        oldest = ".".join(map(str, OLDEST_SAFE))
        raise UnsafeSQLite(
            f"SQLite {version} can corrupt a file that several processes share (fixed in {oldest}): pip install -U apsw"
        )
