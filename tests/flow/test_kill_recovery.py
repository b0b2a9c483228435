"""Flows whose process dies, on both durable stores: `proofs.flows` at a small size, and what is settled instead."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from holdfast import Agent, Session
from holdfast.flow import ParallelAgent, SequentialAgent
from holdfast.models.base import ModelRequest
from holdfast.testing.crash import Acknowledge, Child, Point, run_in_child
from tests.proofs import flows
from tests.proofs.crashes import Opener
from tests.proofs.turns import find_session_faults, make_sessions


@pytest.fixture
def trace(tmp_path: Path) -> flows.CallTrace:
    directory = tmp_path / "seen"
    directory.mkdir()
    return flows.CallTrace(directory)


class TestKilled:
    @pytest.mark.parametrize(
        "point",
        [
            Point("after record", 2),
            Point("before tool"),  # the called agent has not begun
            Point("after answer", 2),  # inside the called agent
            Point("after tool"),
            Point("before record", 9),
            Point("after answer", 5),  # one of those at the same time
            Point("after record", 17),  # in the loop
            Point("between deltas", 20),
        ],
        ids=str,
    )
    def test_another_process_goes_on_with_the_agents_that_have_not_finished(self, opener: Opener, point: Point) -> None:
        make_sessions(opener, ["s"])
        assert flows.kill_and_recover(opener, "s", point, [], Random(7)) == ([], 0)

    def test_a_recovery_may_die_too(self, opener: Opener) -> None:
        make_sessions(opener, ["s"])
        again = [Point("after record", 3), Point("after answer", 2)]
        assert flows.kill_and_recover(opener, "s", Point("after answer", 4), again, Random(7)) == ([], 2)

    def test_a_new_message_settles_what_the_agents_did(self, opener: Opener, trace: flows.CallTrace) -> None:
        make_sessions(opener, ["s"])
        work = flows.make_asking_work(opener, "s", trace, awaited=False)
        assert run_in_child(work, at=Point("after record", 16)).killed
        with opener() as store:
            session = Session.open("s", store=store, agent=Agent(provider="scripted", script=["All right."]))
            assert session.unfinished is not None
            assert session.events(types="agent.finished")
            assert session.run("Never mind.").text == "All right."
            authors = [message.author for message in session.messages]
            assert authors[:4] == ["user", "planner", "helper", "planner"]  # in their order, as far as they came
            assert authors[-3:] == ["assistant", "user", "assistant"]
            assert session.messages[-3].metadata == {"interrupted": True}
            assert find_session_faults(store, session) == []


class TestAtOnce:
    def test_a_branch_that_was_over_is_not_asked_again(self, opener: Opener, tmp_path: Path) -> None:
        make_sessions(opener, ["s"])

        def flow(is_first: bool) -> SequentialAgent:
            def quick(request: ModelRequest) -> str:
                (tmp_path / f"asked-{is_first}").touch()
                return "quick"

            def slow(request: ModelRequest) -> str:
                while is_first:  # until the process is killed
                    time.sleep(0.01)
                return "slow"

            def agent(name: str, script: object) -> Agent:
                return Agent(provider="scripted", script=script, name=name)  # type: ignore[arg-type]

            views = ParallelAgent([agent("slow", slow), agent("quick", quick)])
            return SequentialAgent([views, agent("last", ["done"])])

        def work(acknowledge: Acknowledge) -> None:
            with opener() as store:
                session = Session.open("s", store=store)
                for event in session.stream("go", agent=flow(True)):
                    if event.type == "message_stop":
                        while not session.events(types="agent.finished"):
                            time.sleep(0.005)
                        acknowledge("one is over")

        with Child(work) as child:
            assert child.next() == "one is over"
            child.kill()
        with opener() as store:
            session = Session.open("s", store=store)
            response = session.resume(flow(False))
            assert response is not None
            assert response.text == "done"
            assert [message.author for message in session.messages] == ["user", "slow", "quick", "last"]
            assert find_session_faults(store, session) == []
        assert not (tmp_path / "asked-False").exists()


class TestShared:
    def test_processes_with_agents_of_their_own_take_turns(self, opener: Opener) -> None:
        make_sessions(opener, ["s"])

        def make_talker(name: str) -> object:
            def work(acknowledge: Acknowledge) -> None:
                with opener() as store:
                    agent = Agent(provider="scripted", script=lambda _: f"{name} speaks", name=name)
                    session = Session.open("s", store=store, agent=agent)
                    for number in range(5):
                        session.run(f"{name} {number}", timeout=60)
                    acknowledge("done")

            return work

        with Child(make_talker("one")) as one, Child(make_talker("two")) as two:  # type: ignore[arg-type]
            assert one.next() == two.next() == "done"
        with opener() as store:
            session = Session.open("s", store=store)
            messages = session.messages
            assert [message.role for message in messages] == ["user", "assistant"] * 10
            for question, answer in zip(messages[::2], messages[1::2], strict=True):
                assert answer.author == question.text.split()[0]  # no other agent answered in between
            assert find_session_faults(store, session) == []
