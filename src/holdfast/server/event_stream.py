"""Server-sent events: the tail of a log as bytes on a wire.

One feed has two encodings. `LogFrames` sends the events of a log under their types, with live deltas between;
`RunFrames` sends one run under the documented frame names. The id of a frame is the seq of its event, or `seq.n` for a
delta, so that `Last-Event-ID` names exactly what a reader has. Data is one line of JSON, so no text can forge a frame.
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
from holdfast.server.auth import CACHED_SECONDS, Caller, check_key
from holdfast.server.errors import error_body, error_response, request_id_of
from holdfast.server.http.middleware import DIRECT_SEND
from holdfast.server.rate_limits import Slot
from holdfast.server.schemas import serializers
from holdfast.stores.messages import message_of
from holdfast.turn.stream_events import to_dict
from holdfast.worker.feed import PAGE, Feed, Tail, TailItem

if TYPE_CHECKING:
    from holdfast.server.app import Server

CHUNK = 32 << 10  # bytes of one write to a connection
PAGE_BYTES = 32 << 10  # approximate memory of a reader that catches up
BATCH = 64
RETRY = 1000  # milliseconds after which a client should reconnect


def position_of(text: str | None, after: int | None) -> tuple[int, int]:
    """Return the position of a reader as seq and delta number: `Last-Event-ID` outranks `after`."""
    if text is None or not text.strip():
        return after or 0, 0
    seq, _, n = text.strip().partition(".")
    if not (seq.isascii() and seq.isdigit() and len(seq) < 16) or (n and not (n.isascii() and n.isdigit())):
        raise InvalidArgument(f"Last-Event-ID {text[:40]!r} is not one of ours: send the id of the last frame you have")
    return int(seq), int(n or 0) if len(n) < 16 else 0


async def follow_tail(feed: Feed, tail: Tail, seq: int, n: int) -> AsyncIterator[list[TailItem]]:
    """Yield the items of a log after a position, then new items; an empty list at each heartbeat. Ends when the server
    stops or the session is deleted."""
    position, limit = -1, 2
    while not feed.is_closing:
        if position < tail.start:  # a new reader, or one that is behind the tail
            if tail.is_deleted:
                return
            if seq < tail.base:
                rows = await off_thread(tail.store.read, tail.log, seq + 1, tail.base, limit=limit)
                if rows:
                    seq, n = rows[-1].seq, 0
                    size = sum(len(row.body or b"") for row in rows)
                    limit = max(1, limit // 2) if size > PAGE_BYTES else min(PAGE, limit * 2)
                    events, rows = [Event(row, unverified=tail.unverified) for row in rows], []
                    items = [TailItem(event.seq, 0, event, None) for event in events]
                    yield items
                    continue
            position = tail.start + sum((item.seq, item.n) <= (seq, n) for item in tail.items)
        behind = tail.end - position
        if behind > 0:
            items = [tail.items[at] for at in range(-behind, min(0, BATCH - behind))]
            position += len(items)
            if items[0].seq <= seq:  # a reader that comes from another server may be ahead of this tail
                items = [item for item in items if (item.seq, item.n) > (seq, n)]
            if items:
                seq, n = items[-1].seq, items[-1].n
                yield items
        elif tail.is_deleted:
            return
        else:
            await tail.wait()
            if tail.end == position:
                yield []


def encode_frame(name: str, data: object, id: str | None = None) -> bytes:
    head = f"event: {name}\n" if id is None else f"id: {id}\nevent: {name}\n"
    return head.encode() + b"data: " + orjson.dumps(data) + b"\n\n"


PING = encode_frame("ping", {"type": "ping"})


def encode_item(item: TailItem) -> bytes:
    """Return the frame of an item under its own name; encoded once for all readers."""
    if item.frame is None:
        if item.event is not None:
            item.frame = encode_frame(item.event.type, serializers.event_dict(item.event), str(item.seq))
        else:
            assert item.delta is not None
            item.frame = encode_frame(item.delta.type, delta_dict(item.delta), f"{item.seq}.{item.n}")
    return item.frame


def delta_dict(delta: Any) -> dict[str, Any]:  # noqa: ANN401 - any of the stream's events
    found = to_dict(delta)
    block = found.get("content_block")
    if block is not None:
        found["content_block"] = serializers.part_dict(block)
    return found


class LogFrames:
    """Encodes the events of a log as they are."""

    over = False

    def __init__(self, types: Sequence[str] = ()) -> None:
        self._types = frozenset(types)

    def __call__(self, items: Iterable[TailItem]) -> list[bytes]:
        if not self._types:
            return [encode_item(item) for item in items]
        return [
            encode_item(item)
            for item in items
            if (item.event.type if item.event is not None else item.delta and item.delta.type) in self._types
        ]


class RunFrames:
    """Encodes one run under the documented frame names. A reply without all its deltas is sent as a whole when it is
    stored; another message_start makes a reader that has a part of it start the reply again."""

    def __init__(self, tail: Tail, run: str, n: int, sure: bool) -> None:
        self._tail, self.run = tail, run
        self._delta_count, self._has_all_deltas = n, sure  # of this step, as the reader has them
        self.has_begun = False  # whether this connection has sent the message_start of the step
        self.over = False

    def __call__(self, items: Iterable[TailItem]) -> list[bytes]:
        found: list[bytes] = []
        for item in items:
            if self.over:
                break
            if item.event is not None:
                if item.event.run == self.run:
                    found += self._event_frames(item.event)
            elif self._has_all_deltas and item.n == self._delta_count + 1:
                # The reader may have a part of this step from another server.
                if not self._delta_count and not self.has_begun:
                    found.append(self._start_frame(self._model_call_before(item.seq), None))
                    self.has_begun = True
                self._delta_count += 1
                found.append(encode_item(item))
            else:
                self._has_all_deltas = False
        return found

    def may_read_log(self, items: Sequence[TailItem]) -> bool:
        """Whether encoding these items may read the log."""
        return not self.has_begun or any(item.event is not None for item in items)

    def _event_frames(self, event: Event) -> list[bytes]:
        type, id = event.type, str(event.seq)
        if type == "model.called":
            self._delta_count, self._has_all_deltas, self.has_begun = 0, True, True
            return [self._start_frame(event, id)]
        if type == "model.replied":
            return self._reply_frames(event, id)
        if type == "tool.returned":
            return [encode_frame("tool_result", {"type": "tool_result", **serializers.tool_result_dict(event)}, id)]
        if type in ("turn.finished", "turn.waiting"):
            self.over = True
            return [encode_frame("done", self._final_data(), id)]
        if type in ("turn.failed", "turn.cancelled", "turn.interrupted", "turn.parked", "run.dropped"):
            self.over = True
            return [encode_frame("error", error_data(event), id)]
        self._delta_count = 0  # the turn has appended another event: its deltas count from 0 again
        return []

    def _start_frame(self, called: Event | None, id: str | None) -> bytes:
        step = 0 if called is None else int(called.data.get("step", 0))
        data: dict[str, Any] = {"type": "message_start", "run_id": self.run, "step": step}
        if called is not None and called.author is not None:
            data["agent"] = called.author
        return encode_frame("message_start", data, id)

    def _model_call_before(self, seq: int) -> Event | None:
        """Return the `model.called` event of the step at this seq, for a reader that joins in the middle."""
        tail = self._tail
        rows = tail.store.read(tail.log, 1, seq, types=["model.called"], limit=1, reverse=True)
        return Event(rows[0]) if rows else None

    def _reply_frames(self, event: Event, id: str) -> list[bytes]:
        found: list[bytes] = []
        if not self._has_all_deltas or not self._delta_count:
            if self._delta_count or not self._has_all_deltas or not self.has_begun:
                # The reader may have a part of the reply already.
                found.append(self._start_frame(self._model_call_before(event.seq), None))
            (row,) = self._tail.store.read(self._tail.log, event.seq, event.seq)
            if not event.data.get("aside"):
                found += encode_message(message_of(self._tail.store, self._tail.log, row))
        usage = {name: event.data.get("usage", {}).get(name, 0) for name in Usage.__dataclass_fields__}
        delta = {
            "type": "message_delta",
            "stop_reason": event.data.get("stop_reason"),
            "usage": serializers.usage_dict(usage),
        }
        self._delta_count, self._has_all_deltas, self.has_begun = 0, True, False
        return [
            *found,
            encode_frame("message_delta", delta),
            encode_frame("message_stop", {"type": "message_stop"}, id),
        ]

    def _final_data(self) -> dict[str, Any]:
        answer = serializers.run_answer(self._tail.store, self._tail.log, self.run)
        return {
            "type": "done",
            "usage": answer["usage"],
            "steps": answer["steps"],
            "run_id": self.run,
            "response": answer,
        }


def encode_message(message: Message) -> list[bytes]:
    """Return the frames of a stored reply, as a live stream sends them."""
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
        start = {"type": "content_block_start", "index": index, "content_block": serializers.part_dict(block)}
        found.append(encode_frame("content_block_start", start))
        if delta is not None:
            found.append(encode_frame(delta["type"], delta))
        found.append(encode_frame("content_block_stop", {"type": "content_block_stop", "index": index}))
    return found


def error_data(event: Event) -> dict[str, Any]:
    """Return the data of the error frame of a run that ended without an answer."""
    error = event.data.get("error") or {}
    texts = {
        "turn.interrupted": ("turn_interrupted", "the turn was interrupted, and settled by a later message"),
        "turn.parked": ("turn_parked", "the turn ended its process again and again and is parked: send a new message"),
    }
    code, text = texts.get(event.type, ("turn_cancelled", "the turn was cancelled"))
    found = {"type": "error", "error": error.get("text", text), "code": error.get("code", code)}
    return found | {"details": error["details"]} if error.get("details") else found


class EventStream(Response):
    """A streaming response. It holds its slot and its tail while it is sent, and gives both back at its end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        server: Server,
        caller: Caller,
        open_tail: Callable[[], Any],
        *,
        where: tuple[int, int],
        frames: Callable[[Tail], LogFrames | RunFrames],
        slot: Slot | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self._server, self._caller, self._slot = server, caller, slot
        self._open_tail, self._position, self._frames = open_tail, where, frames
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        try:
            slot = self._slot or server.limits.streams.hold(self._caller.key_id, self._caller.tenant)
        except AgentError as error:
            await error_response(error, request_id_of(scope))(scope, receive, send)
            return
        server.metrics.open_streams.inc()
        try:
            tail = await self._open_tail()
            try:
                await self._send(tail, scope, receive, send)
            finally:
                server.feed.release_tail(tail)
        finally:
            slot.release()
            server.metrics.open_streams.dec()

    async def _send(self, tail: Tail, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        frames = self._frames(tail)
        straight: Send = scope.get(DIRECT_SEND, send)  # the middleware has nothing to add to a frame
        writer_task = asyncio.ensure_future(self._write(tail, frames, straight, scope))
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        server.streams.add(self)
        try:
            await asyncio.wait({writer_task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.streams.discard(self)
            for task in (writer_task, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task

    async def _write(self, tail: Tail, frames: LogFrames | RunFrames, send: Send, scope: Scope) -> None:
        feed, now = self._server.feed, self._server.store.clock.monotonic
        ends = now() + self._server.config.stream_life
        next_key_check = now() + CACHED_SECONDS
        try:
            async for items in follow_tail(feed, tail, *self._position):
                if now() >= next_key_check:  # before anything is told to a key that may be revoked
                    await check_key(self._server, scope)
                    next_key_check = now() + CACHED_SECONDS
                if isinstance(frames, RunFrames) and frames.may_read_log(items):
                    out = await off_thread(frames, items)
                else:
                    out = frames(items) if items else [PING]
                if frames.over and isinstance(frames, RunFrames):
                    self._server.runs_under_way.end_if_left(frames.run)
                    await self._server.wait_for_run_cleanup(tail.log, frames.run)
                items.clear()  # a slow reader should hold little memory
                self._server.frames_sent += len(out)
                is_due_to_end = now() > ends
                while out:
                    await send({"type": "http.response.body", "body": _take_chunk(out), "more_body": True})
                if frames.over or is_due_to_end:
                    break
        except AgentError as error:
            _, body = error_body(error, request_id_of(scope))
            await send(
                {
                    "type": "http.response.body",
                    "body": encode_frame("error", {"type": "error", **body}),
                    "more_body": True,
                }
            )
        last = b"" if frames.over else f"retry: {RETRY}\n\n".encode()
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _take_chunk(frames: list[bytes]) -> bytes:
    """Remove frames from the front, up to one chunk, and return their bytes."""
    if len(frames) == 1:
        return frames.pop()
    count, size = 0, 0
    while count < len(frames) and size < CHUNK:
        size += len(frames[count])
        count += 1
    taken, frames[:count] = b"".join(frames[:count]), []
    return taken
