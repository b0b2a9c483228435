"""What the wire codecs share: where a request goes, the manners of an endpoint, and what every provider insists on.

A codec is pure: `encode` turns a request into bytes, a decoder turns bytes into events. Neither knows a network.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import orjson

from holdfast.errors import InvalidArgument, NotJSON
from holdfast.log.messages import File, Image, Message, Text, Thinking, ToolCall
from holdfast.models.base import ModelEvent, ModelRequest, ToolSpec

MAX_REPLY_BYTES = 128 << 20  # on the wire: a reply of 128,000 tokens has about 40 MB of framing

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_TEXTUAL = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript")
_RESERVED_OPTIONS = frozenset(("model", "messages", "stream", "tools", "system"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """In what an endpoint differs from the others that speak the same format."""

    max_tokens_field: str = "max_tokens"
    asks_for_usage: bool = True  # stream_options={"include_usage": true} is known there
    structured: Literal["schema", "json", "instruction"] = "schema"
    needs_reasoning: bool = False  # thinking goes back with the calls that it led to
    short_ids: bool = False  # call ids have nine letters or digits
    takes_media_after_results: bool = True  # a message of the user may follow the results of tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go, and with which key. The key never shows."""

    provider: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # others that must not be quoted
    dialect: Dialect = field(default_factory=Dialect, repr=False)
    key_source: str = "api_key="  # the argument or the variable that the key comes from
    url_source: str = "base_url="  # the argument or the variable that the URL comes from

    @property
    def place(self) -> str:
        """The provider with host and port, for errors. The rest of a URL may hold a key."""
        parts = urlsplit(self.base_url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"{self.provider} at {f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Decoder(Protocol):
    """Bytes in, events out. `finish` is called when the bytes have ended, and raises if the reply has not."""

    @property
    def ended(self) -> bool:
        """Whether `Done` was returned; bytes after it do not count."""
        ...

    def feed(self, chunk: bytes) -> list[ModelEvent]: ...

    def finish(self) -> list[ModelEvent]: ...


class Codec(Protocol):
    """A wire format."""

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> WireRequest: ...

    def decoder(self, request: ModelRequest, endpoint: Endpoint, limit: int = MAX_REPLY_BYTES) -> Decoder: ...


def encode_body(body: Mapping[str, Any], options: Mapping[str, Any]) -> bytes:
    """The body with the caller's own options in it, in a stable order."""
    merged = dict(body)
    for name, value in options.items():
        if name in _RESERVED_OPTIONS:
            raise InvalidArgument(f"option {name!r} is set by holdfast: give it as an argument instead")
        if isinstance(value, Mapping) and isinstance(merged.get(name), dict):
            value = merged[name] | dict(value)
        merged[name] = value
    try:
        return orjson.dumps({name: value for name, value in merged.items() if value is not None})
    except orjson.JSONEncodeError as error:
        raise NotJSON(f"the request to the model is not JSON: {error}") from error


def check_tool_choice(request: ModelRequest) -> str | None:
    """The tool choice, if it means something for the tools there are."""
    choice = request.tool_choice
    if choice is None or (not request.tools and choice in ("auto", "none")):
        return None
    if choice not in ("auto", "none", "required") and choice not in {tool.name for tool in request.tools}:
        names = ", ".join(tool.name for tool in request.tools) or "none"
        raise InvalidArgument(f"tool_choice={choice!r} is no tool of this request; there are: {names}")
    if not request.tools:
        raise InvalidArgument("tool_choice='required' needs tools")
    return choice


def check_tools(tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
    seen: set[str] = set()
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            raise InvalidArgument(f"tool name {tool.name!r}: use 1 to 64 letters, digits, '_' and '-'")
        if tool.name in seen:
            raise InvalidArgument(f"two tools are named {tool.name!r}: rename one of them")
        seen.add(tool.name)
    return tools


def wire_id(call_id: str, *, short: bool = False) -> str:
    """A call id in the letters that providers accept: the same one where it can be."""
    if (_SHORT_ID if short else _NAME).fullmatch(call_id):
        return call_id
    digest = sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:9] if short else f"call_{digest[:24]}"


def wire_name(name: str) -> str:
    """The name of a call in the history. Models invent names, and providers refuse to read some of them back."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unnamed"


def wire_arguments(call: ToolCall) -> dict[str, Any]:
    """Arguments as the object they have to be."""
    return call.arguments if isinstance(call.arguments, dict) else {"invalid_json": call.arguments}


def is_own_thinking(thinking: Thinking, request: ModelRequest, endpoint: Endpoint) -> bool:
    """Whether this thinking came from the model that is asked now; any other would refuse its signature."""
    return thinking.provider == endpoint.provider and thinking.model == request.model


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def file_text(part: File) -> str | None:
    """The content of a file that is text, under its name."""
    kind = (part.media_type or "").partition(";")[0].strip().lower()
    if part.data is None or not (kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml"))):
        return None
    try:
        return part.data.decode()
    except UnicodeDecodeError:
        return None


def describe_media(part: Image | File) -> str:
    """What stands in the place of something that this endpoint cannot be sent. A session must not become unusable
    because it was begun with a model that sees more."""
    what = part.name or part.url or part.media_type or "unnamed"
    size = "" if part.data is None else f", {len(part.data)} bytes"
    return f"[{part.type}: {what}{size}; it cannot be shown to this model]"


def add_schema_instruction(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """The conversation with the request for JSON at its end, where it disturbs no cache."""
    text = (
        "\n\nAnswer with one JSON value and nothing else (no code fence, no comment), valid under this JSON Schema:\n"
        + orjson.dumps(dict(schema)).decode()
    )
    found = list(messages)
    if found and found[-1].role == "user":
        last = found.pop()
        found.append(Message("user", [*last.parts, Text(text)]))
    else:
        found.append(Message.user(text.lstrip()))
    return found
