"""Logs in PostgreSQL. The common append is one statement; everything else is one transaction on the locked head.

An append remembers what it sealed. When its answer gets lost, the next attempt takes the same row lock and looks
whether an event with that hash is there (salts make hashes unique), so an append without a key is stored once as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from holdfast.clock import REAL, Ids, crashpoint
from holdfast.errors import (
    AgentError,
    Conflict,
    InvalidArgument,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    StaleEpoch,
)
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
from holdfast.stores.base import MAX_SEQ, Due, Fork, Info, Log, Store
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
from holdfast.stores.key_values import PostgresSlips
from holdfast.stores.lease import Claim, Lease
from holdfast.stores.postgres_connections import MAX_CONNECTIONS, STRIPES, Connection, DatabaseError, PostgresServer
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

LOG = """SELECT l.log, l.uid, l.origin, l.kind, l.id, l.created_at, l.base, l.ancestry, s.user_id, s.app_name, l.parent,
    l.key FROM holdfast.logs l LEFT JOIN holdfast.sessions s ON s.log = l.log"""
DEAD = LOG + " WHERE l.log = %s AND l.id IS NULL"
BY_NUMBER = LOG + " WHERE l.log = %s"
SHARERS = LOG + " WHERE l.log IN (SELECT log FROM holdfast.lineage WHERE ancestor = %s) ORDER BY l.log"
FIND = LOG + " WHERE l.tenant = %s AND l.kind = %s AND l.id = %s"
HEAD = """SELECT head, hash, epoch, tokens, view, busy, marks, updated_at FROM holdfast.logs
    WHERE log = %s AND id IS NOT NULL"""
LOCK_HEAD = HEAD + " FOR UPDATE"
BARE_HEAD = "SELECT head, hash, epoch, tokens, view, busy, marks, updated_at FROM holdfast.logs WHERE log = %s"
LOCK_BARE_HEAD = BARE_HEAD + " FOR UPDATE"
LOCK_PARENT = "SELECT 1 FROM holdfast.logs WHERE log = %s AND id IS NOT NULL FOR SHARE"
HEADS = "SELECT log, head FROM holdfast.logs WHERE log = ANY(%s::bigint[]) AND id IS NOT NULL"
MOVE = """UPDATE holdfast.logs SET head=%s, hash=%s, epoch=%s, tokens=%s, view=%s, busy=%s, marks=%s, updated_at=%s
    WHERE log = %s"""
EVENT_COLUMNS = "log, seq, at, type, header, tokens, body, tomb, hash, marked"
UNNEST_EVENTS = """unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bytea[], %s::bigint[], %s::bytea[], %s::bytea[],
    %s::bytea[], %s::boolean[])"""
ADD_EVENTS = f"INSERT INTO holdfast.events({EVENT_COLUMNS}) SELECT %s, e.* FROM {UNNEST_EVENTS} AS e"
# The whole append in one round trip: events and names are written only if the head was still where we thought.
MOVED = (
    """WITH moved AS (UPDATE holdfast.logs
    SET head=%s, hash=%s, tokens=%s, view=%s, busy=%s, marks=%s, updated_at=%s
    WHERE log = %s AND head = %s AND epoch = %s AND id IS NOT NULL RETURNING log),
  added AS (INSERT INTO holdfast.events("""
    + EVENT_COLUMNS
    + """)
    SELECT moved.log, e.* FROM moved, """
    + UNNEST_EVENTS
    + """ AS e)"""
)
APPEND = MOVED + " SELECT log FROM moved"
APPEND_NAMED = (
    MOVED
    + """, named AS (INSERT INTO holdfast.names(log, name, seq, ref)
    SELECT moved.log, n.* FROM moved, unnest(%s::bytea[], %s::bigint[], %s::bigint[]) AS n) SELECT log FROM moved"""
)
HASH_AT = "SELECT hash, tokens FROM holdfast.events WHERE log = %s AND seq = %s"
ADD_NAME = "INSERT INTO holdfast.names VALUES(%s,%s,%s,%s)"
ADD_BLOB = "INSERT INTO holdfast.blobs VALUES(%s,%s,%s) ON CONFLICT DO NOTHING"
ADD_SNAPSHOT = "INSERT INTO holdfast.snapshots VALUES(%s,%s,%s)"
ADD_LOG = """INSERT INTO holdfast.logs(uid, origin, tenant, kind, id, base, ancestry, parent, created_at,
    head, hash, epoch, tokens, view, busy, marks, updated_at, key)
    VALUES(%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s) RETURNING log"""
ADD_SESSION = "INSERT INTO holdfast.sessions VALUES(%s,%s,%s,%s,%s,%s,%s,%s)"
ADD_LINEAGE = "INSERT INTO holdfast.lineage VALUES(%s,%s)"
SET_SESSION = {
    "status": "UPDATE holdfast.sessions SET status = %s WHERE log = %s",
    "title": "UPDATE holdfast.sessions SET title = %s WHERE log = %s",
    "metadata": "UPDATE holdfast.sessions SET metadata = %s WHERE log = %s",
    "work_dir": "UPDATE holdfast.sessions SET work_dir = %s WHERE log = %s",
}
ONCE = "SELECT digest, first, last FROM holdfast.once WHERE log = %s AND key = %s"
ADD_ONCE = "INSERT INTO holdfast.once VALUES(%s,%s,%s,%s,%s,%s)"
LEASE = """SELECT epoch, holder, extract(epoch FROM expires - clock_timestamp())::float8
    FROM holdfast.leases WHERE log = %s"""
TAKE_LEASE = """INSERT INTO holdfast.leases VALUES(%s,%s,%s, clock_timestamp() + make_interval(secs => %s))
    ON CONFLICT(log) DO UPDATE SET epoch = excluded.epoch, holder = excluded.holder, expires = excluded.expires"""
RENEW = """UPDATE holdfast.leases SET expires = clock_timestamp() + make_interval(secs => %s)
    WHERE log = %s AND epoch = %s RETURNING log"""
DROP_LEASE = "DELETE FROM holdfast.leases WHERE log = %s AND epoch = %s"
INFO = """SELECT l.log, l.uid, l.origin, l.kind, l.id, l.created_at, l.base, l.ancestry,
    s.user_id, s.app_name, l.parent, l.key, s.status, s.title, s.metadata, s.work_dir, l.updated_at
    FROM holdfast.sessions s JOIN holdfast.logs l ON l.log = s.log"""
INFO_ONE = INFO + " WHERE s.log = %s"
NUMBER_OF = "SELECT log FROM holdfast.logs WHERE tenant = %s AND kind = 'session' AND id = %s"
ID_OF = "SELECT id FROM holdfast.logs WHERE tenant = %s AND log = %s AND id IS NOT NULL"
SCAN = """SELECT seq, at, type, header, tokens, body, tomb, hash
    FROM holdfast.events WHERE log = %s AND seq BETWEEN %s AND %s"""
UNINDEXED = SCAN + " AND type = ANY(%s) ORDER BY seq LIMIT %s"
COUNT = "SELECT count(*) FROM holdfast.events WHERE log = %s AND seq BETWEEN %s AND %s AND type = ANY(%s)"
NAME = """SELECT n.ref, e.seq, e.at, e.type, e.header, e.tokens, e.body, e.tomb, e.hash
    FROM holdfast.names n LEFT JOIN holdfast.events e ON e.log = n.log AND e.seq = n.ref
    WHERE n.log = %s AND n.name = %s AND n.seq <= %s ORDER BY n.seq DESC LIMIT 1"""
NAMES = """SELECT DISTINCT ON (name) name, ref FROM holdfast.names
    WHERE log = %s AND name >= %s AND name < %s AND seq <= %s ORDER BY name, seq DESC"""
ALL_TOMBS = """SELECT seq, at, type, header, tokens, body, tomb, hash
    FROM holdfast.events WHERE log = %s AND tomb IS NOT NULL"""
SNAPSHOT = "SELECT seq, view FROM holdfast.snapshots WHERE log = %s AND seq <= %s ORDER BY seq DESC LIMIT 1"
BLOB = "SELECT data FROM holdfast.blobs WHERE log = %s AND digest = %s"
INDEXED = "SELECT upto FROM holdfast.indexed WHERE log = %s"
LOCK_INDEX = "SELECT pg_advisory_xact_lock(1752132964, hashint8(%s))"
SET_INDEXED = "INSERT INTO holdfast.indexed VALUES(%s,%s) ON CONFLICT(log) DO UPDATE SET upto = excluded.upto"
ADD_WORDS = """INSERT INTO holdfast.words SELECT %s, seq, array_to_tsvector(string_to_array(text, ' '))
    FROM unnest(%s::bigint[], %s::text[]) AS found(seq, text)"""
MATCH = """SELECT seq FROM holdfast.words WHERE log = %s AND seq BETWEEN %s AND %s AND words @@ %s::tsquery
    ORDER BY seq DESC LIMIT %s"""
# The words of this log first: what a common word costs must not depend on how many other logs hold it.
HITS = """WITH mine AS MATERIALIZED (SELECT seq, words FROM holdfast.words WHERE log = %s)
    SELECT word, seq FROM unnest(%s::text[]) AS word, mine
    WHERE words @@ ('''' || word || '''')::tsquery ORDER BY seq"""
HAS_TYPES = "SELECT 1 FROM holdfast.events WHERE log = %s AND seq > %s AND type = ANY(%s) LIMIT 1"
READERS = "SELECT log FROM holdfast.lineage WHERE ancestor = %s"
NEEDED = "SELECT 1 FROM holdfast.lineage WHERE ancestor = %s LIMIT 1"
DROP_LINEAGE = "DELETE FROM holdfast.lineage WHERE ancestor = %s AND log = %s"
SHARE_LOG = "SELECT 1 FROM holdfast.logs WHERE log = %s FOR SHARE"
LOCK_LOG = "SELECT 1 FROM holdfast.logs WHERE log = %s FOR UPDATE"
FREE_NAME = "UPDATE holdfast.logs SET id = NULL WHERE log = %s"
DROP_SESSION = "DELETE FROM holdfast.sessions WHERE log = %s"
PURGE = (
    "DELETE FROM holdfast.events WHERE log = %s",
    "DELETE FROM holdfast.words WHERE log = %s",
    "DELETE FROM holdfast.names WHERE log = %s",
    "DELETE FROM holdfast.once WHERE log = %s",
    "DELETE FROM holdfast.leases WHERE log = %s",
    "DELETE FROM holdfast.snapshots WHERE log = %s",
    "DELETE FROM holdfast.blobs WHERE log = %s",
    "DELETE FROM holdfast.indexed WHERE log = %s",
    "DELETE FROM holdfast.keeping WHERE log = %s",
    "DELETE FROM holdfast.work WHERE log = %s",
    "DELETE FROM holdfast.logs WHERE log = %s",
)
SET_KEEP = """INSERT INTO holdfast.keeping AS k (log, ttl, immutable, held, active, due) VALUES(%s,%s,%s,%s,%s,0)
    ON CONFLICT(log) DO UPDATE SET ttl = excluded.ttl, immutable = excluded.immutable, held = excluded.held,
    active = greatest(k.active, excluded.active), due = 0"""
SET_ACTIVE = "UPDATE holdfast.keeping SET active = greatest(active, %s) WHERE log = %s"
DUE = (
    LOG.replace("SELECT", "SELECT l.tenant,", 1)
    + """ JOIN holdfast.keeping k ON k.log = l.log
    WHERE k.due <= %s AND l.id IS NOT NULL AND (%s = '' OR l.tenant = %s) ORDER BY k.due, k.log LIMIT %s"""
)
PUT_OFF = "UPDATE holdfast.keeping SET due = %s WHERE log = %s"
ADD_WORK = "INSERT INTO holdfast.work VALUES(%s,%s) ON CONFLICT DO NOTHING"
DROP_WORK = "DELETE FROM holdfast.work WHERE log = %s"
REMAINING = "extract(epoch FROM x.expires - clock_timestamp())::float8"
WORK = (
    LOG.replace("SELECT", f"SELECT l.tenant, x.epoch, x.holder, {REMAINING},", 1)
    + """ JOIN holdfast.work w ON w.log = l.log LEFT JOIN holdfast.leases x ON x.log = l.log
    WHERE w.log > %s AND l.id IS NOT NULL AND (%s = '' OR l.tenant = %s) ORDER BY w.log LIMIT %s"""
)
BURY = "UPDATE holdfast.events SET body = NULL, tomb = %s WHERE log = %s AND seq = %s"
BURY_WORDS = "DELETE FROM holdfast.words WHERE log = %s AND seq = %s"
BURY_ONCE = "UPDATE holdfast.once SET digest = ''::bytea WHERE log = %s AND first <= %s AND last >= %s"
DROP_BLOB = "DELETE FROM holdfast.blobs WHERE log = %s AND digest = %s"
DROP_NAME = "DELETE FROM holdfast.names WHERE log = %s AND name = %s AND seq = %s"
ADD_ERASURE = "INSERT INTO holdfast.erasures VALUES(%s,%s,true) ON CONFLICT DO NOTHING"
CLOSE_ERASURE = "UPDATE holdfast.erasures SET open = false WHERE log = %s AND open"
FORGET_OWNER = """UPDATE holdfast.sessions SET user_id = NULL, title = NULL, metadata = NULL, work_dir = NULL
    WHERE log = %s"""
ERASE_WHOLE = (
    "DELETE FROM holdfast.names WHERE log = %s",
    "DELETE FROM holdfast.once WHERE log = %s",
    "DELETE FROM holdfast.blobs WHERE log = %s",
    "DELETE FROM holdfast.indexed WHERE log = %s",
    "DELETE FROM holdfast.words WHERE log = %s",
)
SET_KEY = "UPDATE holdfast.logs SET key = %s WHERE log = %s"
KEYS = "SELECT log, uid, key FROM holdfast.logs WHERE key IS NOT NULL ORDER BY log FOR UPDATE"
KEY = "SELECT uid, key FROM holdfast.logs WHERE log = %s"
MASTER = "SELECT master FROM holdfast.vault FOR SHARE"
LOCK_VAULT = "LOCK TABLE holdfast.vault IN EXCLUSIVE MODE"
SET_MASTER = "INSERT INTO holdfast.vault VALUES(1, %s) ON CONFLICT(one) DO UPDATE SET master = excluded.master"

MAX_CACHED = 10_000


class _Heads:
    """The heads this process saw last. Only a guess: the statement that uses one checks it."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def lock(self, number: int) -> threading.Lock:
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


class _Moment:
    """The time and the salts of one append, the same however often it has to be tried."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._salts = b""

    @cached_property
    def at(self) -> int:
        return self._ids.now()

    def random(self, size: int) -> bytes:
        self._salts = self._salts or self._ids.random(size)
        return self._salts


class _Birth:
    """The time and the id of a new log, drawn once, and only when nothing speaks against making it."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.is_drawn = False

    @cached_property
    def drawn(self) -> tuple[int, str]:
        self.is_drawn = True
        return self._ids.now(), self._ids.new()


class PostgresStore(PostgresSlips, Store):
    """Sessions in a PostgreSQL database, for several servers: `PostgresStore("postgresql://user@host/database")`."""

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = MAX_CONNECTIONS,
        patience: float = 10.0,
        ids: Ids = REAL,
        limits: Limits | None = None,
        tenant: str = "",
        key: MasterKey | None = None,
    ) -> None:
        super().__init__(ids=ids, limits=limits, tenant=tenant)
        self._keys = Keys(key)
        self.server = PostgresServer(dsn, connections=connections, patience=patience, ids=REAL)
        self._heads = _Heads(self.server)
        try:
            if key is not None:
                self.server.transaction(self._take_on_master)
            else:
                self._keys.found((self.server.fetch_one(MASTER) or (None,))[0])
        except BaseException:
            self.server.close()
            raise

    def __repr__(self) -> str:
        return "PostgresStore(…)"  # the connection string may hold a password

    def close(self) -> None:
        self.server.close()

    # -- encryption ------------------------------------------------------------------------------------------------

    def _take_on_master(self, db: Connection) -> None:
        """Raise unless the store's keys are wrapped by the master key that was given; a new store takes it on."""
        db.execute(LOCK_VAULT)
        if self._check_master(db):
            db.execute(SET_MASTER, (self._keys.fingerprint,))

    def _check_master(self, db: Connection) -> bool:
        found = db.execute(MASTER).fetchone()
        return self._keys.agree(None if found is None else found[0])

    def rotate_key(self, key: MasterKey) -> int:
        """Wrap every log's key by another master key, all or nothing, and use that from now on. No payload is
        rewritten. Returns how many keys there were. Other processes must open the store anew."""
        rewrap = self._keys.to(key)

        def job(db: Connection) -> int:
            db.execute(LOCK_VAULT)
            found = db.execute(MASTER).fetchone()
            if found is not None and found[0] == rewrap.fingerprint:
                return len(db.execute(KEYS).fetchall())  # an attempt whose answer was lost
            self._check_master(db)
            changed = [(rewrap(uid, bytes(wrapped)), number) for number, uid, wrapped in db.execute(KEYS).fetchall()]
            for at, change in enumerate(changed):
                db.execute(SET_KEY, change)
                if at == len(changed) // 2:
                    crashpoint("inside rotation")
            db.execute(SET_MASTER, (rewrap.fingerprint,))
            return len(changed)

        done = self.server.transaction(job)
        self._keys.use(rewrap)
        return done

    def _key(self, number: int, db: Connection | None = None) -> DataKey | None:
        if not self._keys.has_master:
            return None
        if db is None:
            return self._keys.get(number, lambda: self.server.fetch_one(KEY, (number,)))
        return self._keys.get(number, lambda: db.execute(KEY, (number,)).fetchone())

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
        number, moment = log.number, _Moment(self.ids)
        with self._heads.lock(number):
            sealed: list[Batch] = []
            head = self._heads.get(number)
            plain = once is None and claim is None and not release and expected in (None, head and head.head)
            if (
                plain
                and head is not None
                and epoch in (None, head.epoch)
                and self._append_fast(log, head, asked, moment, sealed)
            ):
                return sealed[-1].outcome
            try:
                outcome, after = self.server.transaction(
                    lambda db: self._append(db, number, log.id, asked, moment, sealed)
                )
            except BaseException:
                self._heads.forget(number)
                raise
            self._heads.put(number, after)
            return outcome

    def _append_fast(self, log: Log, head: Head, asked: Request, moment: _Moment, sealed: list[Batch]) -> bool:
        """One statement, if the head is where this process left it and there is nothing but events and names."""
        try:
            batch = plan(log.id, head, asked, lease=None, at=moment.at, random=moment.random)
        except AgentError:
            return False  # refused by a guess: the locked head decides
        if not batch.simple:
            return False
        after, key = batch.head, self._key(log.number)
        values: list[Any] = [
            after.head, after.hash, after.tokens, after.view, after.busy, after.marks, after.updated_at,
            log.number, head.head, head.epoch, *_arrays(batch, log.number, key),
        ]  # fmt: skip
        query = APPEND
        if batch.names:
            query = APPEND_NAMED
            values += [list(column) for column in zip(*_name_rows(batch, key), strict=True)]
        sealed.append(batch)
        crashpoint("before commit")
        try:
            with self.server.connection() as db:
                moved = db.execute(query, values).fetchone()
        except DatabaseError:
            return False  # lost or refused: the transaction that follows finds out what became of it
        crashpoint("after commit")
        if moved is None:
            sealed.clear()  # the server said no: nothing of it is there
            return False
        self._heads.put(log.number, after)
        return True

    def _append(
        self, db: Connection, number: int, id: str, asked: Request, moment: _Moment, sealed: list[Batch]
    ) -> tuple[Appended, Head]:
        before = _head(db, LOCK_HEAD, number)
        if before is None:
            raise SessionNotFound(id)
        for batch in sealed:
            if self._is_stored(db, number, batch):
                return batch.outcome, before
        if asked.once is not None:
            key = self._key(number, db)
            found = db.execute(ONCE, (number, marked(key, asked.once.encode()))).fetchone()
            if found is not None:
                digest, first, last = found
                return repeated(id, asked, marked(key, asked.digest) == digest, first, last, before.epoch), before
        lease = None if asked.claim is None else _lease(db, number)
        batch = plan(id, before, asked, lease=lease, at=moment.at, random=moment.random)
        sealed.append(batch)
        self._write(db, number, batch)
        return batch.outcome, batch.head

    def _is_stored(self, db: Connection, number: int, batch: Batch) -> bool:
        """Whether an attempt whose answer was lost was committed after all."""
        if batch.rows:
            found = db.execute(HASH_AT, (number, batch.rows[-1].seq)).fetchone()
            return found is not None and found[0] == batch.rows[-1].hash
        if batch.claim is not None:
            lease = _lease(db, number)
            return lease is not None and (lease.epoch, lease.holder) == (batch.head.epoch, batch.claim.holder)
        lease = _lease(db, number)
        return (
            lease is None or lease.epoch != batch.head.epoch
        )  # a release: it is done if the lease is not ours any more

    def _write(self, db: Connection, number: int, batch: Batch) -> None:
        crashpoint("before events")
        with db.pipeline():
            self._write_events(db, number, batch)
            crashpoint("between events and head")
            db.execute(MOVE, (*_head_columns(batch.head), number))
            for column, value in session_columns(batch.session or {}, self._key(number, db)).items():
                db.execute(SET_SESSION[column], (value, number))

    def _write_events(self, db: Connection, number: int, batch: Batch) -> None:
        key = self._key(number, db)
        if batch.rows:
            db.execute(ADD_EVENTS, (number, *_arrays(batch, number, key)))
        for name, seq, ref in _name_rows(batch, key):
            db.execute(ADD_NAME, (number, name, seq, ref))
        for blob in batch.blobs.items():
            db.execute(ADD_BLOB, (number, *sealed_blob(key, *blob)))
        if batch.once is not None:
            name_once, once = batch.once
            values = (number, marked(key, name_once.encode()), marked(key, once.digest), once.first, once.last)
            db.execute(ADD_ONCE, (*values, batch.outcome.at))
        if batch.keep is not None:
            db.execute(SET_KEEP, (number, *batch.keep))
        if batch.active is not None:
            db.execute(SET_ACTIVE, (batch.active, number))
        if batch.work is not None:
            db.execute(*((ADD_WORK, (number, batch.outcome.at)) if batch.work else (DROP_WORK, (number,))))
        if batch.snapshot is not None:
            db.execute(ADD_SNAPSHOT, (number, batch.head.head, batch.snapshot))
        if batch.claim is not None:
            db.execute(TAKE_LEASE, (number, batch.head.epoch, batch.claim.holder, batch.claim.seconds))
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
        birth = _Birth(self.ids)
        moment = _Moment(self.ids)

        def job(db: Connection) -> tuple[Log, Head | None]:
            made = self._made(db, kind, id, birth)
            if made is not None:
                return made, None
            if fork is not None and db.execute(LOCK_PARENT, (fork.parent.number,)).fetchone() is None:
                raise SessionNotFound(fork.parent.id)
            now, uid = birth.drawn
            log = new_log(0, uid, uid if fork is None else fork.parent.origin, kind, id, now, (user_id, app_name), fork)
            before = first_head(uid, now) if fork is None else forked_head(fork, now)
            batch = plan(id, before, asked, lease=None, at=moment.at, random=moment.random)
            return self._add_log(db, log, [batch]), batch.head

        log, head = self.server.transaction(job)
        if head is not None:
            self._heads.put(log.number, head)
        return log

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
        asked, birth, moment = request(drafts, limits=self.limits), _Birth(self.ids), _Moment(self.ids)

        def job(db: Connection) -> Log:
            made = self._made(db, kind, id, birth)
            if made is not None:
                return made
            now, uid = birth.drawn
            log = new_log(0, uid, origin, kind, id, now, (of.get("user_id"), of.get("app_name")), None)
            before = first_head(origin, now)
            batches = list(replay(before, rows, blobs))
            end = batches[-1].head if batches else before
            batches.append(plan(id, end, asked, lease=None, at=moment.at, random=moment.random))
            return self._add_log(db, log, batches)

        return self.server.transaction(job)

    def _made(self, db: Connection, kind: str, id: str, birth: _Birth) -> Log | None:
        """The log, if an attempt whose answer was lost has made it; SessionExists if somebody else has."""
        found = db.execute(FIND, (self.tenant, kind, id)).fetchone()
        if found is None:
            return None
        log = log_of(found)
        if not birth.is_drawn or log.uid != birth.drawn[1]:
            raise SessionExists(id)
        return log

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
        added = db.execute(ADD_LOG, (*values, log.parent, log.created_at, *_head_columns(head), log.key)).fetchone()
        assert added is not None
        log = log._replace(number=added[0])
        if key is not None:
            self._keys.put(log.number, key)  # numbers are never drawn twice, so a rollback leaves nothing wrong
        with db.pipeline():
            if log.kind == "session":
                db.execute(ADD_SESSION, session_row(log, self.tenant, head, changed, key))
            for ancestor in log.forebears:
                db.execute(ADD_LINEAGE, (ancestor, log.number))
            for batch in batches:
                self._write_events(db, log.number, batch)
        return log

    def remove(self, kind: str, id: str, *, expected: int | None = None) -> bool:
        attempts: list[int] = []

        def job(db: Connection) -> bool:
            found = db.execute(FIND + " FOR UPDATE OF l", (self.tenant, kind, id)).fetchone()
            if found is None:
                return bool(attempts)  # gone: if this is a second attempt, the first one did it
            number = found[0]
            if attempts and number != attempts[0]:
                return True  # a namesake, made after the first attempt was committed
            attempts.append(number)
            head = _head(db, LOCK_HEAD, number)
            assert head is not None
            if expected not in (None, head.head):
                raise Conflict(id, expected=expected or 0, head=head.head)
            refuse_removal(id, head, _lease(db, number), self.ids.now())
            db.execute(FREE_NAME, (number,))
            db.execute(DROP_SESSION, (number,))
            crashpoint("inside remove")
            log = log_of(found)
            for ancestor in log.forebears:  # everybody locks in the same order
                db.execute(LOCK_LOG, (ancestor,))
            self._purge(db, log)
            self._heads.forget(number)
            return True

        return self.server.transaction(job)

    def _purge(self, db: Connection, log: Log) -> None:
        """Remove a dead log for good, unless another one needs it; then whatever was only waiting for it."""
        if db.execute(NEEDED, (log.number,)).fetchone() is not None:
            return
        for statement in PURGE:
            db.execute(statement, (log.number,))
        for ancestor in reversed(log.forebears):
            db.execute(DROP_LINEAGE, (ancestor, log.number))
            dead = db.execute(DEAD, (ancestor,)).fetchone()
            if dead is not None:
                self._purge(db, log_of(dead))

    def bury(self, log: Log, drafts: Sequence[Draft], burial: Burial) -> Appended:
        asked, moment = request(drafts, limits=self.limits), _Moment(self.ids)
        sealed: list[Batch] = []
        others = [(other, request([told], limits=self.limits)) for other, told in shared_records(log, drafts, burial)]
        moments = {other.number: _Moment(self.ids) for other, _ in others}

        def job(db: Connection) -> tuple[Appended, Head]:
            heads = {number: _head(db, LOCK_BARE_HEAD, number) for number in sorted(burial.heads)}
            for batch in sealed:
                before = heads[log.number]
                if before is not None and self._is_stored(db, log.number, batch):
                    return batch.outcome, before  # an attempt whose answer was lost
            for number, planned in burial.heads.items():
                head = heads[number]
                if head is None or (head.head != planned and not self._only_company(db, number, planned, burial)):
                    raise Conflict(log.id, expected=planned, head=0 if head is None else head.head)
            for number, readers in burial.readers.items():  # somebody may have forked meanwhile
                if readers != {reader for (reader,) in db.execute(READERS, (number,)).fetchall()}:
                    raise Conflict(log.id, expected=burial.heads[number], head=burial.heads[number])
            if burial.whole:
                lease = _lease(db, log.number)
                if lease is not None and lease.alive:
                    raise SessionBusy(log.id, retry_after=lease.remaining)
                for number in burial.tombs:
                    db.execute(ADD_ERASURE, (number, moment.at))
            for number, stones in burial.tombs.items():
                self._bury_rows(db, number, stones)
            for number, digests in burial.blobs.items():
                for digest in digests:
                    db.execute(DROP_BLOB, (number, blob_name(self._key(number, db), digest)))
            for number, names in burial.names.items():
                for name, seq in names:
                    db.execute(DROP_NAME, (number, hidden(self._key(number, db), name), seq))
            crashpoint("inside burial")
            for number in burial.whole:
                self._erase_rest(db, number)
            for number, columns in burial.columns.items():
                for column in columns:
                    db.execute(SET_SESSION[column], (None, number))
            for other, told in others:
                self._append(db, other.number, other.id, told, moments[other.number], [])
            done = self._append(db, log.number, log.id, asked, moment, sealed)
            for number in burial.tombs if burial.whole else ():
                db.execute(CLOSE_ERASURE, (number,))
            return done

        with self._heads.lock(log.number):
            try:
                outcome, _ = self.server.transaction(job)
            except BaseException:
                self._keys.forget()
                raise
            finally:
                for number in burial.heads:
                    self._heads.forget(number)
        return outcome

    def _only_company(self, db: Connection, number: int, planned: int, burial: Burial) -> bool:
        """Whether what was added since the plan repeats nothing that is to go."""
        if not burial.bears_company:
            return False
        return db.execute(HAS_TYPES, (number, planned, list(DERIVING))).fetchone() is None

    def _bury_rows(self, db: Connection, number: int, stones: list[tuple[int, bytes]]) -> None:
        key = self._key(number, db)
        with db.pipeline():
            for seq, stone in stones:
                db.execute(BURY, (sealed_tomb(key, number, seq, stone), number, seq))
                db.execute(BURY_WORDS, (number, seq))
                db.execute(BURY_ONCE, (number, seq, seq))

    def _erase_rest(self, db: Connection, number: int) -> None:
        """What a log has beside its events; and its key, so that old copies keep nothing readable either."""
        for statement in ERASE_WHOLE:
            db.execute(statement, (number,))
        db.execute(FORGET_OWNER, (number,))
        uid, wrapped = db.execute(KEY, (number,)).fetchone() or ("", None)
        if wrapped is None:
            return
        rows = [Row(*row) for row in db.execute(ALL_TOMBS, (number,)).fetchall()]
        old = self._key(number, db)
        wrapped, key = self._keys.new(uid)
        for row in rows:  # what is left of them was sealed with the old key
            plain = opened_tomb(old, number, row.seq, row.tomb)
            db.execute(BURY, (sealed_tomb(key, number, row.seq, plain or b""), number, row.seq))
        db.execute(SET_KEY, (wrapped, number))
        self._keys.put(number, key)

    def due(self, now: int, *, limit: int) -> list[Due]:
        rows = self.server.fetch(DUE, (now, self.tenant, self.tenant, limit))
        return [Due(tenant, log_of(columns)) for tenant, *columns in rows]

    def work(self, *, after: int = 0, limit: int = 100) -> list[Due]:
        rows = self.server.fetch(WORK, (after, self.tenant, self.tenant, limit))
        return [Due(row[0], log_of(row[4:]), _lease_of(row[1:4])) for row in rows]

    def put_off(self, log: Log, due: int | None) -> None:
        self.server.unit(lambda db: db.execute(PUT_OFF, (due, log.number)))

    # -- leases ----------------------------------------------------------------------------------------------------

    def lease(self, log: Log) -> Lease | None:
        return self.server.unit(lambda db: _lease(db, log.number))

    def renew(self, log: Log, epoch: int, seconds: float) -> None:
        if self.server.fetch_one(RENEW, (seconds, log.number, epoch)) is None:
            found = self.server.fetch_one(HEAD, (log.number,))
            raise StaleEpoch(log.id, epoch=epoch, current=found[2] if found else epoch + 1)

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, kind: str, id: str) -> Log | None:
        found = self.server.fetch_one(FIND, (self.tenant, kind, id))
        return None if found is None else self._keys.checked(log_of(found))

    def log_of(self, number: int) -> Log:
        found = self.server.fetch_one(BY_NUMBER, (number,))
        if found is None:
            raise SessionNotFound(str(number))
        return self._keys.checked(log_of(found))

    def sharers(self, number: int) -> list[Log]:
        return [log_of(row) for row in self.server.fetch(SHARERS, (number,))]

    def bare_head(self, number: int) -> Head:
        found = self.server.unit(lambda db: _head(db, BARE_HEAD, number))
        if found is None:
            raise SessionNotFound(str(number))
        return found

    def heads(self, numbers: Sequence[int]) -> dict[int, int]:
        return dict(self.server.fetch(HEADS, (list(numbers),)))

    def head(self, log: Log) -> Head:
        found = self.server.unit(lambda db: _head(db, HEAD, log.number))
        if found is None:
            raise SessionNotFound(log.id)
        return found

    def info(self, log: Log) -> Info:
        found = self.server.fetch_one(INFO_ONE, (log.number,))
        if found is None:
            raise SessionNotFound(log.id)
        return info_of(found, self._keys)

    def id_of(self, number: int) -> str | None:
        found = self.server.fetch_one(ID_OF, (self.tenant, number))
        return None if found is None else found[0]

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
        where: list[str] = ["s.tenant = %s"]
        values: list[Any] = [self.tenant]
        for clause, value in (
            ("s.user_id = %s", user_id and user_id.encode()),
            ("s.app_name = %s", app_name and app_name.encode()),
            ("s.status = %s", status),
            ("s.log IN (SELECT log FROM holdfast.lineage WHERE ancestor = %s)", parent),
            ("l.parent = %s", parent),
        ):
            if value is not None:
                where.append(clause)
                values.append(value)
        if after is not None:
            found = self.server.fetch_one(NUMBER_OF, (self.tenant, after))
            if found is None:
                raise InvalidArgument(f"after={after!r} is not a session here: start from the first page")
            where.append("s.log < %s")
            values.append(found[0])
        query = f"{INFO} WHERE {' AND '.join(where)} ORDER BY s.log DESC LIMIT %s"
        return [info_of(row, self._keys) for row in self.server.fetch(query, (*values, limit))]

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
        query = SCAN
        values: list[Any] = [number, first, last]
        if marked:
            query += " AND marked IS NOT NULL"
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
        rows, key = self.server.fetch(query, tuple(values)), self._key(number)
        if key is not None:
            return [opened(key, number, Row(*row)) for row in rows]
        return [Row(*row) for row in rows]

    def _count(self, number: int, first: int, last: int) -> int:
        found = self.server.fetch_one(COUNT, (number, first, last, list(MESSAGE_TYPES)))
        return 0 if found is None else found[0]

    def _name(self, number: int, name: str, at: int) -> tuple[bool, Row | None, int | None]:
        key = self._key(number)
        found = self.server.fetch_one(NAME, (number, hidden(key, name), at))
        if found is None:
            return False, None, None
        ref, *columns = found
        return True, None if columns[0] is None else opened(key, number, Row(*columns)), ref

    def _names(self, number: int, prefix: str, at: int) -> list[tuple[str, int | None]]:
        low = prefix.encode()
        high = low[:-1] + bytes([low[-1] + 1])
        key = self._key(number)
        return [(shown(key, bytes(name)), ref) for name, ref in self.server.fetch(NAMES, (number, low, high, at))]

    def _snapshot(self, number: int, at: int) -> tuple[int, bytes] | None:
        found = self.server.fetch_one(SNAPSHOT, (number, at))
        return None if found is None else (found[0], found[1])

    def _blob(self, number: int, digest: str) -> bytes | None:
        key = self._key(number)
        found = self.server.fetch_one(BLOB, (number, blob_name(key, digest)))
        return None if found is None else opened_blob(key, digest, found[0])

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
            rows = self.server.fetch(MATCH, (number, first, last, query, limit - len(found)))
            found += [seq for (seq,) in rows]
            if len(found) >= limit:
                break
        return found[::-1]

    def hits(self, log: Log, words: Sequence[str]) -> dict[str, list[int]]:
        self._keys.refuse_search(log)
        while self._index(log.number):
            pass
        found: dict[str, list[int]] = {word: [] for word in words}
        for word, seq in self.server.fetch(HITS, (log.number, list(found))):
            found[word].append(seq)
        return found

    def _index(self, number: int) -> bool:
        """Index the next batch of a log's texts; False when there is nothing left."""
        found = self.server.fetch_one(INDEXED, (number,))
        start = (number, (found[0] if found else 0) + 1, MAX_SEQ, list(INDEXED_TYPES), 1)
        if self.server.fetch_one(UNINDEXED, start) is None:
            return False

        def job(db: Connection) -> bool:
            db.execute(LOCK_INDEX, (number,))
            if db.execute(SHARE_LOG, (number,)).fetchone() is None:
                return False  # purged meanwhile: its words must not come back
            found = db.execute(INDEXED, (number,)).fetchone()
            start = (number, (found[0] if found else 0) + 1, MAX_SEQ, list(INDEXED_TYPES), INDEX_BATCH)
            rows = [Row(*row) for row in db.execute(UNINDEXED, start).fetchall()]
            if rows:
                db.execute(ADD_WORDS, (number, [row.seq for row in rows], [searchable(row) for row in rows]))
                db.execute(SET_INDEXED, (number, rows[-1].seq))
            return bool(rows)

        return self.server.transaction(job)


