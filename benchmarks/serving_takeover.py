"""Two servers on one PostgreSQL, one of them killed during its runs: the time until the other server has finished them,
and whether anything is missing or doubled.

On the same machine, a server sees at once that a process is dead. For a process of another machine it has to wait until
the lease expires. Both cases are measured: in the second, the victim uses the name of a process of another machine.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Figure
from benchmarks.serving_app import ANSWER, FOREIGN, HANGS, NOTES
from benchmarks.serving_load import ask_all, request
from benchmarks.serving_process import ServerProcess, holdfast_server
from benchmarks.timing import Scale, clock, fastest, folder
from benchmarks.turns import database
from holdfast import Session
from holdfast.stores.base import Store

LEASE = 3.0
GRACE = 1.0
SESSIONS = 4  # sessions that have a run and a queued message when their server is killed
PATIENCE = 30.0


@dataclass(slots=True)
class Kills:
    """The results of the runs whose server was killed."""

    count: int = 0
    seconds: list[float] = field(default_factory=list)
    runs: int = 0  # number of runs that the kills interrupted
    messages: int = 0
    lost: int = 0
    doubled: int = 0


def takeover(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of both cases."""
    kills = max(3, 2 * scale.crowds)
    with ExitStack() as stack:
        dsn = stack.enter_context(database(durable=False))
        path = stack.enter_context(folder(fastest()))
        from holdfast.stores.postgres import PostgresStore  # an optional dependency that only this job needs

        store = stack.enter_context(PostgresStore(dsn))
        for name, foreign in (("a server of this machine", False), ("one of another machine", True)):
            notes = path / f"notes-{foreign}"
            settings = {"HOLDFAST_LEASE_SECONDS": f"{LEASE:g}", NOTES: str(notes)}
            victims = settings | {HANGS: "1"} | ({FOREIGN: "1"} if foreign else {})
            found = Kills()
            with holdfast_server(dsn, **settings) as survivor:
                for number in range(kills):
                    with holdfast_server(dsn, **victims) as victim:
                        wait = LEASE / 2 * number / kills  # so that the kills spread over the time between two renewals
                        _kill(victim, survivor, store, f"{foreign}-{number}", wait, found)
            _audit(store, notes, found)
            yield from _figures(name, found)


def _figures(name: str, found: Kills) -> Iterator[Figure]:
    job = f"kill -9 of {name}, {found.count} times with {found.runs} runs under way, lease {LEASE:g} s"
    worst = max(found.seconds)
    yield Figure(
        job=f"{job}: until the other server has finished them, median and worst",
        ours=f"{statistics.median(found.seconds):.2f} s, {worst:.2f} s",
        limit=f"{LEASE:g} s",
        bound=f"<= {LEASE + GRACE:g} s",
        ok=worst <= LEASE + GRACE,
    )
    yield Figure(
        job=f"{job}: {found.messages} messages, the queued ones included",
        ours=f"{found.lost} lost, {found.doubled} doubled",
        bound="0, 0",
        ok=not found.lost and not found.doubled,
    )


def _kill(victim: ServerProcess, survivor: ServerProcess, store: Store, name: str, wait: float, found: Kills) -> None:
    """Do one round: start runs on the victim, kill it, and wait until the survivor has finished them."""
    ids = [f"{name}-{number}" for number in range(SESSIONS)]
    sessions = [Session(id, store=store) for id in ids]
    asked = [_question(id, number) for number in (0, 1) for id in ids]
    connections = [_sent(victim.port, message) for message in asked[:SESSIONS]]
    try:
        _until(lambda: all(_events(session, "tool.returned") for session in sessions))
        # The victim admits a run before it starts, so the survivor may be the server that starts it.
        hanging = [session for session in sessions if not _events(session, "turn.finished")]
        connections += [_sent(victim.port, message) for message in asked[SESSIONS:]]
        _until(lambda: all(_events(session, "message.queued") == 2 for session in sessions))
        time.sleep(wait)
        victim.kill()
        killed = clock()
        _until(lambda: all(_events(session, "turn.finished") for session in hanging))
        found.runs += len(hanging)
        if hanging:
            found.seconds.append(clock() - killed)
        found.count += 1
    finally:
        for connection in connections:
            connection.close()
    # The client has seen the connection break, and sends the request again: the same key means the same run.
    again = ask_all(survivor.port, [[message] for message in asked], lambda body: ANSWER[:20].encode() in body)
    found.messages += len(asked)
    found.lost += len(again.errors)


def _question(id: str, number: int) -> bytes:
    body = {"agent_id": "noting", "message": f"{id}/{number}"}
    return request("POST", f"/sessions/{id}/message", body, key=f"{id}/{number}")


def _sent(port: int, message: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(message)
    return connection


def _events(session: Session, type: str) -> int:
    return len(session.events(types=[type]))


def _until(condition: Callable[[], bool]) -> None:
    deadline = clock() + PATIENCE
    while not condition():
        if clock() > deadline:
            raise RuntimeError(f"it did not happen in {PATIENCE:.0f} s")
        time.sleep(0.01)


def _audit(store: Store, notes: Path, found: Kills) -> None:
    """Check that each question is noted once, is in its session once, and has one answer."""
    noted = Counter(notes.read_text().splitlines())
    for question, times in noted.items():
        found.doubled += times - 1
        session = Session.open(question.partition("/")[0], store=store)
        texts = [message.text for message in session.messages if message.role == "user"]
        found.doubled += texts.count(question) - 1
    ids = {question.partition("/")[0] for question in noted}
    for session in (Session.open(id, store=store) for id in ids):
        answers = sum(message.text == ANSWER for message in session.messages)
        ended = _events(session, "turn.finished")
        found.doubled += max(0, answers - 2) + max(0, ended - 2)
        found.lost += max(0, 2 - answers) + max(0, 2 - ended)
    found.lost += found.messages - len(noted)
