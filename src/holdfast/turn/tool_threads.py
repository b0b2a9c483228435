"""Threads that run tools: daemons, reused while idle, so that a hanging tool keeps nothing else waiting."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class DaemonPool:
    """As many threads as there is work; an idle one is used again before a new one is made."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._pid = os.getpid()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` soon. It must not raise."""
        if self._pid != os.getpid():  # the threads stayed with the parent
            self._idle, self._pid = [], os.getpid()
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="holdfast-tool", daemon=True).start()
        inbox.put(work)

    def _serve(self, inbox: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            inbox.get()()
            self._idle.append(inbox)


TOOLS = DaemonPool()


class LoopThread:
    """One private event loop, on a thread of its own, for async tools that are called from blocking code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="holdfast-async", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


ASYNC_TOOLS = LoopThread()
