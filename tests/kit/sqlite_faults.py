"""A SQLite VFS that numbers every change to a database's files, reports it to observers, and fails it on demand.

What must stay true: an operation is reported after it took effect, in the order in which it took effect, and a failed
one says what took effect all the same. Power-loss states are built from what is reported here, so a wrong order would
invent losses or hide them.

Only the shared memory of WAL mode (`-shm`) passes by unseen: apsw offers no hook for it, and it is rebuilt after a
crash. One thing is harsher than a real disk: where SQLite swallows a failure (an automatic checkpoint after a commit,
the checkpoint of the last close), apsw still raises it from the call on top, although the commit stands.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar

import apsw

Kind = Literal["create", "write", "truncate", "sync", "delete"]

CODES: dict[Kind, int] = {
    "create": apsw.SQLITE_CANTOPEN,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "delete": apsw.SQLITE_IOERR_DELETE,
}
NAMES_WITH_DIRECTORY_SYNC = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
WATCHED = apsw.SQLITE_OPEN_MAIN_DB | NAMES_WITH_DIRECTORY_SYNC

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change to a database, `-wal` or `-journal` file; `failed` if SQLite got an error for it."""

    index: int = 0
    kind: Kind
    path: str
    offset: int = 0  # of a write; of a truncate, the new size
    data: bytes = b""  # of a failed write, the prefix that was written all the same
    syncs_directory: bool = False
    failed: bool = False


@dataclass(slots=True, kw_only=True)
class _Fault:
    error: str
    kind: Kind | None
    prefix: int
    sticky: bool
    passes: int


class FaultVFS(apsw.VFS):
    """The default VFS, watched and breakable; open a database through it by its `name`.

    with FaultVFS() as vfs:
        connection = apsw.Connection(path, vfs=vfs.name)
        vfs.fail(at=0, error="ENOSPC", op="write")
    """

    def __init__(self) -> None:
        self.name = f"faults-{id(self):x}"
        self.counts: Counter[str] = Counter()  # operations so far, by kind
        self.injected = 0  # how many of them were made to fail
        self._fault: _Fault | None = None
        self._observers: list[Callable[[Operation], object]] = []
        self._lock = threading.RLock()
        super().__init__(self.name, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.unregister()

    def fail(
        self,
        *,
        at: int,
        error: Literal["EIO", "ENOSPC"] = "EIO",
        op: Kind | None = None,
        prefix: int = 0,
        sticky: bool = False,
    ) -> None:
        """Fail the operation that comes after `at` more of its kind, and if sticky every later one until `heal()`.

        With an `op`, only that kind counts and fails. A failing write first writes `prefix` bytes of what it was given.
        """
        with self._lock:
            self._fault = _Fault(error=error, kind=op, prefix=prefix, sticky=sticky, passes=at)

    def heal(self) -> None:
        """Fail nothing any more."""
        with self._lock:
            self._fault = None

    def observe(self, observer: Callable[[Operation], object]) -> None:
        """Call `observer` after each operation; it may kill the process."""
        with self._lock:
            self._observers.append(observer)

    def perform(self, operation: Operation, act: Callable[[Operation], T]) -> T:
        """Do an operation, or what a due fault leaves of it, and report it."""
        with self._lock:
            fault = self._due(operation.kind)
            operation = replace(operation, index=self.counts.total())
            if fault:
                operation = replace(operation, data=operation.data[: fault.prefix], failed=True)
            if not fault or operation.data:
                result = act(operation)
            self.counts[operation.kind] += 1
            self.injected += operation.failed
            for observer in self._observers:
                observer(operation)
        if fault:
            # Only a write reports a full disk as such: to the unix VFS any other failing call is an I/O error.
            full = operation.kind == "write" and fault.error == "ENOSPC"
            raise apsw.exception_for(apsw.SQLITE_FULL if full else CODES[operation.kind])
        return result

    def _due(self, kind: Kind) -> _Fault | None:
        fault = self._fault
        if not fault or fault.kind not in (None, kind):
            return None
        if fault.passes:
            fault.passes -= 1
            return None
        if not fault.sticky:
            self._fault = None
        return fault

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not flags[0] & WATCHED:
            return apsw.VFSFile("", name, flags)
        with self._lock:  # or another thread creates the file between the look and the open
            # An empty database was created just now: the store creates it itself, to give it its mode.
            is_new_database = flags[0] & apsw.SQLITE_OPEN_MAIN_DB and os.path.exists(path) and not os.path.getsize(path)
            if os.path.exists(path) and not is_new_database:
                return _File(self, path, name, flags)
            return self.perform(Operation(kind="create", path=path), lambda _: _File(self, path, name, flags))

    def xDelete(self, filename: str, syncdir: bool) -> None:
        delete = super().xDelete
        self.perform(
            Operation(kind="delete", path=filename, syncs_directory=syncdir), lambda _: delete(filename, syncdir)
        )


class _File(apsw.VFSFile):
    def __init__(self, vfs: FaultVFS, path: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._vfs, self._path = vfs, path
        # As os_unix.c does: the first sync through a handle that could create a journal or WAL syncs the directory.
        self._syncs_directory = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & NAMES_WITH_DIRECTORY_SYNC)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        write = super().xWrite
        self._vfs.perform(
            Operation(kind="write", path=self._path, offset=offset, data=bytes(data)), lambda op: write(op.data, offset)
        )

    def xTruncate(self, newsize: int) -> None:
        truncate = super().xTruncate
        self._vfs.perform(Operation(kind="truncate", path=self._path, offset=newsize), lambda _: truncate(newsize))

    def xSync(self, flags: int) -> None:
        sync = super().xSync
        self._vfs.perform(
            Operation(kind="sync", path=self._path, syncs_directory=self._syncs_directory), lambda _: sync(flags)
        )
        self._syncs_directory = False
