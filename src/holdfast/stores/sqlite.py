"""Logs in a SQLite file: `append` plans with the shared rules, and the plan is written in one grouped transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.clock import REAL, Ids, crashpoint
from holdfast.errors import Conflict, InvalidArgument, SessionBusy, SessionExists, SessionNotFound, StaleEpoch
from holdfast.log.events import INDEXED_TYPES, MESSAGE_TYPES, Draft, Row
from holdfast.log.messages import Limits
from holdfast.stores.append import (
    Appended,
    Batch,
    Head,
    Request,
    first_head,
    forked_head,
    plan,
    refuse_removal,
    repeated,
    request,
)
from holdfast.stores.base import Due, Fork, Info, Log, Store
from holdfast.stores.encrypted_rows import (
    Keys,
    blob_name,
    hidden,
    marked,
    opened,
    opened_blob,
    opened_tomb,
    sealed,
    sealed_blob,
    sealed_tomb,
    shown,
)
from holdfast.stores.encryption import DataKey, MasterKey
from holdfast.stores.erasure import DERIVING, Burial, shared_records
from holdfast.stores.key_values import SQLiteSlips
from holdfast.stores.lease import Claim, Lease, boot_id
from holdfast.stores.rows import (
    INDEX_BATCH,
    ancestry_bytes,
    info_of,
    log_of,
    new_log,
    replay,
    searchable,
    session_columns,
    session_row,
)
from holdfast.stores.sqlite_connections import Connection, SQLiteFile, many, one

T = TypeVar("T")
SHIFT = 32
MANY_WORDS = 500  # events whose words are taken out of the index one by one; with more, all of it is made anew
LOG = """SELECT l.log, l.uid, l.origin, l.kind, l.id, l.created_at, l.base, l.ancestry, s.user_id, s.app_name, l.parent,
    l.key FROM logs l LEFT JOIN sessions s ON s.log = l.log"""
DEAD = LOG + " WHERE l.log = ? AND l.id IS NULL"
BY_NUMBER = LOG + " WHERE l.log = ?"
SHARERS = LOG + " WHERE l.log IN (SELECT log FROM lineage WHERE ancestor = ?) ORDER BY l.log"
FIND = LOG + " WHERE l.tenant = ? AND l.kind = ? AND l.id = ?"
HEAD = "SELECT head, hash, epoch, tokens, view, busy, marks, updated_at FROM logs WHERE log = ? AND id IS NOT NULL"
BARE_HEAD = "SELECT head, hash, epoch, tokens, view, busy, marks, updated_at FROM logs WHERE log = ?"
HEADS = "SELECT log, head FROM logs WHERE log IN (SELECT value FROM json_each(?)) AND id IS NOT NULL"
MOVE = "UPDATE logs SET head=?, hash=?, epoch=?, tokens=?, view=?, busy=?, marks=?, updated_at=? WHERE log = ?"
MOVE_PLAIN = "UPDATE logs SET head=?, hash=?, tokens=?, updated_at=? WHERE log = ?"
ADD_EVENT = "INSERT INTO events(event, at, type, header, tokens, body, tomb, hash, marked) VALUES(?,?,?,?,?,?,?,?,?)"
ADD_NAME = "INSERT INTO names VALUES(?,?,?,?)"
ADD_BLOB = "INSERT INTO blobs VALUES(?,?,?) ON CONFLICT DO NOTHING"
ADD_SNAPSHOT = "INSERT INTO snapshots VALUES(?,?,?)"
ADD_LOG = """INSERT INTO logs(uid, origin, tenant, kind, id, base, ancestry, parent, created_at,
    head, hash, epoch, tokens, view, busy, marks, updated_at, key)
    VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) RETURNING log"""
ADD_SESSION = "INSERT INTO sessions VALUES(?,?,?,?,?,?,?,?)"
ADD_LINEAGE = "INSERT INTO lineage VALUES(?,?)"
SET_SESSION = {
    "status": "UPDATE sessions SET status = ? WHERE log = ?",
    "title": "UPDATE sessions SET title = ? WHERE log = ?",
    "metadata": "UPDATE sessions SET metadata = ? WHERE log = ?",
    "work_dir": "UPDATE sessions SET work_dir = ? WHERE log = ?",
}
ONCE = "SELECT digest, first, last FROM once WHERE log = ? AND key = ?"
ADD_ONCE = "INSERT INTO once VALUES(?,?,?,?,?,?)"
LEASE = "SELECT epoch, holder, boot, expires FROM leases WHERE log = ?"
TAKE_LEASE = "INSERT OR REPLACE INTO leases VALUES(?,?,?,?,?)"
RENEW = "UPDATE leases SET expires = ?, boot = ? WHERE log = ? AND epoch = ? RETURNING log"
DROP_LEASE = "DELETE FROM leases WHERE log = ? AND epoch = ?"
INFO = """SELECT l.log, l.uid, l.origin, l.kind, l.id, l.created_at, l.base, l.ancestry,
    s.user_id, s.app_name, l.parent, l.key, s.status, s.title, s.metadata, s.work_dir, l.updated_at
    FROM sessions s JOIN logs l ON l.log = s.log"""
INFO_ONE = INFO + " WHERE s.log = ?"
NUMBER_OF = "SELECT log FROM logs WHERE tenant = ? AND kind = 'session' AND id = ?"
SCAN = """SELECT event & 4294967295, at, type, header, tokens, body, tomb, hash
    FROM events WHERE event BETWEEN ? AND ?"""
COUNT = f"""SELECT count(*) FROM events
    WHERE event BETWEEN ? AND ? AND type IN ({",".join("?" * len(MESSAGE_TYPES))})"""
ID_OF = "SELECT id FROM logs WHERE tenant = ? AND log = ? AND id IS NOT NULL"
NAME = """SELECT n.ref, e.event & 4294967295, e.at, e.type, e.header, e.tokens, e.body, e.tomb, e.hash
    FROM names n LEFT JOIN events e ON e.event = (n.log << 32 | n.ref)
    WHERE n.log = ? AND n.name = ? AND n.seq <= ? ORDER BY n.seq DESC LIMIT 1"""
NAMES = "SELECT name, ref, max(seq) FROM names WHERE log = ? AND name >= ? AND name < ? AND seq <= ? GROUP BY name"
SNAPSHOT = "SELECT seq, view FROM snapshots WHERE log = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
# Against INSERT OR REPLACE, which fires no other trigger. Made with the first immutable session, because every insert
# pays for it.
GUARD_REPLACE = """CREATE TRIGGER IF NOT EXISTS events_replace BEFORE INSERT ON events
    WHEN EXISTS (SELECT 1 FROM locked WHERE log = NEW.event >> 32)
    BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable') FROM events WHERE event = NEW.event; END"""
