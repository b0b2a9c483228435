"""Sections 5 and 9 of the promises, first half: pruning, summaries, what a model is sent, facts, briefs, successors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, LanguageModel, Message, Session, ToolContext, Usage, aio, tool
from holdfast.errors import AgentError, ContextTooLong, InvalidArgument, TurnOpen
from holdfast.log.messages import ToolCall, ToolResult
from holdfast.models.base import Done, ModelEvent, ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.base import Store
from holdfast.testing import call, error
from holdfast.testing.contract import run_together
from holdfast.tools import remember
from tests.kit.agents import list_texts, list_types, make_messages, read_texts
from tests.scenarios.ways import WAYS, Ask, blocking_only, make_ask, make_resume, store_does_not_matter

Do = Callable[..., Any]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def ask(way: str) -> Ask:
    return make_ask(way)


@pytest.fixture(params=["blocking", "awaited"])
def do(request: pytest.FixtureRequest) -> Do:
    """`do(session, "prune", ...)`: the plain method, or its awaited twin."""

    def perform(session: Session, name: str, *args: Any, **options: Any) -> Any:
        if request.param == "blocking":
            return getattr(session, name)(*args, **options)
        return asyncio.run(getattr(session, f"{name}_async")(*args, **options))

    return perform


def make_recording_agent(*replies: Any, window: int = 128_000, **options: Any) -> tuple[Agent, list[ModelRequest]]:
    """An agent that gives these replies, the last one again and again, and what it was sent."""
    seen: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Any:
        seen.append(request)
        return replies[min(len(seen), len(replies)) - 1]

    return Agent(model=LanguageModel("scripted", script=reply, context_window=window), **options), seen


def make_long_session(store: Store, count: int = 12, **options: Any) -> Session:
    return Session(store=store, messages=make_messages(count), **options)


def make_calls_message(*ids: str, text: str = "") -> Message:
    parts: list[Any] = [text] if text else []
    return Message("assistant", [*parts, *[ToolCall(id=each, name="look", arguments={"at": each}) for each in ids]])


def find_orphans(messages: Sequence[Message]) -> list[str]:
    """Calls without a result behind them, and results without a call before them."""
    unanswered: list[str] = []
    found: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult) and part.call_id in unanswered:
                unanswered.remove(part.call_id)
            elif isinstance(part, ToolResult):
                found.append(part.call_id)
        unanswered += [part.id for part in message.tool_calls]
    return found + unanswered


def estimate_tokens(request: ModelRequest) -> int:
    """About how many tokens a prompt has, counted by the letters."""
    letters = sum(len(piece) for piece in request.system_texts)
    for message in request.messages:
        for part in message.parts:
            letters += len(part.content) if isinstance(part, ToolResult) else len(getattr(part, "text", ""))
    return letters // 4


def describe_messages(messages: Sequence[Message]) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """What can be compared of messages: role, text, calls, results."""
    return [
        (
            message.role,
            message.text,
            tuple(f"{part.id}:{part.name}:{part.arguments}" for part in message.tool_calls),
            tuple(f"{part.call_id}:{part.content}" for part in message.parts if isinstance(part, ToolResult)),
        )
        for message in messages
    ]


STRATEGIES: list[tuple[str, dict[str, Any]]] = [
    ("keep_last_4", {}),
    ("sliding_window", {"window_size": 4}),
    ("token_budget", {"max_tokens": 40}),
    ("summarize_old", {"threshold": 4}),
    ("keep_important", {}),
]
strategies = pytest.mark.parametrize(("strategy", "limits"), STRATEGIES, ids=[name for name, _ in STRATEGIES])


# -- pruning -----------------------------------------------------------------------------------------------------------


def test_the_snippet_of_section_nine(store: Store, do: Do) -> None:
    session = make_long_session(store, 300)
    report = do(session, "prune", strategy="keep_last_250")
    assert (report.removed, report.kept, len(session)) == (50, 250, 250)
    report = do(session, "prune", strategy="sliding_window", window_size=200)
    assert (report.removed, report.kept, len(session)) == (50, 200, 200)
    would = do(session, "prune", strategy="sliding_window", dry_run=True)
    assert (would.removed, would.kept, len(session)) == (100, 100, 200)
    report = do(session, "prune", strategy="summarize_old", threshold=50)
    assert (report.removed, report.kept, len(session)) == (150, 50, 51)
    assert do(session, "prune", strategy="token_budget", max_tokens=100).removed
    assert session.messages[-1].text == "message 300"
    assert do(session, "prune", strategy="keep_important").kept == len(session)
    assert do(session, "verify")


def test_the_newest_messages_stay(store: Store, do: Do) -> None:
    session = make_long_session(store, 12)
    old = [message.seq for message in session.messages]
    report = do(session, "prune", strategy="keep_last_5", actor="ops")
    assert list_texts(session) == [f"message {n}" for n in range(8, 13)]
    assert list(report.removed) == old[:7]
    assert list(report.kept) == old[7:]
    assert set(report.reasons) == set(old[:7])
    assert all(report.reasons.values())
    assert report.freed_tokens > 0
    pruned = session.events(types="view.pruned")
    assert [(event.data["strategy"], event.actor, event.seq) for event in pruned] == [
        ("keep_last_5", "ops", report.seq)
    ]


@strategies
def test_a_dry_run_changes_nothing_and_reports_what_a_prune_would_do(
    store: Store, do: Do, strategy: str, limits: dict[str, Any]
) -> None:
    session = make_long_session(store, 30)
    before, head = list_texts(session), session.head
    would = do(session, "prune", strategy, dry_run=True, **limits)
    assert (session.head, list_texts(session)) == (head, before)
    assert would.dry_run
    assert would.seq is None
    listed = (list(would.removed), list(would.kept), dict(would.reasons))
    report = do(session, "prune", strategy, **limits)
    assert (list(report.removed), list(report.kept), dict(report.reasons)) == listed
    assert report.removed
    assert (would.summary, would.strategy) == (report.summary, report.strategy)
    left = [message.seq for message in session.messages if not message.metadata.get("summary")]
    assert left == list(report.kept)


def test_a_dry_run_asks_no_model(store: Store, do: Do) -> None:
    agent, seen = make_recording_agent("a summary")
    session = agent.session(store=store, messages=make_messages(12))
    do(session, "prune", "summarize_old", threshold=4, dry_run=True)
    assert seen == []


@strategies
def test_the_log_and_the_export_still_hold_everything(
    store: Store, do: Do, strategy: str, limits: dict[str, Any]
) -> None:
    session = make_long_session(store, 30)
    do(session, "prune", strategy, **limits)
    assert len(session) < 30
    logged = [event.data["text"] for event in session.events(types="message.added", limit=None)]
    assert logged == read_texts(make_messages(30))
    exported = do(session, "export", format="jsonl")
    assert all(f'"message {number}"' in exported for number in range(1, 31))
    assert do(session, "verify")
    assert store.rebuild_view(session.log) == store.view(session.log)


@strategies
def test_nothing_to_prune_writes_nothing(store: Store, do: Do, strategy: str, limits: dict[str, Any]) -> None:
    session = make_long_session(store, 2)
    head = session.head
    report = do(session, "prune", strategy, **limits)
    assert (report.removed, report.kept, session.head) == (0, 2, head)
    assert not report.removed
    assert report.reasons == {}


def test_pruning_an_empty_session_is_fine(store: Store, do: Do) -> None:
    session = Session(store=store)
    for strategy, limits in STRATEGIES:
        assert do(session, "prune", strategy, **limits).removed == 0


@strategies
def test_an_undo_restores_what_a_prune_took(store: Store, do: Do, strategy: str, limits: dict[str, Any]) -> None:
    session = make_long_session(store, 30)
    before = session.messages
    do(session, "prune", strategy, **limits)
    session.add_message(Message.user("since then"))
    assert session.undo_prune(actor="ops")
    assert list_texts(session) == [*read_texts(before), "since then"]
    assert [message.seq for message in session.messages[:-1]] == [message.seq for message in before]
    assert not session.undo_prune()
    assert session.events(types="view.unpruned")[0].actor == "ops"
    session.add_message(Message.user("and after"))
    assert list_texts(session)[-2:] == ["since then", "and after"]
    assert store.rebuild_view(session.log) == store.view(session.log)


def test_prunes_are_undone_one_by_one(store: Store) -> None:
    session = make_long_session(store, 12)
    session.prune("keep_last_8")
    session.add_message(Message.user("message 13"))
    session.prune("summarize_old", threshold=5)
    session.prune("keep_last_2")
    assert session.undo_prune()
    assert list_texts(session)[1:] == [f"message {n}" for n in range(9, 14)]
    assert list_texts(session)[0].startswith("[Summary of 4 earlier messages")
    assert session.undo_prune()
    assert list_texts(session) == [f"message {n}" for n in range(5, 14)]
    assert session.undo_prune()
    assert list_texts(session) == read_texts(make_messages(13))
    assert not session.undo_prune()


def test_there_is_no_undo_of_a_prune_behind_a_clear_or_a_rewind(store: Store) -> None:
    session = make_long_session(store, 8)
    session.prune("keep_last_4")
    session.clear()
    assert not session.undo_prune()
    assert session.messages == []
    session.add_messages(make_messages(6))
    at = session.head
    session.prune("keep_last_2")
    session.rewind(to=at)
    assert not session.undo_prune()
    assert list_texts(session) == read_texts(make_messages(6))


def test_a_prune_can_be_undone_in_another_object_and_in_a_fork(store: Store) -> None:
    session = make_long_session(store, 8, id="long")
    session.prune("keep_last_3")
    fork = session.fork()
    assert Session.open("long", store=store).undo_prune()
    assert len(session) == 8
    assert list_texts(fork) == ["message 6", "message 7", "message 8"]
    assert fork.undo_prune()
    assert list_texts(fork) == read_texts(make_messages(8))


def test_an_undo_waits_for_a_turn_that_is_open_elsewhere(store: Store) -> None:
    agent = Agent(provider="scripted", script=["a long story"])
    session = agent.session("open", store=store, messages=make_messages(8))
    session.prune("keep_last_4")
    stream = session.stream("tell me")
    next(stream)
    other = Session.open("open", store=store)
    with pytest.raises(TurnOpen):
        other.undo_prune()
    list(stream)
    assert other.undo_prune()
    assert list_texts(session) == [*read_texts(make_messages(8)), "tell me", "a long story"]


@strategies
def test_pruning_during_a_turn_elsewhere_loses_nothing_of_the_turn(
    store: Store, do: Do, strategy: str, limits: dict[str, Any]
) -> None:
    agent = Agent(provider="scripted", script=["a long story"])
    session = agent.session("open", store=store, messages=make_messages(30))
    stream = session.stream("tell me")
    next(stream)
    other = Session.open("open", store=store)
    do(other, "prune", strategy, **limits)
    other.add_message(Message.user("from outside"))
    list(stream)
    assert list_texts(session)[-3:] == ["tell me", "a long story", "from outside"]
    assert len(session) < 20
    assert session.undo_prune()
    assert list_texts(session) == [*read_texts(make_messages(30)), "tell me", "a long story", "from outside"]
    assert store.rebuild_view(session.log) == store.view(session.log)


def test_what_was_pruned_is_not_found_and_not_in_documents_but_comes_back(store: Store, do: Do) -> None:
    session = make_long_session(store, 10, id="long")
    at = session.head
    session.prune("keep_last_3")
    assert session.search("message 2") == []
    assert len(do(session, "search", "message 9")) == 1
    assert [m["content"] for m in session.to_dict()["messages"]] == ["message 8", "message 9", "message 10"]
    assert len(do(session, "history", limit=None)) == 3
    assert "message 2" not in do(session, "export", format="markdown")
    assert len(session.fork(at=at)) == 10
    copy = Session.import_(do(session, "export"), session_id="copy", store=store)
    assert list_texts(copy) == list_texts(session)
    assert copy.undo_prune()
    assert list_texts(copy) == read_texts(make_messages(10))
    session.undo_prune()
    assert len(do(session, "search", "message 2")) == 1


def test_saving_the_same_document_after_a_prune_changes_nothing(store: Store) -> None:
    session = make_long_session(store, 10, id="long")
    for strategy, limits in STRATEGIES:
        session.prune(strategy, **limits)
        head = session.head
        store.save("long", session.to_dict())
        assert session.head == head


def test_pruning_while_others_write_loses_nothing(store: Store) -> None:
    Session("busy", store=store)
    threads = 4

    def work(number: int) -> None:
        session = Session.open("busy", store=store)
        for count in range(8):
            session.add_message(Message.user(f"message {number}-{count}"))
            if count % 3 == 0:
                session.prune("keep_last_5")
            if count % 4 == 3:
                session.prune("summarize_old", threshold=3)

    run_together(*[lambda number=number: work(number) for number in range(threads)])
    session = Session.open("busy", store=store)
    everything = {f"message {number}-{count}" for number in range(threads) for count in range(8)}
    assert {event.data["text"] for event in session.events(types="message.added", limit=None)} == everything
    assert store.rebuild_view(session.log) == store.view(session.log)
    while session.undo_prune():
        assert len(list_texts(session)) == len(set(list_texts(session)))
    assert {text for text in list_texts(session) if text.startswith("message")} == everything
    assert session.verify()


class ExpectedHistory:
    """A session and its expected messages, after each random operation."""

    def __init__(self, store: Store, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers = itertools.count()
        self.agent, self.seen = make_recording_agent(lambda request: f"answer {next(self.numbers)}")
        self.session = self.agent.session(store=store)
        self.visible: list[str] = []
        self.cuts: list[list[str]] = []  # what was visible before each prune that can be undone
        self.past = [(self.session.head, [*self.visible])]

    def add(self) -> None:
        fresh = [f"message {next(self.numbers)}" for _ in range(self.chance.randrange(1, 5))]
        self.session.add_messages([Message.user(text) for text in fresh])
        self.visible += fresh

    def run(self) -> None:
        question = f"question {next(self.numbers)}"
        self.visible += [question, self.session.run(question).text]
        assert read_texts(self.seen[-1].messages) == self.visible[:-1]

    def prune(self) -> None:
        count = self.chance.randrange(1, 9)
        if self.session.prune(f"keep_last_{count}").removed:
            self.cuts.append(self.visible)
            self.visible = self.visible[-count:]

    def prune_by_choice(self) -> None:
        chosen = {text for text in self.visible if self.chance.random() < 0.6}
        if self.session.prune(lambda talk: [message for message in talk if message.text in chosen]).removed:
            self.cuts.append(self.visible)
            self.visible = [text for text in self.visible if text in chosen]

    def undo(self) -> None:
        assert self.session.undo_prune() == bool(self.cuts)
        if self.cuts:
            before = self.cuts.pop()
            self.visible = before + [text for text in self.visible if text not in before]

    def clear(self) -> None:
        self.session.clear()
        self.visible, self.cuts = [], []

    def rewind(self) -> None:
        seq, visible = self.chance.choice(self.past)
        self.session.rewind(to=seq)
        self.visible, self.cuts = [*visible], []

    def fork(self) -> None:
        self.session = self.session.fork()

    def perform_random_operation(self) -> None:
        moves = [self.add] * 4 + [self.run] * 3 + [self.prune] * 3 + [self.prune_by_choice] * 2 + [self.undo] * 3
        self.chance.choice([*moves, self.clear, self.rewind, self.fork])()
        self.past.append((self.session.head, [*self.visible]))


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_show_the_expected_messages(store: Store, seed: int) -> None:
    life = ExpectedHistory(store, seed)
    for _ in range(40):
        life.perform_random_operation()
        assert list_texts(life.session) == life.visible
        assert len(life.session) == len(life.visible)
    calls = life.session.events(types="model.called", limit=None)
    sent = {read_texts(request.messages)[-1]: request for request in life.seen}
    for event in calls:
        context = life.session.context(call=event.seq)
        assert describe_messages(context.messages) == describe_messages(sent[context.messages[-1].text].messages)
    assert store.rebuild_view(life.session.log) == store.view(life.session.log)
    assert life.session.verify()


# -- strategies of one's own, and mistakes -----------------------------------------------------------------------------


def test_a_function_is_a_strategy(store: Store, do: Do) -> None:
    session = make_long_session(store, 10)

    def even_ones(messages: list[Message]) -> list[Message]:
        return [message for message in messages if int(message.text.split()[1]) % 2 == 0]

    report = do(session, "prune", strategy=even_ones)
    assert list_texts(session) == ["message 2", "message 4", "message 6", "message 8", "message 10"]
    assert report.strategy == "even_ones"
    assert set(report.reasons.values()) == {"not kept by even_ones"}
    do(session, "prune", strategy=lambda messages: (message.seq for message in messages[-1:]))
    assert list_texts(session) == ["message 10"]
    do(session, "prune", strategy=lambda messages: [])
    assert list_texts(session) == []
    assert session.undo_prune()
    assert list_texts(session) == ["message 10"]


def test_a_function_cannot_split_an_exchange_or_drop_the_opening(store: Store, do: Do) -> None:
    talk = [
        Message.system("be kind"), Message.user("look"), make_calls_message("a", "b"), Message.tool("one", call_id="a"),
        Message.tool("two", call_id="b"), Message.assistant("done"),
    ]  # fmt: skip
    session = Session(store=store, messages=talk)
    do(session, "prune", strategy=lambda messages: [messages[4]])
    assert [message.role for message in session.messages] == ["system", "assistant", "tool", "tool"]
    assert find_orphans(session.messages) == []


@store_does_not_matter
@blocking_only
@pytest.mark.parametrize(
    "strategy",
    [
        lambda messages: [999],
        lambda messages: ["message 1"],
        lambda messages: [True],
        lambda messages: [None],
        lambda messages: [Message.user("not one of them")],
        lambda messages: None,
        lambda messages: 3,
    ],
    ids=["unknown seq", "a text", "a bool", "none in it", "a new message", "nothing", "a number"],
)
def test_a_function_that_gives_something_else_is_a_clear_error(store: Store, do: Do, strategy: Any) -> None:
    session = make_long_session(store, 3)
    head = session.head
    with pytest.raises(InvalidArgument, match="strategy"):
        do(session, "prune", strategy=strategy)
    assert session.head == head


def keep_all(messages: list[Message]) -> list[Message]:
    return messages


@store_does_not_matter
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "keep_last_0"},
        {"strategy": "keep_last_-1"},
        {"strategy": "keep_last_"},
        {"strategy": "keep_last_1.5"},
        {"strategy": "newest"},
        {"strategy": ""},
        {"strategy": 5},
        {"strategy": None},
        {"strategy": "sliding_window", "window_size": 0},
        {"strategy": "sliding_window", "window_size": -3},
        {"strategy": "sliding_window", "window_size": 1.5},
        {"strategy": "sliding_window", "window_size": True},
        {"strategy": "sliding_window", "window_size": "10"},
        {"strategy": "sliding_window", "threshold": 5},
        {"strategy": "summarize_old", "threshold": 0},
        {"strategy": "summarize_old", "window_size": 5},
        {"strategy": "token_budget", "max_tokens": 0},
        {"strategy": "keep_last_5", "window_size": 5},
        {"strategy": "keep_important", "max_tokens": 5},
        {"strategy": keep_all, "threshold": 5},
        {"strategy": "keep_last_5", "actor": 3},
        {"strategy": "keep_last_5", "actor": ""},
    ],
    ids=lambda options: " ".join(f"{name}={getattr(each, '__name__', repr(each))}" for name, each in options.items()),
)
def test_bad_parameters_are_argument_errors(store: Store, options: dict[str, Any]) -> None:
    session = make_long_session(store, 12)
    head = session.head
    with pytest.raises(ValueError) as caught:
        session.prune(**options)
    assert isinstance(caught.value, AgentError)
    assert session.head == head


def test_a_token_budget_without_a_number_is_a_share_of_the_models_window(store: Store, do: Do) -> None:
    agent, _ = make_recording_agent("fine", window=1000)
    session = agent.session(store=store, messages=[Message.user("x" * 400) for _ in range(20)])
    do(session, "prune", "token_budget")
    assert 5 <= len(session) <= 8
    bare = Session(store=store, messages=[Message.user("x" * 400) for _ in range(20)])
    assert do(bare, "prune", "token_budget").removed == 0


# -- what pruning never does -------------------------------------------------------------------------------------------


def make_conversation(seed: int, *, unique: bool) -> list[Message]:
    """A talk with system messages at the front, texts, and exchanges of one to four calls, answered out of order.

    Some providers number the calls of each reply from one, so their ids come again.
    """
    chance = random.Random(seed)
    talk = [Message.system(f"rule {number}") for number in range(chance.randrange(3))]
    for number in range(chance.randrange(6, 16)):
        kind = chance.choice(["user", "assistant", "exchange", "exchange", "system"])
        if kind == "exchange":
            prefix = f"{number}-" if unique else ""
            ids = [f"{prefix}{each}" for each in range(chance.randrange(1, 5))]
            talk.append(make_calls_message(*ids, text=chance.choice(["", "let me look"])))
            chance.shuffle(ids)
            talk += [Message.tool(f"result {each} " * chance.randrange(1, 9), call_id=each) for each in ids]
        else:
            talk.append(Message(kind, [f"text {number} " * chance.randrange(1, 9)]))
    return talk


def list_opening(messages: Sequence[Message]) -> list[Message]:
    return list(itertools.takewhile(lambda message: message.role == "system", messages))


LONGEST_EXCHANGE = 5


def list_strategies(length: int, chance: random.Random) -> list[tuple[Any, dict[str, Any]]]:
    tries: list[tuple[Any, dict[str, Any]]] = [(f"keep_last_{n}", {}) for n in range(1, length + 1)]
    tries += [("sliding_window", {"window_size": n}) for n in range(1, length, 4)]
    tries += [("token_budget", {"max_tokens": tokens}) for tokens in (1, 7, 20, 50, 120, 300)]
    tries += [("summarize_old", {"threshold": n}) for n in range(1, length, 3)]
    tries += [("keep_important", {})]
    tries += [(lambda talk, n=n: [one for one in talk if chance.random() < n / 4], {}) for n in range(4)]
    return tries


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unique", [True, False], ids=["ids of their own", "ids that come again"])
def test_calls_and_results_are_never_split(store: Store, seed: int, unique: bool) -> None:
    agent, seen = make_recording_agent("fine")
    talk = make_conversation(seed, unique=unique)
    rules = read_texts(list_opening(talk))
    session = agent.session(store=store, messages=talk)
    for strategy, limits in list_strategies(len(talk), random.Random(seed)):
        report = session.prune(strategy, **limits)
        left = session.messages
        assert find_orphans(left) == [], (strategy, limits)
        assert read_texts(left)[: len(rules)] == rules, (strategy, limits)
        if isinstance(strategy, str) and strategy.startswith("keep_last_"):
            assert len(left) <= max(int(strategy[10:]), LONGEST_EXCHANGE) + len(rules)
        assert find_orphans(session.context().messages) == []
        if report.removed:
            assert session.undo_prune()
        assert describe_messages(session.messages) == describe_messages(talk)
    session.prune("keep_last_3")
    seen.clear()
    session.run("and?")
    assert find_orphans(seen[0].messages) == []
    assert seen[0].messages[-1].text == "and?"


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay something."""
    return f"paid {cents} cents"


