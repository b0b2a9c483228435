"""What a turn gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.log.flow_paths import is_within
from holdfast.log.messages import Message, ToolCall
from holdfast.models.base import Usage
from holdfast.turn.progress import Trail
from holdfast.turn.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A call that waits for a person: approve it, deny it, or answer its interrupt."""

    call_id: str
    name: str
    arguments: dict[str, Any] | str
    payload: Any = None  # of an Interrupt
    reason: str | None = None  # why it is asked, where that is not the tool's own wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a question: `text`, or `output` where a shape was asked for; and what it took.

    `status` is "finished", or "waiting" when a person has to decide about the calls in `pending`. The fields of
    `output` can be read here too: `response.category`.
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

    def __str__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a field of the output
        output = None if name.startswith("__") else self.output  # what copies and pickles look for is nobody's field
        if isinstance(output, Mapping) and name in output:
            return output[name]
        if output is not None and hasattr(output, name):
            return getattr(output, name)
        where = "" if output is None else f", and its output ({type(output).__name__}) has none"
        raise AttributeError(f"a response has no {name!r}{where}")


def response_of(trail: Trail, path: str = "") -> Response:
    """The answer of a turn as far as it got; or of the agents at or inside of `path`."""
    last = trail.last(path)
    legs = [work for each, work in trail.in_order if is_within(each, path)]
    at_work = [work for work in legs if not work.over]
    calls = [call for work in at_work for call in work.unanswered if call.undecided]
    texts = [_text(work.shown) for work in last]
    if not any(texts) and last[0].left:  # it left the loop without a word: what stands is what was said before
        texts = [_text([message for work in legs for message in work.shown])]
    first = last[0]
    used: dict[str, int] = {}
    for work in legs:
        for name, amount in work.usage.items():
            used[name] = used.get(name, 0) + amount
    is_over = not any(work.unanswered for work in at_work) and all(
        work.answer is not None or work.left or work.over for work in last
    )
    return Response(
        text="\n\n".join(text for text in texts if text) if is_over else "",
        output=_output(first, texts[0]) if len(last) == 1 and is_over else None,
        tool_calls=[call for work in legs for message in work.shown for call in message.tool_calls],
        usage=Usage(**{name: used.get(name, 0) for name in Usage.__dataclass_fields__}),
        steps=sum(work.steps for work in legs),
        messages=[message for work in legs for message in work.shown],
        status="finished" if is_over else "waiting",
        pending=[
            Pending(call_id=call.id, name=call.name, arguments=call.arguments, payload=call.payload, reason=call.reason)
            for call in calls
        ],
        run_id=trail.run,
        stop_reason=last[-1].stop_reason,
    )


def _output(work: Work, text: str) -> Any:  # noqa: ANN401 - what the shape says
    if work.shape is None or not (work.answer is not None or work.left):
        return None
    return work.shape.read(text)


def _text(shown: list[Message]) -> str:
    """The last thing that an agent said in words: one that leaves a loop may have said it before."""
    return next((message.text for message in reversed(shown) if message.role == "assistant" and message.text), "")
