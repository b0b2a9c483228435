"""The front of a server without its sessions: guard, keys, limits and errors around a few routes, on a real port."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.server import errors
from holdfast.server.auth import Authenticator
from holdfast.server.config import Config
from holdfast.server.http.middleware import SecurityMiddleware
from holdfast.server.metrics import Metrics
from holdfast.server.rate_limits import RequestLimits
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store

TOKEN = "hf_the-token-of-this-server"


@dataclass
class MinimalServer:
    """What `Server` has, as far as the front is concerned."""

    config: Config = field(default_factory=lambda: Config(rate=0))
    store: Store = field(default_factory=MemoryStore)
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.limits = RequestLimits(self.config, metrics=self.metrics, clock=self.clock)
        self.authenticator = Authenticator(
            self.store, config=self.config, token=TOKEN, limits=self.limits, metrics=self.metrics
        )

    def build_app(self, *routers: Any) -> FastAPI:
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        app.state.server = self
        errors.install_error_handlers(app)
        for router in routers:
            app.include_router(router)
        app.add_middleware(SecurityMiddleware, server=self)
        return app


class Address:
    """Where a server listens, and how to talk to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, token: str | None = TOKEN) -> httpx2.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=20)

    def send_raw(self, text: str | bytes, *, seconds: float = 10) -> tuple[int, dict[str, str], bytes]:
        """Send exactly these bytes; what comes back until the server closes, or the answer is whole."""
        data = text.encode("latin-1") if isinstance(text, str) else text
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as wire:
            wire.sendall(data)
            found = b""
            while (answer := _parse_whole_answer(found, data.startswith(b"HEAD"))) is None:
                got = wire.recv(65536)
                if not got:
                    return _parse_answer(found)
                found += got
            return answer


def _parse_whole_answer(found: bytes, has_no_body: bool) -> tuple[int, dict[str, str], bytes] | None:
    if b"\r\n\r\n" not in found:
        return None
    status, headers, body = _parse_answer(found)
    length = 0 if has_no_body else int(headers.get("content-length", "0"))
    return (status, headers, body) if len(body) >= length else None


def _parse_answer(found: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split(" ")[1]), headers, body


@contextmanager
def start_server(app: Callable[..., Any]) -> Iterator[Address]:
    """Run an application on a free port of loopback, in a thread."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off", ws="none", loop="asyncio"
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield Address(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
