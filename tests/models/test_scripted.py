"""The scripted model: what the script says, in pieces, the same every time."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import AgentError, InvalidArgument, ProviderUnavailable, RateLimited, ScriptExhausted
from holdfast.log.messages import Message, Text, Thinking, ToolCall
from holdfast.models import LanguageModel, ModelEvent, ModelRequest, Usage, call, error
from tests.models.conftest import Ask, read_done

HI = ModelRequest(messages=[Message.user("hi")])


def make_model(*items: Any) -> LanguageModel:
    return LanguageModel("scripted", script=list(items))


def test_strings_are_replies_in_several_deltas(ask: Ask) -> None:
    model = make_model("Hello, how are you? I hope that the tea was hot and that nobody was late.", "Fine.")
    events = ask(model, HI)
    assert [event.type for event in events] == [
        "block_start",
        "text_delta",
        "text_delta",
        "text_delta",
        "block_stop",
        "done",
    ]
    done = read_done(events)
    assert done.message.text == "Hello, how are you? I hope that the tea was hot and that nobody was late."
    assert (done.stop_reason, done.provider) == ("end_turn", "scripted")
    assert done.usage == Usage(input_tokens=1, output_tokens=19)
    assert read_done(ask(model, HI)).message.text == "Fine."


def test_calls_and_lists(ask: Ask) -> None:
    events = ask(make_model(["I look.", call("look", {"what": "tea"}), call("look", "{broken"), call("count")]), HI)
    done = read_done(events)
    assert list(done.message.parts) == [
        Text("I look."),
        ToolCall(id="call_1", name="look", arguments={"what": "tea"}),
        ToolCall(id="call_2", name="look", arguments="{broken"),
        ToolCall(id="call_3", name="count", arguments={}),
    ]
    assert done.stop_reason == "tool_use"
    assert [event.type for event in events].count("input_json_delta") == 3


def test_ids_follow_from_the_conversation(ask: Ask) -> None:
    history = [Message.assistant(ToolCall(id="call_1", name="f")), Message.tool("x", call_id="call_1")]
    done = read_done(ask(make_model(call("f")), ModelRequest(messages=history)))
    assert done.message.tool_calls[0].id == "call_2"
    again = read_done(ask(make_model(call("f", id="call_1")), ModelRequest(messages=history)))
    assert again.message.tool_calls[0].id == "call_1-2"


def test_errors_come_where_they_stand(ask: Ask) -> None:
    model = make_model(["Hello", error("gone")], error(RateLimited), error(KeyError("x")), "Hello again")
    told: list[ModelEvent] = []
    with pytest.raises(ProviderUnavailable, match="gone"):
        ask(model, HI, told)
    assert [event.type for event in told] == ["block_start", "text_delta", "block_stop"]
    with pytest.raises(RateLimited):
        ask(model, HI)
    with pytest.raises(KeyError):
        ask(model, HI)
    assert read_done(ask(model, HI)).message.text == "Hello again"


def test_functions_see_the_request(ask: Ask) -> None:
    model = make_model(lambda request: request.messages[-1].text.upper(), lambda request: [call("f"), "x"])
    assert read_done(ask(model, HI)).message.text == "HI"
    assert len(read_done(ask(model, HI)).message.parts) == 2
    always = LanguageModel("scripted", script=lambda request: str(len(request.messages)))
    assert [read_done(ask(always, HI)).message.text for _ in range(3)] == ["1", "1", "1"]


def test_messages_and_thinking(ask: Ask) -> None:
    thinking = Thinking(text="hm", signature="s")
    done = read_done(ask(make_model(Message.assistant(thinking, "so")), HI))
    assert done.message.parts[0] == Thinking(text="hm", signature="s", provider="scripted", model="scripted")


def test_a_script_that_is_over_says_so(ask: Ask) -> None:
    model = make_model("one")
    ask(model, HI)
    with pytest.raises(ScriptExhausted, match="1 replies") as caught:
        ask(model, HI)
    assert isinstance(caught.value, AgentError)


def test_what_is_no_script_is_refused(ask: Ask) -> None:
    with pytest.raises(InvalidArgument, match="script item"):
        ask(make_model(5), HI)
    with pytest.raises(InvalidArgument, match="put it in"):
        ask(LanguageModel("scripted", script="hello"), HI)
