"""The stores every test may ask for. PostgreSQL is a real server, started once for the whole run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from tests.kit import proof_options, quick_option, way_option
from tests.kit.local_server import Listener
from tests.kit.postgres import PostgresServer, postgres_server
from tests.kit.stores import empty_tables, names, open_store
from tests.proofs.crashes import Opener

__all__ = ["postgres_server"]

# No deadlines, because a busy machine is no bug; a failure prints how to repeat it.
settings.register_profile("holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    proof_options.add_options(parser)
    quick_option.add_option(parser)
    way_option.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    proof_options.add_markers(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if proof_options.is_left_out(collection_path, config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    quick_option.keep_quick_tests(config, items)
    way_option.keep_one_way(config, items)


def pytest_collection_finish() -> None:
    """Leave what was collected out of every later garbage collection: it is large, and stays."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    proof_options.print_figures(terminalreporter)


STORES = ("memory", "sqlite", "postgres", "documents")


@pytest.fixture(scope="session")
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.database()


@pytest.fixture(scope="session")
def shared_postgres(database: str) -> Iterator[PostgresStore]:
    with PostgresStore(database) as store:
        yield store


@pytest.fixture(scope="session")
def listener() -> Iterator[Listener]:
    """A port and an event loop for the servers of one test after another."""
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture(params=["sqlite", "postgres"])
def encrypted_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store that can keep a secret, with a master key."""
    key = bytes(range(32))
    if request.param == "sqlite":
        store: Store = SQLiteStore(tmp_path / f"sessions{next(names)}.db", key=key)
    else:
        empty_tables(request.getfixturevalue("shared_postgres"))
        store = PostgresStore(request.getfixturevalue("database"), key=key)
    with store:
        yield store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store in turn."""
    return open_store(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def durable_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store that outlives its process."""
    return open_store(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """A function that opens a fresh database, from any process."""
    if request.param == "sqlite":
        yield lambda: SQLiteStore(tmp_path / "log.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    dsn = server.database(tcp=True)
    yield lambda: PostgresStore(dsn)
    server.drop(dsn)
