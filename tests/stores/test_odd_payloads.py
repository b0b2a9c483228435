"""What removes text need not understand it: sessions with payloads that holdfast did not write are erased, redacted
and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Agent, File, Message, Session, tool
from holdfast.errors import CorruptLog
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from holdfast.testing import call
from tests.kit.odd_payloads import damage_event, replace_payload
from tests.kit.stores import open_store

ODD = [b"[]", b"7", b'"text"', b"null", b"{}", b"\xff", b'{"message":7,"parts":[1],"call_id":[],"id":{},"covers":3}']


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, request, tmp_path)


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return f"{where} is empty"


def make_session(store: Store, id: str) -> Session:
    script = [call("look", {"where": "the drawer"}), "The drawer is empty."]
    agent = Agent(provider="scripted", script=script, tools=[look])
    session = agent.session(id, store=store, user_id="alice", title="Drawers", state={"n": 1})
    session.add_message(Message.user("a file", File(data=b"%PDF", media_type="application/pdf")))
    fact = session.facts.add("the drawer is brown")
    session.facts.update(fact.id, text="the drawer is red")
    session.run("What is in the drawer?")
    session.prune("summarize_old", threshold=2)
    return session


@pytest.mark.parametrize("payload", ODD, ids=str)
def test_every_payload_may_be_odd_and_the_session_is_erased_and_deleted(store: Store, payload: bytes) -> None:
    session = make_session(store, "s")
    fork = session.fork("fork")
    for event in session.events(limit=None):
        replace_payload(store, session.log, event.seq, payload)
    session.erase(reason="asked", actor="dpo")
    assert [event.erased for event in session.events(limit=None)] == [True] * (session.head - 1) + [False]
    assert store.delete("s")
    fork.erase(reason="asked", actor="dpo")
    assert store.delete("fork")


@pytest.mark.parametrize("payload", ODD, ids=str)
def test_one_odd_payload_is_redacted_and_stops_no_other_redaction(store: Store, payload: bytes) -> None:
    count = make_session(MemoryStore(), "count").head
    for seq in range(1, count + 1):
        session = make_session(store, f"s{seq}")
        replace_payload(store, session.log, seq, payload)
        question = next(event.seq for event in session.events(limit=None) if event.type == "turn.started") + 1
        for wanted in {seq, question}:
            if not session.events(limit=1, after=wanted - 1)[0].erased:
                session.redact(wanted, reason="asked")
            assert session.events(limit=1, after=wanted - 1)[0].erased
        session.erase(reason="asked", actor="dpo")
        assert store.delete(f"s{seq}")


READS = {
    "messages": lambda session: session.messages,
    "history": lambda session: session.history(),
    "events": lambda session: [event.data for event in session.events(limit=None)],
    "export": lambda session: session.export(),
    "markdown": lambda session: session.export("markdown"),
    "run": lambda session: session.run("go on"),
    "fork": lambda session: session.fork().messages,
}


@pytest.mark.parametrize("read", READS)
def test_a_damaged_byte_is_noticed_when_it_is_read(store: Store, read: str) -> None:
    session = make_session(store, "s")
    session.add_messages([Message.user("pay 100 to the baker"), Message.assistant("paid")])
    seq = session.head - 1
    damage_event(store, session.log, seq, b"100")
    again = Session.open("s", store=store, agent=session.agent)
    head = again.head
    with pytest.raises(CorruptLog, match=f"event {seq} is damaged"):
        READS[read](again)
    assert again.head == head or read == "run"  # the question of a run is stored before the prompt is read
    verdict = again.verify()
    assert not verdict
    assert verdict.first_bad == seq


def test_a_damaged_event_is_redacted_and_the_session_goes_on(store: Store) -> None:
    session = make_session(store, "s")
    session.add_messages([Message.user("pay 100 to the baker"), Message.assistant("paid")])
    seq = session.head - 1
    damage_event(store, session.log, seq, b"100")
    session.redact(seq, reason="damaged", actor="ops")
    again = Session.open("s", store=store)
    assert [message.text for message in again.messages][-2:] == ["[erased]", "paid"]
