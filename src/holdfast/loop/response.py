"""What a turn gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.log.messages import Message, ToolCall
from holdfast.models.base import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A call that waits for a person: approve it, deny it, or answer its interrupt."""

    call_id: str
    name: str
    arguments: dict[str, Any] | str
    payload: Any = None  # of an Interrupt
    reason: str | None = None  # why it is asked, where that is not the tool's own wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a question: `text`, or `output` where a shape was asked for; and what it took.

    `status` is "finished", or "waiting" when a person has to decide about the calls in `pending`.
    """

    text: str = ""
    output: Any = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    messages: list[Message] = field(default_factory=list)
    status: str = "finished"
    pending: list[Pending] = field(default_factory=list)
    run_id: str = ""
    stop_reason: str | None = None

    def __str__(self) -> str:
        return self.text
