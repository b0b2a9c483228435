"""Threads that run tools. They are daemons and are reused when idle, so that a hanging tool blocks neither other tools
nor the exit of the process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
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
        self._loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the event loop, which is started by the first call and again after a fork."""
        pid = os.getpid()
        loop = self._loops.get(pid)
        if loop is None:
            # No lock: a caller that a signal interrupts would hold it. Of two first callers, one gives the loop.
            made = asyncio.new_event_loop()
            loop = self._loops.setdefault(pid, made)
            if loop is not made:
                made.close()
        if not loop.is_running():
            threading.Thread(target=_run_forever, args=(loop,), name="holdfast-async", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, loop)


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # another thread runs it already
        loop.run_forever()


ASYNC_TOOL_LOOP = EventLoopThread()