@strategies
def test_an_open_approval_survives(store: Store, way: str, strategy: str, limits: dict[str, Any]) -> None:
    agent, seen = make_recording_agent(call("pay", {"cents": 5}), "It is paid.", tools=[pay])
    session = agent.session("shop", store=store, messages=make_messages(30))
    assert make_ask(way)(session, "please pay").status == "waiting"
    (waiting,) = session.pending
    other = Session.open("shop", store=store)
    assert other.prune(strategy, **limits).removed
    assert [each.call_id for each in session.pending] == [waiting.call_id]
    assert session.status == "waiting"
    session.approve(waiting.call_id)
    response = make_resume(way)(session)
    assert response is not None
    assert (response.text, response.status) == ("It is paid.", "finished")
    assert [m.role for m in session.messages[-4:]] == ["user", "assistant", "tool", "assistant"]
    assert list_texts(session)[-2:] == ["paid 5 cents", "It is paid."]
    assert "please pay" in read_texts(seen[-1].messages)
    assert find_orphans(seen[-1].messages) == []
    assert len(seen[-1].messages) < 20  # the resumed turn is sent the pruned view


@strategies
def test_facts_system_prompt_and_state_survive(store: Store, ask: Ask, strategy: str, limits: dict[str, Any]) -> None:
    agent, seen = make_recording_agent("fine", instructions="Be brief.")
    session = agent.session(store=store, system="You sell tea.", messages=make_messages(30), state={"cart": ["tea"]})
    session.facts.add("use PostgreSQL", kind="decision")
    session.prune(strategy, **limits)
    seen.clear()
    ask(session, "and now?")
    assert seen[0].system_texts == ["Be brief.", "You sell tea.", "What is known:\n- decision: use PostgreSQL"]
    assert session.get_state("cart") == ["tea"]
    session.clear()
    session.rewind(to=2)
    assert [fact.text for fact in session.facts.all()] == ["use PostgreSQL"]
    ask(session, "and now?")
    assert seen[1].system_texts == seen[0].system_texts


