"""Which events repeat the text of another event: the rule by which a redaction finds what goes with it.

A turn brings a text once and repeats it: a question becomes arguments, results, answers, state, facts and errors. The
rule has three parts. It looks at the turn of the redacted event, from that event on. A piece of the redacted text is a
part of it that an event of the turn holds as a text of its own: an argument, a value, a string inside JSON. An event
repeats the redacted text if one of its texts contains a piece.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.log.chain import ERASING_TYPES
from holdfast.log.event_texts import find_texts, texts_in
from holdfast.log.events import UNREADABLE, Event, message_data
from holdfast.log.view import TURN_ENDS
from holdfast.stores.messages import blobs_of_event

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

MIN_PIECE_BYTES = 8  # a shorter text stands in others by chance
_REPLY_TYPES = ("model.replied", "reply.edited")
_RUN_STARTS = ("turn.started", "turn.reopened")
_RUN_ENDS = (*TURN_ENDS, "run.dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """What a redaction finds in the turn of its event."""

    events: list[Event]  # the redacted event, and the events that repeat it
    pieces: frozenset[str] = frozenset()  # the texts that they repeat
    turn: frozenset[int] = field(default_factory=frozenset)  # seqs of all events of the turn

    def is_in(self, texts: Iterable[str]) -> bool:
        """Whether one of the texts repeats a piece."""
        return any(piece in text for text in texts for piece in self.pieces)


def find_repetition(store: Store, log: Log, event: Event, *, reader: Log) -> Repetition:
    """Return the events of its turn that repeat the text of an event.

    `log` holds the event and may be deleted; `reader` is a living log that shares the event, or the same log.
    """
    turn = _read_turn(store, log, event, reader)
    origins = [event, *_find_replies(turn, event)]
    sources = [text for each in origins for text in _find_texts(store, log, each)]
    texts = {each.seq: _find_texts(store, log, each) for each in turn}
    pieces = {text for each in (sources, *texts.values()) for text in each if _is_piece(text, sources)}
    found = Repetition(events=list(origins), pieces=frozenset(pieces), turn=frozenset(texts))
    seqs, calls = {each.seq for each in origins}, {id for each in origins for id in _calls_in(each)}
    first = min(seqs)
    if any(each.type == "turn.started" and each.seq == first - 1 for each in turn):
        first -= 1  # a turn and its question are appended together: the options of the caller may repeat the question
    for each in turn:
        if each.erased or each.seq in seqs or each.type in ERASING_TYPES:
            continue  # the record of an erasure vouches for tombstones, so it stays
        repeats = each.seq >= first and found.is_in([*texts[each.seq], *find_texts(each, keys=True)])
        if repeats or not calls.isdisjoint(_calls_in(each)):
            found.events.append(each)
    return found


def _is_piece(text: str, sources: list[str]) -> bool:
    return len(text.encode()) >= MIN_PIECE_BYTES and any(text in source for source in sources)


def _find_texts(store: Store, log: Log, event: Event) -> list[str]:
    """Return the texts of an event, and of the whole result if the event holds only the beginning of it."""
    wholes = blobs_of_event(event)[-1:] if event.type == "tool.returned" and b'"whole":' in (event.body or b"") else []
    data = store.blob_of_number(log.number, wholes[0]) if wholes else None
    return find_texts(event) + ([] if data is None else texts_in(data.decode(errors="replace")))


def _calls_in(event: Event) -> set[str]:
    """Return the ids of the calls whose arguments an event holds: a reply, an intent, a request or a decision."""
    try:
        if event.type in _REPLY_TYPES:
            return {part["id"] for part in message_data(event).get("parts", ()) if part["type"] == "tool_call"}
        return {event.data["call_id"]} if {"call_id", "arguments"} <= event.data.keys() else set()
    except UNREADABLE:  # a payload that is not as holdfast writes it
        return set()


def _find_replies(turn: list[Event], event: Event) -> list[Event]:
    """Return the other replies that hold the arguments of a call that the event holds: they are one record."""
    calls = _calls_in(event)
    replies = [each for each in turn if each.type in _REPLY_TYPES and each.seq != event.seq]
    return [each for each in replies if not calls.isdisjoint(_calls_in(each))]


def _read_turn(store: Store, log: Log, event: Event, reader: Log) -> list[Event]:
    """Return the events of the turn that an event belongs to. An event without a run, such as state that a tool sets,
    belongs to the turn that was open when it was appended."""
    run = event.run
    if run is None:
        open_turn = store.view(reader, event.seq).turn
        if open_turn is None:
            return []
        run = open_turn.run
    first = event.seq
    for row in store.read(log, log.base + 1, event.seq, types=["turn.started"], reverse=True, limit=1):
        started = Event(row)
        if started.run == run:
            first = min(started.seq, _question_of(started) or started.seq)  # a queued question came before
    found: list[Event] = []
    is_open = False
    for row in store.walk(log, first):
        each = Event(row)
        if each.run == run or (each.run is None and is_open):
            found.append(each)
        if each.run != run:
            continue
        if each.type in _RUN_ENDS and not _is_reopened(store, log, each):
            break
        is_open = (is_open or each.type in _RUN_STARTS) and each.type not in _RUN_ENDS
    return found


def _question_of(started: Event) -> int:
    try:
        found = started.data.get("question")
    except UNREADABLE:
        return 0
    return found if type(found) is int and found > 0 else 0


def _is_reopened(store: Store, log: Log, end: Event) -> bool:
    """Whether a turn was opened again after it failed or was cancelled: always before another turn starts."""
    rows = store.read(log, end.seq + 1, types=_RUN_STARTS, limit=1)
    return any(Event(row).run == end.run for row in rows)
