"""The history in a prompt: the newest visible messages that fit a number of tokens, kept from turn to turn."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from holdfast.log.messages import File, Image, Message, Text, Thinking, ToolCall, ToolResult
from holdfast.log.ranges import Ranges, clip_ranges
from holdfast.log.view import decode_view
from holdfast.policy.pruning import Item
from holdfast.prompt.compaction import read_newest_first, read_pinned_front, take_pinned_front
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store

WINDOW_SHARE = 0.8  # share of the model's context window that a whole prompt may use
RESULT_LEFT_OUT = "[This result of {size} bytes is left out of the prompt to make room; the log has it.]"


class History:
    """The part of the conversation that goes into a prompt. It only gets shorter, from its old end; messages pinned to
    its front stay. It never reads the store, so it may be shortened in an event loop."""

    def __init__(self, items: Sequence[Item], *, whole: bool, after: int, front: Sequence[Item] = ()) -> None:
        self._items, self._start, self._after = items, 0, after
        self._front = list(front)  # pinned messages, sent although messages between them and the items are left out
        self.is_whole = whole  # no older message is visible
        self.tokens = sum(item.tokens for item in (*self._front, *items))

    def shorten(self, room: int) -> None:
        """Leave out the oldest messages until the rest fits `room` tokens."""
        if self.tokens > room and self.is_whole:
            self.is_whole, self._front = False, take_pinned_front(self._items)
            self._start = len(self._front)
        while self.tokens > room and self._start < len(self._items):
            self.tokens -= self._items[self._start].tokens
            self._start += 1

    def unpin(self, room: int) -> None:
        """Leave out pinned messages, the last one first, until the rest fits `room` tokens."""
        while self._front and self.tokens > room:
            self.tokens -= self._front.pop().tokens

    @property
    def messages(self) -> list[Message]:
        return [item.message for item in (*self._front, *self._items[self._start :])]

    @property
    def front_seqs(self) -> list[int]:
        """The seqs of the pinned messages."""
        return [item.seq for item in self._front]

    @property
    def first_seq(self) -> int:
        return self._items[self._start].seq if self._start < len(self._items) else self._after


def leave_out_results(own: Sequence[Message], count: int) -> list[Message]:
    """Return a turn's messages with the content of its first `count` tool results left out."""
    shortened: list[Message] = []
    for message in own:
        if count and message.role == "tool":
            count -= 1
            size = sum(len(part.data or b"") for part in message.parts if isinstance(part, Image | File))
            parts = [_leave_out_content(part, size) for part in message.parts if isinstance(part, ToolResult)]
            message = Message("tool", parts, author=message.named_author, seq=message.seq)
        shortened.append(message)
    return shortened


def _leave_out_content(part: ToolResult, media_size: int) -> ToolResult:
    text = RESULT_LEFT_OUT.format(size=len(part.content.encode()) + media_size)
    return (
        part
        if len(part.content) <= len(text) and not media_size
        else ToolResult(call_id=part.call_id, content=text, is_error=part.is_error)
    )


def estimate_message_tokens(message: Message) -> int:
    """Estimate the tokens of a message that is not stored yet."""
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


class HistoryWindow:
    """The newest messages of a conversation that fit a number of tokens, kept from one turn to the next.

    If the view has only grown at its end, a turn reads the new messages; after any other change it reads all again.
    """

    def __init__(self) -> None:
        self._ranges: Ranges = []
        self._items: list[Item] = []  # oldest first
        self._room = self._edition = 0
        self._is_whole = False  # no older message is visible
        self._lock = Lock()  # threads may share a session object

    @property
    def last_seq(self) -> int:
        """The last event that the kept messages were read up to; 0 before the first prompt."""
        return self._ranges[-1][1] if self._ranges else 0

    def read(self, store: Store, log: Log, head: Head, room: int) -> History:
        """Return the newest visible messages within `room` tokens, oldest first."""
        with self._lock:
            return self._read(store, log, head, room)

    def _read(self, store: Store, log: Log, head: Head, room: int) -> History:
        view = decode_view(head.view)
        visible = clip_ranges(view.visible, head.head)
        # Events that a fork shares may be erased through another log, without an event in this one. So a fork reads
        # everything each time.
        if view.edition == self._edition and not log.base and self._is_still_valid(visible, room):
            fresh = _new_ranges(self._ranges, visible)
        else:
            self._items, self._is_whole, fresh = [], False, visible
        items, reached = _read_newest(store, log, fresh, room)
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
            front = [item for item in read_pinned_front(store, log, visible) if item.seq not in shown]
        return History(self._items, whole=self._is_whole, after=head.head + 1, front=front)

    def _is_still_valid(self, visible: Ranges, room: int) -> bool:
        """Whether the kept messages are still the beginning of the visible ones: only the last range may have grown.

        This is not always so: a message from the queue may come before kept ones, and parallel agents in any order.
        """
        known, enough = self._ranges, room <= self._room or self._is_whole
        if not self._items or not enough or not known or len(visible) < len(known):
            return False
        (first, last), (now_first, now_last) = known[-1], visible[len(known) - 1]
        return visible[: len(known) - 1] == known[:-1] and first == now_first and last <= now_last


def _new_ranges(known: Ranges, visible: Ranges) -> Ranges:
    """Return the visible ranges after the known ones, which are their beginning."""
    grown = [known[-1][1] + 1, visible[len(known) - 1][1]]
    return [*([grown] if grown[0] <= grown[1] else []), *visible[len(known) :]]


def _read_newest(store: Store, log: Log, ranges: Ranges, room: int) -> tuple[list[Item], bool]:
    """Return the newest messages of the ranges within `room` tokens, oldest first, and whether they are all."""
    items: list[Item] = []
    for item in read_newest_first(store, log, ranges):
        room -= item.tokens
        if room < 0:
            return items[::-1], False
        items.append(item)
    return items[::-1], True
