"""The server as a process: uvicorn around the application, and a shutdown that loses nothing.

uvicorn ends the lifespan only after all connections are closed, so streams must end first: the first SIGTERM stops the
intake and ends the streams, each with a hint to the client to reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from holdfast.operating_system import reserve_address, return_large_blocks
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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second Ctrl-C gives running turns back at once. uvicorn's own handler is left out: it would end the
        process at the second Ctrl-C, with turns that are not given back and a traceback for each open request."""
        if self.should_exit and sig == signal.SIGINT:
            self._holdfast.runs.is_hurried = True
        self.stop()

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
    """Serve until SIGTERM or SIGINT; in the main thread. Leaves SIGINT ignored, so that an impatient Ctrl-C does not
    cut the end of the process short."""
    return_large_blocks()
    process = DrainingServer(uvicorn_config(create_app(server), server.config), server)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # uvicorn handles it while it serves
    process.run(sockets)


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
