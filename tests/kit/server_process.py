"""Real server processes on free ports of the loopback, and connections to them that can be cut at any byte.

What must stay true: no server outlives its test, also when it was stopped by a signal, and what a server wrote to its
stderr is at hand when a test fails. A connection that is cut is reset, so that the server hears of it at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx2

from tests.kit.postgres import _free_port

HOST = "127.0.0.1"
TOKEN = "a-token-of-these-proofs-only"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
PATIENCE = 60.0  # seconds for what takes about one
# Where the system allows it, the process dies with the thread that starts it: a killed proof cleans nothing up.
COMMAND = """
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
from holdfast.cli.serve import serve
serve()
"""
# Proofs ask as fast as they can, all with one key.
SETTINGS = {
    "HOLDFAST_TOKEN": TOKEN,
    "HOLDFAST_RATE": "0",
    "HOLDFAST_RUNS_PER_KEY": "1000",
    "HOLDFAST_STREAMS_PER_KEY": "1000",
    "HOLDFAST_LOG_LEVEL": "warning",
    "HOLDFAST_SWEEP_EVERY": "3600",
}


class ServerProcess:
    """`holdfast serve app.py` as a process of its own. It keeps its port when it is killed and started again."""

    def __init__(self, app: Path, store: str, **settings: object) -> None:
        self.app, self.store, self.port = app, store, _free_port()
        self.settings = {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
        self._home = tempfile.TemporaryDirectory(prefix="hf-server-")
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._home.cleanup()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def stderr(self) -> str:
        path = Path(self._home.name) / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        environment = os.environ | SETTINGS | self.settings | {"HOLDFAST_STORE": self.store}
        environment |= {"HOLDFAST_DATA": self._home.name, "HOLDFAST_PORT": str(self.port)}
        with (Path(self._home.name) / "stderr").open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(self.app)], env=environment, stdout=stderr, stderr=stderr
            )
        self.starts += 1

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        with httpx2.Client(timeout=5) as client:
            while True:
                try:
                    if client.get(f"{self.url}/ready").status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not get ready:\n{self.stderr[-3000:]}")
                time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill -9, and wait for its end; harmless if it has ended."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait(PATIENCE)

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """Its exit code; None if it has not ended by then."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def client(self, timeout: float = PATIENCE) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers=AUTHORIZED, timeout=timeout)

    # -- what it holds ---------------------------------------------------------------------------------------------

    def memory(self) -> int:
        """Bytes in memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def files(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def read_metric(self, name: str) -> float:
        with self.client() as client:
            text = client.get("/metrics").raise_for_status().text
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((name + " ", name + "{"))
        )


class Frame(NamedTuple):
    """A server-sent event; a line that only says when to come back has no event."""

    event: str
    id: str
    data: Any
    retry: str = ""

    @property
    def place(self) -> tuple[int, int]:
        seq, _, n = self.id.partition(".")
        return int(seq or 0), int(n or 0)


class RawConnection:
    """One request on a connection of its own, whose answer is read as it comes and may be cut after any byte."""

    def __init__(
        self,
        port: int,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = PATIENCE,
        room: int | None = None,
    ) -> None:
        """`room`: bytes that the kernel keeps for a reader that does not read."""
        self._socket = socket.socket()
        self._socket.settimeout(seconds)
        if room is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        payload = b"" if body is None else json.dumps(body).encode()
        sent = {"Host": f"{HOST}:{port}", **AUTHORIZED, **(headers or {})}
        if body is not None:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(payload))}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        self.request = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + payload
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False  # the answer came to its end
        self._received = b""  # not understood yet
        self.text = b""  # of the body; of a stream, what is not a whole frame yet
        try:
            self._socket.connect((HOST, port))
        except BaseException:
            self._socket.close()
            raise

    def send(self, part: slice = slice(None)) -> None:
        self._socket.sendall(self.request[part])

    def reset(self) -> None:
        """Close at once with a reset: unread bytes are dropped, and the other side gets an error."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def frames(self, bytes: int | None = None) -> Iterator[Frame]:
        """The frames of the answer, until it ends or so many bytes of it were taken."""
        left = bytes
        while not self.is_complete and (left is None or left > 0):
            chunk = self._socket.recv(65536 if left is None else min(left, 65536))
            if not chunk:
                return
            if left is not None:
                left -= len(chunk)
            self._received += chunk
            yield from self._parse_frames()

    def _parse_frames(self) -> Iterator[Frame]:
        if not self.status:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            first, *lines = head.decode("latin-1").split("\r\n")
            self.status, self._received = int(first.split(" ")[1]), rest
            pairs = (line.partition(":") for line in lines)
            self.headers = {name.lower(): value.strip() for name, _, value in pairs}
        self._take_body()
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            while b"\n\n" in self.text:
                text, _, self.text = self.text.partition(b"\n\n")
                yield _parse_frame(text.decode())

    def _take_body(self) -> None:
        if self.headers.get("transfer-encoding") != "chunked":
            self.text, self._received = self.text + self._received, b""
            self.is_complete = len(self.text) >= int(self.headers.get("content-length", "0"))
            return
        while not self.is_complete:
            size, end, rest = self._received.partition(b"\r\n")
            length = int(size, 16) if end else 0
            if not end or len(rest) < length + 2:
                return
            self.text += rest[:length]
            self._received = rest[length + 2 :]
            self.is_complete = length == 0


def _parse_frame(text: str) -> Frame:
    fields = {name: value.removeprefix(" ") for name, _, value in (line.partition(":") for line in text.split("\n"))}
    data = fields.get("data")
    return Frame(
        fields.get("event", ""),
        fields.get("id", ""),
        None if data is None else json.loads(data),
        fields.get("retry", ""),
    )
