"""Calls to a server over HTTP, blocking and awaited. httpx2 is imported with the first call.

Three things stay true. A request is sent again only if it is the same request to the server: it reads, or it carries
its key. Errors of httpx2 never leave this module, because they hold the request, and the request holds the token.
And a stream that is opened again continues after the last frame that was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from holdfast.client.errors import error_from_json, error_from_status, is_transient
from holdfast.client.requests import Call
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import AgentError, InvalidArgument, ServerSilent, ServerUnavailable
from holdfast.http_client import ClientPool, client_options, random_share, read_timeout
from holdfast.log import codec

if TYPE_CHECKING:
    import httpx2

STREAM_SILENCE = 60.0  # seconds; an idle stream sends a ping every 15 s
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
MAX_FRAME_BYTES = 64 << 20
BODY_LEVELS = 16  # levels that a body may add around a value that the log takes
LOOPBACK = ("127.0.0.1", "localhost", "::1")

T_co = TypeVar("T_co", covariant=True)


class Tail(Protocol[T_co]):
    """A stream that is opened again when it breaks: the call that opens it, and the items of its frames."""

    @property
    def is_over(self) -> bool:
        """Whether the stream is complete: only then may it end."""
        ...

    def call(self) -> Call: ...

    def on_open(self, headers: httpx2.Headers) -> None: ...

    def read_frame(self, event: str, id: str, data: str) -> Iterator[T_co]:
        """The items of one frame. Raises the error that the server sent."""
        ...


class Transport:
    """Sends calls, blocking or awaited, with the same rules.

    `timeout` is how long the server may be silent, and how long one call may take with its repetitions; `retries` how
    often it is sent again at most.
    """

    def __init__(
        self, base_url: str, *, token: str | None, timeout: float, retries: int, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.base_url = base_url
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
            raise InvalidArgument(f"timeout={timeout!r}: use a number of seconds above 0")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InvalidArgument(f"retries={retries!r}: use a whole number, 0 or more")
        self.timeout, self.retries, self.clock = timeout, retries, clock
        self._token = token
        self._pool = ClientPool(partial(_client_options, base_url, timeout))

    # -- one call ------------------------------------------------------------------------------------------------------

    def send(self, call: Call) -> Any:  # noqa: ANN401 - what the endpoint answers
        """The answer to a call, or the error it is."""
        import httpx2

        request, patience = self._request(call), _RetrySchedule(self, call)
        while True:
            try:
                response = self._pool.client().request(**request)
                return _read_answer(call, response.status_code, response.content)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure, is_final = self._classify_failure(error, call)
            except AgentError as error:
                failure, is_final = error, False
            self.clock.sleep(patience.next_wait(failure, is_final))

    async def send_async(self, call: Call) -> Any:  # noqa: ANN401 - what the endpoint answers
        import httpx2

        request, patience = self._request(call), _RetrySchedule(self, call)
        while True:
            try:
                client = await self._pool.client_async()
                response = await client.request(**request)
                return _read_answer(call, response.status_code, response.content)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure, is_final = self._classify_failure(error, call)
            except AgentError as error:
                failure, is_final = error, False
            await asyncio.sleep(patience.next_wait(failure, is_final))

    # -- one stream ----------------------------------------------------------------------------------------------------

    def follow(self, tail: Tail[T_co]) -> Iterator[T_co]:
        """The items of a stream, over as many connections as it takes."""
        import httpx2

        failure: AgentError
        patience = _RetrySchedule(self, tail.call())
        while not tail.is_over:
            call = tail.call()
            try:
                with self._pool.client().stream(**self._request(call)) as response:
                    if not _is_stream(response):
                        _read_answer(call, response.status_code, response.read())
                    tail.on_open(response.headers)
                    for frame in httpx2.EventSource(response, max_event_size=MAX_FRAME_BYTES):
                        patience.reset()
                        yield from tail.read_frame(frame.event, frame.id, frame.data)
                # Read to its end, so that the connection can be used again.
                if tail.is_over:
                    return
                failure, is_final = ServerUnavailable("the stream ended in the middle: the server was stopped"), False
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                if tail.is_over:
                    return
                failure, is_final = self._classify_failure(error, call)
            except AgentError as error:
                failure, is_final = error, tail.is_over
            self.clock.sleep(patience.next_wait(failure, is_final))

    async def follow_async(self, tail: Tail[T_co]) -> AsyncIterator[T_co]:
        import httpx2

        failure: AgentError
        patience = _RetrySchedule(self, tail.call())
        while not tail.is_over:
            call = tail.call()
            try:
                client = await self._pool.client_async()
                async with client.stream(**self._request(call)) as response:
                    if not _is_stream(response):
                        _read_answer(call, response.status_code, await response.aread())
                    tail.on_open(response.headers)
                    source: Any = httpx2.EventSource(response, max_event_size=MAX_FRAME_BYTES)
                    async with aclosing(aiter(source)) as frames:
                        async for frame in frames:
                            patience.reset()
                            for item in tail.read_frame(frame.event, frame.id, frame.data):
                                yield item
                if tail.is_over:
                    return
                failure, is_final = ServerUnavailable("the stream ended in the middle: the server was stopped"), False
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                if tail.is_over:
                    return
                failure, is_final = self._classify_failure(error, call)
            except AgentError as error:
                failure, is_final = error, tail.is_over
            await asyncio.sleep(patience.next_wait(failure, is_final))

    # -- requests and failures -----------------------------------------------------------------------------------------

    def _request(self, call: Call) -> dict[str, Any]:
        headers: dict[str, str] = {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if call.key is not None:
            headers["idempotency-key"] = call.key
        if call.last_event is not None:
            headers["last-event-id"] = call.last_event
        found: dict[str, Any] = {"method": call.method, "url": self.base_url + call.path, "headers": headers}
        if call.is_stream:
            headers["accept"] = "text/event-stream"
            found["timeout"] = read_timeout(max(self.timeout, STREAM_SILENCE), self.timeout)
        if call.query:
            found["params"] = dict(call.query)
        if call.body is not None:
            headers["content-type"] = "application/json"
            found["content"] = codec.encode(dict(call.body), room=BODY_LEVELS)
        return found

    def _classify_failure(self, error: Exception, call: Call) -> tuple[AgentError, bool]:
        """What a failure of the transport means, and whether it is final. Its text is left out: it may quote a
        header."""
        import httpx2

        name, where = type(error).__name__, self.base_url
        if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
            return InvalidArgument(f"the request cannot be sent ({name}): check base_url, token and keys"), True
        if isinstance(error, httpx2.ReadTimeout) and call.waits:
            return ServerSilent(f"the server at {where} has not answered for {self.timeout:g} s"), True
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ServerUnavailable(f"nobody answers at {where} ({name}): is `holdfast serve` running there?"), False
        return ServerUnavailable(f"the connection to {where} broke ({name}): check the server and try again"), False

    def close(self) -> None:
        """Close the connections of this process. The next call opens new ones."""
        self._pool.close()

    async def close_async(self) -> None:
        """Close the connections of the running event loop."""
        await self._pool.close_async()


def _client_options(base_url: str, timeout: float) -> dict[str, Any]:
    address = urlsplit(base_url)
    return {
        **client_options(timeout),
        "verify": address.scheme == "https",  # reading the certificates takes 35 ms, and http has none
        "trust_env": address.hostname not in LOOPBACK,  # what is for this machine goes through no proxy
    }


class _RetrySchedule:
    """Waiting between the attempts of one call: longer each time, within its time and its number of attempts."""

    def __init__(self, wire: Transport, call: Call) -> None:
        self._transport, self._clock = wire, wire.clock
        # A run may take long before its connection breaks: its time begins with the first failure.
        self._deadline = None if call.waits or call.is_stream else self._clock.monotonic() + wire.timeout
        self._retries_left, self._next_wait = wire.retries, FIRST_WAIT

    def reset(self) -> None:
        """Start again with the first wait: the server answered."""
        self._deadline, self._retries_left, self._next_wait = None, self._transport.retries, FIRST_WAIT

    def next_wait(self, failure: AgentError, is_final: bool) -> float:
        """Seconds until the next attempt; raises the failure if there is none."""
        if is_final or self._retries_left <= 0 or not is_transient(failure):
            raise failure from None
        self._retries_left -= 1
        pause = self._next_wait * (0.5 + random_share(self._clock) / 2)
        self._next_wait = min(self._next_wait * 2, LONGEST_WAIT)
        asked = getattr(failure, "retry_after", None)
        if isinstance(asked, int | float):
            pause = max(pause, float(asked))
        now = self._clock.monotonic()
        if self._deadline is None:
            self._deadline = now + self._transport.timeout
        if now + pause > self._deadline:
            raise failure from None
        return pause


def _read_answer(call: Call, status: int, content: bytes) -> Any:  # noqa: ANN401 - what the endpoint answers
    if call.is_text and status == 200:
        return content.decode()
    try:
        value = codec.decode(content)
    except ValueError:
        value = None
    if 200 <= status < 300:
        if value is None:
            raise AgentError(f"{call.path} did not answer JSON: is base_url the address of a holdfast server?")
        return value
    if isinstance(value, dict) and "error" in value and "code" in value:
        raise error_from_json(value, status)
    raise error_from_status(status)


def _is_stream(response: httpx2.Response) -> bool:
    kind: str = response.headers.get("content-type", "")
    return response.status_code == 200 and kind.startswith("text/event-stream")


def check_url(base_url: object) -> str:
    """The address of a server; it is not quoted if it is refused, because it may hold a password."""
    if not isinstance(base_url, str):
        raise InvalidArgument(f"base_url is a string such as 'http://127.0.0.1:2323', not {type(base_url).__name__}")
    try:
        found = urlsplit(base_url)
        is_known = found.scheme in ("http", "https") and found.hostname and (found.port is None or found.port)
    except ValueError:  # half an IPv6 address, a port that is no number
        is_known = False
    if not is_known or found.query or found.fragment:
        raise InvalidArgument("base_url is not understood: use one such as 'http://127.0.0.1:2323'")
    if found.username is not None or found.password is not None:
        raise InvalidArgument("base_url holds a name or a password: give the key as token= instead")
    return base_url.rstrip("/")
