"""Section 9 of the promises: what a redaction reaches. A canary goes through every kind of event that a turn writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Interrupt, Memory, Message, Session, ToolContext, interrupt, tool
from holdfast.errors import AgentError, Conflict, SessionHeld, TurnOpen
from holdfast.flow import ParallelAgent, Router, SequentialAgent
from holdfast.log.events import VERSIONS, Draft, Event
from holdfast.session.compliance import Redacted
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.erasure import plan_redaction
from holdfast.stores.messages import blobs_of_event
from holdfast.testing import call, error
from holdfast.tools import remember
from tests.kit.postgres import PostgresServer
from tests.kit.stores import open_store

CANARY = "zebra-4711-canary"
QUESTION_TYPES = ("message.added", "message.queued")
CARD = {"type": "object", "properties": {"card": {"type": "string"}}, "required": ["card"]}


@tool
def look_up(name: str) -> str:
    """Look a card up."""
    return f"the card {name} is valid"


@tool(approval="always")
def pay(card: str, cents: int) -> str:
    """Pay."""
    return json.dumps({"paid": card, "cents": cents})


@tool
def note(text: str, ctx: ToolContext) -> str:
    """Keep a note in the state."""
    ctx.state.set("notes", [{"text": text}])
    return "kept"


@tool
def entitle(title: str, ctx: ToolContext) -> str:
    """Give the session a title."""
    Session.open(ctx.session.id, store=ctx.session.store).title = title
    return "done"


@tool(max_result_bytes=128)
def read_page(name: str) -> str:
    """Read a page."""
    return "nothing of note. " * 20 + name


@tool
def ask_for_card() -> str:
    """Ask a person for a card."""
    return f"the card is {interrupt('Which card?')['card']}"


@tool
def ask_person(card: str, ctx: ToolContext) -> str:
    """Ask a person."""
    if not ctx.state.get("asked"):
        ctx.state.set("asked", True)
        raise Interrupt({"question": f"May I use {card}?", "card": card})
    return f"yes, use {card}"


def make_agent(*script: Any, **options: Any) -> Agent:
    return Agent(provider="scripted", script=list(script), max_retries=0, **options)


# -- scenes: the canary comes with the question, and the turn repeats it ----------------------------------------------


def make_question(text: str = f"My card is {CANARY}.") -> Message:
    return Message.user(text)


def run_tools(store: Store, id: str) -> Session:
    agent = make_agent(call("look_up", {"name": CANARY}), f"I used {CANARY}", tools=[look_up], output_key="draft")
    session = agent.session(id, store=store)
    session.run(make_question(), metadata={"card": CANARY})
    return session


def run_approval(store: Store, id: str) -> Session:
    agent = make_agent(call("pay", {"card": CANARY, "cents": 5}), CANARY, tools=[pay])
    session = agent.session(id, store=store)
    session.run(make_question())
    session.approve(session.pending[0].call_id)
    session.resume()
    return session


def run_denial(store: Store, id: str) -> Session:
    session = make_agent(call("pay", {"card": "mine", "cents": 5}), CANARY, tools=[pay]).session(id, store=store)
    session.run("Pay.")
    session.deny(session.pending[0].call_id, f"{CANARY} is blocked")
    session.resume()
    return session


def run_edited_call(store: Store, id: str) -> Session:
    session = make_agent(call("pay", {"card": "mine", "cents": 5}), CANARY, tools=[pay]).session(id, store=store)
    session.run("Pay.")
    session.approve(session.pending[0].call_id, arguments={"card": CANARY, "cents": 6})
    session.resume()
    return session


def run_answer(store: Store, id: str) -> Session:
    session = make_agent(call("ask_for_card", {}), CANARY, tools=[ask_for_card]).session(id, store=store)
    session.run("Pay.")
    session.answer(session.pending[0].call_id, {"card": CANARY})
    session.resume()
    return session


def run_interrupt(store: Store, id: str) -> Session:
    session = make_agent(call("ask_person", {"card": CANARY}), CANARY, tools=[ask_person]).session(id, store=store)
    session.run(make_question())
    session.approve(session.pending[0].call_id)
    session.resume()
    return session


def run_handoff(store: Store, id: str) -> Session:
    billing = make_agent(f"I am told of {CANARY}", name="billing", output_key="bill")
    triage = make_agent(call("transfer_to_billing", {"reason": CANARY}), name="triage", handoffs=[billing])
    session = triage.session(id, store=store)
    session.run(make_question())
    return session


def run_agent_as_tool(store: Store, id: str) -> Session:
    helper = make_agent(call("look_up", {"name": CANARY}), f"The helper says {CANARY}", name="helper", tools=[look_up])
    session = make_agent(call("helper", {"request": CANARY}), CANARY, tools=[helper.as_tool()]).session(id, store=store)
    session.run(make_question())
    return session


def run_rejected_output(store: Store, id: str) -> Session:
    bad = [json.dumps({"card": [CANARY]}), f'```json\n{{"card": ["{CANARY}", 1]}}\n```']
    agent = make_agent(*bad, json.dumps({"card": CANARY}), output_key="card", output_schema=CARD)
    session = agent.session(id, store=store)
    session.run(make_question())
    return session


def run_unaccepted_output(store: Store, id: str) -> Session:
    session = make_agent(*[json.dumps({"card": [CANARY, n]}) for n in range(4)], output_schema=CARD).session(
        id, store=store
    )
    with pytest.raises(AgentError):
        session.run(make_question())
    return session


def run_failure(store: Store, id: str) -> Session:
    agent = make_agent(call("look_up", {"name": CANARY}), error(f"cannot read {CANARY}"), tools=[look_up])
    session = agent.session(id, store=store)
    with pytest.raises(AgentError):
        session.run(make_question())
    return session


def run_retry(store: Store, id: str) -> Session:
    agent = make_agent(call("look_up", {"name": CANARY}), error("away"), CANARY, tools=[look_up], output_key="draft")
    session = agent.session(id, store=store)
    with pytest.raises(AgentError):
        session.run(make_question())
    session.add_message(Message.user("Try again."))
    session.retry()
    return session


def run_notes(store: Store, id: str) -> Session:
    agent = make_agent(
        [call("note", {"text": CANARY}), call("remember", {"text": f"The card is {CANARY}"})],
        "noted",
        "fine",
        tools=[note, remember],
    )
    session = agent.session(id, store=store)
    session.run(make_question())
    (fact,) = session.facts.all()
    session.facts.update(fact.id, status="done")
    session.run("And now?")  # its stored prompt has the fact
    return session


def run_title(store: Store, id: str) -> Session:
    session = make_agent(call("entitle", {"title": f"About {CANARY}"}), "done", tools=[entitle]).session(
        id, store=store
    )
    session.run(make_question(f"About {CANARY}"))
    return session


def run_long_result(store: Store, id: str) -> Session:
    session = make_agent(call("read_page", {"name": CANARY}), "a page", tools=[read_page]).session(id, store=store)
    session.run(make_question())
    return session


def run_summary(store: Store, id: str) -> Session:
    """The summary covers the answer, and not the question."""
    session = run_tools(store, id)
    session.add_messages([Message.user(f"more {n}") for n in range(6)])
    asked = session.messages[0].seq

    def keep_question(messages: list[Message]) -> list[Message]:
        return [message for message in messages if message.seq == asked or message.text.startswith("more")]

    session.prune(keep_question)
    session.undo_prune()
    session.prune("summarize_old", threshold=5)
    return session


def run_numbers(store: Store, id: str) -> Session:
    @tool
    def charge(number: int) -> int:
        """Charge a card by its number."""
        return number

    agent = make_agent(call("charge", {"number": 4711081547110815}), "done", tools=[charge])
    session = agent.session(id, store=store)
    session.run(make_question(f"Charge 4711081547110815, it is {CANARY}."))
    return session


def run_cancelled_stream(store: Store, id: str) -> Session:
    agent = make_agent(call("look_up", {"name": CANARY}), f"{CANARY} is the card. " * 9, tools=[look_up])
    session = agent.session(id, store=store)
    events = session.stream(make_question())
    next(event for event in events if event.type == "text_delta")
    events.close()  # type: ignore[attr-defined]
    return session


def run_extract(store: Store, id: str) -> Session:
    agent = make_agent(CANARY, extract=lambda response: {"facts": [f"It is {response.text}"], "card": response.text})
    session = agent.session(id, store=store)
    session.run(make_question())
    return session


def run_parallel(store: Store, id: str) -> Session:
    views = [
        make_agent(call("look_up", {"name": CANARY}, id="one"), "1", name="a", tools=[look_up], output_key="a"),
        make_agent(call("pay", {"card": CANARY, "cents": 7}, id="two"), CANARY, name="b", tools=[pay]),
        make_agent(error(f"cannot read {CANARY}"), name="c"),
    ]
    flow = SequentialAgent(
        [
            ParallelAgent(views, on_error="collect"),
            Router([make_agent(error(f"nor {CANARY}"), name="d"), make_agent(CANARY, name="e")]),
        ]
    )
    session = Session(id, store=store)
    session.run(make_question(), agent=flow)
    session.approve(session.pending[0].call_id)
    session.resume(flow)
    return session


Scene = Callable[[Store, str], Session]
SCENES: list[Scene] = [
    run_tools, run_approval, run_denial, run_edited_call, run_answer, run_interrupt, run_handoff, run_agent_as_tool,
    run_rejected_output, run_unaccepted_output, run_failure, run_retry, run_notes, run_title, run_long_result,
    run_summary, run_numbers,
]  # fmt: skip
LOCAL_SCENES: list[Scene] = [run_cancelled_stream, run_extract, run_parallel]
# Types of events that no turn writes with a text of the conversation.
TEXTLESS = {
    "session.created", "session.forked", "session.imported", "session.paused", "session.resumed", "session.closed",
    "session.archived", "session.reopened", "session.held", "session.released", "session.erased", "session.restored",
    "event.redacted",
    "retention.set", "message.queued", "run.dropped", "state.deleted", "fact.removed", "view.cleared", "view.rewound",
    "view.restored", "view.pruned", "view.compacted", "view.unpruned", "turn.finished", "turn.interrupted",
    "turn.waiting", "turn.resumed", "turn.reopened", "turn.parked", "model.called", "model.interrupted",
    "agent.started", "agent.finished", "agent.assigned", "loop.ended", "entity.created", "memory.stored",
    "memory.forgotten", "memory.ingested", "sweep.planned", "sweep.finished",
}  # fmt: skip


def holds_canary(store: Store, session: Session, event: Event) -> bool:
    """Whether the payload of an event has the canary, or bytes that it names."""
    blobs = [store.blob_of_number(session.log.number, digest) for digest in blobs_of_event(event)]
    return any(CANARY.encode() in (data or b"") for data in (json.dumps(event.data).encode(), *blobs))


def find_canaries(store: Store, session: Session) -> list[Event]:
    """The events of the first turn that have the canary."""
    found = session.events(limit=None)
    run = next(event.run for event in found if event.type == "turn.started")
    end = max(event.seq for event in found if event.run == run)
    return [event for event in found if event.seq <= end and holds_canary(store, session, event)]


def redact_message(session: Session, number: int = 0) -> Redacted:
    seq = session.messages[number].seq
    assert seq is not None
    return session.redact(seq, reason="a slip")


def check_sound(store: Store, session: Session) -> None:
    """The chain and the folds hold, in an import of its export too."""
    assert session.verify()
    assert store.rebuild_view(session.log) == store.view(session.log)
    copy = Session.import_(session.export(), session_id=f"{session.id}-copy", store=store)
    assert copy.verify()
    assert [message.text for message in copy.messages] == [message.text for message in session.messages]
    assert store.delete(copy.id)


def check_every_origin(store: Store, scene: Scene) -> None:
    """Whichever event is redacted: nothing that its turn says later has the canary."""
    count = len(find_canaries(store, scene(store, "0")))
    assert count
    for number in range(count):
        session = scene(store, f"s{number}")
        canaries = find_canaries(store, session)
        event = canaries[number]
        before = [each.seq for each in session.events(limit=None)]
        done = session.redact(event.seq, reason="a slip")
        events = session.events(limit=None)
        assert [each.seq for each in events if each.erased] == sorted([event.seq, *done.also])
        assert [each.seq for each in events] == [*before, before[-1] + 1]
        left = [each for each in find_canaries(store, session) if each.seq > event.seq]
        assert left == [], f"after event {event.seq} ({event.type})"
        check_sound(store, session)


def check_nothing_left(store: Store, scene: Scene) -> None:
    """The event that brought the canary takes everything along: in this session, and in those that it called."""
    session = scene(store, "s")
    first = next(event for event in find_canaries(store, session) if event.type != "turn.started")
    assert not first.erased
    session.redact(first.seq, reason="a slip")
    for name in store.list_sessions():
        each = Session.open(name, store=store)
        assert [event.seq for event in each.events(limit=None) if holds_canary(store, each, event)] == []
    assert [found for found in Session.list(store=store) if CANARY in str(found.title)] == []
    shown = [session.export(), session.export("markdown"), session.brief(), str(session.context()), str(session.state)]
    assert [text for text in (*shown, str(session.facts.all()), json.dumps(session.to_dict())) if CANARY in text] == []
    if session.log.key is None:  # an encrypted session has no index
        assert session.search(CANARY) == []
    check_sound(store, session)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_nothing_that_a_turn_says_after_a_redacted_event_repeats_it(store: Store, scene: Scene) -> None:
    check_every_origin(store, scene)


@pytest.mark.parametrize("scene", LOCAL_SCENES, ids=lambda scene: scene.__name__)
def test_nothing_that_a_local_turn_says_after_a_redacted_event_repeats_it(store: Store, scene: Scene) -> None:
    check_every_origin(store, scene)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_redacted_question_is_gone_from_everything_that_shows_it(store: Store, scene: Scene) -> None:
    check_nothing_left(store, scene)


@pytest.mark.parametrize("scene", LOCAL_SCENES, ids=lambda scene: scene.__name__)
def test_a_redacted_question_of_a_local_turn_is_gone_from_everything_that_shows_it(store: Store, scene: Scene) -> None:
    check_nothing_left(store, scene)


def test_the_scenes_reach_every_type_of_event_with_a_text() -> None:
    found = set()
    for scene in (*SCENES, *LOCAL_SCENES):
        store = MemoryStore()
        session = scene(store, "s")
        found |= {event.type for event in session.events(limit=None) if holds_canary(store, session, event)}
    assert found - {"model.called"} == set(VERSIONS) - TEXTLESS


# -- where a text also stands ------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def sharing_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store whose forks share the past; in a store of documents a fork is a copy."""
    return open_store(request.param, request, tmp_path)


