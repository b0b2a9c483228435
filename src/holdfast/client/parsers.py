"""From the server's JSON to the library's own values, and the few value objects for what is lazy in the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

from holdfast.log.events import Event
from holdfast.log.messages import Message, ToolCall
from holdfast.models.base import Usage
from holdfast.turn.response import Pending, Response

if TYPE_CHECKING:
    from holdfast.turn.sent_context import Context

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_message(data: Mapping[str, Any]) -> Message:
    message = Message.of(data)
    message.seq = data.get("seq")
    return message


def parse_messages(answer: Mapping[str, Any], name: str = "messages") -> list[Message]:
    return [parse_message(each) for each in answer[name]]


def parse_event(data: Mapping[str, Any]) -> Event:
    """An event as a log gives it. Its payload came as JSON: the salted bytes behind its hash stay with the server."""
    event = Event.__new__(Event)
    event.seq, event.type, event.at = data["seq"], data["type"], parse_microseconds(data["at"])
    event.v, event.run, event.branch = data.get("v", 1), data.get("run"), data.get("branch")
    event.author, event.actor = data.get("author"), data.get("actor")
    event.body, event.tombstone = (None, b"") if data.get("erased") else (b"", None)
    event.hash = bytes.fromhex(data.get("hash") or "")
    event._data = data.get("data") or {}
    event.verified = data.get("verified", True)
    return event


def parse_microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND


def parse_usage(data: Mapping[str, Any]) -> Usage:
    return Usage(**{name: data.get(name, 0) for name in Usage.__dataclass_fields__})


def parse_pending(data: Mapping[str, Any]) -> Pending:
    return Pending(**{name: data[name] for name in Pending.__dataclass_fields__ if name in data})


def parse_response(data: Mapping[str, Any]) -> Response:
    """What POST /message answers. Its `output` is null where no schema was asked for: then the output is the text."""
    text, output = data.get("response") or "", data.get("output")
    return Response(
        text=text,
        output=text if output is None else output,
        tool_calls=[
            ToolCall(id=each["id"], name=each["name"], arguments=each["arguments"]) for each in data["tool_calls"]
        ],
        usage=parse_usage(data["usage"]),
        steps=data["steps"],
        messages=parse_messages(data) if "messages" in data else [],
        status=data.get("status", "finished"),
        pending=[parse_pending(each) for each in data.get("pending", ())],
        run_id=data["run_id"],
        stop_reason=data.get("stop_reason"),
    )


def parse_context(data: Mapping[str, Any]) -> Context:
    from holdfast.turn.sent_context import Context, ContextPart

    parts = []
    for each in data["parts"]:
        message = each.get("message")
        parts.append(
            ContextPart(
                kind=each["kind"],
                text=each["text"],
                tokens=each["tokens"],
                seq=each.get("seq"),
                message=None if message is None else parse_message(message),
            )
        )
    rest: dict[str, Any] = {
        name: data.get(name) for name in ("tokens", "estimated", "reported", "window", "model", "left_out")
    }
    return Context(parts=parts, **rest)


class Seqs(Sequence[int]):
    """Messages by their seq: a number of them (`report.removed == 40`) that can also be listed."""

    def __init__(self, seqs: Sequence[int]) -> None:
        self._seqs = list(seqs)

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[int]:
        return iter(self._seqs)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._seqs[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return len(self) == other
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __int__(self) -> int:
        return len(self)

    def __repr__(self) -> str:
        return f"{len(self)} messages" if self._seqs else "no messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a prune did, or would do: `removed` and `kept` messages, and `reasons`, why for each that left the view."""

    strategy: str
    dry_run: bool
    seq: int | None
    removed: Seqs
    kept: Seqs
    reasons: dict[int, str]
    kept_because: dict[int, str]
    summary: str | None
    freed_tokens: int

    def __repr__(self) -> str:
        did = "would leave" if self.dry_run else "left"
        return f"<{self.strategy}: {len(self.removed)} messages {did} the view, {len(self.kept)} stay>"


def parse_pruned(data: Mapping[str, Any]) -> Pruned:
    return Pruned(
        strategy=data["strategy"],
        dry_run=data["dry_run"],
        seq=data.get("seq"),
        removed=Seqs(data["removed"]),
        kept=Seqs(data["kept"]),
        reasons={int(seq): why for seq, why in data["reasons"].items()},
        kept_because={int(seq): why for seq, why in data.get("kept_because", {}).items()},
        summary=data.get("summary"),
        freed_tokens=data["freed_tokens"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that the server admitted: queued, running, waiting, finished, failed, cancelled, interrupted or parked."""

    run_id: str
    status: str
    agent_id: str | None = None
    created_at: datetime | None = None
    response: Response | None = None  # once it is finished
    error: dict[str, Any] | None = field(default=None)  # once it failed: the error that a caller gets


def parse_run(data: Mapping[str, Any]) -> Run:
    created, answer = data.get("created_at"), data.get("response")
    return Run(
        run_id=data["run_id"],
        status=data["status"],
        agent_id=data.get("agent_id"),
        created_at=None if created is None else datetime.fromisoformat(created),
        response=parse_response(answer) if isinstance(answer, Mapping) else None,
        error=data.get("error"),
    )
