"""What tenants and their users have and use, counted by the store, so that a limit holds on all servers together.

Only tenants and users with a quota are counted, from the first request under that quota on. Sessions, forks and
memories are counted in the transaction that creates or removes them, so a race never gets above a limit.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote

from holdfast.clock import Clock
from holdfast.log.named_values import MEMORY_PREFIX
from holdfast.policy.quota import DAY, Quota, Usage

if TYPE_CHECKING:
    from holdfast.stores.base import Log
    from holdfast.stores.memory_reads import LogInMemory, SharedLogs

USER_KINDS = ("memory", "user")  # kinds of logs that belong to a user; their id is the quoted user id
MEASURE_SECONDS = 10.0  # time between two measurements of bytes
FREED_SECONDS = 1.0  # the same, if the bytes are used up: a session may have been deleted
MEASURE_SHARE = 20  # a measurement that took a second is not repeated for 20 seconds

Price = Callable[[Mapping[str, int]], float]  # the cost of the usage of some model calls


class Allowance:
    """A quota and whom it limits: a tenant (`user_id` None), or one user of it. `used` is what the store read last."""

    __slots__ = ("quota", "used", "user_id")

    def __init__(self, user_id: str | None, quota: Quota) -> None:
        self.user_id, self.quota = user_id, quota
        self.used: Usage | None = None


def owner_of_log(log: Log) -> str | None:
    """The user that a log belongs to."""
    return unquote(log.id) if log.kind in USER_KINDS and log.id else log.user_id


def owned_log_id(user_id: str) -> str:
    """The id of the logs of `USER_KINDS` that belong to a user."""
    return quote(user_id, safe="")


def spent_since(before: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """The usage that was added. A total that has shrunk, because a failed step was taken back, adds nothing."""
    return {name: amount - before.get(name, 0) for name, amount in used.items() if amount > before.get(name, 0)}


def merge_usage(before: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """The larger of two totals, by name: what was settled once is never settled again."""
    return {name: max(before.get(name, 0), used.get(name, 0)) for name in sorted({*before, *used})}


def count_tokens(used: Mapping[str, int]) -> int:
    return used.get("input_tokens", 0) + used.get("output_tokens", 0)


class UsageCounters(ABC):
    """The counters of a store."""

    tenant: str
    clock: Clock
    allowances: tuple[Allowance, ...] = ()

    def read_time(self) -> int:
        """Now, by the clock that all processes of this store share: on PostgreSQL the clock of the database."""
        return self.clock.now()

    def limited(self, allowances: Iterable[Allowance]) -> Self:
        """The same store, bound to limits: what it creates beyond them is refused with QuotaExceeded."""
        bound = copy.copy(self)
        bound.allowances = tuple(allowances)
        return bound

    def start_counting(self) -> None:
        """Count what the limited tenant and user have, unless that was done before. The store keeps the counters."""
        for each in self.allowances:
            each.used = self.usage(each.user_id)

    @abstractmethod
    def usage(self, user_id: str | None) -> Usage:
        """What a user has and has used today; None: the whole tenant."""

    @abstractmethod
    def settle_usage(self, log: Log, used: Mapping[str, int], price: Price) -> None:
        """Add what a session has used since it was settled last to the usage of this day, once.

        `used` is the total of the session. The first call only notes it: what was used before is not of this day.
        """

    @abstractmethod
    def reserve_bytes(self, size: int) -> None:
        """Count bytes that are about to be stored; QuotaExceeded if they do not fit into a limit."""

    def check_day(self) -> None:
        """Raise QuotaExceeded if nothing is left of a limit of this day."""
        for each in self.allowances:
            if each.quota.has_flow:
                each.used = self.usage(each.user_id)  # read again: other servers use it up as well
                each.quota.check_day(each.used, self.clock.now(), user_id=each.user_id)


class MemoryUsage(UsageCounters):
    """The counters of a store in memory, which counts its logs at each call."""

    _memory: SharedLogs

    def usage(self, user_id: str | None) -> Usage:
        with self._memory.lock:
            mine = [kept for kept in self._memory.logs.values() if self._is_of(kept, user_id)]
            sessions = [kept.log for kept in mine if kept.log.kind == "session" and not kept.deleted]
            values = self._memory.key_values.items() if user_id is None else ()
            size = sum(map(_size_of_log, mine)) + sum(len(value[0]) for key, value in values if key[0] == self.tenant)
            day, tokens, cost = self._memory.days.get((self.tenant, user_id), (0, 0, 0.0))
            is_today = day == self.clock.now() // DAY
            return Usage(
                sessions=len(sessions),
                forks=sum(log.parent is not None for log in sessions),
                memories=sum(name.startswith(MEMORY_PREFIX) for kept in mine for name in kept.names),
                bytes=size,
                tokens_per_day=tokens if is_today else 0,
                cost_per_day=cost if is_today else 0.0,
            )

    def _is_of(self, kept: LogInMemory, user_id: str | None) -> bool:
        return kept.tenant == self.tenant and user_id in (None, owner_of_log(kept.log))

    def _check_growth(self, **growth: int) -> None:
        """Raise QuotaExceeded if so many more do not fit into a limit. The caller has the lock."""
        for each in self.allowances:
            used = self.usage(each.user_id)
            grown = used._replace(**{name: getattr(used, name) + more for name, more in growth.items()})
            each.quota.check_growth(grown, growth, user_id=each.user_id)
            each.used = grown

    def settle_usage(self, log: Log, used: Mapping[str, int], price: Price) -> None:
        with self._memory.lock:
            before = self._memory.settled.get(log.number)
            spent = {} if before is None else spent_since(before, used)
            self._memory.settled[log.number] = merge_usage(before or {}, used)
            today = self.clock.now() // DAY
            for owner in {owner_of_log(log), None} if spent else ():
                day, tokens, cost = self._memory.days.get((self.tenant, owner), (today, 0, 0.0))
                if day < today:
                    day, tokens, cost = today, 0, 0.0
                self._memory.days[self.tenant, owner] = (day, tokens + count_tokens(spent), cost + price(spent))

    def reserve_bytes(self, size: int) -> None:
        with self._memory.lock:
            self._check_growth(bytes=size)


def _size_of_log(kept: LogInMemory) -> int:
    rows = sum(len(row.body or b"") + len(row.header or b"") + len(row.tombstone or b"") for row in kept.rows)
    return rows + sum(map(len, kept.blobs.values()))
