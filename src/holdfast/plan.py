"""Plans: which agents answer a question, and in which order. Users hold an `Agent` or a flow; the loop knows only its
plan.

A plan is a value without a conversation. `turn.flow_loop` walks it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """The settings of one agent that a turn needs."""

    name: str | None
    model: Model
    tools: Mapping[str, Tool]
    instructions: str | Callable[[Any], Any] | None  # text with placeholders, or the user's function of the session
    max_steps: int
    timeout: float
    description: str | None = None
    shape: OutputShape | None = None  # required shape of the answers
    task: str | None = None  # text after the instructions, used as it is: what a RoutingAgent asks its model
    share_state: Sequence[str] | bool = ()  # names of the state that the model is shown; True: all of the session's
    output_key: str | None = None  # name of the state that gets the answer
    extract: Callable[[Any], Any] | None = None  # user's function of the Response: values for state, or an awaitable
    handoffs: Mapping[str, Callable[[], Plan]] = field(default_factory=dict)  # by agent name; called at the handoff
    # the plan of an agent that the conversation can reach by handoffs, by its name
    find_handoff_plan: Callable[[str], Plan | None] | None = None
    recall: Callable[[Store, Log, str, int], str] | None = None  # memories about a question, in at most so many bytes
    allows_compaction: bool = True  # whether the session's own strategy may make room in a prompt
    budget: Budget | None = None  # the ceiling of each session that it runs in
    options: Mapping[str, Any] = field(default_factory=dict)  # temperature, max_tokens, stop, tool_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """Steps that run one after the other. Each agent sees the messages of the agents before it."""

    name: str | None
    steps: Sequence[Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Steps that run in parallel. None sees the messages of the others until all are done."""

    name: str | None
    steps: Sequence[Plan]
    max_concurrency: int  # number of steps that run at the same time
    collects_errors: bool  # whether the other steps continue when one fails


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    """Steps that run one after the other, in rounds. Another round follows if `should_continue` is true for the last
    response of a round, up to `max_rounds`."""

    name: str | None
    steps: Sequence[Plan]
    max_rounds: int
    should_continue: Callable[[Any], bool | Awaitable[bool]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPlan:
    """Steps of which a model chooses the one that answers."""

    name: str | None
    chooser: AgentSpec
    steps: Sequence[Plan]
    default_step: int | None  # number of the step that answers if the model chooses none


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackPlan:
    """Steps of which one answers, and the next one if it fails. `order` gives the order for a conversation that has no
    owner yet."""

    name: str | None
    steps: Sequence[Plan]
    order: Callable[[Message], Sequence[int] | Awaitable[Sequence[int]]]


Plan = AgentSpec | SequentialPlan | ParallelPlan | LoopPlan | RoutingPlan | FallbackPlan


def first_agent(plan: Plan) -> AgentSpec:
    """Return the agent that runs first."""
    while not isinstance(plan, AgentSpec):
        plan = plan.chooser if isinstance(plan, RoutingPlan) else plan.steps[0]
    return plan
