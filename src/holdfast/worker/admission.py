"""Admission of runs: a message becomes a queued run of a session's log, and a run is cancelled by an append.

An admitted run belongs to no process: the process that holds the lease of the session runs it. Cancelling takes the
lease over, so that the fence refuses every later append of the process that ran the turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.errors import ApprovalPending, Conflict, LifecycleError, SessionBusy, StaleEpoch, TurnOpen
from holdfast.log.events import Draft
from holdfast.log.messages import Message
from holdfast.log.view import MOVES, View, decode_view
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import Claim, encode_holder, lease_seconds
from holdfast.turn.agent_loop import draft_unknown_results
from holdfast.turn.run_outcome import read_turn_events, read_turn_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRun:
    """A run that the log holds."""

    run_id: str
    seq: int
    repeated: bool  # whether the same key had admitted it before


def run_id_of_key(log: Log, once: str) -> str:
    """Return the id of the run that a key admits. It is computed from the key, so that a retry names the same run."""
    return "R" + sha256(f"{log.uid}\n{once}".encode()).hexdigest()[:31].upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A message for an agent, and how to run it."""

    message: Message
    agent: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    on_busy: str = "enqueue"
    once: str | None = None  # the key that admits the message at most once
    actor: str | None = None

    def draft(self, store: Store, log: Log) -> Draft:
        """Return the `message.queued` event of this request."""
        run = store.clock.new_id() if self.once is None else run_id_of_key(log, self.once)
        stored, blobs = self.message.to_data(store.limits)
        data: dict[str, Any] = {"message": stored, "run": run, "options": dict(self.options)}
        if self.agent is not None:
            data["agent"] = self.agent
        if self.metadata:
            data["metadata"] = dict(self.metadata)
        if self.on_busy != "enqueue":
            data["on_busy"] = self.on_busy
        author = self.message.named_author
        return Draft(type="message.queued", run=run, author=author, actor=self.actor, data=data, blobs=blobs)


def admit_message(store: Store, log: Log, run_request: RunRequest) -> AdmittedRun:
    """Append a message to the queue of a session; raise SessionBusy if it may not wait and a turn is open."""
    draft = run_request.draft(store, log)
    try:
        done = store.append(log, [draft], once=run_request.once)
    except TurnOpen:
        lease = store.lease(log)
        raise SessionBusy(log.id, retry_after=1.0 if lease is None else max(1.0, lease.remaining)) from None
    crashpoint("admitted")
    return AdmittedRun(run_id=draft.run or "", seq=done.first, repeated=done.repeated)


def check_can_run(view: View, session_id: str) -> None:
    """Raise if a session takes no message: it is not live, or its turn waits for a person."""
    if view.lifecycle != "live":
        raise LifecycleError("run", status=view.status, legal=MOVES[view.status])
    if view.turn is not None and view.turn.waiting and not view.turn.parked:
        if view.turn.pending:
            raise ApprovalPending(session_id, sorted(view.turn.pending))
        raise TurnOpen("run")


def cancel_run(store: Store, log: Log, run: str, *, actor: str | None = None) -> bool:
    """End a run, queued or running, in any process; return False if it is over already.

    Cancelling a running turn takes the lease over in the same append, so that the fence refuses every later append of
    the process that ran it.
    """
    while True:
        head = store.head(log)
        view = decode_view(head.view)
        drafts: list[Draft] = []
        fence: dict[str, Any] = {}
        if view.turn is not None and view.turn.run == run:
            events = read_turn_events(store, log, run, view.turn.first, head.head)
            ended = Draft(type="turn.cancelled", run=run, actor=actor, data={"usage": {}})
            agents = read_turn_progress(store, log, run, events).agents.values()
            drafts = [*(draft for progress in agents for draft in draft_unknown_results(progress)), ended]
            claim = Claim(holder=encode_holder(store.clock.new_id()), seconds=lease_seconds())
            fence = {"epoch": head.epoch, "claim": claim, "release": True}
        elif any(entry[0] == run for entry in view.queue):
            drafts = [Draft(type="run.dropped", run=run, actor=actor)]
        else:
            return False
        try:
            store.append(log, drafts, expected=head.head, **fence)
            return True
        except (Conflict, StaleEpoch):
            continue  # the turn has appended since the head was read: read it again