def test_what_forks_made_of_a_repetition_goes_too(sharing_store: Store) -> None:
    session = run_notes(sharing_store, "s")
    fork = session.fork("fork")
    (fact,) = fork.facts.all()
    fork.facts.update(fact.id, text=f"{CANARY} was the card")
    fork.run("And now?", agent=make_agent("fine"))
    fork.prune("summarize_old", threshold=1)
    redact_message(session)
    for each in (session, fork):
        assert each.facts.all() == []
        assert [event.seq for event in each.events(limit=None) if holds_canary(sharing_store, each, event)] == []
        check_sound(sharing_store, each)


def test_a_title_that_a_turn_took_from_a_text_goes_from_forks_too(sharing_store: Store) -> None:
    session = run_title(sharing_store, "s")
    fork = session.fork("fork")
    assert fork.title == f"About {CANARY}"
    redact_message(session)
    assert [each.title for each in (session, fork)] == [None, None]
    assert [info.title for info in Session.list(store=sharing_store)] == [None, None]


def test_memories_that_repeat_a_redacted_reply_go_too(store: Store) -> None:
    memory = Memory(store=store)
    saved = [call("save_memory", {"text": f"Pays with {CANARY}"}), call("save_memory", {"text": "Likes green tea"})]
    agent = make_agent(*saved, "noted", tools=memory.tools())
    session = agent.session(store=store, user_id="alice")
    session.run("Keep what you know of me.")
    assert len(memory.list(user_id="alice")) == 2
    session.redact(session.events(types="model.replied")[0].seq, reason="a slip")
    assert [found.text for found in memory.list(user_id="alice")] == ["Likes green tea"]


