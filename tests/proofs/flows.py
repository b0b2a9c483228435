"""B2 for flows: processes killed at every crash point of a run of several agents, and resumed by other processes.

The flow has agents in order, at the same time, in rounds and behind a handoff, and one that is called as a tool.
Every question to a model and every start of a tool leaves a file, so that what happened is known
without the log. What must stay true: an agent that the log says is over is not asked again, nor is one that had
replied; a tool that has a result does not run again; and the result is the same as without
a kill.
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
from tests.kit.crash_workload import wait_for_other_connections
from tests.proofs import Report, proof
from tests.proofs.crashes import Opener, make_openers, make_scratch_directory
from tests.proofs.turns import DELTAS, find_request_faults, find_session_faults, make_sessions

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
class CallTrace:
    """Requests to models and starts of tools, as files that are written before the model or tool can answer."""

    directory: Path
    _count: Any = field(default_factory=count)

    def record(self, *what: object) -> None:
        (self.directory / "|".join(map(str, (*what, os.getpid(), next(self._count))))).touch()

    def list_entries(self) -> list[list[str]]:
        return sorted(path.name.split("|") for path in self.directory.iterdir())


def make_flow(trace: CallTrace, report: Any = lambda _: None) -> BaseAgent:
    """The flow. What each model says follows from the request alone, so it is the same in every process."""

    @tool(idempotent=True)
    def note(ctx: ToolContext, name: str) -> str:
        """Note something."""
        trace.record("tool", ctx.idempotency_key.replace(":", "+"))
        return f"noted {name}"

    def make_agent(name: str, reply: Any, **options: Any) -> Agent:
        def script(request: ModelRequest) -> Any:
            for problem in find_request_faults(request):
                report(["refused", f"{name}: {problem}"])
            own = sum(message.role == "assistant" for message in request.messages)
            trace.record("asked", name, own)
            return reply(own)

        return Agent(provider="scripted", script=script, name=name, **options)

    def reply_with(*replies: Any) -> Any:
        return lambda own: replies[own]

    helper = make_agent("helper", reply_with("Bees are insects."), description="Knows bees.")
    views = [
        make_agent(name, reply_with(call("note", {"name": name}), text), tools=[note])
        for name, text in (("optimist", "Bees are fine."), ("sceptic", "Bees sting."))
    ]
    writing = LoopAgent(
        [
            make_agent("writer", reply_with("draft 1", "draft 2"), output_key="draft"),
            make_agent("reviewer", reply_with("again", "good")),
        ],
        condition=lambda output: "good" not in output.text,
        max_iterations=4,
    )
    press = make_agent("press", reply_with("Printed."))
    return SequentialAgent(
        name="house",
        sub_agents=[
            make_agent(
                "planner",
                reply_with(call("helper", {"request": "What are bees?"}), "The plan."),
                tools=[helper.as_tool()],
            ),
            ParallelAgent(views),
            writing,
            Router([make_agent("desk", reply_with(call("transfer_to_press")), handoffs=[press])]),
        ],
    )


def make_asking_work(opener: Opener, name: str, trace: CallTrace, *, awaited: bool) -> Work:
    """The work of the process that is killed: it asks the question."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            session = Session.open(name, store=store, agent=make_flow(trace, acknowledge))
            response = asyncio.run(session.run_async(QUESTION)) if awaited else session.run(QUESTION)
            acknowledge(["answer", response.text])

    return work


