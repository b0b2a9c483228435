"""HTTP clients of this process: one blocking client, and one for each event loop, made with the first request.

A client belongs to the process that made it, and an async one to its event loop too. After a fork, the clients of the
parent stay referenced and untouched: closing them in the child would write into connections that the parent still uses.
httpx2 is imported with the first client.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

from holdfast.clock import Clock

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT = 15.0


class ClientPool:
    """The clients of one transport.

    `make_options` returns the keyword arguments of a client. It must not hold the transport: the clients are closed as
    soon as the transport is dropped, without waiting for the garbage collector.
    """

    def __init__(self, make_options: Callable[[], dict[str, Any]]) -> None:
        self._make_options = make_options
        self._clients: dict[int, httpx2.Client] = {}  # by process id
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, _AsyncClient]] = (
            WeakKeyDictionary()
        )
        finalize(self, _close_client, self._clients)

    def client(self) -> httpx2.Client:
        """The blocking client of this process."""
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            import httpx2

            mine = httpx2.Client(**self._make_options())
            client = self._clients.setdefault(pid, mine)  # no lock: one that is held during a fork is held for ever
            if client is not mine:
                mine.close()
        return client

    async def client_async(self) -> httpx2.AsyncClient:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        pid, found = self._async_clients.get(loop, (0, None))
        if found is None or pid != os.getpid() or found.client.is_closed:
            import httpx2

            found = _AsyncClient(httpx2.AsyncClient(**self._make_options()))
            self._async_clients[loop] = (os.getpid(), found)
            # Started inside the loop, so that the loop closes it, and its connections with it, when it shuts down.
            await anext(found.lifetime)
        return found.client

    def close(self) -> None:
        """Close the blocking client of this process. The next request opens a new one."""
        _close_client(self._clients)

    async def close_async(self) -> None:
        """Close the client of the running event loop. The next request opens a new one."""
        pid, found = self._async_clients.pop(asyncio.get_running_loop(), (0, None))
        if found is not None and pid == os.getpid():
            await found.lifetime.aclose()


class _AsyncClient:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.lifetime = self._close_at_shutdown()

    async def _close_at_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.client.aclose()


def _close_client(clients: dict[int, httpx2.Client]) -> None:
    client = clients.pop(os.getpid(), None)
    if client is not None:
        client.close()


def client_options(timeout: float) -> dict[str, Any]:
    """The options that every client has. `timeout` is how long the other side may be silent, in seconds."""
    import httpx2

    return {
        "timeout": read_timeout(timeout, timeout),
        "headers": {"user-agent": "holdfast", "accept-encoding": "identity"},  # compressed streams arrive late
        "limits": httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
    }


def read_timeout(silence: float, timeout: float) -> httpx2.Timeout:
    """A limit of `silence` seconds, and for connecting the shorter one of `timeout` and `CONNECT_TIMEOUT`."""
    import httpx2

    return httpx2.Timeout(silence, connect=min(CONNECT_TIMEOUT, timeout))


def random_share(clock: Clock) -> float:
    """A random number from 0 up to 1, to spread repetitions: clients that failed together must not return together."""
    return int.from_bytes(clock.random_bytes(8), "big") / 2.0**64
