"""What an agent's loop is given of memory: lines for the prompt, and tools to keep and find things."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast.log.view import view_of
from holdfast.memory.service import Note, Remembered, checked_key, checked_kind, checked_limit, checked_text
from holdfast.memory.source import Origin
from holdfast.memory.statements import slug
from holdfast.tools.tool import Tool, ToolContext, ToolError, tool

if TYPE_CHECKING:
    from holdfast.memory.memory import Memory

LARGEST = 20  # memories that a model is shown at once, whatever it asks for


def lines(found: Iterable[Remembered], room: int) -> str:
    """Memories, a line each, as many as fit; one that does not is left out, not cut."""
    kept: list[str] = []
    for each in found:
        line = told(each)
        size = len(line.encode()) + bool(kept)
        if size <= room:
            kept.append(line)
            room -= size
        if len(kept) == LARGEST:
            break
    return "\n".join(kept)


def told(each: Remembered) -> str:
    """One memory on one line, whatever line ends its text has."""
    sure = "" if each.confidence >= 0.5 else ", uncertain"
    return f"- {' '.join(each.key.split())} ({' '.join(each.kind.split())}{sure}): {' '.join(each.text.split())}"


def tools_of(memory: Memory) -> list[Tool]:
    """The tools of a memory. Whose memories they reach is decided by the session that calls, never by the model."""

    @tool(idempotent=True)
    def remember(ctx: ToolContext, text: str, key: str = "", kind: str = "fact") -> str:
        """Keep something about the user for later conversations. What is known already is updated, not kept twice.

        Args:
            text: What to remember, in one sentence that can be understood on its own.
            key: A short name for it, such as 'home' or 'allergy.nuts'; the same name again replaces what was there.
            kind: What it is, for example 'fact', 'preference' or 'profile'.
        """
        origin = _asked_in(ctx)
        note = Note(
            key=checked_key(key or own_key(text)),
            text=checked_text(text),
            kind=checked_kind(kind),
            source=origin.data(),
        )
        ctx.state.epoch()  # raises once the turn is over: what a forgotten call says late is not kept
        found = memory.keep(memory.shelf_for(origin.store, origin.log), [note], origin, alike=True)
        if not found:
            raise ToolError("the question was erased meanwhile: nothing of it is kept")
        return f"remembered as {found[0].key!r}: {found[0].text}"

    @tool(idempotent=True)
    def search_memory(ctx: ToolContext, query: str, limit: int = 5) -> str:
        """Find what is known about the user from earlier conversations.

        Args:
            query: What to look for, in a few words.
            limit: How many to show at most.
        """
        origin = _asked_in(ctx)
        found = memory.search_on(memory.shelf_for(origin.store, origin.log), query, min(checked_limit(limit), LARGEST))
        return "\n".join(map(told, found)) or "nothing is known about that"

    return [remember, search_memory]


def own_key(text: str) -> str:
    """The key of a memory that was given none."""
    return slug(text) or "note-" + sha256(text.encode()).hexdigest()[:8]


def _asked_in(ctx: ToolContext) -> Origin:
    """The question that the turn of this call answers."""
    if ctx.session is None:
        raise ToolError("there is no session, so nobody can be told whose memory this is")
    store, log = ctx.session.store, ctx.session._log
    turn = view_of(store.head(log).view).turn
    if turn is None:
        return Origin(store, log)
    return Origin(store, log, [turn.question] if turn.question else [first for first, _ in turn.own[:1]])
