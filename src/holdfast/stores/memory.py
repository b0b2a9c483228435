"""Logs in memory: the same plans, bytes and refusals as the other stores, for the life of one process."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.crashpoints import crashpoint
from holdfast.errors import Conflict, SessionBusy, SessionExists, StaleEpoch
from holdfast.log.events import Draft, Row
from holdfast.log.messages import Limits
from holdfast.stores.append import (
    AppendBatch,
    AppendRequest,
    AppendResult,
    Head,
    agrees_with_remains,
    check_append,
    first_head,
    head_of_fork,
    plan_append,
    refuse_removal,
    repeat_outcome,
)
from holdfast.stores.base import Fork, Log, TenantLog
from holdfast.stores.erasure import INVALIDATING_TYPES, ErasurePlan, draft_notices
from holdfast.stores.kept_answers import ANSWER_LINKS, ANSWERS, key_range
from holdfast.stores.key_values import MemoryKeyValues
from holdfast.stores.lease import Claim, Lease
from holdfast.stores.memory_reads import ClosedLock, LogInMemory, MemoryReads, SharedLogs
from holdfast.stores.removal import find_remaining_past, make_tombstones, named_digests
from holdfast.stores.rows import new_log, replay_rows
from holdfast.stores.usage import MemoryUsage


class MemoryStore(MemoryKeyValues, MemoryUsage, MemoryReads):
    """Sessions that live as long as the process: for tests, and the default when no store is named."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, limits: Limits | None = None, tenant: str = "") -> None:
        super().__init__(clock=clock, limits=limits, tenant=tenant)
        self._memory = SharedLogs()

    def close(self) -> None:
        """Refuse all further operations, as the other stores do. What is here goes with the object."""
        self._memory.lock = ClosedLock()

    @property
    def is_closed(self) -> bool:
        return isinstance(self._memory.lock, ClosedLock)

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
    ) -> AppendResult:
        asked = check_append(
            drafts, limits=self.limits, once=once, epoch=epoch, expected=expected, claim=claim, release=release
        )
        with self._memory.lock:
            kept = self._require_log(log)
            if asked.idempotency_key is not None and asked.idempotency_key in kept.idempotency:
                found = kept.idempotency[asked.idempotency_key]
                is_same = found.digest == asked.digest
                if not found.digest:
                    start = max(0, found.first - 2 - log.base)
                    is_same = agrees_with_remains(asked, found.first, kept.rows[start : found.last - log.base])
                return repeat_outcome(log.id, asked, is_same, found.first, found.last, kept.head.epoch)
            batch = self._plan_batch(kept, asked)
            if batch.memories and self.allowances:
                self._check_growth(memories=len({*batch.memories} - kept.names.keys()))
            self._commit(kept, [batch])
            return batch.outcome

    def _plan_batch(self, kept: LogInMemory, asked: AppendRequest) -> AppendBatch:
        lease = None if asked.claim is None else self._lease(kept)
        return plan_append(
            kept.log.id, kept.head, asked, lease=lease, at=self.clock.now(), random=self.clock.random_bytes
        )

    def _commit(self, kept: LogInMemory, batches: Iterable[AppendBatch]) -> None:
        """Make planned batches real. A store that writes elsewhere first overrides this."""
        crashpoint("before commit")
        for batch in batches:
            self._write(kept, batch)
        crashpoint("after commit")

    def _write(self, kept: LogInMemory, batch: AppendBatch) -> None:
        kept.rows += batch.rows
        kept.changes_view += batch.changes_view
        for name, seq, ref in batch.names:
            seqs, refs = kept.names.setdefault(name, ([], []))
            seqs.append(seq)
            refs.append(ref)
        for digest, data in batch.blobs.items():
            kept.blobs.setdefault(digest, data)
        if batch.idempotency is not None:
            kept.idempotency[batch.idempotency[0]] = batch.idempotency[1]
        if batch.snapshot is not None:
            kept.snapshots.append((batch.head.head, batch.snapshot))
        if batch.changed_columns is not None:
            kept.columns |= copy.deepcopy(batch.changed_columns)
        if batch.retention_row is not None:
            kept.retention_row, kept.due = batch.retention_row, 0
        if batch.claim is not None:
            kept.lease = (batch.head.epoch, batch.claim.holder, self.clock.monotonic() + batch.claim.seconds)
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
        created_at: int | None = None,
    ) -> Log:
        asked = check_append(drafts, limits=self.limits)
        with self._memory.lock:
            self._check_free(kind, id)
            if fork is not None:
                self._require_log(fork.parent)
            now = self.clock.now()
            uid = self.clock.new_id()
            if fork is None:
                owner = (user_id, app_name)
                kept = self._new(kind, id, uid, uid, created_at or now, first_head(uid, now), owner, None)
            else:
                head = head_of_fork(fork, now)
                kept = self._new(kind, id, uid, fork.parent.origin, now, head, (user_id, app_name), fork)
            batch = self._plan_batch(kept, asked)
            self._add(kept)
            try:
                self._commit(kept, [batch])
            except BaseException:
                self._drop(kept)
                raise
            return kept.log

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
        asked = check_append(drafts, limits=self.limits)
        with self._memory.lock:
            self._check_free(kind, id)
            now = self.clock.now()
            head = first_head(origin, now)
            kept = self._new(
                kind, id, self.clock.new_id(), origin, now, head, (of.get("user_id"), of.get("app_name")), None
            )
            parent = of.get("parent")
            if parent is not None:
                kept.log = kept.log._replace(parent=self._number(parent))
            batches = list(replay_rows(head, rows, blobs))
            if batches:
                kept.head = batches[-1].head
            batches.append(self._plan_batch(kept, asked))
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
    ) -> LogInMemory:
        log = new_log(self._number(uid), uid, origin, kind, id, now, owner, fork)
        return LogInMemory(log, self.tenant, head)

    def _number(self, uid: str) -> int:
        """The number of a new log: larger than those before, and never used again."""
        self._memory.last_number += 1
        return self._memory.last_number

    def _check_free(self, kind: str, id: str) -> None:
        if (self.tenant, kind, id) in self._memory.names:
            raise SessionExists(id)

    def _add(self, kept: LogInMemory) -> None:
        if kept.log.kind == "session" and self.allowances:
            self._check_growth(sessions=1, forks=int(kept.log.parent is not None))
        self._memory.logs[kept.log.number] = kept
        self._memory.names[kept.tenant, kept.log.kind, kept.log.id] = kept.log.number

    def _drop(self, kept: LogInMemory) -> None:
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
            refuse_removal(id, kept.head, self._lease(kept), self.clock.now())
            del self._memory.names[self.tenant, kind, id]
            self._drop_answers(kept)
            kept.deleted = True
            self._purge(number)
            return True

    def apply_erasure(self, log: Log, drafts: Sequence[Draft], burial: ErasurePlan) -> AppendResult:
        asked = check_append(drafts, limits=self.limits)
        with self._memory.lock:
            mine = self._require_log(log)
            for number in burial.living:
                if number not in self._memory.logs or self._memory.logs[number].deleted:
                    raise Conflict(log.id, expected=burial.heads[log.number], head=mine.head.head)
            for number, planned in burial.heads.items():
                kept = self._memory.logs.get(number)
                if kept is None or (
                    kept.head.head != planned
                    and not (
                        burial.allows_unrelated_appends and not self._added_since(kept, planned, INVALIDATING_TYPES)
                    )
                ):
                    raise Conflict(log.id, expected=planned, head=0 if kept is None else kept.head.head)
            for number, readers in burial.readers.items():  # a fork may be new since the plan
                if readers != {other.number for other in self.descendants(number)}:
                    raise Conflict(log.id, expected=burial.heads[number], head=burial.heads[number])
            lease = self._lease(mine)
            if log.number in burial.whole_logs and lease is not None and lease.is_alive:
                raise SessionBusy(log.id, retry_after=lease.remaining)
            told = [
                (self._memory.logs[other.number], check_append([draft], limits=self.limits))
                for other, draft in draft_notices(log, drafts, burial)
            ]
            others = [(kept, self._plan_batch(kept, each)) for kept, each in told]
            batch = self._plan_batch(mine, asked)
            self._commit_erasure(mine, batch, burial)
            for number in burial.touched_logs:
                self._drop_answers(self._memory.logs[number])
            for kept, one in others:
                self._write(kept, one)
            return batch.outcome

    def _drop_answers(self, kept: LogInMemory) -> None:
        """Drop the answers about a log."""
        (first, end), found = key_range((kept.log.kind, kept.log.id)), self._memory.key_values
        for tenant, space, key in list(found):
            if tenant == kept.tenant and space in (ANSWERS, ANSWER_LINKS) and first <= key < end and not kept.deleted:
                value, _ = found.pop((tenant, space, key))
                if space == ANSWER_LINKS:
                    found.pop((tenant, ANSWERS, value), None)

    def _added_since(self, kept: LogInMemory, seq: int, types: Sequence[str]) -> bool:
        return any(row.type in types for row in kept.rows[max(0, seq - kept.log.base) :])

    def _commit_erasure(self, mine: LogInMemory, batch: AppendBatch, burial: ErasurePlan) -> None:
        """Carry a burial out. A store that writes elsewhere first overrides this."""
        crashpoint("inside burial")
        for number, stones in burial.tombstones.items():
            kept = self._memory.logs[number]
            for seq, stone in stones:
                _bury_row(kept, seq, stone)
                for key, once in kept.idempotency.items():
                    if once.first <= seq <= once.last:
                        kept.idempotency[key] = replace(once, digest=b"")
        for number, digests in burial.blobs.items():
            for digest in digests:
                self._memory.logs[number].blobs.pop(digest, None)
        for number, names in burial.names.items():
            for name, seq in names:
                _drop_name(self._memory.logs[number].names, name, seq)
        for number, columns in burial.columns.items():
            for column in columns:
                self._memory.logs[number].columns.pop(column, None)
        for number, last in burial.cuts.items():
            self._cut_rest(self._memory.logs[number], last)
        for number in burial.whole_logs:
            kept = self._memory.logs[number]
            kept.names, kept.idempotency, kept.blobs, kept.words = {}, {}, {}, {}
            kept.log = kept.log._replace(user_id=None)
        self._write(mine, batch)

    def due_for_sweep(self, now: int, *, limit: int) -> list[TenantLog]:
        with self._memory.lock:
            waiting = [
                (kept.due, number)
                for number, kept in self._memory.logs.items()
                if kept.due is not None and kept.due <= now and not kept.deleted and self.tenant in ("", kept.tenant)
            ]
            found = [self._memory.logs[number] for _, number in sorted(waiting)[:limit]]
            return [TenantLog(kept.tenant, kept.log) for kept in found]

    def logs_with_queued_runs(self, *, after: int = 0, limit: int = 100) -> list[TenantLog]:
        with self._memory.lock:
            found = [
                TenantLog(kept.tenant, kept.log, self._lease(kept))
                for number, kept in sorted(self._memory.logs.items())
                if number > after
                and not kept.deleted
                and self.tenant in ("", kept.tenant)
                and b'"queue":' in kept.head.view
            ]
            return found[:limit]

    def schedule_sweep(self, log: Log, due: int | None) -> None:
        with self._memory.lock:
            kept = self._memory.logs.get(log.number)
            if kept is not None:
                kept.due = due

    def _purge(self, number: int) -> None:
        """Remove a deleted log, except for the past that forks read; then do the same with its ancestors."""
        logs = self._memory.logs
        kept = logs.get(number)
        if kept is None or not kept.deleted:
            return
        readers = [other for other in logs.values() if number in other.log.ancestors]
        if readers:
            self._cut(kept, readers)
        else:
            del logs[number]
        for ancestor in reversed(kept.log.ancestors):
            self._purge(ancestor)

    def _cut(self, kept: LogInMemory, readers: Sequence[LogInMemory]) -> None:
        """Remove what no living fork needs of a deleted log."""
        base = kept.log.base
        named = [(other.log._replace(id="") if other.deleted else other.log, other.head.view) for other in readers]
        shown, chained = find_remaining_past(kept.log.number, named)
        count = max(0, chained - base)
        kept.rows, kept.changes_view = kept.rows[:count], kept.changes_view[:count]
        kept.idempotency, kept.lease, kept.retention_row, kept.due = {}, None, None, None
        for seq, stone in make_tombstones(kept.rows[max(0, shown - base) :]):
            _bury_row(kept, seq, stone)
        self._cut_rest(kept, shown)

    def _cut_rest(self, kept: LogInMemory, last: int) -> None:
        """Remove the names, words, snapshots and blobs of a deleted log that do not belong to its events up to
        `last`."""
        for name, (seqs, _) in list(kept.names.items()):
            for seq in [seq for seq in seqs if seq > last]:
                _drop_name(kept.names, name, seq)
        named = named_digests(kept.rows[: max(0, last - kept.log.base)])
        kept.blobs = {digest: data for digest, data in kept.blobs.items() if digest in named}
        kept.words = {seq: words for seq, words in kept.words.items() if seq <= last}
        kept.snapshots = [snapshot for snapshot in kept.snapshots if snapshot[0] <= last]

    # -- leases ----------------------------------------------------------------------------------------------------

    def _lease(self, kept: LogInMemory) -> Lease | None:
        if kept.lease is None:
            return None
        epoch, holder, expires = kept.lease
        return Lease(epoch=epoch, holder=holder, remaining=expires - self.clock.monotonic())

    def lease(self, log: Log) -> Lease | None:
        with self._memory.lock:
            return self._lease(self._require_log(log))

    def renew(self, log: Log, epoch: int, seconds: float) -> None:
        with self._memory.lock:
            kept = self._memory.logs.get(log.number)
            if kept is None or kept.lease is None or kept.lease[0] != epoch:
                raise StaleEpoch(log.id, epoch=epoch, current=kept.head.epoch if kept else epoch + 1)
            kept.lease = (epoch, kept.lease[1], self.clock.monotonic() + seconds)


def _bury_row(kept: LogInMemory, seq: int, stone: bytes) -> None:
    place = seq - kept.log.base - 1
    if place >= len(kept.rows):
        return  # cut off since this was planned
    row = kept.rows[place]
    kept.rows[place] = Row(row.seq, row.at, row.type, row.header, row.tokens, None, stone, row.hash)
    kept.words.pop(seq, None)


def _drop_name(names: dict[str, tuple[list[int], list[int | None]]], name: str, seq: int) -> None:
    seqs, refs = names[name]
    del refs[seqs.index(seq)], seqs[seqs.index(seq)]
    if not seqs:
        del names[name]
