"""Runs in the background, without HTTP: admitted to the log, run by threads, in order, by one process at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Agent, Message, Session, tool
from holdfast.errors import KeyReused, LifecycleError, MissingState, QueueFull, SessionBusy, StoreUnavailable
from holdfast.log.view import decode_view
from holdfast.stores.base import Log, Store, TenantLog
from holdfast.stores.lease import Claim, encode_holder
from holdfast.testing import call
from holdfast.turn.run_outcome import outcome_of, recent_runs
from holdfast.worker.admission import RunRequest, admit_message
from holdfast.worker.run_pool import Responder, RunPool


class NullListener:
    def publish_delta(self, *_: Any) -> None: ...
    def notify_append(self, log: Log) -> None: ...


class AgentHost:
    """A store with agents, and what runs there."""

    def __init__(self, store: Store, **agents: Agent) -> None:
        self.store, self.agents = store, agents
        self.runs = RunPool(store, self.make_responder, NullListener(), threads=4, look_every=0.05)

    def make_responder(self, store: Store, log: Log, agent: str | None) -> Responder:
        from holdfast.errors import NotFound

        if agent not in self.agents:
            raise NotFound("agent", str(agent))
        found = self.agents[agent]
        return Responder(found.plan(), Session.on_log(store, log, found))

    def ask(self, session: Session, text: str, agent: str = "a", **options: Any) -> str:
        admitted = admit_message(
            self.store, session.log, RunRequest(message=Message.user(text), agent=agent, **options)
        )
        self.runs.schedule_session(TenantLog("", session.log))
        return admitted.run_id

    def wait_for_end(self, session: Session, run: str, *, waits: bool = False) -> Any:
        for _ in range(1000):
            outcome = outcome_of(self.store, session.log, run)
            assert outcome is not None
            if outcome.over or (waits and outcome.status == "waiting"):
                return outcome
            time.sleep(0.01)
        raise AssertionError(f"run {run} is still {outcome.status}")


@pytest.fixture
def agent_host(store: Store) -> Iterator[AgentHost]:
    agent_host = AgentHost(
        store, a=Agent(provider="scripted", script=lambda request: f"heard {request.messages[-1].text}")
    )
    yield agent_host
    agent_host.runs.stop(0)


def test_a_message_is_answered_and_stands_in_the_history_once(agent_host: AgentHost) -> None:
    agent_host.runs.open()
    session = Session("s", store=agent_host.store)
    outcome = agent_host.wait_for_end(session, agent_host.ask(session, "hello"))
    assert (outcome.status, outcome.response.text, outcome.agent) == ("finished", "heard hello", "a")
    assert [(m.role, m.text) for m in session.messages] == [("user", "hello"), ("assistant", "heard hello")]
    assert session.verify()
    assert not decode_view(agent_host.store.head(session.log).view).queue
    assert agent_host.store.logs_with_queued_runs() == []


def test_messages_are_answered_in_the_order_in_which_they_came(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    runs = [agent_host.ask(session, f"m{n}") for n in range(6)]
    assert [due.log.id for due in agent_host.store.logs_with_queued_runs()] == ["s"]
    assert [run.status for run in recent_runs(agent_host.store, session.log, 10)] == ["queued"] * 6
    assert session.messages == []  # a queued message is not in the conversation yet
    agent_host.runs.open()
    for run in runs:
        agent_host.wait_for_end(session, run)
    texts = [m.text for m in session.messages]
    assert texts == [text for n in range(6) for text in (f"m{n}", f"heard m{n}")]
    assert [run.run_id for run in recent_runs(agent_host.store, session.log, 10)] == runs[::-1]


def test_what_arrives_while_a_turn_runs_stands_after_it(agent_host: AgentHost) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(request: Any) -> str:
        entered.set()
        go.wait(10)
        return "slow"

    agent_host.agents["slow"] = Agent(provider="scripted", script=slow)
    agent_host.runs.open()
    session = Session("s", store=agent_host.store)
    first = agent_host.ask(session, "one", "slow")
    assert entered.wait(10)
    second = agent_host.ask(session, "two")
    session.add_message(Message.user("aside"))
    go.set()
    agent_host.wait_for_end(session, first)
    agent_host.wait_for_end(session, second)
    assert [m.text for m in session.messages] == ["one", "slow", "aside", "two", "heard two"]
    rebuilt = agent_host.store.view(session.log, session.head)
    assert rebuilt.to_bytes() == agent_host.store.head(session.log).view


def test_the_same_key_admits_once_and_other_content_is_refused(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    one = admit_message(agent_host.store, session.log, RunRequest(message=Message.user("x"), agent="a", once="k"))
    two = admit_message(agent_host.store, session.log, RunRequest(message=Message.user("x"), agent="a", once="k"))
    assert (one.run_id, one.seq, two.repeated) == (two.run_id, two.seq, True)
    with pytest.raises(KeyReused):
        admit_message(agent_host.store, session.log, RunRequest(message=Message.user("y"), agent="a", once="k"))
    assert len(decode_view(agent_host.store.head(session.log).view).queue) == 1


def test_reject_means_not_while_anything_is_queued(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    admit_message(agent_host.store, session.log, RunRequest(message=Message.user("x"), agent="a", on_busy="reject"))
    with pytest.raises(SessionBusy):
        admit_message(agent_host.store, session.log, RunRequest(message=Message.user("y"), agent="a", on_busy="reject"))


def test_the_queue_of_a_session_is_bounded(agent_host: AgentHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.log.view.MAX_QUEUE", 3)
    session = Session("s", store=agent_host.store)
    for n in range(3):
        admit_message(agent_host.store, session.log, RunRequest(message=Message.user(str(n)), agent="a"))
    with pytest.raises(QueueFull):
        admit_message(agent_host.store, session.log, RunRequest(message=Message.user("3"), agent="a"))


def test_a_closed_session_takes_no_message(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    session.close()
    with pytest.raises(LifecycleError):
        admit_message(agent_host.store, session.log, RunRequest(message=Message.user("x"), agent="a"))


def test_a_queued_run_can_be_cancelled_and_is_never_run(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    first, second = agent_host.ask(session, "one"), agent_host.ask(session, "two")
    assert agent_host.runs.cancel(agent_host.store, session.log, first, actor="me")
    agent_host.runs.open()
    agent_host.wait_for_end(session, second)
    assert agent_host.wait_for_end(session, first).status == "cancelled"
    assert [m.text for m in session.messages] == ["two", "heard two"]
    assert not agent_host.runs.cancel(agent_host.store, session.log, second)


@pytest.mark.parametrize("where", ["model", "tool"])
def test_a_run_under_way_is_cancelled_at_once_even_if_it_hangs(agent_host: AgentHost, where: str) -> None:
    entered, go = threading.Event(), threading.Event()

    @tool
    def hang() -> str:
        """Hang."""
        entered.set()
        go.wait(30)
        return "done"

    def silent(request: Any) -> str:
        entered.set()
        go.wait(30)
        return "late"

    script: Any = silent if where == "model" else [call("hang", {}), "never"]
    agent_host.agents["h"] = Agent(provider="scripted", script=script, tools=[hang])
    agent_host.runs.open()
    session = Session("s", store=agent_host.store)
    run = agent_host.ask(session, "one", "h")
    assert entered.wait(10)
    assert agent_host.runs.cancel(agent_host.store, session.log, run)
    assert agent_host.wait_for_end(session, run).status == "cancelled"
    assert agent_host.store.lease(session.log) is None
    go.set()  # what the turn says now is refused
    after = agent_host.ask(session, "two")
    assert agent_host.wait_for_end(session, after).response.text == "heard two"
    assert [m.text for m in session.messages] == ["two", "heard two"]
    assert session.verify()


def test_an_interrupting_message_goes_before_those_that_wait(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    first = agent_host.ask(session, "one")
    agent_host.ask(session, "two", on_busy="interrupt")
    agent_host.runs.open()
    agent_host.wait_for_end(session, first)
    assert [m.text for m in session.messages if m.role == "user"] == ["two", "one"]


def test_a_run_that_cannot_begin_says_why_and_lets_the_next_one_pass(agent_host: AgentHost) -> None:
    agent_host.agents["b"] = Agent(provider="scripted", script=["x"], instructions="{missing}")
    agent_host.runs.open()
    session = Session("s", store=agent_host.store)
    runs = [
        agent_host.ask(session, "one", "b"),
        agent_host.ask(session, "two", "nobody"),
        agent_host.ask(session, "three"),
    ]
    outcomes = [agent_host.wait_for_end(session, run) for run in runs]
    assert [o.status for o in outcomes] == ["failed", "failed", "finished"]
    assert [o.error and o.error["code"] for o in outcomes] == ["missing_state", "not_found", None]
    assert [m.text for m in session.messages] == ["three", "heard three"]


def test_a_turn_that_waits_for_a_person_keeps_the_rest_waiting(agent_host: AgentHost) -> None:
    @tool(approval="always")
    def charge(cents: int) -> str:
        """Charge."""
        return f"charged {cents}"

    agent_host.agents["c"] = Agent(provider="scripted", script=[call("charge", {"cents": 5}), "ok"], tools=[charge])
    agent_host.runs.open()
    session = Session("s", store=agent_host.store)
    first, second = agent_host.ask(session, "buy", "c"), agent_host.ask(session, "then")
    waiting = agent_host.wait_for_end(session, first, waits=True)
    assert (waiting.status, waiting.response.pending[0].name) == ("waiting", "charge")
    time.sleep(0.3)
    assert outcome_of(agent_host.store, session.log, second).status == "queued"
    session.approve(waiting.response.pending[0].call_id)
    agent_host.runs.reopen_turn(agent_host.store, session.log, None)
    agent_host.runs.schedule_session(TenantLog("", session.log))
    assert agent_host.wait_for_end(session, first).response.text == "ok"
    assert agent_host.wait_for_end(session, second).response.text == "heard then"


@pytest.mark.parametrize("begins", ["before the other looks", "after the other looked"])
def test_a_run_whose_process_died_is_taken_up_by_another(durable_store: Store, begins: str) -> None:
    """The lease of a holder that is gone is free, and the queue names the run. A turn that began since the queue was
    read is resumed as well: it is not closed as interrupted, and not run twice."""
    store = durable_store
    agent_host = AgentHost(store, a=Agent(provider="scripted", script=lambda request: "answered"))
    session = Session("s", store=store)
    admitted = admit_message(store, session.log, RunRequest(message=Message.user("q"), agent="a"))
    dead = encode_holder("somebody").replace(b'"pid":', b'"pid":9')  # a process that is not there
    from holdfast.log.events import Draft

    started = Draft(
        type="turn.started", run=admitted.run_id, data={"agent": "a", "options": {}, "question": admitted.seq}
    )
    make_responder = agent_host.make_responder

    def begin_and_die(*args: Any) -> Responder:
        agent_host.runs._responder_for = make_responder
        store.append(session.log, [started], claim=Claim(holder=dead, seconds=60))
        return make_responder(*args)

    if begins == "before the other looks":
        store.append(session.log, [started], claim=Claim(holder=dead, seconds=60))
    else:
        agent_host.runs._responder_for = begin_and_die
    agent_host.runs.open()
    outcome = agent_host.wait_for_end(session, admitted.run_id)
    assert (outcome.status, outcome.response.text, agent_host.runs.takeovers) == ("finished", "answered", 1)
    assert [m.text for m in session.messages] == ["q", "answered"]
    agent_host.runs.stop(0)


def test_what_is_not_finished_when_the_process_stops_is_left_to_others(durable_store: Store) -> None:
    entered, go = threading.Event(), threading.Event()

    def hang(request: Any) -> str:
        entered.set()
        go.wait(30)
        return "late"

    store = durable_store
    one = AgentHost(store, a=Agent(provider="scripted", script=hang))
    one.runs.open()
    session = Session("s", store=store)
    run = one.ask(session, "q")
    assert entered.wait(10)
    assert one.runs.stop(0.05) == 1
    other = AgentHost(store, a=Agent(provider="scripted", script=["quick"]))
    other.runs.open()
    assert other.wait_for_end(session, run).response.text == "quick"
    go.set()
    other.runs.stop(0)
    assert [m.text for m in session.messages] == ["q", "quick"]


def test_tenants_take_turns(durable_store: Store) -> None:
    order: list[str] = []
    store = durable_store
    agent_host = AgentHost(
        store, a=Agent(provider="scripted", script=lambda request: order.append(request.messages[-1].text) or "ok")
    )
    agent_host.runs._threads = 1
    for tenant, count in (("big", 6), ("small", 2)):
        bound = store.for_tenant(tenant)
        for n in range(count):
            session = Session(f"s{n}", store=bound)
            admit_message(bound, session.log, RunRequest(message=Message.user(f"{tenant}{n}"), agent="a"))
            agent_host.runs.schedule_session(TenantLog(tenant, session.log))
    agent_host.runs.open()
    for _ in range(500):
        if len(order) == 8:
            break
        time.sleep(0.01)
    assert order[:4] == ["big0", "small0", "big1", "small1"]
    agent_host.runs.stop(1)


def test_a_fork_and_an_import_leave_the_queue_behind(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    session.add_message(Message.user("before"))
    agent_host.ask(session, "queued")
    fork = session.fork("f")
    assert [m.text for m in fork.messages] == ["before"]
    copy = Session.import_(session.export(), session_id="copy", store=agent_host.store)
    assert [m.text for m in copy.messages] == ["before"]
    assert [due.log.id for due in agent_host.store.logs_with_queued_runs()] == ["s"]


# -- admitted and run in one append -----------------------------------------------------------------------------------


def admit_and_run(agent_host: AgentHost, session: Session, text: str, **options: Any) -> Any:
    head = agent_host.store.head(session.log)
    return agent_host.runs.admit_and_run(
        agent_host.store, session.log, head, RunRequest(message=Message.user(text), agent="a", **options)
    )


def test_a_free_session_takes_a_message_and_runs_it_in_two_commits(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    response = admit_and_run(agent_host, session, "hello", once="k")
    assert (response.text, [m.seq for m in response.messages]) == ("heard hello", [2, 5])
    types = [event.type for event in session.events()]
    assert types[1:] == ["message.queued", "turn.started", "model.called", "model.replied", "turn.finished"]
    assert [m.text for m in session.messages] == ["hello", "heard hello"]
    assert agent_host.store.logs_with_queued_runs() == []
    again = admit_and_run(agent_host, session, "hello", once="k")  # the key finds what it admitted
    assert (again.run_id, again.repeated) == (response.run_id, True)
    with pytest.raises(KeyReused):
        admit_and_run(agent_host, session, "other", once="k")
    outcome = outcome_of(agent_host.store, session.log, response.run_id)
    assert outcome is not None
    assert outcome.response.messages == response.messages
    assert [(m.seq, m.created_at) for m in outcome.response.messages] == [
        (m.seq, m.created_at) for m in response.messages
    ]


def test_a_message_for_a_session_that_has_moved_is_only_admitted(agent_host: AgentHost) -> None:
    session = Session("s", store=agent_host.store)
    head = agent_host.store.head(session.log)
    session.set_state("x", 1)
    found = agent_host.runs.admit_and_run(
        agent_host.store, session.log, head, RunRequest(message=Message.user("q"), agent="a")
    )
    assert not hasattr(found, "text")
    agent_host.runs.schedule_session(TenantLog("", session.log))
    agent_host.runs.open()
    assert agent_host.wait_for_end(session, found.run_id).response.text == "heard q"  # type: ignore[union-attr]


def test_a_message_that_cannot_be_begun_leaves_nothing_behind(agent_host: AgentHost) -> None:
    agent_host.agents["a"] = Agent(provider="scripted", script=["x"], instructions="{missing}")
    session = Session("s", store=agent_host.store)
    with pytest.raises(MissingState):
        admit_and_run(agent_host, session, "q")
    assert (session.head, agent_host.store.logs_with_queued_runs()) == (1, [])


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_goes_on_when_the_store_is_back(durable_store: Store, number: int, when: str) -> None:
    """An append fails, or its answer is lost: at the first or the last of the turn, it is answered once."""
    store = durable_store
    agent_host = AgentHost(store, a=Agent(provider="scripted", script=lambda request: "answered"))
    session = Session("s", store=store)
    append, calls = store.append, 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != number:
            return append(*args, **kwargs)
        if when == "after":
            append(*args, **kwargs)
        raise StoreUnavailable("away for a moment")

    bound = store.for_tenant("")
    bound.append = failing  # type: ignore[method-assign]
    head = store.head(session.log)
    wanted = RunRequest(message=Message.user("q"), agent="a", once="k")
    try:
        found = agent_host.runs.admit_and_run(bound, session.log, head, wanted)
        run = found.run_id
    except StoreUnavailable:  # the client tries again with its key
        run = admit_message(store, session.log, wanted).run_id
    agent_host.runs.open()
    outcome = agent_host.wait_for_end(session, run)
    assert (outcome.status, outcome.response.text) == ("finished", "answered")
    assert [m.text for m in session.messages] == ["q", "answered"]
    agent_host.runs.stop(0)
