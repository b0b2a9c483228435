"""The wire format of Anthropic's Messages. Pure: bytes out, bytes in.

A reply ends with a stop reason and `message_stop`. Bytes that stop before it are `StreamTruncated`.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from holdfast.errors import BadResponse, InvalidArgument
from holdfast.log.messages import File, Image, Message, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.models import endpoint as codec
from holdfast.models import strict_schema as schema
from holdfast.models.base import ModelEvent, ModelRequest, StopReason, Usage, repaired
from holdfast.models.decoder import Block, StreamDecoder, text_of, tokens
from holdfast.models.endpoint import Endpoint, WireRequest
from holdfast.models.provider_errors import stream_fault

# Later versions refuse `temperature`, and servers other than Anthropic's know only this one.
API_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192  # the API wants a number

LEFT_OUT = "(earlier messages are left out)"
CONTINUE = "(continue)"
REDACTED = "redacted:"  # before the opaque data of thinking that the provider hides

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_WITHOUT_SCHEMA = re.compile(r"claude-(?:[23]|instant|opus-4-[012]|sonnet-4-[02])")
_CACHED = {"type": "ephemeral"}
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
        messages = codec.with_instruction(messages, request.output_schema)
    system = request.system_texts + [m.text for m in messages if m.role == "system" and m.text.strip()]
    turns = _turns(messages, request, endpoint)
    body: dict[str, Any] = {"model": request.model, "max_tokens": _max_tokens(request)}
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in codec.checked_tools(request.tools)
        ]
    choice = codec.chosen_tool(request)
    if choice is not None:
        kinds = {"auto": "auto", "none": "none", "required": "any"}
        body["tool_choice"] = {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
    if system:
        body["system"] = [{"type": "text", "text": text} for text in system]
    body["messages"] = turns
    _mark_prefix(body)
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
        body=codec.to_bytes(body, request.options),
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
    closed = schema.closed(request.output_schema)
    return None if closed is None else {"type": "json_schema", "schema": closed}


def _turns(messages: list[Message], request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    """User and assistant in turn, the user first and last, and nobody silent."""
    turns: list[dict[str, Any]] = []
    for message in repaired(messages):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts if (block := _block(part, role, request, endpoint))]
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


def _mark_prefix(body: dict[str, Any]) -> None:
    """Cache what stays: tools and system, the conversation up to the last question, and up to this one for the next."""
    if "system" in body:
        body["system"][0]["cache_control"] = _CACHED
        body["system"][-1]["cache_control"] = _CACHED
    elif "tools" in body:
        body["tools"][-1]["cache_control"] = _CACHED
    for turn in [turn for turn in body["messages"] if turn["role"] == "user"][-2:]:
        turn["content"][-1]["cache_control"] = _CACHED


def _block(part: Part, role: str, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, Thinking):
        if role != "assistant" or not part.signature or not codec.is_own(part, request, endpoint):
            return None
        if part.signature.startswith(REDACTED):
            return {"type": "redacted_thinking", "data": part.signature.removeprefix(REDACTED)}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if isinstance(part, ToolCall):
        arguments = codec.wire_arguments(part)
        name = codec.wire_name(part.name)
        return {"type": "tool_use", "id": codec.wire_id(part.id), "name": name, "input": arguments}
    if isinstance(part, ToolResult):
        found: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": codec.wire_id(part.call_id),
            "content": part.content,
        }
        return found | {"is_error": True} if part.is_error else found
    return _media(part) if role == "user" else {"type": "text", "text": codec.described(part)}


def _media(part: Image | File) -> dict[str, Any]:
    kind = (part.media_type or "").partition(";")[0].strip().lower()
    source: dict[str, Any] | None = None
    if part.url is not None:
        is_known = isinstance(part, Image) or kind in ("", "application/pdf")
        source = {"type": "url", "url": part.url} if is_known else None
    elif isinstance(part, Image):
        if kind in _IMAGES:
            source = {"type": "base64", "media_type": kind, "data": codec.base64_of(part.data or b"")}
    elif kind == "application/pdf":
        source = {"type": "base64", "media_type": kind, "data": codec.base64_of(part.data or b"")}
    elif (text := codec.file_text(part)) and text.strip():
        source = {"type": "text", "media_type": "text/plain", "data": text}
    if source is None:
        return {"type": "text", "text": codec.described(part)}
    found: dict[str, Any] = {"type": "image" if isinstance(part, Image) else "document", "source": source}
    return found | {"title": part.name} if isinstance(part, File) and part.name else found


# -- in ----------------------------------------------------------------------------------------------------------------


class Decoder(StreamDecoder):
    """One reply, from bytes to events."""

    def __init__(self, request: ModelRequest, endpoint: Endpoint, limit: int = codec.MAX_REPLY_BYTES) -> None:
        super().__init__(request, endpoint, limit)
        self._blocks: dict[int, Block | None] = {}  # by the provider's index; None: of a kind that we leave out
        self._usage: dict[str, Any] = {}
        self._raw_stop: str | None = None
        self._explanation: str | None = None
        self._begun = False

    def finish(self) -> list[ModelEvent]:
        if not self.ended:
            raise self._truncated()
        return []

    def _data(self, data: bytes, events: list[ModelEvent]) -> None:
        frame = orjson.loads(data)
        kind = frame.get("type", "error")
        if kind == "content_block_delta":
            block = self._blocks[frame["index"]]
            if block is not None:
                self._delta(block, frame["delta"], events)
        elif kind == "content_block_start":
            self._start(frame["index"], frame["content_block"], events)
        elif kind == "content_block_stop":
            block = self._blocks[frame["index"]]
            if block is not None:
                if not block.open:
                    raise ValueError
                self._reply.stop(block, events)
        elif kind == "message_start":
            self._begin(frame["message"])
        elif kind == "message_delta":
            delta = frame["delta"]
            self._raw_stop = text_of(delta.get("stop_reason")) or self._raw_stop
            self._explanation = text_of((delta.get("stop_details") or {}).get("explanation"))
            self._count(frame.get("usage"))
        elif kind == "message_stop":
            self._end(events)
        elif kind == "error" or kind.endswith("_error"):  # some servers send the error without its envelope
            raise stream_fault(self._endpoint, frame.get("error") or frame)
        # `ping`, and whatever kinds are added later, say nothing about the reply

    def _begin(self, message: dict[str, Any]) -> None:
        if self._begun:
            raise ValueError
        self._begun = True
        self._reply.response_id = text_of(message.get("id"))
        self._reply.answered_by = text_of(message.get("model"))
        self._count(message.get("usage"))

    def _start(self, index: int, content: dict[str, Any], events: list[ModelEvent]) -> None:
        if index in self._blocks or not self._begun:
            raise ValueError  # told twice: what follows cannot be trusted
        kind = content["type"]
        reply = self._reply
        block: Block | None = None
        if kind == "text":
            block = reply.start("text", events)
            block.grow(content.get("text") or "", events)
        elif kind == "thinking":
            block = reply.start("thinking", events)
            block.signature = text_of(content.get("signature")) or None
            block.grow(content.get("thinking") or "", events)
        elif kind == "redacted_thinking":
            block = reply.start("thinking", events)
            block.signature = REDACTED + content["data"]
        elif kind == "tool_use":
            block = reply.start("tool", events, id=text_of(content["id"]) or "", name=text_of(content["name"]) or "")
            given = content.get("input")
            block.given = given if isinstance(given, dict) else None
        self._blocks[index] = block

    def _delta(self, block: Block, delta: dict[str, Any], events: list[ModelEvent]) -> None:
        if not block.open:
            raise ValueError
        kind = delta["type"]
        if kind == "signature_delta":
            block.signature = (block.signature or "") + delta["signature"]
        elif kind in _DELTAS:
            of, field = _DELTAS[kind]
            if block.kind != of:
                raise ValueError
            block.grow(delta[field], events)

    def _count(self, usage: dict[str, Any] | None) -> None:
        # The counts are totals, so the last one of each name stands.
        self._usage |= {name: value for name, value in (usage or {}).items() if value is not None}

    def _end(self, events: list[ModelEvent]) -> None:
        if self._raw_stop is None:
            raise self._truncated()
        if any(block is not None and block.open for block in self._blocks.values()):
            text = f"{self._endpoint.provider} ended its message inside a block: ask again"
            raise BadResponse(text, provider=self._endpoint.provider)
        self._reply.usage = _usage(self._usage)
        if self._explanation and self._raw_stop == "refusal" and not self._reply.blocks:
            self._reply.start("text", events).grow(self._explanation, events)
        self.ended = True
        self._reply.done(_STOPS.get(self._raw_stop, "other"), self._raw_stop, events)


def _usage(usage: dict[str, Any]) -> Usage:
    read = tokens(usage.get("cache_read_input_tokens"))
    written = tokens(usage.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=tokens(usage.get("input_tokens")) + read + written,
        output_tokens=tokens(usage.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=tokens((usage.get("output_tokens_details") or {}).get("thinking_tokens")),
    )


decoder = Decoder
