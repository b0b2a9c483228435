"""Load on a server from this process: HTTP/1.1 on raw connections, so that the client costs little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson
import uvloop

from benchmarks.serving_process import TOKEN
from benchmarks.timing import clock

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"


def request(method: str, path: str, body: object = None, *, accept: str = "*/*", key: str | None = None) -> bytes:
    """Return the bytes of one request; `key` is its Idempotency-Key."""
    data = b"" if body is None else orjson.dumps(body)
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {TOKEN}",
        f"Accept: {accept}",
    ]
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    if data:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join(lines).encode() + HEAD_END + data


@dataclass(slots=True)
class Answered:
    """The answers of one connection: the seconds of each request, and the failed ones."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Asking(asyncio.Protocol):
    """One connection that sends its requests one after the other, each after the answer to the last."""

    def __init__(self, requests: Iterator[bytes], check: Callable[[bytes], bool] | None = None) -> None:
        self._requests, self._check = requests, check
        self.answered = Answered()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def begin(self) -> None:
        following = next(self._requests, None)
        if following is None:
            self._transport.close()
            if not self.over.done():
                self.over.set_result(None)
            return
        self._sent = clock()
        self._transport.write(following)

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        at = self._data.find(HEAD_END)
        if at < 0:
            return
        head = self._data[:at].lower()
        start = head.find(LENGTH)
        if start < 0:
            raise RuntimeError(f"an answer without a length: {head[:200]!r}")
        size = int(head[start + len(LENGTH) :].split(b"\r\n", 1)[0])
        if len(self._data) < at + len(HEAD_END) + size:
            return
        body, self._data = self._data[at + len(HEAD_END) :], b""
        self.answered.seconds.append(clock() - self._sent)
        if head[9:10] != b"2" or (self._check is not None and not self._check(body)):
            self.answered.errors.append(f"{head[9:12].decode()} {body[:200].decode(errors='replace')}")
        self.begin()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.answered.errors.append(f"the connection was cut: {error!r}")
            self.over.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The result of many connections together."""

    taken: float  # seconds from the first request to the last answer
    seconds: list[float]
    errors: list[str]

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.taken


def ask_all(port: int, clients: Sequence[Sequence[bytes]], check: Callable[[bytes], bool] | None = None) -> Load:
    """Send each list of requests on its own connection, all at once, and return the result."""
    return uvloop.run(_ask_all(port, clients, check))


async def _ask_all(port: int, clients: Sequence[Sequence[bytes]], check: Callable[[bytes], bool] | None) -> Load:
    loop = asyncio.get_running_loop()
    asking = []
    for requests in clients:
        each = iter(requests)
        _, protocol = await loop.create_connection(partial(Asking, each, check), "127.0.0.1", port)
        asking.append(protocol)
    began = clock()
    for protocol in asking:
        protocol.begin()
    await asyncio.gather(*(protocol.over for protocol in asking))
    return Load(
        taken=clock() - began,
        seconds=[seconds for protocol in asking for seconds in protocol.answered.seconds],
        errors=[error for protocol in asking for error in protocol.answered.errors],
    )
