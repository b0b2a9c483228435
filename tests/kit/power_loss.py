"""What a database's files may look like after the power fails: every state is built from a recording of the writes.

The model, which must be no kinder than a disk and claim nothing that a disk cannot do:

- A file is what the page cache shows, and what the disk holds. A sync copies the one to the other. Before it, any
  sector that was written may have reached the disk at any time since: of the unsynced writes some survive, some do
  not, some are torn between sectors. A sector on the disk is always one that the cache held at some moment.
- A file grows with the sectors that survive; those that did not leave zeros. An unsynced truncate may be lost.
- A failed sync drops what it was to write, and a later sync does not bring it back (as Linux does).
- A name is durable once its file was synced, or its directory. Until then it may still mean any file that it meant
  since, or none: an unlinked file can come back. SQLite syncs the directory with the first sync of a new journal or
  WAL, and that makes earlier unlinks durable. To forget it brings back hot journals and reports losses that are none.

Not modelled: sectors that rot, or a lost sector showing what another file once held.
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import apsw

from tests.kit.sqlite_faults import FaultVFS, Operation

SECTOR = 512
SUFFIXES = ("", "-wal", "-journal")

T = TypeVar("T")
Choose = Callable[[range], Sequence[int]]  # which of the sectors of an unsynced write are on the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashState(Generic[T]):
    """The files as the power failed before operation `point`, and what had been acknowledged by then."""

    point: int
    files: Mapping[str, bytes]  # by suffix
    acknowledged: Sequence[T]

    def materialise(self, path: str) -> None:
        """Write the files as the database `path`, where no database may be yet."""
        for suffix, content in self.files.items():
            Path(path + suffix).write_bytes(content)


class Recording(Generic[T]):
    """Every operation on one database, and the moments at which something was acknowledged as durable.

    Begin it before the first connection opens: what is in the files then counts as durable.
    """

    def __init__(self, vfs: FaultVFS, path: str) -> None:
        path = os.path.realpath(path)
        self.operations: list[Operation] = []
        self._acknowledged: list[tuple[int, T]] = []
        self._names = {path + suffix: suffix for suffix in SUFFIXES}
        self._found = {name: Path(name).read_bytes() for name in self._names if os.path.exists(name)}
        vfs.observe(self._record)

    def _record(self, operation: Operation) -> None:
        if operation.path in self._names:
            self.operations.append(operation)

    def acknowledge(self, what: T) -> None:
        """From here on `what` may not be lost."""
        self._acknowledged.append((len(self.operations), what))

    def states(self, seed: int, count: int) -> Iterator[CrashState[T]]:
        """Crash `count` times, spread over the whole recording, in its order; the same again for the same seed."""
        rng = random.Random(seed)
        disk = _Disk({name: self._found.get(name) for name in self._names})
        done = 0
        for number in range(count):
            point = int((number + rng.random()) * (len(self.operations) + 1) / count)
            for operation in self.operations[done:point]:
                disk.apply(operation)
            done = point
            yield CrashState(
                point=point,
                files={self._names[name]: content for name, content in disk.crash(rng).items()},
                acknowledged=[what for position, what in self._acknowledged if position <= point],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a survey found: no complaint is a pass."""

    seed: int
    operations: int
    states: int
    complaints: int
    first: str | None


def survey_crashes(
    workload: Callable[[str, str, Callable[[T], None]], None],
    check: Callable[[str, Sequence[T]], str | None],
    *,
    seed: int,
    states: int,
    directory: str | os.PathLike[str] | None = None,
) -> Survey:
    """Run `workload(path, vfs_name, acknowledge)` once, then `check(path, acknowledged)` what each crash left.

    The check says what it misses, or None; a database that it cannot read (`apsw.Error`) is a complaint too.
    A directory in memory (`/dev/shm`) makes this several times as fast.
    """
    complaints = []
    with tempfile.TemporaryDirectory(dir=directory) as home, FaultVFS() as vfs:
        path = os.path.join(home, "live.db")
        recording: Recording[T] = Recording(vfs, path)
        workload(path, vfs.name, recording.acknowledge)
        for state in recording.states(seed, states):
            if complaint := _examine(state, check, home):
                complaints.append(f"before operation {state.point} of {len(recording.operations)}: {complaint}")
    return Survey(
        seed=seed,
        operations=len(recording.operations),
        states=states,
        complaints=len(complaints),
        first=complaints[0] if complaints else None,
    )


