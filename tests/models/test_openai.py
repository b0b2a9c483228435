"""What is sent to Chat Completions, byte for byte where it matters, and what its particular replies mean."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from holdfast.errors import InvalidArgument, NotJSON, ProviderUnavailable, RequestRejected
from holdfast.log.messages import File, Image, Message, Text, Thinking, ToolCall
from holdfast.log.repair import UNKNOWN_OUTCOME
from holdfast.models import Done, ModelRequest, ToolSpec, openai
from holdfast.models.endpoint import Dialect, Endpoint
from holdfast.models.registry import PROVIDERS
from tests.models.frames import Reply, encode_frame

OPENAI = Endpoint(
    provider="openai",
    base_url="https://api.openai.com/v1/",
    api_key="sk-secret",
    dialect=PROVIDERS["openai"].dialect,
)
LOOK = ToolSpec(
    name="look",
    description="Look something up.",
    parameters={"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
)


def encode_body(request: ModelRequest, endpoint: Endpoint = OPENAI) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(openai.encode(request, endpoint).body)
    return body


def make_request(**fields: Any) -> ModelRequest:
    return ModelRequest(**({"model": "gpt-4o", "messages": [Message.user("hi")]} | fields))


def decode_reply(body: bytes, request: ModelRequest | None = None, endpoint: Endpoint = OPENAI) -> Done:
    decoder = openai.decoder(request or make_request(), endpoint)
    done = [*decoder.feed(body), *decoder.finish()][-1]
    assert isinstance(done, Done)
    return done


def test_a_whole_request() -> None:
    request = make_request(
        system=("Be brief.", "Today is Monday."),
        messages=[
            Message.user("look", Image(url="https://x/a.png"), Image(data=b"png", media_type="image/png")),
            Message.assistant(Text("I look."), ToolCall(id="call_1", name="look", arguments={"what": "tea"})),
            Message.tool("green", call_id="call_1"),
            Message.user("and?"),
        ],
        tools=[LOOK],
        temperature=0.5,
        max_tokens=100,
        stop=["END"],
        tool_choice="look",
        options={"seed": 7, "user": None},
    )
    outgoing = openai.encode(request, OPENAI)
    assert outgoing.url == "https://api.openai.com/v1/chat/completions"
    assert outgoing.headers == {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "authorization": "Bearer sk-secret",
    }
    call = {"name": "look", "arguments": '{"what":"tea"}'}
    expected = {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "Be brief.\n\nToday is Monday."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "https://x/a.png"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
                ],
            },
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "green"},
            {"role": "user", "content": "and?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Look something up.",
                    "parameters": {
                        "type": "object",
                        "properties": {"what": {"type": "string"}},
                        "required": ["what"],
                    },
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "temperature": 0.5,
        "max_completion_tokens": 100,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
    }
    assert outgoing.body == orjson.dumps(expected)  # the order too: caches compare the beginning


def test_the_key_never_shows() -> None:
    outgoing = openai.encode(make_request(), OPENAI)
    assert "secret" not in repr(outgoing) + repr(OPENAI)


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    short = [Message.user("a"), Message.assistant("b"), Message.user("c")]
    one = encode_body(make_request(system="s", messages=short, tools=[LOOK]))
    two = encode_body(
        make_request(system="s", messages=[*short, Message.assistant("d"), Message.user("e")], tools=[LOOK])
    )
    assert two["messages"][: len(one["messages"])] == one["messages"]
    assert two["tools"] == one["tools"]


def test_files_go_as_text_as_bytes_or_by_name() -> None:
    message = Message.user(
        File(data=b"a,b", media_type="text/csv", name="t.csv"),
        File(data=b"%PDF", media_type="application/pdf", name="t.pdf"),
        File(url="https://x/t.pdf"),
    )
    assert encode_body(make_request(messages=[message]))["messages"][0]["content"] == [
        {"type": "text", "text": "[file: t.csv]\na,b\n"},
        {"type": "file", "file": {"filename": "t.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "text", "text": "[file: https://x/t.pdf; it cannot be shown to this model]"},
    ]


def test_orphans_are_never_sent() -> None:
    orphan = Message.assistant(ToolCall(id="1", name="look"))
    messages = encode_body(make_request(messages=[orphan, Message.tool("x", call_id="9"), Message.user("go on")]))[
        "messages"
    ]
    assert [message["role"] for message in messages] == ["assistant", "tool", "user"]
    assert messages[1] == {"role": "tool", "tool_call_id": "1", "content": f"Error: {UNKNOWN_OUTCOME}"}


def test_empty_messages_are_not_sent() -> None:
    messages = encode_body(make_request(messages=[Message.assistant(), Message.user(""), Message.user("hi")]))[
        "messages"
    ]
    assert messages == [{"role": "user", "content": "hi"}]


def test_calls_from_elsewhere_are_made_acceptable() -> None:
    history = [
        Message.assistant(ToolCall(id="functions.look:0", name="functions.look up", arguments="{broken")),
        Message.tool("x", call_id="functions.look:0"),
        Message.user("hi"),
    ]
    first, second, _ = encode_body(make_request(messages=history))["messages"]
    call = first["tool_calls"][0]
    assert call["function"] == {"name": "functions_look_up", "arguments": '{"invalid_json":"{broken"}'}
    assert second["tool_call_id"] == call["id"]
    assert call["id"].startswith("call_")
    short = Endpoint(provider="mistral", base_url="https://x", dialect=PROVIDERS["mistral"].dialect)
    assert len(encode_body(make_request(messages=history), short)["messages"][0]["tool_calls"][0]["id"]) == 9


def test_thinking_is_dropped_and_never_becomes_text() -> None:
    thinking = Thinking(text="secret thought", signature="s", provider="openai", model="gpt-4o")
    foreign = Thinking(text="other thought", provider="anthropic", model="claude")
    body = encode_body(
        make_request(messages=[Message("assistant", [thinking, foreign, Text("so")]), Message.user("hi")])
    )
    assert body["messages"][0] == {"role": "assistant", "content": "so"}


def test_deepseek_gets_its_own_thinking_back_with_its_calls() -> None:
    endpoint = Endpoint(provider="deepseek", base_url="https://x", dialect=PROVIDERS["deepseek"].dialect)
    call = ToolCall(id="1", name="look")
    own = Message("assistant", [Thinking(text="mine", provider="deepseek", model="gpt-4o"), call])
    foreign = Message("assistant", [Thinking(text="not mine", provider="deepseek", model="other"), call])
    messages = encode_body(make_request(messages=[own, foreign, Message.assistant("plain")]), endpoint)["messages"]
    assert [message.get("reasoning_content") for message in messages] == ["mine", None, "", None, None]


def test_a_signature_on_a_call_goes_back_with_it_to_the_same_model_only() -> None:
    google = Endpoint(provider="google", base_url="https://x")
    start = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    signed = start | {"extra_content": {"google": {"thought_signature": "sig"}}}
    body = encode_frame({"choices": [{"delta": {"tool_calls": [signed]}, "finish_reason": "stop"}]})
    message = decode_reply(body, endpoint=google).message
    assert message.parts[0] == Thinking(text="", signature="sig", provider="google", model="gpt-4o")
    again = make_request(messages=[message, Message.tool("x", call_id="c1")])
    assert encode_body(again, google)["messages"][0]["tool_calls"][0]["extra_content"] == signed["extra_content"]
    other = make_request(model="gemini-other", messages=again.messages)
    assert "extra_content" not in encode_body(other, google)["messages"][0]["tool_calls"][0]
    assert "extra_content" not in encode_body(again, OPENAI)["messages"][0]["tool_calls"][0]


class TestStructuredOutput:
    SCHEMA = {
        "title": "My answer",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1}},
        "required": ["n"],
    }

    def test_natively_and_strictly_where_the_schema_allows_it(self) -> None:
        assert encode_body(make_request(output_schema=self.SCHEMA))["response_format"] == {
            "type": "json_schema",
            "json_schema": {
                "name": "My_answer",
                "schema": {
                    "title": "My answer",
                    "type": "object",
                    "properties": {"n": {"type": "integer", "description": "minimum: 1"}},
                    "required": ["n"],
                    "additionalProperties": False,
                },
                "strict": True,
            },
        }

    def test_without_strictness_where_it_does_not(self) -> None:
        optional = {"type": "object", "properties": {"n": {"type": "integer"}}}
        form = encode_body(make_request(output_schema=optional))["response_format"]["json_schema"]
        assert form == {"name": "output", "schema": optional, "strict": False}

    def test_by_instruction_where_there_is_only_json(self) -> None:
        endpoint = Endpoint(provider="deepseek", base_url="https://x", dialect=Dialect(structured="json"))
        body = encode_body(make_request(output_schema=self.SCHEMA), endpoint)
        assert body["response_format"] == {"type": "json_object"}
        assert "JSON Schema" in body["messages"][-1]["content"]
        assert body["messages"][-1]["content"].startswith("hi\n\n")

    def test_by_instruction_alone(self) -> None:
        endpoint = Endpoint(provider="x", base_url="https://x", dialect=Dialect(structured="instruction"))
        body = encode_body(make_request(messages=[Message.assistant("a")], output_schema=self.SCHEMA), endpoint)
        assert "response_format" not in body
        assert body["messages"][-1]["role"] == "user"


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no tool of this request"):
        encode_body(make_request(tool_choice="look"))
    with pytest.raises(InvalidArgument, match="needs tools"):
        encode_body(make_request(tool_choice="required"))
    with pytest.raises(InvalidArgument, match="two tools"):
        encode_body(make_request(tools=[LOOK, LOOK]))
    with pytest.raises(InvalidArgument, match="letters, digits"):
        encode_body(make_request(tools=[ToolSpec(name="a b")]))
    with pytest.raises(InvalidArgument, match="set by holdfast"):
        encode_body(make_request(options={"messages": []}))
    with pytest.raises(NotJSON):
        encode_body(make_request(options={"seed": object()}))
    assert "tool_choice" not in encode_body(make_request(tool_choice="auto"))
    assert encode_body(make_request(stop="END"))["stop"] == ["END"]


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_whole_reply() -> None:
    calls = [("call_a", "look", '{"what": "tea"}'), ("call_b", "look", '{"what": "é"}')]
    done = decode_reply(Reply(text="I look.", thinking="Which?", calls=calls).body("openai"))
    assert list(done.message.parts) == [
        Thinking(text="Which?", provider="openai", model="gpt-4o"),
        Text("I look."),
        ToolCall(id="call_a", name="look", arguments={"what": "tea"}),
        ToolCall(id="call_b", name="look", arguments={"what": "é"}),
    ]
    assert (done.stop_reason, done.raw_stop, done.provider) == ("tool_use", "tool_calls", "openai")
    assert (done.model, done.response_id) == ("gpt-4o-2024-08-06", "chatcmpl-1")
    usage = done.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.reasoning_tokens) == (30, 12, 20, 5)


@pytest.mark.parametrize(
    ("reply", "stop"),
    [
        (Reply(), "end_turn"),
        (Reply(stop="length"), "max_tokens"),
        (Reply(stop="content_filter"), "refusal"),
        (Reply(text="", refusal="I will not."), "refusal"),
        (Reply(calls=[("1", "f", "{}")], stop="stop"), "tool_use"),
        (Reply(stop="something new"), "other"),
    ],
)
def test_stop_reasons(reply: Reply, stop: str) -> None:
    done = decode_reply(reply.body("openai"))
    assert done.stop_reason == stop
    assert done.message.text == (reply.text or reply.refusal)


def test_arguments_that_are_no_object_stay_text() -> None:
    calls = [("1", "f", '{"a": 1'), ("2", "f", "[1]"), ("3", "f", ""), ("4", "f", '{"a": 1, "a": 2}')]
    done = decode_reply(Reply(text="", calls=calls).body("openai"))
    assert [call.arguments for call in done.message.tool_calls] == ['{"a": 1', "[1]", {}, '{"a": 1, "a": 2}']


def test_a_call_that_was_cut_before_its_arguments_is_no_call_without_arguments() -> None:
    done = decode_reply(Reply(text="", calls=[("1", "f", "")], stop="length").body("openai"))
    assert (done.stop_reason, done.message.tool_calls[0].arguments) == ("max_tokens", "")


def test_ids_are_unique_in_the_reply_and_in_the_conversation() -> None:
    history = [Message.assistant(ToolCall(id="c", name="f")), Message.tool("x", call_id="c"), Message.user("more")]
    done = decode_reply(
        Reply(calls=[("c", "f", "{}"), ("", "g", "{}"), ("", "h", "{}")]).body("openai"), make_request(messages=history)
    )
    assert [call.id for call in done.message.tool_calls] == ["c-2", "call", "call-2"]


def test_calls_that_all_have_index_zero_are_distinguished_by_their_ids() -> None:
    def piece(call_id: str) -> bytes:
        call = {"index": 0, "id": call_id, "function": {"name": "f", "arguments": "{}"}}
        return encode_frame({"choices": [{"delta": {"tool_calls": [call]}}]})

    end = encode_frame({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert [call.id for call in decode_reply(piece("a") + piece("b") + end).message.tool_calls] == ["a", "b"]


def test_arguments_of_two_calls_may_interleave() -> None:
    def piece(index: int, text: str, **more: str) -> bytes:
        call = {"index": index, "function": {"arguments": text, "name": "f"}, **more}
        return encode_frame({"choices": [{"delta": {"tool_calls": [call]}}]})

    end = encode_frame({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    body = piece(0, '{"a":', id="x") + piece(1, '{"b":', id="y") + piece(0, "1}") + piece(1, "2}") + end
    assert [call.arguments for call in decode_reply(body).message.tool_calls] == [{"a": 1}, {"b": 2}]


def test_content_in_pieces_as_mistral_sends_it() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    content = [thinking, {"type": "text", "text": "so"}]
    body = encode_frame({"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]})
    assert [part.type for part in decode_reply(body).message.parts] == ["thinking", "text"]


def test_a_stream_may_end_without_done_but_not_without_its_finish_reason() -> None:
    frames = Reply().frames("openai")
    assert decode_reply(b"".join(frames[:-1])).message.text == Reply().text


def test_a_provider_that_gives_up_is_an_error() -> None:
    with pytest.raises(ProviderUnavailable, match="gave up"):
        decode_reply(encode_frame({"choices": [{"delta": {"content": "a"}, "finish_reason": "error"}]}))
    with pytest.raises(RequestRejected, match="no such thing"):
        decode_reply(encode_frame({"error": {"code": 400, "message": "no such thing"}, "choices": []}))
