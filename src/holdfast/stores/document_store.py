"""Logs on top of a user's own store of documents: the four methods of `SessionStore`.

Every change loads the document and saves it again. The document holds the view and the whole log beside it, so the cost
of a change grows with the session, which is what such a store offers. A change is made on top of what another process
saved before. Four methods cannot save on the condition that nothing was saved since the load: of two processes that
save in the same moment the later one wins, and the other one gets a `Conflict` (`EventsLost`) with its next change.

Leases are in the memory of this process. The epoch is in the document, so a process whose turn was taken over is fenced
out. A fork is a copy. What is no session (user and app state, entities) lives under ids that begin with `holdfast:`,
hidden from listings. Key values are in the memory of this process and end with it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote

from holdfast.clock import SYSTEM_CLOCK, Clock, decode_ulid, encode_ulid
from holdfast.diagnostics import SLOW_SECONDS, report_slow_store
from holdfast.errors import EventsLost, InvalidArgument, InvalidId, SessionNotFound, StoreUnavailable
from holdfast.log.events import Draft, Row
from holdfast.log.messages import Limits
from holdfast.stores.append import AppendBatch, AppendResult, Head, IdempotencyRecord, RetentionRow
from holdfast.stores.base import Fork, Info, Log, SessionStore, TenantLog
from holdfast.stores.documents import VERSION, document_of, restore_document
from holdfast.stores.erasure import ErasurePlan
from holdfast.stores.lease import Claim
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory_reads import LogInMemory

HIDDEN_PREFIX = "holdfast:"
BYTES_HINT = ": if it holds a Redis client, make that client with decode_responses=True"


class DocumentStore(MemoryStore):
    """What holdfast makes of a store with `save`, `load`, `delete` and `list_sessions`."""

    def __init__(self, documents: SessionStore, *, clock: Clock = SYSTEM_CLOCK, limits: Limits | None = None) -> None:
        super().__init__(clock=clock, limits=limits)
        self.documents = documents
        # By the number of a log: the error about lost events, and whether a caller got it already.
        self._losses: dict[int, tuple[EventsLost, bool]] = {}

    def __repr__(self) -> str:
        return f"DocumentStore({self.documents!r})"

    def _document_id(self, kind: str, id: str) -> str:
        if kind == "session" and not self.tenant:
            if id.startswith(HIDDEN_PREFIX):
                raise InvalidId(
                    f"session_id={id!r}: ids that begin with {HIDDEN_PREFIX!r} are kept for holdfast itself"
                )
            return id
        return f"{HIDDEN_PREFIX}{quote(self.tenant, safe='')}:{kind}:{id}"

    # -- the documents of other processes --------------------------------------------------------------------------

    def _load(self, kind: str, id: str) -> dict[str, Any] | None:
        try:
            document = self.documents.load(self._document_id(kind, id))
        except Exception as error:
            raise StoreUnavailable(f"load() of {self.documents!r} failed ({error!r}){_hint_at_bytes(error)}") from error
        if document is not None and not isinstance(document, dict):
            raise InvalidArgument(
                f"load() of {self.documents!r} gave {type(document).__name__}: return the dict that was saved, or None"
            )
        return document

    def _catch_up(self, kept: LogInMemory, document: dict[str, Any] | None) -> bool:
        """Take over what another process saved; False if the document is gone or is another log now.

        Events of this process that are not in the document any more were saved over: that is a loss, which the next
        change or opening of the session reports.
        """
        if document is None:
            self._drop(kept)
            return False
        packed = document.get("log")
        if packed is None:  # saved by hand, as to_dict() gives it
            self._overwrite_log(kept.log, document)
            return True
        if packed["hash"] == kept.head.hash.hex() and packed["epoch"] == kept.head.epoch:
            return True
        if packed["uid"] != kept.log.uid:
            self._drop(kept)
            return False
        fresh = _unpack_log(packed, kept.log.kind, kept.log.id, kept.tenant)
        common = _count_common_rows(kept, fresh)
        if common < kept.head.head:
            loss = EventsLost(kept.log.id, expected=kept.head.head, head=fresh.head.head, lost=common + 1)
            self._losses[kept.log.number] = loss, False
        if fresh.head.epoch == kept.head.epoch:
            fresh.lease = kept.lease
        vars(kept).update(vars(fresh))
        return True

    def _refresh(self, log: Log) -> None:
        """Read the document of a log before it is changed."""
        kept = self._require_log(log)
        document = self._load(log.kind, log.id)
        if not self._catch_up(kept, document):
            if document is None:
                raise SessionNotFound(log.id)
            # The id was freed and used again, or two processes created it in the same moment.
            raise EventsLost(log.id, expected=kept.head.head, head=document["log"]["head"], lost=1)

    # -- writing ---------------------------------------------------------------------------------------------------

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
        with self._memory.lock:
            self._refresh(log)
            # A caller that compares heads reads again. One that begins a turn must not: its session object holds a
            # part of the history that is lost.
            if log.number in self._losses and (expected is None or claim is not None):
                loss, _ = self._losses[log.number]
                self._losses[log.number] = loss, True
                raise EventsLost(log.id, expected=loss.expected, head=loss.head, lost=loss.lost)
            return super().append(log, drafts, once=once, epoch=epoch, expected=expected, claim=claim, release=release)

    def apply_erasure(self, log: Log, drafts: Sequence[Draft], burial: ErasurePlan) -> AppendResult:
        with self._memory.lock:
            self._refresh(log)
            return super().apply_erasure(log, drafts, burial)

    def _commit(self, kept: LogInMemory, batches: Iterable[AppendBatch]) -> None:
        before = _copy_log(kept)
        try:
            super()._commit(kept, batches)
            self._save(kept)
        except BaseException:
            vars(kept).update(vars(before))  # what could not be saved did not happen
            raise

    def _commit_erasure(self, mine: LogInMemory, batch: AppendBatch, burial: ErasurePlan) -> None:
        before = _copy_log(mine)  # a fork here is a copy: no other log shares these events
        try:
            super()._commit_erasure(mine, batch, burial)
            self._save(mine)
        except BaseException:
            vars(mine).update(vars(before))
            raise

    def due_for_sweep(self, now: int, *, limit: int) -> list[TenantLog]:
        self._load_all()
        if not self.tenant:
            for name in self._list_documents():
                tenant, _, id = name.removeprefix(HIDDEN_PREFIX).partition(":session:")
                if name.startswith(HIDDEN_PREFIX) and id and tenant and ":" not in tenant:
                    self.for_tenant(unquote(tenant))._find_log("session", id)
        return super().due_for_sweep(now, limit=limit)

    def schedule_sweep(self, log: Log, due: int | None) -> None:
        with self._memory.lock:
            kept = self._memory.logs.get(log.number)
            if kept is None or not self._catch_up(kept, self._load(log.kind, log.id)):
                return
            if kept.due != due:
                super().schedule_sweep(log, due)
                self._save(kept)

    def _save(self, kept: LogInMemory) -> None:
        log = kept.log
        name = self._document_id(log.kind, log.id)
        document: dict[str, Any] = {"version": VERSION, "id": name}
        if log.kind == "session":
            document = document_of(self, log)
        began = self.clock.monotonic()
        try:
            self.documents.save(name, document | {"log": _pack_log(kept)})
        except Exception as error:
            raise StoreUnavailable(
                f"save() of {self.documents!r} failed ({error!r}): the change was not made"
            ) from error
        finally:
            seconds = self.clock.monotonic() - began
            if seconds > SLOW_SECONDS:
                report_slow_store(type(self.documents).__name__, seconds)

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
        with self._memory.lock:
            self._find_log(kind, id)  # so that a name which only the documents know counts as taken
            if fork is None:
                return super().create(kind, id, drafts, user_id=user_id, app_name=app_name, created_at=created_at)
            parent = self._require_log(fork.parent)
            rows = parent.rows[: fork.at]
            return self.import_log(
                kind,
                id,
                fork.parent.origin,
                rows,
                dict(parent.blobs),
                drafts,
                user_id=user_id,
                app_name=app_name,
                parent=fork.parent.uid,
            )

    def remove(self, kind: str, id: str, *, expected: int | None = None) -> bool:
        with self._memory.lock:
            if self._find_log(kind, id) is None:
                return False
            super().remove(kind, id, expected=expected)
            self.documents.delete(self._document_id(kind, id))
            return True

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, kind: str, id: str) -> Log | None:
        """The log of a document, read again at each call, because any process may have written the document. Raises
        EventsLost once if another process has saved over events of this one."""
        with self._memory.lock:
            found = self._find_log(kind, id)
            loss, is_reported = (None, True) if found is None else self._losses.pop(found.number, (None, True))
            if loss is not None and not is_reported:
                raise loss
            return found

    def _find_log(self, kind: str, id: str) -> Log | None:
        with self._memory.lock:
            known = super().find(kind, id)
            document = self._load(kind, id)
            if known is not None and self._catch_up(self._memory.logs[known.number], document):
                return known
            if document is None:
                return None
            if document.get("log") is None:  # saved by hand, as to_dict() gives it
                return self._import_document(id, document)
            kept = _unpack_log(document["log"], kind, id, self.tenant)
            self._add(kept)
            return kept.log

    def _import_document(self, id: str, document: dict[str, Any]) -> Log:
        """A document that was saved by hand becomes a log. The name is free while that happens."""
        reader = MemoryStore(clock=self.clock, limits=self.limits)
        log = restore_document(reader, id, document)
        kept = reader._memory.logs[log.number]
        kept = _unpack_log(_pack_log(kept), "session", id, self.tenant)
        self._add(kept)
        self._save(kept)
        return kept.log

    def _overwrite_log(self, log: Log, document: dict[str, Any]) -> None:
        kept = self._memory.logs[log.number]
        self._save(kept)  # so that the log is found again while the differences are appended
        restore_document(self, log.id, document)

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
        self._load_all()
        return super().sessions(
            user_id=user_id, app_name=app_name, status=status, limit=limit, after=after, parent=parent
        )

    def id_of_number(self, number: int) -> str | None:
        self._load_all()
        return super().id_of_number(number)

    def _number(self, uid: str) -> int:
        return decode_ulid(uid)  # the same in every process, and later ones are larger

    def _load_all(self) -> None:
        prefix = self._document_id("session", "") if self.tenant else ""
        for name in self._list_documents():
            if name.startswith(prefix) and (self.tenant or not name.startswith(HIDDEN_PREFIX)):
                self._find_log("session", name.removeprefix(prefix))

    def _list_documents(self) -> list[str]:
        with self._memory.lock:  # which refuses a store that was closed
            pass
        try:
            found = list(self.documents.list_sessions())
        except Exception as error:
            raise StoreUnavailable(
                f"list_sessions() of {self.documents!r} failed ({error!r}){_hint_at_bytes(error)}"
            ) from error
        for name in found:
            if not isinstance(name, str):
                hint = BYTES_HINT if isinstance(name, bytes) else ""
                raise InvalidArgument(f"list_sessions() of {self.documents!r} gave {name!r}: return texts{hint}")
        return found

    def list_sessions(self) -> list[str]:
        if self.tenant:
            return super().list_sessions()
        return [name for name in self._list_documents() if not name.startswith(HIDDEN_PREFIX)]


def _hint_at_bytes(error: Exception) -> str:
    return BYTES_HINT if isinstance(error, TypeError) and "bytes" in str(error) else ""


def _count_common_rows(mine: LogInMemory, theirs: LogInMemory) -> int:
    """How many events two versions of a log have in common. The hash of an event covers all events before it."""
    count = min(len(mine.rows), len(theirs.rows))
    while count and mine.rows[count - 1].hash != theirs.rows[count - 1].hash:
        count -= 1
    return count


def _copy_log(kept: LogInMemory) -> LogInMemory:
    copy = LogInMemory.__new__(LogInMemory)
    for name, value in vars(kept).items():
        setattr(copy, name, value.copy() if isinstance(value, (list, dict)) else value)
    copy.names = {name: (list(seqs), list(refs)) for name, (seqs, refs) in kept.names.items()}
    return copy


def _b64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _unb64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _pack_log(kept: LogInMemory) -> dict[str, Any]:
    """The log as JSON, beside the view."""
    log, head = kept.log, kept.head
    return {
        "uid": log.uid,
        "origin": log.origin,
        "created_at": log.created_at,
        "user_id": log.user_id,
        "app_name": log.app_name,
        "parent": None if log.parent is None else encode_ulid(log.parent >> 80, log.parent & (1 << 80) - 1),
        "hash": head.hash.hex(),
        "head": head.head,
        "epoch": head.epoch,
        "tokens": head.tokens,
        "view": _b64(head.view),
        "busy": head.busy,
        "marks": head.marks,
        "updated_at": head.updated_at,
        "rows": [
            [
                row.seq,
                row.at,
                row.type,
                _b64(row.header),
                row.tokens,
                _b64(row.body),
                _b64(row.tombstone),
                _b64(row.hash),
                mark,
            ]
            for row, mark in zip(kept.rows, kept.changes_view, strict=True)
        ],
        "names": {name: [seqs, refs] for name, (seqs, refs) in kept.names.items()},
        "once": {key: [_b64(once.digest), once.first, once.last] for key, once in kept.idempotency.items()},
        "blobs": {digest: _b64(data) for digest, data in kept.blobs.items()},
        "snapshots": [[seq, _b64(view)] for seq, view in kept.snapshots],
        "columns": kept.columns,
        "keep": None if kept.retention_row is None else [*kept.retention_row, kept.due],
    }


def _unpack_log(packed: dict[str, Any], kind: str, id: str, tenant: str) -> LogInMemory:
    log = Log(
        number=decode_ulid(packed["uid"]),
        uid=packed["uid"],
        origin=packed["origin"],
        kind=kind,
        id=id,
        created_at=packed["created_at"],
        user_id=packed["user_id"],
        app_name=packed["app_name"],
        parent=None if packed["parent"] is None else decode_ulid(packed["parent"]),
    )
    view, hash = _unb64(packed["view"]), bytes.fromhex(packed["hash"])
    assert view is not None
    head = Head(
        head=packed["head"],
        hash=hash,
        epoch=packed["epoch"],
        tokens=packed["tokens"],
        view=view,
        busy=packed["busy"],
        marks=packed["marks"],
        updated_at=packed["updated_at"],
    )
    kept = LogInMemory(log, tenant, head)
    for seq, at, type, header, tokens, body, tombstone, digest, mark in packed["rows"]:
        kept.rows.append(
            Row(seq, at, type, _unb64(header), tokens, _unb64(body), _unb64(tombstone), base64.b64decode(digest))
        )
        kept.changes_view.append(mark)
    kept.names = {name: (list(seqs), list(refs)) for name, (seqs, refs) in packed["names"].items()}
    kept.idempotency = {
        key: IdempotencyRecord(digest=base64.b64decode(digest), first=first, last=last)
        for key, (digest, first, last) in packed["once"].items()
    }
    kept.blobs = {digest: base64.b64decode(data) for digest, data in packed["blobs"].items()}
    kept.snapshots = [(seq, base64.b64decode(view)) for seq, view in packed["snapshots"]]
    kept.columns = dict(packed["columns"])
    if packed.get("keep") is not None:
        *keep, kept.due = packed["keep"]
        kept.retention_row = RetentionRow(*keep)
    return kept
