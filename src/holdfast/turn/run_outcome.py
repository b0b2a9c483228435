"""The outcome of a run, read from the log. So any process on any machine can read it, not only the one that ran it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import AgentError, TurnFailed
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.view import TURN_ENDS, View, decode_view
from holdfast.models.provider_errors import redact_secrets
from holdfast.schema.output import OutputShape
from holdfast.stores.base import Log, Store
from holdfast.stores.messages import message_of
from holdfast.turn.progress import TurnProgress
from holdfast.turn.response import Response, response_of

FINAL_STATUSES = frozenset(("finished", "failed", "cancelled", "interrupted"))
_STATUS_OF_END = {"turn.finished": "finished", "turn.failed": "failed", "turn.cancelled": "cancelled"}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The status of a run (queued, running, waiting, parked, finished, failed, cancelled or interrupted), with its
    response or error."""

    run_id: str
    status: str
    agent: str | None = None
    created_at: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    error: dict[str, Any] | None = None  # code, text, type and details of the error of a failed run
    response: Response | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        return self.status in FINAL_STATUSES


def read_turn_events(store: Store, log: Log, run: str, first: int, last: int) -> list[Event]:
    """Return the events of one turn from its `turn.started` on, and before them the queued message that it answers.
    Decisions about its calls are included, summaries that it wrote to make room are not."""
    events = [Event(row) for row in store.read(log, first, last) if row.type != "summary.added"]
    question = events[0].data.get("question") if events and events[0].type == "turn.started" else None
    question_events = [] if not question else [store.event(log, question)]
    return [*question_events, *(event for event in events if event.run == run or event.type == "approval.decided")]


def read_turn_progress(store: Store, log: Log, run: str, events: Iterable[Event]) -> TurnProgress:
    """Return the fold of a turn's events. Reads the messages from the store."""
    turn = TurnProgress(run)
    for event in events:
        message = None
        if event.type in MESSAGE_TYPES:
            (row,) = store.read(log, event.seq, event.seq)
            message = message_of(store, log, row)
        turn.fold_event(event.type, event.data, event.branch, message)
    return turn


def outcome_of(store: Store, log: Log, run: str) -> Outcome | None:
    """Return the outcome of a run, with its response if it is finished or waiting; None if the session has no such
    run."""
    admitted = store.lookup(log, "run/" + run)
    first = _find_start(store, log, run) if admitted is None else admitted.seq
    if first is None:
        return None
    head = store.head(log)
    events = list(_read_run_events(store, log, run, first, head.head))
    if not events:
        return None
    outcome = _fold_outcome(run, events, decode_view(head.view))
    if outcome.status in ("finished", "waiting") and not any(event.erased for event in events):
        turn = read_turn_progress(store, log, run, events)
        schema = turn.root.options.get("schema")
        turn.root.shape = None if schema is None else OutputShape.from_log(schema)
        outcome.response = response_of(turn)
    return outcome


def error_data(error: BaseException, *, detached: bool = False) -> dict[str, Any]:
    """Return an error as the data of an event: without secrets, and with text and numbers only.

    The text of an unexpected error (no AgentError) may hold internals of the program. With `detached` readers of the
    log are not its author, so the data names only the type of such an error.
    """
    if detached and not isinstance(error, AgentError):
        error = hide_error(error)
    data: dict[str, Any] = {
        "code": "error",
        "text": redact_secrets(sanitize_text(str(error))),
        "type": type(error).__name__,
    }
    if isinstance(error, AgentError):
        data["code"] = error.code
        details = {name: _redact_value(value) for name, value in error.details.items()}
        if details:
            data["details"] = details
    return data


def hide_error(error: BaseException) -> TurnFailed:
    """Return the error that callers of a server get for an unexpected error in a turn: it names only the type."""
    return TurnFailed(f"the turn broke ({type(error).__name__}): the server's log says more")


