"""The wire format of OpenAI's Chat Completions, which most other endpoints speak too. Pure: bytes out, bytes in.

A reply ends with a finish reason. Bytes that stop before it are `StreamTruncated`, also after a complete text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from holdfast.errors import ProviderUnavailable
from holdfast.log.messages import File, Image, Message, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.log.repair import repair_history
from holdfast.models import strict_schema
from holdfast.models.base import ModelEvent, ModelRequest, StopReason, Usage
from holdfast.models.decoder import Block, Kind, StreamDecoder, check_text, read_token_count
from holdfast.models.endpoint import (
    MAX_REPLY_BYTES,
    Endpoint,
    WireRequest,
    add_schema_instruction,
    base64_of,
    check_tool_choice,
    check_tools,
    describe_media,
    encode_body,
    file_text,
    is_own_thinking,
    wire_arguments,
    wire_id,
    wire_name,
)
from holdfast.models.provider_errors import error_from_stream

_STOPS: dict[str, StopReason] = {
    "stop": "end_turn",
    "eos": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "model_length": "max_tokens",
    "content_filter": "refusal",
}
_FAILED_STOPS = ("error", "abort", "insufficient_system_resource")  # the provider gave up; what came is no reply


# -- out ---------------------------------------------------------------------------------------------------------------


def encode(request: ModelRequest, endpoint: Endpoint) -> WireRequest:
    dialect = endpoint.dialect
    messages = list(request.messages)
    if request.output_schema is not None and dialect.structured != "schema":
        messages = add_schema_instruction(messages, request.output_schema)
    body: dict[str, Any] = {"model": request.model}
    body["messages"] = [
        *([{"role": "system", "content": "\n\n".join(request.system_texts)}] if request.system_texts else []),
        *_encode_messages(repair_history(messages), request, endpoint),
    ]
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in check_tools(request.tools)
        ]
    choice = check_tool_choice(request)
    if choice is not None:
        named = choice not in ("auto", "none", "required")
        body["tool_choice"] = {"type": "function", "function": {"name": choice}} if named else choice
    if request.output_schema is not None and dialect.structured != "instruction":
        body["response_format"] = _response_format(request.output_schema, endpoint)
    body["temperature"] = request.temperature
    body[dialect.max_tokens_field] = request.max_tokens
    body["stop"] = request.stops or None
    body["stream"] = True
    if dialect.asks_for_usage:
        body["stream_options"] = {"include_usage": True}
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if endpoint.api_key:
        headers["authorization"] = f"Bearer {endpoint.api_key}"
    return WireRequest(
        url=endpoint.base_url.rstrip("/") + "/chat/completions",
        headers=headers | dict(endpoint.headers),
        body=encode_body(body, request.options),
    )


def _response_format(wanted: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.dialect.structured == "json":
        return {"type": "json_object"}
    closed = strict_schema.close_schema(wanted)
    strict = closed is not None and strict_schema.is_strict(closed)
    form = {"name": strict_schema.schema_name(wanted), "schema": closed if strict else dict(wanted), "strict": strict}
    return {"type": "json_schema", "json_schema": form}


def _encode_messages(messages: Sequence[Message], request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    """The messages in order. A result is text only in this format, so the images and files of tools follow their
    results, as a message of the user after the last result of the reply."""
    found: list[dict[str, Any]] = []
    media: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            result, *rest = message.parts
            assert isinstance(result, ToolResult), "a repaired history has one result in each message of a tool"
            found.append(_encode_result(result, rest, endpoint))
            if rest and endpoint.dialect.takes_media_after_results:
                media += _encode_result_media(result, rest, endpoint)
            continue
        found += [{"role": "user", "content": media}] if media else []
        media = []
        found += _encode_message(message, request, endpoint)
    return [*found, {"role": "user", "content": media}] if media else found


def _encode_result_media(result: ToolResult, media: Sequence[Part], endpoint: Endpoint) -> list[dict[str, Any]]:
    call_id = wire_id(result.call_id, short=endpoint.dialect.short_ids)
    about = {"type": "text", "text": f"[returned by the tool call {call_id}, in the order of its result]"}
    return [about, *(_encode_part(part) for part in media if isinstance(part, (Image, File)))]


def _encode_message(message: Message, request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    if message.role == "assistant":
        return _encode_assistant(message, request, endpoint)
    parts = [_encode_part(part) for part in message.parts if isinstance(part, (Text, Image, File))]
    if all(part["type"] == "text" for part in parts):
        text = "".join(part["text"] for part in parts)
        return [{"role": message.role, "content": text}] if text else []
    return [{"role": message.role, "content": parts}]


def _encode_result(result: ToolResult, media: Sequence[Part], endpoint: Endpoint) -> dict[str, Any]:
    # There is no flag for an error, so it has to be said.
    is_plain = not result.is_error or result.content.lower().startswith("error")
    content = result.content if is_plain else f"Error: {result.content}"
    if not endpoint.dialect.takes_media_after_results:
        content = "\n".join([content, *(describe_media(part) for part in media if isinstance(part, (Image, File)))])
    call_id = wire_id(result.call_id, short=endpoint.dialect.short_ids)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _encode_assistant(message: Message, request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    text, reasoning = "", ""
    calls: list[dict[str, Any]] = []
    signature: str | None = None
    for part in message.parts:
        if isinstance(part, Text):
            text += part.text
        elif isinstance(part, (Image, File)):
            text += describe_media(part)
        elif isinstance(part, Thinking):
            if is_own_thinking(part, request, endpoint):
                reasoning += part.text
                signature = part.signature
        elif isinstance(part, ToolCall):
            calls.append(_encode_call(part, signature, endpoint))
            signature = None
    if not text and not calls:
        return []
    found: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        found["tool_calls"] = calls
        if endpoint.dialect.needs_reasoning:
            found["reasoning_content"] = reasoning
    return [found]


def _encode_call(call: ToolCall, signature: str | None, endpoint: Endpoint) -> dict[str, Any]:
    arguments = orjson.dumps(wire_arguments(call)).decode()
    found: dict[str, Any] = {
        "id": wire_id(call.id, short=endpoint.dialect.short_ids),
        "type": "function",
        "function": {"name": wire_name(call.name), "arguments": arguments},
    }
    if signature:
        found["extra_content"] = {"google": {"thought_signature": signature}}
    return found


def _encode_part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        url = part.url or f"data:{part.media_type};base64,{base64_of(part.data or b'')}"
        return {"type": "image_url", "image_url": {"url": url}}
    assert isinstance(part, File)
    text = file_text(part)
    if text is not None:
        return {"type": "text", "text": f"[file: {part.name or part.media_type}]\n{text}\n"}
    if part.data is None:
        return {"type": "text", "text": describe_media(part)}
    data = f"data:{part.media_type};base64,{base64_of(part.data)}"
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": data}}


# -- in ----------------------------------------------------------------------------------------------------------------


class Decoder(StreamDecoder):
    """One reply, from bytes to events."""

    def __init__(self, request: ModelRequest, endpoint: Endpoint, limit: int = MAX_REPLY_BYTES) -> None:
        super().__init__(request, endpoint, limit)
        self._current: Block | None = None  # the block of text or thinking that is open
        self._calls: dict[object, Block] = {}  # by the provider's index
        self._call_ids: dict[object, str] = {}
        self._raw_stop: str | None = None
        self._is_refusal = False

    def finish(self) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        if not self.ended:
            if self._raw_stop is None or self._frames.incomplete_data not in (b"", b"[DONE]"):
                raise self._truncation_error()
            self._end_reply(events)  # not everybody says [DONE]
        return events

    def _handle_data(self, data: bytes, events: list[ModelEvent]) -> None:
        if data == b"[DONE]":
            if self._raw_stop is None:
                raise self._truncation_error()
            self._end_reply(events)
            return
        frame = orjson.loads(data)
        if frame.get("error"):
            raise error_from_stream(self._endpoint, frame["error"])
        choices = frame.get("choices")
        if choices:
            choice = choices[0]
            if choice.get("index", 0) == 0:
                delta = choice.get("delta")
                if delta:
                    self._apply_delta(delta, events)
                if choice.get("finish_reason"):
                    self._set_stop_reason(check_text(choice["finish_reason"]) or "")
        reply = self._reply
        if reply.response_id is None:
            reply.response_id = check_text(frame.get("id"))
            reply.reported_model = check_text(frame.get("model"))
        usage = frame.get("usage")
        if usage:
            reply.usage = _decode_usage(usage)

    def _apply_delta(self, delta: dict[str, Any], events: list[ModelEvent]) -> None:
        text = delta.get("reasoning_content") or delta.get("reasoning")
        if type(text) is str:
            self._add_text("thinking", text, events)
        text = delta.get("content")
        if text:
            if type(text) is str:
                self._add_text("text", text, events)
            else:
                self._add_pieces(text, events)
        if delta.get("refusal"):
            self._is_refusal = True
            self._add_text("text", delta["refusal"], events)
        if "tool_calls" in delta:
            for call in delta["tool_calls"] or ():
                self._add_call(call, events)

    def _add_text(self, kind: Kind, text: str, events: list[ModelEvent]) -> None:
        block = self._current
        if block is None or block.kind != kind:
            block = self._begin_block(kind, events)
        block.add_piece(text, events)

    def _begin_block(self, kind: Kind, events: list[ModelEvent]) -> Block:
        if self._current is not None:
            self._reply.stop_block(self._current, events)
        self._current = self._reply.start_block(kind, events)
        return self._current

    def _add_pieces(self, pieces: Sequence[dict[str, Any]], events: list[ModelEvent]) -> None:
        # Mistral's reasoning models send content as a list, thinking inside it.
        for piece in pieces:
            if piece["type"] == "thinking":
                for inner in piece["thinking"]:
                    self._add_text("thinking", inner["text"], events)
            elif piece["type"] == "text" and piece["text"]:
                self._add_text("text", piece["text"], events)

    def _add_call(self, call: dict[str, Any], events: list[ModelEvent]) -> None:
        function = call.get("function") or {}
        key, call_id = call.get("index"), check_text(call.get("id"))
        if key is None:
            key = call_id or next(reversed(self._calls), 0)
        block = self._calls.get(key)
        # Some endpoints number every call 0, and only the id tells them apart.
        if block is None or (call_id and self._call_ids.get(key) not in (None, call_id)):
            if self._current is not None:
                self._reply.stop_block(self._current, events)
                self._current = None
            block = self._reply.start_block(
                "tool", events, id=call_id or "", name=check_text(function.get("name")) or ""
            )
            self._calls[key] = block
        if call_id:
            self._call_ids[key] = call_id
        extra = call.get("extra_content")
        if extra:
            block.signature = check_text((extra.get("google") or {}).get("thought_signature")) or block.signature
        arguments = function.get("arguments")
        if type(arguments) is dict:
            block.given = arguments
        elif arguments is not None:
            block.add_piece(arguments, events)

    def _set_stop_reason(self, raw_stop: str) -> None:
        if raw_stop in _FAILED_STOPS:
            text = f"{self._endpoint.provider} gave up on its reply ({raw_stop}): ask again"
            raise ProviderUnavailable(text, provider=self._endpoint.provider)
        self._raw_stop = raw_stop

    def _end_reply(self, events: list[ModelEvent]) -> None:
        raw_stop = self._raw_stop or ""
        stop = _STOPS.get(raw_stop, "other")
        if stop in ("end_turn", "tool_use"):  # some say "stop" after a call, and the other way round
            stop = "refusal" if self._is_refusal else "tool_use" if self._calls else "end_turn"
        self.ended = True
        self._reply.finish(stop, raw_stop, events)


def _decode_usage(usage: dict[str, Any]) -> Usage:
    into = usage.get("prompt_tokens_details") or {}
    out = usage.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=read_token_count(usage.get("prompt_tokens")),
        output_tokens=read_token_count(usage.get("completion_tokens")),
        cache_read_tokens=read_token_count(into.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")),
        cache_write_tokens=read_token_count(into.get("cache_write_tokens")),
        reasoning_tokens=read_token_count(out.get("reasoning_tokens")),
    )


decoder = Decoder
