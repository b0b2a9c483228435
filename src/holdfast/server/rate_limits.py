"""Limits per key, and per address for requests without a valid key.

The counts are in memory, so each server counts for itself. Counts per key are bounded by the number of keys; counts per
address are bounded by dropping the oldest address.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import TooManyRequests
from holdfast.server.config import Config
from holdfast.server.metrics import Metrics

MOST_BUCKETS = 10_000
FAILURES_A_SECOND, FAILURES_AT_ONCE = 5.0, 50  # of one address that has no valid key
SLOT_RETRY_SECONDS = 1.0  # a guess: the end of a stream or a run is unknown


class Buckets:
    """Token buckets by name: each is full at first, loses one for a request, and fills up again with time."""

    def __init__(self, rate: float, burst: float, *, clock: Clock = SYSTEM_CLOCK, most: int = MOST_BUCKETS) -> None:
        self.rate, self.burst, self._clock, self._most = rate, burst, clock, most
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and the time of that count

    def take_token(self, name: str) -> float:
        """Take a token and return 0; without a token return the seconds to wait."""
        now = self._clock.monotonic()
        with self._lock:
            left, since = self._left.get(name, (self.burst, now))
            left = min(self.burst, left + max(0.0, now - since) * self.rate)
            wait = 0.0 if left >= 1 else (1 - left) / self.rate
            self._left[name] = (left if wait else left - 1, now)
            self._left.move_to_end(name)
            if len(self._left) > self._most:
                self._left.popitem(last=False)
        return wait

    def seconds_to_wait(self, name: str) -> float:
        """Return the seconds to wait for a token, without taking one."""
        found = self._left.get(name)
        if found is None:
            return 0.0
        left = found[0] + max(0.0, self._clock.monotonic() - found[1]) * self.rate
        return 0.0 if left >= 1 else (1 - left) / self.rate


class Slot:
    """One of a limited number of slots. `release` gives it back once, from any thread, also if called again."""

    __slots__ = ("_key", "_slots")

    def __init__(self, slots: Slots, key: str) -> None:
        self._slots: Slots | None = slots
        self._key = key

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._release_slot(self._key)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Slots:
    """A limited number of slots for each key."""

    def __init__(self, what: str, limit: int, refused: Callable[[], None] = lambda: None) -> None:
        self.what, self.limit, self._on_refusal = what, limit, refused
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def hold(self, key: str) -> Slot:
        with self._lock:
            held = self._held.get(key, 0)
            if held >= self.limit:
                self._on_refusal()
                raise TooManyRequests(
                    f"this key has {held} {self.what}, which is its limit", retry_after=SLOT_RETRY_SECONDS
                )
            self._held[key] = held + 1
        return Slot(self, key)

    def count_held(self, key: str) -> int:
        return self._held.get(key, 0)

    def _release_slot(self, key: str) -> None:
        with self._lock:
            left = self._held[key] - 1
            if left:
                self._held[key] = left
            else:
                del self._held[key]


class RequestLimits:
    """The limits of a server."""

    def __init__(self, config: Config, *, metrics: Metrics, clock: Clock = SYSTEM_CLOCK) -> None:
        self._requests = Buckets(config.rate, config.burst, clock=clock) if config.rate else None
        self._failures = Buckets(FAILURES_A_SECOND, FAILURES_AT_ONCE, clock=clock)
        self._refusals = metrics.refusals
        self.streams = Slots("open streams", config.streams_per_key, self._refusals.labels("streams").inc)
        self.runs = Slots("requests that wait for their run", config.runs_per_key, self._refusals.labels("runs").inc)

    def count_request(self, key: str) -> None:
        """Count a request of a key; raise TooManyRequests above its rate."""
        if self._requests is not None and (wait := self._requests.take_token(key)):
            self._refusals.labels("rate").inc()
            raise TooManyRequests("this key asks too often", retry_after=wait)

    def count_failure(self, address: str) -> None:
        """Count a request without a valid key."""
        self._failures.take_token(address)

    def check_address(self, address: str) -> None:
        """Raise TooManyRequests for an address with too many invalid keys: each lookup costs the store."""
        if wait := self._failures.seconds_to_wait(address):
            self._refusals.labels("address").inc()
            raise TooManyRequests("too many requests without a valid key came from this address", retry_after=wait)
