"""Streams: live, across broken connections and restarts, without a gap and without a repeat."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Agent, Message
from holdfast.client import AsyncClient, Client
from holdfast.errors import InvalidArgument, SessionNotFound
from holdfast.log.events import Event
from holdfast.stores import SQLiteStore
from holdfast.testing import call
from tests.client.conftest import Scripted
from tests.kit.gated_model import Drip
from tests.kit.proxy import Proxy
from tests.kit.serving import TOKEN, Serving

STORY = "Once upon a time there was a log that nobody could break, and it kept everything that it was told. " * 3


def told(events: Any) -> str:
    return "".join(event.text for event in events if event.type == "text_delta")


@pytest.fixture
def drip(serving: Serving) -> Drip:
    found = Drip(STORY)
    serving.register("a", Agent(model=found))
    return found


def test_text_comes_while_it_is_said(client: Client, drip: Drip) -> None:
    session = client.session("s", agent="a")
    stream = session.stream("tell me")
    drip.let(2)
    shown = ""
    while len(shown) < 17:
        event = next(stream)
        shown += event.text if event.type == "text_delta" else ""
    assert STORY.startswith(shown)
    assert len(shown) < len(STORY)
    drip.let()
    rest = list(stream)
    assert shown + told(rest) == STORY
    assert rest[-1].response.text == STORY  # type: ignore[union-attr]
    assert drip.asked == 1


@pytest.mark.parametrize("every", [1, 3])
def test_a_stream_that_breaks_goes_on_where_it_was(shaky: Client, proxy: Proxy, drip: Drip, every: int) -> None:
    session = shaky.session("s", agent="a")
    stream = session.stream("tell me")
    drip.let(1)
    events = []
    for event in stream:
        events.append(event)
        if event.type == "text_delta":
            if len(events) % every == 0:
                proxy.cut_all()
            drip.let(1)
    assert told(events) == STORY
    kinds = [event.type for event in events if event.type != "text_delta"]
    assert kinds == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop", "done",
    ]  # fmt: skip
    assert drip.asked == 1
    assert proxy.connections_cut >= 3
    assert [run.status for run in session.runs()] == ["finished"]


def test_the_awaited_stream_goes_on_as_well(proxy: Proxy, drip: Drip) -> None:
    async def listen() -> str:
        async with AsyncClient(f"http://127.0.0.1:{proxy.port}", token=TOKEN) as client:
            session = await client.session("s", agent="a")
            found = ""
            drip.let(1)
            async for event in session.stream("tell me"):
                if event.type == "text_delta":
                    found += event.text
                    proxy.cut_all()
                    drip.let(1)
            return found

    assert asyncio.run(listen()) == STORY
    assert drip.asked == 1


def test_a_stream_survives_its_server_when_the_turn_is_over_meanwhile(store: SQLiteStore) -> None:
    drip = Drip(STORY)
    first = Serving(store, agents={"a": Agent(model=drip)}).start()
    client = Client(first.url, token=TOKEN)
    session = client.session("s", agent="a")
    stream = session.stream("tell me")
    drip.let(1)
    events = [next(stream) for _ in range(3)]
    drip.let()
    first.stop()  # drains: the turn is finished, and its readers are sent away
    with Serving(store, agents={"a": Agent(model=Drip("another"))}, port=first.port):
        events += list(stream)
        assert told(events) == STORY
        assert events[-1].response.text == STORY  # type: ignore[union-attr]
        client.close()
    assert [event.type for event in events].count("message_start") == 1


def test_closing_a_stream_cancels_its_turn(client: Client, drip: Drip) -> None:
    session = client.session("s", agent="a")
    stream: Any = session.stream("tell me")
    drip.let(2)
    while next(stream).type != "text_delta":
        pass
    stream.close()
    assert [run.status for run in session.runs()] == ["cancelled"]
    assert session.messages == []
    drip.let()
    assert session.run("again").text == STORY


def test_a_new_question_closes_an_abandoned_stream_first(client: Client, drip: Drip) -> None:
    session = client.session("s", agent="a")
    stream = session.stream("tell me")
    drip.let(1)
    while next(stream).type != "text_delta":
        pass
    threading.Timer(0.5, drip.let).start()
    assert session.run("again").text == STORY
    assert sorted(run.status for run in session.runs()) == ["cancelled", "finished"]
    assert list(stream) == []


async def test_leaving_an_awaited_stream_cancels_its_turn(async_client: AsyncClient, drip: Drip) -> None:
    session = await async_client.session("s", agent="a")
    stream = session.stream("tell me")
    drip.let(2)
    async for event in stream:
        if event.type == "text_delta":
            break
    await stream.aclose()
    assert [run.status for run in await session.runs()] == ["cancelled"]
    drip.let()


def test_reading_to_the_end_or_leaving_at_the_end_cancels_nothing(client: Client, scripted: Scripted) -> None:
    scripted("one", "two")
    session = client.session("s", agent="a")
    for event in session.stream("a"):
        if event.type == "done":
            break
    assert told(session.stream("b")) == "two"
    assert [run.status for run in session.runs()] == ["finished", "finished"]


def test_tools_run_inside_streams(client: Client, scripted: Scripted) -> None:
    def look(at: str) -> str:
        """Look."""
        return f"saw {at}"

    scripted(call("look", {"at": "tea"}), "done", tools=[look])
    events = list(client.session("s", agent="a").stream("go"))
    (result,) = [event for event in events if event.type == "tool_result"]
    assert (result.name, result.content, result.is_error) == ("look", "saw tea", False)
    assert [event.step for event in events if event.type == "message_start"] == [1, 2]
    assert events[-1].type == "done"


# -- the log, live -----------------------------------------------------------------------------------------------------


def take(events: Iterator[Event], count: int) -> list[int]:
    return [next(events).seq for _ in range(count)]


def test_a_log_is_followed_from_any_point_and_live(client: Client) -> None:
    session = client.session("s", messages=[Message.user(str(n)) for n in range(5)])
    events = session.follow()
    assert take(events, 6) == [1, 2, 3, 4, 5, 6]
    client.open("s").set_state("a", 1)
    live = next(events)
    assert (live.seq, live.type, live.data) == (7, "state.set", {"name": "a", "value": 1})
    assert take(session.follow(after=5), 2) == [6, 7]
    only = session.follow(types="state.set")
    assert next(only).seq == 7
    events.close()  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument):
        session.follow(after=-1)


def test_following_survives_cuts_without_gap_or_repeat(shaky: Client, proxy: Proxy, client: Client) -> None:
    session = shaky.session("s")
    writer = client.open("s")
    events = session.follow()
    seen = take(events, 1)
    for number in range(30):
        writer.set_state("n", number)
        if number % 4 == 0:
            proxy.cut_all()
        seen += take(events, 1)
    assert seen == list(range(1, 32))
    assert proxy.connections_cut >= 5


def test_following_survives_a_restart_of_the_server(store: SQLiteStore) -> None:
    first = Serving(store).start()
    client = Client(first.url, token=TOKEN)
    session = client.session("s")
    events = session.follow()
    session.set_state("a", 1)
    seen = take(events, 2)
    first.stop()
    with Serving(store, port=first.port):
        session.set_state("a", 2)
        seen += take(events, 1)
        client.close()
    assert seen == [1, 2, 3]


async def test_the_awaited_client_follows_too(async_client: AsyncClient) -> None:
    session = await async_client.session("s")
    await session.set_state("a", 1)
    seen = []
    async for event in session.follow():
        seen.append(event.seq)
        if len(seen) == 2:
            await session.set_state("a", 2)
        if len(seen) == 3:
            break
    assert seen == [1, 2, 3]


def test_deltas_pass_a_follower_by(client: Client, drip: Drip) -> None:
    session = client.session("s", agent="a")
    events = session.follow()
    drip.let()
    session.run("tell me")
    seen = [next(events).type for _ in range(session.head)]
    assert seen[-1] == "turn.finished"
    assert "text_delta" not in seen


def test_a_log_that_is_not_there_cannot_be_followed(client: Client) -> None:
    session = client.session("s")
    client.delete("s")
    with pytest.raises(SessionNotFound):
        next(session.follow())
