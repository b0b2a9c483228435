"""Tails of logs: readers of a stream get every event in order, without a gap and without a repeat.

A tail holds the newest events of one log and the live deltas between them, for any number of readers. Events are read
from the store once for all readers; a reader that falls behind the tail reads the log itself and then joins again.
Deltas come from turns that run in this process. They are previews, and each stands in its place: after the last event
that its turn had appended when the delta arrived, and before the next event.

Everything here runs in one event loop; only `publish_delta` and `notify_append` may be called from other threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from holdfast.concurrency import off_thread
from holdfast.errors import AgentError
from holdfast.log.chain import ERASING_TYPES
from holdfast.log.events import Event, Row
from holdfast.log.view import decode_view
from holdfast.stores.base import Log, Store
from holdfast.turn.stream_events import StreamEvent

MAX_TAIL_ITEMS = 2000  # events and deltas in a tail, for readers that are a little behind
PAGE = 100
WAKE_DELAY = 0.002  # seconds until readers wake: the last delta and the event that follows it are sent together
TAIL_LINGER_SECONDS = 10.0  # life of a tail after its last reader has left
MAX_TAIL_BYTES = 1 << 20  # approximate size of the events in a tail; older events are read from the log


class TailItem:
    """An event of the log, or a delta. `n` counts the deltas since the last append of the turn; an event has 0."""

    __slots__ = ("delta", "event", "frame", "n", "seq", "size")

    def __init__(self, seq: int, n: int, event: Event | None, delta: StreamEvent | None) -> None:
        self.seq, self.n, self.event, self.delta = seq, n, event, delta
        self.frame: bytes | None = None  # the bytes on the wire, encoded once for all readers
        self.size = 200 if event is None else 200 + len(event.body or b"")


class FeedMessage(NamedTuple):
    """A message of another thread: the `n`th delta of a turn after its event `after`; or, without a delta, that a log
    has new events."""

    log: Log
    delta: StreamEvent | None = None
    after: int = 0
    n: int = 0


class Tail:
    """The newest part of one log, and the readers that wait for more of it."""

    def __init__(self, feed: Feed, store: Store, log: Log, head: int) -> None:
        self.feed, self.store, self.log = feed, store, log
        self.last = head  # seq of the newest event here; -1 until the head is read
        self.items: deque[TailItem] = deque()
        self.start = 0  # position of the first item, counted since the tail was created
        self.base = head  # seq of the newest event that is not held any more
        self.readers = 0
        self.is_deleted = False  # whether the log was deleted
        self.unverified = 0  # the last event of an import, as the view has it: it never changes
        self._early_deltas: deque[FeedMessage] = deque()  # deltas that arrived before their event was read
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._must_read_again = self._is_waking = False
        self._bytes = 0

    @property
    def end(self) -> int:
        return self.start + len(self.items)

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is done when the tail has something new, or at the next heartbeat."""
        future = self.feed.loop.create_future()
        self._waiters.append(future)
        return future

    def wake(self) -> None:
        self._is_waking = False
        waiting, self._waiters = self._waiters, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def add_delta(self, message: FeedMessage) -> None:
        """Put a delta in its place: behind the event `after`, which may not be read yet."""
        if message.after > self.last or self._early_deltas:
            self._early_deltas.append(message)
        else:
            self._append_delta(message)

    def _append_delta(self, message: FeedMessage) -> None:
        self._append_item(TailItem(self.last, message.n, None, message.delta))

    def _append_item(self, item: TailItem) -> None:
        self.items.append(item)
        self._bytes += item.size
        while len(self.items) > MAX_TAIL_ITEMS or (self._bytes > MAX_TAIL_BYTES and len(self.items) > 1):
            dropped = self.items.popleft()
            self._bytes -= dropped.size
            self.start += 1
            if dropped.event is not None:
                self.base = dropped.seq
        if self._waiters and not self._is_waking:
            self._is_waking = True
            self.feed.loop.call_later(WAKE_DELAY, self.wake)

    def refresh(self) -> None:
        """Start to read the new events of the log, unless a read is under way: then that one reads again."""
        if self.last < 0:
            return  # the tail is being opened, which ends with a refresh
        if self._task is not None and not self._task.done():
            self._must_read_again = True
        else:
            self._must_read_again = False
            self._task = self.feed.loop.create_task(self._read())

    async def catch_up(self) -> None:
        """Read the log up to now: a reader that joins must not be told what was erased before it came."""
        self.refresh()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _read(self) -> None:
        while True:
            self._must_read_again = False
            try:
                rows = await off_thread(self.store.read, self.log, self.last + 1, limit=PAGE)
            except AgentError:
                self.forget_items()  # some may be erased by now; readers learn from the log
                return  # the store is unavailable; the next poll refreshes again
            # Deltas that were posted before these rows were read belong before or between them.
            self.feed.process_inbox()
            self._append_rows(rows)
            if len(rows) < PAGE and not self._must_read_again:
                return

    def _append_rows(self, rows: Iterable[Row]) -> None:
        self._release_deltas()
        for row in rows:
            if row.seq != self.last + 1:
                continue  # it is here already
            if row.type in ERASING_TYPES:
                self.forget_items()
            self.last = row.seq
            self._append_item(TailItem(row.seq, 0, Event(row, unverified=self.unverified), None))
            self._release_deltas()

    def forget_items(self) -> None:
        """Hold none of the items so far: some of their texts were erased in the log, where readers find the rest."""
        self.start, self.base, self._bytes = self.end, self.last, 0
        self.items.clear()

    def _release_deltas(self) -> None:
        while self._early_deltas and self._early_deltas[0].after <= self.last:
            self._append_delta(self._early_deltas.popleft())


