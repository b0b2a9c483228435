"""Slips: small values under a key, beside the logs, for what the server must remember and no session holds.

A slip past its time counts as absent everywhere, whether or not it was purged. Keys are kept as bytes, so that any text
can be one and every store has the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import Ids
from holdfast.log.codec import text_bytes
from holdfast.log.identifiers import checked_id, checked_name

if TYPE_CHECKING:
    from holdfast.stores.memory import Memory
    from holdfast.stores.postgres_connections import Connection as PostgresConnection
    from holdfast.stores.postgres_connections import PostgresServer
    from holdfast.stores.sqlite_connections import Connection as SQLiteConnection
    from holdfast.stores.sqlite_connections import SQLiteFile

MAX_KEY = 1024  # bytes; a database has little more room for one in its index
MAX_PAGE = 1000

SLIP = "SELECT value FROM slips WHERE tenant = ? AND space = ? AND key = ? AND (expires IS NULL OR expires > ?)"
SLIPS = """SELECT key, value FROM slips
    WHERE tenant = ? AND space = ? AND key > ? AND (expires IS NULL OR expires > ?) ORDER BY key LIMIT ?"""
PUT = "INSERT OR REPLACE INTO slips(tenant, space, key, value, expires) VALUES(?,?,?,?,?)"
DROP = "DELETE FROM slips WHERE tenant = ? AND space = ? AND key = ? RETURNING expires IS NULL OR expires > ?"
PURGE = """DELETE FROM slips WHERE (tenant, space, key) IN
    (SELECT tenant, space, key FROM slips WHERE expires <= ? ORDER BY expires LIMIT ?) RETURNING 1"""

PG_SLIP = """SELECT value FROM holdfast.slips
    WHERE tenant = %s AND space = %s AND key = %s AND (expires IS NULL OR expires > %s)"""
PG_SLIPS = """SELECT key, value FROM holdfast.slips
    WHERE tenant = %s AND space = %s AND key > %s AND (expires IS NULL OR expires > %s) ORDER BY key LIMIT %s"""
PG_LOCK = """SELECT mark, CASE WHEN expires IS NULL OR expires > %s THEN value END FROM holdfast.slips
    WHERE tenant = %s AND space = %s AND key = %s FOR UPDATE"""
PG_ADD = "INSERT INTO holdfast.slips(value, expires, mark, tenant, space, key) VALUES(%s,%s,%s,%s,%s,%s)"
PG_SET = "UPDATE holdfast.slips SET value=%s, expires=%s, mark=%s WHERE tenant = %s AND space = %s AND key = %s"
PG_DROP = "DELETE FROM holdfast.slips WHERE tenant = %s AND space = %s AND key = %s"
# Several servers sweep at once: each passes by what another one is removing.
PG_PURGE = """WITH gone AS (SELECT tenant, space, key FROM holdfast.slips
    WHERE expires <= %s ORDER BY expires LIMIT %s FOR UPDATE SKIP LOCKED)
    DELETE FROM holdfast.slips s USING gone g
    WHERE s.tenant = g.tenant AND s.space = g.space AND s.key = g.key RETURNING 1"""


def slip_key(space: str, key: str) -> tuple[str, bytes]:
    """What a slip is kept under, checked."""
    return checked_id(space, "space"), checked_name(key, "key", MAX_KEY).encode()


def _start(space: str, after: str | None) -> tuple[str, bytes]:
    """Where a page begins: no key is empty, so the empty one comes before all."""
    return checked_id(space, "space"), text_bytes(after or "", "after", MAX_KEY)


class MemorySlips:
    """Slips for a store in memory."""

    tenant: str
    ids: Ids
    _memory: Memory

    def put_slip(
        self, space: str, key: str, value: bytes, *, only_new: bool = False, expires: int | None = None
    ) -> bytes | None:
        place = (self.tenant, *slip_key(space, key))
        with self._memory.lock:
            found = self._alive(place)
            if only_new and found is not None:
                return found
            self._memory.slips[place] = (bytes(value), expires)
            return None

    def _alive(self, place: tuple[str, str, bytes]) -> bytes | None:
        value, expires = self._memory.slips.get(place, (None, None))
        return value if expires is None or expires > self.ids.now() else None

    def slip(self, space: str, key: str) -> bytes | None:
        with self._memory.lock:
            return self._alive((self.tenant, *slip_key(space, key)))

    def slips(self, space: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[tuple[str, bytes]]:
        start, now = (self.tenant, *_start(space, after)), self.ids.now()
        with self._memory.lock:
            found = sorted(
                (place[2], value)
                for place, (value, expires) in self._memory.slips.items()
                if place[:2] == start[:2] and place > start and (expires is None or expires > now)
            )
        return [(key.decode(), value) for key, value in found[:limit]]

    def drop_slip(self, space: str, key: str) -> bool:
        place = (self.tenant, *slip_key(space, key))
        with self._memory.lock:
            found = self._alive(place)
            self._memory.slips.pop(place, None)
            return found is not None

    def purge_slips(self, now: int, limit: int = MAX_PAGE) -> int:
        with self._memory.lock:
            timed = ((expires, place) for place, (_, expires) in self._memory.slips.items() if expires is not None)
            gone = sorted(each for each in timed if each[0] <= now)[:limit]
            for _, place in gone:
                del self._memory.slips[place]
            return len(gone)


class SQLiteSlips:
    """Slips in a SQLite file."""

    tenant: str
    ids: Ids
    file: SQLiteFile

    def put_slip(
        self, space: str, key: str, value: bytes, *, only_new: bool = False, expires: int | None = None
    ) -> bytes | None:
        place = (self.tenant, *slip_key(space, key))

        def job(db: SQLiteConnection) -> bytes | None:
            found = db.execute(SLIP, (*place, self.ids.now())).fetchone() if only_new else None
            if found is not None:
                value_there: bytes = found[0]
                return value_there
            db.execute(PUT, (*place, bytes(value), expires))
            return None

        return self.file.write(job)

    def slip(self, space: str, key: str) -> bytes | None:
        place = (self.tenant, *slip_key(space, key), self.ids.now())
        found = self.file.read(lambda db: db.execute(SLIP, place).fetchone())
        return None if found is None else found[0]

    def slips(self, space: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[tuple[str, bytes]]:
        bound = (self.tenant, *_start(space, after), self.ids.now(), limit)
        rows: list[Any] = self.file.read(lambda db: db.execute(SLIPS, bound).fetchall())
        return [(key.decode(), value) for key, value in rows]

    def drop_slip(self, space: str, key: str) -> bool:
        place = (self.tenant, *slip_key(space, key))
        found = self.file.write(lambda db: db.execute(DROP, (*place, self.ids.now())).fetchone())
        return found is not None and bool(found[0])

    def purge_slips(self, now: int, limit: int = MAX_PAGE) -> int:
        return len(self.file.write(lambda db: db.execute(PURGE, (now, limit)).fetchall()))


class PostgresSlips:
    """Slips in PostgreSQL. Every write leaves a mark of its own, by which an attempt after a lost answer tells what
    became of the one before, and leaves alone what others wrote meanwhile."""

    tenant: str
    ids: Ids
    server: PostgresServer

    def put_slip(
        self, space: str, key: str, value: bytes, *, only_new: bool = False, expires: int | None = None
    ) -> bytes | None:
        place = (self.tenant, *slip_key(space, key))
        mine = self.server.ids.random(16)
        replaced: list[bytes | None] = []  # the mark that each attempt wrote over

        def job(db: PostgresConnection) -> bytes | None:
            there, found = self._locked(db, place)
            if there == mine or (replaced and there != replaced[0] and not only_new):
                return None  # an attempt whose answer was lost did it, or others wrote meanwhile: theirs is the later
            if only_new and found is not None:
                return found
            replaced.append(there)
            # Of two who add it at once, one fails here, is tried again, and finds the other's.
            db.execute(PG_ADD if there is None else PG_SET, (bytes(value), expires, mine, *place))
            return None

        return self.server.transaction(job)

    def _locked(self, db: PostgresConnection, place: tuple[str, str, bytes]) -> tuple[bytes | None, bytes | None]:
        """The mark of what is there, and its value unless it expired."""
        found = db.execute(PG_LOCK, (self.ids.now(), *place)).fetchone()
        return (None, None) if found is None else (found[0], found[1])

    def slip(self, space: str, key: str) -> bytes | None:
        found = self.server.fetch_one(PG_SLIP, (self.tenant, *slip_key(space, key), self.ids.now()))
        return None if found is None else found[0]

    def slips(self, space: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[tuple[str, bytes]]:
        rows = self.server.fetch(PG_SLIPS, (self.tenant, *_start(space, after), self.ids.now(), limit))
        return [(key.decode(), value) for key, value in rows]

    def drop_slip(self, space: str, key: str) -> bool:
        place = (self.tenant, *slip_key(space, key))
        dropped: list[tuple[bytes | None, bytes | None]] = []

        def job(db: PostgresConnection) -> bool:
            there = self._locked(db, place)
            if dropped and there[0] != dropped[0][0]:
                there = dropped[0]  # the first attempt did it; what is there now is another one
            else:
                dropped.append(there)
                db.execute(PG_DROP, place)
            return there[1] is not None

        return self.server.transaction(job)

    def purge_slips(self, now: int, limit: int = MAX_PAGE) -> int:
        return len(self.server.fetch(PG_PURGE, (now, limit)))