def test_a_turn_after_a_prune_is_sent_what_is_left(store: Store, ask: Ask) -> None:
    agent, seen = make_recording_agent("fine")
    session = agent.session(store=store, messages=make_messages(12))
    ask(session, "one")
    session.prune("keep_last_3")
    ask(session, "two")
    assert read_texts(seen[1].messages) == ["message 12", "one", "fine", "two"]
    session.undo_prune()
    ask(session, "three")
    assert read_texts(seen[2].messages) == [*read_texts(make_messages(12)), "one", "fine", "two", "fine", "three"]


# -- what matters ------------------------------------------------------------------------------------------------------


def test_keep_important_keeps_what_matters_and_says_why(store: Store, do: Do) -> None:
    talk = [
        Message.user("Build me a shop"),
        *[Message.assistant(f"chatter {number}") for number in range(5)],
        Message.user("We must never store card numbers"),
        *[make_calls_message("a"), Message.tool("order ord-7781 is open", call_id="a")],
        *[make_calls_message("b"), Message.tool("nothing that anybody names again: zzz-1", call_id="b")],
        *[make_calls_message("c"), Message.tool("boom", call_id="c", is_error=True)],
        Message.user("a note", metadata={"important": True}),
        Message.system("a rule in the middle"),
        *[Message.user(f"hm {number}") for number in range(3)],
        Message.assistant("ord-7781 is shipped"),
        *[Message.assistant(f"end {number}") for number in range(10)],
    ]
    session = Session(store=store, messages=talk)
    report = do(session, "prune", "keep_important")
    left = list_texts(session)
    for kept in ("Build me a shop", "We must never store card numbers", "order ord-7781 is open", "a note",
                 "a rule in the middle", "boom", "end 9"):  # fmt: skip
        assert kept in left
    for gone in ("chatter 3", "hm 1", "nothing that anybody names again: zzz-1"):
        assert gone not in left
    assert find_orphans(session.messages) == []
    assert set(report.kept_because) == set(report.kept)
    assert set(report.reasons) == set(report.removed)


