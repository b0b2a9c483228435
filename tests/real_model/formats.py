"""The two wire formats as a witness reads them: a second opinion, so none of holdfast's codecs is used here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from tests.real_model.wire_recorder import Exchange


class Format(Protocol):
    """What the proofs need to know of a wire format."""

    provider: str
    prefix: str  # of base_url, after the address
    path: str
    enforces_shapes: bool  # by the engine, at this endpoint

    def said(self, exchange: Exchange) -> str:
        """The text of an answer."""
        ...

    def called(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Id and arguments of each tool call of an answer."""
        ...

    def conversation(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Role and text of what a request sent."""
        ...

    def results(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Call id and content of each tool result of a request."""
        ...

    def asks_for_a_shape(self, exchange: Exchange) -> bool: ...


class OpenAI:
    provider = "openai"
    prefix = "/v1"
    path = "/v1/chat/completions"
    enforces_shapes = True

    def said(self, exchange: Exchange) -> str:
        return "".join(delta.get("content") or "" for delta in self._deltas(exchange))

    def called(self, exchange: Exchange) -> list[tuple[str, str]]:
        calls: dict[int, tuple[str, str]] = {}
        for delta in self._deltas(exchange):
            for call in delta.get("tool_calls", ()):
                call_id, arguments = calls.get(call["index"], ("", ""))
                arguments += call["function"].get("arguments", "")
                calls[call["index"]] = (call_id or call.get("id", ""), arguments)
        return list(calls.values())

    def conversation(self, exchange: Exchange) -> list[tuple[str, str]]:
        return [(message["role"], message["content"] or "") for message in exchange.asked["messages"]]

    def results(self, exchange: Exchange) -> list[tuple[str, str]]:
        messages = exchange.asked["messages"]
        return [(each["tool_call_id"], each["content"]) for each in messages if each["role"] == "tool"]

    def asks_for_a_shape(self, exchange: Exchange) -> bool:
        form = exchange.asked.get("response_format")
        return form is not None and bool(form["type"] == "json_schema")

    def _deltas(self, exchange: Exchange) -> Iterator[dict[str, Any]]:
        for frame in exchange.frames:
            for choice in frame.get("choices", ()):
                yield choice["delta"]


class Anthropic:
    provider = "anthropic"
    prefix = ""
    path = "/v1/messages"
    enforces_shapes = False  # it takes `output_config` and does not look at it

    def said(self, exchange: Exchange) -> str:
        deltas = [frame["delta"] for frame in exchange.frames if frame["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")

    def called(self, exchange: Exchange) -> list[tuple[str, str]]:
        calls: dict[int, tuple[str, str]] = {}
        for frame in exchange.frames:
            if frame["type"] == "content_block_start" and frame["content_block"]["type"] == "tool_use":
                calls[frame["index"]] = (frame["content_block"]["id"], "")
            elif frame["type"] == "content_block_delta" and frame["delta"]["type"] == "input_json_delta":
                call_id, arguments = calls[frame["index"]]
                calls[frame["index"]] = (call_id, arguments + frame["delta"]["partial_json"])
        return list(calls.values())

    def conversation(self, exchange: Exchange) -> list[tuple[str, str]]:
        return [
            (message["role"], "".join(block.get("text", "") for block in message["content"]))
            for message in exchange.asked["messages"]
        ]

    def results(self, exchange: Exchange) -> list[tuple[str, str]]:
        blocks = [block for message in exchange.asked["messages"] for block in message["content"]]
        return [(block["tool_use_id"], block["content"]) for block in blocks if block["type"] == "tool_result"]

    def asks_for_a_shape(self, exchange: Exchange) -> bool:
        config = exchange.asked.get("output_config")
        return config is not None and bool(config["format"]["type"] == "json_schema")


FORMATS: tuple[Format, ...] = (OpenAI(), Anthropic())
