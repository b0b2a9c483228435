"""The parts of a message, and the two JSON forms they have.

`part_to_data` and `part_from_data` are what the log stores: compact, with bytes replaced by the name of a blob.
`part_to_dict` and `part_from_dict` are what users see and send: the shape OpenAI writes, with bytes as base64.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.log import codec
from holdfast.log.arguments import suggest_keywords, suggest_name

if TYPE_CHECKING:
    from pathlib import Path

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

    url: str | None = field(default=None, kw_only=False)
    data: bytes | None = field(default=None, repr=False)
    media_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.url is not None and not isinstance(self.url, str):
            raise InvalidArgument(
                f"{kind}(url=...) takes a URL: use {kind}(data=...) for bytes, {kind}.from_path() for a file"
            )
        if (self.url is None) == (self.data is None):
            raise InvalidArgument(f"{kind} takes either url= or data=, and one of them")
        if self.data is not None and not isinstance(self.data, bytes):
            raise InvalidArgument(f"{kind}(data=...) takes bytes, not {type(self.data).__name__}")
        if self.data is not None and self.media_type is None:
            raise InvalidArgument(f"{kind}(data=...) needs media_type=, for example 'image/png' or 'application/pdf'")

    @classmethod
    def from_path(cls, path: str | Path, media_type: str | None = None, *, max_bytes: int = MAX_BYTES) -> Self:
        """Read a file of at most `max_bytes`. Its suffix tells the media type, unless that is given."""
        from holdfast.media_file import guess_media_type, read_media_file  # the only file that this package reads

        name, data = read_media_file(path, max_bytes)
        found = guess_media_type(name) if media_type is None else media_type
        if cls is Image and not found.startswith("image/"):
            raise InvalidArgument(f"{name!r} is {found}, which is no image: use File.from_path()")
        return cls(data=data, media_type=found, name=name)


@suggest_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Image(_Media):
    """An image part: `Image("https://...")`, `Image(data=b"...", media_type="image/png")` or
    `Image.from_path("chart.png")`."""

    type = "image"


@suggest_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class File(_Media):
    """A file part: `File("https://...")`, `File(data=b"...", media_type="application/pdf")` or
    `File.from_path("report.pdf")`."""

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
PART_TYPES = (Text, Image, File, ToolCall, ToolResult, Thinking)
_MEDIA: dict[str, type[Image] | type[File]] = {"image": Image, "file": File}
_BY_KIND: dict[str, type[Part]] = {kind.type: kind for kind in PART_TYPES}
_SOURCE_FIELDS = ("source", "title", "cache_control", "citations")  # the last two are dropped
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: `C:` is a drive


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
    if isinstance(part, PART_TYPES):
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
    if part.url is not None and not _URL.match(part.url):
        kind = type(part).__name__
        raise InvalidArgument(
            f"{kind}(url={part.url!r}) is no URL: write https://..., or {kind}.from_path() for a file"
        )
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
    """The part behind what users write: our own form, or that of OpenAI's and Anthropic's messages."""
    if isinstance(part, str):
        return Text(part)
    if not isinstance(part, Mapping):
        return check_part(part)
    kind = part.get("type")
    fields = {str(name): value for name, value in part.items() if name != "type"}
    if kind == "text":
        return Text(check_string(part.get("text"), "text"))
    if kind == "image_url":  # as OpenAI writes it
        image = part.get("image_url")
        return Image(url=check_string(image.get("url") if isinstance(image, Mapping) else image, "url"))
    if kind in ("image", "document") and "source" in fields:
        return _media_from_source(kind, fields)
    if kind not in _BY_KIND:
        raise InvalidArgument(f"unknown part type {kind!r}: use {', '.join(_BY_KIND)}")
    _check_fields(kind, fields)
    if kind in _MEDIA and fields.get("data") is not None:
        fields["data"] = _decode_base64(kind, fields["data"])
    return _BY_KIND[kind](**fields)


def _check_fields(kind: str, fields: Mapping[str, Any]) -> None:
    known = _BY_KIND[kind].__dataclass_fields__
    for name in fields:
        if name not in known:
            raise InvalidArgument(f"unknown in a part of type {kind!r}: {name!r}: {suggest_name(name, known)}")
    for name, each in known.items():
        if name not in fields and each.default is MISSING and each.default_factory is MISSING:
            raise InvalidArgument(f"a part of type {kind!r} needs {name!r}")


def _decode_base64(kind: str, text: object) -> bytes:
    try:
        return base64.b64decode(check_string(text, "data"), validate=True)
    except ValueError as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"the data of a part of type {kind!r} is not base64: {error}") from error


def _media_from_source(kind: str, fields: Mapping[str, Any]) -> Part:
    """An image or a document as Anthropic writes it."""
    for each in fields:
        if each not in _SOURCE_FIELDS:
            raise InvalidArgument(f"unknown in a part of type {kind!r}: {each!r}: {suggest_name(each, _SOURCE_FIELDS)}")
    source = fields["source"]
    form = source.get("type") if isinstance(source, Mapping) else None
    make = Image if kind == "image" else File
    name = fields.get("title")
    if form == "url":
        return make(url=check_string(source.get("url"), "url"), name=name)
    if form == "base64":
        media_type = check_string(source.get("media_type"), "media_type")
        return make(data=_decode_base64(kind, source.get("data")), media_type=media_type, name=name)
    if form == "text" and make is File:
        text = codec.text_bytes(check_string(source.get("data"), "data"), "a document", MAX_BYTES)
        return File(data=text, media_type="text/plain", name=name)
    forms = "base64 or url" if kind == "image" else "base64, url or text"
    raise InvalidArgument(f"the source of a part of type {kind!r} has the type {form!r}: use {forms}")


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
