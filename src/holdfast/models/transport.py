"""Requests to providers over HTTP, blocking and awaited. httpx2 is imported with the first call.

Two things stay true. A request is repeated only while no event of its reply has been yielded. And errors of httpx2
never leave this module, because its errors hold on to the request, and the request holds the key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.diagnostics import report
from holdfast.errors import BadResponse, ProviderError, ProviderTimeout, ProviderUnavailable, StreamTruncated
from holdfast.http_client import ClientPool, client_options, random_share
from holdfast.models.base import ModelEvent, ModelRequest
from holdfast.models.endpoint import MAX_REPLY_BYTES, Codec, Decoder, Endpoint, WireRequest
from holdfast.models.provider_errors import error_from_response

if TYPE_CHECKING:
    import ssl

    import httpx2

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
MAX_ERROR_BYTES = 1 << 16
MAX_DRAIN = 64  # chunks that may follow the end of a reply before the connection is given up


class Transport:
    """Sends requests and streams the replies, blocking or not, with the same rules.

    `timeout` is how long a provider may be silent, `max_seconds` how long one question may take with its repetitions,
    `max_wait` the longest Retry-After that is waited for here.
    """

    def __init__(
        self,
        *,
        timeout: float = 120.0,
        max_retries: int = 2,
        max_seconds: float = 1800.0,
        max_wait: float = 60.0,
        max_bytes: int = MAX_REPLY_BYTES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.timeout, self.max_retries, self.max_seconds = timeout, max_retries, max_seconds
        self.max_wait, self.max_bytes, self.clock = max_wait, max_bytes, clock
        self._pool = ClientPool(partial(_client_options, timeout))

    def stream(self, codec: Codec, request: ModelRequest, endpoint: Endpoint) -> Iterator[ModelEvent]:
        outgoing, begun = codec.encode(request, endpoint), self.clock.monotonic()
        for attempt in count():
            has_yielded = False
            try:
                for event in self._attempt(codec.decoder(request, endpoint, self.max_bytes), outgoing, endpoint, begun):
                    has_yielded = True
                    yield event
                return
            except ProviderError as error:
                wait = self._retry_delay(error, attempt, begun)
                if has_yielded or wait is None:
                    raise
                _report_retry(error, attempt, wait, endpoint, request)
            self.clock.sleep(wait)

    async def stream_async(self, codec: Codec, request: ModelRequest, endpoint: Endpoint) -> AsyncIterator[ModelEvent]:
        outgoing, begun = codec.encode(request, endpoint), self.clock.monotonic()
        for attempt in count():
            has_yielded = False
            events = self._attempt_async(codec.decoder(request, endpoint, self.max_bytes), outgoing, endpoint, begun)
            try:
                async for event in events:
                    has_yielded = True
                    yield event
                return
            except ProviderError as error:
                wait = self._retry_delay(error, attempt, begun)
                if has_yielded or wait is None:
                    raise
                _report_retry(error, attempt, wait, endpoint, request)
            finally:
                await events.aclose()
            await self._sleep_async(wait)

    def fetch(self, outgoing: WireRequest, endpoint: Endpoint) -> bytes:
        """The JSON body of an answer that comes in one piece, under the same rules."""
        begun, attempt = self.clock.monotonic(), 0
        while True:
            try:
                return self._attempt_fetch(outgoing, endpoint, begun)
            except ProviderError as error:
                wait = self._retry_delay(error, attempt, begun)
                if wait is None:
                    raise
                _report_retry(error, attempt, wait, endpoint, None)
            self.clock.sleep(wait)
            attempt += 1

    def close(self) -> None:
        """Close the blocking client of this process. The next request opens a new one."""
        self._pool.close()

    async def close_async(self) -> None:
        """Close the client of the running event loop."""
        await self._pool.close_async()

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _attempt(
        self, decoder: Decoder, outgoing: WireRequest, endpoint: Endpoint, begun: float
    ) -> Iterator[ModelEvent]:
        import httpx2

        client, answered = self._pool.client(), False
        try:
            with client.stream("POST", outgoing.url, content=outgoing.body, headers=dict(outgoing.headers)) as response:
                if not _is_stream(response):
                    body = b""
                    for chunk in response.iter_bytes():
                        body += chunk
                        if len(body) > MAX_ERROR_BYTES:
                            break
                    raise error_from_response(
                        endpoint, response.status_code, response.headers, body, now=self.clock.now()
                    )
                answered = True
                left = MAX_DRAIN
                for chunk in response.iter_bytes():
                    yield from decoder.feed(chunk)
                    if not decoder.ended:
                        self._check_time(begun, endpoint)
                    else:  # read on to the end of the body, so that the connection can be used again
                        left -= 1
                        if left == 0 or not _is_delimited(response):
                            return
                yield from decoder.finish()
                return
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            failure = _error_from_exception(error, endpoint, answered=answered, timeout=self.timeout)
        if not decoder.ended:
            raise failure

    def _attempt_fetch(self, outgoing: WireRequest, endpoint: Endpoint, begun: float) -> bytes:
        import httpx2

        client, answered, body = self._pool.client(), False, bytearray()
        try:
            with client.stream("POST", outgoing.url, content=outgoing.body, headers=dict(outgoing.headers)) as response:
                answered = response.status_code == 200
                limit = self.max_bytes if answered else MAX_ERROR_BYTES
                for chunk in response.iter_bytes():
                    body += chunk
                    self._check_time(begun, endpoint)
                    if len(body) > limit:
                        break
                if not answered:
                    raise error_from_response(
                        endpoint, response.status_code, response.headers, bytes(body), now=self.clock.now()
                    )
                if len(body) > limit:
                    text = f"{endpoint.provider} answered with more than {limit} bytes: ask for less at once"
                    raise BadResponse(text, provider=endpoint.provider, retryable=False)
                return bytes(body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            failure = _error_from_exception(error, endpoint, answered=answered, timeout=self.timeout)
        raise failure

    async def _attempt_async(
        self, decoder: Decoder, outgoing: WireRequest, endpoint: Endpoint, begun: float
    ) -> AsyncGenerator[ModelEvent, None]:
        import httpx2

        client, answered = await self._pool.client_async(), False
        try:
            async with client.stream(
                "POST", outgoing.url, content=outgoing.body, headers=dict(outgoing.headers)
            ) as response:
                if not _is_stream(response):
                    body = b""
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        if len(body) > MAX_ERROR_BYTES:
                            break
                    raise error_from_response(
                        endpoint, response.status_code, response.headers, body, now=self.clock.now()
                    )
                answered = True
                left = MAX_DRAIN
                async for chunk in response.aiter_bytes():
                    for event in decoder.feed(chunk):
                        yield event
                    if not decoder.ended:
                        self._check_time(begun, endpoint)
                    else:
                        left -= 1
                        if left == 0 or not _is_delimited(response):
                            return
                for event in decoder.finish():
                    yield event
                return
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            failure = _error_from_exception(error, endpoint, answered=answered, timeout=self.timeout)
        if not decoder.ended:
            raise failure

    def _check_time(self, begun: float, endpoint: Endpoint) -> None:
        if self.clock.monotonic() - begun > self.max_seconds:
            text = f"{endpoint.place} did not finish within {self.max_seconds:.0f} s: ask for less, or allow more"
            raise ProviderTimeout(text, provider=endpoint.provider, retryable=False)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _retry_delay(self, error: ProviderError, attempt: int, begun: float) -> float | None:
        """Seconds until the next attempt, or None if there is none."""
        if not error.retryable or attempt >= self.max_retries:
            return None
        wait = random_share(self.clock) * min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt)
        if error.retry_after is not None:
            if error.retry_after > self.max_wait:
                return None
            wait += error.retry_after
        return None if self.clock.monotonic() + wait - begun > self.max_seconds else wait

    async def _sleep_async(self, seconds: float) -> None:
        if type(self.clock).sleep is Clock.sleep:
            await asyncio.sleep(seconds)
        else:
            self.clock.sleep(seconds)  # a clock that a test moves by hand does not block


def _report_retry(
    error: ProviderError, attempt: int, wait: float, endpoint: Endpoint, request: ModelRequest | None
) -> None:
    """Report an attempt that failed and is repeated. The error's text is left out: it quotes the provider."""
    report(
        logging.INFO,
        "%(provider)s: attempt %(attempt)d failed (%(code)s), the next one is in %(seconds).2f s",
        {
            "session_id": None if request is None else request.session_id,
            "run_id": None if request is None else request.run_id,
            "provider": endpoint.provider,
            "model": None if request is None else request.model,
            "attempt": attempt + 1,
            "seconds": wait,
            "code": error.code,
            "status": error.http_status,
        },
    )


