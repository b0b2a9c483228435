"""The values of a request, and the repair that makes a conversation acceptable."""

from __future__ import annotations

import random

import pytest

from holdfast.log.messages import Message, Text, Thinking, ToolCall, ToolResult
from holdfast.log.repair import UNKNOWN_OUTCOME
from holdfast.models import TextDelta, Usage, repair_history


def make_calls(*ids: str) -> Message:
    return Message("assistant", [ToolCall(id=each, name="look", arguments={}) for each in ids])


def make_result(call_id: str, content: str = "ok") -> Message:
    return Message.tool(content, call_id=call_id)


def describe_messages(messages: list[Message]) -> list[str]:
    found = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                found.append(f"call {part.id}")
            elif isinstance(part, ToolResult):
                found.append(f"{part.call_id}: {'?' if part.content == UNKNOWN_OUTCOME else part.content}")
            elif isinstance(part, Text):
                found.append(part.text)
    return found


def test_usage_adds_up() -> None:
    one = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=4, reasoning_tokens=1)
    both = one + Usage(input_tokens=1, cache_write_tokens=2)
    expected = Usage(input_tokens=11, output_tokens=5, cache_read_tokens=4, cache_write_tokens=2, reasoning_tokens=1)
    assert both == expected
    assert both.total_tokens == 16


def test_a_delta_is_one_small_frozen_object() -> None:
    delta = TextDelta(index=0, text="a")
    assert (delta.type, delta.text) == ("text_delta", "a")
    assert not hasattr(delta, "__dict__")
    with pytest.raises(AttributeError):
        delta.text = "b"  # type: ignore[misc]


def test_a_valid_conversation_stays_as_it_is() -> None:
    messages = [Message.user("a"), make_calls("1", "2"), make_result("1"), make_result("2"), Message.assistant("b")]
    assert repair_history(messages) == messages


def test_an_orphan_call_gets_a_result_that_says_so() -> None:
    found = repair_history([Message.user("a"), make_calls("1", "2"), make_result("2"), Message.user("b")])
    assert describe_messages(found) == ["a", "call 1", "call 2", "1: ?", "2: ok", "b"]
    orphan = found[2].parts[0]
    assert isinstance(orphan, ToolResult)
    assert orphan.is_error


def test_an_orphan_result_is_left_out() -> None:
    assert describe_messages(
        repair_history([make_result("9"), Message.user("a"), make_result("8"), Message.assistant("b")])
    ) == ["a", "b"]


def test_a_result_stands_right_behind_its_call() -> None:
    found = repair_history([make_calls("1"), Message.user("meanwhile"), make_result("1")])
    assert describe_messages(found) == ["call 1", "1: ok", "meanwhile"]


def test_ids_that_are_used_twice_become_unique() -> None:
    found = repair_history(
        [make_calls("1", "1"), make_result("1", "a"), make_result("1", "b"), make_calls("1"), make_result("1", "c")]
    )
    assert describe_messages(found) == ["call 1", "call 1-2", "1: a", "1-2: b", "call 1-3", "1-3: c"]


def test_an_interrupted_call_does_not_take_the_answer_of_a_later_one() -> None:
    found = repair_history([make_calls("1"), Message.user("again"), make_calls("1"), make_result("1", "late")])
    assert describe_messages(found) == ["call 1", "1: ?", "again", "call 1-2", "1-2: late"]


def test_a_second_result_for_one_call_is_left_out() -> None:
    assert describe_messages(repair_history([make_calls("1"), make_result("1", "a"), make_result("1", "b")])) == [
        "call 1",
        "1: a",
    ]


def test_repair_keeps_authors_thinking_and_text() -> None:
    thinking = Thinking(text="hm", signature="s", provider="anthropic", model="m")
    message = Message("assistant", [thinking, Text("so"), ToolCall(id="1", name="f")], author="writer")
    found = repair_history([message])
    assert found[0] == message
    assert found[0].author == "writer"


@pytest.mark.parametrize("seed", range(200))
def test_any_conversation_is_repaired_to_a_valid_one_that_stays_the_same(seed: int) -> None:
    choose = random.Random(seed)
    messages: list[Message] = []
    for _ in range(choose.randrange(12)):
        kind = choose.randrange(4)
        picked = [str(choose.randrange(4)) for _ in range(choose.randrange(1, 4))]
        if kind == 0:
            messages.append(Message.user("u"))
        elif kind == 1:
            messages.append(make_calls(*picked))
        elif kind == 2:
            messages.append(Message("tool", [ToolResult(call_id=each, content="r") for each in picked]))
        else:
            messages.append(Message.assistant("a"))
    found = repair_history(messages)
    ids = [call.id for message in found for call in message.tool_calls]
    assert len(ids) == len(set(ids)) == sum(len(message.tool_calls) for message in messages)
    open_calls: list[str] = []
    for message in found:
        if message.role == "tool":
            (part,) = message.parts
            assert isinstance(part, ToolResult)
            assert part.call_id == open_calls.pop(0)
        else:
            assert open_calls == []
            open_calls = [call.id for call in message.tool_calls]
    assert open_calls == []
    assert repair_history(found) == found
