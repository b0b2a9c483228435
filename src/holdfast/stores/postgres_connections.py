"""Connections to a PostgreSQL server: a small pool, one rule about lost connections, one translation of errors.

A connection that failed or was interrupted is closed, never handed out again. A unit of work is tried again after its
connection was lost, so it must find out by itself whether the attempt before was committed: the answer to a COMMIT can
get lost although the COMMIT did not.

A server can fall silent without closing a connection: a cut cable, a frozen machine. So each wait for it has a limit.
"""

from __future__ import annotations

import os
import re
import select
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.crashpoints import crashpoint
from holdfast.diagnostics import SLOW_SECONDS, report_slow_store
from holdfast.errors import (
    AgentError,
    InvalidArgument,
    MissingExtra,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.operating_system import register_at_fork
from holdfast.stores.migrations import Migration, migrate
from holdfast.stores.places import Call, Places
from holdfast.stores.write_faults import LASTING_FAULTS

try:
    import psycopg
    from psycopg import errors as pg
except ImportError as error:
    raise MissingExtra("PostgresStore", "postgres") from error

T = TypeVar("T")
DatabaseError = psycopg.Error

MAX_CONNECTIONS = 8
CONNECT_SECONDS = 5  # for a server to accept a connection
SILENT_SECONDS = 1.0  # after the server's own limit for a statement: then the connection is given up
LONG_WORK = 60  # times as long as other statements may take: removals, erasures and migrations touch many rows
LONGEST_WORK = 86_400.0  # seconds
STRIPES = 256
MIGRATION_LOCK = 0x686F6C64  # "hold"
CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS holdfast"
CREATE_MIGRATIONS = """CREATE TABLE IF NOT EXISTS holdfast.migrations(
    version BIGINT PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL)"""
MIGRATIONS = "SELECT version, digest FROM holdfast.migrations"
RECORD_MIGRATION = "INSERT INTO holdfast.migrations VALUES(%s,%s,%s)"
LOCK = "SELECT pg_advisory_xact_lock(%s)"
SET_LIMIT = "SELECT set_config('statement_timeout', %s, true)"

# The server goes away or comes back, or another transaction was in the way: trying again is right.
TRANSIENT_ERRORS = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.UniqueViolation,  # of two writers that made the same thing: the second one finds it when it looks again
    pg.IdleSessionTimeout,
    pg.IdleInTransactionSessionTimeout,
    pg.TooManyConnections,
)

# SQLSTATE of a server that answers and refuses this user, password or database: trying again does not help.
REFUSALS = {
    "3D000": "create the database, or correct its name in the connection string",
    "28000": "correct the user in the connection string, or let this user in (pg_hba.conf)",
    "28P01": "correct the user or the password in the connection string",
    "42501": "let this user connect to the database (GRANT CONNECT), or name another one",
    "55000": "let the database take connections, or name another one in the connection string",
}
_SQLSTATE = re.compile(rb'ErrorResponse\t.* C "([0-9A-Z]{5})"')
NO_PASSWORD = "28P01"

