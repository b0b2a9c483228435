"""Server-sent events: the tail of a log as bytes on a wire.

Two readings of the same feed. `events` are the log's own events under their types, with live deltas between;
`RunFrames` tells one run under the promised names. The id of a frame is the seq of its event, or `seq.n` for a delta,
so that `Last-Event-ID` says exactly what a reader has. Data is always one line of JSON, so no text can forge a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.concurrency import off_thread
from holdfast.errors import AgentError, InvalidArgument
from holdfast.log.events import Event
from holdfast.log.messages import Message, Text, Thinking, ToolCall
from holdfast.models.base import Usage
from holdfast.server.errors import error_body, error_response, request_id_of
from holdfast.server.http.header_limits import ABORT
from holdfast.server.http.middleware import STRAIGHT
from holdfast.server.rate_limits import Slot
from holdfast.server.schemas import serializers as shapes
from holdfast.stores.documents import message_of
from holdfast.turn.stream_events import to_dict
from holdfast.worker.feed import PAGE, Feed, Item, Tail

if TYPE_CHECKING:
    from holdfast.server.app import Server

CHUNK = 32 << 10  # bytes that are handed to a connection at once
PAGE_BYTES = 32 << 10  # that a reader who catches up holds, about
BATCH = 64
RETRY = 1000  # milliseconds after which a client should come back
STALLED = 60.0  # seconds in which a reader must take something


def position_of(text: str | None, after: int | None) -> tuple[int, int]:
    """Where a reader is: `Last-Event-ID` outranks `after`."""
    if text is None or not text.strip():
        return after or 0, 0
    seq, _, n = text.strip().partition(".")
    if not (seq.isascii() and seq.isdigit() and len(seq) < 16) or (n and not (n.isascii() and n.isdigit())):
        raise InvalidArgument(f"Last-Event-ID {text[:40]!r} is not one of ours: send the id of the last frame you have")
    return int(seq), int(n or 0) if len(n) < 16 else 0


async def follow(feed: Feed, tail: Tail, seq: int, n: int) -> AsyncIterator[list[Item]]:
    """What a log has after a position, then what comes; an empty list now and then while nothing does. It ends when
    the server stops or the session is deleted."""
    position, limit = -1, 2
    while not feed.closing:
        if position < tail.start:  # at the beginning, or too slow for what the tail holds
            if seq < tail.base:
                rows = await off_thread(tail.store.read, tail.log, seq + 1, tail.base, limit=limit)
                if rows:
                    seq, n = rows[-1].seq, 0
                    size = sum(len(row.body or b"") for row in rows)
                    limit = max(1, limit // 2) if size > PAGE_BYTES else min(PAGE, limit * 2)
                    items, rows = [Item(row.seq, 0, Event(row), None) for row in rows], []
                    yield items
                    continue
                if tail.gone:
                    return
            position = tail.start + sum((item.seq, item.n) <= (seq, n) for item in tail.items)
        behind = tail.end - position
        if behind > 0:
            items = [tail.items[at] for at in range(-behind, min(0, BATCH - behind))]
            position += len(items)
            if items[0].seq <= seq:  # the reader may be ahead of this tail: it comes from another server
                items = [item for item in items if (item.seq, item.n) > (seq, n)]
            if items:
                seq, n = items[-1].seq, items[-1].n
                yield items
        elif tail.gone:
            return
        else:
            await tail.wait()
            if tail.end == position:
                yield []


def frame(name: str, data: object, id: str | None = None) -> bytes:
    head = f"event: {name}\n" if id is None else f"id: {id}\nevent: {name}\n"
    return head.encode() + b"data: " + orjson.dumps(data) + b"\n\n"


PING = frame("ping", {"type": "ping"})


def encoded(item: Item) -> bytes:
    """An item under its own name, made once for all who read it."""
    if item.frame is None:
        if item.event is not None:
            item.frame = frame(item.event.type, shapes.event_dict(item.event), str(item.seq))
        else:
            assert item.delta is not None
            item.frame = frame(item.delta.type, delta_dict(item.delta), f"{item.seq}.{item.n}")
    return item.frame


def delta_dict(delta: Any) -> dict[str, Any]:  # noqa: ANN401 - any of the stream's events
    found = to_dict(delta)
    block = found.get("content_block")
    if block is not None:
        found["content_block"] = shapes.part_dict(block)
    return found


class LogFrames:
    """The events of a log as they are."""

    over = False

    def __init__(self, types: Sequence[str] = ()) -> None:
        self._types = frozenset(types)

    def __call__(self, items: Iterable[Item]) -> list[bytes]:
        if not self._types:
            return [encoded(item) for item in items]
        return [
            encoded(item)
            for item in items
            if (item.event.type if item.event is not None else item.delta and item.delta.type) in self._types
        ]


class RunFrames:
    """One run under the promised names. A reply that was not heard delta by delta is told as a whole when it is stored;
    where a reader has a part of it that cannot be gone on with, another message_start says so."""

    def __init__(self, tail: Tail, run: str, n: int, sure: bool) -> None:
        self._tail, self.run = tail, run
        self._n, self._sure = n, sure  # deltas of this step that the reader has; whether it has all of them
        self.has_begun = False  # this connection was told that the step begins
        self.over = False

    def __call__(self, items: Iterable[Item]) -> list[bytes]:
        found: list[bytes] = []
        for item in items:
            if self.over:
                break
            if item.event is not None:
                if item.event.run == self.run:
                    found += self._event(item.event)
            elif self._sure and item.n == self._n + 1:
                if not self._n and not self.has_begun:  # it may have a part of this step, from another server
                    found.append(self._start(self._call_at(item.seq), None))
                    self.has_begun = True
                self._n += 1
                found.append(encoded(item))
            else:
                self._sure = False
        return found

    def reads(self, items: Sequence[Item]) -> bool:
        """Whether telling these may have to read the log."""
        return not self.has_begun or any(item.event is not None for item in items)

    def _event(self, event: Event) -> list[bytes]:
        type, id = event.type, str(event.seq)
        if type == "model.called":
            self._n, self._sure, self.has_begun = 0, True, True
            return [self._start(event, id)]
        if type == "model.replied":
            return self._replied(event, id)
        if type == "tool.returned":
            return [frame("tool_result", {"type": "tool_result", **shapes.tool_result_dict(event)}, id)]
        if type in ("turn.finished", "turn.waiting"):
            self.over = True
            return [frame("done", self._done(), id)]
        if type in ("turn.failed", "turn.cancelled", "turn.interrupted", "turn.parked", "run.dropped"):
            self.over = True
            return [frame("error", error_frame(event), id)]
        self._n = 0  # the turn appended something else: it counts anew
        return []

    def _start(self, called: Event | None, id: str | None) -> bytes:
        step = 0 if called is None else int(called.data.get("step", 0))
        data: dict[str, Any] = {"type": "message_start", "run_id": self.run, "step": step}
        if called is not None and called.author is not None:
            data["agent"] = called.author
        return frame("message_start", data, id)

    def _call_at(self, seq: int) -> Event | None:
        """Which step is told at this point of the log, to a reader that came in the middle."""
        tail = self._tail
        rows = tail.store.read(tail.log, 1, seq, types=["model.called"], limit=1, reverse=True)
        return Event(rows[0]) if rows else None

    def _replied(self, event: Event, id: str) -> list[bytes]:
        found: list[bytes] = []
        if not self._sure or not self._n:
            if self._n or not self._sure or not self.has_begun:
                found.append(self._start(self._call_at(event.seq), None))  # the reader may have a part of it already
            (row,) = self._tail.store.read(self._tail.log, event.seq, event.seq)
            if not event.data.get("aside"):
                found += whole(message_of(self._tail.store, self._tail.log, row))
        usage = {name: event.data.get("usage", {}).get(name, 0) for name in Usage.__dataclass_fields__}
        delta = {
            "type": "message_delta",
            "stop_reason": event.data.get("stop_reason"),
            "usage": shapes.usage_dict(usage),
        }
        self._n, self._sure, self.has_begun = 0, True, False
        return [*found, frame("message_delta", delta), frame("message_stop", {"type": "message_stop"}, id)]

    def _done(self) -> dict[str, Any]:
        answer = shapes.run_answer(self._tail.store, self._tail.log, self.run)
        return {
            "type": "done",
            "usage": answer["usage"],
            "steps": answer["steps"],
            "run_id": self.run,
            "response": answer,
        }


def whole(message: Message) -> list[bytes]:
    """A reply that is stored, as a stream would have told it."""
    found: list[bytes] = []
    for index, part in enumerate(message.parts):
        block: Any = part
        delta: dict[str, Any] | None = None
        if isinstance(part, Text):
            block, delta = Text(text=""), {"type": "text_delta", "text": part.text, "index": index}
        elif isinstance(part, Thinking):
            delta = {"type": "thinking_delta", "text": part.text, "index": index}
        elif isinstance(part, ToolCall):
            given = part.arguments if isinstance(part.arguments, str) else orjson.dumps(part.arguments).decode()
            delta = {"type": "input_json_delta", "index": index, "input_json": given}
        start = {"type": "content_block_start", "index": index, "content_block": shapes.part_dict(block)}
        found.append(frame("content_block_start", start))
        if delta is not None:
            found.append(frame(delta["type"], delta))
        found.append(frame("content_block_stop", {"type": "content_block_stop", "index": index}))
    return found


def error_frame(event: Event) -> dict[str, Any]:
    """How a run ended without an answer."""
    error = event.data.get("error") or {}
    texts = {
        "turn.interrupted": ("turn_interrupted", "the turn was interrupted, and settled by a later message"),
        "turn.parked": ("turn_parked", "the turn ended its process again and again and is parked: send a new message"),
    }
    code, text = texts.get(event.type, ("turn_cancelled", "the turn was cancelled"))
    found = {"type": "error", "error": error.get("text", text), "code": error.get("code", code)}
    return found | {"details": error["details"]} if error.get("details") else found


class EventStream(Response):
    """A response that goes on. It holds its slot for as long as it is sent, and gives it back whatever happens."""

    media_type = "text/event-stream"

    def __init__(
        self,
        server: Server,
        key_id: str,
        open_tail: Callable[[], Any],
        *,
        where: tuple[int, int],
        frames: Callable[[Tail], LogFrames | RunFrames],
        slot: Slot | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self._server, self._key_id, self._slot = server, key_id, slot
        self._open_tail, self._where, self._frames = open_tail, where, frames
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        try:
            slot = self._slot or server.limits.streams.hold(self._key_id)
        except AgentError as error:
            await error_response(error, request_id_of(scope))(scope, receive, send)
            return
        server.metrics.open_streams.inc()
        try:
            tail = await self._open_tail()
            try:
                await self._send(tail, scope, receive, send)
            finally:
                server.feed.leave(tail)
        finally:
            slot.release()
            server.metrics.open_streams.dec()

    async def _send(self, tail: Tail, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        frames = self._frames(tail)
        straight: Send = scope.get(STRAIGHT, send)  # what stands between has nothing to say about a frame
        writing = asyncio.ensure_future(self._write(tail, frames, straight, request_id_of(scope)))
        gone = asyncio.ensure_future(_disconnected(receive))
        self.writing = writing
        self._abort: Callable[[], None] = scope.get("extensions", {}).get(ABORT, {}).get("abort", lambda: None)
        server.streams.add(self)
        try:
            await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.streams.discard(self)
            for task in (writing, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task

    async def _write(self, tail: Tail, frames: LogFrames | RunFrames, send: Send, request_id: str) -> None:
        feed, now = self._server.feed, self._server.store.ids.elapsed
        ends = now() + self._server.config.stream_life
        self.sending_since: float | None = None
        try:
            async for items in follow(feed, tail, *self._where):
                if isinstance(frames, RunFrames) and frames.reads(items):
                    out = await off_thread(frames, items)
                else:
                    out = frames(items) if items else [PING]
                if frames.over and isinstance(frames, RunFrames):
                    await self._server.runs_left(tail.log, frames.run)
                items.clear()  # while the reader takes its time, it holds as little as can be
                self._server.frames += len(out)
                since = now()
                while out:
                    self.sending_since = since
                    await send({"type": "http.response.body", "body": _chunk(out), "more_body": True})
                    self.sending_since = None
                if frames.over or since > ends:
                    break
        except AgentError as error:
            _, body = error_body(error, request_id)
            await send(
                {"type": "http.response.body", "body": frame("error", {"type": "error", **body}), "more_body": True}
            )
        last = b"" if frames.over else f"retry: {RETRY}\n\n".encode()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def abort(self) -> None:
        """End the connection at once: a reader that takes nothing would hold it for ever."""
        self._abort()
        self.writing.cancel()

    def is_stalled(self, now: float) -> bool:
        since = getattr(self, "sending_since", None)
        return since is not None and now - since > STALLED


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _chunk(frames: list[bytes]) -> bytes:
    """Take from the front what is sent at once."""
    if len(frames) == 1:
        return frames.pop()
    count, size = 0, 0
    while count < len(frames) and size < CHUNK:
        size += len(frames[count])
        count += 1
    taken, frames[:count] = b"".join(frames[:count]), []
    return taken
