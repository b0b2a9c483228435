"""Functions of the user's inside a turn (`approval=`, `extract=`, `instructions=`) are effects: they may be async, and
one that blocks never stops an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Agent, Response, Session, tool
from holdfast.errors import TurnFailed
from holdfast.testing import call


def make_agent(approval: Callable[[dict[str, Any]], Any]) -> Agent:
    @tool(approval=approval)
    def spend(cents: int) -> str:
        """Spend money."""
        return f"spent {cents}"

    script = [call("spend", {"cents": 5}), "done"]
    return Agent(provider="scripted", script=script, tools=[spend])


class BlockingFunction:
    """A function that blocks its thread until the event loop has had a chance to run."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.thread: int | None = None

    def __call__(self, value: object) -> bool:
        self.thread = threading.get_ident()
        self.entered.set()
        assert self.released.wait(30), "the event loop stood still while the function ran"
        return False

    async def release(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.001)
        self.released.set()


async def test_an_approval_function_that_blocks_leaves_the_event_loop_running() -> None:
    blocker = BlockingFunction()
    session = Session(agent=make_agent(blocker))
    response, _ = await asyncio.gather(session.run_async("buy"), blocker.release())
    assert response.text == "done"
    assert blocker.thread != threading.get_ident()


async def test_an_extract_function_that_blocks_leaves_the_event_loop_running() -> None:
    blocker = BlockingFunction()

    def extract(response: Response) -> dict[str, Any]:
        blocker(response)
        return {"summary": response.text.upper()}

    session = Session(agent=Agent(provider="scripted", script=["hello"], extract=extract))
    response, _ = await asyncio.gather(session.run_async("hi"), blocker.release())
    assert response.text == "hello"
    assert session.get_state("summary") == "HELLO"


async def test_an_instructions_function_that_blocks_leaves_the_event_loop_running() -> None:
    blocker = BlockingFunction()

    def describe(session: Session) -> str:
        blocker(session)
        return "Be brief."

    session = Session(agent=Agent(provider="scripted", script=lambda request: request.system_texts[0], system=describe))
    response, _ = await asyncio.gather(session.run_async("hi"), blocker.release())
    assert response.text == "Be brief."
    assert blocker.thread != threading.get_ident()


async def test_an_async_instructions_function_runs_in_the_event_loop_of_its_caller() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def describe(session: Session) -> str:
        loops.append(asyncio.get_running_loop())
        return "Be brief."

    session = Session(agent=Agent(provider="scripted", script=lambda request: "ok", instructions=describe))
    await session.run_async("hi")
    await asyncio.to_thread(session.run, "hi")
    assert loops[0] is asyncio.get_running_loop()
    assert loops[1] is not loops[0]


async def test_a_task_that_is_cancelled_in_its_instructions_function_stores_nothing() -> None:
    entered = asyncio.Event()

    async def describe(session: Session) -> str:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled")

    session = Session(agent=Agent(provider="scripted", script=["never"], instructions=describe))
    task = asyncio.create_task(session.run_async("hi"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.type for event in session.events()] == ["session.created"]
    assert session.run("hi", agent=Agent(provider="echo")).status == "finished"


@pytest.mark.parametrize("is_needed", [True, False])
@pytest.mark.parametrize("is_awaited", [True, False])
async def test_an_approval_function_may_be_async(is_needed: bool, is_awaited: bool) -> None:
    async def approval(arguments: dict[str, Any]) -> bool:
        await asyncio.sleep(0)
        return is_needed and arguments == {"cents": 5}

    session = Session(agent=make_agent(approval))
    response = await session.run_async("buy") if is_awaited else await asyncio.to_thread(session.run, "buy")
    assert response.status == ("waiting" if is_needed else "finished")
    assert [each.name for each in response.pending] == (["spend"] if is_needed else [])


def test_an_extract_function_may_be_async() -> None:
    async def extract(response: Response) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"summary": response.text.upper(), "facts": ["said hello"]}

    session = Session(agent=Agent(provider="scripted", script=["hello"], extract=extract))
    session.run("hi")
    assert session.get_state("summary") == "HELLO"
    assert [fact.text for fact in session.facts.all()] == ["said hello"]


def test_the_answer_and_what_is_extracted_from_it_are_one_append() -> None:
    session = Session(agent=Agent(provider="scripted", script=["hello"], extract=lambda response: {"seen": True}))
    session.run("hi")
    times = {event.type: event.at for event in session.events(types=["model.replied", "state.set", "turn.finished"])}
    assert len(set(times.values())) == 1


@pytest.mark.parametrize("broken", ["approval", "extract"])
def test_a_function_that_raises_fails_the_turn(broken: str) -> None:
    def fail(value: object) -> bool:
        raise RuntimeError("my own bug")

    if broken == "approval":
        session = Session(agent=make_agent(fail))
    else:
        session = Session(agent=Agent(provider="scripted", script=["hello"], extract=fail))  # type: ignore[arg-type]
    with pytest.raises(TurnFailed, match="my own bug"):
        session.run("buy")
    assert session.messages == []
