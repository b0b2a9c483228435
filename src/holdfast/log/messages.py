"""Messages and their parts, and the two JSON forms they have.

`to_data` and `message_from_data` are what the log stores: compact, with bytes replaced by the name of a blob. `to_dict`
and `of` are what users see and send: the shape OpenAI writes, with bytes as base64. Both round-trip everything.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.log import codec

ROLES = ("user", "assistant", "system", "tool")

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


class Message:
    """One message of a conversation: `Message.user("look", Image(url=...))`.

    `message["role"]`, `message["content"]` and the other keys of `to_dict()` work as well. Messages are values: change
    nothing in them, make a new one.
    """

    __slots__ = ("created_at", "metadata", "named_author", "parts", "role", "seq")

    def __init__(
        self,
        role: str,
        parts: Iterable[Part | str] = (),
        *,
        author: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: datetime | None = None,
        seq: int | None = None,
    ) -> None:
        if role not in ROLES:
            raise InvalidArgument(f"unknown role {role!r}: use one of {', '.join(ROLES)}")
        self.role = role
        self.parts: tuple[Part, ...] = tuple(
            Text(part) if isinstance(part, str) else _check_part(part) for part in parts
        )
        self.named_author = author
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.created_at, self.seq = created_at, seq

    @classmethod
    def user(cls, *parts: Part | str, author: str | None = None, metadata: Mapping[str, Any] | None = None) -> Message:
        return cls("user", parts, author=author, metadata=metadata)

    @classmethod
    def assistant(
        cls, *parts: Part | str, author: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Message:
        return cls("assistant", parts, author=author, metadata=metadata)

    @classmethod
    def system(
        cls, *parts: Part | str, author: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Message:
        return cls("system", parts, author=author, metadata=metadata)

    @classmethod
    def tool(
        cls,
        content: str,
        *,
        call_id: str,
        is_error: bool = False,
        author: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        result = ToolResult(call_id=call_id, content=content, is_error=is_error)
        return cls("tool", [result], author=author, metadata=metadata)

    @classmethod
    def of(cls, value: Message | Mapping[str, Any] | str) -> Message:
        """A message from a message, a dict as OpenAI writes it, or the text of a user."""
        if isinstance(value, Message):
            return value
        if isinstance(value, str):
            return cls.user(value)
        if isinstance(value, Mapping):
            return _from_dict(value)
        raise InvalidArgument(f"a message is a Message, a dict or a string, not {type(value).__name__}")

    @property
    def author(self) -> str:
        """Who said it: the name that was given, else the role."""
        return self.named_author or self.role

    @property
    def text(self) -> str:
        """The text parts in one piece; for a tool message its content."""
        found = [part.text for part in self.parts if isinstance(part, Text)]
        found += [part.content for part in self.parts if isinstance(part, ToolResult)]
        return found[0] if len(found) == 1 else "".join(found)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON, bytes included."""
        found: dict[str, Any] = {"role": self.role}
        results = [part for part in self.parts if isinstance(part, ToolResult)]
        rest = [part for part in self.parts if not isinstance(part, (ToolCall, ToolResult))]
        if self.role == "tool" and len(results) == len(self.parts) == 1:
            found |= {"tool_call_id": results[0].call_id, "content": results[0].content}
            if results[0].is_error:
                found["is_error"] = True
        elif results or self.role == "tool":
            found["content"] = [part_to_dict(part) for part in self.parts]
        else:
            if not rest:
                found["content"] = None
            elif len(rest) == 1 and isinstance(rest[0], Text):
                found["content"] = rest[0].text
            else:
                found["content"] = [part_to_dict(part) for part in rest]
            if self.tool_calls:
                if _calls_last(self.parts):
                    found["tool_calls"] = [_call_to_dict(call) for call in self.tool_calls]
                else:
                    found["content"] = [part_to_dict(part) for part in self.parts]
        if self.named_author is not None:
            found["author"] = self.named_author
        if self.metadata:
            found["metadata"] = dict(self.metadata)
        if self.created_at is not None:
            found["created_at"] = self.created_at.isoformat()
        return found

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - any field
        return self.to_dict()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.to_dict()

    def keys(self) -> list[str]:
        """Makes `dict(message)` work."""
        return list(self.to_dict())

    def __eq__(self, other: object) -> bool:
        """Equal content; when and under which number it was stored does not count."""
        if not isinstance(other, Message):
            return NotImplemented
        return (self.role, self.parts, self.named_author, self.metadata) == (
            other.role,
            other.parts,
            other.named_author,
            other.metadata,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Message({self.role!r}, {list(self.parts)!r})"

    # -- the form in the log ---------------------------------------------------------------------------------------

    def to_data(self, limits: Limits) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What an event stores, and the bytes that go beside it."""
        blobs: dict[str, bytes] = {}
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is Text:
            data: dict[str, Any] = {"role": self.role, "text": _check_length(parts[0].text, limits)}
        else:
            data = {"role": self.role, "parts": [_part_to_data(part, limits, blobs) for part in parts]}
        if self.metadata:
            size = len(codec.encode(self.metadata))
            if size > limits.metadata:
                raise LimitExceeded(
                    "message metadata", size=size, limit=limits.metadata, hint="keep large things in parts"
                )
            data["metadata"] = self.metadata
        if self.created_at is not None:  # it was said elsewhere, before it came to this log
            data["created_at"] = self.created_at.isoformat()
        return data, blobs


def _check_length(text: str, limits: Limits) -> str:
    if type(text) is not str:
        raise InvalidArgument(f"a text part holds a str, not {type(text).__name__}")
    # A character has at most four bytes, so most texts need no counting.
    if len(text) * 4 > limits.text:
        size = len(codec.text_bytes(text, "text", 1 << 62))
        if size > limits.text:
            raise LimitExceeded("text", size=size, limit=limits.text, hint="send it as File(data=...), or split it")
    return text


def _check_part(part: object) -> Part:
    if isinstance(part, (Text, Image, File, ToolCall, ToolResult, Thinking)):
        return part
    raise InvalidArgument(f"a message part is a string, Image, File or another part, not {type(part).__name__}")


def _calls_last(parts: tuple[Part, ...]) -> bool:
    kinds = [isinstance(part, ToolCall) for part in parts]
    return kinds == sorted(kinds)


def _part_to_data(part: Part, limits: Limits, blobs: dict[str, bytes]) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": _check_length(part.text, limits)}
    if isinstance(part, ToolCall):
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
    if isinstance(part, ToolResult):
        found: dict[str, Any] = {
            "type": "tool_result",
            "call_id": part.call_id,
            "content": _check_length(part.content, limits),
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


def message_from_data(
    data: Mapping[str, Any],
    blob: Callable[[str], bytes],
    *,
    author: str | None = None,
    created_at: datetime | None = None,
    seq: int | None = None,
) -> Message:
    """The message behind what an event stores; `blob` finds bytes by name."""
    message = Message.__new__(Message)  # what was checked when it was written is not checked again
    message.role = data["role"]
    text = data.get("text")
    message.parts = (
        (Text(text),) if text is not None else tuple(_part_from_data(part, blob) for part in data.get("parts", ()))
    )
    message.named_author, message.metadata = author, data.get("metadata") or {}
    message.created_at, message.seq = created_at, seq
    if "created_at" in data:
        message.created_at = datetime.fromisoformat(data["created_at"])
    return message


def blobs_in(data: Mapping[str, Any]) -> list[str]:
    """The blobs that a stored message names."""
    return [part["blob"] for part in data.get("parts", ()) if "blob" in part]


def _part_from_data(part: Mapping[str, Any], blob: Callable[[str], bytes]) -> Part:
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


def _call_to_dict(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else codec.encode(arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}


def _from_dict(value: Mapping[str, Any]) -> Message:
    role = value.get("role")
    if not isinstance(role, str):
        raise InvalidArgument("a message dict needs a 'role': user, assistant, system or tool")
    unknown = set(value) - _FIELDS
    if unknown:
        raise InvalidArgument(f"unknown fields in a message dict: {', '.join(sorted(map(str, unknown)))}")
    content = value.get("content")
    parts: list[Part | str] = []
    if role == "tool" and not isinstance(content, (list, tuple)):
        call_id = value.get("tool_call_id")
        if not isinstance(call_id, str):
            raise InvalidArgument("a tool message needs 'tool_call_id': which call does it answer?")
        parts.append(
            ToolResult(call_id=call_id, content=_check_string(content, "content"), is_error=bool(value.get("is_error")))
        )
    elif isinstance(content, str):
        parts.append(content)
    elif isinstance(content, (list, tuple)):
        parts += [_part_from_dict(part) for part in content]
    elif content is not None:
        raise InvalidArgument(f"'content' is a string or a list of parts, not {type(content).__name__}")
    parts += [_call_from_dict(call) for call in value.get("tool_calls") or ()]
    created = value.get("created_at")
    try:
        created_at = datetime.fromisoformat(created) if created else None
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"'created_at' is not an ISO time: {created!r}") from error
    return Message(role, parts, author=value.get("author"), metadata=value.get("metadata"), created_at=created_at)


_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "is_error", "author", "metadata", "created_at", "seq"}


def _check_string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"'{what}' must be a string, not {type(value).__name__}")
    return value


def _part_from_dict(part: object) -> Part:
    if isinstance(part, str):
        return Text(part)
    if not isinstance(part, Mapping):
        return _check_part(part)
    kind = part.get("type")
    fields = {name: value for name, value in part.items() if name != "type"}
    try:
        if kind == "text":
            return Text(_check_string(part.get("text"), "text"))
        if kind == "tool_call":
            return ToolCall(**fields)
        if kind == "tool_result":
            return ToolResult(**fields)
        if kind == "thinking":
            return Thinking(**fields)
        if kind == "image_url":  # as OpenAI writes it
            return Image(url=_check_string(dict(part["image_url"]).get("url"), "url"))
        if kind in _MEDIA:
            if "data" in fields:
                fields["data"] = base64.b64decode(_check_string(fields["data"], "data"), validate=True)
            return _MEDIA[kind](**fields)
    except InvalidArgument:
        raise
    except (TypeError, KeyError, ValueError) as error:  # bad base64 is one of the last kind
        raise InvalidArgument(f"a {kind} part is not as expected: {error}") from error
    raise InvalidArgument(f"unknown part type {kind!r}: use text, image, file, tool_call, tool_result or thinking")


def _call_from_dict(call: object) -> ToolCall:
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
        id=_check_string(call.get("id"), "id"), name=_check_string(function.get("name"), "name"), arguments=arguments
    )
