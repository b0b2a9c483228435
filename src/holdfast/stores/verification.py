"""Verification of a log: its chain, the blobs that it names, and the caches of an immutable session.

These functions read through a store and trust none of its caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

PAGE = 1000


def verify(store: Store, log: Log) -> chain.Verification:
    """Check the chain from the first event of the first ancestor to the head, then what the chain does not protect."""
    before = store.head(log)
    named: dict[str, int] = {}
    removed: set[str] = set()
    rows = _note_blobs(walk_lenient(store, log, 1, before.head), named, removed)
    found = chain.verify(log.origin, rows, head=before.head, hash=before.hash)
    if found:
        removed |= _blobs_removed_later(store, log)
        rest = _verify_rest(store, log, before, {digest: named[digest] for digest in named.keys() - removed})
        found = found if rest is None else rest
    return found


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
        later = store._scan(number, last + 1, MAX_SEQ, limit=None, reverse=False, types=types, marked=False, since=None)
        found |= messages.blobs_removed(later)
    return found


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


def _verify_rest(store: Store, log: Log, before: Head, named: dict[str, int]) -> chain.Verification | None:
    """Check what the chain does not protect: blobs, events after the head, and the caches of an immutable session."""

    def bad(seq: int, reason: str) -> chain.Verification:
        return chain.Verification(ok=False, checked=seq - 1, first_bad=seq, reason=reason)

    for digest, seq in sorted(named.items(), key=lambda item: item[1]):
        if not _has_blob(store, log, digest):
            return bad(seq, f"the bytes that event {seq} names are missing or altered")
    beyond = store.read(log, before.head + 1, limit=1)
    if beyond and store.head(log).head == before.head:
        return bad(before.head + 1, f"there are events after the head, which is said to be {before.head}")
    if decode_view(before.view).immutable and store.head(log).head == before.head:
        if rebuild_view(store, log).to_bytes() != before.view:
            return bad(before.head, "which messages are shown was altered: it is not what the events say")
        shown = {name: ref for prefix in ("state/", "fact/") for name, ref in store.refs(log, prefix).items()}
        if rebuild_refs(store, log) != dict(sorted(shown.items())):
            return bad(before.head, "state or facts were altered: they are not what the events say")
    return None


def _has_blob(store: Store, log: Log, digest: str) -> bool:
    try:
        return sha256(store.blob(log, digest)).hexdigest() == digest
    except (CorruptLog, WrongKey):
        return False
