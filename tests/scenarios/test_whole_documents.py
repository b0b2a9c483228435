"""Section 7 of the promises: a document is the whole session, and a store gives back what was saved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Agent, File, Message, Session, ToolContext, tool
from holdfast.errors import ImmutableSession, InvalidArgument, LifecycleError, ProviderUnavailable
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from holdfast.testing import call, error

NOT_SERVED = "documents are taken in by a store of the program's own; a server gives them out only"


@tool(approval="always")
def pay(cents: int, ctx: ToolContext) -> str:
    """Pay."""
    return f"paid {cents}"


def new_agent(store: Store | None, *script: Any) -> Agent:
    return Agent(provider="scripted", script=[*script], tools=[pay], store=store, max_retries=0)


def used_session(store: Store) -> Session:
    session = new_agent(store, "hi", "again").session(
        user_id="alice",
        metadata={"a": 1},
        state={"n": 1},
        budget={"tokens": 10_000, "turns": 9},
        retention={"ttl_days": 2555, "immutable": True},
        system="Be brief.",
    )
    session.add_message(Message.user("look", File(data=b"bytes", media_type="text/plain")))
    session.run("hello")
    session.facts.add("a fact", kind="decision")
    return session


def travelled(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The document as it comes out of a file."""
    found: dict[str, Any] = json.loads(json.dumps(document)) | changes
    return found


def test_a_store_gives_back_what_was_saved(store: Store) -> None:
    document = used_session(MemoryStore()).to_dict()
    store.save("copy", travelled(document))
    assert store.load("copy") == document | {"id": "copy"}
    before = Session.open("copy", store=store).head
    store.save("copy", travelled(document))
    assert Session.open("copy", store=store).head == before


@pytest.mark.parametrize("status", ["paused", "closed", "archived"])
def test_a_status_comes_back(store: Store, status: str) -> None:
    session = used_session(MemoryStore())
    {"paused": session.pause, "closed": session.close, "archived": session.archive}[status]()
    document = session.to_dict()
    store.save("copy", travelled(document))
    assert store.load("copy") == document | {"id": "copy"}
    assert Session.open("copy", store=store).status == status


def test_an_immutable_session_comes_back_immutable(store: Store) -> None:
    document = travelled(used_session(MemoryStore()).to_dict())
    session = Session.from_dict(document, store=store)
    assert (session.status, session.usage.input_tokens > 0, session.budget is not None) == ("active", True, True)
    assert session.created_at.isoformat() == document["created_at"]
    with pytest.raises(ImmutableSession):
        session.clear()
    with pytest.raises(ImmutableSession):
        store.delete(session.id)


def test_a_waiting_session_waits_in_the_other_store(store: Store) -> None:
    first = new_agent(MemoryStore(), call("pay", {"cents": 5}, id="c1")).session()
    assert first.run("pay five", metadata={"why": "test"}).status == "waiting"
    document = first.to_dict()
    agent = new_agent(store, "paid")
    restored = Session.from_dict(travelled(document), agent)
    assert restored.store is store
    assert store.load(restored.id) == document
    assert restored.status == "waiting"
    assert [(each.call_id, each.name, each.arguments) for each in restored.pending] == [("c1", "pay", {"cents": 5})]
    restored.approve("c1")
    response = restored.resume()
    assert response is not None
    assert response.text == "paid"
    assert [message.role for message in restored.messages] == ["user", "assistant", "tool", "assistant"]
    assert restored.verify().ok


def test_a_decision_does_not_travel(store: Store) -> None:
    first = new_agent(MemoryStore(), call("pay", {"cents": 5}, id="c1")).session()
    first.run("pay five")
    first.approve("c1")
    restored = Session.from_dict(travelled(first.to_dict()), new_agent(store, "paid"))
    assert [each.call_id for each in restored.pending] == ["c1"]


def test_a_failed_turn_is_not_in_the_document_and_its_usage_is(store: Store) -> None:
    failure = error(ProviderUnavailable("away", provider="scripted"))
    first = new_agent(MemoryStore(), "one", failure).session()
    first.run("hello")
    with pytest.raises(ProviderUnavailable):
        first.run("again")
    document = first.to_dict()
    store.save(first.id, travelled(document))
    assert store.load(first.id) == document


@pytest.mark.parametrize(
    ("change", "event"),
    [
        ({"budget": {"tokens": 5}}, "session.changed"),
        ({"status": "closed"}, "session.closed"),
        ({"retention": {"ttl_days": 30}}, "retention.set"),
        ({"usage": {"input_tokens": 7}}, "session.restored"),
    ],
)
def test_a_save_that_differs_only_in_such_a_field_records_it(store: Store, change: dict[str, Any], event: str) -> None:
    session = new_agent(store, "hi").session(retention={"ttl_days": 10})
    session.run("hello")
    document = travelled(session.to_dict())
    before = session.head
    full = {"budget": None, "retention": None, **change}
    wanted = document | change
    if "retention" in change:
        wanted["retention"] = document["retention"] | full["retention"]
    if "budget" in change:
        wanted["budget"] = {**change["budget"]}
    store.save(session.id, wanted)
    types = [each.type for each in session.events(after=before)]
    assert event in types
    assert "view.restored" not in types
    loaded = store.load(session.id)
    assert loaded is not None
    assert {name: loaded[name] for name in change} == {name: wanted[name] for name in change}


def test_a_closed_session_is_not_overwritten(store: Store) -> None:
    session = new_agent(store, "hi").session()
    session.add_message(Message.user("one"))
    session.close()
    document = travelled(session.to_dict())
    document["messages"] = []
    with pytest.raises(LifecycleError):
        store.save(session.id, document)
    assert len(session) == 1


def test_a_restored_session_lives_in_the_configured_store(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    document = new_agent(MemoryStore(), "hi").session("s").to_dict()
    private = Session.from_dict(travelled(document))
    assert private.store is not Session.from_dict(travelled(document)).store
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path}/configured.db")
    Session.from_dict(travelled(document)).add_message(Message.user("kept"))
    assert len(Session.open("s")) == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"created_at": "yesterday"}, "ISO time"),
        ({"usage": {"input_tokens": "7"}}, "whole numbers"),
        ({"turns": "1"}, "whole number"),
        ({"budget": {"tokens": "x"}}, "tokens"),
        ({"retention": {"ttl": 3}}, "ttl"),
        ({"turn": {}}, "'turn' of a session document"),
        ({"turn": {"run": "r", "events": []}}, "begins with"),
        ({"turn": {"run": "r", "events": [{"type": "retention.set", "data": {}}]}}, "which no open turn has"),
        (
            {"turn": {"run": "r", "events": [{"type": "message.added", "data": {"x": 1}}]}},
            "'turn' of a session document",
        ),
        ({"turn": {"run": "r", "events": [], "blobs": {"00": "AAAA"}}}, "names bytes"),
    ],
)
def test_a_document_that_cannot_be_restored_leaves_nothing(store: Store, change: dict[str, Any], problem: str) -> None:
    document = travelled(new_agent(MemoryStore(), "hi").session("s").to_dict(), **change)
    with pytest.raises(InvalidArgument, match=problem):
        store.save("s", document)
    assert not store.exists("s")
