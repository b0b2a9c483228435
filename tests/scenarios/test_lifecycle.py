"""Section 8 of the promises: what a paused, closed or archived session takes and refuses, on every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Agent, Message, Session, ToolContext, tool
from holdfast.errors import LifecycleError
from holdfast.stores.base import Store
from holdfast.testing import call

CONTENT: dict[str, Callable[[Any], object]] = {
    "add_message": lambda session: session.add_message(Message.user("late")),
    "send_message": lambda session: session.send_message({"role": "user", "content": "late"}),
    "set_state": lambda session: session.set_state("late", 1),
    "delete_state": lambda session: session.delete_state("early"),
    "update_state": lambda session: session.update_state("early", lambda n: n + 1),
    "facts.add": lambda session: session.facts.add("late"),
    "facts.remove": lambda session: session.facts.remove(session.facts.all()[0].id),
    "facts.update": lambda session: session.facts.update(session.facts.all()[0].id, text="late"),
    "clear": lambda session: session.clear(),
    "prune": lambda session: session.prune("keep_last_1"),
    "rewind": lambda session: session.rewind(to=2),
    "run": lambda session: session.run("late"),
}


def make_session(store: Store) -> Any:
    agent = Agent(provider="scripted", script=["hi"] * 3, store=store)
    session = agent.session(user_id="alice", app_name="shop", state={"early": 1})
    session.add_messages([Message.user("one"), Message.assistant("two"), Message.user("three")])
    session.facts.add("early")
    return session


@pytest.mark.parametrize("end", ["close", "archive"])
def test_an_ended_session_takes_no_content(store: Store, end: str) -> None:
    session = make_session(store)
    getattr(session, end)()
    before = session.head
    for name, change in CONTENT.items():
        with pytest.raises(LifecycleError, match="reopen") as caught:
            change(session)
        assert caught.value.session_status == {"close": "closed", "archive": "archived"}[end], name
    assert session.head == before
    assert [message.text for message in session.messages] == ["one", "two", "three"]


@pytest.mark.parametrize("end", ["close", "archive"])
def test_an_ended_session_is_read_forked_labelled_and_held(store: Store, end: str) -> None:
    session = make_session(store)
    getattr(session, end)()
    session.title, session.metadata = "Case 42", {"paid": True}
    session.set_state("language", "en", scope="user")
    session.set_state("theme", "dark", scope="app")
    session.hold("case 42")
    session.release()
    assert session.title == "Case 42"
    assert session.metadata == {"paid": True}
    assert session.get_state("language", scope="user") == "en"
    assert len(session.history()) == 3
    assert session.verify().ok
    assert session.export(format="jsonl")
    fork = session.fork()
    fork.add_message(Message.user("four"))
    assert (len(fork), len(session)) == (4, 3)


def test_a_reopened_session_takes_content_again(store: Store) -> None:
    session = make_session(store)
    session.close()
    session.reopen()
    session.add_message(Message.user("four"))
    session.set_state("late", 1)
    assert session.facts.add("late").text == "late"
    assert session.run("five").text == "hi"


def test_closing_twice_is_fine(store: Store) -> None:
    session = make_session(store)
    session.close()
    before = session.head
    session.close()
    assert (session.status, session.head) == ("closed", before)
    session.archive()
    with pytest.raises(LifecycleError):
        session.close()


def test_a_paused_session_only_refuses_to_run(store: Store) -> None:
    session = make_session(store)
    session.pause()
    with pytest.raises(LifecycleError):
        session.run("late")
    session.add_message(Message.user("four"))
    session.set_state("late", 1)
    session.facts.add("late")
    assert (len(session), session.get_state("late"), len(session.facts.all())) == (4, 1, 2)


def test_a_turn_that_was_running_when_its_session_was_closed_stores_its_results(store: Store) -> None:
    @tool
    def finish(ctx: ToolContext) -> str:
        """Close the session, then write to it."""
        Session.open(ctx.session.id, store=store).close()
        ctx.state.set("done", True)
        return "closed"

    agent = Agent(provider="scripted", script=[call("finish", {}), "bye"], tools=[finish], store=store)
    session = agent.session()
    session.run("close it")
    assert session.status == "closed"
    assert session.get_state("done") is True
    assert "tool.returned" in [event.type for event in session.events()]
    session.reopen()
    response = session.resume()
    assert response is not None
    assert response.text == "bye"
