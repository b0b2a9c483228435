"""The stream events of a turn, each with the name of its agent. Text and argument deltas come from the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from holdfast.log.messages import Part
from holdfast.models.base import InputJSONDelta, TextDelta, ThinkingDelta, Usage

if TYPE_CHECKING:
    from holdfast.turn.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStart:
    """A model call begins; `step` counts from 1."""

    run_id: str
    step: int
    agent: str | None = None
    type: ClassVar[Literal["message_start"]] = "message_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentBlockStart:
    """A part of the reply begins: text, thinking or a tool call."""

    index: int
    content_block: Part
    agent: str | None = None
    type: ClassVar[Literal["content_block_start"]] = "content_block_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentBlockStop:
    """A part of the reply is complete."""

    index: int
    agent: str | None = None
    type: ClassVar[Literal["content_block_stop"]] = "content_block_stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta:
    """Why the model stopped, and the usage of the call."""

    stop_reason: str
    usage: Usage
    agent: str | None = None
    type: ClassVar[Literal["message_delta"]] = "message_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStop:
    """The reply is complete. It is not stored yet: the next append of the turn stores it."""

    agent: str | None = None
    type: ClassVar[Literal["message_stop"]] = "message_stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    """A text that a running tool reported through its context."""

    call_id: str
    text: str
    agent: str | None = None
    type: ClassVar[Literal["tool_progress"]] = "tool_progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned:
    """The result of a tool call."""

    call_id: str
    name: str
    content: str
    is_error: bool
    agent: str | None = None
    type: ClassVar[Literal["tool_result"]] = "tool_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDone:
    """The last event: the turn has its answer, waits for a person, or stopped because the session was paused."""

    usage: Usage
    steps: int
    response: Response = field(repr=False)
    agent: str | None = None
    type: ClassVar[Literal["done"]] = "done"


StreamEvent = (
    MessageStart
    | ContentBlockStart
    | TextDelta
    | ThinkingDelta
    | InputJSONDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | ToolProgress
    | ToolReturned
    | TurnDone
)


def to_dict(event: StreamEvent) -> dict[str, Any]:
    """Return a stream event as a JSON object, without `response` and `agent`."""
    data: dict[str, Any] = {"type": event.type}
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        if name not in ("response", "agent"):
            data[name] = value.to_dict() if isinstance(value, Usage) else value
    return data
