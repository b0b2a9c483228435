"""A real server in this process, on a free port of the loopback, so that agents can come from a test's own code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from holdfast import Agent
from holdfast.server.app import Server, create_app
from holdfast.server.config import Config
from holdfast.server.process import DrainingServer, bound, uvicorn_config
from holdfast.stores.base import Store

TOKEN = "a-token-for-tests-only"
PATIENCE = 30.0
# Tests ask as fast as they can, all with one key.
SETTINGS: dict[str, Any] = {"rate": 0, "runs_per_key": 1000, "streams_per_key": 1000, "sweep_every": 3600.0, "drain": 5}


class _Prompt(DrainingServer):
    """The server as it is, but it stops when it is told to, and not at the next tick."""

    async def main_loop(self) -> None:
        self._told = asyncio.Event()
        await self._told.wait()

    def stop(self) -> None:
        super().stop()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._told.set)


class Serving:
    """`with Serving(store, agents={...}) as serving: Client(serving.url, token=TOKEN)`."""

    def __init__(self, store: Store, *, agents: Mapping[str, Agent] | None = None, port: int = 0, **more: Any) -> None:
        config = Config(**{**SETTINGS, "port": port, **more})
        self._sockets = bound(config)
        self.port: int = self._sockets[0].getsockname()[1]
        self.server = Server(store, replace(config, port=self.port), token=TOKEN, agents=agents or {})
        app = create_app(self.server)
        self._uvicorn = _Prompt(uvicorn_config(app, self.server.config), self.server)
        self._thread = threading.Thread(target=self._uvicorn.run, args=[self._sockets], name="serving", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def register(self, id: str, agent: Agent) -> None:
        """An agent from code that came later."""
        self.server.catalog._code[id] = agent

    def start(self) -> Self:
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(PATIENCE / 0.005)):
            if self._uvicorn.started:
                return self
            if not self._thread.is_alive():
                break
            waited.wait(0.005)
        raise RuntimeError("the server did not start")

    def stop(self) -> None:
        self._uvicorn.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not stop"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
