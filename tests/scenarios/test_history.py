"""Sections 1 and 3 of the promises: opening, messages, history, search, rewind. On every store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Agent, File, Image, Message, Session
from holdfast.errors import (
    AgentError,
    InvalidArgument,
    InvalidId,
    LimitExceeded,
    NotJSON,
    SessionExists,
    SessionMismatch,
    SessionNotFound,
)
from holdfast.log.messages import Text, Thinking, ToolCall, ToolResult
from holdfast.stores.base import Store
from tests.kit.agents import read_texts
from tests.scenarios.ways import store_does_not_matter


def test_an_id_that_exists_is_opened_and_not_overwritten(store: Store) -> None:
    agent = Agent(name="support", store=store)
    first = agent.session(session_id="user-123")
    first.add_message(Message.user("hello"))
    again = agent.session(session_id="user-123", store=store)
    assert read_texts(again.messages) == ["hello"]
    assert Session("user-123", store=store).id == Session.open("user-123", store=store).session_id == "user-123"


def test_open_fails_where_there_is_nothing(store: Store) -> None:
    with pytest.raises(SessionNotFound) as caught:
        Session.open("nobody", store=store)
    assert str(caught.value) == "session not found: nobody"
    assert store.list_sessions() == []


def test_id_and_session_id_are_the_same_thing(store: Store) -> None:
    assert Session(id="a", session_id="a", store=store).id == "a"
    with pytest.raises(ValueError, match="same thing"):
        Session(id="a", session_id="b", store=store)
    assert store.list_sessions() == ["a"]


def test_generated_ids_sort_by_time(store: Store) -> None:
    made = [Session(store=store).id for _ in range(5)]
    assert made == sorted(made)
    assert len(set(made)) == 5


@store_does_not_matter
@pytest.mark.parametrize("bad", ["", "a/b", ".", "..", "x" * 129, "a\nb", "a\0b", "\u202e", 7, b"x", "\ud800"])
def test_a_bad_id_is_refused_and_nothing_is_stored(store: Store, bad: object) -> None:
    with pytest.raises(InvalidId) as caught:
        Session(id=bad, store=store)  # type: ignore[arg-type]
    assert isinstance(caught.value, AgentError)
    assert isinstance(caught.value, ValueError)
    assert store.list_sessions() == []


@pytest.mark.parametrize("good", ["a", "x" * 128, "user 123", "名前", "a:b@c#d%2f", "...", "🦀"])
def test_any_printable_id_is_accepted(store: Store, good: str) -> None:
    Session(id=good, store=store).add_message(Message.user("x"))
    assert store.list_sessions() == [good]
    assert read_texts(Session.open(good, store=store).messages) == ["x"]


def test_opening_rules_for_a_session_that_is_there(store: Store) -> None:
    Session("s", store=store, user_id="alice", app_name="shop", system="be kind", messages=[Message.user("hi")])
    for bad in ({"messages": [Message.user("x")]}, {"state": {"a": 1}}):  # type: dict[str, Any]
        with pytest.raises(ValueError, match="not empty"):
            Session("s", store=store, **bad)  # type: ignore[arg-type]
    for owner in ({"user_id": "bob"}, {"app_name": "other"}):
        with pytest.raises(SessionMismatch):
            Session("s", store=store, **owner)  # type: ignore[arg-type]
    head = Session.open("s", store=store).head
    Session("s", store=store, user_id="alice", system="be kind")
    assert Session.open("s", store=store).head == head  # nothing new was said, nothing is recorded
    changed = Session("s", store=store, system="be brief", metadata={"tier": "gold"})
    assert (changed.system, changed.metadata) == ("be brief", {"tier": "gold"})
    assert changed.events()[-1].type == "session.changed"
    assert read_texts(changed.messages) == ["hi"]


def test_an_empty_session_may_be_filled_when_it_is_opened(store: Store) -> None:
    Session("s", store=store)
    session = Session(
        "s", store=store, messages=[{"role": "user", "content": "hi"}], state=[{"a": 1, "b": 1}, {"b": 2}]
    )
    assert (read_texts(session.messages), session.state) == (["hi"], {"a": 1, "b": 2})


def test_messages_round_trip_bytes_included(store: Store) -> None:
    messages = [
        Message.user("look", Image(url="https://example.com/a.png"), author="alice", metadata={"n": [1, None]}),
        Message.user(File(data=b"\0\xff%PDF", media_type="application/pdf", name="a.pdf"), "and this"),
        Message("assistant", [Thinking(text="hm", signature="sig", provider="p", model="m"), Text("ok")]),
        Message("assistant", [Text("calling"), ToolCall(id="c1", name="f", arguments={"x": [1.5, "é"]})]),
        Message("assistant", [ToolCall(id="c2", name="g", arguments="not json {")]),
        Message.tool("fine", call_id="c1"),
        Message.tool("boom", call_id="c2", is_error=True, metadata={"a": 1}),
        Message("tool", [ToolResult(call_id="a", content="1"), ToolResult(call_id="b", content="2")]),
        Message.system("be kind"),
        Message.assistant(),
        Message.user(""),
    ]
    session = Session(store=store)
    session.add_messages(messages)
    found = session.messages
    assert found == messages
    assert [Message.of(json.loads(json.dumps(message.to_dict()))) for message in found] == messages
    restored = Session.from_dict(json.loads(json.dumps(session.to_dict())))
    assert restored.messages == messages
    assert [message.created_at for message in restored.messages] == [message.created_at for message in found]
    assert found[1].parts[0].data == b"\0\xff%PDF"  # type: ignore[union-attr]


def test_a_message_reads_like_a_dict_and_names_its_author(store: Store) -> None:
    session = Session(store=store)
    session.send_message({"role": "user", "content": "hello"})
    session.send_message(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            "author": "writer",
        }
    )
    user, assistant = session.messages
    assert (user["role"], user["content"], user.author, user.text) == ("user", "hello", "user", "hello")
    assert assistant.tool_calls == [ToolCall(id="c", name="f", arguments={"a": 1})]
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert assistant.author == "writer"
    assert user.created_at is not None
    assert user.created_at.tzinfo is not None


def test_history_gives_the_last_ones_oldest_first(store: Store) -> None:
    session = Session(store=store)
    session.add_messages([Message.user(str(n)) if n % 2 else Message.assistant(str(n)) for n in range(30)])
    assert read_texts(session.history(limit=3)) == ["27", "28", "29"]
    assert read_texts(session.history()) == [str(n) for n in range(30)]
    assert read_texts(session.history(limit=2, role="assistant")) == ["26", "28"]
    assert session.history(limit=0) == []
    assert len(session.history(limit=1000)) == len(session.history(limit=None)) == 30
    with pytest.raises(ValueError, match="negative"):
        session.history(limit=-1)
    with pytest.raises(ValueError, match="unknown role"):
        session.history(role="robot")


def test_an_empty_session_is_true_and_has_no_length(store: Store) -> None:
    session = Session(store=store)
    assert len(session) == 0
    assert session
    session.add_message(Message.user("a"))
    assert len(session) == 1
    session.messages.append(Message.user("not stored"))
    assert len(session) == 1


def test_clear_empties_messages_and_temp_and_nothing_else(store: Store) -> None:
    session = Session(store=store, system="be kind", state={"a": 1}, messages=[Message.user("hi")])
    session.facts.add("keep me")
    session.set_state("t", 1, scope="temp")
    session.clear()
    assert (session.messages, len(session), session.get_state("t", scope="temp")) == ([], 0, None)
    assert (session.system, session.state, len(session.facts)) == ("be kind", {"a": 1}, 1)
    session.add_message(Message.user("again"))
    assert read_texts(session.messages) == ["again"]
    assert [event.type for event in session.events()].count("message.added") == 2


def test_search_finds_messages_by_their_words(store: Store) -> None:
    session = Session(store=store)
    session.add_messages([Message.user("A diamond ring"), Message.assistant("Two DIAMONDS"), Message.user("no stone")])
    session.add_message(Message.tool("the diamond is priced at 10", call_id="c"))
    assert read_texts(session.search("diamond")) == ["A diamond ring", "the diamond is priced at 10"]
    assert read_texts(session.search("diamond", limit=1)) == ["the diamond is priced at 10"]
    assert session.search("") == session.search("nothing here") == session.search("diamond", limit=0) == []
    session.clear()
    assert session.search("diamond") == []
    with pytest.raises(ValueError, match="words"):
        session.search(7)  # type: ignore[arg-type]


def test_search_takes_any_text_as_words(store: Store) -> None:
    session = Session(store=store, messages=[Message.user("drop table users")])
    assert session.search("'; drop table --") == session.messages
    for hostile in (
        '"',
        "AND",
        "users NOT table",
        "a OR b",
        "*",
        "\0",
        "NEAR(a b)",
        "text:users",
        "^drop",
        "users & drop | !x",
    ):
        session.search(hostile)


def test_rewind_brings_back_messages_and_session_state(store: Store) -> None:
    session = Session(store=store, user_id="alice", state={"a": 1})
    session.add_message(Message.user("one"))
    point = session.head
    session.add_message(Message.user("two"))
    session.set_state("a", 2)
    session.set_state("b", 1)
    session.set_state("lang", "en", scope="user")
    fact = session.facts.add("stays")
    session.rewind(to=point)
    assert (read_texts(session.messages), session.state) == (["one"], {"a": 1})
    assert session.get_state("lang", scope="user") == "en"
    assert session.facts.all() == [fact]
    assert "two" in session.export()
    session.add_message(Message.user("three"))
    session.rewind(to=point)
    session.add_message(Message.user("four"))
    assert read_texts(session.messages) == ["one", "four"]
    assert session.state_at(point + 2) == {"a": 2}
    for bad in (0, -1, session.head + 1, "x", True, None):
        with pytest.raises(ValueError, match="not the number of an event"):
            session.rewind(to=bad)  # type: ignore[arg-type]


def test_a_key_makes_sending_twice_the_same_as_once(store: Store) -> None:
    session = Session(store=store)
    first = session.send_message({"role": "user", "content": "pay"}, once="order-1")
    assert session.send_message({"role": "user", "content": "pay"}, once="order-1") == first
    assert read_texts(session.messages) == ["pay"]


@store_does_not_matter
@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"content": "no role"}, InvalidArgument),
        ({"role": "robot", "content": "x"}, InvalidArgument),
        ({"role": "user", "content": 7}, InvalidArgument),
        ({"role": "user", "content": "x", "extra": 1}, InvalidArgument),
        ({"role": "tool", "content": "no call"}, InvalidArgument),
        ({"role": "user", "content": [{"type": "hologram"}]}, InvalidArgument),
        (
            {"role": "user", "content": [{"type": "image", "data": "not base64!", "media_type": "image/png"}]},
            InvalidArgument,
        ),
        ({"role": "user", "content": "\ud800"}, NotJSON),
        (Message.user("x", metadata={"when": object()}), NotJSON),
        (Message.user("x" * (1 << 20) + "x"), LimitExceeded),
        (Message.user(File(data=b"x" * ((16 << 20) + 1), media_type="a/b")), LimitExceeded),
        (7, InvalidArgument),
    ],
)
def test_a_bad_message_is_refused_by_name_and_nothing_is_stored(store: Store, message: object, error: type) -> None:
    session = Session(store=store)
    with pytest.raises(error) as caught:
        session.add_messages([Message.user("good"), message])  # type: ignore[list-item]
    assert isinstance(caught.value, ValueError)
    assert session.head == 1


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        (Image, {}),
        (Image, {"url": "x", "data": b"y"}),
        (File, {"data": b"x"}),
        (File, {"data": "text", "media_type": "a"}),
    ],
)
def test_parts_say_what_they_need(part: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        part(**fields)


def test_title_and_metadata_can_change(store: Store) -> None:
    session = Session(store=store, title="first", metadata={"a": 1})
    session.title = "second \0 title"
    session.metadata = {"b": [2]}
    again = Session.open(session.id, store=store)
    assert (again.title, again.metadata) == ("second \0 title", {"b": [2]})
    again.title = None
    assert session.title is None
    with pytest.raises(ValueError, match="metadata"):
        session.metadata = {"x": "y" * 70_000}
    with pytest.raises(ValueError, match="dict"):
        session.metadata = 7  # type: ignore[assignment]


def test_sessions_are_listed_with_cursors(store: Store) -> None:
    for n in range(5):
        Session(f"s{n}", store=store, user_id="alice" if n % 2 else "bob", title=f"t{n}")
    Session.open("s1", store=store).close()
    assert [session.id for session in Session.list(store=store)] == ["s4", "s3", "s2", "s1", "s0"]
    page = Session.list(store=store, limit=2)
    assert [session.title for session in Session.list(store=store, limit=2, after=page[-1].id)] == ["t2", "t1"]
    assert [session.id for session in Session.list(store=store, user_id="alice", status="closed")] == ["s1"]
    for bad in ({"limit": -1}, {"status": "gone"}, {"after": "nobody"}):
        with pytest.raises(ValueError):
            Session.list(store=store, **bad)  # type: ignore[arg-type]


def test_a_name_is_taken_only_once_by_forks_too(store: Store) -> None:
    session = Session("s", store=store)
    with pytest.raises(SessionExists):
        session.fork("s")
