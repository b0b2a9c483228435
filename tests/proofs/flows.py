"""B2 for flows: processes killed at every crash point of a run of several agents, and whoever goes on.

The flow has agents in order, at the same time, in rounds and behind a handoff, and one that is called as a tool.
Every question to a model and every start of a tool leaves a file, so that what happened is known from outside,
whatever the log says. What must stay true: an agent that the log says is over is not asked again, nor is one that had
replied; a tool that has a result does not run again; and what the whole comes to is what it comes to when nobody
dies.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from holdfast import Agent, Session, ToolContext, tool
from holdfast.agent_base import BaseAgent
from holdfast.flow import LoopAgent, ParallelAgent, Router, SequentialAgent
from holdfast.log.events import Event
from holdfast.models.base import ModelRequest
from holdfast.stores.base import Store
from holdfast.testing import call
from holdfast.testing.crash import Acknowledge, Point, Work, crash_points, run_in_child
from tests.kit.crash_workload import settle
from tests.proofs import Report, proof
from tests.proofs.crashes import Opener, openers, scratch
from tests.proofs.turns import DELTAS, make_sessions, refused, sound

QUESTION = "Write about bees."
EXPECTED = [
    ("user", QUESTION),
    ("planner", ""),
    ("helper", "Bees are insects."),
    ("planner", "The plan."),
    ("optimist", ""),
    ("note", "noted optimist"),
    ("optimist", "Bees are fine."),
    ("sceptic", ""),
    ("note", "noted sceptic"),
    ("sceptic", "Bees sting."),
    ("writer", "draft 1"),
    ("reviewer", "again"),
    ("writer", "draft 2"),
    ("reviewer", "good"),
    ("desk", ""),
    ("transfer_to_press", "The conversation goes on with press."),
    ("press", "Printed."),
]


@dataclass
class Witness:
    """Who was asked, and what ran, as files: made before anything can come of it."""

    directory: Path
    _count: Any = field(default_factory=count)

    def note(self, *what: object) -> None:
        (self.directory / "|".join(map(str, (*what, os.getpid(), next(self._count))))).touch()

    def seen(self) -> list[list[str]]:
        return sorted(path.name.split("|") for path in self.directory.iterdir())


def house(witness: Witness, tell: Any = lambda _: None) -> BaseAgent:
    """The flow. What each model says follows from the request alone, so it is the same in every process."""

    @tool(idempotent=True)
    def note(ctx: ToolContext, name: str) -> str:
        """Note something."""
        witness.note("tool", ctx.idempotency_key.replace(":", "+"))
        return f"noted {name}"

    def agent(name: str, reply: Any, **options: Any) -> Agent:
        def script(request: ModelRequest) -> Any:
            for problem in refused(request):
                tell(["refused", f"{name}: {problem}"])
            own = sum(message.role == "assistant" for message in request.messages)
            witness.note("asked", name, own)
            return reply(own)

        return Agent(provider="scripted", script=script, name=name, **options)

    def said(*replies: Any) -> Any:
        return lambda own: replies[own]

    helper = agent("helper", said("Bees are insects."), description="Knows bees.")
    views = [
        agent(name, said(call("note", {"name": name}), text), tools=[note])
        for name, text in (("optimist", "Bees are fine."), ("sceptic", "Bees sting."))
    ]
    writing = LoopAgent(
        [agent("writer", said("draft 1", "draft 2"), output_key="draft"), agent("reviewer", said("again", "good"))],
        condition=lambda output: "good" not in output.text,
        max_iterations=4,
    )
    press = agent("press", said("Printed."))
    return SequentialAgent(
        name="house",
        sub_agents=[
            agent(
                "planner", said(call("helper", {"request": "What are bees?"}), "The plan."), tools=[helper.as_tool()]
            ),
            ParallelAgent(views),
            writing,
            Router([agent("desk", said(call("transfer_to_press")), handoffs=[press])]),
        ],
    )


def asking(opener: Opener, name: str, witness: Witness, *, awaited: bool) -> Work:
    """The process that is to die."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            session = Session.open(name, store=store, agent=house(witness, acknowledge))
            response = asyncio.run(session.run_async(QUESTION)) if awaited else session.run(QUESTION)
            acknowledge(["answer", response.text])

    return work