def _examine(state: CrashState[T], check: Callable[[str, Sequence[T]], str | None], home: str) -> str | None:
    with tempfile.TemporaryDirectory(dir=home) as place:
        path = os.path.join(place, "crashed.db")
        state.materialise(path)
        try:
            return check(path, state.acknowledged)
        except apsw.Error as error:
            return f"{type(error).__name__}: {error}"


class _Inode:
    """A file: what the disk holds, what the cache showed when it was last synced, and the operations since."""

    def __init__(self, content: bytes = b"") -> None:
        self.disk, self.cache = bytearray(content), bytearray(content)
        self.unsynced: list[Operation] = []

    def settle(self, choose: Choose) -> None:
        """Put the chosen sectors of the unsynced operations on the disk, and forget about the others."""
        for operation in self.unsynced:
            if operation.kind == "truncate":
                _resize(self.cache, operation.offset)
                if choose(range(1)):
                    _resize(self.disk, operation.offset)
            elif operation.data:
                self._write(operation.offset, operation.data, choose)
        self.unsynced = []

    def _write(self, offset: int, data: bytes, choose: Choose) -> None:
        end = offset + len(data)
        _resize(self.cache, max(len(self.cache), end))
        self.cache[offset:end] = data
        for sector in choose(range(offset // SECTOR, (end - 1) // SECTOR + 1)):
            start = sector * SECTOR
            whole = self.cache[start : start + SECTOR]
            _resize(self.disk, max(len(self.disk), start))
            self.disk[start : start + len(whole)] = whole

    def crash(self, choose: Choose) -> bytes:
        after = _Inode()
        after.disk, after.cache, after.unsynced = self.disk[:], self.cache[:], self.unsynced
        after.settle(choose)
        return bytes(after.disk)


class _Disk:
    """The files of one directory. A name has a history: the durable meaning first, the present one last."""

    def __init__(self, found: Mapping[str, bytes | None]) -> None:
        self._names: dict[str, list[_Inode | None]] = {
            name: [None if content is None else _Inode(content)] for name, content in found.items()
        }

    def apply(self, operation: Operation) -> None:
        history = self._names[operation.path]
        file = history[-1]
        match operation.kind:
            case "write" if file:  # a failed one, too: it holds the prefix that was written
                file.unsynced.append(operation)
            case "sync" if file and operation.failed:
                file.settle(_choose_none)
            case "sync" if file:
                file.settle(_choose_all)
                history[:] = [file]
            case "truncate" if file and not operation.failed:
                file.unsynced.append(operation)
            case "create" if not operation.failed:
                history.append(_Inode())
            case "delete" if not operation.failed:
                history.append(None)
        if operation.syncs_directory and not operation.failed:
            for names in self._names.values():
                names[:] = names[-1:]

    def crash(self, rng: random.Random) -> dict[str, bytes]:
        """The files as a disk might hold them now."""
        survivors = {name: rng.choice(history) for name, history in self._names.items()}
        return {name: file.crash(_choose_some(rng)) for name, file in survivors.items() if file}


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _choose_all(sectors: range) -> Sequence[int]:
    return sectors


def _choose_none(sectors: range) -> Sequence[int]:
    return ()


def _choose_some(rng: random.Random) -> Choose:
    odds = rng.choice((0.0, 0.25, 0.5, 0.75, 1.0))  # at 0 only what was synced is left, at 1 nothing is lost

    def choose(sectors: range) -> Sequence[int]:
        if rng.random() < 0.25:
            return [sector for sector in sectors if rng.random() < odds]
        return sectors if rng.random() < odds else ()

    return choose