_inherited: list[object] = []  # connections of a parent process: never used, never closed
_servers: weakref.WeakSet[PostgresServer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for server in list(_servers):
        server.leave_to_parent()


register_at_fork(after_in_child=_after_fork_in_child)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that does not wait for a silent server for ever."""

    answer_seconds: float | None = None  # for the answer to one statement

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:  # noqa: ANN401 - psycopg's
        try:
            return super().wait(gen, interval, self.answer_seconds if timeout is None else timeout)
        except pg._WaitTimeout as error:
            if timeout is not None:
                raise
            raise ServerSilent(f"no answer within {self.answer_seconds:g} s") from error

    def allow_long_work(self) -> None:
        """Let the statements of this transaction take longer than others."""
        assert self.answer_seconds is not None
        seconds = min(self.answer_seconds * LONG_WORK, LONGEST_WORK)
        self.execute(SET_LIMIT, (f"{seconds:.0f}s",))
        self.answer_seconds = seconds + SILENT_SECONDS


class ServerSilent(psycopg.OperationalError):
    """The server sent nothing for longer than its own limit for a statement."""


class PostgresServer:
    """The connections of this process to one database."""

    def __init__(
        self, dsn: str, *, connections: int, patience: float, clock: Clock, stopwatch: Clock = SYSTEM_CLOCK
    ) -> None:
        """`clock` is for waiting; `stopwatch` is the store's clock, which measures units and may be a test's."""
        self.dsn, self.connections, self.patience, self.clock = dsn, connections, patience, clock
        self._stopwatch = stopwatch
        self.closed = self._has_connected = False
        self.write_fault: StoreError | None = None  # of the last transaction
        self._reset_pool()
        _servers.add(self)
        # A client that is stopped inside a transaction must not hold everybody else for ever.
        try:
            known = psycopg.conninfo.conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:  # its text repeats the string, password included
            text = "the connection string cannot be read: write it like postgresql://user:password@host:5432/database"
            raise InvalidArgument(text) from None
        limit = int(patience * 1000)
        limits = f"-c lock_timeout={limit} -c statement_timeout={limit} -c idle_in_transaction_session_timeout={limit}"
        # Where the network is cut, neither side hears of it: the system has to ask whether the other one is there.
        deadlines = {
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": CONNECT_SECONDS,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": limit,
        }
        given = {name: value for name, value in deadlines.items() if name not in known}
        options = f"{known.get('options') or ''} {limits}".strip()
        self._conninfo = psycopg.conninfo.make_conninfo(dsn, options=options, **given)
        try:
            self.run_unit(self._migrate)
        except BaseException:
            self.close()
            raise

    def _reset_pool(self) -> None:
        self.heads: dict[int, Any] = {}  # what a store knows of its logs; per process, like the connections
        self.locks = [Places() for _ in range(STRIPES)]
        self._idle: list[Connection] = []
        self._slots = Places(self.connections)

    def leave_to_parent(self) -> None:
        """In a forked child: the connections are the parent's."""
        _inherited.append(self._idle)
        self._reset_pool()

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed("this PostgresStore was closed: open a new one")

    def _use_connection(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with a connection in autocommit mode; anything but a clean end closes it."""
        self._check_open()
        call = Call(sys._getframe())
        # A thread that was interrupted in its own unit of work gets a connection beside the slots: it holds one.
        if not self._slots.take(call, self.patience) and not self._slots.is_held_here():
            raise StoreBusy(f"all {self.connections} connections were in use for {self.patience:g} s: try again")
        try:
            try:
                db = self._idle.pop()
            except IndexError:
                db = Connection.connect(self._conninfo, autocommit=True)
                self._has_connected = True
            db.answer_seconds = self.patience + SILENT_SECONDS
            try:
                result = work(db)
            except AgentError:  # refused by us: the connection is as good as before
                self._give_back(db)
                raise
            except BaseException as error:
                db.close()
                if isinstance(error, psycopg.OperationalError) and _is_connection_lost(error):
                    self._close_idle()  # they lead to the same server, which may be gone or silent
                raise
            self._give_back(db)
            return result
        finally:
            self._slots.release(call)
            call.end()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                break  # another thread took the last one

    def _give_back(self, db: Connection) -> None:
        if self.closed or db.closed or db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            db.close()
        else:
            self._idle.append(db)

    def run_unit(self, work: Callable[[Connection], T]) -> T:
        """Do a unit of work, again if its connection is lost or another transaction is in the way."""
        began = self._stopwatch.monotonic()
        try:
            return self._repeat_unit(work)
        finally:
            self._report_if_slow(began)

    def run_once(self, work: Callable[[Connection], T]) -> T:
        """Do a unit of work that is not repeated; raises the errors of the driver."""
        began = self._stopwatch.monotonic()
        try:
            return self._use_connection(work)
        finally:
            self._report_if_slow(began)

    def _report_if_slow(self, began: float) -> None:
        seconds = self._stopwatch.monotonic() - began
        if seconds > SLOW_SECONDS:
            report_slow_store("PostgreSQL", seconds)

    def _repeat_unit(self, work: Callable[[Connection], T]) -> T:
        deadline = self.clock.monotonic() + self.patience
        tries = 0
        while True:
            try:
                return self._use_connection(work)
            except psycopg.Error as error:
                passing = isinstance(error, TRANSIENT_ERRORS) or (
                    isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and error.sqlstate is None
                )
                tries += 1
                if not self._has_connected and tries == 1:  # once: a wrong name is there from the beginning
                    self._raise_refusal(error)
                if not passing or (self.clock.monotonic() > deadline and tries > 1):
                    raise self._translate(error) from error
                if tries > 1:  # the first failure may be that of a connection to a server that was restarted
                    self.clock.sleep(min(0.005 * tries, 0.1))

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """A unit of work in one transaction, durable when this returns."""

        def unit(db: Connection) -> T:
            with db.transaction():
                found = work(db)
                crashpoint("before commit")
            crashpoint("after commit")
            return found

        try:
            result = self.run_unit(unit)
        except LASTING_FAULTS as error:
            self.write_fault = error
            raise
        self.write_fault = None
        return result

    def fetch(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self.run_unit(lambda db: db.execute(query, values).fetchall())

    def fetch_one(self, query: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        return self.run_unit(lambda db: db.execute(query, values).fetchone())

    def _migrate(self, db: Connection) -> None:
        def apply(migration: Migration) -> None:
            db.execute(migration.sql)
            crashpoint("migration applied")
            db.execute(RECORD_MIGRATION, (migration.version, migration.name, migration.digest))

        with db.transaction():
            db.allow_long_work()
            db.execute(LOCK, (MIGRATION_LOCK,))
            db.execute(CREATE_SCHEMA)
            db.execute(CREATE_MIGRATIONS)
            migrate("postgres", dict(db.execute(MIGRATIONS).fetchall()), apply)

    def _raise_refusal(self, error: psycopg.Error) -> None:
        """Raise StoreUnavailable if the server answers and does not let this process in."""
        is_password_missing = error.pgconn is not None and error.pgconn.needs_password
        code = NO_PASSWORD if is_password_missing else find_refusal(self._conninfo, self.patience)
        if code in REFUSALS:
            reason = _first_line(error).rpartition("failed: ")[2]
            raise StoreUnavailable(
                f"the PostgreSQL server refuses this connection: {reason}; {REFUSALS[code]}"
            ) from error

    def _translate(self, error: psycopg.Error) -> StoreError:
        if isinstance(error, pg.DiskFull | pg.InsufficientResources):
            return StoreFull("the PostgreSQL server has no space left: nothing was written; free some and try again")
        if isinstance(error, pg.ReadOnlySqlTransaction | pg.InsufficientPrivilege):
            return StoreReadOnly(f"the PostgreSQL server does not let this user write: {_first_line(error)}")
        if isinstance(error, pg.LockNotAvailable | pg.QueryCanceled):
            return StoreBusy(f"the PostgreSQL server took too long: {_first_line(error)}; try again")
        if (
            isinstance(error, TRANSIENT_ERRORS)
            or error.sqlstate is None
            or error.sqlstate.startswith(("08", "57", "58"))
        ):
            return StoreUnavailable(f"the PostgreSQL server cannot be reached: {_first_line(error)}; is it running?")
        return StoreError(f"PostgreSQL failed: {_first_line(error)}")

    def close(self) -> None:
        self.closed = True
        self._close_idle()


def find_refusal(conninfo: str, seconds: float) -> str | None:
    """Connect once more, and return the SQLSTATE with which the server refuses; None if it does not answer, or lets us
    in.

    The errors of psycopg about a connection have no SQLSTATE, and their text is in the language of the server. The
    trace of libpq has it. The trace goes through a pipe and is dropped here: it holds what proves the password.
    """
    if sys.platform != "linux":
        return None  # psycopg traces on Linux only
    reader, writer = os.pipe()
    connection = psycopg.pq.PGconn.connect_start(conninfo.encode())
    polling = psycopg.pq.PollingStatus
    try:
        connection.trace(writer)
        state = polling.WRITING
        while state in (polling.READING, polling.WRITING):
            readers, writers = ([connection.socket], []) if state == polling.READING else ([], [connection.socket])
            if not any(select.select(readers, writers, [], seconds)):
                break
            state = polling(connection.connect_poll())
        connection.untrace()
        os.set_blocking(reader, False)
        found = _SQLSTATE.findall(os.read(reader, 1 << 16))
        return found[-1].decode() if found else None
    except (psycopg.Error, OSError):  # nothing in the trace
        return None
    finally:
        connection.finish()
        os.close(reader)
        os.close(writer)


def _is_connection_lost(error: psycopg.Error) -> bool:
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


def _first_line(error: psycopg.Error) -> str:
    """The first line of an error, without the connection string that the driver may repeat."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    return text.strip().splitlines()[0]
