"""Wrong names of stores: each is said at once, in words that name the fix, and a closed store stays closed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Agent, Session
from holdfast.clock import Clock
from holdfast.errors import InvalidArgument, StoreClosed, StoreReadOnly, StoreUnavailable
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.postgres_connections import PostgresServer as PooledServer
from holdfast.stores.urls import open_store
from tests.kit.documents import DictStore
from tests.kit.postgres import PostgresServer

MAX_CONNECTIONS = 8
FOR_EVER = 1e6  # seconds: a store that waits for the server although it answers never ends


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PostgresServer]:
    """A server with few connections that asks the user `locked` for a password."""
    with PostgresServer(max_connections=MAX_CONNECTIONS) as server:
        with psycopg.connect(server.dsn, autocommit=True) as db:
            for statement in (
                "CREATE ROLE locked LOGIN PASSWORD 'correct'",
                "CREATE ROLE guest NOLOGIN",
                "CREATE DATABASE private",
                "REVOKE CONNECT ON DATABASE private FROM PUBLIC",
                "CREATE DATABASE shut ALLOW_CONNECTIONS false",
            ):
                db.execute(statement)
        rules = server.directory / "data" / "pg_hba.conf"
        rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.restart("fast")
        yield server


@pytest.mark.parametrize(
    ("user", "database", "reason", "advice"),
    [
        ("postgres", "nosuch", 'database "nosuch" does not exist', "create the database, or correct its name"),
        ("nosuch", "postgres", 'role "nosuch" does not exist', "correct the user in the connection string"),
        ("guest", "postgres", 'role "guest" is not permitted to log in', "correct the user"),
        ("locked:wrong", "postgres", "password authentication failed", "correct the user or the password"),
        ("locked", "postgres", "no password supplied", "correct the user or the password"),
        ("locked:correct", "private", "permission denied for database", "GRANT CONNECT"),
        ("postgres", "shut", "is not currently accepting connections", "let the database take connections"),
    ],
)
def test_a_server_that_refuses_is_quoted_at_once(
    strict_server: PostgresServer, user: str, database: str, reason: str, advice: str
) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        PostgresStore(f"postgresql://{user}@127.0.0.1:{strict_server.port}/{database}", patience=FOR_EVER)
    text = str(caught.value)
    assert text.startswith("the PostgreSQL server refuses this connection: ")
    assert reason in text
    assert advice in text
    assert "is it running" not in text
    assert "wrong" not in text


def test_a_server_without_room_is_waited_for(strict_server: PostgresServer) -> None:
    """The control: that server answers and refuses too, but a connection that ends makes room."""
    dsn = f"postgresql://postgres@127.0.0.1:{strict_server.port}/postgres"
    crowd: list[psycopg.Connection[Any]] = []
    while len(crowd) < MAX_CONNECTIONS:
        try:
            crowd.append(psycopg.connect(dsn))
        except psycopg.OperationalError:  # the server still ends a connection of another test
            time.sleep(0.05)

    class Patience(Clock):
        def sleep(self, seconds: float) -> None:
            while crowd:
                crowd.pop().close()

    PooledServer(dsn, connections=1, patience=FOR_EVER, clock=Patience()).close()
    assert crowd == []


def test_a_server_that_is_away_is_not_called_refusing() -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot be reached.*is it running"):
        PostgresStore("postgresql://postgres@127.0.0.1:1/postgres", patience=0.01)


def test_a_class_is_not_a_store() -> None:
    for given, advice in (
        (SQLiteStore, "pass an object of it, such as SQLiteStore('sessions.db')"),
        (MemoryStore, "pass an object of it, such as MemoryStore(...)"),
        (DictStore, "pass an object of it, such as DictStore(...)"),
    ):
        wrong: Any = given
        with pytest.raises(InvalidArgument, match="is a class") as caught:
            Session(store=wrong)
        assert advice in str(caught.value)
        with pytest.raises(InvalidArgument, match="is a class"):
            Agent(provider="echo", store=wrong)


def test_the_path_of_a_file_is_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        SQLiteStore("sqlite:///x.db")
    assert str(caught.value) == "'sqlite:///x.db' is a URL: write SQLiteStore('x.db'), or store='sqlite:///x.db'"
    with pytest.raises(InvalidArgument, match=r"SQLiteStore\('/var/x.db'\), or store='sqlite:////var/x.db'"):
        SQLiteStore("sqlite:////var/x.db")
    with pytest.raises(InvalidArgument, match="not a URL with 'postgresql'") as caught:
        SQLiteStore("postgresql://alice:secret@host/x")
    assert "secret" not in str(caught.value)
    with pytest.raises(
        StoreReadOnly, match=r"is a directory: name a file in it, as in SQLiteStore\('.*/sessions.db'\)"
    ):
        SQLiteStore(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_store_refuses_everything(store: Store) -> None:
    session = Session("s", store=store, user_id="alice")
    assert not store.is_closed
    if isinstance(store, PostgresStore):  # the store of the fixture is shared by all tests
        store = PostgresStore(store.server.dsn)
        session = Session.open("s", store=store)
    store.close()
    store.close()
    assert store.is_closed
    for use in (
        lambda: session.add_message({"role": "user", "content": "x"}),
        lambda: session.messages,
        lambda: session.set_state("k", 1, scope="user"),
        lambda: session.get_state("k"),
        lambda: session.run("x", agent=Agent(provider="echo")),
        lambda: Session(store=store),
        lambda: Session.open("s", store=store),
        lambda: Session.list(store=store),
        lambda: store.list_sessions(),
        lambda: store.load("s"),
        lambda: store.delete("s"),
        lambda: store.kv_get("space", "key"),
        lambda: store.for_tenant("other").list_sessions(),
    ):
        with pytest.raises(StoreClosed, match="closed: open a new one"):
            use()


@pytest.mark.parametrize("kind", ["memory:", "sqlite", "postgres", "documents"])
def test_a_store_that_was_named_is_opened_again_after_it_was_closed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name: Any = kind
    if kind == "sqlite":
        name = f"sqlite:///{tmp_path}/again.db"
    elif kind == "postgres":
        name = request.getfixturevalue("postgres_server").database()
    elif kind == "documents":
        name = DictStore()
    first = open_store(name)
    Session("s", store=name)
    assert open_store(name) is first
    first.close()
    second = open_store(name)
    assert second is not first
    assert second.list_sessions() == ([] if kind == "memory:" else ["s"])
    second.close()
