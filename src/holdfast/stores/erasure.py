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
from holdfast.log.chain import digest_tombstones
from holdfast.log.events import Draft, Event
from holdfast.log.ranges import Ranges, append_seq
from holdfast.log.tombstones import make_tombstone
from holdfast.log.view import TURN_ENDS, View, decode_view
from holdfast.stores.append import Head, expiry, is_locked
from holdfast.stores.messages import blobs_of_event
from holdfast.stores.verification import walk_lenient

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

LIST_COLUMNS = ("title", "metadata", "work_dir")  # columns of the list of sessions
# Events that make a plan out of date.
INVALIDATING_TYPES = ("summary.added", "model.called", "fact.updated", "memory.stored", "event.redacted")
_LIST_COLUMN_TYPES = ("session.created", "session.changed", "session.forked", "view.restored")
# Fields with words of the log format, which reveal nothing of a message.
_STRUCTURAL = frozenset(
    ("id", "call_id", "name", "kind", "status", "role", "type", "stop_reason", "provider", "model", "media_type")
)
_VALUES = ("value", "state")  # fields with values of a user, in which the words above are ordinary keys
MIN_SEARCHED_LENGTH = 3  # characters of a text that is looked for in stored prompts
# Bytes of a text that are looked for, from its beginning: a prompt may show only the beginning of a long state value.
SEARCHED_BYTES = 100
MIN_SHARED_BYTES = 8  # bytes that two texts must share before one counts as taken from the other
_COPYING_TYPES = ("tool.called", "approval.requested", "tool.returned", "state.set", "fact.added", "fact.updated")


@dataclass(slots=True, kw_only=True)
class ErasurePlan:
    """Which payloads go, in which logs, and what else is to be removed with them."""

    tombstones: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # log -> (seq, what is left)
    blobs: dict[int, set[str]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)  # log -> the head that this was planned at
    readers: dict[int, set[int]] = field(default_factory=dict)  # log -> those who read from it
    names: dict[int, set[tuple[str, int]]] = field(default_factory=dict)  # rows of named values: name and seq
    columns: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of rows in the list of sessions
    whole_logs: list[int] = field(default_factory=list)  # logs of which names, keys, index and every blob go as well
    deleted_logs: set[int] = field(default_factory=set)  # deleted logs among them
    affected_logs: list[Log] = field(
        default_factory=list
    )  # living sessions that lose data: each gets a notice in its own log

    @property
    def allows_unrelated_appends(self) -> bool:
        """Whether events that repeat nothing may have been added since the plan: not if all must go, and not if bytes
        go that a new message might name."""
        return not self.whole_logs and not self.blobs

    def record_data(self, log: Log) -> dict[str, Any]:
        """What the log of a session says of this: which of its events are gone, and a digest that vouches for what is
        left of them; those of a deleted ancestor included, which can say nothing any more."""
        reach = {number: last for number, last in log.ancestry if number in self.deleted_logs}
        path = [*reach, log.number]
        tombstones = sorted(
            stone
            for number in path
            for stone in self.tombstones.get(number, [])
            if stone[0] <= reach.get(number, stone[0])
        )
        seqs: Ranges = []
        for seq, _ in tombstones:
            append_seq(seqs, seq)
        found: dict[str, Any] = {"erased": seqs, "tombs": digest_tombstones(stone for _, stone in tombstones)}
        prompts = sorted(digest for number in path for digest in self.blobs.get(number, ()))
        return found | ({"blobs": prompts} if prompts else {})


def draft_notices(log: Log, drafts: Sequence[Draft], burial: ErasurePlan) -> list[tuple[Log, Draft]]:
    """Return the notices for the other living sessions that lose data, written in the same transaction."""
    (draft,) = drafts
    about = {"reason": draft.data.get("reason", ""), "by": log.id}
    return [
        (other, Draft(type="event.redacted", data=about | burial.record_data(other), actor=draft.actor))
        for other in burial.affected_logs
        if other.number != log.number
    ]


