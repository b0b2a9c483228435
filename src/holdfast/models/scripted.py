"""A model that replies from a script: for tests, examples and documentation.

`Agent(provider="scripted", script=["Hello", call("get_time"), error("overloaded")])`. Each question takes one item.
Its replies, ids and counts included, follow from the script and the request alone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from holdfast.errors import InvalidArgument, ProviderError, ProviderUnavailable, ScriptExhausted
from holdfast.log.messages import Message, Text, Thinking, ToolCall, ToolResult
from holdfast.models.base import ModelEvent, ModelRequest, StopReason, Usage
from holdfast.models.decoder import Reply

PIECE = 32  # characters of a delta


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    name: str
    arguments: Mapping[str, Any] | str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedError:
    failure: BaseException


Item = str | Text | Thinking | ToolCall | Message | ScriptedCall | ScriptedError
ScriptItem = Item | Sequence[Item] | Callable[[ModelRequest], Any]


def call(name: str, arguments: Mapping[str, Any] | str | None = None, *, id: str | None = None) -> ScriptedCall:
    """A script item: the model calls a tool. A string stands for arguments that are not JSON."""
    return ScriptedCall(name, {} if arguments is None else arguments, id)


def error(failure: BaseException | type[ProviderError] | str = "the script says so") -> ScriptedError:
    """A script item: the model fails, with this exception, or with `ProviderUnavailable` and this text."""
    if isinstance(failure, str):
        return ScriptedError(ProviderUnavailable(failure, provider="scripted"))
    if isinstance(failure, type):
        return ScriptedError(failure(f"scripted {failure.__name__}", provider="scripted"))
    return ScriptedError(failure)


class LocalModel(ABC):
    """A model in this process: it never waits, so the awaited stream is the blocking one."""

    @abstractmethod
    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]: ...

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self.stream(request):
            yield event


class ScriptedModel(LocalModel):
    """Replies from a list, or from one function that is asked each time."""

    name = provider = "scripted"
    context_window = 128_000

    def __init__(self, script: Sequence[ScriptItem] | Callable[[ModelRequest], Any]) -> None:
        if isinstance(script, (str, Message)):
            raise InvalidArgument("script= is a list of replies: put it in [ ]")
        self._script: Sequence[ScriptItem] | Callable[[ModelRequest], Any] = (
            script if callable(script) else list(script)
        )
        self._next = 0
        self._lock = threading.Lock()
        self.requests: list[ModelRequest] = []

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        yield from stream_items(self._next_items(request), request)

    def _next_items(self, request: ModelRequest) -> list[Item]:
        with self._lock:  # one item for one question, also when several threads ask at the same time
            self.requests.append(request)
            if callable(self._script):
                item: Any = self._script
            elif self._next >= len(self._script):
                raise ScriptExhausted(len(self._script))
            else:
                item = self._script[self._next]
                self._next += 1
        while callable(item):
            item = item(request)
        return list(item) if isinstance(item, (list, tuple)) else [item]


def stream_items(items: Sequence[Item], request: ModelRequest, provider: str = "scripted") -> Iterator[ModelEvent]:
    """The items of one reply as a model would stream them."""
    reply = Reply(request, provider)
    asked = sum(message.role == "assistant" for message in request.messages)
    reply.response_id = f"{provider}-{asked + 1}"
    stop: StopReason = "end_turn"
    for item in _expand_items(items):
        if isinstance(item, ScriptedError):
            raise item.failure
        if isinstance(item, ToolCall):
            stop = "tool_use"
        yield from _stream_part(item, reply)
    events: list[ModelEvent] = []
    length = sum(len(piece) for block in reply.blocks for piece in block.pieces)
    reply.usage = Usage(input_tokens=_count_characters(request) // 4 + 1, output_tokens=length // 4 + 1)
    reply.finish(stop, stop, events)
    yield from events


def _expand_items(items: Sequence[Item]) -> Iterator[Text | Thinking | ToolCall | ScriptedError]:
    for item in items:
        if isinstance(item, str):
            yield Text(item)
        elif isinstance(item, ScriptedCall):
            arguments = item.arguments if isinstance(item.arguments, str) else dict(item.arguments)
            yield ToolCall(id=item.id or "", name=item.name, arguments=arguments)
        elif isinstance(item, Message):
            yield from _expand_items([part for part in item.parts if isinstance(part, (Text, Thinking, ToolCall))])
        elif isinstance(item, (Text, Thinking, ToolCall, ScriptedError)):
            yield item
        else:
            kind = type(item).__name__
            raise InvalidArgument(f"a script item is a string, call(...), error(...), a list or a function, not {kind}")


def _stream_part(part: Text | Thinking | ToolCall, reply: Reply) -> Iterator[ModelEvent]:
    events: list[ModelEvent] = []
    if isinstance(part, ToolCall):
        block = reply.start_block("tool", events, id=part.id or f"call_{reply.call_count + 1}", name=part.name)
        text = part.arguments if isinstance(part.arguments, str) else orjson.dumps(part.arguments).decode()
    else:
        block = reply.start_block("text" if isinstance(part, Text) else "thinking", events)
        text = part.text
        block.signature = part.signature if isinstance(part, Thinking) else None
    for at in range(0, len(text), PIECE):
        block.add_piece(text[at : at + PIECE], events)
    reply.stop_block(block, events)
    yield from events


def _count_characters(request: ModelRequest) -> int:
    """The number of characters in a request, roughly."""
    count = sum(len(text) for text in request.system_texts)
    for message in request.messages:
        for part in message.parts:
            kind = type(part)
            if kind is Text or kind is Thinking:
                count += len(part.text)  # type: ignore[union-attr]
            elif isinstance(part, ToolResult):
                count += len(part.content)
            elif isinstance(part, ToolCall):
                count += len(part.name) + len(str(part.arguments))
    return count
