"""Replies as OpenAI and Anthropic put them on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

USAGE = {
    "openai": {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 5},
    },
    "anthropic": {
        "input_tokens": 8,
        "cache_creation_input_tokens": 2,
        "cache_read_input_tokens": 20,
        "output_tokens": 1,
    },
}


@dataclass(frozen=True)
class Reply:
    """A reply of a provider, before it is encoded."""

    text: str = "Hello, wörld 🙂!"
    thinking: str = ""
    signature: str = "c2lnbmVk"
    calls: Sequence[tuple[str, str, str]] = ()  # id, name, arguments as text
    stop: str = ""
    refusal: str = ""

    def frames(self, wire: str) -> list[bytes]:
        return list(_openai(self) if wire == "openai" else _anthropic(self))

    def body(self, wire: str) -> bytes:
        return b"".join(self.frames(wire))


def split_text(text: str, size: int = 4) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def encode_frame(value: Any, event: str | None = None) -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _openai(reply: Reply) -> Iterable[bytes]:
    def chunk(delta: dict[str, Any] | None, stop: str | None = None, usage: Any = None) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": stop}]
        return encode_frame(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1700000000,
                "model": "gpt-4o-2024-08-06",
                "choices": choices,
                "usage": usage,
            }
        )

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    yield from (chunk({"reasoning_content": piece}) for piece in split_text(reply.thinking))
    yield from (chunk({"content": piece}) for piece in split_text(reply.text))
    yield from (chunk({"refusal": piece}) for piece in split_text(reply.refusal))
    for index, (call_id, name, arguments) in enumerate(reply.calls):
        start = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [start]})
        for piece in split_text(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, reply.stop or ("tool_calls" if reply.calls else "stop"))
    yield chunk(None, usage=USAGE["openai"])
    yield b"data: [DONE]\n\n"


def _anthropic(reply: Reply) -> Iterable[bytes]:
    def event(type: str, **fields: Any) -> bytes:
        return encode_frame({"type": type, **fields}, type)

    def block(index: int, start: dict[str, Any], deltas: Iterable[dict[str, Any]]) -> Iterable[bytes]:
        yield event("content_block_start", index=index, content_block=start)
        yield from (event("content_block_delta", index=index, delta=delta) for delta in deltas)
        yield event("content_block_stop", index=index)

    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-20260901",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE["anthropic"],
    }
    yield event("message_start", message=message)
    yield event("ping")
    index = 0
    if reply.thinking:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split_text(reply.thinking)]
        deltas.append({"type": "signature_delta", "signature": reply.signature})
        yield from block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if reply.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in split_text(reply.text)]
        yield from block(index, {"type": "text", "text": ""}, deltas)
        index += 1
    for call_id, name, arguments in reply.calls:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *split_text(arguments)]]
        yield from block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas)
        index += 1
    stop = reply.stop or ("tool_use" if reply.calls else "end_turn")
    delta: dict[str, Any] = {"stop_reason": stop, "stop_sequence": None}
    if reply.refusal:
        delta["stop_details"] = {"type": "refusal", "category": None, "explanation": reply.refusal}
    details = {"thinking_tokens": 5}
    yield event("message_delta", delta=delta, usage={"output_tokens": 12, "output_tokens_details": details})
    yield event("message_stop")
