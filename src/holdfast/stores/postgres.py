"""Logs in PostgreSQL. The common append is one statement; everything else is one transaction on the locked head.

An append remembers the batches that it planned. When an answer is lost, the next attempt takes the same row lock and
looks for an event with the hash of the batch (salts make hashes unique), so an append without an idempotency key is
stored once as well.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.crashpoints import crashpoint
from holdfast.errors import (
    AgentError,
    SessionNotFound,
    StaleEpoch,
    StoreError,
    StoreReentered,
)
from holdfast.log.events import INDEXED_TYPES, Draft, Row
from holdfast.log.messages import Limits
from holdfast.stores.append import (
    AppendBatch,
    AppendRequest,
    AppendResult,
    Head,
    check_append,
    plan_append,
    repeat_outcome,
)
from holdfast.stores.base import MAX_SEQ, Log
from holdfast.stores.encrypted_rows import (
    KeyRotation,
    Keys,
    decrypt_row,
    encrypt_name,
    encrypt_row,
    encrypt_tombstone,
    keyed_digest,
)
from holdfast.stores.encryption import DataKey, MasterKey
from holdfast.stores.erasure import ErasurePlan
from holdfast.stores.key_values import PostgresKeyValues
from holdfast.stores.lease import Claim, Lease
from holdfast.stores.places import Call, Places
from holdfast.stores.postgres_connections import MAX_CONNECTIONS, STRIPES, Connection, DatabaseError, PostgresServer
from holdfast.stores.postgres_statements import SQL
from holdfast.stores.postgres_tenants import TenantConnections
from holdfast.stores.rows import INDEX_BATCH, head_columns, head_from_columns, index_text, session_columns
from holdfast.stores.sql_reads import SQLConnection
from holdfast.stores.sql_store import SQLStore
from holdfast.stores.stamps import AppendStamp
from holdfast.stores.statements import Statements

T = TypeVar("T")
MAX_CACHED = 10_000


class _HeadCache:
    """The heads that this process saw last. A head may be old: the statement that uses it checks it."""

    def __init__(self, server: TenantConnections) -> None:
        self._server = server

    def lock(self, number: int) -> Places:
        """Threads of one process queue here for a log, so that they do not race for its head on the server."""
        return self._server.locks[number % STRIPES]

    def get(self, number: int) -> Head | None:
        return self._server.heads.get(number)

    def put(self, number: int, head: Head) -> None:
        if len(self._server.heads) >= MAX_CACHED:
            self._server.heads.clear()
        self._server.heads[number] = head

    def forget(self, number: int) -> None:
        self._server.heads.pop(number, None)


class PostgresStore(PostgresKeyValues, SQLStore):
    """Sessions in a PostgreSQL database, for several servers: `PostgresStore("postgresql://user@host/database")`."""

    sql: ClassVar[Statements] = SQL

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = MAX_CONNECTIONS,
        patience: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
        limits: Limits | None = None,
        tenant: str = "",
        key: MasterKey | None = None,
    ) -> None:
        super().__init__(clock=clock, limits=limits, tenant=tenant)
        self._keys = Keys(key)
        server = PostgresServer(dsn, connections=connections, patience=patience, clock=SYSTEM_CLOCK, stopwatch=clock)
        self.server = TenantConnections(server, tenant)
        self._heads = _HeadCache(self.server)
        try:
            if key is not None:
                self.server.transaction(self._adopt_master)
            else:
                self._keys.note_encryption((self.server.fetch_one(SQL.MASTER) or (None,))[0])
        except BaseException:
            self.server.close()
            raise

    def __repr__(self) -> str:
        return "PostgresStore(…)"  # the connection string may hold a password

    def for_tenant(self, tenant: str) -> Self:
        bound = super().for_tenant(tenant)
        bound.server = self.server.for_tenant(tenant)
        return bound

    def _across_tenants(self) -> Self:
        open_store = copy.copy(self)
        open_store.server = self.server.for_tenant(None)
        return open_store

    def close(self) -> None:
        self.server.close()

    @property
    def is_closed(self) -> bool:
        return self.server.closed

    @property
    def write_fault(self) -> StoreError | None:
        return self.server.pool.write_fault

    # -- the database's own way --------------------------------------------------------------------------------------

    def _fetch_one(self, query: str, values: tuple[Any, ...] = ()) -> Any:  # noqa: ANN401 - a row, or None
        return self.server.fetch_one(query, values)

    def _fetch_all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return self.server.fetch(query, values)

    def _transaction(self, job: Callable[[Connection], T]) -> T:
        return self.server.transaction(job)

    def _hold_log(self, number: int, work: Callable[[], T]) -> T:
        """Do some work while no other thread of this process writes to the log."""
        call, lock = Call(sys._getframe()), self._heads.lock(number)
        if not lock.take(call):
            raise StoreReentered(
                "this thread was interrupted inside a write to PostgreSQL, by a signal handler or a finalizer that "
                "writes as well: let it set a flag or start a thread, and write from there"
            )
        try:
            return work()
        finally:
            lock.release(call)
            call.end()

    def _erasure_transaction(self, log: Log, plan: ErasurePlan, job: Callable[[Connection], T]) -> T:
        def work() -> T:
            try:
                return self._long_transaction(job)
            except BaseException:
                self._keys.clear_cache()
                raise
            finally:
                for number in plan.heads:
                    self._heads.forget(number)

        return self._hold_log(log.number, work)

    def _long_transaction(self, job: Callable[[Connection], T]) -> T:
        def long_job(db: Connection) -> T:
            db.allow_long_work()
            return job(db)

        return self.server.transaction(long_job)

    def _pipeline(self, db: Connection) -> AbstractContextManager[object]:
        return db.pipeline()

    def _range(self, number: int, first: int, last: int) -> tuple[int, int, int]:
        return number, first, last

    def _event_key(self, number: int, seq: int) -> tuple[int, int]:
        return number, seq

    def heads(self, numbers: Sequence[int]) -> dict[int, int]:
        return dict(self._across_tenants().server.fetch(SQL.HEADS, (list(numbers),)))

    def _lock_master(self, db: SQLConnection) -> None:
        db.execute(SQL.LOCK_MASTER_KEY)

    def _lock_usage(self, db: SQLConnection) -> None:
        db.execute(SQL.LOCK_USAGE)

    def _is_rotated(self, db: SQLConnection, rotation: KeyRotation) -> bool:
        found = db.execute(SQL.MASTER).fetchone()
        return found is not None and found[0] == rotation.fingerprint

    def _cache_head(self, number: int, head: Head) -> None:
        self._heads.put(number, head)

    def _forget_head(self, number: int) -> None:
        self._heads.forget(number)

    def _erase_events(self, db: Connection, number: int, tombstones: list[tuple[int, bytes]]) -> None:
        key = self._key(db, number)
        with db.pipeline():
            for seq, tombstone in tombstones:
                db.execute(SQL.SET_TOMBSTONE, (encrypt_tombstone(key, number, seq, tombstone), number, seq))
                db.execute(SQL.DROP_WORDS, (number, seq))
                db.execute(SQL.CLEAR_ONCE_DIGEST, (b"", number, seq, seq))

    def _cut_events(self, db: Connection, number: int, last: int) -> None:
        db.execute(SQL.CUT_EVENTS, (number, last))
        db.execute(SQL.CUT_WORDS, (number, last))

    def schedule_sweep(self, log: Log, due: int | None) -> None:
        self.server.run_unit(lambda db: db.execute(SQL.SCHEDULE_SWEEP, (due, log.number)))

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
        number, moment = log.number, AppendStamp(self.clock)

        def work() -> AppendResult:
            head = self._heads.get(number)
            plain = once is None and claim is None and not release and expected in (None, head and head.head)
            if (
                plain
                and head is not None
                and epoch in (None, head.epoch)
                and self._append_fast(log, head, asked, moment)
            ):
                return moment.batches[-1].outcome
            try:
                outcome, after = self.server.transaction(lambda db: self._append(db, number, log.id, asked, moment))
            except BaseException:
                self._heads.forget(number)
                raise
            self._heads.put(number, after)
            return outcome

        return self._hold_log(number, work)

    def _append_fast(self, log: Log, head: Head, asked: AppendRequest, moment: AppendStamp) -> bool:
        """One statement, if the head is where this process left it and there is nothing but events and names."""
        try:
            batch = plan_append(log.id, head, asked, lease=None, at=moment.at, random=moment.random)
        except AgentError:
            return False  # the cached head may be old: the locked head decides
        if not batch.is_simple:
            return False
        after, key = batch.head, self._data_key(log.number)
        values: list[Any] = [
            after.head, after.hash, after.tokens, after.view, after.busy, after.marks, after.updated_at,
            log.number, head.head, head.epoch, *_column_arrays(batch, log.number, key),
        ]  # fmt: skip
        query = SQL.APPEND
        if batch.names:
            query = SQL.APPEND_NAMED
            values += [list(column) for column in zip(*_name_rows(batch, key), strict=True)]
        moment.batches.append(batch)
        crashpoint("before commit")
        try:
            moved = self.server.run_once(lambda db: db.execute(query, values).fetchone())
        except DatabaseError:
            return False  # lost or refused: the transaction that follows finds out whether it was committed
        crashpoint("after commit")
        if moved is None:
            moment.batches.clear()  # the head had moved: nothing was written
            return False
        self._heads.put(log.number, after)
        return True

    def _append(
        self,
        db: Connection,
        number: int,
        id: str,
        asked: AppendRequest,
        moment: AppendStamp,
    ) -> tuple[AppendResult, Head]:
        columns = db.execute(SQL.LOCK_HEAD, (number,)).fetchone()
        if columns is None:
            raise SessionNotFound(id)
        before = head_from_columns(columns)
        for batch in moment.batches:
            if self._is_stored(db, number, batch):
                return batch.outcome, before
        if asked.idempotency_key is not None:
            key = self._key(db, number)
            found = db.execute(SQL.ONCE, (number, keyed_digest(key, asked.idempotency_key.encode()))).fetchone()
            if found is not None:
                digest, first, last = found
                is_same = self._is_same(db, number, asked, digest, first, last)
                return repeat_outcome(id, asked, is_same, first, last, before.epoch), before
        lease = None if asked.claim is None else self._lease(db, number)
        batch = plan_append(id, before, asked, lease=lease, at=moment.at, random=moment.random)
        moment.batches.append(batch)
        self._write(db, number, batch)
        return batch.outcome, batch.head

    def _append_in(self, db: Connection, log: Log, request: AppendRequest, stamp: AppendStamp) -> AppendResult:
        return self._append(db, log.number, log.id, request, stamp)[0]

    def _find_stored(self, db: SQLConnection, log: Log, stamp: AppendStamp) -> AppendResult | None:
        return next((batch.outcome for batch in stamp.batches if self._is_stored(db, log.number, batch)), None)

    def _is_stored(self, db: SQLConnection, number: int, batch: AppendBatch) -> bool:
        """Whether an attempt whose answer was lost was committed after all."""
        if batch.rows:
            found = db.execute(SQL.HASH_AT, (number, batch.rows[-1].seq)).fetchone()
            return found is not None and found[0] == batch.rows[-1].hash
        if batch.claim is not None:
            lease = self._lease(db, number)
            return lease is not None and (lease.epoch, lease.holder) == (batch.head.epoch, batch.claim.holder)
        lease = self._lease(db, number)
        return (
            lease is None or lease.epoch != batch.head.epoch
        )  # a release: it is done if the lease is not ours any more

    def _write(self, db: Connection, number: int, batch: AppendBatch) -> None:
        crashpoint("before events")
        with db.pipeline():
            self._write_events(db, number, batch)
            self._write_rest(db, number, batch)
            crashpoint("between events and head")
            db.execute(SQL.SET_HEAD, (*head_columns(batch.head), number))
            for column, value in session_columns(batch.changed_columns or {}, self._key(db, number)).items():
                db.execute(SQL.SET_SESSION[column], (value, number))

    def _write_events(self, db: Connection, number: int, batch: AppendBatch) -> None:
        key = self._key(db, number)
        if batch.rows:
            db.execute(SQL.ADD_EVENTS, (number, *_column_arrays(batch, number, key)))
        for name, seq, ref in _name_rows(batch, key):
            db.execute(SQL.ADD_NAME, (number, name, seq, ref))

    def read_time(self) -> int:
        if self.clock.is_simulated:
            return self.clock.now()
        return int(self._fetch_one(SQL.TIME)[0])

    # -- leases ------------------------------------------------------------------------------------------------------

    def _lease_from_columns(self, columns: Sequence[Any]) -> Lease | None:
        epoch, holder, remaining = columns
        if epoch is None:
            return None
        return Lease(epoch=epoch, holder=bytes(holder), remaining=remaining)

    def _take_lease(self, db: Connection, number: int, epoch: int, claim: Claim) -> None:
        db.execute(SQL.TAKE_LEASE, (number, epoch, claim.holder, claim.seconds))

    def renew(self, log: Log, epoch: int, seconds: float) -> None:
        if self.server.fetch_one(SQL.RENEW, (seconds, log.number, epoch)) is None:
            found = self.server.fetch_one(SQL.HEAD, (log.number,))
            raise StaleEpoch(log.id, epoch=epoch, current=found[2] if found else epoch + 1)

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
        query = SQL.SCAN
        values: list[Any] = [number, first, last]
        if marked:
            query += " AND changes_view IS NOT NULL"
        if since is not None:
            query += " AND at >= %s"
            values.append(since)
        if types:
            query += " AND type = ANY(%s)"
            values.append(list(types))
        query += " ORDER BY seq DESC" if reverse else " ORDER BY seq"
        if limit is not None:
            query += " LIMIT %s"
            values.append(limit)

        def read() -> list[Row]:
            return [Row(*row) for row in self.server.fetch(query, tuple(values))]

        if not self._keys.has_master:
            return read()
        return self._read_sealed(number, read, lambda key, rows: [decrypt_row(key, number, row) for row in rows])

    # -- search ----------------------------------------------------------------------------------------------------

    def _search(
        self, log: Log, words: Sequence[str], segments: Iterable[tuple[int, int, int]], limit: int
    ) -> list[int]:
        segments = list(segments)
        self._keys.refuse_search(log)
        for number in dict.fromkeys(number for number, _, _ in segments):
            while self._index(number):
                pass
        query = " & ".join(f"'{word}'" for word in words)
        found: list[int] = []
        for number, first, last in reversed(segments):
            rows = self.server.fetch(SQL.MATCH, (number, first, last, query, limit - len(found)))
            found += [seq for (seq,) in rows]
            if len(found) >= limit:
                break
        return found[::-1]

    def word_matches(self, log: Log, words: Sequence[str]) -> dict[str, list[int]]:
        self._keys.refuse_search(log)
        while self._index(log.number):
            pass
        found: dict[str, list[int]] = {word: [] for word in words}
        for word, seq in self.server.fetch(SQL.WORD_MATCHES, (log.number, list(found))):
            found[word].append(seq)
        return found

    def _index(self, number: int) -> bool:
        """Index the next batch of a log's texts; False when there is nothing left."""
        found = self.server.fetch_one(SQL.INDEXED, (number,))
        start = (number, (found[0] if found else 0) + 1, MAX_SEQ, list(INDEXED_TYPES), 1)
        if self.server.fetch_one(SQL.UNINDEXED, start) is None:
            return False

        def job(db: Connection) -> bool:
            db.execute(SQL.LOCK_INDEX, (number,))
            if db.execute(SQL.SHARE_LOG, (number,)).fetchone() is None:
                return False  # the log was purged: its words must not come back
            found = db.execute(SQL.INDEXED, (number,)).fetchone()
            start = (number, (found[0] if found else 0) + 1, MAX_SEQ, list(INDEXED_TYPES), INDEX_BATCH)
            rows = [Row(*row) for row in db.execute(SQL.UNINDEXED, start).fetchall()]
            if rows:
                db.execute(SQL.ADD_WORDS, (number, [row.seq for row in rows], [index_text(row) for row in rows]))
                db.execute(SQL.SET_INDEXED, (number, rows[-1].seq))
            return bool(rows)

        return self.server.transaction(job)


def _name_rows(batch: AppendBatch, key: DataKey | None) -> list[tuple[bytes, int, int | None]]:
    return [(encrypt_name(key, name), seq, ref) for name, seq, ref in batch.names]


def _column_arrays(batch: AppendBatch, number: int, key: DataKey | None) -> list[list[Any]]:
    """The rows as one array per column, for unnest."""
    rows = batch.rows if key is None else [encrypt_row(key, number, row) for row in batch.rows]
    return [
        [row.seq for row in rows],
        [row.at for row in rows],
        [row.type for row in rows],
        [row.header for row in rows],
        [row.tokens for row in rows],
        [row.body for row in rows],
        [row.tombstone for row in rows],
        [row.hash for row in rows],
        [mark or None for mark in batch.changes_view],
    ]
