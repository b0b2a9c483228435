"""The loop of one agent: call the model and run its tools until the model answers. Pure.

The loop yields effects and receives their results. It knows no store, clock, thread or model. Its next step depends
only on `AgentProgress`, the fold of the agent's events. So a turn that is resumed after a crash runs the same loop over
the stored events. The only recovery code is `_recover_call`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import BadOutput, MaxStepsExceeded, SchemaValidationError
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.messages import Limits, Message, ToolCall, ToolResult
from holdfast.log.repair import unique_id
from holdfast.models.base import Done
from holdfast.policy.approvers import ALWAYS, Rule, approval_rule
from holdfast.schema.output import REPAIR_PROMPT, OutputShape
from holdfast.turn.effects import (
    AppendEvents,
    BeginModelCall,
    CallModel,
    CallTools,
    CallUserFunction,
    Effect,
    Ending,
    Steps,
    ToolResults,
)
from holdfast.turn.progress import AgentProgress, CallProgress

MAX_REPAIRS = 3
OUTCOME_UNKNOWN = (
    "The outcome of this call is unknown: the process that ran it ended before a result was recorded. "
    "It may or may not have taken effect. Check before doing it again."
)
NOT_RUN = "This call was not run: the turn was interrupted before it started."
INTERRUPTED = "[This turn was interrupted: the process that ran it ended before it was finished.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """The result of a call that controls the loop (a handoff, the exit from a loop). No tool runs for such a call."""

    text: str
    is_error: bool = False
    data: dict[str, Any]  # fields that `tool.returned` gets in addition


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRules:
    """The settings of an agent that the loop needs, and the functions that answer the loop's questions."""

    run: str
    path: str
    author: str | None
    limits: Limits
    max_steps: int
    shape: OutputShape | None
    aside: bool  # the agent's replies are not part of the conversation
    draft_model_call: Callable[[AgentProgress], Draft]
    refusal_reason: Callable[[CallProgress], str | None]  # why a call cannot run: unknown tool, bad arguments
    control_result: Callable[[CallProgress], ControlResult | None]  # result of a handoff or of an exit from a loop
    approval_check: Callable[[CallProgress], object]  # `approval` of the tool, or the user's function for it
    approval_expiry: Callable[[CallProgress], int | None]  # when a request for approval that is made now expires
    find_askers: Callable[[], list[str]]  # the names of those who asked for this turn; reads the store
    is_idempotent: Callable[[CallProgress], bool]
    assign_call_ids: Callable[[Message], Message]  # replaces call ids of a reply that the turn has used before
    count_steps: Callable[[], int]  # steps of the whole turn so far, all agents
    draft_outputs: Callable[[AgentProgress], list[Draft]]  # events that belong in the append of the answer
    extract: Callable[[], Any] | None  # the user's function that reads values out of the answer
    draft_extracted: Callable[[Any], list[Draft]]  # events for the values that `extract` returned


def agent_loop(progress: AgentProgress, rules: AgentRules, carry: list[Draft]) -> Steps:
    """Run one agent until it answers, hands over, leaves its loop, waits for a person, or the session is paused.

    `carry` holds the events for the next append; `progress` has folded them already. Returns an `Ending` with the
    events that are still to be appended. Raises MaxStepsExceeded, and SchemaValidationError after `MAX_REPAIRS`
    repairs.
    """
    while True:
        if progress.open_calls:
            carry += yield from _prepare_calls(progress, rules)
            if carry:
                yield AppendEvents(carry, rules.path)
                carry = []
            ready = [call for call in progress.open_calls if call.is_intended and call.is_intended_here]
            if ready:
                ran: ToolResults = yield CallTools(ready, rules.path)
                for draft in (*ran.stored, *ran.unstored):
                    progress.fold_draft(draft)
                carry = ran.unstored
            elif progress.open_calls:  # every open call waits for a person
                return Ending("waiting", rules.path, carry)
            continue
        if progress.handoff is not None:
            return Ending("handed", rules.path, carry)
        if progress.has_left_loop:
            return Ending("left", rules.path, carry)
        if progress.answer is not None:
            carry += map(progress.fold_draft, rules.draft_outputs(progress))
            if rules.extract is not None:
                values = yield CallUserFunction(rules.extract)
                carry += map(progress.fold_draft, rules.draft_extracted(values))
            return Ending("answered", rules.path, carry)
        if progress.steps >= rules.max_steps:
            if carry:
                yield AppendEvents(carry, rules.path)
            raise MaxStepsExceeded(progress.steps)
        if not (yield BeginModelCall(carry, rules.draft_model_call(progress), rules.path)):
            return Ending("paused", rules.path, carry)  # the turn stays open as it is
        done: Done = yield CallModel(rules.count_steps() + 1, rules.path)
        carry = _draft_reply(progress, rules, done)
        if progress.repairs > MAX_REPAIRS:
            yield AppendEvents(carry, rules.path)
            problem = str(carry[0].data["rejected"])
            raise SchemaValidationError(problem, text=done.message.text, tries=progress.repairs)


