"""The durable stores, as something that a forked child can open for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores import PostgresStore, SQLiteStore
from kit.postgres import PostgresServer
from prove.crashes import Opener


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """A way to open a fresh database, in whatever process."""
    if request.param == "sqlite":
        yield lambda: SQLiteStore(tmp_path / "log.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    dsn = server.database(tcp=True)
    yield lambda: PostgresStore(dsn)
    server.drop(dsn)
