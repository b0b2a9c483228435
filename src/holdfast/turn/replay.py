"""Replay: runs logged turns again with the recorded replies and results, to find what an agent does differently."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from holdfast.log.events import Event
from holdfast.log.flow_paths import path_sort_key
from holdfast.log.messages import Message
from holdfast.log.view import TURN_ENDS
from holdfast.models.base import BlockStart, Done, Model, ModelEvent, ModelRequest, Usage
from holdfast.plan import AgentSpec
from holdfast.tools.tool import Tool

# Events about how a turn ran (waiting, resuming, making room), not about what it did.
_IGNORED_TYPES = (
    "approval.requested",
    "approval.decided",
    "turn.waiting",
    "turn.resumed",
    "turn.reopened",
    "turn.parked",
    "turn.failed",  # of a turn that was reopened and finished
    "turn.cancelled",
    "model.interrupted",
    "summary.added",
    "view.compacted",
    "view.pruned",
)
_QUESTION_TYPES = ("message.added", "message.queued")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first event in which a replay differs from the recorded turn."""

    turn: int  # number of the turn, from 1
    seq: int | None  # seq of the recorded event; None if the replay has more events than the recording
    type: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay: true if there is no difference. `session` is the fork that the replay ran in."""

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

    first: int  # seq of `turn.started`
    question: Message
    options: dict[str, Any]
    events: list[Event]
    replies: dict[str, list[Done]]  # path of the agent -> its replies, in order
    results: dict[str, dict[str, list[tuple[str, bool]]]]  # path -> tool name -> (content, is_error), in order

    def substitute(self, path: str, spec: AgentSpec) -> AgentSpec:
        """Return the agent with its model and tools replaced by recorded ones."""
        return dataclasses.replace(
            spec,
            model=RecordedModel(spec.model, self.replies.get(path, [])),
            tools=replace_tools(spec.tools, self.results.get(path, {})),
            allows_compaction=False,
            recall=None,
        )


def find_finished_turns(events: Sequence[Event], messages: dict[int, Message]) -> list[RecordedTurn]:
    """Return the finished turns among the events. `messages` holds the messages of the events by seq. A turn with an
    erased event is left out, because it cannot be replayed."""
    turns: list[RecordedTurn] = []
    by_run: dict[str, list[Event]] = {}
    for event in events:
        if event.run is not None:
            by_run.setdefault(event.run, []).append(event)
            if event.type == "turn.finished" and not any(each.erased for each in by_run[event.run]):
                turns.append(_build_turn(by_run[event.run], messages))
    return turns


def _build_turn(events: list[Event], messages: dict[int, Message]) -> RecordedTurn:
    replies: dict[str, list[Done]] = {}
    results: dict[str, dict[str, list[tuple[str, bool]]]] = {}
    question = Message.user("")
    for path, event in pair_with_paths(events):
        if event.type == "model.replied":
            usage = {name: event.data["usage"].get(name, 0) for name in Usage.__dataclass_fields__}
            replies.setdefault(path, []).append(
                Done(
                    message=_strip_seq_and_time(messages[event.seq], None),
                    usage=Usage(**usage),
                    stop_reason=event.data["stop_reason"],
                    raw_stop=event.data["stop_reason"],
                    provider=event.data["provider"],
                    model=event.data["model"],
                    response_id=event.data.get("response_id"),
                )
            )
        elif event.type == "tool.returned":
            part: Any = messages[event.seq].parts[0]
            agent_results = results.setdefault(path, {})
            agent_results.setdefault(event.data["name"], []).append((part.content, part.is_error))
        elif event.type in _QUESTION_TYPES and event is next(e for e in events if e.type in _QUESTION_TYPES):
            question = _strip_seq_and_time(messages[event.seq], event.author)
    started = next(event for event in events if event.type == "turn.started")
    return RecordedTurn(started.seq, question, dict(started.data.get("options", {})), events, replies, results)


def pair_with_paths(events: Sequence[Event]) -> list[tuple[str, Event]]:
    """Return the events of a turn, each with the path of its agent."""
    pairs: list[tuple[str, Event]] = []
    path_by_branch: dict[str | None, str] = {}
    for event in events:
        if event.type == "agent.started":
            path_by_branch[event.branch] = event.data.get("path", "")
        pairs.append((path_by_branch.get(event.branch, ""), event))
    return pairs


def _strip_seq_and_time(message: Message, author: str | None) -> Message:
    """Return a message as it was before it was stored: without seq and time."""
    return Message(message.role, message.parts, author=author, metadata=message.metadata)


class RecordedModel:
    """A model that gives the recorded replies, one for each call."""

    def __init__(self, model: Model, replies: Sequence[Done]) -> None:
        self.name, self.provider, self.context_window = model.name, model.provider, model.context_window
        self._replies = list(replies)

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        if not self._replies:
            raise RepliesExhausted
        done = self._replies.pop(0)
        for index, part in enumerate(done.message.parts):
            yield BlockStart(index=index, block=part)
        yield done

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self.stream(request):
            yield event


class RepliesExhausted(Exception):
    """The replay calls the model more often than the recorded turn."""


class _Failed(Exception):
    """A recorded result that is an error, or a call that was not recorded."""


def replace_tools(tools: Mapping[str, Tool], results: Mapping[str, list[tuple[str, bool]]]) -> dict[str, Tool]:
    """Return the agent's tools with functions that return the recorded results and do nothing else. Calls that the loop
    answers itself (handoffs, the exit from a loop) are not replaced."""
    left = {name: list(items) for name, items in results.items()}

    def replace_tool(tool: Tool) -> Tool:
        def give_recorded_result(**_arguments: Any) -> str:  # noqa: ANN401 - the tool's own
            if not left.get(tool.name):
                raise _Failed("no such call was recorded")
            content, is_error = left[tool.name].pop(0)
            if is_error:
                raise _Failed(content)
            return content

        return dataclasses.replace(tool, function=give_recorded_result, is_async=False, approval=None)

    return {name: replace_tool(tool) for name, tool in tools.items()}


def find_difference(number: int, recorded: Sequence[Event], replayed: Sequence[Event]) -> Difference | None:
    """Return the first difference between a recorded and a replayed turn, or None. `number` is the turn's number."""
    old_events, new_events = _select_actions(_sort_by_agent(recorded)), _select_actions(_sort_by_agent(replayed))
    for old, new in zip_longest(old_events, new_events):
        old_data, new_data = (None if event is None else _comparable_data(event) for event in (old, new))
        if old_data != new_data:
            return Difference(
                turn=number,
                seq=None if old is None else old.seq,
                type=old.type if old is not None else new.type,
                recorded=old_data,
                replayed=new_data,
            )
    return None