def test_short_arguments_go_by_the_id_of_their_call(store: Store) -> None:
    @tool(approval="always")
    def note_pin(pin: str) -> str:
        """Note a pin."""
        return "noted"

    for type in ("model.replied", "approval.requested", "approval.decided", "reply.edited", "tool.called"):
        session = make_agent(call("note_pin", {"pin": "~pq~"}), "done", tools=[note_pin]).session(store=store)
        session.run("Note it.")
        session.approve(session.pending[0].call_id, arguments={"pin": "~rs~"})
        session.resume()
        session.redact(session.events(types=type)[0].seq, reason="a slip")
        assert [pin for pin in ("~pq~", "~rs~") if pin in session.export()] == [], type


def test_the_reply_of_a_call_is_found_among_parallel_agents(store: Store) -> None:
    agents = [
        make_agent(call("pay", {"card": name, "cents": 5}, id=name), "paid", name=name, tools=[pay]) for name in "abc"
    ]
    session = Session(store=store)
    session.run("Pay.", agent=ParallelAgent(agents))
    for pending in session.pending:
        session.approve(pending.call_id)
    session.resume(ParallelAgent(agents))
    for event in session.events(types="tool.called"):
        done = session.redact(event.seq, reason="a slip")
        replies = [each for each in session.events(types="model.replied") if each.seq in done.also]
        assert [reply.author for reply in replies] == [event.data["call_id"]]
    assert session.verify()


