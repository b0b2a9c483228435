"""The conversation of several agents, as one of them is shown it.

A provider knows one assistant, and a model takes every assistant message for its own, with its tool calls. So an agent
gets its own replies unchanged, and the replies and tool calls of other agents as user messages with the agent's name.
So no prompt has a call of a tool that the agent does not have, thinking of another model, or an answer at its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.log.lines import indent_lines, one_line
from holdfast.log.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from holdfast.tools.tool import render

HANDOFF_TOOL_PREFIX = "transfer_to_"  # prefix of a handoff tool's name; the name of the other agent follows
GO_ON = "Go on."
OTHERS_NOTE = "Others take part in this conversation. What they said and did is shown behind their name: [name] text."


def has_other_agents(messages: Sequence[Message], name: str | None) -> bool:
    return any(_is_by_other_agent(message, name) for message in messages)


def as_seen_by(
    messages: Sequence[Message], name: str | None, *, has_tools: bool, own: int = 0, is_asked: bool = True
) -> list[Message]:
    """Return the messages as the agent with this name is shown them.

    The last `own` messages are the agent's own of this turn, with the question. Calls and results must be paired, as
    `repair_history` returns them. With `is_asked` the last message is never an answer: if the agent follows itself, a
    user message asks it to go on.
    """
    quoted = [_is_quoted(message, name, has_tools) for message in messages[: len(messages) - own]] + [False] * own
    shown = _quote_others(messages, quoted) if any(quoted) else list(messages)
    if is_asked and shown and shown[-1].role == "assistant" and not shown[-1].tool_calls:
        shown.append(Message.user(GO_ON))
    return shown


def _quote_others(messages: Sequence[Message], quoted: Sequence[bool]) -> list[Message]:
    shown: list[Message] = []
    waiting: dict[str, tuple[str, str]] = {}  # quoted calls without a result yet: call id -> agent, tool
    names = {message.author for message, is_quoted in zip(messages, quoted, strict=True) if is_quoted}
    for message, is_quoted in zip(messages, quoted, strict=True):
        if is_quoted:
            waiting |= {call.id: (message.author, call.name) for call in message.tool_calls}
            lines = _format_message(message)
        elif message.role == "tool" and any(_call_id(part) in waiting for part in message.parts):
            lines = [line for part in message.parts for line in _format_result(part, waiting)]
        elif message.role == "user" and _looks_like_agent(message.text, names):
            lines = [_format_line("user", message.text)]
        else:
            shown.append(message)
            continue
        parts: list[Part] = [Text("\n".join(lines))] if lines else []
        parts += [part for part in message.parts if isinstance(part, Image | File)]
        if parts:
            shown.append(
                Message("user", parts, metadata=message.metadata, created_at=message.created_at, seq=message.seq)
            )
    return shown


def _format_line(who: str, text: str) -> str:
    """Return a text after the name of its author. Further lines are indented, so that none looks like another
    author's."""
    return f"[{one_line(who)}] {indent_lines(text)}"


def _looks_like_agent(text: str, names: set[str]) -> bool:
    """Whether a user's text has a line that looks like the quoted text of an agent."""
    return any(line.lstrip().startswith(f"[{name}]") for line in text.splitlines() for name in names)


def _is_quoted(message: Message, name: str | None, has_tools: bool) -> bool:
    """Whether a message must be rewritten as a user message: another agent's reply, or unsigned tool calls when this
    agent has no tools (providers reject those)."""
    unsigned = message.named_author is None and bool(message.tool_calls)
    return _is_by_other_agent(message, name) or (unsigned and not has_tools)


def _is_by_other_agent(message: Message, name: str | None) -> bool:
    return message.role == "assistant" and message.named_author is not None and message.named_author != name


def _format_message(message: Message) -> list[str]:
    lines = []
    for part in message.parts:
        if isinstance(part, Text) and part.text:
            lines.append(_format_line(message.author, part.text))
        elif isinstance(part, ToolCall) and not part.name.startswith(HANDOFF_TOOL_PREFIX):
            lines.append(_format_line(message.author, f"called {part.name} with {render(part.arguments)}"))
    return lines


def _format_result(part: Part, waiting: dict[str, tuple[str, str]]) -> list[str]:
    if not isinstance(part, ToolResult) or part.call_id not in waiting:
        return []
    author, tool = waiting.pop(part.call_id)
    if tool.startswith(HANDOFF_TOOL_PREFIX):
        return [] if part.is_error else [_format_line(author, part.content)]
    return [_format_line(author, f"{tool} {'failed' if part.is_error else 'returned'}: {part.content}")]


def _call_id(part: Part) -> str | None:
    return part.call_id if isinstance(part, ToolResult) else None
