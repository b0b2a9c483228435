"""What a stream tells while a turn goes on, and of which agent. Text and argument deltas come from the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from holdfast.log.messages import Part
from holdfast.models.base import InputJSONDelta, TextDelta, ThinkingDelta, Usage

if TYPE_CHECKING:
    from holdfast.turn.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStart:
    """The model is asked; `step` counts from 1."""

    run_id: str
    step: int
    agent: str | None = None
    type: ClassVar[Literal["message_start"]] = "message_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentBlockStart:
    index: int
    content_block: Part
    agent: str | None = None
    type: ClassVar[Literal["content_block_start"]] = "content_block_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentBlockStop:
    index: int
    agent: str | None = None
    type: ClassVar[Literal["content_block_stop"]] = "content_block_stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta:
    stop_reason: str
    usage: Usage
    agent: str | None = None
    type: ClassVar[Literal["message_delta"]] = "message_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStop:
    """The reply is complete and stored."""

    agent: str | None = None
    type: ClassVar[Literal["message_stop"]] = "message_stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    call_id: str
    text: str
    agent: str | None = None
    type: ClassVar[Literal["tool_progress"]] = "tool_progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned:
    call_id: str
    name: str
    content: str
    is_error: bool
    agent: str | None = None
    type: ClassVar[Literal["tool_result"]] = "tool_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDone:
    """The last event: the turn has its answer, or waits for a person."""

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
    """A stream event as JSON has it."""
    found: dict[str, Any] = {"type": event.type}
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        if name not in ("response", "agent"):
            found[name] = value.to_dict() if isinstance(value, Usage) else value
    return found
