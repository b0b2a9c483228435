"""The server that the benchmarks measure: `holdfast serve` with models that answer at once, at a pace, or never.

`python -m benchmarks.serving_app benchmarks.serving_app --port 0 ...` is `holdfast serve` with one addition: with
HOLDFAST_BENCH_FOREIGN the process uses the name of a process on another machine, so that other processes cannot check
whether it is alive.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator

from benchmarks.workload import turn
from holdfast import Agent, Message, tool
from holdfast.log.messages import Text, ToolCall
from holdfast.models import Done, ModelEvent, ModelRequest, TextDelta, Usage
from holdfast.models.scripted import Item, call, stream_items
from holdfast.stores import lease

ASK, ANSWER = (str(turn("reply", 0)[part]["content"]) for part in (0, 3))
PACE = 0.25  # seconds from one delta to the next
STEP = 16  # deltas of one reply; with its tool call a reply makes four durable events, so one a second
FOREIGN, HANGS, NOTES = "HOLDFAST_BENCH_FOREIGN", "HOLDFAST_BENCH_HANGS", "HOLDFAST_BENCH_NOTES"


class _Model:
    """Base class of the models here. It keeps no request."""

    context_window = 128_000
    provider = "benchmark"

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        raise NotImplementedError

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self.stream(request):
            yield event


class Instant(_Model):
    """Answers at once."""

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        return stream_items([ANSWER], request, self.provider)


class Paced(_Model):
    """Sends deltas that contain the time of sending. The question is the number of replies, with tool calls between."""

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        question = max(at for at, message in enumerate(request.messages) if message.role == "user")
        step = sum(message.role == "assistant" for message in request.messages[question:])
        is_last = step + 1 == int(request.messages[question].text)
        begun, texts = time.monotonic(), []
        for number in range(STEP):
            time.sleep(max(0.0, begun + (number + 1) * PACE - time.monotonic()))
            texts.append(f"{step * STEP + number} {time.monotonic():.6f};")
            yield TextDelta(index=0, text=texts[-1])
        calls = [] if is_last else [ToolCall(id=f"call_{len(request.messages)}", name="look", arguments={})]
        yield Done(
            message=Message("assistant", [Text("".join(texts)), *calls]),
            usage=Usage(input_tokens=1, output_tokens=1),
            stop_reason="end_turn" if is_last else "tool_use",
            raw_stop="stop",
            provider=self.provider,
            model=self.name,
        )


class Noting(_Model):
    """Calls the tool `note` with the question, then answers; in a process with HANGS it never answers."""

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        last = request.messages[-1]
        items: list[Item] = [ANSWER] if last.role == "tool" else [call("note", {"text": last.text})]
        if last.role == "tool" and os.environ.get(HANGS):
            time.sleep(3600)
        return stream_items(items, request, self.provider)


@tool
def look() -> str:
    """Look at nothing."""
    return "nothing"


@tool
def note(text: str) -> str:
    """Leave a line where others can count it."""
    file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)
    return "noted"


instant = Agent(name="instant", model=Instant("instant"))
paced = Agent(name="paced", model=Paced("paced"), tools=[look])
noting = Agent(name="noting", model=Noting("noting"), tools=[note])


def main() -> None:
    """Run `holdfast serve`."""
    from holdfast.cli.serve import serve

    if os.environ.get(FOREIGN):
        lease.boot_id = lambda: "another machine"  # type: ignore[assignment, attr-defined]
    serve()


if __name__ == "__main__":
    main()
