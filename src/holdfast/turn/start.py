"""The start of a turn: with a new question, or from its events after a crash or a decision of a person.

Everything that must be refused is refused here, before the first append: a paused session, an open turn, a plan that
cannot continue the turn. The first append takes the lease, so of two processes that start a turn one wins.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.diagnostics import report
from holdfast.errors import (
    ApprovalPending,
    InvalidArgument,
    LifecycleError,
    NothingToRetry,
    SessionBusy,
    TurnCancelled,
    TurnOpen,
    TurnParked,
)
from holdfast.log.events import Draft, Event
from holdfast.log.messages import Message
from holdfast.log.view import MOVES, View, decode_view
from holdfast.plan import AgentSpec, Plan
from holdfast.schema.output import OutputShape
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store
from holdfast.stores.messages import message_draft
from holdfast.turn.agent_loop import draft_turn_interruption
from holdfast.turn.expiry import expire_requests
from holdfast.turn.flow_loop import refuse_shape
from holdfast.turn.runtime import TurnRuntime

MAX_ATTEMPTS = 5  # attempts to resume a turn whose process ended each time; then it is parked


def begin_turn(
    runtime: TurnRuntime,
    message: Message,
    metadata: Mapping[str, Any] | None = None,
    *,
    queued: Event | None = None,
    admitting: Draft | None = None,
    once: str | None = None,
    head: Head | None = None,
) -> list[Draft] | None:
    """Prepare a turn that answers `message`. Returns the events of its first append, or None if another process holds
    the session or other runs are queued before this one.

    `queued` is the event of a message that is in the log already. `admitting` is the event that brings it in the same
    append, under the idempotency key `once`. A turn that a crash left open is closed first, as interrupted.
    """
    store, log = runtime.store, runtime.log
    head = head or store.head(log)
    view = decode_view(head.view)
    if view.turn is not None and view.turn.pending and expire_requests(store, log):
        head = store.head(log)
        view = decode_view(head.view)
    _refuse_unrunnable(view, log.id)
    if queued is not None:
        is_begun = view.turn is not None and view.turn.run == runtime.run
        if is_begun or not any(seq == queued.seq for _, seq in view.queue):
            raise TurnCancelled  # another process began it, ran it or took it out of the queue
    if admitting is not None and (view.turn is not None or view.queue):
        return None
    interruption: list[Draft] = []
    if view.turn is not None:
        lease = store.lease(log)
        if lease is not None and lease.is_alive:
            return None
        abandoned = runtime.read_progress(view, head)
        interruption = draft_turn_interruption(abandoned.run, abandoned.agents.values())
    runtime.plan = plan_for(runtime.plan, view.active)
    if runtime.shape is not None:
        refuse_shape(runtime.plan)
    started: dict[str, Any] = {"agent": runtime.plan.name, "options": _options_to_store(runtime)}
    if metadata:
        started["metadata"] = dict(metadata)
    turn_started = Draft(type="turn.started", run=runtime.run, data=started)
    if admitting is not None:
        question, opening = admitting, [admitting, turn_started]
        started["question"] = head.head + 1
    elif queued is not None:
        question, opening = Draft(type=queued.type, data=queued.data), [turn_started]
        started["question"] = queued.seq
    else:
        question = message_draft(message, store.limits, run=runtime.run)
        opening = [turn_started, question]
    runtime.once_key = once
    runtime.prepare(head, view, message)
    if interruption:  # its events are history for the new turn: the view is read again after they are stored
        runtime.claim_lease(interruption, head)
        text = "an unfinished turn of session %(session_id)s is closed as interrupted"
        report(logging.INFO, text, {"session_id": log.id, "run_id": interruption[-1].run})
        try:
            head = store.head(log)
            runtime.prepare(head, decode_view(head.view), message)
        except BaseException:
            runtime.release_lease()
            raise
    message = copy.copy(message)
    runtime.progress.fold_event("turn.started", started, None)
    runtime.progress.fold_event(question.type, question.data, None, message)
    runtime.progress.root.unstored_messages.append((question, message))
    if not interruption:
        return opening
    try:
        runtime.append_events(opening, "", last=False)
    except BaseException:
        runtime.release_lease()
        raise
    return []


def resume_turn(runtime: TurnRuntime) -> bool:
    """Take the lease of the open turn, to continue it from its events. Returns False if there is no open turn.

    Raises ApprovalPending if the turn waits for a person, SessionBusy if another process works on it, and TurnParked if
    its process ended `MAX_ATTEMPTS` times.
    """
    store, log = runtime.store, runtime.log
    head = store.head(log)
    view = decode_view(head.view)
    turn = view.turn
    if turn is None:
        return False
    if view.lifecycle != "live":
        raise LifecycleError("resume a turn of", status=view.status, legal=MOVES[view.status])
    if turn.pending and expire_requests(store, log):
        return resume_turn(runtime)
    if turn.pending:
        raise ApprovalPending(log.id, sorted(turn.pending))
    lease = store.lease(log)
    if lease is not None and lease.is_alive:
        raise SessionBusy(log.id, retry_after=lease.remaining)  # that process may yet finish it
    if turn.parked or turn.attempts >= MAX_ATTEMPTS:
        if not turn.parked:
            store.append(log, [Draft(type="turn.parked", run=turn.run)], expected=head.head)
            text = "the turn of session %(session_id)s is parked: its process ended in each of %(attempt)d attempts"
            report(logging.WARNING, text, {"session_id": log.id, "run_id": turn.run, "attempt": turn.attempts})
        raise TurnParked(log.id, turn.attempts)
    runtime.progress = runtime.read_progress(view, head)
    # The agent that was asked answers, also if the conversation has moved to another agent since.
    runtime.plan = plan_for(runtime.plan, runtime.progress.root.name)
    _refuse_other_plan(runtime)
    _restore_options(runtime)
    runtime.prepare(head, view, runtime.progress.question)
    runtime.discount_usage(runtime.progress.usage)
    drafts = [Draft(type="turn.resumed", run=turn.run)]
    for progress in runtime.progress.agents.values():
        if progress.is_awaiting_reply:  # readers of the stream saw a part of a reply that was never stored
            drafts.insert(0, Draft(type="model.interrupted", run=turn.run, branch=progress.branch))
    runtime.claim_lease(drafts, head)
    text = "the turn of session %(session_id)s is resumed"
    report(logging.INFO, text, {"session_id": log.id, "run_id": turn.run, "attempt": turn.attempts + 1})
    return True


def reopen_ended_turn(store: Store, log: Log, max_steps: int | None, actor: str | None) -> bool:
    """Open the last turn of a session again, if it failed or was cancelled, so that it can be resumed. Returns False if
    it did not fail, or cannot continue."""
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1):
        raise InvalidArgument(f"max_steps={max_steps!r}: use a whole number of model calls, 1 or more")
    turn = decode_view(store.head(log).view).ended_turn
    if turn is None:
        return False
    data = {} if max_steps is None else {"max_steps": max_steps}
    try:
        store.append(log, [Draft(type="turn.reopened", run=turn.run, data=data, actor=actor)])
    except NothingToRetry:  # another process has reopened it, or started a turn, since the head was read
        return False
    return True


def plan_for(plan: Plan, owner: str | None) -> Plan:
    """Return the plan of the agent that owns the conversation, if `plan` can reach that agent by handoffs; else
    `plan`."""
    if owner is None or owner == plan.name or not isinstance(plan, AgentSpec) or plan.find_handoff_plan is None:
        return plan
    owner_plan = plan.find_handoff_plan(owner)
    if isinstance(owner_plan, AgentSpec) and owner_plan.budget is None:
        owner_plan = replace(owner_plan, budget=plan.budget)
    return owner_plan or plan


def _refuse_unrunnable(view: View, session_id: str) -> None:
    if view.lifecycle != "live":
        raise LifecycleError("run", status=view.status, legal=MOVES[view.status])
    if view.turn is not None and view.turn.waiting and not view.turn.parked:
        if view.turn.pending:
            raise ApprovalPending(session_id, sorted(view.turn.pending))
        raise TurnOpen("run")  # decided, or paused and reopened: it only needs to be resumed


def _refuse_other_plan(runtime: TurnRuntime) -> None:
    """A turn of a flow can only be continued by a flow, and a turn of one agent by one agent."""
    is_flow = any(path and not path.startswith("+") for path in runtime.progress.agents)
    is_one_agent = any(message.role == "assistant" for message in runtime.progress.root.messages)
    owner = f"this turn is the work of {runtime.progress.root.name!r}"
    if is_flow and isinstance(runtime.plan, AgentSpec):
        raise InvalidArgument(f"{owner}, which is a flow: go on with it by resume(agent=that_flow)")
    if is_one_agent and not isinstance(runtime.plan, AgentSpec):
        raise InvalidArgument(f"{owner}, which is one agent: go on with it by resume(agent=that_agent)")


def _options_to_store(runtime: TurnRuntime) -> dict[str, Any]:
    spec = runtime.plan if isinstance(runtime.plan, AgentSpec) else None
    options = {**(spec.options if spec else {}), **runtime.turn_options}
    options = {name: value for name, value in options.items() if value is not None}
    shape = runtime.shape or (spec.shape if spec else None)
    return options if shape is None else options | {"schema": shape.schema}


def _restore_options(runtime: TurnRuntime) -> None:
    """Use the options that the turn was started with, unless they are the agent's own."""
    options, plan = runtime.progress.root.options, runtime.plan
    own = plan.options if isinstance(plan, AgentSpec) else {}
    runtime.turn_options |= {
        name: value for name, value in options.items() if name != "schema" and own.get(name) != value
    }
    schema: dict[str, Any] | None = options.get("schema")
    is_own = isinstance(plan, AgentSpec) and plan.shape is not None and plan.shape.schema == schema
    if runtime.shape is None and schema is not None and not is_own:
        runtime.shape = OutputShape.from_log(schema)
