"""The frames of a stream as the library's own events, over several connections: none is lost, none comes twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.client.errors import error_from_json
from holdfast.client.parsers import parse_event, parse_response, parse_usage
from holdfast.client.requests import Call, get
from holdfast.log import codec
from holdfast.log.messages import Message
from holdfast.models.base import InputJSONDelta, TextDelta, ThinkingDelta
from holdfast.turn.response import Response
from holdfast.turn.stream_events import (
    ContentBlockStart,
    ContentBlockStop,
    MessageDelta,
    MessageStart,
    MessageStop,
    StreamEvent,
    ToolProgress,
    ToolReturned,
    TurnDone,
)

if TYPE_CHECKING:
    import httpx2

    from holdfast.log.events import Event

_DELTAS = (TextDelta, ThinkingDelta, InputJSONDelta)
_BLOCKS = (ContentBlockStart, ContentBlockStop, *_DELTAS)


class RunTail:
    """One run, as `message/stream` tells it; `call` asks for it under one key, so that asking again attaches to it."""

    def __init__(self, call: Call, finish: Callable[[Response], Response]) -> None:
        self._call, self._finish = call, finish
        self._last_event_id: str | None = None
        self._step = _StepDeduplicator()
        self._agent: str | None = None  # whose step it is
        self.run_id: str | None = None
        self.is_over = False

    def call(self) -> Call:
        return replace(self._call, last_event=self._last_event_id, is_stream=True)

    def on_open(self, headers: httpx2.Headers) -> None:
        self.run_id = headers.get("x-run-id") or self.run_id

    def read_frame(self, event: str, id: str, data: str) -> Iterator[StreamEvent]:
        if event == "ping" or not data:
            return
        self._last_event_id = id or self._last_event_id
        found: dict[str, Any] = codec.decode(data.encode())
        if event == "error":
            self.is_over = True
            raise error_from_json(found, found.get("status", 500))
        if event == "done":
            self.is_over = True
            response = self._finish(parse_response(found["response"]))
            yield TurnDone(
                usage=parse_usage(found["usage"]), steps=found["steps"], response=response, agent=self._agent
            )
            return
        told = _parse_frame(event, found)
        if isinstance(told, MessageStart):
            self.run_id, self._agent = told.run_id, told.agent
        if told is not None:
            for each in self._step.new_events(told):
                yield each if self._agent is None else replace(each, agent=self._agent)


def _parse_frame(event: str, data: Mapping[str, Any]) -> StreamEvent | None:
    """A frame as the library has it; None for one that this version does not know."""
    if event == "message_start":
        return MessageStart(run_id=data["run_id"], step=data["step"], agent=data.get("agent"))
    if event == "content_block_start":
        block = Message.of({"role": "assistant", "content": [data["content_block"]]}).parts[0]
        return ContentBlockStart(index=data["index"], content_block=block)
    if event == "text_delta":
        return TextDelta(index=data["index"], text=data["text"])
    if event == "thinking_delta":
        return ThinkingDelta(index=data["index"], text=data["text"])
    if event == "input_json_delta":
        return InputJSONDelta(index=data["index"], input_json=data["input_json"])
    if event == "content_block_stop":
        return ContentBlockStop(index=data["index"])
    if event == "message_delta":
        return MessageDelta(stop_reason=data["stop_reason"], usage=parse_usage(data["usage"]))
    if event == "message_stop":
        return MessageStop()
    if event == "tool_progress":
        return ToolProgress(call_id=data["call_id"], text=data["text"])
    if event == "tool_result":
        fields = {name: data[name] for name in ("call_id", "name", "content", "is_error")}
        return ToolReturned(**fields)
    return None


class _StepDeduplicator:
    """The events of the current step that the reader has.

    A server that cannot continue in the middle of a reply sends the step again. Events that the reader has already are
    kept back; if they turn out to be of another reply, because the model was asked once more, all of it is yielded.
    """

    def __init__(self) -> None:
        self._step = 0
        self._blocks_seen: list[tuple[object, str]] = []  # (what, index) and its text, deltas of one block joined
        self._replay_buffer: list[StreamEvent] | None = None  # events kept back while the server sends the step again
        self._replay_block, self._replay_offset = 0, 0  # end of the part that equals what the reader has

    def new_events(self, event: StreamEvent) -> Iterator[StreamEvent]:
        if isinstance(event, MessageStart):
            if event.step == self._step and self._blocks_seen:
                self._replay_buffer, self._replay_block, self._replay_offset = [event], 0, 0
                return
            self._step, self._blocks_seen, self._replay_buffer = event.step, [], None
            yield event
        elif isinstance(event, MessageStop):
            self._blocks_seen, self._replay_buffer = [], None
            yield event
        elif not isinstance(event, _BLOCKS):
            yield event
        elif self._replay_buffer is None:
            self._record_block(event)
            yield event
        else:
            yield from self._skip_repeated(event)

    def _record_block(self, event: StreamEvent) -> None:
        what, text = _block_key_and_text(event)
        if self._blocks_seen and self._blocks_seen[-1][0] == what:
            text = self._blocks_seen.pop()[1] + text
        self._blocks_seen.append((what, text))

    def _skip_repeated(self, event: StreamEvent) -> Iterator[StreamEvent]:
        assert self._replay_buffer is not None
        what, text = _block_key_and_text(event)
        known, before = self._blocks_seen[self._replay_block]
        if what != known and self._replay_offset == len(before) and self._replay_block + 1 < len(self._blocks_seen):
            self._replay_block, self._replay_offset = self._replay_block + 1, 0
            known, before = self._blocks_seen[self._replay_block]
        rest, is_last = before[self._replay_offset :], self._replay_block + 1 == len(self._blocks_seen)
        if what == known and rest.startswith(text):
            self._replay_offset += len(text)
            self._replay_buffer.append(event)
        elif what == known and is_last and text.startswith(rest):  # here begins what is new
            self._replay_buffer = None
            event = _drop_prefix(event, len(rest))
            self._record_block(event)
            yield event
        elif what != known and is_last and not rest:
            self._replay_buffer = None
            self._record_block(event)
            yield event
        else:  # another reply
            again, self._replay_buffer, self._blocks_seen = [*self._replay_buffer, event], None, []
            for each in again:
                if not isinstance(each, MessageStart):
                    self._record_block(each)
                yield each


def _block_key_and_text(event: StreamEvent) -> tuple[object, str]:
    index = (event.type, getattr(event, "index", 0))
    if isinstance(event, InputJSONDelta):
        return index, event.input_json
    return index, event.text if isinstance(event, TextDelta | ThinkingDelta) else "."


def _drop_prefix(event: StreamEvent, at: int) -> StreamEvent:
    if isinstance(event, InputJSONDelta):
        return replace(event, input_json=event.input_json[at:])
    assert isinstance(event, TextDelta | ThinkingDelta)
    return replace(event, text=event.text[at:])


class LogTail:
    """The events of a log, from a point on and for as long as they are read. Live deltas between them pass by."""

    is_over = False

    def __init__(self, path: str, after: int, types: list[str] | None) -> None:
        self._path, self._after, self._types = path, after, types

    def call(self) -> Call:
        return replace(get(self._path, after=self._after, types=self._types), is_stream=True)

    def on_open(self, headers: httpx2.Headers) -> None:
        pass

    def read_frame(self, event: str, id: str, data: str) -> Iterator[Event]:
        if event == "error":
            problem = codec.decode(data.encode())
            raise error_from_json(problem, problem.get("status", 500))
        if not id.isdigit() or "." not in event:
            return  # a delta, a ping
        found = parse_event(codec.decode(data.encode()))
        if found.seq > self._after:
            self._after = found.seq
            yield found
