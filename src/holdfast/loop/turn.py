"""The agent loop: pure. It asks for effects and is told what came of them; it knows no store, clock, thread or model.

Perform an effect, append what came of it, ask what is still missing. Resuming after a crash is that sentence started
again from the events of the turn: `Work` is their fold, and there is no recovery code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import MaxStepsExceeded, SchemaValidationError
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.messages import Limits, Message, ToolCall, ToolResult, from_data
from holdfast.loop.output import REPAIR, BadOutput, OutputShape
from holdfast.models.base import Done

MAX_REPAIRS = 3
UNKNOWN = (
    "The outcome of this call is unknown: the process that ran it ended before a result was recorded. "
    "It may or may not have taken effect. Check before doing it again."
)
NOT_RUN = "This call was not run: the turn was interrupted before it started."
INTERRUPTED = "[This turn was interrupted: the process that ran it ended before it was finished.]"


@dataclass(slots=True)
class Call:
    """A call of the newest reply, and how far it is."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    intended: bool = False  # tool.called is stored: it may have started
    answered: bool = False
    requested: bool = False  # a person was asked
    decision: bool | None = None
    reason: str | None = None
    payload: Any = None
    fresh: bool = False  # intended in this process: if it has no result yet, it did not run yet

    @property
    def undecided(self) -> bool:
        return self.requested and self.decision is None


@dataclass(slots=True)
class Work:
    """What is known of a turn: the fold of its events."""

    run: str
    own: list[Message] = field(default_factory=list)  # question, replies and results, in order; the prompt's end
    shown: list[Message] = field(default_factory=list)  # the same without rejected attempts
    calls: dict[str, Call] = field(default_factory=dict)  # of the newest reply
    steps: int = 0
    repairs: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    asking: bool = False  # the model was called and has not replied
    ended: bool = False

    def take(self, type: str, data: dict[str, Any], message: Message | None = None) -> None:
        """Fold one event of this turn, stored or about to be."""
        if message is not None:
            self.own.append(message)
            if not data.get("rejected"):
                self.shown.append(message)
        if type in ("model.called", "model.replied", "model.interrupted"):
            self.asking = type == "model.called"
        if type == "turn.started":
            self.options = data.get("options", {})
        elif type == "model.replied":
            self.steps += 1
            self.stop_reason = data.get("stop_reason")
            for name, amount in data.get("usage", {}).items():
                self.usage[name] = self.usage.get(name, 0) + amount
            if data.get("rejected"):
                self.repairs += 1
            self.calls = {}
            for wanted in message.tool_calls if message else ():
                self.calls[wanted.id] = Call(wanted.id, wanted.name, wanted.arguments)
        elif type == "tool.called":
            self.calls[data["call_id"]].intended = True
        elif type == "tool.returned":
            self.calls[data["call_id"]].answered = True
        elif type == "approval.requested":
            call = self.calls[data["call_id"]]
            call.requested, call.decision, call.intended = True, None, False
            call.payload, call.reason = data.get("payload"), data.get("reason")
        elif type == "approval.decided":
            call = self.calls[data["call_id"]]
            call.decision, call.reason = data["approved"], data.get("reason")
        elif type in ("turn.finished", "turn.failed", "turn.cancelled", "turn.interrupted"):
            self.ended = True

    @property
    def unanswered(self) -> list[Call]:
        return [call for call in self.calls.values() if not call.answered]

    @property
    def question(self) -> Message | None:
        return self.shown[0] if self.shown else None

    @property
    def answer(self) -> Message | None:
        """The final reply, if the model has had its say."""
        last = self.shown[-1] if self.shown else None
        return last if last is not None and last.role == "assistant" and not last.tool_calls else None


# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Append these events, in one commit; with `last` the lease is given back in the same one."""

    drafts: list[Draft]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Proceed:
    """Append these events and the word that the model is called, unless the budget is used up (then they are appended
    and the turn fails) or the session was paused meanwhile (then nothing is). Answered with whether it was done."""

    drafts: list[Draft]
    called: Draft


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the model; answered with its `Done`."""

    step: int


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run tools at the same time; answered with `Ran`."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Ran:
    """Results in the order in which they came: those already stored, and the last, which waits for the next append."""

    stored: list[Draft]
    left: list[Draft]


Effect = Record | Proceed | Ask | RunCalls
Turn = Generator[Effect, Any, None]


# -- the loop ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the loop must know of the agent, as plain questions."""

    run: str
    author: str | None
    limits: Limits
    max_steps: int
    shape: OutputShape | None
    model_called: Callable[[Work], Draft]
    refusal: Callable[[Call], str | None]  # why a call cannot run at all: unknown tool, bad arguments
    needs_approval: Callable[[Call], bool]
    is_idempotent: Callable[[Call], bool]
    finished: Callable[[Work], list[Draft]]  # what goes into the append that finishes the turn


