"""The server that the figures are taken of: `holdfast serve` with models that take no time, keep time, or never end.

`python -m benchmarks.serving_app benchmarks.serving_app --port 0 ...` is the command line's own `serve`, with one thing
that only a benchmark wants: with HOLDFAST_BENCH_FOREIGN the process names itself as one of another machine would be
named, so that nobody can see that it is dead.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator

from benchmarks.workload import turn
from holdfast import Agent, Message, tool
from holdfast.log.messages import Text, ToolCall
from holdfast.models import Done, ModelEvent, ModelRequest, TextDelta, Usage
from holdfast.models.scripted import Item, call, replay
from holdfast.stores import lease

ASK, ANSWER = (str(turn("reply", 0)[part]["content"]) for part in (0, 3))
PACE = 0.25  # seconds from one delta to the next
STEP = 16  # deltas of one reply: with its tool call it makes four durable events, so one a second
FOREIGN, HANGS, NOTES = "HOLDFAST_BENCH_FOREIGN", "HOLDFAST_BENCH_HANGS", "HOLDFAST_BENCH_NOTES"


class _Model:
    """A model of ours; it keeps nothing of what it was asked."""

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
        return replay([ANSWER], request, self.provider)


class Paced(_Model):
    """Says when it says something, again and again: as many replies as it is asked for, a tool call after each."""

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
    """Has the question noted by a tool, then answers; in a process that HANGS it never comes to the answer."""

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        last = request.messages[-1]
        items: list[Item] = [ANSWER] if last.role == "tool" else [call("note", {"text": last.text})]
        if last.role == "tool" and os.environ.get(HANGS):
            time.sleep(3600)
        return replay(items, request, self.provider)


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
    """Serve, as the command line does."""
    from holdfast.cli.serve import serve

    if os.environ.get(FOREIGN):
        lease.boot_id = lambda: "another machine"  # type: ignore[assignment]
    serve()


if __name__ == "__main__":
    main()
