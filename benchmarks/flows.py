"""The cost of an agent in a flow, compared with a run of the same agent alone: a model that answers at once, no tools.

A flow of ten agents is timed as a whole and divided by ten, so the difference is the cost of the flow for each agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Figure, at_most, duration
from benchmarks.timing import Act, Scale, folder, places, race
from holdfast import Agent, Session
from holdfast.agent_base import BaseAgent
from holdfast.flow import LoopAgent, ParallelAgent, SequentialAgent
from holdfast.stores import SQLiteStore
from holdfast.stores.base import Store

BOUND = 1.2
AGENTS = 10
TEXT = "An answer of some fifty words would be longer than this one, but nobody reads it here anyway. " * 3


def agent(name: str) -> Agent:
    return Agent(provider="scripted", script=lambda _: TEXT, name=name)


class Runs:
    """Times runs of an agent or a flow, each in a new session, and divides the time by the number of agents."""

    def __init__(self, store: Store, asked: BaseAgent) -> None:
        self._store, self._asked = store, asked

    def __call__(self) -> Act:
        session = Session(store=self._store)
        return lambda: session.run("Go on, then.", agent=self._asked)


def overhead(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        with folder(place) as directory:
            yield from _at(name, directory, scale)


def _at(name: str, directory: Path, scale: Scale) -> Iterator[Figure]:
    agents = [agent(f"agent-{number}") for number in range(AGENTS)]
    flows: dict[str, BaseAgent] = {
        "in order": SequentialAgent(agents),
        "in rounds": LoopAgent(agents[:1], max_iterations=AGENTS),
        "at once": ParallelAgent(agents, max_concurrency=AGENTS),
    }
    with SQLiteStore(directory / "sessions.db") as store:
        contestants = {"alone": Runs(store, agents[0])} | {each: Runs(store, flow) for each, flow in flows.items()}
        found = race(contestants, rounds=scale.rounds, calls=scale.calls)
        alone = found.seconds("alone")
        for each in flows:
            ratio = found.ratio(each, "alone") / AGENTS
            share = duration(found.seconds(each) / AGENTS)
            yield at_most(f"an agent of {AGENTS} {each}, {name}", ratio, BOUND, ours=share, limit=duration(alone))
