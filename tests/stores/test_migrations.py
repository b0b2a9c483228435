"""Migrations: applied once, refused when they are newer or not ours."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.errors import CorruptLog, SchemaTooNew
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores import migrations as schema_migrations
from holdfast.stores.migrations import Migration, migrations
from tests.kit.postgres import PostgresServer


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


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_an_older_database_gets_the_missing_migrations(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dialect == "sqlite":
        place = str(tmp_path / "a.db")
        SQLiteStore(place).close()
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        place = server.database()
        PostgresStore(place).close()
    table = "extra" if dialect == "sqlite" else "holdfast.extra"
    extra = Migration(len(migrations(dialect)) + 1, "extra", f"CREATE TABLE {table}(a INTEGER);")
    monkeypatch.setattr(schema_migrations, "migrations", lambda dialect: (*migrations(dialect), extra))
    for _ in range(2):
        if dialect == "sqlite":
            SQLiteStore(place).close()
            db = apsw.Connection(place)
            assert db.execute("SELECT version, name, digest FROM migrations ORDER BY version").fetchall()[-1] == (
                extra.version,
                extra.name,
                extra.digest,
            )
            assert db.execute("SELECT count(*) FROM extra").get == 0
            db.close()
        else:
            PostgresStore(place).close()
            with psycopg.connect(place) as other:
                applied = other.execute("SELECT version, name, digest FROM holdfast.migrations ORDER BY version")
                assert applied.fetchall()[-1] == (extra.version, extra.name, extra.digest)
                assert other.execute("SELECT count(*) FROM holdfast.extra").fetchone() == (0,)
