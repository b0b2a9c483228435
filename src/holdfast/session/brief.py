"""The brief: what a successor needs to know of a session, as Markdown, and the git head of its work directory.

The same session always gives the same text, and the text never takes more room than it is given: what a successor can
do without goes first, and decisions and open work go last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidArgument

WORDS = 600  # characters of one message
ENDED = {"done", "closed", "cancelled"}

_STAND, _DECISIONS, _OPEN, _DONE = "Where things stand", "Decisions", "Open work", "Done"
_FACTS, _ARTIFACTS, _LAST, _WORK_DIR = "Facts", "Artifacts", "Last words", "Work directory"
_ORDER = (_STAND, _DECISIONS, _OPEN, _DONE, _FACTS, _ARTIFACTS, _LAST, _WORK_DIR)
_CUT_FIRST = (_LAST, _FACTS, _DONE, _ARTIFACTS, _DECISIONS, _OPEN)

_SMALL, _PACKED = 4096, 1 << 24  # bytes that are read of a file: of one ref, and of all the packed ones
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\s\x00-\x20\x7f~^:?*\[\\]{1,250}")

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
    """What a successor needs, in at most `room` characters; `facts` and `last` come oldest first.

    `unfinished` is the question of the turn that has no answer yet, `pending` the calls that wait for approval, `last`
    pairs of role and text.
    """
    if room < 1:
        raise InvalidArgument(f"room={room!r}: use the number of characters that the brief may have")
    first = f"# Brief of session {_one_line(session_id)}" + (f": {_one_line(title, WORDS)}" if title else "")
    sections: Sections = {heading: [] for heading in _ORDER}
    sections[_STAND] = _where_things_stand(turns, messages, unfinished, pending, system)
    for fact in facts:
        # One long fact may not push out all the others.
        sections[_heading_of(fact)].append(_cut(_fact_line(fact), max(room // 4, 1)))
    sections[_LAST] = [f"- {_one_line(role)}: {_one_line(text, WORDS)}" for role, text in last]
    sections[_WORK_DIR] = [f"- {_one_line(path)}" for path in [work_dir] if path]
    sections[_WORK_DIR] += [f"- git: {_one_line(head)}" for head in [git] if head]
    return _fitted(first, sections, room)


def _where_things_stand(
    turns: int, messages: int, unfinished: str | None, pending: Sequence[str], system: str | None
) -> list[str]:
    lines = [f"- {_count(turns, 'turn')}, {_count(messages, 'message')}"]
    if unfinished:
        lines.append(f"- Unfinished turn, it was asked: {_one_line(unfinished, WORDS)}")
    if pending:
        wait = "waits" if len(pending) == 1 else "wait"
        lines.append(f"- {_count(len(pending), 'call')} {wait} for approval: {_one_line(', '.join(pending), WORDS)}")
    if system:
        lines.append(f"- Instructions were: {_one_line(system, WORDS)}")
    return lines


def _heading_of(fact: Mapping[str, Any]) -> str:
    kind = fact.get("kind")
    if kind in ("feature", "progress"):
        return _DONE if (fact.get("status") or "").strip().casefold() in ENDED else _OPEN
    return {"decision": _DECISIONS, "artifact": _ARTIFACTS}.get(str(kind), _FACTS)


def _fact_line(fact: Mapping[str, Any]) -> str:
    status, ref = fact.get("status"), fact.get("ref")
    line = f"- {fact['text']}" + (f" [{status}]" if status else "") + (f" ({ref})" if ref else "")
    return _one_line(line)


def _fitted(first: str, sections: Sections, room: int) -> str:
    for heading in _CUT_FIRST:
        excess = len(_markdown(first, sections)) - room
        if excess <= 0:
            break
        sections[heading] = _shortened(sections[heading], excess, says_so=heading != _LAST)
    # Nothing is left to leave out: the room is smaller than the outline, and the limit still holds.
    return _cut(_markdown(first, sections), room)


def _shortened(lines: list[str], excess: int, *, says_so: bool) -> list[str]:
    """The lines without the oldest ones, as many as it takes to be shorter by `excess`."""
    dropped, freed = 0, 0
    while dropped < len(lines) and freed < excess + (len(_left_out(dropped)) + 1 if says_so else 0):
        freed += len(lines[dropped]) + 1
        dropped += 1
    note = [_left_out(dropped)] if says_so and dropped else []
    return note + lines[dropped:]


def _left_out(count: int) -> str:
    return f"- ({count} older ones left out)"


def _markdown(first: str, sections: Sections) -> str:
    parts = [f"## {heading}\n\n" + "\n".join(lines) for heading, lines in sections.items() if lines]
    return "\n\n".join([first, *parts]) + "\n"


def _one_line(text: str, limit: int | None = None) -> str:
    """A text that cannot start a line of its own, and so cannot pass for a heading."""
    line = " ".join(text.split())
    return line if limit is None else _cut(line, limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def git_head(folder: Path) -> str | None:
    """Branch and commit of the repository that a folder is in, as "main 3fa9c1e2…"; "HEAD 3fa9c1e2…" if it is detached.

    Read from the files, never by running git, which would obey the configuration of a repository nobody vouches for.
    None if there is no repository, no commit yet, or anything odd.
    """
    try:
        home = _git_folder(folder)
        return _head_of(home) if home else None
    except (OSError, ValueError):  # not to be read, or not text
        return None


def _git_folder(folder: Path) -> Path | None:
    start = Path(os.path.realpath(folder))
    if not start.is_dir():
        return None
    for parent in (start, *start.parents):
        found = parent / ".git"
        if found.is_file():  # a worktree or a submodule: the file says where the folder is
            kind, _, place = _read(found).partition(":")
            return parent / place.strip() if kind == "gitdir" else None
        if (found / "HEAD").is_file():
            return found
    return None


def _head_of(home: Path) -> str | None:
    head = _read(home / "HEAD")
    if _COMMIT.fullmatch(head):
        return f"HEAD {head}"
    name = _ref_in(head)
    common = home / _read(home / "commondir") if (home / "commondir").is_file() else home
    commit = _commit_of(name, home, common) if name else None
    return f"{name.removeprefix('refs/heads/')} {commit}" if name and commit else None


def _commit_of(name: str, home: Path, common: Path) -> str | None:
    # A worktree has a few refs of its own and shares the rest; a loose ref is newer than the packed one.
    for place in (home / name, common / name):
        if place.is_file():
            commit = _read(place)
            return commit if _COMMIT.fullmatch(commit) else None
    return _packed_commit(name, common / "packed-refs")


def _packed_commit(name: str, path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:  # as bytes: the names of other refs need not be text
        for line in file.read(_PACKED).split(b"\n")[:-1]:  # the last may be half a line
            commit, _, ref = line.partition(b" ")
            if ref == name.encode() and _COMMIT.fullmatch(commit.decode()):
                return commit.decode()
    return None


def _ref_in(text: str) -> str | None:
    kind, _, name = text.partition(":")
    name = name.strip()
    return name if kind == "ref" and _REF.fullmatch(name) and ".." not in name else None


def _read(path: Path) -> str:
    if not path.is_file():  # a pipe would never end, a device neither
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        return file.read(_SMALL).decode().strip()
