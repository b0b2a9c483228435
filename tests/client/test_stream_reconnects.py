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
from tests.client.conftest import AgentFactory
from tests.kit.gated_model import GatedModel
from tests.kit.local_server import TOKEN, LocalServer
from tests.kit.proxy import Proxy

STORY = "Once upon a time there was a log that nobody could break, and it kept everything that it was told. " * 3


def join_text(events: Any) -> str:
    return "".join(event.text for event in events if event.type == "text_delta")


@pytest.fixture
def gated_model(local_server: LocalServer) -> GatedModel:
    found = GatedModel(STORY)
    local_server.register("a", Agent(model=found))
    return found


def test_text_comes_while_it_is_said(client: Client, gated_model: GatedModel) -> None:
    session = client.session("s", agent="a")
    stream = session.stream("tell me")
    gated_model.allow_pieces(2)
    shown = ""
    while len(shown) < 17:
        event = next(stream)
        shown += event.text if event.type == "text_delta" else ""
    assert STORY.startswith(shown)
    assert len(shown) < len(STORY)
    gated_model.allow_pieces()
    rest = list(stream)
    assert shown + join_text(rest) == STORY
    assert rest[-1].response.text == STORY  # type: ignore[union-attr]
    assert gated_model.request_count == 1


@pytest.mark.parametrize("every", [1, 3])
def test_a_stream_that_breaks_goes_on_where_it_was(
    unreliable_client: Client, proxy: Proxy, gated_model: GatedModel, every: int
) -> None:
    session = unreliable_client.session("s", agent="a")
    stream = session.stream("tell me")
    gated_model.allow_pieces(1)
    events = []
    for event in stream:
        events.append(event)
        if event.type == "text_delta":
            if len(events) % every == 0:
                proxy.cut_all()
            gated_model.allow_pieces(1)
    assert join_text(events) == STORY
    kinds = [event.type for event in events if event.type != "text_delta"]
    assert kinds == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop", "done",
    ]  # fmt: skip
    assert gated_model.request_count == 1
    assert proxy.connections_cut >= 3
    assert [run.status for run in session.runs()] == ["finished"]


def test_the_awaited_stream_goes_on_as_well(proxy: Proxy, gated_model: GatedModel) -> None:
    async def read_stream() -> str:
        async with AsyncClient(f"http://127.0.0.1:{proxy.port}", token=TOKEN) as client:
            session = await client.session("s", agent="a")
            found = ""
            gated_model.allow_pieces(1)
            async for event in session.stream("tell me"):
                if event.type == "text_delta":
                    found += event.text
                    proxy.cut_all()
                    gated_model.allow_pieces(1)
            return found

    assert asyncio.run(read_stream()) == STORY
    assert gated_model.request_count == 1


def test_a_stream_survives_its_server_if_the_turn_ends_before_the_restart(store: SQLiteStore) -> None:
    gated_model = GatedModel(STORY)
    first = LocalServer(store, agents={"a": Agent(model=gated_model)}).start()
    client = Client(first.url, token=TOKEN)
    session = client.session("s", agent="a")
    stream = session.stream("tell me")
    gated_model.allow_pieces(1)
    events = [next(stream) for _ in range(3)]
    gated_model.allow_pieces()
    first.stop()  # drains: the turn is finished, and its readers are sent away
    with LocalServer(store, agents={"a": Agent(model=GatedModel("another"))}, port=first.port):
        events += list(stream)
        assert join_text(events) == STORY
        assert events[-1].response.text == STORY  # type: ignore[union-attr]
        client.close()
    assert [event.type for event in events].count("message_start") == 1


def test_closing_a_stream_cancels_its_turn(client: Client, gated_model: GatedModel) -> None:
    session = client.session("s", agent="a")
    stream: Any = session.stream("tell me")
    gated_model.allow_pieces(2)
    while next(stream).type != "text_delta":
        pass
    stream.close()
    assert [run.status for run in session.runs()] == ["cancelled"]
    assert session.messages == []
    gated_model.allow_pieces()
    assert session.run("again").text == STORY


