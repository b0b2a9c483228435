"""The shares of tenants in the threads of a run pool: no tenant can take them all, and one alone is not held back.

A run keeps its thread until its model and its tools have answered, so a share must be left free before others need it.
One tenant may hold at most `limit` threads, and at most three quarters of the threads that the other tenants leave. The
pool has a third more threads than `limit`, so that a tenant that is alone gets `limit` of them.
"""

from __future__ import annotations

from collections import Counter

SHARE = 3  # threads that a tenant may hold for each free one


class ThreadShares:
    """Counts the threads that each tenant holds. Callers hold the lock of the pool."""

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, limit + max(1, limit // SHARE)
        self._held: Counter[str] = Counter()

    def may_take(self, tenant: str) -> bool:
        """Whether the tenant may hold one more thread now."""
        free = self.total - self._held.total()
        return self._held[tenant] < min(self.limit, SHARE * free)

    def take(self, tenant: str) -> None:
        self._held[tenant] += 1

    def give_back(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
