"""The reads that SQLite and PostgreSQL share: all but a scan of events and a search.

A subclass runs the queries. Each read is one query outside a transaction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

from holdfast.errors import SessionNotFound, WrongKey
from holdfast.log.events import MESSAGE_TYPES, Row
from holdfast.stores.append import Head
from holdfast.stores.base import Info, Log, Store, TenantLog
from holdfast.stores.encrypted_rows import Keys, blob_name, decrypt_blob, decrypt_name, decrypt_row, encrypt_name
from holdfast.stores.encryption import DataKey
from holdfast.stores.lease import Lease
from holdfast.stores.rows import check_deleted_id, head_from_columns, info_from_columns, log_from_columns
from holdfast.stores.statements import Statements

R = TypeVar("R")
T = TypeVar("T")


class Cursor(Protocol):
    """The rows of a statement."""

    def fetchone(self) -> Any: ...  # noqa: ANN401 - a row, or None

    def fetchall(self) -> list[Any]: ...


class SQLConnection(Protocol):
    """The one method that the drivers of both databases have in common."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Cursor: ...


class SQLReads(Store):
    """The reads of a store in a SQL database."""

    sql: ClassVar[Statements]
    _tenant_hint: ClassVar[str] = ""  # condition that lets a database use its index of the sessions of a tenant
    _keys: Keys

    @abstractmethod
    def _fetch_one(self, query: str, values: tuple[Any, ...] = ()) -> Any:  # noqa: ANN401 - a row, or None
        """Run one query outside a transaction and return its first row."""

    @abstractmethod
    def _fetch_all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run one query outside a transaction and return its rows."""

    @abstractmethod
    def _range(self, number: int, first: int, last: int) -> tuple[int, ...]:
        """The values of a range of events in the statements COUNT, HAS_TYPES and TOMBSTONES."""

    @abstractmethod
    def _lease_from_columns(self, columns: Sequence[Any]) -> Lease | None: ...

    def _across_tenants(self) -> Self:
        """This store, for a statement that is meant for the rows of every tenant, or says itself for which."""
        return self

    def _key(self, db: SQLConnection, number: int) -> DataKey | None:
        """The key of a log, read inside a transaction; None if the log is not encrypted."""
        if not self._keys.has_master:
            return None
        return self._keys.get_key(number, lambda: db.execute(self.sql.KEY, (number,)).fetchone())

    def _data_key(self, number: int) -> DataKey | None:
        """The key of a log; None if the log is not encrypted."""
        if not self._keys.has_master:
            return None
        return self._keys.get_key(number, lambda: self._fetch_one(self.sql.KEY, (number,)))

    def _read_sealed(self, number: int, read: Callable[[], R], decrypt: Callable[[DataKey | None, R], T]) -> T:
        """Return what is read of a log, decrypted.

        An erasure replaces the key of a log, and this process may have cached the old one. So after a failure the key
        and the data are read again, once. What fails then was altered.
        """
        try:
            return decrypt(self._data_key(number), read())
        except WrongKey:
            self._keys.forget_key(number)
            return decrypt(self._data_key(number), read())

    # -- sweep, run queue, leases --------------------------------------------------------------------------------------

    def due_for_sweep(self, now: int, *, limit: int) -> list[TenantLog]:
        rows = self._across_tenants()._fetch_all(self.sql.DUE_FOR_SWEEP, (now, self.tenant, self.tenant, limit))
        return [TenantLog(row[12], log_from_columns(row)) for row in rows]

    def logs_with_queued_runs(self, *, after: int = 0, limit: int = 100) -> list[TenantLog]:
        rows = self._across_tenants()._fetch_all(self.sql.RUN_QUEUE, (after, self.tenant, self.tenant, limit))
        return [TenantLog(row[12], log_from_columns(row), self._lease_from_columns(row[13:])) for row in rows]

    def _lease(self, db: SQLConnection, number: int) -> Lease | None:
        found = db.execute(self.sql.LEASE, (number,)).fetchone()
        return None if found is None else self._lease_from_columns(found)

    def lease(self, log: Log) -> Lease | None:
        found = self._fetch_one(self.sql.LEASE, (log.number,))
        return None if found is None else self._lease_from_columns(found)

    # -- reads -------------------------------------------------------------------------------------------------------

    def find(self, kind: str, id: str) -> Log | None:
        found = self._fetch_one(self.sql.FIND, (self.tenant, kind, id))
        return None if found is None else self._keys.check_readable(log_from_columns(found))

    def log_of_number(self, number: int) -> Log:
        found = self._fetch_one(self.sql.FIND_NUMBER, (number,))
        if found is None:
            raise SessionNotFound(str(number))
        return self._keys.check_readable(log_from_columns(found))

    def descendants(self, number: int) -> list[Log]:
        return [log_from_columns(row) for row in self._fetch_all(self.sql.DESCENDANTS, (number,))]

    def head_of_number(self, number: int) -> Head:
        found = self._fetch_one(self.sql.HEAD_OF_NUMBER, (number,))
        if found is None:
            raise SessionNotFound(str(number))
        return head_from_columns(found)

    def head(self, log: Log) -> Head:
        found = self._fetch_one(self.sql.HEAD, (log.number,))
        if found is None:
            raise SessionNotFound(log.id)
        return head_from_columns(found)

    def id_of_number(self, number: int) -> str | None:
        found = self._fetch_one(self.sql.ID_OF, (self.tenant, number))
        return None if found is None else found[0]

    def info(self, log: Log) -> Info:
        found = self._fetch_one(self.sql.INFO_ONE, (log.number,))
        if found is None:
            raise SessionNotFound(log.id)
        return info_from_columns(found, self._keys)

    def sessions(
        self,
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: str | Log | None = None,
        parent: int | None = None,
    ) -> list[Info]:
        where: list[str] = ["s.tenant = ?"]
        values: list[Any] = [self.tenant]
        if self.tenant and self._tenant_hint:
            where.append(self._tenant_hint)
        for clause, value in (
            ("s.user_id = ?", user_id and user_id.encode()),
            ("s.app_name = ?", app_name and app_name.encode()),
            ("s.status = ?", status),
            ("s.log IN (SELECT log FROM lineage WHERE ancestor = ?)", parent),
            ("l.parent = ?", parent),
        ):
            if value is not None:
                where.append(clause)
                values.append(value)
        if isinstance(after, str):
            found = self._fetch_one(self.sql.NUMBER_OF, (self.tenant, after))
            where.append("l.uid < ?" if found is None else "s.log < ?")
            values.append(check_deleted_id(after) if found is None else found[0])
        elif after is not None:
            where.append("s.log < ?")
            values.append(after.number)
        query = self.sql.INFO + self.sql.render(f" WHERE {' AND '.join(where)} ORDER BY s.log DESC LIMIT ?")
        return [info_from_columns(row, self._keys) for row in self._fetch_all(query, (*values, limit))]

    def _count(self, number: int, first: int, last: int) -> int:
        found = self._fetch_one(self.sql.COUNT, (*self._range(number, first, last), *MESSAGE_TYPES))
        return 0 if found is None else found[0]

    def _find_name(self, number: int, name: str, at: int) -> tuple[bool, Row | None, int | None]:
        def read() -> Any:  # noqa: ANN401 - a row, or None
            return self._fetch_one(self.sql.NAME, (number, encrypt_name(self._data_key(number), name), at))

        def decrypt(key: DataKey | None, found: Any) -> tuple[bool, Row | None, int | None]:  # noqa: ANN401
            if found is None:
                return False, None, None
            ref, *columns = found
            return True, None if columns[0] is None else decrypt_row(key, number, Row(*columns)), ref

        return self._read_sealed(number, read, decrypt)

    def _list_names(self, number: int, prefix: str, at: int) -> list[tuple[str, int | None]]:
        low = prefix.encode()
        high = low[:-1] + bytes([low[-1] + 1])
        return self._read_sealed(
            number,
            lambda: self._fetch_all(self.sql.NAMES, (number, low, high, at)),
            lambda key, rows: [(decrypt_name(key, row[0]), row[1]) for row in rows],
        )

    def _snapshot(self, number: int, at: int) -> tuple[int, bytes] | None:
        found = self._fetch_one(self.sql.SNAPSHOT, (number, at))
        return None if found is None else (found[0], found[1])

    def _blob(self, number: int, digest: str) -> bytes | None:
        key = self._data_key(number)
        found = self._fetch_one(self.sql.BLOB, (number, blob_name(key, digest)))
        return None if found is None else decrypt_blob(key, digest, found[0])
