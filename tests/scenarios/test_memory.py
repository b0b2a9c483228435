"""The promised lines about memory, on every store and over HTTP."""

from __future__ import annotations

from datetime import timedelta

from holdfast import Agent, KeywordMemoryService, Memory, Message, Session, VectorMemoryService
from holdfast.stores.base import Store


def test_the_promised_lines(store: Store) -> None:
    memory = Memory(service=VectorMemoryService(), store=store)
    memory.store("patient_history", "Chronic migraines")
    assert [str(each) for each in memory.recall(["patient_history"])] == ["Chronic migraines"]
    assert memory.search("headache", limit=5) == []  # hashed n-grams: spelling, not meaning
    assert [each.key for each in memory.search("patients with migranes", limit=5)] == ["patient_history"]
    assert memory.forget("patient_history")
    assert memory.recall(["patient_history"]) == []
    session = Session(store=store)
    session.add_message(Message.user("Remember that the headache comes at night."))
    memory.ingest_from_session(session)
    assert [each.text for each in memory.search("headache")] == ["The headache comes at night"]
    assert Agent(memory=memory).memory is memory


def test_with_an_embedder_a_headache_is_a_migraine(store: Store) -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        pains = ("headache", "migraine")
        return [[float(any(word in text.lower() for word in pains)), 0.1] for text in texts]

    memory = Memory(service=VectorMemoryService(embedder=embed), store=store)
    memory.store("patient_history", "Chronic migraines")
    memory.store("home", "Lives in Bremen")
    assert [each.key for each in memory.search("headache", limit=1)] == ["patient_history"]


def test_what_is_learnt_in_one_session_is_known_in_the_next(store: Store) -> None:
    memory = Memory(service=KeywordMemoryService(), store=store)
    first = Session(store=store, user_id="alice", app_name="clinic")
    seq = first.add_message(Message.user("My name is Alice. I am allergic to peanuts."))
    mine = memory.for_user("alice", app_name="clinic")
    found = mine.ingest_from_session(first)
    assert [(each.key, each.text) for each in found] == [
        ("name", "Name: Alice"),
        ("allergy.peanuts", "Allergic to peanuts"),
    ]
    assert all(each.source is not None for each in found)
    assert {(each.source.session_id, each.source.seqs) for each in found if each.source} == {(first.id, (seq,))}
    assert mine.ingest_from_session(first) == []
    known = memory.search("any allergies?", user_id="alice", app_name="clinic")
    assert [each.text for each in known] == ["Allergic to peanuts"]
    assert memory.search("any allergies?", user_id="bob", app_name="clinic") == []
    assert memory.search("any allergies?", user_id="alice") == []


def test_a_model_is_asked_for_facts_with_sources(store: Store) -> None:
    reply = (
        '{"memories": [{"key": "job", "text": "Is a pilot", "kind": "profile", "confidence": 0.9, "sources": [2, 7]}]}'
    )
    agent = Agent(provider="scripted", script=[reply], name="learner", store=store)
    session = agent.session(user_id="alice")
    session.add_message(Message.user("I flew the night shift again"))
    memory = Memory(store=store)
    (found,) = memory.for_user("alice").ingest_from_session(session, model=agent)
    assert (found.key, found.text, found.kind, found.confidence) == ("job", "Is a pilot", "profile", 0.9)
    assert found.source is not None
    assert found.source.seqs == (2,)


def test_an_erasure_reaches_memory(store: Store) -> None:
    memory = Memory(store=store)
    session = Session(store=store, user_id="alice")
    seq = session.add_message(Message.user("I am allergic to peanuts."))
    session.add_message(Message.user("I like tea."))
    memory.for_user("alice").ingest_from_session(session)
    memory.store("own", "Kept by hand", user_id="alice")
    session.redact(seq, reason="asked for it", actor="dpo")
    assert [each.key for each in memory.list(user_id="alice")] == ["likes.tea", "own"]
    session.erase(reason="asked for it", actor="dpo")
    assert [each.key for each in memory.list(user_id="alice")] == ["own"]


def test_memories_have_a_kind_a_confidence_and_an_expiry(store: Store) -> None:
    memory = Memory(store=store)
    kept = memory.store("offer", "Half price", kind="news", confidence=0.4, expires=timedelta(days=1), user_id="alice")
    assert kept.expires_at is not None
    assert kept.expires_at - kept.created_at <= timedelta(days=1, seconds=1)
    memory.store("price", "Full price", user_id="alice")
    assert [each.key for each in memory.search("price", user_id="alice", kind="news")] == ["offer"]
    assert [each.key for each in memory.search("price", user_id="alice", min_confidence=0.5)] == ["price"]
    assert [each.key for each in memory.list("news", user_id="alice")] == ["offer"]
    again = memory.store("offer", "A third of the price", user_id="alice")
    assert (again.created_at, again.expires_at) == (kept.created_at, None)
    assert [each.key for each in memory.list(limit=1, user_id="alice")] == ["offer"]
    assert [each.key for each in memory.list(limit=1, after="offer", user_id="alice")] == ["price"]
