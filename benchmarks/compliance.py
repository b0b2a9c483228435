"""The cost of pruning, verification, retention sweeps and encryption, and the bytes that many tool calls store."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apsw

from benchmarks import ours
from benchmarks.loop_peer import ANSWER, ARGUMENTS, ASK, search_orders
from benchmarks.report import Figure, at_most, duration, rate
from benchmarks.timing import Act, Scale, clock, fastest, folder, places, race
from benchmarks.turns import STRETCH, OurTurns, lengths
from benchmarks.workload import history, turn
from holdfast import Agent, LanguageModel, Session
from holdfast.clock import Clock
from holdfast.models import ModelRequest, call
from holdfast.models.scripted import ScriptedCall
from holdfast.stores import SQLiteStore
from holdfast.stores.base import Store
from holdfast.worker.sweep import sweep

PRUNE_BOUND, VERIFY_BOUND, SWEEP_BOUND, ENCRYPTION_BOUND, TOOLS_BOUND, LINEAR_BOUND = 2.0, 3.0, 2.0, 1.4, 3.0, 1.1
WORN_BOUND = 1.2
KEY = bytes(range(32))

# -- pruning -----------------------------------------------------------------------------------------------------------

SHORT = 1_000
WINDOW = 50  # messages
FIRST = f"keep_last_{WINDOW}"
STRATEGIES: dict[str, dict[str, Any]] = {
    FIRST: {},
    "sliding_window": {"window_size": WINDOW},
    "token_budget": {"max_tokens": 7_000},  # about as many messages as WINDOW
}


def pruning(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        with ExitStack() as stack:
            path = stack.enter_context(folder(place))
            contestants = {}
            for length in (SHORT, scale.long):  # one file per length, so that the growth includes that of the file
                store = stack.enter_context(SQLiteStore(path / f"ours-{length}.db"))
                ours.seeded(store, "other", STRETCH)
                for strategy in STRATEGIES:
                    ours.seeded(store, strategy, length)
                    contestants[f"{strategy} at {length}"] = Prunes(store, strategy)
            found = race(contestants, rounds=scale.rounds, calls=scale.calls)
        for strategy in STRATEGIES:
            long, short = f"{strategy} at {scale.long}", f"{strategy} at {SHORT}"
            yield at_most(
                f"prune, {strategy}, {name}, at {scale.long:,} beside {SHORT:,}",
                found.ratio(long, short),
                PRUNE_BOUND,
                ours=duration(found.seconds(long)),
                limit=duration(found.seconds(short)),
            )

    yield from _after_many(scale)


def _after_many(scale: Scale) -> Iterator[Figure]:
    """Compare prunes of a session that was pruned often with first prunes of others: a view must not get slower."""
    often = scale.rounds * scale.calls
    with folder(fastest()) as path, SQLiteStore(path / "ours.db") as store:
        used = Prunes(store, FIRST)
        ours.seeded(store, FIRST, SHORT)
        for _ in range(often):
            used()()
        found = race({"used": used, "new": FirstPrunes(store)}, rounds=scale.rounds, calls=scale.calls)
    yield at_most(
        f"prune, {FIRST}, after {often} prunes and undos, beside a session's first",
        found.ratio("used", "new"),
        WORN_BOUND,
        ours=duration(found.seconds("used")),
        limit=duration(found.seconds("new")),
    )


class Prunes:
    """Prunes one session, opened anew each time. Between two prunes, untimed, the last prune is undone."""

    def __init__(self, store: Store, strategy: str) -> None:
        self.store, self.strategy = store, strategy

    def __call__(self) -> Act:
        Session.open(self.strategy, store=self.store).undo_prune()
        session = Session.open(self.strategy, store=self.store)
        strategy, options = self.strategy, STRATEGIES[self.strategy]
        return lambda: _left(session.prune(strategy, **options).seq)


class FirstPrunes:
    """Prunes each session once."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __call__(self) -> Act:
        session = ours.seeded(self.store, self.store.clock.new_id(), SHORT)
        return lambda: _left(session.prune(FIRST).seq)


def _left(seq: int | None) -> None:
    if seq is None:
        raise RuntimeError("there was nothing to prune")


# -- verifying ---------------------------------------------------------------------------------------------------------

