"""The parts of a message, and the two JSON forms they have.

`part_to_data` and `part_from_data` are what the log stores: compact, with bytes replaced by the name of a blob.
`part_to_dict` and `part_from_dict` are what users see and send: the shape OpenAI writes, with bytes as base64.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.log import codec

MAX_TEXT = 1 << 20
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large things may be, in bytes."""

    text: int = MAX_TEXT
    bytes_part: int = MAX_BYTES
    state_value: int = 1 << 20
    metadata: int = 1 << 16
    name: int = 512


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    type = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Media:
    """Something that is not text, by URL or by bytes."""

    url: str | None = None
    data: bytes | None = field(default=None, repr=False)
    media_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if (self.url is None) == (self.data is None):
            raise InvalidArgument(f"{kind} takes either url= or data=, and one of them")
        if self.data is not None and not isinstance(self.data, bytes):
            raise InvalidArgument(f"{kind}(data=...) takes bytes, not {type(self.data).__name__}")
        if self.data is not None and self.media_type is None:
            raise InvalidArgument(f"{kind}(data=...) needs media_type=, for example 'image/png' or 'application/pdf'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(_Media):
    """An image part: `Image(url=...)` or `Image(data=b"...", media_type="image/png")`."""

    type = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class File(_Media):
    """A file part: `File(url=...)` or `File(data=b"...", media_type="application/pdf")`."""

    type = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's wish to call a tool. `arguments` is what it sent: an object, or the text if that was no JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)
    type = "tool_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came of a call."""

    call_id: str
    content: str
    is_error: bool = False
    type = "tool_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A model's reasoning, with the signature and origin without which it must not be sent back."""

    text: str
    signature: str | None = None
    provider: str | None = None
    model: str | None = None
    type = "thinking"


Part = Text | Image | File | ToolCall | ToolResult | Thinking
_MEDIA: dict[str, type[Image] | type[File]] = {"image": Image, "file": File}


def check_length(text: str, limits: Limits) -> str:
    if type(text) is not str:
        raise InvalidArgument(f"a text part holds a str, not {type(text).__name__}")
    # A character has at most four bytes, so most texts need no counting.
    if len(text) * 4 > limits.text:
        size = len(codec.text_bytes(text, "text", 1 << 62))
        if size > limits.text:
            raise LimitExceeded("text", size=size, limit=limits.text, hint="send it as File(data=...), or split it")
    return text


def check_part(part: object) -> Part:
    if isinstance(part, (Text, Image, File, ToolCall, ToolResult, Thinking)):
        return part
    raise InvalidArgument(f"a message part is a string, Image, File or another part, not {type(part).__name__}")


def part_to_data(part: Part, limits: Limits, blobs: dict[str, bytes]) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": check_length(part.text, limits)}
    if isinstance(part, ToolCall):
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
    if isinstance(part, ToolResult):
        found: dict[str, Any] = {
            "type": "tool_result",
            "call_id": part.call_id,
            "content": check_length(part.content, limits),
        }
        if part.is_error:
            found["is_error"] = True
        return found
    if isinstance(part, Thinking):
        return _drop_none(
            type="thinking", text=part.text, signature=part.signature, provider=part.provider, model=part.model
        )
    blob = None
    if part.data is not None:
        if len(part.data) > limits.bytes_part:
            raise LimitExceeded(
                f"a {part.type} part", size=len(part.data), limit=limits.bytes_part, hint="send it by url= instead"
            )
        blob = sha256(part.data).hexdigest()
        blobs[blob] = part.data
    return _drop_none(type=part.type, url=part.url, blob=blob, media_type=part.media_type, name=part.name)


def _drop_none(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def part_from_data(part: Mapping[str, Any], blob: Callable[[str], bytes]) -> Part:
    fields = {name: value for name, value in part.items() if name != "type"}
    kind = part["type"]
    if kind == "text":
        return Text(part["text"])
    if kind == "tool_call":
        return ToolCall(**fields)
    if kind == "tool_result":
        return ToolResult(**fields)
    if kind == "thinking":
        return Thinking(**fields)
    if "blob" in fields:
        fields["data"] = blob(fields.pop("blob"))
    return _MEDIA[kind](**fields)


# -- the form users see ------------------------------------------------------------------------------------------------


def part_to_dict(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
    if isinstance(part, ToolResult):
        return {"type": "tool_result", "call_id": part.call_id, "content": part.content, "is_error": part.is_error}
    if isinstance(part, Thinking):
        return _drop_none(
            type="thinking", text=part.text, signature=part.signature, provider=part.provider, model=part.model
        )
    data = None if part.data is None else base64.b64encode(part.data).decode()
    return _drop_none(type=part.type, url=part.url, data=data, media_type=part.media_type, name=part.name)


def call_to_dict(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else codec.encode(arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}


def check_string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"'{what}' must be a string, not {type(value).__name__}")
    return value


def part_from_dict(part: object) -> Part:
    if isinstance(part, str):
        return Text(part)
    if not isinstance(part, Mapping):
        return check_part(part)
    kind = part.get("type")
    fields = {name: value for name, value in part.items() if name != "type"}
    try:
        if kind == "text":
            return Text(check_string(part.get("text"), "text"))
        if kind == "tool_call":
            return ToolCall(**fields)
        if kind == "tool_result":
            return ToolResult(**fields)
        if kind == "thinking":
            return Thinking(**fields)
        if kind == "image_url":  # as OpenAI writes it
            return Image(url=check_string(dict(part["image_url"]).get("url"), "url"))
        if kind in _MEDIA:
            if "data" in fields:
                fields["data"] = base64.b64decode(check_string(fields["data"], "data"), validate=True)
            return _MEDIA[kind](**fields)
    except InvalidArgument:
        raise
    except (TypeError, KeyError, ValueError) as error:  # bad base64 is one of the last kind
        raise InvalidArgument(f"a {kind} part is not as expected: {error}") from error
    raise InvalidArgument(f"unknown part type {kind!r}: use text, image, file, tool_call, tool_result or thinking")


def call_from_dict(call: object) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, Mapping):
        raise InvalidArgument(f"a tool call is a dict or a ToolCall, not {type(call).__name__}")
    function = call.get("function", call)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            parsed = codec.parse(arguments)
        except ValueError:
            parsed = None  # not JSON: the model's own text is kept as it is
        arguments = parsed if isinstance(parsed, dict) else arguments
    return ToolCall(
        id=check_string(call.get("id"), "id"), name=check_string(function.get("name"), "name"), arguments=arguments
    )
