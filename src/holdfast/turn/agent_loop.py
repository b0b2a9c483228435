"""The agent loop: pure. It asks for effects and is told what came of them; it knows no store, clock, thread or model.

Perform an effect, append what came of it, ask what is still missing. Resuming after a crash is that sentence started
again from the events of the turn: `Work` is their fold, and there is no recovery code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import MaxStepsExceeded, SchemaValidationError
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.messages import Limits, Message, ToolCall, ToolResult
from holdfast.models.base import Done, unique_id
from holdfast.schema.output import REPAIR, BadOutput, OutputShape
from holdfast.turn.effects import Ask, Ended, Proceed, Ran, Record, RunCalls, Steps
from holdfast.turn.work import Call, Work

MAX_REPAIRS = 3
UNKNOWN = (
    "The outcome of this call is unknown: the process that ran it ended before a result was recorded. "
    "It may or may not have taken effect. Check before doing it again."
)
NOT_RUN = "This call was not run: the turn was interrupted before it started."
INTERRUPTED = "[This turn was interrupted: the process that ran it ended before it was finished.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a call says to the loop itself, which answers it: no tool runs."""

    text: str
    is_error: bool = False
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the loop must know of an agent, as plain questions."""

    run: str
    path: str
    author: str | None
    limits: Limits
    max_steps: int
    shape: OutputShape | None
    aside: bool  # its replies are not part of the conversation
    model_called: Callable[[Work], Draft]
    refusal: Callable[[Call], str | None]  # why a call cannot run at all: unknown tool, bad arguments
    signal: Callable[[Call], Signal | None]  # handing over, leaving a loop
    needs_approval: Callable[[Call], bool]
    is_idempotent: Callable[[Call], bool]
    renamed: Callable[[Message], Message]  # a reply, with ids for its calls that the turn has not used
    steps: Callable[[], int]  # of the whole turn so far
    closing: Callable[[Work], list[Draft]]  # what goes into the append that has the answer


def leg(work: Work, rules: Rules, carry: list[Draft]) -> Steps:
    """One agent's part in a turn. `carry` is what is to be appended before anything else; `work` has folded it."""
    while True:
        if work.unanswered:
            carry += _prepared(work, rules)
            if carry:
                yield Record(carry, rules.path)
                carry = []
            ready = [call for call in work.unanswered if call.intended and call.fresh]
            if ready:
                ran: Ran = yield RunCalls(ready, rules.path)
                for draft in (*ran.stored, *ran.left):
                    work.add(draft)
                carry = ran.left
            elif work.unanswered:  # nothing to do but wait for a person
                return Ended("waiting", rules.path, carry)
            continue
        if work.handoff is not None:
            return Ended("handed", rules.path, carry)
        if work.left:
            return Ended("left", rules.path, carry)
        if work.answer is not None:
            return Ended("answered", rules.path, [*carry, *map(work.add, rules.closing(work))])
        if work.steps >= rules.max_steps:
            if carry:
                yield Record(carry, rules.path)
            raise MaxStepsExceeded(work.steps)
        if not (yield Proceed(carry, rules.model_called(work), rules.path)):  # paused: the turn stays as it is
            return Ended("paused", rules.path, carry)
        done: Done = yield Ask(rules.steps() + 1, rules.path)
        carry = _replied(work, rules, done)
        if work.repairs > MAX_REPAIRS:
            yield Record(carry, rules.path)
            problem = str(carry[0].data["rejected"])
            raise SchemaValidationError(problem, text=done.message.text, tries=work.repairs)


def renamed(message: Message, used: set[str]) -> Message:
    """The reply, with other ids for calls whose ids the turn has used before: a person, and a retry, name a call by
    its id."""
    mine = [call.id for call in message.tool_calls]
    if len({*mine}) == len(mine) and not used.intersection(mine):
        return message
    parts = [
        ToolCall(id=unique_id(part.id, used), name=part.name, arguments=part.arguments)
        if isinstance(part, ToolCall)
        else part
        for part in message.parts
    ]
    return Message(message.role, parts, author=message._author, metadata=message.metadata)


def _replied(work: Work, rules: Rules, done: Done) -> list[Draft]:
    """The reply, and in the same append what follows from it."""
    said = rules.renamed(done.message) if done.message.tool_calls else done.message
    stored, blobs = said.to_data(rules.limits)
    data: dict[str, Any] = {
        "message": stored,
        "usage": {name: amount for name, amount in done.usage.to_dict().items() if amount} | {"steps": 1},
        "stop_reason": done.stop_reason,
        "provider": done.provider,
        "model": done.model,
    }
    if done.response_id:
        data["response_id"] = done.response_id
    if rules.aside:
        data["aside"] = True
    replied = Draft(type="model.replied", run=rules.run, author=rules.author, data=data, blobs=blobs)
    if done.message.tool_calls or rules.shape is None:
        return [work.add(replied)]
    try:
        rules.shape.read(done.message.text)
        return [work.add(replied)]
    except BadOutput as problem:
        data["rejected"] = str(problem)
        schema = codec.encode(rules.shape.schema, room=codec.WRAPPING).decode()
        again = Message.user(REPAIR.format(problem=problem, schema=schema)).to_data(rules.limits)[0] | {
            "rejected": True
        }
        return [work.add(replied), work.add(Draft(type="message.added", run=rules.run, data=again))]


