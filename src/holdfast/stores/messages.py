"""Rows as messages, and the blobs that rows name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.log import codec
from holdfast.log.events import MESSAGE_TYPES, UNREADABLE, Draft, Event, Row, message_data, payload_of
from holdfast.log.messages import Limits, Message, ToolResult, blobs_in, message_from_data
from holdfast.log.ranges import clip_ranges
from holdfast.log.times import to_datetime
from holdfast.log.view import decode_view

if TYPE_CHECKING:
    from holdfast.stores.append import Head
    from holdfast.stores.base import Log, Store

BLOB_REMOVING_TYPES = ("event.redacted", "session.imported")  # events that name removed blobs


def message_draft(message: Message, limits: Limits, **fields: str | None) -> Draft:
    """Return the event that adds a message."""
    data, blobs = message.to_data(limits)
    return Draft(type="message.added", data=data, author=message.named_author, blobs=blobs, **fields)


def message_of(store: Store, log: Log, row: Row) -> Message:
    """Return the message of a stored event; an erased message has the text "[erased]"."""
    if row.type == "message.added" and row.header is None and row.body is not None:  # the common case
        data, author = codec.decode(payload_of(row.body, row.seq)), None
    else:
        event = Event(row)
        data, author = message_data(event), event.author
    if not data:
        return _placeholder_message(Event(row))
    return message_from_data(
        data, lambda digest: store.blob(log, digest), author=author, created_at=to_datetime(row.at), seq=row.seq
    )


def _placeholder_message(event: Event) -> Message:
    """Return a message in place of an erased one: with its role, its author and the tool call that it answered."""
    role, call_id = event.data.get("role", "user"), event.data.get("call_id")
    parts: list[Any] = ["[erased]"]
    if role == "tool":
        role, parts = ("tool", [ToolResult(call_id=call_id, content="[erased]")]) if call_id else ("user", parts)
    return Message(role, parts, author=event.author, created_at=to_datetime(event.at), seq=event.seq)


def messages_of(
    store: Store, log: Log, head: Head, *, limit: int | None = None, role: str | None = None
) -> list[Message]:
    """Return the messages visible at `head`, or the last `limit` of them, oldest first. Reads no more than it needs."""
    found: list[Message] = []  # newest first
    # Events after this head may belong to a turn that this view does not know, so they are left out.
    for first, last in reversed(clip_ranges(decode_view(head.view).visible, head.head)):
        upto = last
        while limit is None or len(found) < limit:
            want = None if limit is None else limit - len(found)
            rows = store.read(log, first, upto, limit=want, reverse=True, types=MESSAGE_TYPES)
            messages = [message_of(store, log, row) for row in rows]
            found += [message for message in messages if role is None or message.role == role]
            if want is None or len(rows) < want:
                break
            upto = rows[-1].seq - 1
            if upto < first:
                break
    return found[::-1]


def blobs_of_event(event: Event) -> list[str]:
    """Return the blobs that an event names: parts of its message, a long result of a tool, a prompt."""
    if event.erased:
        return []
    try:
        if event.type == "model.called":
            found = [event.data.get("context")]
        else:
            found = [*blobs_in(message_data(event)), event.data.get("whole")] if event.type in MESSAGE_TYPES else []
    except UNREADABLE:  # a payload that is not as holdfast writes it names no bytes
        return []
    return [digest for digest in found if isinstance(digest, str)]


def blob_names(rows: Iterable[Row]) -> list[str]:
    """Return the blobs that the rows name, each once."""
    found: dict[str, None] = {}
    for row in rows:
        found |= dict.fromkeys(blobs_of_event(Event(row)))
    return list(found)


def blobs_removed(rows: Iterable[Row]) -> set[str]:
    """Return the blobs that redactions among the rows removed, or that an import lists as removed in its original."""
    return {digest for row in rows if row.type in BLOB_REMOVING_TYPES for digest in Event(row).data.get("blobs", ())}