def _client_options(timeout: float) -> dict[str, Any]:
    return {**client_options(timeout), "verify": _load_certificates()}


@cache
def _load_certificates() -> ssl.SSLContext:
    """Which certificates are trusted; reading them takes 35 ms, so every client shares them."""
    import httpx2

    return httpx2.create_ssl_context()


def _is_stream(response: httpx2.Response) -> bool:
    kind = response.headers.get("content-type", "")
    return response.status_code == 200 and not kind.startswith(("application/json", "text/html"))


def _is_delimited(response: httpx2.Response) -> bool:
    return "transfer-encoding" in response.headers or "content-length" in response.headers


def _error_from_exception(error: Exception, endpoint: Endpoint, *, answered: bool, timeout: float) -> ProviderError:
    """What a failure of the transport means. Its text is left out: it may quote a header."""
    import httpx2

    name, provider, place = type(error).__name__, endpoint.provider, endpoint.place
    if isinstance(error, httpx2.TimeoutException):
        return ProviderTimeout(f"{place} was silent for too long ({name}, limit {timeout:g} s)", provider=provider)
    if isinstance(error, httpx2.DecodingError):
        return BadResponse(f"{place} sent bytes that cannot be decoded ({name})", provider=provider)
    if isinstance(error, (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)):
        sources = f"{endpoint.url_source}, {endpoint.key_source} and headers="
        text = f"the request to {place} cannot be sent ({name}): check {sources}"
        return ProviderError(text, provider=provider)
    if answered:
        return StreamTruncated(f"the connection to {place} broke inside the reply ({name})", provider=provider)
    return ProviderUnavailable(
        f"{place} cannot be reached ({name}): check the network and {endpoint.url_source}", provider=provider
    )
