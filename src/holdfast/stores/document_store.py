"""Logs on top of a user's own store of documents: the four methods of `SessionStore`, within one process.

Every change loads nothing and saves one document, which holds the view and the whole log beside it; so the cost of a
change grows with the session, which is what such a store offers. Leases, fencing and atomic updates hold within this
process only. A fork is a copy. What is no session (user and app state, entities) lives under ids that begin with
`holdfast:`, hidden from listings. Key values are in the memory of this process and end with it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from holdfast.clock import SYSTEM_CLOCK, Clock, decode_ulid, encode_ulid
from holdfast.diagnostics import SLOW_SECONDS, report_slow_store
from holdfast.errors import InvalidId, StoreUnavailable
from holdfast.log.events import Draft, Row
from holdfast.log.messages import Limits
from holdfast.stores.append import AppendBatch, Head, IdempotencyRecord, RetentionRow
from holdfast.stores.base import Fork, Info, Log, SessionStore, TenantLog
from holdfast.stores.documents import VERSION, document_of, restore_document
from holdfast.stores.erasure import ErasurePlan
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory_reads import LogInMemory

HIDDEN_PREFIX = "holdfast:"


class DocumentStore(MemoryStore):
    """What holdfast makes of a store with `save`, `load`, `delete` and `list_sessions`."""

    def __init__(self, documents: SessionStore, *, clock: Clock = SYSTEM_CLOCK, limits: Limits | None = None) -> None:
        super().__init__(clock=clock, limits=limits)
        self.documents = documents

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

    # -- writing ---------------------------------------------------------------------------------------------------

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
        return super().due_for_sweep(now, limit=limit)

    def schedule_sweep(self, log: Log, due: int | None) -> None:
        with self._memory.lock:
            kept = self._memory.logs.get(log.number)
            if kept is not None and kept.due != due:
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
            self.find(kind, id)  # so that a name which only the documents know counts as taken
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
            if self.find(kind, id) is None:
                return False
            super().remove(kind, id, expected=expected)
            self.documents.delete(self._document_id(kind, id))
            return True

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, kind: str, id: str) -> Log | None:
        """The log of a document, read again at each call, because any process may have written the document."""
        name = self._document_id(kind, id)
        with self._memory.lock:
            known = super().find(kind, id)
            document = self.documents.load(name)
            if document is None:
                if known is not None:
                    self._drop(self._memory.logs[known.number])
                return None
            packed = document.get("log")
            if packed is None:  # saved by hand, as to_dict() gives it
                if known is None:
                    return self._import_document(id, document)
                self._overwrite_log(known, document)
                return known
            if known is not None:
                kept = self._memory.logs[known.number]
                if packed["hash"] == kept.head.hash.hex() and packed["epoch"] == kept.head.epoch:
                    return known
                self._drop(kept)
            kept = _unpack_log(packed, kind, id, self.tenant)
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
                self.find("session", name.removeprefix(prefix))

    def _list_documents(self) -> list[str]:
        with self._memory.lock:  # which refuses a store that was closed
            pass
        return self.documents.list_sessions()

    def list_sessions(self) -> list[str]:
        if self.tenant:
            return super().list_sessions()
        return [name for name in self._list_documents() if not name.startswith(HIDDEN_PREFIX)]


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
