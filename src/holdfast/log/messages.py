"""Messages, and the two JSON forms they have. The forms of their parts are in `parts`.

`to_data` and `message_from_data` are what the log stores: compact, with bytes replaced by the name of a blob. `to_dict`
and `of` are what users see and send: the shape OpenAI writes, with bytes as base64. Both round-trip everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.log import codec
from holdfast.log.parts import (
    MAX_BYTES,
    MAX_TEXT,
    PART_TYPES,
    File,
    Image,
    Limits,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    call_from_dict,
    call_to_dict,
    check_length,
    check_string,
    part_from_data,
    part_from_dict,
    part_to_data,
    part_to_dict,
)

__all__ = [
    "MAX_BYTES",
    "MAX_TEXT",
    "ROLES",
    "File",
    "Image",
    "Limits",
    "Message",
    "Part",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolResult",
    "blobs_in",
    "message_from_data",
    "part_to_dict",
    "read_question",
]

ROLES = ("user", "assistant", "system", "tool")
_ONE_PART = (str, Mapping, *PART_TYPES)
Content = str | Part | Mapping[str, Any] | Iterable[Part | str | Mapping[str, Any]]


class Message:
    """One message of a conversation: `Message.user("look", Image(url=...))`, `Message("user", "look")`, or
    `Message(role="user", content="look")`.

    `message["role"]`, `message["content"]` and the other keys of `to_dict()` work as well. Messages are values: change
    nothing in them, make a new one.
    """

    __slots__ = ("created_at", "metadata", "named_author", "parts", "role", "seq")

    def __init__(
        self,
        role: str,
        parts: Content = (),
        *,
        content: Content | None = None,
        author: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: datetime | None = None,
        seq: int | None = None,
    ) -> None:
        if role not in ROLES:
            raise InvalidArgument(f"unknown role {role!r}: use one of {', '.join(ROLES)}")
        if content is not None:
            if parts:
                raise InvalidArgument("parts and content= are the same thing: give one of them")
            parts = content
        if isinstance(parts, _ONE_PART):
            parts = (parts,)
        elif not isinstance(parts, Iterable):
            raise InvalidArgument(f"the parts of a message are a text, a part or a list of them, not {parts!r}")
        self.role = role
        self.parts: tuple[Part, ...] = tuple(
            Text(part) if isinstance(part, str) else part_from_dict(part) for part in parts
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
                    found["tool_calls"] = [call_to_dict(call) for call in self.tool_calls]
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
            data: dict[str, Any] = {"role": self.role, "text": check_length(parts[0].text, limits)}
        else:
            data = {"role": self.role, "parts": [part_to_data(part, limits, blobs) for part in parts]}
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


def read_question(value: Message | Mapping[str, Any] | str) -> Message:
    """Return the message that a turn is to answer. InvalidArgument for one that no model could answer: it is not the
    user's, it says nothing, or its text is not valid Unicode."""
    message = Message.of(value)
    if message.role != "user":
        raise InvalidArgument(
            f"a turn answers a message of the user, and this one is of the role {message.role!r}: "
            "add_message() records it without asking a model"
        )
    texts = [check_string(part.text, "text") for part in message.parts if isinstance(part, Text)]
    for text in texts:
        if not text.isascii():
            codec.text_bytes(text, "the message", 1 << 62)  # refuses what is not valid Unicode
    if len(texts) == len(message.parts) and not any(text.strip() for text in texts):
        raise InvalidArgument("the message says nothing: ask with a text, an image or a file")
    return message


def _calls_last(parts: tuple[Part, ...]) -> bool:
    kinds = [isinstance(part, ToolCall) for part in parts]
    return kinds == sorted(kinds)


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
        (Text(text),) if text is not None else tuple(part_from_data(part, blob) for part in data.get("parts", ()))
    )
    message.named_author, message.metadata = author, data.get("metadata") or {}
    message.created_at, message.seq = created_at, seq
    if "created_at" in data:
        message.created_at = datetime.fromisoformat(data["created_at"])
    return message


def blobs_in(data: Mapping[str, Any]) -> list[str]:
    """The blobs that a stored message names."""
    return [part["blob"] for part in data.get("parts", ()) if "blob" in part]


# -- the form users see ------------------------------------------------------------------------------------------------


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
            ToolResult(call_id=call_id, content=check_string(content, "content"), is_error=bool(value.get("is_error")))
        )
    elif isinstance(content, str):
        parts.append(content)
    elif isinstance(content, (list, tuple)):
        parts += [part_from_dict(part) for part in content]
    elif content is not None:
        raise InvalidArgument(f"'content' is a string or a list of parts, not {type(content).__name__}")
    parts += [call_from_dict(call) for call in value.get("tool_calls") or ()]
    created = value.get("created_at")
    try:
        created_at = datetime.fromisoformat(created) if created else None
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"'created_at' is not an ISO time: {created!r}") from error
    return Message(role, parts, author=value.get("author"), metadata=value.get("metadata"), created_at=created_at)


_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "is_error", "author", "metadata", "created_at", "seq"}
