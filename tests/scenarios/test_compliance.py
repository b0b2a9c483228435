"""Section 9 of the promises, second half: retention, the sweep, holds, immutable sessions, audit and erasure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from holdfast import Agent, File, Message, Session, ToolContext, aio, tool
from holdfast.cli.main import main
from holdfast.errors import (
    AgentError,
    CorruptLog,
    ImmutableSession,
    InvalidArgument,
    LifecycleError,
    ProviderUnavailable,
    SessionHeld,
    SessionNotFound,
    TurnOpen,
    TurnParked,
)
from holdfast.log.events import Draft
from holdfast.models.base import ModelRequest
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.document_store import DocumentStore
from holdfast.stores.messages import message_draft
from holdfast.testing import FixedClock, call, error
from holdfast.tools import remember
from holdfast.worker.sweep import SweepReport, sweep
from tests.kit.agents import list_texts, list_types, make_messages, make_scripted_agent
from tests.kit.documents import DictStore
from tests.kit.stores import open_store
from tests.scenarios.ways import WAYS, Ask, blocking_only, make_ask, store_does_not_matter

Do = Callable[..., Any]
DAY = 86_400_000_000  # microseconds
SOON = {"ttl_days": 1e-9}  # over at once


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest) -> Ask:
    return make_ask(request.param)


@pytest.fixture(params=["blocking", "awaited"])
def do(request: pytest.FixtureRequest) -> Do:
    """`do(session, "redact", ...)`: the plain method, or its awaited twin."""

    def perform(session: Session, name: str, *args: Any, **options: Any) -> Any:
        if request.param == "blocking":
            return getattr(session, name)(*args, **options)
        return asyncio.run(getattr(session, f"{name}_async")(*args, **options))

    return perform


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def sharing_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store whose forks share the past; in a store of documents a fork is a copy."""
    return open_store(request.param, request, tmp_path)


class DayClock(FixedClock):
    def pass_days(self, days: float) -> None:
        self.time += int(days * DAY)


@pytest.fixture
def clock(store: Store, monkeypatch: pytest.MonkeyPatch) -> DayClock:
    """The clock of the store, which moves only in `pass_days`."""
    found = DayClock()
    monkeypatch.setattr(store, "clock", found)
    return found


def find_seq(session: Session, text: str) -> int:
    """The number of the message with this text."""
    (found,) = [message.seq for message in session.messages if message.text == text]
    assert found is not None
    return found


def read_everything(store: Store, session: Session) -> str:
    """Everything that a reader of the session could find: its export, document, brief and views."""
    looks = [session.export(), session.export("markdown"), session.export("html"), json.dumps(session.to_dict())]
    looks += [str([event.data for event in session.events(limit=None)]), str(session.messages), session.brief()]
    return "\n".join([*looks, str(store.load(session.id)), str(session.facts.all()), str(session.title)])


# -- retention ---------------------------------------------------------------------------------------------------------


def test_the_retention_of_the_snippet(store: Store) -> None:
    wanted = {
        "ttl_days": 730, "auto_prune": True, "prune_strategy": "sliding_window", "max_messages": 1000,
        "immutable": False, "archive_after_days": 90,
    }  # fmt: skip
    session = Session(id="kept", store=store, retention=wanted)
    assert session.retention is not None
    assert {name: value for name, value in wanted.items() if value} == session.retention
    assert Session.open("kept", store=store).retention == session.retention
    assert session.events(types="retention.set")[0].data == session.retention
    assert Session(store=store).retention is None


def test_another_retention_is_recorded_as_a_change(store: Store) -> None:
    Session("kept", store=store, retention={"ttl_days": 30})
    again = Session("kept", store=store, retention={"ttl_days": 30})
    assert list_types(again).count("retention.set") == 1
    changed = Session("kept", store=store, retention={"ttl_days": 7.5})
    assert changed.retention == {"ttl_days": 7.5}
    changed.retention = {"archive_after_days": 3}
    assert Session.open("kept", store=store).retention == {"archive_after_days": 3}
    assert [event.data for event in changed.events(types="retention.set")] == [
        {"ttl_days": 30}, {"ttl_days": 7.5}, {"archive_after_days": 3},
    ]  # fmt: skip


@store_does_not_matter
@pytest.mark.parametrize(
    "bad",
    [
        {"ttl_days": 0},
        {"ttl_days": -1},
        {"ttl_days": "30"},
        {"ttl_days": True},
        {"ttl_days": float("inf")},
        {"ttl_days": float("nan")},
        {"archive_after_days": 0},
        {"archive_after_days": 31, "ttl_days": 30},
        {"auto_prune": 1, "max_messages": 5},
        {"auto_prune": "yes"},
        {"max_messages": 0},
        {"max_messages": 2.5},
        {"max_messages": True},
        {"prune_strategy": "newest"},
        {"prune_strategy": "keep_last_0"},
        {"prune_strategy": 3},
        {"immutable": "yes"},
        {"immutable": True, "auto_prune": True, "max_messages": 5},
        {"ttl_day": 30},
        "730 days",
        730,
    ],
    ids=str,
)
def test_a_bad_retention_is_refused_and_makes_nothing(store: Store, bad: Any) -> None:
    with pytest.raises(ValueError) as caught:
        Session("kept", store=store, retention=bad)
    assert isinstance(caught.value, AgentError)
    assert not store.exists("kept")
    session = Session("kept", store=store)
    with pytest.raises(InvalidArgument):
        session.retention = bad
    assert session.retention is None


STRATEGIES = ["sliding_window", "keep_last_4", "token_budget", "keep_important", None]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_auto_prune_keeps_the_newest_messages_as_they_arrive(store: Store, strategy: str | None) -> None:
    kept = {"auto_prune": True, "prune_strategy": strategy, "max_messages": 4}
    session = Session(store=store, retention=kept)
    for number in range(1, 10):
        session.add_message(Message.user(f"message {number}"))
        assert list_texts(session) == [f"message {n}" for n in range(max(1, number - 3), number + 1)]
    session.add_messages(make_messages(20, first=10))
    assert list_texts(session) == [f"message {n}" for n in range(26, 30)]
    assert len(session.events(types="message.added", limit=None)) == 29
    assert {event.actor for event in session.events(types="view.pruned")} == {"auto_prune"}


def test_auto_prune_without_a_number_keeps_a_thousand_messages(store: Store) -> None:
    session = Session(store=store, retention={"ttl_days": 1, "auto_prune": True})
    session.add_messages(make_messages(1_000))
    assert len(session) == 1_000
    session.add_messages(make_messages(2, first=1_001))
    assert list_texts(session)[0] == "message 3"
    assert len(session) == 1_000
    assert session.retention == {"ttl_days": 1, "auto_prune": True}


def test_auto_prune_by_a_summary(store: Store) -> None:
    session = Session(store=store, retention={"auto_prune": True, "prune_strategy": "summarize_old", "max_messages": 4})
    for number in range(1, 21):
        session.add_message(Message.user(f"message {number}"))
        assert len(session) <= 5
    assert list_texts(session)[0].startswith("[Summary of")
    assert list_texts(session)[-1] == "message 20"


def test_auto_prune_after_a_turn(store: Store, ask: Ask) -> None:
    agent = Agent(provider="echo")
    session = agent.session(store=store, retention={"auto_prune": True, "max_messages": 4})
    for number in range(5):
        ask(session, f"question {number}")
        assert len(session) <= 4
    assert [message.role for message in session.messages] == ["user", "assistant", "user", "assistant"]
    assert list_texts(session)[0] == "question 3"


