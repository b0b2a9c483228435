"""A provider on loopback that speaks both wire formats and fails on command.

Each request takes the next answer from the script; without one it says hello. The format follows the path.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.models.frames import Reply, encode_frame

End = Literal["clean", "cut", "reset", "hold"]


@dataclass
class Answer:
    """One answer: its status and headers, the chunks of its body, and how it ends.

    "cut" closes the connection without ending the body, "reset" aborts it, "hold" stays silent until the server closes.
    """

    chunks: Iterable[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    end: End = "clean"


@dataclass
class RecordedRequest:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int


class Provider:
    """The server, its script and what it was asked."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[RecordedRequest] = []
        self.closing = threading.Event()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.provider = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Provider:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def enqueue(self, *answers: Any) -> Provider:
        """Each is a `Reply`, an `Answer`, or a function of the wire format that gives one."""
        self.script += answers
        return self

    def answer(self, wire: str) -> Answer:
        item = self.script.pop(0) if self.script else Reply()
        if callable(item):
            item = item(wire)
        return Answer(item.frames(wire)) if isinstance(item, Reply) else item


def make_http_error(status: int, code: str = "", message: str = "no", **headers: str) -> Any:
    """An HTTP error in the shape of the format that was asked for."""

    def answer(wire: str) -> Answer:
        error = {"type": code, "code": code, "message": message}
        body = {"error": error} if wire == "openai" else {"type": "error", "error": error, "request_id": "req_1"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Answer([json.dumps(body).encode()], status, {"content-type": "application/json", **named})

    return answer


def make_cut_reply(reply: Reply, after: int, end: End = "cut") -> Any:
    """A reply that ends after some of its frames."""
    return lambda wire: Answer(reply.frames(wire)[:after], end=end)


def make_corrupt_reply(reply: Reply, at: int) -> Any:
    """A reply in which one frame is damaged."""

    def answer(wire: str) -> Answer:
        frames = reply.frames(wire)
        frames[at] = frames[at].replace(b"}", b"", 1)
        return Answer(frames)

    return answer


def make_failing_reply(reply: Reply, after: int, code: str = "overloaded_error", message: str = "overloaded") -> Any:
    """A reply that turns into an error."""

    def answer(wire: str) -> Answer:
        error = {"type": code, "message": message}
        frame = (
            encode_frame({"error": error})
            if wire == "openai"
            else encode_frame({"type": "error", "error": error}, "error")
        )
        return Answer([*reply.frames(wire)[:after], frame])

    return answer


def make_endless_reply(reply: Reply) -> Any:
    """A reply that never ends."""

    def answer(wire: str) -> Answer:
        def chunks() -> Iterator[bytes]:
            frames = reply.frames(wire)
            at = next(index for index, frame in enumerate(frames) if b"Hell" in frame)
            yield from frames[:at]
            while True:
                yield frames[at] * 100

        return Answer(chunks())

    return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    provider: Provider

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    _count = iter(range(1_000_000))

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = next(self._count)

    def do_POST(self) -> None:
        provider = self.server.provider
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        provider.requests.append(RecordedRequest(self.path, headers, body, self.number))
        wire = "anthropic" if self.path.endswith("/messages") else "openai"
        answer = provider.answer(wire)
        with contextlib.suppress(ConnectionError):
            self._send(answer)
            self._end(answer.end)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in ({"content-type": "text/event-stream"} | answer.headers).items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in answer.chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()

    def _end(self, end: End) -> None:
        if end == "clean":
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
            return
        self.close_connection = True
        if end == "hold":
            self.server.provider.closing.wait()
        elif end == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