def _lease(db: Connection, number: int) -> Lease | None:
    found = db.execute(LEASE, (number,)).fetchone()
    return None if found is None else _lease_of(found)


def _lease_of(columns: Sequence[Any]) -> Lease | None:
    epoch, holder, remaining = columns
    if epoch is None:
        return None
    return Lease(epoch=epoch, holder=bytes(holder), remaining=remaining)


def _head(db: Connection, query: str, number: int) -> Head | None:
    found = db.execute(query, (number,)).fetchone()
    if found is None:
        return None
    head, hash, epoch, tokens, view, busy, marks, updated_at = found
    return Head(
        head=head, hash=hash, epoch=epoch, tokens=tokens, view=view, busy=busy, marks=marks, updated_at=updated_at
    )


def _head_columns(head: Head) -> tuple[Any, ...]:
    return (head.head, head.hash, head.epoch, head.tokens, head.view, head.busy, head.marks, head.updated_at)


def _name_rows(batch: Batch, key: DataKey | None) -> list[tuple[bytes, int, int | None]]:
    return [(hidden(key, name), seq, ref) for name, seq, ref in batch.names]


def _arrays(batch: Batch, number: int, key: DataKey | None) -> list[list[Any]]:
    """The rows as one array per column, for unnest."""
    rows = batch.rows if key is None else [sealed(key, number, row) for row in batch.rows]
    return [
        [row.seq for row in rows],
        [row.at for row in rows],
        [row.type for row in rows],
        [row.header for row in rows],
        [row.tokens for row in rows],
        [row.body for row in rows],
        [row.tomb for row in rows],
        [row.hash for row in rows],
        [mark or None for mark in batch.marked],
    ]