def test_keys_of_a_state_value_are_texts_too(store: Store) -> None:
    @tool
    def count_card(card: str, ctx: ToolContext) -> str:
        """Count the uses of a card."""
        ctx.state.set("uses", {card: 1})
        return "counted"

    session = make_agent(call("count_card", {"card": CANARY}), "done", tools=[count_card]).session(store=store)
    session.run(make_question())
    redact_message(session)
    assert session.get_state("uses") is None
    assert CANARY not in session.export()


# -- what stays --------------------------------------------------------------------------------------------------------


def test_the_event_that_brought_a_text_stays_if_a_repetition_is_redacted(store: Store) -> None:
    session = run_tools(store, "s")
    session.redact(session.events(types="state.set")[0].seq, reason="a slip")
    assert session.get_state("draft") is None
    assert [message.text for message in session.messages if message.role != "tool"] == [
        f"My card is {CANARY}.", "", f"I used {CANARY}",
    ]  # fmt: skip


def test_a_text_that_only_shares_words_stays(store: Store) -> None:
    session = make_agent("Cards are valid for three years.", f"Which card, {CANARY}?").session(store=store)
    session.run("For how long are cards valid?")
    session.run(make_question())
    for number in (0, 2):
        assert redact_message(session, number).also == []
    assert [message.text for message in session.messages] == [
        "[erased]", "Cards are valid for three years.", "[erased]", f"Which card, {CANARY}?",
    ]  # fmt: skip