def test_a_model_may_say_what_matters_as_well(store: Store, do: Do) -> None:
    session = make_long_session(store, 30)
    fifth = session.messages[4].seq
    judge, seen = make_recording_agent(f"{fifth}, 99999")
    report = do(session, "prune", "keep_important", agent=judge)
    assert "message 5" in list_texts(session)
    assert "message 6" not in list_texts(session)
    assert len(seen) == 1
    assert report.kept_because[fifth]


def test_keep_important_asks_the_agent_of_the_session(store: Store, do: Do) -> None:
    own, asked = make_recording_agent("6")
    session = own.session(store=store, messages=make_messages(30))
    assert session.messages[4].seq == 6
    preview = do(session, "prune", "keep_important", dry_run=True)
    report = do(session, "prune", "keep_important")
    assert list_texts(session) == ["message 1", "message 5", *[f"message {n}" for n in range(21, 31)]]
    assert preview.kept_because == report.kept_because
    assert report.kept_because[6] == "important to the model that was asked"
    assert len(asked) == 2
    judge, judged = make_recording_agent("nothing")
    do(session, "prune", "keep_important", agent=judge)
    assert (len(asked), len(judged)) == (2, 1)
    assert list_texts(session) == ["message 1", *[f"message {n}" for n in range(21, 31)]]


def test_a_model_that_fails_leaves_keep_important_to_its_rules(store: Store, do: Do) -> None:
    session = make_long_session(store, 30)
    judge, _ = make_recording_agent(error("down"))
    do(session, "prune", "keep_important", agent=judge)
    assert list_texts(session) == ["message 1", *[f"message {n}" for n in range(21, 31)]]


# -- summaries ---------------------------------------------------------------------------------------------------------


def test_a_summary_stands_for_the_old_messages(store: Store, do: Do) -> None:
    agent, seen = make_recording_agent("They counted to eight.")
    session = agent.session(store=store, messages=make_messages(12))
    last = session.messages[7].seq
    report = do(session, "prune", strategy="summarize_old", threshold=4)
    assert list_texts(session)[1:] == ["message 9", "message 10", "message 11", "message 12"]
    summary = session.messages[0]
    assert summary.text == report.summary
    assert re.search(rf"8 earlier messages, events [12] to {last}\b", summary.text)
    assert "They counted to eight." in summary.text
    assert "message 1" in seen[0].messages[-1].text
    assert list_types(session)[-2:] == ["summary.added", "view.compacted"]
    assert session.events(types="summary.added")[0].data["covers"][0][-1] == last


def test_old_sections_are_repeated_word_for_word(store: Store, do: Do) -> None:
    agent, seen = make_recording_agent("First, there was tea.", "Then, there was milk.", "At last, sugar.")
    session = agent.session(store=store, messages=make_messages(10))
    do(session, "prune", "summarize_old", threshold=4)
    session.add_messages(make_messages(6, first=11))
    do(session, "prune", "summarize_old", threshold=4)
    session.add_messages(make_messages(6, first=17))
    do(session, "prune", "summarize_old", threshold=4)
    text = session.messages[0].text
    assert text.index("First, there was tea.") < text.index("Then, there was milk.") < text.index("At last, sugar.")
    assert "18 earlier messages" in text
    assert len(session) == 5
    assert all("there was tea" not in request.messages[-1].text for request in seen[1:])  # never summarized again


