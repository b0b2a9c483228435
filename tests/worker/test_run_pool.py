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


class Silence:
    def publish_delta(self, *_: Any) -> None: ...
    def notify_append(self, log: Log) -> None: ...


class House:
    """A store with agents, and what runs there."""

    def __init__(self, store: Store, **agents: Agent) -> None:
        self.store, self.agents = store, agents
        self.runs = RunPool(store, self.cast, Silence(), threads=4, look_every=0.05)

    def cast(self, store: Store, log: Log, agent: str | None) -> Responder:
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

    def over(self, session: Session, run: str, *, waits: bool = False) -> Any:
        for _ in range(1000):
            outcome = outcome_of(self.store, session.log, run)
            assert outcome is not None
            if outcome.over or (waits and outcome.status == "waiting"):
                return outcome
            time.sleep(0.01)
        raise AssertionError(f"run {run} is still {outcome.status}")


@pytest.fixture
def house(store: Store) -> Iterator[House]:
    house = House(store, a=Agent(provider="scripted", script=lambda request: f"heard {request.messages[-1].text}"))
    yield house
    house.runs.stop(0)


def test_a_message_is_answered_and_stands_in_the_history_once(house: House) -> None:
    house.runs.open()
    session = Session("s", store=house.store)
    outcome = house.over(session, house.ask(session, "hello"))
    assert (outcome.status, outcome.response.text, outcome.agent) == ("finished", "heard hello", "a")
    assert [(m.role, m.text) for m in session.messages] == [("user", "hello"), ("assistant", "heard hello")]
    assert session.verify()
    assert not decode_view(house.store.head(session.log).view).queue
    assert house.store.logs_with_queued_runs() == []


def test_messages_are_answered_in_the_order_in_which_they_came(house: House) -> None:
    session = Session("s", store=house.store)
    runs = [house.ask(session, f"m{n}") for n in range(6)]
    assert [due.log.id for due in house.store.logs_with_queued_runs()] == ["s"]
    assert [run.status for run in recent_runs(house.store, session.log, 10)] == ["queued"] * 6
    assert session.messages == []  # a queued message is not in the conversation yet
    house.runs.open()
    for run in runs:
        house.over(session, run)
    texts = [m.text for m in session.messages]
    assert texts == [text for n in range(6) for text in (f"m{n}", f"heard m{n}")]
    assert [run.run_id for run in recent_runs(house.store, session.log, 10)] == runs[::-1]


def test_what_arrives_while_a_turn_runs_stands_after_it(house: House) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(request: Any) -> str:
        entered.set()
        go.wait(10)
        return "slow"

    house.agents["slow"] = Agent(provider="scripted", script=slow)
    house.runs.open()
    session = Session("s", store=house.store)
    first = house.ask(session, "one", "slow")
    assert entered.wait(10)
    second = house.ask(session, "two")
    session.add_message(Message.user("aside"))
    go.set()
    house.over(session, first)
    house.over(session, second)
    assert [m.text for m in session.messages] == ["one", "slow", "aside", "two", "heard two"]
    rebuilt = house.store.view(session.log, session.head)
    assert rebuilt.to_bytes() == house.store.head(session.log).view


def test_the_same_key_admits_once_and_other_content_is_refused(house: House) -> None:
    session = Session("s", store=house.store)
    one = admit_message(house.store, session.log, RunRequest(message=Message.user("x"), agent="a", once="k"))
    two = admit_message(house.store, session.log, RunRequest(message=Message.user("x"), agent="a", once="k"))
    assert (one.run_id, one.seq, two.repeated) == (two.run_id, two.seq, True)
    with pytest.raises(KeyReused):
        admit_message(house.store, session.log, RunRequest(message=Message.user("y"), agent="a", once="k"))
    assert len(decode_view(house.store.head(session.log).view).queue) == 1


def test_reject_means_not_while_anything_is_queued(house: House) -> None:
    session = Session("s", store=house.store)
    admit_message(house.store, session.log, RunRequest(message=Message.user("x"), agent="a", on_busy="reject"))
    with pytest.raises(SessionBusy):
        admit_message(house.store, session.log, RunRequest(message=Message.user("y"), agent="a", on_busy="reject"))


def test_the_queue_of_a_session_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.log.view.MAX_QUEUE", 3)
    session = Session("s", store=house.store)
    for n in range(3):
        admit_message(house.store, session.log, RunRequest(message=Message.user(str(n)), agent="a"))
    with pytest.raises(QueueFull):
        admit_message(house.store, session.log, RunRequest(message=Message.user("3"), agent="a"))


def test_a_closed_session_takes_no_message(house: House) -> None:
    session = Session("s", store=house.store)
    session.close()
    with pytest.raises(LifecycleError):
        admit_message(house.store, session.log, RunRequest(message=Message.user("x"), agent="a"))


