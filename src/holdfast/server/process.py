"""The server as a process: uvicorn around the application, and a shutdown that loses nothing.

uvicorn ends the lifespan only after all connections are closed, so streams must end first: the first SIGTERM stops the
intake and ends the streams, each with a hint to the client to reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from holdfast.operating_system import reserve_address
from holdfast.server.app import Server, create_app
from holdfast.server.config import Config
from holdfast.server.http.header_limits import HeaderLimits


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which also ends the streams when it stops."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._holdfast = server
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._captured_signals.clear()  # handled already: uvicorn would raise them again and end the process too early

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """End the streams and stop; from a signal handler or another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._holdfast.drain)
        self.should_exit = True


def uvicorn_config(app: FastAPI, config: Config, **more: Any) -> uvicorn.Config:  # noqa: ANN401 - uvicorn's own
    options: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "proxy_headers": config.behind_proxy,
        "timeout_graceful_shutdown": int(config.drain) + 3,  # requests that wait for a run are answered before that
        "timeout_keep_alive": 30,
        "http": HeaderLimits,
        "ssl_certfile": config.tls_cert,
        "ssl_keyfile": config.tls_key,
        **more,
    }
    return uvicorn.Config(app, **options)


def run_server(server: Server, *, sockets: list[socket.socket] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    DrainingServer(uvicorn_config(create_app(server), server.config), server).run(sockets)


def bind_sockets(config: Config) -> list[socket.socket]:
    """Return the bound socket to listen on: a port that is taken is a clear error, and port 0 gets its number."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    with _close_on_error(listening):
        reserve_address(listening)
        listening.bind((config.host, config.port))
        listening.listen(1024)
        listening.set_inheritable(False)
    return [listening]


@contextlib.contextmanager
def _close_on_error(listening: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        listening.close()
        raise
