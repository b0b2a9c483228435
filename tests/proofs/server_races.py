"""Cancels and interrupts that race with each other and with the runs that they end, through two servers.

A round is one session. Its questions, cancels and their moments follow from the seed; what the machine makes of them
does not, so what is checked is what must be true of every interleaving: every answer agrees with the log.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from holdfast import Session
from holdfast.log.events import Event
from holdfast.stores.base import Store
from holdfast.turn.run_outcome import outcome_of
from tests.kit.postgres import PostgresServer
from tests.kit.server_process import AUTHORIZED, ServerProcess
from tests.proofs import Report, proof
from tests.proofs.clients import STUCK, find_stale_writes, open_url
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.killed_server_app import answer_to
from tests.proofs.server_fleet import start_servers
from tests.proofs.turns import find_session_faults

AT_ONCE = 30  # rounds
WINDOWS = (0.3, 0.1, 0.01)  # seconds in which everything of a round is asked
DUELS = 0.5  # of all rounds
LONG = 2.0  # seconds that a slow run takes
SOON = 1.5  # seconds after which nothing that was interrupted may still come to its end; it is given 0.3


@dataclass
class RaceRound:
    """The questions to one session, and the answers."""

    session: str
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)  # by text
    cancelled: list[tuple[str, int, Any]] = field(default_factory=list)  # run, status, body
    failures: list[str] = field(default_factory=list)


@proof("F", ci=60, long=5_000)
def server_races(size: int, seed: int) -> Report:
    """Rounds of questions, interrupts and cancels at nearly the same moment, on two servers and each store."""
    figures, failures = [], []
    with make_scratch_directory(memory=True) as directory, PostgresServer() as postgres:
        urls = {"postgres": postgres.database(tcp=True), "sqlite": f"sqlite:///{directory}/sessions.db"}
        for kind, url in urls.items():
            effects = directory / kind
            effects.mkdir()
            settings = {"prove_effects": effects, "prove_pause": 0.008, "prove_long": LONG}
            with start_servers(2, url, **settings) as running, open_url(url) as store:
                ends, found = run_rounds(running, store, size // 2, f"{seed} {kind}", effects)
                if found:
                    found += [f"a server said: {each.stderr[-1500:]}" for each in running]
            told = ", ".join(f"{number} {word}" for word, number in sorted(ends.items()))
            figures.append(f"{kind} {size // 2} rounds: {told}")
            failures += [f"{kind}: {failure}" for failure in found]
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrong", failures=failures)


def run_rounds(
    running: Sequence[ServerProcess], store: Store, number: int, seed: str, effects: Path
) -> tuple[Counter[str], list[str]]:
    ends: Counter[str] = Counter()
    failures: list[str] = []
    for first in range(0, number, AT_ONCE):
        played = [RaceRound(f"r{each}") for each in range(first, min(number, first + AT_ONCE))]
        for each in played:
            Session(each.session, store=store)
        threads = [threading.Thread(target=run_round, args=[running, each, seed]) for each in played]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in played:
            failures += [
                f"{each.session}: {failure}" for failure in (*each.failures, *find_failures(store, each, ends))
            ]
    starts = Counter(path.name.rpartition("|")[0].rpartition("|")[0] for path in effects.iterdir() if "|" in path.name)
    failures += [f"{key} ran {times} times" for key, times in starts.items() if times > 1]
    return ends, failures


def run_round(running: Sequence[ServerProcess], round: RaceRound, seed: str) -> None:
    """Ask and cancel from many threads, each at its own moment; then once more, alone."""
    rng = random.Random(f"{seed} {round.session}")
    acts: list[tuple[float, Any]] = []
    window = rng.choice(WINDOWS)
    if rng.random() < DUELS:  # one that is interrupted just when it begins
        for number, (agent, on_busy) in enumerate((("slow", "enqueue"), ("worker", "interrupt"))):
            body = {"agent_id": agent, "message": f"{round.session} duel {number}", "on_busy": on_busy}
            acts.append((rng.uniform(0, 0.01), lambda client, url, body=body: ask(client, url, round, body)))
    for number in range(0 if acts else rng.randrange(2, 6)):
        text = f"{round.session} {number}" + rng.choice(("", "", " tools"))
        body = {"agent_id": rng.choice(("worker", "worker", "slow")), "message": text}
        body["on_busy"] = rng.choice(("enqueue", "enqueue", "interrupt", "interrupt", "reject"))
        acts.append((rng.uniform(0, window), lambda client, url, body=body: ask(client, url, round, body)))
    for _ in range(rng.randrange(0, 4) if len(acts) != 2 else 0):
        pick = rng.random()
        acts.append((rng.uniform(0, window), lambda client, url, pick=pick: cancel(client, url, round, pick)))
    threads = [
        threading.Thread(target=act_later, args=[rng.choice(running).url, delay, act, round]) for delay, act in acts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with httpx2.Client(headers=AUTHORIZED, timeout=STUCK) as client:
        last = {"agent_id": "quick", "message": f"{round.session} last"}
        ask(client, rng.choice(running).url, round, last)
        if round.answers[last["message"]][0] != 200:
            round.failures.append(f"the session takes no message any more: {round.answers[last['message']]}")


def act_later(url: str, delay: float, act: Any, round: RaceRound) -> None:
    with httpx2.Client(headers=AUTHORIZED, timeout=STUCK) as client:
        try:
            client.get(f"{url}/health")  # so that it is connected when its moment comes
            time.sleep(delay)
            act(client, url)
        except Exception as error:
            round.failures.append(f"{type(error).__name__}: {error}")


def ask(client: httpx2.Client, url: str, round: RaceRound, body: dict[str, Any]) -> None:
    response = client.post(
        f"{url}/sessions/{round.session}/message", json=body, headers={"Idempotency-Key": body["message"]}
    )
    round.answers[body["message"]] = response.status_code, response.json()


def cancel(client: httpx2.Client, url: str, round: RaceRound, pick: float) -> None:
    path = f"{url}/sessions/{round.session}/runs"
    for _ in range(50):
        if runs := [run["run_id"] for run in client.get(path).json()["runs"]]:
            run = runs[int(pick * len(runs))]
            response = client.post(f"{path}/{run}/cancel", json={})
            round.cancelled.append((run, response.status_code, response.json()))
            return
        time.sleep(0.01)


# -- what must be true -------------------------------------------------------------------------------------------------


def find_failures(store: Store, round: RaceRound, ends: Counter[str]) -> list[str]:
    session = Session.open(round.session, store=store)
    events = session.events(limit=None)
    failures = find_session_faults(store, session) + find_stale_writes(events) + check_interrupts(events)
    if store.view(session.log).queue:
        failures.append("runs are still queued")
    asked = {event.data["message"]["text"]: event for event in events if event.type == "message.queued"}
    said = Counter(message.text for message in session.messages if message.role == "user")
    for text, (status, body) in round.answers.items():
        code = "finished" if status == 200 else body.get("code")
        ends[code] += 1
        if code == "session_busy":
            failures += [f"{text!r} was rejected and is there"] if text in asked else []
            continue
        if text not in asked:
            failures.append(f"{text!r} was told {status} {body} and is not there")
            continue
        outcome = outcome_of(store, session.log, asked[text].run or "")
        found = None if outcome is None else outcome.status
        if (code, found) not in (("finished", "finished"), ("turn_cancelled", "cancelled")):
            failures.append(f"{text!r} is {found}, and its client was told {status} {body}")
        if status == 200 and body["response"] != answer_to(text):
            failures.append(f"{text!r} was answered {body['response']!r}")
        if said[text] != (found == "finished"):
            failures.append(f"{text!r} is {found} and {said[text]} times in the messages")
    for run, status, body in round.cancelled:
        outcome = outcome_of(store, session.log, run)
        found = None if outcome is None else outcome.status
        ends[f"cancels of {found} runs"] += 1
        if status != 200 or body["status"] != found:
            failures.append(f"cancelling {run} said {status} {body}, and it is {found}")
    return failures + check_calls(events)


def check_interrupts(events: Sequence[Event]) -> list[str]:
    """The run that was under way when an interrupting message came in does not finish normally."""
    failures: list[str] = []
    ends = {
        event.run: event
        for event in events
        if event.type in ("turn.finished", "turn.cancelled", "turn.failed", "turn.interrupted")
    }
    begun: dict[str | None, int] = {event.run: event.seq for event in events if event.type == "turn.started"}
    for event in events:
        if event.type != "message.queued" or event.data.get("on_busy") != "interrupt":
            continue
        for run, started in begun.items():
            end = ends.get(run)
            if run == event.run or started > event.seq or end is None or end.seq < event.seq:
                continue
            if end.type == "turn.finished" and end.at - event.at > SOON * 1e6:
                late = (end.at - event.at) / 1e6
                failures.append(f"the run that {event.seq} interrupted was finished {late:.2f} s later")
    return failures


def check_calls(events: Sequence[Event]) -> list[str]:
    """Each call that was begun has one result, known or not."""
    begun = [(event.run, event.data["call_id"]) for event in events if event.type == "tool.called"]
    over = Counter((event.run, event.data["call_id"]) for event in events if event.type == "tool.returned")
    return [f"the call {each} has {over[each]} results" for each in begun if over[each] != 1]
