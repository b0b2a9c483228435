"""Section 2 of the promises: a tool names who may decide about its calls, and the decision holds in every process."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Message, Session, tool
from holdfast.errors import InvalidTool, NothingPending, WrongApprover
from holdfast.stores.base import Store
from holdfast.testing import call
from tests.scenarios.ways import WAYS, make_ask, make_resume


def make_payer(paid: list[int], approval: Any, store: Store, cents: int = 500) -> Agent:
    @tool(approval=approval)
    def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return f"paid {cents}"

    script = [call("pay", {"cents": cents}, id="c1"), "done"]
    return Agent(name="payer", provider="scripted", script=script, tools=[pay], store=store)


def refuse_decisions(session: Session, actor: str | None) -> None:
    """Every kind of decision is refused to this actor, and nothing is stored."""
    before = session.head
    for decide in (
        lambda: session.approve("c1", actor=actor),
        lambda: session.approve("c1", arguments={"cents": 1}, actor=actor),
        lambda: session.deny("c1", "no", actor=actor),
        lambda: session.answer("c1", True, actor=actor),
    ):
        with pytest.raises(WrongApprover) as caught:
            decide()
        assert (caught.value.code, caught.value.status, caught.value.call_id) == ("wrong_approver", 403, "c1")
    assert session.head == before


@pytest.mark.parametrize("way", WAYS)
def test_who_asked_does_not_approve_where_a_second_person_must(store: Store, way: str) -> None:
    paid: list[int] = []
    agent = make_payer(paid, "second_person", store)
    session = agent.session(user_id="alice")
    assert make_ask(way)(session, "Pay five.").status == "waiting"
    refuse_decisions(Session.open(session.id, store=store), "alice")
    (request,) = session.events(types="approval.requested")
    assert request.data["approvers"] == "second_person"
    assert "alice" in request.data["asked_by"]
    Session.open(session.id, store=store).approve("c1", actor="bob")
    response = make_resume(way)(session)
    assert response is not None
    assert (response.text, paid) == ("done", [500])
    (decided,) = session.events(types="approval.decided")
    assert (decided.actor, decided.data["approvers"]) == ("bob", "second_person")
    with pytest.raises(NothingPending):
        session.approve("c1", actor="carol")
    assert session.verify().ok


def test_the_author_of_the_question_asked_for_it(store: Store) -> None:
    paid: list[int] = []
    session = make_payer(paid, "second_person", store).session()
    session.run(Message.user("Pay five.", author="dave"))
    refuse_decisions(session, "dave")
    session.deny("c1", actor="alice")
    session.resume()
    assert paid == []


def test_only_those_who_are_named_decide(store: Store) -> None:
    paid: list[int] = []
    session = make_payer(paid, ["boss", "alice"], store).session(user_id="alice")
    session.run("Pay five.")
    refuse_decisions(session, "bob")
    refuse_decisions(session, "alice")  # she is named, and she asked
    session.approve("c1", arguments={"cents": 5}, actor="boss")
    session.resume()
    assert paid == [5]


def test_a_decision_needs_a_name_where_one_is_asked_for(store: Store) -> None:
    session = make_payer([], "second_person", store).session(user_id="alice")
    session.run("Pay five.")
    if type(session) is Session:  # over HTTP, the key has a name
        refuse_decisions(session, None)
    session.approve("c1", actor="bob")


def choose_approval(arguments: dict[str, Any]) -> object:
    cents = arguments["cents"]
    return ["boss"] if cents > 1000 else "second_person" if cents > 100 else cents > 10


@pytest.mark.parametrize(
    ("cents", "allowed", "refused"),
    [(5000, "boss", "bob"), (500, "bob", "alice"), (50, "alice", None), (5, None, None)],
)
def test_a_function_of_the_arguments_chooses_who_decides(
    store: Store, cents: int, allowed: str | None, refused: str | None
) -> None:
    paid: list[int] = []
    session = make_payer(paid, choose_approval, store, cents).session(user_id="alice")
    waiting = session.run("Pay.").status == "waiting"
    assert waiting == (allowed is not None)
    if refused is not None:
        refuse_decisions(session, refused)
    if allowed is not None:
        session.approve("c1", actor=allowed)
        session.resume()
    assert paid == [cents]


def test_the_rule_follows_a_session_into_a_document(store: Store) -> None:
    session = make_payer([], "second_person", store).session(user_id="alice")
    session.run("Pay five.")
    document = session.to_dict()
    copy = Session.from_dict(document | {"id": "copy"}, store=store)
    refuse_decisions(copy, "alice")
    copy.approve("c1", actor="bob")


def test_who_asked_the_caller_asked_the_agent_that_it_calls(store: Store) -> None:
    paid: list[int] = []
    clerk = make_payer(paid, "second_person", store)
    script = [call("payer", {"request": "Pay five."}, id="p1"), "done"]
    boss = Agent(name="desk", provider="scripted", script=script, tools=[clerk.as_tool()], store=store)
    session = boss.session()
    waiting = session.run(Message.user("Have it paid.", author="dave"))
    payload = waiting.pending[0].payload
    child = Session.open(payload["session"], store=store)
    refuse_decisions(child, "dave")
    child.approve("c1", actor="bob")
    session.approve("p1", actor="dave")
    session.resume()
    assert paid == [500]


@pytest.mark.parametrize("approval", ["sometimes", "boss", [], [1], 3, {}])
def test_another_approval_is_refused(approval: Any) -> None:
    with pytest.raises(InvalidTool, match="second_person"):
        tool(approval=approval)(lambda_free)


def lambda_free(cents: int) -> str:
    """Pay."""
    return str(cents)
