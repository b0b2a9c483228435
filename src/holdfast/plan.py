"""Who answers, as the loop needs to know it: one agent, or several in some order. The agent is what users hold; the
loop does not know it.

A plan says who is asked when. It holds no conversation and does nothing: `walk` walks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.log.messages import Message
    from holdfast.models.base import Model
    from holdfast.policy.budget import Budget
    from holdfast.schema.output import OutputShape
    from holdfast.stores.base import Log, Store
    from holdfast.tools.tool import Tool
    from holdfast.turn.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a turn needs to know of one agent."""

    name: str | None
    model: Model
    tools: Mapping[str, Tool]
    instructions: str | None
    max_steps: int
    timeout: float
    description: str | None = None
    shape: OutputShape | None = None  # of its answers
    output_key: str | None = None
    extract: Callable[[Response], Any] | None = None
    handoffs: Mapping[str, Callable[[], Plan]] = field(default_factory=dict)  # by name; asked when it comes to it
    member: Callable[[str], Plan | None] | None = None  # whom the conversation can get to by handoffs, by name
    recall: Callable[[Store, Log, str, int], str] | None = None  # what is remembered about a question, in so many bytes
    condenses: bool = True  # whether the session's own strategy may make room in a prompt
    budget: Budget | None = None  # of a session that has none of its own
    options: Mapping[str, Any] = field(default_factory=dict)  # temperature, max_tokens, stop, tool_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder:
    """One after the other; each sees what those before it did."""

    name: str | None
    steps: Sequence[Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce:
    """All at the same time; none sees the others until all are done."""

    name: str | None
    steps: Sequence[Plan]
    most: int  # that run at the same time
    collects: bool  # whether those that fail leave the others alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """One after the other, in rounds: as long as `goes_on` says so of a round's last response."""

    name: str | None
    steps: Sequence[Plan]
    most: int  # rounds
    goes_on: Callable[[Response], bool | Awaitable[bool]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A model is asked which one answers."""

    name: str | None
    chooser: Settings
    steps: Sequence[Plan]
    otherwise: int | None  # who answers if the model names nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """One of them, and another one if that fails. `order` says whom to ask first in a conversation that is nobody's."""

    name: str | None
    steps: Sequence[Plan]
    order: Callable[[Message], Sequence[int] | Awaitable[Sequence[int]]]


Plan = Settings | InOrder | AtOnce | Again | Choice | Relay


def first_agent(plan: Plan) -> Settings:
    """The agent that is asked first."""
    while not isinstance(plan, Settings):
        plan = plan.chooser if isinstance(plan, Choice) else plan.steps[0]
    return plan
