"""A stream that its reader leaves ends its turn, and the session is free for every other process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.errors import TurnCancelled
from holdfast.stores import MemoryStore, SQLiteStore
from tests.kit.agents import make_scripted_agent
from tests.kit.server_process import PATIENCE

LONG = "a long answer that is not read to its end"

OTHER_PROCESS = """
import sys
from holdfast import Agent
from holdfast.stores import SQLiteStore
agent = Agent(provider="scripted", script=["from another process"], store=SQLiteStore(sys.argv[1]))
print(agent.session("s").run("hello", timeout=0).text)
"""


def take_text(stream: object) -> None:
    for event in stream:  # type: ignore[attr-defined]
        if event.type == "text_delta":
            break


def list_event_types(session: Session) -> list[str]:
    return [event.type for event in session.events()]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


@pytest.fixture
def collector_is_off() -> object:
    gc.disable()
    yield
    gc.enable()


def test_another_process_gets_the_session_at_once(tmp_path: Path, collector_is_off: None) -> None:
    path = tmp_path / "sessions.db"
    session = make_scripted_agent(LONG, store=SQLiteStore(path)).session("s")
    take_text(session.stream("go"))
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("from another process", "")
    assert list_event_types(session).count("turn.cancelled") == 1


def test_leaving_a_stream_needs_no_garbage_collector(collector_is_off: None) -> None:
    store = MemoryStore()
    for _ in range(3):
        session = make_scripted_agent(LONG, store=store).session("s")
        take_text(session.stream("go"))
        assert store.lease(session.log) is None
        assert list_event_types(session)[-1] == "turn.cancelled"


def test_a_stream_that_was_never_read_leaves_nothing(collector_is_off: None) -> None:
    session = make_scripted_agent(LONG, "next", store=MemoryStore()).session()
    session.stream("go")
    assert list_event_types(session) == ["session.created"]
    assert session.run("again").text == LONG


def test_a_new_turn_of_the_same_task_closes_an_abandoned_async_stream() -> None:
    async def main() -> None:
        session = make_scripted_agent(LONG, "next", store=MemoryStore()).session()
        stream = session.stream_async("go")
        async for event in stream:
            if event.type == "text_delta":
                break
        assert (await session.run_async("again", timeout=0)).text == "next"
        assert list_event_types(session).count("turn.cancelled") == 1
        assert [event async for event in stream] == []

    asyncio.run(main())


def test_an_async_stream_that_is_dropped_is_cancelled_and_not_failed() -> None:
    async def main(session: Session) -> None:
        async for event in session.stream_async("go"):
            if event.type == "text_delta":
                break

    session = make_scripted_agent(LONG, store=MemoryStore()).session()
    asyncio.run(main(session))
    assert list_event_types(session)[-1] == "turn.cancelled"


def test_a_stream_of_another_thread_is_left_alone() -> None:
    """Numbers of threads are reused: the reader of a stream is known by its thread, not by the number of it."""
    session = make_scripted_agent(LONG, "next", store=MemoryStore()).session()
    streams = []

    def start() -> None:
        streams.append(session.stream("go"))
        take_text(streams[0])

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            session.run("again", timeout=0)
        except BaseException as error:
            errors.append(error)

    for _ in range(20):
        asker = threading.Thread(target=ask)
        asker.start()
        asker.join()
    assert {type(error).__name__ for error in errors} == {"SessionBusy"}
    assert "turn.cancelled" not in list_event_types(session)
    assert list(streams[0])[-1].type == "done"


@pytest.mark.parametrize("way", ["stream", "stream_async"])
def test_a_kept_stream_that_is_not_read_loses_its_turn(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "0.3")
    agent = make_scripted_agent(LONG, "next", store=MemoryStore(), timeout=0.4)
    session = agent.session()

    def keep() -> None:
        stream = session.stream("go")
        take_text(stream)
        wait_until(lambda: "turn.cancelled" in list_event_types(session))
        with pytest.raises(TurnCancelled, match="not read"):
            next(stream)

    async def keep_async() -> None:
        stream = session.stream_async("go")
        async for event in stream:
            if event.type == "text_delta":
                break
        await asyncio.to_thread(wait_until, lambda: "turn.cancelled" in list_event_types(session))
        with pytest.raises(TurnCancelled, match="not read"):
            await stream.__anext__()

    keep() if way == "stream" else asyncio.run(keep_async())
    cancelled = session.events(types="turn.cancelled")
    assert [event.data["shown"] for event in cancelled] == ["a long answer that is not read t"]
    assert Session.open(session.id, store=agent.store, agent=agent).run("again").text == "next"


def test_a_stream_that_is_read_slowly_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "0.3")
    session = make_scripted_agent("one two three four five six", store=MemoryStore(), timeout=1.0).session()
    events = []
    for event in session.stream("go"):
        events.append(event.type)
        time.sleep(0.15)
    assert events[-1] == "done"


def test_a_kept_stream_ends_quietly_with_its_process(tmp_path: Path) -> None:
    code = """
import sys
from holdfast import Agent
from holdfast.stores import SQLiteStore
session = Agent(provider="scripted", script=["a long answer"], store=SQLiteStore(sys.argv[1])).session("s")
stream = session.stream("go")
for event in stream:
    if event.type == "text_delta":
        break
"""
    path = tmp_path / "sessions.db"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list_event_types(Session.open("s", store=SQLiteStore(path)))[-1] == "turn.cancelled"