def _sort_by_agent(events: Sequence[Event]) -> list[Event]:
    """Return the events agent by agent, because the events of parallel agents are in another order in each run."""
    pairs = pair_with_paths(events)
    outer, inner = [event for path, event in pairs if not path], [pair for pair in pairs if pair[0]]
    ends = [event for event in outer if event.type in TURN_ENDS]
    begins = [event for event in outer if event.type not in TURN_ENDS]
    inner_sorted = sorted(inner, key=lambda pair: path_sort_key(pair[0]))
    steps = [event for _, event in inner_sorted if event.type not in TURN_ENDS]
    return [*begins, *steps, *ends, *(event for _, event in inner if event.type in TURN_ENDS)]


def _select_actions(events: Sequence[Event]) -> list[Event]:
    """Return the events to compare. A model call that was interrupted and repeated counts once. The question is left
    out, because it is the same in both."""
    question = next((event for event in events if event.type in _QUESTION_TYPES), None)
    followers = {one.seq: two.type for one, two in pairwise(events)}
    return [
        event
        for event in events
        if event is not question
        and event.type not in _IGNORED_TYPES
        and not event.data.get("metadata", {}).get("failed")  # the note about a failed agent: `agent.failed` counts
        and not (event.type == "model.called" and followers.get(event.seq) == "model.interrupted")
    ]


def _comparable_data(event: Event) -> dict[str, Any]:
    """Return the data of an event to compare: without seqs, sizes, usage, and the prefix of a raised error's text."""
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
        data.pop("error")  # a replayed agent fails because its replies are used up, not with the first error
    if event.type == "turn.started":
        data.pop("metadata", None)
        data.pop("question", None)
        data.pop("agent", None)
    return {"type": event.type, **data}
