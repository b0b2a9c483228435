"""What is asked of a model and what comes back: values, and the protocol that every model keeps.

A reply is a stream of small events and one `Done` that carries everything worth storing. The deltas before it are
previews. A stream that ends without `Done` was no reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from holdfast.log.messages import Message, Part

StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "pause", "other"]


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
    of a tool. `options` go into the provider's request as they are; None takes a field out. `session_id` and `run_id`
    say who asks, for the records of the logger; they are not sent.
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
    session_id: str | None = field(default=None, repr=False, compare=False)
    run_id: str | None = field(default=None, repr=False, compare=False)

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
