"""What a session must mean, written from the promises and not from the code: plain tuples and dicts, copied whole.

It knows nothing of ranges, snapshots, names or rows, and imports nothing of holdfast: it would share its mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LEGAL_MOVES = {  # status -> the moves that are legal
    "open": {"paused", "closed", "archived"},
    "active": {"paused", "closed", "archived"},
    "paused": {"resumed", "closed", "archived"},
    "closed": {"reopened", "archived"},
    "archived": {"reopened"},
}
# What a closed or archived session does not take, except from a turn that still has its lease.
CONTENT = {"message", "cleared", "rewound", "restored", "set", "unset", "noted"}
KEPT_ENDS, UNDONE_ENDS = ("turn.finished", "turn.interrupted"), ("turn.failed", "turn.cancelled")


class Refused(Exception):
    """The promises forbid it; `code` is that of the error a user must get."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True, slots=True)
class ExpectedMessage:
    """A message: where it stands in the log, and what it says."""

    seq: int
    role: str
    text: str
    content: str  # canonical, without the time


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn that has not ended."""

    run: str
    first: int
    messages: tuple[ExpectedMessage, ...] = ()
    outside_messages: tuple[ExpectedMessage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPoint:
    """Everything that a session is after one event."""

    messages: tuple[ExpectedMessage, ...] = ()
    turn: OpenTurn | None = None
    lifecycle: str = "live"
    has_begun: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)  # title, system, metadata
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def visible(self) -> tuple[ExpectedMessage, ...]:
        return self.messages if self.turn is None else self.messages + self.turn.outside_messages

    @property
    def status(self) -> str:
        return self.lifecycle if self.lifecycle != "live" else "active" if self.has_begun else "open"


@dataclass(frozen=True, slots=True)
class ExpectedEvent:
    """An event, as the model sees it."""

    kind: str
    run: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class ExpectedLog:
    """One session's log: a point for each event, and what guards the next append."""

    def __init__(self, user_id: str | None, app_name: str | None, parent: ExpectedLog | None = None) -> None:
        self.user_id, self.app_name, self.parent = user_id, app_name, parent
        self.points = [SessionPoint()]
        self.epoch = 0
        self.leased = self.deleted = False
        self.keys: dict[str, tuple[str, int]] = {}

    @property
    def latest(self) -> SessionPoint:
        return self.points[-1]

    @property
    def head(self) -> int:
        return len(self.points) - 1

    def find_settled_point(self, at: int) -> int:
        """A point between turns: `at` inside one means before it."""
        if not 1 <= at <= self.head:
            raise Refused("invalid_argument")
        turn = self.points[at].turn
        return at if turn is None else turn.first - 1

    def append(
        self,
        *events: ExpectedEvent,
        once: tuple[str, str] | None = None,
        epoch: int | None = None,
        expected: int | None = None,
        claim: bool = False,
        release: bool = False,
    ) -> int:
        """Append, or refuse in the promised order: key, fence, lease, head, rules. Returns the last number."""
        if self.deleted:
            raise Refused("session_not_found")
        if once is not None and once[0] in self.keys:
            content, last = self.keys[once[0]]
            if content != once[1]:
                raise Refused("key_reused")
            return last
        if epoch is not None and epoch != self.epoch:
            raise Refused("stale_epoch")
        if claim and self.leased and epoch is None:
            raise Refused("session_busy")
        if expected is not None and expected != self.head:
            raise Refused("conflict")
        is_content = any(event.kind in CONTENT and event.run is None for event in events)
        if epoch is None and self.latest.lifecycle in ("closed", "archived") and is_content:
            raise Refused("lifecycle")
        points = self.points[:]
        for event in events:
            points.append(_apply_event(points, event))
        self.points = points
        if claim:
            self.epoch, self.leased = self.epoch + 1, True
        if release:
            self.leased = False
        if once is not None:
            self.keys[once[0]] = (once[1], self.head)
        return self.head

    def make_fork(self, at: int) -> ExpectedLog:
        fork = ExpectedLog(self.user_id, self.app_name, self)
        fork.points = self.points[: at + 1]
        fork.append(ExpectedEvent("forked"))
        return fork

    def make_import(self) -> ExpectedLog:
        copy = ExpectedLog(self.user_id, self.app_name)
        copy.points = self.points[:]
        copy.append(ExpectedEvent("imported"))
        return copy


def _apply_event(points: list[SessionPoint], event: ExpectedEvent) -> SessionPoint:
    point, turn, seq = points[-1], points[-1].turn, len(points)
    if turn is not None and event.run == turn.run and event.kind in _IN_TURN:
        return _IN_TURN[event.kind](point, turn, seq, event)
    if event.kind in _RULES:
        return _RULES[event.kind](points, seq, event)
    return point


def _make_message(seq: int, event: ExpectedEvent) -> ExpectedMessage:
    return ExpectedMessage(seq, event.data["role"], event.data["text"], event.data["content"])