def test_a_new_question_closes_an_abandoned_stream_first(client: Client, gated_model: GatedModel) -> None:
    session = client.session("s", agent="a")
    stream = session.stream("tell me")
    gated_model.allow_pieces(1)
    while next(stream).type != "text_delta":
        pass
    threading.Timer(0.5, gated_model.allow_pieces).start()
    assert session.run("again").text == STORY
    assert sorted(run.status for run in session.runs()) == ["cancelled", "finished"]
    assert list(stream) == []


async def test_leaving_an_awaited_stream_cancels_its_turn(async_client: AsyncClient, gated_model: GatedModel) -> None:
    session = await async_client.session("s", agent="a")
    stream = session.stream("tell me")
    gated_model.allow_pieces(2)
    async for event in stream:
        if event.type == "text_delta":
            break
    await stream.aclose()
    assert [run.status for run in await session.runs()] == ["cancelled"]
    gated_model.allow_pieces()


def test_reading_to_the_end_or_leaving_at_the_end_cancels_nothing(client: Client, register_agent: AgentFactory) -> None:
    register_agent("one", "two")
    session = client.session("s", agent="a")
    for event in session.stream("a"):
        if event.type == "done":
            break
    assert join_text(session.stream("b")) == "two"
    assert [run.status for run in session.runs()] == ["finished", "finished"]


def test_tools_run_inside_streams(client: Client, register_agent: AgentFactory) -> None:
    def look(at: str) -> str:
        """Look."""
        return f"saw {at}"

    register_agent(call("look", {"at": "tea"}), "done", tools=[look])
    events = list(client.session("s", agent="a").stream("go"))
    (result,) = [event for event in events if event.type == "tool_result"]
    assert (result.name, result.content, result.is_error) == ("look", "saw tea", False)
    assert [event.step for event in events if event.type == "message_start"] == [1, 2]
    assert events[-1].type == "done"


# -- the log, live -----------------------------------------------------------------------------------------------------


def take_seqs(events: Iterator[Event], count: int) -> list[int]:
    return [next(events).seq for _ in range(count)]


def test_a_log_is_followed_from_any_point_and_live(client: Client) -> None:
    session = client.session("s", messages=[Message.user(str(n)) for n in range(5)])
    events = session.follow()
    assert take_seqs(events, 6) == [1, 2, 3, 4, 5, 6]
    client.open("s").set_state("a", 1)
    live = next(events)
    assert (live.seq, live.type, live.data) == (7, "state.set", {"name": "a", "value": 1})
    assert take_seqs(session.follow(after=5), 2) == [6, 7]
    only = session.follow(types="state.set")
    assert next(only).seq == 7
    events.close()  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument):
        session.follow(after=-1)


def test_following_survives_cuts_without_gap_or_repeat(unreliable_client: Client, proxy: Proxy, client: Client) -> None:
    session = unreliable_client.session("s")
    writer = client.open("s")
    events = session.follow()
    seen = take_seqs(events, 1)
    for number in range(30):
        writer.set_state("n", number)
        if number % 4 == 0:
            proxy.cut_all()
        seen += take_seqs(events, 1)
    assert seen == list(range(1, 32))
    assert proxy.connections_cut >= 5


def test_following_survives_a_restart_of_the_server(store: SQLiteStore) -> None:
    first = LocalServer(store).start()
    client = Client(first.url, token=TOKEN)
    session = client.session("s")
    events = session.follow()
    session.set_state("a", 1)
    seen = take_seqs(events, 2)
    first.stop()
    with LocalServer(store, port=first.port):
        session.set_state("a", 2)
        seen += take_seqs(events, 1)
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


def test_deltas_pass_a_follower_by(client: Client, gated_model: GatedModel) -> None:
    session = client.session("s", agent="a")
    events = session.follow()
    gated_model.allow_pieces()
    session.run("tell me")
    seen = [next(events).type for _ in range(session.head)]
    assert seen[-1] == "turn.finished"
    assert "text_delta" not in seen


def test_a_log_that_is_not_there_cannot_be_followed(client: Client) -> None:
    session = client.session("s")
    client.delete("s")
    with pytest.raises(SessionNotFound):
        next(session.follow())