def turn(work: Work, rules: Rules, opening: list[Draft]) -> Turn:
    """One turn. `opening` is what begins or resumes it; `work` has folded it already."""
    carry = opening
    while True:
        if work.unanswered:
            carry += _prepared(work, rules)
            if carry:
                yield Record(carry)
                carry = []
            ready = [call for call in work.unanswered if call.intended and call.fresh]
            if ready:
                ran: Ran = yield RunCalls(ready)
                for draft in (*ran.stored, *ran.left):
                    _take(work, draft)
                carry = ran.left
            elif work.unanswered:  # nothing to do but wait for a person
                carry.append(_take(work, Draft(type="turn.waiting", run=rules.run)))
                yield Record(carry, last=True)
                return
            continue
        if work.answer is not None:
            carry += [_take(work, draft) for draft in rules.finished(work)]
            yield Record(carry, last=True)
            return
        if work.steps >= rules.max_steps:
            if carry:
                yield Record(carry)
            raise MaxStepsExceeded(work.steps)
        if not (yield Proceed(carry, rules.model_called(work))):  # paused: the turn stays as it is
            carry.append(_take(work, Draft(type="turn.waiting", run=rules.run, data={"reason": "paused"})))
            yield Record(carry, last=True)
            return
        done: Done = yield Ask(work.steps + 1)
        carry = _replied(work, rules, done)
        if work.repairs > MAX_REPAIRS:
            yield Record(carry)
            problem = str(carry[0].data["rejected"])
            raise SchemaValidationError(problem, text=done.message.text, tries=work.repairs)


def _take(work: Work, draft: Draft) -> Draft:
    data = draft.data if draft.type == "message.added" else draft.data.get("message")
    message = None
    if draft.type in ("message.added", "model.replied", "tool.returned") and data:
        message = from_data(data, lambda digest: draft.blobs[digest], author=draft.author)
    work.take(draft.type, draft.data, message)
    return draft


def _replied(work: Work, rules: Rules, done: Done) -> list[Draft]:
    """The reply, and in the same append what follows from it."""
    stored, blobs = done.message.to_data(rules.limits)
    data: dict[str, Any] = {
        "message": stored,
        "usage": {name: amount for name, amount in done.usage.to_dict().items() if amount} | {"steps": 1},
        "stop_reason": done.stop_reason,
        "provider": done.provider,
        "model": done.model,
    }
    if done.response_id:
        data["response_id"] = done.response_id
    replied = Draft(type="model.replied", run=rules.run, author=rules.author, data=data, blobs=blobs)
    if done.message.tool_calls or rules.shape is None:
        return [_take(work, replied)]
    try:
        rules.shape.read(done.message.text)
        return [_take(work, replied)]
    except BadOutput as problem:
        data["rejected"] = str(problem)
        schema = codec.encode(rules.shape.schema, room=codec.WRAPPING).decode()
        again = Message.user(REPAIR.format(problem=problem, schema=schema)).to_data(rules.limits)[0] | {
            "rejected": True
        }
        return [_take(work, replied), _take(work, Draft(type="message.added", run=rules.run, data=again))]


def _prepared(work: Work, rules: Rules) -> list[Draft]:
    """Everything about the open calls that can be settled without running them, and the intents of those that will."""
    drafts: list[Draft] = []
    for call in work.unanswered:
        refusal = None if call.intended else rules.refusal(call)
        if call.intended and not call.fresh:
            drafts += _after_a_crash(call, rules)
        elif refusal is not None:
            drafts.append(returned(rules.run, call, refusal, is_error=True))
        elif call.undecided:
            continue
        elif call.decision is False:
            reason = f": {call.reason}" if call.reason else ""
            drafts.append(returned(rules.run, call, f"A person denied this call{reason}", is_error=True))
        elif call.decision is None and rules.needs_approval(call):
            drafts.append(_request(rules.run, call))
        elif not call.intended:
            call.fresh = True
            drafts.append(_intent(rules.run, call))
    for draft in drafts:
        _take(work, draft)
    return drafts


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
) -> Draft:
    """The result of a call. `effect` says that it ran and must not be repeated."""
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
    return Draft(type="tool.returned", run=run, author=call.name, data=data, blobs=blobs or {})


def settlement(work: Work) -> list[Draft]:
    """What closes a turn that a crash cut and nobody resumes: its messages stay, with what is not known said aloud."""
    drafts = [
        returned(work.run, call, UNKNOWN if call.intended else NOT_RUN, is_error=True, unknown=call.intended)
        for call in work.unanswered
    ]
    note = {"role": "assistant", "text": INTERRUPTED, "metadata": {"interrupted": True}}
    return [*drafts, Draft(type="message.added", run=work.run, data=note), Draft(type="turn.interrupted", run=work.run)]


def loose_calls(work: Work) -> list[Draft]:
    """What a turn that fails or is cancelled must not hide: calls that were started and have no result."""
    return [
        returned(work.run, call, UNKNOWN, is_error=True, effect=True, unknown=True)
        for call in work.unanswered
        if call.intended
    ]


def tool_calls_of(work: Work) -> list[ToolCall]:
    """Every call that the turn made."""
    return [call for message in work.shown for call in message.tool_calls]