@pytest.mark.parametrize("failure", [error("down"), error(ContextTooLong), ""], ids=["down", "too long", "silent"])
def test_without_a_summary_from_the_model_there_is_a_digest(store: Store, do: Do, failure: Any) -> None:
    agent, _ = make_recording_agent(failure)
    session = agent.session(store=store, messages=make_messages(12))
    bare = make_long_session(store, 12)
    do(session, "prune", "summarize_old", threshold=4)
    do(bare, "prune", "summarize_old", threshold=4)
    assert list_texts(session) == list_texts(bare)
    assert "message 1" in list_texts(bare)[0]
    assert len(bare) == 5


def test_another_agent_may_write_the_summary(store: Store, do: Do) -> None:
    mine, my_requests = make_recording_agent("mine")
    other, _ = make_recording_agent("by the other one")
    session = mine.session(store=store, messages=make_messages(12))
    do(session, "prune", "summarize_old", threshold=4, agent=other)
    assert "by the other one" in list_texts(session)[0]
    assert my_requests == []


def test_what_a_summary_cost_is_counted(store: Store, do: Do) -> None:
    agent, _ = make_recording_agent("They counted.")
    session = agent.session(store=store, messages=make_messages(12))
    assert session.usage.total_tokens == 0
    do(session, "prune", "summarize_old", threshold=4)
    used = session.events(types="summary.added")[0].data["usage"]
    assert session.usage.input_tokens == used["input_tokens"] > 0
    assert session.usage.output_tokens == used["output_tokens"] > 0


def test_there_is_nothing_to_summarize_below_the_threshold(store: Store, do: Do) -> None:
    agent, seen = make_recording_agent("a summary")
    session = agent.session(store=store, messages=make_messages(4))
    assert do(session, "prune", "summarize_old", threshold=4).removed == 0
    session.add_messages(make_messages(8, first=5))
    do(session, "prune", "summarize_old", threshold=4)
    head = session.head
    again = do(session, "prune", "summarize_old", threshold=4)
    assert (again.removed, session.head, len(seen)) == (0, head, 1)


def test_a_log_that_is_summarized_as_it_grows_grows_evenly(store: Store) -> None:
    kept = {"auto_prune": True, "prune_strategy": "summarize_old", "max_messages": 10}
    session = Session(store=store, retention=kept)
    stored = []
    for number in range(1, 301):
        session.add_message(Message.user(f"message {number} " + "m" * 40))
        assert len(session) <= 11
        if number % 100 == 0:
            stored.append(sum(len(row.body or b"") for row in store.walk(session.log, 1, session.head)))
            assert len(session.messages[0].text) < 20_000
    assert stored[2] - stored[1] < 1.5 * (stored[1] - stored[0])


# -- a prompt always fits ----------------------------------------------------------------------------------------------

WINDOW = 1500


def test_a_prompt_always_fits_the_window(store: Store, ask: Ask) -> None:
    agent, seen = make_recording_agent("answer " + "a" * 300, window=WINDOW)
    session = agent.session(store=store, system="You sell tea.")
    session.facts.add("ships to Bremen")
    for number in range(20):
        ask(session, f"question {number} " + "q" * 200)
    assert max(estimate_tokens(request) for request in seen) <= 0.8 * WINDOW
    assert [request.messages[-1].text.split()[1] for request in seen] == [str(number) for number in range(20)]
    assert all(request.system_texts[0] == "You sell tea." for request in seen)
    assert all("Bremen" in request.system_texts[1] for request in seen)
    assert len(seen[-1].messages) > 5  # it uses the room it has
    assert len(session) == 40
    assert [kind for kind in list_types(session) if kind.startswith("view.")] == []


def test_a_question_that_fills_the_window_is_still_sent(store: Store, ask: Ask) -> None:
    agent, seen = make_recording_agent("fine", window=WINDOW)
    session = agent.session(store=store, messages=make_messages(30))
    ask(session, "long " * 1000)
    assert read_texts(seen[0].messages) == ["long " * 1000]


@tool
def read_page(number: int) -> str:
    """Read a page of the book."""
    return f"page {number}: " + "word " * 200


def test_a_turn_with_many_long_results_fits(store: Store, ask: Ask) -> None:
    pages = [call("read_page", {"number": number}) for number in range(12)]
    agent, seen = make_recording_agent(*pages, "The end.", window=WINDOW, tools=[read_page])
    session = agent.session(store=store, messages=make_messages(5))
    assert ask(session, "Read me the book.").text == "The end."
    assert max(estimate_tokens(request) for request in seen) <= 0.8 * WINDOW
    last = seen[-1]
    assert "Read me the book." in read_texts(last.messages)
    assert find_orphans(last.messages) == []
    results = [part.content for message in last.messages for part in message.parts if isinstance(part, ToolResult)]
    assert len(results) == 12
    assert "left out of the prompt" in results[0]
    assert results[-1].startswith("page 11: word")
    assert [message.text.startswith("page") for message in session.messages if message.role == "tool"] == [True] * 12


class StrictModel(ScriptedModel):
    """A provider that counts three times as many tokens as we do, and takes none beyond its window."""

    context_window = WINDOW

    def __init__(self) -> None:
        super().__init__(lambda request: "answer " + "a" * 300)

    def _count_tokens(self, request: ModelRequest) -> int:
        tokens = 3 * estimate_tokens(request)
        if tokens > self.context_window:
            raise ContextTooLong("too long", provider="scripted")
        return tokens

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        tokens = self._count_tokens(request)
        for event in super().stream(request):
            yield replace(event, usage=Usage(input_tokens=tokens)) if isinstance(event, Done) else event

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self.stream(request):
            yield event


def test_prompts_fit_a_provider_that_counts_otherwise(store: Store, ask: Ask) -> None:
    model = StrictModel()
    session = Agent(model=model).session(store=store)
    for number in range(15):
        assert ask(session, f"question {number} " + "q" * 200).text.startswith("answer")
    assert len(model.requests) == 15  # it learned how the provider counts before it came to a refusal
    assert len(model.requests[-1].messages) > 1


def make_summarizing_agent(
    window: int = WINDOW, **options: Any
) -> tuple[Agent, list[ModelRequest], list[ModelRequest]]:
    """An agent with a small window, its turns' requests, and its requests for summaries."""
    turns: list[ModelRequest] = []
    summaries: list[ModelRequest] = []

    def reply(request: ModelRequest) -> str:
        if "condense" in "".join(request.system_texts):
            summaries.append(request)
            return f"Part {len(summaries)} of the story. " + "s" * 300
        turns.append(request)
        return "answer " + "a" * 300

    return Agent(model=LanguageModel("scripted", script=reply, context_window=window), **options), turns, summaries


def test_the_policy_of_a_session_makes_room_inside_the_turn(store: Store, ask: Ask) -> None:
    agent, turns, summaries = make_summarizing_agent()
    session = agent.session(store=store, retention={"prune_strategy": "summarize_old", "max_messages": 6})
    for number in range(10):
        ask(session, f"question {number} " + "q" * 200)
    assert "view.compacted" in list_types(session)
    assert summaries
    assert max(estimate_tokens(request) for request in [*turns, *summaries]) <= 0.8 * WINDOW
    assert turns[-1].messages[-1].text.startswith("question 9")
    first = next(at for at, kind in enumerate(list_types(session)) if kind == "view.compacted")
    compacted = session.events(limit=None)[first]
    assert (compacted.data["strategy"], compacted.run is not None) == ("summarize_old", True)
    assert session.usage.input_tokens > sum(estimate_tokens(request) for request in turns)
    assert store.rebuild_view(session.log) == store.view(session.log)


