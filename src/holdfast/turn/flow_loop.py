"""The loop of a turn: walks a plan and runs its agents in order. Pure, like the agent loop that it runs.

Every agent has a path. An agent that has ended according to the log is not run again; any other agent continues from
its own events. So a flow is resumed by walking its plan once more, and needs no state besides the log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import (
    AgentError,
    BadOutput,
    InstructionsFailed,
    InvalidArgument,
    MaxStepsExceeded,
    ProviderError,
    RoutingError,
    SchemaValidationError,
    ScriptExhausted,
)
from holdfast.log.events import Draft
from holdfast.log.flow_paths import child_path, is_within
from holdfast.plan import AgentSpec, FallbackPlan, LoopPlan, ParallelPlan, Plan, RoutingPlan, SequentialPlan
from holdfast.schema.output import OutputShape
from holdfast.turn.agent_loop import AgentRules, agent_loop
from holdfast.turn.effects import (
    AppendEvents,
    CallUserFunction,
    Effect,
    Ending,
    PrepareAgent,
    RunParallel,
    Steps,
    StopAgents,
)
from holdfast.turn.progress import TurnProgress
from holdfast.turn.response import Response, response_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPosition:
    """A place in a plan, and the settings that apply there."""

    path: str = ""
    branches: tuple[str, ...] = ()  # parallel branches that contain the place, the outermost first
    in_loop: bool = False
    shape: OutputShape | None = None  # shape of the answer that the caller asked for, for any agent
    active: str | None = None  # agent that owns the conversation after this turn; None: unchanged
    is_outermost: bool = True  # in no flow: a handoff here moves the conversation
    owner: str | None = None  # agent that owned the conversation before this turn

    def position_of_step(self, step: str, **changes: Any) -> FlowPosition:  # noqa: ANN401 - fields of this class
        return replace(self, path=child_path(self.path, step), is_outermost=False, active=None, **changes)


def flow_loop(
    plan: Plan,
    turn: TurnProgress,
    opening: list[Draft],
    *,
    owner: str | None,
    shape: OutputShape | None,
    draft_finished: Callable[[], Draft],
) -> Steps:
    """Run a whole turn.

    `opening` holds the events of the first append; `turn` has folded them already. `draft_finished` makes the event
    that finishes the turn. In the functions below, `ending` is how the previous step ended, with its unstored events.
    """
    if shape is not None:
        turn.root.shape = shape
    ending = yield from _run_plan(plan, FlowPosition(shape=shape, owner=owner), turn, Ending("", "", opening))
    if ending.is_waiting:
        data = {"reason": "paused"} if ending.reason == "paused" else {}
        last = Draft(type="turn.waiting", run=turn.run, data=data)
    else:
        last = draft_finished()
    turn.fold_event(last.type, last.data, None)
    yield AppendEvents([*ending.unstored_drafts, last], ending.path, last=True)
    return ending


def _run_plan(plan: Plan, position: FlowPosition, turn: TurnProgress, ending: Ending) -> Steps:
    if isinstance(plan, AgentSpec):
        return _run_with_handoffs(plan, position, turn, ending)
    if isinstance(plan, SequentialPlan):
        return _run_sequence(plan, position, turn, ending)
    if isinstance(plan, ParallelPlan):
        return _run_parallel(plan, position, turn, ending)
    if isinstance(plan, LoopPlan):
        return _run_loop(plan, position, turn, ending)
    if isinstance(plan, RoutingPlan):
        return _run_routing(plan, position, turn, ending)
    return _run_fallback(plan, position, turn, ending)


def _run_with_handoffs(
    spec: AgentSpec, position: FlowPosition, turn: TurnProgress, ending: Ending, *, aside: bool = False
) -> Steps:
    """Run one agent, and the agents that it hands the conversation to."""
    path, handoff_count, handed_by = position.path, 0, None
    while True:
        progress = turn.agents.get(path)
        if progress is not None and progress.end_status:
            return Ending("left" if progress.has_left_loop else "answered", path, ending.unstored_drafts)
        shape = position.shape or spec.shape
        if progress is None or progress.handoff is None or progress.open_calls:
            begun = [] if progress is not None else [_draft_agent_started(spec, position, path, shape, turn, handed_by)]
            effect = PrepareAgent(
                spec=spec,
                path=path,
                branches=position.branches,
                shape=shape,
                in_loop=position.in_loop,
                aside=aside,
                drafts=ending.unstored_drafts,
                drafts_path=ending.path,
            )
            rules, carry = yield from prepare_agent(effect)
            progress = turn.agents[path]
            ending = yield from agent_loop(progress, rules, [*carry, *begun])
            if ending.reason != "handed":
                if not ending.is_waiting and path:
                    ending.unstored_drafts.append(_draft_agent_finished(turn, path))
                return ending
        assert progress.handoff is not None
        if progress.handoff not in spec.handoffs:  # the agents were changed after the handoff
            raise RoutingError(
                f"{spec.name} has handed over to {progress.handoff!r}, which is none of its handoffs", []
            )
        plan = spec.handoffs[progress.handoff]()
        handoff_count, handed_by = handoff_count + 1, spec.name
        path = f"{position.path}+{handoff_count}"
        if position.is_outermost:
            position = replace(position, active=progress.handoff)
        if not isinstance(plan, AgentSpec):
            return (yield from _run_plan(plan, replace(position, path=path, is_outermost=False), turn, ending))
        spec = plan


def prepare_agent(effect: PrepareAgent) -> Generator[Effect, Any, tuple[AgentRules, list[Draft]]]:
    """Prepare an agent. A function of the user that gives its instructions is called as an effect, so that it never
    blocks an event loop."""
    rules, drafts = yield effect
    if isinstance(rules, CallUserFunction):
        text = yield rules
        rules, drafts = yield replace(effect, drafts=drafts, instructions=text)
    return rules, drafts


def _draft_agent_started(
    spec: AgentSpec,
    position: FlowPosition,
    path: str,
    shape: OutputShape | None,
    turn: TurnProgress,
    handed_by: str | None,
) -> Draft:
    data: dict[str, Any] = {"agent": spec.name, "path": path}
    if handed_by is not None:
        data["from"] = handed_by
    if position.active is not None:
        data["active"] = position.active
    if len(position.branches) > 1:
        data["branches"] = list(position.branches)
    if shape is not None:
        data["schema"] = shape.schema
    branch = turn.enter_agent(path, spec.name, position.branches).branch
    return Draft(type="agent.started", run=turn.run, branch=branch, author=spec.name, data=data)


def _draft_agent_finished(turn: TurnProgress, path: str) -> Draft:
    progress = turn.agents[path]
    progress.end_status = "finished"
    return Draft(type="agent.finished", run=turn.run, branch=progress.branch, author=progress.name, data={"path": path})


def _run_sequence(plan: SequentialPlan, position: FlowPosition, turn: TurnProgress, ending: Ending) -> Steps:
    for number, step in enumerate(plan.steps):
        is_last = number == len(plan.steps) - 1
        step_position = position.position_of_step(str(number), shape=position.shape if is_last else None)
        if number == 0 and position.active is not None:
            step_position = replace(step_position, active=position.active)
        ending = yield from _run_plan(step, step_position, turn, ending)
        if ending.reason != "answered":
            break
    return ending


def _run_parallel(plan: ParallelPlan, position: FlowPosition, turn: TurnProgress, ending: Ending) -> Steps:
    if position.shape is not None:  # a handoff led here: `begin_turn` could not refuse it
        refuse_shape(plan)
    if ending.unstored_drafts:  # stored before the branches start: none of them must take the lease for all
        yield AppendEvents(ending.unstored_drafts, ending.path)
    positions = []
    for number in range(len(plan.steps)):
        path = child_path(position.path, str(number))
        positions.append(position.position_of_step(str(number), branches=(*position.branches, path), shape=None))
    if position.active is not None:
        positions[0] = replace(positions[0], active=position.active)
    paths = [branch.path for branch in positions]
    steps = [_run_branch(step, branch, turn) for step, branch in zip(plan.steps, positions, strict=True)]
    outcomes = yield RunParallel(paths, steps, plan.max_concurrency, plan.collects_errors)
    carry: list[Draft] = []
    for path, outcome in zip(paths, outcomes, strict=True):
        if isinstance(outcome, Exception):
            carry += yield StopAgents(path, outcome, adds_note=True)
    reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, Ending)}
    reason = next((reason for reason in ("waiting", "paused", "left") if reason in reasons), "answered")
    if reasons <= {"failed"}:
        if carry:
            yield AppendEvents(carry, position.path)
        causes = [f"{step.name}: {_find_failure(turn, path)}" for step, path in zip(plan.steps, paths, strict=True)]
        raise RoutingError(f"no agent of {plan.name or 'the flow'} could answer", causes)
    return Ending(reason, position.path, carry)


def _run_branch(step: Plan, position: FlowPosition, turn: TurnProgress) -> Steps:
    """Run one branch of a parallel plan. Its events are stored before the turn waits for the other branches."""
    if _find_failure(turn, position.path) is not None:
        return Ending("failed", position.path)  # the failure was collected before a crash
    ending = yield from _run_plan(step, position, turn, Ending("", position.path))
    if ending.unstored_drafts:
        yield AppendEvents(ending.unstored_drafts, ending.path)
    return Ending(ending.reason, position.path)


def _run_loop(plan: LoopPlan, position: FlowPosition, turn: TurnProgress, ending: Ending) -> Steps:
    reason, rounds = "maximum", 0
    while rounds < plan.max_rounds and reason == "maximum":
        for number, step in enumerate(plan.steps):
            is_last = number == len(plan.steps) - 1
            step_position = position.position_of_step(
                f"{rounds}.{number}", in_loop=True, shape=position.shape if is_last else None
            )
            if rounds == number == 0 and position.active is not None:
                step_position = replace(step_position, active=position.active)
            ending = yield from _run_plan(step, step_position, turn, ending)
            if ending.is_waiting:
                return ending
            if ending.reason == "left":
                reason = "exit"
                break
        rounds += 1
        next_round = child_path(position.path, f"{rounds}.0")
        if any(is_within(path, next_round) for path in list(turn.agents)) or reason == "exit":
            continue  # decided before a crash, or by the agent that left the loop
        if position.path in turn.ended_loops:
            break
        if plan.should_continue is not None:
            if ending.unstored_drafts:  # the condition is user code: the answer that it judges is stored before it runs
                yield AppendEvents(ending.unstored_drafts, ending.path)
                ending = Ending(ending.reason, ending.path)
            last = child_path(position.path, f"{rounds - 1}.{len(plan.steps) - 1}")
            if not (yield CallUserFunction(_bind_condition(plan, response_of(turn, path=last)))):
                reason = "condition"
    if position.path not in turn.ended_loops:
        turn.ended_loops.add(position.path)
        data = {"path": position.path, "iterations": rounds, "reason": reason}
        if reason == "exit" and position.shape is not None:
            _refuse_unshaped(position.shape, turn, position.path)
        branch = position.branches[-1] if position.branches else None
        ending.unstored_drafts.append(
            Draft(type="loop.ended", run=turn.run, branch=branch, author=plan.name, data=data)
        )
    return Ending("answered", ending.path, ending.unstored_drafts)


def _refuse_unshaped(shape: OutputShape, turn: TurnProgress, path: str) -> None:
    """Raise SchemaValidationError if the last text of a loop that an agent left has not the required shape: that text
    is the loop's answer."""
    try:
        shape.read(response_of(turn, path).text)
    except BadOutput as problem:
        raise SchemaValidationError(str(problem), text="", tries=1) from problem


