"""What is asked of a model and what comes back: values, and the protocol that every model keeps.

A reply is a stream of small events and one `Done` that carries everything worth storing. The deltas before it are
previews. A stream that ends without `Done` was no reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from holdfast.log.messages import Message, Part, ToolCall, ToolResult

StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "pause", "other"]

UNKNOWN_OUTCOME = "No result was recorded for this call: it was interrupted, and whether it took effect is unknown."


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one or more calls. What was read from or written to a cache is part of the input; reasoning is part
    of the output."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        mine, theirs = self.to_dict(), other.to_dict()
        return Usage(**{name: mine[name] + theirs[name] for name in mine})

    def to_dict(self) -> dict[str, int]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model sees it; `parameters` is a JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model. What changes least comes first, so that the provider's cache finds it again.

    `system` may come in several pieces, the most stable first. `tool_choice` is "auto", "none", "required" or the name
    of a tool. `options` go into the provider's request as they are; None takes a field out.
    """

    model: str = ""
    system: str | Sequence[str] | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[ToolSpec] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    tool_choice: str | None = None
    output_schema: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def system_texts(self) -> list[str]:
        """The pieces of the system prompt that say something."""
        pieces = [self.system] if isinstance(self.system, str) else list(self.system or ())
        return [piece for piece in pieces if piece.strip()]

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStart:
    """A part of the reply begins; `block` is that part, still empty."""

    index: int
    block: Part
    type: ClassVar[Literal["block_start"]] = "block_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    index: int
    text: str
    agent: str | None = None  # whose; a model does not say
    type: ClassVar[Literal["text_delta"]] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingDelta:
    index: int
    text: str
    agent: str | None = None  # whose; a model does not say
    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputJSONDelta:
    """A piece of a tool call's arguments; only all pieces together are JSON."""

    index: int
    input_json: str
    agent: str | None = None
    type: ClassVar[Literal["input_json_delta"]] = "input_json_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStop:
    index: int
    type: ClassVar[Literal["block_stop"]] = "block_stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The whole reply. `raw_stop` is the provider's word for the stop reason, `model` the one that it says answered."""

    message: Message
    usage: Usage
    stop_reason: StopReason
    raw_stop: str
    provider: str
    model: str
    response_id: str | None = None
    type: ClassVar[Literal["done"]] = "done"


ModelEvent = BlockStart | TextDelta | ThinkingDelta | InputJSONDelta | BlockStop | Done


class Model(Protocol):
    """Who is asked. Both methods give the same events; the last one is `Done`, or they raise."""

    @property
    def name(self) -> str: ...

    @property
    def provider(self) -> str: ...

    @property
    def context_window(self) -> int:
        """How many tokens the model can read and write in one call."""
        ...

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]: ...

    def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]: ...


def repaired(messages: Iterable[Message]) -> list[Message]:
    """The same conversation as providers accept it: every call is followed at once by its result, no result stands
    without its call, and no two calls share an id.

    A call without a result gets one that says so; a result without a call is left out.
    """
    items = list(messages)
    if _is_valid(items):
        return items
    paired: list[tuple[Message, list[ToolResult | None]]] = []
    later: dict[str, list[ToolResult]] = {}  # results behind the point we are at, the nearest last
    for message in reversed(items):
        calls = message.tool_calls if message.role == "assistant" else []
        paired.append((message, _answers(calls, later)))
        for part in reversed(message.parts):
            if isinstance(part, ToolResult):
                later.setdefault(part.call_id, []).append(part)
    found: list[Message] = []
    used: set[str] = set()
    for message, answers in reversed(paired):
        found += _rebuilt(message, answers, used)
    return found


def _is_valid(items: list[Message]) -> bool:
    """Whether there is nothing to repair, which is nearly always so."""
    used: set[str] = set()
    open_calls: set[str] = set()
    for message in items:
        parts = message.parts
        if message.role == "tool":
            part = parts[0] if len(parts) == 1 else None
            if not isinstance(part, ToolResult) or part.call_id not in open_calls:
                return False
            open_calls.remove(part.call_id)
            continue
        if open_calls:
            return False
        for part in parts:
            kind = type(part)
            if kind is ToolResult:
                return False
            if kind is ToolCall:
                if message.role != "assistant" or not part.id or part.id in used:  # type: ignore[union-attr]
                    return False
                used.add(part.id)  # type: ignore[union-attr]
                open_calls.add(part.id)  # type: ignore[union-attr]
    return not open_calls


def _answers(calls: list[ToolCall], later: dict[str, list[ToolResult]]) -> list[ToolResult | None]:
    # A result belongs to the nearest call before it, so that a call that was interrupted does not take the answer of a
    # later one that happens to have its id.
    mine = {call_id: later.pop(call_id, []) for call_id in {call.id for call in calls}}
    return [mine[call.id].pop() if mine[call.id] else None for call in calls]


def _rebuilt(message: Message, answers: list[ToolResult | None], used: set[str]) -> list[Message]:
    parts: list[Part] = []
    results: list[Message] = []
    pending = iter(answers)
    for part in message.parts:
        if isinstance(part, ToolCall):
            if message.role != "assistant":
                continue
            answer, call_id = next(pending), unique_id(part.id, used)
            parts.append(ToolCall(id=call_id, name=part.name, arguments=part.arguments))
            results.append(
                Message.tool(UNKNOWN_OUTCOME, call_id=call_id, is_error=True)
                if answer is None
                else Message.tool(answer.content, call_id=call_id, is_error=answer.is_error)
            )
        elif not isinstance(part, ToolResult):
            parts.append(part)
    if len(parts) == len(message.parts) and not results:
        return [message]
    if message.role == "tool":  # its results stand behind their calls now
        return [Message("user", parts)] if parts else []
    author = message.author if message.author != message.role else None
    return [Message(message.role, parts, author=author, metadata=message.metadata), *results]


def unique_id(wanted: str, used: set[str]) -> str:
    """`wanted`, or the first variant of it that is not in `used`; it is added there."""
    found, number = wanted or "call", 1
    while found in used:
        number += 1
        found = f"{wanted or 'call'}-{number}"
    used.add(found)
    return found
