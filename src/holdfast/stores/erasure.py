"""What goes with an event that is redacted, or with a session that is erased: every text that was made from it.

A burial is planned by reading, and carried out by the store in one transaction, which first looks whether the logs are
still where the plan saw them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from holdfast.errors import ImmutableSession, InvalidArgument, SessionHeld, TurnOpen
from holdfast.log.chain import stones_digest
from holdfast.log.events import Draft, Event
from holdfast.log.tombstones import tomb
from holdfast.log.view import TURN_ENDS, Ranges, View, extend, view_of
from holdfast.stores.append import Head, expiry, is_locked
from holdfast.stores.documents import bytes_named

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

LISTED = ("title", "metadata", "work_dir")  # columns of the list of sessions
# Events that make a plan out of date.
DERIVING = ("summary.added", "model.called", "fact.updated", "memory.stored", "event.redacted")
_TITLED = ("session.created", "session.changed", "session.forked", "view.restored")
# Words of ours, which say nothing about what somebody said.
_STRUCTURAL = frozenset(
    ("id", "call_id", "name", "kind", "status", "role", "type", "stop_reason", "provider", "model", "media_type")
)
SHORTEST = 3  # characters of a text that is looked for in stored prompts
TELLING = 8  # bytes that two texts must share before one counts as taken from the other
_COPIES = ("tool.called", "approval.requested", "tool.returned", "state.set", "fact.added", "fact.updated")


@dataclass(slots=True, kw_only=True)
class Burial:
    """Which payloads go, in which logs, and what else is to be removed with them."""

    tombs: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # log -> (seq, what is left)
    blobs: dict[int, set[str]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)  # log -> the head that this was planned at
    readers: dict[int, set[int]] = field(default_factory=dict)  # log -> those who read from it
    names: dict[int, set[tuple[str, int]]] = field(default_factory=dict)  # rows of named values: name and seq
    columns: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of rows in the list of sessions
    whole: list[int] = field(default_factory=list)  # logs of which names, keys, index and every blob go as well
    dead: set[int] = field(default_factory=set)  # deleted logs among them
    sharers: list[Log] = field(default_factory=list)  # living sessions that lose something: told in their own logs

    @property
    def bears_company(self) -> bool:
        """Whether events that repeat nothing may have been added since the plan: not if all must go, and not if bytes
        go that a new message might name."""
        return not self.whole and not self.blobs

    def record(self, log: Log) -> dict[str, Any]:
        """What the log of a session says of this: which of its events are gone, and a digest that vouches for what is
        left of them; those of a deleted ancestor included, which can say nothing any more."""
        reach = {number: last for number, last in log.ancestry if number in self.dead}
        path = [*reach, log.number]
        stones = sorted(
            stone for number in path for stone in self.tombs.get(number, []) if stone[0] <= reach.get(number, stone[0])
        )
        seqs: Ranges = []
        for seq, _ in stones:
            extend(seqs, seq)
        found: dict[str, Any] = {"erased": seqs, "tombs": stones_digest(stone for _, stone in stones)}
        prompts = sorted(digest for number in path for digest in self.blobs.get(number, ()))
        return found | ({"blobs": prompts} if prompts else {})


def shared_records(log: Log, drafts: Sequence[Draft], burial: Burial) -> list[tuple[Log, Draft]]:
    """What the other living sessions that lose something are told, in the same transaction."""
    (draft,) = drafts
    about = {"reason": draft.data.get("reason", ""), "by": log.id}
    return [
        (other, Draft(type="event.redacted", data=about | burial.record(other), actor=draft.actor))
        for other in burial.sharers
        if other.number != log.number
    ]


def plan_redaction(store: Store, log: Log, seq: int) -> tuple[Log, Burial]:
    """The log that holds event `seq`, and everything that has to go with it."""
    event = store.event(log, seq)
    if event.erased:
        raise InvalidArgument(f"event {seq} of session {log.id!r} was erased before")
    ((number, _, _),) = log.segments(seq, seq)
    holder = log if number == log.number else store.log_of(number)
    readers = store.sharers(number)
    sharers = [other for other in readers if _reads(other, number, seq)]
    burial = Burial(dead=set() if holder.id else {number}, readers={number: {other.number for other in readers}})
    _refuse_unfinished(store.bare_head(number), event)
    texts = _texts(event)
    for one in (holder, *sharers):
        head = store.bare_head(one.number)
        burial.heads[one.number] = head.head
        _refuse_protected(view_of(head.view), head, store.ids.now())
        erased = [event, *_copies(store, holder, event)] if one is holder else []
        erased += _summaries_over(store, one, seq, seq)
        if one is not holder and event.type in _TITLED:
            erased += _forked(store, one, burial)
        if erased:
            unique = {each.seq: each for each in erased}
            burial.tombs[one.number] = [(each, tomb(unique[each], names=True)) for each in sorted(unique)]
        gone = _contexts_with(store, one, texts, seq)
        if one is holder:
            gone |= _own_blobs(store, holder, erased)
        if gone:
            burial.blobs[one.number] = gone
        if one is not holder and _is_in_use(
            store, one
        ):  # told in any case: what it may be planning to summarize is planned anew
            burial.sharers.append(one)
    if event.type in _TITLED and holder.id:
        burial.columns[holder.number] = tuple(name for name in LISTED if _holds(store, holder, name, seq))
    return holder, burial


def plan_erasure(store: Store, log: Log) -> Burial:
    """Everything of a session: its own events, and what forks made of those they share."""
    head = store.head(log)
    if view_of(head.view).held:
        raise SessionHeld("erase", reason=f"event {view_of(head.view).held} says why")
    burial = Burial(heads={log.number: head.head}, columns={log.number: LISTED}, whole=[log.number])
    _bury_own(store, log, log, head.head, burial)
    readers = store.sharers(log.number)
    burial.readers[log.number] = {other.number for other in readers}
    for other in readers:
        theirs = store.bare_head(other.number)
        if view_of(theirs.view).held:
            raise SessionHeld("erase what is shared with", reason=f"its event {view_of(theirs.view).held} says why")
        burial.heads[other.number] = theirs.head
        reaches = [last for number, last in other.ancestry if number == log.number]
        taken = _summaries_over(store, other, log.base + 1, max(reaches, default=0))
        if other.parent == log.number:
            taken += _forked(store, other, burial)
        if taken:
            burial.tombs[other.number] = sorted((each.seq, tomb(each, names=True)) for each in taken)
        if _is_in_use(store, other):
            burial.sharers.append(other)
    for number, last in log.ancestry:
        ancestor = store.log_of(number)
        others = [other for other in store.sharers(number) if other.number != log.number]
        if not ancestor.id and not any(_is_in_use(store, other) for other in others):
            burial.heads[number] = store.bare_head(number).head  # deleted, and kept only for this one
            burial.whole.append(number)
            burial.dead.add(number)
            _bury_own(store, log, ancestor, last, burial)
    return burial


def _bury_own(store: Store, reader: Log, holder: Log, last: int, burial: Burial) -> None:
    rows = store.readable(reader, holder.base + 1, last)
    burial.tombs[holder.number] = [(row.seq, tomb(Event(row), names=False)) for row in rows if row.type]


def _is_in_use(store: Store, log: Log) -> bool:
    return bool(log.id) and view_of(store.bare_head(log.number).view).life != "erased"


def _reads(log: Log, number: int, seq: int) -> bool:
    return any(ancestor == number and seq <= last for ancestor, last in log.ancestry)


def _refuse_unfinished(head: Head, event: Event) -> None:
    turn = view_of(head.view).turn
    if turn is not None and event.run == turn.run:
        raise TurnOpen("redact an event of the open turn of")


def _refuse_protected(view: View, head: Head, now: int) -> None:
    """A shared event stays as long as one of those who share it is immutable or held."""
    if view.held:
        raise SessionHeld("redact an event of", reason=f"event {view.held} says why")
    if is_locked(view, head.updated_at, now):
        raise ImmutableSession("redact an event of", until=expiry(view, head.updated_at))


# -- what was made from a text -----------------------------------------------------------------------------------------


def _copies(store: Store, log: Log, event: Event) -> list[Event]:
    """Events that repeat the text of another: what its turn made of it, and later versions of a fact."""
    found: list[Event] = []
    if event.type in ("tool.called", "approval.requested"):  # its arguments stand in the reply that asked for it
        found += _replies_with(store, log, event)
    if event.run is not None:
        found += [each for each in _rest_of_turn(store, log, event) if not each.erased and _repeats(each, event)]
    if event.type in ("fact.added", "fact.updated"):
        rows = store.read(log, event.seq + 1, types=["fact.updated"])
        found += [each for each in map(Event, rows) if not each.erased and each.data.get("id") == event.data.get("id")]
    return found


def _replies_with(store: Store, log: Log, call: Event) -> list[Event]:
    """The reply that a call came with, and whatever else repeats what it says."""
    for row in store.read(log, log.base + 1, call.seq - 1, types=["model.replied"], reverse=True, limit=1):
        reply = Event(row)
        calls = {part.get("id") for part in reply.data.get("message", {}).get("parts", ())}
        if not reply.erased and reply.run == call.run and call.data.get("call_id") in calls:
            return [reply, *_copies(store, log, reply)]
    return []


def _forked(store: Store, log: Log, burial: Burial) -> list[Event]:
    """The first event of a fork, which has copies of its parent's title and metadata; and what its list row shows."""
    first = [Event(row) for row in store.read(log, log.base + 1, log.base + 1)]
    found = [each for each in first if each.type == "session.forked" and not each.erased]
    for each in found:
        burial.columns[log.number] = tuple(name for name in LISTED if _holds(store, log, name, each.seq))
    return found


