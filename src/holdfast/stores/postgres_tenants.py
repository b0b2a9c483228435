"""The second wall between tenants: row-level security in PostgreSQL.

Every statement of a store names its tenant. The policies of the database compare the tenant of a row with a setting of
the connection as well, so that a statement that forgets its tenant finds nothing of another one. The setting is sent
only when a connection changes hands between tenants, and with a single statement in the same round trip. Superusers and
roles with BYPASSRLS are not held by it: `holdfast doctor` says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.stores.places import Places
from holdfast.stores.postgres_connections import Connection, PostgresServer

T = TypeVar("T")
SET_TENANT = "SELECT set_config('holdfast.tenant', %s, false)"
EVERY_TENANT = "every"  # no setting of one tenant looks like this: each begins with "tenant:"
_current: weakref.WeakKeyDictionary[Connection, str] = weakref.WeakKeyDictionary()  # the setting of each connection


class TenantConnections:
    """The connections of a server, for the rows of one tenant; for those of all tenants if `tenant` is None."""

    def __init__(self, server: PostgresServer, tenant: str | None) -> None:
        self.pool = server
        self._setting = EVERY_TENANT if tenant is None else f"tenant:{tenant}"

    def for_tenant(self, tenant: str | None) -> TenantConnections:
        return TenantConnections(self.pool, tenant)

    @property
    def dsn(self) -> str:
        return self.pool.dsn

    @property
    def clock(self) -> Clock:
        return self.pool.clock

    @property
    def closed(self) -> bool:
        return self.pool.closed

    @property
    def heads(self) -> dict[int, Any]:
        return self.pool.heads

    @property
    def locks(self) -> list[Places]:
        return self.pool.locks

    def close(self) -> None:
        self.pool.close()

    def run_unit(self, work: Callable[[Connection], T]) -> T:
        return self.pool.run_unit(lambda db: self._run(db, work))

    def run_once(self, work: Callable[[Connection], T]) -> T:
        return self.pool.run_once(lambda db: self._run(db, work))

    def fetch(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self.run_unit(lambda db: db.execute(query, values).fetchall())

    def fetch_one(self, query: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        return self.run_unit(lambda db: db.execute(query, values).fetchone())

    def transaction(self, work: Callable[[Connection], T]) -> T:
        def walled(db: Connection) -> T:
            if _current.get(db) == self._setting:
                return work(db)
            # Unknown until the work is done: a rollback takes the setting back as well.
            _current.pop(db, None)
            db.execute(SET_TENANT, (self._setting,))
            found = work(db)
            _current[db] = self._setting
            return found

        return self.pool.transaction(walled)

    def _run(self, db: Connection, work: Callable[[Connection], T]) -> T:
        if _current.get(db) == self._setting:
            return work(db)
        _current.pop(db, None)
        with db.pipeline():  # one round trip for the setting and the statement
            db.execute(SET_TENANT, (self._setting,))
            found = work(db)
        _current[db] = self._setting
        return found
