"""Logs in memory: the same plans, bytes and refusals as the other stores, for one process and no longer than it."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.clock import REAL, Ids, crashpoint
from holdfast.errors import Conflict, InvalidArgument, SessionBusy, SessionExists, SessionNotFound, StaleEpoch
from holdfast.log.events import INDEXED_TYPES, MESSAGE_TYPES, Draft, Row
from holdfast.log.messages import Limits
from holdfast.log.view import view_of
from holdfast.stores.append import (
    Appended,
    Batch,
    Head,
    Keep,
    Once,
    Request,
    first_head,
    forked_head,
    plan,
    refuse_removal,
    repeated,
    request,
)
from holdfast.stores.base import MAX_SEQ, Due, Fork, Info, Log, Store
from holdfast.stores.erasure import DERIVING, Burial, shared_records
from holdfast.stores.key_values import MemorySlips
from holdfast.stores.lease import Claim, Lease
from holdfast.stores.rows import new_log, replay, searchable


class Kept:
    """One log as the memory keeps it."""

    def __init__(self, log: Log, tenant: str, head: Head) -> None:
        self.log, self.tenant, self.head = log, tenant, head
        self.deleted = False
        self.rows: list[Row] = []
        self.marked: list[bool] = []
        self.names: dict[str, tuple[list[int], list[int | None]]] = {}
        self.once: dict[str, Once] = {}
        self.blobs: dict[str, bytes] = {}
        self.snapshots: list[tuple[int, bytes]] = []
        self.lease: tuple[int, bytes, float] | None = None  # epoch, holder, expires
        self.columns: dict[str, Any] = {"status": view_of(head.view).status}
        self.words: dict[int, frozenset[str]] = {}
        self.keep: Keep | None = None
        self.due: int | None = None  # when the sweep looks at it


class Memory:
    """What the store objects of all tenants share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.logs: dict[int, Kept] = {}
        self.names: dict[tuple[str, str, str], int] = {}
        self.last = 0
        self.slips: dict[tuple[str, str, bytes], tuple[bytes, int | None]] = {}  # value, expires


