"""The four ways to ask, as one fixture: the same question must give the same log whichever is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Response, Session

WAYS = ("run", "run_async", "stream", "stream_async")
Ask = Callable[..., Response]

# For arguments that are refused before a store is asked: once in the library, and once at a server, which has checks of
# its own.
store_does_not_matter = pytest.mark.parametrize("store", ["memory", "server"], indirect=True)
blocking_only = pytest.mark.parametrize("do", ["blocking"], indirect=True)


def make_ask(way: str) -> Ask:
    """`ask(session, text, **options)`, blocking for the test, whichever way is meant."""

    def ask(session: Session, text: Any, **options: Any) -> Response:
        if way == "run":
            return session.run(text, **options)
        if way == "stream":
            return list(session.stream(text, **options))[-1].response  # type: ignore[union-attr]
        if way == "run_async":
            return asyncio.run(session.run_async(text, **options))

        async def read_stream() -> Response:
            return [event async for event in await session.stream_async(text, **options)][-1].response  # type: ignore[union-attr]

        return asyncio.run(read_stream())

    return ask


def make_resume(way: str) -> Callable[..., Response | None]:
    def resume(session: Session, *args: Any) -> Response | None:
        if way.endswith("async"):
            return asyncio.run(session.resume_async(*args))
        return session.resume(*args)

    return resume