ALL_TOMBS = SCAN + " AND tomb IS NOT NULL"
BLOB = "SELECT data FROM blobs WHERE log = ? AND digest = ?"
TAKEN = "SELECT 1 FROM logs WHERE tenant = ? AND kind = ? AND id = ?"
ALIVE = "SELECT 1 FROM logs WHERE log = ? AND id IS NOT NULL"
INDEXED = "SELECT upto FROM indexed WHERE log = ?"
SET_INDEXED = "INSERT INTO indexed VALUES(?,?) ON CONFLICT(log) DO UPDATE SET upto = ?2"
ADD_WORDS = "INSERT INTO words(rowid, text) VALUES(?,?)"
MATCH = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?"
HITS = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid"
HAS_TYPES = f"""SELECT 1 FROM events
    WHERE event BETWEEN ? AND ? AND type IN ({",".join("?" * len(DERIVING))}) LIMIT 1"""
READERS = "SELECT log FROM lineage WHERE ancestor = ?"
NEEDED = "SELECT 1 FROM lineage WHERE ancestor = ? LIMIT 1"
DROP_LINEAGE = "DELETE FROM lineage WHERE ancestor = ? AND log = ?"
FREE_NAME = "UPDATE logs SET id = NULL WHERE log = ?"
DROP_SESSION = "DELETE FROM sessions WHERE log = ?"
FORGET_WORDS = "INSERT INTO words(words, rowid, text) VALUES('delete', ?, ?)"
FORGET_ALL_WORDS = ("INSERT INTO words(words) VALUES('delete-all')", "DELETE FROM indexed")
PURGE = (
    "DELETE FROM names WHERE log = ?",
    "DELETE FROM once WHERE log = ?",
    "DELETE FROM leases WHERE log = ?",
    "DELETE FROM snapshots WHERE log = ?",
    "DELETE FROM blobs WHERE log = ?",
    "DELETE FROM indexed WHERE log = ?",
    "DELETE FROM keeping WHERE log = ?",
    "DELETE FROM work WHERE log = ?",
    "DELETE FROM logs WHERE log = ?",
)
SET_KEEP = """INSERT INTO keeping(log, ttl, immutable, held, active, due) VALUES(?,?,?,?,?,0)
    ON CONFLICT(log) DO UPDATE SET ttl = excluded.ttl, immutable = excluded.immutable, held = excluded.held,
    active = max(active, excluded.active), due = 0"""