def _rest_of_turn(store: Store, log: Log, event: Event) -> Iterator[Event]:
    for row in store.walk(log, event.seq + 1):
        each = Event(row)
        if each.type in _COPIES:
            yield each
        if each.run == event.run and each.type in TURN_ENDS:
            return


def _repeats(each: Event, source: Event) -> bool:
    """Whether an event of the same turn holds a text of another one, or a piece of it."""
    calls = {part.get("id") for part in source.data.get("message", {}).get("parts", ())}
    if each.type in ("tool.called", "approval.requested") and each.data.get("call_id") in calls:
        return True
    theirs = [text for text in _texts(source) if len(text) >= TELLING]
    mine = [text for text in _texts(each) if len(text) >= TELLING]
    return any(one in two or two in one for one in mine for two in theirs)


def _summaries_over(store: Store, log: Log, low: int, high: int) -> list[Event]:
    """The summaries in a log that cover any event from `low` to `high`."""
    found = []
    for row in store.read(log, log.base + 1, types=["summary.added"]):
        each = Event(row)
        if not each.erased and any(first <= high and last >= low for first, last in each.data.get("covers", ())):
            found.append(each)
    return found


def _texts(event: Event) -> list[bytes]:
    """The strings of a payload as they would stand inside another one."""
    found: list[bytes] = []
    waiting: list[Any] = [event.data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [each for name, each in value.items() if name not in _STRUCTURAL]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and len(value) >= SHORTEST:
            found.append(orjson.dumps(value)[1:-1])
    return found


def _contexts_with(store: Store, log: Log, texts: list[bytes], seq: int) -> set[str]:
    """Stored prompts (instructions, facts, state) that repeat one of the texts."""
    found: set[str] = set()
    looked: set[str] = set()
    for row in store.read(log, max(seq, log.base) + 1, types=["model.called"]):
        digest = Event(row).data.get("context")
        if digest is None or digest in looked:
            continue
        looked.add(digest)
        data = store.own_blob(log.number, digest)
        if data is not None and any(text in data for text in texts):
            found.add(digest)
    return found


def _own_blobs(store: Store, log: Log, erased: list[Event]) -> set[str]:
    """The bytes that only these events name."""
    wanted = {digest for event in erased for digest in bytes_named(event)}
    if wanted:
        gone = {event.seq for event in erased}
        for row in store.walk(log, log.base + 1):
            if row.seq not in gone:
                wanted -= set(bytes_named(Event(row)))
    return wanted


def _holds(store: Store, log: Log, name: str, seq: int) -> bool:
    event = store.lookup(log, name)
    return event is not None and event.seq == seq