def rename_used_call_ids(message: Message, used: set[str]) -> Message:
    """Return the reply with new ids for its calls if one of the ids occurs twice or was used before in the turn.

    Approvals and idempotency keys name a call by its id, so an id must be unique in a turn.
    """
    new_ids = [call.id for call in message.tool_calls]
    if len({*new_ids}) == len(new_ids) and not used.intersection(new_ids):
        return message
    parts = [
        ToolCall(id=unique_id(part.id, used), name=part.name, arguments=part.arguments)
        if isinstance(part, ToolCall)
        else part
        for part in message.parts
    ]
    return Message(message.role, parts, author=message.named_author, metadata=message.metadata)


def _draft_reply(progress: AgentProgress, rules: AgentRules, done: Done) -> list[Draft]:
    """Return the events for a reply: `model.replied`, and the request for a repair if the reply has not the required
    shape. Both belong in one append."""
    message = rules.assign_call_ids(done.message) if done.message.tool_calls else done.message
    stored, blobs = message.to_data(rules.limits)
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
        return [progress.fold_draft(replied)]
    try:
        rules.shape.read(done.message.text)
        return [progress.fold_draft(replied)]
    except BadOutput as problem:
        data["rejected"] = str(problem)
        schema = codec.encode(rules.shape.schema, room=codec.WRAPPING_DEPTH).decode()
        repair = Message.user(REPAIR_PROMPT.format(problem=problem, schema=schema)).to_data(rules.limits)[0]
        repair |= {"rejected": True}
        return [
            progress.fold_draft(replied),
            progress.fold_draft(Draft(type="message.added", run=rules.run, data=repair)),
        ]


def _prepare_calls(progress: AgentProgress, rules: AgentRules) -> Generator[Effect, Any, list[Draft]]:
    """Return the events of the open calls that need no tool: refusals, handoffs, denials, requests for approval, and
    `tool.called` for each call that is ready to run."""
    drafts: list[Draft] = []
    for call in progress.open_calls:
        # Fold each call before the next one is prepared: only the first of two handoffs counts.
        drafts += map(progress.fold_draft, (yield from _prepare_call(call, rules)))
    return drafts


def _prepare_call(call: CallProgress, rules: AgentRules) -> Generator[Effect, Any, list[Draft]]:
    refusal = None if call.is_intended else rules.refusal_reason(call)
    if call.is_intended and not call.is_intended_here:
        return (yield from _recover_call(call, rules))
    if refusal is not None:
        return [draft_tool_result(rules.run, call, refusal, is_error=True)]
    control = None if call.is_intended else rules.control_result(call)
    if control is not None:
        return [draft_tool_result(rules.run, call, control.text, is_error=control.is_error, more=control.data)]
    if call.awaits_decision:
        return []
    if call.decision is False:
        reason = f": {call.reason}" if call.reason else ""
        return [draft_tool_result(rules.run, call, f"A person denied this call{reason}", is_error=True)]
    if call.decision is None and (rule := (yield from _find_approval_rule(call, rules))):
        return [(yield from _request_approval(call, rules, rule))]
    if call.is_intended:
        return []
    call.is_intended_here = True
    return [_draft_tool_call(rules.run, call)]


def _recover_call(call: CallProgress, rules: AgentRules) -> Generator[Effect, Any, list[Draft]]:
    """Decide about a call that a crashed process may have run.

    An idempotent tool runs again. Otherwise a person decides, if the tool needs approval; if not, the model gets a
    result that says that the outcome is unknown.
    """
    if rules.is_idempotent(call):
        call.is_intended_here = True
        return []
    if rule := (yield from _find_approval_rule(call, rules)):
        reason = "its outcome is unknown after a crash; approving runs it again"
        return [(yield from _request_approval(call, rules, rule, reason))]
    return [draft_tool_result(rules.run, call, OUTCOME_UNKNOWN, is_error=True, effect=True, unknown=True)]


