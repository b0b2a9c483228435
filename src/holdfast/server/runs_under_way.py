"""The runs that keys and tenants have under way on this server: each is counted from its admission to its end.

A client that hangs up does not end its run, so a slot belongs to the run and not to the request. A run may end in
another process, which tells this one nothing: before a request is refused, the log says which runs are over. The count
is in memory. It starts at 0 with the process, and a run that was taken over from another server is not counted here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from holdfast.clock import Clock
from holdfast.concurrency import off_thread
from holdfast.errors import StoreError, TooManyRequests
from holdfast.server.rate_limits import SLOT_RETRY_SECONDS, Slot, Slots
from holdfast.stores.base import Log, Store
from holdfast.turn.run_outcome import outcome_of
from holdfast.worker.admission import AdmittedRun
from holdfast.worker.run_pool import RunPool

T = TypeVar("T")
UNDER_WAY = ("queued", "running")


class CountedRun(NamedTuple):
    """A run that holds a slot of its key and its tenant."""

    slot: Slot
    tenant: str
    store: Store
    log: Log


class RunSlot:
    """The slot of a request that may begin a run. It belongs to the run as soon as the run has an id."""

    def __init__(self, runs: RunsUnderWay, slot: Slot, store: Store) -> None:
        self._runs, self._slot, self._store = runs, slot, store
        self._run: str | None = None

    def give_to_run(self, log: Log, run: str) -> None:
        """Keep the slot until the run ends. A run that has a slot already keeps that one."""
        if run != self._run:
            if self._run is not None:
                self._runs.move(self._run, run)
            else:
                self._runs.add(run, CountedRun(self._slot, self._store.tenant, self._store, log))
            self._run = run

    def admit(self, admit: Callable[[], T]) -> T:
        """Call `admit` and keep the slot until the end of the run that it admits; give it back if it admits none."""
        try:
            result = admit()
        except BaseException:
            self.release()
            raise
        if isinstance(result, tuple) and isinstance(result[1], AdmittedRun):
            self.give_to_run(result[0], result[1].run_id)
        else:
            self.release()
        return result

    def release(self) -> None:
        if self._run is None:
            self._slot.release()
        else:
            self._runs.end(self._run)


class RunsUnderWay:
    """The runs that this server has admitted and that are not over, by their id."""

    def __init__(self, slots: Slots, pool: RunPool, clock: Clock) -> None:
        self._slots, self._pool, self._clock = slots, pool, clock
        self._counted: dict[str, CountedRun] = {}
        self._next_checks: dict[str, float] = {}  # by tenant: when the log may be asked again
        self._lock = threading.Lock()
        pool.on_left = self.end

    async def hold(self, key: str, store: Store) -> RunSlot:
        """Take a slot for a run; raise TooManyRequests if the key or the tenant has too many under way."""
        try:
            slot = self._slots.hold(key, store.tenant)
        except TooManyRequests:
            if not self._may_check(store.tenant):
                raise
            await off_thread(self._drop_ended, store.tenant)
            slot = self._slots.hold(key, store.tenant)
        return RunSlot(self, slot, store)

    def add(self, run: str, counted: CountedRun) -> None:
        with self._lock:
            known = self._counted.setdefault(run, counted)
        if known is not counted:
            counted.slot.release()

    def move(self, run: str, to: str) -> None:
        """Count a message under another run: the run that it was meant to begin did not begin."""
        with self._lock:
            counted = self._counted.pop(run, None)
        if counted is not None:
            self.add(to, counted)

    def end(self, run: str) -> None:
        """Count a run no longer: it is over, and no thread works for it."""
        with self._lock:
            counted = self._counted.pop(run, None)
        if counted is not None:
            counted.slot.release()

    def end_if_left(self, run: str) -> None:
        """Count a run that is over no longer, unless a thread hangs in it: that thread ends it when it is free."""
        if not self._pool.is_driven(run):
            self.end(run)

    def _may_check(self, tenant: str) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            is_due = now >= self._next_checks.get(tenant, 0.0)
            if is_due:
                self._next_checks[tenant] = now + SLOT_RETRY_SECONDS
        return is_due

    def _drop_ended(self, tenant: str) -> None:
        """Ask the log about the runs of a tenant, and count those that are over no longer. Blocks."""
        with self._lock:
            asked = [(run, counted) for run, counted in self._counted.items() if counted.tenant == tenant]
        for run, counted in asked:
            try:
                outcome = outcome_of(counted.store, counted.log, run)
            except StoreError:
                return  # the store is away for a moment: the runs are not known to be over
            if outcome is None or outcome.status not in UNDER_WAY:
                self.end_if_left(run)