SET_ACTIVE = "UPDATE keeping SET active = max(active, ?) WHERE log = ?"
DUE = (
    LOG.replace("SELECT", "SELECT l.tenant,", 1)
    + """ JOIN keeping k ON k.log = l.log
    WHERE k.due <= ? AND l.id IS NOT NULL AND (? = '' OR l.tenant = ?) ORDER BY k.due, k.log LIMIT ?"""
)
PUT_OFF = "UPDATE keeping SET due = ? WHERE log = ?"
ADD_WORK = "INSERT OR IGNORE INTO work VALUES(?,?)"
DROP_WORK = "DELETE FROM work WHERE log = ?"
WORK = (
    LOG.replace("SELECT", "SELECT l.tenant, x.epoch, x.holder, x.boot, x.expires,", 1)
    + """ JOIN work w ON w.log = l.log LEFT JOIN leases x ON x.log = l.log
    WHERE w.log > ? AND l.id IS NOT NULL AND (? = '' OR l.tenant = ?) ORDER BY w.log LIMIT ?"""
)
BURY = "UPDATE events SET body = NULL, tomb = ? WHERE event = ?"
BURY_ONCE = "UPDATE once SET digest = x'' WHERE log = ? AND first <= ? AND last >= ?"
DROP_BLOB = "DELETE FROM blobs WHERE log = ? AND digest = ?"
DROP_NAME = "DELETE FROM names WHERE log = ? AND name = ? AND seq = ?"
ADD_ERASURE = "INSERT OR IGNORE INTO erasures VALUES(?,?,1)"
CLOSE_ERASURE = "UPDATE erasures SET open = 0 WHERE log = ? AND open = 1"
FORGET_OWNER = "UPDATE sessions SET user_id = NULL, title = NULL, metadata = NULL, work_dir = NULL WHERE log = ?"
ERASE_WHOLE = (
    "DELETE FROM names WHERE log = ?",
    "DELETE FROM once WHERE log = ?",
    "DELETE FROM blobs WHERE log = ?",
    "DELETE FROM indexed WHERE log = ?",
)
SET_KEY = "UPDATE logs SET key = ? WHERE log = ?"
KEYS = "SELECT log, uid, key FROM logs WHERE key IS NOT NULL"
KEY = "SELECT uid, key FROM logs WHERE log = ?"
MASTER = "SELECT master FROM vault"
SET_MASTER = "INSERT INTO vault VALUES(1, ?) ON CONFLICT(one) DO UPDATE SET master = excluded.master"
PURGE_EVENTS = "DELETE FROM events WHERE event BETWEEN ? AND ?"


