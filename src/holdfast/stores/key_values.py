"""Small values under a key, beside the logs: data of the server that belongs to no session.

An expired value counts as absent everywhere, whether or not it was purged. Keys are stored as bytes, so that every text
can be a key and every store has the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock
from holdfast.log.codec import text_bytes
from holdfast.log.identifiers import check_id, check_name

if TYPE_CHECKING:
    from holdfast.stores.memory_reads import SharedLogs
    from holdfast.stores.postgres_connections import Connection as PostgresConnection
    from holdfast.stores.postgres_tenants import TenantConnections
    from holdfast.stores.sqlite_connections import Connection as SQLiteConnection
    from holdfast.stores.sqlite_connections import SQLiteFile

MAX_KEY = 1024  # bytes; an index of a database has room for little more
MAX_PAGE = 1000

GET = "SELECT value FROM key_values WHERE tenant = ? AND space = ? AND key = ? AND (expires IS NULL OR expires > ?)"
LIST = """SELECT key, value FROM key_values
    WHERE tenant = ? AND space = ? AND key > ? AND (expires IS NULL OR expires > ?) ORDER BY key LIMIT ?"""
PUT = "INSERT OR REPLACE INTO key_values(tenant, space, key, value, expires) VALUES(?,?,?,?,?)"
REPLACE = """UPDATE key_values SET value = ?, expires = ?
    WHERE tenant = ? AND space = ? AND key = ? AND value = ? RETURNING 1"""
DELETE = "DELETE FROM key_values WHERE tenant = ? AND space = ? AND key = ? RETURNING expires IS NULL OR expires > ?"
PURGE = """DELETE FROM key_values WHERE (tenant, space, key) IN
    (SELECT tenant, space, key FROM key_values WHERE expires <= ? ORDER BY expires LIMIT ?) RETURNING 1"""

PG_GET = """SELECT value FROM holdfast.key_values
    WHERE tenant = %s AND space = %s AND key = %s AND (expires IS NULL OR expires > %s)"""
PG_LIST = """SELECT key, value FROM holdfast.key_values
    WHERE tenant = %s AND space = %s AND key > %s AND (expires IS NULL OR expires > %s) ORDER BY key LIMIT %s"""
PG_LOCK = """SELECT mark, CASE WHEN expires IS NULL OR expires > %s THEN value END FROM holdfast.key_values
    WHERE tenant = %s AND space = %s AND key = %s FOR UPDATE"""
PG_ADD = "INSERT INTO holdfast.key_values(value, expires, mark, tenant, space, key) VALUES(%s,%s,%s,%s,%s,%s)"
PG_SET = "UPDATE holdfast.key_values SET value=%s, expires=%s, mark=%s WHERE tenant = %s AND space = %s AND key = %s"
# Also if the value is the new one: then an attempt whose answer was lost has replaced it.
PG_REPLACE = """UPDATE holdfast.key_values SET value = %s, expires = %s, mark = %s
    WHERE tenant = %s AND space = %s AND key = %s AND value IN (%s, %s) RETURNING 1"""
PG_DELETE = "DELETE FROM holdfast.key_values WHERE tenant = %s AND space = %s AND key = %s"
# Several servers purge at once: each skips the rows that another server is removing.
PG_PURGE = """WITH gone AS (SELECT tenant, space, key FROM holdfast.key_values
    WHERE expires <= %s ORDER BY expires LIMIT %s FOR UPDATE SKIP LOCKED)
    DELETE FROM holdfast.key_values s USING gone g
    WHERE s.tenant = g.tenant AND s.space = g.space AND s.key = g.key RETURNING 1"""


def check_key(space: str, key: str) -> tuple[str, bytes]:
    """Return the space and the key as they are stored; InvalidArgument if one is not valid."""
    return check_id(space, "space"), check_name(key, "key", MAX_KEY).encode()


def _page_start(space: str, after: str | None) -> tuple[str, bytes]:
    """Return the space and the key after which a page begins. No key is empty, so the empty key is before all."""
    return check_id(space, "space"), text_bytes(after or "", "after", MAX_KEY)


class KeyValues(ABC):
    """The six methods of a store for small values. A store author implements these beside the methods for logs."""

    @abstractmethod
    def kv_put(
        self, space: str, key: str, value: bytes, *, only_new: bool = False, expires: int | None = None
    ) -> bytes | None:
        """Store a value until `expires` (microseconds since 1970; None: no end), in place of the current value.

        With `only_new`, a current value stays and is returned; None means that this call wrote its value. Of any number
        of callers in any number of processes, one gets None. The store does not encrypt values.
        """

    @abstractmethod
    def kv_get(self, space: str, key: str) -> bytes | None:
        """Return the value; None if there is none or it has expired."""

    @abstractmethod
    def kv_list(self, space: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[tuple[str, bytes]]:
        """Return keys and values in the order of the keys; `after` is the last key of the previous page."""

    @abstractmethod
    def kv_replace(self, space: str, key: str, value: bytes, new: bytes, *, expires: int | None = None) -> bool:
        """Store a new value in place of `value`, also if that has expired; False if the key has another value or
        none: nothing is written then."""

    @abstractmethod
    def kv_delete(self, space: str, key: str) -> bool:
        """Remove a value; return whether there was one that had not expired."""

    @abstractmethod
    def kv_purge(self, now: int, limit: int = MAX_PAGE) -> int:
        """Remove values of every tenant that expired at or before `now`, the oldest first; return their number."""


class MemoryKeyValues(KeyValues):
    """Key values in the memory of the process."""

    tenant: str
    clock: Clock
    _memory: SharedLogs

    def kv_put(
        self, space: str, key: str, value: bytes, *, only_new: bool = False, expires: int | None = None
    ) -> bytes | None:
        place = (self.tenant, *check_key(space, key))
        with self._memory.lock:
            found = self._current_value(place)
            if only_new and found is not None:
                return found
            self._memory.key_values[place] = (bytes(value), expires)
            return None

    def _current_value(self, place: tuple[str, str, bytes]) -> bytes | None:
        value, expires = self._memory.key_values.get(place, (None, None))
        return value if expires is None or expires > self.clock.now() else None

    def kv_get(self, space: str, key: str) -> bytes | None:
        with self._memory.lock:
            return self._current_value((self.tenant, *check_key(space, key)))

    def kv_list(self, space: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[tuple[str, bytes]]:
        start, now = (self.tenant, *_page_start(space, after)), self.clock.now()
        with self._memory.lock:
            found = sorted(
                (place[2], value)
                for place, (value, expires) in self._memory.key_values.items()
                if place[:2] == start[:2] and place > start and (expires is None or expires > now)
            )
        return [(key.decode(), value) for key, value in found[:limit]]

    def kv_delete(self, space: str, key: str) -> bool:
        place = (self.tenant, *check_key(space, key))
        with self._memory.lock:
            found = self._current_value(place)
            self._memory.key_values.pop(place, None)
            return found is not None

    def kv_replace(self, space: str, key: str, value: bytes, new: bytes, *, expires: int | None = None) -> bool:
        place = (self.tenant, *check_key(space, key))
        with self._memory.lock:
            if self._memory.key_values.get(place, (None, None))[0] != value:
                return False
            self._memory.key_values[place] = (bytes(new), expires)
            return True

    def kv_purge(self, now: int, limit: int = MAX_PAGE) -> int:
        with self._memory.lock:
            timed = ((expires, place) for place, (_, expires) in self._memory.key_values.items() if expires is not None)
            gone = sorted(each for each in timed if each[0] <= now)[:limit]
            for _, place in gone:
                del self._memory.key_values[place]
            return len(gone)


class SQLiteKeyValues(KeyValues):
    """Key values in a SQLite file."""

    tenant: str
    clock: Clock
    file: SQLiteFile

    def kv_put(
        self, space: str, key: str, value: bytes, *, only_new: bool = False, expires: int | None = None
    ) -> bytes | None:
        place = (self.tenant, *check_key(space, key))

        def job(db: SQLiteConnection) -> bytes | None:
            found = db.execute(GET, (*place, self.clock.now())).fetchone() if only_new else None
            if found is not None:
                value_there: bytes = found[0]
                return value_there
            db.execute(PUT, (*place, bytes(value), expires))
            return None

        return self.file.write(job)

    def kv_get(self, space: str, key: str) -> bytes | None:
        place = (self.tenant, *check_key(space, key), self.clock.now())
        found = self.file.read(lambda db: db.execute(GET, place).fetchone())
        return None if found is None else found[0]

    def kv_list(self, space: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[tuple[str, bytes]]:
        bound = (self.tenant, *_page_start(space, after), self.clock.now(), limit)
        rows: list[Any] = self.file.read(lambda db: db.execute(LIST, bound).fetchall())
        return [(key.decode(), value) for key, value in rows]

    def kv_delete(self, space: str, key: str) -> bool:
        place = (self.tenant, *check_key(space, key))
        found = self.file.write(lambda db: db.execute(DELETE, (*place, self.clock.now())).fetchone())
        return found is not None and bool(found[0])

    def kv_replace(self, space: str, key: str, value: bytes, new: bytes, *, expires: int | None = None) -> bool:
        values = (bytes(new), expires, self.tenant, *check_key(space, key), bytes(value))
        return self.file.write(lambda db: db.execute(REPLACE, values).fetchone()) is not None

    def kv_purge(self, now: int, limit: int = MAX_PAGE) -> int:
        return len(self.file.write(lambda db: db.execute(PURGE, (now, limit)).fetchall()))


class PostgresKeyValues(KeyValues):
    """Key values in PostgreSQL.

    Every write stores a mark of its own. After a lost answer, the next attempt sees from the mark whether the attempt
    before was committed, and does not overwrite a value that another process has written since.
    """

    tenant: str
    clock: Clock
    server: TenantConnections

    def kv_put(
        self, space: str, key: str, value: bytes, *, only_new: bool = False, expires: int | None = None
    ) -> bytes | None:
        place = (self.tenant, *check_key(space, key))
        mine = self.server.clock.random_bytes(16)
        replaced: list[bytes | None] = []  # marks that the attempts replaced

        def job(db: PostgresConnection) -> bytes | None:
            there, found = self._lock_row(db, place)
            if there == mine or (replaced and there != replaced[0] and not only_new):
                return None  # an attempt with a lost answer wrote it, or another process has written a later value
            if only_new and found is not None:
                return found
            replaced.append(there)
            # Of two processes that insert at once, one fails here, tries again, and finds the value of the other.
            db.execute(PG_ADD if there is None else PG_SET, (bytes(value), expires, mine, *place))
            return None

        return self.server.transaction(job)

    def _lock_row(self, db: PostgresConnection, place: tuple[str, str, bytes]) -> tuple[bytes | None, bytes | None]:
        """Return the mark of the row, and its value unless the value has expired."""
        found = db.execute(PG_LOCK, (self.clock.now(), *place)).fetchone()
        return (None, None) if found is None else (found[0], found[1])

    def kv_get(self, space: str, key: str) -> bytes | None:
        found = self.server.fetch_one(PG_GET, (self.tenant, *check_key(space, key), self.clock.now()))
        return None if found is None else found[0]

    def kv_list(self, space: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[tuple[str, bytes]]:
        rows = self.server.fetch(PG_LIST, (self.tenant, *_page_start(space, after), self.clock.now(), limit))
        return [(key.decode(), value) for key, value in rows]

    def kv_delete(self, space: str, key: str) -> bool:
        place = (self.tenant, *check_key(space, key))
        dropped: list[tuple[bytes | None, bytes | None]] = []

        def job(db: PostgresConnection) -> bool:
            there = self._lock_row(db, place)
            if dropped and there[0] != dropped[0][0]:
                there = dropped[0]  # the first attempt removed the value; the row is a later one
            else:
                dropped.append(there)
                db.execute(PG_DELETE, place)
            return there[1] is not None

        return self.server.transaction(job)

    def kv_replace(self, space: str, key: str, value: bytes, new: bytes, *, expires: int | None = None) -> bool:
        mark, place = self.server.clock.random_bytes(16), (self.tenant, *check_key(space, key))
        values = (bytes(new), expires, mark, *place, bytes(value), bytes(new))
        return self.server.fetch_one(PG_REPLACE, values) is not None

    def kv_purge(self, now: int, limit: int = MAX_PAGE) -> int:
        return len(self.server.for_tenant(None).fetch(PG_PURGE, (now, limit)))
