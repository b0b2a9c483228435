"""Restoration of a SQLite database from a copy, and the check of every log of a store.

What must stay true: the copy gets its name only after it was checked, so a server never opens a damaged one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import apsw

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import CorruptLog, InvalidArgument, SchemaTooNew
from holdfast.stores.encryption import MasterKey
from holdfast.stores.migrations import migrate
from holdfast.stores.sql_store import SQLStore
from holdfast.stores.sqlite import SQLiteStore
from holdfast.stores.sqlite_backup import copy_database, new_database
from holdfast.stores.sqlite_connections import HAS_MIGRATIONS, MIGRATIONS, fetch_all

MOST_DAMAGES = 20  # number of damaged logs that are named; a check ends there
BUSY_MILLISECONDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A log that does not verify."""

    kind: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What came of a restoration. If there is damage, nothing was restored."""

    checked: int  # number of logs that were verified
    damages: tuple[Damage, ...] = ()


class _Refused(Exception):
    """Ends the block that would give the copy its name."""


def restore_database(
    source: Path,
    target: Path,
    *,
    key: MasterKey | None = None,
    is_verified: bool = True,
    on_progress: Callable[[int], object] | None = None,
) -> Restoration:
    """Make `target`, which must not exist, a copy of the database `source`, and verify every log of it first.

    Raises InvalidArgument if the target exists or the source is no database of holdfast, SchemaTooNew if
    a newer holdfast wrote the source, and WrongKey if the key is not the source's.
    """
    checked, damages = 0, list[Damage]()
    with open_copy(source) as db:
        check_copy(db, source)
        try:
            with new_database(target, SYSTEM_CLOCK.new_id()) as draft:
                copy_database(db, draft, on_progress)
                if is_verified:
                    with SQLiteStore(draft, key=key) as copy:
                        for found in verify_logs(copy, list_log_numbers(copy)):
                            checked += 1
                            if found is not None:
                                damages.append(found)
                    if damages:
                        raise _Refused
        except _Refused:
            pass
    return Restoration(checked=checked, damages=tuple(damages))


@contextmanager
def open_copy(file: Path) -> Iterator[apsw.Connection]:
    """Open a database for reading. Raises InvalidArgument if it is missing or is no SQLite database."""
    if not file.is_file():
        raise InvalidArgument(f"{file} does not exist: name a copy that `holdfast backup` made")
    # A database in use has its WAL beside it. Without one it cannot change, and SQLite need not leave files beside it.
    immutable = "" if Path(f"{file}-wal").exists() else "?immutable=1"
    uri = f"file:{quote(str(file.absolute()))}{immutable}"
    try:
        db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            db.set_busy_timeout(BUSY_MILLISECONDS)
            db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            yield db
        finally:
            db.close()
    except (apsw.NotADBError, apsw.CantOpenError) as error:
        raise InvalidArgument(f"{file} is no SQLite database that can be read: {error}") from error


def check_copy(db: apsw.Connection, file: Path) -> None:
    """Raise InvalidArgument if a database is not holdfast's, SchemaTooNew if it is too new, CorruptLog if it is
    damaged."""
    try:
        if db.execute(HAS_MIGRATIONS).fetchone() is None:
            raise InvalidArgument(f"{file} is no database of holdfast: name a copy that `holdfast backup` made")
        try:
            migrate("sqlite", dict(fetch_all(db, MIGRATIONS)), lambda _: None)
        except (SchemaTooNew, CorruptLog) as error:
            raise type(error)(f"{file}: {error}") from error
        if damage := find_page_damage(db):
            raise CorruptLog(f"{file} is damaged ({damage}): restore an earlier copy")
    except apsw.Error as error:
        raise CorruptLog(f"{file} is damaged ({error}): restore an earlier copy") from error


def find_page_damage(db: apsw.Connection) -> str | None:
    """Return the first fault that SQLite finds in the pages of a database; None if all are sound."""
    found = str(db.execute("PRAGMA quick_check(1)").get)
    return None if found == "ok" else " ".join(found.split())


def list_log_numbers(store: SQLStore, kind: str | None = None) -> list[int]:
    """Return the numbers of the logs of every tenant, newest first; with `kind`, of that kind only."""
    rows = store._fetch_all(store.sql.LOG_NUMBERS)
    return [number for number, found in rows if kind in (None, found)]


def verify_logs(store: SQLStore, numbers: Sequence[int]) -> Iterator[Damage | None]:
    """Verify logs one by one, and yield the damage of each, or None."""
    damages = 0
    for number in numbers:
        log = store.log_of_number(number)
        try:
            found = store.verify(log)
        except CorruptLog as error:
            reason: str | None = str(error)
        else:
            reason = None if found else found.reason
        yield None if reason is None else Damage(kind=log.kind, id=log.id, reason=reason)
        damages += reason is not None
        if damages == MOST_DAMAGES:
            return