def test_the_summary_is_still_sent_after_many_turns(store: Store) -> None:
    agent, turns, summaries = make_summarizing_agent()
    session = agent.session(store=store, retention={"prune_strategy": "summarize_old", "max_messages": 6})
    for number in range(30):
        session.run(f"question {number} " + "q" * 200)
    compacted = [request for request in turns if not request.messages[0].text.startswith("question 0")]
    assert len(compacted) > 15
    assert all("[Summary of" in request.messages[0].text for request in compacted)
    assert len(summaries) < len(compacted)  # it does not pay for one at every turn


@pytest.mark.parametrize(
    "kept", [{"max_messages": 4}, {"max_messages": 20}, {"max_messages": 6, "auto_prune": True}], ids=str
)
@pytest.mark.parametrize("window", [900, WINDOW])
def test_a_prompt_fits_with_its_summary_too(store: Store, kept: dict[str, Any], window: int) -> None:
    chance = random.Random(7)
    requests: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Any:
        if "condense" in "".join(request.system_texts):
            return "story " + "s" * chance.randrange(1500)
        requests.append(request)
        if chance.random() < 0.4:
            return [call("read_page", {"number": number}) for number in range(chance.randrange(1, 4))]
        return "answer " + "a" * chance.randrange(400)

    agent = Agent(model=LanguageModel("scripted", script=reply, context_window=window), tools=[read_page])
    session = agent.session(store=store, retention={"prune_strategy": "summarize_old", **kept})
    for number in range(20):
        question = f"question {number} " + "q" * chance.randrange(300)
        before = len(requests)
        session.run(question)
        assert all(question in read_texts(request.messages) for request in requests[before:])
    assert max(estimate_tokens(request) for request in requests) <= window
    assert all(find_orphans(request.messages) == [] for request in requests)
    assert any("[Summary of" in request.messages[0].text for request in requests)
    for event, request in zip(session.events(types="model.called", limit=None), requests, strict=True):
        assert describe_messages(session.context(call=event.seq).messages) == describe_messages(request.messages)
    assert session.replay(agent).first_difference is None


def test_turns_compact_while_others_prune_and_write(store: Store) -> None:
    agent, turns, _ = make_summarizing_agent()
    kept = {"prune_strategy": "summarize_old", "max_messages": 6}
    agent.session("busy", store=store, retention=kept, messages=make_messages(10))

    def ask_on(name: str) -> None:
        session = Session.open("busy", store=store, agent=agent)
        for number in range(4):
            session.run(f"{name} {number} " + "q" * 200)

    def prune_on() -> None:
        session = Session.open("busy", store=store)
        for number in range(6):
            session.add_message(Message.user(f"outside {number}"))
            session.prune("keep_last_8" if number % 2 else "keep_important")
            with contextlib.suppress(TurnOpen):
                session.undo_prune()

    run_together(lambda: ask_on("one"), lambda: ask_on("two"), prune_on)
    session = Session.open("busy", store=store)
    logged = str([event.data for event in session.events(types=["message.added", "model.replied"], limit=None)])
    assert all(f"{name} {number} " in logged for name in ("one", "two") for number in range(4))
    assert all(f"outside {number}" in logged for number in range(6))
    assert max(estimate_tokens(request) for request in turns) <= WINDOW
    assert all(find_orphans(request.messages) == [] for request in turns)
    assert list_types(session).count("turn.finished") == 8
    by_question = {request.messages[-1].text: request for request in turns}
    for event in session.events(types="model.called", limit=None):
        context = session.context(call=event.seq)
        assert describe_messages(context.messages) == describe_messages(by_question[context.messages[-1].text].messages)
    assert store.rebuild_view(session.log) == store.view(session.log)
    assert session.verify()


def test_an_immutable_session_may_still_compact(store: Store, ask: Ask) -> None:
    agent, turns, _ = make_summarizing_agent()
    kept = {"immutable": True, "ttl_days": 1e-9, "prune_strategy": "summarize_old", "max_messages": 6}
    session = agent.session(store=store, retention=kept)
    for number in range(9):
        ask(session, f"question {number} " + "q" * 200)
    assert "view.compacted" in list_types(session)
    assert max(estimate_tokens(request) for request in turns) <= 0.8 * WINDOW


@pytest.mark.parametrize("strategy", ["keep_last_4", "sliding_window", "keep_important", "token_budget", None])
def test_every_strategy_can_be_the_policy(store: Store, strategy: str | None) -> None:
    agent, turns, _ = make_summarizing_agent()
    session = agent.session(store=store, retention={"prune_strategy": strategy, "max_messages": 4})
    for number in range(12):
        session.run(f"question {number} " + "q" * 200)
    assert max(estimate_tokens(request) for request in turns) <= 0.8 * WINDOW
    assert turns[-1].messages[-1].text.startswith("question 11")
    assert ("view.pruned" in list_types(session)) == (strategy not in ("token_budget", None))  # those only leave out
    assert session.verify()


def test_a_session_that_compacted_replays_without_a_difference(store: Store) -> None:
    session = make_summarizing_agent()[0].session(
        store=store, retention={"prune_strategy": "summarize_old", "max_messages": 6}
    )
    for number in range(10):
        session.run(f"question {number} " + "q" * 200)
    assert "view.compacted" in list_types(session)
    assert session.replay(make_summarizing_agent()[0]).first_difference is None


def test_a_prompt_that_is_too_long_is_shortened_and_tried_once_more(store: Store, ask: Ask) -> None:
    agent, seen = make_recording_agent("fine", error(ContextTooLong), "now it fits")
    session = agent.session(store=store, messages=[Message.user(f"message {n} " + "m" * 400) for n in range(20)])
    ask(session, "one")
    assert ask(session, "two").text == "now it fits"
    assert len(seen) == 3
    assert estimate_tokens(seen[2]) < 0.6 * estimate_tokens(seen[1])
    assert seen[2].messages[-1].text == "two"
    assert list_texts(session)[-4:] == ["one", "fine", "two", "now it fits"]
    assert "turn.failed" not in list_types(session)
    assert store.rebuild_view(session.log) == store.view(session.log)


def test_a_prompt_that_stays_too_long_is_an_error(store: Store, ask: Ask) -> None:
    agent, seen = make_recording_agent(error(ContextTooLong))
    session = agent.session(store=store, messages=[Message.user(f"message {n} " + "m" * 400) for n in range(20)])
    before = list_texts(session)
    with pytest.raises(ContextTooLong):
        ask(session, "two")
    assert len(seen) == 2
    assert list_texts(session) == before
    assert session.events(types="turn.failed")[0].data["error"]["code"] == "context_too_long"
    with pytest.raises(ContextTooLong):
        ask(agent.session(store=store), "alone")  # nothing could be left out, so it is not tried again
    assert len(seen) == 3


# -- context -----------------------------------------------------------------------------------------------------------


@tool
def get_time() -> str:
    """Say what time it is."""
    return "noon"


def test_context_shows_the_parts_in_order(store: Store, do: Do) -> None:
    agent, seen = make_recording_agent("fine", instructions="Be brief.", tools=[get_time])
    session = agent.session(store=store, system="You sell tea.", messages=make_messages(3))
    session.facts.add("ships to Bremen")
    context = do(session, "context")
    assert [part.kind for part in context.parts] == [
        "instructions", "system", "facts", "tool", "message", "message", "message",
    ]  # fmt: skip
    assert context.parts[0].text == "Be brief."
    assert context.parts[1].text == "You sell tea."
    assert "ships to Bremen" in context.parts[2].text
    assert read_texts(context.messages) == read_texts(make_messages(3))
    assert [part.seq for part in context.parts[-3:]] == [message.seq for message in session.messages]
    assert all(part.tokens > 0 for part in context.parts)
    assert context.estimated == sum(part.tokens for part in context.parts)
    assert (context.left_out, context.reported, context.window) == (0, None, 128_000)
    assert "ships to Bremen" in str(context)
    assert seen == []
    head = session.head
    do(session, "context")
    assert session.head == head


