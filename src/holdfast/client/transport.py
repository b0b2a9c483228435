"""How calls travel: the only module of the client that knows httpx2, which is loaded with the first call.

Three things stay true. A request is sent again only if it is the same request to the server: it reads, or it carries
its key. What httpx2 raises never leaves this module, because its errors hold on to the request, and the request holds
the token. And a stream that is opened again goes on behind the last frame that was seen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, finalize

from holdfast.client.errors import Silence, fault_of, foreign_fault, is_passing
from holdfast.client.requests import Call
from holdfast.clock import REAL, Ids
from holdfast.errors import AgentError, InvalidArgument, ServerUnavailable
from holdfast.log import codec

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT = 15.0
STREAM_SILENCE = 60.0  # a stream that has nothing to tell sends a ping every 15 s
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
MAX_FRAME_BYTES = 64 << 20
ROOM = 16  # levels that a body may add around a value that the log takes
LOOPBACK = ("127.0.0.1", "localhost", "::1")

T_co = TypeVar("T_co", covariant=True)


class Tail(Protocol[T_co]):
    """A stream that is opened again when it breaks: how it is opened, and what its frames tell."""

    @property
    def is_over(self) -> bool:
        """Whether everything was told: then the stream may end."""
        ...

    def call(self) -> Call: ...

    def opened(self, headers: httpx2.Headers) -> None: ...

    def take(self, event: str, id: str, data: str) -> Iterator[T_co]:
        """What one frame tells; raises what the server says went wrong."""
        ...


class Wire:
    """Sends calls, blocking or awaited, with the same rules.

    `timeout` is how long the server may be silent, and how long one call may take with its repetitions; `retries` how
    often it is sent again at most.
    """

    def __init__(self, base_url: str, *, token: str | None, timeout: float, retries: int, ids: Ids = REAL) -> None:
        self.base_url = base_url
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
            raise InvalidArgument(f"timeout={timeout!r}: use a number of seconds above 0")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InvalidArgument(f"retries={retries!r}: use a whole number, 0 or more")
        self.timeout, self.retries, self.ids = timeout, retries, ids
        self._token = token
        # A client belongs to the process that made it, and an async one to its event loop.
        self._clients: dict[int, httpx2.Client] = {}
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, _AsyncClient]] = (
            WeakKeyDictionary()
        )
        finalize(self, _close, self._clients)

    # -- one call ------------------------------------------------------------------------------------------------------

    def send(self, call: Call) -> Any:  # noqa: ANN401 - what the endpoint answers
        """The answer to a call, or the error it is."""
        import httpx2

        request, patience = self._request(call), _Patience(self, call)
        while True:
            try:
                response = self._client().request(**request)
                return _answer(call, response.status_code, response.content)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure, is_final = self._lost(error, call)
            except AgentError as error:
                failure, is_final = error, False
            self.ids.sleep(patience.wait(failure, is_final))

    async def send_async(self, call: Call) -> Any:  # noqa: ANN401 - what the endpoint answers
        import httpx2

        request, patience = self._request(call), _Patience(self, call)
        while True:
            try:
                client = await self._async_client()
                response = await client.request(**request)
                return _answer(call, response.status_code, response.content)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure, is_final = self._lost(error, call)
            except AgentError as error:
                failure, is_final = error, False
            await asyncio.sleep(patience.wait(failure, is_final))

    # -- one stream ----------------------------------------------------------------------------------------------------

    def follow(self, tail: Tail[T_co]) -> Iterator[T_co]:
        """What a stream tells, across as many connections as it takes."""
        import httpx2

        failure: AgentError
        patience = _Patience(self, tail.call())
        while not tail.is_over:
            call = tail.call()
            try:
                with self._client().stream(**self._request(call)) as response:
                    if not _is_stream(response):
                        _answer(call, response.status_code, response.read())
                    tail.opened(response.headers)
                    for frame in httpx2.EventSource(response, max_event_size=MAX_FRAME_BYTES):
                        patience.renew()
                        yield from tail.take(frame.event, frame.id, frame.data)
                # Read to its end, so that the connection can be used again.
                if tail.is_over:
                    return
                failure, is_final = ServerUnavailable("the stream ended in the middle: the server was stopped"), False
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                if tail.is_over:
                    return
                failure, is_final = self._lost(error, call)
            except AgentError as error:
                failure, is_final = error, tail.is_over
            self.ids.sleep(patience.wait(failure, is_final))

    async def follow_async(self, tail: Tail[T_co]) -> AsyncIterator[T_co]:
        import httpx2

        failure: AgentError
        patience = _Patience(self, tail.call())
        while not tail.is_over:
            call = tail.call()
            try:
                client = await self._async_client()
                async with client.stream(**self._request(call)) as response:
                    if not _is_stream(response):
                        _answer(call, response.status_code, await response.aread())
                    tail.opened(response.headers)
                    source: Any = httpx2.EventSource(response, max_event_size=MAX_FRAME_BYTES)
                    async with aclosing(aiter(source)) as frames:
                        async for frame in frames:
                            patience.renew()
                            for item in tail.take(frame.event, frame.id, frame.data):
                                yield item
                if tail.is_over:
                    return
                failure, is_final = ServerUnavailable("the stream ended in the middle: the server was stopped"), False
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                if tail.is_over:
                    return
                failure, is_final = self._lost(error, call)
            except AgentError as error:
                failure, is_final = error, tail.is_over
            await asyncio.sleep(patience.wait(failure, is_final))

    # -- what goes out, and what it means when nothing comes back ------------------------------------------------------

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
            found["timeout"] = self._patient(max(self.timeout, STREAM_SILENCE))
        if call.query:
            found["params"] = dict(call.query)
        if call.body is not None:
            headers["content-type"] = "application/json"
            found["content"] = codec.encode(dict(call.body), room=ROOM)
        return found

    def _lost(self, error: Exception, call: Call) -> tuple[AgentError, bool]:
        """What a failure of the transport means, and whether it is final. Its text is left out: it may quote a
        header."""
        import httpx2

        name, where = type(error).__name__, self.base_url
        if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
            return InvalidArgument(f"the request cannot be sent ({name}): check base_url, token and keys"), True
        if isinstance(error, httpx2.ReadTimeout) and call.waits:
            return Silence(f"the server at {where} has not answered for {self.timeout:g} s"), True
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ServerUnavailable(f"nobody answers at {where} ({name}): is `holdfast serve` running there?"), False
        return ServerUnavailable(f"the connection to {where} broke ({name}): check the server and try again"), False

    # -- clients -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections of this process. Using the client again opens new ones."""
        _close(self._clients)

    async def close_async(self) -> None:
        """Close the connections of the running event loop."""
        pid, client = self._async_clients.pop(asyncio.get_running_loop(), (0, None))
        if client is not None and pid == os.getpid():
            await client.lifetime.aclose()

    def _client(self) -> httpx2.Client:
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            import httpx2

            mine = httpx2.Client(**self._manners())
            client = self._clients.setdefault(pid, mine)  # no lock: one that is held during a fork is held for ever
            if client is not mine:
                mine.close()
        return client

    async def _async_client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        pid, found = self._async_clients.get(loop, (0, None))
        if found is None or pid != os.getpid() or found.client.is_closed:
            import httpx2

            found = _AsyncClient(httpx2.AsyncClient(**self._manners()))
            self._async_clients[loop] = (os.getpid(), found)
            # Started inside the loop, so that the loop closes it, and its connections with it, when it shuts down.
            await anext(found.lifetime)
        return found.client

    def _manners(self) -> dict[str, Any]:
        import httpx2

        address = urlsplit(self.base_url)
        return {
            "timeout": self._patient(self.timeout),
            "headers": {"user-agent": "holdfast", "accept-encoding": "identity"},  # compressed streams arrive late
            "limits": httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            "verify": address.scheme == "https",  # reading the certificates takes 35 ms, and http has none
            "trust_env": address.hostname not in LOOPBACK,  # what is for this machine goes through no proxy
        }

    def _patient(self, silence: float) -> httpx2.Timeout:
        import httpx2

        return httpx2.Timeout(silence, connect=min(CONNECT_TIMEOUT, self.timeout))


