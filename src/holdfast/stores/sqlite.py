"""Logs in a SQLite file: `append` plans with the shared rules and writes the plan in one grouped transaction."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.crashpoints import crashpoint
from holdfast.errors import SessionNotFound, StaleEpoch, StoreError, StorePoisoned
from holdfast.log.events import INDEXED_TYPES, Draft, Row
from holdfast.log.messages import Limits
from holdfast.operating_system import boot_id
from holdfast.stores.append import (
    AppendBatch,
    AppendRequest,
    AppendResult,
    check_append,
    plan_append,
    repeat_outcome,
)
from holdfast.stores.base import MAX_SEQ, Log
from holdfast.stores.encrypted_rows import Keys, decrypt_row, encrypt_name, encrypt_row, encrypt_tombstone, keyed_digest
from holdfast.stores.encryption import MasterKey
from holdfast.stores.erasure import ErasurePlan
from holdfast.stores.key_values import SQLiteKeyValues
from holdfast.stores.lease import Claim, Lease
from holdfast.stores.rows import INDEX_BATCH, head_columns, head_from_columns, index_text, session_columns
from holdfast.stores.sql_reads import SQLConnection
from holdfast.stores.sql_store import SQLStore
from holdfast.stores.sqlite_backup import copy_database, new_database
from holdfast.stores.sqlite_connections import Connection, SQLiteFile, fetch_all, fetch_one
from holdfast.stores.sqlite_statements import SCANS, SHIFT, SQL
from holdfast.stores.stamps import AppendStamp
from holdfast.stores.statements import Statements

T = TypeVar("T")
MAX_COUNT = 1 << 30
MANY_WORDS = 500  # number of events above which the whole index is emptied, instead of the words of each event

# Statements of the append, which is the hot path.
HEAD, SET_HEAD, SET_HEAD_ONLY, ADD_EVENT, ADD_NAME, ONCE = (
    SQL.HEAD,
    SQL.SET_HEAD,
    SQL.SET_HEAD_ONLY,
    SQL.ADD_EVENT,
    SQL.ADD_NAME,
    SQL.ONCE,
)


class SQLiteStore(SQLiteKeyValues, SQLStore):
    """Sessions in one SQLite file, which several processes may share: `SQLiteStore("sessions.db")`.

    Every change is on disk before the call returns. `synchronous="NORMAL"` is faster and may lose the last changes at
    a power cut, never their order. With `key=` everything that is written is encrypted (pip install holdfast[secure]).
    """

    sql: ClassVar[Statements] = SQL
    # The index leaves out the sessions of the tenant '', so SQLite uses it only for a query that excludes them.
    _tenant_hint: ClassVar[str] = "s.tenant <> ''"

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "FULL",
        busy_seconds: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
        limits: Limits | None = None,
        tenant: str = "",
        key: MasterKey | None = None,
        vfs: str | None = None,
    ) -> None:
        super().__init__(clock=clock, limits=limits, tenant=tenant)
        self._keys = Keys(key)
        self.file = SQLiteFile(path, synchronous=synchronous, busy_seconds=busy_seconds, vfs=vfs, clock=clock)
        try:
            if key is not None:
                self.file.write(self._adopt_master)
            else:
                self._keys.note_encryption((self._fetch_one(SQL.MASTER) or (None,))[0])
        except BaseException:
            self.file.close()
            raise

    def __repr__(self) -> str:
        return f"SQLiteStore({self.file.path!r})"

    def close(self) -> None:
        self.file.close()

    @property
    def is_closed(self) -> bool:
        return self.file.closed

    @property
    def write_fault(self) -> StoreError | None:
        reason = self.file.poison_reason
        return self.file.write_fault if reason is None else StorePoisoned(reason)

    def backup(self, path: str | Path, *, on_progress: Callable[[int], object] | None = None) -> None:
        """Copy the database to a new file while it is being written; `on_progress` is given the bytes written up to
        now. The copy is what was stored when the call began. Raises InvalidArgument if the file exists."""
        with new_database(Path(path), self.clock.new_id()) as draft:
            self.file.read(lambda db: copy_database(db, draft, on_progress))

    def tidy(self, *, max_bytes: int | None = None) -> None:
        """Leave nothing of removed data in the file and its write-ahead log.

        Freed space is overwritten when it is freed. But SQLite moves rows between pages, and does not overwrite the
        place that a row left. So the file is rewritten if data was removed since the last time. Other writers wait
        meanwhile, about a second for 100 MB; `max_bytes` leaves a larger file for a quiet hour.
        """
        removals = self._fetch_one("PRAGMA user_version")[0]
        if removals and (max_bytes is None or os.path.getsize(self.file.path) <= max_bytes):
            self.file.vacuum()
            self.file.write(lambda db: _clear_removals(db, removals))
        self.file.truncate_wal()

    # -- the database's own way --------------------------------------------------------------------------------------

    def _fetch_one(self, query: str, values: tuple[Any, ...] = ()) -> Any:  # noqa: ANN401 - a row, or None
        return self.file.read(lambda db: db.execute(query, values).fetchone())

    def _fetch_all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return self.file.read(lambda db: db.execute(query, values).fetchall())

    def _transaction(self, job: Callable[[Connection], T]) -> T:
        return self.file.write(job)

    def _key_transaction(self, job: Callable[[Connection], T]) -> T:
        try:
            return self.file.write(job)
        except BaseException:
            self._keys.clear_cache()  # a later log may get the number of the log that failed
            raise

    def _erasure_transaction(self, log: Log, plan: ErasurePlan, job: Callable[[Connection], T]) -> T:
        result = self._key_transaction(job)
        self.file.truncate_wal()
        return result

    def _pipeline(self, db: Connection) -> AbstractContextManager[object]:
        return nullcontext()

    def _range(self, number: int, first: int, last: int) -> tuple[int, int]:
        return number << SHIFT | first, number << SHIFT | last

    def _event_key(self, number: int, seq: int) -> tuple[int]:
        return (number << SHIFT | seq,)

    def heads(self, numbers: Sequence[int]) -> dict[int, int]:
        return dict(self._fetch_all(SQL.HEADS, (json.dumps(list(numbers)),)))

    def _guard_immutable(self, db: SQLConnection) -> None:
        db.execute(SQL.GUARD_REPLACE)

    def _cut_events(self, db: Connection, number: int, last: int) -> None:
        _count_removal(db)
        self._forget_words(db, number, last + 1, None)
        db.execute(SQL.CUT_EVENTS, self._range(number, last + 1, MAX_SEQ))

    def _erase_events(self, db: Connection, number: int, tombstones: list[tuple[int, bytes]]) -> None:
        key = self._key(db, number)
        _count_removal(db)
        self._forget_words(db, number, 0, [seq for seq, _ in tombstones])
        erased = [(encrypt_tombstone(key, number, seq, stone), number << SHIFT | seq) for seq, stone in tombstones]
        db.executemany(SQL.SET_TOMBSTONE, erased)
        db.executemany(SQL.CLEAR_ONCE_DIGEST, [(b"", number, seq, seq) for seq, _ in tombstones])

    def schedule_sweep(self, log: Log, due: int | None) -> None:
        self.file.write(lambda db: db.execute(SQL.SCHEDULE_SWEEP, (due, log.number)))

    # -- the write primitive ---------------------------------------------------------------------------------------

    def append(
        self,
        log: Log,
        drafts: Sequence[Draft],
        *,
        once: str | None = None,
        epoch: int | None = None,
        expected: int | None = None,
        claim: Claim | None = None,
        release: bool = False,
    ) -> AppendResult:
        asked = check_append(
            drafts, limits=self.limits, once=once, epoch=epoch, expected=expected, claim=claim, release=release
        )
        return self.file.write(lambda db: self._append(db, log.number, log.id, asked))

    def _append(self, db: Connection, number: int, id: str, asked: AppendRequest) -> AppendResult:
        columns = db.execute(HEAD, (number,)).fetchone()
        if columns is None:
            raise SessionNotFound(id)
        before = head_from_columns(columns)
        if asked.idempotency_key is not None:
            found = fetch_one(db, ONCE, (number, keyed_digest(self._key(db, number), asked.idempotency_key.encode())))
            if found is not None:
                digest, first, last = found
                return repeat_outcome(
                    id, asked, self._is_same(db, number, asked, digest, first, last), first, last, before.epoch
                )
        lease = None if asked.claim is None else self._lease(db, number)
        batch = plan_append(id, before, asked, lease=lease, at=self.clock.now(), random=self.clock.random_bytes)
        self._write(db, number, batch)
        return batch.outcome

    def _append_in(self, db: Connection, log: Log, request: AppendRequest, stamp: AppendStamp) -> AppendResult:
        return self._append(db, log.number, log.id, request)

    def _write(self, db: Connection, number: int, batch: AppendBatch) -> None:
        head = batch.head
        crashpoint("before events")
        self._write_events(db, number, batch)
        crashpoint("between events and head")
        if head.view is batch.before.view and head.epoch == batch.before.epoch:
            db.execute(SET_HEAD_ONLY, (head.head, head.hash, head.tokens, head.updated_at, number))
        else:
            db.execute(SET_HEAD, (*head_columns(head), number))
        if not batch.is_simple:
            self._write_rest(db, number, batch)
            for column, value in session_columns(batch.changed_columns or {}, self._key(db, number)).items():
                db.execute(SQL.SET_SESSION[column], (value, number))

    def _write_events(self, db: Connection, number: int, batch: AppendBatch) -> None:
        shifted, key = number << SHIFT, self._key(db, number)
        rows = batch.rows if key is None else [encrypt_row(key, number, row) for row in batch.rows]
        db.executemany(
            ADD_EVENT,
            [
                (
                    shifted | row.seq,
                    row.at,
                    row.type,
                    row.header,
                    row.tokens,
                    row.body,
                    row.tombstone,
                    row.hash,
                    mark or None,
                )
                for row, mark in zip(rows, batch.changes_view, strict=True)
            ],
        )
        if batch.names:
            db.executemany(ADD_NAME, [(number, encrypt_name(key, name), seq, ref) for name, seq, ref in batch.names])

    # -- leases ------------------------------------------------------------------------------------------------------

    def _lease_clock(self) -> tuple[str, float]:
        """The boot, and the seconds on its clock. Where a boot has no name, the time of day: a clock that begins again
        with each boot would keep a lease of the last boot until the old uptime is reached."""
        boot = boot_id()
        return ("", self.clock.now() / 1e6) if boot is None else (boot, self.clock.monotonic())

    def _lease_from_columns(self, columns: Sequence[Any]) -> Lease | None:
        epoch, holder, boot, expires = columns
        if epoch is None:
            return None
        # The clock of another boot means nothing now, and the processes of that boot have ended.
        current, now = self._lease_clock()
        return Lease(epoch=epoch, holder=holder, remaining=expires - now if boot == current else 0.0)

    def _take_lease(self, db: Connection, number: int, epoch: int, claim: Claim) -> None:
        boot, now = self._lease_clock()
        db.execute(SQL.TAKE_LEASE, (number, epoch, claim.holder, boot, now + claim.seconds))

    def renew(self, log: Log, epoch: int, seconds: float) -> None:
        def job(db: Connection) -> None:
            boot, now = self._lease_clock()
            if fetch_one(db, SQL.RENEW, (now + seconds, boot, log.number, epoch)) is None:
                columns = fetch_one(db, HEAD, (log.number,))
                current = head_from_columns(columns).epoch if columns else epoch + 1
                raise StaleEpoch(log.id, epoch=epoch, current=current)

        self.file.write(job)

    # -- reads -------------------------------------------------------------------------------------------------------

    def _scan(
        self,
        number: int,
        first: int,
        last: int,
        *,
        limit: int | None,
        reverse: bool,
        types: Sequence[str] | None,
        marked: bool,
        since: int | None,
    ) -> list[Row]:
        query = SCANS[reverse, marked, since is not None, len(types or ())]
        shifted = number << SHIFT
        bound = (shifted | first, shifted | last, *(() if since is None else (since,)), *(types or ()))

        def read() -> list[Row]:
            rows = self.file.read(lambda db: fetch_all(db, query, (*bound, -1 if limit is None else limit)))
            return [Row(*row) for row in rows]

        if not self._keys.has_master:
            return read()
        return self._read_sealed(number, read, lambda key, rows: [decrypt_row(key, number, row) for row in rows])

    # -- search ----------------------------------------------------------------------------------------------------

    def _search(
        self, log: Log, words: Sequence[str], segments: Iterable[tuple[int, int, int]], limit: int
    ) -> list[int]:
        segments = list(segments)
        self._keys.refuse_search(log)
        numbers = list(dict.fromkeys(number for number, _, _ in segments))
        query = " AND ".join(f'"{word}"' for word in words)
        while True:
            for number in numbers:
                while self._index(number):
                    pass
            found: list[int] = []
            for number, first, last in reversed(segments):
                bound = (query, number << SHIFT | first, number << SHIFT | last, limit - len(found))
                rows = self.file.read(lambda db, bound=bound: fetch_all(db, SQL.MATCH, bound))  # type: ignore[misc]
                found += [rowid & 0xFFFFFFFF for (rowid,) in rows]
                if len(found) >= limit:
                    break
            if self._has_index(numbers):
                return found[::-1]

    def _forget_words(self, db: Connection, number: int, first: int, seqs: Sequence[int] | None) -> None:
        """Remove the words of events (None: of all from `first` on) from the index, before the events lose their text.

        The index needs the same words that were added, which takes a millisecond for an event. For many events the
        whole index is emptied: it is a cache, and the next search fills it again.
        """
        found = fetch_one(db, SQL.INDEXED, (number,))
        if found is None:
            return
        shifted, upto = number << SHIFT, found[0]
        query = SCANS[False, False, False, len(INDEXED_TYPES)]
        if seqs is None:
            rows = fetch_all(db, query, (shifted | first, shifted | upto, *INDEXED_TYPES, MANY_WORDS + 1))
        else:
            few = [shifted | seq for seq in seqs if seq <= upto][: MANY_WORDS + 1]
            rows = [row for event in few for row in fetch_all(db, query, (event, event, *INDEXED_TYPES, 1))]
        if len(rows) > MANY_WORDS:
            for statement in SQL.FORGET_ALL_WORDS:
                db.execute(statement)
            return
        held = [row for row in (Row(*columns) for columns in rows) if row.body is not None]
        db.executemany(SQL.FORGET_WORDS, [(shifted | row.seq, index_text(row)) for row in held])

    def word_matches(self, log: Log, words: Sequence[str]) -> dict[str, list[int]]:
        self._keys.refuse_search(log)

        def job(db: Connection) -> dict[str, list[int]]:
            bounds = _bounds(log.number)
            found = {word: fetch_all(db, SQL.WORD_MATCHES, (f'"{word}"', *bounds)) for word in words}
            return {word: [rowid & 0xFFFFFFFF for (rowid,) in rows] for word, rows in found.items()}

        while True:
            while self._index(log.number):
                pass
            found = self.file.read(job)
            if self._has_index([log.number]):
                return found

    def _has_index(self, numbers: Iterable[int]) -> bool:
        """Whether these logs still have the index that was just read: another process may have emptied it."""

        def is_indexed(db: Connection, number: int) -> bool:
            return fetch_one(db, SQL.INDEXED, (number,)) is not None or _is_indexed(db, number)

        return all(self.file.read(partial(is_indexed, number=number)) for number in numbers)

    def _index(self, number: int) -> bool:
        """Index the next batch of a log's texts; False when there is nothing left.

        The index is filled by a search, so that a turn never pays for it.
        """

        def job(db: Connection) -> bool:
            found = fetch_one(db, SQL.INDEXED, (number,))
            upto = found[0] if found else 0
            shifted = number << SHIFT
            query = SCANS[False, False, False, len(INDEXED_TYPES)]
            bound = (shifted | upto + 1, shifted | 0xFFFFFFFF, *INDEXED_TYPES, INDEX_BATCH)
            rows = [Row(*row) for row in fetch_all(db, query, bound)]
            if not rows:
                return False
            db.executemany(SQL.ADD_WORDS, [(shifted | row.seq, index_text(row)) for row in rows])
            db.execute(SQL.SET_INDEXED, (number, rows[-1].seq))
            return True

        if self.file.read(lambda db: _is_indexed(db, number)):
            return False
        return self.file.write(job)


def _is_indexed(db: Connection, number: int) -> bool:
    found = fetch_one(db, SQL.INDEXED, (number,))
    shifted = number << SHIFT
    query = SCANS[False, False, False, len(INDEXED_TYPES)]
    bound = (shifted | (found[0] if found else 0) + 1, shifted | 0xFFFFFFFF, *INDEXED_TYPES, 1)
    return fetch_one(db, query, bound) is None


def _count_removal(db: Connection) -> None:
    """Note in the file that it holds traces of removed data until it is rewritten."""
    (count,) = fetch_one(db, "PRAGMA user_version") or (0,)
    db.execute(f"PRAGMA user_version = {count % MAX_COUNT + 1}")


def _clear_removals(db: Connection, count: int) -> None:
    if fetch_one(db, "PRAGMA user_version") == (count,):  # otherwise more was removed while the file was rewritten
        db.execute("PRAGMA user_version = 0")


def _bounds(number: int) -> tuple[int, int]:
    """The first and the last row of a log's events."""
    return number << SHIFT, (number + 1 << SHIFT) - 1
