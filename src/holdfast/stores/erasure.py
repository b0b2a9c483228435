"""What goes with an event that is redacted, or with a session that is erased: every text that was made from it.

A burial is planned by reading, and carried out by the store in one transaction, which first looks whether the logs are
still where the plan saw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import ImmutableSession, InvalidArgument, SessionHeld, SessionNotFound, TurnOpen
from holdfast.log import codec
from holdfast.log.chain import digest_tombstones
from holdfast.log.event_texts import find_texts
from holdfast.log.events import UNREADABLE, Draft, Event
from holdfast.log.lines import one_line
from holdfast.log.named_values import NAMING_TYPES
from holdfast.log.ranges import Ranges, append_seq
from holdfast.log.tombstones import make_tombstone
from holdfast.log.view import View, decode_view
from holdfast.stores.append import Head, expiry, is_locked
from holdfast.stores.messages import blobs_of_event
from holdfast.stores.removal import is_erased, last_shared, make_tombstones
from holdfast.stores.repetition import Repetition, find_repetition
from holdfast.stores.verification import walk_lenient

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

LIST_COLUMNS = ("title", "metadata", "work_dir")  # columns of the list of sessions
# Events that make a plan out of date.
INVALIDATING_TYPES = (
    "summary.added", "model.called", "fact.updated", "memory.stored", "event.redacted", "turn.reopened"
)  # fmt: skip
_FACT_TYPES = ("fact.added", "fact.updated")
_LIST_COLUMN_TYPES = ("session.created", "session.changed", "session.forked", "view.restored")
MIN_SEARCHED_LENGTH = 3  # characters of a state value or a fact that is looked for in stored prompts
SEARCHED_BYTES = 100  # of a text that are looked for: a prompt may show only the start of a long state value


@dataclass(slots=True, kw_only=True)
class ErasurePlan:
    """Which payloads go, in which logs, and what else is to be removed with them."""

    tombstones: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # log -> (seq, what is left)
    blobs: dict[int, set[str]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)  # log -> the head that this was planned at
    living: set[int] = field(default_factory=set)  # ancestors that were not deleted: a deleted one may lose more
    readers: dict[int, set[int]] = field(default_factory=dict)  # log -> those who read from it
    names: dict[int, set[tuple[str, int]]] = field(default_factory=dict)  # rows of named values: name and seq
    columns: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of rows in the list of sessions
    whole_logs: list[int] = field(default_factory=list)  # logs of which names, keys, index and every blob go as well
    cuts: dict[int, int] = field(default_factory=dict)  # deleted log -> its last event that another fork shows
    deleted_logs: set[int] = field(default_factory=set)  # deleted logs that lose events
    affected_logs: list[Log] = field(
        default_factory=list
    )  # living sessions that lose data: each gets a notice in its own log
    repetition: Repetition | None = None  # what a redaction found in the turn of its event

    @property
    def allows_unrelated_appends(self) -> bool:
        """Whether events that repeat nothing may have been added since the plan: not if all must go, and not if bytes
        go that a new message might name."""
        return not self.whole_logs and not self.blobs

    @property
    def touched_logs(self) -> list[int]:
        """The logs that lose text."""
        columns = {number for number, names in self.columns.items() if names}
        return sorted({*self.tombstones, *self.blobs, *self.whole_logs, *columns})

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
        # Also those of a parent that is not deleted: its own record of them goes when it is deleted.
        holders = {log.number, *(number for number, _ in log.ancestry)}
        prompts = sorted({digest for number in holders for digest in self.blobs.get(number, ())})
        return found | ({"blobs": prompts} if prompts else {})


def draft_notices(log: Log, drafts: Sequence[Draft], burial: ErasurePlan) -> list[tuple[Log, Draft]]:
    """Return the notices for the other living sessions that lose data, written in the same transaction."""
    (draft,) = drafts
    about = {"reason": draft.data.get("reason", ""), "by": draft.data.get("by", log.id)}
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
    _refuse_unfinished(store.head_of_number(number), event)
    readers = store.descendants(number)
    sharers = [other for other in readers if _reads_event(other, number, seq)]
    repetition = find_repetition(store, holder, event, reader=log)
    burial = ErasurePlan(
        deleted_logs=set() if holder.id else {number},
        readers={number: {other.number for other in readers}},
        repetition=repetition,
    )
    for one in (holder, *sharers):
        head = store.head_of_number(one.number)
        burial.heads[one.number] = head.head
        _refuse_protected(decode_view(head.view), head, store.clock.now())
        erased = _collect_events(store, one, repetition, is_holder=one is holder)
        if erased:
            burial.tombstones[one.number] = [(each.seq, make_tombstone(each, names=True)) for each in erased]
        if one.id:
            burial.columns[one.number] = _columns_of(store, one, erased)
        gone = _prompts_with(store, one, repetition, seq)
        if one is holder:
            gone |= _own_blobs(store, holder, erased)
        if gone:
            burial.blobs[one.number] = gone
        if one is not holder and _is_in_use(
            store, one
        ):  # always noticed: a summary that is being planned there is planned again
            burial.affected_logs.append(one)
    return holder, burial


def plan_erasure(store: Store, log: Log) -> ErasurePlan:
    """Everything of a session: its own events, and what forks made of those they share."""
    head = store.head(log)
    if decode_view(head.view).held:
        raise SessionHeld("erase", reason=f"event {decode_view(head.view).held} says why")
    burial = ErasurePlan(columns={log.number: LIST_COLUMNS})
    _plan_whole_log(store, log, head.head, burial)
    _plan_forks(store, log, burial)
    for number, _ in log.ancestry:
        ancestor = store.log_of_number(number)
        if ancestor.id:
            burial.living.add(number)
        else:
            _plan_deleted_ancestor(store, log, ancestor, burial)
    return burial


def plan_erasure_of_deleted(store: Store, log: Log) -> tuple[Log, ErasurePlan] | None:
    """Everything that forks show of a session that was deleted, and the fork that records it; None if no fork shows
    any of it."""
    try:
        deleted = store.log_of_number(log.number)
    except SessionNotFound:
        return None
    burial = ErasurePlan(deleted_logs={log.number})
    _plan_whole_log(store, deleted, store.head_of_number(log.number).head, burial)
    _plan_forks(store, deleted, burial)
    return (burial.affected_logs[0], burial) if burial.affected_logs else None


def _plan_whole_log(store: Store, log: Log, head: int, burial: ErasurePlan) -> None:
    burial.heads[log.number] = head
    burial.whole_logs.append(log.number)
    burial.tombstones[log.number] = make_tombstones(walk_lenient(store, log, log.base + 1, head))


def _plan_forks(store: Store, log: Log, burial: ErasurePlan) -> None:
    """What the forks of a log made of the events that they share."""
    readers = store.descendants(log.number)
    burial.readers[log.number] = {other.number for other in readers}
    for other in readers:
        theirs = store.head_of_number(other.number)
        if decode_view(theirs.view).held:
            raise SessionHeld("erase what is shared with", reason=f"its event {decode_view(theirs.view).held} says why")
        burial.heads[other.number] = theirs.head
        taken = _summaries_over(store, other, [[log.base + 1, last_shared(log.number, [other])]])
        if other.parent == log.number:
            taken += _find_fork_event(store, other)
            burial.columns[other.number] = _columns_of(store, other, taken)
        if taken:
            burial.tombstones[other.number] = sorted((each.seq, make_tombstone(each, names=True)) for each in taken)
        if _is_in_use(store, other):
            burial.affected_logs.append(other)


def _plan_deleted_ancestor(store: Store, log: Log, ancestor: Log, burial: ErasurePlan) -> None:
    """What a deleted ancestor has that no other fork shows: all of it, or the events after the last that one shows."""
    number = ancestor.number
    others = [other for other in store.descendants(number) if other.number != log.number and _is_in_use(store, other)]
    shown = last_shared(number, others)
    head = store.head_of_number(number).head
    burial.deleted_logs.add(number)
    if shown <= ancestor.base:
        _plan_whole_log(store, ancestor, head, burial)
    else:
        burial.heads[number], burial.cuts[number] = head, shown
        burial.tombstones[number] = make_tombstones(walk_lenient(store, ancestor, shown + 1, head))


def _is_in_use(store: Store, log: Log) -> bool:
    return bool(log.id) and not is_erased(store.head_of_number(log.number).view)


def _reads_event(log: Log, number: int, seq: int) -> bool:
    return any(ancestor == number and seq <= last for ancestor, last in log.ancestry)


def _refuse_unfinished(head: Head, event: Event) -> None:
    """An event stays while its turn is open: the turn may repeat it again, and is resumed from its events."""
    turn = decode_view(head.view).turn
    if turn is not None and (event.run == turn.run or (event.run is None and event.seq >= turn.first)):
        raise TurnOpen("redact an event of the open turn of")


def _refuse_protected(view: View, head: Head, now: int) -> None:
    """A shared event stays as long as one of those who share it is immutable or held."""
    if view.held:
        raise SessionHeld("redact an event of", reason=f"event {view.held} says why")
    if is_locked(view, head.updated_at, now):
        raise ImmutableSession("redact an event of", until=expiry(view, head.updated_at))


# -- what was made from a text -----------------------------------------------------------------------------------------


def _collect_events(store: Store, log: Log, repetition: Repetition, *, is_holder: bool) -> list[Event]:
    """The events of one log that go: those that repeat the text, later versions of facts, and what was made of them."""
    found = list(repetition.events) if is_holder else []
    facts = {_fact_id(each): each.seq for each in reversed(repetition.events) if each.type in _FACT_TYPES}
    for each in map(Event, store.read(log, log.base + 1, types=["fact.updated"]) if facts else ()):
        if not each.erased and each.seq > facts.get(_fact_id(each), each.seq):
            found.append(each)
    found += _summaries_over(store, log, [[each.seq, each.seq] for each in repetition.events])
    if not is_holder and any(each.type in _LIST_COLUMN_TYPES for each in repetition.events):
        found += _find_fork_event(store, log)
    unique = {each.seq: each for each in found}
    return [unique[seq] for seq in sorted(unique)]


def _fact_id(event: Event) -> str | None:
    """The id of a fact; None if the payload is not as holdfast writes it."""
    try:
        found = event.data["id"]
    except UNREADABLE:
        return None
    return found if isinstance(found, str) else None


def _find_fork_event(store: Store, log: Log) -> list[Event]:
    """The first event of a fork, which has copies of its parent's title and metadata."""
    first = map(Event, store.read(log, log.base + 1, log.base + 1))
    return [each for each in first if each.type == "session.forked" and not each.erased]


