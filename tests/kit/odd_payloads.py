"""Payloads that holdfast did not write: in a store, by hand."""

from __future__ import annotations

from holdfast.log.events import PAYLOAD_AT, SALT_SIZE, make_body
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Log, Store


def change_body(body: bytes | None, old: bytes, new: bytes) -> bytes:
    """Return the body of an event with another text, and with the checksum that it needs."""
    assert body is not None
    return make_body(body[:SALT_SIZE], body[PAYLOAD_AT:].replace(old, new))


def replace_payload(store: Store, log: Log, seq: int, payload: bytes) -> None:
    """Write another payload into an event, with its checksum, as a bug or a hand in the database would."""
    replace_body(store, log, seq, make_body(b"s" * SALT_SIZE, payload))


def damage_event(store: Store, log: Log, seq: int, text: bytes) -> None:
    """Change one bit of a text that an event holds, as a disk would."""
    (row,) = store.read(log, seq, seq)
    assert row.body is not None
    replace_body(store, log, seq, row.body.replace(text, bytes([text[0] ^ 1]) + text[1:]))


def replace_body(store: Store, log: Log, seq: int, body: bytes) -> None:
    if isinstance(store, SQLiteStore):
        key = (log.number << 32) + seq
        store.file.write(lambda db: db.execute("UPDATE events SET body = ? WHERE event = ?", (body, key)))
    elif isinstance(store, PostgresStore):
        values = (body, log.number, seq)
        store.server.transaction(
            lambda db: db.execute("UPDATE holdfast.events SET body = %s WHERE log = %s AND seq = %s", values)
        )
    else:
        assert isinstance(store, MemoryStore)
        store._memory.logs[log.number].rows[seq - 1].body = body
