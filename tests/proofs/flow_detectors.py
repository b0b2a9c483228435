"""Detectors of seeded bugs in flows, handoffs, agents as tools and memory: small proofs in one process, or in few.

They return what they found; nothing means all is well.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from random import Random
from typing import Any

from holdfast import Agent, Budget, Memory, Session, tool
from holdfast.clock import FixedClock
from holdfast.errors import AgentError, BudgetExceeded, ProviderUnavailable
from holdfast.flow import LoopAgent, ParallelAgent, Router, SequentialAgent
from holdfast.models.base import ModelRequest
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.testing import call, error
from holdfast.testing.crash import Point
from tests.kit.agents import make_named_agent
from tests.proofs.flows import kill_and_recover
from tests.proofs.models import make_directory
from tests.proofs.turns import make_sessions

# One at each kind of place: inside a branch, between agents, in the middle of a loop, after a handoff, in a child.
POINTS = (
    *(Point("after record", nth) for nth in (3, 7, 12, 15, 18)),
    *(Point("before record", nth) for nth in (5, 9, 20)),
    Point("after answer", 4),
    Point("after tool", 2),
)


def _kill_flows(seed: int) -> list[str]:
    with make_directory() as home:
        opener = lambda: SQLiteStore(home / "log.db")  # noqa: E731
        rng = Random(seed)
        make_sessions(opener, [f"b{number}" for number in range(len(POINTS))])
        for number, point in enumerate(POINTS):
            failures, _ = kill_and_recover(opener, f"b{number}", point, [], rng)
            if failures:
                return failures
    return []


def _run_branches(seed: int) -> list[str]:
    """Agents at the same time: what they see, how they are joined, and what a late one may still write."""
    said, done = threading.Event(), threading.Event()
    seen: list[str] = []

    @tool
    def wait() -> str:
        """Wait until the first one has said something."""
        said.wait(5)
        return "waited"

    def last(_: ModelRequest) -> Any:
        done.wait(5)  # the others are over before this one says a word
        return "slow"

    def watching(request: ModelRequest) -> Any:
        seen.extend(message.text for message in request.messages)
        return "watched" if len(request.messages) > 1 else call("wait", id="x")

    watcher = Agent(provider="scripted", script=watching, name="b", tools=[wait], extract=lambda _: done.set())
    first = make_named_agent("first", "hello", extract=lambda _: said.set())
    talker = SequentialAgent([first, make_named_agent("second", "x")])
    store = MemoryStore()
    session = Session(store=store)
    session.run("go", agent=ParallelAgent([make_named_agent("a", last), talker, watcher]))
    found = [message.author for message in session.messages]
    failures = [] if found == ["user", "a", "first", "second", "b", "wait", "b"] else [f"they stand as {found}"]
    failures += [f"one at the same time saw {text!r}" for text in seen if "hello" in text]
    failures += [] if store.rebuild_view(session.log) == store.view(session.log) else ["the view is not the fold"]
    seen.clear()  # one after the other, because no more may work at once: they do not see each other either
    Session(store=store).run(
        "go", agent=ParallelAgent([make_named_agent("first", "hello"), watcher], max_concurrency=1)
    )
    failures += [f"one at the same time saw {text!r}" for text in seen if "hello" in text]
    agents = [make_named_agent(name, call("wait", id="same"), "x", tools=[wait]) for name in "ab"]
    session = Session(store=store)
    session.run("go", agent=ParallelAgent(agents))
    ids = [each.id for message in session.messages for each in message.tool_calls]
    failures += [] if len(set(ids)) == 2 else [f"calls are named {ids}"]
    return failures + _run_late_tool()


def _run_late_tool() -> list[str]:
    """An agent fails while the tools of another one are at work: their results are dropped."""
    asked, go, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def hang() -> str:
        """Hang."""
        asked.set()
        go.wait(5)
        ended.set()
        return "late"

    def failing(_: ModelRequest) -> Any:
        asked.wait(5)
        return error("down")

    session = Session(store=MemoryStore())
    late = make_named_agent("b", [call("hang"), call("hang")], "never", tools=[hang])
    try:
        session.run("go", agent=ParallelAgent([make_named_agent("a", failing), late]))
    except ProviderUnavailable:
        pass
    head = session.head
    go.set()
    ended.wait(5)
    for _ in range(100):
        session.store.clock.sleep(0.005)
        if session.head != head:
            return ["an agent that nobody waits for wrote something"]
    return []


def _run_handoffs(seed: int) -> list[str]:
    """Which agent has a conversation, and what the agent that takes it over sees of it."""
    store = MemoryStore()
    heard: list[tuple[str, str]] = []

    def billing(request: ModelRequest) -> Any:
        heard[:] = [(message.role, message.text) for message in request.messages]
        return "5 euros."

    taker = Agent(provider="scripted", script=billing, name="billing")
    session = make_named_agent("triage", "Hi!", call("transfer_to_billing"), handoffs=[taker]).session(store=store)
    session.run("hello")
    session.run("my bill?")
    failures = [] if session.active_agent == "billing" else [f"it is {session.active_agent}'s"]
    failures += [f"{text!r} stands as its own" for role, text in heard if role != "user"]
    failing = make_named_agent("billing", error("down"))
    session = make_named_agent("triage", call("transfer_to_billing"), handoffs=[failing]).session(store=store)
    try:
        session.run("my bill?")
    except ProviderUnavailable:
        pass
    failures += [] if session.active_agent is None else ["a turn that failed moved the conversation"]
    router = Router([make_named_agent("a", "1", "never"), make_named_agent("b", "2", "3")])
    session = router.session(store=store)
    session.active_agent = "b"
    return failures + ([] if session.run("x").text == "2" else ["a router gave a conversation away"])


def _check_budgets(seed: int) -> list[str]:
    """What agents use that are called as tools, or work at the same time, is inside the budget of the session."""
    helper = Agent(provider="scripted", script=lambda _: call("nothing"), name="helper")
    boss = make_named_agent("boss", call("helper", {"request": "x"}), "y", tools=[helper.as_tool()])
    failures = []

    def slow(_: ModelRequest) -> str:
        time.sleep(0.2)  # long enough for the others to be asked, if they may
        return "x"

    for agent, limit in ((boss, 4), (ParallelAgent([make_named_agent(name, slow) for name in "abcdef"]), 3)):
        session = agent.session(store=MemoryStore(), budget=Budget(steps=limit))
        try:
            session.run("go")
        except BudgetExceeded:
            pass
        except AgentError as problem:
            failures.append(f"another error: {problem}")
        else:
            failures.append("the budget was not held")
        store = session.store
        calls = sum(len(each.events(types="model.called", limit=None)) for each in Session.list(store=store, limit=100))
        if calls > limit:
            failures.append(f"{calls} calls with a budget of {limit}")
    return failures


def _run_loops(seed: int) -> list[str]:
    asked: list[str] = []

    def good(output: Any) -> bool:
        asked.append(output.text)
        return "good" not in output.text

    loop = LoopAgent(
        [make_named_agent("w", "1", "2", "3"), make_named_agent("r", "no", "good", "never")], condition=good
    )
    session = Session(store=MemoryStore())
    session.run("go", agent=SequentialAgent([loop, make_named_agent("e", "end")]))
    ended = [event.data["reason"] for event in session.events(types="loop.ended")]
    return [] if (asked, ended) == (["no", "good"], ["condition"]) else [f"asked {asked}, ended {ended}"]


def _check_memories(seed: int) -> list[str]:
    """Whose memories are found, for how long, and what an erasure leaves of them."""
    ids = FixedClock()
    store = MemoryStore(clock=ids)
    memory = Memory(store=store)
    failures = []
    memory.store("diet", "eats no nuts", user_id="alice", app_name="shop")
    for scope in ({"user_id": "bob", "app_name": "shop"}, {"user_id": "alice", "app_name": "other"}):
        if memory.search("nuts", **scope) or memory.list(**scope):  # type: ignore[arg-type]
            failures.append(f"{scope} sees what is not theirs")
    if Memory(store=store.for_tenant("t")).search("nuts", user_id="alice", app_name="shop"):
        failures.append("another tenant sees it")
    memory.store("trip", "flies on Monday", expires=timedelta(seconds=10), user_id="alice")
    ids.sleep(20)
    if memory.recall("trip", user_id="alice") or memory.search("Monday", user_id="alice"):
        failures.append("a memory outlives its time")
    session = Session(store=store, user_id="alice")
    seq = session.add_message({"role": "user", "content": "My name is Quintessa."})
    memory.store("name", "Quintessa", source=(session, seq))
    session.redact(seq, reason="asked")
    if memory.recall("name", user_id="alice"):
        failures.append("a memory outlives the redaction of its source")
    memory.store("city", "Quintessa lives in Bremen", source=session)
    session.add_message({"role": "user", "content": "I like tea."})
    memory.ingest_from_session(session, shared=True)
    session.erase(reason="asked", actor="dpo")
    if memory.recall("city", user_id="alice"):
        failures.append("a memory outlives the erasure of its session")
    if memory.list():
        failures.append("a shared memory outlives the erasure of its session")
    Session.erase_user("alice", reason="asked", actor="dpo", store=store)
    if memory.list(user_id="alice", app_name="shop"):
        failures.append("memories outlive their user")
    return failures


DETECTORS = {
    "flows": _kill_flows,
    "branches": _run_branches,
    "handoffs": _run_handoffs,
    "budgets": _check_budgets,
    "loops": _run_loops,
    "memories": _check_memories,
}