def plan_redaction(store: Store, log: Log, seq: int) -> tuple[Log, ErasurePlan]:
    """The log that holds event `seq`, and everything that has to go with it."""
    event = store.event(log, seq)
    if event.erased:
        raise InvalidArgument(f"event {seq} of session {log.id!r} was erased before")
    ((number, _, _),) = log.segments(seq, seq)
    holder = log if number == log.number else store.log_of_number(number)
    readers = store.descendants(number)
    sharers = [other for other in readers if _reads_event(other, number, seq)]
    burial = ErasurePlan(
        deleted_logs=set() if holder.id else {number}, readers={number: {other.number for other in readers}}
    )
    _refuse_unfinished(store.head_of_number(number), event)
    texts = _payload_strings(event)
    for one in (holder, *sharers):
        head = store.head_of_number(one.number)
        burial.heads[one.number] = head.head
        _refuse_protected(decode_view(head.view), head, store.clock.now())
        erased = [event, *_find_copies(store, holder, event)] if one is holder else []
        erased += _summaries_over(store, one, seq, seq)
        if one is not holder and event.type in _LIST_COLUMN_TYPES:
            erased += _collect_fork_event(store, one, burial)
        if erased:
            unique = {each.seq: each for each in erased}
            burial.tombstones[one.number] = [
                (each, make_tombstone(unique[each], names=True)) for each in sorted(unique)
            ]
        gone = _prompts_with(store, one, texts, seq)
        if one is holder:
            gone |= _own_blobs(store, holder, erased)
        if gone:
            burial.blobs[one.number] = gone
        if one is not holder and _is_in_use(
            store, one
        ):  # always noticed: a summary that is being planned there is planned again
            burial.affected_logs.append(one)
    if event.type in _LIST_COLUMN_TYPES and holder.id:
        burial.columns[holder.number] = tuple(name for name in LIST_COLUMNS if _is_value_of(store, holder, name, seq))
    return holder, burial


def plan_erasure(store: Store, log: Log) -> ErasurePlan:
    """Everything of a session: its own events, and what forks made of those they share."""
    head = store.head(log)
    if decode_view(head.view).held:
        raise SessionHeld("erase", reason=f"event {decode_view(head.view).held} says why")
    burial = ErasurePlan(heads={log.number: head.head}, columns={log.number: LIST_COLUMNS}, whole_logs=[log.number])
    _plan_whole_log(store, log, log, head.head, burial)
    readers = store.descendants(log.number)
    burial.readers[log.number] = {other.number for other in readers}
    for other in readers:
        theirs = store.head_of_number(other.number)
        if decode_view(theirs.view).held:
            raise SessionHeld("erase what is shared with", reason=f"its event {decode_view(theirs.view).held} says why")
        burial.heads[other.number] = theirs.head
        reaches = [last for number, last in other.ancestry if number == log.number]
        taken = _summaries_over(store, other, log.base + 1, max(reaches, default=0))
        if other.parent == log.number:
            taken += _collect_fork_event(store, other, burial)
        if taken:
            burial.tombstones[other.number] = sorted((each.seq, make_tombstone(each, names=True)) for each in taken)
        if _is_in_use(store, other):
            burial.affected_logs.append(other)
    for number, last in log.ancestry:
        ancestor = store.log_of_number(number)
        others = [other for other in store.descendants(number) if other.number != log.number]
        if not ancestor.id and not any(_is_in_use(store, other) for other in others):
            burial.heads[number] = store.head_of_number(number).head  # deleted, and kept only for this one
            burial.whole_logs.append(number)
            burial.deleted_logs.add(number)
            _plan_whole_log(store, log, ancestor, last, burial)
    return burial


def _plan_whole_log(store: Store, reader: Log, holder: Log, last: int, burial: ErasurePlan) -> None:
    rows = walk_lenient(store, reader, holder.base + 1, last)
    burial.tombstones[holder.number] = [(row.seq, make_tombstone(Event(row), names=False)) for row in rows if row.type]


def _is_in_use(store: Store, log: Log) -> bool:
    return bool(log.id) and decode_view(store.head_of_number(log.number).view).lifecycle != "erased"


def _reads_event(log: Log, number: int, seq: int) -> bool:
    return any(ancestor == number and seq <= last for ancestor, last in log.ancestry)


def _refuse_unfinished(head: Head, event: Event) -> None:
    turn = decode_view(head.view).turn
    if turn is not None and event.run == turn.run:
        raise TurnOpen("redact an event of the open turn of")


def _refuse_protected(view: View, head: Head, now: int) -> None:
    """A shared event stays as long as one of those who share it is immutable or held."""
    if view.held:
        raise SessionHeld("redact an event of", reason=f"event {view.held} says why")
    if is_locked(view, head.updated_at, now):
        raise ImmutableSession("redact an event of", until=expiry(view, head.updated_at))


# -- what was made from a text -----------------------------------------------------------------------------------------


def _find_copies(store: Store, log: Log, event: Event) -> list[Event]:
    """Events that repeat the text of another: what its turn made of it, and later versions of a fact."""
    found: list[Event] = []
    if event.type in ("tool.called", "approval.requested"):  # its arguments stand in the reply that asked for it
        found += _find_reply(store, log, event)
    if event.run is not None:
        found += [each for each in _rest_of_turn(store, log, event) if not each.erased and _is_copy(each, event)]
    if event.type in ("fact.added", "fact.updated"):
        rows = store.read(log, event.seq + 1, types=["fact.updated"])
        found += [each for each in map(Event, rows) if not each.erased and each.data.get("id") == event.data.get("id")]
    return found


