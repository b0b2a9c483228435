"""The server under load: it runs in its own process, and this process sends the requests."""

from __future__ import annotations

import shutil
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import ours
from benchmarks.report import Figure, at_least, at_most, duration, rate
from benchmarks.serving_app import ANSWER, ASK, instant
from benchmarks.serving_load import Load, ask_all, request
from benchmarks.serving_process import ServerProcess, holdfast_server
from benchmarks.timing import Race, Scale, clock, fastest, folder, places
from benchmarks.workload import history
from holdfast import Session
from holdfast.stores import SQLiteStore

CLIENTS = 32
CONNECTIONS = 8  # connections of the clients with empty requests
PAGE = 50  # sessions of one page of a list
LONG = 1_000  # messages of each session on the page, in the longer file
MESSAGES_BOUND, EMPTY_BOUND, LIST_BOUND, FLAT_BOUND = 0.4, 2.5, 4.0, 1.2


def _succeeded(load: Load) -> Load:
    if load.errors:
        raise RuntimeError(f"{len(load.errors)} of {len(load.seconds)} requests failed: {load.errors[0]}")
    return load


# -- messages ----------------------------------------------------------------------------------------------------------


def messages(scale: Scale) -> Iterator[Figure]:
    """Measure blocking messages, compared with the library with the same number of sessions at once."""
    for name, place in places().items():
        yield from _messages(scale, name, place)


