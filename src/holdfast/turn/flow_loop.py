"""Who is asked when: walks a plan, from its beginning or from wherever a crash cut it. Pure, like the loop it is made
of.

Every agent has a path. One that the log says is over is not asked again; one that is not goes on from its own events.
So a flow is resumed by walking it once more, and there is nothing else to remember.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import (
    AgentError,
    InvalidArgument,
    MaxStepsExceeded,
    ProviderError,
    RoutingError,
    SchemaValidationError,
    ScriptExhausted,
)
from holdfast.log.events import Draft
from holdfast.log.flow_paths import inside, is_within
from holdfast.plan import Again, AtOnce, Choice, InOrder, Plan, Relay, Settings
from holdfast.schema.output import BadOutput, OutputShape
from holdfast.turn.agent_loop import leg
from holdfast.turn.effects import Decide, Ended, Enter, Record, Settle, Steps, Together
from holdfast.turn.progress import Trail
from holdfast.turn.response import Response, response_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place in a plan, and what holds there."""

    path: str = ""
    branches: tuple[str, ...] = ()
    in_loop: bool = False
    shape: OutputShape | None = None  # that was asked for, whoever answers
    active: str | None = None  # whose the conversation is from here on, if this is about that
    is_outermost: bool = True  # in no flow: a handoff here moves the conversation
    owner: str | None = None  # whose the conversation has been so far

    def at(self, step: str, **changes: Any) -> Spot:  # noqa: ANN401 - fields of this class
        return replace(self, path=inside(self.path, step), is_outermost=False, active=None, **changes)


def turn(
    plan: Plan,
    trail: Trail,
    opening: list[Draft],
    *,
    owner: str | None,
    shape: OutputShape | None,
    ended: Callable[[], Draft],
) -> Steps:
    """A whole turn. `opening` is what begins it, and is folded already; `ended` makes the event that finishes it."""
    found = yield from _walk(plan, Spot(shape=shape, owner=owner), trail, Ended("", "", opening))
    if found.is_waiting:
        data = {"reason": "paused"} if found.how == "paused" else {}
        last = Draft(type="turn.waiting", run=trail.run, data=data)
    else:
        last = ended()
    trail.take(last.type, last.data, None)
    yield Record([*found.carry, last], found.path, last=True)
    return found


def _walk(plan: Plan, spot: Spot, trail: Trail, so_far: Ended) -> Steps:
    if isinstance(plan, Settings):
        return _agent(plan, spot, trail, so_far)
    if isinstance(plan, InOrder):
        return _in_order(plan, spot, trail, so_far)
    if isinstance(plan, AtOnce):
        return _at_once(plan, spot, trail, so_far)
    if isinstance(plan, Again):
        return _again(plan, spot, trail, so_far)
    if isinstance(plan, Choice):
        return _choice(plan, spot, trail, so_far)
    return _relay(plan, spot, trail, so_far)


def _agent(settings: Settings, spot: Spot, trail: Trail, so_far: Ended, *, aside: bool = False) -> Steps:
    """One agent, and whoever it hands the conversation to."""
    path, hops, giver = spot.path, 0, None
    while True:
        work = trail.legs.get(path)
        if work is not None and work.over:
            return Ended("left" if work.left else "answered", path, so_far.carry)
        shape = spot.shape or settings.shape
        if work is None or work.handoff is None or work.unanswered:
            begun = [] if work is not None else [_started(settings, spot, path, shape, trail, giver)]
            rules, carry = yield Enter(
                settings=settings,
                path=path,
                branches=spot.branches,
                shape=shape,
                in_loop=spot.in_loop,
                aside=aside,
                drafts=so_far.carry,
                before=so_far.path,
            )
            work = trail.legs[path]
            so_far = yield from leg(work, rules, [*carry, *begun])
            if so_far.how != "handed":
                if not so_far.is_waiting and path:
                    so_far.carry.append(_finished(trail, path))
                return so_far
        assert work.handoff is not None
        if work.handoff not in settings.handoffs:  # since then the agents were changed
            raise RoutingError(
                f"{settings.name} has handed over to {work.handoff!r}, which is none of its handoffs", []
            )
        plan = settings.handoffs[work.handoff]()
        hops, giver = hops + 1, settings.name
        path = f"{spot.path}+{hops}"
        if spot.is_outermost:
            spot = replace(spot, active=work.handoff)
        if not isinstance(plan, Settings):
            return (yield from _walk(plan, replace(spot, path=path, is_outermost=False), trail, so_far))
        settings = plan


def _started(
    settings: Settings, spot: Spot, path: str, shape: OutputShape | None, trail: Trail, giver: str | None
) -> Draft:
    data: dict[str, Any] = {"agent": settings.name, "path": path}
    if giver is not None:
        data["from"] = giver
    if spot.active is not None:
        data["active"] = spot.active
    if len(spot.branches) > 1:
        data["branches"] = list(spot.branches)
    if shape is not None:
        data["schema"] = shape.schema
    branch = trail.enter(path, settings.name, spot.branches).branch
    return Draft(type="agent.started", run=trail.run, branch=branch, author=settings.name, data=data)


