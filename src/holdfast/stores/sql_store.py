"""The half of a store that SQLite and PostgreSQL share: new logs, removal, erasure, and rotation of the master key.

A subclass has the fast append, the search index, and the connections. A job of `_transaction` may run more than once,
because PostgreSQL tries again after it lost a connection, so a job must find out whether an attempt before it was
committed. Times, ids and salts are therefore drawn once per call, not once per attempt.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from holdfast.crashpoints import crashpoint
from holdfast.errors import Conflict, SessionBusy, SessionExists, SessionNotFound, WrongKey
from holdfast.log.events import Draft, Row
from holdfast.stores.append import (
    AppendBatch,
    AppendRequest,
    AppendResult,
    Head,
    agrees_with_remains,
    check_append,
    first_head,
    head_of_fork,
    plan_append,
    refuse_removal,
)
from holdfast.stores.base import MAX_SEQ, Fork, Log
from holdfast.stores.encrypted_rows import (
    KeyRotation,
    blob_name,
    decrypt_row,
    decrypt_tombstone,
    encrypt_blob,
    encrypt_name,
    encrypt_tombstone,
    keyed_digest,
)
from holdfast.stores.encryption import MasterKey
from holdfast.stores.erasure import INVALIDATING_TYPES, ErasurePlan, draft_notices
from holdfast.stores.kept_answers import drop_answers
from holdfast.stores.lease import Claim
from holdfast.stores.removal import find_remaining_past, make_tombstones, named_digests
from holdfast.stores.rows import (
    encode_ancestry,
    head_columns,
    head_from_columns,
    log_from_columns,
    new_log,
    replay_rows,
    session_row,
)
from holdfast.stores.sql_reads import SQLConnection
from holdfast.stores.sql_signatures import SQLSignatures
from holdfast.stores.sql_usage import SQLUsage
from holdfast.stores.stamps import AppendStamp, NewLogStamp

T = TypeVar("T")


class SQLStore(SQLUsage, SQLSignatures):
    """A store in a SQL database. Subclasses: `SQLiteStore`, `PostgresStore`."""

    # -- what a database does in its own way -------------------------------------------------------------------------

    @abstractmethod
    def _transaction(self, job: Callable[[Any], T]) -> T:
        """Run a job in a transaction and return its result when it is durable."""

    def _long_transaction(self, job: Callable[[Any], T]) -> T:
        """Run a job in a transaction that may take longer than others, because it touches many rows."""
        return self._transaction(job)

    def _key_transaction(self, job: Callable[[Any], T]) -> T:
        """Run a job that may create data keys: if it fails, no cached key of it stays."""
        return self._transaction(job)

    @abstractmethod
    def _erasure_transaction(self, log: Log, plan: ErasurePlan, job: Callable[[Any], T]) -> T:
        """Run the job of an erasure."""

    @abstractmethod
    def _pipeline(self, db: Any) -> AbstractContextManager[object]:  # noqa: ANN401 - a connection of the subclass
        """A block whose statements need no answer before the end of the block."""

    @abstractmethod
    def _event_key(self, number: int, seq: int) -> tuple[int, ...]:
        """The values of an event's key in the statement SET_TOMBSTONE."""

    @abstractmethod
    def _take_lease(self, db: Any, number: int, epoch: int, claim: Claim) -> None: ...  # noqa: ANN401

    @abstractmethod
    def _write_events(self, db: Any, number: int, batch: AppendBatch) -> None:  # noqa: ANN401
        """Write the events and names of a batch."""

    @abstractmethod
    def _erase_events(self, db: Any, number: int, tombstones: list[tuple[int, bytes]]) -> None:  # noqa: ANN401
        """Replace events by tombstones, and remove their words and the digests of their idempotency keys."""

    @abstractmethod
    def _append_in(self, db: Any, log: Log, request: AppendRequest, stamp: AppendStamp) -> AppendResult:  # noqa: ANN401
        """Append inside a transaction that is open."""

    def _find_stored(self, db: SQLConnection, log: Log, stamp: AppendStamp) -> AppendResult | None:
        """The result of an attempt whose answer was lost, if the attempt was committed."""
        return None

    @abstractmethod
    def _cut_events(self, db: Any, number: int, last: int) -> None:  # noqa: ANN401
        """Remove the events and words of a log after event `last`."""

    def _guard_immutable(self, db: SQLConnection) -> None:
        """Prepare the database for its first immutable session."""

    def _lock_master(self, db: SQLConnection) -> None:
        """Keep other processes from changing the master key until the transaction ends."""

    def _is_rotated(self, db: SQLConnection, rotation: KeyRotation) -> bool:
        """Whether the store has the new master key, because the answer to an attempt was lost."""
        return False

    def _cache_head(self, number: int, head: Head) -> None:
        """Note the head of a new log, where a store keeps heads."""

    def _forget_head(self, number: int) -> None:
        """Drop the cached head of a log, where a store keeps heads."""

    # -- encryption --------------------------------------------------------------------------------------------------

    def _adopt_master(self, db: SQLConnection) -> None:
        """Raise WrongKey unless the given master key wraps the store's keys. A new store takes the given key."""
        self._lock_master(db)
        if self._check_master(db):
            db.execute(self.sql.SET_MASTER, (self._keys.fingerprint,))

    def _check_master(self, db: SQLConnection) -> bool:
        found = db.execute(self.sql.MASTER).fetchone()
        return self._keys.check_fingerprint(None if found is None else found[0])

    def rotate_key(self, key: MasterKey) -> int:
        """Wrap the key of every log by another master key, all or nothing, and use the new master key from now on.

        No payload is rewritten. Returns the number of wrapped keys. Other processes must open the store anew.
        """
        rotation = self._keys.rotation_to(key)

        def job(db: SQLConnection) -> int:
            self._lock_master(db)
            if self._is_rotated(db, rotation):
                return len(db.execute(self.sql.KEYS).fetchall())
            self._check_master(db)
            keys = db.execute(self.sql.KEYS).fetchall()
            changed = [(rotation(uid, bytes(wrapped)), number) for number, uid, wrapped in keys]
            for at, change in enumerate(changed):
                db.execute(self.sql.SET_KEY, change)
                if at == len(changed) // 2:
                    crashpoint("inside rotation")
            db.execute(self.sql.SET_MASTER, (rotation.fingerprint,))
            return len(changed)

        done = self._across_tenants()._long_transaction(job)
        self._keys.use_rotation(rotation)
        self.tidy()
        return done

    # -- new logs ----------------------------------------------------------------------------------------------------

    def create(
        self,
        kind: str,
        id: str,
        drafts: Sequence[Draft],
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        fork: Fork | None = None,
        created_at: int | None = None,
    ) -> Log:
        request = check_append(drafts, limits=self.limits)
        birth, stamp = NewLogStamp(self.clock), AppendStamp(self.clock)

        def job(db: SQLConnection) -> tuple[Log, Head | None]:
            made = self._find_own_log(db, kind, id, birth)
            if made is not None:
                return made, None
            if fork is not None and db.execute(self.sql.LOCK_PARENT, (fork.parent.number,)).fetchone() is None:
                raise SessionNotFound(fork.parent.id)
            now, uid = birth.time_and_uid
            origin = uid if fork is None else fork.parent.origin
            log = new_log(0, uid, origin, kind, id, created_at or now, (user_id, app_name), fork)
            before = first_head(uid, now) if fork is None else head_of_fork(fork, now)
            batch = plan_append(id, before, request, lease=None, at=stamp.at, random=stamp.random)
            return self._add_log(db, log, [batch]), batch.head

        log, head = self._key_transaction(job)
        if head is not None:
            self._cache_head(log.number, head)
        return log

    def import_log(
        self,
        kind: str,
        id: str,
        origin: str,
        rows: Sequence[Row],
        blobs: dict[str, bytes],
        drafts: Sequence[Draft],
        **of: str | None,
    ) -> Log:
        request = check_append(drafts, limits=self.limits)
        birth, stamp = NewLogStamp(self.clock), AppendStamp(self.clock)

        def job(db: SQLConnection) -> Log:
            made = self._find_own_log(db, kind, id, birth)
            if made is not None:
                return made
            now, uid = birth.time_and_uid
            log = new_log(0, uid, origin, kind, id, now, (of.get("user_id"), of.get("app_name")), None)
            before = first_head(origin, now)
            batches = list(replay_rows(before, rows, blobs))
            end = batches[-1].head if batches else before
            batches.append(plan_append(id, end, request, lease=None, at=stamp.at, random=stamp.random))
            return self._add_log(db, log, batches)

        return self._key_transaction(job)

    def _find_own_log(self, db: SQLConnection, kind: str, id: str, birth: NewLogStamp) -> Log | None:
        """The log, if an attempt whose answer was lost has created it. SessionExists if the name is taken."""
        found = db.execute(self.sql.FIND, (self.tenant, kind, id)).fetchone()
        if found is None:
            return None
        log = log_from_columns(found)
        if not birth.is_drawn or log.uid != birth.time_and_uid[1]:
            raise SessionExists(id)
        return log

    def _add_log(self, db: SQLConnection, log: Log, batches: Sequence[AppendBatch]) -> Log:
        """Insert a log with the head after its first batches, and write the batches."""
        head = batches[-1].head
        changed: dict[str, Any] = {}
        for batch in batches:
            changed |= batch.changed_columns or {}
        values = (log.uid, log.origin, self.tenant, log.kind, log.id, log.base, encode_ancestry(log.ancestry))
        key = None
        self._keys.refuse_plain()
        if self._keys.has_master:
            self._check_master(db)  # another process may have changed it
            wrapped, key = self._keys.new_key(log.uid)
            log = log._replace(key=wrapped)
        # No name may hold the cursor: in SQLite it stays open in the frame of an exception, and blocks later commits.
        row = (*values, log.parent, log.created_at, *head_columns(head), log.key)
        log = log._replace(number=db.execute(self.sql.ADD_LOG, row).fetchone()[0])
        if key is not None:
            self._keys.put_key(log.number, key)
        with self._pipeline(db):
            if log.kind == "session":
                db.execute(self.sql.ADD_SESSION, session_row(log, self.tenant, head, changed, key))
                self._count_session(db, log, 1)
            for ancestor in log.ancestors:
                db.execute(self.sql.ADD_LINEAGE, (ancestor, log.number))
            for batch in batches:
                self._write_events(db, log.number, batch)
                self._write_rest(db, log.number, batch)
        if log.kind == "session":
            self._check_new_session(db, log)
        return log

    def _write_rest(self, db: SQLConnection, number: int, batch: AppendBatch) -> None:
        """Write the parts of a batch that are neither events nor names, nor columns of the session."""
        sql, key = self.sql, self._key(db, number)
        for blob in batch.blobs.items():
            db.execute(sql.ADD_BLOB, (number, *encrypt_blob(key, *blob)))
        if batch.idempotency is not None:
            name, once = batch.idempotency
            values = (number, keyed_digest(key, name.encode()), keyed_digest(key, once.digest), once.first, once.last)
            db.execute(sql.ADD_ONCE, (*values, batch.outcome.at))
        if batch.retention_row is not None:
            db.execute(sql.SET_RETENTION, (number, *batch.retention_row))
            if batch.retention_row.immutable:
                self._guard_immutable(db)
        if batch.last_active_at is not None:
            db.execute(sql.SET_ACTIVE, (batch.last_active_at, number))
        if batch.has_queued_runs:
            db.execute(sql.ADD_TO_RUN_QUEUE, (number, batch.outcome.at))
        elif batch.has_queued_runs is not None:
            db.execute(sql.DROP_FROM_RUN_QUEUE, (number,))
        if batch.memories:
            self._count_new_memories(db, number, batch)
        if batch.snapshot is not None:
            db.execute(sql.ADD_SNAPSHOT, (number, batch.head.head, batch.snapshot))
        if batch.claim is not None:
            self._take_lease(db, number, batch.head.epoch, batch.claim)
        if batch.release:
            db.execute(sql.DROP_LEASE, (number, batch.head.epoch))

    def _is_same(
        self, db: SQLConnection, number: int, asked: AppendRequest, digest: bytes, first: int, last: int
    ) -> bool:
        """Whether an append is the one that its idempotency key stored before."""
        if digest:
            return keyed_digest(self._key(db, number), asked.digest) == digest
        return agrees_with_remains(asked, first, self._read_in(db, number, first - 1, last))

    # -- removal and erasure -----------------------------------------------------------------------------------------

    def remove(self, kind: str, id: str, *, expected: int | None = None) -> bool:
        attempts: list[int] = []

        def job(db: SQLConnection) -> bool:
            found = db.execute(self.sql.FIND_AND_LOCK, (self.tenant, kind, id)).fetchone()
            if found is None:
                return bool(attempts)  # in a second attempt, the first one has removed the log
            number = found[0]
            if attempts and number != attempts[0]:
                return True  # another log of the same name, created after the first attempt was committed
            attempts.append(number)
            head = head_from_columns(db.execute(self.sql.LOCK_HEAD, (number,)).fetchone())
            if expected not in (None, head.head):
                raise Conflict(id, expected=expected or 0, head=head.head)
            refuse_removal(id, head, self._lease(db, number), self.clock.now())
            db.execute(self.sql.FREE_NAME, (number,))
            db.execute(self.sql.DROP_SESSION, (number,))
            drop_answers(db, self.sql, self.tenant, (kind, id))
            crashpoint("inside remove")
            log = log_from_columns(found)
            for ancestor in log.ancestors:  # every process takes these locks in the same order
                db.execute(self.sql.LOCK_LOG, (ancestor,))
            self._purge(db, log)
            if kind == "session":
                self._count_session(db, log, -1)
            self._forget_head(number)
            return True

        return self._long_transaction(job)

    def _purge(self, db: SQLConnection, log: Log) -> None:
        """Remove the rows of a deleted log, except for the past that forks read; then do the same with its deleted
        ancestors, of which it needs nothing any more."""
        number = log.number
        self._keys.forget_key(number)  # the key that the row has now counts
        readers = [log_from_columns(row) for row in db.execute(self.sql.DESCENDANTS, (number,)).fetchall()]
        if readers:
            self._cut(db, log, readers)
        else:
            self._count_lost_memories(db, log)
            self._cut_events(db, number, 0)
            for statement in self.sql.PURGE:
                db.execute(statement, (number,))
        for ancestor in reversed(log.ancestors):
            if not readers:
                db.execute(self.sql.DROP_LINEAGE, (ancestor, number))
            deleted = db.execute(self.sql.FIND_DELETED, (ancestor,)).fetchone()
            if deleted is not None:
                self._purge(db, log_from_columns(deleted))

    def _cut(self, db: SQLConnection, log: Log, readers: Sequence[Log]) -> None:
        """Remove what no living fork needs of a deleted log."""
        number = log.number
        views = [db.execute(self.sql.HEAD_OF_NUMBER, (reader.number,)).fetchone()[4] for reader in readers]
        shown, chained = find_remaining_past(number, zip(readers, views, strict=True))
        self._cut_events(db, number, max(chained, log.base))
        for statement in self.sql.PURGE_WORK:
            db.execute(statement, (number,))
        if chained > shown:
            self._erase_events(db, number, make_tombstones(self._read_in(db, number, shown + 1, chained)))
        self._cut_rest(db, number, shown)

    def _cut_rest(self, db: SQLConnection, number: int, last: int) -> None:
        """Remove the names, snapshots and blobs of a deleted log that do not belong to its events up to `last`."""
        for statement in self.sql.CUT:
            db.execute(statement, (number, last))
        blobs = {name for (name,) in db.execute(self.sql.BLOB_NAMES, (number,)).fetchall()}
        if blobs:
            key = self._key(db, number)
            blobs -= {blob_name(key, digest) for digest in named_digests(self._read_in(db, number, 1, last))}
        for name in blobs:
            db.execute(self.sql.DROP_BLOB, (number, name))

    def _read_in(self, db: SQLConnection, number: int, first: int, last: int) -> list[Row]:
        """The events of a log, read inside a transaction. One that its key does not decrypt keeps its hash only."""
        key = self._key(db, number)
        found = []
        for columns in db.execute(self.sql.SCAN, self._range(number, first, last)).fetchall():
            row = Row(*columns)
            try:
                found.append(decrypt_row(key, number, row))
            except WrongKey:
                found.append(Row(row.seq, row.at, "", row.header, row.tokens, None, None, row.hash))
        return found

    def apply_erasure(self, log: Log, drafts: Sequence[Draft], burial: ErasurePlan) -> AppendResult:
        request, stamp = check_append(drafts, limits=self.limits), AppendStamp(self.clock)
        notices = [
            (other, check_append([notice], limits=self.limits), AppendStamp(self.clock))
            for other, notice in draft_notices(log, drafts, burial)
        ]

        def job(db: SQLConnection) -> AppendResult:
            found = {}
            for number in sorted({*burial.heads, *burial.living}):  # every process takes these locks in this order
                lock = self.sql.LOCK_HEAD_OF_NUMBER if number in burial.heads else self.sql.LOCK_PARENT
                found[number] = db.execute(lock, (number,)).fetchone()
                self._keys.forget_key(number)  # the key that the row has now counts
            stored = self._find_stored(db, log, stamp)
            if stored is not None:
                return stored
            if any(found[number] is None for number in burial.living):  # one was deleted since the plan
                raise Conflict(log.id, expected=burial.heads[log.number], head=burial.heads[log.number])
            for number, planned in burial.heads.items():
                head = None if found[number] is None else head_from_columns(found[number])
                if head is None or (head.head != planned and not self._allows_appends(db, number, planned, burial)):
                    raise Conflict(log.id, expected=planned, head=0 if head is None else head.head)
            for number, readers in burial.readers.items():  # a fork may be new since the plan
                if readers != {reader for (reader,) in db.execute(self.sql.READERS, (number,)).fetchall()}:
                    raise Conflict(log.id, expected=burial.heads[number], head=burial.heads[number])
            if burial.whole_logs:
                lease = self._lease(db, log.number) if log.number in burial.whole_logs else None
                if lease is not None and lease.is_alive:
                    raise SessionBusy(log.id, retry_after=lease.remaining)
                for number in burial.tombstones:
                    db.execute(self.sql.ADD_ERASURE, (number, stamp.at, number, number in burial.whole_logs))
            self._erase_parts(db, burial)
            for other, notice, moment in notices:
                self._append_in(db, other, notice, moment)
            result = self._append_in(db, log, request, stamp)
            for number in burial.tombstones if burial.whole_logs else ():
                db.execute(self.sql.CLOSE_ERASURE, (number,))
            return result

        return self._erasure_transaction(log, burial, job)

    def _allows_appends(self, db: SQLConnection, number: int, planned: int, burial: ErasurePlan) -> bool:
        """Whether the events that were appended since the plan repeat nothing that is to be erased."""
        if not burial.allows_unrelated_appends:
            return False
        values = (*self._range(number, planned + 1, MAX_SEQ), *INVALIDATING_TYPES)
        return db.execute(self.sql.HAS_TYPES, values).fetchone() is None

    def _erase_parts(self, db: SQLConnection, burial: ErasurePlan) -> None:
        for number in burial.touched_logs:
            _, _, _, kind, id, *_ = db.execute(self.sql.FIND_NUMBER, (number,)).fetchone()
            if id is not None:
                drop_answers(db, self.sql, self.tenant, (kind, id))
        for number, tombstones in burial.tombstones.items():
            self._erase_events(db, number, tombstones)
        for number, digests in burial.blobs.items():
            for digest in digests:
                db.execute(self.sql.DROP_BLOB, (number, blob_name(self._key(db, number), digest)))
        for number, names in burial.names.items():
            for name, seq in names:
                db.execute(self.sql.DROP_NAME, (number, encrypt_name(self._key(db, number), name), seq))
            self._count_forgotten(db, number, {name for name, _ in names})
        crashpoint("inside burial")
        for number, last in burial.cuts.items():
            self._cut_rest(db, number, last)
        for number in burial.whole_logs:
            self._erase_rest(db, number)
        for number, columns in burial.columns.items():
            for column in columns:
                db.execute(self.sql.SET_SESSION[column], (None, number))

    def _erase_rest(self, db: SQLConnection, number: int) -> None:
        """Erase all but the events of a log, and replace its key, so that old copies of the data are not readable."""
        self._count_erased_log(db, number)
        for statement in self.sql.ERASE_WHOLE:
            db.execute(statement, (number,))
        db.execute(self.sql.FORGET_OWNER, (number,))
        uid, wrapped = db.execute(self.sql.KEY, (number,)).fetchone() or ("", None)
        if wrapped is None:
            return
        self._check_master(db)  # another process may have changed it, and would not open what this one wraps
        old = self._key(db, number)
        wrapped, key = self._keys.new_key(uid)
        rows = db.execute(self.sql.TOMBSTONES, self._range(number, 0, MAX_SEQ)).fetchall()
        for row in [Row(*columns) for columns in rows]:
            plain = decrypt_tombstone(old, number, row.seq, row.tombstone)
            tombstone = encrypt_tombstone(key, number, row.seq, plain or b"")
            db.execute(self.sql.SET_TOMBSTONE, (tombstone, *self._event_key(number, row.seq)))
        db.execute(self.sql.SET_KEY, (wrapped, number))
        self._keys.put_key(number, key)
