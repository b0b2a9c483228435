"""A server with agents of a test's own, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent
from holdfast.client import AsyncClient, Client
from holdfast.stores import SQLiteStore
from tests.kit.local_server import TOKEN, Listener, LocalServer
from tests.kit.proxy import Proxy

AgentFactory = Callable[..., Agent]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "sessions.db") as found:
        yield found


@pytest.fixture
def local_server(store: SQLiteStore, listener: Listener) -> Iterator[LocalServer]:
    with LocalServer(store, listener=listener) as found:
        yield found


@pytest.fixture
def client(local_server: LocalServer) -> Iterator[Client]:
    with Client(local_server.url, token=TOKEN) as found:
        yield found


@pytest.fixture
async def async_client(local_server: LocalServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(local_server.url, token=TOKEN) as found:
        yield found


@pytest.fixture
def proxy(local_server: LocalServer) -> Iterator[Proxy]:
    """A way to the server that loses things on purpose."""
    with Proxy(local_server.port) as found:
        yield found


@pytest.fixture
def unreliable_client(proxy: Proxy) -> Iterator[Client]:
    """A client whose connections are lost."""
    with Client(f"http://127.0.0.1:{proxy.port}", token=TOKEN, timeout=30) as found:
        yield found


@pytest.fixture
def register_agent(local_server: LocalServer) -> AgentFactory:
    """`register_agent("one", "two")`: an agent of the server, under the id "a"."""

    def register(*script: Any, **options: Any) -> Agent:
        agent = Agent(provider="scripted", script=list(script), **options)
        local_server.register("a", agent)
        return agent

    return register
