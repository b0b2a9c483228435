"""Tails of logs: in order, without a gap, and only gone when the log is."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Message, Session
from holdfast.models.base import TextDelta
from holdfast.server.event_stream import follow_tail
from holdfast.stores import MemoryStore
from holdfast.worker.feed import Feed, Tail, TailItem


def make_delta(text: str) -> TextDelta:
    return TextDelta(index=0, text=text)


async def open_feed(store: MemoryStore, **more: Any) -> Feed:
    feed = Feed(store, **{"poll": 0.01, "tick": 0.05, **more})
    feed.open()
    return feed


async def read_positions(feed: Feed, tail: Tail, seq: int, n: int, count: int) -> list[tuple[int, int]]:
    found: list[TailItem] = []
    async for items in follow_tail(feed, tail, seq, n):
        found += items
        if len(found) >= count:
            break
    return [(item.seq, item.n) for item in found]


async def test_a_tail_that_opens_while_the_heads_are_asked_for_is_not_gone() -> None:
    store = MemoryStore()
    one, two = Session("one", store=store), Session("two", store=store)
    asked, go = threading.Event(), threading.Event()
    heads = store.heads

    def slow(numbers: Any) -> Any:
        found = heads(numbers)
        asked.set()
        go.wait(10)
        return found

    store.heads = slow  # type: ignore[method-assign]
    feed = await open_feed(store)
    await feed.open_tail(store, one.log)
    await asyncio.get_running_loop().run_in_executor(None, asked.wait)
    late = await feed.open_tail(store, two.log)
    go.set()
    await asyncio.sleep(0.05)
    assert not late.is_deleted
    store.remove("session", "two")
    while not late.is_deleted:
        await asyncio.sleep(0.01)
    await feed.close()


async def test_deltas_stand_between_the_events_they_were_heard_between() -> None:
    """The deltas of a turn are shown before the event that they precede, though the event may be read first."""
    store = MemoryStore()
    session = Session("s", store=store)
    feed = await open_feed(store, poll=60)
    tail = await feed.open_tail(store, session.log)
    first = session.add_message(Message.user("one"))
    feed.publish_delta(session.log, make_delta("a"), first, 1)
    feed.publish_delta(session.log, make_delta("b"), first, 2)
    second = session.add_message(Message.user("two"))
    feed.notify_append(session.log)
    assert await read_positions(feed, tail, 1, 0, 4) == [(first, 0), (first, 1), (first, 2), (second, 0)]
    # A reader that has a part gets the rest, and one that is ahead of this tail gets nothing twice.
    assert await read_positions(feed, tail, first, 1, 2) == [(first, 2), (second, 0)]
    third = second + 1
    ahead = asyncio.ensure_future(read_positions(feed, tail, third, 0, 1))
    await asyncio.sleep(0.02)
    for text in ("three", "four"):
        session.add_message(Message.user(text))
    feed.notify_append(session.log)
    assert await ahead == [(third + 1, 0)]
    await feed.close()


async def test_a_reader_that_falls_behind_reads_the_log_itself(monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.worker.feed.MAX_TAIL_ITEMS", 5)
    store = MemoryStore()
    session = Session("s", store=store)
    feed = await open_feed(store)
    tail = await feed.open_tail(store, session.log)
    reading = follow_tail(feed, tail, 0, 0)
    assert [item.seq for item in await anext(reading)] == [1]
    for number in range(50):
        session.add_message(Message.user(str(number)))
    feed.notify_append(session.log)
    while tail.last < session.head:
        await asyncio.sleep(0.01)
    seen: list[int] = []
    async for items in reading:
        seen += [item.seq for item in items]
        if seen and seen[-1] == session.head:
            break
    assert seen == list(range(2, session.head + 1))
    assert len(tail.items) == 5
    await feed.close()


async def test_a_tail_forgets_what_was_redacted() -> None:
    store = MemoryStore()
    session = Session("s", store=store)
    feed = await open_feed(store, poll=60)
    tail = await feed.open_tail(store, session.log)
    waiting = follow_tail(feed, tail, session.head, 0)
    secret = session.add_message(Message.user("a secret"))
    feed.publish_delta(session.log, make_delta("a secret"), secret, 1)
    last = session.add_message(Message.user("harmless"))
    feed.notify_append(session.log)
    assert [item.seq for item in await anext(waiting)] == [secret, secret, last]
    session.redact(secret, reason="a slip")
    feed.notify_append(session.log)
    assert [item.seq for item in await anext(waiting)] == [last + 1]  # a reader that has them gets nothing twice
    found: list[TailItem] = []
    async for items in follow_tail(feed, tail, 0, 0):
        found += items
        if found[-1].seq == session.head:
            break
    assert [item.seq for item in found] == [1, secret, last, last + 1]
    assert [item.seq for item in found if item.event is None or item.event.erased] == [secret]
    await feed.close()


@pytest.mark.parametrize("way", ["redact", "erase", "redact the parent", "erase the parent"])
async def test_a_reader_that_joins_is_not_told_what_another_process_removed_before(way: str) -> None:
    """Another process removed it, and this one has not asked for new events since."""
    store = MemoryStore()
    parent = Session("parent", store=store)
    shared = parent.add_message(Message.user("a secret"))
    session = parent.fork("s") if "parent" in way else parent
    feed = await open_feed(store, poll=60)
    tail = await feed.open_tail(store, session.log)
    feed.notify_append(session.log)
    if session is parent:
        shared = parent.add_message(Message.user("another secret"))
        feed.notify_append(session.log)
        await asyncio.sleep(0.05)
        assert [item.seq for item in tail.items] == [shared]
    if way.startswith("redact"):
        parent.redact(shared, reason="a slip")
    else:
        parent.erase(reason="asked", actor="officer")
    found: list[TailItem] = []
    async for items in follow_tail(feed, await feed.open_tail(store, session.log), shared - 1, 0):
        found += items
        if found[-1].seq >= session.head:
            break
    assert found[0].seq == shared
    assert found[0].event is not None
    assert found[0].event.erased
    assert not [item for item in tail.items if b"secret" in ((item.event and item.event.body) or b"")]
    await feed.close()


async def test_a_tail_holds_nothing_of_a_deleted_session() -> None:
    store = MemoryStore()
    session = Session("s", store=store)
    feed = await open_feed(store)
    tail = await feed.open_tail(store, session.log)
    session.add_message(Message.user("a secret"))
    while not tail.items:
        await asyncio.sleep(0.01)
    store.delete("s")
    while not tail.is_deleted:
        await asyncio.sleep(0.01)
    assert not tail.items
    await feed.close()
