"""Migrations: applied once, refused when they are newer or not ours."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.errors import CorruptLog, SchemaTooNew
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.migrations import migrations
from kit.postgres import PostgresServer


def test_a_newer_schema_is_refused_by_name(tmp_path: Path, postgres_server: PostgresServer) -> None:
    path = tmp_path / "a.db"
    SQLiteStore(path).close()
    with apsw.Connection(str(path)) as db:
        db.execute("INSERT INTO migrations VALUES(99, 'future', 'x')")
    db.close()
    with pytest.raises(SchemaTooNew, match=r"schema 99, this holdfast knows \d+: upgrade"):
        SQLiteStore(path)
    dsn = postgres_server.database()
    PostgresStore(dsn).close()
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("INSERT INTO holdfast.migrations VALUES(99, 'future', 'x')")
    with pytest.raises(SchemaTooNew, match="schema 99"):
        PostgresStore(dsn)


def test_a_migration_that_was_edited_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    SQLiteStore(path).close()
    with apsw.Connection(str(path)) as db:
        db.execute("UPDATE migrations SET digest = 'other' WHERE version = 1")
    db.close()
    with pytest.raises(CorruptLog, match="migration 1"):
        SQLiteStore(path)


def test_opening_again_applies_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for _ in range(3):
        SQLiteStore(path).close()
    db = apsw.Connection(str(path))
    assert db.execute("SELECT count(*) FROM migrations").get == len(migrations("sqlite"))
    db.close()


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_both_dialects_have_the_same_migrations(dialect: str) -> None:
    found = migrations(dialect)
    assert [migration.version for migration in found] == list(range(1, len(found) + 1))
    assert [m.name for m in found] == [m.name for m in migrations("sqlite")]
