"""The hash chain over a log, computed inside the append and checked by `verify`.

    hash_0 = H(origin)                 commitment = H(salt | checksum | payload)
    hash_n = H(hash_{n-1} | header | commitment)

Headers carry no session id, so a log keeps its hashes when it is exported and imported under another name. The salt
lives and dies with the payload: an erased payload cannot be guessed from its commitment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import orjson

from holdfast.errors import AgentError
from holdfast.log import codec
from holdfast.log.events import (
    COMMITMENT_SIZE,
    MESSAGE_TYPES,
    PAYLOAD_AT,
    SALT_SIZE,
    VERSIONS,
    Draft,
    Event,
    Row,
    make_body,
    unpack_header,
)


def genesis(origin: str) -> bytes:
    """The hash before the first event."""
    return sha256(b"holdfast log\n" + origin.encode()).digest()


# Levels of nesting that an event adds around a caller's value.
_EXTRA_DEPTH = {"view.restored": 2, **dict.fromkeys(MESSAGE_TYPES, 3)}


def encode_payloads(drafts: Sequence[Draft]) -> list[bytes]:
    """The canonical bytes of each draft's data; refuses what is not JSON before anything is locked."""
    return [codec.encode(draft.data, room=_EXTRA_DEPTH.get(draft.type, 1)) for draft in drafts]


def content_digest(drafts: Sequence[Draft], encoded: Sequence[bytes]) -> bytes:
    """What an idempotency key stands for: the content, without time, salt and number."""
    found = sha256()
    for draft, payload in zip(drafts, encoded, strict=True):
        found.update(orjson.dumps([draft.type, draft.run, draft.branch, draft.author, draft.actor, len(payload)]))
        found.update(payload)
    return found.digest()


def chain_rows(
    drafts: Sequence[Draft], encoded: Sequence[bytes], *, head: int, hash: bytes, tokens: int, at: int, salts: bytes
) -> list[Row]:
    """Number the drafts after `head` and chain them to `hash`."""
    rows: list[Row] = []
    seq, offset, dumps = head, 0, orjson.dumps
    for draft, payload in zip(drafts, encoded, strict=True):
        seq += 1
        type, v = draft.type, VERSIONS[draft.type]
        body = make_body(salts[offset : offset + SALT_SIZE], payload)
        offset += SALT_SIZE
        run, branch, author, actor = draft.run, draft.branch, draft.author, draft.actor
        plain = v == 1 and run is None and branch is None and author is None and actor is None
        header = None if plain else dumps([v, run, branch, author, actor])
        top = dumps([seq, at, type, v, run, branch, author, actor])
        hash = sha256(hash + top + sha256(body).digest()).digest()
        if type in MESSAGE_TYPES:
            tokens += estimate_tokens(len(payload))
        rows.append(Row(seq, at, type, header, tokens, body, None, hash))
    return rows


def estimate_tokens(size: int) -> int:
    """Tokens of a message of `size` payload bytes: about four bytes each, and never nothing."""
    return size // 4 + 1


def commitment_of(row: Row) -> bytes | None:
    if row.body is not None:
        return sha256(row.body).digest()
    return None if row.tombstone is None else row.tombstone[:COMMITMENT_SIZE]


def next_hash(previous: bytes, row: Row) -> bytes | None:
    """The hash that `row` must have after `previous`; None if its payload and its commitment are both gone."""
    promise = commitment_of(row)
    if promise is None:
        return None
    v, run, branch, author, actor = unpack_header(row.header)
    top = orjson.dumps([row.seq, row.at, row.type, v, run, branch, author, actor])
    return sha256(previous + top + promise).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What checking a chain found; true when everything holds."""

    ok: bool
    checked: int
    first_bad: int | None = None
    reason: str | None = None
    signed: int | None = None  # the last event that a checked signature covers

    def __bool__(self) -> bool:
        return self.ok


def verify(origin: str, rows: Iterable[Row], *, head: int | None = None, hash: bytes | None = None) -> Verification:
    """Walk the chain from its origin and name the first event that fails."""
    previous, seq, tokens = genesis(origin), 0, 0
    stones: dict[int, bytes] = {}
    dumps = orjson.dumps
    for row in rows:
        seq += 1
        if row.seq != seq:
            return _bad(seq, f"event {seq} is missing")
        body, header = row.body, row.header
        try:
            if body is not None:
                promise = sha256(body).digest()
            else:
                stone = row.tombstone or b""
                stones[seq], promise = stone, stone[:COMMITMENT_SIZE]
            rest = _PLAIN if header is None else unpack_header(header)
            top = dumps([seq, row.at, row.type, *rest])
            expected = sha256(previous + top + promise).digest()
            if row.type in MESSAGE_TYPES:
                tokens += (len(body) - PAYLOAD_AT) // 4 + 1 if body is not None else Event(row).data.get("tokens", 0)
        except (ValueError, TypeError, AttributeError, AgentError):
            return _bad(seq, f"event {seq} was altered")
        if expected != row.hash:
            return _bad(seq, f"event {seq} was altered")
        if row.tokens != tokens:
            return _bad(seq, f"the token count of event {seq} was altered")
        previous = expected
        if stones and row.type in ERASING_TYPES and body is not None and not _vouches_for(row, stones):
            return _bad(seq, f"what is left of the events that event {seq} erased was altered")
    if head is not None and head != seq:
        return _bad(seq + 1, f"{head} events were written, {seq} found")
    if hash is not None and hash != previous:
        return _bad(seq, "the head's hash is not that of the last event", checked=seq)
    return Verification(ok=True, checked=seq)


def _vouches_for(row: Row, stones: dict[int, bytes]) -> bool:
    """Whether the record of an erasure names the tombstones as they are. It may be of a log that was imported."""
    try:
        data = Event(row).data
        ranges = [(int(first), int(last)) for first, last in data.get("erased", ())]
        if sum(max(0, last - first + 1) for first, last in ranges) > row.seq:
            return False  # more events than there are: nothing that holdfast wrote
        own = [stones.get(each, b"") for first, last in ranges for each in range(first, last + 1)]
        return digest_tombstones(own) == data.get("tombs")
    except (ValueError, TypeError, AttributeError, AgentError):
        return False


_PLAIN = unpack_header(None)
ERASING_TYPES = ("event.redacted", "session.erased", "memory.forgotten")  # which vouch for the tombstones they made


def _bad(seq: int, reason: str, *, checked: int | None = None) -> Verification:
    return Verification(ok=False, checked=seq - 1 if checked is None else checked, first_bad=seq, reason=reason)


def digest_tombstones(stones: Iterable[bytes]) -> str:
    """Names tombstones, so that the record of an erasure vouches for what they say."""
    found = sha256()
    for stone in stones:
        found.update(sha256(stone).digest())
    return found.hexdigest()
