"""Keeping a lease while its work goes on: renewed every third of its time, from a thread of its own."""

from __future__ import annotations

import threading
from types import TracebackType

from holdfast.errors import StaleEpoch, StoreError
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import lease_seconds


class Renewal:
    """`with Renewal(store, log, epoch): ...` holds the lease until the block ends or somebody took it.

    The thread starts only once a third of the lease has passed, so short work pays for none.
    """

    def __init__(self, store: Store, log: Log, epoch: int) -> None:
        self._store, self._log, self._epoch = store, log, epoch
        self._seconds = lease_seconds()
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Renewal:
        self._schedule()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()

    def _schedule(self) -> None:
        with self._lock:
            if not self._over:
                self._timer = threading.Timer(self._seconds / 3, self._renew)
                self._timer.daemon = True
                self._timer.start()

    def _renew(self) -> None:
        try:
            self._store.renew(self._log, self._epoch, self._seconds)
        except StaleEpoch:
            return  # taken over: the fence refuses what this writer does from now on
        except StoreError:
            pass  # the store is away for a moment; try again while the lease lasts
        self._schedule()
