"""Images and files that a tool returned, as each wire format can carry them; and their place in a broken history."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from holdfast.log.messages import File, Image, Message, ToolCall, ToolResult
from holdfast.log.repair import repair_history
from holdfast.models import ModelRequest, anthropic, openai
from holdfast.models.endpoint import Endpoint
from holdfast.models.registry import PROVIDERS

PNG = Image(data=b"png", media_type="image/png")
PDF = File(data=b"pdf", media_type="application/pdf", name="a.pdf")
TIFF = Image(data=b"tiff", media_type="image/tiff")


def result(call_id: str, text: str, *media: Image | File) -> Message:
    return Message("tool", [ToolResult(call_id=call_id, content=text), *media])


def calls(*ids: str) -> Message:
    return Message.assistant(*[ToolCall(id=each, name="draw") for each in ids])


HISTORY = [
    Message.user("draw"),
    calls("a", "b"),
    result("a", "[image 1]", PNG, PDF),
    result("b", "plain"),
    Message.assistant("done"),
    Message.user("again"),
    calls("c"),
    result("c", "[image 1]", TIFF),
]


def encode(codec: Any, provider: str, messages: list[Message]) -> list[Any]:
    endpoint = Endpoint(provider=provider, base_url="https://x", dialect=PROVIDERS[provider].dialect)
    body = orjson.loads(codec.encode(ModelRequest(model="m", messages=messages), endpoint).body)
    found: list[Any] = body["messages"]
    return found


def test_anthropic_gets_them_inside_the_result() -> None:
    turns = encode(anthropic, "anthropic", HISTORY)
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 3 + ["user"]
    results, last = turns[2]["content"], turns[6]["content"]
    assert results[0]["content"] == [
        {"type": "text", "text": "[image 1]"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "cGRm"},
            "title": "a.pdf",
        },
    ]
    assert results[1]["content"] == "plain"
    assert [block["type"] for block in last[0]["content"]] == ["text", "text"]
    assert "image/tiff, 4 bytes; it cannot be shown" in last[0]["content"][1]["text"]


def test_chat_completions_get_them_in_a_message_after_the_last_result() -> None:
    found = encode(openai, "openai", HISTORY)
    assert [each["role"] for each in found] == [
        *("user", "assistant", "tool", "tool", "user", "assistant"),
        *("user", "assistant", "tool", "user"),
    ]
    assert found[2] == {"role": "tool", "tool_call_id": "a", "content": "[image 1]"}
    about, image, file = found[4]["content"]
    assert about == {"type": "text", "text": "[returned by the tool call a, in the order of its result]"}
    assert image == {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
    assert file["file"]["filename"] == "a.pdf"
    assert found[9]["content"][1]["image_url"]["url"] == "data:image/tiff;base64,dGlmZg=="


def test_an_endpoint_that_takes_no_user_after_a_tool_gets_them_in_words() -> None:
    found = encode(openai, "mistral", HISTORY)
    assert [each["role"] for each in found][:5] == ["user", "assistant", "tool", "tool", "assistant"]
    assert found[2]["content"].startswith("[image 1]\n[image: image/png, 3 bytes; it cannot be shown")


@pytest.mark.parametrize(
    "messages",
    [
        [calls("a", "b"), result("b", "plain"), Message.user("between"), result("a", "[image 1]", PNG)],
        [calls("a", "b"), Message("tool", [*result("a", "[image 1]", PNG).parts, *result("b", "plain").parts])],
    ],
)
def test_a_repaired_history_keeps_media_with_their_result(messages: list[Message]) -> None:
    found = repair_history(messages)
    assert found[:3] == [calls("a", "b"), result("a", "[image 1]", PNG), result("b", "plain")]
    assert [message.role for message in found[3:]] in ([], ["user"])


def test_media_of_a_result_without_a_call_go_with_it() -> None:
    assert repair_history([Message.user("x"), result("lost", "[image 1]", PNG)]) == [Message.user("x")]


def test_a_valid_history_with_media_is_not_rebuilt() -> None:
    assert all(one is two for one, two in zip(repair_history(HISTORY), HISTORY, strict=True))
