"""The cost of a streamed delta, from the bytes on the wire to the event that a user gets, beside the codec alone.

The provider is another process on the loopback, so the CPU time of this process is that of the client alone.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks import delta_server
from benchmarks.peers import HERE
from benchmarks.report import Figure, at_most
from benchmarks.timing import Race, Scale, fastest, folder
from holdfast import Agent, LanguageModel, Message, Session
from holdfast.models import ModelRequest, openai
from holdfast.models.endpoint import Endpoint
from holdfast.stores import SQLiteStore
from holdfast.stores.memory import MemoryStore

CODEC_BOUND = 4.0
RATE = 50  # deltas per second of one stream

cpu = time.process_time
Stream = Callable[[], float]  # runs one stream and returns its seconds of CPU


@contextmanager
def _provider() -> Iterator[str]:
    """Start a provider that streams, and yield its base URL."""
    command = [sys.executable, "-m", "benchmarks.delta_server"]
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


def _agent(base_url: str, model: str) -> Agent:
    return Agent(model=LanguageModel("openai", model, base_url=base_url, api_key="none"))


# -- one stream --------------------------------------------------------------------------------------------------------


def one_stream(scale: Scale) -> Iterator[Figure]:
    count, model = scale.deltas, f"burst-{scale.deltas}"
    with _provider() as base_url, asyncio.Runner() as loop:
        agent = _agent(base_url, model)
        raw = _Raw(base_url, model)
        streams: dict[str, Stream] = {
            "codec": lambda: _decoded(model, count),
            "stream": lambda: _streamed(agent, count),
            "stream_async": lambda: loop.run(_streamed_async(agent, count)),
            "httpx2": raw.read,
            "httpx2 async": lambda: loop.run(raw.read_async()),
        }
        taken: dict[str, list[float]] = {name: [] for name in streams}
        for number in range(max(3, scale.rounds // 2) + 1):
            for name, stream in streams.items():
                seconds = stream()
                if number:  # the first round is not counted: it opens the connections
                    taken[name].append(seconds / count)
        loop.run(agent.model.close_async())  # type: ignore[attr-defined]
    found = Race(taken)
    for name, transport in (("stream", "httpx2"), ("stream_async", "httpx2 async")):
        job = f"CPU per delta of {name}, {count:,} deltas"
        mine, bare = found.seconds(name), found.seconds("codec")
        yield at_most(
            f"{job}, beside the bare codec",
            found.ratio(name, "codec"),
            CODEC_BOUND,
            ours=_each(mine),
            limit=_each(bare),
        )
        yield Figure(
            job=f"{job}, beside {transport} that only reads the bytes (no bound)",
            ours=_each(mine),
            limit=_each(found.seconds(transport)),
            ratio=f"{found.ratio(name, transport):.2f} x",
        )


def _each(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _checked(received: int, text: str, count: int) -> None:
    if received != count or text != "".join(map(delta_server.text, range(count))):
        raise RuntimeError(f"{received:,} of {count:,} deltas came, {len(text):,} characters")


def _decoded(model: str, count: int) -> float:
    pieces = list(delta_server.burst(count))
    request = ModelRequest(model=model, messages=[Message.user("go")])
    decoder = openai.decoder(request, Endpoint(provider="openai", base_url="http://127.0.0.1"))
    received, text = 0, ""
    start = cpu()
    for piece in pieces:
        for event in decoder.feed(piece):
            if event.type == "text_delta":
                received += 1
            elif event.type == "done":
                text = event.message.text
    taken = cpu() - start
    _checked(received, text, count)
    return taken


def _streamed(agent: Agent, count: int) -> float:
    session = Session(agent=agent, store=MemoryStore())
    received, text = 0, ""
    start = cpu()
    for event in session.stream("go"):
        if event.type == "text_delta":
            received += 1
        elif event.type == "done":
            text = event.response.text
    taken = cpu() - start
    _checked(received, text, count)
    return taken


async def _streamed_async(agent: Agent, count: int) -> float:
    session = Session(agent=agent, store=MemoryStore())
    received, text = 0, ""
    start = cpu()
    async for event in session.stream_async("go"):
        if event.type == "text_delta":
            received += 1
        elif event.type == "done":
            text = event.response.text
    taken = cpu() - start
    _checked(received, text, count)
    return taken


class _Raw:
    """Plain httpx2 clients that read the same bytes and drop them."""

    def __init__(self, base_url: str, model: str) -> None:
        import httpx2

        self.url, self.body = f"{base_url}/chat/completions", {"model": model}
        self.client, self.client_async = httpx2.Client(), httpx2.AsyncClient()

    def read(self) -> float:
        start = cpu()
        with self.client.stream("POST", self.url, json=self.body) as response:
            for _ in response.iter_bytes():
                pass
        return cpu() - start

    async def read_async(self) -> float:
        start = cpu()
        async with self.client_async.stream("POST", self.url, json=self.body) as response:
            async for _ in response.aiter_bytes():
                pass
        return cpu() - start


# -- many at once ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The delays of one stream, in seconds per delta."""

    sent_late: list[float]  # from the time when the delta was due to the time when the provider sent it
    seen_late: list[float]  # from the time when the provider sent it to the time when the caller got it
    lost: int  # number of missing deltas, one more if some came out of order


