"""Section 2 of the promises: approvals with other arguments, answers to interrupts, expiry, and the inbox."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast import Agent, Interrupt, Response, Session, ToolContext, interrupt, tool
from holdfast.clock import Clock
from holdfast.errors import ApprovalPending, BadArguments, InvalidArgument, NothingPending
from holdfast.stores.base import Store
from holdfast.testing import call
from tests.kit.agents import list_types
from tests.scenarios.ways import WAYS, make_ask, make_resume


class MovedClock(Clock):
    """A clock that can be moved ahead."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0

    def now(self) -> int:
        return super().now() + self._ahead

    def pass_seconds(self, seconds: int) -> None:
        self._ahead += seconds * 1_000_000


@pytest.fixture
def clock(store: Store, monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    found = MovedClock()
    monkeypatch.setattr(store, "clock", found)
    return found


def make_pay(paid: list[int], **options: Any) -> Any:
    @tool(approval="always", **options)
    def pay(cents: int, note: str = "") -> str:
        """Pay."""
        paid.append(cents)
        return f"paid {cents}"

    return pay


def find_result(session: Session) -> str:
    return next(message.parts[0].content for message in session.messages if message.role == "tool")  # type: ignore[union-attr]


@pytest.mark.parametrize("way", WAYS)
def test_a_person_changes_the_arguments_of_a_call(store: Store, way: str) -> None:
    paid: list[int] = []
    agent = Agent(
        provider="scripted", script=[call("pay", {"cents": 500}, id="c1"), "done"], tools=[make_pay(paid)], store=store
    )
    session = agent.session()
    assert make_ask(way)(session, "pay five").status == "waiting"
    session.approve("c1", arguments={"cents": 5, "note": "less"}, actor="bob")
    response = make_resume(way)(session)
    assert response is not None
    assert (response.text, paid) == ("done", [5])
    calls = [each for message in session.messages for each in message.tool_calls]
    assert [(each.id, each.arguments) for each in calls] == [("c1", {"cents": 5, "note": "less"})]
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert [each.arguments for each in response.tool_calls] == [{"cents": 5, "note": "less"}]
    (replied, *_) = session.events(types="model.replied", limit=None)
    assert replied.data["message"]["parts"][0]["arguments"] == {"cents": 500}
    (decided,) = session.events(types="approval.decided")
    assert (decided.actor, decided.data["arguments"]) == ("bob", {"cents": 5, "note": "less"})
    assert session.verify().ok
    assert session.fork().messages == session.messages


def test_other_arguments_are_checked_at_once_where_the_agent_is_known(store: Store) -> None:
    paid: list[int] = []
    agent = Agent(
        provider="scripted",
        script=[call("pay", {"cents": 5}, id="c1"), "I see", "done"],
        tools=[make_pay(paid)],
        store=store,
    )
    session = agent.session()
    session.run("pay five")
    if isinstance(session, Session) and session.agent is not None:
        with pytest.raises(BadArguments):
            session.approve("c1", arguments={"cents": "many"})
        assert [each.call_id for each in session.pending] == ["c1"]
    Session.open(session.id, store=store).approve("c1", arguments={"cents": "many"})
    response = session.resume(agent)
    assert response is not None
    assert (response.text, paid) == ("I see", [])
    assert "cents" in find_result(session)


def test_two_calls_of_one_reply_are_changed_one_by_one(store: Store) -> None:
    paid: list[int] = []
    script = [[call("pay", {"cents": 1}, id="c1"), call("pay", {"cents": 2}, id="c2")], "done"]
    session = Agent(provider="scripted", script=script, tools=[make_pay(paid)], store=store).session()
    session.run("pay twice")
    session.approve("c1", arguments={"cents": 10})
    session.approve("c2", arguments={"cents": 20})
    session.resume()
    assert sorted(paid) == [10, 20]
    calls = [each for message in session.messages for each in message.tool_calls]
    assert [each.arguments for each in calls] == [{"cents": 10}, {"cents": 20}]


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_gets_its_answers_in_order(store: Store, way: str) -> None:
    @tool
    def book(ctx: ToolContext) -> str:
        """Book a table."""
        seats = interrupt({"ask": "how many?"})
        time = ctx.interrupt({"ask": "when?"})
        return f"{seats} at {time}"

    agent = Agent(provider="scripted", script=[call("book", {}, id="c1"), "booked"], tools=[book], store=store)
    session = agent.session()
    first = make_ask(way)(session, "a table")
    assert [each.payload for each in first.pending] == [{"ask": "how many?"}]
    session.answer("c1", 4)
    second = make_resume(way)(session)
    assert second is not None
    assert [each.payload for each in second.pending] == [{"ask": "when?"}]
    session.answer("c1", {"hour": 20})
    last = make_resume(way)(session)
    assert last is not None
    assert last.text == "booked"
    assert find_result(session) == "4 at {'hour': 20}"


def test_an_answer_is_data_and_belongs_to_a_waiting_call(store: Store) -> None:
    session = Agent(provider="scripted", script=["hi"], store=store).session()
    with pytest.raises(InvalidArgument):
        session.answer("c1", object())
    with pytest.raises(NothingPending):
        session.answer("c1", 1)
    with pytest.raises(NothingPending):
        session.approve("c1", arguments={"a": 1})
    with pytest.raises(Interrupt):
        interrupt("outside of a tool")


def test_a_request_expires_as_denied(store: Store, clock: MovedClock) -> None:
    paid: list[int] = []
    pay = make_pay(paid, approval_timeout=60)
    agent = Agent(
        provider="scripted", script=[call("pay", {"cents": 5}, id="c1"), "too late"], tools=[pay], store=store
    )
    session = agent.session()
    session.run("pay five")
    with pytest.raises(ApprovalPending):
        session.run("hello")
    clock.pass_seconds(61)
    assert session.pending == []
    assert Session.waiting(store=store) == []
    with pytest.raises(NothingPending):
        session.approve("c1")
    response = session.resume()
    assert response is not None
    assert (response.text, paid) == ("too late", [])
    assert "not approved in time" in find_result(session)
    (decided,) = session.events(types="approval.decided")
    assert decided.data["expired"] is True


def test_the_inbox_has_the_waiting_calls_of_all_sessions(store: Store) -> None:
    paid: list[int] = []
    pay = make_pay(paid)
    for name, user in (("one", "alice"), ("two", "bob"), ("three", "alice")):
        script = [call("pay", {"cents": len(name)}, id=f"call-{name}")]
        agent = Agent(provider="scripted", script=script, tools=[pay], store=store)
        agent.session(name, user_id=user).run("pay")
    Agent(provider="scripted", script=["hi"], store=store).session("idle", user_id="alice").run("hello")
    inbox = Session.waiting(store=store)
    assert [(each.session_id, each.call_id, each.name) for each in inbox] == [
        ("three", "call-three", "pay"),
        ("two", "call-two", "pay"),
        ("one", "call-one", "pay"),
    ]
    assert inbox[0].arguments == {"cents": 5}
    assert inbox[0].since <= Session.open("three", store=store).updated_at
    assert [each.session_id for each in Session.waiting(store=store, user_id="bob")] == ["two"]
    assert [each.session_id for each in Session.waiting(store=store, limit=1)] == ["three"]
    assert [each.session_id for each in Session.waiting(store=store, after="three")] == ["two", "one"]


def test_a_throw_away_session_is_reached_from_its_response(store: Store) -> None:
    paid: list[int] = []
    agent = Agent(provider="scripted", script=[call("pay", {"cents": 5}, id="c1"), "done"], tools=[make_pay(paid)])
    response = agent.run("pay five")
    assert response.status == "waiting"
    response.session.approve("c1")
    assert response.session.resume().text == "done"
    assert response.session_id == response.session.id
    session = Agent(provider="scripted", script=["hi"], store=store).session("mine")
    answer: Response = session.run("hello")
    assert (answer.session_id, answer.session is session) == ("mine", True)
    again = pickle.loads(pickle.dumps(answer))
    assert (again, again.session) == (answer, None)
    assert "turn.finished" in list_types(session)
