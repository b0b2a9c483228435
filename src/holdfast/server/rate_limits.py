"""Limits per key and per tenant, and per address for requests without a valid key.

The counts are in memory, so each server counts for itself. Counts per key are bounded by the number of keys; counts per
address are bounded by dropping the oldest address.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import TooManyRequests
from holdfast.server.config import Config
from holdfast.server.metrics import Metrics

MOST_BUCKETS = 10_000
FAILURES_A_SECOND, FAILURES_AT_ONCE = 5.0, 50  # of one address that has no valid key
SLOT_RETRY_SECONDS = 1.0  # a guess: the end of a stream or a run is unknown
THREADS_PER_TENANT = 16  # of the 40 threads of blocking requests
MODEL_CALLS = 32  # requests that ask a model outside of a run; each has a thread
MODEL_CALLS_PER_TENANT = 16
BYTES_PER_KEY, BYTES_PER_TENANT = 32 << 20, 128 << 20  # of large answers that their clients have not taken yet


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
    """A part of what a key and its tenant may hold. `release` gives it back once, from any thread, also if called
    again."""

    __slots__ = ("_owners", "_size", "_slots")

    def __init__(self, slots: Slots, owners: Sequence[str], size: int) -> None:
        self._slots: Slots | None = slots
        self._owners, self._size = owners, size

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._release_slot(self._owners, self._size)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Slots:
    """A limited number of slots for each key, and for each tenant."""

    def __init__(
        self,
        what: str,
        limit: int,
        refused: Callable[[], None] = lambda: None,
        *,
        per_tenant: int | None = None,
        total: int | None = None,
    ) -> None:
        self.what, self.limit, self.per_tenant, self.total = what, limit, per_tenant, total
        self._on_refusal = refused
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def hold(self, key: str, tenant: str | None = None, size: int = 1) -> Slot:
        """Take `size` slots; raise TooManyRequests above a limit. An owner that holds nothing gets any size."""
        owners = self._owners(key, tenant)
        with self._lock:
            self._refuse_above(owners, size)
            for name in owners:
                self._held[name] = self._held.get(name, 0) + size
        return Slot(self, tuple(owners), size)

    def check(self, key: str, tenant: str, size: int) -> None:
        """Raise TooManyRequests if `hold` would now; take nothing."""
        with self._lock:
            self._refuse_above(self._owners(key, tenant), size)

    def _owners(self, key: str, tenant: str | None) -> dict[str, tuple[str, int]]:
        """Return the names under which slots are counted, each with the owner in words and its limit."""
        owners = {key: ("this key", self.limit)}
        if tenant is not None and self.per_tenant is not None:
            owners[_tenant_name(tenant)] = ("this tenant", self.per_tenant)
        if self.total is not None:
            owners[""] = ("this server", self.total)
        return owners

    def _refuse_above(self, owners: dict[str, tuple[str, int]], size: int) -> None:
        for name, (owner, limit) in owners.items():
            held = self._held.get(name, 0)
            if held and held + size > limit:
                self._on_refusal()
                raise TooManyRequests(
                    f"{owner} has {held} {self.what}, and its limit is {limit}", retry_after=SLOT_RETRY_SECONDS
                )

    def count_held(self, key: str) -> int:
        return self._held.get(key, 0)

    def _release_slot(self, owners: Sequence[str], size: int) -> None:
        with self._lock:
            for name in owners:
                left = self._held[name] - size
                if left:
                    self._held[name] = left
                else:
                    del self._held[name]


def _tenant_name(tenant: str) -> str:
    return f"tenant {tenant}"  # no id of a key has a space in it


class RequestLimits:
    """The limits of a server."""

    def __init__(self, config: Config, *, metrics: Metrics, clock: Clock = SYSTEM_CLOCK) -> None:
        self._requests = Buckets(config.rate, config.burst, clock=clock) if config.rate else None
        self._failures = Buckets(FAILURES_A_SECOND, FAILURES_AT_ONCE, clock=clock)
        self._refusals = metrics.refusals
        self._shares: dict[str, asyncio.Semaphore] = {}  # by tenant
        self.streams = Slots(
            "open streams",
            config.streams_per_key,
            self._refusals.labels("streams").inc,
            per_tenant=config.streams_per_tenant,
        )
        self.runs = Slots(
            "runs under way",
            config.runs_per_key,
            self._refusals.labels("runs").inc,
            per_tenant=config.runs_per_tenant,
        )
        self.model_calls = Slots(
            "requests that ask a model outside of a run",
            MODEL_CALLS_PER_TENANT,
            self._refusals.labels("model_calls").inc,
            per_tenant=MODEL_CALLS_PER_TENANT,
            total=MODEL_CALLS,
        )
        self.answer_bytes = Slots(
            "bytes of answers that are being sent",
            BYTES_PER_KEY,
            self._refusals.labels("bytes").inc,
            per_tenant=BYTES_PER_TENANT,
        )

    def share_of(self, tenant: str) -> asyncio.Semaphore:
        """Return the share of a tenant in the threads of blocking requests; in the event loop."""
        found = self._shares.get(tenant)
        if found is None:
            found = self._shares[tenant] = asyncio.Semaphore(THREADS_PER_TENANT)
        return found

    def count_request(self, key: str) -> None:
        """Count a request of a key; raise TooManyRequests above its rate."""
        if self._requests is not None and (wait := self._requests.take_token(key)):
            self._refusals.labels("rate").inc()
            raise TooManyRequests("this key asks too often", retry_after=wait)

    def count_failure(self, *sources: str) -> None:
        """Count a request without a valid key for each of its sources: an address, or an address and a key id."""
        for source in sources:
            self._failures.take_token(source)

    def may_guess(self, source: str) -> bool:
        """Whether few enough invalid keys came from a source: each lookup costs the store."""
        return not self._failures.seconds_to_wait(source)

    def refuse_guess(self, source: str) -> NoReturn:
        """Raise TooManyRequests for a source that sent too many invalid keys."""
        self._refusals.labels("address").inc()
        wait = self._failures.seconds_to_wait(source) or SLOT_RETRY_SECONDS
        raise TooManyRequests("too many requests without a valid key came from this address", retry_after=wait)
