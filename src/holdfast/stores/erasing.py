"""What goes with an event that is redacted, or with a session that is erased: every text that was made from it.

A burial is planned by reading, and carried out by the store in one transaction, which first looks whether the logs are
still where the plan saw them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from holdfast.errors import ImmutableSession, InvalidArgument, SessionHeld, TurnOpen
from holdfast.log.chain import stones_digest
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.messages import blobs_in
from holdfast.log.names import NAMED_FIELDS
from holdfast.log.tombs import tomb
from holdfast.log.view import Ranges, View, extend, view_of
from holdfast.stores.plan import Head, expiry, is_locked

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

LISTED = ("title", "metadata", "work_dir")  # columns of the list of sessions


@dataclass(slots=True, kw_only=True)
class Burial:
    """Which payloads go, in which logs, and what else is to be removed with them."""

    tombs: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # log -> (seq, what is left)
    blobs: dict[int, set[str]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)  # log -> the head that this was planned at
    columns: tuple[str, ...] = ()  # of the session's row
    whole: bool = False  # names, idempotency keys, search index, every blob and the encryption key go as well

    def record(self, number: int) -> dict[str, object]:
        """What the event that records this says of a log's tombstones: which, and a digest that vouches for them."""
        stones = self.tombs.get(number, [])
        seqs: Ranges = []
        for seq, _ in stones:
            extend(seqs, seq)
        return {"erased": seqs, "tombs": stones_digest(stone for _, stone in stones)}


def plan_redaction(store: Store, log: Log, seq: int) -> tuple[Log, Burial]:
    """The log that holds event `seq`, and everything that has to go with it."""
    event = store.event(log, seq)
    if event.erased:
        raise InvalidArgument(f"event {seq} of session {log.id!r} was erased before")
    ((number, _, _),) = log.segments(seq, seq)
    holder = log if number == log.number else store.log_of(number)
    sharers = [other for other in store.sharers(number) if _reads(other, number, seq)]
    burial = Burial()
    _refuse_unfinished(store.bare_head(number), event)
    texts = _texts(event)
    for one in (holder, *sharers):
        head = store.bare_head(one.number)
        burial.heads[one.number] = head.head
        _refuse_protected(view_of(head.view), head, store.ids.now())
        erased = [event] if one is holder else []
        erased += _derived(store, one, event)
        if erased:
            burial.tombs[one.number] = sorted((each.seq, tomb(each, names=True)) for each in erased)
        gone = _contexts_with(store, one, texts, seq)
        if one is holder:
            gone |= _own_blobs(store, holder, erased)
        if gone:
            burial.blobs[one.number] = gone
    if event.type in ("session.created", "session.changed", "session.forked", "view.restored") and holder.id:
        current = [name for name in LISTED if _holds(store, holder, name, seq)]
        burial.columns = tuple(current)
    return holder, burial


def plan_erasure(store: Store, log: Log) -> Burial:
    """Everything of a session: its own events, and what forks made of those they share."""
    head = store.head(log)
    if view_of(head.view).held:
        raise SessionHeld("erase", reason=f"event {view_of(head.view).held} says why")
    burial = Burial(heads={log.number: head.head}, columns=LISTED, whole=True)
    own = [Event(row) for row in store.walk(log, log.base + 1, head.head)]
    burial.tombs[log.number] = [(event.seq, tomb(event, names=False)) for event in own]
    for other in store.sharers(log.number):
        burial.heads[other.number] = store.bare_head(other.number).head
        summaries = [each for event in own for each in _summaries(store, other, event.seq)]
        if summaries:
            unique = {each.seq: each for each in summaries}
            burial.tombs[other.number] = [(seq, tomb(unique[seq], names=True)) for seq in sorted(unique)]
    return burial


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


def _derived(store: Store, log: Log, event: Event) -> list[Event]:
    """Events of a log that repeat the text of another: summaries, copies of a call's arguments, kept answers."""
    found = {each.seq: each for each in _summaries(store, log, event.seq)}
    if event.type == "model.replied" and event.run is not None:
        for row in store.read(
            log, event.seq + 1, types=["tool.called", "approval.requested", "state.set", "fact.added"]
        ):
            each = Event(row)
            if each.run != event.run or each.erased:
                continue
            calls = {part.get("id") for part in event.data.get("message", {}).get("parts", ())}
            if each.type in ("state.set", "fact.added") or each.data.get("call_id") in calls:
                found[each.seq] = each
    return list(found.values())


def _summaries(store: Store, log: Log, seq: int) -> Iterator[Event]:
    for row in store.read(log, max(seq, log.base) + 1, types=["summary.added"]):
        each = Event(row)
        if not each.erased and any(first <= seq <= last for first, last in each.data.get("covers", ())):
            yield each


def _texts(event: Event) -> list[bytes]:
    """The strings of a payload as they would stand inside another one."""
    found: list[bytes] = []
    waiting: list[Any] = [event.data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and value:
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
    wanted = {digest for event in erased for digest in _blobs_of(event)}
    if wanted:
        gone = {event.seq for event in erased}
        for row in store.walk(log, log.base + 1):
            if row.seq not in gone and row.type in MESSAGE_TYPES and row.body is not None:
                wanted -= set(_blobs_of(Event(row)))
    return wanted


def _blobs_of(event: Event) -> list[str]:
    if event.type not in MESSAGE_TYPES or event.erased:
        return []
    data = event.data if event.type == "message.added" else event.data.get("message", {})
    return [*blobs_in(data), *([event.data["whole"]] if "whole" in event.data else [])]


def _holds(store: Store, log: Log, name: str, seq: int) -> bool:
    assert name in NAMED_FIELDS
    event = store.lookup(log, name)
    return event is not None and event.seq == seq
