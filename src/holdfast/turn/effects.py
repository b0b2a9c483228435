"""What the loop asks for: effects, which a driver performs, and whose outcome the loop is told. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.log.events import Draft
from holdfast.plan import Settings
from holdfast.schema.output import OutputShape
from holdfast.turn.work import Call


@dataclass(frozen=True, slots=True)
class Record:
    """Append these events of the agent at `path`, in one commit; with `last` the lease is given back in the same
    one."""

    drafts: list[Draft]
    path: str
    last: bool = False


@dataclass(frozen=True, slots=True)
class Proceed:
    """Append these events and the word that the model is called, unless the budget is used up (then they are appended
    and the turn fails) or the session was paused meanwhile (then nothing is). Answered with whether it was done."""

    drafts: list[Draft]
    called: Draft
    path: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the model; answered with its `Done`."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run tools at the same time; answered with `Ran`."""

    calls: Sequence[Call]
    path: str


@dataclass(frozen=True, slots=True)
class Ran:
    """Results in the order in which they came: those already stored, and the last, which waits for the next append."""

    stored: list[Draft]
    left: list[Draft]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter:
    """Get an agent ready: append what those before it left, which its instructions may read, and prepare its prompt.
    Before the first append of a turn nothing is appended. Answered with its `Rules` and with what is still to
    append."""

    settings: Settings
    path: str
    branches: tuple[str, ...]
    shape: OutputShape | None
    in_loop: bool
    aside: bool  # what it says is not part of the conversation
    drafts: list[Draft]
    before: str  # whose the drafts are


@dataclass(frozen=True, slots=True)
class Settle:
    """The agents at `path` and inside of it failed: stop them. Answered with what is to be appended: as far as it was
    not, what was carried to them; and the events that say that they are over."""

    path: str
    error: Exception
    note: bool  # whether the conversation is told
    carry: Sequence[Draft] = ()


@dataclass(frozen=True, slots=True)
class Decide:
    """Ask a function of the user's, which may be async; answered with what it says."""

    ask: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Together:
    """Go on in several places at the same time, at most `most` of them at once. Answered with how each ended: an
    `Ended`, or, if failures are collected, an exception."""

    paths: Sequence[str]
    steps: Sequence[Steps]
    most: int
    collects: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """How an agent, or a flow, ended; and events that are still to be appended, and whose they are."""

    how: str  # answered, handed (the conversation to another agent), left (a loop), waiting (for a person), paused
    path: str
    carry: list[Draft] = field(default_factory=list)

    @property
    def is_waiting(self) -> bool:
        return self.how in ("waiting", "paused")


Effect = Record | Proceed | Ask | RunCalls | Enter | Settle | Decide | Together
Steps = Generator[Effect, Any, Ended]
