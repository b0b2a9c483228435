"""A server with agents of a test's own, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent
from holdfast.client import AsyncClient, Client
from holdfast.stores import SQLiteStore
from tests.kit.proxy import Proxy
from tests.kit.serving import TOKEN, Listener, Serving

Scripted = Callable[..., Agent]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "sessions.db") as found:
        yield found


@pytest.fixture
def serving(store: SQLiteStore, listener: Listener) -> Iterator[Serving]:
    with Serving(store, listener=listener) as found:
        yield found


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with Client(serving.url, token=TOKEN) as found:
        yield found


@pytest.fixture
async def async_client(serving: Serving) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(serving.url, token=TOKEN) as found:
        yield found


@pytest.fixture
def proxy(serving: Serving) -> Iterator[Proxy]:
    """A way to the server that loses things on purpose."""
    with Proxy(serving.port) as found:
        yield found


@pytest.fixture
def shaky(proxy: Proxy) -> Iterator[Client]:
    """A client whose connections are lost."""
    with Client(f"http://127.0.0.1:{proxy.port}", token=TOKEN, timeout=30) as found:
        yield found


@pytest.fixture
def scripted(serving: Serving) -> Scripted:
    """`scripted("one", "two")`: an agent of the server, under the id "a"."""

    def make(*script: Any, **options: Any) -> Agent:
        agent = Agent(provider="scripted", script=list(script), **options)
        serving.register("a", agent)
        return agent

    return make