def _find_reply(store: Store, log: Log, call: Event) -> list[Event]:
    """The reply that a call came with, and the other events that repeat its content."""
    for row in store.read(log, log.base + 1, call.seq - 1, types=["model.replied"], reverse=True, limit=1):
        reply = Event(row)
        calls = {part.get("id") for part in reply.data.get("message", {}).get("parts", ())}
        if not reply.erased and reply.run == call.run and call.data.get("call_id") in calls:
            return [reply, *_find_copies(store, log, reply)]
    return []


def _collect_fork_event(store: Store, log: Log, burial: ErasurePlan) -> list[Event]:
    """The first event of a fork, which has copies of its parent's title and metadata; and what its list row shows."""
    first = [Event(row) for row in store.read(log, log.base + 1, log.base + 1)]
    found = [each for each in first if each.type == "session.forked" and not each.erased]
    for each in found:
        burial.columns[log.number] = tuple(name for name in LIST_COLUMNS if _is_value_of(store, log, name, each.seq))
    return found


def _rest_of_turn(store: Store, log: Log, event: Event) -> Iterator[Event]:
    for row in store.walk(log, event.seq + 1):
        each = Event(row)
        if each.type in _COPYING_TYPES:
            yield each
        if each.run == event.run and each.type in TURN_ENDS:
            return


def _is_copy(each: Event, source: Event) -> bool:
    """Whether an event of the same turn holds a text of another one, or a piece of it."""
    calls = {part.get("id") for part in source.data.get("message", {}).get("parts", ())}
    if each.type in ("tool.called", "approval.requested") and each.data.get("call_id") in calls:
        return True
    theirs = [text for text in _payload_strings(source) if len(text) >= MIN_SHARED_BYTES]
    mine = [text for text in _payload_strings(each) if len(text) >= MIN_SHARED_BYTES]
    return any(one in two or two in one for one in mine for two in theirs)


def _summaries_over(store: Store, log: Log, low: int, high: int) -> list[Event]:
    """The summaries in a log that cover any event from `low` to `high`."""
    found = []
    for row in store.read(log, log.base + 1, types=["summary.added"]):
        each = Event(row)
        if not each.erased and any(first <= high and last >= low for first, last in each.data.get("covers", ())):
            found.append(each)
    return found


def _payload_strings(event: Event) -> list[bytes]:
    """The strings of a payload as they would stand inside another one."""
    found: list[bytes] = []
    waiting: list[tuple[Any, bool]] = [(event.data, True)]
    while waiting:
        value, has_fields = waiting.pop()
        if isinstance(value, dict):
            left = [name for name in value if not has_fields or name not in _STRUCTURAL]
            waiting += [(value[name], has_fields and name not in _VALUES) for name in left]
        elif isinstance(value, list):
            waiting += [(each, has_fields) for each in value]
        elif isinstance(value, str) and len(value) >= MIN_SEARCHED_LENGTH:
            found.append(orjson.dumps(value)[1:-1])
    return found


def _prompts_with(store: Store, log: Log, texts: list[bytes], seq: int) -> set[str]:
    """Stored prompts (instructions, facts, state) that repeat one of the texts."""
    found: set[str] = set()
    looked: set[str] = set()
    forms = {form for text in texts for form in _forms_in_prompt(text)}
    for row in store.read(log, max(seq, log.base) + 1, types=["model.called"]):
        digest = Event(row).data.get("context")
        if digest is None or digest in looked:
            continue
        looked.add(digest)
        data = store.blob_of_number(log.number, digest)
        if data is not None and any(form in data for form in forms):
            found.add(digest)
    return found


def _forms_in_prompt(text: bytes) -> tuple[bytes, bytes]:
    """The beginning of a string of a payload as it may stand in a prompt: as it is, and inside of a JSON value that is
    itself a part of a text."""
    start = text[:SEARCHED_BYTES].decode(errors="ignore")
    return start.encode(), orjson.dumps(start)[1:-1]


def _own_blobs(store: Store, log: Log, erased: list[Event]) -> set[str]:
    """The bytes that only these events name."""
    wanted = {digest for event in erased for digest in blobs_of_event(event)}
    if wanted:
        gone = {event.seq for event in erased}
        for row in store.walk(log, log.base + 1):
            if row.seq not in gone:
                wanted -= set(blobs_of_event(Event(row)))
    return wanted


def _is_value_of(store: Store, log: Log, name: str, seq: int) -> bool:
    event = store.lookup(log, name)
    return event is not None and event.seq == seq
