"""Recorded turns: a finished turn of a log runs again with its recorded replies and results.

A turn runs in a fork of the session as it was before that turn, so nothing that was written between turns is missing.
No model is called and no tool runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import AgentError, BadOutput
from holdfast.log.events import MESSAGE_TYPES, Draft, Event, Row
from holdfast.log.messages import Message
from holdfast.models.base import BlockStart, Done, Model, ModelEvent, ModelRequest, Usage
from holdfast.plan import AgentSpec, Plan
from holdfast.prompt.template import escape_placeholders, fill_template
from holdfast.schema.output import OutputShape
from holdfast.stores.memory import MemoryStore
from holdfast.stores.messages import blob_names, message_of
from holdfast.tools.tool import Tool
from holdfast.turn.drivers import drive
from holdfast.turn.replay import QUESTION_TYPES, Difference, find_difference, pair_with_paths, read_agent_contexts
from holdfast.turn.runtime import TurnRuntime
from holdfast.turn.start import begin_turn

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

_GAP = "\0"  # stands for a value of state in instructions


@dataclass(slots=True)
class RecordedTurn:
    """One finished turn of a log."""

    first: int  # seq of `turn.started`
    question: Message
    options: dict[str, Any]
    events: list[Event]
    replies: dict[str, list[Done]]  # path of the agent -> its replies, in order
    results: dict[str, dict[str, list[tuple[str, bool]]]]  # path -> tool name -> (content, is_error), in order
    problems: dict[str, str]  # text of a reply that was rejected -> why
    contexts: dict[str, dict[str, Any]]  # path -> the parts of its prompt that came from the agent

    def substitute(self, path: str, spec: AgentSpec) -> AgentSpec:
        """Return the agent with its model and tools replaced by recorded ones, and with the instructions as they were
        sent, if they are the agent's."""
        return dataclasses.replace(
            spec,
            model=RecordedModel(spec.model, self.replies.get(path, [])),
            tools=replace_tools(spec.tools, self.results.get(path, {})),
            instructions=_fill_instructions(spec.instructions, self.contexts.get(path, {}).get("instructions")),
            allows_compaction=False,
            recall=None,
        )

    def shape_for(self, plan: Plan) -> OutputShape | None:
        """Return the shape of the answer that the turn was asked for; None if it was asked for none."""
        schema = self.options.get("schema")
        if schema is None:
            return None
        own = plan.shape if isinstance(plan, AgentSpec) else None
        return RecordedShape(own if own and own.schema == schema else OutputShape.from_log(schema), self.problems)


def find_finished_turns(store: Store, log: Log, rows: Sequence[Row]) -> list[RecordedTurn]:
    """Return the finished turns among the rows of a log. A turn with an erased event is left out, because it cannot be
    replayed."""
    messages = {row.seq: message_of(store, log, row) for row in rows if row.type in MESSAGE_TYPES}
    turns: list[RecordedTurn] = []
    by_run: dict[str, list[Event]] = {}
    for event in map(Event, rows):
        if event.run is not None:
            by_run.setdefault(event.run, []).append(event)
            if event.type == "turn.finished" and _is_whole(by_run[event.run]):
                turns.append(_build_turn(store, log, by_run[event.run], messages))
    return turns


def _is_whole(events: list[Event]) -> bool:
    """Whether a turn can be replayed: it has its start, which an imported log may lack, and all its payloads."""
    return any(event.type == "turn.started" for event in events) and not any(event.erased for event in events)


def _build_turn(store: Store, log: Log, events: list[Event], messages: dict[int, Message]) -> RecordedTurn:
    replies: dict[str, list[Done]] = {}
    results: dict[str, dict[str, list[tuple[str, bool]]]] = {}
    problems: dict[str, str] = {}
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
            if "rejected" in event.data:
                problems[messages[event.seq].text] = event.data["rejected"]
        elif event.type == "tool.returned":
            part: Any = messages[event.seq].parts[0]
            agent_results = results.setdefault(path, {})
            agent_results.setdefault(event.data["name"], []).append((part.content, part.is_error))
        elif event.type in QUESTION_TYPES and event is next(e for e in events if e.type in QUESTION_TYPES):
            question = _strip_seq_and_time(messages[event.seq], event.author)
    started = next(event for event in events if event.type == "turn.started")
    return RecordedTurn(
        first=started.seq,
        question=question,
        options=dict(started.data.get("options", {})),
        events=events,
        replies=replies,
        results=results,
        problems=problems,
        contexts=read_agent_contexts(store, log, events),
    )


def _strip_seq_and_time(message: Message, author: str | None) -> Message:
    """Return a message as it was before it was stored: without seq and time."""
    return Message(message.role, message.parts, author=author, metadata=message.metadata)


def copy_log(store: Store, log: Log, rows: Sequence[Row]) -> tuple[Store, Log]:
    """Return a private copy of a log, in memory: its forks leave nothing behind. Attached bytes are empty in the copy,
    because a recorded model does not read its request."""
    copy = MemoryStore(clock=store.clock, limits=store.limits)
    attached = blob_names(row for row in rows if row.type in MESSAGE_TYPES)
    drafts = [Draft(type="session.imported", data={"from": log.id})]
    return copy, copy.import_log("session", log.id, log.origin, rows, dict.fromkeys(attached, b""), drafts)


def replay_turn(session: Any, number: int, turn: RecordedTurn, plan: Plan) -> Difference | None:  # noqa: ANN401
    """Run a turn again in `session`, a fork from before that turn. Return the first difference from the record."""
    store, log = session.store, session.log
    runtime = TurnRuntime(
        store,
        log,
        plan,
        session=session,
        shape=turn.shape_for(plan),
        options={name: value for name, value in turn.options.items() if name != "schema"},
        substitute=turn.substitute,
    )
    before = store.head(log).head
    try:
        opening = begin_turn(runtime, turn.question)
        assert opening is not None, "no other process knows this fork"
        for _ in drive(runtime, opening):
            pass
    except AgentError:
        pass  # the log of the fork records how the turn ended, and the comparison reads it there
    replayed = [event for event in map(Event, store.read(log, before + 1)) if event.run == runtime.run]
    return find_difference(number, turn.events, turn.contexts, replayed, read_agent_contexts(store, log, replayed))


def _fill_instructions(template: str | Callable[[Any], Any] | None, recorded: str | None) -> str | None:
    """Return the recorded instructions if they are the template with some state in it; else the template as it is.

    The values of state cannot be read again: those of the scope temp are in no log, and tools that set some do not run.
    For the same reason a function of the user is not called: what it gave is what was recorded.
    """
    if template is None:
        return None
    if callable(template):
        return None if recorded is None else escape_placeholders(recorded)
    pieces = fill_template(template, lambda scope, name: _GAP).split(_GAP)
    text = recorded if recorded is not None and _is_filled(pieces, recorded) else template
    return escape_placeholders(text)


def _is_filled(pieces: Sequence[str], text: str) -> bool:
    """Whether a text consists of the pieces in their order, with any texts between them."""
    if len(pieces) == 1:
        return text == pieces[0]
    first, *middle, last = pieces
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return text.startswith(first) and text.endswith(last) and at <= end


class RecordedShape(OutputShape):
    """A shape that accepts and rejects replies as it did in the recorded turn, where it may have been another class."""

    def __init__(self, shape: OutputShape, problems: Mapping[str, str]) -> None:
        self.schema, self._adapter, self._problems = shape.schema, shape._adapter, problems

    def read(self, text: str) -> Any:  # noqa: ANN401 - of the type that the shape has
        if text in self._problems:
            raise BadOutput(self._problems[text])
        return self.read_accepted(text)


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
