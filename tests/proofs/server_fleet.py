"""B7 and B8 through HTTP: a database that goes away under a server, and several servers that share one."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from holdfast import Session
from tests.kit.postgres import PostgresServer
from tests.kit.proxy import PostgresProxy
from tests.kit.server_process import RawConnection, ServerProcess
from tests.proofs import Report, proof
from tests.proofs.clients import APP, ClientLoad, compare_with_store, open_url
from tests.proofs.crashes import make_scratch_directory

SESSIONS = [f"s{number}" for number in range(5)]
MANY = [f"m{number}" for number in range(10)]
PAUSE = 0.004
CUTS = 25  # of all connections, of one that has been answered, or of one that asks; for each restart
WRITE = b"INSERT"
LEASE = 1.5
LATE = 3.0  # seconds that a busy machine may take besides; the figure is printed
DRAIN = 1.0
HANDED = 5.0  # seconds; the lease that was given back lasts three times as long
SLOW = {"agent_id": "slow", "message": "take your time"}
AWAY = 3.0  # seconds: longer than a server waits, shorter than a turn that could not write and tries to say so


@proof("B7", ci=3, long=250)
def server_store_away(size: int, seed: int) -> Report:
    """PostgreSQL crashes `size` times under a server, its connections are cut, and once it is away for seconds."""
    rng = random.Random(seed)
    slowest = 0.0
    with (
        make_scratch_directory() as directory,
        PostgresServer(durable=True) as postgres,
        PostgresProxy(postgres.port) as proxy,
    ):
        url = postgres.database(tcp=True)
        settings = {"prove_effects": directory, "prove_pause": PAUSE, "prove_patience": 2.0, "lease_seconds": 2.0}
        with ServerProcess(APP, proxy.dsn(url), **settings) as server:
            load = ClientLoad([server], SESSIONS, f"{seed} away")
            lose_a_reply = partial(proxy.cut_replies_after, WRITE, times=1)
            lose_a_request = partial(proxy.cut_before, WRITE, times=1)
            load.make_sessions()
            with load.running():
                for _ in range(size):
                    for _ in range(CUTS):
                        time.sleep(rng.uniform(0.01, 0.08))
                        rng.choice((proxy.cut_all, lose_a_reply, lose_a_reply, lose_a_request))()
                    proxy.pass_all()
                    postgres.restart("immediate")
                    slowest = max(slowest, load.wait_for_answers())
                load.failures += _stop_database(postgres, server)
                back = load.wait_for_answers()
            failures = compare_with_store(url, load, directory)
            if failures:
                failures.append(f"the server said: {server.stderr[-2000:]}")
    figures = (
        f"{size} crashes, {proxy.connections_cut} connections cut, {proxy.replies_lost} replies and "
        f"{proxy.requests_cut} requests lost, {load.acknowledged} acknowledged, "
        f"{load.statuses[503]} answers 503 with Retry-After; everybody answered {slowest:.1f} s after a crash, "
        f"{back:.1f} s after {AWAY:.0f} s without a database; {len(failures)} lost or doubled"
    )
    return Report(figures=figures, failures=failures)


def _stop_database(postgres: PostgresServer, server: ServerProcess) -> list[str]:
    """The database is away for longer than any client waits: the server says so, lives on, and is ready again."""
    port = postgres.port
    postgres._end(signal.SIGQUIT)
    time.sleep(AWAY)
    failures: list[str] = []
    with server.client() as client:
        for path, status in (("/health", 200), ("/ready", 503), ("/sessions", 503)):
            response = client.get(path)
            if response.status_code != status or (status == 503 and "retry-after" not in response.headers):
                failures.append(f"without a database {path} says {response.status_code} {dict(response.headers)}")
        postgres._launch(port)
        deadline = time.monotonic() + 20
        while client.get("/ready").status_code != 200:
            if time.monotonic() > deadline:
                return [*failures, "the server is not ready again although the database is"]
            time.sleep(0.05)
    return failures


# -- several servers ---------------------------------------------------------------------------------------------------


@contextmanager
def start_servers(number: int, url: str, **settings: object) -> Iterator[list[ServerProcess]]:
    """So many servers on one store, ready."""
    with ExitStack() as stack:
        made = [ServerProcess(APP, url, **settings) for _ in range(number)]
        for each in made:
            stack.callback(each.__exit__)
            each.launch()
        for each in made:
            each.wait_until_ready()
        yield made


@proof("B8", ci=4, long=500)
def server_zombies(size: int, seed: int) -> Report:
    """Servers share sessions, are stopped past their lease and wake, or die: none writes after it lost its lease."""
    figures, failures = [], []
    with make_scratch_directory() as directory, PostgresServer() as postgres:
        urls = {"postgres": (4, postgres.database(tcp=True)), "sqlite": (2, f"sqlite:///{directory}/sessions.db")}
        for kind, (number, url) in urls.items():
            effects = directory / kind
            effects.mkdir()
            cycles = size if kind == "postgres" else size // 2
            told, found = stop_and_wake_servers(url, number, effects, cycles, f"{seed} {kind}")
            figures.append(f"{number} servers on {kind}: {told}")
            failures += [f"{kind}: {failure}" for failure in found]
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} stale, lost, doubled or stuck", failures=failures)


def stop_and_wake_servers(url: str, number: int, effects: Path, cycles: int, seed: str) -> tuple[str, list[str]]:
    rng = random.Random(seed)
    settings = {"prove_effects": effects, "prove_pause": 4 * PAUSE, "prove_patience": 2.0, "lease_seconds": LEASE}
    stops = kills = 0
    with start_servers(number, url, **settings) as running:
        load = ClientLoad(running, MANY, seed, impatience=0.8)
        load.make_sessions()
        with load.running():
            for cycle in range(cycles):
                one = rng.choice(running)
                if cycle % 3 == 2:
                    one.kill()
                    one.start()
                    kills += 1
                else:
                    one.signal(signal.SIGSTOP)
                    time.sleep(LEASE + rng.uniform(0.2, 0.7))
                    one.signal(signal.SIGCONT)
                    stops += 1
                time.sleep(rng.uniform(0.05, 0.3))
        failures = compare_with_store(url, load, effects)
        takeovers = count_resumed(url)
        if failures:
            failures += [f"a server said: {each.stderr[-1500:]}" for each in running]
    figures = f"{stops} stopped, {kills} killed, {takeovers} turns taken over, {load.acknowledged} acknowledged"
    return f"{figures}, longest {load.longest:.1f} s", failures


def count_resumed(url: str) -> int:
    """How often a turn was taken up again."""
    with open_url(url) as store:
        logs = [store.require("session", name) for name in MANY]
        return sum(len(store.read(log, types=["turn.resumed"])) for log in logs)


@proof("B8", ci=2, long=100)
def server_takeovers(size: int, seed: int) -> Report:
    """A server dies, or stops, in the middle of a run: how long it takes until another one goes on with it."""
    failures: list[str] = []
    times: dict[str, list[float]] = {"kill -9": [], "stopped": []}
    with make_scratch_directory(memory=True) as directory, PostgresServer() as postgres:
        url = postgres.database(tcp=True)
        settings = {"prove_effects": directory, "prove_long": 30.0, "lease_seconds": LEASE}
        with start_servers(2, url, **settings) as (first, second), open_url(url) as store:
            for cycle in range(size):
                for how, taken in times.items():
                    session = Session(f"{how} {cycle}", store=store)
                    run = begin_run(first, session.id)
                    began = time.monotonic()
                    first.signal(signal.SIGKILL if how == "kill -9" else signal.SIGSTOP)
                    while not any(event.type == "turn.resumed" for event in session.events(limit=None)):
                        if time.monotonic() - began > LEASE + 10:
                            failures.append(f"{session.id}: nobody took it over")
                            break
                        time.sleep(0.01)
                    taken.append(time.monotonic() - began)
                    failures += cancel_run(second, session, run)
                    if how == "kill -9":
                        first.kill()
                        first.start()
                    else:
                        first.signal(signal.SIGCONT)
    late = [f"{how}: after {max(taken):.1f} s" for how, taken in times.items() if max(taken) > LEASE + LATE]
    early = [f"a lease that was held was taken after {took:.2f} s" for took in times["stopped"] if took < LEASE / 2]
    told = "; ".join(f"{how}: after at most {max(taken):.2f} s" for how, taken in times.items())
    figures = f"lease {LEASE:g} s; {told} (who is stopped may still be alive: not before its lease is over)"
    return Report(figures=figures, failures=failures + late + early)


def begin_run(server: ServerProcess, session: str) -> str:
    """Begin a run that takes long, and leave; its id."""
    wire = RawConnection(server.port, "POST", f"/sessions/{session.replace(' ', '%20')}/message/stream", body=SLOW)
    wire.send()
    run = next(frame.data["run_id"] for frame in wire.frames() if frame.event == "message_start")
    wire.reset()
    return str(run)


def cancel_run(server: ServerProcess, session: Session, run: str) -> list[str]:
    """Cancel a run where it is now; what is wrong then."""
    with server.client() as client:
        response = client.post(f"/sessions/{session.id}/runs/{run}/cancel", json={})
    if response.status_code != 200 or response.json()["status"] != "cancelled":
        return [f"{session.id}: cancelling says {response.status_code} {response.text}"]
    return [] if session.verify() else [f"{session.id} does not verify"]


# -- servers that get SIGTERM ------------------------------------------------------------------------------------------


@proof("F", ci=2, long=100)
def server_drains(size: int, seed: int) -> Report:
    """SIGTERM under load: streams end with a word to come back, nothing is lost, and others go on with the rest."""
    failures: list[str] = []
    exits, handed = [], []
    with make_scratch_directory(memory=True) as directory, PostgresServer() as postgres:
        url = postgres.database(tcp=True)
        settings = {"prove_effects": directory, "prove_pause": PAUSE, "prove_long": 30.0, "drain": DRAIN}
        with start_servers(2, url, **settings) as (first, second), open_url(url) as store:
            load = ClientLoad([first, second], SESSIONS, f"{seed} drain", impatience=5.0)
            load.make_sessions()
            with load.running():
                for cycle in range(size):
                    session = Session(f"long {cycle}", store=store)
                    run = begin_run(first, session.id)
                    streams = [follow_session(first, name) for name in (*SESSIONS, session.id)]
                    time.sleep(0.3)
                    began = time.monotonic()
                    first.signal(signal.SIGTERM)
                    failures += [f"cycle {cycle}: {failure}" for failure in check_clean_ends(streams)]
                    status = first.wait(30)
                    exits.append(time.monotonic() - began)
                    if status != 0:
                        failures.append(f"cycle {cycle}: the exit code is {status}")
                    while not (found := session.events(types=["turn.resumed", "turn.finished"])):
                        if time.monotonic() - began > 60:
                            failures.append(f"{session.id}: nobody went on with it")
                            break
                        time.sleep(0.01)
                    # A busy server may leave a run that it admitted to another one, which then finishes it.
                    if not found or found[0].type == "turn.resumed":
                        handed.append(time.monotonic() - began - exits[-1])
                        failures += cancel_run(second, session, run)
                    first.kill()
                    first.start()
            failures += compare_with_store(url, load, directory)
            if failures:
                failures += [f"a server said: {each.stderr[-1500:]}" for each in (first, second)]
    if max(handed, default=0.0) > HANDED:
        failures.append(f"a run that was given back was taken up only {max(handed):.1f} s later")
    if max(exits) > 2 * DRAIN + LATE:
        failures.append(f"the end took {max(exits):.1f} s")
    figures = (
        f"{size} servers ended under load, {load.acknowledged} acknowledged; with {DRAIN:g} s to drain they ended "
        f"within {max(exits):.1f} s, and what was left was taken up "
        f"{max(handed, default=0.0):.1f} s later; {len(failures)} wrong"
    )
    return Report(figures=figures, failures=failures)


def follow_session(server: ServerProcess, session: str) -> RawConnection:
    path = f"/sessions/{session.replace(' ', '%20')}/events"
    wire = RawConnection(server.port, "GET", path, headers={"Accept": "text/event-stream"})
    wire.send()
    return wire


def check_clean_ends(streams: Sequence[RawConnection]) -> list[str]:
    failures: list[str] = []
    for wire in streams:
        frames = list(wire.frames())
        if not wire.is_complete or wire.status != 200 or not frames or not frames[-1].retry:
            last = frames[-1] if frames else None
            failures.append(f"a stream ended with {last}, {'whole' if wire.is_complete else 'cut'}")
        wire.close()
    return failures
