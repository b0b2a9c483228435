"""A model that sends a piece of text only when a test allows it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

from holdfast.models.base import ModelEvent, ModelRequest, TextDelta
from holdfast.models.scripted import stream_items

PATIENCE = 30.0


class GatedModel:
    """Sends the same text at each request, one piece for each piece that the test allows."""

    name, provider, context_window = "drip", "test", 128_000

    def __init__(self, text: str) -> None:
        self.text = text
        self.request_count = 0
        self._allowed = threading.Semaphore(0)

    def allow_pieces(self, pieces: int = 1000) -> None:
        self._allowed.release(pieces)

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        self.request_count += 1
        for event in stream_items([self.text], request):
            if isinstance(event, TextDelta):
                assert self._allowed.acquire(timeout=PATIENCE), "the test let nothing through"
            yield event

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        raise NotImplementedError("a server runs turns on threads")
        yield
