"""A queue of sessions that is fair to tenants: tenants take turns, and the sessions of one tenant keep their order.

A tenant with a thousand queued sessions delays another tenant by one session, not by a thousand.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from holdfast.stores.base import TenantLog


class FairQueue:
    """Sessions that wait for a thread, each at most once. Callers of `add`, `take` and `clear` hold a lock."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, deque[TenantLog]] = OrderedDict()
        self._numbers: set[int] = set()  # numbers of the logs in the queue

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: int) -> bool:
        """Whether the session with this log number waits here."""
        return number in self._numbers

    def add(self, due: TenantLog) -> None:
        """Put a session behind the other sessions of its tenant."""
        self._numbers.add(due.log.number)
        self._by_tenant.setdefault(due.tenant, deque()).append(due)

    def take(self, may_take: Callable[[str], bool]) -> TenantLog | None:
        """Remove and return the first session of the first tenant that may take a thread; that tenant goes to the end.
        Return None if no tenant with a session may."""
        tenant = next(filter(may_take, self._by_tenant), None)
        if tenant is None:
            return None
        sessions = self._by_tenant.pop(tenant)
        due = sessions.popleft()
        if sessions:
            self._by_tenant[tenant] = sessions
        self._numbers.discard(due.log.number)
        return due

    def clear(self) -> None:
        self._by_tenant.clear()
        self._numbers.clear()
