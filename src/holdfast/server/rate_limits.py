"""How much one key, or one address without a key, may ask for.

Kept in memory, so each server counts for itself. What is counted per key is bounded by the number of keys; what is
counted per address is thrown away with the oldest address.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from holdfast.clock import REAL, Ids
from holdfast.errors import TooManyRequests
from holdfast.server.config import Config
from holdfast.server.metrics import Metrics

MOST_BUCKETS = 10_000
FAILURES_A_SECOND, FAILURES_AT_ONCE = 5.0, 50  # of one address that has no valid key
SLOT_FREE_IN = 1.0  # a guess: nobody knows when a stream or a run ends


class Buckets:
    """Token buckets by name: each is full at first, loses one for a request, and fills up again with time."""

    def __init__(self, rate: float, burst: float, *, ids: Ids = REAL, most: int = MOST_BUCKETS) -> None:
        self.rate, self.burst, self._ids, self._most = rate, burst, ids, most
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what was left, and when

    def take(self, name: str) -> float:
        """Seconds to wait; 0: one was taken."""
        now = self._ids.elapsed()
        with self._lock:
            left, since = self._left.get(name, (self.burst, now))
            left = min(self.burst, left + max(0.0, now - since) * self.rate)
            wait = 0.0 if left >= 1 else (1 - left) / self.rate
            self._left[name] = (left if wait else left - 1, now)
            self._left.move_to_end(name)
            if len(self._left) > self._most:
                self._left.popitem(last=False)
        return wait

    def wait(self, name: str) -> float:
        """Seconds to wait, without taking one."""
        found = self._left.get(name)
        if found is None:
            return 0.0
        left = found[0] + max(0.0, self._ids.elapsed() - found[1]) * self.rate
        return 0.0 if left >= 1 else (1 - left) / self.rate


class Slot:
    """One of a limited number. It is given back once, however often `release` is called, from whatever thread."""

    __slots__ = ("_key", "_slots")

    def __init__(self, slots: Slots, key: str) -> None:
        self._slots: Slots | None = slots
        self._key = key

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._give_back(self._key)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Slots:
    """So many at once of each key."""

    def __init__(self, what: str, limit: int, refused: Callable[[], None] = lambda: None) -> None:
        self.what, self.limit, self._refused = what, limit, refused
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def hold(self, key: str) -> Slot:
        with self._lock:
            held = self._held.get(key, 0)
            if held >= self.limit:
                self._refused()
                raise TooManyRequests(f"this key has {held} {self.what}, which is its limit", retry_after=SLOT_FREE_IN)
            self._held[key] = held + 1
        return Slot(self, key)

    def held(self, key: str) -> int:
        return self._held.get(key, 0)

    def _give_back(self, key: str) -> None:
        with self._lock:
            left = self._held[key] - 1
            if left:
                self._held[key] = left
            else:
                del self._held[key]


class Limits:
    """The limits of a server."""

    def __init__(self, config: Config, *, metrics: Metrics, ids: Ids = REAL) -> None:
        self._requests = Buckets(config.rate, config.burst, ids=ids) if config.rate else None
        self._failures = Buckets(FAILURES_A_SECOND, FAILURES_AT_ONCE, ids=ids)
        self._refused = metrics.refused
        self.streams = Slots("open streams", config.streams_per_key, self._refused.labels("streams").inc)
        self.runs = Slots("requests that wait for their run", config.runs_per_key, self._refused.labels("runs").inc)

    def admit(self, key: str) -> None:
        """Count a request of a key."""
        if self._requests is not None and (wait := self._requests.take(key)):
            self._refused.labels("rate").inc()
            raise TooManyRequests("this key asks too often", retry_after=wait)

    def failed(self, address: str) -> None:
        """Count a request without a valid key."""
        self._failures.take(address)

    def check_address(self, address: str) -> None:
        """Refuse to look a key up for an address that had too many wrong ones: each look costs the store."""
        if wait := self._failures.wait(address):
            self._refused.labels("address").inc()
            raise TooManyRequests("too many requests without a valid key came from this address", retry_after=wait)
