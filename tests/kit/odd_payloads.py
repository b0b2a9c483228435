"""Payloads that holdfast did not write: in a store, by hand."""

from __future__ import annotations

from holdfast.log.events import SALT_SIZE
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Log, Store


def replace_payload(store: Store, log: Log, seq: int, payload: bytes) -> None:
    """Write another payload into an event, as a bug or a hand in the database would."""
    body = b"s" * SALT_SIZE + payload
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
