"""The logs of a store in memory, and its reads. Every read takes the lock of all logs."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from holdfast.errors import SessionNotFound, StoreClosed
from holdfast.log.events import INDEXED_TYPES, MESSAGE_TYPES, Row
from holdfast.log.view import decode_view
from holdfast.stores.append import Head, IdempotencyRecord, RetentionRow
from holdfast.stores.base import MAX_SEQ, Info, Log, Store, TenantLog
from holdfast.stores.rows import check_deleted_id, index_text
from holdfast.stores.signatures import HeadToSign
from holdfast.stores.signing_keys import SignedHead


class LogInMemory:
    """One log in memory."""

    def __init__(self, log: Log, tenant: str, head: Head) -> None:
        self.log, self.tenant, self.head = log, tenant, head
        self.deleted = False
        self.rows: list[Row] = []
        self.changes_view: list[bool] = []
        self.names: dict[str, tuple[list[int], list[int | None]]] = {}
        self.idempotency: dict[str, IdempotencyRecord] = {}
        self.blobs: dict[str, bytes] = {}
        self.snapshots: list[tuple[int, bytes]] = []
        self.lease: tuple[int, bytes, float] | None = None  # epoch, holder, expires
        self.columns: dict[str, Any] = {"status": decode_view(head.view).status}
        self.words: dict[int, frozenset[str]] = {}
        self.retention_row: RetentionRow | None = None
        self.due: int | None = None  # time of the next sweep
        self.signed: SignedHead | None = None
        self.is_anchored = True


class ClosedLock:
    """The lock of a closed store. Each operation takes the lock first, so each one is refused."""

    def __enter__(self) -> NoReturn:
        raise StoreClosed("this store was closed: open a new one")

    def __exit__(self, *_: object) -> None:
        pass


class SharedLogs:
    """The logs and values that the store objects of all tenants share."""

    def __init__(self) -> None:
        self.lock: AbstractContextManager[object] = threading.RLock()
        self.logs: dict[int, LogInMemory] = {}
        self.names: dict[tuple[str, str, str], int] = {}
        self.last_number = 0
        self.key_values: dict[tuple[str, str, bytes], tuple[bytes, int | None]] = {}  # value, expires
        self.settled: dict[int, dict[str, int]] = {}  # usage of a session that was added to that of a day
        self.days: dict[tuple[str, str | None], tuple[int, int, float]] = {}  # day, tokens and cost, by tenant and user


class MemoryReads(Store):
    """The reads of a store in memory."""

    _memory: SharedLogs

    def _require_log(self, log: Log) -> LogInMemory:
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
            return self._require_log(log).head

    def log_of_number(self, number: int) -> Log:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            if kept is None:
                raise SessionNotFound(str(number))
            return kept.log._replace(id="") if kept.deleted else kept.log

    def descendants(self, number: int) -> list[Log]:
        with self._memory.lock:
            return [kept.log for _, kept in sorted(self._memory.logs.items()) if number in kept.log.ancestors]

    def head_of_number(self, number: int) -> Head:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            if kept is None:
                raise SessionNotFound(str(number))
            return kept.head

    def id_of_number(self, number: int) -> str | None:
        with self._memory.lock:
            kept = self._memory.logs.get(number)
            return kept.log.id if kept is not None and kept.tenant == self.tenant and not kept.deleted else None

    def logs_after(self, number: int, *, limit: int) -> list[TenantLog]:
        with self._memory.lock:
            found = [
                TenantLog(kept.tenant, kept.log)
                for each, kept in sorted(self._memory.logs.items())
                if each > number and not kept.deleted and self.tenant in ("", kept.tenant)
            ]
            return found[:limit]

    def heads_to_sign(self, *, after: int = 0, limit: int = 1000) -> list[HeadToSign]:
        with self._memory.lock:
            found = []
            for number, kept in sorted(self._memory.logs.items()):
                signed, head = kept.signed, kept.head
                is_current = signed is not None and (signed.seq, signed.hash) == (head.head, head.hash.hex())
                is_ours = number > after and not kept.deleted and self.tenant in ("", kept.tenant)
                if is_ours and not (is_current and kept.is_anchored):
                    found.append(HeadToSign(kept.tenant, kept.log, head.head, head.hash, signed))
            return found[:limit]

    def put_signatures(self, signed: Sequence[tuple[int, SignedHead]], *, anchored: bool) -> None:
        with self._memory.lock:
            for number, each in signed:
                kept = self._memory.logs.get(number)
                if kept is not None and (kept.signed is None or kept.signed.seq <= each.seq):
                    kept.signed, kept.is_anchored = each, anchored

    def signed_head(self, log: Log) -> SignedHead | None:
        with self._memory.lock:
            return self._require_log(log).signed

    def info(self, log: Log) -> Info:
        with self._memory.lock:
            return _info_of(self._require_log(log))

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
        with self._memory.lock:
            last = after.number if isinstance(after, Log) else None
            deleted: str | None = None
            if isinstance(after, str):
                last = self._memory.names.get((self.tenant, "session", after))
                deleted = check_deleted_id(after) if last is None else None
            found: list[Info] = []
            for number in sorted(self._memory.logs, reverse=True):
                kept = self._memory.logs[number]
                log = kept.log
                if (
                    (last is None or number < last)
                    and (deleted is None or log.uid < deleted)
                    and not kept.deleted
                    and (kept.tenant, log.kind) == (self.tenant, "session")
                    and user_id in (None, log.user_id)
                    and app_name in (None, log.app_name)
                    and status in (None, kept.columns["status"])
                    and parent in (None, log.parent)
                    and len(found) < limit
                ):
                    found.append(_info_of(kept))
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
                    and (not marked or kept.changes_view[place])
                    and (since is None or row.at >= since)
                ):
                    found.append(row)
            return found

    def _count(self, number: int, first: int, last: int) -> int:
        return len(
            self._scan(number, first, last, limit=None, reverse=False, types=MESSAGE_TYPES, marked=False, since=None)
        )

    def _find_name(self, number: int, name: str, at: int) -> tuple[bool, Row | None, int | None]:
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

    def _list_names(self, number: int, prefix: str, at: int) -> list[tuple[str, int | None]]:
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

    def word_matches(self, log: Log, words: Sequence[str]) -> dict[str, list[int]]:
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
            kept.words[row.seq] = frozenset(index_text(row).split())
        return kept.words[row.seq]


def _info_of(kept: LogInMemory) -> Info:
    columns = kept.columns
    return Info(
        log=kept.log,
        status=columns["status"],
        title=columns.get("title"),
        metadata=copy.deepcopy(columns.get("metadata") or {}),
        work_dir=columns.get("work_dir"),
        updated_at=kept.head.updated_at,
    )
