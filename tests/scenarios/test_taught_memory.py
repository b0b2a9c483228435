"""Section 11 of the promises: what a memory was taught is found by the same object, on every store and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Agent, Memory, Message, Session
from holdfast.errors import InvalidArgument
from holdfast.models.base import ModelRequest
from holdfast.stores.base import Store
from tests.scenarios.ways import store_does_not_matter


def talk(store: Store, text: str = "I am allergic to peanuts.", **owner: Any) -> Session:
    session = Session(store=store, **owner)
    session.add_message(Message.user(text))
    return session


def texts(found: list[Any]) -> list[str]:
    return [each.text for each in found]


def test_the_same_object_finds_what_it_was_taught(store: Store) -> None:
    memory = Memory(store=store)
    assert texts(memory.ingest_from_session(talk(store))) == ["Allergic to peanuts"]
    assert texts(memory.search("allergies")) == ["Allergic to peanuts"]


def test_a_memory_for_a_user_is_the_same_memory_bound_to_that_user(store: Store) -> None:
    memory = Memory(store=store)
    alice = memory.for_user("alice")
    assert texts(alice.ingest_from_session(talk(store, user_id="alice"))) == ["Allergic to peanuts"]
    assert texts(alice.search("allergies")) == texts(alice.list()) == ["Allergic to peanuts"]
    assert texts(alice.recall("allergy.peanuts")) == ["Allergic to peanuts"]
    assert alice.store("tea", "Likes tea").key == "tea"
    assert texts(memory.list(user_id="alice")) == ["Allergic to peanuts", "Likes tea"]
    assert memory.list() == memory.for_user("bob").list() == []
    assert texts(memory.for_user("bob").list(user_id="alice")) == texts(
        alice.list()
    )  # what a call names is what counts
    assert alice.forget("tea")
    assert texts(memory.for_user("alice").list()) == ["Allergic to peanuts"]


def test_a_memory_for_a_user_may_be_of_an_app(store: Store) -> None:
    memory = Memory(store=store)
    session = talk(store, user_id="alice", app_name="clinic")
    with pytest.raises(InvalidArgument, match=r"app 'clinic'.*for_user\('alice', app_name='clinic'\)"):
        memory.for_user("alice").ingest_from_session(session)
    both = memory.for_user("alice", app_name="clinic")
    both.ingest_from_session(session)
    assert texts(both.search("allergies")) == ["Allergic to peanuts"]
    assert texts(both.for_user("alice").search("allergies")) == ["Allergic to peanuts"]  # the app stays
    assert memory.for_user("alice").search("allergies") == []


def test_a_memory_of_no_user_refuses_the_session_of_a_user_and_names_both_ways_out(store: Store) -> None:
    memory = Memory(store=store)
    session = talk(store, user_id="alice")
    with pytest.raises(InvalidArgument) as caught:
        memory.ingest_from_session(session)
    assert "for_user('alice')" in str(caught.value)
    assert "shared=True" in str(caught.value)
    assert memory.list() == memory.for_user("alice").list() == []
    memory.for_user("alice").ingest_from_session(session)
    assert texts(memory.for_user("alice").search("allergies")) == ["Allergic to peanuts"]
    assert texts(memory.ingest_from_session(session, shared=True)) == ["Allergic to peanuts"]
    assert texts(memory.search("allergies")) == ["Allergic to peanuts"]
    assert memory.for_user("bob").search("allergies") == []


@pytest.mark.parametrize("app_name", [None, "clinic"])
def test_a_shared_memory_takes_a_session_with_an_app(store: Store, app_name: str | None) -> None:
    session = talk(store, user_id="alice", app_name="clinic")
    memory = Memory(store=store, app_name=app_name)
    memory.ingest_from_session(session, shared=True)
    assert texts(memory.search("allergies")) == ["Allergic to peanuts"]
    assert memory.search("allergies", user_id="alice") == []


def test_a_session_of_another_owner_is_refused_however_it_is_asked(store: Store) -> None:
    memory, app = Memory(store=store), Memory(store=store, app_name="shop")
    cases: list[tuple[Memory, Session, str]] = [
        (memory.for_user("bob"), talk(store, user_id="alice"), r"for_user\('alice'\)"),
        (memory.for_user("bob"), talk(store), "open the session with user_id='bob'"),
        (app, talk(store, app_name="clinic"), r"Memory\(app_name='clinic'\)"),
        (app, talk(store), "open the session with app_name='shop'"),
    ]
    for taught, session, fix in cases:
        for shared in (False, True):
            with pytest.raises(InvalidArgument, match=fix):
                taught.ingest_from_session(session, shared=shared)
    assert memory.list() == memory.list(user_id="alice") == memory.list(user_id="bob") == app.list() == []


@store_does_not_matter
def test_for_user_needs_a_user(store: Store) -> None:
    for bad in (None, "", 7, "x" * 600):
        anything: Any = Memory(store=store)
        with pytest.raises(InvalidArgument):
            anything.for_user(bad)
    talk(store)


def test_an_agent_uses_the_user_of_the_session_whatever_its_memory_is_bound_to(store: Store) -> None:
    told: list[str] = []

    def reply(request: ModelRequest) -> str:
        told.append(" ".join(message.text for message in request.messages) + str(request.system))
        return "ok"

    memory = Memory(store=store)
    for user in ("alice", "bob"):
        memory.for_user(user).store("diet", f"{user} eats no nuts")
    agent = Agent(provider="scripted", script=reply, memory=memory.for_user("alice"), store=store)
    agent.session(user_id="bob").run("Any nuts in the diet?")
    assert "bob eats no nuts" in told[0]
    assert "alice eats no nuts" not in told[0]


def test_an_erasure_reaches_what_was_shared(store: Store) -> None:
    memory = Memory(store=store)
    session = talk(store, user_id="alice", app_name="clinic")
    tea = session.add_message(Message.user("I like tea."))
    app = Memory(store=store, app_name="clinic")
    for each in (memory, app):
        assert len(each.ingest_from_session(session, shared=True)) == 2
    session.redact(tea, reason="asked for it", actor="dpo")
    assert texts(memory.list()) == texts(app.list()) == ["Allergic to peanuts"]
    session.erase(reason="asked for it", actor="dpo")
    assert memory.list() == app.list() == []


def test_erasing_a_user_reaches_what_was_shared(store: Store) -> None:
    memory = Memory(store=store)
    app = Memory(store=store, app_name="clinic")
    mine = talk(store, user_id="alice", app_name="clinic")
    other = talk(store, "I like tea.", user_id="bob", app_name="clinic")
    for session in (mine, other):
        memory.ingest_from_session(session, shared=True)
        app.ingest_from_session(session, shared=True)
    holdfast.Session.erase_user("alice", reason="asked for it", actor="dpo", store=store)
    assert texts(memory.list()) == texts(app.list()) == ["Likes tea"]