COLUMNS = "SELECT event, at, type, header, tokens, body, tombstone, hash FROM events WHERE event BETWEEN ? AND ?"
LAST_SEQ = (1 << 32) - 1


def verifying(scale: Scale) -> Iterator[Figure]:
    with ExitStack() as stack:
        path = stack.enter_context(folder(fastest()))
        messages = stack.enter_context(SQLiteStore(path / "messages.db"))
        sealed = stack.enter_context(SQLiteStore(path / "sealed.db", key=KEY))
        called = stack.enter_context(SQLiteStore(path / "called.db"))
        sessions = {
            "messages": ours.seeded(messages, "s", scale.texts - 1),
            "encrypted messages": ours.seeded(sealed, "s", scale.texts - 1),
            "runs with tool calls": Session("s", store=called),
        }
        work = ToolTurns(called, "s", steps=False)
        while called.head(called.require("session", "s")).head < scale.texts:
            work()
        contestants: dict[str, Act] = {}
        for kind, session in sessions.items():
            raw = RawChain(Path(session.store.file.path))  # type: ignore[attr-defined]
            stack.callback(raw.close)
            if session.verify().checked != raw():
                raise RuntimeError("not everything was checked")
            contestants[kind] = session.verify
            contestants[f"raw {kind}"] = raw
        found = race(
            {name: _always(act) for name, act in contestants.items()},
            rounds=scale.rounds,
            calls=max(2, scale.calls // 5),
        )
    for kind in sessions:
        job = f"verify {scale.texts:,} events of {kind}, beside reading the rows and SHA-256"
        ratio, mine, limit = found.ratio(kind, f"raw {kind}"), found.seconds(kind), found.seconds(f"raw {kind}")
        if kind == "encrypted messages":
            shown = f"{ratio:.2f} x"
            yield Figure(job=f"{job} (no bound)", ours=duration(mine), limit=duration(limit), ratio=shown)
        else:
            yield at_most(job, ratio, VERIFY_BOUND, ours=duration(mine), limit=duration(limit))


def _always(act: Act) -> Any:
    return lambda: act


class RawChain:
    """Reads the same rows, hashes each body, and links each hash to the one before it."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        number: Any = self.db.execute("SELECT log FROM logs WHERE id = 's'").get
        self.bounds = number << 32, number << 32 | LAST_SEQ

    def __call__(self) -> int:
        count, link = 0, b""
        body: Any
        hash: Any
        for _, _, _, _, _, body, _, hash in self.db.execute(COLUMNS, self.bounds):
            link = sha256(link + hash + sha256(body).digest()).digest()
            count += 1
        return count

    def close(self) -> None:
        self.db.close()


# -- sweeping ----------------------------------------------------------------------------------------------------------

SESSIONS, BATCH = 2_000, 200  # with fewer sessions, too few turns run during a sweep
EVENTS = 10  # events of each session that is swept
DAYS = 10  # days since the last use of those sessions
TURNS = 10  # turns in a session before a new one, so that no session gets long
FRESH_AFTER = 50  # turns before a new agent: a scripted model keeps every request in memory
QUIET = 2.0  # seconds before and after a sweep
PATIENCE = 120  # seconds after which turns count as stuck
FEWEST = 100  # turns that a 99th percentile needs
NOTE = {"role": "user", "content": "One more thing: the order was for two."}


class PastIds(Clock):
    """A clock that is DAYS behind: it gives sessions ids and times of that day."""

    def now(self) -> int:
        return super().now() - DAYS * 24 * 3600 * 1_000_000


def sweeping(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        with folder(place) as path, SQLiteStore(path / "ours.db") as store:
            alone: list[float] = []
            beside_turns: list[float] = []
            for _ in range(scale.crowds):
                _expired(store, SESSIONS)
                alone.append(_swept(store, SESSIONS))
            ratios: dict[str, list[float]] = {"turn": [], "append": []}
            tails: dict[str, list[tuple[float, float]]] = {"turn": [], "append": []}
            with _talking(path / "ours.db") as talk:
                for _ in range(scale.crowds):
                    _expired(store, SESSIONS)
                    before = talk.during(QUIET)
                    began = clock()
                    beside_turns.append(_swept(store, SESSIONS))
                    beside = talk.between(began, clock())
                    after = talk.during(QUIET)
                    for kind in ratios:
                        quiet = _p99([*before[kind], *after[kind]])
                        busy = _p99(beside[kind])
                        ratios[kind].append(busy / quiet)
                        tails[kind].append((busy, quiet))
        job = f"sweep of {SESSIONS:,} sessions of {EVENTS} events in batches of {BATCH}, SQLite FULL, {name}"
        yield Figure(job=f"{job}: rate alone", ours=rate(SESSIONS / statistics.median(alone)))
        yield Figure(job=f"{job}: rate beside turns", ours=rate(SESSIONS / statistics.median(beside_turns)))
        for kind, label in (("turn", "add_message and run"), ("append", "add_message alone")):
            busy, quiet = (statistics.median(pair[at] for pair in tails[kind]) for at in (0, 1))
            ratio = statistics.median(ratios[kind])
            row = f"{job}: p99 of another process's {label}, beside no sweep"
            if kind == "turn":
                yield at_most(row, ratio, SWEEP_BOUND, ours=duration(busy), limit=duration(quiet))
            else:
                shown = f"{ratio:.2f} x"
                yield Figure(job=f"{row} (no bound)", ours=duration(busy), limit=duration(quiet), ratio=shown)


def _expired(store: SQLiteStore, count: int) -> None:
    """Create sessions whose retention has expired."""
    messages = ours.prepared(history(EVENTS - 2))
    with SQLiteStore(store.file.path, synchronous="NORMAL", clock=PastIds()) as past:
        for _ in range(count):
            Session(store=past, retention={"ttl_days": DAYS / 2}, messages=messages)


def _swept(store: SQLiteStore, count: int) -> float:
    start = clock()
    report = sweep(store, batch=BATCH)
    taken = clock() - start
    if len(report.purged) != count:
        raise RuntimeError(f"{len(report.purged)} of {count} sessions were purged")
    return taken


def _p99(seconds: Sequence[float]) -> float:
    if len(seconds) < FEWEST:
        raise RuntimeError(f"{len(seconds)} turns are too few for a 99th percentile")
    return statistics.quantiles(seconds, n=100)[-1]


@contextmanager
def _talking(path: Path) -> Iterator[Talk]:
    """Run turns in another process, one after the other, until the block ends."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_talk, args=(path, there), daemon=True)
    process.start()
    there.close()  # so that reading from this end fails when the process is dead
    try:
        talk = Talk(here)
        talk.during(QUIET)  # a warm-up
        yield talk
        here.send(None)
        process.join(PATIENCE)
    finally:
        process.kill()
        process.join()


class Talk:
    """This process's end of the pipe to those turns. Its methods return the seconds of the turns in a span of time, and
    of the append of each."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def during(self, seconds: float) -> dict[str, list[float]]:
        start = clock()
        time.sleep(seconds)
        return self.between(start, clock())

    def between(self, start: float, end: float) -> dict[str, list[float]]:
        self.pipe.send((start, end))
        if not self.pipe.poll(PATIENCE):
            raise RuntimeError("the turns hang")
        found: dict[str, list[float]] = self.pipe.recv()
        return found


def _talk(path: Path, pipe: Connection) -> None:
    past: list[
        tuple[float, float, float]
    ] = []  # times of the start of a turn, of the end of its add_message, of its end
    with SQLiteStore(path) as store:
        for number in itertools.count():
            while pipe.poll():
                wanted = pipe.recv()
                if wanted is None:
                    return
                start, end = wanted
                touched = [each for each in past if each[2] >= start and each[0] <= end]
                past.clear()
                pipe.send(
                    {
                        "turn": [ended - began for began, _, ended in touched],
                        "append": [added - began for began, added, _ in touched],
                    }
                )
            if number % FRESH_AFTER == 0:
                agent = Agent(provider="scripted", script=_one_call, tools=[search_orders])
            if number % TURNS == 0:
                session = Session(store=store, agent=agent)
            note, ask = ours.prepared((NOTE, ASK))
            began = clock()
            session.add_message(note)
            added = clock()
            session.run(ask)
            past.append((began, added, clock()))


def _one_call(request: ModelRequest) -> Any:
    if request.messages[-1].role == "tool":
        return ANSWER
    return call("search_orders", json.loads(ARGUMENTS))


# -- encryption --------------------------------------------------------------------------------------------------------


def encryption(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        with ExitStack() as stack:
            path = stack.enter_context(folder(place))
            contestants = {}
            for length in lengths(scale):
                for kind, key in (("plain", None), ("sealed", KEY)):
                    store = stack.enter_context(SQLiteStore(path / f"{kind}-{length}.db", key=key))
                    ours.seeded(store, "other", STRETCH)
                    contestants[f"{kind} at {length}"] = OurTurns(store, length)
            found = race(contestants, rounds=scale.rounds, calls=scale.calls)
        for length in lengths(scale):
            sealed, plain = f"sealed at {length}", f"plain at {length}"
            yield at_most(
                f"turn, encrypted, SQLite FULL, {name}, at {length:,}, beside one that is not",
                found.ratio(sealed, plain),
                ENCRYPTION_BOUND,
                ours=duration(found.seconds(sealed)),
                limit=duration(found.seconds(plain)),
            )


# -- many tool calls ---------------------------------------------------------------------------------------------------

CALLS = 100  # tool calls of a turn
PROMPT = 20_000  # tokens of the model's window; one turn alone would fill it several times


class ToolTurns:
    """Turns of many tool calls in one session: one reply makes all the calls, or each call has a reply of its own."""

    def __init__(self, store: Store, id: str, *, steps: bool) -> None:
        self.store, self.id, self.steps = store, id, steps
        self.content = 0  # bytes of the messages, of the arguments of tools and of their results
        self._count = itertools.count()

    def __call__(self) -> None:
        number = next(self._count)
        turns = [turn(f"{number}-{at}", at) for at in range(CALLS)]
        results = {message["tool_call_id"]: message["content"] for messages in turns for message in messages[2:3]}
        calls: list[ScriptedCall] = []
        for _, asking, _, _ in turns:
            function = asking["tool_calls"][0]["function"]
            arguments = json.loads(function["arguments"])
            calls.append(call(function["name"], arguments, id=asking["tool_calls"][0]["id"]))

        ask, reply = turns[0][0]["content"], turns[0][3]["content"]
        found = {json.dumps(each.arguments): results[str(each.id)] for each in calls}

        def search_orders(query: str, limit: int) -> str:
            """Search the orders."""
            return str(found[json.dumps({"query": query, "limit": limit})])

        script: list[Any] = [*calls, reply] if self.steps else [calls, reply]
        model = LanguageModel("scripted", script=script, context_window=PROMPT)
        agent = Agent(model=model, tools=[search_orders], max_steps=CALLS + 1)
        session = Session(self.id, store=self.store, agent=agent)
        if session.run(ask).text != reply:
            raise RuntimeError("the turn did not end as it should")
        said = [ask, reply, *results.values(), *(_asked(each) for each in calls)]
        self.content += sum(len(text.encode()) for text in said)


def _asked(each: ScriptedCall) -> str:
    return f"{each.id}{each.name}{json.dumps(each.arguments, ensure_ascii=False)}"


def tool_calls(scale: Scale) -> Iterator[Figure]:
    for label, steps in (("one reply", False), ("a reply each", True)):
        with folder(fastest()) as path, SQLiteStore(path / "ours.db") as store:
            work = ToolTurns(store, "s", steps=steps)
            sizes = [_size(store)]
            contents = [0]
            for _ in range(2):
                for _ in range(scale.turns // 2):
                    work()
                sizes.append(_size(store))
                contents.append(work.content)
        halves = [
            (after - before) / (content - earlier)
            for (before, after), (earlier, content) in zip(
                itertools.pairwise(sizes), itertools.pairwise(contents), strict=True
            )
        ]
        job = f"bytes on disk of {scale.turns // 2 * 2} turns of {CALLS} tool calls in {label}"
        yield at_most(
            f"{job}, beside their content",
            sizes[-1] / contents[-1],
            TOOLS_BOUND,
            ours=f"{sizes[-1]:,} B",
            limit=f"{contents[-1]:,} B",
        )
        yield at_most(f"{job}, second half beside the first", halves[1] / halves[0], LINEAR_BOUND)


def _size(store: SQLiteStore) -> int:
    """Return the size of the database after a checkpoint of its write-ahead log."""
    if not store.file.truncate_wal():
        raise RuntimeError("the write-ahead log could not be folded in")
    return Path(store.file.path).stat().st_size