def _bind_condition(plan: LoopPlan, response: Response) -> Callable[[], Any]:
    assert plan.should_continue is not None
    should_continue = plan.should_continue
    return lambda: should_continue(response)


def _run_routing(plan: RoutingPlan, position: FlowPosition, turn: TurnProgress, ending: Ending) -> Steps:
    chosen = _find_recorded_step(turn, child_path(position.path, "1"))
    if chosen is None:
        chooser = position.position_of_step("0", shape=None)
        try:
            ending = yield from _run_with_handoffs(plan.chooser, chooser, turn, ending, aside=True)
            if ending.is_waiting:
                return ending
            answer = turn.agents[chooser.path].answer
            assert plan.chooser.shape is not None
            chosen = plan.chooser.shape.read("" if answer is None else answer.text)
        except (SchemaValidationError, BadOutput) as error:  # the model named no known agent, also after repairs
            if plan.default_step is None:
                raise RoutingError(f"{plan.name or 'the router'} chose nobody that is there", [str(error)]) from error
            chosen = plan.default_step
            ending = Ending(
                "",
                position.path,
                (yield StopAgents(chooser.path, error, adds_note=False, unstored_drafts=ending.unstored_drafts)),
            )
    step = plan.steps[chosen]
    step_position = replace(position.position_of_step(f"1.{chosen}"), active=position.active)
    return (yield from _run_plan(step, step_position, turn, ending))