class MemoryStore(MemorySlips, Store):
    """Sessions that live as long as the process: for tests, and the default when no store is named."""

    def __init__(self, *, ids: Ids = REAL, limits: Limits | None = None, tenant: str = "") -> None:
        super().__init__(ids=ids, limits=limits, tenant=tenant)
        self._memory = Memory()

    def close(self) -> None:
        """Nothing to close: what is here goes with the object."""

    # -- the write primitive ---------------------------------------------------------------------------------------

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
    ) -> Appended:
        asked = request(
            drafts, limits=self.limits, once=once, epoch=epoch, expected=expected, claim=claim, release=release
        )
        with self._memory.lock:
            kept = self._kept(log)
            if asked.once is not None and asked.once in kept.once:
                found = kept.once[asked.once]
                return repeated(log.id, asked, found.digest == asked.digest, found.first, found.last, kept.head.epoch)
            batch = self._planned(kept, asked)
            self._commit(kept, [batch])
            return batch.outcome

    def _planned(self, kept: Kept, asked: Request) -> Batch:
        lease = None if asked.claim is None else self._lease(kept)
        return plan(kept.log.id, kept.head, asked, lease=lease, at=self.ids.now(), random=self.ids.random)

    def _commit(self, kept: Kept, batches: Iterable[Batch]) -> None:
        """Make planned batches real. A store that writes elsewhere first overrides this."""
        crashpoint("before commit")
        for batch in batches:
            self._write(kept, batch)
        crashpoint("after commit")

    def _write(self, kept: Kept, batch: Batch) -> None:
        kept.rows += batch.rows
        kept.marked += batch.marked
        for name, seq, ref in batch.names:
            seqs, refs = kept.names.setdefault(name, ([], []))
            seqs.append(seq)
            refs.append(ref)
        for digest, data in batch.blobs.items():
            kept.blobs.setdefault(digest, data)
        if batch.once is not None:
            kept.once[batch.once[0]] = batch.once[1]
        if batch.snapshot is not None:
            kept.snapshots.append((batch.head.head, batch.snapshot))
        if batch.session is not None:
            kept.columns |= copy.deepcopy(batch.session)
        if batch.keep is not None:
            kept.keep, kept.due = batch.keep, 0
        if batch.claim is not None:
            kept.lease = (batch.head.epoch, batch.claim.holder, self.ids.elapsed() + batch.claim.seconds)
        if batch.release and kept.lease is not None and kept.lease[0] == batch.head.epoch:
            kept.lease = None
        kept.head = batch.head

    # -- making and removing logs ----------------------------------------------------------------------------------

    def create(
        self,
        kind: str,
        id: str,
        drafts: Sequence[Draft],
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        fork: Fork | None = None,
    ) -> Log:
        asked = request(drafts, limits=self.limits)
        with self._memory.lock:
            self._check_free(kind, id)
            if fork is not None:
                self._kept(fork.parent)
            now = self.ids.now()
            uid = self.ids.new()
            if fork is None:
                kept = self._new(kind, id, uid, uid, now, first_head(uid, now), (user_id, app_name), None)
            else:
                head = forked_head(fork, now)
                kept = self._new(kind, id, uid, fork.parent.origin, now, head, (user_id, app_name), fork)
            batch = self._planned(kept, asked)
            self._add(kept)
            try:
                self._commit(kept, [batch])
            except BaseException:
                self._drop(kept)
                raise
            return kept.log

    def adopt(
        self,
        kind: str,
        id: str,
        origin: str,
        rows: Sequence[Row],
        blobs: dict[str, bytes],
        drafts: Sequence[Draft],
        **of: str | None,
    ) -> Log:
        asked = request(drafts, limits=self.limits)
        with self._memory.lock:
            self._check_free(kind, id)
            now = self.ids.now()
            head = first_head(origin, now)
            kept = self._new(kind, id, self.ids.new(), origin, now, head, (of.get("user_id"), of.get("app_name")), None)
            parent = of.get("parent")
            if parent is not None:
                kept.log = kept.log._replace(parent=self._number(parent))
            batches = list(replay(head, rows, blobs))
            if batches:
                kept.head = batches[-1].head
            batches.append(self._planned(kept, asked))
            self._add(kept)
            try:
                self._commit(kept, batches)
            except BaseException:
                self._drop(kept)
                raise
            return kept.log

    def _new(
        self,
        kind: str,
        id: str,
        uid: str,
        origin: str,
        now: int,
        head: Head,
        owner: tuple[str | None, str | None],
        fork: Fork | None,
    ) -> Kept:
        log = new_log(self._number(uid), uid, origin, kind, id, now, owner, fork)
        return Kept(log, self.tenant, head)

    def _number(self, uid: str) -> int:
        """The number of a new log: larger than those before, and never used again."""
        self._memory.last += 1
        return self._memory.last

    def _check_free(self, kind: str, id: str) -> None:
        if (self.tenant, kind, id) in self._memory.names:
            raise SessionExists(id)

    def _add(self, kept: Kept) -> None:
        self._memory.logs[kept.log.number] = kept
        self._memory.names[kept.tenant, kept.log.kind, kept.log.id] = kept.log.number

    def _drop(self, kept: Kept) -> None:
        del self._memory.logs[kept.log.number]
        del self._memory.names[kept.tenant, kept.log.kind, kept.log.id]

    def remove(self, kind: str, id: str, *, expected: int | None = None) -> bool:
        with self._memory.lock:
            number = self._memory.names.get((self.tenant, kind, id))
            if number is None:
                return False
            kept = self._memory.logs[number]
            if expected not in (None, kept.head.head):
                raise Conflict(id, expected=expected or 0, head=kept.head.head)
            refuse_removal(id, kept.head, self._lease(kept), self.ids.now())
            del self._memory.names[self.tenant, kind, id]
            kept.deleted = True
            self._purge(number)
            return True

    def bury(self, log: Log, drafts: Sequence[Draft], burial: Burial) -> Appended:
        asked = request(drafts, limits=self.limits)
        with self._memory.lock:
            mine = self._memory.logs.get(log.number)
            if mine is None:
                raise SessionNotFound(log.id)
            for number, planned in burial.heads.items():
                kept = self._memory.logs.get(number)
                if kept is None or (
                    kept.head.head != planned
                    and not (burial.bears_company and not self._added_since(kept, planned, DERIVING))
                ):
                    raise Conflict(log.id, expected=planned, head=0 if kept is None else kept.head.head)
            for number, readers in burial.readers.items():  # somebody may have forked meanwhile
                if readers != {other.number for other in self.sharers(number)}:
                    raise Conflict(log.id, expected=burial.heads[number], head=burial.heads[number])
            lease = self._lease(mine)
            if burial.whole and lease is not None and lease.alive:
                raise SessionBusy(log.id, retry_after=lease.remaining)
            told = [
                (self._memory.logs[other.number], request([draft], limits=self.limits))
                for other, draft in shared_records(log, drafts, burial)
            ]
            others = [(kept, self._planned(kept, each)) for kept, each in told]
            batch = self._planned(mine, asked)
            self._commit_burial(mine, batch, burial)
            for kept, one in others:
                self._write(kept, one)
            return batch.outcome

    def _added_since(self, kept: Kept, seq: int, types: Sequence[str]) -> bool:
        return any(row.type in types for row in kept.rows[max(0, seq - kept.log.base) :])

    def _commit_burial(self, mine: Kept, batch: Batch, burial: Burial) -> None:
        """Carry a burial out. A store that writes elsewhere first overrides this."""
        crashpoint("inside burial")
        for number, stones in burial.tombs.items():
            kept = self._memory.logs[number]
            for seq, stone in stones:
                place = seq - kept.log.base - 1
                row = kept.rows[place]
                kept.rows[place] = Row(row.seq, row.at, row.type, row.header, row.tokens, None, stone, row.hash)
                kept.words.pop(seq, None)
                for key, once in kept.once.items():
                    if once.first <= seq <= once.last:
                        kept.once[key] = replace(once, digest=b"")
        for number, digests in burial.blobs.items():
            for digest in digests:
                self._memory.logs[number].blobs.pop(digest, None)
        for number, names in burial.names.items():
            for name, seq in names:
                _drop_name(self._memory.logs[number].names, name, seq)
        for number, columns in burial.columns.items():
            for column in columns:
                self._memory.logs[number].columns.pop(column, None)
        for number in burial.whole:
            kept = self._memory.logs[number]
            kept.names, kept.once, kept.blobs, kept.words = {}, {}, {}, {}
            kept.log = kept.log._replace(user_id=None)
        self._write(mine, batch)

    def due(self, now: int, *, limit: int) -> list[Due]:
        with self._memory.lock:
            waiting = [
                (kept.due, number)
                for number, kept in self._memory.logs.items()
                if kept.due is not None and kept.due <= now and not kept.deleted and self.tenant in ("", kept.tenant)
            ]
            found = [self._memory.logs[number] for _, number in sorted(waiting)[:limit]]
            return [Due(kept.tenant, kept.log) for kept in found]

    def work(self, *, after: int = 0, limit: int = 100) -> list[Due]:
        with self._memory.lock:
            found = [
                Due(kept.tenant, kept.log, self._lease(kept))
                for number, kept in sorted(self._memory.logs.items())
                if number > after
                and not kept.deleted
                and self.tenant in ("", kept.tenant)
                and b'"queue":' in kept.head.view
            ]
            return found[:limit]

    def put_off(self, log: Log, due: int | None) -> None:
        with self._memory.lock:
            kept = self._memory.logs.get(log.number)
            if kept is not None:
                kept.due = due

    def _purge(self, number: int) -> None:
        """Remove a dead log for good, unless another one needs it; then whatever was only waiting for it."""
        logs = self._memory.logs
        kept = logs.get(number)
        if kept is None or not kept.deleted or any(number in other.log.forebears for other in logs.values()):
            return
        del logs[number]
        for ancestor in reversed(kept.log.forebears):
            self._purge(ancestor)

    # -- leases ----------------------------------------------------------------------------------------------------

    def _lease(self, kept: Kept) -> Lease | None:
        if kept.lease is None:
            return None
        epoch, holder, expires = kept.lease
        return Lease(epoch=epoch, holder=holder, remaining=expires - self.ids.elapsed())

    def lease(self, log: Log) -> Lease | None:
        with self._memory.lock:
            return self._lease(self._kept(log))

    def renew(self, log: Log, epoch: int, seconds: float) -> None:
        with self._memory.lock:
            kept = self._memory.logs.get(log.number)
            if kept is None or kept.lease is None or kept.lease[0] != epoch:
                raise StaleEpoch(log.id, epoch=epoch, current=kept.head.epoch if kept else epoch + 1)
            kept.lease = (epoch, kept.lease[1], self.ids.elapsed() + seconds)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _kept(self, log: Log) -> Kept:
        kept = self._memory.logs.get(log.number)
        if kept is None or kept.deleted:
            raise SessionNotFound(log.id)
        return kept

    def find(self, kind: str, id: str) -> Log | None:
        with self._memory.lock:
            number = self._memory.names.get((self.tenant, kind, id))
            return None if number is None else self._memory.logs[number].log

    def heads(self, numbers: Sequence[int]) -> dict[int, int]:
        with self._memory.lock:
            found = {number: self._memory.logs.get(number) for number in numbers}
            return {number: kept.head.head for number, kept in found.items() if kept is not None and not kept.deleted}

    def head(self, log: Log) -> Head:
        with self._memory.lock:
            return self._kept(log).head

    def log_of(self, number: int) -> Log:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            if kept is None:
                raise SessionNotFound(str(number))
            return kept.log._replace(id="") if kept.deleted else kept.log

    def sharers(self, number: int) -> list[Log]:
        with self._memory.lock:
            return [kept.log for _, kept in sorted(self._memory.logs.items()) if number in kept.log.forebears]

    def bare_head(self, number: int) -> Head:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            if kept is None:
                raise SessionNotFound(str(number))
            return kept.head

    def id_of(self, number: int) -> str | None:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            return kept.log.id if kept is not None and kept.tenant == self.tenant and not kept.deleted else None

    def info(self, log: Log) -> Info:
        with self._memory.lock:
            return _info(self._kept(log))

    def sessions(
        self,
        *,
        user_id: str | None = None,
        app_name: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: str | None = None,
        parent: int | None = None,
    ) -> list[Info]:
        with self._memory.lock:
            last = None
            if after is not None:
                last = self._memory.names.get((self.tenant, "session", after))
                if last is None:
                    raise InvalidArgument(f"after={after!r} is not a session here: start from the first page")
            found: list[Info] = []
            for number in sorted(self._memory.logs, reverse=True):
                kept = self._memory.logs[number]
                log = kept.log
                if (
                    (last is None or number < last)
                    and not kept.deleted
                    and (kept.tenant, log.kind) == (self.tenant, "session")
                    and user_id in (None, log.user_id)
                    and app_name in (None, log.app_name)
                    and status in (None, kept.columns["status"])
                    and parent in (None, log.parent)
                    and len(found) < limit
                ):
                    found.append(_info(kept))
            return found

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
    ) -> list[Row]:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            if kept is None:
                return []
            base = kept.log.base
            places = range(max(first - base - 1, 0), min(last - base, len(kept.rows)))
            found: list[Row] = []
            for place in reversed(places) if reverse else places:
                row = kept.rows[place]
                if len(found) == limit:
                    break
                if (
                    (not types or row.type in types)
                    and (not marked or kept.marked[place])
                    and (since is None or row.at >= since)
                ):
                    found.append(row)
            return found

    def _count(self, number: int, first: int, last: int) -> int:
        return len(
            self._scan(number, first, last, limit=None, reverse=False, types=MESSAGE_TYPES, marked=False, since=None)
        )

    def _name(self, number: int, name: str, at: int) -> tuple[bool, Row | None, int | None]:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            if kept is None or name not in kept.names:
                return False, None, None
            seqs, refs = kept.names[name]
            place = bisect_right(seqs, at) - 1
            if place < 0:
                return False, None, None
            ref = refs[place]
            if ref is None or ref <= kept.log.base:
                return True, None, ref
            return True, kept.rows[ref - kept.log.base - 1], ref

    def _names(self, number: int, prefix: str, at: int) -> list[tuple[str, int | None]]:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            found: list[tuple[str, int | None]] = []
            for name, (seqs, refs) in kept.names.items() if kept else ():
                place = bisect_right(seqs, at) - 1
                if name.startswith(prefix) and place >= 0:
                    found.append((name, refs[place]))
            return found

    def _snapshot(self, number: int, at: int) -> tuple[int, bytes] | None:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            before = [snapshot for snapshot in kept.snapshots if snapshot[0] <= at] if kept else []
            return before[-1] if before else None

    def _blob(self, number: int, digest: str) -> bytes | None:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            return None if kept is None else kept.blobs.get(digest)

    def _search(
        self, log: Log, words: Sequence[str], segments: Iterable[tuple[int, int, int]], limit: int
    ) -> list[int]:
        found: list[int] = []
        wanted = set(words)
        with self._memory.lock:
            for number, first, last in reversed(list(segments)):
                for row in self._scan(
                    number, first, last, limit=None, reverse=True, types=MESSAGE_TYPES, marked=False, since=None
                ):
                    if len(found) < limit and wanted <= self._words(number, row):
                        found.append(row.seq)
        return found[::-1]

    def hits(self, log: Log, words: Sequence[str]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {word: [] for word in words}
        with self._memory.lock:
            for row in self._scan(
                log.number, 1, MAX_SEQ, limit=None, reverse=False, types=INDEXED_TYPES, marked=False, since=None
            ):
                for word in self._words(log.number, row) & found.keys():
                    found[word].append(row.seq)
        return found

    def _words(self, number: int, row: Row) -> frozenset[str]:
        kept = self._memory.logs[number]
        if row.seq not in kept.words:
            kept.words[row.seq] = frozenset(searchable(row).split())
        return kept.words[row.seq]


def _drop_name(names: dict[str, tuple[list[int], list[int | None]]], name: str, seq: int) -> None:
    seqs, refs = names[name]
    del refs[seqs.index(seq)], seqs[seqs.index(seq)]
    if not seqs:
        del names[name]


def _info(kept: Kept) -> Info:
    columns = kept.columns
    return Info(
        log=kept.log,
        status=columns["status"],
        title=columns.get("title"),
        metadata=copy.deepcopy(columns.get("metadata") or {}),
        work_dir=columns.get("work_dir"),
        updated_at=kept.head.updated_at,
    )
