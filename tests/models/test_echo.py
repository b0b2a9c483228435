"""The echo model: few rules, the same answer every time."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from holdfast.log.messages import Message
from holdfast.models import LanguageModel, ModelRequest, ToolSpec
from tests.models.conftest import Ask, read_done

TIME = ToolSpec(name="get_time", description="The time.")
ORDERS = ToolSpec(
    name="get_orders",
    parameters={
        "type": "object",
        "properties": {"user_id": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["user_id"],
    },
)


def ask_echo(*texts: str, **fields: Any) -> list[str]:
    """What echo answers to each of these, in one conversation."""
    messages: list[Message] = []
    answers: list[str] = []
    for text in texts:
        messages.append(Message.user(text))
        done = list(LanguageModel("echo").stream(ModelRequest(messages=messages, **fields)))[-1]
        messages.append(done.message)  # type: ignore[union-attr]
        answers.append(messages[-1].text)
    return answers


def test_it_remembers_names() -> None:
    hello, answer = ask_echo("My name is Alice", "What do you know about me?")
    assert hello == "Nice to meet you, Alice."
    assert answer == "Your name is Alice."
    assert ask_echo("Hi, my name is Ada Lovelace and I like tea.", "What is my name?")[1] == (
        "Your name is Ada Lovelace; you like tea."
    )
    assert ask_echo("my name is bob.", "No, my name is Bobby!", "Who am I?")[2] == "Your name is Bobby."


def test_it_knows_only_what_the_conversation_says() -> None:
    assert "nothing about you" in ask_echo("What do you know about me?")[0]


def test_it_says_what_it_is() -> None:
    assert "stand-in" in ask_echo("What are you?")[0]
    assert "stand-in" in ask_echo("Hello!")[0]


def test_it_counts() -> None:
    assert ask_echo("Count to 5")[0] == "1, 2, 3, 4, 5"
    assert ask_echo("a", "b", "How many messages have I sent?")[2] == "You have sent 3 messages."


def test_it_echoes() -> None:
    assert ask_echo("The sky is blue.")[0] == "You said: The sky is blue."
    assert ask_echo("")[0] == "You said nothing."


def test_it_uses_tools_when_asked(ask: Ask) -> None:
    model = LanguageModel("echo")
    messages = [Message.user("Please use the tool get_time.")]
    done = read_done(ask(model, ModelRequest(messages=messages, tools=[TIME])))
    (wish,) = done.message.tool_calls
    assert (wish.name, wish.arguments, done.stop_reason) == ("get_time", {}, "tool_use")
    messages += [done.message, Message.tool("12:00", call_id=wish.id)]
    answer = read_done(ask(model, ModelRequest(messages=messages, tools=[TIME]))).message
    assert answer.text == "get_time says: 12:00"
    messages += [answer, Message.user("Thanks")]
    assert read_done(ask(model, ModelRequest(messages=messages, tools=[TIME]))).message.text == "You said: Thanks"


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("use get_orders for Alice", {"user_id": "Alice"}),
        ('call get_orders with {"user_id": "u1", "limit": 3}', {"user_id": "u1", "limit": 3}),
        ("run the tool `get_orders`", {"user_id": "run the tool `get_orders`"}),
        ("use get_orders {broken}", {"user_id": "{broken}"}),
    ],
)
def test_it_finds_arguments(said: str, arguments: dict[str, Any], ask: Ask) -> None:
    request = ModelRequest(messages=[Message.user(said)], tools=[TIME, ORDERS])
    assert read_done(ask(LanguageModel("echo"), request)).message.tool_calls[0].arguments == arguments


def test_it_says_which_tools_there_are() -> None:
    assert ask_echo("use the tool rocket", tools=[TIME])[0] == "I have no tool named rocket. I have: get_time."


def test_it_obeys_the_tool_choice(ask: Ask) -> None:
    request = ModelRequest(messages=[Message.user("use get_time")], tools=[TIME], tool_choice="none")
    assert read_done(ask(LanguageModel("echo"), request)).message.tool_calls == []
    request = ModelRequest(messages=[Message.user("Hello")], tools=[ORDERS, TIME], tool_choice="get_time")
    assert read_done(ask(LanguageModel("echo"), request)).message.tool_calls[0].name == "get_time"


def test_it_answers_in_the_shape_that_is_asked_for() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "mood": {"enum": ["calm", "wild"]},
            "address": {"$ref": "#/$defs/Address"},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "known": {"type": "boolean"},
        },
        "$defs": {"Address": {"type": "object", "properties": {"zip": {"type": "string", "default": "0"}}}},
    }
    answer = ask_echo("My name is Alice", "Tell me", output_schema=schema)[1]
    assert orjson.loads(answer) == {
        "name": "Alice",
        "mood": "calm",
        "address": {"zip": "0"},
        "tags": ["Tell me"],
        "age": 0,
        "known": False,
    }