def _finished(trail: Trail, path: str) -> Draft:
    work = trail.legs[path]
    work.over = "finished"
    return Draft(type="agent.finished", run=trail.run, branch=work.branch, author=work.name, data={"path": path})


def _in_order(plan: InOrder, spot: Spot, trail: Trail, so_far: Ended) -> Steps:
    for number, step in enumerate(plan.steps):
        is_last = number == len(plan.steps) - 1
        place = spot.at(str(number), shape=spot.shape if is_last else None)
        if number == 0 and spot.active is not None:
            place = replace(place, active=spot.active)
        so_far = yield from _walk(step, place, trail, so_far)
        if so_far.how != "answered":
            break
    return so_far


def _at_once(plan: AtOnce, spot: Spot, trail: Trail, so_far: Ended) -> Steps:
    if spot.shape is not None:  # it was handed to them in the middle of the turn
        refuse_shape(plan)
    if so_far.carry:  # before there are several: one of them would have to take the lease for all
        yield Record(so_far.carry, so_far.path)
    places = []
    for number in range(len(plan.steps)):
        path = inside(spot.path, str(number))
        places.append(spot.at(str(number), branches=(*spot.branches, path), shape=None))
    if spot.active is not None:
        places[0] = replace(places[0], active=spot.active)
    steps = [_branch(step, place, trail) for step, place in zip(plan.steps, places, strict=True)]
    outcomes = yield Together([place.path for place in places], steps, plan.most, plan.collects)
    carry: list[Draft] = []
    for place, outcome in zip(places, outcomes, strict=True):
        if isinstance(outcome, Exception):
            carry += yield Settle(place.path, outcome, note=True)
    hows = {outcome.how for outcome in outcomes if isinstance(outcome, Ended)}
    how = next((how for how in ("waiting", "paused", "left") if how in hows), "answered")
    if hows <= {"failed"}:
        if carry:
            yield Record(carry, spot.path)
        causes = [f"{step.name}: {_problem(trail, place.path)}" for step, place in zip(plan.steps, places, strict=True)]
        raise RoutingError(f"no agent of {plan.name or 'the flow'} could answer", causes)
    return Ended(how, spot.path, carry)


def _branch(step: Plan, spot: Spot, trail: Trail) -> Steps:
    """One of those at the same time. What it did is stored before the others are waited for."""
    if _problem(trail, spot.path) is not None:
        return Ended("failed", spot.path)  # that was collected before a crash
    found = yield from _walk(step, spot, trail, Ended("", spot.path))
    if found.carry:
        yield Record(found.carry, found.path)
    return Ended(found.how, spot.path)


def _again(plan: Again, spot: Spot, trail: Trail, so_far: Ended) -> Steps:
    reason, rounds = "maximum", 0
    while rounds < plan.most and reason == "maximum":
        for number, step in enumerate(plan.steps):
            is_last = number == len(plan.steps) - 1
            place = spot.at(f"{rounds}.{number}", in_loop=True, shape=spot.shape if is_last else None)
            if rounds == number == 0 and spot.active is not None:
                place = replace(place, active=spot.active)
            so_far = yield from _walk(step, place, trail, so_far)
            if so_far.is_waiting:
                return so_far
            if so_far.how == "left":
                reason = "exit"
                break
        rounds += 1
        next_round = inside(spot.path, f"{rounds}.0")
        if any(is_within(path, next_round) for path in list(trail.legs)) or reason == "exit":
            continue  # it was decided before, or by the agent itself
        if spot.path in trail.looped:
            break
        if plan.goes_on is not None:
            if so_far.carry:  # a condition is somebody's code: what it judges is safe before it runs
                yield Record(so_far.carry, so_far.path)
                so_far = Ended(so_far.how, so_far.path)
            last = inside(spot.path, f"{rounds - 1}.{len(plan.steps) - 1}")
            if not (yield Decide(_judging(plan, response_of(trail, path=last)))):
                reason = "condition"
    if spot.path not in trail.looped:
        trail.looped.add(spot.path)
        data = {"path": spot.path, "iterations": rounds, "reason": reason}
        if reason == "exit" and spot.shape is not None:
            _refuse_unshaped(spot.shape, trail, spot.path)
        branch = spot.branches[-1] if spot.branches else None
        so_far.carry.append(Draft(type="loop.ended", run=trail.run, branch=branch, author=plan.name, data=data))
    return Ended("answered", so_far.path, so_far.carry)


def _refuse_unshaped(shape: OutputShape, trail: Trail, path: str) -> None:
    """A loop that was left answers with what stands, which must be what was asked for."""
    try:
        shape.read(response_of(trail, path).text)
    except BadOutput as problem:
        raise SchemaValidationError(str(problem), text="", tries=1) from problem