def _redact_value(value: Any) -> Any:  # noqa: ANN401 - text, a number, or a list of them
    if isinstance(value, list):
        return [_redact_value(each) for each in value]
    return redact_secrets(sanitize_text(value)) if isinstance(value, str) else value


def sanitize_text(text: str) -> str:
    """Return the text as valid UTF-8, cut to 20,000 characters."""
    return text.encode(errors="replace").decode()[:20_000]


def recent_runs(store: Store, log: Log, limit: int) -> list[Outcome]:
    """Return up to `limit` of the newest runs, newest first, without their responses."""
    head = store.head(log)
    view = decode_view(head.view)
    begun = store.read(log, limit=limit * 2, types=["message.queued", "turn.started"], reverse=True)
    if not begun:
        return []
    types = [
        "message.queued",
        "turn.started",
        "turn.waiting",
        "turn.resumed",
        "turn.reopened",
        "run.dropped",
        *TURN_ENDS,
    ]
    runs: dict[str, list[Event]] = {}
    for row in store.read(log, begun[-1].seq, head.head, types=types):
        event = Event(row)
        if event.run is not None:
            runs.setdefault(event.run, []).append(event)
    return [_fold_outcome(run, events, view) for run, events in list(runs.items())[::-1][:limit]]


def _read_run_events(store: Store, log: Log, run: str, first: int, last: int) -> Iterator[Event]:
    """Yield the events of a run up to its end, decisions about its calls included."""
    begun = False  # before the run begins, decisions are about another turn
    for row in store.walk(log, first, last):
        if row.type == "summary.added":
            continue
        event = Event(row)
        begun = begun or (event.type == "turn.started" and event.run == run)
        if event.run == run or (begun and event.type == "approval.decided"):
            yield event
            is_end = event.run == run and (event.type in TURN_ENDS or event.type == "run.dropped")
            if is_end and not _is_reopened(store, log, run, event.seq, last):
                return


def _is_reopened(store: Store, log: Log, run: str, end: int, last: int) -> bool:
    """Whether a run was reopened after it ended. Only the last turn of a session can be, before another one starts."""
    rows = store.read(log, end + 1, last, limit=1, types=["turn.started", "turn.reopened"])
    return bool(rows) and rows[0].type == "turn.reopened" and Event(rows[0]).run == run


def _find_start(store: Store, log: Log, run: str) -> int | None:
    """Return the seq of the `turn.started` of a run that was never queued; None if there is none."""
    last = store.head(log).head
    while rows := store.read(log, 1, last, limit=100, types=["turn.started"], reverse=True):
        for row in rows:
            if Event(row).run == run:
                return row.seq
        last = rows[-1].seq - 1
    return None


def _fold_outcome(run: str, events: list[Event], view: View) -> Outcome:
    outcome = Outcome(run_id=run, status="queued", created_at=events[0].at)
    for event in events:
        if event.type == "message.queued":
            outcome.agent = event.data.get("agent")
        elif event.type in ("turn.started", "turn.resumed", "turn.reopened"):
            outcome.status, outcome.ended_at, outcome.error = "running", None, None
            outcome.started_at = outcome.started_at or event.at
            outcome.agent = outcome.agent or event.data.get("agent")
        elif event.type == "turn.waiting":
            outcome.status = "waiting"
        elif event.type in TURN_ENDS:
            outcome.status, outcome.ended_at = _STATUS_OF_END.get(event.type, "interrupted"), event.at
            outcome.error = event.data.get("error")
        elif event.type == "run.dropped":
            outcome.error = event.data.get("error")
            outcome.status, outcome.ended_at = "failed" if outcome.error else "cancelled", event.at
    is_open = view.turn is not None and view.turn.run == run
    if is_open and view.turn is not None and view.turn.parked:
        outcome.status = "parked"
    elif not outcome.over and not is_open and all(entry[0] != run for entry in view.queue):
        outcome.status = "interrupted"  # it was open or queued in the original of this import or fork
    return outcome
