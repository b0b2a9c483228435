"""The wire format of Anthropic's Messages. Pure: bytes out, bytes in.

A reply ends with a stop reason and `message_stop`. Bytes that stop before it are `StreamTruncated`.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from holdfast.errors import BadResponse, InvalidArgument
from holdfast.log.messages import File, Image, Message, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.log.repair import repair_history
from holdfast.models import strict_schema
from holdfast.models.base import ModelEvent, ModelRequest, StopReason, Usage
from holdfast.models.decoder import Block, StreamDecoder, check_text, read_token_count
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

# Later versions refuse `temperature`, and servers other than Anthropic's know only this one.
API_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192  # the API wants a number

LEFT_OUT = "(earlier messages are left out)"
CONTINUE = "(continue)"
REDACTED = "redacted:"  # before the opaque data of thinking that the provider hides

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_WITHOUT_SCHEMA = re.compile(r"claude-(?:[23]|instant|opus-4-[012]|sonnet-4-[02])")
_CACHE_CONTROL = {"type": "ephemeral"}
_STOPS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("tool", "partial_json"),
}


# -- out ---------------------------------------------------------------------------------------------------------------


def encode(request: ModelRequest, endpoint: Endpoint) -> WireRequest:
    messages = list(request.messages)
    form = _output_format(request, endpoint)
    if request.output_schema is not None and form is None:
        messages = add_schema_instruction(messages, request.output_schema)
    system = request.system_texts + [m.text for m in messages if m.role == "system" and m.text.strip()]
    turns = _build_turns(messages, request, endpoint)
    body: dict[str, Any] = {"model": request.model, "max_tokens": _max_tokens(request)}
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in check_tools(request.tools)
        ]
    choice = check_tool_choice(request)
    if choice is not None:
        kinds = {"auto": "auto", "none": "none", "required": "any"}
        body["tool_choice"] = {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
    if system:
        body["system"] = [{"type": "text", "text": text} for text in system]
    body["messages"] = turns
    _mark_cache_points(body)
    if form is not None:
        body["output_config"] = {"format": form}
    body["temperature"] = request.temperature
    body["stop_sequences"] = request.stops or None
    body["stream"] = True
    base = endpoint.base_url.rstrip("/")
    headers = {"content-type": "application/json", "accept": "text/event-stream", "anthropic-version": API_VERSION}
    if endpoint.api_key:
        headers["x-api-key"] = endpoint.api_key
    return WireRequest(
        url=base + ("/messages" if base.endswith("/v1") else "/v1/messages"),
        headers=headers | dict(endpoint.headers),
        body=encode_body(body, request.options),
    )


def _max_tokens(request: ModelRequest) -> int:
    thinking = request.options.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    wanted = request.max_tokens or DEFAULT_MAX_TOKENS
    # The budget for thinking counts against the limit, which has to be larger.
    return wanted + budget if isinstance(budget, int) and budget >= wanted else wanted


def _output_format(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any] | None:
    if request.output_schema is None or endpoint.dialect.structured != "schema":
        return None
    if _WITHOUT_SCHEMA.match(request.model):
        return None
    closed = strict_schema.close_schema(request.output_schema)
    return None if closed is None else {"type": "json_schema", "schema": closed}


def _build_turns(messages: list[Message], request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    """Messages of user and assistant that alternate, the user first and last, none of them empty."""
    turns: list[dict[str, Any]] = []
    for message in repair_history(messages):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if message.role == "tool":
            blocks = [_encode_result(message)]
        else:
            blocks = [block for part in message.parts if (block := _encode_part(part, role, request, endpoint))]
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise InvalidArgument("there is no message to send: add one that is not empty")
    if turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": LEFT_OUT}]})
    if turns[-1]["role"] == "assistant":
        turns.append({"role": "user", "content": [{"type": "text", "text": CONTINUE}]})
    return turns


def _mark_cache_points(body: dict[str, Any]) -> None:
    """Cache what stays: tools and system, the conversation up to the last question, and up to this one for the next."""
    if "system" in body:
        body["system"][0]["cache_control"] = _CACHE_CONTROL
        body["system"][-1]["cache_control"] = _CACHE_CONTROL
    elif "tools" in body:
        body["tools"][-1]["cache_control"] = _CACHE_CONTROL
    for turn in [turn for turn in body["messages"] if turn["role"] == "user"][-2:]:
        turn["content"][-1]["cache_control"] = _CACHE_CONTROL


def _encode_part(part: Part, role: str, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, Thinking):
        if role != "assistant" or not part.signature or not is_own_thinking(part, request, endpoint):
            return None
        if part.signature.startswith(REDACTED):
            return {"type": "redacted_thinking", "data": part.signature.removeprefix(REDACTED)}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if isinstance(part, ToolCall):
        arguments = wire_arguments(part)
        name = wire_name(part.name)
        return {"type": "tool_use", "id": wire_id(part.id), "name": name, "input": arguments}
    assert not isinstance(part, ToolResult), "a repaired history has results in messages of tools only"
    return _encode_media(part) if role == "user" else {"type": "text", "text": describe_media(part)}


def _encode_result(message: Message) -> dict[str, Any]:
    """The result of a call, with the images and files that the tool returned inside it."""
    result, *media = message.parts
    assert isinstance(result, ToolResult)
    content: Any = result.content
    if media:
        text = [{"type": "text", "text": content}] if content.strip() else []
        content = text + [_encode_media(part) for part in media if isinstance(part, (Image, File))]
    found: dict[str, Any] = {"type": "tool_result", "tool_use_id": wire_id(result.call_id), "content": content}
    return found | {"is_error": True} if result.is_error else found


def _encode_media(part: Image | File) -> dict[str, Any]:
    kind = (part.media_type or "").partition(";")[0].strip().lower()
    source: dict[str, Any] | None = None
    if part.url is not None:
        is_known = isinstance(part, Image) or kind in ("", "application/pdf")
        source = {"type": "url", "url": part.url} if is_known else None
    elif isinstance(part, Image):
        if kind in _IMAGES:
            source = {"type": "base64", "media_type": kind, "data": base64_of(part.data or b"")}
    elif kind == "application/pdf":
        source = {"type": "base64", "media_type": kind, "data": base64_of(part.data or b"")}
    elif (text := file_text(part)) and text.strip():
        source = {"type": "text", "media_type": "text/plain", "data": text}
    if source is None:
        return {"type": "text", "text": describe_media(part)}
    found: dict[str, Any] = {"type": "image" if isinstance(part, Image) else "document", "source": source}
    return found | {"title": part.name} if isinstance(part, File) and part.name else found


# -- in ----------------------------------------------------------------------------------------------------------------


class Decoder(StreamDecoder):
    """One reply, from bytes to events."""

    def __init__(self, request: ModelRequest, endpoint: Endpoint, limit: int = MAX_REPLY_BYTES) -> None:
        super().__init__(request, endpoint, limit)
        self._blocks: dict[int, Block | None] = {}  # by the provider's index; None: of a kind that we leave out
        self._usage: dict[str, Any] = {}
        self._raw_stop: str | None = None
        self._explanation: str | None = None
        self._has_begun = False

    def finish(self) -> list[ModelEvent]:
        if not self.ended:
            raise self._truncation_error()
        return []

    def _handle_data(self, data: bytes, events: list[ModelEvent]) -> None:
        frame = orjson.loads(data)
        kind = frame.get("type", "error")
        if kind == "content_block_delta":
            block = self._blocks[frame["index"]]
            if block is not None:
                self._apply_delta(block, frame["delta"], events)
        elif kind == "content_block_start":
            self._start_block(frame["index"], frame["content_block"], events)
        elif kind == "content_block_stop":
            block = self._blocks[frame["index"]]
            if block is not None:
                if not block.open:
                    raise ValueError
                self._reply.stop_block(block, events)
        elif kind == "message_start":
            self._begin_message(frame["message"])
        elif kind == "message_delta":
            delta = frame["delta"]
            self._raw_stop = check_text(delta.get("stop_reason")) or self._raw_stop
            self._explanation = check_text((delta.get("stop_details") or {}).get("explanation"))
            self._update_usage(frame.get("usage"))
        elif kind == "message_stop":
            self._end_reply(events)
        elif kind == "error" or kind.endswith("_error"):  # some servers send the error without its envelope
            raise error_from_stream(self._endpoint, frame.get("error") or frame)
        # `ping`, and kinds that are added later, say nothing about the reply

    def _begin_message(self, message: dict[str, Any]) -> None:
        if self._has_begun:
            raise ValueError
        self._has_begun = True
        self._reply.response_id = check_text(message.get("id"))
        self._reply.reported_model = check_text(message.get("model"))
        self._update_usage(message.get("usage"))

    def _start_block(self, index: int, content: dict[str, Any], events: list[ModelEvent]) -> None:
        if index in self._blocks or not self._has_begun:
            raise ValueError  # a block that starts twice, or before its message: the rest cannot be trusted
        kind = content["type"]
        reply = self._reply
        block: Block | None = None
        if kind == "text":
            block = reply.start_block("text", events)
            block.add_piece(content.get("text") or "", events)
        elif kind == "thinking":
            block = reply.start_block("thinking", events)
            block.signature = check_text(content.get("signature")) or None
            block.add_piece(content.get("thinking") or "", events)
        elif kind == "redacted_thinking":
            block = reply.start_block("thinking", events)
            block.signature = REDACTED + content["data"]
        elif kind == "tool_use":
            block = reply.start_block(
                "tool", events, id=check_text(content["id"]) or "", name=check_text(content["name"]) or ""
            )
            given = content.get("input")
            block.given = given if isinstance(given, dict) else None
        self._blocks[index] = block

    def _apply_delta(self, block: Block, delta: dict[str, Any], events: list[ModelEvent]) -> None:
        if not block.open:
            raise ValueError
        kind = delta["type"]
        if kind == "signature_delta":
            block.signature = (block.signature or "") + delta["signature"]
        elif kind in _DELTAS:
            of, field = _DELTAS[kind]
            if block.kind != of:
                raise ValueError
            block.add_piece(delta[field], events)

    def _update_usage(self, usage: dict[str, Any] | None) -> None:
        # The counts are totals, so the last one of each name stands.
        self._usage |= {name: value for name, value in (usage or {}).items() if value is not None}

    def _end_reply(self, events: list[ModelEvent]) -> None:
        if self._raw_stop is None:
            raise self._truncation_error()
        if any(block is not None and block.open for block in self._blocks.values()):
            text = f"{self._endpoint.provider} ended its message inside a block: ask again"
            raise BadResponse(text, provider=self._endpoint.provider)
        self._reply.usage = _decode_usage(self._usage)
        if self._explanation and self._raw_stop == "refusal" and not self._reply.blocks:
            self._reply.start_block("text", events).add_piece(self._explanation, events)
        self.ended = True
        self._reply.finish(_STOPS.get(self._raw_stop, "other"), self._raw_stop, events)


def _decode_usage(usage: dict[str, Any]) -> Usage:
    read = read_token_count(usage.get("cache_read_input_tokens"))
    written = read_token_count(usage.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=read_token_count(usage.get("input_tokens")) + read + written,
        output_tokens=read_token_count(usage.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=read_token_count((usage.get("output_tokens_details") or {}).get("thinking_tokens")),
    )


decoder = Decoder