async def test_auto_prune_of_awaited_messages(store: Store) -> None:
    session = aio.Session(store=store, retention={"auto_prune": True, "max_messages": 3})
    for number in range(6):
        await session.send_message(Message.user(f"message {number}"))
    assert [message.text for message in await session.history()] == ["message 3", "message 4", "message 5"]


def test_auto_prune_keeps_exchanges_whole(store: Store) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = make_scripted_agent(*[call("look"), "done"] * 4, tools=[look])
    session = agent.session(store=store, retention={"auto_prune": True, "max_messages": 5})
    for _ in range(4):
        session.run("look")
        assert len(session) <= 5
        assert session.messages[0].role != "tool"
    assert list_texts(session)[-1] == "done"


def test_auto_prune_while_a_turn_waits(store: Store) -> None:
    agent = make_scripted_agent(call("pay", {"cents": 5}), "paid", tools=[pay])
    session = agent.session(store=store, retention={"auto_prune": True, "max_messages": 3})
    session.run("please pay")
    for number in range(10):
        session.add_message(Message.user(f"message {number}"))
        assert len(session) <= 3
    session.approve(session.pending[0].call_id)
    assert session.resume().text == "paid"
    assert len(session) <= 3


def test_a_retention_set_elsewhere_holds_here_too(store: Store) -> None:
    session = Session("shared", store=store)
    session.add_message(Message.user("first"))
    Session("shared", store=store, retention={"auto_prune": True, "max_messages": 3})
    session.add_messages(make_messages(10))
    assert list_texts(session) == ["message 8", "message 9", "message 10"]


def test_the_first_messages_are_pruned_too(store: Store) -> None:
    session = Session(store=store, messages=make_messages(9), retention={"auto_prune": True, "max_messages": 3})
    assert list_texts(session) == ["message 7", "message 8", "message 9"]


def test_max_messages_without_auto_prune_prunes_nothing(store: Store) -> None:
    session = Session(store=store, retention={"max_messages": 3, "prune_strategy": "sliding_window"})
    session.add_messages(make_messages(9))
    assert len(session) == 9


# -- the sweep ---------------------------------------------------------------------------------------------------------


def list_ids(store: Store) -> list[str]:
    return sorted(store.list_sessions())


def is_sweep_idle(store: Store) -> bool:
    report = sweep(store)
    return not (report.busy or report.archived or report.purged)


def test_the_ttl_counts_from_the_last_activity(store: Store, clock: DayClock) -> None:
    Session("for ever", store=store)
    Session("quiet", store=store, retention={"ttl_days": 10})
    busy = Session("busy", store=store, retention={"ttl_days": 10})
    clock.pass_days(6)
    busy.add_message(Message.user("still here"))
    assert is_sweep_idle(store)
    clock.pass_days(6)
    report = sweep(store)
    assert (report.purged, report.archived, report.busy) == (["quiet"], [], False)
    assert list_ids(store) == ["busy", "for ever"]
    clock.pass_days(6)
    assert sweep(store).purged == ["busy"]
    with pytest.raises(SessionNotFound):
        Session.open("busy", store=store)


def test_fractions_of_a_day_count(store: Store, clock: DayClock) -> None:
    Session("an hour", store=store, retention={"ttl_days": 1 / 24})
    clock.pass_days(0.9 / 24)
    assert sweep(store).purged == []
    clock.pass_days(0.2 / 24)
    assert sweep(store).purged == ["an hour"]
    Session("at once", store=store, retention=SOON)
    assert sweep(store).purged == ["at once"]


def test_maintenance_is_no_activity(store: Store, clock: DayClock) -> None:
    session = Session("kept", store=store, messages=make_messages(9), retention={"ttl_days": 10})
    clock.pass_days(9)
    session.prune("keep_last_4")
    session.prune("summarize_old", threshold=2)
    session.undo_prune()
    session.hold("case 42")
    session.release()
    session.redact(find_seq(session, "message 8"), reason="a slip")
    session.retention = {"ttl_days": 10, "archive_after_days": 10}
    session.archive()
    clock.pass_days(1.5)
    assert sweep(store).purged == ["kept"]


def test_an_archive_comes_before_a_purge(store: Store, clock: DayClock) -> None:
    session = Session("kept", store=store, retention={"ttl_days": 30, "archive_after_days": 10})
    clock.pass_days(11)
    assert sweep(store).archived == ["kept"]
    assert session.status == "archived"
    (event,) = session.events(types="session.archived")
    assert event.actor == "sweep"
    assert "10" in event.data["reason"]
    assert is_sweep_idle(store)
    clock.pass_days(20)
    assert sweep(store).purged == ["kept"]


def test_a_late_sweep_still_archives_first(store: Store, clock: DayClock) -> None:
    Session("kept", store=store, retention={"ttl_days": 30, "archive_after_days": 10})
    clock.pass_days(100)
    assert sweep(store).archived == ["kept"]
    assert sweep(store).purged == ["kept"]


def test_a_reopened_session_lives_again(store: Store, clock: DayClock) -> None:
    session = Session("kept", store=store, retention={"ttl_days": 30, "archive_after_days": 10})
    clock.pass_days(11)
    sweep(store)
    session.reopen()
    assert is_sweep_idle(store)
    clock.pass_days(11)
    assert sweep(store).archived == ["kept"]


