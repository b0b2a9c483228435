"""The frames of a stream as the library's own events, across connections that break: nothing is lost, nothing told
twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.client.errors import fault_of
from holdfast.client.parsers import event_of, response_of, usage_of
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
        self._last: str | None = None
        self._step = _Step()
        self._agent: str | None = None  # whose step it is
        self.run_id: str | None = None
        self.is_over = False

    def call(self) -> Call:
        return replace(self._call, last_event=self._last, is_stream=True)

    def opened(self, headers: httpx2.Headers) -> None:
        self.run_id = headers.get("x-run-id") or self.run_id

    def take(self, event: str, id: str, data: str) -> Iterator[StreamEvent]:
        if event == "ping" or not data:
            return
        self._last = id or self._last
        found: dict[str, Any] = codec.decode(data.encode())
        if event == "error":
            self.is_over = True
            raise fault_of(found, found.get("status", 500))
        if event == "done":
            self.is_over = True
            response = self._finish(response_of(found["response"]))
            yield TurnDone(usage=usage_of(found["usage"]), steps=found["steps"], response=response, agent=self._agent)
            return
        told = _told(event, found)
        if isinstance(told, MessageStart):
            self.run_id, self._agent = told.run_id, told.agent
        if told is not None:
            for each in self._step.new(told):
                yield each if self._agent is None else replace(each, agent=self._agent)


def _told(event: str, data: Mapping[str, Any]) -> StreamEvent | None:
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
        return MessageDelta(stop_reason=data["stop_reason"], usage=usage_of(data["usage"]))
    if event == "message_stop":
        return MessageStop()
    if event == "tool_progress":
        return ToolProgress(call_id=data["call_id"], text=data["text"])
    if event == "tool_result":
        fields = {name: data[name] for name in ("call_id", "name", "content", "is_error")}
        return ToolReturned(**fields)
    return None


class _Step:
    """What was told of the step that is going on.

    A server that cannot go on in the middle of a reply begins to tell the step again. What a reader has of it already
    is held back; if it turns out to be another reply, because the model was asked once more, it is told from its start.
    """

    def __init__(self) -> None:
        self._step = 0
        self._told: list[tuple[object, str]] = []  # (what, index) and its text, deltas of one block joined
        self._again: list[StreamEvent] | None = None  # held back, while the step is told again
        self._at, self._offset = 0, 0  # up to where that is what was told before

    def new(self, event: StreamEvent) -> Iterator[StreamEvent]:
        if isinstance(event, MessageStart):
            if event.step == self._step and self._told:
                self._again, self._at, self._offset = [event], 0, 0
                return
            self._step, self._told, self._again = event.step, [], None
            yield event
        elif isinstance(event, MessageStop):
            self._told, self._again = [], None
            yield event
        elif not isinstance(event, _BLOCKS):
            yield event
        elif self._again is None:
            self._note(event)
            yield event
        else:
            yield from self._retold(event)

    def _note(self, event: StreamEvent) -> None:
        what, text = _what(event)
        if self._told and self._told[-1][0] == what:
            text = self._told.pop()[1] + text
        self._told.append((what, text))

    def _retold(self, event: StreamEvent) -> Iterator[StreamEvent]:
        assert self._again is not None
        what, text = _what(event)
        known, before = self._told[self._at]
        if what != known and self._offset == len(before) and self._at + 1 < len(self._told):
            self._at, self._offset = self._at + 1, 0
            known, before = self._told[self._at]
        rest, is_last = before[self._offset :], self._at + 1 == len(self._told)
        if what == known and rest.startswith(text):
            self._offset += len(text)
            self._again.append(event)
        elif what == known and is_last and text.startswith(rest):  # here begins what is new
            self._again = None
            event = _from(event, len(rest))
            self._note(event)
            yield event
        elif what != known and is_last and not rest:
            self._again = None
            self._note(event)
            yield event
        else:  # another reply
            again, self._again, self._told = [*self._again, event], None, []
            for each in again:
                if not isinstance(each, MessageStart):
                    self._note(each)
                yield each


def _what(event: StreamEvent) -> tuple[object, str]:
    index = (event.type, getattr(event, "index", 0))
    if isinstance(event, InputJSONDelta):
        return index, event.input_json
    return index, event.text if isinstance(event, TextDelta | ThinkingDelta) else "."


def _from(event: StreamEvent, at: int) -> StreamEvent:
    if isinstance(event, InputJSONDelta):
        return replace(event, input_json=event.input_json[at:])
    assert isinstance(event, TextDelta | ThinkingDelta)
    return replace(event, text=event.text[at:])


class LogTail:
    """The events of a log, from a point on and for as long as somebody listens. Live deltas between them pass by."""

    is_over = False

    def __init__(self, path: str, after: int, types: list[str] | None) -> None:
        self._path, self._after, self._types = path, after, types

    def call(self) -> Call:
        return replace(get(self._path, after=self._after, types=self._types), is_stream=True)

    def opened(self, headers: httpx2.Headers) -> None:
        pass

    def take(self, event: str, id: str, data: str) -> Iterator[Event]:
        if event == "error":
            problem = codec.decode(data.encode())
            raise fault_of(problem, problem.get("status", 500))
        if not id.isdigit() or "." not in event:
            return  # a delta, a ping
        found = event_of(codec.decode(data.encode()))
        if found.seq > self._after:
            self._after = found.seq
            yield found
