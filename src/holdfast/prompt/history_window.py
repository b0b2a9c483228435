"""What a model is sent: instructions, facts, the view of history, the turn so far. Stable parts first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from holdfast.errors import MissingState
from holdfast.log.events import Event
from holdfast.log.messages import Message, Text, Thinking, ToolCall, ToolResult
from holdfast.log.view import Ranges, cut, view_of
from holdfast.policy.pruning import Item
from holdfast.prompt.compaction import leading, newest_first, pinned_front
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store

WINDOW_SHARE = 0.8  # of the model's context window, for everything that is sent
FACTS_BYTES = 8_000
LEFT_OUT = "[This result of {size} bytes is left out of the prompt to make room; the log has it.]"
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


def facts_text(facts: Sequence[Mapping[str, Any]], room: int = FACTS_BYTES) -> str:
    """The durable tier as the model reads it, the newest kept where there are too many."""
    lines: list[str] = []
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


class History:
    """The part of the conversation that goes into a prompt. It only ever gets shorter, from its old end; what is
    pinned to its front stays. It reads nothing: an event loop may shorten it."""

    def __init__(self, items: Sequence[Item], *, whole: bool, after: int, front: Sequence[Item] = ()) -> None:
        self._items, self._start, self._after = items, 0, after
        self._pinned = list(front)  # what stands before the items although something between is left out
        self.whole = whole  # nothing older is visible
        self.tokens = sum(item.tokens for item in (*self._pinned, *items))

    def shorten(self, room: int) -> None:
        """Leave out the oldest messages until the rest fits."""
        if self.tokens > room and self.whole:
            self.whole, self._pinned = False, leading(self._items)
            self._start = len(self._pinned)
        while self.tokens > room and self._start < len(self._items):
            self.tokens -= self._items[self._start].tokens
            self._start += 1

    def unpin(self, room: int) -> None:
        """Give up the front from its end, if even that is too long."""
        while self._pinned and self.tokens > room:
            self.tokens -= self._pinned.pop().tokens

    @property
    def messages(self) -> list[Message]:
        return [item.message for item in (*self._pinned, *self._items[self._start :])]

    @property
    def pinned(self) -> list[int]:
        """The seqs of what stands at the front although what follows it is left out."""
        return [item.seq for item in self._pinned]

    @property
    def first_seq(self) -> int:
        return self._items[self._start].seq if self._start < len(self._items) else self._after


def shortened(own: Sequence[Message], count: int) -> list[Message]:
    """A turn's messages with the content of its first `count` tool results left out."""
    found: list[Message] = []
    for message in own:
        if count and message.role == "tool":
            count -= 1
            parts = [_left_out(part) if isinstance(part, ToolResult) else part for part in message.parts]
            message = Message("tool", parts, author=message._author, seq=message.seq)
        found.append(message)
    return found


def _left_out(part: ToolResult) -> ToolResult:
    text = LEFT_OUT.format(size=len(part.content.encode()))
    return (
        part
        if len(part.content) <= len(text)
        else ToolResult(call_id=part.call_id, content=text, is_error=part.is_error)
    )


def tokens_of(message: Message) -> int:
    """About how many tokens a message is that is not stored yet."""
    size = 20
    for part in message.parts:
        if isinstance(part, ToolResult):
            size += len(part.content.encode()) + 20
        elif isinstance(part, ToolCall):
            size += len(str(part.arguments).encode()) + len(part.name) + 40
        elif isinstance(part, Text | Thinking):
            size += len(part.text.encode())
        else:
            size += 4_000  # an image or a file: providers count about a thousand tokens for a page of it
    return size // 4 + 1


class Window:
    """The end of a conversation that fits a budget of tokens, kept from one turn to the next.

    A turn that finds the view grown at its end reads what is new; any other change of the view, and it reads anew.
    """

    def __init__(self) -> None:
        self._ranges: Ranges = []
        self._items: list[Item] = []  # oldest first
        self._room = self._edition = 0
        self._is_whole = False  # nothing older is visible
        self._lock = Lock()  # threads that share a session object get ready at the same time

    def read(self, store: Store, log: Log, head: Head, room: int) -> History:
        """The newest visible messages within `room` tokens, oldest first."""
        with self._lock:
            return self._read(store, log, head, room)

    def _read(self, store: Store, log: Log, head: Head, room: int) -> History:
        view = view_of(head.view)
        visible = cut(view.visible, head.head)
        # What a fork shares with others may be erased there without a word in this log: it is read anew each time.
        if view.edition == self._edition and not log.base and self._holds(visible, room):
            fresh = _beyond(self._ranges, visible)
        else:
            self._items, self._is_whole, fresh = [], False, visible
        items, reached = _newest(store, log, fresh, room)
        whole = reached and (self._is_whole or fresh is visible)
        if reached:
            items = self._items + items
        total = sum(item.tokens for item in items)
        start = 0
        while total > room and start < len(items):
            total -= items[start].tokens
            start += 1
        self._items, self._is_whole = items[start:], whole and start == 0
        self._ranges, self._room, self._edition = visible, room, view.edition
        front: list[Item] = []
        if not self._is_whole:
            shown = {item.seq for item in self._items}
            front = [item for item in pinned_front(store, log, visible) if item.seq not in shown]
        return History(self._items, whole=self._is_whole, after=head.head + 1, front=front)

    def _holds(self, visible: Ranges, room: int) -> bool:
        """Whether what is kept is still the beginning of what is visible: only its last piece may have grown. (A
        message that waited in the queue may stand before what is known, and agents at the same time in any order.)"""
        known, enough = self._ranges, room <= self._room or self._is_whole
        if not self._items or not enough or not known or len(visible) < len(known):
            return False
        (first, last), (now_first, now_last) = known[-1], visible[len(known) - 1]
        return visible[: len(known) - 1] == known[:-1] and first == now_first and last <= now_last


def _beyond(known: Ranges, visible: Ranges) -> Ranges:
    """What is visible after what is known, which is its beginning."""
    grown = [known[-1][1] + 1, visible[len(known) - 1][1]]
    return [*([grown] if grown[0] <= grown[1] else []), *visible[len(known) :]]


def _newest(store: Store, log: Log, ranges: Ranges, room: int) -> tuple[list[Item], bool]:
    """Messages of the ranges from the end, until the room is used up; and whether the beginning was reached."""
    found: list[Item] = []
    for item in newest_first(store, log, ranges):
        room -= item.tokens
        if room < 0:
            return found[::-1], False
        found.append(item)
    return found[::-1], True


def own_events(store: Store, log: Log, run: str, first: int, last: int) -> list[Event]:
    """The events of one turn from its `turn.started` on, before them the queued message that it answers. Decisions
    about it are included; what it did to make room is no part of it."""
    events = [Event(row) for row in store.read(log, first, last) if row.type != "summary.added"]
    question = events[0].data.get("question") if events and events[0].type == "turn.started" else None
    asked = [] if not question else [store.event(log, question)]
    return [*asked, *(event for event in events if event.run == run or event.type == "approval.decided")]
