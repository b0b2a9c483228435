"""Running logged turns again, with recorded replies and results as the world: what would an agent do differently?"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from holdfast.log.events import Event
from holdfast.log.flow_paths import place
from holdfast.log.messages import Message
from holdfast.log.view import TURN_ENDS
from holdfast.models.base import BlockStart, Done, Model, ModelEvent, ModelRequest, Usage
from holdfast.plan import Settings
from holdfast.tools.tool import Tool

# What only says how a turn was carried, not what it did.
_CARRIAGE = (
    "approval.requested",
    "approval.decided",
    "turn.waiting",
    "turn.resumed",
    "turn.parked",
    "model.interrupted",
    "summary.added",
    "view.compacted",
    "view.pruned",
)
_ASKING = ("message.added", "message.queued")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where a replay went another way."""

    turn: int  # counted from 1
    seq: int | None  # of the recorded event; None if the replay did more than was recorded
    type: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of a replay: true if everything went the same way. `session` is the fork it ran in."""

    turns: int
    first_difference: Difference | None
    session: Any

    @property
    def same(self) -> bool:
        return self.first_difference is None

    def __bool__(self) -> bool:
        return self.same


@dataclass(slots=True)
class RecordedTurn:
    """One finished turn of a log."""

    first: int
    question: Message
    options: dict[str, Any]
    events: list[Event]
    replies: dict[str, list[Done]]  # by the path of whoever said it
    results: dict[str, dict[str, list[tuple[str, bool]]]]  # path -> tool name -> (content, is_error), in order

    def stage(self, path: str, settings: Settings) -> Settings:
        """An agent with what was recorded of it as its world."""
        return dataclasses.replace(
            settings,
            model=RecordedModel(settings.model, self.replies.get(path, [])),
            tools=recorded_tools(settings.tools, self.results.get(path, {})),
            condenses=False,
            recall=None,
        )


def recorded_turns(events: Sequence[Event], messages: dict[int, Message]) -> list[RecordedTurn]:
    """The finished turns among the events; `messages` are those the events brought, by number. A turn of which
    something was erased cannot be run again."""
    found: list[RecordedTurn] = []
    by_run: dict[str, list[Event]] = {}
    for event in events:
        if event.run is not None:
            by_run.setdefault(event.run, []).append(event)
            if event.type == "turn.finished" and not any(each.erased for each in by_run[event.run]):
                found.append(_turn(by_run[event.run], messages))
    return found


def _turn(events: list[Event], messages: dict[int, Message]) -> RecordedTurn:
    replies: dict[str, list[Done]] = {}
    results: dict[str, dict[str, list[tuple[str, bool]]]] = {}
    question = Message.user("")
    for path, event in placed(events):
        if event.type == "model.replied":
            known = {name: event.data["usage"].get(name, 0) for name in Usage.__dataclass_fields__}
            replies.setdefault(path, []).append(
                Done(
                    message=_afresh(messages[event.seq], None),
                    usage=Usage(**known),
                    stop_reason=event.data["stop_reason"],
                    raw_stop=event.data["stop_reason"],
                    provider=event.data["provider"],
                    model=event.data["model"],
                    response_id=event.data.get("response_id"),
                )
            )
        elif event.type == "tool.returned":
            part: Any = messages[event.seq].parts[0]
            known_here = results.setdefault(path, {})
            known_here.setdefault(event.data["name"], []).append((part.content, part.is_error))
        elif event.type in _ASKING and event is next(e for e in events if e.type in _ASKING):
            question = _afresh(messages[event.seq], event.author)
    started = next(event for event in events if event.type == "turn.started")
    return RecordedTurn(started.seq, question, dict(started.data.get("options", {})), events, replies, results)


def placed(events: Sequence[Event]) -> list[tuple[str, Event]]:
    """The events of a turn, each with the path of the agent it belongs to."""
    found: list[tuple[str, Event]] = []
    at: dict[str | None, str] = {}
    for event in events:
        if event.type == "agent.started":
            at[event.branch] = event.data.get("path", "")
        found.append((at.get(event.branch, ""), event))
    return found


def _afresh(message: Message, author: str | None) -> Message:
    """A message as it was before it was stored: without its time and number."""
    return Message(message.role, message.parts, author=author, metadata=message.metadata)


class RecordedModel:
    """A model that says what was said then."""

    def __init__(self, model: Model, replies: Sequence[Done]) -> None:
        self.name, self.provider, self.context_window = model.name, model.provider, model.context_window
        self._replies = list(replies)

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        if not self._replies:
            raise Exhausted
        done = self._replies.pop(0)
        for index, part in enumerate(done.message.parts):
            yield BlockStart(index=index, block=part)
        yield done

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self.stream(request):
            yield event


class Exhausted(Exception):
    """The replay asks the model once more than was recorded."""


class _Failed(Exception):
    """A result that was an error then."""


def recorded_tools(tools: Mapping[str, Tool], results: Mapping[str, list[tuple[str, bool]]]) -> dict[str, Tool]:
    """The agent's tools, giving what they gave then and doing nothing. What the loop answers itself it answers
    again."""
    left = {name: list(items) for name, items in results.items()}

    def recorded(tool: Tool) -> Tool:
        def again(**_arguments: Any) -> str:  # noqa: ANN401 - the tool's own
            if not left.get(tool.name):
                raise _Failed("no such call was recorded")
            content, is_error = left[tool.name].pop(0)
            if is_error:
                raise _Failed(content)
            return content

        return dataclasses.replace(tool, function=again, is_async=False, approval=None)

    return {name: recorded(tool) for name, tool in tools.items()}


def compared(number: int, recorded: Sequence[Event], replayed: Sequence[Event]) -> Difference | None:
    """The first event that differs in what it did."""
    then, now = _acts(_ordered(recorded)), _acts(_ordered(replayed))
    for index in range(max(len(then), len(now))):
        one = then[index] if index < len(then) else None
        two = now[index] if index < len(now) else None
        mine, theirs = (None if event is None else _essence(event) for event in (one, two))
        if mine != theirs:
            kind = one.type if one is not None else two.type  # type: ignore[union-attr]
            return Difference(
                turn=number, seq=None if one is None else one.seq, type=kind, recorded=mine, replayed=theirs
            )
    return None


def _ordered(events: Sequence[Event]) -> list[Event]:
    """The events agent by agent: those who worked at the same time may have been faster or slower then."""
    found = placed(events)
    first, last = [event for path, event in found if not path], [item for item in found if item[0]]
    ends = [event for event in first if event.type in TURN_ENDS]
    begins = [event for event in first if event.type not in TURN_ENDS]
    inner = [event for _, event in sorted(last, key=lambda item: place(item[0])) if event.type not in TURN_ENDS]
    return [*begins, *inner, *ends, *(event for _, event in last if event.type in TURN_ENDS)]


def _acts(events: Sequence[Event]) -> list[Event]:
    """The events that did something: a call that was interrupted and made again counts once, the question is given."""
    asked = next((event for event in events if event.type in _ASKING), None)
    followers = {one.seq: two.type for one, two in pairwise(events)}
    return [
        event
        for event in events
        if event is not asked
        and event.type not in _CARRIAGE
        and not event.data.get("metadata", {}).get("failed")  # a note about an agent that failed, which is an event too
        and not (event.type == "model.called" and followers.get(event.seq) == "model.interrupted")
    ]


def _essence(event: Event) -> dict[str, Any]:
    """What an event did: without numbers, times, and what a raised error's text adds."""
    data = dict(event.data)
    for name in (
        "step",
        "from",
        "upto",
        "tokens",
        "pinned",
        "shortened",
        "usage",
        "whole",
        "unknown",
        "response_id",
        "session",
    ):
        data.pop(name, None)
    if event.type == "tool.returned":
        part = data["message"]["parts"][0]
        content = part["content"].removeprefix("_Failed: ")
        data = {"name": data["name"], "content": content, "is_error": part.get("is_error", False)}
    if event.type == "agent.failed":
        data.pop("error")  # a recorded agent has nothing more to say, whatever went wrong then
    if event.type == "turn.started":
        data.pop("metadata", None)
        data.pop("question", None)
        data.pop("agent", None)
    return {"type": event.type, **data}
