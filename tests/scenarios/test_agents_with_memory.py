"""Section 11 of the promises, seen from an agent: what it is told from memory, and what it keeps. On every store."""

from __future__ import annotations

import pytest

from holdfast import Agent, Memory, Message, Session, VectorMemoryService, tool
from holdfast.flow import SequentialAgent
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from holdfast.testing import call
from holdfast.tools import remember
from tests.kit.agents import RecordingScript
from tests.scenarios.ways import WAYS, Ask, make_ask


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest) -> Ask:
    return make_ask(request.param)


def read_memories(script: RecordingScript) -> list[str]:
    """The texts of the last request that come from memory."""
    return [text for text in script.requests[-1].system_texts if text.startswith("From earlier conversations")]


def test_what_is_remembered_about_the_question_is_put_before_the_model(store: Store, ask: Ask) -> None:
    memory = Memory(store=store)
    memory.store("diet", "Alice is allergic to nuts", user_id="alice")
    memory.store("diet", "Bob eats everything, nuts above all", user_id="bob")
    memory.store("car", "Alice drives a red van", user_id="alice")
    model = RecordingScript("No nuts then.", "Hello.")
    agent = Agent(provider="scripted", script=model, memory=memory)
    session = agent.session(store=store, user_id="alice")
    ask(session, "What about nuts in her cake?")
    (memories,) = read_memories(model)
    assert "allergic to nuts" in memories
    assert "Bob" not in memories
    assert "van" not in memories  # what does not fit is left out
    called = session.events(types="model.called")[0]
    context = session.context(call=called.seq)  # what the model saw can be shown, memories included
    assert [part.text for part in context.parts if part.kind == "memory"] == [memories]
    ask(session, "Zzz?")
    assert read_memories(model) == []


def test_an_agent_keeps_and_finds_things(store: Store, ask: Ask) -> None:
    memory = Memory(store=store)
    keeping = RecordingScript(call("save_memory", {"text": "Alice lives in Bremen", "key": "home"}), "Noted.")
    first = Agent(provider="scripted", script=keeping, memory=memory).session(store=store, user_id="alice")
    ask(first, "I live in Bremen now.")
    assert sorted(spec.name for spec in keeping.requests[0].tools) == ["save_memory", "search_memory"]
    (home,) = memory.recall("home", user_id="alice")
    assert home.text == "Alice lives in Bremen"
    assert home.source is not None
    (asked,) = [message for message in first.messages if message.seq in home.source.seqs]
    assert (home.source.session_id, asked.text) == (first.id, "I live in Bremen now.")
    finding = RecordingScript(call("search_memory", {"query": "Bremen"}), "In Bremen.")
    second = Agent(provider="scripted", script=finding, memory=memory).session(store=store, user_id="alice")
    ask(second, "Where do I live?")
    assert "lives in Bremen" in second.messages[2].text
    stranger = Agent(
        provider="scripted", script=RecordingScript(call("search_memory", {"query": "Bremen"}), "?"), memory=memory
    )
    other = stranger.session(store=store, user_id="bob")
    ask(other, "Where does she live?")
    assert other.messages[2].text == "nothing is known about that"


def test_a_memory_is_updated_and_does_not_pile_up(store: Store, ask: Ask) -> None:
    memory = Memory(store=store)
    model = RecordingScript(
        call("save_memory", {"text": "Alice likes green tea"}), "1",
        call("save_memory", {"text": "Alice likes green tea."}), "2",
    )  # fmt: skip
    session = Agent(provider="scripted", script=model, memory=memory).session(store=store, user_id="alice")
    ask(session, "I like green tea")
    ask(session, "As I said, green tea")
    assert [each.text for each in memory.list(user_id="alice")] == ["Alice likes green tea."]


def test_memory_of_a_session_is_there_in_the_next_one(store: Store, ask: Ask) -> None:
    memory = Memory(service=VectorMemoryService(), store=store)
    first = Session(store=store, user_id="alice")
    first.add_messages([Message.user("My name is Alice and I am allergic to peanuts."), Message.assistant("Noted.")])
    kept = memory.for_user("alice").ingest_from_session(first)
    assert kept
    assert {each.source.session_id for each in kept if each.source is not None} == {first.id}
    model = RecordingScript("Without peanuts.")
    agent = Agent(provider="scripted", script=model, memory=memory)
    ask(agent.session(store=store, user_id="alice"), "Which cake without peanuts?")
    assert "peanuts" in read_memories(model)[0]


def test_every_agent_of_a_flow_may_have_a_memory(store: Store, ask: Ask) -> None:
    memory = Memory(store=store)
    memory.store("style", "Alice wants short sentences", user_id="alice")
    writer, reviewer = RecordingScript("draft"), RecordingScript("fine")
    flow = SequentialAgent([
        Agent(provider="scripted", script=writer, name="writer", memory=memory),
        Agent(provider="scripted", script=reviewer, name="reviewer"),
    ])  # fmt: skip
    ask(Session(store=store, user_id="alice"), "Write short sentences about bees", agent=flow)
    assert "short sentences" in read_memories(writer)[0]
    assert read_memories(reviewer) == []


def test_the_tools_of_a_memory_stand_beside_the_facts_tool_and_yield_to_an_own_tool() -> None:
    @tool
    def save_memory(text: str) -> str:
        """Save it elsewhere."""
        return text

    memory = Memory(store=MemoryStore())
    agent = Agent(provider="echo", tools=[remember], memory=memory)
    assert set(agent.tools) == {"remember", "save_memory", "search_memory"}
    assert agent.tools["remember"] is remember
    assert Agent(provider="echo", tools=[save_memory], memory=memory).tools["save_memory"] is save_memory
