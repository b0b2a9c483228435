"""The contracts of a store: the four methods of a user's own store, and the methods of a store of logs.

`SessionStore` is public and small. `Store` adds the log: `append` is the only way anything is written to one, and it
returns after the data is durable, not before. A store object is bound to one tenant, so ids are bare in its methods.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import CorruptLog, InvalidArgument, SessionNotFound
from holdfast.log import chain
from holdfast.log.events import Draft, Event, Row
from holdfast.log.identifiers import check_id, is_id
from holdfast.log.messages import Limits
from holdfast.log.named_values import value_of
from holdfast.log.ranges import Ranges
from holdfast.log.view import View, decode_view, fold
from holdfast.stores import documents, verification
from holdfast.stores.append import MAX_SEQ as MAX_SEQ
from holdfast.stores.append import AppendResult, Head
from holdfast.stores.erasure import ErasurePlan as ErasurePlan  # also for memory, which may know no other store module
from holdfast.stores.key_values import KeyValues
from holdfast.stores.lease import Claim, Lease
from holdfast.stores.signatures import SignedHeads
from holdfast.stores.signing_keys import PublicKeys
from holdfast.stores.usage import UsageCounters
from holdfast.stores.write_faults import WriteFaults

PAGE = 1000


class SessionStore:
    """The four methods of a store of documents; `exists` follows from them. It has no `__init__` to call."""

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        raise NotImplementedError("a SessionStore needs save(session_id, data)")

    def load(self, session_id: str) -> dict[str, Any] | None:
        raise NotImplementedError("a SessionStore needs load(session_id)")

    def delete(self, session_id: str) -> bool:
        raise NotImplementedError("a SessionStore needs delete(session_id)")

    def list_sessions(self) -> list[str]:
        raise NotImplementedError("a SessionStore needs list_sessions()")

    def exists(self, session_id: str) -> bool:
        return self.load(session_id) is not None


class Log(NamedTuple):
    """What never changes about a log: its internal number and id, the key it was made under, and its ancestors.

    A tuple, because a list of sessions makes them by the page.
    """

    number: int
    uid: str
    origin: str  # what its chain starts from
    kind: str
    id: str
    created_at: int
    base: int = 0  # its own events start after this one
    ancestry: tuple[tuple[int, int], ...] = ()  # (log, last seq taken from it), oldest first
    user_id: str | None = None
    app_name: str | None = None
    parent: int | None = None  # number of the log it was forked from
    key: bytes | None = None  # its encryption key, wrapped; None: it is not encrypted

    @property
    def ancestors(self) -> tuple[int, ...]:
        """The logs that must not be purged before this one: its parent and every log it reads from."""
        parent = () if self.parent is None else (self.parent,)
        return tuple(sorted({*parent, *(number for number, _ in self.ancestry)}))

    def segments(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Which logs hold the events `first..last`, oldest first: (log, first, last)."""
        if first > self.base:
            return [(self.number, first, last)]
        found, start = [], 1
        for number, end in (*self.ancestry, (self.number, last)):
            lo, hi = max(first, start), min(last, end)
            if lo <= hi:
                found.append((number, lo, hi))
            start = end + 1
        return found


class Info(NamedTuple):
    """A session as a list shows it: no event was read for it."""

    log: Log
    status: str
    title: str | None
    metadata: dict[str, Any]
    work_dir: str | None
    updated_at: int


