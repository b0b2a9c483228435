"""Renewal of a lease while its holder works: every third of the lease time, from a separate thread.

The holder calls `check()` before each effect: a process that was stopped and wakes up after its lease has expired
starts no more effects. Renewal ends when an effect takes longer than its allowed time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType

from holdfast.diagnostics import Fields, report
from holdfast.errors import AgentError, StaleEpoch, StoreError
from holdfast.operating_system import register_at_fork
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import lease_seconds


def report_takeover(log: Log, run_id: str | None = None) -> None:
    """Report that a claim ended the lease of another process."""
    name, fields = _name_log(log)
    text = f"the lease of {name} was taken over: its process ended, or was silent for too long"
    report(logging.WARNING, text, {"run_id": run_id, **fields})


def _name_log(log: Log) -> tuple[str, Fields]:
    """Return the name of a log in the text of a record, and its fields."""
    if log.kind == "session":
        return "session %(session_id)s", {"session_id": log.id}
    return "%(kind)s %(key)s", {"kind": log.kind, "key": log.id}


class Renewal:
    """`with Renewal(store, log, epoch): ...` holds the lease until the block ends or another process takes it."""

    def __init__(
        self,
        store: Store,
        log: Log,
        epoch: int,
        *,
        seconds: float | None = None,
        since: float | None = None,
        before_renewal: Callable[[], None] | None = None,
    ) -> None:
        self._store, self._log, self._epoch = store, log, epoch
        self._before_renewal = before_renewal  # may end the holder's work
        self._seconds = lease_seconds() if seconds is None else seconds
        began = store.clock.monotonic() if since is None else since  # before the claim was sent, to be on the safe side
        self.deadline = began + self._seconds
        self._effect_deadline: float | None = None
        self._owner: weakref.ref[object] | None = None  # whose lease it is, if that can vanish without an end
        self.is_over = False

    def __enter__(self) -> Renewal:
        _renewer.add(self, self._seconds / 3)
        return self

    def held_for(self, owner: object) -> Renewal:
        """Begin to renew the lease, until its owner is over, or is gone without having said so."""
        self._owner = weakref.ref(owner)
        return self.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.is_over = True

    def check(self) -> None:
        """Make sure that the lease is held: one that may have run out is renewed first, or StaleEpoch is raised."""
        began = self._store.clock.monotonic()
        if began >= self.deadline:
            self._store.renew(self._log, self._epoch, self._seconds)
            self.deadline = began + self._seconds

    def begin_effect(self, seconds: float | None) -> None:
        """An effect begins that may take this long (None: as long as it likes)."""
        self._effect_deadline = None if seconds is None else self._store.clock.monotonic() + seconds

    def renew(self) -> float | None:
        """Renew once; the seconds until the next time, or None if there is none."""
        if self._before_renewal is not None and not self.is_over:
            self._before_renewal()
        began = self._store.clock.monotonic()
        if self.is_over:
            return None
        if self._owner is not None and self._owner() is None:
            # An exception ended the turn at a place where it could not be ended properly. The next turn closes it.
            with suppress(AgentError):
                self._store.append(self._log, [], epoch=self._epoch, release=True)
            return None
        if self._effect_deadline is not None and began > self._effect_deadline:
            return self._seconds / 3  # the effect hangs: another process may take over, unless the effect ends first
        try:
            self._store.renew(self._log, self._epoch, self._seconds)
            self.deadline = began + self._seconds
        except StaleEpoch:
            name, fields = _name_log(self._log)
            report(logging.DEBUG, f"the lease of {name} is lost", fields)
            return None  # taken over: the fence refuses what this writer does from now on
        except StoreError as error:  # the store is away for a moment; try again while the lease lasts
            name, fields = _name_log(self._log)
            report(
                logging.DEBUG, f"the lease of {name} could not be renewed (%(code)s)", {"code": error.code, **fields}
            )
        return self._seconds / 3


class _Renewer:
    """The one thread of this process that renews leases. A turn that ends before its first renewal costs it nothing: it
    is not even woken, unless the renewal is due before the others.

    Turns hand their renewals over without a lock of ours: one that is interrupted while it does so leaves nothing
    behind.
    """

    def __init__(self) -> None:
        self._count = itertools.count()
        self.start_anew()
        register_at_fork(after_in_child=self.start_anew)  # threads stay with the parent

    def start_anew(self) -> None:
        self._added: deque[tuple[float, int, Renewal]] = deque()
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # work to do; None only wakes
        self._sleeps_until = 0.0  # 0 while it works: it looks at what was added before it sleeps again
        self._is_running = False

    def add(self, renewal: Renewal, seconds: float) -> None:
        if not self._is_running:  # two threads that see this start two workers, which share what is added
            threading.Thread(target=self._work, args=(self._inbox,), name="holdfast-leases", daemon=True).start()
            self._is_running = True
        at = renewal._store.clock.monotonic() + seconds
        self._added.append((at, next(self._count), renewal))
        if at < self._sleeps_until:
            self._inbox.put(None)

    def run_soon(self, work: Callable[[], None]) -> None:
        """Do some work of a turn that has a lease. A finalizer may call this, wherever it interrupts a thread."""
        self._inbox.put(work)

    def _work(self, inbox: SimpleQueue[Callable[[], None] | None]) -> None:
        due: list[tuple[float, int, Renewal]] = []
        while True:
            with suppress(IndexError):
                while True:
                    heapq.heappush(due, self._added.popleft())
            while due and due[0][2].is_over:
                heapq.heappop(due)
            seconds = due[0][0] - due[0][2]._store.clock.monotonic() if due else None
            if seconds is None or seconds > 0:
                self._sleeps_until = due[0][0] if due else math.inf
                if not self._added:
                    self._do_next(inbox, seconds)
                self._sleeps_until = 0.0
                continue
            renewal = heapq.heappop(due)[2]
            try:
                pause = renewal.renew()
            except Exception:  # noqa: BLE001 - a store that breaks must not end the renewal of all the others
                pause = 1.0
            if pause is not None:
                self.add(renewal, pause)

    @staticmethod
    def _do_next(inbox: SimpleQueue[Callable[[], None] | None], seconds: float | None) -> None:
        """Wait for work, at most so long, and do it."""
        with suppress(BaseException):  # Empty; and an error of the work must not end the renewal of all leases
            work = inbox.get(timeout=seconds)
            if work is not None:
                work()


_renewer = _Renewer()
run_on_lease_thread = _renewer.run_soon