def _messages(scale: Scale, name: str, place: Path) -> Iterator[Figure]:
    rounds, turns = max(3, scale.crowds), max(10, scale.turns // 4)
    served: list[Load] = []
    library: list[float] = []
    with ExitStack() as stack:
        path = stack.enter_context(folder(place))
        server = stack.enter_context(holdfast_server(f"sqlite:///{path / 'served.db'}"))
        store = stack.enter_context(SQLiteStore(path / "library.db"))
        used = 0.0
        for number in range(rounds + 1):
            ids = [f"r{number}-{client}" for client in range(CLIENTS)]
            _succeeded(ask_all(server.port, [[request("POST", "/sessions", {"id": id}) for id in ids]]))
            began = server.cpu
            load = ask_all(server.port, [[_message(id)] * turns for id in ids], _has_answer)
            used += server.cpu - began if number else 0
            beside = _library_rate(store, ids, turns)
            if number:  # the first round only warms up
                served.append(load)
                library.append(beside)
    errors = [error for load in served for error in load.errors]
    waited = sorted(seconds for load in served for seconds in load.seconds)
    job = f"{CLIENTS} clients, blocking messages, SQLite FULL, {name}"
    yield at_least(
        f"{job}, beside the library with {CLIENTS} threads",
        statistics.median(load.rate / beside for load, beside in zip(served, library, strict=True)),
        MESSAGES_BOUND,
        ours=rate(statistics.median(load.rate for load in served)),
        limit=rate(statistics.median(library)),
    )
    detail = f" ({errors[0]})" if errors else ""
    yield Figure(job=f"{job}: errors of {len(waited):,}", ours=f"{len(errors)}{detail}", bound="0", ok=not errors)
    yield Figure(
        job=f"{job}: median and p99 of one message, CPU of the server per message (no bound)",
        ours=f"{duration(statistics.median(waited))}, {duration(waited[int(len(waited) * 0.99)])}",
        ratio=f"{used / len(waited) * 1e6:,.0f} us",
    )


def _message(id: str) -> bytes:
    return request("POST", f"/sessions/{id}/message", {"agent_id": "instant", "message": ASK})


def _has_answer(body: bytes) -> bool:
    return b'"status":"finished"' in body and ANSWER[:20].encode() in body


def _library_rate(store: SQLiteStore, ids: Sequence[str], turns: int) -> float:
    """Return the turns per second of the same agent in the library, with a thread for each session."""
    sessions = [Session(id, store=store, agent=instant) for id in ids]
    barrier = threading.Barrier(len(ids) + 1)
    answers: list[str] = []

    def run(session: Session) -> None:
        barrier.wait()
        for _ in range(turns):
            answers.append(session.run(ASK).text)
        barrier.wait()

    threads = [threading.Thread(target=partial(run, session)) for session in sessions]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = clock()
    barrier.wait()
    taken = clock() - began
    for thread in threads:
        thread.join()
    if answers != [ANSWER] * (len(ids) * turns):
        raise RuntimeError("the library answered something else")
    return len(answers) / taken


# -- small requests ----------------------------------------------------------------------------------------------------


def empty(scale: Scale) -> Iterator[Figure]:
    """Measure an authenticated request that uses no store (GET /tools), at saturation, compared with bare FastAPI."""
    with ExitStack() as stack:
        path = stack.enter_context(folder(fastest()))
        served = stack.enter_context(holdfast_server(f"sqlite:///{path / 'served.db'}"))
        bare = stack.enter_context(ServerProcess("benchmarks.serving_bare"))
        ports = {"served": served.port, "bare": bare.port}
        found: dict[str, list[float]] = {name: [] for name in ports}
        clients = [[request("GET", "/tools")] * scale.calls * 10] * CONNECTIONS
        for number in range(scale.rounds + 1):
            for name in sorted(ports, reverse=bool(number % 2)):
                load = _succeeded(ask_all(ports[name], clients))
                if number:  # the first round only warms up
                    found[name].append(1 / load.rate)
    race = Race(found)
    yield at_most(
        f"an empty authenticated request (GET /tools), {CONNECTIONS} connections, beside bare FastAPI",
        race.ratio("served", "bare"),
        EMPTY_BOUND,
        ours=duration(race.seconds("served")),
        limit=duration(race.seconds("bare")),
    )


def listing(scale: Scale) -> Iterator[Figure]:
    """Measure a page of a list of many sessions, compared with the library, and the same page of long sessions."""
    count = scale.sessions * 10
    with ExitStack() as stack:
        path = stack.enter_context(folder(fastest()))
        _seed(path / "short.db", count)
        shutil.copy(path / "short.db", path / "long.db")
        with SQLiteStore(path / "long.db") as store:
            for session in Session.list(store=store, limit=PAGE):
                ours.fill(session, history(LONG))
        short = stack.enter_context(holdfast_server(f"sqlite:///{path / 'short.db'}"))
        long = stack.enter_context(holdfast_server(f"sqlite:///{path / 'long.db'}"))
        store = stack.enter_context(SQLiteStore(path / "short.db"))
        found: dict[str, list[float]] = {name: [] for name in ("served", "served, long", "library")}
        asked = [[request("GET", f"/sessions?limit={PAGE}")] * scale.calls]
        for number in range(scale.rounds + 1):
            taken = {
                "served": _succeeded(ask_all(short.port, asked, _is_page)).seconds,
                "served, long": _succeeded(ask_all(long.port, asked, _is_page)).seconds,
                "library": [_listed(store) for _ in range(scale.calls)],
            }
            for name, seconds in taken.items() if number else ():
                found[name].append(statistics.median(seconds))
    race = Race(found)
    job = f"GET /sessions, {PAGE} of {count:,}"
    yield at_most(
        f"{job}, beside Session.list",
        race.ratio("served", "library"),
        LIST_BOUND,
        ours=duration(race.seconds("served")),
        limit=duration(race.seconds("library")),
    )
    yield at_most(
        f"{job}, growth from 1 to {LONG:,} events in each session of the page",
        race.ratio("served, long", "served"),
        FLAT_BOUND,
        ours=duration(race.seconds("served, long")),
        limit=duration(race.seconds("served")),
    )


def _seed(path: Path, count: int) -> None:
    with SQLiteStore(path, synchronous="NORMAL") as store:
        for number in range(count):
            title, metadata = f"Title {number}", {"channel": "web", "priority": 3}
            Session(f"s{number}", store=store, user_id="alice", title=title, metadata=metadata)


def _listed(store: SQLiteStore) -> float:
    start = clock()
    found = Session.list(store=store, limit=PAGE)
    taken = clock() - start
    assert len(found) == PAGE
    return taken


def _is_page(body: bytes) -> bool:
    return body.count(b'"created_at"') == PAGE
