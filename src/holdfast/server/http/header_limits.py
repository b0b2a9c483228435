"""Limits on the head of a request, its size and its time, and on clients that do not read. uvicorn with httptools has
none of them.

A client that sends its headers a byte at a time, or never ends them, costs one connection for half a minute at most and
16 KiB of memory. A client that takes nothing of its answer for a minute loses its connection. `HeaderLimits` subclasses
uvicorn's protocol class, which is private to uvicorn: it was written for uvicorn 0.54.0, so check it when that version
changes.
"""

from __future__ import annotations

import asyncio

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTIONS = "holdfast.connections"  # in the extensions of a request: how many connections are open
MAX_HEAD_BYTES = 16 << 10  # request line and all headers
HEAD_SECONDS = 30.0
STALL_SECONDS = 60.0  # longest time in which a client takes nothing of what waits for it
_END = b"\r\n\r\n"
_REFUSALS = {
    400: (b"400 Bad Request", "bad_request", "this is not HTTP"),
    408: (b"408 Request Timeout", "request_timeout", f"the headers did not arrive within {HEAD_SECONDS:g} s"),
    431: (
        b"431 Request Header Fields Too Large",
        "headers_too_large",
        f"the headers have more than {MAX_HEAD_BYTES} bytes",
    ),
}


class _TooLarge(Exception):
    pass


class HeaderLimits(HttpToolsProtocol):
    """The connection of a client, whose head must arrive in time and within the size limit."""

    _in_head = True
    _size = 0  # bytes of this head so far
    _parsed_size = 0  # bytes of this head that the parser has seen
    _previous_end = b""  # last bytes of the data before, in which the end of the head may begin
    _timer: asyncio.TimerHandle | None = None
    _refusal_status = 400
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._on_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._cancel_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More waits for the client than its connection takes."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stall_timer()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # Closing waits for a client that has not read its last answer.
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._timer is None:
                self._timer = self.loop.call_later(HEAD_SECONDS, self._on_timeout)
            end = (self._previous_end + data).find(_END)
            self._size += len(data) if end < 0 else end - len(self._previous_end)
            self._previous_end = data[-3:]
            if self._size > MAX_HEAD_BYTES:
                self._refuse(431)
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._parsed_size = 0
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTIONS: {"count": len(self.connections)}}

    def on_url(self, url: bytes) -> None:
        self._count_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_bytes(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._size, self._previous_end = True, 0, b""  # the next request
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._in_head:
            self.transport.close()  # answered before the request was complete: the rest is never read
        super().on_response_complete()

    def _count_bytes(self, size: int) -> None:
        self._parsed_size += size
        if self._parsed_size > MAX_HEAD_BYTES:
            self._refusal_status = 431
            raise _TooLarge

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal_status)

    def _on_timeout(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # in the middle of an answer no error can be sent
        else:
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        line, code, text = _REFUSALS[status]
        body = orjson.dumps({"error": text, "code": code, "request_id": ""})
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        if not self.transport.is_closing():
            self.transport.write(head % (line, len(body)) + body)
            self.transport.close()

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
