"""The counters of a SQL store: one row for each tenant or user that has a quota.

Every transaction that creates or removes sessions or memories updates the rows of its tenant and user, if they exist,
and holds their row locks until it ends. So two creations of one tenant are one after the other once it has a quota, and
a limit is checked on the true number. Every transaction locks the row of the user before the row of the tenant.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.errors import QuotaExceeded, StoreUnavailable
from holdfast.log import codec
from holdfast.log.named_values import MEMORY_PREFIX
from holdfast.policy.quota import DAY, Usage
from holdfast.stores.append import MAX_SEQ, AppendBatch
from holdfast.stores.base import Log
from holdfast.stores.encrypted_rows import encrypt_name
from holdfast.stores.rows import log_from_columns
from holdfast.stores.sql_reads import SQLConnection, SQLReads
from holdfast.stores.usage import (
    FREED_SECONDS,
    MEASURE_SECONDS,
    MEASURE_SHARE,
    Allowance,
    Price,
    count_tokens,
    merge_usage,
    owned_log_id,
    owner_of_log,
    spent_since,
)

T = TypeVar("T")
MICRO = 1_000_000  # the unit of the column `cost` is a millionth of the money
MEMORY_KINDS = ("memory", "memory.app")  # kinds of logs that hold memories
SIZES_AT_ONCE = 200  # logs measured in one transaction
_MEMORIES = (MEMORY_PREFIX.encode(), MEMORY_PREFIX[:-1].encode() + b"0")  # bounds of the names of memories


def _owner_key(user_id: str | None) -> bytes:
    """The column `owner`: no user id is empty, so the empty one is the tenant."""
    return b"" if user_id is None else user_id.encode()


class SQLUsage(SQLReads):
    """The counters of a store in a SQL database."""

    @abstractmethod
    def _transaction(self, job: Callable[[Any], T]) -> T:
        """Run a job in a transaction and return its result when it is durable."""

    def _lock_usage(self, db: SQLConnection) -> None:
        """Wait for every transaction that has counted, and let none count until this transaction ends."""

    # -- counting in the transactions of others --------------------------------------------------------------------

    def _change_counts(
        self, db: SQLConnection, user_id: str | None, *, sessions: int = 0, forks: int = 0, memories: int = 0
    ) -> None:
        for owner in (user_id, None) if user_id is not None else (None,):
            db.execute(self.sql.CHANGE_COUNTS, (sessions, forks, memories, self.tenant, _owner_key(owner)))

    def _check_growth(self, db: SQLConnection, **growth: int) -> None:
        """Raise QuotaExceeded, which undoes the transaction, if this growth is above a limit."""
        for each in self.allowances:
            found = db.execute(self.sql.USAGE, (self.tenant, _owner_key(each.user_id))).fetchone()
            if found is None:
                raise StoreUnavailable("this store has lost the counters of a quota: try again, they are made again")
            each.used = self._usage_from_columns(found)
            each.quota.check_growth(each.used, growth, user_id=each.user_id)

    def _count_session(self, db: SQLConnection, log: Log, change: int) -> None:
        """Count a session that is created (1) or removed (-1) in this transaction."""
        self._change_counts(db, log.user_id, sessions=change, forks=change * (log.parent is not None))

    def _check_new_session(self, db: SQLConnection, log: Log) -> None:
        if self.allowances:
            self._check_growth(db, sessions=1, forks=int(log.parent is not None))

    def _count_new_memories(self, db: SQLConnection, number: int, batch: AppendBatch) -> None:
        """Count the memories of a batch that replace none; its names are written already."""
        key, first = self._key(db, number), batch.outcome.first
        names = [encrypt_name(key, name) for name in dict.fromkeys(batch.memories)]
        new = sum(db.execute(self.sql.HAS_NAME, (number, name, first)).fetchone() is None for name in names)
        if new:
            self._change_counts(db, self._owner_of_number(db, number), memories=new)
            self._check_growth(db, memories=new)

    def _count_forgotten(self, db: SQLConnection, number: int, names: Iterable[str]) -> None:
        """Count the memories of these names that have no version left."""
        key = self._key(db, number)
        wanted = {encrypt_name(key, name) for name in names if name.startswith(MEMORY_PREFIX)}
        gone = sum(db.execute(self.sql.HAS_NAME, (number, name, MAX_SEQ)).fetchone() is None for name in wanted)
        if gone:
            self._change_counts(db, self._owner_of_number(db, number), memories=-gone)

    def _count_lost_memories(self, db: SQLConnection, log: Log) -> None:
        """Count the memories of a log that goes as a whole."""
        if log.kind not in MEMORY_KINDS:
            return
        (lost,) = db.execute(self.sql.MEMORIES_OF_LOG, (log.number, *_MEMORIES)).fetchone()
        if lost:
            self._change_counts(db, owner_of_log(log), memories=-lost)

    def _count_erased_log(self, db: SQLConnection, number: int) -> None:
        """Count a log whose content is erased: it is of no user from now on, and the tenant still has it."""
        log = log_from_columns(db.execute(self.sql.FIND_NUMBER, (number,)).fetchone())
        self._count_lost_memories(db, log)
        if log.kind == "session" and log.user_id is not None:
            changes = (-1, -int(log.parent is not None), 0)
            db.execute(self.sql.CHANGE_COUNTS, (*changes, self.tenant, _owner_key(log.user_id)))

    def _owner_of_number(self, db: SQLConnection, number: int) -> str | None:
        return owner_of_log(log_from_columns(db.execute(self.sql.FIND_NUMBER, (number,)).fetchone()))

    # -- reading ---------------------------------------------------------------------------------------------------

    def usage(self, user_id: str | None) -> Usage:
        place = (self.tenant, _owner_key(user_id))
        found = self._fetch_one(self.sql.USAGE, place)
        if found is None:
            self._transaction(lambda db: self._count_owner(db, user_id))
            found = self._fetch_one(self.sql.USAGE, place)
        return self._usage_from_columns(found)

    def _count_owner(self, db: SQLConnection, user_id: str | None) -> None:
        """Add the row of an owner. A transaction that created something and has not ended would see no row to update,
        and its work would not be in these numbers: so the table is locked first."""
        self._lock_usage(db)
        if user_id is None:
            counts = db.execute(self.sql.COUNT_TENANT, (self.tenant,)).fetchone()
            (memories,) = db.execute(self.sql.COUNT_MEMORIES, (self.tenant, *_MEMORIES)).fetchone()
        else:
            counts = db.execute(self.sql.COUNT_USER, (self.tenant, user_id.encode())).fetchone()
            bounds = (self.tenant, owned_log_id(user_id), *_MEMORIES)
            (memories,) = db.execute(self.sql.COUNT_USER_MEMORIES, bounds).fetchone()
        db.execute(self.sql.ADD_USAGE, (self.tenant, _owner_key(user_id), *counts, memories))

    def _usage_from_columns(self, columns: Sequence[Any]) -> Usage:
        sessions, forks, memories, size, measured_at, day, tokens, cost = columns
        is_today = day >= self.clock.now() // DAY
        return Usage(
            sessions=sessions,
            forks=forks,
            memories=memories,
            bytes=size,
            tokens_per_day=tokens if is_today else 0,
            cost_per_day=cost / MICRO if is_today else 0.0,
            measured_at=measured_at,
        )

    # -- tokens and money of a day ---------------------------------------------------------------------------------

    def settle_usage(self, log: Log, used: Mapping[str, int], price: Price) -> None:
        today, user_id = self.clock.now() // DAY, owner_of_log(log)

        def job(db: SQLConnection) -> None:
            db.execute(self.sql.BEGIN_SETTLING, (log.number, codec.encode(dict(used))))
            before = codec.decode(bytes(db.execute(self.sql.SETTLED, (log.number,)).fetchone()[0]))
            spent = spent_since(before, used)
            if not spent:
                return  # a second attempt after a lost answer ends here as well
            db.execute(self.sql.SET_SETTLED, (codec.encode(merge_usage(before, used)), log.number))
            added = (count_tokens(spent), round(price(spent) * MICRO))
            for owner in (user_id, None) if user_id is not None else (None,):
                values = (today, added[0], today, added[1], today)
                db.execute(self.sql.ADD_TO_DAY, (*values, self.tenant, _owner_key(owner)))

        self._transaction(job)

    # -- bytes -----------------------------------------------------------------------------------------------------

    def reserve_bytes(self, size: int) -> None:
        limited = [each for each in self.allowances if each.quota.bytes is not None]
        limited.sort(key=lambda each: each.user_id is None)
        for each in limited:
            self._measure_if_old(each, MEASURE_SECONDS)
        try:
            self._transaction(lambda db: self._add_bytes(db, limited, size))
        except QuotaExceeded:
            if not [each for each in limited if self._measure_if_old(each, FREED_SECONDS)]:
                raise
            self._transaction(lambda db: self._add_bytes(db, limited, size))

    def _add_bytes(self, db: SQLConnection, limited: Iterable[Allowance], size: int) -> None:
        for each in limited:
            found = db.execute(self.sql.ADD_BYTES, (size, self.tenant, _owner_key(each.user_id))).fetchone()
            if found is None:
                raise StoreUnavailable("this store has lost the counters of a quota: try again, they are made again")
            each.used = self._usage_from_columns(found)
            each.quota.check_growth(each.used, {"bytes": size}, user_id=each.user_id)

    def _measure_if_old(self, allowance: Allowance, seconds: float) -> bool:
        """Measure the bytes of an owner, if the last measurement is older than this and no other server does it."""
        user_id, start = allowance.user_id, self.clock.monotonic()
        place, now = (self.tenant, _owner_key(user_id)), self.clock.now()
        claim = (now, *place, now - round(seconds * 1e6))
        found = self._transaction(lambda db: db.execute(self.sql.CLAIM_MEASUREMENT, claim).fetchone())
        if found is None:
            return False
        total = self._sum_bytes(user_id)
        rest = round((self.clock.monotonic() - start) * MEASURE_SHARE * 1e6)
        # What was reserved since the measurement began may not be in the total.
        values = (total, found[0], self.clock.now() + max(0, rest - round(MEASURE_SECONDS * 1e6)), *place)
        self._transaction(lambda db: db.execute(self.sql.SET_BYTES, values))
        return True

    def _sum_bytes(self, user_id: str | None) -> int:
        """The bytes of all logs of an owner. Only logs that were written since the last measurement are read."""
        sources: list[tuple[str, tuple[Any, ...]]]
        if user_id is None:
            sources = [(self.sql.SIZES_OF_TENANT, (self.tenant,)), (self.sql.SIZES_OF_DELETED, (self.tenant,))]
            (total,) = self._fetch_one(self.sql.SIZE_OF_VALUES, (self.tenant,))
        else:
            mine = (self.tenant, user_id.encode())
            named = (self.tenant, owned_log_id(user_id))
            sources = [(self.sql.SIZES_OF_USER, mine), (self.sql.SIZES_OF_NAMED, named)]
            sources.append((self.sql.SIZES_OF_ANCESTORS, mine))
            total = 0
        old: list[tuple[int, int]] = []  # logs that were written since, and their heads
        for query, values in sources:
            for number, head, measured_head, size in self._fetch_all(query, values):
                if measured_head == head:
                    total += size
                else:
                    old.append((number, head))
        for start in range(0, len(old), SIZES_AT_ONCE):
            found = []
            for number, head in old[start : start + SIZES_AT_ONCE]:
                (size,) = self._fetch_one(self.sql.SIZE_OF_LOG, (*self._range(number, 0, MAX_SEQ), number))
                found.append((number, head, int(size)))
            total += sum(size for _, _, size in found)
            self._transaction(lambda db, found=found: [db.execute(self.sql.SET_SIZE, each) for each in found])  # type: ignore[misc]
        return int(total)
