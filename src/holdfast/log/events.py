"""Events: facts that happened, never changed.

A `Draft` is what a writer asks to append; an `Event` is what the log holds. The payload stays bytes until a caller
reads `data`, because most folds only need the type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zlib import crc32

from holdfast.errors import AgentError, CorruptLog, SchemaTooNew
from holdfast.log import codec
from holdfast.log.times import to_datetime

# A body is a salt, the CRC-32 of the payload, and the payload. The checksum finds a damaged byte whenever a payload is
# read, where the hash chain is only checked by `verify`.
SALT_SIZE = 12
PAYLOAD_AT = SALT_SIZE + 4

# Every type of event, with the version that this code writes. A type that is not here was written by a newer holdfast.
VERSIONS: dict[str, int] = dict.fromkeys(
    (
        "session.created",
        "session.changed",
        "session.forked",
        "session.imported",
        "session.paused",
        "session.resumed",
        "session.closed",
        "session.archived",
        "session.reopened",
        "session.held",
        "session.released",
        "session.restored",
        "session.erased",
        "retention.set",
        "message.added",
        "message.queued",
        "run.dropped",
        "summary.added",
        "state.set",
        "state.deleted",
        "fact.added",
        "fact.updated",
        "fact.removed",
        "view.cleared",
        "view.rewound",
        "view.restored",
        "view.pruned",
        "view.compacted",
        "view.unpruned",
        "event.redacted",
        "turn.started",
        "turn.finished",
        "turn.failed",
        "turn.cancelled",
        "turn.interrupted",
        "turn.waiting",
        "turn.resumed",
        "turn.reopened",
        "turn.parked",
        "approval.requested",
        "approval.decided",
        "model.called",
        "model.replied",
        "reply.edited",
        "model.interrupted",
        "tool.called",
        "tool.returned",
        "agent.started",
        "agent.finished",
        "agent.failed",
        "agent.assigned",
        "loop.ended",
        "entity.created",
        "memory.stored",
        "memory.forgotten",
        "memory.ingested",
        "sweep.planned",
        "sweep.finished",
    ),
    1,
)

# (type, old version) -> a function from the old data to the data of the next version.
UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}

MESSAGE_TYPES = ("message.added", "message.queued", "model.replied", "reply.edited", "tool.returned", "summary.added")
INDEXED_TYPES = (*MESSAGE_TYPES, "memory.stored")  # those whose words can be searched
COMMITMENT_SIZE = 32  # bytes of a tombstone that stand for the payload; what follows is what the folds still need

# What reading a payload can raise if holdfast did not write it. What removes text must not need to understand it.
UNREADABLE = (AgentError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An event before it has a number."""

    type: str
    data: dict[str, Any] = field(default_factory=dict)
    run: str | None = None
    branch: str | None = None
    author: str | None = None
    actor: str | None = None
    blobs: Mapping[str, bytes] = field(default_factory=dict)


class Row:
    """An event as a store keeps it: the columns, undecoded.

    Not a dataclass: rows are made by the hundred thousand, and a frozen one costs five times as much to make.
    """

    __slots__ = ("at", "body", "hash", "header", "seq", "tokens", "tombstone", "type")

    def __init__(
        self,
        seq: int,
        at: int,
        type: str,
        header: bytes | None,
        tokens: int,
        body: bytes | None,
        tombstone: bytes | None,
        hash: bytes,
    ) -> None:
        self.seq = seq
        self.at = at
        self.type = type
        self.header = (
            header  # canonical [v, run, branch, author, actor]; None where that is [1, null, null, null, null]
        )
        self.tokens = tokens  # running sum of the estimates, not part of the chain
        self.body = body  # salt and payload; None once erased
        self.tombstone = tombstone  # once the body is gone: its commitment, and what the folds still need of it
        self.hash = hash

    def columns(self) -> tuple[int, int, str, bytes | None, int, bytes | None, bytes | None, bytes]:
        return (self.seq, self.at, self.type, self.header, self.tokens, self.body, self.tombstone, self.hash)


class Event:
    """A fact of a log: `seq, at, type, v, run, branch, author, actor, data`."""

    __slots__ = (
        *("_data", "actor", "at", "author", "body", "branch", "hash", "run", "seq", "tombstone", "type", "v"),
        "verified",
    )

    def __init__(self, row: Row, *, unverified: int = 0) -> None:
        """`unverified` is the number that the view of the log has under this name."""
        if row.type not in VERSIONS:
            raise SchemaTooNew(f"event {row.seq} has the unknown type {row.type!r}: upgrade holdfast to read it")
        self.seq, self.at, self.type = row.seq, row.at, row.type
        self.v, self.run, self.branch, self.author, self.actor = unpack_header(row.header)
        self.body, self.tombstone, self.hash = row.body, row.tombstone, row.hash
        self._data: dict[str, Any] | None = None
        self.verified = row.seq > unverified  # false for an event of an import: its actor is a claim of the export

    @property
    def data(self) -> dict[str, Any]:
        """The payload, in the newest version; if it was erased, only what the folds need: numbers and names."""
        if self._data is None:
            if self.body is not None:
                self._data = upcast(self.type, self.v, payload_of(self.body, self.seq), self.seq)
            else:
                left = (self.tombstone or b"")[COMMITMENT_SIZE:]
                self._data = upcast(self.type, self.v, left, self.seq) if left else {}
        return self._data

    @property
    def erased(self) -> bool:
        return self.body is None

    @property
    def timestamp(self) -> datetime:
        return to_datetime(self.at)

    def __repr__(self) -> str:
        return f"Event(seq={self.seq}, type={self.type!r}, author={self.author!r}, data={self.data!r})"


def make_body(salt: bytes, payload: bytes) -> bytes:
    return salt + crc32(payload).to_bytes(4) + payload


def payload_of(body: bytes, seq: int) -> bytes:
    """The payload of an event. Raises CorruptLog if it is not the one that was written."""
    payload = body[PAYLOAD_AT:]
    if body[SALT_SIZE:PAYLOAD_AT] != crc32(payload).to_bytes(4):
        raise CorruptLog(
            f"event {seq} is damaged: its bytes are not those that were written. Verify the session, restore it from a "
            "copy, or redact the event"
        )
    return payload


def message_data(event: Event) -> dict[str, Any]:
    """The stored message of an event that brings one; empty if it was erased."""
    if event.body is None:
        return {}
    data: dict[str, Any] = event.data if event.type == "message.added" else event.data.get("message", {})
    return data


_PLAIN_HEADER = (1, None, None, None, None)


def unpack_header(header: bytes | None) -> tuple[int, str | None, str | None, str | None, str | None]:
    if header is None:
        return _PLAIN_HEADER
    v, run, branch, author, actor = codec.decode(header)
    return v, run, branch, author, actor


def upcast(type: str, v: int, payload: bytes, seq: int) -> dict[str, Any]:
    """The payload as the newest version of its type would have written it."""
    try:
        data: dict[str, Any] = codec.decode(payload)
    except ValueError as error:
        raise CorruptLog(f"event {seq} ({type}) is not readable: verify the session, restore it from a copy") from error
    newest = VERSIONS[type]
    if v > newest:
        raise SchemaTooNew(f"event {seq} is {type} version {v}, this holdfast knows {newest}: upgrade it")
    if v < 1:
        raise CorruptLog(f"event {seq} is {type} version {v}, which never was: verify the session")
    while v < newest:
        data = UPCASTS[type, v](data)
        v += 1
    return data
