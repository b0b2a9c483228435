"""A tool that uses the session of its own turn gets a clear error, or it works. It never waits for itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Agent, Message, Runner, Session, ToolContext, tool
from holdfast.errors import AgentError, InvalidArgument
from holdfast.stores.base import Store
from holdfast.testing import call
from tests.scenarios.ways import WAYS, make_ask

NOT_SERVED = "the session of a tool is local where the tool runs, which is inside the server"


def use_session(store: Store, way: str, act: Callable[[Any], object], *, is_async: bool = False) -> tuple[Any, str]:
    """Run a turn whose tool does something with its own session. Returns the session and the tool's result."""

    @tool(timeout=60)
    def use(ctx: ToolContext) -> str:
        """Use the session."""
        return str(act(ctx.session))

    @tool(name="use", timeout=60)
    async def use_async(ctx: ToolContext) -> str:
        """Use the session."""
        return str(await act(ctx.session))  # type: ignore[misc]

    tools = [use_async if is_async else use]
    agent = Agent(provider="scripted", script=[call("use", {}), "done"], tools=tools, store=store)
    session = agent.session(messages=[Message.user("one"), Message.assistant("two")])
    make_ask(way)(session, "go")
    result = next(event.data["message"]["parts"][0] for event in session.events(types="tool.returned"))
    return session, result["content"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["run", "stream", "json"])
def test_a_turn_of_the_same_session_is_refused(store: Store, way: str, method: str) -> None:
    def act(session: Any) -> object:
        options = {"schema": {"type": "object"}} if method == "json" else {}
        found = getattr(session, method)("again", **options)
        return list(found) if method == "stream" else found

    session, result = use_session(store, way, act)
    assert "would wait for it" in result
    assert [message.text for message in session.messages][-1] == "done"


@pytest.mark.parametrize("way", WAYS)
def test_an_awaited_turn_of_the_same_session_is_refused(store: Store, way: str) -> None:
    _, result = use_session(store, way, lambda session: session.run_async("again"), is_async=True)
    assert "would wait for it" in result


def run_in_thread(session: Any) -> object:
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(session.run("again"))
        except AgentError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def resume_in_pool(session: Any) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(session.resume).result()


async def run_in_executor(session: Any) -> object:
    return await asyncio.get_running_loop().run_in_executor(None, session.run, "again")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", [run_in_thread, resume_in_pool, lambda session: asyncio.run(run_in_executor(session))])
def test_a_thread_of_the_tool_is_refused_at_once(store: Store, way: str, act: Callable[[Any], object]) -> None:
    session, result = use_session(store, way, act)
    assert "would wait for it" in result
    assert [message.text for message in session.messages][-1] == "done"
    assert len(session) == 6, "nothing ran later"


@pytest.mark.parametrize("way", ["open", "runner", "run_stream", "loop"])
def test_another_way_to_the_same_session_is_refused_at_once(store: Store, way: str) -> None:
    def act(session: Any) -> object:
        other = Agent(provider="scripted", script=["never"])
        if way == "open":
            return Session.open(session.id, store=store).run("again", agent=other)
        if way == "loop":
            return asyncio.run(session.run_async("again", agent=other))
        runner = Runner(other)
        return (
            runner.run("again", session=session) if way == "runner" else list(runner.run_stream("x", session=session))
        )

    session, result = use_session(store, "run", act)
    assert "would wait for it" in result
    assert len(session) == 6


def test_the_session_of_a_tool_is_free_when_the_turn_is_over(store: Store) -> None:
    kept: list[Any] = []
    session, _ = use_session(store, "run", lambda session: kept.append(session))
    answer = kept[0].run("after the turn", agent=Agent(provider="scripted", script=["answered"]))
    assert answer.text == "answered"
    assert len(session) == 8


@pytest.mark.parametrize("way", WAYS)
def test_resuming_and_retrying_do_not_wait_either(store: Store, way: str) -> None:
    _, result = use_session(store, way, lambda session: session.resume())
    assert "would wait for it" in result
    _, result = use_session(store, way, lambda session: session.retry())
    assert result == "None"


@pytest.mark.parametrize("way", WAYS)
def test_what_needs_no_turn_works(store: Store, way: str) -> None:
    def act(session: Any) -> object:
        fork = session.fork("side")
        fork.add_message(Message.user("three"))
        answer = fork.run("in the fork", agent=Agent(provider="scripted", script=["from the fork"]))
        pruned = session.prune("keep_last_1")
        session.set_state("n", 1)
        return [answer.text, len(pruned.removed), len(session.history())]

    session, result = use_session(store, way, act)
    assert result == "['from the fork', 1, 1]"
    assert session.get_state("n") == 1
    assert session.verify().ok


@pytest.mark.parametrize("way", WAYS)
def test_what_an_open_turn_forbids_is_a_clear_error(store: Store, way: str) -> None:
    def act(session: Any) -> object:
        found = []
        for refused in (
            lambda: session.rewind(to=1),
            lambda: session.undo_prune(),
            lambda: session.erase(reason="r", actor="a"),
        ):
            try:
                found.append(refused())
            except AgentError as error:
                found.append(error.code)
        return found

    _, result = use_session(store, way, act)
    assert "turn_open" in result
    assert "session_busy" in result


def test_a_session_that_its_tool_closes_stops_at_the_next_step(store: Store) -> None:
    session, result = use_session(store, "run", lambda session: session.close())
    assert (result, session.status) == ("None", "closed")


def test_a_user_function_is_refused_too(store: Store) -> None:
    def extract(response: Any) -> dict[str, Any]:
        session.run("again")
        return {}

    agent = Agent(provider="scripted", script=["done", "never"], extract=extract, store=store)
    session = agent.session()
    with pytest.raises(InvalidArgument, match="would wait for it"):
        session.run("go")
    with pytest.raises(InvalidArgument, match="would wait for it"):
        asyncio.run(session.run_async("go"))
