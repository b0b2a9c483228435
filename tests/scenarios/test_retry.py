"""`session.retry()`: a turn that failed after its tools ran continues from its log, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Agent, Budget, Message, Session, tool
from holdfast.errors import BudgetExceeded, LifecycleError, MaxStepsExceeded, ProviderUnavailable, TurnFailed
from holdfast.stores.base import Store
from holdfast.testing import call, error

Retry = Callable[..., Any]


@pytest.fixture(params=["retry", "retry_async"])
def retry(request: pytest.FixtureRequest) -> Retry:
    def ask(session: Any, **options: Any) -> Any:
        found = getattr(session, request.param)(**options)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found

    return ask


class Shop:
    """A tool that counts how often it runs."""

    def __init__(self) -> None:
        self.runs = 0

        @tool
        def order(item: str) -> str:
            """Order an item."""
            self.runs += 1
            return f"ordered {item}"

        self.tool = order

    def agent(self, *script: Any, **options: Any) -> Agent:
        return Agent(provider="scripted", script=[*script], tools=[self.tool], **options)


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages if message.text and message.role != "tool"]


def types(session: Session) -> list[str]:
    return [event.type for event in session.events(limit=None)]


def failure() -> Any:
    return error(ProviderUnavailable("the provider is away", provider="scripted"))


def test_a_turn_that_failed_after_its_tool_continues(store: Store, retry: Retry) -> None:
    shop = Shop()
    agent = shop.agent(call("order", {"item": "tea"}), failure(), "done", max_retries=0, store=store)
    session = agent.session()
    with pytest.raises(ProviderUnavailable):
        session.run("order tea")
    assert texts(session) == []
    response = retry(session)
    assert (response.text, response.steps, shop.runs) == ("done", 2, 1)
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert session.verify().ok
    assert retry(session) is None
    assert session.usage.input_tokens == response.usage.input_tokens


def test_nothing_is_retried_after_a_turn_that_finished(store: Store, retry: Retry) -> None:
    session = Shop().agent("hi", "there", store=store).session()
    assert retry(session) is None
    session.run("hello")
    assert retry(session) is None
    assert "turn.reopened" not in types(session)


def test_a_larger_limit_of_steps_costs_only_the_missing_steps(store: Store, retry: Retry) -> None:
    shop = Shop()
    agent = shop.agent(*[call("order", {"item": str(n)}) for n in range(3)], "done", max_steps=2, store=store)
    session = agent.session()
    with pytest.raises(MaxStepsExceeded):
        session.run("order three things")
    with pytest.raises(MaxStepsExceeded):
        retry(session)
    assert retry(session, max_steps=4).text == "done"
    assert shop.runs == 3
    with pytest.raises(ValueError, match="max_steps"):
        retry(session, max_steps=0)


def test_a_budget_that_was_raised_lets_the_turn_continue(store: Store, retry: Retry) -> None:
    shop = Shop()
    session = shop.agent(call("order", {"item": "tea"}), "done", store=store).session(budget=Budget(steps=1))
    with pytest.raises(BudgetExceeded):
        session.run("order tea")
    with pytest.raises(BudgetExceeded):
        retry(session)
    session.budget = {"steps": 2}
    assert retry(session).text == "done"
    assert shop.runs == 1


def test_a_cancelled_stream_can_be_retried(store: Store, retry: Retry) -> None:
    shop = Shop()
    session = shop.agent(call("order", {"item": "tea"}), "a long answer", "a long answer", store=store).session()
    for event in session.stream("order tea"):
        if event.type == "text_delta":
            break
    assert texts(session) == []
    assert retry(session).text == "a long answer"
    assert shop.runs == 1


def test_messages_that_were_added_since_stand_before_the_retried_turn(store: Store, retry: Retry) -> None:
    shop = Shop()
    session = shop.agent(
        call("order", {"item": "tea"}), failure(), "done", "more", max_retries=0, store=store
    ).session()
    session.add_message(Message.user("before"))
    with pytest.raises(ProviderUnavailable):
        session.run("order tea")
    session.add_message(Message.user("since"))
    assert retry(session).text == "done"
    assert texts(session) == ["before", "since", "order tea", "done"]
    assert session.run("again").text == "more"
    assert texts(session)[-3:] == ["done", "again", "more"]
    assert session.verify().ok


@pytest.mark.parametrize("change", ["clear", "rewind", "new turn", "fork", "redact"])
def test_a_turn_that_cannot_continue_is_not_retried(store: Store, change: str) -> None:
    session = Shop().agent("first", failure(), "next", max_retries=0, store=store).session()
    session.run("one")
    with pytest.raises(ProviderUnavailable):
        session.run("two")
    if change == "clear":
        session.clear()
    elif change == "rewind":
        session.rewind(to=2)
    elif change == "new turn":
        session.run("three")
    elif change == "redact":
        question = session.events(types=["message.added", "message.queued"])[0]
        session.redact(question.seq, reason="r", actor="a")
    else:
        session = session.fork()
    assert session.retry() is None


def test_a_paused_session_refuses_a_retry(store: Store) -> None:
    session = Shop().agent(failure(), "next", max_retries=0, store=store).session()
    with pytest.raises(ProviderUnavailable):
        session.run("one")
    session.pause()
    with pytest.raises(LifecycleError):
        session.retry()
    session.resume()
    assert session.retry().text == "next"


def test_an_answer_that_never_fitted_can_be_asked_for_again(store: Store, retry: Retry) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    agent = Agent(provider="scripted", script=["no"] * 4 + ['{"n": 1}'], store=store)
    session = agent.session()
    with pytest.raises(TurnFailed):
        session.json("a number", schema=schema)
    assert retry(session).output == {"n": 1}
    assert texts(session) == ["a number", '{"n": 1}']
