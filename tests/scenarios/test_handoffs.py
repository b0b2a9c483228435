"""Section 10 of the promises: handoffs, shared sessions, agents as tools. Each four ways, on every store."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import holdfast
from holdfast import Agent, Budget, Message, Session, tool
from holdfast.errors import (
    BudgetExceeded,
    HandoffLoop,
    InvalidArgument,
    ProviderUnavailable,
)
from holdfast.stores.base import Store
from holdfast.testing import call, error
from tests.kit.agents import RecordingScript, check_session, list_authored_texts, make_named_agent
from tests.scenarios.ways import WAYS, Ask, make_ask, make_resume


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def ask(way: str) -> Ask:
    return make_ask(way)


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} means something"


# -- handoffs ----------------------------------------------------------------------------------------------------------


def make_desk(**scripts: Any) -> tuple[Agent, Agent]:
    billing = Agent(provider="scripted", script=scripts["billing"], name="billing", description="Money.")
    triage = Agent(provider="scripted", script=scripts["triage"], name="triage", handoffs=[billing])
    billing.handoffs.append(triage)
    return triage, billing


def test_a_handoff_takes_the_whole_conversation_along(store: Store, ask: Ask) -> None:
    first, second = (
        RecordingScript("Hello!", call("transfer_to_billing", {"reason": "It is about money."})),
        RecordingScript("5 euros.", "Yes."),
    )
    triage, _ = make_desk(triage=first, billing=second)
    session = triage.session(store=store)
    ask(session, "Hi")
    response = ask(session, "My bill?")
    assert (response.text, response.messages[-1].author, session.active_agent) == ("5 euros.", "billing", "billing")
    assert [spec.name for spec in first.requests[0].tools] == ["transfer_to_billing"]
    assert "Money." in first.requests[0].tools[0].description
    assert second.list_messages() == [
        ("user", "Hi"), ("user", "[triage] Hello!"), ("user", "My bill?"),
        ("user", "[triage] The conversation goes on with billing. It is about money."),
    ]  # fmt: skip
    assert ask(session, "Sure?").text == "Yes."  # the next message goes to the active agent
    assert second.list_messages()[-2:] == [("assistant", "5 euros."), ("user", "Sure?")]
    started = session.events(types="agent.started")[0]
    assert started.data == {"agent": "billing", "path": "+1", "from": "triage", "active": "billing"}
    check_session(session)


def test_the_active_agent_is_found_in_another_process(store: Store, ask: Ask) -> None:
    triage, _ = make_desk(triage=RecordingScript(call("transfer_to_billing")), billing=RecordingScript("5 euros."))
    session = triage.session(store=store)
    ask(session, "My bill?")
    other, _ = make_desk(triage=RecordingScript(), billing=RecordingScript("Still me."))
    assert ask(Session.open(session.id, store=store, agent=other), "And now?").text == "Still me."


def test_a_handoff_back(store: Store, ask: Ask) -> None:
    triage, _ = make_desk(
        triage=RecordingScript(call("transfer_to_billing"), "Back at the desk."),
        billing=RecordingScript(call("transfer_to_triage")),
    )
    session = triage.session(store=store)
    response = ask(session, "Hm?")
    assert (response.text, session.active_agent) == ("Back at the desk.", "triage")
    assert response.steps == 3
    check_session(session)


def test_going_in_circles_ends(store: Store, ask: Ask) -> None:
    triage, _ = make_desk(triage=lambda _: call("transfer_to_billing"), billing=lambda _: call("transfer_to_triage"))
    session = triage.session(store=store)
    with pytest.raises(HandoffLoop) as caught:
        ask(session, "Hm?")
    assert (caught.value.giver, caught.value.taker) == ("triage", "billing")
    assert list_authored_texts(session) == []
    assert session.active_agent is None
    check_session(session)


def test_an_agent_whose_circular_handoff_is_refused_can_answer(store: Store, ask: Ask) -> None:
    transfers = [call("transfer_to_billing")] * 3
    triage, _ = make_desk(
        triage=RecordingScript(*transfers, "Then I answer."), billing=RecordingScript(*[call("transfer_to_triage")] * 2)
    )
    assert ask(triage.session(store=store), "Hm?").text == "Then I answer."


def test_a_failed_turn_does_not_move_the_conversation(store: Store, ask: Ask) -> None:
    triage, _ = make_desk(
        triage=RecordingScript(call("transfer_to_billing"), "still here"), billing=RecordingScript(error("down"))
    )
    session = triage.session(store=store)
    with pytest.raises(ProviderUnavailable):
        ask(session, "My bill?")
    assert (session.active_agent, list_authored_texts(session)) == (None, [])
    assert ask(session, "Again").text == "still here"


def test_rewinding_and_forking_take_the_active_agent_along(store: Store, ask: Ask) -> None:
    triage, _ = make_desk(
        triage=RecordingScript("hello", call("transfer_to_billing"), "me again"),
        billing=RecordingScript("5 euros.", "forked"),
    )
    session = triage.session(store=store)
    ask(session, "Hi")
    before = session.head
    ask(session, "My bill?")
    fork = session.fork()
    assert fork.active_agent == "billing"
    session.rewind(to=before)
    assert session.active_agent is None
    assert ask(session, "Hi").text == "me again"
    assert ask(fork, "And?").text == "forked"
    fork.clear()
    assert fork.active_agent is None
    check_session(session)


def test_a_person_can_give_the_conversation_to_an_agent(store: Store, ask: Ask) -> None:
    triage, _ = make_desk(triage=RecordingScript("back"), billing=RecordingScript("mine"))
    session = triage.session(store=store)
    session.active_agent = "billing"
    assert ask(session, "Hi").text == "mine"
    session.active_agent = None
    assert ask(session, "Hi").text == "back"
    assert [event.data for event in session.events(types="agent.assigned")] == [{"agent": "billing"}, {"agent": None}]


def test_other_calls_of_the_reply_are_done_before_the_handoff(store: Store, ask: Ask) -> None:
    billing = RecordingScript("done")
    triage = make_named_agent(
        "triage",
        [call("transfer_to_billing"), call("look_up", {"word": "bill"}), call("transfer_to_billing")],
        tools=[look_up],
        handoffs=[billing.agent("billing")],
    )
    session = triage.session(store=store)
    ask(session, "go")
    results = {message.text for message in session.messages if message.role == "tool"}
    assert results == {
        "bill means something", "The conversation goes on with billing.",
        "The conversation was handed to billing already.",
    }  # fmt: skip
    check_session(session)


def test_an_agent_that_is_handed_to_needs_a_name() -> None:
    with pytest.raises(InvalidArgument, match="needs a name"):
        make_named_agent("a", handoffs=[make_named_agent(None, "x")])
    with pytest.raises(InvalidArgument, match="two tools"):
        make_named_agent("a", handoffs=[make_named_agent("b b", "x"), make_named_agent("b_b", "x")])
    with pytest.raises(InvalidArgument, match="list of agents"):
        make_named_agent("a", handoffs=["billing"])


def test_an_agent_may_have_any_name(store: Store, ask: Ask) -> None:
    triage = make_named_agent("triage", call("transfer_to_exit"), handoffs=[make_named_agent("exit", "This way.")])
    session = triage.session(store=store)
    assert (ask(session, "go").text, session.active_agent) == ("This way.", "exit")


# -- shared sessions ---------------------------------------------------------------------------------------------------


def test_agents_that_share_a_session_take_turns_and_sign(store: Store, ask: Ask) -> None:
    session = Session(store=store)
    agents = [make_named_agent(f"agent-{number}", *[f"answer {number}"] * 4) for number in range(3)]

    def ask_questions(agent: Agent) -> None:
        mine = Session.open(session.id, store=store)
        for number in range(4):
            ask(mine, f"question {number}", agent=agent, timeout=60)

    threads = [threading.Thread(target=ask_questions, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = session.messages
    assert [message.role for message in messages] == ["user", "assistant"] * 12
    for agent in agents:
        assert sum(message.author == agent.name for message in messages) == 4
    check_session(session)


def test_an_agent_without_a_name_reads_unsigned_messages_as_its_own(store: Store, ask: Ask) -> None:
    nameless = RecordingScript("ok")
    session = Session(store=store, messages=[Message.user("hi"), Message.assistant("hello")])
    ask(session, "now", agent=make_named_agent("named", "I am named"))
    ask(session, "and you?", agent=nameless.agent(None))
    assert nameless.list_messages() == [
        ("user", "hi"), ("assistant", "hello"), ("user", "now"), ("user", "[named] I am named"), ("user", "and you?"),
    ]  # fmt: skip


# -- agents as tools ---------------------------------------------------------------------------------------------------


def test_an_agent_is_a_tool_of_another(store: Store, ask: Ask) -> None:
    helper = RecordingScript(call("look_up", {"word": "bee"}), "A bee is a bee.")
    boss = make_named_agent(
        "boss",
        call("helper", {"request": "What is a bee?"}),
        "So it is.",
        tools=[helper.agent("helper", description="Knows words.", tools=[look_up]).as_tool()],
    )
    session = boss.session(store=store, user_id="alice")
    response = ask(session, "Bees?")
    assert (response.text, session.messages[2].text) == ("So it is.", "A bee is a bee.")
    (child,) = [each for each in Session.list(store=store, user_id="alice") if each.id != session.id]
    assert child.metadata == {"caller": session.id, "agent": "helper"}
    assert list_authored_texts(child)[0] == ("user", "What is a bee?")
    assert helper.list_messages(0) == [("user", "What is a bee?")]  # a session of its own: it knows nothing else
    returned = session.events(types="tool.returned")[0].data
    assert (returned["session"], returned["usage"]["steps"]) == (child.id, 2)
    assert session.usage.input_tokens > child.usage.input_tokens > 0
    assert response.usage == session.usage
    check_session(session)


def test_the_budget_of_a_called_agent_is_inside_the_callers(store: Store, ask: Ask) -> None:
    helpers = [RecordingScript(*[call("look_up", {"word": "x"})] * 50) for _ in range(2)]
    tools = [helper.agent(f"helper{number}", tools=[look_up]).as_tool() for number, helper in enumerate(helpers)]
    boss = make_named_agent(
        "boss", [call("helper0", {"request": "a"}), call("helper1", {"request": "b"})], "x", tools=tools
    )
    session = boss.session(store=store, budget=Budget(steps=8))
    with pytest.raises(BudgetExceeded) as caught:
        ask(session, "go")
    assert caught.value.used == 8
    assert sum(len(helper.requests) for helper in helpers) == 7  # and the caller's own step: eight, and not one more


def test_a_called_agent_that_fails_is_an_error_for_the_caller(store: Store, ask: Ask) -> None:
    boss = make_named_agent(
        "boss", call("helper", {"request": "a"}), "I see.", tools=[make_named_agent("helper", error("down")).as_tool()]
    )
    session = boss.session(store=store)
    assert ask(session, "go").text == "I see."
    assert session.messages[2].parts[0].is_error  # type: ignore[union-attr]
    assert "down" in session.messages[2].text


def test_a_person_is_asked_for_what_a_called_agent_wants(store: Store, way: str) -> None:
    @tool(approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    helper = make_named_agent("helper", call("pay"), "It is paid.", tools=[pay])
    boss = make_named_agent("boss", call("helper", {"request": "pay"}), "All done.", tools=[helper.as_tool()])
    session = boss.session(store=store)
    assert make_ask(way)(session, "go").status == "waiting"
    (waiting,) = session.pending
    assert waiting.payload["pending"][0]["name"] == "pay"
    child = Session.open(waiting.payload["session"], store=store, agent=helper)
    child.approve(child.pending[0].call_id)
    session.approve(waiting.call_id)
    response = make_resume(way)(session)
    assert response is not None
    assert (response.text, child.messages[-1].text) == ("All done.", "It is paid.")


def test_a_redaction_reaches_the_session_of_a_called_agent(store: Store, ask: Ask) -> None:
    helper = make_named_agent("helper", "Noted.", "Noted.")
    secret = {"request": "The secret is Quintessa."}
    boss = make_named_agent(
        "boss", call("helper", secret), "Fine.", call("helper", secret), "Fine.", tools=[helper.as_tool()]
    )
    session = boss.session(store=store, user_id="alice")
    ask(session, "One.")
    ask(session, "Two.")
    children = [each for each in Session.list(store=store, user_id="alice") if each.id != session.id]
    assert len(children) == 2
    first = session.events(types="tool.called")[0]
    session.redact(first.seq, reason="asked")
    assert [each.status for each in children] == ["active", "erased"]  # the newest is listed first
    session.erase(reason="asked", actor="dpo")
    assert [each.status for each in children] == ["erased", "erased"]
    assert all(each.verify() for each in children)


def test_a_called_agent_is_kept_as_its_caller_is(store: Store, ask: Ask) -> None:
    boss = make_named_agent(
        "boss", call("helper", {"request": "x"}), "y", tools=[make_named_agent("helper", "1").as_tool()]
    )
    session = boss.session(store=store, user_id="alice", retention={"ttl_days": 30})
    ask(session, "go")
    (child,) = [each for each in Session.list(store=store, user_id="alice") if each.id != session.id]
    assert child.retention == session.retention
    assert child.retention is not None


def test_a_document_says_who_has_the_conversation(store: Store, ask: Ask) -> None:
    triage, _ = make_desk(
        triage=RecordingScript(call("transfer_to_billing")), billing=RecordingScript("5 euros.", "Still me.")
    )
    session = triage.session(store=store)
    ask(session, "My bill?")
    data = session.to_dict()
    assert data["active_agent"] == "billing"
    assert holdfast.Session.from_dict(data, triage).run("And now?").text == "Still me."
    session.active_agent = None
    store.save(session.id, data)
    assert session.active_agent == "billing"