class _AsyncClient:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.lifetime = self._live()

    async def _live(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.client.aclose()


class _Patience:
    """Waiting between the attempts of one call: longer each time, within its time and its number of attempts."""

    def __init__(self, wire: Wire, call: Call) -> None:
        self._wire, self._ids = wire, wire.ids
        # A run may take long before its connection breaks: its time begins with the first failure.
        self._deadline = None if call.waits or call.is_stream else self._ids.elapsed() + wire.timeout
        self._left, self._next = wire.retries, FIRST_WAIT

    def renew(self) -> None:
        """Something came: the server is well again."""
        self._deadline, self._left, self._next = None, self._wire.retries, FIRST_WAIT

    def wait(self, failure: AgentError, is_final: bool) -> float:
        """Seconds until the next attempt; raises the failure if there is none."""
        if is_final or self._left <= 0 or not is_passing(failure):
            raise failure from None
        self._left -= 1
        # Half of it by chance: clients that failed together must not come back together.
        share = int.from_bytes(self._ids.random(8), "big") / 2.0**64
        pause = self._next * (0.5 + share / 2)
        self._next = min(self._next * 2, LONGEST_WAIT)
        asked = getattr(failure, "retry_after", None)
        if isinstance(asked, int | float):
            pause = max(pause, float(asked))
        now = self._ids.elapsed()
        if self._deadline is None:
            self._deadline = now + self._wire.timeout
        if now + pause > self._deadline:
            raise failure from None
        return pause


def _answer(call: Call, status: int, content: bytes) -> Any:  # noqa: ANN401 - what the endpoint answers
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
        raise fault_of(value, status)
    raise foreign_fault(status)


def _is_stream(response: httpx2.Response) -> bool:
    kind: str = response.headers.get("content-type", "")
    return response.status_code == 200 and kind.startswith("text/event-stream")


def checked_url(base_url: object) -> str:
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


def _close(clients: dict[int, httpx2.Client]) -> None:
    client = clients.pop(os.getpid(), None)
    if client is not None:
        client.close()
