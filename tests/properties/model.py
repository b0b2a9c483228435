"""What a session must mean, written from the promises and not from the code: plain tuples and dicts, copied whole.

It knows nothing of ranges, snapshots, names or rows, and imports nothing of holdfast: it would share its mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LEGAL = {  # status -> the moves that are legal
    "open": {"paused", "closed", "archived"},
    "active": {"paused", "closed", "archived"},
    "paused": {"resumed", "closed", "archived"},
    "closed": {"reopened", "archived"},
    "archived": {"reopened"},
}
# What a closed or archived session does not take, except from a turn that still has its lease.
CONTENT = {"said", "cleared", "rewound", "restored", "set", "unset", "noted"}
KEPT, UNDONE = ("turn.finished", "turn.interrupted"), ("turn.failed", "turn.cancelled")


class Refused(Exception):
    """The promises forbid it; `code` is that of the error a user must get."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True, slots=True)
class Said:
    """A message: where it stands in the log, and what it says."""

    seq: int
    role: str
    text: str
    content: str  # canonical, without the time


@dataclass(frozen=True, slots=True)
class Running:
    """A turn that has not ended."""

    run: str
    first: int
    own: tuple[Said, ...] = ()
    outside: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Everything that a session is after one event."""

    said: tuple[Said, ...] = ()
    turn: Running | None = None
    life: str = "live"
    begun: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)  # title, system, metadata
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def visible(self) -> tuple[Said, ...]:
        return self.said if self.turn is None else self.said + self.turn.outside

    @property
    def status(self) -> str:
        return self.life if self.life != "live" else "active" if self.begun else "open"


@dataclass(frozen=True, slots=True)
class Happened:
    """An event, as the model sees it."""

    kind: str
    run: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class Told:
    """One session's log: a point for each event, and what guards the next append."""

    def __init__(self, user_id: str | None, app_name: str | None, parent: Told | None = None) -> None:
        self.user_id, self.app_name, self.parent = user_id, app_name, parent
        self.points = [Point()]
        self.epoch = 0
        self.leased = self.deleted = False
        self.keys: dict[str, tuple[str, int]] = {}

    @property
    def now(self) -> Point:
        return self.points[-1]

    @property
    def head(self) -> int:
        return len(self.points) - 1

    def settled(self, at: int) -> int:
        """A point between turns: `at` inside one means before it."""
        if not 1 <= at <= self.head:
            raise Refused("invalid_argument")
        turn = self.points[at].turn
        return at if turn is None else turn.first - 1

    def tell(
        self,
        *happened: Happened,
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
        is_content = any(one.kind in CONTENT and one.run is None for one in happened)
        if epoch is None and self.now.life in ("closed", "archived") and is_content:
            raise Refused("lifecycle")
        points = self.points[:]
        for one in happened:
            points.append(_after(points, one))
        self.points = points
        if claim:
            self.epoch, self.leased = self.epoch + 1, True
        if release:
            self.leased = False
        if once is not None:
            self.keys[once[0]] = (once[1], self.head)
        return self.head

    def forked(self, at: int) -> Told:
        fork = Told(self.user_id, self.app_name, self)
        fork.points = self.points[: at + 1]
        fork.tell(Happened("forked"))
        return fork

    def imported(self) -> Told:
        copy = Told(self.user_id, self.app_name)
        copy.points = self.points[:]
        copy.tell(Happened("imported"))
        return copy


def _after(points: list[Point], what: Happened) -> Point:
    point, turn, seq = points[-1], points[-1].turn, len(points)
    if turn is not None and what.run == turn.run and what.kind in _IN_TURN:
        return _IN_TURN[what.kind](point, turn, seq, what)
    if what.kind in _RULES:
        return _RULES[what.kind](points, seq, what)
    return point


def _said(seq: int, what: Happened) -> Said:
    return Said(seq, what.data["role"], what.data["text"], what.data["content"])


def _own(point: Point, turn: Running, seq: int, what: Happened) -> Point:
    usage = dict(point.usage)
    for name, amount in what.data.get("usage", {}).items():
        usage[name] = usage.get(name, 0) + amount
    if not what.data.get("rejected"):
        turn = replace(turn, own=(*turn.own, _said(seq, what)))
    return replace(point, turn=turn, usage=usage)


def _ended(point: Point, turn: Running, seq: int, what: Happened) -> Point:
    # What others said meanwhile stands after the turn; a failed or cancelled one is in the log only.
    own = turn.own if what.kind in KEPT else ()
    return replace(point, said=point.said + own + turn.outside, turn=None)


_IN_TURN: dict[str, Callable[[Point, Running, int, Happened], Point]] = {
    "said": _own,
    **dict.fromkeys((*KEPT, *UNDONE), _ended),
}


def _started(points: list[Point], seq: int, what: Happened) -> Point:
    point = points[-1]
    if point.turn is not None:
        raise Refused("turn_open")
    if point.life != "live":
        raise Refused("lifecycle")
    return replace(point, turn=Running(what.run or "", seq), begun=True)


def _added(points: list[Point], seq: int, what: Happened) -> Point:
    point, said = points[-1], _said(seq, what)
    if point.turn is None:
        return replace(point, said=(*point.said, said))
    return replace(point, turn=replace(point.turn, outside=(*point.turn.outside, said)))


def _cleared(points: list[Point], seq: int, what: Happened) -> Point:
    point = points[-1]
    return replace(point, said=(), turn=None if point.turn is None else replace(point.turn, outside=()))


def _rewound(points: list[Point], seq: int, what: Happened) -> Point:
    if points[-1].turn is not None:
        raise Refused("turn_open")
    then = points[what.data["to"]]
    return replace(points[-1], said=then.visible, state=then.state)


def _restored(points: list[Point], seq: int, what: Happened) -> Point:
    if points[-1].turn is not None:
        raise Refused("turn_open")
    return replace(points[-1], said=(), state=what.data["state"], fields=what.data["fields"])


def _moved(points: list[Point], seq: int, what: Happened) -> Point:
    if what.kind not in LEGAL[points[-1].status]:
        raise Refused("lifecycle")
    return replace(points[-1], life="live" if what.kind in ("resumed", "reopened") else what.kind)


def _set(points: list[Point], seq: int, what: Happened) -> Point:
    return replace(points[-1], state={**points[-1].state, what.data["name"]: what.data["value"]})


def _unset(points: list[Point], seq: int, what: Happened) -> Point:
    return replace(points[-1], state={k: v for k, v in points[-1].state.items() if k != what.data["name"]})


def _noted(points: list[Point], seq: int, what: Happened) -> Point:
    facts = {k: v for k, v in points[-1].facts.items() if k != what.data["id"]}
    if what.data["fact"] is not None:
        facts[what.data["id"]] = what.data["fact"]
    return replace(points[-1], facts=facts)


def _changed(points: list[Point], seq: int, what: Happened) -> Point:
    return replace(points[-1], fields={**points[-1].fields, **what.data})


def _forked(points: list[Point], seq: int, what: Happened) -> Point:
    return replace(points[-1], life="live", usage={})


_RULES: dict[str, Callable[[list[Point], int, Happened], Point]] = {
    "turn.started": _started,
    "said": _added,
    "cleared": _cleared,
    "rewound": _rewound,
    "restored": _restored,
    **dict.fromkeys(("paused", "resumed", "closed", "archived", "reopened"), _moved),
    "set": _set,
    "unset": _unset,
    "noted": _noted,
    "changed": _changed,
    "forked": _forked,
}


class Shelf:
    """All sessions of one tenant, and the state that users and apps share."""

    def __init__(self) -> None:
        self.names: dict[str, Told] = {}
        self.made: list[str] = []  # live names, oldest first
        self.scopes: dict[tuple[str, str], dict[str, Any]] = {}

    def put(self, name: str, told: Told) -> Told:
        if name in self.names:
            raise Refused("session_exists")
        self.names[name] = told
        self.made.append(name)
        return told

    def delete(self, name: str) -> bool:
        told = self.names.get(name)
        if told is None:
            return False
        if told.leased:
            raise Refused("session_busy")
        told.deleted = True
        del self.names[name]
        self.made.remove(name)
        return True

    def forks_of(self, told: Told) -> list[str]:
        return [name for name in self.made if self.names[name].parent is told]

    def name_of(self, told: Told | None) -> str | None:
        return next((name for name, found in self.names.items() if found is told), None)