class SQLiteStore(SQLiteSlips, Store):
    """Sessions in one SQLite file, which several processes may share: `SQLiteStore("sessions.db")`.

    Every change is on disk before the call returns. `synchronous="NORMAL"` is faster and may lose the last changes at
    a power cut, never their order. With `key=` everything that is written is encrypted (pip install holdfast[secure]).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "FULL",
        busy_seconds: float = 10.0,
        ids: Ids = REAL,
        limits: Limits | None = None,
        tenant: str = "",
        key: MasterKey | None = None,
        vfs: str | None = None,
    ) -> None:
        super().__init__(ids=ids, limits=limits, tenant=tenant)
        self._keys = Keys(key)
        self.file = SQLiteFile(path, synchronous=synchronous, busy_seconds=busy_seconds, vfs=vfs)
        try:
            if key is not None:
                self.file.write(self._check_master)
            else:
                self._keys.found(self.file.read(lambda db: (one(db, MASTER) or (None,))[0]))
        except BaseException:
            self.file.close()
            raise

    def __repr__(self) -> str:
        return f"SQLiteStore({self.file.path!r})"

    def close(self) -> None:
        self.file.close()

    def backup(self, path: str | Path) -> None:
        """Copy the database to a new file while it is being written, through SQLite's own backup."""

        def copy(db: Connection) -> None:
            with apsw.Connection(str(path)) as target, target.backup("main", db, "main") as step:
                while not step.done:
                    step.step(1000)
            target.close()

        self.file.read(copy)

    # -- encryption ------------------------------------------------------------------------------------------------

    def _check_master(self, db: Connection) -> None:
        """Raise unless the store's keys are wrapped by the master key that was given; a new store takes it on."""
        found = one(db, MASTER)
        if self._keys.agree(None if found is None else found[0]):
            db.execute(SET_MASTER, (self._keys.fingerprint,))

    def rotate_key(self, key: MasterKey) -> int:
        """Wrap every log's key by another master key, all or nothing, and use that from now on. No payload is
        rewritten. Returns how many keys there were. Other processes must open the store anew."""
        rewrap = self._keys.to(key)

        def job(db: Connection) -> int:
            self._check_master(db)
            changed = [(rewrap(uid, wrapped), number) for number, uid, wrapped in many(db, KEYS)]
            for at, change in enumerate(changed):
                db.execute(SET_KEY, change)
                if at == len(changed) // 2:
                    crashpoint("inside rotation")
            db.execute(SET_MASTER, (rewrap.fingerprint,))
            return len(changed)

        done = self.file.write(job)
        self._keys.use(rewrap)
        self._forget_old_pages()
        return done

    def _key(self, db: Connection, number: int) -> DataKey | None:
        if not self._keys.has_master:
            return None
        return self._keys.get(number, lambda: one(db, KEY, (number,)))

    def _data_key(self, number: int) -> DataKey | None:
        if not self._keys.has_master:
            return None
        return self._keys.get(number, lambda: self.file.read(lambda db: one(db, KEY, (number,))))

    def _write_keys(self, job: Callable[[Connection], T]) -> T:
        """A job that may make a key: if it fails, that key is nobody's."""
        try:
            return self.file.write(job)
        except BaseException:
            self._keys.forget()
            raise

    def tidy(self) -> None:
        self._forget_old_pages()

    def _forget_old_pages(self) -> None:
        """Leave nothing of what was removed in the write-ahead log; freed pages are overwritten as they are freed."""
        self.file.truncate_wal()

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
    ) -> Appended:
        asked = request(
            drafts, limits=self.limits, once=once, epoch=epoch, expected=expected, claim=claim, release=release
        )
        return self.file.write(lambda db: self._append(db, log.number, log.id, asked))

    def _append(self, db: Connection, number: int, id: str, asked: Request) -> Appended:
        before = _head(db, number)
        if before is None:
            raise SessionNotFound(id)
        if asked.once is not None:
            found = one(db, ONCE, (number, marked(self._key(db, number), asked.once.encode())))
            if found is not None:
                digest, first, last = found
                given = marked(self._key(db, number), asked.digest)
                return repeated(id, asked, given == digest, first, last, before.epoch)
        lease = None if asked.claim is None else self._lease(db, number)
        batch = plan(id, before, asked, lease=lease, at=self.ids.now(), random=self.ids.random)
        self._write(db, number, batch)
        return batch.outcome

    def _write(self, db: Connection, number: int, batch: Batch) -> None:
        head = batch.head
        crashpoint("before events")
        self._write_events(db, number, batch)
        crashpoint("between events and head")
        if head.view is batch.before.view and head.epoch == batch.before.epoch:
            db.execute(MOVE_PLAIN, (head.head, head.hash, head.tokens, head.updated_at, number))
        else:
            db.execute(MOVE, (*_head_columns(head), number))
        if not batch.simple:
            self._write_rest(db, number, batch)
            for column, value in session_columns(batch.session or {}, self._key(db, number)).items():
                db.execute(SET_SESSION[column], (value, number))

    def _write_events(self, db: Connection, number: int, batch: Batch) -> None:
        shifted, key = number << SHIFT, self._key(db, number)
        rows = batch.rows if key is None else [sealed(key, number, row) for row in batch.rows]
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
                    row.tomb,
                    row.hash,
                    mark or None,
                )
                for row, mark in zip(rows, batch.marked, strict=True)
            ],
        )
        if batch.names:
            db.executemany(ADD_NAME, [(number, hidden(key, name), seq, ref) for name, seq, ref in batch.names])

    def _write_rest(self, db: Connection, number: int, batch: Batch) -> None:
        key = self._key(db, number)
        if batch.blobs:
            db.executemany(ADD_BLOB, [(number, *sealed_blob(key, *blob)) for blob in batch.blobs.items()])
        if batch.once is not None:
            name, once = batch.once
            values = (number, marked(key, name.encode()), marked(key, once.digest), once.first, once.last)
            db.execute(ADD_ONCE, (*values, batch.outcome.at))
        if batch.keep is not None:
            db.execute(SET_KEEP, (number, *batch.keep))
            if batch.keep.immutable:
                db.execute(GUARD_REPLACE)
        if batch.active is not None:
            db.execute(SET_ACTIVE, (batch.active, number))
        if batch.work is not None:
            db.execute(*((ADD_WORK, (number, batch.outcome.at)) if batch.work else (DROP_WORK, (number,))))
        if batch.snapshot is not None:
            db.execute(ADD_SNAPSHOT, (number, batch.head.head, batch.snapshot))
        if batch.claim is not None:
            expires = self.ids.elapsed() + batch.claim.seconds
            db.execute(TAKE_LEASE, (number, batch.head.epoch, batch.claim.holder, boot_id(), expires))
        if batch.release:
            db.execute(DROP_LEASE, (number, batch.head.epoch))

    # -- making and removing logs ----------------------------------------------------------------------------------

    def create(
        self,
        kind: str,
        id: str,
        drafts: Sequence[Draft],
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        fork: Fork | None = None,
    ) -> Log:
        asked = request(drafts, limits=self.limits)

        def job(db: Connection) -> Log:
            if one(db, TAKEN, (self.tenant, kind, id)) is not None:
                raise SessionExists(id)
            if fork is not None and one(db, ALIVE, (fork.parent.number,)) is None:
                raise SessionNotFound(fork.parent.id)
            now, uid = self.ids.now(), self.ids.new()
            log = new_log(0, uid, uid if fork is None else fork.parent.origin, kind, id, now, (user_id, app_name), fork)
            before = first_head(uid, now) if fork is None else forked_head(fork, now)
            batch = plan(id, before, asked, lease=None, at=self.ids.now(), random=self.ids.random)
            return self._add_log(db, log, [batch])

        return self._write_keys(job)

    def adopt(
        self,
        kind: str,
        id: str,
        origin: str,
        rows: Sequence[Row],
        blobs: dict[str, bytes],
        drafts: Sequence[Draft],
        **of: str | None,
    ) -> Log:
        asked = request(drafts, limits=self.limits)

        def job(db: Connection) -> Log:
            if one(db, TAKEN, (self.tenant, kind, id)) is not None:
                raise SessionExists(id)
            now, uid = self.ids.now(), self.ids.new()
            log = new_log(0, uid, origin, kind, id, now, (of.get("user_id"), of.get("app_name")), None)
            before = first_head(origin, now)
            batches = list(replay(before, rows, blobs))
            end = batches[-1].head if batches else before
            batches.append(plan(id, end, asked, lease=None, at=self.ids.now(), random=self.ids.random))
            return self._add_log(db, log, batches)

        return self._write_keys(job)

    def _add_log(self, db: Connection, log: Log, batches: Sequence[Batch]) -> Log:
        """Insert a log as its first batches leave it, and what they bring."""
        head = batches[-1].head
        changed: dict[str, Any] = {}
        for batch in batches:
            changed |= batch.session or {}
        values = (log.uid, log.origin, self.tenant, log.kind, log.id, log.base, ancestry_bytes(log.ancestry))
        key = None
        self._keys.refuse_plain()
        if self._keys.has_master:
            self._check_master(db)  # another process may have changed it
            wrapped, key = self._keys.new(log.uid)
            log = log._replace(key=wrapped)
        added = one(db, ADD_LOG, (*values, log.parent, log.created_at, *_head_columns(head), log.key))
        assert added is not None
        log = log._replace(number=added[0])
        if key is not None:
            self._keys.put(log.number, key)
        if log.kind == "session":
            db.execute(ADD_SESSION, session_row(log, self.tenant, head, changed, key))
        if log.forebears:
            db.executemany(ADD_LINEAGE, [(ancestor, log.number) for ancestor in log.forebears])
        for batch in batches:
            self._write_events(db, log.number, batch)
            self._write_rest(db, log.number, batch)
        return log

    def remove(self, kind: str, id: str, *, expected: int | None = None) -> bool:
        def job(db: Connection) -> bool:
            found = one(db, FIND, (self.tenant, kind, id))
            if found is None:
                return False
            number = found[0]
            head = _head(db, number)
            assert head is not None
            if expected not in (None, head.head):
                raise Conflict(id, expected=expected or 0, head=head.head)
            refuse_removal(id, head, self._lease(db, number), self.ids.now())
            db.execute(FREE_NAME, (number,))
            db.execute(DROP_SESSION, (number,))
            crashpoint("inside remove")
            self._purge(db, log_of(found))
            return True

        return self.file.write(job)

    def bury(self, log: Log, drafts: Sequence[Draft], burial: Burial) -> Appended:
        asked = request(drafts, limits=self.limits)
        others = [(other, request([told], limits=self.limits)) for other, told in shared_records(log, drafts, burial)]

        def job(db: Connection) -> Appended:
            for number, planned in burial.heads.items():
                head = _head(db, number, BARE_HEAD)
                bounds = (number << SHIFT | planned + 1, number << SHIFT | 0xFFFFFFFF)
                if head is None or (
                    head.head != planned
                    and not (burial.bears_company and one(db, HAS_TYPES, (*bounds, *DERIVING)) is None)
                ):
                    raise Conflict(log.id, expected=planned, head=0 if head is None else head.head)
            for number, readers in burial.readers.items():  # somebody may have forked meanwhile
                if readers != {reader for (reader,) in many(db, READERS, (number,))}:
                    raise Conflict(log.id, expected=burial.heads[number], head=burial.heads[number])
            if burial.whole:
                lease = self._lease(db, log.number)
                if lease is not None and lease.alive:
                    raise SessionBusy(log.id, retry_after=lease.remaining)
                now = self.ids.now()
                db.executemany(ADD_ERASURE, [(number, now) for number in burial.tombs])
            for number, stones in burial.tombs.items():
                self._bury_rows(db, number, stones)
            for number, digests in burial.blobs.items():
                key = self._key(db, number)
                db.executemany(DROP_BLOB, [(number, blob_name(key, digest)) for digest in digests])
            for number, names in burial.names.items():
                key = self._key(db, number)
                db.executemany(DROP_NAME, [(number, hidden(key, name), seq) for name, seq in names])
            crashpoint("inside burial")
            for number in burial.whole:
                self._erase_rest(db, number)
            for number, columns in burial.columns.items():
                for column in columns:
                    db.execute(SET_SESSION[column], (None, number))
            for other, told in others:
                self._append(db, other.number, other.id, told)
            outcome = self._append(db, log.number, log.id, asked)
            db.executemany(CLOSE_ERASURE, [(number,) for number in burial.tombs if burial.whole])
            return outcome

        outcome = self._write_keys(job)
        self._forget_old_pages()
        return outcome

    def _bury_rows(self, db: Connection, number: int, stones: list[tuple[int, bytes]]) -> None:
        shifted, key = number << SHIFT, self._key(db, number)
        self._forget_words(db, number, [seq for seq, _ in stones])
        db.executemany(BURY, [(sealed_tomb(key, number, seq, stone), shifted | seq) for seq, stone in stones])
        db.executemany(BURY_ONCE, [(number, seq, seq) for seq, _ in stones])

    def _erase_rest(self, db: Connection, number: int) -> None:
        """What a log has beside its events; and its key, so that copies of the file keep nothing readable either."""
        for statement in ERASE_WHOLE:
            db.execute(statement, (number,))
        db.execute(FORGET_OWNER, (number,))
        uid, wrapped = one(db, KEY, (number,)) or ("", None)
        if wrapped is None:
            return
        old = self._key(db, number)
        wrapped, key = self._keys.new(uid)
        for row in [Row(*columns) for columns in many(db, ALL_TOMBS, _bounds(number))]:
            plain = opened_tomb(old, number, row.seq, row.tomb)  # what is left of it was sealed with the old key
            db.execute(BURY, (sealed_tomb(key, number, row.seq, plain or b""), number << SHIFT | row.seq))
        db.execute(SET_KEY, (wrapped, number))
        self._keys.put(number, key)

    def due(self, now: int, *, limit: int) -> list[Due]:
        rows = self.file.read(lambda db: many(db, DUE, (now, self.tenant, self.tenant, limit)))
        return [Due(tenant, log_of(columns)) for tenant, *columns in rows]

    def work(self, *, after: int = 0, limit: int = 100) -> list[Due]:
        rows = self.file.read(lambda db: many(db, WORK, (after, self.tenant, self.tenant, limit)))
        return [Due(row[0], log_of(row[5:]), self._lease_of(row[1:5])) for row in rows]

    def put_off(self, log: Log, due: int | None) -> None:
        self.file.write(lambda db: db.execute(PUT_OFF, (due, log.number)))

    def _purge(self, db: Connection, log: Log) -> None:
        """Remove a dead log for good, unless another one needs it; then whatever was only waiting for it."""
        number = log.number
        if one(db, NEEDED, (number,)) is not None:
            return
        bounds = _bounds(number)
        self._forget_words(db, number, None)
        db.execute(PURGE_EVENTS, bounds)
        for statement in PURGE:
            db.execute(statement, (number,))
        for ancestor in reversed(log.forebears):
            db.execute(DROP_LINEAGE, (ancestor, number))
            dead = one(db, DEAD, (ancestor,))
            if dead is not None:
                self._purge(db, log_of(dead))

    # -- leases ----------------------------------------------------------------------------------------------------

    def _lease(self, db: Connection, number: int) -> Lease | None:
        found = one(db, LEASE, (number,))
        return None if found is None else self._lease_of(found)

    def _lease_of(self, columns: Sequence[Any]) -> Lease | None:
        epoch, holder, boot, expires = columns
        if epoch is None:
            return None
        # Another boot's clock means nothing now, and its processes are gone.
        remaining = expires - self.ids.elapsed() if boot == boot_id() else 0.0
        return Lease(epoch=epoch, holder=holder, remaining=remaining)

    def lease(self, log: Log) -> Lease | None:
        return self.file.read(lambda db: self._lease(db, log.number))

    def renew(self, log: Log, epoch: int, seconds: float) -> None:
        def job(db: Connection) -> None:
            expires = self.ids.elapsed() + seconds
            if one(db, RENEW, (expires, boot_id(), log.number, epoch)) is None:
                head = _head(db, log.number)
                raise StaleEpoch(log.id, epoch=epoch, current=head.epoch if head else epoch + 1)

        self.file.write(job)

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, kind: str, id: str) -> Log | None:
        found = self.file.read(lambda db: one(db, FIND, (self.tenant, kind, id)))
        return None if found is None else self._keys.checked(log_of(found))

    def log_of(self, number: int) -> Log:
        found = self.file.read(lambda db: one(db, BY_NUMBER, (number,)))
        if found is None:
            raise SessionNotFound(str(number))
        return self._keys.checked(log_of(found))

    def sharers(self, number: int) -> list[Log]:
        return [log_of(row) for row in self.file.read(lambda db: many(db, SHARERS, (number,)))]

    def bare_head(self, number: int) -> Head:
        found = self.file.read(lambda db: _head(db, number, BARE_HEAD))
        if found is None:
            raise SessionNotFound(str(number))
        return found

    def heads(self, numbers: Sequence[int]) -> dict[int, int]:
        asked = (json.dumps(list(numbers)),)
        return dict(self.file.read(lambda db: many(db, HEADS, asked)))

    def head(self, log: Log) -> Head:
        found = self.file.read(lambda db: _head(db, log.number))
        if found is None:
            raise SessionNotFound(log.id)
        return found

    def id_of(self, number: int) -> str | None:
        found = self.file.read(lambda db: one(db, ID_OF, (self.tenant, number)))
        return None if found is None else found[0]

    def info(self, log: Log) -> Info:
        found = self.file.read(lambda db: one(db, INFO_ONE, (log.number,)))
        if found is None:
            raise SessionNotFound(log.id)
        return info_of(found, self._keys)

    def sessions(
        self,
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: str | None = None,
        parent: int | None = None,
    ) -> list[Info]:
        clauses: list[str] = ["s.tenant = ?"]
        if self.tenant:
            clauses.append("s.tenant <> ''")  # lets SQLite use the index, which leaves out those without a tenant
        values: list[Any] = [self.tenant]
        for clause, value in (
            ("s.user_id = ?", user_id and user_id.encode()),
            ("s.app_name = ?", app_name and app_name.encode()),
            ("s.status = ?", status),
            ("s.log IN (SELECT log FROM lineage WHERE ancestor = ?)", parent),
            ("l.parent = ?", parent),
        ):
            if value is not None:
                clauses.append(clause)
                values.append(value)

        def job(db: Connection) -> list[Any]:
            where, bound = list(clauses), list(values)
            if after is not None:
                found = one(db, NUMBER_OF, (self.tenant, after))
                if found is None:
                    raise InvalidArgument(f"after={after!r} is not a session here: start from the first page")
                where.append("s.log < ?")
                bound.append(found[0])
            query = f"{INFO} WHERE {' AND '.join(where)} ORDER BY s.log DESC LIMIT ?"
            return many(db, query, (*bound, limit))

        return [info_of(row, self._keys) for row in self.file.read(job)]

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
        query = _SCANS[reverse, marked, since is not None, len(types or ())]
        shifted = number << SHIFT
        bound = (shifted | first, shifted | last, *(() if since is None else (since,)), *(types or ()))
        rows = self.file.read(lambda db: many(db, query, (*bound, -1 if limit is None else limit)))
        key = self._data_key(number)
        if key is not None:
            return [opened(key, number, Row(*row)) for row in rows]
        return [Row(*row) for row in rows]

    def _count(self, number: int, first: int, last: int) -> int:
        bound = (number << SHIFT | first, number << SHIFT | last, *MESSAGE_TYPES)
        found = self.file.read(lambda db: one(db, COUNT, bound))
        return 0 if found is None else found[0]

    def _name(self, number: int, name: str, at: int) -> tuple[bool, Row | None, int | None]:
        key = self._data_key(number)
        found = self.file.read(lambda db: one(db, NAME, (number, hidden(key, name), at)))
        if found is None:
            return False, None, None
        ref, *columns = found
        return True, None if columns[0] is None else opened(key, number, Row(*columns)), ref

    def _names(self, number: int, prefix: str, at: int) -> list[tuple[str, int | None]]:
        low = prefix.encode()
        high = low[:-1] + bytes([low[-1] + 1])
        rows = self.file.read(lambda db: many(db, NAMES, (number, low, high, at)))
        key = self._data_key(number)
        return [(shown(key, name), ref) for name, ref, _ in rows]

    def _snapshot(self, number: int, at: int) -> tuple[int, bytes] | None:
        found = self.file.read(lambda db: one(db, SNAPSHOT, (number, at)))
        return None if found is None else (found[0], found[1])

    def _blob(self, number: int, digest: str) -> bytes | None:
        key = self._data_key(number)
        found = self.file.read(lambda db: one(db, BLOB, (number, blob_name(key, digest))))
        return None if found is None else opened_blob(key, digest, found[0])

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
                rows = self.file.read(lambda db, bound=bound: many(db, MATCH, bound))  # type: ignore[misc]
                found += [rowid & 0xFFFFFFFF for (rowid,) in rows]
                if len(found) >= limit:
                    break
            if self._kept_index(numbers):
                return found[::-1]

    def _forget_words(self, db: Connection, number: int, seqs: Sequence[int] | None) -> None:
        """Take the words of events (None: of all) out of the index, while the events still say them.

        The index must be told the very words that it was given, which takes a millisecond an event. Where there are
        many, all of it goes: it is a cache, and the next search makes anew what it needs.
        """
        found = one(db, INDEXED, (number,))
        if found is None:
            return
        shifted, upto = number << SHIFT, found[0]
        query = _SCANS[False, False, False, len(INDEXED_TYPES)]
        if seqs is None:
            rows = many(db, query, (shifted, shifted | upto, *INDEXED_TYPES, MANY_WORDS + 1))
        else:
            few = [shifted | seq for seq in seqs if seq <= upto][: MANY_WORDS + 1]
            rows = [row for event in few for row in many(db, query, (event, event, *INDEXED_TYPES, 1))]
        if len(rows) > MANY_WORDS:
            for statement in FORGET_ALL_WORDS:
                db.execute(statement)
            return
        held = [row for row in (Row(*columns) for columns in rows) if row.body is not None]
        db.executemany(FORGET_WORDS, [(shifted | row.seq, searchable(row)) for row in held])

    def hits(self, log: Log, words: Sequence[str]) -> dict[str, list[int]]:
        self._keys.refuse_search(log)

        def job(db: Connection) -> dict[str, list[int]]:
            bounds = _bounds(log.number)
            found = {word: many(db, HITS, (f'"{word}"', *bounds)) for word in words}
            return {word: [rowid & 0xFFFFFFFF for (rowid,) in rows] for word, rows in found.items()}

        while True:
            while self._index(log.number):
                pass
            found = self.file.read(job)
            if self._kept_index([log.number]):
                return found

    def _kept_index(self, numbers: Iterable[int]) -> bool:
        """Whether these logs still have the index that was just asked: somebody may have emptied it meanwhile."""
        return all(
            self.file.read(lambda db, number=number: one(db, INDEXED, (number,)) is not None or _is_indexed(db, number))  # type: ignore[misc]
            for number in numbers
        )

    def _index(self, number: int) -> bool:
        """Index the next batch of a log's texts; False when there is nothing left.

        The index is filled when somebody searches, so that a turn never pays for it.
        """

        def job(db: Connection) -> bool:
            found = one(db, INDEXED, (number,))
            upto = found[0] if found else 0
            shifted = number << SHIFT
            query = _SCANS[False, False, False, len(INDEXED_TYPES)]
            bound = (shifted | upto + 1, shifted | 0xFFFFFFFF, *INDEXED_TYPES, INDEX_BATCH)
            rows = [Row(*row) for row in many(db, query, bound)]
            if not rows:
                return False
            db.executemany(ADD_WORDS, [(shifted | row.seq, searchable(row)) for row in rows])
            db.execute(SET_INDEXED, (number, rows[-1].seq))
            return True

        if self.file.read(lambda db: _is_indexed(db, number)):
            return False
        return self.file.write(job)


