"""How a conversation among several looks to one of them.

A provider knows one assistant: whatever stands there as said by it, it takes for its own, tools and all. So an agent
reads its own replies as they were; what the others said and did is told to it, by name, in messages from outside. Then
no prompt has a call of a tool that the agent does not have, thinking that is another model's, or an answer at its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.log.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from holdfast.tools.tool import render

TRANSFER = "transfer_to_"  # before the name, in the name of the tool that hands over
GO_ON = "Go on."
OTHERS = "Others take part in this conversation. What they said and did is shown behind their name: [name] text."


def has_others(messages: Sequence[Message], name: str | None) -> bool:
    return any(_is_other(message, name) for message in messages)


def presented(
    messages: Sequence[Message], name: str | None, *, has_tools: bool, own: int = 0, is_asked: bool = True
) -> list[Message]:
    """The messages as the agent of this name is shown them; the last `own` ones are what it did itself in this turn,
    and its question. Calls and results must be paired, as `repaired` has them. An agent that is asked never has the
    last word: one that comes after itself is told to go on."""
    theirs = [_is_told(message, name, has_tools) for message in messages[: len(messages) - own]] + [False] * own
    found = _told(messages, theirs) if any(theirs) else list(messages)
    if is_asked and found and found[-1].role == "assistant" and not found[-1].tool_calls:
        found.append(Message.user(GO_ON))
    return found


def _told(messages: Sequence[Message], theirs: Sequence[bool]) -> list[Message]:
    found: list[Message] = []
    waiting: dict[str, tuple[str, str]] = {}  # calls of others that have no result yet: who, and which tool
    names = {message.author for message, is_theirs in zip(messages, theirs, strict=True) if is_theirs}
    for message, is_theirs in zip(messages, theirs, strict=True):
        if is_theirs:
            waiting |= {call.id: (message.author, call.name) for call in message.tool_calls}
            lines = _lines(message)
        elif message.role == "tool" and any(_call_id(part) in waiting for part in message.parts):
            lines = [line for part in message.parts for line in _result_line(part, waiting)]
        elif message.role == "user" and _poses(message.text, names):
            lines = [_line("user", message.text)]
        else:
            found.append(message)
            continue
        parts: list[Part] = [Text("\n".join(lines))] if lines else []
        parts += [part for part in message.parts if isinstance(part, Image | File)]
        if parts:
            found.append(
                Message("user", parts, metadata=message.metadata, created_at=message.created_at, seq=message.seq)
            )
    return found


def _line(who: str, text: str) -> str:
    """What somebody said, behind their name; further lines are set in, so that none looks as if another one spoke."""
    return f"[{who}] {text}".replace("\n", "\n  ")


def _poses(text: str, names: set[str]) -> bool:
    """Whether a user's own words would be taken for those of an agent."""
    return any(line.lstrip().startswith(f"[{name}]") for line in text.splitlines() for name in names)


def _is_told(message: Message, name: str | None, has_tools: bool) -> bool:
    """Whether a message is told, and does not stand as it was: what others said; and calls that nobody signed, to one
    who has no tools, because a provider does not take them from it."""
    unsigned = message._author is None and bool(message.tool_calls)
    return _is_other(message, name) or (unsigned and not has_tools)


def _is_other(message: Message, name: str | None) -> bool:
    return message.role == "assistant" and message._author is not None and message._author != name


def _lines(message: Message) -> list[str]:
    lines = []
    for part in message.parts:
        if isinstance(part, Text) and part.text:
            lines.append(_line(message.author, part.text))
        elif isinstance(part, ToolCall) and not part.name.startswith(TRANSFER):
            lines.append(_line(message.author, f"called {part.name} with {render(part.arguments)}"))
    return lines


def _result_line(part: Part, theirs: dict[str, tuple[str, str]]) -> list[str]:
    if not isinstance(part, ToolResult) or part.call_id not in theirs:
        return []
    author, tool = theirs.pop(part.call_id)
    if tool.startswith(TRANSFER):
        return [] if part.is_error else [_line(author, part.content)]
    return [_line(author, f"{tool} {'failed' if part.is_error else 'returned'}: {part.content}")]


def _call_id(part: Part) -> str | None:
    return part.call_id if isinstance(part, ToolResult) else None