def test_a_repetition_in_another_turn_stays(store: Store) -> None:
    session = make_agent(CANARY, CANARY).session(store=store)
    session.run(CANARY)
    session.run(CANARY)
    done = redact_message(session)
    assert len(done.also) == 1
    assert [message.text for message in session.messages] == ["[erased]", "[erased]", CANARY, CANARY]


def test_other_calls_results_and_values_of_the_turn_stay(store: Store) -> None:
    script = [[call("look_up", {"name": CANARY}), call("look_up", {"name": "the other card"})], "Both are valid."]
    session = make_agent(*script, tools=[look_up], output_key="draft").session(store=store)
    session.run(make_question())
    redact_message(session)
    texts = sorted(message.text for message in session.messages)  # calls of one reply end in any order
    assert texts == ["Both are valid.", "[erased]", "[erased]", "[erased]", "the card the other card is valid"]
    assert session.get_state("draft") == "Both are valid."


def test_the_record_of_a_redaction_stays(store: Store) -> None:
    agent = make_agent(call("pay", {"card": CANARY, "cents": 5}), "paid", tools=[pay])
    session = agent.session(store=store, messages=[Message.user("an older text")])
    older = session.head
    session.run(make_question())
    session.redact(older, reason=CANARY)  # while the turn waits
    session.approve(session.pending[0].call_id)
    session.resume()
    redact_message(session, 1)
    assert [event.data.get("reason") for event in session.events(types="event.redacted")] == [CANARY, "a slip"]
    assert session.verify()


