"""Effects: the requests that the loop yields. A driver performs each one and sends its result back. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.log.events import Draft
from holdfast.plan import AgentSpec
from holdfast.schema.output import OutputShape
from holdfast.turn.progress import CallProgress


@dataclass(frozen=True, slots=True)
class AppendEvents:
    """Append these events of the agent at `path`, in one commit. With `last` the same commit releases the lease."""

    drafts: list[Draft]
    path: str
    last: bool = False


@dataclass(frozen=True, slots=True)
class BeginModelCall:
    """Append these events and `model.called`. Returns False, and appends nothing, if the session is paused.

    If the budget is used up: appends the events, if the turn has its lease already, and raises BudgetExceeded.
    """

    drafts: list[Draft]
    model_call: Draft
    path: str


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model. Returns its `Done`."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class CallTools:
    """Run these calls in parallel. Returns `ToolResults`."""

    calls: Sequence[CallProgress]
    path: str


@dataclass(frozen=True, slots=True)
class ToolResults:
    """Results in the order of their arrival: all but the last are stored, the last one waits for the next append."""

    stored: list[Draft]
    unstored: list[Draft]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAgent:
    """Prepare an agent: append `drafts`, the events of the agents before it, because its instructions may read them;
    then read its prompt. Before the first append of a turn nothing is appended. Returns the agent's `AgentRules` and
    the drafts that are still to be appended.

    If the instructions are a function of the user, a `CallUserFunction` is returned in place of the rules. The loop
    yields it, and then this effect again, with the text in `instructions`.
    """

    spec: AgentSpec
    path: str
    shape: OutputShape | None
    branches: tuple[str, ...] = ()
    in_loop: bool = False
    aside: bool = False  # the agent's replies are not part of the conversation
    drafts: list[Draft] = field(default_factory=list)
    drafts_path: str = ""  # path of the agent that the drafts belong to
    instructions: str | None = None  # text of the user's function


@dataclass(frozen=True, slots=True)
class StopAgents:
    """Stop the agents at `path` and inside it after a failure. Returns the events to append: those of `unstored_drafts`
    that the agents did not append, results for open calls, and `agent.failed` for each agent."""

    path: str
    error: Exception
    adds_note: bool  # whether a message in the conversation says that the agent failed
    unstored_drafts: Sequence[Draft] = ()  # events that were passed to the agents for their first append


@dataclass(frozen=True, slots=True)
class CallUserFunction:
    """Call a function of the user, which may be async. Returns its value."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class RunParallel:
    """Run several branches of a flow, at most `max_parallel` at a time. Returns a list with the `Ending` of each
    branch, or its exception if failures are collected."""

    paths: Sequence[str]
    steps: Sequence[Steps]
    max_parallel: int
    collects_failures: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """How an agent or a flow ended, with the events that are still to be appended."""

    # "answered", "handed" (over to another agent), "left" (a loop), "waiting" (for a person), "paused", "failed" (a
    # branch, before a crash), "" (nothing ran yet)
    reason: str
    path: str  # path of the agent that the events belong to
    unstored_drafts: list[Draft] = field(default_factory=list)  # events for the next append

    @property
    def is_waiting(self) -> bool:
        """Whether the turn stops here and stays open."""
        return self.reason in ("waiting", "paused")


Effect = (
    AppendEvents | BeginModelCall | CallModel | CallTools | PrepareAgent | StopAgents | CallUserFunction | RunParallel
)
Steps = Generator[Effect, Any, Ending]