def _apply_own_message(point: SessionPoint, turn: OpenTurn, seq: int, event: ExpectedEvent) -> SessionPoint:
    usage = dict(point.usage)
    for name, amount in event.data.get("usage", {}).items():
        usage[name] = usage.get(name, 0) + amount
    if not event.data.get("rejected"):
        turn = replace(turn, messages=(*turn.messages, _make_message(seq, event)))
    return replace(point, turn=turn, usage=usage)


def _apply_end(point: SessionPoint, turn: OpenTurn, seq: int, event: ExpectedEvent) -> SessionPoint:
    # Messages added during the turn stand after it; a failed or cancelled turn is in the log only.
    own = turn.messages if event.kind in KEPT_ENDS else ()
    return replace(point, messages=point.messages + own + turn.outside_messages, turn=None)


_IN_TURN: dict[str, Callable[[SessionPoint, OpenTurn, int, ExpectedEvent], SessionPoint]] = {
    "message": _apply_own_message,
    **dict.fromkeys((*KEPT_ENDS, *UNDONE_ENDS), _apply_end),
}


def _apply_start(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    point = points[-1]
    if point.turn is not None:
        raise Refused("turn_open")
    if point.lifecycle != "live":
        raise Refused("lifecycle")
    return replace(point, turn=OpenTurn(event.run or "", seq), has_begun=True)


def _apply_message(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    point, message = points[-1], _make_message(seq, event)
    if point.turn is None:
        return replace(point, messages=(*point.messages, message))
    return replace(point, turn=replace(point.turn, outside_messages=(*point.turn.outside_messages, message)))


def _apply_clear(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    point = points[-1]
    return replace(point, messages=(), turn=None if point.turn is None else replace(point.turn, outside_messages=()))


def _apply_rewind(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    if points[-1].turn is not None:
        raise Refused("turn_open")
    then = points[event.data["to"]]
    return replace(points[-1], messages=then.visible, state=then.state)


def _apply_restore(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    if points[-1].turn is not None:
        raise Refused("turn_open")
    return replace(points[-1], messages=(), state=event.data["state"], fields=event.data["fields"])


def _apply_status(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    if event.kind not in LEGAL_MOVES[points[-1].status]:
        raise Refused("lifecycle")
    return replace(points[-1], lifecycle="live" if event.kind in ("resumed", "reopened") else event.kind)


def _apply_set(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    return replace(points[-1], state={**points[-1].state, event.data["name"]: event.data["value"]})


def _apply_unset(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    return replace(points[-1], state={k: v for k, v in points[-1].state.items() if k != event.data["name"]})


def _apply_fact(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    facts = {k: v for k, v in points[-1].facts.items() if k != event.data["id"]}
    if event.data["fact"] is not None:
        facts[event.data["id"]] = event.data["fact"]
    return replace(points[-1], facts=facts)


def _apply_fields(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    return replace(points[-1], fields={**points[-1].fields, **event.data})


def _apply_fork(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    return replace(points[-1], lifecycle="live", usage={})


def _apply_import(points: list[SessionPoint], seq: int, event: ExpectedEvent) -> SessionPoint:
    """An open turn of the original ends as one that was interrupted: its messages stay."""
    point = points[-1]
    if point.turn is None:
        return point
    return replace(point, messages=point.messages + point.turn.messages + point.turn.outside_messages, turn=None)


_RULES: dict[str, Callable[[list[SessionPoint], int, ExpectedEvent], SessionPoint]] = {
    "turn.started": _apply_start,
    "message": _apply_message,
    "cleared": _apply_clear,
    "rewound": _apply_rewind,
    "restored": _apply_restore,
    **dict.fromkeys(("paused", "resumed", "closed", "archived", "reopened"), _apply_status),
    "set": _apply_set,
    "unset": _apply_unset,
    "noted": _apply_fact,
    "changed": _apply_fields,
    "forked": _apply_fork,
    "imported": _apply_import,
}


class ExpectedTenant:
    """All sessions of one tenant, and the state that users and apps share."""

    def __init__(self) -> None:
        self.names: dict[str, ExpectedLog] = {}
        self.live_names: list[str] = []  # live names, oldest first
        self.scopes: dict[tuple[str, str], dict[str, Any]] = {}

    def add_log(self, name: str, log: ExpectedLog) -> ExpectedLog:
        if name in self.names:
            raise Refused("session_exists")
        self.names[name] = log
        self.live_names.append(name)
        return log

    def delete(self, name: str) -> bool:
        log = self.names.get(name)
        if log is None:
            return False
        if log.leased:
            raise Refused("session_busy")
        log.deleted = True
        del self.names[name]
        self.live_names.remove(name)
        return True

    def forks_of(self, log: ExpectedLog) -> list[str]:
        return [name for name in self.live_names if self.names[name].parent is log]

    def name_of(self, log: ExpectedLog | None) -> str | None:
        return next((name for name, found in self.names.items() if found is log), None)