def test_context_is_what_the_next_turn_is_sent(store: Store, do: Do, ask: Ask) -> None:
    agent, seen = make_recording_agent("answer " + "a" * 300, window=WINDOW, instructions="Be brief.")
    session = agent.session(store=store)
    for number in range(12):
        ask(session, f"question {number} " + "q" * 200)
    session.prune("keep_last_20")
    context = do(session, "context")
    ask(session, "?")
    sent = seen[-1]
    assert [part.text for part in context.parts if part.kind == "instructions"] == sent.system_texts
    assert describe_messages(context.messages)[-5:] == describe_messages(sent.messages[:-1])[-5:]
    assert abs(len(context.messages) - len(sent.messages[:-1])) <= 1  # the question may take a place
    assert context.left_out == 20 - len(context.messages) > 0
    assert context.tokens <= 0.8 * WINDOW


def test_context_is_shown_for_any_agent_and_for_none(store: Store, do: Do) -> None:
    session = make_long_session(store, 3, system="You sell tea.")
    bare = do(session, "context")  # no model is asked yet
    assert [part.kind for part in bare.parts] == ["system", "message", "message", "message"]
    other, _ = make_recording_agent("fine", instructions="Be loud.", window=5000)
    context = do(session, "context", agent=other)
    assert (context.parts[0].text, context.window) == ("Be loud.", 5000)


def test_the_estimate_is_corrected_by_what_was_reported(store: Store, do: Do) -> None:
    session = Agent(provider="echo").session(store=store, messages=[Message.user("word " * 100) for _ in range(9)])
    assert do(session, "context").tokens == do(session, "context").estimated
    session.run("hello")
    called = session.events(types="model.called")[-1]
    replied = session.events(types="model.replied")[-1]
    sent = do(session, "context", call=called.seq)
    assert sent.reported == sent.tokens == replied.data["usage"]["input_tokens"]
    now = do(session, "context")
    assert now.tokens == pytest.approx(now.estimated * sent.reported / called.data["tokens"], abs=2)


class RecordedSession:
    """A session whose requests are kept beside the calls that sent them."""

    def __init__(self, store: Store, *replies: Any, window: int = 128_000, **options: Any) -> None:
        agent, self.seen = make_recording_agent(
            *replies, window=window, instructions="Be brief.", tools=[get_time, read_page]
        )
        self.session = agent.session(store=store, **options)

    def check(self, session: Session, do: Do) -> None:
        """Every call's context is word for word what the model received."""
        calls = session.events(types="model.called", limit=None)
        assert len(calls) == len(self.seen)
        for event, request in zip(calls, self.seen, strict=True):
            context = do(session, "context", call=event.seq)
            system = [part.text for part in context.parts if part.kind not in ("tool", "message")]
            assert system == request.system_texts
            assert [part.text for part in context.parts if part.kind == "tool"] == [each.name for each in request.tools]
            assert describe_messages(context.messages) == describe_messages(request.messages)


def test_context_of_a_call_is_what_was_sent(store: Store, do: Do, ask: Ask) -> None:
    told = RecordedSession(
        store, "one", call("get_time"), "noon it is", [call("get_time", id="x"), call("get_time", id="y")], "fine",
        system="You sell tea.", messages=make_messages(4),
    )  # fmt: skip
    session = told.session
    ask(session, "first")
    session.facts.add("ships to Bremen")
    ask(session, "second")
    session.prune("keep_last_3")
    ask(session, "third")
    at = session.head
    session.clear()
    ask(session, "fourth")
    session.rewind(to=at)
    ask(session, "fifth")
    session.prune("summarize_old", threshold=3, agent=make_recording_agent("a summary")[0])
    ask(session, "sixth")
    session.undo_prune()
    ask(session, "seventh")
    told.check(session, do)
    told.check(session.fork(), do)
    told.check(Session.import_(do(session, "export"), session_id="copy", store=store), do)
    assert told.seen[0].system_texts != told.seen[-1].system_texts


def test_context_of_a_call_knows_what_was_left_out(store: Store, do: Do) -> None:
    pages = [call("read_page", {"number": number}) for number in range(6)]
    told = RecordedSession(
        store, *pages, "The end.", window=WINDOW, messages=[Message.user("m" * 400) for _ in range(20)]
    )
    told.session.run("Read me the book.")
    told.session.run("And?")
    told.check(told.session, do)
    first = told.session.events(types="model.called", limit=None)[0]
    context = do(told.session, "context", call=first.seq)
    assert context.left_out == 21 - len(context.messages) > 0


def test_context_of_the_calls_of_a_shortened_prompt(store: Store, do: Do, ask: Ask) -> None:
    talk = [Message.user(f"message {n} " + "m" * 400) for n in range(20)]
    told = RecordedSession(store, error(ContextTooLong), "now it fits", messages=talk)
    ask(told.session, "two")
    told.check(told.session, do)


def test_context_of_the_calls_of_a_turn_that_compacts(store: Store, do: Do) -> None:
    agent, turns, _ = make_summarizing_agent()
    session = agent.session(store=store, retention={"prune_strategy": "summarize_old", "max_messages": 6})
    for number in range(12):
        session.run(f"question {number} " + "q" * 200)
    calls = session.events(types="model.called", limit=None)
    for event, request in zip(calls, turns, strict=True):
        assert describe_messages(do(session, "context", call=event.seq).messages) == describe_messages(request.messages)


def test_context_of_a_call_of_a_turn_with_an_approval(store: Store, do: Do) -> None:
    agent, seen = make_recording_agent(call("pay", {"cents": 5}), "It is paid.", tools=[pay])
    session = agent.session(store=store, messages=make_messages(30))
    session.run("please pay")
    waiting = do(session, "context")
    assert "please pay" in read_texts(waiting.messages)
    session.prune("keep_last_4")
    session.add_message(Message.user("from outside"))
    session.approve(session.pending[0].call_id)
    session.resume()
    for event, request in zip(session.events(types="model.called"), seen, strict=True):
        assert describe_messages(do(session, "context", call=event.seq).messages) == describe_messages(request.messages)


@store_does_not_matter
@blocking_only
@pytest.mark.parametrize("bad", [0, -1, 1, 10_000, 2**40, True, "3", 2.5])
def test_a_bad_number_of_a_call_is_a_clear_error(store: Store, do: Do, bad: Any) -> None:
    session = make_recording_agent("fine")[0].session(store=store)
    session.run("hello")
    with pytest.raises(InvalidArgument, match=str(bad)):
        do(session, "context", call=bad)


# -- facts -------------------------------------------------------------------------------------------------------------


def test_facts_are_added_updated_and_removed(store: Store) -> None:
    session = Session(store=store)
    kept = session.facts.add("use PostgreSQL", kind="decision")
    gone = session.facts.add("a slip")
    session.facts.add("checkout", kind="feature", status="open", ref="shop/checkout.py")
    session.facts.update(kept.id, status="done", ref="docs/decisions")
    session.facts.remove(gone.id)
    assert [(f.text, f.kind, f.status, f.ref) for f in session.facts.all()] == [
        ("use PostgreSQL", "decision", "done", "docs/decisions"),
        ("checkout", "feature", "open", "shop/checkout.py"),
    ]
    for kind in ("fact", "decision", "feature", "progress", "artifact"):
        session.facts.add(f"a {kind}", kind=kind)
    with pytest.raises(InvalidArgument):
        session.facts.add("x", kind="rumour")
    with pytest.raises(InvalidArgument):
        session.facts.update(gone.id, text="again")


