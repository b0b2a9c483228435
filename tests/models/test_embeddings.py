"""Vectors over the network: what is sent, what is read, and what a failure says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Memory, VectorMemoryService
from holdfast.errors import (
    AuthenticationFailed,
    BadResponse,
    InvalidArgument,
    ProviderError,
    ProviderTimeout,
    RateLimited,
)
from holdfast.models.embeddings import BATCH, Embeddings
from holdfast.stores import MemoryStore
from tests.models.conftest import KEY, RecordingClock
from tests.models.loopback_provider import Answer, Provider, RecordedRequest

JSON = {"content-type": "application/json"}


def make_vectors_answer(*given: list[float], order: list[int] | None = None) -> Answer:
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(given)]
    body = {"object": "list", "data": [data[at] for at in order or range(len(data))], "model": "m"}
    return Answer([json.dumps(body).encode()], headers=JSON)


def make_error_answer(status: int, **headers: str) -> Answer:
    return Answer([json.dumps({"error": {"message": f"no, {KEY}"}}).encode()], status=status, headers=JSON | headers)


@pytest.fixture
def embed(provider: Provider, clock: RecordingClock) -> Any:
    made = Embeddings("nomic", base_url=f"{provider.url}/v1", api_key=KEY, clock=clock, timeout=0.5)
    yield made
    made._transport.close()


def test_texts_go_out_and_vectors_come_back_in_order(provider: Provider, embed: Embeddings) -> None:
    provider.enqueue(make_vectors_answer([1.0, 2], [3.0, 4.5], order=[1, 0]))
    assert embed(["one", "two"]) == [[1.0, 2], [3.0, 4.5]]
    (seen,) = provider.requests
    assert seen.path == "/v1/embeddings"
    assert seen.body == {"model": "nomic", "input": ["one", "two"], "encoding_format": "float"}
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert embed.name == "custom:nomic"
    assert KEY not in repr(embed)


def test_many_texts_are_sent_in_batches(provider: Provider, embed: Embeddings) -> None:
    provider.enqueue(make_vectors_answer(*[[float(n)] for n in range(BATCH)]), make_vectors_answer([7.0]))
    found = embed([str(n) for n in range(BATCH + 1)])
    assert (len(found), found[-1]) == (BATCH + 1, [7.0])
    assert [len(seen.body["input"]) for seen in provider.requests] == [BATCH, 1]
    assert embed([]) == []


def test_a_temporary_failure_is_retried_and_a_permanent_one_is_raised(
    provider: Provider, embed: Embeddings, clock: RecordingClock
) -> None:
    provider.enqueue(make_error_answer(503), make_error_answer(429, **{"retry-after": "3"}), make_vectors_answer([1.0]))
    assert embed(["x"]) == [[1.0]]
    assert len(clock.slept) == 2
    provider.enqueue(make_error_answer(401))
    with pytest.raises(AuthenticationFailed) as caught:
        embed(["x"])
    assert KEY not in str(caught.value)
    provider.enqueue(*[make_error_answer(429)] * 3)
    with pytest.raises(RateLimited) as limited:
        embed(["x"])
    assert KEY not in str(limited.value)
    provider.enqueue(*[Answer([b"{"], headers=JSON, end="hold")] * 3)
    with pytest.raises(ProviderTimeout):
        embed(["x"])


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'{"data": []}',
        b'{"data": [{"index": 0}]}',
        b'{"data": [{"index": 1, "embedding": [1.0]}]}',
        b'{"data": [{"index": 0, "embedding": "x"}]}',
        b'{"data": [{"index": 0, "embedding": []}]}',
        b'{"data": [{"index": 0, "embedding": [true]}]}',
        b'{"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}',
        b'{"data": [{"index": "x", "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}',
    ],
)
def test_an_answer_without_vectors_is_a_bad_response(provider: Provider, embed: Embeddings, body: bytes) -> None:
    provider.enqueue(Answer([body], headers=JSON))
    with pytest.raises(BadResponse, match="check"):
        embed(["x"])


def test_an_endless_answer_is_cut(provider: Provider, clock: RecordingClock) -> None:
    embed = Embeddings("nomic", base_url=f"{provider.url}/v1", clock=clock, max_bytes=1000)
    provider.enqueue(Answer([b"x" * 600] * 10, headers=JSON))
    with pytest.raises(BadResponse, match="more than 1000 bytes"):
        embed(["x"])
    embed._transport.close()


def test_names_lead_where_models_names_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    embed = Embeddings("openai:text-embedding-3-small")
    assert embed.name == "openai:text-embedding-3-small"
    assert embed._model.endpoint().base_url == "http://127.0.0.1:9/v1"
    for bad in ("anthropic:claude-sonnet-5", "echo", "nothing", "unknown:model"):
        with pytest.raises(InvalidArgument):
            Embeddings(bad)
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(AuthenticationFailed, match="OPENAI_API_KEY"):
        embed(["x"])


def test_a_memory_asks_its_endpoint_and_gets_by_without_it(provider: Provider) -> None:
    provider.enqueue(make_vectors_answer([1.0, 0.0]), make_vectors_answer([1.0, 0.1]))
    service = VectorMemoryService(embedder=f"{provider.url}/v1", model="nomic", api_key=KEY)
    memory = Memory(service, store=MemoryStore())
    memory.store("patient_history", "Chronic migraines")
    assert [each.key for each in memory.search("headache")] == ["patient_history"]
    seen: list[RecordedRequest] = provider.requests
    assert [each.body["input"] for each in seen] == [["Chronic migraines"], ["headache"]]
    provider.enqueue(make_error_answer(400))
    assert memory.search("headache") == []
    assert service.failure is not None
    assert KEY not in service.describe()
    assert isinstance(service._embed, Embeddings)
    service._embed._transport.close()
    assert issubclass(AuthenticationFailed, ProviderError)