class TenantLog(NamedTuple):
    """A session with its tenant, for the sweep or for a worker that runs admitted runs."""

    tenant: str
    log: Log
    lease: Lease | None = None  # its lease, if the query reads leases


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a new log branches off: after `at` of `parent`, with what held there."""

    parent: Log
    at: int
    hash: bytes
    tokens: int
    view: View
    is_head: bool = False  # nothing was written after it


class Store(SessionStore, KeyValues, SignedHeads, UsageCounters, WriteFaults, ABC):
    """A store of logs. Everything here blocks, is safe to call from any thread, and hands out copies."""

    tenant: str
    clock: Clock
    limits: Limits

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, limits: Limits | None = None, tenant: str = "") -> None:
        self.clock, self.limits, self.tenant = clock, limits or Limits(), tenant

    def for_tenant(self, tenant: str) -> Self:
        """The same store, bound to another tenant: it sees nothing of this one's."""
        bound = copy.copy(self)
        bound.tenant, bound.allowances = tenant, ()
        return bound

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: every operation raises StoreClosed then."""
        return False

    # -- sessions as documents: the four methods ---------------------------------------------------------------------

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        """Keep a document: an unknown id is imported, the same content does nothing, other content is recorded."""
        documents.restore_document(self, check_id(session_id), data)

    def load(self, session_id: str) -> dict[str, Any] | None:
        """What `Session.to_dict` gives, or None."""
        log = self.find("session", session_id) if is_id(session_id) else None
        return None if log is None else documents.document_of(self, log)

    def delete(self, session_id: str) -> bool:
        return is_id(session_id) and self.remove("session", session_id)

    def list_sessions(self) -> list[str]:
        """Every id, oldest first."""
        found: list[Log] = []
        while page := self.sessions(limit=PAGE, after=found[-1] if found else None):
            found += [info.log for info in page]
        return [log.id for log in reversed(found)]

    def exists(self, session_id: str) -> bool:
        return is_id(session_id) and self.find("session", session_id) is not None

    # -- logs ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def create(
        self,
        kind: str,
        id: str,
        drafts: Sequence[Draft],
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        fork: Fork | None = None,
        created_at: int | None = None,
    ) -> Log:
        """Make a log with its first events, all or nothing; SessionExists if the name is taken. `created_at` is another
        time than now: that of the session that a document was made of."""

    @abstractmethod
    def import_log(
        self,
        kind: str,
        id: str,
        origin: str,
        rows: Sequence[Row],
        blobs: dict[str, bytes],
        drafts: Sequence[Draft],
        **of: str | None,
    ) -> Log:
        """Make a log out of rows that were sealed elsewhere, and append `drafts`; the caller has verified them."""

    @abstractmethod
    def find(self, kind: str, id: str) -> Log | None: ...

    @abstractmethod
    def remove(self, kind: str, id: str, *, expected: int | None = None) -> bool:
        """Free the name. The events go too, unless a fork still needs them. SessionBusy while a writer is at it;
        Conflict if it is not at `expected` any more; refused while it is held, or immutable."""

    @abstractmethod
    def apply_erasure(self, log: Log, drafts: Sequence[Draft], burial: ErasurePlan) -> AppendResult:
        """Remove payloads and what was made of them, and append the record of it, all or nothing. Conflict if one of
        the logs has moved since the burial was planned."""

    @abstractmethod
    def due_for_sweep(self, now: int, *, limit: int) -> list[TenantLog]:
        """Sessions that the sweep should look at; of every tenant, if this store is bound to none."""

    @abstractmethod
    def logs_with_queued_runs(self, *, after: int = 0, limit: int = 100) -> list[TenantLog]:
        """Sessions with admitted runs that are not over, by number, and who is at them; of every tenant, if this store
        is bound to none."""

    def tidy(self, *, max_bytes: int | None = None) -> None:
        """Clear away what a removal left behind. Rewrites no file that is larger than `max_bytes`."""

    @abstractmethod
    def schedule_sweep(self, log: Log, due: int | None) -> None:
        """When the sweep should look at a log again; None: not before its retention, hold or life changes."""

    @abstractmethod
    def append(
        self,
        log: Log,
        drafts: Sequence[Draft],
        *,
        once: str | None = None,
        epoch: int | None = None,
        expected: int | None = None,
        claim: Claim | None = None,
        release: bool = False,
    ) -> AppendResult:
        """The one write primitive: check key, limits, fence and head; then write events and projections together."""

    @abstractmethod
    def head(self, log: Log) -> Head:
        """Where the log stands now."""

    @abstractmethod
    def info(self, log: Log) -> Info: ...

    @abstractmethod
    def sessions(
        self,
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: str | Log | None = None,
        parent: int | None = None,
    ) -> list[Info]:
        """Sessions in the order of their log numbers, newest first; `after` is the last one of the page before: its
        log, or its id. An id that is not there any more is found by `check_deleted_id`."""

    @abstractmethod
    def id_of_number(self, number: int) -> str | None:
        """The name of a log of this tenant, by its number; None once it is deleted."""

    # -- logs by number, deleted ones included: forks may still read them ---------------------------------------------

    @abstractmethod
    def log_of_number(self, number: int) -> Log:
        """The log; its id is empty once it is deleted."""

    @abstractmethod
    def descendants(self, number: int) -> list[Log]:
        """The logs that read from this one."""

    @abstractmethod
    def head_of_number(self, number: int) -> Head: ...

    @abstractmethod
    def heads(self, numbers: Sequence[int]) -> dict[int, int]:
        """The last seq of each of these logs that is not deleted, read at once: what readers of streams ask again and
        again."""

    def blob_of_number(self, number: int, digest: str) -> bytes | None:
        """The bytes, if this very log holds them."""
        return self._blob(number, digest)

    # -- leases ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def renew(self, log: Log, epoch: int, seconds: float) -> None:
        """Hold the lease for `seconds` from now; StaleEpoch if another process took it."""

    @abstractmethod
    def lease(self, log: Log) -> Lease | None: ...

    # -- reading one log, without its ancestors --------------------------------------------------------------------

    @abstractmethod
    def _scan(
        self,
        number: int,
        first: int,
        last: int,
        *,
        limit: int | None,
        reverse: bool,
        types: Sequence[str] | None,
        marked: bool,
        since: int | None,
    ) -> list[Row]: ...

    @abstractmethod
    def _count(self, number: int, first: int, last: int) -> int:
        """How many messages the range holds."""

    @abstractmethod
    def _find_name(self, number: int, name: str, at: int) -> tuple[bool, Row | None, int | None]:
        """(found, the event if this log holds it, its seq if another one does)."""

    @abstractmethod
    def _list_names(self, number: int, prefix: str, at: int) -> list[tuple[str, int | None]]:
        """The newest (name, ref) of each name with the prefix."""

    @abstractmethod
    def _snapshot(self, number: int, at: int) -> tuple[int, bytes] | None:
        """The newest snapshot at or before `at`."""

    @abstractmethod
    def _blob(self, number: int, digest: str) -> bytes | None: ...

    @abstractmethod
    def _search(
        self, log: Log, words: Sequence[str], segments: Iterable[tuple[int, int, int]], limit: int
    ) -> list[int]:
        """The last `limit` seqs of messages that hold all words, oldest first."""

    @abstractmethod
    def word_matches(self, log: Log, words: Sequence[str]) -> dict[str, list[int]]:
        """Of each word the events of this very log whose indexed text holds it, in order; SearchUnavailable if the log
        is encrypted."""

    # -- reading with ancestors ------------------------------------------------------------------------------------

    def read(
        self,
        log: Log,
        first: int = 1,
        last: int = MAX_SEQ,
        *,
        limit: int | None = None,
        reverse: bool = False,
        types: Sequence[str] | None = None,
        marked: bool = False,
        since: int | None = None,
    ) -> list[Row]:
        """Rows of a range in order of seq, or the last ones first."""
        if first > MAX_SEQ:
            return []
        if first > log.base:  # no ancestors involved: the common case
            return self._scan(
                log.number, first, last, limit=limit, reverse=reverse, types=types, marked=marked, since=since
            )
        found: list[Row] = []
        segments = log.segments(first, last)
        for number, lo, hi in reversed(segments) if reverse else segments:
            rest = None if limit is None else limit - len(found)
            if rest == 0:
                break
            found += self._scan(number, lo, hi, limit=rest, reverse=reverse, types=types, marked=marked, since=since)
        return found

    def walk(self, log: Log, first: int = 1, last: int = MAX_SEQ) -> Iterator[Row]:
        """Every row of a range, a page at a time."""
        while rows := self.read(log, first, last, limit=PAGE):
            yield from rows
            first = rows[-1].seq + 1

    def event(self, log: Log, seq: int) -> Event:
        rows = self.read(log, seq, seq)
        if not rows:
            raise InvalidArgument(f"there is no event {seq} in session {log.id!r}")
        return Event(rows[0])

    def lookup(self, log: Log, name: str, at: int | None = None) -> Event | None:
        """The event that gives `name` its value, now or at a past point."""
        limit = MAX_SEQ if at is None else at
        if limit > log.base:
            found, row, ref = self._find_name(log.number, name, limit)
            if found:
                return self._load_ref(log, row, ref)
        for number, end in reversed(log.ancestry):
            found, row, ref = self._find_name(number, name, min(limit, end))
            if found:
                return self._load_ref(log, row, ref)
        return None

    def _load_ref(self, log: Log, row: Row | None, ref: int | None) -> Event | None:
        if row is None and ref is not None:
            rows = self.read(log, ref, ref)
            if not rows:
                raise CorruptLog(f"event {ref} of session {log.id!r} is missing: verify the session")
            row = rows[0]
        return None if row is None else Event(row)

    def value(self, log: Log, name: str, default: object = None, at: int | None = None) -> Any:  # noqa: ANN401 - JSON
        event = self.lookup(log, name, at)
        return default if event is None or event.erased else value_of(name, event.type, event.data)

    def refs(self, log: Log, prefix: str, at: int | None = None) -> dict[str, int | None]:
        """Every name with the prefix, and the event that holds its value (None: removed), in order of name."""
        limit = MAX_SEQ if at is None else at
        found: dict[str, int | None] = {}
        for number, end in (*log.ancestry, (log.number, MAX_SEQ)):
            found.update(self._list_names(number, prefix, min(limit, end)))
        return dict(sorted(found.items()))

    def values(self, log: Log, prefix: str, at: int | None = None) -> dict[str, Any]:
        """The values of all names with the prefix, without the prefix."""
        found = {}
        for name, ref in self.refs(log, prefix, at).items():
            if ref is not None:
                event = self.event(log, ref)
                if not event.erased:
                    found[name[len(prefix) :]] = value_of(name, event.type, event.data)
        return found

    def view(self, log: Log, at: int | None = None) -> View:
        """The view now, or as it was after event `at`."""
        head = self.head(log)
        if at is None or at >= head.head:
            return decode_view(head.view)
        if at < 1:
            return View()
        snapshot = None
        for number, _first, last in reversed(log.segments(1, at)):
            snapshot = self._snapshot(number, last)
            if snapshot is not None:
                break
        start, view = (0, View()) if snapshot is None else (snapshot[0], decode_view(snapshot[1]))
        return fold(view, map(Event, self.read(log, start + 1, at, marked=True)))

    def fork_point(self, log: Log, at: int | None = None) -> Fork:
        """The point after event `at` (now, by default) as a place to fork; inside a turn that means before it."""
        head = self.head(log)
        point = head.head if at is None else at
        view = self.view(log, point) if point < head.head else decode_view(head.view)
        if view.turn is not None:
            point = view.turn.first - 1
            view = self.view(log, point)
        if point == head.head:
            return Fork(parent=log, at=point, hash=head.hash, tokens=head.tokens, view=view, is_head=True)
        rows = self.read(log, point, point)
        if not rows:
            raise SessionNotFound(log.id)
        return Fork(parent=log, at=point, hash=rows[0].hash, tokens=rows[0].tokens, view=view)

    def rebuild_view(self, log: Log) -> View:
        """Return the view folded from the first event, without a cache. It must be equal to `view(log)`."""
        return verification.rebuild_view(self, log)

    def count(self, log: Log, ranges: Ranges) -> int:
        """How many messages the ranges hold."""
        pieces = [piece for first, last in ranges for piece in log.segments(first, last or MAX_SEQ)]
        return sum(self._count(*piece) for piece in pieces)

    def blob(self, log: Log, digest: str) -> bytes:
        for number in (log.number, *(number for number, _ in reversed(log.ancestry))):
            data = self._blob(number, digest)
            if data is not None:
                return data
        self.head(log)  # SessionNotFound, if it was deleted while we were reading
        raise CorruptLog(f"the bytes {digest[:12]}… of session {log.id!r} are missing: verify the session")

    def search(self, log: Log, words: Sequence[str], ranges: Ranges, limit: int) -> list[int]:
        """The seqs of the last `limit` visible messages that hold all the words, oldest first."""
        segments = [piece for first, last in ranges for piece in log.segments(first, last or MAX_SEQ)]
        return self._search(log, words, segments, limit)

    def verify(self, log: Log, keys: PublicKeys | None = None) -> chain.Verification:
        """Check the chain from the first event of the first ancestor to the head; with keys, its signed head too."""
        return verification.verify(self, log, keys)

    def require(self, kind: str, id: str) -> Log:
        log = self.find(kind, id)
        if log is None:
            raise SessionNotFound(id)
        return log
