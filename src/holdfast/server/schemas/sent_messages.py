"""Response models of messages: the roles, the parts, and the message as the server sends it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from holdfast.server.schemas.requests import optional_field
from holdfast.server.schemas.response_body import ResponseBody

Role = Literal["user", "assistant", "system", "tool"]


class SentText(ResponseBody):
    type: Literal["text"]
    text: str


class SentImage(ResponseBody):
    type: Literal["image"]
    url: str = optional_field()
    data: str = optional_field(description="base64")
    media_type: str = optional_field()
    name: str = optional_field()


class SentFile(ResponseBody):
    type: Literal["file"]
    url: str = optional_field()
    data: str = optional_field(description="base64")
    media_type: str = optional_field()
    name: str = optional_field()


class SentToolCall(ResponseBody):
    type: Literal["tool_call"]
    id: str
    name: str
    arguments: dict[str, Any] | str


class SentToolResult(ResponseBody):
    type: Literal["tool_result"]
    call_id: str
    content: str
    is_error: bool


class SentThinking(ResponseBody):
    type: Literal["thinking"]
    text: str
    signature: str = optional_field()
    provider: str = optional_field()
    model: str = optional_field()


SentPart = Annotated[
    SentText | SentImage | SentFile | SentToolCall | SentToolResult | SentThinking, Field(discriminator="type")
]


class SentFunction(ResponseBody):
    name: str
    arguments: str


class SentFunctionCall(ResponseBody):
    id: str
    type: Literal["function"]
    function: SentFunction


class Message(ResponseBody):
    """A message as OpenAI writes it, or with parts."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "role": "user",
                    "content": "My name is Alice",
                    "created_at": "2026-01-31T09:30:00.000000+00:00",
                    "seq": 2,
                }
            ]
        }
    )

    role: Role
    content: str | list[SentPart] | None
    tool_calls: list[SentFunctionCall] = optional_field()
    tool_call_id: str = optional_field()
    is_error: bool = optional_field()
    author: str = optional_field()
    metadata: dict[str, Any] = optional_field()
    created_at: str = optional_field(description="ISO time")
    seq: int | None = Field(default=None, description="The number of its event.")
