"""Texts of a prompt before its messages: facts, and effects of failed turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.log.lines import one_line
from holdfast.stores.base import Log, Store

FACTS_BYTES = 8_000


def format_facts(facts: Sequence[Mapping[str, Any]], room: int = FACTS_BYTES) -> str:
    """Return the facts of the session as a text for the model. If they exceed `room` bytes, the oldest are left out."""
    lines: list[str] = []
    for fact in reversed(facts):
        status = f" [{fact['status']}]" if fact.get("status") else ""
        line = one_line(f"- {fact.get('kind', 'fact')}: {fact['text']}{status}")
        room -= len(line.encode()) + 1
        if room < 0:
            lines.append(f"- … {len(facts) - len(lines)} older ones are left out")
            break
        lines.append(line)
    return "What is known:\n" + "\n".join(reversed(lines)) if lines else ""


def unreported_effects(store: Store, log: Log, seqs: Sequence[int]) -> str:
    """Return a line about calls that took effect, or may have, in turns that failed, so that the model does not repeat
    them unknowingly."""
    if not seqs:
        return ""
    finished: list[str] = []
    unknown: list[str] = []
    for event in (store.event(log, seq) for seq in seqs[-20:]):
        kind = unknown if event.data.get("unknown") else finished
        kind.append(one_line(f"{event.data['name']} (call {event.data['call_id']})"))
    lines = []
    if finished:
        lines.append(f"An earlier turn failed after these calls had already finished: {', '.join(finished)}.")
    if unknown:
        lines.append(f"These calls of an earlier turn may or may not have taken effect: {', '.join(unknown)}.")
    return " ".join(lines)
