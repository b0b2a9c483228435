"""Threads that run tools. They are daemons and are reused when idle, so that a hanging tool blocks neither other tools
nor the exit of the process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class DaemonPool:
    """Daemon threads without an upper limit. An idle thread is reused before a new one is started."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._pid = os.getpid()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` soon. It must not raise."""
        if self._pid != os.getpid():  # after a fork: the threads exist only in the parent process
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


TOOL_THREADS = DaemonPool()


class EventLoopThread:
    """A private event loop on its own thread, for async tools and functions that blocking code calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the event loop, which is started by the first call and again after a fork."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="holdfast-async", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


ASYNC_TOOL_LOOP = EventLoopThread()
