"""Finding by vectors: fused with words, never compared across makers, and never in the way of keeping a text."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from holdfast import Memory, VectorMemoryService
from holdfast.errors import InvalidArgument, ProviderUnavailable
from holdfast.memory import ngrams, vector
from holdfast.memory.memory_log import MemoryLog
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from tests.memory.embedders import MeaningEmbedder, list_keys


def test_meaning_is_found_without_a_word_in_common(store: Store) -> None:
    memory = Memory(VectorMemoryService(MeaningEmbedder()), store=store)
    memory.store("patient_history", "Chronic migraines")
    memory.store("pets", "Has a cat")
    assert list_keys(memory.search("headache", limit=5)) == ["patient_history"]
    assert list_keys(memory.search("kitten")) == ["pets"]


def test_what_both_ways_find_comes_first(store: Store) -> None:
    memory = Memory(VectorMemoryService(MeaningEmbedder()), store=store)
    memory.store("words", "The word headache is on page 7 of the index of the truck manual, truck, car, vehicle")
    memory.store("both", "A headache, a pain in the head")
    memory.store("meaning", "Migraines")
    assert list_keys(memory.search("headache"))[0] == "both"
    assert set(list_keys(memory.search("headache"))) == {"words", "both", "meaning"}


@pytest.mark.parametrize("pure", [False, True])
def test_with_and_without_numpy_the_order_is_the_same(monkeypatch: pytest.MonkeyPatch, pure: bool) -> None:
    if pure:
        monkeypatch.setattr(vector, "_numpy", lambda: None)
    else:
        assert vector._numpy() is not None, "numpy is in the dev group"
    memory = Memory(VectorMemoryService(), store=MemoryStore())
    for n, text in enumerate(["strawberry jam", "strawberries", "raspberry jam", "blueberry", "a straw hat"]):
        memory.store(f"k{n}", text)
    assert list_keys(memory.search("strawbery"))[:2] == ["k1", "k0"]  # misspelt, so by pieces of words
    dense = Memory(VectorMemoryService(MeaningEmbedder()), store=MemoryStore())
    for n, text in enumerate(["headache pain", "headache cat", "headache cat car", "headache cat car tea"]):
        dense.store(f"k{n}", text)
    assert list_keys(dense.search("migraine")) == ["k0", "k1", "k2", "k3"]


def test_hashed_n_grams_are_close_for_similar_spelling_and_far_for_others() -> None:
    def cosine(one: str, two: str) -> float:
        a, b = vector._normalize_vectors(ngrams.embed_texts([one, two]), 2)
        assert a is not None
        assert b is not None
        return float(vector._cosines([vector.quantize_vector(a)], b)[0])

    assert cosine("allergic to peanuts", "peanut allergy") > 0.5
    assert cosine("migraine", "migrane") > 0.3
    assert abs(cosine("lives in a house in Berlin", "seven green bicycles")) < 0.2
    assert cosine("Same text", "same TEXT") == pytest.approx(1.0, abs=5e-3)


def test_vectors_of_another_embedder_are_not_compared_and_are_made_anew(store: Store) -> None:
    old = Memory(VectorMemoryService(MeaningEmbedder("one")), store=store, user_id="u")
    for n in range(70):
        old.store(f"k{n:02}", f"migraine number {n}")
    embedder = MeaningEmbedder("two", extra=3)
    new = Memory(VectorMemoryService(embedder), store=store, user_id="u")
    assert new.search("headache", limit=100) == []  # nothing of its own yet, and no word in common
    assert len(new.search("migraine", limit=100)) == 70  # words find them all the same
    assert len(new.search("headache", limit=100)) == 70  # each search embedded a portion
    asked = len(embedder.calls)
    assert len(new.search("headache", limit=100)) == 70
    assert len(embedder.calls) == asked + 1  # only the query
    (first,) = new.recall("k00")
    assert first.created_at == first.updated_at  # a new vector is no change of what it says
    log = MemoryLog(store, "u", None).find()
    assert log is not None
    assert store.verify(log)
    assert new.forget("k00")
    assert not any(b"number 0" in (row.body or b"") for row in store.walk(log))


def test_an_embedder_that_fails_loses_no_text_and_search_goes_by_words(store: Store) -> None:
    embedder = MeaningEmbedder()
    service = VectorMemoryService(embedder)
    memory = Memory(service, store=store)
    memory.store("a", "Chronic migraines")
    embedder.error = ProviderUnavailable("the endpoint is away", provider="custom")
    memory.store("b", "Migraine since May")
    assert set(list_keys(memory.search("migraines"))) == {"a", "b"}
    assert memory.search("headache") == []
    assert "the endpoint is away" in service.describe()
    assert service.failure is not None
    embedder.error = None
    assert list_keys(memory.search("headache")) == ["a"]  # and what had no vector gets one
    assert set(list_keys(memory.search("headache"))) == {"a", "b"}
    assert service.failure is None
    assert "away" not in service.describe()


def test_an_embedder_that_keeps_no_contract_is_named_and_nothing_is_kept(store: Store) -> None:
    wrong: list[Any] = [
        lambda texts: "no",
        lambda texts: None,
        lambda texts: [],
        lambda texts: [1.0, 2.0],
        lambda texts: [["a"]],
        lambda texts: [[]],
        lambda texts: [[float("nan")]],
        lambda texts: [[1.0], [1.0]],
    ]
    for embedder in wrong:
        memory = Memory(VectorMemoryService(embedder), store=store)
        with pytest.raises(InvalidArgument):
            memory.store("k", "text")
    assert Memory(store=store).list() == []


def test_a_text_without_a_direction_is_kept_and_found_by_words(store: Store) -> None:
    memory = Memory(VectorMemoryService(lambda texts: [[0.0, 0.0] for _ in texts]), store=store)
    memory.store("k", "beryl")
    assert list_keys(memory.search("beryl")) == ["k"]


def test_what_is_forgotten_or_erased_leaves_the_cache(store: Store) -> None:
    from holdfast import Session

    service = VectorMemoryService(MeaningEmbedder())
    memory, other = Memory(service, store=store, user_id="u"), Memory(store=store, user_id="u")
    memory.store("a", "migraine")
    memory.store("b", "headache")
    assert len(memory.search("pain")) == 2
    assert sum(len(read.vectors) for read in service._vectors._entries.values()) == 2
    other.forget("a")  # another service, which does not know this cache
    assert list_keys(memory.search("pain")) == ["b"]
    assert sum(len(read.vectors) for read in service._vectors._entries.values()) == 1
    Session.erase_user("u", reason="request", actor="dpo", store=store)
    assert memory.search("pain") == []
    assert not service._vectors._entries
    memory.store("c", "a new headache")
    assert list_keys(memory.search("pain")) == ["c"]


def test_the_cache_is_bounded(store: Store) -> None:
    service = VectorMemoryService(MeaningEmbedder())
    service._vectors._limit = 6 * 10  # ten vectors of six numbers
    memory = Memory(service, store=store)
    for n in range(6):
        memory.store("a", "migraine", user_id=f"u{n}")
        memory.store("b", "headache", user_id=f"u{n}")
        assert len(memory.search("pain", user_id=f"u{n}")) == 2
    assert len(service._vectors._entries) == 5
    assert len(memory.search("pain", user_id="u0")) == 2


def test_the_name_of_an_embedder_is_kept_with_each_vector(store: Store) -> None:
    def mine(texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    for service, name in (
        (VectorMemoryService(mine), f"{mine.__module__}.{mine.__qualname__}"),
        (VectorMemoryService(mine, model="mine-2"), "mine-2"),
        (VectorMemoryService(MeaningEmbedder("m")), "m"),
        (VectorMemoryService(), "hashed n-grams"),
    ):
        Memory(service, store=store).store("k", f"text for {name}")
        log = MemoryLog(store, None, None).find()
        assert log is not None
        event = store.lookup(log, "memory//k")
        assert event is not None
        data: dict[str, Any] = event.data
        assert data["embedder"] == name
        assert data["dimension"] == len(vector._unpack_vector(data).numbers)
        assert isinstance(vector._unpack_vector(data).numbers, array)
