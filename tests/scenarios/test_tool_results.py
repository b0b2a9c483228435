"""What tools return, on every store and in every way of asking: awaitables, images and files, and what is no data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from holdfast import Agent, File, Image, Message, Session
from holdfast.log.messages import Limits, ToolResult
from holdfast.models.base import ModelRequest
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from holdfast.testing import call
from holdfast.tools.tool import render
from tests.scenarios.ways import WAYS, make_ask

PNG = Image(data=b"\x89PNG", media_type="image/png", name="chart.png")
PDF = File(data=b"%PDF", media_type="application/pdf")


def run_tool(store: Store, function: Any, way: str = "run", **options: Any) -> Session:
    """A session in which a model has called a tool once."""
    agent = Agent(provider="scripted", script=[call(function.__name__), "done"], tools=[function], store=store)
    session = agent.session("s", **options)
    make_ask(way)(session, "go")
    return session


@pytest.mark.parametrize("way", WAYS)
def test_28_a_coroutine_that_a_plain_tool_returns_is_awaited(store: Store, way: str) -> None:
    async def fetch(text: str) -> str:
        await asyncio.sleep(0)
        return f"fetched {text}"

    class Later:
        def __await__(self) -> Generator[Any, None, str]:
            yield from asyncio.sleep(0).__await__()
            return "later"

    def look() -> Any:
        return fetch("tea")

    def wait() -> Any:
        return Later()

    async def nest() -> Any:
        return fetch("twice")

    agent = Agent(
        provider="scripted", script=[[call("look"), call("wait"), call("nest")], "done"], tools=[look, wait, nest]
    )
    session = agent.session(store=store)
    make_ask(way)(session, "go")
    found = {message.author: message.text for message in session.messages if message.role == "tool"}
    assert found == {"look": "fetched tea", "wait": "later", "nest": "fetched twice"}


async def test_a_returned_coroutine_runs_in_the_event_loop_of_the_caller() -> None:
    mine = asyncio.get_running_loop()

    def look() -> Any:
        async def where() -> bool:
            return asyncio.get_running_loop() is mine

        return where()

    agent = Agent(provider="scripted", script=[call("look"), "done"], tools=[look])
    session = agent.session(store=MemoryStore())
    await session.run_async("go")
    assert session.messages[2].text == "True"


@pytest.mark.parametrize("way", WAYS)
def test_an_image_is_a_part_of_the_result(store: Store, way: str) -> None:
    def draw() -> Image:
        return PNG

    session = run_tool(store, draw, way)
    result = session.messages[2]
    assert result.parts == (
        ToolResult(call_id="call_1", content="[image 1: chart.png, image/png, 4 bytes]"),
        PNG,
    )
    assert result.text == "[image 1: chart.png, image/png, 4 bytes]"


def test_images_and_files_are_found_inside_a_result(store: Store) -> None:
    @dataclass
    class Page:
        number: int
        scan: Image

    def scan() -> Any:
        return ["two pages", {"first": PNG, "second": Page(2, Image("https://e.com/2.png"))}, PDF]

    session = run_tool(store, scan)
    result, *media = session.messages[2].parts
    assert media == [PNG, Image("https://e.com/2.png"), PDF]
    assert isinstance(result, ToolResult)
    assert json.loads(result.content) == [
        "two pages",
        {
            "first": "[image 1: chart.png, image/png, 4 bytes]",
            "second": {"number": 2, "scan": "[image 2: https://e.com/2.png]"},
        },
        "[file 3: application/pdf, 4 bytes]",
    ]


def test_the_model_gets_the_image_in_this_turn_and_in_the_next(store: Store) -> None:
    seen: list[Any] = []

    def answer(request: ModelRequest) -> Any:
        seen.append([part for message in request.messages for part in message.parts if isinstance(part, Image | File)])
        return call("draw") if len(seen) == 1 else "done"

    def draw() -> Any:
        return [PNG, PDF]

    agent = Agent(provider="scripted", script=answer, tools=[draw])
    session = agent.session("s", store=store)
    session.run("draw")
    session.run("and now?")
    assert seen == [[], [PNG, PDF], [PNG, PDF]]
    assert Agent(provider="echo").session("s", store=store).messages[2].parts[1:] == (PNG, PDF)


def test_a_result_with_an_image_survives_every_form(store: Store) -> None:
    def draw() -> Image:
        return PNG

    session = run_tool(store, draw)
    expected = session.messages
    assert [Message.of(message.to_dict()) for message in expected] == expected
    document = json.loads(json.dumps(session.to_dict()))
    copy = MemoryStore()
    copy.save("copy", document)
    assert Session.open("copy", store=copy).messages == expected
    moved = Session.import_(session.export(), session_id="moved", store=MemoryStore())
    assert moved.messages == expected
    assert moved.verify()
    assert "chart.png" in session.export(format="markdown")
    fork = session.fork("fork")
    assert fork.messages == expected


def test_redacting_a_result_removes_its_image(store: Store) -> None:
    def draw() -> Image:
        return PNG

    session = run_tool(store, draw)
    seq = session.messages[2].seq
    assert seq is not None
    session.redact(seq, reason="private")
    assert [message.text for message in session.messages][2] == "[erased]"
    assert "iVBORw" not in session.export()
    assert "iVBOR" not in json.dumps(session.to_dict())
    assert session.verify()


def test_an_image_above_the_limit_is_an_error_for_the_model() -> None:
    def draw() -> Image:
        return Image(data=b"x" * 101, media_type="image/png")

    session = run_tool(MemoryStore(limits=Limits(bytes_part=100)), draw)
    (result,) = session.messages[2].parts
    assert isinstance(result, ToolResult)
    assert (result.is_error, "101 bytes, the limit is 100" in result.content) == (True, True)


# -- no data -------------------------------------------------------------------------------------------------------


class Weird:
    """An object that only tells its class and its address."""


@dataclass
class Box:
    inside: Any


NO_DATA = {
    "an object": Weird(),
    "a class": Weird,
    "a function": run_tool,
    "an iterator": iter(()),
    "an object in a list": [1, Weird()],
    "an object in a dict": {"a": {"b": Weird()}},
    "an object in a dataclass": Box(Weird()),
    "an object under an odd key": {("a", 1): Weird()},
}


@pytest.mark.parametrize("way", ["run", "run_async"])
@pytest.mark.parametrize("name", NO_DATA)
def test_27_an_object_that_is_no_data_is_an_error_with_a_hint(store: Store, way: str, name: str) -> None:
    def find() -> Any:
        return NO_DATA[name]

    session = run_tool(store, find, way)
    (result,) = session.messages[2].parts
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert "which no model can read: return a text, a number, a list, a dict, a dataclass or" in result.content
    assert "0x" not in session.export()


class Colour(Enum):
    RED = "red"


class Money:
    def __str__(self) -> str:
        return "<5 EUR>"


DATA = {
    "text": ("a <b> at 0x1f>", "a <b> at 0x1f>"),
    "None": (None, "None"),
    "a number": (2.5, "2.5"),
    "a bool": (True, "True"),
    "an enum": (Colour.RED, "red"),
    "a date": (date(2024, 1, 31), "2024-01-31"),
    "a datetime": (datetime(2024, 1, 31, tzinfo=UTC), "2024-01-31 00:00:00+00:00"),
    "a timedelta": (timedelta(hours=1), "1:00:00"),
    "a UUID": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "a path": (Path("/tmp/x"), "/tmp/x"),
    "a decimal": (Decimal("1.10"), "1.10"),
    "a namespace": (SimpleNamespace(a=1), "namespace(a=1)"),
    "its own text": (Money(), "<5 EUR>"),
    "in JSON": ([UUID(int=1), Money(), {1}], '["00000000-0000-0000-0000-000000000001", "<5 EUR>", [1]]'),
}


@pytest.mark.parametrize("name", DATA)
def test_data_is_read_as_before(name: str) -> None:
    value, text = DATA[name]
    assert render(value) == text


def test_the_effect_of_a_tool_that_returned_no_data_is_recorded(store: Store) -> None:
    def pay() -> Weird:
        return Weird()

    session = run_tool(store, pay)
    (event,) = session.events(types="tool.returned")
    assert event.data["effect"] is True
