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
from tests.models.frames import Say, data

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


def sent(request: ModelRequest, endpoint: Endpoint = OPENAI) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(openai.encode(request, endpoint).body)
    return body


def asked(**fields: Any) -> ModelRequest:
    return ModelRequest(**({"model": "gpt-4o", "messages": [Message.user("hi")]} | fields))


def decoded(body: bytes, request: ModelRequest | None = None, endpoint: Endpoint = OPENAI) -> Done:
    decoder = openai.decoder(request or asked(), endpoint)
    done = [*decoder.feed(body), *decoder.finish()][-1]
    assert isinstance(done, Done)
    return done


def test_a_whole_request() -> None:
    request = asked(
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
    outgoing = openai.encode(asked(), OPENAI)
    assert "secret" not in repr(outgoing) + repr(OPENAI)


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    short = [Message.user("a"), Message.assistant("b"), Message.user("c")]
    one = sent(asked(system="s", messages=short, tools=[LOOK]))
    two = sent(asked(system="s", messages=[*short, Message.assistant("d"), Message.user("e")], tools=[LOOK]))
    assert two["messages"][: len(one["messages"])] == one["messages"]
    assert two["tools"] == one["tools"]


def test_files_go_as_text_as_bytes_or_by_name() -> None:
    message = Message.user(
        File(data=b"a,b", media_type="text/csv", name="t.csv"),
        File(data=b"%PDF", media_type="application/pdf", name="t.pdf"),
        File(url="https://x/t.pdf"),
    )
    assert sent(asked(messages=[message]))["messages"][0]["content"] == [
        {"type": "text", "text": "[file: t.csv]\na,b\n"},
        {"type": "file", "file": {"filename": "t.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "text", "text": "[file: https://x/t.pdf; it cannot be shown to this model]"},
    ]


def test_orphans_are_never_sent() -> None:
    orphan = Message.assistant(ToolCall(id="1", name="look"))
    messages = sent(asked(messages=[orphan, Message.tool("x", call_id="9"), Message.user("go on")]))["messages"]
    assert [message["role"] for message in messages] == ["assistant", "tool", "user"]
    assert messages[1] == {"role": "tool", "tool_call_id": "1", "content": f"Error: {UNKNOWN_OUTCOME}"}


def test_empty_messages_are_not_sent() -> None:
    messages = sent(asked(messages=[Message.assistant(), Message.user(""), Message.user("hi")]))["messages"]
    assert messages == [{"role": "user", "content": "hi"}]


def test_calls_from_elsewhere_are_made_acceptable() -> None:
    history = [
        Message.assistant(ToolCall(id="functions.look:0", name="functions.look up", arguments="{broken")),
        Message.tool("x", call_id="functions.look:0"),
        Message.user("hi"),
    ]
    first, second, _ = sent(asked(messages=history))["messages"]
    call = first["tool_calls"][0]
    assert call["function"] == {"name": "functions_look_up", "arguments": '{"invalid_json":"{broken"}'}
    assert second["tool_call_id"] == call["id"]
    assert call["id"].startswith("call_")
    short = Endpoint(provider="mistral", base_url="https://x", dialect=PROVIDERS["mistral"].dialect)
    assert len(sent(asked(messages=history), short)["messages"][0]["tool_calls"][0]["id"]) == 9


def test_thinking_is_dropped_and_never_becomes_text() -> None:
    thinking = Thinking(text="secret thought", signature="s", provider="openai", model="gpt-4o")
    foreign = Thinking(text="other thought", provider="anthropic", model="claude")
    body = sent(asked(messages=[Message("assistant", [thinking, foreign, Text("so")]), Message.user("hi")]))
    assert body["messages"][0] == {"role": "assistant", "content": "so"}


def test_deepseek_gets_its_own_thinking_back_with_its_calls() -> None:
    endpoint = Endpoint(provider="deepseek", base_url="https://x", dialect=PROVIDERS["deepseek"].dialect)
    call = ToolCall(id="1", name="look")
    own = Message("assistant", [Thinking(text="mine", provider="deepseek", model="gpt-4o"), call])
    foreign = Message("assistant", [Thinking(text="not mine", provider="deepseek", model="other"), call])
    messages = sent(asked(messages=[own, foreign, Message.assistant("plain")]), endpoint)["messages"]
    assert [message.get("reasoning_content") for message in messages] == ["mine", None, "", None, None]


def test_a_signature_on_a_call_goes_back_with_it_to_the_same_model_only() -> None:
    google = Endpoint(provider="google", base_url="https://x")
    start = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    signed = start | {"extra_content": {"google": {"thought_signature": "sig"}}}
    body = data({"choices": [{"delta": {"tool_calls": [signed]}, "finish_reason": "stop"}]})
    message = decoded(body, endpoint=google).message
    assert message.parts[0] == Thinking(text="", signature="sig", provider="google", model="gpt-4o")
    again = asked(messages=[message, Message.tool("x", call_id="c1")])
    assert sent(again, google)["messages"][0]["tool_calls"][0]["extra_content"] == signed["extra_content"]
    other = asked(model="gemini-other", messages=again.messages)
    assert "extra_content" not in sent(other, google)["messages"][0]["tool_calls"][0]
    assert "extra_content" not in sent(again, OPENAI)["messages"][0]["tool_calls"][0]


class TestStructuredOutput:
    SCHEMA = {
        "title": "My answer",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1}},
        "required": ["n"],
    }

    def test_natively_and_strictly_where_the_schema_allows_it(self) -> None:
        assert sent(asked(output_schema=self.SCHEMA))["response_format"] == {
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
        form = sent(asked(output_schema=optional))["response_format"]["json_schema"]
        assert form == {"name": "output", "schema": optional, "strict": False}

    def test_by_instruction_where_there_is_only_json(self) -> None:
        endpoint = Endpoint(provider="deepseek", base_url="https://x", dialect=Dialect(structured="json"))
        body = sent(asked(output_schema=self.SCHEMA), endpoint)
        assert body["response_format"] == {"type": "json_object"}
        assert "JSON Schema" in body["messages"][-1]["content"]
        assert body["messages"][-1]["content"].startswith("hi\n\n")

    def test_by_instruction_alone(self) -> None:
        endpoint = Endpoint(provider="x", base_url="https://x", dialect=Dialect(structured="instruction"))
        body = sent(asked(messages=[Message.assistant("a")], output_schema=self.SCHEMA), endpoint)
        assert "response_format" not in body
        assert body["messages"][-1]["role"] == "user"


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no tool of this request"):
        sent(asked(tool_choice="look"))
    with pytest.raises(InvalidArgument, match="needs tools"):
        sent(asked(tool_choice="required"))
    with pytest.raises(InvalidArgument, match="two tools"):
        sent(asked(tools=[LOOK, LOOK]))
    with pytest.raises(InvalidArgument, match="letters, digits"):
        sent(asked(tools=[ToolSpec(name="a b")]))
    with pytest.raises(InvalidArgument, match="set by holdfast"):
        sent(asked(options={"messages": []}))
    with pytest.raises(NotJSON):
        sent(asked(options={"seed": object()}))
    assert "tool_choice" not in sent(asked(tool_choice="auto"))
    assert sent(asked(stop="END"))["stop"] == ["END"]


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_whole_reply() -> None:
    calls = [("call_a", "look", '{"what": "tea"}'), ("call_b", "look", '{"what": "é"}')]
    done = decoded(Say(text="I look.", thinking="Which?", calls=calls).body("openai"))
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
    ("say", "stop"),
    [
        (Say(), "end_turn"),
        (Say(stop="length"), "max_tokens"),
        (Say(stop="content_filter"), "refusal"),
        (Say(text="", refusal="I will not."), "refusal"),
        (Say(calls=[("1", "f", "{}")], stop="stop"), "tool_use"),
        (Say(stop="something new"), "other"),
    ],
)
def test_stop_reasons(say: Say, stop: str) -> None:
    done = decoded(say.body("openai"))
    assert done.stop_reason == stop
    assert done.message.text == (say.text or say.refusal)


def test_arguments_that_are_no_object_stay_text() -> None:
    calls = [("1", "f", '{"a": 1'), ("2", "f", "[1]"), ("3", "f", ""), ("4", "f", '{"a": 1, "a": 2}')]
    done = decoded(Say(text="", calls=calls).body("openai"))
    assert [call.arguments for call in done.message.tool_calls] == ['{"a": 1', "[1]", {}, '{"a": 1, "a": 2}']


def test_a_call_that_was_cut_before_its_arguments_is_no_call_without_arguments() -> None:
    done = decoded(Say(text="", calls=[("1", "f", "")], stop="length").body("openai"))
    assert (done.stop_reason, done.message.tool_calls[0].arguments) == ("max_tokens", "")


def test_ids_are_unique_in_the_reply_and_in_the_conversation() -> None:
    history = [Message.assistant(ToolCall(id="c", name="f")), Message.tool("x", call_id="c"), Message.user("more")]
    done = decoded(
        Say(calls=[("c", "f", "{}"), ("", "g", "{}"), ("", "h", "{}")]).body("openai"), asked(messages=history)
    )
    assert [call.id for call in done.message.tool_calls] == ["c-2", "call", "call-2"]


def test_calls_that_all_have_index_zero_are_told_apart_by_their_ids() -> None:
    def piece(call_id: str) -> bytes:
        call = {"index": 0, "id": call_id, "function": {"name": "f", "arguments": "{}"}}
        return data({"choices": [{"delta": {"tool_calls": [call]}}]})

    end = data({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert [call.id for call in decoded(piece("a") + piece("b") + end).message.tool_calls] == ["a", "b"]


def test_arguments_of_two_calls_may_interleave() -> None:
    def piece(index: int, text: str, **more: str) -> bytes:
        call = {"index": index, "function": {"arguments": text, "name": "f"}, **more}
        return data({"choices": [{"delta": {"tool_calls": [call]}}]})

    end = data({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    body = piece(0, '{"a":', id="x") + piece(1, '{"b":', id="y") + piece(0, "1}") + piece(1, "2}") + end
    assert [call.arguments for call in decoded(body).message.tool_calls] == [{"a": 1}, {"b": 2}]


def test_content_in_pieces_as_mistral_sends_it() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    content = [thinking, {"type": "text", "text": "so"}]
    body = data({"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]})
    assert [part.type for part in decoded(body).message.parts] == ["thinking", "text"]


def test_a_stream_may_end_without_done_but_not_without_its_finish_reason() -> None:
    frames = Say().frames("openai")
    assert decoded(b"".join(frames[:-1])).message.text == Say().text


def test_a_provider_that_gives_up_is_an_error() -> None:
    with pytest.raises(ProviderUnavailable, match="gave up"):
        decoded(data({"choices": [{"delta": {"content": "a"}, "finish_reason": "error"}]}))
    with pytest.raises(RequestRejected, match="no such thing"):
        decoded(data({"error": {"code": 400, "message": "no such thing"}, "choices": []}))