def _judging(plan: Again, response: Response) -> Callable[[], Any]:
    assert plan.goes_on is not None
    goes_on = plan.goes_on
    return lambda: goes_on(response)


def _choice(plan: Choice, spot: Spot, trail: Trail, so_far: Ended) -> Steps:
    chosen = _recorded(trail, inside(spot.path, "1"))
    if chosen is None:
        chooser = spot.at("0", shape=None)
        try:
            so_far = yield from _agent(plan.chooser, chooser, trail, so_far, aside=True)
            if so_far.is_waiting:
                return so_far
            answer = trail.legs[chooser.path].answer
            assert plan.chooser.shape is not None
            chosen = plan.chooser.shape.read("" if answer is None else answer.text)
        except (SchemaValidationError, BadOutput) as error:  # it named nobody, however often it was asked
            if plan.otherwise is None:
                raise RoutingError(f"{plan.name or 'the router'} chose nobody that is there", [str(error)]) from error
            chosen = plan.otherwise
            so_far = Ended("", spot.path, (yield Settle(chooser.path, error, note=False, carry=so_far.carry)))
    step = plan.steps[chosen]
    place = replace(spot.at(f"1.{chosen}"), active=spot.active)
    return (yield from _walk(step, place, trail, so_far))


def _relay(plan: Relay, spot: Spot, trail: Trail, so_far: Ended) -> Steps:
    """One of several, and the next one if that fails: what it has done until then stays."""
    order = list(range(len(plan.steps)))
    causes: list[str] = []
    last: Exception | None = None
    steps = list(plan.steps)
    first = _recorded(trail, inside(spot.path, "0"))
    if spot.owner is not None:
        first = _whose(steps, spot.owner, first)
    if first is None:
        question = trail.question
        assert question is not None
        given = yield Decide(lambda: plan.order(question))
        order = [*dict.fromkeys([*given, *order])]
    else:
        order = [first, *(each for each in order if each != first)]
    for tried in range(len(plan.steps)):
        known = _recorded(trail, inside(spot.path, str(tried)))
        number = order[tried] if known is None else known
        order = [*order[:tried], number, *(each for each in order[tried:] if each != number)]
        step = steps[number]
        # A conversation that was handed to the router by its name stays the router's.
        moves = spot.is_outermost and (spot.owner is None or spot.owner != plan.name)
        place = replace(spot.at(f"{tried}.{number}"), active=step.name if moves else spot.active)
        problem = _problem(trail, place.path)
        if problem is not None:  # that was before a crash
            causes.append(f"{step.name}: {problem}")
            continue
        try:
            return (yield from _walk(step, place, trail, so_far))
        except Exception as error:
            if not is_of_the_agent(error):
                raise
            causes.append(f"{step.name}: {error}")
            last = error
            so_far = Ended("", spot.path, (yield Settle(place.path, error, note=False, carry=so_far.carry)))
    if so_far.carry:
        yield Record(so_far.carry, so_far.path)
    raise RoutingError(f"no agent of {plan.name or 'the router'} could answer", causes) from last


def _whose(steps: list[Plan], owner: str, recorded: int | None) -> int | None:
    """Which of several the conversation belongs to: one of them, or somebody that it can be handed to by one of them,
    who is asked in its place."""
    for number, step in enumerate(steps):
        if step.name == owner:
            return number if recorded is None else recorded
    for number, step in enumerate(steps):
        found = step.member(owner) if isinstance(step, Settings) and step.member is not None else None
        if found is not None and recorded in (None, number):
            steps[number] = found
            return number
    return recorded


def _recorded(trail: Trail, path: str) -> int | None:
    """Which step was taken at a place whose steps are named by place and number, if the log knows."""
    for each in list(trail.legs):
        if each.startswith(path + "."):
            return int(each[len(path) + 1 :].split("/")[0].split("+")[0])
    return None


def _problem(trail: Trail, path: str) -> str | None:
    """Why what is at `path` failed, if it did and the log knows."""
    return next((work.problem for work in list(trail.legs.values()) if work.failed_at == path), None)


def is_of_the_agent(error: Exception) -> bool:
    """Whether somebody else may do better: its model failed, or could not come to an end. What is about the session,
    the budget or the store is not."""
    ours = (ProviderError, ScriptExhausted, MaxStepsExceeded, SchemaValidationError, RoutingError)
    return isinstance(error, ours) or not isinstance(error, AgentError)


def refuse_shape(plan: Plan) -> None:
    """A shape is asked of one answer."""
    if isinstance(plan, AtOnce):
        raise InvalidArgument("agents that work at the same time give several answers: ask an agent after them")
    if isinstance(plan, Choice | Relay):
        for step in plan.steps:  # any of them may answer
            refuse_shape(step)
    elif not isinstance(plan, Settings):
        refuse_shape(plan.steps[-1])
