from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import FixedClock
from holdfast.models import Done, LanguageModel, ModelEvent, ModelRequest
from tests.models.loopback_provider import Provider

NAMES = {"openai": "gpt-4o", "anthropic": "claude-sonnet-5"}
KEY = "sk-planted-0123456789abcdef"


class RecordingClock(FixedClock):
    """Never sleeps, and remembers for how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        super().sleep(seconds)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def clock() -> RecordingClock:
    return RecordingClock()


@pytest.fixture(params=["openai", "anthropic"])
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(provider: Provider, wire: str, clock: RecordingClock) -> Iterator[LanguageModel]:
    made = LanguageModel(wire, NAMES[wire], api_key=KEY, base_url=f"{provider.url}/v1", clock=clock, timeout=30)
    yield made
    made.close()


Ask = Callable[..., list[ModelEvent]]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Ask a model, blocking or not, and get all of its events."""

    def run(model: LanguageModel, question: ModelRequest, told: list[ModelEvent] | None = None) -> list[ModelEvent]:
        events = [] if told is None else told
        if request.param == "sync":
            for event in model.stream(question):
                events.append(event)
        else:

            async def gather() -> None:
                async for event in model.stream_async(question):
                    events.append(event)

            asyncio.run(gather())
        return events

    return run


def read_done(events: list[ModelEvent]) -> Done:
    done = events[-1]
    assert isinstance(done, Done)
    return done