def _columns_of(store: Store, log: Log, events: list[Event]) -> tuple[str, ...]:
    """The columns of the list of sessions that show what these events say."""
    seqs = {each.seq for each in events if each.type in _LIST_COLUMN_TYPES}
    shown = {name: store.lookup(log, name) for name in LIST_COLUMNS} if seqs else {}
    return tuple(name for name, each in shown.items() if each is not None and each.seq in seqs)


def _summaries_over(store: Store, log: Log, ranges: Ranges) -> list[Event]:
    """The summaries in a log that cover any event of the ranges."""
    found = []
    for each in map(Event, store.read(log, log.base + 1, types=["summary.added"])):
        try:
            covers = () if each.erased else each.data.get("covers", ())
            is_over = any(first <= high and last >= low for first, last in covers for low, high in ranges)
        except UNREADABLE:  # what it covers is not known, so it goes
            is_over = True
        if is_over:
            found.append(each)
    return found


def _prompts_with(store: Store, log: Log, repetition: Repetition, seq: int) -> set[str]:
    """Stored prompts whose instructions, facts, state or memories repeat the text."""
    origin = repetition.events[0]
    texts = set(repetition.pieces)
    if origin.type in NAMING_TYPES:  # prompts are made of these values, so a short one counts too
        texts |= {text for text in find_texts(origin) if len(text) >= MIN_SEARCHED_LENGTH}
    forms = {form for text in texts for form in _forms_in_prompt(text)}
    found: set[str] = set()
    looked: set[str] = set()
    for row in store.read(log, max(seq, log.base) + 1, types=["model.called"]) if forms else ():
        for digest in blobs_of_event(Event(row)):
            if digest in looked:
                continue
            looked.add(digest)
            data = store.blob_of_number(log.number, digest)
            if data is not None and _has_form(data, forms):
                found.add(digest)
    return found


def _has_form(prompt: bytes, forms: set[str]) -> bool:
    """Whether a stored prompt repeats one of the texts; one that cannot be read counts as one that does."""
    try:
        return any(form in section for section in codec.decode(prompt)["system"] for form in forms)
    except UNREADABLE:
        return True


def _forms_in_prompt(text: str) -> list[str]:
    """The start of a text as it may stand in a prompt: as it is, on one line, and inside of a JSON value."""
    forms = text.encode(), one_line(text).encode(), codec.encode(text)[1:-1]
    return [form[:SEARCHED_BYTES].decode(errors="ignore") for form in forms if form]


def _own_blobs(store: Store, log: Log, erased: list[Event]) -> set[str]:
    """The bytes that only these events name."""
    wanted = {digest for event in erased for digest in blobs_of_event(event)}
    if wanted:
        gone = {event.seq for event in erased}
        for row in store.walk(log, log.base + 1):
            if row.seq not in gone:
                wanted -= set(blobs_of_event(Event(row)))
    return wanted