class Feed:
    """The tails of this process, and the task that polls for events of other processes."""

    def __init__(self, store: Store, *, poll: float = 0.25, tick: float = 15.0) -> None:
        self.store, self._poll, self._tick = store, poll, tick
        self.is_closing = False
        self._tails: dict[int, Tail] = {}
        self._inbox: deque[FeedMessage] = deque()
        self._is_drain_scheduled = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.on_tick: list[Callable[[], object]] = []

    # -- from any thread -------------------------------------------------------------------------------------------

    def publish_delta(self, log: Log, delta: StreamEvent, after: int, n: int) -> None:
        """Post a delta of a turn of this process."""
        if log.number in self._tails:
            self._post(FeedMessage(log, delta, after, n))

    def notify_append(self, log: Log) -> None:
        """Post that this log has new events."""
        if log.number in self._tails:
            self._post(FeedMessage(log))

    def _post(self, message: FeedMessage) -> None:
        self._inbox.append(message)
        if not self._is_drain_scheduled:
            self._is_drain_scheduled = True
            try:
                self.loop.call_soon_threadsafe(self.process_inbox)
            except RuntimeError:
                pass  # the loop is closed: there are no readers

    # -- in the event loop -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the polling and heartbeat tasks; in the event loop."""
        self.loop = asyncio.get_running_loop()
        self._tasks = [self.loop.create_task(self._poll_heads()), self.loop.create_task(self._heartbeat())]

    async def close(self) -> None:
        self.end_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def end_streams(self) -> None:
        """End every stream after the items that its reader has taken."""
        self.is_closing = True
        self.wake_all()

    def wake_all(self) -> None:
        for tail in list(self._tails.values()):
            tail.wake()

    def process_inbox(self) -> None:
        """Handle the messages of other threads in the order in which they were posted."""
        self._is_drain_scheduled = False
        moved: dict[int, Tail] = {}
        while self._inbox:
            message = self._inbox.popleft()
            tail = self._tails.get(message.log.number)
            if tail is None:
                continue
            if message.delta is not None:
                tail.add_delta(message)
                if message.after > tail.last:
                    moved[message.log.number] = tail
            else:
                moved[message.log.number] = tail
        for tail in moved.values():
            tail.refresh()

    async def open_tail(self, store: Store, log: Log) -> Tail:
        """Return the tail of a log, with one more reader: call `release_tail` at the end."""
        tail = self._tails.get(log.number)
        if tail is None:
            # The tail must exist before the head is read: a message posted in between would be missed.
            tail = self._tails[log.number] = Tail(self, store, log, -1)
            tail.readers += 1
            try:
                found = await off_thread(store.head, log)
            except BaseException:
                tail.readers -= 1
                self._drop_tail(tail)
                tail.is_deleted = True
                raise
            if tail.last == -1:
                tail.last = tail.base = found.head
                tail.unverified = decode_view(found.view).unverified
            tail.refresh()
            return tail
        tail.readers += 1
        while tail.last == -1:  # another reader is opening it
            await asyncio.sleep(0.001)
            if tail.is_deleted:
                return await self.open_tail(store, log)
        try:
            await tail.catch_up()
        except BaseException:
            self.release_tail(tail)
            raise
        return tail

    def release_tail(self, tail: Tail) -> None:
        """Count one reader less. The tail stays for a moment, because most readers reconnect."""
        tail.readers -= 1
        if not tail.readers:
            self.loop.call_later(TAIL_LINGER_SECONDS, self._drop_tail, tail)

    def _drop_tail(self, tail: Tail) -> None:
        if not tail.readers and self._tails.get(tail.log.number) is tail:
            del self._tails[tail.log.number]

    async def _poll_heads(self) -> None:
        """Find events of other processes, and events that were appended without `notify_append`."""
        while True:
            await asyncio.sleep(self._poll)
            if not self._tails:
                continue
            polled = list(self._tails.items())  # a tail that opens during the query is not in its result
            try:
                heads = await off_thread(self.store.heads, [number for number, _ in polled])
            except AgentError:
                continue  # the store is unavailable for a moment
            for number, tail in polled:
                if number not in heads:
                    tail.is_deleted = True
                    tail.forget_items()
                    tail.wake()
                elif heads[number] > tail.last and tail.last >= 0:
                    tail.refresh()

    async def _heartbeat(self) -> None:
        """Wake all readers at intervals, so that a silent stream sends a ping."""
        while True:
            await asyncio.sleep(self._tick)
            for action in self.on_tick:
                action()
            self.wake_all()
