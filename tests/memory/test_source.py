"""Where memories come from, and that an erasure there reaches them: on every store, in a file's bytes, in a race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Memory, Message, Session, VectorMemoryService
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import InvalidArgument, SessionHeld
from holdfast.memory.memory_log import MemoryLog
from holdfast.memory.service import Source
from holdfast.stores import SQLiteStore
from holdfast.stores.base import Store
from tests.memory.embedders import list_keys
from tests.stores.test_secrets import read_folder, read_folder_elsewhere


def make_session(store: Store, *texts: str, id: str | None = None, user: str | None = "alice") -> Session:
    session = Session(id=id, store=store, user_id=user, app_name="shop")
    for text in texts:
        session.add_message(Message.user(text))
    return session


def list_texts(store: Store, user: str | None = "alice") -> list[str]:
    return [each.text for each in Memory(store=store).list(user_id=user, app_name="shop")]


def read_bodies(store: Store, user: str | None = "alice") -> bytes:
    log = MemoryLog(store, user, "shop").find()
    if log is None:
        return b""
    assert store.verify(log)
    return b"".join((row.body or b"") + (row.tombstone or b"") for row in store.walk(log))


@pytest.mark.parametrize("user", ["alice", None])
def test_redacting_an_event_removes_the_memories_that_came_from_it(store: Store, user: str | None) -> None:
    session = make_session(store, "My name is Alice.", "I am allergic to peanuts.", user=user)
    found = Memory(store=store, user_id=session.user_id, app_name="shop").ingest_from_session(session)
    assert [(each.key, each.source) for each in found] == [
        ("name", Source(session_id=session.id, seqs=(2,))),
        ("allergy.peanuts", Source(session_id=session.id, seqs=(3,))),
    ]
    session.redact(3, reason="a mistake")
    assert list_texts(store, user) == ["Name: Alice"]
    assert b"peanut" not in read_bodies(store, user)  # neither in the text nor in the key
    assert Memory(store=store).search("peanuts", user_id=user, app_name="shop") == []


def test_an_older_version_from_elsewhere_goes_and_the_newer_one_stays(store: Store) -> None:
    one, two = make_session(store, "I live in Berlin."), make_session(store, "I live in Paris.")
    memory = Memory(store=store, user_id="alice", app_name="shop")
    memory.ingest_from_session(one)
    memory.ingest_from_session(two)
    one.redact(2, reason="r")
    assert list_texts(store) == ["Lives in Paris"]
    assert b"Berlin" not in read_bodies(store)
    two.redact(2, reason="r")
    assert list_texts(store) == []
    assert b"Paris" not in read_bodies(store)
    assert b"home" not in read_bodies(store)


def test_erasing_a_session_removes_what_came_from_it_and_no_more(store: Store) -> None:
    one, two = make_session(store, "My name is Alice."), make_session(store, "I like tea.")
    memory = Memory(store=store, user_id="alice", app_name="shop")
    memory.ingest_from_session(one)
    memory.ingest_from_session(two)
    memory.store("own", "kept by hand", user_id="alice", app_name="shop")
    memory.store("note", "kept with a source", source=one)
    one.erase(reason="request", actor="dpo")
    assert list_texts(store) == ["Likes tea", "kept by hand"]
    assert b"Alice" not in read_bodies(store)
    assert b"with a source" not in read_bodies(store)


def test_erasing_a_user_removes_the_whole_memory(store: Store) -> None:
    session = make_session(store, "My name is Alice.")
    memory = Memory(store=store, user_id="alice", app_name="shop")
    memory.ingest_from_session(session)
    memory.store("own", "kept by hand", user_id="alice")
    memory.store("own", "of somebody else", user_id="bob")
    done = Session.erase_user("alice", reason="request", actor="dpo", store=store)
    assert done.memories
    assert memory.list(user_id="alice") == []
    assert list_texts(store) == []
    assert MemoryLog(store, "alice", None).find() is None
    assert list_keys(memory.list(user_id="bob")) == ["own"]
    assert not Session.erase_user("nobody", reason="request", actor="dpo", store=store).memories


def test_a_hold_keeps_the_memories_of_its_session(store: Store) -> None:
    session = make_session(store, "My name is Alice.")
    Memory(store=store, user_id=session.user_id, app_name="shop").ingest_from_session(session)
    session.hold("case 42")
    with pytest.raises(SessionHeld):
        session.redact(2, reason="r")
    with pytest.raises(SessionHeld):
        session.erase(reason="r", actor="me")
    with pytest.raises(SessionHeld):
        Session.erase_user("alice", reason="r", actor="me", store=store)
    assert list_texts(store) == ["Name: Alice"]


def test_deleting_a_session_leaves_what_was_learnt_and_a_namesake_is_not_it(store: Store) -> None:
    session = make_session(store, "My name is Alice.", id="s")
    memory = Memory(store=store, user_id="alice", app_name="shop")
    memory.ingest_from_session(session)
    store.delete("s")
    assert list_texts(store) == ["Name: Alice"]
    again = make_session(store, "I like tea.", id="s")
    memory.ingest_from_session(again)
    again.redact(2, reason="r")
    assert list_texts(store) == ["Name: Alice"]
    again.erase(reason="r", actor="me")
    assert list_texts(store) == ["Name: Alice"]


def test_a_fork_learns_only_what_is_new_and_a_shared_event_is_reached_through_either(store: Store) -> None:
    session = make_session(store, "My name is Alice.", "I like tea.")
    memory = Memory(store=store, user_id="alice", app_name="shop")
    fork = session.fork()
    berlin = fork.add_message(Message.user("I live in Berlin."))
    assert list_keys(memory.ingest_from_session(session)) == ["name", "likes.tea"]
    learnt = list_keys(memory.ingest_from_session(fork))
    assert learnt[-1:] == ["home"]
    assert list_texts(store) == ["Lives in Berlin", "Likes tea", "Name: Alice"]
    fork.redact(berlin, reason="r")
    assert list_texts(store) == ["Likes tea", "Name: Alice"]
    session.redact(3, reason="r")
    assert list_texts(store) == ["Name: Alice"]


def test_an_event_of_the_parent_is_redacted_after_its_fork_learnt_from_it(durable_store: Store) -> None:
    session = make_session(durable_store, "My name is Alice.", id="parent")
    fork = session.fork(session_id="fork")
    Memory(store=durable_store, user_id="alice", app_name="shop").ingest_from_session(fork)
    durable_store.delete("fork")
    session.redact(2, reason="r")
    assert list_texts(durable_store) == []


def test_nothing_of_what_was_forgotten_is_in_the_file(tmp_path: Path) -> None:
    secrets = (b"amethyst", b"sapphire", b"turquoise")
    with SQLiteStore(tmp_path / "s.db") as store:
        memory = Memory(VectorMemoryService(), store=store, user_id="alice", app_name="shop")
        session = make_session(store, "Remember that amethyst is the code.", "I like sapphire rings.")
        memory.ingest_from_session(session)
        memory.store("turquoise-key", "a turquoise secret")
        memory.store("turquoise-key", "a turquoise secret, again")
        memory.store("plain", "an emerald stays")
        assert all(memory.search(word.decode()) for word in secrets)  # so that there is an index
        before = read_folder_elsewhere(tmp_path)
        assert all(secret in before for secret in secrets)
        session.redact(2, reason="r")
        session.erase(reason="r", actor="me")
        memory.forget("turquoise-key")
        found = read_folder_elsewhere(tmp_path)
        assert [secret for secret in secrets if secret in found] == []
        assert b"emerald" in found
        assert list_keys(memory.list()) == ["plain"]
    assert [secret for secret in secrets if secret in read_folder(tmp_path)] == []


def test_an_encrypted_store_keeps_memories_unreadable_and_finds_them(tmp_path: Path, encrypted_store: Store) -> None:
    memory = Memory(VectorMemoryService(), store=encrypted_store, user_id="alice", app_name="shop")
    memory.store("sapphire-key", "sapphire migraines")
    memory.store("other", "an emerald")
    assert list_keys(memory.search("migraine")) == ["sapphire-key"]
    assert list_keys(memory.list()) == ["other", "sapphire-key"]
    if isinstance(encrypted_store, SQLiteStore):
        assert b"sapphire" not in read_folder_elsewhere(tmp_path)
    assert memory.forget("sapphire-key")
    assert list_keys(memory.list()) == ["other"]
    log = MemoryLog(encrypted_store, "alice", "shop").find()
    assert log is not None
    assert encrypted_store.verify(log)


def test_a_redaction_between_reading_and_keeping_leaves_nothing_behind(store: Store) -> None:
    """The message is read, then redacted, then what was read is kept: keeping looks again, and takes it back."""
    session = make_session(store, "I am allergic to peanuts.", "My name is Alice.")

    def answer(request: object) -> str:
        session.redact(2, reason="meanwhile")
        facts = [
            '{"key": "allergy", "text": "Allergic to peanuts", "kind": "profile", "confidence": 1, "sources": [2]}',
            '{"key": "name", "text": "Is called Alice", "kind": "profile", "confidence": 1, "sources": [3]}',
        ]
        return f'{{"memories": [{", ".join(facts)}]}}'

    model = Agent(provider="scripted", script=[answer])
    found = Memory(store=store, user_id=session.user_id, app_name="shop").ingest_from_session(session, model=model)
    assert list_keys(found) == ["name"]
    assert list_texts(store) == ["Is called Alice"]
    assert b"peanut" not in read_bodies(store)


@pytest.mark.parametrize("act", ["redact", "erase", "erase_user"])
def test_an_erasure_right_after_keeping_finds_it(store: Store, act: str) -> None:
    session = make_session(store, "I am allergic to peanuts.")

    def between(name: str) -> None:
        if name == "memories kept":
            arm_crashpoints(None)
            if act == "redact":
                session.redact(2, reason="meanwhile")
            elif act == "erase":
                session.erase(reason="meanwhile", actor="me")
            else:
                Session.erase_user("alice", reason="meanwhile", actor="me", store=store)

    arm_crashpoints(between)
    try:
        assert Memory(store=store, user_id=session.user_id, app_name="shop").ingest_from_session(session) == []
    finally:
        arm_crashpoints(None)
    assert list_texts(store) == []
    assert b"peanut" not in read_bodies(store)


def test_a_redaction_that_was_cut_short_is_finished_by_asking_again(store: Store) -> None:
    session = make_session(store, "I am allergic to peanuts.")
    memory = Memory(store=store, user_id="alice", app_name="shop")
    memory.ingest_from_session(session)
    from holdfast.log.events import Draft
    from holdfast.stores.erasure import plan_redaction

    holder, burial = plan_redaction(store, session.log, 2)  # as a process that died right after it would leave it
    store.apply_erasure(
        holder, [Draft(type="event.redacted", data={"seq": 2, "reason": "r", **burial.record_data(holder)})], burial
    )
    assert list_texts(store) == ["Allergic to peanuts"]
    with pytest.raises(InvalidArgument, match="erased before"):
        session.redact(2, reason="r")
    assert list_texts(store) == []


def test_a_source_must_be_of_the_same_user_and_exist(store: Store) -> None:
    session = make_session(store, "Hello")
    memory = Memory(store=store)
    kept = memory.store("k", "text", source=(session, 2))
    assert kept.source == Source(session_id=session.id, seqs=(2,))
    assert list_keys(memory.list(user_id="alice", app_name="shop")) == ["k"]
    assert memory.store("j", "text", source=(session, [1, 2])).source == Source(session_id=session.id, seqs=(1, 2))
    wrong: list[Any] = [(session, 99), (session, 0), (session, True), (session, "2"), (session, None)]
    for bad in wrong:
        with pytest.raises(InvalidArgument):
            memory.store("bad", "text", source=bad)
    with pytest.raises(InvalidArgument, match="own user"):
        memory.store("bad", "text", source=session, user_id="bob")
    session.redact(2, reason="r")
    with pytest.raises(InvalidArgument, match="erased"):
        memory.store("bad", "text", source=(session, 2))
    assert list_texts(store) == []
