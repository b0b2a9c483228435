"""A whole run of an agent: a question, a tool call, its result, the answer; every step durable.

The model is scripted and takes no time, so the figures are those of the loop and the store. Agent and session are made
before the clock starts, for holdfast and for the peers alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import ours, peers
from benchmarks.loop_peer import AGENTS, ANSWER, ARGUMENTS, ASK, search_orders
from benchmarks.raw import RawSQLite
from benchmarks.report import Figure, at_most, duration
from benchmarks.timing import Race, Scale, clock, fastest, folder, places
from benchmarks.workload import history, turn
from holdfast import Agent, LanguageModel, Message, Session
from holdfast.log import codec
from holdfast.log.messages import Limits
from holdfast.models import ModelRequest, call
from holdfast.prompt.history_window import WINDOW_SHARE
from holdfast.stores import SQLiteStore
from holdfast.stores.base import Store

PEER_BOUND, GROWTH_BOUND = 0.25, 1.3
WINDOW = 50  # messages
AROUND = 96  # average bytes of an event besides its message: salt, usage, stop reason
LENGTHS = (1_000, 10_000)  # messages behind the window
FRESH_AFTER = 50  # runs before a new agent: a scripted model keeps every request in memory

Contestant = Callable[[int], list[float]]  # does that many runs and returns the seconds of each


class OurRuns:
    """Runs of holdfast on one store: each in a new session, or all in a session that has a history."""

    def __init__(
        self,
        store: Store,
        *,
        past: str | None = None,
        keep: bool = False,  # one session object for all runs, as in a process that serves one conversation
        window: int | None = None,
        loop: asyncio.Runner | None = None,  # the event loop for run_async; None for run
    ) -> None:
        self.store, self.past, self.window, self.loop = store, past, window, loop
        self.kept: Session | None = None
        self.keep = keep
        self.sent: list[int] = []  # number of messages of each model call
        self._count = itertools.count()

    def __call__(self, calls: int) -> list[float]:
        return [self._one() for _ in range(calls)]

    def _reply(self, request: ModelRequest) -> Any:
        self.sent.append(len(request.messages))
        if request.messages[-1].role == "tool":
            return ANSWER
        return call("search_orders", json.loads(ARGUMENTS))

    def _agent(self) -> Agent:
        if self.window is None:
            return Agent(provider="scripted", script=self._reply, tools=[search_orders])
        model = LanguageModel("scripted", script=self._reply, context_window=self.window)
        return Agent(model=model, tools=[search_orders])

    def _one(self) -> float:
        number = next(self._count)
        if number % FRESH_AFTER == 0:
            self.agent = self._agent()
        if self.past is None:
            session = Session(agent=self.agent, store=self.store)
        elif self.kept is not None:
            session = self.kept
        else:
            session = Session.open(self.past, agent=self.agent, store=self.store)
            self.kept = session if self.keep else None
        question = str(ASK["content"])
        if self.loop is None:
            start = clock()
            text = session.run(question).text
            taken = clock() - start
        else:
            text, taken = self.loop.run(_awaited(session, question))
        if text != ANSWER:
            raise RuntimeError(f"the agent answered {text[:80]!r}")
        return taken


async def _awaited(session: Session, question: str) -> tuple[str, float]:
    start = clock()
    text = (await session.run_async(question)).text
    return text, clock() - start


class FourCommits:
    """The messages of a run in four plain transactions, as durable as the default of holdfast."""

    def __init__(self, store: RawSQLite) -> None:
        self.store = store
        self._count = itertools.count()

    def __call__(self, calls: int) -> list[float]:
        found = []
        for _ in range(calls):
            number = next(self._count)
            session, messages = f"s{number}", turn("t", number)
            start = clock()
            for message in messages:
                self.store.add(session, [message])
            found.append(clock() - start)
        return found


class PeerRuns:
    """A peer in its own interpreter. It gets requests for runs over a pipe, so that it alternates with holdfast."""

    def __init__(self, name: str, place: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        command = [str(peers.PYTHON), "-m", "benchmarks.loop_peer", name, str(place)]
        self.process = subprocess.Popen(
            command,
            cwd=peers.HERE.parent,
            env=os.environ | peers.QUIET,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        about = self._line()
        self.title = f"{about['title']} {about['version']}"

    def __call__(self, calls: int) -> list[float]:
        assert self.process.stdin is not None
        print(calls, file=self.process.stdin, flush=True)
        found: list[float] = self._line()
        return found

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._errors.seek(0)
            raise RuntimeError((self._errors.read().strip().splitlines() or ["no reason given"])[-1])
        return json.loads(line)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.communicate()  # closes its stdin, which ends the process
        self._errors.close()


def in_turns(contestants: Mapping[str, Contestant], *, rounds: int, calls: int) -> Race:
    """Do as `timing.race`, for contestants that measure their own time."""
    names = list(contestants)
    for name in names:
        contestants[name](max(5, calls // 2))  # a warm-up: the first runs of a contestant are not counted
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(statistics.median(contestants[name](calls)))
    return Race(found)


def runs(scale: Scale) -> Iterator[Figure]:
    """Measure one run in an empty session, compared with the peers and with four raw commits."""
    with ExitStack() as stack:
        loop = stack.enter_context(asyncio.Runner())
        contestants: dict[str, Contestant] = {}
        for name, place in places().items():
            path = stack.enter_context(folder(place))
            store = stack.enter_context(SQLiteStore(path / "ours.db"))
            contestants[f"ours, {name}"] = OurRuns(store)
            contestants[f"ours awaited, {name}"] = OurRuns(store, loop=loop)
            raw = RawSQLite(path / "raw.db")
            stack.callback(raw.close)
            contestants[f"raw, {name}"] = FourCommits(raw)
        titles: dict[str, str] = {}
        for name in AGENTS if scale.peers and peers.are_installed() else ():
            try:
                peer = PeerRuns(name, fastest())
                peer(1)
            except RuntimeError as error:
                yield Figure(job=f"run, peer {name}", ours=f"did not run: {error}"[:100])
                continue
            stack.callback(peer.close)
            contestants[name], titles[name] = peer, peer.title
        found = in_turns(contestants, rounds=scale.rounds, calls=scale.calls)
    yield from _beside_peers(found, titles)
    for name in places():
        yield _beside(found, f"run with a tool call, {name}, beside four raw FULL commits", "ours", "raw", name)
        yield _beside(found, f"run_async with a tool call, {name}, beside run", "ours awaited", "ours", name)


def _beside(found: Race, job: str, one: str, other: str, place: str) -> Figure:
    one, other = f"{one}, {place}", f"{other}, {place}"
    return Figure(
        job=f"{job} (no bound)",
        ours=duration(found.seconds(one)),
        limit=duration(found.seconds(other)),
        ratio=f"{found.ratio(one, other):.2f} x",
    )


def _beside_peers(found: Race, titles: Mapping[str, str]) -> Iterator[Figure]:
    place = next(iter(places()))
    mine = f"ours, {place}"
    best = min(titles, key=found.seconds, default=None)
    for name, title in titles.items():
        job, ratio = f"run with a tool call, {place}, beside {title}", found.ratio(mine, name)
        ours_took, theirs = duration(found.seconds(mine)), duration(found.seconds(name))
        if name == best:
            yield at_most(f"{job}, the best peer", ratio, PEER_BOUND, ours=ours_took, limit=theirs)
        else:
            yield Figure(job=job, ours=ours_took, limit=theirs, ratio=f"{ratio:.2f} x")


def windows(scale: Scale) -> Iterator[Figure]:
    """Measure the same run in a session with a long history, of which the model gets a window."""
    place = fastest()
    window = _context_window()
    with ExitStack() as stack:
        path = stack.enter_context(folder(place))
        contestants: dict[str, OurRuns] = {}
        for length in (0, *LENGTHS):  # one file per length, so that the growth includes that of the file
            store = stack.enter_context(SQLiteStore(path / f"ours-{length}.db"))
            if length:
                ours.seeded(store, "past", length)
            contestants[f"at {length:,}"] = OurRuns(store, past="past" if length else None, keep=True, window=window)
        opened = stack.enter_context(SQLiteStore(path / "opened.db"))
        ours.seeded(opened, "past", LENGTHS[-1])
        contestants["opened anew"] = OurRuns(opened, past="past", window=window)
        found = in_turns(contestants, rounds=scale.rounds, calls=scale.calls)
    for length in LENGTHS:
        name = f"at {length:,}"
        sent = statistics.median(contestants[name].sent)
        yield at_most(
            f"run with a tool call, {length:,} messages behind a window of {WINDOW} ({sent:.0f} sent)",
            found.ratio(name, "at 0"),
            GROWTH_BOUND,
            ours=duration(found.seconds(name)),
            limit=duration(found.seconds("at 0")),
        )
        if length == LENGTHS[-1]:
            yield Figure(
                job=f"run, {length:,} messages behind that window, the session opened anew each time (no bound)",
                ours=duration(found.seconds("opened anew")),
                limit=duration(found.seconds("at 0")),
                ratio=f"{found.ratio('opened anew', 'at 0'):.2f} x",
            )
        if not 0.9 * WINDOW <= sent <= 1.2 * WINDOW:
            raise RuntimeError(f"{sent:.0f} messages were sent, not about {WINDOW}")


def _context_window() -> int:
    """Return the context window, in tokens, that holds about `WINDOW` messages of the workload."""
    sizes = [len(codec.encode(Message.of(message).to_data(Limits())[0])) + AROUND for message in history(1_000)]
    return int(WINDOW * (statistics.fmean(sizes) // 4 + 1) / WINDOW_SHARE)
