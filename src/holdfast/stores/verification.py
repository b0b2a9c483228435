"""Verification of a log: its chain, the blobs that it names, the records of its erasures, and the caches of an
immutable session.

These functions read through a store and trust none of its caches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast.errors import CorruptLog, WrongKey
from holdfast.log import chain
from holdfast.log.events import MESSAGE_TYPES, Event, Row
from holdfast.log.named_values import NAMING_TYPES, names_of
from holdfast.log.view import View, decode_view, fold
from holdfast.stores import messages
from holdfast.stores.append import MAX_SEQ, Head

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store
    from holdfast.stores.signing_keys import PublicKeys, SignedHead

PAGE = 1000


def verify(store: Store, log: Log, keys: PublicKeys | None = None) -> chain.Verification:
    """Check the chain from the first event of the first ancestor to the head, then what the chain does not protect.

    With keys, also that the log still has the head that was signed last; a log that was never signed passes.
    """
    before = store.head(log)
    named: dict[str, int] = {}
    removed: set[str] = set()
    erased = _ErasureRecords()
    rows = _note_blobs(erased.note(walk_lenient(store, log, 1, before.head)), named, removed)
    found = chain.verify(log.origin, rows, head=before.head, hash=before.hash)
    if found:
        removed |= _blobs_removed_later(store, log)
        rest = erased.find_unrecorded(store, log)
        if rest is None:
            rest = _verify_rest(store, log, before, {digest: named[digest] for digest in named.keys() - removed})
        found = found if rest is None else rest
    signed = store.signed_head(log) if found and keys else None
    return found if signed is None or keys is None else check_signed_head(store, log, found, signed, keys)


def check_signed_head(
    store: Store, log: Log, found: chain.Verification, signed: SignedHead, keys: PublicKeys
) -> chain.Verification:
    """Compare a log whose chain holds with a signed head of it, from the database or from an anchor."""
    flaw = keys.find_flaw(signed)
    if flaw is not None:
        return _bad(signed.seq, f"the signed head of event {signed.seq} does not count: {flaw}")
    rows = store.read(log, signed.seq, signed.seq)
    if not rows:
        return _bad(found.checked + 1, f"event {signed.seq} was signed on {signed.time}: the end of the log is missing")
    if rows[0].hash.hex() != signed.hash:
        return _bad(
            signed.seq, f"event {signed.seq} has not the hash that was signed on {signed.time}: history was rewritten"
        )
    return replace(found, signed=signed.seq)


def rebuild_view(store: Store, log: Log) -> View:
    """Return the view folded from the first event, without a cache."""
    return fold(View(), map(Event, store.walk(log)))


def rebuild_refs(store: Store, log: Log) -> dict[str, int | None]:
    """Return every name of state and facts with the event that has its value, from the first event, without a cache."""
    found: dict[str, int | None] = {}
    for event in map(Event, store.walk(log)):
        if event.type in NAMING_TYPES:
            named = names_of(event.seq, event.type, event.data)
            found |= {name: ref for name, _, ref in named if name.startswith(("state/", "fact/"))}
    return dict(sorted(found.items()))


def blobs_removed(store: Store, log: Log) -> set[str]:
    """Return the blobs that redactions removed, recorded by this log or by a log that it was forked from."""
    own = messages.blobs_removed(store.read(log, types=messages.BLOB_REMOVING_TYPES))
    return own | _blobs_removed_later(store, log)


def _blobs_removed_later(store: Store, log: Log) -> set[str]:
    """Return the blobs that redactions in an ancestor removed after the fork."""
    found: set[str] = set()
    types = messages.BLOB_REMOVING_TYPES
    for number, last in log.ancestry:
        found |= messages.blobs_removed(_scan_types(store, number, last + 1, types))
    return found


def _scan_types(store: Store, number: int, first: int, types: Sequence[str]) -> list[Row]:
    return store._scan(number, first, MAX_SEQ, limit=None, reverse=False, types=types, marked=False, since=None)


def walk_lenient(store: Store, log: Log, first: int, last: int) -> Iterator[Row]:
    """Yield the rows of a range. A row that its key does not decrypt is yielded empty, which breaks any chain."""
    while first <= last:
        try:
            rows = store.read(log, first, last, limit=PAGE)
        except WrongKey:
            rows = []
            for seq in range(first, min(first + PAGE, last + 1)):
                try:
                    rows += store.read(log, seq, seq)
                except WrongKey:
                    rows.append(Row(seq, 0, "", None, 0, None, None, b""))
        if not rows:
            return
        yield from rows
        first = rows[-1].seq + 1


def _note_blobs(rows: Iterable[Row], named: dict[str, int], removed: set[str]) -> Iterator[Row]:
    """Yield the rows; note in `named` the blobs of messages and prompts, and in `removed` the redacted blobs."""
    for row in rows:
        yield row  # the content of a row is read only after the chain has accepted the row
        body, type = row.body, row.type
        if body is not None:
            if type in messages.BLOB_REMOVING_TYPES:
                removed.update(Event(row).data.get("blobs", ()))
            elif type == "model.called" or (
                type in MESSAGE_TYPES and b'"parts":' in body and (b'"blob":"' in body or b'"whole":"' in body)
            ):
                for digest in messages.blobs_of_event(Event(row)):
                    named.setdefault(digest, row.seq)


class _ErasureRecords:
    """The erased events of a log, and the events that record erasures. Each erased event needs a record."""

    def __init__(self) -> None:
        self._erased: list[int] = []
        self._recorded: list[list[int]] = []
        self._types: set[tuple[int, str]] = set()
        self._imported = 0  # the last event that an import brought: its record may be in the log that was exported

    def note(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            yield row  # the content of a row is read only after the chain has accepted the row
            if row.body is None:
                self._erased.append(row.seq)
            self._note_record(row)

    def _note_record(self, row: Row) -> None:
        if row.type in chain.ERASING_TYPES:
            self._types.add((row.seq, row.type))
            self._recorded += Event(row).data.get("erased", ())
        elif row.type == "session.imported":
            self._imported = row.seq

    def _merge_ranges(self) -> list[list[int]]:
        found: list[list[int]] = []
        for first, last in sorted(self._recorded):
            if found and first <= found[-1][1] + 1:
                found[-1][1] = max(found[-1][1], last)
            else:
                found.append([first, last])
        return found

    def find_unrecorded(self, store: Store, log: Log) -> chain.Verification | None:
        """Return what is wrong: an event without its payload, or an erasure, of which no event tells."""
        deleted_reach = 0  # a deleted ancestor recorded nothing after its end, and a fork of another one may lack it
        for number, last in log.ancestry:
            if store.log_of_number(number).id:
                for row in _scan_types(store, number, last + 1, chain.ERASING_TYPES):
                    self._note_record(row)
            else:
                deleted_reach = last
        recorded = self._merge_ranges()
        for seq in self._erased:
            at = bisect_right(recorded, seq, key=lambda piece: piece[0]) - 1
            is_recorded = at >= 0 and seq <= recorded[at][1]
            if not is_recorded and seq > max(self._imported, deleted_reach):
                return _bad(seq, f"event {seq} has lost its payload, and no event records a redaction or an erasure")
        own = {type for seq, type in self._types if seq > log.base}
        for whole in store.erasures_of(log.number):
            if "session.erased" not in own and (whole or "event.redacted" not in own):
                return _bad(log.base + 1, "the database was opened for an erasure that no event records")
        return None


def _bad(seq: int, reason: str) -> chain.Verification:
    return chain.Verification(ok=False, checked=seq - 1, first_bad=seq, reason=reason)


def _verify_rest(store: Store, log: Log, before: Head, named: dict[str, int]) -> chain.Verification | None:
    """Check what the chain does not protect: blobs, events after the head, and the caches of an immutable session."""
    for digest, seq in sorted(named.items(), key=lambda item: item[1]):
        if not _has_blob(store, log, digest):
            return _bad(seq, f"the bytes that event {seq} names are missing or altered")
    beyond = store.read(log, before.head + 1, limit=1)
    if beyond and store.head(log).head == before.head:
        return _bad(before.head + 1, f"there are events after the head, which is said to be {before.head}")
    if decode_view(before.view).immutable and store.head(log).head == before.head:
        if rebuild_view(store, log).to_bytes() != before.view:
            return _bad(before.head, "which messages are shown was altered: it is not what the events say")
        shown = {name: ref for prefix in ("state/", "fact/") for name, ref in store.refs(log, prefix).items()}
        if rebuild_refs(store, log) != dict(sorted(shown.items())):
            return _bad(before.head, "state or facts were altered: they are not what the events say")
    return None


def _has_blob(store: Store, log: Log, digest: str) -> bool:
    try:
        return sha256(store.blob(log, digest)).hexdigest() == digest
    except (CorruptLog, WrongKey):
        return False