def _run_fallback(plan: FallbackPlan, position: FlowPosition, turn: TurnProgress, ending: Ending) -> Steps:
    """Run one of several plans, and the next one if it fails. The events of a failed plan stay in the log."""
    order = list(range(len(plan.steps)))
    causes: list[str] = []
    last: Exception | None = None
    steps = list(plan.steps)
    first = _find_recorded_step(turn, child_path(position.path, "0"))
    if position.owner is not None:
        first = _find_owner(steps, position.owner, first)
    if first is None:
        question = turn.question
        assert question is not None
        preferred = yield CallUserFunction(lambda: plan.order(question))
        order = [*dict.fromkeys([*preferred, *order])]
    else:
        order = [first, *(each for each in order if each != first)]
    for attempt in range(len(plan.steps)):
        recorded = _find_recorded_step(turn, child_path(position.path, str(attempt)))
        number = order[attempt] if recorded is None else recorded
        order = [*order[:attempt], number, *(each for each in order[attempt:] if each != number)]
        step = steps[number]
        # A conversation that was handed to the router by its name stays with the router.
        moves_conversation = position.is_outermost and (position.owner is None or position.owner != plan.name)
        active = step.name if moves_conversation else position.active
        step_position = replace(position.position_of_step(f"{attempt}.{number}"), active=active)
        problem = _find_failure(turn, step_position.path)
        if problem is not None:  # it failed before a crash
            causes.append(f"{step.name}: {problem}")
            continue
        try:
            return (yield from _run_plan(step, step_position, turn, ending))
        except Exception as error:
            if not is_agent_failure(error):
                raise
            causes.append(f"{step.name}: {error}")
            last = error
            ending = Ending(
                "",
                position.path,
                (yield StopAgents(step_position.path, error, adds_note=False, unstored_drafts=ending.unstored_drafts)),
            )
    if ending.unstored_drafts:
        yield AppendEvents(ending.unstored_drafts, ending.path)
    raise RoutingError(f"no agent of {plan.name or 'the router'} could answer", causes) from last


