"""Tails of logs: what readers of a stream are told, in order, without a gap and without a repeat.

A tail holds the newest events of one log and the live deltas between them, for any number of readers. Events are read
from the store once for all of them; a reader that falls behind what the tail holds reads the log itself and comes back.
Deltas come from turns that run in this process; they are previews, and stand where they belong: after the event that
their turn had appended when it heard them, and before the next.

Everything here lives in one event loop; only `tell` and `nudge` may be called from other threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from holdfast.concurrency import off_thread
from holdfast.errors import AgentError
from holdfast.log.events import Event, Row
from holdfast.stores.base import Log, Store
from holdfast.turn.stream_events import StreamEvent

HELD = 2000  # events and deltas that a tail keeps for readers that are a little behind
PAGE = 100
SOON = 0.002  # seconds until readers are woken: a last word and the event it belongs to are sent together
LINGER = 10.0  # seconds that a tail stays after its last reader
HELD_BYTES = 1 << 20  # of durable events, about; more is read from the log again


class Item:
    """An event of the log, or a delta: `n` counts what a turn heard since its last append, and is 0 for an event."""

    __slots__ = ("delta", "event", "frame", "n", "seq", "size")

    def __init__(self, seq: int, n: int, event: Event | None, delta: StreamEvent | None) -> None:
        self.seq, self.n, self.event, self.delta = seq, n, event, delta
        self.frame: bytes | None = None  # how a shell writes it, made once for all readers
        self.size = 200 if event is None else 200 + len(event.body or b"")


class Told(NamedTuple):
    """What another thread says: the `n`th delta that a turn heard after its event `after`; or that a log has moved."""

    log: Log
    delta: StreamEvent | None = None
    after: int = 0
    n: int = 0


class Tail:
    """The newest part of one log, and who waits for more of it."""

    def __init__(self, feed: Feed, store: Store, log: Log, head: int) -> None:
        self.feed, self.store, self.log = feed, store, log
        self.last = head  # the newest event that readers know; -1: not known yet
        self.items: deque[Item] = deque()
        self.start = 0  # the position of the first item, counted since the tail was made
        self.base = head  # events up to this one are not held
        self.readers = 0
        self.gone = False  # the log was deleted
        self._held: deque[Told] = deque()  # deltas whose event was not read yet
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._again = self._is_waking = False
        self._bytes = 0

    @property
    def end(self) -> int:
        return self.start + len(self.items)

    def wait(self) -> asyncio.Future[None]:
        """Done when there is something new, or nothing for a while."""
        future = self.feed.loop.create_future()
        self._waiting.append(future)
        return future

    def wake(self) -> None:
        self._is_waking = False
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def put(self, told: Told) -> None:
        """A delta, in its place."""
        if told.after > self.last or self._held:
            self._held.append(told)
        else:
            self._show(told)

    def _show(self, told: Told) -> None:
        self._add(Item(self.last, told.n, None, told.delta))

    def _add(self, item: Item) -> None:
        self.items.append(item)
        self._bytes += item.size
        while len(self.items) > HELD or (self._bytes > HELD_BYTES and len(self.items) > 1):
            dropped = self.items.popleft()
            self._bytes -= dropped.size
            self.start += 1
            if dropped.event is not None:
                self.base = dropped.seq
        if self._waiting and not self._is_waking:
            self._is_waking = True
            self.feed.loop.call_later(SOON, self.wake)

    def refresh(self) -> None:
        """Read what is new in the log; one reading at a time."""
        if self.last < 0:
            return  # it is being opened, and read right after that
        if self._task is not None and not self._task.done():
            self._again = True
        else:
            self._again = False
            self._task = self.feed.loop.create_task(self._read())

    async def _read(self) -> None:
        while True:
            self._again = False
            try:
                rows = await off_thread(self.store.read, self.log, self.last + 1, limit=PAGE)
            except AgentError:
                return  # the store is away; whoever polls comes again
            # What was told before these rows were read belongs before or between them.
            self.feed.drain()
            self._apply(rows)
            if len(rows) < PAGE and not self._again:
                return

    def _apply(self, rows: Iterable[Row]) -> None:
        self._release()
        for row in rows:
            if row.seq != self.last + 1:
                continue  # known already
            self.last = row.seq
            self._add(Item(row.seq, 0, Event(row), None))
            self._release()

    def _release(self) -> None:
        while self._held and self._held[0].after <= self.last:
            self._show(self._held.popleft())


class Feed:
    """The tails of this process, and the one task that looks for what other processes appended."""

    def __init__(self, store: Store, *, poll: float = 0.25, tick: float = 15.0) -> None:
        self.store, self._poll, self._tick = store, poll, tick
        self.closing = False
        self._tails: dict[int, Tail] = {}
        self._inbox: deque[Told] = deque()
        self._scheduled = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.on_tick: list[Callable[[], object]] = []

    # -- from any thread -------------------------------------------------------------------------------------------

    def tell(self, log: Log, delta: StreamEvent, after: int, n: int) -> None:
        """A turn of this process heard something."""
        if log.number in self._tails:
            self._post(Told(log, delta, after, n))

    def nudge(self, log: Log) -> None:
        """Something was appended to this log."""
        if log.number in self._tails:
            self._post(Told(log))

    def _post(self, told: Told) -> None:
        self._inbox.append(told)
        if not self._scheduled:
            self._scheduled = True
            try:
                self.loop.call_soon_threadsafe(self.drain)
            except RuntimeError:
                pass  # the loop is closed: nobody reads any more

    # -- in the event loop -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin; in the event loop."""
        self.loop = asyncio.get_running_loop()
        self._tasks = [self.loop.create_task(self._watch()), self.loop.create_task(self._beat())]

    async def close(self) -> None:
        self.end_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def end_streams(self) -> None:
        """Let every reader finish what it is at, and stop."""
        self.closing = True
        self.wake_all()

    def wake_all(self) -> None:
        for tail in list(self._tails.values()):
            tail.wake()

    def drain(self) -> None:
        """Take in what other threads said, in the order in which they said it."""
        self._scheduled = False
        moved: dict[int, Tail] = {}
        while self._inbox:
            told = self._inbox.popleft()
            tail = self._tails.get(told.log.number)
            if tail is None:
                continue
            if told.delta is not None:
                tail.put(told)
                if told.after > tail.last:
                    moved[told.log.number] = tail
            else:
                moved[told.log.number] = tail
        for tail in moved.values():
            tail.refresh()

    async def tail(self, store: Store, log: Log) -> Tail:
        """The tail of a log, counted as read: give it back with `leave`."""
        tail = self._tails.get(log.number)
        if tail is None:
            # From here on nothing that is told is missed; the head is read after that.
            tail = self._tails[log.number] = Tail(self, store, log, -1)
            tail.readers += 1
            try:
                head = (await off_thread(store.head, log)).head
            except BaseException:
                tail.readers -= 1
                self._forget(tail)
                tail.gone = True
                raise
            if tail.last == -1:
                tail.last = tail.base = head
            tail.refresh()
            return tail
        tail.readers += 1
        while tail.last == -1:  # somebody else is opening it
            await asyncio.sleep(0.001)
            if tail.gone:
                return await self.tail(store, log)
        return tail

    def leave(self, tail: Tail) -> None:
        """A reader has gone. What the tail holds stays for a moment: most of them come back."""
        tail.readers -= 1
        if not tail.readers:
            self.loop.call_later(LINGER, self._forget, tail)

    def _forget(self, tail: Tail) -> None:
        if not tail.readers and self._tails.get(tail.log.number) is tail:
            del self._tails[tail.log.number]

    async def _watch(self) -> None:
        """See what others appended, and what nobody told."""
        while True:
            await asyncio.sleep(self._poll)
            if not self._tails:
                continue
            asked = list(self._tails.items())  # those that are opened meanwhile were not asked for
            try:
                heads = await off_thread(self.store.heads, [number for number, _ in asked])
            except AgentError:
                continue  # the store is away for a moment
            for number, tail in asked:
                if number not in heads:
                    tail.gone = True
                    tail.wake()
                elif heads[number] > tail.last and tail.last >= 0:
                    tail.refresh()

    async def _beat(self) -> None:
        """Wake everybody now and then, so that a silent stream says that it is alive."""
        while True:
            await asyncio.sleep(self._tick)
            for action in self.on_tick:
                action()
            self.wake_all()