def many_streams(scale: Scale) -> Iterator[Figure]:
    count = RATE * scale.seconds
    with ExitStack() as stack:
        agent = _agent(stack.enter_context(_provider()), f"paced-{count}-{RATE}")
        store = stack.enter_context(SQLiteStore(stack.enter_context(folder(fastest())) / "streams.db"))
        sessions = [Session(agent=agent, store=store) for _ in range(scale.streams)]
        streams, seconds, used = asyncio.run(_together(sessions, count))
        lost = sum(one.lost for one in streams)
        lost += sum(_missing(session.messages[-1].text, count) for session in sessions)
    deltas = scale.streams * count
    job = f"{scale.streams} stream_async at once, {RATE} deltas/s each, {scale.seconds} s"
    late = [seconds for one in streams for seconds in one.seen_late]
    before = [seconds for one in streams for seconds in one.sent_late]
    yield Figure(job=f"{job}: {deltas:,} deltas, lost on the way or in the log", ours=str(lost), bound="0", ok=not lost)
    yield Figure(
        job=f"{job}: p99 lateness from sent to seen, beside the provider's own (no bound)",
        ours=_milliseconds(_p99(late)),
        limit=_milliseconds(_p99(before)),
    )
    yield Figure(
        job=f"{job}: median lateness from sent to seen (no bound)",
        ours=_milliseconds(statistics.median(late)),
        limit=_milliseconds(statistics.median(before)),
    )
    yield Figure(
        job=f"{job}: CPU of this process, {seconds:.1f} s (no bound)",
        ours=f"{used / seconds:.0%} of a core",
        ratio=f"{_each(used / deltas)} a delta",
    )


async def _together(sessions: Sequence[Session], count: int) -> tuple[list[StreamTimes], float, float]:
    start, begun = cpu(), time.monotonic()
    streams = await asyncio.gather(*(_watched(session, count) for session in sessions))
    return streams, time.monotonic() - begun, cpu() - start


async def _watched(session: Session, count: int) -> StreamTimes:
    seen: list[tuple[str, float]] = []
    async for event in session.stream_async("go"):
        if event.type == "text_delta":
            seen.append((event.text, time.monotonic()))
    sent_late, seen_late, numbers = [], [], []
    for text, at in seen:
        number, due, sent = text.rstrip(";").split(" ")
        numbers.append(int(number))
        sent_late.append(float(sent) - float(due))
        seen_late.append(at - float(sent))
    lost = count - len(set(numbers)) + (numbers != sorted(numbers))
    return StreamTimes(sent_late, seen_late, lost)


def _missing(text: str, count: int) -> int:
    """Return the number of deltas that a stored answer lacks."""
    return count - len({piece.split(" ")[0] for piece in text.split(";") if piece})


def _p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
