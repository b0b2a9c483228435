"""A real server in this process, on a free port of the loopback, so that agents can come from a test's own code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import Agent
from holdfast.server.app import Server, create_app
from holdfast.server.config import Config
from holdfast.server.process import DrainingServer, bind_sockets, uvicorn_config
from holdfast.stores.base import Store

TOKEN = "a-token-for-tests-only"
PATIENCE = 30.0
# Tests ask as fast as they can, all with one key.
SETTINGS: dict[str, Any] = {"rate": 0, "runs_per_key": 1000, "streams_per_key": 1000, "sweep_every": 3600.0, "drain": 5}


class _PromptServer(DrainingServer):
    """The server as it is, except that it stops at once, and not at the next tick of uvicorn."""

    async def main_loop(self) -> None:
        self._stopped = asyncio.Event()
        await self._stopped.wait()

    def stop(self) -> None:
        super().stop()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopped.set)


class _PlainServer(uvicorn.Server):
    """uvicorn on its own: it serves until `stop`."""

    async def main_loop(self) -> None:
        self.loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        await self._stopped.wait()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stopped.set)


def _start_uvicorn(server: uvicorn.Server, sockets: list[Any]) -> threading.Thread:
    """Start uvicorn in a thread; returns once it takes requests."""
    thread = threading.Thread(target=server.run, args=[sockets], name="serving", daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while thread.is_alive() and time.monotonic() < deadline:
        if server.started:
            return thread
        time.sleep(0.002)
    raise RuntimeError("the server did not start")


class Listener:
    """One uvicorn for one server after another: it takes longer to start and stop than most tests run.

    What must stay true: no request, stream or run of a server is left when the next server is attached.
    """

    def __init__(self) -> None:
        config = Config(**SETTINGS, port=0)
        sockets = bind_sockets(config)
        self.port: int = sockets[0].getsockname()[1]
        self._app: ASGIApp | None = None
        self._uvicorn = _PlainServer(uvicorn_config(self._answer, config, lifespan="off", interface="asgi3"))  # type: ignore[arg-type]
        self._thread = _start_uvicorn(self._uvicorn, sockets)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "a request came after the end of its test"
        await self._app(scope, receive, send)

    def attach(self, server: Server, app: ASGIApp) -> None:
        assert self._app is None, "the listener serves another server"
        asyncio.run_coroutine_threadsafe(server.open(), self._uvicorn.loop).result(PATIENCE)
        self._app = app

    def detach(self, server: Server) -> None:
        """End the server's streams, runs and connections."""
        asyncio.run_coroutine_threadsafe(self._end(server), self._uvicorn.loop).result(PATIENCE)
        self._app = None

    async def _end(self, server: Server) -> None:
        server.drain()
        state = self._uvicorn.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while state.connections or state.tasks:
            await asyncio.sleep(0.001)
        await server.close()

    def close(self) -> None:
        self._uvicorn.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the listener did not stop"


class LocalServer:
    """`with Serving(store, agents={...}) as serving: Client(serving.url, token=TOKEN)`.

    With a `listener`, the server gets its requests from there; otherwise it has a uvicorn and a port of its own.
    """

    def __init__(
        self,
        store: Store,
        *,
        agents: Mapping[str, Agent] | None = None,
        port: int = 0,
        listener: Listener | None = None,
        **more: Any,
    ) -> None:
        config = Config(**{**SETTINGS, "port": port, **more})
        self._listener = listener
        self._sockets = [] if listener is not None else bind_sockets(config)
        self.port: int = listener.port if listener is not None else self._sockets[0].getsockname()[1]
        self.server = Server(store, replace(config, port=self.port), token=TOKEN, agents=agents or {})
        self._app = create_app(self.server)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def register(self, id: str, agent: Agent) -> None:
        """An agent from code that came later."""
        self.server.catalog._code_agents[id] = agent

    def start(self) -> Self:
        if self._listener is not None:
            self._listener.attach(self.server, self._app)
        else:
            self._uvicorn = _PromptServer(uvicorn_config(self._app, self.server.config), self.server)
            self._thread = _start_uvicorn(self._uvicorn, self._sockets)
        return self

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.detach(self.server)
            return
        self._uvicorn.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not stop"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
