"""Copies of a SQLite database that is in use.

What must stay true: a copy appears under its name only when it is whole and on disk, and no other user can read it,
not even while it is written. An existing file is never opened here: closing it would drop SQLite's locks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from holdfast.errors import CorruptLog, InvalidArgument, StoreError, StoreFull, StoreReadOnly
from holdfast.operating_system import create_private_file, flush_to_disk

SIDE_FILES = ("-wal", "-shm", "-journal")  # of a database; SQLite applies one that it finds beside a file
STEPS_BETWEEN_LOOKS = 20_000  # steps of SQLite's machine between two calls of the progress function

Report = Callable[[int], object]  # is given the number of bytes written


@contextmanager
def new_database(path: Path, unique: str) -> Iterator[Path]:
    """Yield an empty private file beside `path`, which gets that name when the block ends and vanishes if it fails.

    Raises InvalidArgument if the name is taken, also by another process before the block ended.
    """
    refuse_taken_name(path)
    draft = path.with_name(f".{path.name}.{unique}")
    try:
        create_private_file(draft)
    except OSError as error:
        raise StoreReadOnly(f"{path} cannot be written: {error.strerror}") from error
    try:
        yield draft
        flush_to_disk(draft)
        _take_name(draft, path)
        flush_to_disk(path.parent)
    except OSError as error:
        raise StoreError(f"{path} could not be written ({error.strerror}): nothing was left under that name") from error
    finally:
        for suffix in ("", *SIDE_FILES):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def refuse_taken_name(path: Path) -> None:
    """Raise InvalidArgument if there is a file of this name, or one that SQLite would take for a part of it."""
    for suffix in ("", *SIDE_FILES):
        file = Path(f"{path}{suffix}")
        if os.path.lexists(file):
            raise InvalidArgument(
                f"{file} exists already: give another name, or stop what uses it and move it away, with {path.name}-wal"
            )


def _take_name(draft: Path, path: Path) -> None:
    refuse_taken_name(path)
    try:
        os.link(draft, path)  # refuses a name that was taken meanwhile, where os.rename would replace that file
    except FileExistsError as error:
        raise InvalidArgument(f"{path} exists already: give another name, or move it away first") from error
    except OSError:  # a file system without hard links
        draft.rename(path)


def copy_database(source: apsw.Connection, draft: Path, report: Report | None = None) -> None:
    """Write what a connection sees of its database to an empty file.

    The copy is made of one read snapshot, so writers neither wait for it nor make it begin again. It holds the rows and
    nothing else: no page of the original is copied, so none of what was removed from it.
    """

    def look() -> bool:  # called now and then, which also lets Ctrl-C end the copy
        if report is not None:
            report(draft.stat().st_size)
        return False

    source.set_progress_handler(look, STEPS_BETWEEN_LOOKS)
    try:
        source.execute("VACUUM INTO ?", (str(draft.absolute()),))
        # As the original has it. So opening the copy changes nothing in it.
        with _connect(draft) as copy:
            copy.execute("PRAGMA journal_mode=WAL")
    except apsw.Error as error:
        raise _translate(error, source.filename, draft) from error
    finally:
        source.set_progress_handler(None)


@contextmanager
def _connect(file: Path) -> Iterator[apsw.Connection]:
    db = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        yield db
    finally:
        db.close()


def _translate(error: apsw.Error, source: str, draft: Path) -> StoreError:
    """Return the error of a copy. It does not poison the store: the fault may be the copy's disk."""
    if isinstance(error, apsw.FullError):
        return StoreFull(f"no space left in {draft.parent} for a copy of {source}: nothing was left there")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return CorruptLog(f"{source} is damaged and was not copied ({error}): restore it from an earlier copy")
    return StoreError(f"{source} was not copied to {draft.parent} ({error}): nothing was left there")
