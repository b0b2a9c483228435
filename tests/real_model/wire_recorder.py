"""A proxy between holdfast and the model that records every byte and changes none."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

PATIENCE = 300.0


@dataclass(slots=True)
class Exchange:
    """One request and its answer, as they were on the wire."""

    path: str
    request: dict[str, Any]
    status: int = 0
    answer: bytes = b""
    ended: float = 0.0  # when its last byte came

    @property
    def frames(self) -> list[dict[str, Any]]:
        """The answer's events, read without any of holdfast's code."""
        lines = self.answer.decode().split("\n")
        found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in found if line != "[DONE]"]


class WireRecorder:
    """A forwarder on loopback. `exchanges` has everything that went by, oldest first."""

    def __init__(self, upstream: str) -> None:
        self.exchanges: list[Exchange] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.exchanges, urlsplit(upstream).netloc))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def since(self, start: int) -> list[Exchange]:
        return self.exchanges[start:]


def _handler(exchanges: list[Exchange], upstream: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            exchange = Exchange(self.path, json.loads(body))
            exchanges.append(exchange)
            connection = http.client.HTTPConnection(upstream, timeout=PATIENCE)
            try:
                connection.request("POST", self.path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                exchange.status = answer.status
                self.send_response(answer.status)
                self.send_header("content-type", answer.getheader("content-type", ""))
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                while chunk := answer.read1():
                    exchange.answer += chunk
                    exchange.ended = time.monotonic()
                    self._pass_on(chunk)
                self._pass_on(b"")
            finally:
                connection.close()

        def _pass_on(self, chunk: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
