"""Section 7 and events, export, import and verify of section 9, on every store; and the awaited names."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Agent, File, Message, Session, aio
from holdfast.errors import CorruptLog, InvalidArgument, SchemaTooNew, SessionExists
from holdfast.stores import MemoryStore, SessionStore, SQLiteStore
from holdfast.stores.base import Store
from tests.kit.documents import DictStore


def make_filled_session(store: Store, id: str = "s") -> Session:
    session = Session(id, store=store, user_id="alice", system="be kind", state={"a": [1, {"b": None}]}, title="T")
    session.add_messages([Message.user("hi", File(data=b"\0\1", media_type="a/b")), Message.assistant("hello")])
    session.facts.add("a fact")
    return session


def test_to_dict_and_back(store: Store) -> None:
    session = make_filled_session(store)
    data = json.loads(json.dumps(session.to_dict()))
    agent = Agent(name="a")
    restored = Session.from_dict(data, agent)
    assert restored.agent is agent
    assert restored.store is not session.store
    for name in ("messages", "state", "system", "title", "metadata", "user_id", "id"):
        assert getattr(restored, name) == getattr(session, name)
    assert [fact.text for fact in restored.facts.all()] == ["a fact"]
    assert restored.verify()


def test_the_store_saves_and_loads_documents(store: Store) -> None:
    session = make_filled_session(store)
    other = MemoryStore()
    other.save("copy", session.to_dict())
    copied = other.load("copy")
    assert copied is not None
    assert copied["messages"] == session.to_dict()["messages"]
    assert (other.exists("copy"), other.exists("x"), other.load("x"), other.list_sessions()) == (
        True,
        False,
        None,
        ["copy"],
    )
    assert (other.delete("copy"), other.delete("copy")) == (True, False)
    assert store.load("s") is not None
    assert Session.from_dict(store.load("s") or {}).messages == session.messages


def test_saving_the_same_content_does_nothing_and_other_content_is_recorded(store: Store) -> None:
    session = make_filled_session(store)
    head = session.head
    document = session.to_dict()
    store.save("s", document)
    assert session.head == head
    document["messages"] = [*document["messages"][:1], {"role": "assistant", "content": "changed"}]
    document["state"] = {"b": 2}
    document["title"] = None
    document["facts"] = []
    store.save("s", document)
    again = Session.open("s", store=store)
    assert [message.text for message in again.messages] == ["hi", "changed"]
    assert (again.state, again.title, again.facts.all(), again.system) == ({"b": 2}, None, [], "be kind")
    assert "view.restored" in [event.type for event in again.events()]
    assert again.verify()
    again.rewind(to=head)
    assert [message.text for message in again.messages] == ["hi", "hello"]
    assert again.state == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, SchemaTooNew),
        ({"version": None}, InvalidArgument),
        ({"messages": "x"}, InvalidArgument),
        ({"messages": [{"role": "robot"}]}, InvalidArgument),
        ({"state": []}, InvalidArgument),
        ({"facts": [{"text": "no id"}]}, InvalidArgument),
        ({"title": 7}, InvalidArgument),
    ],
)
def test_a_bad_document_is_refused_and_nothing_is_stored(store: Store, change: dict[str, Any], error: type) -> None:
    session = make_filled_session(store)
    head = session.head
    document = session.to_dict() | change
    for id in ("s", "new"):
        with pytest.raises(error):
            store.save(id, document)
    with pytest.raises(error):
        Session.from_dict(document)
    assert session.head == head
    assert store.list_sessions() == ["s"]


def test_the_redis_example_of_eleven_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Redis:
        """What the example needs of a Redis client."""

        def __init__(self) -> None:
            self.kept: dict[str, str] = {}

        def set(self, key: str, value: str) -> None:
            self.kept[key] = value

        def get(self, key: str) -> str | None:
            return self.kept.get(key)

        def delete(self, key: str) -> int:
            return int(self.kept.pop(key, None) is not None)

        def keys(self, pattern: str) -> list[str]:
            return [key for key in self.kept if key.startswith(pattern.rstrip("*"))]

    redis = Redis()

    class RedisStore(SessionStore):
        def save(self, session_id, data):
            redis.set(f"session:{session_id}", json.dumps(data))

        def load(self, session_id):
            text = redis.get(f"session:{session_id}")
            return json.loads(text) if text else None

        def delete(self, session_id):
            return bool(redis.delete(f"session:{session_id}"))

        def list_sessions(self):
            return [key.removeprefix("session:") for key in redis.keys("session:*")]

    store = RedisStore()
    session = Agent(store=store).session("s", user_id="alice")
    session.add_message(Message.user("hello"))
    session.update_state("n", lambda n: (n or 0) + 1, scope="user")
    alt = session.fork("alt")
    alt.add_message(Message.user("more"))
    fresh = RedisStore()  # as another process would see it
    assert [message.text for message in Session.open("alt", store=fresh).messages] == ["hello", "more"]
    assert Session.open("s", store=fresh).get_state("n", scope="user") == 1
    assert Session.open("s", store=fresh).verify()
    assert {session.id for session in Session.list(store=fresh)} == {"s", "alt"}
    assert store.exists("s")


def test_any_class_with_the_four_methods_is_a_store() -> None:
    class PlainStore:
        save, load = DictStore.save, DictStore.load
        delete, list_sessions = DictStore.delete, DictStore.list_sessions

        def __init__(self) -> None:
            self.kept: dict[str, str] = {}

    plain = PlainStore()
    Session("s", store=plain).add_message(Message.user("x"))  # type: ignore[arg-type]
    assert len(Session.open("s", store=plain)) == 1  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="lacks save, load"):
        Session(store=object())  # type: ignore[arg-type]


def test_a_document_that_was_saved_by_hand_is_opened() -> None:
    store = DictStore()
    store.save("s", make_filled_session(MemoryStore()).to_dict())
    session = Session.open("s", store=store)
    session.add_message(Message.user("more"))
    assert [message.text for message in Session.open("s", store=store).messages] == ["hi", "hello", "more"]
    older = Session.from_dict(store.load("s") or {}).to_dict()
    older["messages"] = older["messages"][:1]
    store.save("s", older)
    again = Session.open("s", store=store)
    assert [message.text for message in again.messages] == ["hi"]
    assert again.verify()


def test_what_a_users_store_cannot_save_did_not_happen() -> None:
    class FullStore(DictStore):
        full = False

        def save(self, session_id, data):
            if self.full:
                raise OSError("no space")
            super().save(session_id, data)

    store = FullStore()
    session = Session("s", store=store, state={"n": 1})
    store.full = True
    for change in (
        lambda: session.add_message(Message.user("x")),
        lambda: session.set_state("n", 2),
        lambda: session.fork("f"),
    ):
        with pytest.raises(holdfast.errors.StoreUnavailable):
            change()
    store.full = False
    assert (session.messages, session.state, session.head) == ([], {"n": 1}, 2)
    session.set_state("n", 3)
    assert session.state == {"n": 3}
    assert session.verify()


def test_stores_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    for url in (f"sqlite:///{tmp_path}/a.db", database, "memory:"):
        Session("by-url", store=url, messages=[Message.user("x")])
        monkeypatch.setenv("HOLDFAST_STORE", url)
        assert len(Session.open("by-url")) == 1
        Session.open("by-url").store.delete("by-url")
    with pytest.raises(InvalidArgument, match="sqlite:///"):
        Session(store="mysql://x")


def test_from_dict_into_a_store_follows_save(store: Store) -> None:
    document = make_filled_session(MemoryStore()).to_dict()
    Session.from_dict(document, store=store)
    head = Session.open("s", store=store).head
    Session.from_dict(document, store=store)
    assert Session.open("s", store=store).head == head


# -- events, export, import, verify -----------------------------------------------------------------------------------


def test_events_page_and_filter(store: Store) -> None:
    session = Session(store=store)
    session.add_messages([Message.user(str(n)) for n in range(10)])
    session.set_state("a", 1)
    assert [event.seq for event in session.events(limit=3)] == [10, 11, 12]
    assert [event.seq for event in session.events(limit=3, after=0)] == [1, 2, 3]
    assert [event.seq for event in session.events(after=11)] == [12]
    assert [event.type for event in session.events(types=["state.set", "session.created"])] == [
        "session.created",
        "state.set",
    ]
    assert [event.type for event in session.events(types="state.set")] == ["state.set"]
    assert session.events(limit=0) == []
    assert len(session.events(since="2024-01-01", limit=100, types=None, after=None)) == 12
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert session.events(since=tomorrow) == session.events(since=tomorrow.date() + timedelta(days=1)) == []
    assert len(session.events(since=date(2024, 1, 1))) == 12
    first = session.events(limit=1, after=4)[0]
    assert session.events(since=first.timestamp, limit=1, after=0)[0].at >= first.at
    for bad in ({"since": "yesterday"}, {"since": 7}, {"limit": -1}, {"limit": "x"}, {"after": -1}):
        with pytest.raises(ValueError):
            session.events(**bad)  # type: ignore[arg-type]


def test_an_export_has_a_line_an_event(store: Store) -> None:
    session = make_filled_session(store)
    session.add_message(
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    )
    lines = [json.loads(line) for line in session.export(format="jsonl").splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, session.head + 1))
    for line in lines:
        assert {"timestamp", "role", "message", "metadata", "tool_calls", "hash"} <= set(line)
    by_type = {line["type"]: line for line in lines}
    assert (by_type["session.created"]["role"], by_type["session.created"]["message"]) == (None, None)
    assert (lines[-1]["role"], lines[-1]["message"], lines[-1]["tool_calls"][0]["id"]) == ("assistant", "x", "c")


def test_an_export_can_be_imported_anywhere(store: Store, tmp_path: Path) -> None:
    session = make_filled_session(store)
    fork = session.fork("f")
    fork.add_message(Message.user("more"))
    fork.rewind(to=4)
    fork.close()
    for source in (session, fork):
        for target in (MemoryStore(), store):
            copy = Session.import_(source.export(), session_id=f"copy-of-{source.id}", store=target)
            assert copy.messages == source.messages
            assert (copy.state, copy.status, copy.title, copy.system) == (source.state, source.status, "T", "be kind")
            assert copy.verify()
            assert [event.hash for event in copy.events(limit=None)][: source.head] == [
                event.hash for event in source.events(limit=None)
            ]
            assert target.rebuild_view(copy.log) == target.view(copy.log)
            assert copy.search("hello") == [message for message in copy.messages if "hello" in message.text]
            target.delete(copy.id)
    file = tmp_path / "session.jsonl"
    file.write_text(session.export(), encoding="utf-8")
    assert Session.import_(file, store=MemoryStore()).id == "s"
    with pytest.raises(SessionExists):
        Session.import_(file, store=store)


def test_a_forged_export_is_refused(store: Store) -> None:
    text = make_filled_session(store).export()
    lines = text.splitlines()
    forgeries = {
        "changed": text.replace("hello", "hallo"),
        "dropped": "\n".join(lines[:2] + lines[3:]),
        "swapped": "\n".join([lines[0], lines[2], lines[1], *lines[3:]]),
        "doubled": "\n".join([*lines, lines[-1]]),
        "bytes": text.replace('"AAE="', '"AAI="'),
    }
    for name, forged in forgeries.items():
        assert forged != text, name
        with pytest.raises(CorruptLog):
            Session.import_(forged, session_id=name, store=store)
    for bad in ("", "x", "{}", '{"a":1,"a":2}', '{"log":{"version":9,"id":"a","origin":"b"}}'):
        with pytest.raises((InvalidArgument, SchemaTooNew)):
            Session.import_(bad, session_id="bad", store=store)
    assert store.list_sessions() == ["s"]


def test_exports_for_people_show_text_as_text(store: Store) -> None:
    session = Session(store=store, title="<b>T</b>")
    session.add_messages([Message.user("<script>alert(1)</script>"), Message.tool("``` fence ```", call_id="c")])
    page = session.export(format="html")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<title>&lt;b&gt;T&lt;/b&gt;</title>" in page
    markdown = session.export(format="markdown")
    assert "````\n``` fence ```\n````" in markdown
    with pytest.raises(ValueError, match="jsonl, markdown, html"):
        session.export(format="pdf")


def test_verify_names_the_first_bad_event(tmp_path: Path) -> None:
    import apsw

    with SQLiteStore(tmp_path / "a.db") as store:
        session = make_filled_session(store)
        assert session.verify()
        assert session.verify().ok
        raw = apsw.Connection(str(tmp_path / "a.db"))
        body = raw.execute("SELECT body FROM events WHERE event & 255 = 4").get
        forged = body.replace(b"hello", b"hallo")
        raw.execute("UPDATE events SET body = ? WHERE event & 255 = 4", (forged,))
        found = session.verify()
        assert (found.ok, found.first_bad, bool(found)) == (False, 4, False)
        raw.execute("DELETE FROM events WHERE event & 255 = 2")
        assert session.verify().first_bad == 2
        raw.close()


# -- the awaited names ------------------------------------------------------------------------------------------------


async def test_every_awaited_twin_gives_what_its_namesake_gives(store: Store) -> None:
    session = Session(store=store)
    await session.send_message_async(Message.user("diamond"))
    assert await session.history_async(limit=5) == session.history(limit=5) != []
    assert await session.search_async("diamond") == session.messages
    assert [event.seq for event in await session.events_async()] == [1, 2]
    assert await session.export_async() == session.export()
    assert (await session.verify_async()).ok
    for move, status in (
        ("pause", "paused"),
        ("resume", "open"),
        ("close", "closed"),
        ("archive", "archived"),
        ("reopen", "open"),
    ):
        await getattr(session, f"{move}_async")()
        assert session.status == status


async def test_in_aio_the_plain_names_are_awaited(store: Store) -> None:
    session = aio.Agent(store=store).session("s")
    await session.send_message({"role": "user", "content": "hello"})
    assert [message.text for message in await session.history()] == ["hello"]
    assert (await session.verify()).ok
    await session.pause()
    assert await session.resume() is None
    await session.close()
    assert session.status == "closed"
    assert isinstance(session.fork("f"), aio.Session)
    assert len(await session.events()) == 5
    assert await session.search("hello") == session.messages
    assert "hello" in await session.export("markdown")
    await session.reopen()
    session.set_state("a", 1)
    assert session.get_state("a") == 1


async def test_a_cancelled_append_is_finished_before_the_cancellation_is_seen(store: Store) -> None:
    session = Session(store=store)
    task = asyncio.create_task(session.send_message_async(Message.user("x")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    count = len(session)
    await asyncio.sleep(0)
    assert len(session) == count  # decided by then, one way or the other