def make_failed_session(store: Store) -> Session:
    session = make_scripted_agent(error("down")).session("unsettled", store=store, retention=SOON)
    with pytest.raises(ProviderUnavailable):
        session.run("hello")
    return session


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay something."""
    return f"paid {cents} cents"


def make_waiting_session(store: Store) -> Session:
    session = make_scripted_agent(call("pay", {"cents": 5}), "paid", tools=[pay]).session(
        "unsettled", store=store, retention=SOON
    )
    session.run("pay")
    assert session.status == "waiting"
    return session


def make_unfinished_session(store: Store) -> Session:
    """What a process that ended in the middle of a turn left behind."""
    session = make_scripted_agent("hi").session("unsettled", store=store, retention=SOON)
    question = message_draft(Message.user("hello"), store.limits, run="r")
    started = Draft(type="turn.started", run="r", data={"agent": None, "options": {}})
    store.append(session.log, [started, question])
    assert session.unfinished
    return session


def make_parked_session(store: Store) -> Session:
    session = make_unfinished_session(store)
    store.append(session.log, [Draft(type="turn.parked", run="r")])
    with pytest.raises(TurnParked):
        session.resume()
    return session


def make_held_session(store: Store) -> Session:
    session = Session("unsettled", store=store, retention=SOON)
    session.hold("case 42")
    return session


# Each session by the word that a report of the sweep gives as its reason.
UNSETTLED: dict[str, Callable[[Store], Session]] = {
    "failed": make_failed_session,
    "waiting": make_waiting_session,
    "unfinished": make_unfinished_session,
    "parked": make_parked_session,
    "held": make_held_session,
}


@pytest.mark.parametrize("reason", UNSETTLED)
def test_what_is_not_settled_is_archived_until_it_is_released(store: Store, clock: DayClock, reason: str) -> None:
    session = UNSETTLED[reason](store)
    clock.pass_days(1)
    report = sweep(store)
    assert (report.archived, report.purged) == (["unsettled"], [])
    assert reason in report.sessions[0].why
    assert session.status == "archived"
    clock.pass_days(1000)
    assert sweep(store).purged == []
    session.release("settled", actor="judge")
    assert session.events(types="session.released")[0].actor == "judge"
    assert sweep(store).purged == ["unsettled"]
    assert list_ids(store) == []


def test_a_turn_that_succeeds_settles_a_failure(store: Store, clock: DayClock) -> None:
    session = make_scripted_agent(error("down"), "fine").session("kept", store=store, retention=SOON)
    with pytest.raises(ProviderUnavailable):
        session.run("hello")
    session.run("again")
    assert sweep(store).purged == ["kept"]


def test_a_running_session_is_left_alone(store: Store) -> None:
    session = make_scripted_agent("a long story").session("running", store=store, retention=SOON)
    stream = session.stream("tell me")
    next(stream)
    report = sweep(store)
    assert (report.archived, report.purged, report.kept) == ([], [], ["running"])
    assert "running" in report.sessions[0].why
    list(stream)
    assert list_texts(session) == ["tell me", "a long story"]


def test_a_fork_keeps_its_past_when_the_parent_goes(store: Store, clock: DayClock) -> None:
    parent = Session("parent", store=store, messages=make_messages(5), retention={"ttl_days": 10}, state={"a": 1})
    parent.facts.add("use PostgreSQL")
    fork = parent.fork("fork")
    fork.retention = {}
    clock.pass_days(11)
    assert sweep(store).purged == ["parent"]
    assert list_texts(fork) == [f"message {n}" for n in range(1, 6)]
    assert fork.get_state("a") == 1
    assert [fact.text for fact in fork.facts.all()] == ["use PostgreSQL"]
    assert fork.parent is None
    assert fork.verify()
    fork.add_message(Message.user("on my own"))
    again = Session.import_(fork.export(), session_id="copy", store=store)
    assert list_texts(again)[-1] == "on my own"


def test_a_dry_run_of_the_sweep_changes_nothing(store: Store, clock: DayClock) -> None:
    Session("gone", store=store, retention={"ttl_days": 1})
    Session("old", store=store, retention={"archive_after_days": 1})
    Session("new", store=store, retention={"ttl_days": 9})
    clock.pass_days(2)
    would = sweep(store, dry_run=True)
    assert (would.dry_run, would.purged, would.archived) == (True, ["gone"], ["old"])
    assert list_ids(store) == ["gone", "new", "old"]
    assert store.find("sweep", "sweep") is None
    done = sweep(store)
    assert [(each.id, each.act, each.why) for each in done.sessions] == [
        (each.id, each.act, each.why) for each in would.sessions
    ]
    assert done.looked == would.looked


def test_the_sweep_has_a_log_of_its_own(store: Store, clock: DayClock) -> None:
    session = Session("gone", store=store, retention={"ttl_days": 1})
    last = session.events()[-1]
    Session("old", store=store, retention={"archive_after_days": 1})
    clock.pass_days(2)
    sweep(store)
    log = store.require("sweep", "sweep")
    events = {row.type: row for row in store.read(log)}
    assert set(events) >= {"sweep.planned", "sweep.finished"}
    planned = store.event(log, events["sweep.planned"].seq).data["purge"]
    assert [(stone["id"], stone["head"], stone["hash"]) for stone in planned] == [("gone", last.seq, last.hash.hex())]
    assert store.event(log, events["sweep.finished"].seq).data == {"archived": 1, "purged": 1, "kept": 0}
    assert store.verify(log)
    assert list_ids(store) == ["old"]


def test_the_sweep_works_in_batches(store: Store, clock: DayClock) -> None:
    for number in range(25):
        Session(f"s{number:02}", store=store, retention={"ttl_days": 1})
    Session("stays", store=store)
    clock.pass_days(2)
    steps: list[int] = []
    report = sweep(store, batch=10, on_batch=lambda report: steps.append(len(report.purged)))
    assert steps == [10, 20, 25]
    assert (len(report.purged), report.looked, list_ids(store)) == (25, 25, ["stays"])
    for bad in (0, -1, True, 2.5):
        with pytest.raises(InvalidArgument):
            sweep(store, batch=bad)  # type: ignore[arg-type]


def test_one_sweeper_works_at_a_time(store: Store, clock: DayClock) -> None:
    for number in range(4):
        Session(f"s{number}", store=store, retention={"ttl_days": 1})
    clock.pass_days(2)
    others: list[SweepReport] = []
    report = sweep(store, batch=2, on_batch=lambda report: others.append(sweep(store)))
    assert [(other.busy, other.sessions) for other in others] == [(True, [])] * 2
    assert len(report.purged) == 4
    assert not sweep(store).busy


def test_a_turn_that_begins_during_a_sweep_wins(store: Store, clock: DayClock) -> None:
    both = {id: Session(id, store=store, retention={"ttl_days": 1}) for id in ("one", "two")}
    clock.pass_days(2)

    def touch(report: SweepReport) -> None:
        for id in list_ids(store):
            both[id].add_message(Message.user("wait"), once="once")

    assert len(sweep(store, batch=1, on_batch=touch).purged) == 1
    (left,) = list_ids(store)
    assert list_texts(both[left]) == ["wait"]


def test_the_sweep_reaches_every_tenant_and_a_tenant_only_its_own(store: Store, clock: DayClock) -> None:
    acme, umbrella = store.for_tenant("acme"), store.for_tenant("umbrella")
    for bound in (acme, umbrella, store):
        Session("same id", store=bound, retention={"ttl_days": 1})
    clock.pass_days(2)
    report = sweep(acme)
    assert [(each.id, each.tenant) for each in report.sessions] == [("same id", "acme")]
    assert (acme.exists("same id"), umbrella.exists("same id"), store.exists("same id")) == (False, True, True)
    report = sweep(store)
    assert sorted(each.tenant for each in report.sessions) == ["", "umbrella"]
    assert not umbrella.exists("same id")
    assert not store.exists("same id")


def test_the_command_sweeps(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    with SQLiteStore(tmp_path / "sessions.db") as store:
        Session("gone", store=store, retention=SOON)
        Session("stays", store=store)
    would = json.loads(run_command("sweep", "--store", url, "--dry-run", "--json").stdout)
    assert [(each["id"], each["act"]) for each in would["sessions"]] == [("gone", "purged")]
    done = run_command("sweep", "--store", url)
    assert (done.exit_code, "purged" in done.stdout, "gone" in done.stdout) == (0, True, True)
    with SQLiteStore(tmp_path / "sessions.db") as store:
        assert list_ids(store) == ["stays"]


def run_command(*args: str | Path) -> Result:
    """The command, as a shell would call it."""
    return CliRunner().invoke(main, [str(arg) for arg in args])


# -- legal holds -------------------------------------------------------------------------------------------------------


def test_a_hold_keeps_everything_until_it_is_released(store: Store, do: Do) -> None:
    session = Session("case", store=store, messages=make_messages(3), user_id="alice")
    session.hold("case 42", actor="judge")
    assert session.held == "case 42"
    with pytest.raises(SessionHeld):
        store.delete("case")
    with pytest.raises(SessionHeld):
        do(session, "redact", 2, reason="a slip")
    with pytest.raises(SessionHeld):
        do(session, "erase", reason="asked to", actor="dpo")
    with pytest.raises(SessionHeld):
        Session.erase_user("alice", reason="asked to", actor="dpo", store=store)
    assert list_texts(session) == ["message 1", "message 2", "message 3"]
    session.add_message(Message.user("life goes on"))
    session.release("settled", actor="clerk")
    assert session.held is None
    (hold,), (release,) = session.events(types="session.held"), session.events(types="session.released")
    assert (hold.actor, hold.data) == ("judge", {"reason": "case 42"})
    assert (release.actor, release.data) == ("clerk", {"reason": "settled"})
    do(session, "redact", 2, reason="a slip")
    assert store.delete("case")


def test_the_snippet_of_a_hold(store: Store) -> None:
    session = Session("case", store=store)
    session.hold("case 42")
    session.release()
    assert store.delete("case")


@pytest.mark.parametrize("reason", [None, "", 42, "x" * 70_000])
def test_a_hold_needs_a_reason(store: Store, reason: Any) -> None:
    session = Session(store=store)
    with pytest.raises(ValueError):
        session.hold(reason)
    assert session.held is None


def test_a_second_hold_says_the_newest_reason(store: Store) -> None:
    session = Session(store=store)
    session.hold("case 42")
    session.hold("case 43")
    assert session.held == "case 43"
    session.release()
    assert session.held is None


def test_a_fork_of_a_held_session_is_free_but_what_they_share_is_not(sharing_store: Store) -> None:
    session = Session("case", store=sharing_store, messages=make_messages(3))
    session.hold("case 42")
    fork = session.fork("fork")
    assert fork.held is None
    with pytest.raises(SessionHeld):
        fork.redact(2, reason="a slip")
    fork.add_message(Message.user("mine"))
    fork.redact(find_seq(fork, "mine"), reason="a slip")
    assert list_texts(fork)[-1] == "[erased]"
    assert sharing_store.delete("fork")


# -- immutable sessions ------------------------------------------------------------------------------------------------

REFUSED: dict[str, Callable[[Session, Store], Any]] = {
    "clear": lambda session, store: session.clear(),
    "prune": lambda session, store: session.prune("keep_last_1"),
    "prune by summary": lambda session, store: session.prune("summarize_old", threshold=1),
    "prune nothing": lambda session, store: session.prune("keep_last_100"),
    "redact": lambda session, store: session.redact(3, reason="a slip"),
    "rewind": lambda session, store: session.rewind(to=3),
    "delete": lambda session, store: store.delete(session.id),
    "save": lambda session, store: store.save(session.id, session.to_dict() | {"messages": []}),
    "from_dict": lambda session, store: Session.from_dict(session.to_dict() | {"messages": []}, store=store),
    "shorten": lambda session, store: setattr(session, "retention", {"immutable": True, "ttl_days": 9}),
    "weaken": lambda session, store: setattr(session, "retention", {"ttl_days": 10}),
    "open weaker": lambda session, store: Session(session.id, store=store, retention={"ttl_days": 10}),
    "auto prune": lambda session, store: setattr(
        session, "retention", {"ttl_days": 10, "auto_prune": True, "max_messages": 1}
    ),
}


def make_immutable_session(store: Store, **options: Any) -> Session:
    kept = {"immutable": True, "ttl_days": 10}
    return Session("stone", store=store, messages=make_messages(3), retention=kept, **options)


@pytest.mark.parametrize("what", REFUSED)
def test_an_immutable_session_refuses(store: Store, clock: DayClock, what: str) -> None:
    session = make_immutable_session(store)
    before, head = list_texts(session), session.head
    with pytest.raises(ImmutableSession):
        REFUSED[what](session, store)
    assert (list_texts(session), session.head, session.retention) == (before, head, {"immutable": True, "ttl_days": 10})
    assert store.exists("stone")
    clock.pass_days(11)
    REFUSED[what](session, store)  # its time has passed


async def test_an_immutable_session_refuses_awaited_changes_as_well(store: Store) -> None:
    session = aio.Session(store=store, messages=make_messages(3), retention={"immutable": True})
    with pytest.raises(ImmutableSession):
        await session.prune("keep_last_1")
    with pytest.raises(ImmutableSession):
        await session.redact(3, reason="a slip")
    assert (await session.prune("keep_last_1", dry_run=True)).removed == 2


def test_an_immutable_session_refuses_an_undo(store: Store) -> None:
    session = Session("stone", store=store, messages=make_messages(3))
    session.prune("keep_last_1")
    session.retention = {"immutable": True}
    with pytest.raises(ImmutableSession):
        session.undo_prune()


def test_an_immutable_session_can_grow(store: Store, clock: DayClock, ask: Ask) -> None:
    session = make_immutable_session(store)
    session.add_message(Message.user("more"))
    session.set_state("a", 1)
    session.facts.add("use PostgreSQL")
    ask(session, "hello", agent=make_scripted_agent("hi"))
    session.title = "A stone"
    session.hold("case 42")
    session.release()
    session.retention = {"immutable": True, "ttl_days": 11}
    store.save("stone", session.to_dict())  # the same content changes nothing
    session.close()
    session.reopen()
    assert list_texts(session)[-3:] == ["more", "hello", "hi"]
    assert session.successor().facts.all()
    fork = session.fork("fork")
    fork.add_message(Message.user("mine"))
    assert list_texts(fork)[:-1] == list_texts(session)
    assert session.verify()


def test_a_fork_of_an_immutable_session_is_immutable(store: Store, clock: DayClock) -> None:
    fork = make_immutable_session(store).fork("fork")
    with pytest.raises(ImmutableSession):
        fork.clear()
    with pytest.raises(ImmutableSession):
        store.delete("fork")


def test_activity_makes_an_immutable_session_last_longer(store: Store, clock: DayClock) -> None:
    session = make_immutable_session(store)
    clock.pass_days(9)
    session.add_message(Message.user("more"))
    clock.pass_days(9)
    with pytest.raises(ImmutableSession) as caught:
        session.clear()
    assert caught.value.until is not None
    assert caught.value.until > clock.time
    assert is_sweep_idle(store)
    clock.pass_days(2)
    assert sweep(store).purged == ["stone"]


def test_an_immutable_session_without_a_ttl_is_kept_for_ever(store: Store, clock: DayClock) -> None:
    session = Session("stone", store=store, retention={"immutable": True})
    clock.pass_days(100_000)
    with pytest.raises(ImmutableSession):
        store.delete("stone")
    assert is_sweep_idle(store)
    assert session.verify()


BY_HAND = {
    "delete events": "DELETE FROM {events}",
    "erase events": "UPDATE {events} SET body = NULL",
    "delete the log": "DELETE FROM {logs}",
    "free its name": "UPDATE {logs} SET id = NULL",
    "drop the guard": "DELETE FROM {retention}",
    "shorten its time": "UPDATE {retention} SET ttl = 1",
    "take the flag": "UPDATE {retention} SET immutable = {false}",
    "age it": "UPDATE {logs} SET updated_at = 0; DELETE FROM {events}",
    "a backdated event": "INSERT INTO {events} ({columns}) SELECT {next}, 0, 'state.set', header, tokens, body, "
    "tombstone, hash, changes_view FROM {events} WHERE {event} = 3; DELETE FROM {events}",
    "replace": "{replace} INTO {events} ({columns}) SELECT {same}, at, type, header, tokens, NULL, tombstone, hash, "
    "changes_view FROM {events} WHERE {event} = 3 {conflict}",
}


@pytest.mark.parametrize("what", BY_HAND)
def test_the_database_refuses_too(durable_store: Store, what: str) -> None:
    kept = {"immutable": True, "ttl_days": 10}
    session = Session("stone", store=durable_store, messages=make_messages(3), retention=kept)
    with pytest.raises(Exception, match="immutable"):
        execute_by_hand(durable_store, BY_HAND[what], session.log.number)
    assert Session.open("stone", store=durable_store).retention == kept
    assert list_texts(session) == ["message 1", "message 2", "message 3"]


def execute_by_hand(store: Store, statement: str, log: int) -> None:
    """Execute a statement on the database without holdfast."""
    rest = "at, type, header, tokens, body, tombstone, hash, changes_view"
    if isinstance(store, PostgresStore):
        names = {name: f"holdfast.{name}" for name in ("events", "logs", "retention")} | {
            "event": "seq", "columns": f"log, seq, {rest}", "next": "log, 99", "same": "log, seq", "false": "FALSE",
            "replace": "INSERT", "conflict": "ON CONFLICT (log, seq) DO UPDATE SET body = NULL",
        }  # fmt: skip
        with psycopg.connect(store.server.dsn) as db:
            for one in statement.format(**names).split("; "):
                db.execute(one)  # type: ignore[arg-type]
        return
    assert isinstance(store, SQLiteStore)
    names = {name: name for name in ("events", "logs", "retention")} | {
        "event": f"event - ({log} << 32)", "columns": f"event, {rest}", "next": f"({log} << 32) + 99", "same": "event",
        "false": "0", "replace": "INSERT OR REPLACE", "conflict": "",
    }  # fmt: skip
    with contextlib.closing(sqlite3.connect(store.file.path)) as raw, raw:
        for one in statement.format(**names).split("; "):
            raw.execute(one)


# -- audit -------------------------------------------------------------------------------------------------------------


def test_verify_is_true_when_all_holds(store: Store, do: Do) -> None:
    session = Session(store=store, messages=make_messages(3))
    session.prune("keep_last_1", actor="ops")
    verdict = do(session, "verify")
    assert verdict
    assert (verdict.ok, verdict.first_bad) == (True, None)


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ("UPDATE {events} SET at = at + 1 WHERE {event} = 3", 3),
        ("UPDATE {events} SET type = 'state.set' WHERE {event} = 4", 4),
        ("UPDATE {events} SET body = NULL WHERE {event} = 2", 2),
        ("DELETE FROM {events} WHERE {event} = 3", 3),
    ],
)
def test_verify_names_the_first_bad_event(durable_store: Store, do: Do, change: str, bad: int) -> None:
    session = Session(store=durable_store, messages=make_messages(6))
    execute_by_hand(durable_store, change, session.log.number)
    verdict = do(session, "verify")
    assert not verdict
    assert (verdict.ok, verdict.first_bad) == (False, bad)


def test_verify_notices_a_head_that_was_moved_back(durable_store: Store, do: Do) -> None:
    session = Session(store=durable_store, messages=make_messages(6))
    execute_by_hand(durable_store, "UPDATE {logs} SET head = head - 2", session.log.number)
    assert not do(session, "verify")


def tamper_lines(lines: list[str], how: str) -> list[str]:
    third = json.loads(lines[2])
    if how == "flip":
        third["data"]["text"] = "message 9"
    elif how == "time":
        third["at"] += 1
    elif how == "actor":
        third["actor"] = "somebody else"
    elif how == "hash":
        third["hash"] = third["hash"][::-1]
    lines = [*lines[:2], json.dumps(third), *lines[3:]]
    if how == "swap":
        lines[2], lines[3] = lines[3], lines[2]
    elif how == "drop":
        del lines[2]
    elif how == "insert":
        lines.insert(2, lines[2])
    return lines


@pytest.mark.parametrize("how", ["flip", "time", "actor", "hash", "swap", "drop", "insert"])
def test_a_tampered_export_is_found_out_without_a_database(store: Store, tmp_path: Path, how: str) -> None:
    session = Session(store=store, messages=make_messages(6))
    file = tmp_path / "export.jsonl"
    good = session.export().splitlines()
    file.write_text("\n".join(tamper_lines(good, how)) + "\n")
    found = run_command("verify", "--json", file)
    assert found.exit_code == 1, found.stderr
    verdict = json.loads(found.stdout)
    assert (verdict["ok"], verdict["first_bad"]) == (False, 4 if how == "insert" else 3)
    with pytest.raises(CorruptLog):
        Session.import_(file, session_id="copy", store=store)
    assert not store.exists("copy")


def test_who_did_what_is_on_every_administrative_event(store: Store) -> None:
    session = Session("s", store=store, messages=make_messages(6))
    session.prune("keep_last_4", actor="a")
    session.undo_prune(actor="b")
    session.prune("summarize_old", threshold=2, actor="c")
    session.hold("case 42", actor="d")
    session.release("settled", actor="e")
    session.redact(find_seq(session, "message 6"), reason="a slip", actor="f")
    session.rewind(to=session.head, actor="g")
    session.clear(actor="h")
    session.archive(actor="i")
    session.reopen(actor="j")
    session.erase(reason="asked to", actor="k")
    told = [(event.type, event.actor) for event in session.events(limit=None) if event.actor]
    assert told == [
        ("view.pruned", "a"), ("view.unpruned", "b"), ("summary.added", "c"), ("view.compacted", "c"),
        ("session.held", "d"), ("session.released", "e"), ("event.redacted", "f"), ("view.rewound", "g"),
        ("view.cleared", "h"), ("session.archived", "i"), ("session.reopened", "j"), ("session.erased", "k"),
    ]  # fmt: skip
    assert session.verify()


# -- redaction ---------------------------------------------------------------------------------------------------------

SECRET = "zebra4711"


def check_secret_is_gone(store: Store, session: Session) -> None:
    """Nothing that a reader can look at has the secret; the chain and the folds still hold."""
    assert SECRET not in read_everything(store, session)
    assert session.search(SECRET) == []
    assert session.verify()
    assert store.rebuild_view(session.log) == store.view(session.log)


def test_a_redacted_event_leaves_a_tombstone(store: Store, do: Do) -> None:
    session = Session("s", store=store, messages=[Message.user("hello"), Message.user(f"my card is {SECRET}")])
    seq = find_seq(session, f"my card is {SECRET}")
    before = session.events(limit=None)
    assert len(session.search(SECRET)) == 1
    done = do(session, "redact", seq, reason="a card number", actor="dpo")
    assert (done.seq, done.also) == (seq, [])
    assert list_texts(session) == ["hello", "[erased]"]
    events = session.events(limit=None)
    assert [event.hash for event in events[:-1]] == [event.hash for event in before]
    assert [event.erased for event in events] == [False, False, True, False]
    record = events[-1]
    assert (record.type, record.actor, record.data["seq"]) == ("event.redacted", "dpo", seq)
    assert record.data["reason"] == "a card number"
    check_secret_is_gone(store, session)
    check_secret_is_gone(store, Session.open("s", store=store))


def test_an_export_with_tombstones_verifies_and_can_be_imported(store: Store, do: Do, tmp_path: Path) -> None:
    agent = make_scripted_agent(call("pay", {"cents": 4711}), f"it was {SECRET}", tools=[pay])
    session = agent.session("s", store=store, messages=make_messages(3), state={"a": 1})
    session.run(f"pay {SECRET}")
    session.approve(session.pending[0].call_id)
    session.resume()
    session.prune("summarize_old", threshold=2)
    for text in (f"pay {SECRET}", f"it was {SECRET}"):
        (seq,) = [
            event.seq
            for event in session.events(types=["message.added", "model.replied"], limit=None)
            if text in str(event.data)
        ]
        do(session, "redact", seq, reason="a slip")
    check_secret_is_gone(store, session)
    file = tmp_path / "export.jsonl"
    file.write_text(session.export())
    found = run_command("verify", file)
    assert (found.exit_code, "chain holds" in found.stdout) == (0, True), found.stderr
    copy = Session.import_(file, session_id="copy", store=store)
    assert list_texts(copy) == list_texts(session)
    assert copy.get_state("a") == 1
    assert copy.usage == session.usage
    check_secret_is_gone(store, copy)
    lines = file.read_text().splitlines()
    broken = [json.loads(line) for line in lines]
    stone = next(line for line in broken if "commitment" in line)
    stone["commitment"] = ("0" if stone["commitment"][0] != "0" else "1") + stone["commitment"][1:]
    file.write_text("\n".join(json.dumps(line) for line in broken))
    assert run_command("verify", file).exit_code == 1


def test_a_summary_of_what_is_redacted_goes_too(store: Store, do: Do) -> None:
    session = Session(store=store, messages=[Message.user(f"my card is {SECRET}"), *make_messages(9)])
    seq = session.messages[0].seq
    session.prune("summarize_old", threshold=4)
    session.add_messages(make_messages(6, first=10))
    session.prune("summarize_old", threshold=4)
    assert SECRET in list_texts(session)[0]
    done = do(session, "redact", seq, reason="a slip")
    assert len(done.also) == 2
    assert list_texts(session)[0] == "[erased]"
    check_secret_is_gone(store, session)
    session.undo_prune()
    session.undo_prune()
    assert list_texts(session)[0] == "[erased]"
    check_secret_is_gone(store, session)


def test_copies_of_a_reply_go_too(store: Store, do: Do) -> None:
    agent = make_scripted_agent(
        [f"it is {SECRET}", call("pay", {"cents": 5})], f"paid {SECRET}", tools=[pay], output_key="draft"
    )
    session = agent.session(store=store)
    session.run("what is it?")
    session.approve(session.pending[0].call_id)
    session.resume()
    assert session.get_state("draft") == f"paid {SECRET}"
    for event in session.events(types="model.replied"):
        do(session, "redact", event.seq, reason="a slip")
    assert session.get_state("draft") is None
    assert [message.text for message in session.messages if message.role != "tool"] == [
        "what is it?", "[erased]", "[erased]",
    ]  # fmt: skip
    check_secret_is_gone(store, session)


def test_copies_of_a_calls_arguments_go_too(store: Store, do: Do) -> None:
    @tool
    def lookup(card: str) -> str:
        """Look a card up."""
        return "it is valid"

    agent = make_scripted_agent(call("lookup", {"card": SECRET}), "fine", tools=[lookup])
    session = agent.session(store=store)
    session.run("look")
    replied, called = session.events(types="model.replied")[0], session.events(types="tool.called")[0]
    assert called.seq in do(session, "redact", replied.seq, reason="a slip").also
    check_secret_is_gone(store, session)
    other = make_scripted_agent(call("lookup", {"card": SECRET}), "fine", tools=[lookup]).session(store=store)
    other.run("look")
    assert do(other, "redact", other.events(types="tool.called")[0].seq, reason="a slip").also
    check_secret_is_gone(store, other)


def test_what_a_redacted_reply_remembered_goes_too(store: Store, do: Do) -> None:
    @tool
    def note(ctx: ToolContext, text: str) -> str:
        """Write something down."""
        ctx.state.set("note", text)
        return "noted"

    agent = make_scripted_agent(
        call("remember", {"text": f"the card is {SECRET}"}), call("note", {"text": SECRET}), "noted",
        tools=[remember, note],
    )  # fmt: skip
    session = agent.session(store=store)
    session.run("keep it")
    do(session, "redact", session.events(types="model.replied")[0].seq, reason="a slip")  # the second repeats it
    assert session.facts.all() == []
    assert session.get_state("note") is None
    assert all(SECRET not in part.text for part in session.context().parts)


def test_redacting_a_fact_takes_its_later_versions_too(store: Store, do: Do) -> None:
    session = Session(store=store)
    fact = session.facts.add(f"the card is {SECRET}")
    session.facts.update(fact.id, status="done")
    do(session, "redact", session.events(types="fact.added")[0].seq, reason="a slip")
    assert session.facts.all() == []
    check_secret_is_gone(store, session)


def test_redacting_the_newest_version_of_state_does_not_bring_the_old_one_back(store: Store, do: Do) -> None:
    session = Session(store=store)
    session.set_state("card", "old")
    session.set_state("card", SECRET)
    do(session, "redact", session.head, reason="a slip")
    assert session.get_state("card") is None
    check_secret_is_gone(store, session)
    session.set_state("card", "new")
    assert session.get_state("card") == "new"


def test_the_stored_prompt_of_a_call_goes_too(store: Store, do: Do) -> None:
    seen: list[ModelRequest] = []

    def reply(request: ModelRequest) -> str:
        seen.append(request)
        return "fine"

    session = Agent(provider="scripted", script=reply).session(store=store)
    session.facts.add(f"the card is {SECRET}")
    session.run("hello")
    assert SECRET in seen[0].system_texts[0]
    called = session.events(types="model.called")[0]
    assert SECRET in do(session, "context", called.seq).parts[0].text
    do(session, "redact", session.events(types="fact.added")[0].seq, reason="a slip")
    context = do(session, "context", called.seq)
    assert context.parts[0].text == "[erased]"
    assert [message.text for message in context.messages] == ["hello"]
    session.run("again")
    assert seen[1].system_texts == []
    check_secret_is_gone(store, session)


def test_the_model_is_not_sent_what_was_redacted(store: Store, do: Do, ask: Ask) -> None:
    seen: list[ModelRequest] = []

    def reply(request: ModelRequest) -> str:
        seen.append(request)
        return "fine"

    session = Agent(provider="scripted", script=reply).session("s", store=store, messages=make_messages(3))
    ask(session, f"my card is {SECRET}")
    other = Session.open("s", store=store)
    do(other, "redact", find_seq(session, f"my card is {SECRET}"), reason="a slip")
    ask(session, "and?")
    assert [message.text for message in seen[1].messages][3:] == ["[erased]", "fine", "and?"]


def test_titles_metadata_and_system_can_be_redacted(store: Store, do: Do) -> None:
    session = Session("s", store=store, title=f"About {SECRET}", system=SECRET, metadata={"card": SECRET})
    do(session, "redact", 1, reason="a slip")
    assert (session.title, session.metadata, session.system) == (None, {}, None)
    assert Session.list(store=store)[0].title is None
    check_secret_is_gone(store, session)


def test_attached_bytes_go_too(store: Store, do: Do) -> None:
    data = SECRET.encode() * 100
    session = Session(
        store=store, messages=[Message.user("look", File(data=data, media_type="text/plain")), Message.user("hm")]
    )
    do(session, "redact", session.messages[0].seq, reason="a slip")
    assert list_texts(session) == ["[erased]", "hm"]
    assert session.messages[0].parts[1:] == ()
    check_secret_is_gone(store, session)


def test_a_redacted_message_is_not_an_orphan(store: Store, do: Do) -> None:
    seen: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Any:
        seen.append(request)
        return call("pay", {"cents": 5}) if len(seen) == 1 else "fine"

    session = Agent(provider="scripted", script=reply, tools=[pay]).session(store=store)
    session.run("pay")
    session.approve(session.pending[0].call_id)
    session.resume()
    do(session, "redact", session.events(types="tool.returned")[0].seq, reason="a slip")
    session.run("again")
    sent = seen[-1].messages
    calls = [part.id for message in sent for part in message.tool_calls]
    results = [part.call_id for message in sent for part in message.parts if part.type == "tool_result"]
    assert calls == results


@store_does_not_matter
@blocking_only
@pytest.mark.parametrize("bad", [0, -1, 99, True, "2", 1.5, None])
def test_a_bad_number_of_an_event_is_a_clear_error(store: Store, do: Do, bad: Any) -> None:
    session = Session(store=store, messages=make_messages(3))
    with pytest.raises(InvalidArgument):
        do(session, "redact", bad, reason="a slip")
    with pytest.raises(InvalidArgument):
        do(session, "redact", 2, reason="")
    do(session, "redact", 2, reason="a slip")
    with pytest.raises(InvalidArgument, match="erased before"):
        do(session, "redact", 2, reason="a slip")
    assert list_types(session).count("event.redacted") == 1


def test_an_open_turn_is_not_redacted(store: Store, do: Do) -> None:
    session = make_waiting_session(store)
    (question,) = session.events(types="message.added")
    with pytest.raises(TurnOpen):
        do(session, "redact", question.seq, reason="a slip")


def test_redacting_does_not_disturb_undo_rewind_and_restore(store: Store) -> None:
    session = Session("s", store=store, messages=[*make_messages(3), Message.user(SECRET), *make_messages(3, first=4)])
    at = session.head
    secret = find_seq(session, SECRET)
    session.prune("keep_last_2")
    session.redact(secret, reason="a slip")
    session.undo_prune()
    assert list_texts(session)[3] == "[erased]"
    session.clear()
    session.rewind(to=at)
    assert list_texts(session)[3] == "[erased]"
    document = session.to_dict()
    store.save("copy", document)
    assert list_texts(Session.open("copy", store=store))[3] == "[erased]"
    check_secret_is_gone(store, session)


def test_a_fork_shows_what_was_erased_in_its_parent(sharing_store: Store) -> None:
    store = sharing_store
    parent = Session("parent", store=store, messages=[Message.user(SECRET), *make_messages(9)])
    fork = parent.fork("fork")
    fork.prune("summarize_old", threshold=3)
    assert SECRET in list_texts(fork)[0]
    parent.redact(find_seq(parent, SECRET), reason="a slip")
    assert list_texts(fork)[0] == "[erased]"
    check_secret_is_gone(store, fork)
    check_secret_is_gone(store, parent)
    other = parent.fork("other")
    other.redact(find_seq(other, "message 9"), reason="a slip")  # what a fork shares, a fork can redact
    assert list_texts(parent)[-1] == list_texts(other)[-1] == "[erased]"
    assert parent.verify()
    assert other.verify()


def test_a_shared_event_stays_while_a_fork_must_keep_it(sharing_store: Store) -> None:
    parent = Session("parent", store=sharing_store, messages=make_messages(3))
    held_fork = parent.fork("held")
    held_fork.hold("case 42")
    with pytest.raises(SessionHeld):
        parent.redact(2, reason="a slip")
    held_fork.release()
    stone = parent.fork("stone")
    stone.retention = {"immutable": True}
    with pytest.raises(ImmutableSession):
        parent.redact(2, reason="a slip")
    assert list_texts(parent) == list_texts(stone) == ["message 1", "message 2", "message 3"]
    parent.add_message(Message.user("not shared"))
    parent.redact(find_seq(parent, "not shared"), reason="a slip")
    assert list_texts(parent)[-1] == "[erased]"


def test_an_erasure_stops_for_a_fork_that_is_held(sharing_store: Store) -> None:
    parent = Session("parent", store=sharing_store, messages=make_messages(3))
    fork = parent.fork("fork")
    fork.hold("case 42")
    with pytest.raises(SessionHeld):
        parent.erase(reason="asked to", actor="dpo")
    assert list_texts(fork) == ["message 1", "message 2", "message 3"]


@tool
def look(at: str) -> str:
    """Look somewhere."""
    return f"seen {at}"


def make_eventful_session(store: Store) -> Session:
    """A session with nearly every kind of event in its log."""
    script = [
        call("look", {"at": "a"}), "one", error("down"), [call("look", {"at": "b"}), call("remember", {"text": "c"})],
        "two", call("pay", {"cents": 5}), "three", "four",
    ]  # fmt: skip
    agent = make_scripted_agent(*script, tools=[look, pay, remember], output_key="draft", instructions="Be {mood}.")
    files = [Message.user(f"file {n}", File(data=b"%d" % n, media_type="text/plain")) for n in range(4)]
    session = agent.session(
        "eventful", store=store, title="A title", system="You sell tea.", metadata={"a": 1}, state={"mood": "kind"},
        messages=[Message.system("a rule"), *files], retention={"ttl_days": 30},
    )  # fmt: skip
    session.facts.update(session.facts.add("a fact").id, status="done")
    session.run("first")
    with pytest.raises(ProviderUnavailable):
        session.run("second")
    session.run("third")
    session.prune("keep_last_8")
    session.add_message(Message.user("once"), once="key")
    session.prune("summarize_old", threshold=3, agent=make_scripted_agent("a summary"))
    session.undo_prune()
    session.prune("summarize_old", threshold=3, agent=make_scripted_agent("another"))
    session.run("fourth")
    session.approve(session.pending[0].call_id)
    session.resume()
    at = session.head
    session.set_state("x", 1)
    session.delete_state("x")
    session.clear()
    session.run("fifth")
    session.rewind(to=at)
    session.hold("case 42")
    session.release()
    session.pause()
    session.resume()
    store.save(session.id, session.to_dict() | {"messages": session.to_dict()["messages"][1:]})
    return session


def check_session_is_readable(store: Store, session: Session) -> None:
    """Everything can still be read, and holds."""
    assert session.verify()
    assert store.rebuild_view(session.log) == store.view(session.log)
    head = session.head
    store.save(session.id, session.to_dict())
    assert session.head == head
    assert session.brief()
    assert session.export("html")
    for event in session.events(types="model.called", limit=None):
        if not event.erased:
            session.context(event.seq)
    assert len(session.messages) == len(session)


@pytest.mark.parametrize("seed", range(4))
def test_any_event_can_be_redacted(store: Store, seed: int) -> None:
    session = make_eventful_session(store)
    fork = session.fork("fork")
    chance = random.Random(seed)
    for seq in chance.sample(range(1, session.head + 1), 8):
        with contextlib.suppress(InvalidArgument):  # it went with another one
            session.redact(seq, reason="a slip")
        check_session_is_readable(store, session)
        check_session_is_readable(store, fork)
    copy = Session.import_(session.export(), session_id="copy", store=store)
    assert list_texts(copy) == list_texts(session)
    for each in (session, fork, copy):
        each.run("and now?", agent=make_scripted_agent("fine"))
        assert list_texts(each)[-2:] == ["and now?", "fine"]
        each.undo_prune()
        each.rewind(to=chance.randrange(1, each.head))
        each.prune("summarize_old", threshold=2)
        check_session_is_readable(store, each)
    session.erase(reason="asked to", actor="dpo")
    assert session.verify()
    assert fork.verify()


def test_a_redacted_summary_is_followed_by_an_honest_one(store: Store, do: Do) -> None:
    session = Session(store=store, messages=[Message.user(SECRET), *make_messages(9)])
    session.prune("summarize_old", threshold=3)
    summary = session.messages[0].seq
    do(session, "redact", summary, reason="a slip")
    assert list_texts(session) == ["[erased]", "message 7", "message 8", "message 9"]
    session.add_messages(make_messages(6, first=10))
    session.prune("summarize_old", threshold=3)
    assert list_texts(session)[0].startswith("[Summary of")
    assert SECRET not in list_texts(session)[0]
    assert list_texts(session)[1:] == ["message 13", "message 14", "message 15"]
    assert session.undo_prune()
    assert session.undo_prune()
    assert list_texts(session) == [SECRET, *[f"message {n}" for n in range(1, 16)]]  # only the summary was redacted


# -- erasure -----------------------------------------------------------------------------------------------------------


def make_secret_session(store: Store, id: str, name: str = SECRET, **options: Any) -> Session:
    """A session with the secret in every place that there is; `name` is that of a state value and of a key."""
    agent = make_scripted_agent(f"I know {SECRET}", output_key="draft", instructions=f"Guard {SECRET}")
    session = agent.session(
        id, store=store, title=SECRET, system=SECRET, metadata={"card": SECRET}, state={name: SECRET},
        messages=[Message.user(SECRET, File(data=SECRET.encode(), media_type="text/plain")), *make_messages(5)],
        **options,
    )  # fmt: skip
    session.facts.add(SECRET)
    session.run(f"keep {SECRET}")
    session.prune("summarize_old", threshold=2)
    session.add_message(Message.user("once"), once=name)
    return session


def test_an_erased_session_is_only_a_chain(store: Store, do: Do, tmp_path: Path) -> None:
    session = make_secret_session(store, "s")
    count = session.head
    hashes = [event.hash for event in session.events(limit=None)]
    done = do(session, "erase", reason="asked to", actor="dpo")
    assert (done.sessions, done.events) == (["s"], count)
    assert (session.messages, session.title, session.metadata, session.system) == ([], None, {}, None)
    assert (list(session.state.keys()), session.facts.all(), session.status) == ([], [], "erased")
    assert [event.hash for event in session.events(limit=None)][:-1] == hashes
    assert all(event.erased for event in session.events(limit=None)[:-1])
    record = session.events(limit=1)[0]
    assert (record.type, record.actor, record.data["reason"]) == ("session.erased", "dpo", "asked to")
    check_secret_is_gone(store, session)
    for change in (
        lambda: session.add_message(Message.user("more")),
        lambda: session.set_state("a", 1),
        lambda: session.facts.add("more"),
        lambda: session.run("more"),
        lambda: session.reopen(),
    ):
        with pytest.raises(LifecycleError):
            change()
    file = tmp_path / "export.jsonl"
    file.write_text(session.export())
    assert run_command("verify", file).exit_code == 0
    assert store.delete("s")


def test_an_erasure_goes_before_immutability_but_not_before_a_hold(store: Store) -> None:
    session = make_secret_session(store, "s")
    session.retention = {"immutable": True}
    session.hold("case 42")
    with pytest.raises(SessionHeld):
        session.erase(reason="asked to", actor="dpo")
    session.release()
    session.erase(reason="asked to", actor="dpo")
    check_secret_is_gone(store, session)
    for options in ({"reason": "", "actor": "dpo"}, {"reason": "asked to", "actor": ""}):
        with pytest.raises(InvalidArgument):
            Session(store=store).erase(**options)


def test_forks_show_what_was_erased_with_their_parent(sharing_store: Store) -> None:
    parent = make_secret_session(sharing_store, "parent")
    parent.undo_prune()
    fork = parent.fork("fork")
    fork.add_message(Message.user("mine"))
    parent.erase(reason="asked to", actor="dpo")
    assert set(list_texts(fork)[:-1]) == {"[erased]"}
    assert list_texts(fork)[-1] == "mine"
    assert fork.facts.all() == []
    check_secret_is_gone(sharing_store, fork)
    fork.add_message(Message.user("more"))
    assert fork.verify()


def test_a_user_is_erased_everywhere(store: Store) -> None:
    mine = [make_secret_session(store, f"a{number}", user_id="alice", app_name="shop") for number in range(3)]
    mine.append(mine[0].fork("a3"))
    mine.append(mine[0].successor("a4"))
    other = make_secret_session(store, "b", user_id="bob", app_name="shop")
    mine[0].set_state("card", SECRET, scope="user")
    other.set_state("card", "bob's", scope="user")
    other.set_state("open", "9 to 5", scope="app")
    before = list_texts(other)
    done = Session.erase_user("alice", reason="asked to", actor="dpo", store=store)
    assert sorted(done.sessions) == ["a0", "a1", "a2", "a3", "a4"]
    assert done.user_state
    for session in mine:
        assert session.status == "erased"
        check_secret_is_gone(store, session)
    assert Session("new", store=store, user_id="alice").get_state("card", scope="user") is None
    assert (list_texts(other), other.get_state("card", scope="user")) == (before, "bob's")
    assert other.get_state("open", scope="app") == "9 to 5"
    again = Session.erase_user("alice", reason="asked to", actor="dpo", store=store)
    assert again.sessions == ["new"]  # the others are erased already
    nobody = Session.erase_user("nobody", reason="asked to", actor="dpo", store=store)
    assert (nobody.sessions, nobody.events, nobody.user_state) == ([], 0, False)


def test_a_held_session_stops_the_erasure_of_a_user_before_it_begins(store: Store) -> None:
    first, second, third = [Session(f"a{n}", store=store, user_id="alice", messages=make_messages(2)) for n in range(3)]
    second.hold("case 42")
    with pytest.raises(SessionHeld):
        Session.erase_user("alice", reason="asked to", actor="dpo", store=store)
    assert list_texts(first) == list_texts(second) == list_texts(third) == ["message 1", "message 2"]


def test_an_erased_session_is_purged_when_its_time_has_come(store: Store, clock: DayClock) -> None:
    for id, kept in (("plain", {"ttl_days": 10}), ("archived first", {"ttl_days": 10, "archive_after_days": 5})):
        Session(id, store=store, messages=make_messages(2), retention=kept).erase(reason="asked to", actor="dpo")
    clock.pass_days(11)
    sweep(store)
    sweep(store)
    assert list_ids(store) == []


def redact_all(store: Store) -> None:
    session = make_secret_session(store, "s", name="card")  # names stay, so that what they named can be seen to be gone
    for seq in range(1, session.head + 1):
        event = session.events(after=seq - 1, limit=1)[0]
        if SECRET in str(event.data):
            session.redact(seq, reason="a slip")


def erase(store: Store) -> None:
    make_secret_session(store, "s").erase(reason="asked to", actor="dpo")


def erase_user(store: Store) -> None:
    make_secret_session(store, "s", user_id="alice").set_state("card", SECRET, scope="user")
    Session.erase_user("alice", reason="asked to", actor="dpo", store=store)


def purge(store: Store) -> None:
    make_secret_session(store, "s", retention=SOON)
    assert sweep(store).purged == ["s"]


def delete(store: Store) -> None:
    make_secret_session(store, "s")
    assert store.delete("s")


@pytest.mark.parametrize("how", [redact_all, erase, erase_user, purge, delete], ids=lambda how: how.__name__)
def test_the_files_of_a_store_forget(tmp_path: Path, how: Callable[[Store], None]) -> None:
    with SQLiteStore(tmp_path / "sessions.db") as store:
        Session("other", store=store, messages=make_messages(50))
        how(store)
        if how not in (purge, delete):
            check_files_have_no_secret(tmp_path)  # at once, while the store is open
    check_files_have_no_secret(tmp_path)


@pytest.mark.parametrize("how", [redact_all, erase, erase_user, purge, delete], ids=lambda how: how.__name__)
def test_documents_and_tables_forget(
    request: pytest.FixtureRequest, how: Callable[[Store], None], tmp_path: Path
) -> None:
    documents = open_store("documents", request, tmp_path)
    assert isinstance(documents, DocumentStore)
    assert isinstance(documents.documents, DictStore)
    how(documents)
    assert [name for name, text in documents.documents.kept.items() if SECRET in text] == []
    postgres = open_store("postgres", request, tmp_path)
    assert isinstance(postgres, PostgresStore)
    how(postgres)
    tables = postgres.server.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")
    for (table,) in tables:
        rows = postgres.server.fetch(f"SELECT t::text FROM holdfast.{table} t")
        assert [row for (row,) in rows if SECRET in row or SECRET.encode().hex() in row] == [], table


def check_files_have_no_secret(folder: Path) -> None:
    assert [file.name for file in folder.iterdir() if SECRET.encode() in file.read_bytes()] == []


# -- the awaited classes -----------------------------------------------------------------------------------------------


async def test_the_same_names_are_awaited_in_aio(store: Store) -> None:
    session = aio.Session("s", store=store, messages=make_messages(3))
    done = await session.redact(2, reason="a slip", actor="dpo")
    assert done.seq == 2
    assert [message.text for message in await session.history()] == ["[erased]", "message 2", "message 3"]
    session.hold("case 42")
    with pytest.raises(SessionHeld):
        await session.redact(3, reason="a slip")
    session.release()
    assert await session.verify()
    assert await session.search("message 1") == []
    await session.archive()
    assert "event.redacted" in await session.export()
    erased = await session.erase_async(reason="asked to", actor="dpo")
    assert erased.sessions == ["s"]
    assert await session.verify()
