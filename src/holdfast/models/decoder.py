"""A reply as it grows: the blocks that a decoder fills, the one place where they become a message, and what the
decoders of all wire formats have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from holdfast.errors import BadResponse, NotJSON, StreamTruncated
from holdfast.log import codec
from holdfast.log.messages import Message, Part, Text, Thinking, ToolCall
from holdfast.log.repair import unique_id
from holdfast.models.base import (
    BlockStart,
    BlockStop,
    Done,
    InputJSONDelta,
    ModelEvent,
    ModelRequest,
    StopReason,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from holdfast.models.endpoint import Endpoint
from holdfast.models.sse import MalformedLine, ReplyTooLong, SSEParser

Kind = Literal["text", "thinking", "tool"]


class Block:
    """One part of a reply, in pieces."""

    __slots__ = ("given", "id", "index", "kind", "name", "open", "pieces", "signature")

    def __init__(self, index: int, kind: Kind, id: str, name: str) -> None:
        self.index, self.kind, self.id, self.name = index, kind, id, name
        self.pieces: list[str] = []
        self.signature: str | None = None
        self.given: dict[str, Any] | None = None  # arguments that came in one piece
        self.open = True

    def add_piece(self, text: str, events: list[ModelEvent]) -> None:
        """Keep one more piece, and add its event to `events`."""
        if type(text) is not str:
            raise TypeError
        if not text:
            return
        self.pieces.append(text)
        if self.kind == "text":
            events.append(TextDelta(index=self.index, text=text))
        elif self.kind == "tool":
            events.append(InputJSONDelta(index=self.index, input_json=text))
        else:
            events.append(ThinkingDelta(index=self.index, text=text))


class Reply:
    """The blocks of one reply in order, and the events that announce them."""

    def __init__(self, request: ModelRequest, provider: str) -> None:
        self.provider, self.model = provider, request.model
        self.reported_model: str | None = None
        self.response_id: str | None = None
        self.usage = Usage()
        self.blocks: list[Block] = []
        self._call_ids = {
            part.id
            for message in request.messages
            if message.role == "assistant"
            for part in message.parts
            if isinstance(part, ToolCall)
        }

    @property
    def call_count(self) -> int:
        """How many calls there are in the conversation, those of this reply included."""
        return len(self._call_ids)

    def start_block(self, kind: Kind, events: list[ModelEvent], *, id: str = "", name: str = "") -> Block:
        """A new block. A call whose id is missing, or was used before in this conversation, gets one of its own."""
        if kind == "tool":
            id = unique_id(id, self._call_ids)
        block = Block(len(self.blocks), kind, id, name)
        self.blocks.append(block)
        part: Part
        if kind == "text":
            part = Text("")
        elif kind == "thinking":
            part = Thinking(text="", provider=self.provider, model=self.model)
        else:
            part = ToolCall(id=id, name=name)
        events.append(BlockStart(index=block.index, block=part))
        return block

    def stop_block(self, block: Block, events: list[ModelEvent]) -> None:
        block.open = False
        events.append(BlockStop(index=block.index))

    def finish(self, stop_reason: StopReason, raw_stop: str, events: list[ModelEvent]) -> None:
        """End every block that is open, and tell the whole."""
        for block in self.blocks:
            if block.open:
                self.stop_block(block, events)
        parts: list[Part] = []
        for block in self.blocks:
            parts += self._build_parts(block, cut=stop_reason == "max_tokens" and block is self.blocks[-1])
        events.append(
            Done(
                message=Message("assistant", parts),
                usage=self.usage,
                stop_reason=stop_reason,
                raw_stop=raw_stop,
                provider=self.provider,
                model=self.reported_model or self.model,
                response_id=self.response_id,
            )
        )

    def _build_parts(self, block: Block, *, cut: bool) -> list[Part]:
        text = "".join(block.pieces)
        thinking = Thinking(
            text="" if block.kind == "tool" else text,
            signature=block.signature,
            provider=self.provider,
            model=self.model,
        )
        if block.kind == "text":
            return [Text(text)] if text else []
        if block.kind == "thinking":
            return [thinking] if text or block.signature else []
        call = ToolCall(id=block.id, name=block.name, arguments=_decode_arguments(text, block.given, cut=cut))
        # Some providers sign the call itself. The signature travels as thinking in front of it.
        return [thinking, call] if block.signature else [call]


def _decode_arguments(text: str, given: dict[str, Any] | None, *, cut: bool) -> dict[str, Any] | str:
    """What a model sent as arguments: an object, or the text where that is none."""
    if not text.strip():
        # Nothing means no arguments, unless the reply was cut before they came: that must not look like a call.
        return (given or {}) if not cut or given else ""
    try:
        value = codec.parse(text)
    except NotJSON:
        return text
    return value if isinstance(value, dict) else text


class StreamDecoder(ABC):
    """Reads the bytes of a reply and returns its events. Any bytes give events or raise a `ProviderError`."""

    def __init__(self, request: ModelRequest, endpoint: Endpoint, limit: int) -> None:
        self.ended = False
        self._endpoint = endpoint
        self._frames = SSEParser(limit)
        self._reply = Reply(request, endpoint.provider)

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        problem = "sent a chunk that is not as its API promises"
        try:
            if not self.ended:
                for data in self._frames.feed(chunk):
                    self._handle_data(data, events)
                    if self.ended:
                        break
            return events
        except ReplyTooLong:
            problem = f"sent more than {self._frames.limit} bytes for one reply"
        except (MalformedLine, ValueError, TypeError, AttributeError, LookupError, OverflowError):
            pass
        # Raised here and not above, because a JSON error holds on to the text that it could not read.
        raise BadResponse(f"{self._endpoint.provider} {problem}: ask again", provider=self._endpoint.provider)

    @abstractmethod
    def finish(self) -> list[ModelEvent]:
        """The bytes have ended."""

    @abstractmethod
    def _handle_data(self, data: bytes, events: list[ModelEvent]) -> None:
        """One event of the stream."""

    def _truncation_error(self) -> StreamTruncated:
        text = f"{self._endpoint.provider} ended its stream before the reply was complete: ask again"
        return StreamTruncated(text, provider=self._endpoint.provider)


def check_text(value: object) -> str | None:
    """A string that may be missing, and must be nothing else."""
    if value is not None and type(value) is not str:
        raise TypeError
    return value


def read_token_count(value: object) -> int:
    """A count, within what a log can hold."""
    if value is None:
        return 0
    if not isinstance(value, (int, float)) or not 0 <= value < 2**53:
        raise ValueError
    return int(value)