def make_finishing_work(opener: Opener, name: str, trace: CallTrace, *, awaited: bool) -> Work:
    """The work of the next process: it resumes the turn, or asks if nothing was stored."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            session = Session.open(name, store=store, agent=make_flow(trace, acknowledge))
            response = asyncio.run(session.resume_async()) if awaited else session.resume()
            if response is None and not len(session):
                response = session.run(QUESTION)
            acknowledge(["answer", None if response is None else response.text])

    return work


@proof("B2", ci=15, long=4000)
def kill_flows(size: int, seed: int) -> Report:
    """Kill -9 at `size` of the crash points that a flow passes, again and again if there are fewer; and every third
    time once more in recovery."""
    figures, failures = [], []
    with make_openers(durable=False) as fresh:
        for kind, new in fresh.items():
            rng = random.Random(f"{seed} {kind}")
            opener = new()
            points = list_flow_points(opener)
            each = [point for number, point in enumerate(points) if point.name != DELTAS or number % 7 == 0]
            todo = [each[at % len(each)] for at in rng.sample(range(max(size, len(each))), size)]
            make_sessions(opener, [f"f{number}" for number in range(len(todo))])
            later_deaths = 0
            for number, point in enumerate(todo):
                again = [rng.choice(points)] if number % 3 == 0 else []
                found, died = kill_and_recover(opener, f"f{number}", point, again, rng)
                failures += [f"{kind}, {point}, then {again}: {failure}" for failure in found]
                later_deaths += died
            names = len({point.name for point in todo})
            figures.append(f"{kind} {len(todo)} deaths at {names} named points, {later_deaths} in recovery")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrong", failures=failures)


def list_flow_points(opener: Opener) -> list[Point]:
    with make_scratch_directory(memory=True) as directory:
        make_sessions(opener, ["listed"])
        everything = crash_points(make_asking_work(opener, "listed", CallTrace(directory), awaited=False))
    return [point for point in everything if point.name != "migration applied"]


def kill_and_recover(
    opener: Opener, name: str, point: Point, later_deaths: Sequence[Point], rng: random.Random
) -> tuple[list[str], int]:
    """Kill a process that asks, kill some that resume, let the last one finish; then check the session. Returns the
    failures, and the number of later kills."""
    failures: list[str] = []
    deaths = 0
    with make_scratch_directory(memory=True) as directory:
        trace = CallTrace(directory)
        first = run_in_child(make_asking_work(opener, name, trace, awaited=rng.random() < 0.5), at=point)
        told = list(first.acknowledged)
        if first.error:
            failures.append(first.error)
        for relapse in (*later_deaths, None):
            failures += _record_progress(opener, name, trace)
            end = run_in_child(make_finishing_work(opener, name, trace, awaited=rng.random() < 0.5), at=relapse)
            told += end.acknowledged
            deaths += end.killed
            if end.error:
                failures.append(end.error)
            if not end.killed:
                break
        failures += [f"a request would be refused: {item[1]}" for item in told if item[0] == "refused"]
        with opener() as store:
            wait_for_other_connections(store)
            session = Session.open(name, store=store)
            failures += find_session_faults(store, session) + find_failures(store, session, trace)
    return failures, deaths


MARK = "over"


def _record_progress(opener: Opener, name: str, trace: CallTrace) -> list[str]:
    """Record which agents are over and which replies are stored: the next process must not ask for them."""
    with opener() as store:
        wait_for_other_connections(store)
        session = Session.open(name, store=store)
        replies: dict[str, int] = {}
        for event in session.events(types="model.replied", limit=None):
            replies[event.author or ""] = replies.get(event.author or "", 0) + 1
        for author, number in replies.items():
            for own in range(number):
                if not any(entry[:3] == [MARK, author, str(own)] for entry in trace.list_entries()):
                    asked = sum(entry[:3] == ["asked", author, str(own)] for entry in trace.list_entries())
                    trace.record(MARK, author, own, asked)
    return []


def find_failures(store: Store, session: Session, trace: CallTrace) -> list[str]:
    failures: list[str] = []
    found = [(message.author, message.text) for message in session.messages]
    if found != EXPECTED:
        failures.append(f"the messages are {found}")
    if session.get_state("draft") != "draft 2":
        failures.append(f"the state is {session.state}")
    seen = trace.list_entries()
    for entry in seen:
        if entry[0] == MARK:  # how often it had been asked when its reply was stored
            author, own, before = entry[1], entry[2], int(entry[3])
            now = sum(other[:3] == ["asked", author, own] for other in seen)
            if now != before:
                failures.append(f"{author} was asked {now - before} times more for reply {own}, which was stored")
    events = session.events(limit=None)
    failures += _check_starts(events)
    children = [each for each in Session.list(store=store, limit=1000) if each.metadata.get("caller") == session.id]
    if len(children) != 1:
        failures.append(f"the called agent has {len(children)} sessions")
    for child in children:
        failures += find_session_faults(store, child)
        if [message.text for message in child.messages] != ["What are bees?", "Bees are insects."]:
            failures.append(f"the called agent says {[message.text for message in child.messages]}")
    keys = [entry[1] for entry in seen if entry[0] == "tool"]
    if len(set(keys)) != 2:
        failures.append(f"{len(set(keys))} calls of tools instead of 2")
    return failures


def _check_starts(events: Sequence[Event]) -> list[str]:
    """Every agent begins once and ends once, at its own place."""
    begun = [event.data["path"] for event in events if event.type == "agent.started"]
    over = [event.data["path"] for event in events if event.type == "agent.finished"]
    failures = [f"{path} began {begun.count(path)} times" for path in set(begun) if begun.count(path) > 1]
    failures += [f"{path} ended {over.count(path)} times" for path in set(over) if over.count(path) > 1]
    missing = set(begun) - set(over) - {"3/0.0"}  # the desk handed over, and did not answer
    return [*failures, *(f"{path} began and did not end" for path in missing)]
