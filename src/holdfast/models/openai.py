"""The wire format of OpenAI's Chat Completions, which most other endpoints speak too. Pure: bytes out, bytes in.

A reply ends with a finish reason. Bytes that stop before it are `StreamTruncated`, whatever they said so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from holdfast.errors import ProviderUnavailable
from holdfast.log.messages import File, Image, Message, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.models import endpoint as codec
from holdfast.models import strict_schema as schema
from holdfast.models.base import ModelEvent, ModelRequest, StopReason, Usage, repaired
from holdfast.models.decoder import Block, Kind, StreamDecoder, text_of, tokens
from holdfast.models.endpoint import Endpoint, WireRequest
from holdfast.models.provider_errors import stream_fault

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
        messages = codec.with_instruction(messages, request.output_schema)
    body: dict[str, Any] = {"model": request.model}
    body["messages"] = [
        *([{"role": "system", "content": "\n\n".join(request.system_texts)}] if request.system_texts else []),
        *(each for message in repaired(messages) for each in _message(message, request, endpoint)),
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
            for tool in codec.checked_tools(request.tools)
        ]
    choice = codec.chosen_tool(request)
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
        body=codec.to_bytes(body, request.options),
    )


def _response_format(wanted: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.dialect.structured == "json":
        return {"type": "json_object"}
    closed = schema.closed(wanted)
    strict = closed is not None and schema.is_strict(closed)
    form = {"name": schema.schema_name(wanted), "schema": closed if strict else dict(wanted), "strict": strict}
    return {"type": "json_schema", "json_schema": form}


def _message(message: Message, request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [_result(part, endpoint) for part in message.parts if isinstance(part, ToolResult)]
    if message.role == "assistant":
        return _assistant(message, request, endpoint)
    parts = [_part(part) for part in message.parts if isinstance(part, (Text, Image, File))]
    if all(part["type"] == "text" for part in parts):
        text = "".join(part["text"] for part in parts)
        return [{"role": message.role, "content": text}] if text else []
    return [{"role": message.role, "content": parts}]


def _result(result: ToolResult, endpoint: Endpoint) -> dict[str, Any]:
    # There is no flag for an error, so it has to be said.
    is_plain = not result.is_error or result.content.lower().startswith("error")
    content = result.content if is_plain else f"Error: {result.content}"
    call_id = codec.wire_id(result.call_id, short=endpoint.dialect.short_ids)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _assistant(message: Message, request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    text, reasoning = "", ""
    calls: list[dict[str, Any]] = []
    signature: str | None = None
    for part in message.parts:
        if isinstance(part, Text):
            text += part.text
        elif isinstance(part, (Image, File)):
            text += codec.described(part)
        elif isinstance(part, Thinking):
            if codec.is_own(part, request, endpoint):
                reasoning += part.text
                signature = part.signature
        elif isinstance(part, ToolCall):
            calls.append(_call(part, signature, endpoint))
            signature = None
    if not text and not calls:
        return []
    found: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        found["tool_calls"] = calls
        if endpoint.dialect.needs_reasoning:
            found["reasoning_content"] = reasoning
    return [found]


def _call(call: ToolCall, signature: str | None, endpoint: Endpoint) -> dict[str, Any]:
    arguments = orjson.dumps(codec.wire_arguments(call)).decode()
    found: dict[str, Any] = {
        "id": codec.wire_id(call.id, short=endpoint.dialect.short_ids),
        "type": "function",
        "function": {"name": codec.wire_name(call.name), "arguments": arguments},
    }
    if signature:
        found["extra_content"] = {"google": {"thought_signature": signature}}
    return found


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        url = part.url or f"data:{part.media_type};base64,{codec.base64_of(part.data or b'')}"
        return {"type": "image_url", "image_url": {"url": url}}
    assert isinstance(part, File)
    text = codec.file_text(part)
    if text is not None:
        return {"type": "text", "text": f"[file: {part.name or part.media_type}]\n{text}\n"}
    if part.data is None:
        return {"type": "text", "text": codec.described(part)}
    data = f"data:{part.media_type};base64,{codec.base64_of(part.data)}"
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": data}}


# -- in ----------------------------------------------------------------------------------------------------------------


class Decoder(StreamDecoder):
    """One reply, from bytes to events."""

    def __init__(self, request: ModelRequest, endpoint: Endpoint, limit: int = codec.MAX_REPLY_BYTES) -> None:
        super().__init__(request, endpoint, limit)
        self._current: Block | None = None  # the text or thinking that is being told
        self._calls: dict[object, Block] = {}  # by the provider's index
        self._call_ids: dict[object, str] = {}
        self._raw_stop: str | None = None
        self._refused = False

    def finish(self) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        if not self.ended:
            if self._raw_stop is None or self._frames.rest not in (b"", b"[DONE]"):
                raise self._truncated()
            self._end(events)  # not everybody says [DONE]
        return events

    def _data(self, data: bytes, events: list[ModelEvent]) -> None:
        if data == b"[DONE]":
            if self._raw_stop is None:
                raise self._truncated()
            self._end(events)
            return
        frame = orjson.loads(data)
        if frame.get("error"):
            raise stream_fault(self._endpoint, frame["error"])
        choices = frame.get("choices")
        if choices:
            choice = choices[0]
            if choice.get("index", 0) == 0:
                delta = choice.get("delta")
                if delta:
                    self._delta(delta, events)
                if choice.get("finish_reason"):
                    self._stopped(text_of(choice["finish_reason"]) or "")
        reply = self._reply
        if reply.response_id is None:
            reply.response_id = text_of(frame.get("id"))
            reply.answered_by = text_of(frame.get("model"))
        usage = frame.get("usage")
        if usage:
            reply.usage = _usage(usage)

    def _delta(self, delta: dict[str, Any], events: list[ModelEvent]) -> None:
        text = delta.get("reasoning_content") or delta.get("reasoning")
        if type(text) is str:
            self._text("thinking", text, events)
        text = delta.get("content")
        if text:
            if type(text) is str:
                self._text("text", text, events)
            else:
                self._pieces(text, events)
        if delta.get("refusal"):
            self._refused = True
            self._text("text", delta["refusal"], events)
        if "tool_calls" in delta:
            for call in delta["tool_calls"] or ():
                self._call(call, events)

    def _text(self, kind: Kind, text: str, events: list[ModelEvent]) -> None:
        block = self._current
        if block is None or block.kind != kind:
            block = self._begin(kind, events)
        block.grow(text, events)

    def _begin(self, kind: Kind, events: list[ModelEvent]) -> Block:
        if self._current is not None:
            self._reply.stop(self._current, events)
        self._current = self._reply.start(kind, events)
        return self._current

    def _pieces(self, pieces: Sequence[dict[str, Any]], events: list[ModelEvent]) -> None:
        # Mistral's reasoning models send content as a list, thinking inside it.
        for piece in pieces:
            if piece["type"] == "thinking":
                for inner in piece["thinking"]:
                    self._text("thinking", inner["text"], events)
            elif piece["type"] == "text" and piece["text"]:
                self._text("text", piece["text"], events)

    def _call(self, call: dict[str, Any], events: list[ModelEvent]) -> None:
        function = call.get("function") or {}
        key, call_id = call.get("index"), text_of(call.get("id"))
        if key is None:
            key = call_id or next(reversed(self._calls), 0)
        block = self._calls.get(key)
        # Some endpoints number every call 0, and only the id tells them apart.
        if block is None or (call_id and self._call_ids.get(key) not in (None, call_id)):
            if self._current is not None:
                self._reply.stop(self._current, events)
                self._current = None
            block = self._reply.start("tool", events, id=call_id or "", name=text_of(function.get("name")) or "")
            self._calls[key] = block
        if call_id:
            self._call_ids[key] = call_id
        extra = call.get("extra_content")
        if extra:
            block.signature = text_of((extra.get("google") or {}).get("thought_signature")) or block.signature
        arguments = function.get("arguments")
        if type(arguments) is dict:
            block.given = arguments
        elif arguments is not None:
            block.grow(arguments, events)

    def _stopped(self, raw_stop: str) -> None:
        if raw_stop in _FAILED_STOPS:
            text = f"{self._endpoint.provider} gave up on its reply ({raw_stop}): ask again"
            raise ProviderUnavailable(text, provider=self._endpoint.provider)
        self._raw_stop = raw_stop

    def _end(self, events: list[ModelEvent]) -> None:
        raw_stop = self._raw_stop or ""
        stop = _STOPS.get(raw_stop, "other")
        if stop in ("end_turn", "tool_use"):  # some say "stop" after a call, and the other way round
            stop = "refusal" if self._refused else "tool_use" if self._calls else "end_turn"
        self.ended = True
        self._reply.done(stop, raw_stop, events)


def _usage(usage: dict[str, Any]) -> Usage:
    into = usage.get("prompt_tokens_details") or {}
    out = usage.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=tokens(usage.get("prompt_tokens")),
        output_tokens=tokens(usage.get("completion_tokens")),
        cache_read_tokens=tokens(into.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")),
        cache_write_tokens=tokens(into.get("cache_write_tokens")),
        reasoning_tokens=tokens(out.get("reasoning_tokens")),
    )


decoder = Decoder
