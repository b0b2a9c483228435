"""What a model is sent: instructions, facts, the view of history, the turn so far. Stable parts first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import MissingState
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.messages import Message
from holdfast.log.view import cut, view_of
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


def history_of(
    store: Store, log: Log, head: Head, tokens: int, known: dict[bytes, Message]
) -> tuple[list[Message], int]:
    """The newest visible messages within a budget of tokens, oldest first, and the seq of the first of them.

    `known` keeps decoded messages from one turn to the next, by the hash of their event.
    """
    found: list[Message] = []
    kept: dict[bytes, Message] = {}
    first_seq, room = head.head + 1, tokens
    for first, last in reversed(cut(view_of(head.view).visible, head.head)):
        upto = last
        while room > 0 and upto >= first:
            rows = store.read(log, first, upto, limit=PAGE, reverse=True, types=MESSAGE_TYPES)
            for row in rows:
                room -= len(row.body or b"") // 4 + 1
                if room < 0 and found:
                    known.clear()
                    known.update(kept)
                    return found[::-1], first_seq
                message = known.get(row.hash) or message_of(store, log, row)
                kept[row.hash] = message
                found.append(message)
                first_seq = row.seq
            if len(rows) < PAGE:
                break
            upto = rows[-1].seq - 1
        if room <= 0:
            break
    known.clear()
    known.update(kept)
    return found[::-1], first_seq


def own_events(store: Store, log: Log, run: str, first: int, last: int) -> list[Event]:
    """The events of one turn, decisions about it included."""
    events = [Event(row) for row in store.read(log, first, last)]
    return [event for event in events if event.run == run or event.type == "approval.decided"]
