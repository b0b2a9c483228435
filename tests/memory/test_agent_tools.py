"""What an agent's loop is given: lines that fit a question, and tools that know whose memory it is."""

from __future__ import annotations

import pytest

from holdfast import Agent, Memory, Session, ToolContext, VectorMemoryService
from holdfast.memory.service import Source
from holdfast.stores.base import Store
from holdfast.testing import call
from tests.memory.embedders import MeaningEmbedder, list_keys


def test_only_memories_that_fit_the_question_are_sent_best_first_and_within_the_limit(store: Store) -> None:
    memory = Memory(store=store)
    texts = {
        "diet": "Allergic to peanuts\nand to\r\nmilk",
        "home": "Lives in Berlin",
        "peanut": "Peanuts were bought",
        "pet": "Has a cat",
        "job": "Works for Acme",
    }
    for key, text in texts.items():
        memory.store(key, text, user_id="alice", app_name="shop", confidence=0.3 if key == "pet" else 1.0)

    def read_prompt(question: str, room: int = 1000) -> str:
        return memory.for_prompt("alice", "shop", question, room)

    assert read_prompt("Is she allergic to peanuts?") == "- diet (fact): Allergic to peanuts and to milk"
    assert read_prompt("Where does she live?") == "- home (fact): Lives in Berlin"
    assert read_prompt("which pet?") == "- pet (fact, uncertain): Has a cat"
    assert read_prompt("What is the weather like?") == read_prompt("") == ""
    assert read_prompt("Where does she live?", room=10) == ""
    assert len(read_prompt("peanuts", room=60).encode()) <= 60
    assert memory.for_prompt("bob", "shop", "Where does she live?", 1000) == ""
    assert memory.for_prompt("alice", None, "Where does she live?", 1000) == ""
    assert memory.for_prompt("alice", "shop", "Where does she live?", 1000, store=store.for_tenant("other")) == ""


def test_a_word_that_nearly_all_memories_have_does_not_select_them(store: Store) -> None:
    memory = Memory(store=store)
    for n in range(10):
        memory.store(f"k{n}", f"Alice did thing number {n}", user_id="alice")
    assert memory.for_prompt("alice", None, "Tell me about Alice", 1000) == ""


def test_with_an_embedder_meaning_counts_for_the_prompt(store: Store) -> None:
    memory = Memory(VectorMemoryService(MeaningEmbedder()), store=store)
    memory.store("history", "Chronic migraines", user_id="alice")
    memory.store("pets", "Has a cat", user_id="alice")
    assert memory.for_prompt("alice", None, "Any headaches?", 1000) == "- history (fact): Chronic migraines"


def make_agent(memory: Memory, *script: object) -> Agent:
    return Agent(provider="scripted", script=list(script), tools=memory.tools())


def test_the_tools_keep_and_find_for_the_user_of_the_session(store: Store) -> None:
    memory = Memory(store=store, user_id="somebody-else")
    memory.store("home", "Lives in Rome")
    script = [call("save_memory", {"text": "Lives in Berlin", "key": "home", "kind": "profile"}), "noted"]
    session = Session(store=store, agent=make_agent(memory, *script), user_id="alice", app_name="shop")
    session.run("I live in Berlin")
    (found,) = memory.list(user_id="alice", app_name="shop")
    assert (found.key, found.text, found.kind) == ("home", "Lives in Berlin", "profile")
    question = session.messages[0].seq
    assert question is not None
    assert found.source == Source(session_id=session.id, seqs=(question,))
    other = Session(
        store=store,
        agent=make_agent(memory, call("search_memory", {"query": "where does she live"}), "in Berlin"),
        user_id="alice",
        app_name="shop",
    )
    other.run("Where do I live?")
    assert "Lives in Berlin" in other.messages[2].parts[0].content
    nobody = Session(store=store, agent=make_agent(memory, call("search_memory", {"query": "live"}), "?"))
    nobody.run("Where do I live?")
    assert nobody.messages[2].parts[0].content == "nothing is known about that"
    session.redact(question, reason="r")
    assert memory.list(user_id="alice", app_name="shop") == []


def test_remembering_the_same_twice_keeps_it_once(store: Store) -> None:
    memory = Memory(store=store)
    script = [
        [
            call("save_memory", {"text": "She likes green tea"}),
            call("save_memory", {"text": "Likes green tea", "key": "tea"}),
        ],
        call("save_memory", {"text": "likes GREEN teas"}),
        "noted",
    ]
    session = Session(store=store, agent=make_agent(memory, *script), user_id="alice")
    session.run("I like green tea")
    assert [each.text for each in memory.list(user_id="alice")] == ["likes GREEN teas"]


def test_bad_arguments_are_reported_to_the_model(store: Store) -> None:
    memory = Memory(store=store)
    script = [[call("save_memory", {"text": " "}), call("search_memory", {"query": "x", "limit": -1})], "sorry"]
    session = Session(store=store, agent=make_agent(memory, *script), user_id="alice")
    session.run("hello")
    assert [message.parts[0].is_error for message in session.messages if message.role == "tool"] == [True, True]
    assert memory.list(user_id="alice") == []


def test_the_tools_follow_the_tenant_of_the_session(store: Store) -> None:
    memory = Memory(store=store)
    tenant = store.for_tenant("t2")
    script = [call("save_memory", {"text": "Lives in Berlin", "key": "home"}), "noted"]
    Session(store=tenant, agent=make_agent(memory, *script), user_id="alice").run("I live in Berlin")
    assert memory.list(user_id="alice") == []
    assert list_keys(memory.on(tenant).list(user_id="alice")) == ["home"]


def test_without_a_session_the_tools_do_not_know_the_user() -> None:
    save_memory, _ = Memory().tools()
    with pytest.raises(Exception, match="no session"):
        save_memory.function(ctx=ToolContext(), text="x")
