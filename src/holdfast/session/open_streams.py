"""The streams that a program has started and not read to the end.

A stream that its reader drops is closed by Python at once, because nothing here keeps it alive: only weak references to
streams are held. A stream that its reader keeps and leaves is closed when the same reader starts another turn of the
session, or when the program ends.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.concurrency import is_running

if TYPE_CHECKING:
    from asyncio import Task

Stream = Generator[Any, None, None] | AsyncGenerator[Any, None]


class OpenStreams:
    """The open streams of one session object, by their reader: a thread, or a task of an event loop."""

    def __init__(self) -> None:
        self._by_reader: weakref.WeakKeyDictionary[Any, weakref.ref[Stream]] = weakref.WeakKeyDictionary()

    def add(self, events: Generator[Any, None, None]) -> None:
        """Remember a stream of this thread."""
        self._by_reader[threading.current_thread()] = weakref.ref(events)
        _close_at_exit.add(events)

    def close_abandoned(self) -> None:
        """Close the last stream of this thread, if the thread has not read it to the end."""
        if self._by_reader and (events := self._take(threading.current_thread())) is not None:
            events.close()

    def add_async(self, events: weakref.ref[Stream], reader: Task[Any] | None) -> None:
        """Remember a stream of a task."""
        if reader is not None:
            self._by_reader[reader] = events

    async def close_abandoned_async(self, reader: Task[Any] | None) -> None:
        """Close the last stream of a task, if the task has not read it to the end."""
        if self._by_reader and reader is not None and (events := self._take(reader)) is not None:
            await events.aclose()

    def _take(self, reader: object) -> Any:  # noqa: ANN401 - a generator, or an async generator
        found = self._by_reader.pop(reader, None)
        events = None if found is None else found()
        # A stream that runs is being read at this moment, by another reader that it was handed to.
        return None if events is None or is_running(events) else events


class _CloseAtExit:
    """Closes the streams that are still open when the program ends, while modules and threads can still be used."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()
        self._pid = os.getpid()
        atexit.register(self._close)

    def add(self, events: Generator[Any, None, None]) -> None:
        if self._pid != (pid := os.getpid()):  # forked: the streams of the parent are not ours to close
            self._streams, self._pid = weakref.WeakSet(), pid
        self._streams.add(events)

    def _close(self) -> None:
        if self._pid == os.getpid():
            for events in list(self._streams):
                with suppress(Exception):  # it is being read by a thread, or its store is closed
                    events.close()


_close_at_exit = _CloseAtExit()
