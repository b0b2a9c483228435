"""The hash chain over a log, computed inside the append and checked by `verify`.

    hash_0 = H(origin)                 commitment = H(salt | payload)
    hash_n = H(hash_{n-1} | header | commitment)

Headers carry no session id, so a log keeps its hashes when it is exported and imported under another name. The salt
lives and dies with the payload: an erased payload cannot be guessed from its commitment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import orjson

from holdfast.log import codec
from holdfast.log.events import MESSAGE_TYPES, SALT, VERSIONS, Draft, Row, unpack_header


def genesis(origin: str) -> bytes:
    """The hash before the first event."""
    return sha256(b"holdfast log\n" + origin.encode()).digest()


# Levels that an event adds around a value that somebody gave.
_ROOM = {"view.restored": 2, "model.replied": 3, "tool.returned": 3, "message.added": 3}


def payloads(drafts: Sequence[Draft]) -> list[bytes]:
    """The canonical bytes of each draft's data; refuses what is not JSON before anything is locked."""
    return [codec.encode(draft.data, room=_ROOM.get(draft.type, 1)) for draft in drafts]


def digest(drafts: Sequence[Draft], encoded: Sequence[bytes]) -> bytes:
    """What an idempotency key stands for: the content, without time, salt and number."""
    found = sha256()
    for draft, payload in zip(drafts, encoded, strict=True):
        found.update(orjson.dumps([draft.type, draft.run, draft.branch, draft.author, draft.actor, len(payload)]))
        found.update(payload)
    return found.digest()


def seal(
    drafts: Sequence[Draft], encoded: Sequence[bytes], *, head: int, hash: bytes, tokens: int, at: int, salts: bytes
) -> list[Row]:
    """Number the drafts after `head` and chain them to `hash`."""
    rows: list[Row] = []
    seq, offset, dumps = head, 0, orjson.dumps
    for draft, payload in zip(drafts, encoded, strict=True):
        seq += 1
        type, v = draft.type, VERSIONS[draft.type]
        body = salts[offset : offset + SALT] + payload
        offset += SALT
        run, branch, author, actor = draft.run, draft.branch, draft.author, draft.actor
        plain = v == 1 and run is None and branch is None and author is None and actor is None
        header = None if plain else dumps([v, run, branch, author, actor])
        top = dumps([seq, at, type, v, run, branch, author, actor])
        hash = sha256(hash + top + sha256(body).digest()).digest()
        if type in MESSAGE_TYPES:
            tokens += estimate(len(payload))
        rows.append(Row(seq, at, type, header, tokens, body, None, hash))
    return rows


def estimate(size: int) -> int:
    """Tokens of a message of `size` payload bytes: about four bytes each, and never nothing."""
    return size // 4 + 1


def commitment(row: Row) -> bytes | None:
    if row.body is not None:
        return sha256(row.body).digest()
    return row.tomb


def link(previous: bytes, row: Row) -> bytes | None:
    """The hash that `row` must have after `previous`; None if its payload and its commitment are both gone."""
    promise = commitment(row)
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

    def __bool__(self) -> bool:
        return self.ok


def verify(origin: str, rows: Iterable[Row], *, head: int | None = None, hash: bytes | None = None) -> Verification:
    """Walk the chain from its origin and name the first event that fails."""
    previous, seq = genesis(origin), 0
    for row in rows:
        if row.seq != seq + 1:
            return Verification(ok=False, checked=seq, first_bad=seq + 1, reason=f"event {seq + 1} is missing")
        try:
            expected = link(previous, row)
        except (ValueError, TypeError):
            expected = None
        if expected is None or expected != row.hash:
            return Verification(ok=False, checked=seq, first_bad=row.seq, reason=f"event {row.seq} was altered")
        previous, seq = row.hash, row.seq
    if head is not None and head != seq:
        return Verification(ok=False, checked=seq, first_bad=seq + 1, reason=f"{head} events were written, {seq} found")
    if hash is not None and hash != previous:
        return Verification(
            ok=False, checked=seq, first_bad=seq, reason="the head's hash is not that of the last event"
        )
    return Verification(ok=True, checked=seq)
