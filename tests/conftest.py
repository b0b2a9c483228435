"""The stores every test may ask for. PostgreSQL is a real server, started once for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from kit.postgres import PostgresServer, postgres_server
from kit.stores import names, open_kind, tables_of

__all__ = ["postgres_server"]

STORES = ("memory", "sqlite", "postgres", "documents")


@pytest.fixture(scope="session")
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.database()


@pytest.fixture(scope="session")
def shared_postgres(database: str) -> Iterator[PostgresStore]:
    with PostgresStore(database) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgres"])
def encrypted_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store that can keep a secret, with a master key."""
    key = bytes(range(32))
    if request.param == "sqlite":
        store: Store = SQLiteStore(tmp_path / f"sessions{next(names)}.db", key=key)
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