def test_a_queued_run_can_be_cancelled_and_is_never_run(house: House) -> None:
    session = Session("s", store=house.store)
    first, second = house.ask(session, "one"), house.ask(session, "two")
    assert house.runs.cancel(house.store, session.log, first, actor="me")
    house.runs.open()
    house.over(session, second)
    assert house.over(session, first).status == "cancelled"
    assert [m.text for m in session.messages] == ["two", "heard two"]
    assert not house.runs.cancel(house.store, session.log, second)


@pytest.mark.parametrize("where", ["model", "tool"])
def test_a_run_under_way_is_cancelled_at_once_even_if_it_hangs(house: House, where: str) -> None:
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
    house.agents["h"] = Agent(provider="scripted", script=script, tools=[hang])
    house.runs.open()
    session = Session("s", store=house.store)
    run = house.ask(session, "one", "h")
    assert entered.wait(10)
    assert house.runs.cancel(house.store, session.log, run)
    assert house.over(session, run).status == "cancelled"
    assert house.store.lease(session.log) is None
    go.set()  # what the turn says now is refused
    after = house.ask(session, "two")
    assert house.over(session, after).response.text == "heard two"
    assert [m.text for m in session.messages] == ["two", "heard two"]
    assert session.verify()


def test_an_interrupting_message_goes_before_those_that_wait(house: House) -> None:
    session = Session("s", store=house.store)
    first = house.ask(session, "one")
    house.ask(session, "two", on_busy="interrupt")
    house.runs.open()
    house.over(session, first)
    assert [m.text for m in session.messages if m.role == "user"] == ["two", "one"]


def test_a_run_that_cannot_begin_says_why_and_lets_the_next_one_pass(house: House) -> None:
    house.agents["b"] = Agent(provider="scripted", script=["x"], instructions="{missing}")
    house.runs.open()
    session = Session("s", store=house.store)
    runs = [house.ask(session, "one", "b"), house.ask(session, "two", "nobody"), house.ask(session, "three")]
    outcomes = [house.over(session, run) for run in runs]
    assert [o.status for o in outcomes] == ["failed", "failed", "finished"]
    assert [o.error and o.error["code"] for o in outcomes] == ["missing_state", "not_found", None]
    assert [m.text for m in session.messages] == ["three", "heard three"]


def test_a_turn_that_waits_for_a_person_keeps_the_rest_waiting(house: House) -> None:
    @tool(approval="always")
    def charge(cents: int) -> str:
        """Charge."""
        return f"charged {cents}"

    house.agents["c"] = Agent(provider="scripted", script=[call("charge", {"cents": 5}), "ok"], tools=[charge])
    house.runs.open()
    session = Session("s", store=house.store)
    first, second = house.ask(session, "buy", "c"), house.ask(session, "then")
    waiting = house.over(session, first, waits=True)
    assert (waiting.status, waiting.response.pending[0].name) == ("waiting", "charge")
    time.sleep(0.3)
    assert outcome_of(house.store, session.log, second).status == "queued"
    session.approve(waiting.response.pending[0].call_id)
    house.runs.reopen_turn(house.store, session.log, None)
    house.runs.schedule_session(TenantLog("", session.log))
    assert house.over(session, first).response.text == "ok"
    assert house.over(session, second).response.text == "heard then"


def test_a_run_whose_process_died_is_taken_up_by_another(durable_store: Store) -> None:
    """The lease of a holder that is gone is free, and the queue names the run."""
    store = durable_store
    house = House(store, a=Agent(provider="scripted", script=lambda request: "answered"))
    session = Session("s", store=store)
    admitted = admit_message(store, session.log, RunRequest(message=Message.user("q"), agent="a"))
    dead = encode_holder("somebody").replace(b'"pid":', b'"pid":9')  # a process that is not there
    from holdfast.log.events import Draft

    started = Draft(
        type="turn.started", run=admitted.run_id, data={"agent": "a", "options": {}, "question": admitted.seq}
    )
    store.append(session.log, [started], claim=Claim(holder=dead, seconds=60))
    house.runs.open()
    outcome = house.over(session, admitted.run_id)
    assert (outcome.status, outcome.response.text, house.runs.takeovers) == ("finished", "answered", 1)
    assert [m.text for m in session.messages] == ["q", "answered"]
    house.runs.stop(0)


