"""Every text field of a session: given a text, it gives back the same one, or refuses it and stores nothing.

Each function raises AssertionError if what came back is not what was given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from holdfast import File, Message, Session
from holdfast.log.messages import Text, Thinking, ToolCall, ToolResult
from holdfast.stores.base import Store

Field = Callable[[Store, str, str], None]


def _check_refusal(store: Store, id: str, act: Callable[[Session], None]) -> None:
    """Do it to a new session; if it is refused, nothing of it may be there."""
    session = Session(id, store=store)
    head = session.head
    try:
        act(session)
    except Exception:
        assert session.head == head, "refused, and yet something was stored"
        raise


def _check_message(store: Store, id: str, text: str) -> None:
    call = ToolCall(id="c" + text, name="n" + text, arguments={"k" + text: [text]})
    messages = [
        Message.user(text, author="a" + text, metadata={"m" + text: {text: text}}),
        Message.assistant(
            Text(text), Thinking(text=text, signature=text), call, ToolCall(id="i", name="n", arguments=text)
        ),
        Message("tool", [ToolResult(call_id="c" + text, content=text)]),
        Message.user(File(url="u" + text, name="n" + text, media_type="t" + text), text, text),
    ]

    def act(session: Session) -> None:
        session.add_messages([*messages, {"role": "user", "content": [{"type": "text", "text": text}]}])
        found = session.messages
        assert [*messages, Message.user(text)] == found, f"came back as {found!r}"
        assert [message.text.encode() for message in found[:3]] == [text.encode()] * 3
        session.search(text)

    _check_refusal(store, id, act)


def _check_state(store: Store, id: str, text: str) -> None:
    def act(session: Session) -> None:
        value = [text, {"k" + text: text}]
        session.set_state("value", value)
        assert session.get_state("value") == value == session.state["value"]

    _check_refusal(store, id, act)


def _check_state_name(store: Store, id: str, text: str) -> None:
    def act(session: Session) -> None:
        session.set_state(text, 1)
        assert session.get_state(text) == 1
        assert session.state == {text: 1}
        assert session.delete_state(text)
        assert session.state == {}

    _check_refusal(store, id, act)


def _check_fields(store: Store, id: str, text: str) -> None:
    try:
        session = Session(id, store=store, title=text, system=text, metadata={"k" + text: text}, work_dir="w" + text)
    except Exception:
        assert not store.exists(id), "refused, and yet the session is there"
        raise
    session = Session.open(id, store=store)
    found = (session.title, session.system, session.metadata, str(session.work_dir))
    assert found == (text, text, {"k" + text: text}, str(Path("w" + text))), f"came back as {found!r}"
    session.title = text + "!"
    fork = session.fork(id + "-fork")
    assert (fork.title, fork.metadata) == (text + "!", session.metadata)


def _check_fact(store: Store, id: str, text: str) -> None:
    def act(session: Session) -> None:
        fact = session.facts.add(text, status="s" + text, ref="r" + text)
        assert session.facts.all() == [fact]
        assert fact.text == text

    _check_refusal(store, id, act)


def _check_key(store: Store, id: str, text: str) -> None:
    def act(session: Session) -> None:
        first = session.add_message(Message.user("once"), once=text)
        assert session.add_message(Message.user("once"), once=text) == first == session.head

    _check_refusal(store, id, act)


def _check_reason(store: Store, id: str, text: str) -> None:
    def act(session: Session) -> None:
        session.pause(text, actor="a" + text)
        event = session.events(limit=1)[0]
        assert (event.data["reason"], event.actor) == (text, "a" + text)

    _check_refusal(store, id, act)


def _check_owner(store: Store, id: str, text: str) -> None:
    try:
        session = Session(id, store=store, user_id=text, app_name=text)
    except Exception:
        assert not store.exists(id), "refused, and yet the session is there"
        raise
    session.set_state(id, text, scope="user")
    session.update_state(id, lambda n: [n, text], scope="app")
    again = Session.open(id, store=store)
    assert (again.user_id, again.app_name, again.get_state(id, scope="user")) == (text, text, text)
    assert again.get_state(id, scope="app") == [None, text]
    assert id in [one.id for one in Session.list(store=store, user_id=text, app_name=text, limit=1)]


def _check_id(store: Store, id: str, text: str) -> None:
    before = len(store.list_sessions())
    try:
        session = Session(text, store=store)
    except Exception:
        assert len(store.list_sessions()) == before
        assert (store.load(text), store.exists(text), store.delete(text)) == (None, False, False)
        raise
    session.add_message(Message.user(text))
    assert Session.open(text, store=store).id == text == store.list_sessions()[-1] == session.fork(id).parent
    assert store.delete(text)


def _check_copies(store: Store, id: str, text: str) -> None:
    """Out and in again, as an export and as a document."""

    def act(session: Session) -> None:
        session.add_message(Message.user(text, author="a" + text))
        session.set_state("s" + text[:100], text)
        exported = session.export()
        copy = Session.import_(exported, session_id=id + "-copy", store=store)
        assert copy.verify()
        assert (copy.messages, copy.state) == (session.messages, session.state)
        document = json.loads(json.dumps(session.to_dict()))
        store.save(id + "-saved", document)
        saved = Session.open(id + "-saved", store=store)
        assert (saved.messages, saved.state) == (session.messages, session.state)
        assert session.export("markdown")
        assert session.export("html")

    _check_refusal(store, id, act)


FIELDS: dict[str, Field] = {
    "message": _check_message,
    "state": _check_state,
    "state name": _check_state_name,
    "fields": _check_fields,
    "fact": _check_fact,
    "once": _check_key,
    "reason": _check_reason,
    "owner": _check_owner,
    "id": _check_id,
    "copies": _check_copies,
}
