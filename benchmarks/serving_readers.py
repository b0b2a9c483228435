"""Many readers of many streams: the cost of a frame for the server, its delay, and whether every frame arrives."""

from __future__ import annotations

import asyncio
import itertools
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import orjson
import uvloop

from benchmarks.report import Figure
from benchmarks.serving_app import PACE, STEP
from benchmarks.serving_load import HEAD_END, Asking, ask_all, request
from benchmarks.serving_process import ServerProcess, holdfast_server
from benchmarks.timing import Scale, fastest, folder

READERS, SESSIONS = 500, 50
CPU_BOUND, RSS_BOUND = 60e-6, 150e6
SPREAD = 0.02  # seconds between the starts of two runs, since users do not start at the same moment
SETTLE = 1.0  # seconds for frames that are still on their way
_FRAME = re.compile(rb"(?:id: (\d+)(?:\.(\d+))?\n)?event: ([\w.]+)\ndata: ([^\n]*)")


class Reading(asyncio.Protocol):
    """One reader. It only keeps the bytes and their times, so that it costs little; they are parsed after the test."""

    def __init__(self, path: str) -> None:
        self._request = request("GET", path, accept="text/event-stream")
        self.received: list[tuple[float, bytes]] = []
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received.append((time.monotonic(), data))
        if not self.began.done() and b"event: " in data:
            self.began.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_cut = True
        if not self.began.done():
            self.began.set_exception(RuntimeError(f"a reader was turned away: {self.received[:1]!r}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One event of a stream, and the time when it arrived."""

    at: float
    seq: int
    is_delta: bool
    data: bytes


def frames_of(received: list[tuple[float, bytes]]) -> Iterator[Frame]:
    """Yield the frames of a chunked response, without pings."""
    rest, text, in_body = b"", b"", False
    for at, data in received:
        rest += data
        if not in_body:
            head, found, rest = rest.partition(HEAD_END)
            if not found:
                rest = head
                continue
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a reader was turned away: {head[:200]!r}")
            in_body = True
        while (line := rest.find(b"\r\n")) >= 0:
            size = int(rest[:line], 16)
            if len(rest) < line + 4 + size:
                break
            text, rest = text + rest[line + 2 : line + 2 + size], rest[line + 4 + size :]
        *whole, text = text.split(b"\n\n")
        for each in whole:
            if (found_frame := _FRAME.fullmatch(each)) and found_frame[1]:
                seq, n, _, body = found_frame.groups()
                yield Frame(at=at, seq=int(seq), is_delta=n is not None, data=body)


@dataclass(slots=True)
class ReaderTotals:
    """The delays and losses of all readers together."""

    frames: int = 0
    lost: int = 0
    deltas_late: list[float] = field(default_factory=list)
    events_late: list[float] = field(default_factory=list)

    def take(self, reader: Reading, since: float, deltas: int, head: int, offset: float) -> None:
        """Add one reader: it must have every event from the first to the last, and each delta once and in order."""
        numbers, seqs = [], []
        for frame in frames_of(reader.received):
            data = orjson.loads(frame.data)
            self.frames += frame.at >= since
            if frame.is_delta:
                number, said = data["text"].rstrip(";").split(" ")
                numbers.append(int(number))
                self.deltas_late.append(frame.at - float(said))
            else:
                seqs.append(frame.seq)
                if frame.at >= since:
                    stored = datetime.fromisoformat(data["at"]).timestamp()
                    self.events_late.append(frame.at + offset - stored)
        for there, expected in ((numbers, list(range(deltas))), (seqs, list(range(1, head + 1)))):
            if there != expected:
                self.lost += (
                    len(set(expected) - set(there)) or 1
                )  # a delta that is out of order or doubled counts as one lost
        self.lost += reader.is_cut


def readers(scale: Scale) -> Iterator[Figure]:
    """Measure many readers of many sessions, each session with four deltas and one durable event a second."""
    steps = max(1, round(scale.seconds * 1.6 / (STEP * PACE)))
    with ExitStack() as stack:
        path = stack.enter_context(folder(fastest()))
        server = stack.enter_context(
            holdfast_server(f"sqlite:///{path / 'served.db'}", HOLDFAST_RUNS=str(SESSIONS + 4))
        )
        made = ask_all(server.port, [[request("POST", "/sessions", {"id": f"s{n}"}) for n in range(SESSIONS)]])
        if made.errors:
            raise RuntimeError(f"no session could be made: {made.errors[0]}")
        before = server.rss
        heard, seconds, used = uvloop.run(_heard(server, steps))
        peak = server.peak_rss
    job = f"{READERS} readers over {SESSIONS} sessions, each 4 deltas and 1 event a second, {seconds:.0f} s"
    each = used / heard.frames
    yield Figure(
        job=f"{job}: CPU of the server per frame, its runs included",
        ours=f"{each * 1e6:.1f} us",
        bound=f"<= {CPU_BOUND * 1e6:g} us",
        ok=each <= CPU_BOUND,
        ratio=f"{used / seconds:.0%} of a core",
    )
    yield Figure(
        job=f"{job}: memory at the highest (before the first reader: {before / 1e6:.0f} MB)",
        ours=f"{peak / 1e6:.0f} MB",
        bound=f"<= {RSS_BOUND / 1e6:g} MB",
        ok=peak <= RSS_BOUND,
    )
    yield Figure(
        job=f"{job}: {heard.frames:,} frames, lost, doubled or out of order",
        ours=str(heard.lost),
        bound="0",
        ok=not heard.lost,
    )
    for what, late in (("a delta, from said", heard.deltas_late), ("an event, from stored", heard.events_late)):
        yield Figure(
            job=f"{job}: median, p99 and worst lateness of {what} to read (no bound)",
            ours=", ".join(f"{found * 1e3:.1f} ms" for found in _spread(late)),
        )


def _spread(late: list[float]) -> tuple[float, float, float]:
    return statistics.median(late), statistics.quantiles(late, n=100)[98], max(late)


async def _heard(server: ServerProcess, steps: int) -> tuple[ReaderTotals, float, float]:
    loop = asyncio.get_running_loop()
    reading: list[Reading] = []
    for number in range(READERS):
        path = f"/sessions/s{number % SESSIONS}/events"
        _, protocol = await loop.create_connection(partial(Reading, path), "127.0.0.1", server.port)
        reading.append(protocol)
    await asyncio.gather(*(reader.began for reader in reading))
    since, used = time.monotonic(), server.cpu
    asking = []
    for number in range(SESSIONS):
        body = {"agent_id": "paced", "message": str(steps)}
        once = iter([request("POST", f"/sessions/s{number}/message", body)])
        _, runner = await loop.create_connection(partial(Asking, once), "127.0.0.1", server.port)
        runner.begin()
        asking.append(runner)
        await asyncio.sleep(SPREAD)
    await asyncio.gather(*(runner.over for runner in asking))
    await asyncio.sleep(SETTLE)
    used, seconds = server.cpu - used, time.monotonic() - since
    errors = list(itertools.chain.from_iterable(runner.answered.errors for runner in asking))
    if errors:
        raise RuntimeError(f"{len(errors)} runs failed: {errors[0]}")
    heard, offset = ReaderTotals(), time.time() - time.monotonic()
    head = max(
        frame.seq for reader in reading[:SESSIONS] for frame in frames_of(reader.received)
    )  # every session has the same events
    for reader in reading:
        heard.take(reader, since, steps * STEP, head, offset)
        reader.transport.close()
    return heard, seconds, used
