"""The view: what a log means now, without any text.

It holds which ranges of events are the messages, the open turn and its calls, the lifecycle and the usage. Stores keep
it beside the head and move it in the same transaction, so opening a session folds nothing; it can always be rebuilt
from the events, and a test does so. Rules that hold for every writer (legal moves, one turn at a time) are checked
here, inside the append.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from holdfast.errors import LifecycleError, NothingPending, NothingToRetry, QueueFull, TurnOpen, ViewChanged
from holdfast.log import codec
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.flow_paths import is_within, path_sort_key
from holdfast.log.ranges import Ranges, append_range, append_seq, subtract_ranges
from holdfast.log.times import days_to_microseconds

# Events of these types change no view unless they belong to a turn, or bring a message while one is open.
VIEW_NEUTRAL_TYPES = frozenset(
    (
        "entity.created",
        "fact.added",
        "fact.removed",
        "fact.updated",
        "memory.forgotten",
        "memory.ingested",
        "memory.stored",
        "message.added",
        "session.changed",
        "session.created",
        "state.deleted",
        "state.set",
    )
)

MOVES: dict[str, dict[str, str]] = {  # status -> legal move -> the event that records it
    "open": {"pause": "session.paused", "close": "session.closed", "archive": "session.archived"},
    "active": {"pause": "session.paused", "close": "session.closed", "archive": "session.archived"},
    "waiting": {"pause": "session.paused", "close": "session.closed", "archive": "session.archived"},
    "paused": {"resume": "session.resumed", "close": "session.closed", "archive": "session.archived"},
    "closed": {"reopen": "session.reopened", "archive": "session.archived"},
    "archived": {"reopen": "session.reopened"},
    "erased": {},
}
_LIFECYCLE_EVENTS = {
    "session.paused": ("pause", "paused"),
    "session.resumed": ("resume", "live"),
    "session.closed": ("close", "closed"),
    "session.archived": ("archive", "archived"),
    "session.reopened": ("reopen", "live"),
}


ENDED = ("closed", "archived", "erased")
# What a closed or archived session refuses, with the words of the error. Titles, metadata, retention and holds go on.
REFUSED_WHEN_ENDED = {
    "agent.assigned": "assign an agent to",
    "fact.added": "add a fact to",
    "fact.removed": "remove a fact of",
    "fact.updated": "change a fact of",
    "message.added": "add a message to",
    "state.deleted": "change the state of",
    "state.set": "change the state of",
    "summary.added": "prune",
    "view.cleared": "clear",
    "view.compacted": "prune",
    "view.pruned": "prune",
    "view.restored": "overwrite",
    "view.rewound": "rewind",
    "view.unpruned": "undo a prune of",
}

MAX_QUEUE = 1000  # runs that wait for their turn; a server may set a lower limit
MAX_CUTS = 32  # prunes and compactions that can be undone; older ones stay as they are
TURN_ENDS = ("turn.finished", "turn.failed", "turn.cancelled", "turn.interrupted")
# Events of an agent at work: parallel agents inside of that agent have ended. Waiting for a person, resuming and
# compaction are not among them.
BRANCH_ENDING_TYPES = frozenset(
    (
        *(type for type in MESSAGE_TYPES if type != "summary.added"),
        "agent.started",
        "agent.finished",
        "agent.failed",
        "loop.ended",
        "model.called",
        *TURN_ENDS,
    )
)


def changes_view(type: str, run: str | None) -> bool:
    """Whether an event can change the view of a session that has no open turn."""
    return run is not None or type not in VIEW_NEUTRAL_TYPES


@dataclass(slots=True, kw_only=True)
class Turn:
    """A turn that has started and not ended: the work left to do."""

    run: str
    first: int
    own_messages: Ranges = field(default_factory=list)  # its messages
    # Messages that other writers added during the turn: they stand after it.
    outside_messages: Ranges = field(default_factory=list)
    mixed: bool = False  # between its events there are messages that are not its own, or that are not shown
    calls: dict[str, list[Any]] = field(default_factory=dict)  # call id -> [seq of the intent, tool name]
    effects: list[int] = field(default_factory=list)  # results of calls that must not be repeated
    pending: dict[str, int] = field(default_factory=dict)  # call id -> the request that a person has not decided yet
    waiting: bool = False
    parked: bool = False
    attempts: int = 0  # how often it was taken up again after its process had gone
    question: int = 0  # the queued message that it answers; 0: it brought its own
    branches: dict[str, Ranges] = field(default_factory=dict)  # messages of agents that work at the same time
    active: str | None = None  # who goes on with the conversation, if this turn moved it

    def merge_branches(self, branch: str | None) -> None:
        """Something happens in `branch` (None: in no branch): those that ran inside of it are over, and what they said
        stands in their order, not in the order in which it came."""
        inner = [each for each in self.branches if branch is None or (each != branch and is_within(each, branch))]
        for each in sorted(inner, key=path_sort_key):
            for first, last in self.branches.pop(each):
                append_range(self.own_messages if branch is None else self.branches.setdefault(branch, []), first, last)

    def replace_message(self, old: int, new: int) -> None:
        """Show the message of event `new` in the place of that of event `old`."""
        self.mixed = True
        for ranges in (self.own_messages, *self.branches.values()):
            for place, (first, last) in enumerate(ranges):
                if first <= old <= last:
                    before, after = [[first, old - 1]] if first < old else [], [[old + 1, last]] if old < last else []
                    ranges[place : place + 1] = [*before, [new, new], *after]
                    return

    def to_json(self) -> list[Any]:
        found = [getattr(self, name) for name in _TURN]
        while found[-1] in ({}, None):  # what few turns have is not written for the others
            found.pop()
        return found


_TURN = tuple(Turn.__dataclass_fields__)


@dataclass(slots=True, kw_only=True)
class View:
    """The fold of a log. `apply` moves it by one event."""

    ranges: Ranges = field(default_factory=lambda: [[1, 0]])
    turn: Turn | None = None
    lifecycle: str = "live"
    has_started: bool = False
    turns: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    # Effects of failed turns that the next prompt must name.
    unreported_effects: list[int] = field(default_factory=list)
    edition: int = 0  # the last event that changed the view otherwise than by adding to its end
    cuts: list[int] = field(default_factory=list)  # the newest prunes and compactions that hold, for an undo
    held: int = 0  # the event of the legal hold that holds
    failed: bool = False  # the last turn failed
    released: bool = False  # a person said that what is unfinished here may go
    immutable: bool = False
    ttl: int | None = None  # microseconds after the last activity; None: for ever
    retention: int = 0  # the event that says how long the session is kept
    queue: list[list[Any]] = field(default_factory=list)  # [run, its message.queued] of what is to be run, in order
    # Tokens of the last model call: estimated, and as reported.
    last_call_tokens: list[int] = field(default_factory=list)
    active: str | None = None  # the agent to whom the conversation was handed, or who answers it of several
    ended_turn: Turn | None = None  # the last turn, if it failed or was cancelled: it can be reopened
    unverified: int = 0  # the last event of an import: up to here, times, authors and actors are claims of an export

    @property
    def status(self) -> str:
        if self.lifecycle != "live":
            return self.lifecycle
        if self.turn is not None and self.turn.waiting:
            return "waiting"
        return "active" if self.has_started else "open"

    @property
    def is_restricted(self) -> bool:
        """Whether an append must read this view also for events that do not change it: a turn is open, so messages go
        behind it, or the session has ended and takes nothing more."""
        return self.turn is not None or self.lifecycle in ENDED

    @property
    def visible(self) -> Ranges:
        """Where the messages are: an open turn's own are not among them yet."""
        if self.turn is None:
            return self.ranges
        return self.ranges + self.turn.outside_messages

    @property
    def review_reason(self) -> str | None:
        """Why a person should look at this session before it goes, if one should."""
        if self.released:
            return None
        if self.turn is not None:
            return "parked" if self.turn.parked else "waiting" if self.turn.waiting else "unfinished"
        return "failed" if self.failed else None

    def apply(self, seq: int, type: str, run: str | None, data: dict[str, Any], branch: str | None = None) -> None:
        turn = self.turn
        if self.lifecycle == "erased" and type != "session.imported":
            raise LifecycleError("write to", status="erased", legal=())
        if turn is not None and run == turn.run:
            self._apply_turn(turn, seq, type, data, branch)
        elif type == "turn.reopened":
            self._reopen_turn(seq, run)
        elif type == "turn.started":
            if turn is not None:
                raise TurnOpen("start a turn")
            if self.lifecycle != "live":
                raise LifecycleError("run", status=self.status, legal=MOVES[self.status])
            question = data.get("question", 0)
            own = [[question, question]] if question else []
            self.turn, self.has_started = Turn(run=run or "", first=seq, question=question, own_messages=own), True
            self.released, self.ended_turn = False, None
            self._close_last(seq - 1)
        elif type == "message.queued":
            self._enqueue(seq, run or "", data)
        elif type == "run.dropped":
            self._dequeue(run)
        elif type == "summary.added":  # the compaction that follows gives it its place
            self._add_usage(data)
            if turn is not None:
                turn.mixed = True
        elif type in MESSAGE_TYPES and turn is not None:
            append_seq(turn.outside_messages, seq)
            turn.mixed = True
        elif type == "approval.decided":
            if turn is None or turn.pending.pop(data.get("call_id", ""), None) is None:
                waiting = [] if turn is None else sorted(turn.pending)
                raise NothingPending(data.get("call_id", ""), waiting)
        elif type in _LIFECYCLE_EVENTS:
            move, life = _LIFECYCLE_EVENTS[type]
            if move not in MOVES[self.status]:
                raise LifecycleError(move, status=self.status, legal=MOVES[self.status])
            self.lifecycle = life
        elif type == "view.cleared":
            self.edition, self.cuts, self.active, self.ended_turn = seq, [], None, None
            self.ranges = [] if turn is not None else [[seq + 1, 0]]
            if turn is not None:
                turn.outside_messages = []
        elif type in ("view.pruned", "view.compacted"):
            self._apply_cut(seq, type, data)
        elif type == "view.unpruned":
            if turn is not None:
                raise TurnOpen("undo a prune")
            self.edition, self.cuts = seq, self.cuts[:-1]
            self.ranges = [list(pair) for pair in data.get("ranges", [])]
            append_range(self.ranges, seq, 0)  # this event is no message, so the view stays in one piece
        elif type == "event.redacted":
            self.edition, self.ended_turn = seq, None  # a turn that may lack a part cannot go on
        elif type == "agent.assigned":
            self.active = data.get("agent")
        elif type == "retention.set":
            ttl, self.retention = data.get("ttl_days"), seq
            self.ttl, self.immutable = None if ttl is None else days_to_microseconds(ttl), bool(data.get("immutable"))
        elif type == "session.held":
            self.held, self.released = seq, False
        elif type == "session.released":
            self.held, self.released = 0, True
        elif type == "session.erased":
            self.turn, self.lifecycle, self.ranges, self.unreported_effects, self.queue = None, "erased", [], [], []
            self.edition, self.cuts, self.held, self.immutable, self.failed = seq, [], 0, False, False
            self.ended_turn = None
        elif type in ("view.rewound", "view.restored"):
            if turn is not None:
                raise TurnOpen("rewind" if type == "view.rewound" else "overwrite the messages")
            self.ranges = [*data.get("ranges", []), [seq + 1, 0]]
            self.edition, self.cuts, self.active, self.ended_turn = seq, [], data.get("active"), None
        elif type == "session.forked":
            self.reset_for_fork()
            self.unverified = max(self.unverified, data.get("unverified", 0))
        elif type == "session.restored":  # a document brought them: its session was used elsewhere
            self.usage, self.turns = dict(data.get("usage", {})), data.get("turns", 0)
            self.has_started = data.get("started", self.has_started)
        elif type == "session.imported":
            self._settle_import(seq)

    def reset_for_fork(self) -> None:
        """A fork has the messages of its parent, and a life of its own."""
        self.turn, self.lifecycle, self.turns, self.usage, self.unreported_effects = None, "live", 0, {}, []
        self.held, self.failed, self.released, self.immutable, self.ttl = 0, False, False, False, None
        self.retention, self.queue, self.ended_turn = 0, [], None

    def _settle_import(self, seq: int) -> None:
        """An import is a record: it brings no work, no decision, no retention and no hold. An open turn ends as one
        that was interrupted."""
        if self.turn is not None:
            self.turn.merge_branches(None)
            self._end_turn(self.turn, seq, kept=True)
        self.queue, self.ended_turn, self.failed, self.released, self.unverified = [], None, False, False, seq
        self.held, self.immutable, self.ttl, self.retention = 0, False, None, 0

    def _reopen_turn(self, seq: int, run: str | None) -> None:
        """Open the last turn again, which failed or was cancelled. Its results are used, and its messages stand after
        those that were added since."""
        turn = self.ended_turn
        if turn is None or turn.run != run:
            raise NothingToRetry
        if self.lifecycle != "live":
            raise LifecycleError("retry a turn of", status=self.status, legal=MOVES[self.status])
        self.turn, self.ended_turn, self.failed, self.released = turn, None, False, False
        turn.waiting, turn.parked, turn.attempts = bool(turn.pending), False, 0
        turn.mixed, turn.outside_messages = True, []
        self.unreported_effects = [effect for effect in self.unreported_effects if effect not in turn.effects]
        self._close_last(seq - 1)
        if turn.question:
            self.queue.insert(0, [turn.run, turn.question])

    def _enqueue(self, seq: int, run: str, data: dict[str, Any]) -> None:
        """Admit a message: it is shown when its turn answers it, and stands in the log where it came in."""
        if self.lifecycle != "live":
            raise LifecycleError("run", status=self.status, legal=MOVES[self.status])
        mode = data.get("on_busy")
        if mode == "reject" and (self.turn is not None or self.queue):
            raise TurnOpen("take a message")
        if len(self.queue) >= MAX_QUEUE:
            raise QueueFull(MAX_QUEUE)
        running = self.turn is not None and bool(self.queue) and self.queue[0][0] == self.turn.run
        self.queue.insert(int(running) if mode == "interrupt" else len(self.queue), [run, seq])
        self._close_last(seq - 1)
        if self.turn is None:
            self.ranges.append([seq + 1, 0])
        else:
            self.turn.mixed = True

    def _dequeue(self, run: str | None) -> None:
        self.queue = [entry for entry in self.queue if entry[0] != run]

    def _apply_turn(self, turn: Turn, seq: int, type: str, data: dict[str, Any], branch: str | None) -> None:
        if turn.branches and type in BRANCH_ENDING_TYPES:
            turn.merge_branches(branch)
        if type == "summary.added":
            self._add_usage(data)
            turn.mixed = True
        elif type in ("view.pruned", "view.compacted"):
            self._apply_cut(seq, type, data)
        elif type == "reply.edited":
            turn.replace_message(data.get("of", 0), seq)
        elif type in MESSAGE_TYPES:
            if data.get("rejected") or data.get("aside"):
                turn.mixed = True
            elif branch is None:
                append_seq(turn.own_messages, seq)
            else:
                append_seq(turn.branches.setdefault(branch, []), seq)
                turn.mixed = True
        if type in ("model.replied", "tool.returned") or type in TURN_ENDS:
            self._add_usage(data)
        if branch is not None:
            pass  # of parallel calls it is unknown which estimate belongs to which report
        elif type == "model.called" and "tokens" in data:
            self.last_call_tokens = [data["tokens"], 0]
        elif type == "model.replied" and self.last_call_tokens:
            self.last_call_tokens[1] = data.get("usage", {}).get("input_tokens", 0)
        if type in TURN_ENDS or type in ("turn.waiting", "turn.parked"):
            self._dequeue(turn.run)  # nothing is left to be run, or not before a person says so
        # Events of a turn that has ended may have been erased: what is left of them is enough for these rules.
        if type == "tool.called":
            turn.calls[data.get("call_id", "")] = [seq, data.get("name", "")]
        elif type == "tool.returned":
            turn.calls.pop(data.get("call_id", ""), None)
            turn.pending.pop(data.get("call_id", ""), None)  # the call is over, and no decision is needed
            if data.get("effect"):
                turn.effects.append(seq)
        elif type == "approval.requested":
            turn.pending[data.get("call_id", "")] = seq
        elif type == "turn.waiting":
            turn.waiting, turn.attempts = True, 0  # it got this far without ending its process
        elif type == "turn.resumed":
            turn.attempts = 0 if turn.waiting else turn.attempts + 1
            if turn.question:
                self._dequeue(turn.run)
                self.queue.insert(0, [turn.run, turn.question])
            turn.waiting = turn.parked = self.released = False
        elif type == "turn.parked":
            turn.parked = True
        elif type == "agent.started":
            turn.active = data.get("active", turn.active)
        elif type in ("turn.finished", "turn.interrupted"):
            self._end_turn(turn, seq, kept=True)
            if type == "turn.finished":  # its model got the results; the model of an interrupted turn may not have
                self.unreported_effects = []
        elif type in ("turn.failed", "turn.cancelled"):
            self._end_turn(turn, seq, kept=False)
            self.failed, self.ended_turn = type == "turn.failed", turn

    def _add_usage(self, data: dict[str, Any]) -> None:
        for name, amount in data.get("usage", {}).items():
            self.usage[name] = self.usage.get(name, 0) + amount

    def _apply_cut(self, seq: int, type: str, data: dict[str, Any]) -> None:
        """Take ranges out of the messages. Messages that were added since are in none of them, so appends never
        conflict."""
        if data.get("after", self.edition) != self.edition:
            raise ViewChanged
        drop: Ranges = data.get("drop", [])
        self.ranges, place = subtract_ranges(self.ranges, drop)
        if self.turn is not None:
            self.turn.outside_messages, _ = subtract_ranges(self.turn.outside_messages, drop)
        self.edition, self.cuts = seq, [*self.cuts, seq][-MAX_CUTS:]
        if type == "view.compacted":
            # The summary, which is the event before this one, stands where the first of what it covers stood.
            self._close_last(seq - 2)
            self.ranges.insert(place, [seq - 1, seq - 1])
            if self.turn is None:
                self.ranges.append([seq + 1, 0])

    def _close_last(self, last: int) -> None:
        if self.ranges and self.ranges[-1][1] == 0:
            if self.ranges[-1][0] > last:
                self.ranges.pop()
            else:
                self.ranges[-1][1] = last

    def _end_turn(self, turn: Turn, seq: int, *, kept: bool) -> None:
        self.turn = None
        self.failed = False
        if kept:
            self.turns += 1
            self.active = turn.active or self.active
            if not turn.mixed:
                # No message of another writer lies in between: one range, which joins its neighbours.
                if turn.question:
                    append_range(self.ranges, turn.question, turn.question)
                append_range(self.ranges, turn.first, seq)
            else:
                for first, last in turn.own_messages:
                    append_range(self.ranges, first, last)
        else:
            self.unreported_effects += turn.effects
        for first, last in turn.outside_messages:
            append_range(self.ranges, first, last)
        append_range(self.ranges, seq + 1, 0)

    def to_bytes(self) -> bytes:
        turn = None if self.turn is None else self.turn.to_json()
        # What few sessions have is not written for the others.
        rest = {name: getattr(self, name) for name in _RARE if getattr(self, name)}
        if self.ended_turn is not None:
            rest["ended_turn"] = self.ended_turn.to_json()
        values = [
            2,
            self.ranges,
            turn,
            self.lifecycle,
            self.has_started,
            self.turns,
            self.usage,
            self.unreported_effects,
            self.edition,
        ]
        # Made of our own numbers and names, which were checked when they came in.
        return orjson.dumps(
            [*values, self.last_call_tokens, rest] if rest else [*values, self.last_call_tokens], option=_SORTED
        )


_SORTED = orjson.OPT_SORT_KEYS
_RARE = ("cuts", "held", "failed", "released", "immutable", "ttl", "retention", "queue", "active", "unverified")


def decode_view(data: bytes) -> View:
    """The view behind the bytes of a snapshot. Version 1 ended after `loose`."""
    _version, ranges, turn, life, begun, turns, usage, loose, *more = codec.decode(data)
    opened = None if turn is None else _decode_turn(turn)
    view = View(
        ranges=ranges,
        turn=opened,
        lifecycle=life,
        has_started=begun,
        turns=turns,
        usage=usage,
        unreported_effects=loose,
    )
    if more:
        view.edition, view.last_call_tokens = more[0], more[1]
        if len(more) > 2:
            for name, value in more[2].items():
                setattr(view, name, _decode_turn(value) if name == "ended_turn" else value)
    return view


def _decode_turn(values: list[Any]) -> Turn:
    return Turn(**dict(zip(_TURN, values, strict=False)))  # values that few turns have are not written for the others


def fold(view: View, events: Iterable[Event]) -> View:
    """Move a view over events that are already in the log."""
    for event in events:
        view.apply(event.seq, event.type, event.run, event.data, event.branch)
    return view