def test_what_a_tool_writes_in_an_open_turn_is_not_redacted_before_its_end(store: Store) -> None:
    session = make_agent(
        [call("note", {"text": CANARY}), call("pay", {"card": "mine", "cents": 5})], "paid", tools=[note, pay]
    ).session(store=store)
    session.run("Pay.")
    (state,) = session.events(types="state.set")
    with pytest.raises(TurnOpen):
        session.redact(state.seq, reason="a slip")
    session.approve(session.pending[0].call_id)
    session.resume()
    session.redact(state.seq, reason="a slip")
    assert session.get_state("notes") is None


def test_a_turn_that_is_reopened_after_the_plan_keeps_its_events(store: Store) -> None:
    session = run_failure(store, "s")
    seq, run = next((event.seq, event.run) for event in session.events() if event.type in QUESTION_TYPES)
    holder, burial = plan_redaction(store, session.log, seq)
    store.append(holder, [Draft(type="turn.reopened", run=run)])
    record = Draft(type="event.redacted", data={"seq": seq, "reason": "a slip", **burial.record_data(holder)})
    with pytest.raises(Conflict):
        store.apply_erasure(holder, [record], burial)
    with pytest.raises(TurnOpen):
        session.redact(seq, reason="a slip")


def test_a_held_session_keeps_what_repeats_a_text(store: Store) -> None:
    session = run_approval(store, "s")
    kept = [event.seq for event in find_canaries(store, session)]
    session.hold("case 42")
    with pytest.raises(SessionHeld):
        redact_message(session)
    assert [event.seq for event in find_canaries(store, session)] == kept


# -- files and tables --------------------------------------------------------------------------------------------------


def redact_scenes(store: Store) -> None:
    for scene in (*SCENES, *LOCAL_SCENES):
        check_nothing_left(store.for_tenant(scene.__name__), scene)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def key(request: pytest.FixtureRequest) -> bytes | None:
    return os.urandom(32) if request.param else None


def test_the_files_of_a_store_forget_what_repeats_a_text(tmp_path: Path, key: bytes | None) -> None:
    with SQLiteStore(tmp_path / "sessions.db", key=key) as store:
        run_tools(store, "kept")
    found = [path.name for path in tmp_path.iterdir() if CANARY.encode() in path.read_bytes()]
    assert bool(found) == (key is None)  # a plain file shows it, so this test can see it
    with SQLiteStore(tmp_path / "sessions.db", key=key) as store:
        store.delete("kept")
        redact_scenes(store)
    assert [path.name for path in tmp_path.iterdir() if CANARY.encode() in path.read_bytes()] == []


def test_the_tables_of_a_database_forget_what_repeats_a_text(
    postgres_server: PostgresServer, key: bytes | None
) -> None:
    with PostgresStore(postgres_server.database(), key=key) as store:
        run_tools(store, "kept")
        assert bool(rows_with_canary(store)) == (key is None)
        store.delete("kept")
        redact_scenes(store)
        assert rows_with_canary(store) == []


def rows_with_canary(store: PostgresStore) -> list[str]:
    tables = [name for (name,) in store.server.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")]
    return [
        table
        for table in tables
        for row in store.server.fetch(f"SELECT * FROM holdfast.{table}")
        if any(CANARY.encode() in (each if isinstance(each, bytes) else str(each).encode()) for each in row)
    ]
