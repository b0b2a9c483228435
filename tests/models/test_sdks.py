"""The official SDKs talk to the same server and understand it: what the codecs are tested against is the real format.
And what the codecs send has the shape that the SDKs' own types describe."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import orjson
import pytest
from anthropic.types import ContentBlockParam, MessageParam, RawMessageStreamEvent, ToolUnionParam
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import TypeAdapter

from holdfast.log.messages import File, Image, Message, Thinking, ToolCall
from holdfast.models import LanguageModel, ModelRequest, ToolSpec, anthropic, openai
from holdfast.models.endpoint import Endpoint
from tests.models.conftest import KEY, read_done
from tests.models.frames import Reply
from tests.models.loopback_provider import Provider, make_http_error

FULL = Reply(text="I look.", thinking="Hm?", calls=[("call_a", "look", '{"what": "té"}'), ("call_b", "look", "{}")])
LOOK = {"type": "object", "properties": {"what": {"type": "string"}}}


@pytest.fixture
def openai_client(provider: Provider) -> Iterator[openai_sdk.OpenAI]:
    with openai_sdk.OpenAI(api_key=KEY, base_url=f"{provider.url}/v1", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(provider: Provider) -> Iterator[anthropic_sdk.Anthropic]:
    with anthropic_sdk.Anthropic(api_key=KEY, base_url=provider.url, max_retries=0) as client:
        yield client


def test_openai_understands_the_server_as_we_do(provider: Provider, openai_client: openai_sdk.OpenAI) -> None:
    provider.enqueue(FULL, FULL)
    text, stop, usage = "", None, None
    calls: dict[int, list[Any]] = {}
    stream = openai_client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            stop = choice.finish_reason or stop
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                found = calls.setdefault(call.index, [call.id, call.function.name, ""])
                found[2] += call.function.arguments or ""
    model = LanguageModel("openai", "gpt-4o", api_key=KEY, base_url=f"{provider.url}/v1")
    done = read_done(list(model.stream(ModelRequest(messages=[Message.user("hi")]))))
    assert text == done.message.text
    assert stop == done.raw_stop
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (done.usage.input_tokens, done.usage.output_tokens)
    ours = [(call.id, call.name, call.arguments) for call in done.message.tool_calls]
    assert [(call_id, name, orjson.loads(arguments)) for call_id, name, arguments in calls.values()] == ours
    theirs, mine = provider.requests
    assert theirs.body == mine.body
    assert theirs.headers["authorization"] == mine.headers["authorization"]
    model.close()


def test_anthropic_understands_the_server_as_we_do(
    provider: Provider, anthropic_client: anthropic_sdk.Anthropic
) -> None:
    provider.enqueue(FULL, FULL)
    name = "claude-sonnet-5"
    with anthropic_client.messages.stream(
        model=name, max_tokens=8192, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        theirs = stream.get_final_message()
    model = LanguageModel("anthropic", name, api_key=KEY, base_url=provider.url)
    done = read_done(list(model.stream(ModelRequest(messages=[Message.user("hi")]))))
    blocks: list[Any] = list(theirs.content)
    thinking = done.message.parts[0]
    assert isinstance(thinking, Thinking)
    assert (blocks[0].thinking, blocks[0].signature) == (thinking.text, thinking.signature)
    assert blocks[1].text == done.message.text
    ours = [(call.id, call.name, call.arguments) for call in done.message.tool_calls]
    assert [(block.id, block.name, block.input) for block in blocks[2:]] == ours
    assert (theirs.stop_reason, theirs.id, theirs.model) == (done.raw_stop, done.response_id, done.model)
    assert theirs.usage.output_tokens == done.usage.output_tokens
    assert provider.requests[0].path == provider.requests[1].path
    model.close()


def test_the_sdks_see_the_same_errors(
    provider: Provider, openai_client: openai_sdk.OpenAI, anthropic_client: anthropic_sdk.Anthropic
) -> None:
    provider.enqueue(
        make_http_error(429, "rate_limit_error", "slow down"), make_http_error(529, "overloaded_error", "busy")
    )
    with pytest.raises(openai_sdk.RateLimitError, match="slow down"):
        openai_client.chat.completions.create(model="m", messages=[], stream=True)
    with pytest.raises(anthropic_sdk.APIStatusError, match="busy"):
        anthropic_client.messages.create(model="m", max_tokens=5, messages=[], stream=True)


def test_the_frames_have_the_shapes_of_the_sdks() -> None:
    for frame in FULL.frames("openai")[:-1]:
        ChatCompletionChunk.model_validate_json(frame.removeprefix(b"data: "))
    events: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for frame in FULL.frames("anthropic"):
        payload = frame.partition(b"data: ")[2]
        if b'"ping"' not in payload:
            events.validate_json(payload)


HISTORY = [
    Message.user(
        "look",
        Image(url="https://x/a.png"),
        Image(data=b"png", media_type="image/png"),
        File(data=b"%PDF", media_type="application/pdf", name="a.pdf"),
        File(data=b"a,b", media_type="text/csv"),
        File(url="https://x/a.pdf"),
    ),
    Message.assistant(
        Thinking(text="hm", signature=base64.b64encode(b"s").decode(), provider="anthropic", model="m"),
        "I look.",
        ToolCall(id="a", name="look", arguments={"what": "tea"}),
        ToolCall(id="b:1", name="look it up", arguments="{broken"),
    ),
    Message.tool("no", call_id="b:1", is_error=True),
    Message.user("and?"),
]
REQUEST = ModelRequest(
    model="m",
    system=("a", "b"),
    messages=HISTORY,
    tools=[ToolSpec(name="look", description="Look.", parameters=LOOK)],
    tool_choice="required",
    stop=["END"],
    max_tokens=5,
    output_schema=LOOK | {"required": ["what"]},
)


def make_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def test_what_we_send_to_openai_has_its_shape() -> None:
    body = orjson.loads(openai.encode(REQUEST, Endpoint(provider="openai", base_url="https://x")).body)
    for message in body["messages"]:
        found = make_adapter(ChatCompletionMessageParam).validate_python(message)
        assert set(found) == set(message)
    for tool in body["tools"]:
        make_adapter(ChatCompletionToolParam).validate_python(tool)


def test_what_we_send_to_anthropic_has_its_shape() -> None:
    body = orjson.loads(anthropic.encode(REQUEST, Endpoint(provider="anthropic", base_url="https://x")).body)
    for message in body["messages"]:
        make_adapter(MessageParam).validate_python(message)
        for block in message["content"]:
            found = make_adapter(ContentBlockParam).validate_python(block)
            assert set(found) == set(block)
    for tool in body["tools"]:
        make_adapter(ToolUnionParam).validate_python(tool)
    known = set(anthropic_sdk.types.message_create_params.MessageCreateParamsStreaming.__annotations__)
    known |= set(anthropic_sdk.types.message_create_params.MessageCreateParamsBase.__annotations__)
    assert set(body) <= known
