"""Whether a server should get requests: its store answers in time and takes writes.

The question is asked on a thread of its own, so that requests that take all other threads cannot delay the answer.
Requests that arrive during a check share it.
"""

from __future__ import annotations

import asyncio

from holdfast.concurrency import start_on_own_thread
from holdfast.errors import AgentError, StoreUnavailable
from holdfast.stores.base import Store

PATIENCE = 2.0  # seconds for the store to answer
PROBES = "ready"  # key-value space of the small writes that find out whether a fault has passed
PROBE_LIFETIME = 60_000_000  # microseconds


class Readiness:
    """The checks of one server; in its event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store.for_tenant("")
        self._check: asyncio.Future[str | None] | None = None

    async def find_fault(self) -> str | None:
        """Return the code of the error that keeps the store from serving requests; None if it serves them."""
        if self._check is None or self._check.done():
            self._check = start_on_own_thread(self._ask_store, "holdfast-ready")
        try:
            return await asyncio.wait_for(asyncio.shield(self._check), PATIENCE)
        except TimeoutError:
            return StoreUnavailable.code

    def _ask_store(self) -> str | None:
        store = self._store
        try:
            store.find("session", "ready?")
            if store.write_fault is not None:  # no request may come until this server is ready: it writes by itself
                store.kv_put(PROBES, "probe", b"", expires=store.clock.now() + PROBE_LIFETIME)
        except AgentError as error:
            return error.code
        return None