def test_facts_have_a_budget_of_their_own_in_the_prompt(store: Store) -> None:
    agent, seen = make_recording_agent("fine")
    session = agent.session(store=store)
    for number in range(100):
        session.facts.add(f"fact {number} " + "f" * 100)
    session.run("and?")
    (known,) = seen[0].system_texts
    assert "fact 99" in known
    assert "fact 0 " not in known
    assert "older ones are left out" in known
    assert len(known) < 10_000
    assert len(session.facts.all()) == 100


def test_facts_leave_room_in_a_small_window(store: Store) -> None:
    agent, seen = make_recording_agent("fine", window=WINDOW)
    session = agent.session(store=store, messages=make_messages(5))
    for number in range(100):
        session.facts.add(f"fact {number} " + "f" * 100)
    session.run("and?")
    assert estimate_tokens(seen[0]) <= 0.8 * WINDOW
    assert "fact 99" in seen[0].system_texts[0]
    assert read_texts(seen[0].messages) == [*read_texts(make_messages(5)), "and?"]


def test_a_model_can_remember(store: Store, ask: Ask) -> None:
    told = {"text": "use PostgreSQL", "kind": "decision", "status": "open"}
    agent, seen = make_recording_agent(call("remember", told), "Noted.", tools=[remember])
    session = agent.session(store=store)
    assert ask(session, "Let us use PostgreSQL").text == "Noted."
    assert [(f.text, f.kind, f.status) for f in session.facts.all()] == [("use PostgreSQL", "decision", "open")]
    session.clear()
    ask(session, "What did we decide?")
    assert "use PostgreSQL" in seen[-1].system_texts[0]


def test_what_is_remembered_twice_is_kept_once(store: Store, ask: Ask) -> None:
    first, second = {"text": "ship it", "kind": "progress"}, {"text": "ship it", "kind": "progress", "status": "done"}
    agent, _ = make_recording_agent(call("remember", first), call("remember", second), "Noted.", tools=[remember])
    session = agent.session(store=store)
    ask(session, "go")
    assert [(f.text, f.status) for f in session.facts.all()] == [("ship it", "done")]


def test_a_bad_kind_is_reported_to_the_model(store: Store, ask: Ask) -> None:
    agent, seen = make_recording_agent(call("remember", {"text": "x", "kind": "rumour"}), "Sorry.", tools=[remember])
    session = agent.session(store=store)
    ask(session, "go")
    assert session.facts.all() == []
    result = seen[1].messages[-1].parts[0]
    assert isinstance(result, ToolResult)
    assert result.is_error


# -- briefs and successors ---------------------------------------------------------------------------------------------


def make_long_task(store: Store, **options: Any) -> Session:
    agent, _ = make_recording_agent("Done with the first part.")
    session = agent.session("old", store=store, system="You build shops.", **options)
    session.facts.add("use PostgreSQL", kind="decision")
    session.facts.add("checkout", kind="feature", status="open")
    session.facts.add("login", kind="progress", status="done")
    session.facts.add("shop/cart.py", kind="artifact")
    session.run("Build the cart")
    return session


def test_a_brief_says_what_a_successor_needs(store: Store, do: Do, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "trunk", work], check=True)
    commit = "3fa9c1e2" * 5
    (work / ".git" / "refs" / "heads" / "trunk").write_text(commit + "\n")
    session = make_long_task(store, work_dir=work)
    brief = do(session, "brief")
    for part in ("use PostgreSQL", "checkout", "login", "shop/cart.py", "Build the cart", "Done with the first part.",
                 "You build shops.", str(work), f"trunk {commit}", "old"):  # fmt: skip
        assert part in brief
    assert brief.index("## Decisions") < brief.index("use PostgreSQL") < brief.index("## Open work")
    assert brief.index("## Open work") < brief.index("checkout") < brief.index("## Done") < brief.index("login")
    assert do(session, "brief") == brief


def test_a_brief_names_what_waits(store: Store, do: Do) -> None:
    agent, _ = make_recording_agent(call("pay", {"cents": 5}), "paid", tools=[pay])
    session = agent.session(store=store)
    session.run("please pay the rent")
    brief = do(session, "brief")
    assert "pay" in brief
    assert session.pending[0].call_id in brief
    assert "please pay the rent" in brief


def test_a_successor_starts_from_the_brief(store: Store, do: Do, ask: Ask) -> None:
    session = make_long_task(
        store, user_id="alice", app_name="shop", metadata={"team": "blue"}, budget={"turns": 10, "tokens": 100_000},
        retention={"ttl_days": 30, "auto_prune": True, "max_messages": 100}, state={"draft": 1}, title="The shop",
    )  # fmt: skip
    before, head, brief = list_texts(session), session.head, session.brief()
    heir = do(session, "successor", session_id="new")
    assert (heir.id, heir.user_id, heir.app_name, heir.title) == ("new", "alice", "shop", "The shop")
    assert (heir.system, heir.metadata) == ("You build shops.", {"team": "blue"})
    assert heir.retention == session.retention
    assert [(f.text, f.kind, f.status) for f in heir.facts.all()] == [
        (f.text, f.kind, f.status) for f in session.facts.all()
    ]
    assert list_texts(heir) == [brief]
    assert heir.usage.total_tokens == 0
    assert (list_texts(session), session.head) == (before, head)
    agent, seen = make_recording_agent("I go on.")
    ask(heir, "Go on", agent=agent)
    assert read_texts(seen[0].messages) == [brief, "Go on"]
    assert "use PostgreSQL" in "".join(seen[0].system_texts)
    assert store.value(heir.log, "budget") == store.value(session.log, "budget")
    assert heir.verify()
    assert list_texts(do(heir, "successor"))[0].startswith("# Brief of session new")


def test_a_successor_needs_an_id_of_its_own(store: Store, do: Do) -> None:
    session = make_long_task(store)
    with pytest.raises(AgentError):
        do(session, "successor", session_id="old")
    made = do(session, "successor")
    assert made.id != "old"
    assert Session.open(made.id, store=store).facts.all() == made.facts.all()


# -- the awaited classes -----------------------------------------------------------------------------------------------


async def test_the_same_names_are_awaited_in_aio(store: Store) -> None:
    agent = aio.Agent(provider="scripted", script=["hi", "a summary", "again"])
    session = agent.session(store=store, messages=make_messages(12))
    await session.run("hello")
    assert (await session.prune(strategy="keep_last_8")).kept == 8
    would = await session.prune(strategy="summarize_old", threshold=4, dry_run=True)
    assert would.removed == 4
    report = await session.prune(strategy="summarize_old", threshold=4)
    assert "a summary" in (report.summary or "")
    assert session.undo_prune()
    assert len(session) == 8
    assert [event.data["strategy"] for event in await session.events(types="view.pruned")] == ["keep_last_8"]
    session.facts.add("use PostgreSQL", kind="decision")
    assert "use PostgreSQL" in await session.brief()
    heir = await session.successor()
    assert isinstance(heir, aio.Session)
    assert (await heir.run("go on")).text == "again"
    assert session.context().messages == session.messages
    assert (await session.context_async()).messages == session.messages
    assert await session.verify()


def test_a_tool_can_look_at_facts_while_a_turn_is_pruned(store: Store) -> None:
    @tool
    def prune_now(ctx: ToolContext) -> str:
        """Prune the session this turn is in."""
        report = ctx.session.prune("keep_last_2")
        return f"{len(report.removed)} left"

    agent, seen = make_recording_agent(call("prune_now"), "done", tools=[prune_now])
    session = agent.session(store=store, messages=make_messages(12))
    session.run("tidy up")
    assert list_texts(session) == ["message 11", "message 12", "tidy up", "", "10 left", "done"]
    assert find_orphans(seen[1].messages) == []