def _find_approval_rule(call: CallProgress, rules: AgentRules) -> Generator[Effect, Any, Rule | None]:
    """Return who may approve a call; None if no person must. The user's function that decides this is called as an
    effect, so that it never blocks an event loop."""
    check = rules.approval_check(call)
    return approval_rule((yield CallUserFunction(check)) if callable(check) else check)


def _request_approval(
    call: CallProgress, rules: AgentRules, rule: Rule, reason: str | None = None
) -> Generator[Effect, Any, Draft]:
    """Return the request for a decision. If not every actor may decide, it holds the rule and those who asked."""
    draft = _draft_approval_request(rules.run, call, reason=reason, expires_at=rules.approval_expiry(call))
    if rule == ALWAYS:
        return draft
    asked_by = yield CallUserFunction(rules.find_askers)
    return replace(draft, data=draft.data | {"approvers": rule, "asked_by": asked_by})


def _draft_tool_call(run: str, call: CallProgress) -> Draft:
    data = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return Draft(type="tool.called", run=run, data=data)


def _draft_approval_request(
    run: str,
    call: CallProgress,
    *,
    reason: str | None = None,
    payload: object = None,
    expires_at: int | None = None,
) -> Draft:
    data: dict[str, Any] = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    if reason is not None:
        data["reason"] = reason
    if payload is not None:
        data["payload"] = payload
    if expires_at is not None:
        data["expires_at"] = expires_at
    return Draft(type="approval.requested", run=run, data=data)


def draft_interrupt(run: str, call: CallProgress, payload: object) -> Draft:
    """Return the request for a person's answer that an `Interrupt` raised in a tool becomes."""
    draft = _draft_approval_request(run, call, payload=payload)
    return replace(draft, data=draft.data | {"interrupt": True})


def draft_tool_result(
    run: str,
    call: CallProgress,
    content: str,
    *,
    is_error: bool = False,
    effect: bool = False,
    unknown: bool = False,
    blobs: dict[str, bytes] | None = None,
    media: Sequence[dict[str, Any]] = (),
    more: dict[str, Any] | None = None,
) -> Draft:
    """Return the `tool.returned` event of a call.

    `effect` marks a call that ran and must not be repeated, `unknown` one whose outcome was lost. `media` are the
    images and files of the result, as the log stores them, and `blobs` their bytes. `more` adds fields to the event,
    such as `handoff`, `usage` or `whole`, the blob with the whole result if `content` is clipped.
    """
    result = ToolResult(call_id=call.id, content=content, is_error=is_error)
    part: dict[str, Any] = {"type": "tool_result", "call_id": result.call_id, "content": result.content}
    if is_error:
        part["is_error"] = True
    data: dict[str, Any] = {"call_id": call.id, "name": call.name, "message": {"role": "tool", "parts": [part, *media]}}
    if effect:
        data["effect"] = True
    if unknown:
        data["unknown"] = True
    data |= more or {}
    return Draft(type="tool.returned", run=run, author=call.name, data=data, blobs=blobs or {})


def draft_turn_interruption(run: str, agents: Iterable[AgentProgress]) -> list[Draft]:
    """Return the events that close a turn that a crash interrupted and that is not resumed. Its messages stay, and each
    open call gets a result: unknown if the call may have run, not run otherwise."""
    drafts = [
        _set_branch(
            draft_tool_result(
                run, call, OUTCOME_UNKNOWN if call.is_intended else NOT_RUN, is_error=True, unknown=call.is_intended
            ),
            progress,
        )
        for progress in agents
        for call in progress.open_calls
    ]
    note = {"role": "assistant", "text": INTERRUPTED, "metadata": {"interrupted": True}}
    return [*drafts, Draft(type="message.added", run=run, data=note), Draft(type="turn.interrupted", run=run)]


def draft_unknown_results(progress: AgentProgress) -> list[Draft]:
    """Return "unknown" results for the calls of a failed or cancelled agent that started and have no result."""
    return [
        _set_branch(
            draft_tool_result(progress.run, call, OUTCOME_UNKNOWN, is_error=True, effect=True, unknown=True), progress
        )
        for call in progress.open_calls
        if call.is_intended and not call.is_result_stored
    ]


def draft_not_run_results(progress: AgentProgress) -> list[Draft]:
    """Return "not run" results for the calls of a stopped agent that never started, also those that wait for a
    person."""
    return [
        _set_branch(draft_tool_result(progress.run, call, NOT_RUN, is_error=True), progress)
        for call in progress.open_calls
        if not call.is_intended
    ]


def _set_branch(draft: Draft, progress: AgentProgress) -> Draft:
    return draft if progress.branch is None else replace(draft, branch=progress.branch)