def _is_indexed(db: Connection, number: int) -> bool:
    found = one(db, INDEXED, (number,))
    shifted = number << SHIFT
    query = _SCANS[False, False, False, len(INDEXED_TYPES)]
    bound = (shifted | (found[0] if found else 0) + 1, shifted | 0xFFFFFFFF, *INDEXED_TYPES, 1)
    return one(db, query, bound) is None


def _bounds(number: int) -> tuple[int, int]:
    """The first and the last row of a log's events."""
    return number << SHIFT, (number + 1 << SHIFT) - 1


def _head(db: Connection, number: int, query: str = HEAD) -> Head | None:
    found = one(db, query, (number,))
    if found is None:
        return None
    head, hash, epoch, tokens, view, busy, marks, updated_at = found
    return Head(
        head=head,
        hash=hash,
        epoch=epoch,
        tokens=tokens,
        view=view,
        busy=bool(busy),
        marks=marks,
        updated_at=updated_at,
    )


def _head_columns(head: Head) -> tuple[int, bytes, int, int, bytes, int, int, int]:
    return (
        head.head,
        head.hash,
        head.epoch,
        head.tokens,
        head.view,
        int(head.busy),
        head.marks,
        head.updated_at,
    )


class _Scans(dict[tuple[bool, bool, bool, int], str]):
    """The text of each kind of range query, made once: nothing but its shape goes into it."""

    def __missing__(self, shape: tuple[bool, bool, bool, int]) -> str:
        reverse, marked, since, types = shape
        query = SCAN
        query += " AND marked IS NOT NULL" if marked else ""
        query += " AND at >= ?" if since else ""
        query += f" AND type IN ({','.join('?' * types)})" if types else ""
        query += f" ORDER BY event {'DESC' if reverse else 'ASC'} LIMIT ?"
        return self.setdefault(shape, query)


_SCANS = _Scans()
