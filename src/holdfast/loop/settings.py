"""The agent, as the loop needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.loop.response import Response
    from holdfast.loop.tools import Tool
    from holdfast.models.base import Model
    from holdfast.policy.budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a turn needs to know of who answers."""

    name: str | None
    model: Model
    tools: Mapping[str, Tool]
    instructions: str | None
    max_steps: int
    timeout: float
    output_key: str | None = None
    extract: Callable[[Response], Any] | None = None
    condenses: bool = True  # whether the session's own strategy may make room in a prompt
    budget: Budget | None = None  # of a session that has none of its own
    options: Mapping[str, Any] = field(default_factory=dict)  # temperature, max_tokens, stop, tool_choice
