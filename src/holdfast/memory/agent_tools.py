"""What an agent's loop is given of memory: lines for the prompt, and tools to keep and find things."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast.errors import ToolError
from holdfast.log.arguments import check_limit
from holdfast.log.view import decode_view
from holdfast.memory.service import MAX_LIMIT, NewMemory, Remembered, check_key, check_kind, check_text
from holdfast.memory.source import Origin
from holdfast.memory.statements import slug
from holdfast.tools.tool import Tool, ToolContext, tool

if TYPE_CHECKING:
    from holdfast.memory.memory import Memory

MAX_SHOWN = 20  # memories that a model is shown at most, also if it asks for more


def format_memories(found: Iterable[Remembered], room: int) -> str:
    """Memories, a line each, as many as fit; one that does not is left out, not cut."""
    kept: list[str] = []
    for each in found:
        line = format_memory(each)
        size = len(line.encode()) + bool(kept)
        if size <= room:
            kept.append(line)
            room -= size
        if len(kept) == MAX_SHOWN:
            break
    return "\n".join(kept)


def format_memory(each: Remembered) -> str:
    """Return one memory on one line; line ends in its text become spaces."""
    sure = "" if each.confidence >= 0.5 else ", uncertain"
    return f"- {' '.join(each.key.split())} ({' '.join(each.kind.split())}{sure}): {' '.join(each.text.split())}"


def make_tools(memory: Memory) -> list[Tool]:
    """The tools of a memory. Whose memories they reach is decided by the session that calls, never by the model."""

    @tool(idempotent=True)
    def save_memory(ctx: ToolContext, text: str, key: str = "", kind: str = "fact") -> str:
        """Keep something about the user for later conversations. What is known already is updated, not kept twice.

        Args:
            text: What to remember, in one sentence that can be understood on its own.
            key: A short name for it, such as 'home' or 'allergy.nuts'; the same name again replaces what was there.
            kind: What it is, for example 'fact', 'preference' or 'profile'.
        """
        origin = _question_origin(ctx)
        note = NewMemory(
            key=check_key(key or key_from_text(text)),
            text=check_text(text),
            kind=check_kind(kind),
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
        origin = _question_origin(ctx)
        found = memory.search_on(
            memory.shelf_for(origin.store, origin.log), query, min(check_limit(limit, MAX_LIMIT), MAX_SHOWN)
        )
        return "\n".join(map(format_memory, found)) or "nothing is known about that"

    return [save_memory, search_memory]


def key_from_text(text: str) -> str:
    """The key of a memory that was given none."""
    return slug(text) or "note-" + sha256(text.encode()).hexdigest()[:8]


def _question_origin(ctx: ToolContext) -> Origin:
    """The question that the turn of this call answers."""
    if ctx.session is None:
        raise ToolError("there is no session, so nobody can be told whose memory this is")
    store, log = ctx.session.store, ctx.session.log
    turn = decode_view(store.head(log).view).turn
    if turn is None:
        return Origin(store, log)
    return Origin(store, log, [turn.question] if turn.question else [first for first, _ in turn.own_messages[:1]])
