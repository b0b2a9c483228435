"""Limits on the head of a request: its size and its time. uvicorn has neither with httptools.

A client that sends its headers a byte at a time, or never ends them, costs one connection for half a minute at most and
16 KiB of memory.
"""

from __future__ import annotations

import asyncio

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ABORT = "holdfast.abort"
LONGEST = 16 << 10  # bytes of the request line and all headers
SECONDS = 30.0
_END = b"\r\n\r\n"
_REFUSALS = {
    400: (b"400 Bad Request", "bad_request", "this is not HTTP"),
    408: (b"408 Request Timeout", "request_timeout", f"the headers did not arrive within {SECONDS:g} s"),
    431: (b"431 Request Header Fields Too Large", "headers_too_large", f"the headers have more than {LONGEST} bytes"),
}


class _TooLarge(Exception):
    pass


class LimitedHeads(HttpToolsProtocol):
    """The connection of a client, which must say what it wants in time and in few words."""

    _in_head = True
    _size = 0  # bytes of this head so far
    _fields = 0  # the same, as the parser saw them
    _last = b""  # the end of what came before, in which the end of the head may begin
    _timer: asyncio.TimerHandle | None = None
    _status = 400

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._timer is None:
                self._timer = self.loop.call_later(SECONDS, self._late)
            end = (self._last + data).find(_END)
            self._size += len(data) if end < 0 else end - len(self._last)
            self._last = data[-3:]
            if self._size > LONGEST:
                self._refuse(431)
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._fields = 0
        super().on_message_begin()
        # ASGI has no word for ending a connection whose client takes nothing: closing waits for it.
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._size, self._last = True, 0, b""  # the next one
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._in_head:
            self.transport.close()  # it was answered before it was whole: nobody reads the rest, in whatever time
        super().on_response_complete()

    def _count(self, size: int) -> None:
        self._fields += size
        if self._fields > LONGEST:
            self._status = 431
            raise _TooLarge

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._status)

    def _late(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # in the middle of an answer there is no other word
        else:
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        line, code, text = _REFUSALS[status]
        body = orjson.dumps({"error": text, "code": code, "request_id": ""})
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        if not self.transport.is_closing():
            self.transport.write(head % (line, len(body)) + body)
            self.transport.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
