"""Repair of a conversation: the calls and results of tools in the form that every provider accepts."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.log.messages import File, Image, Message, Part, ToolCall, ToolResult

Answer = tuple[ToolResult, tuple[Image | File, ...]]  # a result, with its images and files
UNKNOWN_OUTCOME = "No result was recorded for this call: it was interrupted, and whether it took effect is unknown."


def repair_history(messages: Iterable[Message]) -> list[Message]:
    """Return the conversation in the form that providers accept: every call is followed at once by its result, every
    result has a call, and no two calls share an id.

    A call without a result gets a result that says so; a result without a call is left out.
    """
    items = list(messages)
    if _is_valid(items):
        return items
    paired: list[tuple[Message, list[Answer | None]]] = []
    later: dict[str, list[Answer]] = {}  # results after the current message, the nearest last
    for message in reversed(items):
        calls = message.tool_calls if message.role == "assistant" else []
        paired.append((message, _match_results(calls, later)))
        for answer in reversed(_find_answers(message)):
            later.setdefault(answer[0].call_id, []).append(answer)
    found: list[Message] = []
    used: set[str] = set()
    for message, answers in reversed(paired):
        found += _rebuild_message(message, answers, used)
    return found


def _is_valid(items: list[Message]) -> bool:
    """Whether the messages need no repair, which is the usual case and must be cheap."""
    used: set[str] = set()
    open_calls: set[str] = set()
    for message in items:
        parts = message.parts
        if message.role == "tool":
            part = parts[0] if parts else None
            if not isinstance(part, ToolResult) or part.call_id not in open_calls:
                return False
            if len(parts) > 1 and not all(isinstance(each, Image | File) for each in parts[1:]):
                return False
            open_calls.remove(part.call_id)
            continue
        if open_calls:
            return False
        for part in parts:
            kind = type(part)
            if kind is ToolResult:
                return False
            if kind is ToolCall:
                if message.role != "assistant" or not part.id or part.id in used:  # type: ignore[union-attr]
                    return False
                used.add(part.id)  # type: ignore[union-attr]
                open_calls.add(part.id)  # type: ignore[union-attr]
    return not open_calls


def _find_answers(message: Message) -> list[Answer]:
    """Return the results in a message, each with the images and files that follow it in a message of a tool."""
    found: list[tuple[ToolResult, list[Image | File]]] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            found.append((part, []))
        elif found and message.role == "tool" and isinstance(part, Image | File):
            found[-1][1].append(part)
    return [(result, tuple(media)) for result, media in found]


def _match_results(calls: list[ToolCall], later: dict[str, list[Answer]]) -> list[Answer | None]:
    # A result belongs to the nearest call before it. Otherwise an interrupted call would take the result of a later
    # call that has the same id.
    mine = {call_id: later.pop(call_id, []) for call_id in {call.id for call in calls}}
    return [mine[call.id].pop() if mine[call.id] else None for call in calls]


def _rebuild_message(message: Message, answers: list[Answer | None], used: set[str]) -> list[Message]:
    parts: list[Part] = []
    moved = [part for _, media in _find_answers(message) for part in media]
    results: list[Message] = []
    pending = iter(answers)
    for part in message.parts:
        if isinstance(part, ToolCall):
            if message.role != "assistant":
                continue
            answer, call_id = next(pending), unique_id(part.id, used)
            parts.append(ToolCall(id=call_id, name=part.name, arguments=part.arguments))
            if answer is None:
                results.append(Message.tool(UNKNOWN_OUTCOME, call_id=call_id, is_error=True))
            else:
                result, media = answer
                renamed = ToolResult(call_id=call_id, content=result.content, is_error=result.is_error)
                results.append(Message("tool", [renamed, *media]))
        elif not isinstance(part, ToolResult) and not any(part is each for each in moved):
            parts.append(part)
    if len(parts) == len(message.parts) and not results:
        return [message]
    if message.role == "tool":  # its results were moved behind their calls
        return [Message("user", parts)] if parts else []
    author = message.author if message.author != message.role else None
    return [Message(message.role, parts, author=author, metadata=message.metadata), *results]


def unique_id(wanted: str, used: set[str]) -> str:
    """Return `wanted`, or its first variant that is not in `used`, and add it to `used`."""
    found, number = wanted or "call", 1
    while found in used:
        number += 1
        found = f"{wanted or 'call'}-{number}"
    used.add(found)
    return found
