"""What came of a run, read from the log: so anybody can tell, on any machine, whoever ran it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import AgentError, TurnFailed
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.view import TURN_ENDS, View, view_of
from holdfast.models.provider_errors import redacted
from holdfast.schema.output import OutputShape
from holdfast.stores.base import Log, Store
from holdfast.stores.documents import message_of
from holdfast.turn.progress import Trail
from holdfast.turn.response import Response, response_of

OVER = frozenset(("finished", "failed", "cancelled", "interrupted"))
_ENDS = {"turn.finished": "finished", "turn.failed": "failed", "turn.cancelled": "cancelled"}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How far a run is: queued, running, waiting, parked, finished, failed, cancelled or interrupted."""

    run_id: str
    status: str
    agent: str | None = None
    created_at: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    error: dict[str, Any] | None = None  # code, text and details, of a run that failed
    response: Response | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        return self.status in OVER


def read_trail(store: Store, log: Log, run: str, events: Iterable[Event]) -> Trail:
    """The fold of a turn's events."""
    trail = Trail(run)
    for event in events:
        message = None
        if event.type in MESSAGE_TYPES:
            (row,) = store.read(log, event.seq, event.seq)
            message = message_of(store, log, row)
        trail.take(event.type, event.data, event.branch, message)
    return trail


def outcome_of(store: Store, log: Log, run: str) -> Outcome | None:
    """How far a run is, with its response once there is one; None if this session never had such a run."""
    admitted = store.lookup(log, "run/" + run)
    first = _started(store, log, run) if admitted is None else admitted.seq
    if first is None:
        return None
    head = store.head(log)
    events = list(_own(store, log, run, first, head.head))
    if not events:
        return None
    found = _told(run, events, view_of(head.view))
    if found.status in ("finished", "waiting") and not any(event.erased for event in events):
        trail = read_trail(store, log, run, events)
        schema = trail.root.options.get("schema")
        trail.root.shape = None if schema is None else OutputShape(schema)
        found.response = response_of(trail)
    return found


def error_data(error: BaseException, *, detached: bool = False) -> dict[str, Any]:
    """An error as an event keeps it: no secrets, and nothing that is not text or a number. What nobody expected has a
    text that is not ours: where others than its author read the log, it says only what it was."""
    if detached and not isinstance(error, AgentError):
        error = broken(error)
    found: dict[str, Any] = {"code": "error", "text": redacted(clean(str(error))), "type": type(error).__name__}
    if isinstance(error, AgentError):
        found["code"] = error.code
        details = {name: _safe(value) for name, value in error.details.items()}
        if details:
            found["details"] = details
    return found


def broken(error: BaseException) -> TurnFailed:
    """What those who asked are told of a turn that broke."""
    return TurnFailed(f"the turn broke ({type(error).__name__}): the server's log says more")


def _safe(value: Any) -> Any:  # noqa: ANN401 - text, a number, or a list of them
    if isinstance(value, list):
        return [_safe(each) for each in value]
    return redacted(clean(value)) if isinstance(value, str) else value


def clean(text: str) -> str:
    return text.encode(errors="replace").decode()[:20_000]


def recent_runs(store: Store, log: Log, limit: int) -> list[Outcome]:
    """The newest runs, newest first, without their responses."""
    head = store.head(log)
    view = view_of(head.view)
    begun = store.read(log, limit=limit * 2, types=["message.queued", "turn.started"], reverse=True)
    if not begun:
        return []
    types = ["message.queued", "turn.started", "turn.waiting", "turn.resumed", "run.dropped", *TURN_ENDS]
    runs: dict[str, list[Event]] = {}
    for row in store.read(log, begun[-1].seq, head.head, types=types):
        event = Event(row)
        if event.run is not None:
            runs.setdefault(event.run, []).append(event)
    return [_told(run, events, view) for run, events in list(runs.items())[::-1][:limit]]


def _own(store: Store, log: Log, run: str, first: int, last: int) -> Iterator[Event]:
    """The events of a run up to its end, decisions about it included."""
    begun = False  # before that, decisions are about another turn
    for row in store.walk(log, first, last):
        if row.type == "summary.added":
            continue
        event = Event(row)
        begun = begun or (event.type == "turn.started" and event.run == run)
        if event.run == run or (begun and event.type == "approval.decided"):
            yield event
            if event.run == run and (event.type in TURN_ENDS or event.type == "run.dropped"):
                return


def _started(store: Store, log: Log, run: str) -> int | None:
    """Where a turn that was never queued began."""
    last = store.head(log).head
    while rows := store.read(log, 1, last, limit=100, types=["turn.started"], reverse=True):
        for row in rows:
            if Event(row).run == run:
                return row.seq
        last = rows[-1].seq - 1
    return None


def _told(run: str, events: list[Event], view: View) -> Outcome:
    found = Outcome(run_id=run, status="queued", created_at=events[0].at)
    for event in events:
        if event.type == "message.queued":
            found.agent = event.data.get("agent")
        elif event.type in ("turn.started", "turn.resumed"):
            found.status = "running"
            found.started_at = found.started_at or event.at
            found.agent = found.agent or event.data.get("agent")
        elif event.type == "turn.waiting":
            found.status = "waiting"
        elif event.type in TURN_ENDS:
            found.status, found.ended_at = _ENDS.get(event.type, "interrupted"), event.at
            found.error = event.data.get("error")
        elif event.type == "run.dropped":
            found.error = event.data.get("error")
            found.status, found.ended_at = "failed" if found.error else "cancelled", event.at
    if view.turn is not None and view.turn.run == run and view.turn.parked:
        found.status = "parked"
    return found
