"""The same faults from another implementation: llmock, which also checks how the client behaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import BadResponse, ContextTooLong, ProviderUnavailable, RequestRejected, StreamTruncated
from holdfast.log.messages import Message
from holdfast.models import LanguageModel, ModelRequest, ToolSpec
from tests.models.conftest import NAMES, Ask, RecordingClock, read_done

HI = ModelRequest(messages=[Message.user("Say something long enough to be cut.")])
TOOL = ToolSpec(
    name="get_weather",
    description="The weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.fixture
def model(llmock: Any, wire: str) -> Iterator[LanguageModel]:
    made = LanguageModel(wire, NAMES[wire], clock=RecordingClock())  # llmock sets the provider's variables
    assert "127.0.0.1" in made.endpoint().base_url
    yield made
    made.close()


def test_a_reply(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.reply("Hello there")
    assert read_done(ask(model, HI)).message.text == "Hello there"
    llmock.assert_resilient()


def test_a_tool_is_called(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.call_tool("get_weather", {"city": "Paris"})
    done = read_done(ask(model, ModelRequest(messages=HI.messages, tools=[TOOL])))
    assert [(call.name, call.arguments) for call in done.message.tool_calls] == [("get_weather", {"city": "Paris"})]


def test_arguments_that_are_not_json(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.break_tool_call("malformed_arguments")
    done = read_done(ask(model, ModelRequest(messages=HI.messages, tools=[TOOL])))
    assert isinstance(done.message.tool_calls[0].arguments, str)


def test_a_truncated_stream_is_not_trusted(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.truncate(after_chunks=4)
    with pytest.raises(StreamTruncated):
        ask(model, HI)


def test_a_connection_that_is_dropped(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.disconnect(after_chunks=4)
    with pytest.raises(StreamTruncated):
        ask(model, HI)


def test_a_corrupted_chunk(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.corrupt(after_chunks=4)
    with pytest.raises(BadResponse):
        ask(model, HI)


def test_an_outage_ends_and_a_bad_request_is_not_repeated(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.fail(503, times=2)
    assert read_done(ask(model, HI)).type == "done"
    llmock.fail(400)
    with pytest.raises(RequestRejected):
        ask(model, HI)
    llmock.outage()
    with pytest.raises(ProviderUnavailable):
        ask(model, HI)


def test_a_prompt_that_is_too_long(llmock: Any, model: LanguageModel, ask: Ask) -> None:
    llmock.context_overflow()
    with pytest.raises(ContextTooLong):
        ask(model, HI)