def _find_owner(steps: list[Plan], owner: str, recorded: int | None) -> int | None:
    """Return the number of the step that owns the conversation, or `recorded` if none does.

    The owner may also be an agent that a step can reach by handoffs. Then that agent's plan replaces the step in
    `steps`. A step that the log has recorded for this turn has priority.
    """
    for number, step in enumerate(steps):
        if step.name == owner:
            return number if recorded is None else recorded
    for number, step in enumerate(steps):
        if not isinstance(step, AgentSpec) or step.find_handoff_plan is None:
            continue
        owner_plan = step.find_handoff_plan(owner)
        if owner_plan is not None and recorded in (None, number):
            steps[number] = owner_plan
            return number
    return recorded


def _find_recorded_step(turn: TurnProgress, path: str) -> int | None:
    """Return the number of the step that the log has recorded at `path`, where paths end in `.number`; None if there is
    none."""
    for each in list(turn.agents):
        if each.startswith(path + "."):
            return int(each[len(path) + 1 :].split("/")[0].split("+")[0])
    return None


def _find_failure(turn: TurnProgress, path: str) -> str | None:
    """Return why the step at `path` failed, or None if the log has no failure of it."""
    return next((progress.problem for progress in list(turn.agents.values()) if progress.failed_path == path), None)


def is_agent_failure(error: Exception) -> bool:
    """Whether another agent may succeed: the model failed, did not come to an answer, or could not be given its
    instructions. Errors of the session, the budget or the store are no failures of an agent."""
    model_errors = (ProviderError, ScriptExhausted, MaxStepsExceeded, SchemaValidationError, RoutingError)
    return isinstance(error, (*model_errors, InstructionsFailed)) or not isinstance(error, AgentError)


def refuse_shape(plan: Plan) -> None:
    """Raise InvalidArgument if a plan gives several answers: a shape can be required of one answer only."""
    if isinstance(plan, ParallelPlan):
        raise InvalidArgument("agents that work at the same time give several answers: ask an agent after them")
    if isinstance(plan, RoutingPlan | FallbackPlan):
        for step in plan.steps:  # any of them may answer
            refuse_shape(step)
    elif not isinstance(plan, AgentSpec):
        refuse_shape(plan.steps[-1])