def finishing(opener: Opener, name: str, witness: Witness, *, awaited: bool) -> Work:
    """Another process, which takes up what it finds; or asks, if nothing was stored."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            session = Session.open(name, store=store, agent=house(witness, acknowledge))
            response = asyncio.run(session.resume_async()) if awaited else session.resume()
            if response is None and not len(session):
                response = session.run(QUESTION)
            acknowledge(["answer", None if response is None else response.text])

    return work


@proof("B2", ci=30, long=4000)
def kill_flows(size: int, seed: int) -> Report:
    """Kill -9 at `size` of the crash points that a flow passes, again and again if there are fewer; and every third
    time once more in recovery."""
    figures, failures = [], []
    with openers(durable=False) as fresh:
        for kind, new in fresh.items():
            rng = random.Random(f"{seed} {kind}")
            opener = new()
            points = flow_points(opener)
            each = [point for number, point in enumerate(points) if point.name != DELTAS or number % 7 == 0]
            todo = [each[at % len(each)] for at in rng.sample(range(max(size, len(each))), size)]
            make_sessions(opener, [f"f{number}" for number in range(len(todo))])
            relapses = 0
            for number, point in enumerate(todo):
                again = [rng.choice(points)] if number % 3 == 0 else []
                found, died = life(opener, f"f{number}", point, again, rng)
                failures += [f"{kind}, {point}, then {again}: {failure}" for failure in found]
                relapses += died
            names = len({point.name for point in todo})
            figures.append(f"{kind} {len(todo)} deaths at {names} named points, {relapses} in recovery")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrong", failures=failures)


def flow_points(opener: Opener) -> list[Point]:
    with scratch(memory=True) as directory:
        make_sessions(opener, ["listed"])
        everything = crash_points(asking(opener, "listed", Witness(directory), awaited=False))
    return [point for point in everything if point.name != "migration applied"]


def life(
    opener: Opener, name: str, point: Point, relapses: Sequence[Point], rng: random.Random
) -> tuple[list[str], int]:
    """Ask and die, recover and die, recover; then look at what is there. Gives what is wrong, and the later deaths."""
    failures: list[str] = []
    deaths = 0
    with scratch(memory=True) as directory:
        witness = Witness(directory)
        first = run_in_child(asking(opener, name, witness, awaited=rng.random() < 0.5), at=point)
        told = list(first.acknowledged)
        if first.error:
            failures.append(first.error)
        for relapse in (*relapses, None):
            failures += _over_before(opener, name, witness)
            end = run_in_child(finishing(opener, name, witness, awaited=rng.random() < 0.5), at=relapse)
            told += end.acknowledged
            deaths += end.killed
            if end.error:
                failures.append(end.error)
            if not end.killed:
                break
        failures += [f"a request would be refused: {item[1]}" for item in told if item[0] == "refused"]
        with opener() as store:
            settle(store)
            session = Session.open(name, store=store)
            failures += sound(store, session) + judged(store, session, witness)
    return failures, deaths


MARK = "over"


def _over_before(opener: Opener, name: str, witness: Witness) -> list[str]:
    """Note who is over, and which replies are stored, before the next process comes: it must not ask for them."""
    with opener() as store:
        settle(store)
        session = Session.open(name, store=store)
        replies: dict[str, int] = {}
        for event in session.events(types="model.replied", limit=None):
            replies[event.author or ""] = replies.get(event.author or "", 0) + 1
        for author, number in replies.items():
            for own in range(number):
                if not any(entry[:3] == [MARK, author, str(own)] for entry in witness.seen()):
                    asked = sum(entry[:3] == ["asked", author, str(own)] for entry in witness.seen())
                    witness.note(MARK, author, own, asked)
    return []


def judged(store: Store, session: Session, witness: Witness) -> list[str]:
    failures: list[str] = []
    found = [(message.author, message.text) for message in session.messages]
    if found != EXPECTED:
        failures.append(f"the messages are {found}")
    if session.get_state("draft") != "draft 2":
        failures.append(f"the state is {session.state}")
    seen = witness.seen()
    for entry in seen:
        if entry[0] == MARK:  # how often it had been asked when its reply was stored
            author, own, before = entry[1], entry[2], int(entry[3])
            now = sum(other[:3] == ["asked", author, own] for other in seen)
            if now != before:
                failures.append(f"{author} was asked {now - before} times more for reply {own}, which was stored")
    events = session.events(limit=None)
    failures += _starts(events)
    children = [each for each in Session.list(store=store, limit=1000) if each.metadata.get("caller") == session.id]
    if len(children) != 1:
        failures.append(f"the called agent has {len(children)} sessions")
    for child in children:
        failures += sound(store, child)
        if [message.text for message in child.messages] != ["What are bees?", "Bees are insects."]:
            failures.append(f"the called agent says {[message.text for message in child.messages]}")
    keys = [entry[1] for entry in seen if entry[0] == "tool"]
    if len(set(keys)) != 2:
        failures.append(f"{len(set(keys))} calls of tools instead of 2")
    return failures


def _starts(events: Sequence[Event]) -> list[str]:
    """Every agent begins once and ends once, at its own place."""
    begun = [event.data["path"] for event in events if event.type == "agent.started"]
    over = [event.data["path"] for event in events if event.type == "agent.finished"]
    failures = [f"{path} began {begun.count(path)} times" for path in set(begun) if begun.count(path) > 1]
    failures += [f"{path} ended {over.count(path)} times" for path in set(over) if over.count(path) > 1]
    missing = set(begun) - set(over) - {"3/0.0"}  # the desk handed over, and did not answer
    return [*failures, *(f"{path} began and did not end" for path in missing)]
