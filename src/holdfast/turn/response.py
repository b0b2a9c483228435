"""The response of a turn, and the calls in it that wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from holdfast.log.flow_paths import is_within
from holdfast.log.messages import Message, ToolCall
from holdfast.models.base import Usage
from holdfast.schema.output import OutputShape
from holdfast.turn.progress import AgentProgress, TurnProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A call that waits for a person: approve it, deny it, or answer its interrupt."""

    call_id: str
    name: str
    arguments: dict[str, Any] | str
    payload: Any = None  # payload of an Interrupt
    reason: str | None = None  # why approval is needed, if not because the tool asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall(Pending):
    """A call of any session that waits for a person."""

    session_id: str
    since: datetime  # when the person was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a question as `text` and as `output`, with the usage of the turn.

    `output` is an instance of the schema that was asked for, or the text if there was none. `status` is "finished", or
    "waiting" if a person must decide about the calls in `pending` or the session was paused (then `pending` is empty).
    The fields of `output` can be read here too: `response.category`.
    """

    text: str = ""
    output: Any = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    messages: list[Message] = field(default_factory=list)
    status: str = "finished"
    pending: list[Pending] = field(default_factory=list)
    run_id: str = ""
    stop_reason: str | None = None
    session: Any = field(default=None, repr=False, compare=False)  # the session that it was given in

    @property
    def session_id(self) -> str | None:
        return None if self.session is None else self.session.id

    def __getstate__(self) -> list[Any]:
        """A response is pickled without its session, which belongs to its process."""
        return [None if each.name == "session" else getattr(self, each.name) for each in fields(self)]

    def __str__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a field of the output
        output = None if name.startswith("__") else self.output  # copy and pickle look for special names: no fields
        if output is None or isinstance(output, str):  # the methods of a text are no fields
            raise AttributeError(f"a response has no {name!r}: ask for fields with output_schema= or json(schema=)")
        if isinstance(output, Mapping) and name in output:
            return output[name]
        if hasattr(output, name):
            return getattr(output, name)
        raise AttributeError(f"a response has no {name!r}, and its output ({type(output).__name__}) has none")


def response_of(turn: TurnProgress, path: str = "") -> Response:
    """Return the response of a turn up to now, or of the agents at or inside `path`."""
    last = turn.last_agents(path)
    agents = [progress for each, progress in turn.agents_in_order if is_within(each, path)]
    open_agents = [progress for progress in agents if not progress.end_status]
    calls = [call for progress in open_agents for call in progress.open_calls if call.awaits_decision]
    texts = [_last_text(progress.visible_messages) for progress in last]
    if not any(texts) and last[0].has_left_loop:  # it left the loop without a text: the last text before it counts
        texts = [_last_text([message for progress in agents for message in progress.visible_messages])]
    used: dict[str, int] = {}
    for progress in agents:
        for name, amount in progress.usage.items():
            used[name] = used.get(name, 0) + amount
    is_over = not any(progress.open_calls for progress in open_agents) and all(
        progress.answer is not None or progress.has_left_loop or progress.end_status for progress in last
    )
    text = "\n\n".join(text for text in texts if text) if is_over else ""
    # An agent that leaves its loop has not the shape that was asked of the last agent: the turn has it.
    shape = None if len(last) > 1 else last[0].shape or (None if path else turn.root.shape)
    return Response(
        text=text,
        output=text if shape is None else _read_output(last[0], shape, texts[0]) if is_over else None,
        tool_calls=[
            call for progress in agents for message in progress.visible_messages for call in message.tool_calls
        ],
        usage=Usage(**{name: used.get(name, 0) for name in Usage.__dataclass_fields__}),
        steps=sum(progress.steps for progress in agents),
        messages=[message for progress in agents for message in progress.visible_messages],
        status="finished" if is_over else "waiting",
        pending=[
            Pending(call_id=call.id, name=call.name, arguments=call.arguments, payload=call.payload, reason=call.reason)
            for call in calls
        ],
        run_id=turn.run,
        stop_reason=last[-1].stop_reason,
    )


def _read_output(progress: AgentProgress, shape: OutputShape, text: str) -> Any:  # noqa: ANN401 - a value of the shape
    return shape.read_accepted(text) if progress.answer is not None or progress.has_left_loop else None


def _last_text(messages: list[Message]) -> str:
    """Return the last text of an agent. An agent that leaves a loop may have given its text in an earlier message."""
    return next((message.text for message in reversed(messages) if message.role == "assistant" and message.text), "")
