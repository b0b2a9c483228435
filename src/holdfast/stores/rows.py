"""Rows of all stores: columns of logs and sessions, text for the search index, replay of rows of another log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.clock import is_ulid
from holdfast.errors import InvalidArgument
from holdfast.log import codec
from holdfast.log.events import MESSAGE_TYPES, UNREADABLE, Event, Row, message_data
from holdfast.log.messages import message_from_data
from holdfast.log.named_values import NAMING_TYPES, NameRow, columns_of, names_of
from holdfast.log.search_words import stems, words
from holdfast.log.view import changes_view, decode_view
from holdfast.stores.append import SNAPSHOT_EVERY, AppendBatch, AppendResult, Head
from holdfast.stores.base import Fork, Info, Log
from holdfast.stores.encrypted_rows import Keys
from holdfast.stores.encryption import DataKey

INDEX_BATCH = 500
MAX_INDEXED = 400_000  # bytes of words of one message; PostgreSQL's tsvector holds no more than about 1 MiB


def encode_ancestry(ancestry: tuple[tuple[int, int], ...]) -> bytes | None:
    return codec.encode([list(pair) for pair in ancestry]) if ancestry else None


def _decode_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def log_from_columns(columns: Sequence[Any]) -> Log:
    """A log from the columns of a LOG query."""
    number, uid, origin, kind, id, created_at, base, ancestry, user_id, app_name, parent, key = columns[:12]
    ancestors = () if ancestry is None else tuple((n, last) for n, last in codec.decode(ancestry))
    user, app = _decode_text(user_id), _decode_text(app_name)
    return Log(number, uid, origin, kind, id or "", created_at, base, ancestors, user, app, parent, key)


def head_from_columns(columns: Sequence[Any]) -> Head:
    """A head from the columns of a HEAD query."""
    head, hash, epoch, tokens, view, busy, marks, updated_at = columns
    return Head(
        head=head,
        hash=hash,
        epoch=epoch,
        tokens=tokens,
        view=view,
        busy=bool(busy),
        marks=marks,
        updated_at=updated_at,
    )


def head_columns(head: Head) -> tuple[int, bytes, int, int, bytes, bool, int, int]:
    """The columns of a head, in the order of a HEAD query."""
    return (head.head, head.hash, head.epoch, head.tokens, head.view, head.busy, head.marks, head.updated_at)


def new_log(
    number: int,
    uid: str,
    origin: str,
    kind: str,
    id: str,
    now: int,
    owner: tuple[str | None, str | None],
    fork: Fork | None,
) -> Log:
    """A log that is being made; `owner` is (user_id, app_name)."""
    return Log(
        number=number,
        uid=uid,
        origin=origin,
        kind=kind,
        id=id,
        created_at=now,
        base=0 if fork is None else fork.at,
        ancestry=() if fork is None else tuple((n, last) for n, _, last in fork.parent.segments(1, fork.at)),
        user_id=owner[0],
        app_name=owner[1],
        parent=None if fork is None else fork.parent.number,
    )


def session_row(
    log: Log, tenant: str, head: Head, changed: dict[str, Any], key: DataKey | None = None
) -> tuple[Any, ...]:
    """The row of a session in the list, after its first append changed these columns."""
    user = None if log.user_id is None else log.user_id.encode()
    app = None if log.app_name is None else log.app_name.encode()
    columns = session_columns(changed, key)
    status = decode_view(head.view).status
    found = (columns.get(name) for name in ("title", "metadata", "work_dir"))
    return (log.number, tenant, user, app, status, *found)


def info_from_columns(columns: Sequence[Any], keys: Keys) -> Info:
    """A session from the columns of an INFO query."""
    status, title, metadata, work_dir, updated_at = columns[12:]
    if columns[11] is not None:
        key = keys.key_of_log(log_from_columns(columns))
        title, metadata, work_dir = (
            None if value is None else key.open(value, name.encode())
            for name, value in (("title", title), ("metadata", metadata), ("work_dir", work_dir))
        )
    kept = {} if metadata is None else codec.decode(metadata)
    return Info(log_from_columns(columns), status, _decode_text(title), kept, _decode_text(work_dir), updated_at)


def session_columns(changed: dict[str, Any], key: DataKey | None = None) -> dict[str, Any]:
    """Changed columns of a session's row as the database keeps them: text as bytes, so that any character fits."""
    found: dict[str, Any] = {}
    for column, value in changed.items():
        if column == "status":
            found[column] = value
        elif column == "metadata":
            found[column] = None if value is None else codec.encode(value)
        else:
            found[column] = None if value is None else value.encode()
        if key is not None and column != "status" and found[column] is not None:
            found[column] = key.seal(found[column], column.encode())
    return found


def index_text(row: Row) -> str:
    """Return the words of an event's text for the index: of a message the words, of a memory and its key the stems.

    To remove words, the index needs the same words again, so a change of this function needs a migration that empties
    the indexes.
    """
    event = Event(row)
    if event.erased:
        return ""
    try:
        if row.type == "memory.stored":
            said = stems(f"{event.data['key']} {event.data['text']}")
        else:
            said = words(message_from_data(message_data(event), lambda _: b"").text)
    except UNREADABLE:  # it has no words, now and when it is erased
        return ""
    room, found = MAX_INDEXED, []
    for word in dict.fromkeys(said):
        room -= len(word) + 1
        if room < 0:
            break
        found.append(word)
    return " ".join(found)


def replay_rows(head: Head, rows: Sequence[Row], blobs: dict[str, bytes]) -> Iterator[AppendBatch]:
    """Rows that were sealed elsewhere, as batches that write them and move the head over them, page by page.

    They set no retention: an import brings none, and a fork appends its own after them.
    """
    for start in range(0, len(rows), SNAPSHOT_EVERY):
        page = rows[start : start + SNAPSHOT_EVERY]
        view = decode_view(head.view)
        status, marked = view.status, []
        names: list[NameRow] = []
        session: dict[str, Any] = {}
        for row in page:
            event = Event(row)
            marked.append(
                changes_view(event.type, event.run) or (view.turn is not None and event.type in MESSAGE_TYPES)
            )
            view.apply(event.seq, event.type, event.run, event.data, event.branch)
            if event.type in NAMING_TYPES:
                names += names_of(event.seq, event.type, event.data)
                session |= columns_of(event.type, event.data)
        if view.status != status:
            session["status"] = view.status
        last = page[-1]
        after = Head(
            head=last.seq,
            hash=last.hash,
            epoch=head.epoch,
            tokens=last.tokens,
            view=view.to_bytes(),
            busy=view.is_restricted,
            marks=0,
            updated_at=head.updated_at,
        )
        outcome = AppendResult(first=page[0].seq, last=last.seq, epoch=head.epoch, at=head.updated_at)
        yield AppendBatch(
            outcome=outcome,
            head=after,
            before=head,
            rows=list(page),
            changes_view=marked,
            names=names,
            blobs=blobs if start == 0 else {},
            snapshot=after.view,
            changed_columns=session or None,
        )
        head = after


def check_deleted_id(id: str) -> str:
    """Return the id of a session that is not in the list, if it says where the session stood: generated ids sort by
    time, as the uids of logs do. InvalidArgument for an id that a user chose."""
    if is_ulid(id):
        return id
    raise InvalidArgument(
        f"after={id!r} is not a session here: give the session itself (after=page[-1]), or start from the first page"
    )
