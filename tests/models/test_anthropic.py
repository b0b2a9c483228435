"""What is sent to Messages, byte for byte where it matters, and what its particular replies mean."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from holdfast.errors import BadResponse, InvalidArgument, StreamTruncated
from holdfast.log.messages import File, Image, Message, Text, Thinking, ToolCall
from holdfast.models import Done, ModelRequest, ToolSpec, anthropic
from holdfast.models.endpoint import Endpoint
from tests.models.frames import Reply, encode_frame

MODEL = "claude-sonnet-5"
HERE = Endpoint(provider="anthropic", base_url="https://api.anthropic.com", api_key="sk-ant-secret")
LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})
CACHED = {"cache_control": {"type": "ephemeral"}}


def encode_body(request: ModelRequest, endpoint: Endpoint = HERE) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(anthropic.encode(request, endpoint).body)
    return body


def make_request(**fields: Any) -> ModelRequest:
    return ModelRequest(**({"model": MODEL, "messages": [Message.user("hi")]} | fields))


def list_turns(*messages: Message, **fields: Any) -> list[tuple[str, list[str]]]:
    body = encode_body(make_request(messages=messages, **fields))
    return [(turn["role"], [block["type"] for block in turn["content"]]) for turn in body["messages"]]


def decode_reply(body: bytes, request: ModelRequest | None = None) -> Done:
    decoder = anthropic.decoder(request or make_request(), HERE)
    done = [*decoder.feed(body), *decoder.finish()][-1]
    assert isinstance(done, Done)
    return done


def test_a_whole_request() -> None:
    thinking = Thinking(text="hm", signature="sig", provider="anthropic", model=MODEL)
    request = make_request(
        system=("Be brief.", "Today is Monday."),
        messages=[
            Message.user("look", Image(url="https://x/a.png"), Image(data=b"png", media_type="image/png")),
            Message.assistant(thinking, "I look.", ToolCall(id="call_1", name="look", arguments={"what": "tea"})),
            Message.tool("green", call_id="call_1"),
            Message.user("and?"),
        ],
        tools=[LOOK],
        temperature=0.5,
        max_tokens=100,
        stop=["END"],
        tool_choice="required",
        options={"top_k": 5},
    )
    outgoing = anthropic.encode(request, HERE)
    assert outgoing.url == "https://api.anthropic.com/v1/messages"
    assert outgoing.headers == {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "anthropic-version": "2023-06-01",
        "x-api-key": "sk-ant-secret",
    }
    expected = {
        "model": MODEL,
        "max_tokens": 100,
        "tools": [{"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}],
        "tool_choice": {"type": "any"},
        "system": [
            {"type": "text", "text": "Be brief.", **CACHED},
            {"type": "text", "text": "Today is Monday.", **CACHED},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "url", "url": "https://x/a.png"}},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"},
                        **CACHED,
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"what": "tea"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "green"},
                    {"type": "text", "text": "and?", **CACHED},
                ],
            },
        ],
        "temperature": 0.5,
        "stop_sequences": ["END"],
        "stream": True,
        "top_k": 5,
    }
    assert outgoing.body == orjson.dumps(expected)


def test_the_address_may_have_its_version_or_not() -> None:
    with_version = Endpoint(provider="anthropic", base_url="http://x/v1/")
    assert anthropic.encode(make_request(), with_version).url == "http://x/v1/messages"


def test_the_cache_finds_the_beginning_again() -> None:
    short = [Message.user("a"), Message.assistant("b"), Message.user("c")]
    one = encode_body(make_request(system="s", messages=short))
    two = encode_body(make_request(system="s", messages=[*short, Message.assistant("d"), Message.user("e")]))
    assert two["messages"][2] == one["messages"][2]  # the last mark of one call is a mark of the next
    assert "cache_control" in two["messages"][2]["content"][-1]
    assert two["system"] == one["system"]
    assert encode_body(make_request(tools=[LOOK]))["tools"][-1]["cache_control"] == {"type": "ephemeral"}


def test_users_and_assistant_take_turns() -> None:
    assert list_turns(Message.user("a"), Message.user("b"), Message.assistant("c"), Message.assistant("d")) == [
        ("user", ["text", "text"]),
        ("assistant", ["text", "text"]),
        ("user", ["text"]),  # a request may not end with the assistant
    ]
    assert list_turns(Message.assistant("a"), Message.user("b"))[0] == ("user", ["text"])


def test_results_come_first_and_together() -> None:
    calls = Message.assistant(ToolCall(id="1", name="f"), ToolCall(id="2", name="f"))
    found = list_turns(calls, Message.user("x"), Message.tool("b", call_id="2"), Message.tool("a", call_id="1"))
    assert found[2] == ("user", ["tool_result", "tool_result", "text"])


def test_nothing_empty_is_sent() -> None:
    messages = [Message.user(" "), Message.assistant(), Message.user("hi", "")]
    assert list_turns(*messages) == [("user", ["text"])]
    with pytest.raises(InvalidArgument, match="no message"):
        encode_body(make_request(messages=[Message.user("")]))


def test_system_messages_join_the_system_prompt() -> None:
    body = encode_body(make_request(system="a", messages=[Message.system("b"), Message.user("hi")]))
    assert [block["text"] for block in body["system"]] == ["a", "b"]


def test_files_go_as_documents_or_by_name() -> None:
    message = Message.user(
        File(data=b"%PDF", media_type="application/pdf", name="t.pdf"),
        File(data=b"a,b", media_type="text/csv"),
        File(url="https://x/t.pdf"),
        File(data=b"\x00", media_type="application/zip", name="t.zip"),
        Image(data=b"bmp", media_type="image/bmp"),
    )
    content = encode_body(make_request(messages=[message]))["messages"][0]["content"]
    assert content[0] == {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
        "title": "t.pdf",
    }
    assert content[1]["source"] == {"type": "text", "media_type": "text/plain", "data": "a,b"}
    assert content[2]["source"] == {"type": "url", "url": "https://x/t.pdf"}
    assert content[3]["text"] == "[file: t.zip, 1 bytes; it cannot be shown to this model]"
    assert content[4]["text"] == "[image: image/bmp, 3 bytes; it cannot be shown to this model]"


@pytest.mark.parametrize(
    ("thinking", "is_sent"),
    [
        (Thinking(text="t", signature="s", provider="anthropic", model=MODEL), True),
        (Thinking(text="", signature="s", provider="anthropic", model=MODEL), True),
        (Thinking(text="t", signature="s", provider="anthropic", model="claude-other"), False),
        (Thinking(text="t", signature="s", provider="openrouter", model=MODEL), False),
        (Thinking(text="t", provider="anthropic", model=MODEL), False),
        (Thinking(text="t"), False),
    ],
)
def test_thinking_goes_back_only_to_the_model_that_signed_it(thinking: Thinking, is_sent: bool) -> None:
    body = encode_body(
        make_request(messages=[Message.user("q"), Message.assistant(thinking, "so"), Message.user("hi")])
    )
    content = body["messages"][1]["content"]
    assert [block["type"] for block in content] == (["thinking", "text"] if is_sent else ["text"])
    assert "t" not in [block.get("text") for block in content]


def test_thinking_that_the_provider_hides_goes_back_as_it_came() -> None:
    hidden = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    frames = Reply(text="so").frames("anthropic")
    block = encode_frame({"type": "content_block_start", "index": 9, "content_block": hidden})
    end = encode_frame({"type": "content_block_stop", "index": 9})
    message = decode_reply(b"".join([frames[0], block, end, *frames[1:]])).message
    assert message.parts[0].type == "thinking"
    content = encode_body(make_request(messages=[message, Message.user("hi")]))["messages"][1]["content"]
    assert content[0] == hidden


class TestStructuredOutput:
    SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}

    def test_natively(self) -> None:
        body = encode_body(make_request(output_schema=self.SCHEMA, options={"output_config": {"effort": "low"}}))
        assert body["output_config"] == {
            "format": {
                "type": "json_schema",
                "schema": {
                    "type": "object",
                    "properties": {"n": {"type": "integer", "description": "minimum: 1"}},
                    "required": ["n"],
                    "additionalProperties": False,
                },
            },
            "effort": "low",
        }

    @pytest.mark.parametrize(
        ("model", "schema"),
        [("claude-3-5-haiku-latest", SCHEMA), (MODEL, {"type": "object", "additionalProperties": {"type": "string"}})],
    )
    def test_by_instruction_where_model_or_schema_do_not_allow_it(self, model: str, schema: dict[str, Any]) -> None:
        body = encode_body(make_request(model=model, output_schema=schema))
        assert "output_config" not in body
        assert "JSON Schema" in body["messages"][-1]["content"][-1]["text"]


def test_a_budget_for_thinking_fits_into_the_limit() -> None:
    thinking = {"type": "enabled", "budget_tokens": 10_000}
    assert encode_body(make_request(options={"thinking": thinking}))["max_tokens"] == 18_192
    assert encode_body(make_request())["max_tokens"] == 8_192


@pytest.mark.parametrize(
    ("choice", "form"),
    [("auto", {"type": "auto"}), ("none", {"type": "none"}), ("look", {"type": "tool", "name": "look"})],
)
def test_tool_choices(choice: str, form: dict[str, str]) -> None:
    assert encode_body(make_request(tools=[LOOK], tool_choice=choice))["tool_choice"] == form


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_whole_reply() -> None:
    calls = [("toolu_a", "look", '{"what": "tea"}'), ("toolu_b", "look", "")]
    done = decode_reply(Reply(text="I look.", thinking="Which?", calls=calls).body("anthropic"))
    assert list(done.message.parts) == [
        Thinking(text="Which?", signature="c2lnbmVk", provider="anthropic", model=MODEL),
        Text("I look."),
        ToolCall(id="toolu_a", name="look", arguments={"what": "tea"}),
        ToolCall(id="toolu_b", name="look", arguments={}),
    ]
    assert (done.stop_reason, done.raw_stop, done.provider) == ("tool_use", "tool_use", "anthropic")
    assert (done.model, done.response_id) == ("claude-sonnet-5-20260901", "msg_1")
    usage = done.usage
    assert (usage.input_tokens, usage.output_tokens) == (30, 12)
    assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (20, 2, 5)


@pytest.mark.parametrize(
    ("raw", "stop"),
    [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
        ("new", "other"),
    ],
)
def test_stop_reasons(raw: str, stop: str) -> None:
    assert decode_reply(Reply(stop=raw).body("anthropic")).stop_reason == stop


def test_a_refusal_without_words_says_why() -> None:
    done = decode_reply(Reply(text="", refusal="Not this.", stop="refusal").body("anthropic"))
    assert (done.stop_reason, done.message.text) == ("refusal", "Not this.")


def test_blocks_of_unknown_kinds_are_left_out() -> None:
    frames = Reply(text="so").frames("anthropic")
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": "{}"}
    extra = [
        encode_frame({"type": "content_block_start", "index": 9, "content_block": search}),
        encode_frame({"type": "content_block_delta", "index": 9, "delta": delta}),
        encode_frame({"type": "content_block_stop", "index": 9}),
        encode_frame({"type": "something_new"}),
    ]
    assert [part.type for part in decode_reply(b"".join([frames[0], *extra, *frames[1:]])).message.parts] == ["text"]


@pytest.mark.parametrize("at", range(6))
def test_a_repeated_event_is_noticed_where_it_can_be(at: int) -> None:
    frames = Reply(text="Hell").frames("anthropic")  # start, ping, block start, delta, block stop, message delta, stop
    body = b"".join([*frames[: at + 1], frames[at], *frames[at + 1 :]])
    if at in (0, 2, 4):
        with pytest.raises(BadResponse):
            decode_reply(body)
    else:
        assert decode_reply(body).message.text == ("HellHell" if at == 3 else "Hell")


def test_a_message_that_stops_without_a_reason_is_truncated() -> None:
    frames = Reply().frames("anthropic")
    with pytest.raises(StreamTruncated):
        decode_reply(b"".join([*frames[:-2], frames[-1]]))
    with pytest.raises(BadResponse, match="inside a block"):
        decode_reply(b"".join([*frames[:-3], *frames[-2:]]))
