"""B18: readers that do not read, and clients that vanish: what they held is given back, and others are served."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast import Message, Session
from tests.kit.server_process import RawConnection, ServerProcess
from tests.proofs import Report, proof
from tests.proofs.clients import APP, open_url
from tests.proofs.crashes import make_scratch_directory

SSE = {"Accept": "text/event-stream"}
ASKED = {"agent_id": "quick", "message": "are you there?"}
STALLED = 8.0  # seconds without reading after which a server gives a reader up
SPARE = 5  # descriptors and tasks that may come and go
MEMORY = 64 << 20
WHOLE = 48  # messages of a megabyte, of a session that is asked for as a whole
BUILT = 512 << 20  # two answers that are built at once; an export has every text twice
BIG = 400  # messages of the session that stalled readers ask for
SIZE = 16 << 10  # bytes of each
VANISHING = 8  # threads
STREAMS = 50  # of the key of the clients that vanish


@contextmanager
def start_crowded_server(**settings: Any) -> Iterator[ServerProcess]:
    """A server with a long session that is asked for by many, and another one that is not."""
    with make_scratch_directory(memory=True) as directory:
        url = f"sqlite:///{directory}/sessions.db"
        with open_url(url) as store:
            Session("other", store=store)
            session = Session("big", store=store)
            for number in range(BIG):
                session.add_message(Message.user(f"{number} " + "x" * SIZE))
        more = {"prove_stalled": STALLED, "ping": 0.5, "prove_effects": directory}
        with ServerProcess(APP, url, **more, **settings) as server:
            warm_up(server)
            yield server


@proof("B18", ci=200, long=1_000)
def stalled_readers(size: int, seed: int) -> Report:
    """`size` readers that never read: the server ends them by itself, and others do not notice them."""
    grown, figures, failures = _stall_readers(size)
    if grown > MEMORY:  # what the system counts for a process may be high once: a server that keeps too much always is
        grown, figures, more = _stall_readers(size)
        failures += more
    if grown > MEMORY:
        failures.append(f"{grown >> 20} MB more in memory")
    return Report(figures=f"{figures}; {len(failures)} leaks", failures=failures)


def _stall_readers(size: int) -> tuple[int, str, list[str]]:
    """Return how many bytes the server takes more for `size` stalled readers, the figures, and what leaked."""
    with start_crowded_server(streams_per_key=size + 20) as server:
        held = HeldResources.measure(server)
        alone, _ = measure_latency(server)
        stalled = [open_reader(server, "big", room=4096) for _ in range(size)]
        wait_until_filled(server)
        among, most = measure_latency(server)
        failures = wait_until(
            lambda: server.read_metric("holdfast_open_streams") == 0, "streams of stalled readers are open"
        )
        failures += held.wait_until_released(server, "while they still hold their end")
        for wire in stalled:
            wire.reset()
        failures += check_slots(server, size + 20)
        failures += read_server_complaints(server, failures)
    grown = most - held.memory
    figures = (
        f"{size} stalled: {grown / (1 << 20):.0f} MB more in memory; others' p99 {1000 * among:.1f} ms beside "
        f"{1000 * alone:.1f} ms without them"
    )
    return grown, figures, failures


@proof("B18", ci=30, long=300)
def unread_answers(size: int, seed: int) -> Report:
    """`size` clients ask for large answers and read nothing: few are built at once, few are kept, none for long."""
    figures: list[str] = []
    failures: list[str] = []
    with make_scratch_directory(memory=True) as directory:
        url = f"sqlite:///{directory}/sessions.db"
        with open_url(url) as store:
            session = Session("big", store=store)
            for number in range(WHOLE):
                session.add_message(Message.user(f"{number} word " + "x" * 1_000_000))
        for what in ("history?limit=14", "events?after=0&limit=1000", "search?q=word&limit=200", "export", "document"):
            with ServerProcess(APP, url, prove_stalled=3.0, prove_effects=directory) as server:
                name = what.partition("?")[0]
                grown, left = _read_nothing(server, f"/sessions/big/{what}", size)
                figures.append(f"{name} {grown >> 20} MB, then {left >> 20} MB")
                if grown > BUILT or left > MEMORY:
                    failures.append(f"{name}: {grown >> 20} MB more in memory, and {left >> 20} MB afterwards")
                failures += read_server_complaints(server, failures)
    return Report(figures=f"{size} clients: {', '.join(figures)}", failures=failures)


def _read_nothing(server: ServerProcess, path: str, size: int) -> tuple[int, int]:
    """Return how many bytes the server takes at most for clients that read nothing, and when it has given them up."""
    with server.client() as client:
        client.get("/sessions/big").raise_for_status()
    before, most, deadline = server.memory(), 0, time.monotonic() + 20.0
    wires = [RawConnection(server.port, "GET", path, room=4096) for _ in range(size)]
    for wire in wires:
        wire.send()
    while time.monotonic() < deadline:
        now = server.memory()
        most = max(most, now)
        if most - now > 16 << 20 and now - before < MEMORY:
            break
        time.sleep(0.02)
    for wire in wires:
        wire.reset()
    return most - before, now - before


@proof("B18", ci=2_000, long=50_000)
def vanished_clients(size: int, seed: int) -> Report:
    """`size` clients reset before, within or after their request, or once the answer has begun."""
    with start_crowded_server(streams_per_key=STREAMS) as server:
        held = HeldResources.measure(server)
        began = time.monotonic()
        vanish(server, size, random.Random(seed))
        took = time.monotonic() - began
        most = server.memory()
        failures = wait_until(
            lambda: server.read_metric("holdfast_open_streams") == 0, "streams of the vanished are open"
        )
        failures += wait_until(lambda: server.read_metric("holdfast_queue_length") == 0, "runs are queued")
        failures += held.wait_until_released(server, "after everybody has gone")
        failures += check_slots(server, STREAMS)
        failures += read_server_complaints(server, failures)
    grown = most - held.memory
    if grown > MEMORY:
        failures.append(f"{grown >> 20} MB more in memory")
    figures = f"{size} vanished in {took:.1f} s: {grown / (1 << 20):.0f} MB more in memory; {len(failures)} leaks"
    return Report(figures=figures, failures=failures)


def read_server_complaints(server: ServerProcess, failures: list[str]) -> list[str]:
    """What the server wrote, if something is wrong; and if it was surprised by anything."""
    surprised = server.read_metric("holdfast_unexpected_errors_total")
    wrong = [f"{surprised:.0f} exceptions that nobody expected"] if surprised else []
    return [*wrong, f"the server said: {server.stderr[-1500:]}"] if failures or wrong else []


@dataclass
class HeldResources:
    """What a server holds without clients."""

    files: int
    tasks: int
    memory: int

    @classmethod
    def measure(cls, server: ServerProcess) -> HeldResources:
        return cls(server.files(), inspect_server(server)["tasks"], server.memory())

    def wait_until_released(self, server: ServerProcess, when: str) -> list[str]:
        """Wait until it holds no more than that."""
        return [
            *wait_until(
                lambda: server.files() <= self.files + SPARE, lambda: f"{server.files()} files {when}, not {self.files}"
            ),
            *wait_until(
                lambda: inspect_server(server)["tasks"] <= self.tasks + SPARE,
                lambda: f"{inspect_server(server)['tasks']} tasks {when}, not {self.tasks}",
            ),
        ]


def wait_until(is_so: Callable[[], bool], otherwise: str | Callable[[], str], seconds: float = 20.0) -> list[str]:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return [otherwise if isinstance(otherwise, str) else otherwise()]
        time.sleep(0.1)
    return []


def inspect_server(server: ServerProcess) -> dict[str, int]:
    with server.client() as client:
        body = {"agent_id": "inspector", "message": "what do you hold?"}
        found: dict[str, int] = json.loads(client.post("/sessions/other/message", json=body).json()["response"])
        return found


def warm_up(server: ServerProcess) -> None:
    """Let the server's threads and buffers come to be, so that they are not taken for leaks."""
    for _ in range(3):
        wires = [open_reader(server, "big") for _ in range(20)]
        for wire in wires:
            for frame in wire.frames():
                if frame.place[0] > BIG:
                    break
            wire.reset()
    vanish(server, 100, random.Random(0))
    measure_latency(server)
    wait_until(lambda: server.read_metric("holdfast_open_streams") == 0, "")
    time.sleep(0.5)


