"""`session.replay(agent)`: each turn runs again in the session as it was before that turn, on every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from holdfast import Agent, Budget, File, Image, Memory, Message, Session, ToolContext, aio, tool
from holdfast.errors import AgentError
from holdfast.flow import ParallelAgent, SequentialAgent
from holdfast.stores.base import Store
from holdfast.testing import call, error
from holdfast.tools import remember
from holdfast.turn.replay import Replay


@tool
def note(text: str, ctx: ToolContext) -> str:
    """Keep a note in the state."""
    ctx.state.set("note", text)
    return f"noted {text}"


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def make_agent(*script: Any, **options: Any) -> Agent:
    return Agent(provider="scripted", script=list(script), max_retries=0, **options)


def check_same(session: Session, agent: Any, turns: int) -> Replay:
    """The replay names no difference, leaves one fork, and does not change the session."""
    head, forks = session.head, len(session.forks())
    found = session.replay(agent)
    assert found.first_difference is None
    assert (found.turns, session.head, len(session.forks())) == (turns, head, forks + 1)
    return found


def prune_and_undo(session: Session) -> None:
    session.prune("keep_last_1")
    session.undo_prune()


CHANGES: dict[str, Callable[[Session], Any]] = {
    "a fact is added": lambda session: session.facts.add("use PostgreSQL", kind="decision"),
    "a fact is updated": lambda session: session.facts.update(session.facts.all()[0].id, text="use SQLite"),
    "a fact is removed": lambda session: session.facts.remove(session.facts.all()[0].id),
    "state is set": lambda session: session.set_state("mood", "rude"),
    "state is set and deleted": lambda session: (session.set_state("x", 1), session.delete_state("x")),
    "state of the user is set": lambda session: session.set_state("mood", "rude", scope="user"),
    "state of the app is set": lambda session: session.set_state("mood", "rude", scope="app"),
    "messages are added": lambda session: session.add_messages([Message.user("by the way"), Message.assistant("yes")]),
    "the messages are cleared": lambda session: session.clear(),
    "the session is rewound": lambda session: session.rewind(to=3),
    "the session is pruned": lambda session: session.prune("keep_last_1"),
    "a prune is undone": prune_and_undo,
    "a summary is written": lambda session: session.prune("summarize_old", threshold=1, agent=make_agent("a summary")),
    "the system prompt changes": lambda session: setattr(session, "system", "You sell coffee."),
    "the title changes": lambda session: setattr(session, "title", "Coffee"),
    "the budget is raised": lambda session: setattr(session, "budget", Budget(tokens=100_000)),
    "the session is closed and reopened": lambda session: (session.close(), session.reopen()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_turns_is_no_difference(store: Store, name: str) -> None:
    agent = make_agent("one", call("note", {"text": "a"}), "two", "three", instructions="Be {mood}.", tools=[note])
    session = agent.session(
        "s", store=store, user_id="alice", app_name="shop", system="You sell tea.", state={"mood": "kind"}
    )
    session.facts.add("the shop opens at nine")
    session.run("q1")
    CHANGES[name](session)
    session.run("q2")
    session.run("q3")
    check_same(session, agent, 3)


def test_all_of_it_between_turns_is_no_difference(store: Store) -> None:
    agent = make_agent(*"abcdefghijklmnopqrstuvwxyz", instructions="Be {mood}.")
    session = agent.session("s", store=store, user_id="alice", app_name="shop", state={"mood": "kind"})
    session.facts.add("the shop opens at nine")
    for number, change in enumerate(CHANGES.values()):
        session.run(f"q{number}")
        session.facts.add(f"fact {number}")
        change(session)
    session.run("the last one")
    check_same(session, agent, len(CHANGES) + 1)


def test_a_failed_turn_before_it_is_no_difference(store: Store) -> None:
    """The prompt of the next turn names the calls of the failed one."""
    agent = make_agent("one", call("note", {"text": "a"}), error("down"), "two", "three", tools=[note])
    session = agent.session(store=store)
    session.run("q1")
    with pytest.raises(AgentError):
        session.run("q2")
    session.run("q3")
    session.run("q4")
    check_same(session, agent, 3)


def test_a_turn_that_was_retried_is_no_difference(store: Store) -> None:
    agent = make_agent(call("note", {"text": "a"}), error("down"), "one", "two", tools=[note])
    session = agent.session(store=store)
    with pytest.raises(AgentError):
        session.run("q1")
    session.facts.add("the provider was down")
    session.retry()
    session.run("q2")
    check_same(session, agent, 2)


def test_a_fact_that_comes_while_a_call_waits_is_no_difference(store: Store) -> None:
    agent = make_agent(call("pay", {"cents": 5}), "paid", "two", tools=[pay], instructions="Be {mood}.")
    session = agent.session(store=store, state={"mood": "kind"})
    session.run("q1")
    session.facts.add("the shop opens at nine")
    session.set_state("mood", "rude")
    session.approve(session.pending[0].call_id)
    session.resume()
    session.run("q2")
    check_same(session, agent, 2)


def test_what_tools_keep_is_there_in_the_next_turn(store: Store) -> None:
    agent = make_agent(
        [call("note", {"text": "a"}), call("remember", {"text": "the shop opens at nine"})],
        "one",
        "two",
        tools=[note, remember],
        instructions="The note is {note}.",
    )
    session = agent.session(store=store, state={"note": "none"})
    session.run("q1")
    session.run("q2")
    check_same(session, agent, 2)


def test_memories_are_no_difference(store: Store) -> None:
    memory = Memory(store=store)
    memory.store("home", "Lives in Berlin", user_id="alice")
    agent = make_agent("Berlin", "Rome", memory=memory)
    session = agent.session(store=store, user_id="alice")
    session.run("Where does she live?")
    memory.store("home", "Lives in Rome", user_id="alice")
    session.run("Where does she live?")
    check_same(session, agent, 2)


def test_temp_state_is_no_difference(store: Store) -> None:
    agent = make_agent("one", "two", instructions="Speak {language} to {name}.")
    session = agent.session(store=store, state={"name": "Ann"})
    for language in ("French", "Dutch"):
        session.set_state("language", language, scope="temp")
        session.run("hello")
    check_same(session, agent, 2)
    other = session.replay(make_agent(instructions="Whisper {language} to {name}."))
    assert other.first_difference is not None
    assert (other.first_difference.turn, other.first_difference.recorded["instructions"]) == (1, "Speak French to Ann.")


def test_attached_bytes_are_no_difference(store: Store) -> None:
    agent = make_agent("one", call("note", {"text": "a"}), "two", tools=[note])
    session = agent.session(store=store, messages=[Message.user("look", File(data=b"a page", media_type="text/plain"))])
    session.run(Message.user("q1", Image(data=b"a picture", media_type="image/png")))
    session.add_message(Message.user("and this", File(data=b"another page", media_type="text/plain")))
    session.run("q2")
    found = check_same(session, agent, 2)
    assert [part.data for message in found.session.messages for part in message.parts if isinstance(part, File)] == [
        b"a page", b"another page",
    ]  # fmt: skip


def test_a_handoff_and_what_its_tool_kept_is_no_difference(store: Store) -> None:
    billing = make_agent("one", "two", name="billing", instructions="The note is {note}.")
    triage = make_agent(
        call("note", {"text": "a"}), call("transfer_to_billing"), name="triage", tools=[note], handoffs=[billing]
    )
    session = triage.session(store=store)
    session.run("q1")
    session.set_state("note", "another")
    session.run("q2")
    check_same(session, triage, 2)


def test_a_flow_whose_tools_keep_state_is_no_difference(store: Store) -> None:
    def make_flow(instructions: str) -> SequentialAgent:
        first = make_agent(call("note", {"text": "a"}), "1", call("note", {"text": "b"}), "4", name="a", tools=[note])
        views = ParallelAgent([first, make_agent("2", "5", name="b")])
        return SequentialAgent([views, make_agent("3", "6", name="c", instructions=instructions)])

    flow, session = make_flow("The note is {note}."), Session(store=store)
    session.run("q1", agent=flow)
    session.facts.add("the shop opens at nine")
    session.run("q2", agent=flow)
    check_same(session, flow, 2)
    other = session.replay(make_flow("A note is {note}."))
    assert other.first_difference is not None
    assert (other.first_difference.turn, other.first_difference.recorded["instructions"]) == (1, "The note is a.")


def test_budgets_and_retention_are_no_difference(store: Store) -> None:
    agent = make_agent("one", "two", "three")
    session = agent.session(store=store, budget=Budget(turns=3), retention={"ttl_days": 30, "immutable": True})
    for number in range(3):
        session.run(f"q{number}")
    with pytest.raises(AgentError):
        session.run("one more")
    check_same(session, agent, 3)


def test_a_redacted_turn_is_left_out(store: Store) -> None:
    agent = make_agent("one", "two", "three", instructions="Be {mood}.")
    session = agent.session(store=store, state={"mood": "a grumpy old bear"})
    for number in range(3):
        session.run(f"q{number}")
    session.redact(session.events(types="model.replied")[1].seq, reason="a slip")
    check_same(session, agent, 2)


def test_a_prompt_that_was_redacted_is_not_compared(store: Store) -> None:
    agent = make_agent("one", "two")
    session = agent.session(store=store)
    fact = session.facts.add("the card is zebra-4711")
    session.run("q1")
    session.redact(session.events(types="fact.added")[0].seq, reason="a slip")
    assert fact.id not in {each.id for each in session.facts.all()}
    session.run("q2")
    check_same(session, agent, 2)


def test_calls_that_end_in_another_order_are_no_difference(store: Store) -> None:
    has_run = threading.Event()

    @tool
    def wait_for_other(text: str) -> str:
        """Wait for the other call."""
        assert has_run.wait(30)
        return f"second {text}"

    @tool
    def run_first(text: str) -> str:
        """Run first."""
        has_run.set()
        return f"first {text}"

    calls = [call("wait_for_other", {"text": "a"}), call("run_first", {"text": "b"}), call("run_first", {"text": "c"})]
    agent = make_agent(calls, "one", tools=[wait_for_other, run_first])
    session = agent.session(store=store)
    session.run("q1")
    check_same(session, agent, 1)


def test_what_a_person_decided_is_no_difference(store: Store) -> None:
    both = [call("note", {"text": "a"}), call("pay", {"cents": 5}, id="p1")]
    agent = make_agent(
        both, "one", [call("pay", {"cents": 6}, id="p2"), call("note", {"text": "b"})], "two", tools=[note, pay]
    )
    session = agent.session(store=store)
    session.run("q1")
    session.approve("p1")
    session.resume()
    session.run("q2")
    session.deny("p2", "too much")
    session.resume()
    check_same(session, agent, 2)


def test_arguments_that_a_person_chose_are_no_difference(store: Store) -> None:
    agent = make_agent(call("pay", {"cents": 500}), "paid", tools=[pay])
    session = agent.session(store=store)
    session.run("q1")
    session.approve(session.pending[0].call_id, arguments={"cents": 5})
    session.resume()
    check_same(session, agent, 1)


def test_extracted_facts_and_state_are_no_difference(store: Store) -> None:
    agent = make_agent(
        "one", "two", extract=lambda response: {"facts": [f"it is {response.text}"], "last": response.text}
    )
    session = agent.session(store=store)
    session.run("q1")
    session.run("q2")
    check_same(session, agent, 2)


class Age(BaseModel):
    """An age, with a check that no JSON Schema has."""

    years: int

    @field_validator("years")
    @classmethod
    def check_years(cls, value: int) -> int:
        if value % 2:
            raise ValueError("no odd number")
        return value


def test_a_rejected_answer_of_an_agents_own_class_is_no_difference(store: Store) -> None:
    agent = make_agent('{"years": 3}', '{"years": 4}', output_schema=Age, output_key="age")
    session = agent.session(store=store)
    session.run("q1")
    assert [event.data.get("rejected") is None for event in session.events(types="model.replied")] == [False, True]
    check_same(session, agent, 1)


def test_a_rejected_answer_of_a_callers_class_is_no_difference(store: Store) -> None:
    agent = make_agent('{"years": 3}', '{"years": 4}')
    session = agent.session(store=store)
    assert session.json("q1", schema=Age).output == Age(years=4)
    check_same(session, agent, 1)
    assert not session.replay(make_agent(output_key="age"))


# -- differences -------------------------------------------------------------------------------------------------------


def test_the_report_names_the_part_of_the_prompt_that_differs(store: Store) -> None:
    session = make_agent("one", "two", instructions="Be kind.").session(store=store)
    session.run("q1")
    session.facts.add("the shop opens at nine")
    session.run("q2")
    found = session.replay(make_agent(instructions="Be rude.")).first_difference
    assert found is not None
    called = session.events(types="model.called")[0]
    assert (found.turn, found.seq, found.type) == (1, called.seq, "model.called")
    assert found.recorded == {
        "type": "model.called", "provider": "scripted", "model": "scripted", "instructions": "Be kind.",
    }  # fmt: skip
    assert found.replayed["instructions"] == "Be rude."


def test_the_session_of_a_replay_is_the_fork_of_the_last_turn_that_ran(store: Store) -> None:
    agent, other = make_agent("one", "three", tools=[note]), make_agent("two", tools=[note, pay])
    session = agent.session(store=store)
    session.run("q1")
    session.add_message(Message.user("between"))
    session.run("q2", agent=other)
    session.run("q3")
    session.add_message(Message.user("after"))
    found = session.replay(agent)
    assert found.first_difference is not None
    assert (found.turns, found.first_difference.turn, found.first_difference.type) == (3, 2, "model.called")
    assert [message.text for message in found.session.messages] == ["q1", "one", "between", "q2", "two"]
    assert found.session.parent == session.id
    whole = check_same(make_two_turns(store), make_agent(), 2)
    assert [message.text for message in whole.session.messages] == ["q1", "one", "between", "q2", "two"]


def make_two_turns(store: Store) -> Session:
    session = make_agent("one", "two").session(store=store)
    session.run("q1")
    session.add_message(Message.user("between"))
    session.run("q2")
    return session


def test_a_turn_that_would_go_on_is_a_difference(store: Store) -> None:
    session = make_agent(call("pay", {"cents": 5}), "paid", tools=[pay]).session(store=store)
    session.run("q1")
    session.approve(session.pending[0].call_id)
    session.resume()
    found = session.replay(make_agent(tools=[pay], output_schema={"type": "object"})).first_difference
    assert found is not None
    assert found.turn == 1


def test_instructions_that_lack_their_state_are_a_difference(store: Store) -> None:
    session = make_two_turns(store)
    found = session.replay(make_agent(instructions="Be {mood}.")).first_difference
    assert found is not None
    assert (found.turn, found.type, found.recorded["instructions"]) == (1, "model.called", None)
    assert found.replayed["instructions"] == "Be {mood}."


def test_awaited_replays_are_the_same(store: Store) -> None:
    session = make_two_turns(store)
    session.facts.add("the shop opens at nine")
    assert asyncio.run(session.replay_async(make_agent())).same
    awaited = aio.Session(session.id, store=store)
    assert asyncio.run(awaited.replay(make_agent())).same