def _prepared(work: Work, rules: Rules) -> list[Draft]:
    """Everything about the open calls that can be settled without running them, and the intents of those that will."""
    drafts: list[Draft] = []
    for call in work.unanswered:
        drafts += map(work.add, _prepared_call(call, rules))  # one by one: only the first of two handoffs counts
    return drafts


def _prepared_call(call: Call, rules: Rules) -> list[Draft]:
    refusal = None if call.intended else rules.refusal(call)
    if call.intended and not call.fresh:
        return _after_a_crash(call, rules)
    if refusal is not None:
        return [returned(rules.run, call, refusal, is_error=True)]
    signal = None if call.intended else rules.signal(call)
    if signal is not None:
        return [returned(rules.run, call, signal.text, is_error=signal.is_error, more=signal.data)]
    if call.undecided:
        return []
    if call.decision is False:
        reason = f": {call.reason}" if call.reason else ""
        return [returned(rules.run, call, f"A person denied this call{reason}", is_error=True)]
    if call.decision is None and rules.needs_approval(call):
        return [_request(rules.run, call)]
    if call.intended:
        return []
    call.fresh = True
    return [_intent(rules.run, call)]


def _after_a_crash(call: Call, rules: Rules) -> list[Draft]:
    """A call that may have run: again if it says so, else the model, or a person, is told that nobody knows."""
    if rules.is_idempotent(call):
        call.fresh = True
        return []
    if rules.needs_approval(call):
        return [_request(rules.run, call, reason="its outcome is unknown after a crash; approving runs it again")]
    return [returned(rules.run, call, UNKNOWN, is_error=True, effect=True, unknown=True)]


def _intent(run: str, call: Call) -> Draft:
    data = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return Draft(type="tool.called", run=run, data=data)


def _request(run: str, call: Call, *, reason: str | None = None, payload: object = None) -> Draft:
    data: dict[str, Any] = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    if reason is not None:
        data["reason"] = reason
    if payload is not None:
        data["payload"] = payload
    return Draft(type="approval.requested", run=run, data=data)


def interrupted(run: str, call: Call, payload: object) -> Draft:
    """What an Interrupt raised in a tool leaves behind."""
    return _request(run, call, payload=payload)


def returned(
    run: str,
    call: Call,
    content: str,
    *,
    is_error: bool = False,
    effect: bool = False,
    unknown: bool = False,
    blobs: dict[str, bytes] | None = None,
    more: dict[str, Any] | None = None,
) -> Draft:
    """The result of a call. `effect` says that it ran and must not be repeated; `more` is what the loop reads."""
    result = ToolResult(call_id=call.id, content=content, is_error=is_error)
    part: dict[str, Any] = {"type": "tool_result", "call_id": result.call_id, "content": result.content}
    if is_error:
        part["is_error"] = True
    data: dict[str, Any] = {"call_id": call.id, "name": call.name, "message": {"role": "tool", "parts": [part]}}
    if effect:
        data["effect"] = True
    if unknown:
        data["unknown"] = True
    if blobs:
        data["whole"] = next(iter(blobs))
    data |= more or {}
    return Draft(type="tool.returned", run=run, author=call.name, data=data, blobs=blobs or {})


def settlement(run: str, legs: Iterable[Work]) -> list[Draft]:
    """What closes a turn that a crash cut and nobody resumes: its messages stay, with what is not known said aloud."""
    drafts = [
        _stamped(returned(run, call, UNKNOWN if call.intended else NOT_RUN, is_error=True, unknown=call.intended), work)
        for work in legs
        for call in work.unanswered
    ]
    note = {"role": "assistant", "text": INTERRUPTED, "metadata": {"interrupted": True}}
    return [*drafts, Draft(type="message.added", run=run, data=note), Draft(type="turn.interrupted", run=run)]


def loose_calls(work: Work) -> list[Draft]:
    """What an agent that fails or is cancelled must not hide: calls that were started and have no result."""
    return [
        _stamped(returned(work.run, call, UNKNOWN, is_error=True, effect=True, unknown=True), work)
        for call in work.unanswered
        if call.intended and not call.stored
    ]


def not_run(work: Work) -> list[Draft]:
    """Answers for calls of an agent that is over which nobody will run: not even a person is waited for."""
    return [
        _stamped(returned(work.run, call, NOT_RUN, is_error=True), work)
        for call in work.unanswered
        if not call.intended
    ]


def _stamped(draft: Draft, work: Work) -> Draft:
    return draft if work.branch is None else replace(draft, branch=work.branch)