def wait_until_filled(server: ServerProcess) -> None:
    """Wait until the kernel takes no more for readers that do not read: about two megabytes each."""
    before = -1.0
    while (now := server.read_metric("holdfast_frames_sent_total")) != before:
        before = now
        time.sleep(0.4)


def open_reader(server: ServerProcess, session: str, room: int | None = None) -> RawConnection:
    """A reader that has asked; `room`: it is not meant to read."""
    wire = RawConnection(server.port, "GET", f"/sessions/{session}/events", headers=SSE, room=room)
    wire.send()
    return wire


def measure_latency(server: ServerProcess) -> tuple[float, int]:
    """The 99th percentile of what another client waits for; and the peak of its memory during that time."""
    times: list[float] = []
    most = 0
    with server.client() as client:
        for number in range(300):
            began = time.monotonic()
            path = "/sessions/other" if number % 3 else "/sessions/other/history"
            client.get(path).raise_for_status()
            times.append(time.monotonic() - began)
            most = max(most, server.memory())
    return statistics.quantiles(times, n=100)[98], most


def vanish(server: ServerProcess, number: int, rng: random.Random) -> None:
    """Clients that connect and reset: before, within and after their request, or once the answer has begun."""
    seeds = [rng.random() for _ in range(VANISHING)]
    threads = [threading.Thread(target=vanish_repeatedly, args=[server, number // VANISHING, seed]) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def vanish_repeatedly(server: ServerProcess, number: int, seed: float) -> None:
    rng = random.Random(seed)
    for _ in range(number):
        if rng.random() < 0.2:
            wire = RawConnection(server.port, "POST", "/sessions/other/message/stream", body=ASKED)
        elif rng.random() < 0.3:
            wire = RawConnection(server.port, "POST", "/sessions/other/message", body=ASKED)
        else:
            wire = RawConnection(server.port, "GET", f"/sessions/{rng.choice(('big', 'other'))}/events", headers=SSE)
        try:
            wire.send(slice(rng.choice((None, None, rng.randrange(len(wire.request))))))
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 0.02))
        finally:
            wire.reset()


def check_slots(server: ServerProcess, number: int) -> list[str]:
    """As many streams as a key may have can be opened: none of its places is lost."""
    wires = [open_reader(server, "other") for _ in range(number)]
    refused = 0
    for wire in wires:
        next(wire.frames(), None)
        refused += wire.status != 200
        wire.reset()
    return [f"{refused} of {number} streams were refused"] if refused else []
