"""The stores that tests run on, opened by kind."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.document_store import DocumentStore
from tests.kit.documents import DictStore
from tests.kit.postgres import PostgresServer

names = itertools.count()


def empty_tables(store: PostgresStore) -> None:
    """Empty the database: cheaper than a new one for each test. Past the triggers, which guard immutable sessions."""
    logs = "logs events names sessions once leases snapshots blobs lineage indexed words retention erasures"
    qualified = ", ".join(
        f"holdfast.{name}" for name in f"{logs} master_key key_values run_queue usage settled sizes".split()
    )

    def truncate_tables(db: Any) -> None:
        db.execute("SET LOCAL session_replication_role = replica")
        db.execute(f"TRUNCATE {qualified}")

    store.server.transaction(truncate_tables)


def open_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path, *, key: bytes | None = None) -> Store:
    """Open an empty store, which the end of the test closes; with `key`, an encrypted one."""
    if kind == "memory":
        return MemoryStore()
    if kind == "documents":
        return DocumentStore(DictStore())
    if kind == "sqlite":
        store = SQLiteStore(tmp_path / f"sessions{next(names)}.db", key=key)
        request.addfinalizer(store.close)
        return store
    if key is not None:  # one database has one master key
        server: PostgresServer = request.getfixturevalue("postgres_server")
        encrypted = PostgresStore(server.database(), key=key)
        request.addfinalizer(encrypted.close)
        return encrypted
    shared: PostgresStore = request.getfixturevalue("shared_postgres")
    empty_tables(shared)
    return shared
