"""The stores every test may ask for. PostgreSQL is a real server, started once for the whole run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.documents import DocumentStore
from kit.documents import DictStore
from kit.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

STORES = ("memory", "sqlite", "postgres", "documents")
_names = itertools.count()


@pytest.fixture(scope="session")
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.database()


@pytest.fixture(scope="session")
def shared_postgres(database: str) -> Iterator[PostgresStore]:
    with PostgresStore(database) as store:
        yield store


def tables_of(store: PostgresStore) -> None:
    """Empty the database: cheaper than a new one for each test. Past the triggers, which guard immutable sessions."""
    tables = "logs, events, names, sessions, once, leases, snapshots, blobs, lineage, indexed, words"
    qualified = ", ".join(f"holdfast.{name}" for name in f"{tables}, keeping, erasures, vault".split(", "))

    def empty(db: Any) -> None:
        db.execute("SET LOCAL session_replication_role = replica")
        db.execute(f"TRUNCATE {qualified}")

    store.server.transaction(empty)


def open_kind(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if kind == "memory":
        return MemoryStore()
    if kind == "documents":
        return DocumentStore(DictStore())
    if kind == "sqlite":
        store = SQLiteStore(tmp_path / f"sessions{next(_names)}.db")
        request.addfinalizer(store.close)
        return store
    shared: PostgresStore = request.getfixturevalue("shared_postgres")
    tables_of(shared)
    return shared


@pytest.fixture(params=["sqlite", "postgres"])
def encrypted_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store that can keep a secret, with a master key."""
    key = bytes(range(32))
    if request.param == "sqlite":
        store: Store = SQLiteStore(tmp_path / f"sessions{next(_names)}.db", key=key)
    else:
        tables_of(request.getfixturevalue("shared_postgres"))
        store = PostgresStore(request.getfixturevalue("database"), key=key)
    with store:
        yield store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store in turn."""
    return open_kind(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def durable_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store that outlives its process."""
    return open_kind(request.param, request, tmp_path)
