"""What a model is sent: instructions, facts, the view of history, the turn so far. Stable parts first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

from holdfast.errors import MissingState
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.messages import Message
from holdfast.log.view import Ranges, cut, view_of
from holdfast.stores.base import Log, Store
from holdfast.stores.plan import Head
from holdfast.stores.portable import message_of

WINDOW_SHARE = 0.8  # of the model's context window, for the history
FACTS_BYTES = 8_000
PAGE = 64
_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def filled(template: str, state: Mapping[str, Any]) -> str:
    """Instructions with `{name}` replaced by state. A name is a name, dots included; `{{` and `}}` are braces."""

    def value(match: re.Match[str]) -> str:
        if match.group() in ("{{", "}}"):
            return match.group()[0]
        name = match.group(1)
        if name not in state:
            raise MissingState(name)
        found = state[name]
        return found if isinstance(found, str) else str(found)

    return _FIELD.sub(value, template)


def names_in(template: str) -> list[str]:
    """The state that instructions need."""
    return [match.group(1) for match in _FIELD.finditer(template) if match.group(1) is not None]


def facts_text(facts: Sequence[Mapping[str, Any]]) -> str:
    """The durable tier as the model reads it, the newest kept where there are too many."""
    lines: list[str] = []
    room = FACTS_BYTES
    for fact in reversed(facts):
        status = f" [{fact['status']}]" if fact.get("status") else ""
        line = f"- {fact.get('kind', 'fact')}: {fact['text']}{status}"
        room -= len(line.encode()) + 1
        if room < 0:
            lines.append(f"- … {len(facts) - len(lines)} older ones are left out")
            break
        lines.append(line)
    return "What is known:\n" + "\n".join(reversed(lines)) if lines else ""


def loose_ends(store: Store, log: Log, seqs: Sequence[int]) -> str:
    """One line about calls that took effect in turns that failed: the model must not do them again unknowingly."""
    if not seqs:
        return ""
    finished: list[str] = []
    unknown: list[str] = []
    for event in (store.event(log, seq) for seq in seqs[-20:]):
        kind = unknown if event.data.get("unknown") else finished
        kind.append(f"{event.data['name']} (call {event.data['call_id']})")
    lines = []
    if finished:
        lines.append(f"An earlier turn failed after these calls had already finished: {', '.join(finished)}.")
    if unknown:
        lines.append(f"These calls of an earlier turn may or may not have taken effect: {', '.join(unknown)}.")
    return " ".join(lines)


class Window:
    """The end of a conversation that fits a budget of tokens, kept from one turn to the next.

    A turn that finds the view grown at its end reads what is new; any other change of the view, and it reads anew.
    """

    def __init__(self) -> None:
        self._upto = 0
        self._ranges: Ranges = []
        self._items: list[tuple[int, int, Message]] = []  # seq, tokens, message; oldest first
        self._room = 0
        self._is_whole = False  # nothing older is visible
        self._lock = Lock()  # threads that share a session object get ready at the same time

    def read(self, store: Store, log: Log, head: Head, room: int) -> tuple[list[Message], int]:
        """The newest visible messages within `room` tokens, oldest first, and the seq of the first of them."""
        with self._lock:
            return self._read(store, log, head, room)

    def _read(self, store: Store, log: Log, head: Head, room: int) -> tuple[list[Message], int]:
        visible = cut(view_of(head.view).visible, head.head)
        if self._holds(visible, room):
            fresh = [[max(first, self._upto + 1), last] for first, last in visible if last > self._upto]
        else:
            self._items, self._is_whole, fresh = [], False, visible
        items, reached = _newest(store, log, fresh, room)
        whole = reached and (self._is_whole or fresh is visible)
        if reached:
            items = self._items + items
        total = sum(tokens for _, tokens, _ in items)
        start = 0
        while total > room and start < len(items) - 1:
            total -= items[start][1]
            start += 1
        self._items, self._is_whole = items[start:], whole and start == 0
        self._upto, self._ranges, self._room = head.head, visible, room
        first_seq = self._items[0][0] if self._items else head.head + 1
        return [message for _, _, message in self._items], first_seq

    def _holds(self, visible: Ranges, room: int) -> bool:
        """Whether what is kept is still the beginning of what is visible."""
        in_order = all(one[1] < two[0] for one, two in pairwise(visible))
        enough = room <= self._room or self._is_whole
        return bool(self._items) and in_order and enough and cut(visible, self._upto) == self._ranges


def _newest(store: Store, log: Log, ranges: Ranges, room: int) -> tuple[list[tuple[int, int, Message]], bool]:
    """Messages of the ranges from the end, until the room is used up; and whether the beginning was reached."""
    found: list[tuple[int, int, Message]] = []
    for first, last in reversed(ranges):
        upto = last
        while upto >= first:
            rows = store.read(log, first, upto, limit=PAGE, reverse=True, types=MESSAGE_TYPES)
            for row in rows:
                tokens = len(row.body or b"") // 4 + 1
                room -= tokens
                if room < 0 and found:
                    return found[::-1], False
                found.append((row.seq, tokens, message_of(store, log, row)))
            if len(rows) < PAGE:
                break
            upto = rows[-1].seq - 1
    return found[::-1], True


def own_events(store: Store, log: Log, run: str, first: int, last: int) -> list[Event]:
    """The events of one turn, decisions about it included."""
    events = [Event(row) for row in store.read(log, first, last)]
    return [event for event in events if event.run == run or event.type == "approval.decided"]
