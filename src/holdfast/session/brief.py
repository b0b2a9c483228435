"""The brief of a session: the Markdown text that its successor session begins with.

The same session always gives the same text, and the text never exceeds its limit of characters. Where it would, lines
are left out, first of the sections that a successor needs least; decisions and open work are left out last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidArgument

MAX_MESSAGE_CHARACTERS = 600  # characters of one message, title or instruction in the brief
DONE_STATUSES = {"done", "closed", "cancelled"}

_STAND, _DECISIONS, _OPEN, _DONE = "Where things stand", "Decisions", "Open work", "Done"
_FACTS, _ARTIFACTS, _LAST, _WORK_DIR = "Facts", "Artifacts", "Last words", "Work directory"
_ORDER = (_STAND, _DECISIONS, _OPEN, _DONE, _FACTS, _ARTIFACTS, _LAST, _WORK_DIR)
_CUT_FIRST = (_LAST, _FACTS, _DONE, _ARTIFACTS, _DECISIONS, _OPEN)

Sections = dict[str, list[str]]


def brief_text(
    *,
    session_id: str,
    title: str | None,
    system: str | None,
    facts: Sequence[Mapping[str, Any]],
    unfinished: str | None,
    pending: Sequence[str],
    last: Sequence[tuple[str, str]],
    work_dir: str | None,
    git: str | None,
    turns: int,
    messages: int,
    room: int = 12_000,
) -> str:
    """Return the brief in at most `room` characters. Raises InvalidArgument if `room` is less than 1.

    `unfinished` is the question of the turn that has no answer yet, `pending` the calls that wait for approval, `last`
    the last messages as pairs of role and text. `facts` and `last` are given oldest first.
    """
    if room < 1:
        raise InvalidArgument(f"room={room!r}: use the number of characters that the brief may have")
    first = f"# Brief of session {_one_line(session_id)}" + (
        f": {_one_line(title, MAX_MESSAGE_CHARACTERS)}" if title else ""
    )
    sections: Sections = {heading: [] for heading in _ORDER}
    sections[_STAND] = _where_things_stand(turns, messages, unfinished, pending, system)
    for fact in facts:
        # A limit for each fact, so that one long fact does not push out all the others.
        sections[_heading_of(fact)].append(_truncate_text(_fact_line(fact), max(room // 4, 1)))
    sections[_LAST] = [f"- {_one_line(role)}: {_one_line(text, MAX_MESSAGE_CHARACTERS)}" for role, text in last]
    sections[_WORK_DIR] = [f"- {_one_line(path)}" for path in [work_dir] if path]
    sections[_WORK_DIR] += [f"- git: {_one_line(head)}" for head in [git] if head]
    return _fit_sections(first, sections, room)


def _where_things_stand(
    turns: int, messages: int, unfinished: str | None, pending: Sequence[str], system: str | None
) -> list[str]:
    lines = [f"- {_count_noun(turns, 'turn')}, {_count_noun(messages, 'message')}"]
    if unfinished:
        lines.append(f"- Unfinished turn, it was asked: {_one_line(unfinished, MAX_MESSAGE_CHARACTERS)}")
    if pending:
        wait = "waits" if len(pending) == 1 else "wait"
        names = _one_line(", ".join(pending), MAX_MESSAGE_CHARACTERS)
        lines.append(f"- {_count_noun(len(pending), 'call')} {wait} for approval: {names}")
    if system:
        lines.append(f"- Instructions were: {_one_line(system, MAX_MESSAGE_CHARACTERS)}")
    return lines


def _heading_of(fact: Mapping[str, Any]) -> str:
    kind = fact.get("kind")
    if kind in ("feature", "progress"):
        return _DONE if (fact.get("status") or "").strip().casefold() in DONE_STATUSES else _OPEN
    return {"decision": _DECISIONS, "artifact": _ARTIFACTS}.get(str(kind), _FACTS)


def _fact_line(fact: Mapping[str, Any]) -> str:
    status, ref = fact.get("status"), fact.get("ref")
    line = f"- {fact['text']}" + (f" [{status}]" if status else "") + (f" ({ref})" if ref else "")
    return _one_line(line)


def _fit_sections(first: str, sections: Sections, room: int) -> str:
    for heading in _CUT_FIRST:
        excess = len(_render_markdown(first, sections)) - room
        if excess <= 0:
            break
        sections[heading] = _drop_oldest(sections[heading], excess, says_so=heading != _LAST)
    # If it is still too long, the outline alone exceeds `room`: cut the text itself, so that the limit holds.
    return _truncate_text(_render_markdown(first, sections), room)


def _drop_oldest(lines: list[str], excess: int, *, says_so: bool) -> list[str]:
    """Drop the oldest lines until the rest is shorter by `excess`; with `says_so`, a note gives their number."""
    dropped, freed = 0, 0
    while dropped < len(lines) and freed < excess + (len(_omission_note(dropped)) + 1 if says_so else 0):
        freed += len(lines[dropped]) + 1
        dropped += 1
    note = [_omission_note(dropped)] if says_so and dropped else []
    return note + lines[dropped:]


def _omission_note(count: int) -> str:
    return f"- ({count} older ones left out)"


def _render_markdown(first: str, sections: Sections) -> str:
    parts = [f"## {heading}\n\n" + "\n".join(lines) for heading, lines in sections.items() if lines]
    return "\n\n".join([first, *parts]) + "\n"


def _one_line(text: str, limit: int | None = None) -> str:
    """Return the text on one line, so that none of its own lines can pass for a heading of the brief."""
    line = " ".join(text.split())
    return line if limit is None else _truncate_text(line, limit)


def _truncate_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _count_noun(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