def test_what_is_not_finished_when_the_process_stops_is_left_to_others(durable_store: Store) -> None:
    entered, go = threading.Event(), threading.Event()

    def hang(request: Any) -> str:
        entered.set()
        go.wait(30)
        return "late"

    store = durable_store
    one = House(store, a=Agent(provider="scripted", script=hang))
    one.runs.open()
    session = Session("s", store=store)
    run = one.ask(session, "q")
    assert entered.wait(10)
    assert one.runs.stop(0.05) == 1
    other = House(store, a=Agent(provider="scripted", script=["quick"]))
    other.runs.open()
    assert other.over(session, run).response.text == "quick"
    go.set()
    other.runs.stop(0)
    assert [m.text for m in session.messages] == ["q", "quick"]


def test_tenants_take_turns(durable_store: Store) -> None:
    order: list[str] = []
    store = durable_store
    house = House(
        store, a=Agent(provider="scripted", script=lambda request: order.append(request.messages[-1].text) or "ok")
    )
    house.runs._threads = 1
    for tenant, count in (("big", 6), ("small", 2)):
        bound = store.for_tenant(tenant)
        for n in range(count):
            session = Session(f"s{n}", store=bound)
            admit_message(bound, session.log, RunRequest(message=Message.user(f"{tenant}{n}"), agent="a"))
            house.runs.schedule_session(TenantLog(tenant, session.log))
    house.runs.open()
    for _ in range(500):
        if len(order) == 8:
            break
        time.sleep(0.01)
    assert order[:4] == ["big0", "small0", "big1", "small1"]
    house.runs.stop(1)


def test_a_fork_and_an_import_leave_the_queue_behind(house: House) -> None:
    session = Session("s", store=house.store)
    session.add_message(Message.user("before"))
    house.ask(session, "queued")
    fork = session.fork("f")
    assert [m.text for m in fork.messages] == ["before"]
    copy = Session.import_(session.export(), session_id="copy", store=house.store)
    assert [m.text for m in copy.messages] == ["before"]
    assert [due.log.id for due in house.store.logs_with_queued_runs()] == ["s"]


# -- admitted and run in one append -----------------------------------------------------------------------------------


def asked(house: House, session: Session, text: str, **options: Any) -> Any:
    head = house.store.head(session.log)
    return house.runs.admit_and_run(
        house.store, session.log, head, RunRequest(message=Message.user(text), agent="a", **options)
    )


def test_a_free_session_takes_a_message_and_runs_it_in_two_commits(house: House) -> None:
    session = Session("s", store=house.store)
    response = asked(house, session, "hello", once="k")
    assert (response.text, [m.seq for m in response.messages]) == ("heard hello", [2, 5])
    types = [event.type for event in session.events()]
    assert types[1:] == ["message.queued", "turn.started", "model.called", "model.replied", "turn.finished"]
    assert [m.text for m in session.messages] == ["hello", "heard hello"]
    assert house.store.logs_with_queued_runs() == []
    again = asked(house, session, "hello", once="k")  # the key finds what it admitted
    assert (again.run_id, again.repeated) == (response.run_id, True)
    with pytest.raises(KeyReused):
        asked(house, session, "other", once="k")
    outcome = outcome_of(house.store, session.log, response.run_id)
    assert outcome is not None
    assert outcome.response.messages == response.messages
    assert [(m.seq, m.created_at) for m in outcome.response.messages] == [
        (m.seq, m.created_at) for m in response.messages
    ]


def test_a_message_for_a_session_that_moved_meanwhile_is_only_admitted(house: House) -> None:
    session = Session("s", store=house.store)
    head = house.store.head(session.log)
    session.set_state("x", 1)
    found = house.runs.admit_and_run(house.store, session.log, head, RunRequest(message=Message.user("q"), agent="a"))
    assert not hasattr(found, "text")
    house.runs.schedule_session(TenantLog("", session.log))
    house.runs.open()
    assert house.over(session, found.run_id).response.text == "heard q"  # type: ignore[union-attr]


def test_a_message_that_cannot_be_begun_leaves_nothing_behind(house: House) -> None:
    house.agents["a"] = Agent(provider="scripted", script=["x"], instructions="{missing}")
    session = Session("s", store=house.store)
    with pytest.raises(MissingState):
        asked(house, session, "q")
    assert (session.head, house.store.logs_with_queued_runs()) == (1, [])


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_goes_on_when_the_store_is_back(durable_store: Store, number: int, when: str) -> None:
    """An append fails, or its answer is lost: at the first or the last of the turn, it is answered once."""
    store = durable_store
    house = House(store, a=Agent(provider="scripted", script=lambda request: "answered"))
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
        found = house.runs.admit_and_run(bound, session.log, head, wanted)
        run = found.run_id
    except StoreUnavailable:  # the client tries again with its key
        run = admit_message(store, session.log, wanted).run_id
    house.runs.open()
    outcome = house.over(session, run)
    assert (outcome.status, outcome.response.text) == ("finished", "answered")
    assert [m.text for m in session.messages] == ["q", "answered"]
    house.runs.stop(0)
