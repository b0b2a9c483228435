"""Turns whose process is killed, suspended, or killed again at each attempt, on both durable stores. The proofs repeat
this many times."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

import pytest

from holdfast import Agent, Message, Session, ToolContext, tool
from holdfast.errors import SessionBusy, TurnParked
from holdfast.log.events import Draft
from holdfast.log.messages import ToolCall
from holdfast.stores import MemoryStore
from holdfast.testing import call
from holdfast.testing.crash import Acknowledge, Child, Point, run_in_child
from tests.proofs import turns
from tests.proofs.crashes import Opener, shorten_leases
from tests.proofs.provider_chaos import FAULTS, planted_secrets, provider_chaos
from tests.proofs.simulation import run_simulation
from tests.proofs.turns import (
    LAST,
    QUESTION,
    ToolEffects,
    find_session_faults,
    make_asking_work,
    make_finishing_work,
    make_sessions,
)


@pytest.fixture
def effects(tmp_path: Path) -> ToolEffects:
    directory = tmp_path / "effects"
    directory.mkdir()
    return ToolEffects(directory)


class TestKilled:
    @pytest.mark.parametrize("how", ["resume", "settle"])
    @pytest.mark.parametrize(
        "point",
        [
            Point("before record"),
            Point("after commit"),
            Point("between deltas"),
            Point("before tool", 2),
            Point("after tool"),
            Point("after tool", 3),
            Point("after answer", 3),
        ],
        ids=str,
    )
    def test_another_process_goes_on_and_repeats_nothing(self, opener: Opener, point: Point, how: str) -> None:
        make_sessions(opener, ["s"])
        found = turns.kill_and_recover(opener, "s", point, how, [], Random(7))
        assert found.failures == []

    def test_a_recovery_may_die_too(self, opener: Opener) -> None:
        make_sessions(opener, ["s"])
        found = turns.kill_and_recover(
            opener, "s", Point("after tool"), "resume", [Point("before record"), Point("after tool")], Random(7)
        )
        assert found.failures == []
        assert found.later_deaths == 2

    def test_inside_a_tool_its_outcome_is_reported_as_unknown(self, opener: Opener, effects: ToolEffects) -> None:
        make_sessions(opener, ["s"])
        assert run_in_child(
            make_asking_work(opener, "s", effects, awaited=False, parallel=False), at=Point("after tool")
        ).killed
        with opener() as store:
            left = Session.open("s", store=store).unfinished
            assert left is not None
            assert (left.question, left.unknown_calls, left.attempts, left.parked) == (QUESTION, ["send"], 0, False)
        end = run_in_child(make_finishing_work(opener, "s", effects, how="resume", awaited=False, parallel=False))
        assert end.error is None
        with opener() as store:
            session = Session.open("s", store=store)
            results = [message.text for message in session.messages if message.role == "tool"][:3]
            assert "unknown" in results[0]
            assert results[1:] == ["put b", "sent c"]
            assert find_session_faults(store, session) == []
        assert (
            len([name for name, _, _ in effects.list_starts() if name == "send"]) == 4
        )  # one, one more, and two of LAST

    def test_again_and_again_by_its_turn_it_is_parked(self, opener: Opener) -> None:
        for where in ("tool", "model"):
            failures, deaths = turns.run_poisoned_turn(opener, where, where)
            assert failures == []
            assert deaths == 6


class TestStopped:
    def test_a_stopped_process_that_wakes_neither_writes_nor_starts_a_tool(self, opener: Opener) -> None:
        points = [Point("before tool"), Point("after tool", 2), Point("between deltas", 3), Point("before record", 3)]
        with shorten_leases(0.5):
            assert turns.wake_stopped_processes(opener, points) == []

    def test_no_other_process_takes_the_turn_of_a_live_process(self, opener: Opener, tmp_path: Path) -> None:
        make_sessions(opener, ["s"])
        go = tmp_path / "go"

        @tool
        def slow() -> str:
            while not go.exists():
                time.sleep(0.01)
            return "done"

        def work(acknowledge: Acknowledge) -> None:
            script = lambda request: call("slow") if request.messages[-1].role == "user" else "ok"  # noqa: E731
            with opener() as store:
                session = Session.open("s", store=store, agent=Agent(provider="scripted", script=script, tools=[slow]))
                acknowledge("begun")
                acknowledge(session.run("go").text)

        with shorten_leases(0.3), Child(work) as child, opener() as store:
            child.next()
            session = Session.open("s", store=store, agent=Agent(provider="scripted", script=["no"]))
            while session.head < 6:
                time.sleep(0.01)
            assert session.unfinished is None
            with pytest.raises(SessionBusy):
                session.run("may I?", timeout=1.0)
            session.add_message(Message.user("by the way"))
            go.touch()
            assert child.next() == "ok"
            assert [message.text for message in session.messages][-2:] == ["ok", "by the way"]


class TestParking:
    def test_a_turn_is_not_parked_while_a_process_runs_it(self) -> None:
        go, inside = threading.Event(), threading.Event()

        @tool(idempotent=True)
        def slow(ctx: ToolContext) -> str:
            inside.set()
            go.wait(10)
            return "done"

        store = MemoryStore()
        script = lambda request: call("slow") if request.messages[-1].role == "user" else "ok"  # noqa: E731
        agent = Agent(provider="scripted", script=script, tools=[slow], timeout=0.2)
        session = agent.session("s", store=store)
        opening = [
            Draft(type="turn.started", run="r", data={"options": {}}),
            Draft(type="message.added", run="r", data={"role": "user", "text": "q"}),
        ]
        store.append(session.log, opening)
        for _ in range(4):  # its process ended four times: the next resume is the last attempt
            store.append(session.log, [Draft(type="turn.resumed", run="r")])
        worker = threading.Thread(target=session.resume)
        worker.start()
        assert inside.wait(10)
        with pytest.raises(SessionBusy):
            agent.session("s", store=store).resume()
        go.set()
        worker.join()
        assert [message.text for message in session.messages] == ["q", "", "done", "ok"]

    def test_a_parked_turn_is_settled_by_the_next_question(self) -> None:
        agent = Agent(provider="scripted", script=lambda request: "here")
        store = MemoryStore()
        session = agent.session("s", store=store)
        opening = [
            Draft(type="turn.started", run="r", data={"options": {}}),
            Draft(type="message.added", run="r", data={"role": "user", "text": "q"}),
        ]
        store.append(session.log, [*opening, *[Draft(type="turn.resumed", run="r")] * 5])
        for _ in range(2):
            with pytest.raises(TurnParked):
                session.resume()
        assert session.unfinished is not None
        assert session.unfinished.parked
        assert session.run(LAST).text == "here"
        assert find_session_faults(store, session) == []


class TestTheProofs:
    """Small runs of the proofs, so that a broken proof is noticed early."""

    @pytest.mark.parametrize("seed", range(40))
    def test_a_run_of_the_simulation(self, seed: int) -> None:
        assert run_simulation(seed).violations == []

    def test_the_same_seed_gives_the_same_run(self) -> None:
        first: list[str] = []
        second: list[str] = []
        run_simulation(13, first.append)
        run_simulation(13, second.append)
        assert first == second
        assert len(first) > 10

    def test_provider_chaos_and_planted_secrets(self) -> None:
        assert len(FAULTS) >= 12
        assert provider_chaos(12, 7).failures == []
        assert planted_secrets(20, 7).failures == []

    def test_what_no_provider_would_take_is_recognised(self) -> None:
        ask, result = (
            Message("assistant", [ToolCall(id="a", name="x", arguments={})]),
            Message.tool("r", call_id="a"),
        )
        assert turns.find_message_faults([Message.user("q"), ask, result]) == []
        assert turns.find_message_faults([Message.user("q"), ask])
        assert turns.find_message_faults([Message.user("q"), result])
        assert turns.find_message_faults([ask, Message.user("q"), result])
        assert turns.find_message_faults([ask, result, ask, result])
