"""The two wire formats, decoded from recorded bytes: a second opinion, so none of holdfast's codecs is used here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from tests.real_model.wire_recorder import Exchange


class Format(Protocol):
    """What the proofs need to know of a wire format."""

    provider: str
    prefix: str  # of base_url, after the address
    path: str
    enforces_schemas: bool  # by the engine, at this endpoint

    def read_text(self, exchange: Exchange) -> str:
        """The text of an answer."""
        ...

    def list_calls(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Id and arguments of each tool call of an answer."""
        ...

    def list_messages(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Role and text of what a request sent."""
        ...

    def list_results(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Call id and content of each tool result of a request."""
        ...

    def requests_schema(self, exchange: Exchange) -> bool: ...


class OpenAI:
    provider = "openai"
    prefix = "/v1"
    path = "/v1/chat/completions"
    enforces_schemas = True

    def read_text(self, exchange: Exchange) -> str:
        return "".join(delta.get("content") or "" for delta in self._deltas(exchange))

    def list_calls(self, exchange: Exchange) -> list[tuple[str, str]]:
        calls: dict[int, tuple[str, str]] = {}
        for delta in self._deltas(exchange):
            for call in delta.get("tool_calls", ()):
                call_id, arguments = calls.get(call["index"], ("", ""))
                arguments += call["function"].get("arguments", "")
                calls[call["index"]] = (call_id or call.get("id", ""), arguments)
        return list(calls.values())

    def list_messages(self, exchange: Exchange) -> list[tuple[str, str]]:
        return [(message["role"], message["content"] or "") for message in exchange.request["messages"]]

    def list_results(self, exchange: Exchange) -> list[tuple[str, str]]:
        messages = exchange.request["messages"]
        return [(each["tool_call_id"], each["content"]) for each in messages if each["role"] == "tool"]

    def requests_schema(self, exchange: Exchange) -> bool:
        form = exchange.request.get("response_format")
        return form is not None and bool(form["type"] == "json_schema")

    def _deltas(self, exchange: Exchange) -> Iterator[dict[str, Any]]:
        for frame in exchange.frames:
            for choice in frame.get("choices", ()):
                yield choice["delta"]


class Anthropic:
    provider = "anthropic"
    prefix = ""
    path = "/v1/messages"
    enforces_schemas = False  # it takes `output_config` and does not look at it

    def read_text(self, exchange: Exchange) -> str:
        deltas = [frame["delta"] for frame in exchange.frames if frame["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")

    def list_calls(self, exchange: Exchange) -> list[tuple[str, str]]:
        calls: dict[int, tuple[str, str]] = {}
        for frame in exchange.frames:
            if frame["type"] == "content_block_start" and frame["content_block"]["type"] == "tool_use":
                calls[frame["index"]] = (frame["content_block"]["id"], "")
            elif frame["type"] == "content_block_delta" and frame["delta"]["type"] == "input_json_delta":
                call_id, arguments = calls[frame["index"]]
                calls[frame["index"]] = (call_id, arguments + frame["delta"]["partial_json"])
        return list(calls.values())

    def list_messages(self, exchange: Exchange) -> list[tuple[str, str]]:
        return [
            (message["role"], "".join(block.get("text", "") for block in message["content"]))
            for message in exchange.request["messages"]
        ]

    def list_results(self, exchange: Exchange) -> list[tuple[str, str]]:
        blocks = [block for message in exchange.request["messages"] for block in message["content"]]
        return [(block["tool_use_id"], block["content"]) for block in blocks if block["type"] == "tool_result"]

    def requests_schema(self, exchange: Exchange) -> bool:
        config = exchange.request.get("output_config")
        return config is not None and bool(config["format"]["type"] == "json_schema")


FORMATS: tuple[Format, ...] = (OpenAI(), Anthropic())
