"""Sections 1, 2, 8 and 14 of the promises: turns, tools, approvals, budgets. Each four ways, on every store."""

from __future__ import annotations

import asyncio
import enum
import gc
import threading
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from holdfast import Agent, Budget, Image, Interrupt, Message, Response, Session, ToolContext, Usage, aio, tool
from holdfast.errors import (
    AgentError,
    ApprovalPending,
    BudgetExceeded,
    InvalidArgument,
    LifecycleError,
    MaxStepsExceeded,
    MissingState,
    NothingPending,
    ProviderUnavailable,
    SchemaValidationError,
    SessionBusy,
    StaleEpoch,
    TurnOpen,
)
from holdfast.models.base import ModelRequest
from holdfast.stores.base import Store
from holdfast.testing import call, error
from holdfast.testing.contract import run_together
from tests.kit.agents import list_types, make_scripted_agent
from tests.scenarios.ways import WAYS, Ask, make_ask, make_resume


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def ask(way: str) -> Ask:
    return make_ask(way)


def list_roles(session: Session) -> list[str]:
    return [message.role for message in session.messages]


@tool
def get_user_orders(user_id: str) -> str:
    """Get orders for a user."""
    return f"orders of {user_id}: tea, milk"


# -- turns -----------------------------------------------------------------------------------------------------------


def test_a_turn_with_a_tool_is_recorded_whole(store: Store, ask: Ask) -> None:
    agent = make_scripted_agent(
        call("get_user_orders", {"user_id": "alice"}), "You ordered tea.", name="shop", tools=[get_user_orders]
    )
    session = agent.session(store=store)
    response = ask(session, "What did I order?", temperature=0.7, max_tokens=500)
    assert (response.text, response.status, response.steps) == ("You ordered tea.", "finished", 2)
    assert [(c.name, c.arguments) for c in response.tool_calls] == [("get_user_orders", {"user_id": "alice"})]
    assert response.usage.input_tokens > 0
    assert session.usage == response.usage
    assert [message.role for message in response.messages] == ["user", "assistant", "tool", "assistant"]
    assert list_roles(session) == ["user", "assistant", "tool", "assistant"]
    assert session.messages[2].text == "orders of alice: tea, milk"
    assert session.messages[3].author == "shop"
    assert session.status == "active"
    assert list_types(session) == [
        "session.created", "turn.started", "message.added", "model.called", "model.replied", "tool.called",
        "tool.returned", "model.called", "model.replied", "turn.finished",
    ]  # fmt: skip
    assert session.verify()
    assert store.rebuild_view(session.log) == store.view(session.log)
    assert store.lease(session.log) is None


def test_a_turn_with_one_call_is_four_commits(store: Store, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_scripted_agent(call("get_user_orders", {"user_id": "a"}), "done", tools=[get_user_orders])
    session = agent.session(store=store)
    appends: list[list[str]] = []
    real = type(store).append

    def count_append(self: Store, log: Any, drafts: Any, **options: Any) -> Any:
        appends.append([draft.type for draft in drafts])
        return real(self, log, drafts, **options)

    monkeypatch.setattr(type(store), "append", count_append)
    ask(session, "go")
    assert appends == [
        ["turn.started", "message.added", "model.called"],
        ["model.replied", "tool.called"],
        ["tool.returned", "model.called"],
        ["model.replied", "turn.finished"],
    ]


def test_a_session_remembers(store: Store, ask: Ask) -> None:
    agent = Agent(provider="echo")
    session = agent.session(store=store)
    ask(session, "My name is Alice")
    response = ask(session, "What do you know about me?")
    assert "Alice" in response.text


def test_the_model_sees_system_facts_history_and_the_question_at_every_step(store: Store, ask: Ask) -> None:
    seen: list[ModelRequest] = []

    def look(request: ModelRequest) -> Any:
        seen.append(request)
        return call("get_user_orders", {"user_id": "a"}) if len(seen) == 1 else "fine"

    agent = make_scripted_agent(look, look, look, instructions="Be brief.", tools=[get_user_orders])
    session = agent.session(
        store=store, system="You sell tea.", messages=[Message.user("hi"), Message.assistant("hello")]
    )
    session.facts.add("ships to Bremen", kind="decision")
    ask(session, Message.user("and now?", Image(url="https://example.com/a.png")))
    assert seen[0].system_texts == ["Be brief.", "You sell tea.", "What is known:\n- decision: ships to Bremen"]
    assert [m.text for m in seen[0].messages] == ["hi", "hello", "and now?"]
    assert seen[0].messages[-1].parts[1] == Image(url="https://example.com/a.png")
    assert [m.role for m in seen[1].messages] == ["user", "assistant", "user", "assistant", "tool"]
    assert seen[1].messages[2].text == "and now?"
    assert [spec.name for spec in seen[0].tools] == ["get_user_orders"]


def test_a_failed_turn_raises_and_leaves_the_messages_as_they_were(store: Store, ask: Ask) -> None:
    agent = make_scripted_agent("first", error("the provider is down"), "after", tools=[get_user_orders])
    session = agent.session(store=store)
    ask(session, "one")
    with pytest.raises(ProviderUnavailable):
        ask(session, "two")
    assert [m.text for m in session.messages] == ["one", "first"]
    failed = session.events(types="turn.failed")[0]
    assert failed.data["error"]["code"] == "provider_unavailable"
    assert store.lease(session.log) is None
    assert ask(session, "three").text == "after"


def test_the_next_prompt_names_effects_of_a_failed_turn(store: Store, ask: Ask) -> None:
    seen: list[ModelRequest] = []

    def last(request: ModelRequest) -> str:
        seen.append(request)
        return "ok"

    agent = make_scripted_agent(
        call("get_user_orders", {"user_id": "a"}), error("down"), last, last, tools=[get_user_orders]
    )
    session = agent.session(store=store)
    with pytest.raises(ProviderUnavailable):
        ask(session, "one")
    ask(session, "two")
    assert "get_user_orders" in seen[0].system_texts[-1]
    assert "already finished" in seen[0].system_texts[-1]
    ask(session, "three")
    assert seen[1].system_texts == []


def test_too_many_steps_fail_the_turn(store: Store, ask: Ask) -> None:
    agent = Agent(
        provider="scripted",
        script=lambda request: call("get_user_orders", {"user_id": "a"}),
        max_steps=3,
        tools=get_user_orders,
    )
    session = agent.session(store=store)
    with pytest.raises(MaxStepsExceeded) as caught:
        ask(session, "go")
    assert caught.value.steps == 3
    assert session.messages == []


def test_stream_shows_text_as_it_comes(store: Store) -> None:
    session = make_scripted_agent("Once upon a time there was a log.").session(store=store)
    text = ""
    kinds = []
    for event in session.stream("Write a story"):
        kinds.append(event.type)
        if event.type == "text_delta":
            text += event.text
    assert text == "Once upon a time there was a log."
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_stop", "done"]
    assert list_roles(session) == ["user", "assistant"]


async def test_stream_async_works_with_and_without_the_inner_await(store: Store) -> None:
    session = make_scripted_agent("one", "two").session(store=store)
    first = [event.text async for event in await session.stream_async("a") if event.type == "text_delta"]
    second = [event.text async for event in session.stream_async("b") if event.type == "text_delta"]
    assert ("".join(first), "".join(second)) == ("one", "two")


def test_breaking_out_of_a_stream_cancels_the_turn(store: Store) -> None:
    session = make_scripted_agent("a long answer that nobody reads to its end", "next").session(store=store)
    for event in session.stream("go"):
        if event.type == "text_delta":
            break
    del event
    gc.collect()
    assert session.run("again").text == "next"
    assert list_roles(session) == ["user", "assistant"]
    cancelled = session.events(types="turn.cancelled")
    assert [event.data["shown"] for event in cancelled] == ["a long answer that nobody reads "]


def test_a_new_turn_closes_an_abandoned_stream_first(store: Store) -> None:
    session = make_scripted_agent("a long answer that nobody reads to its end", "next").session(store=store)
    stream = session.stream("go")
    assert [next(stream).type for _ in range(3)][-1] == "text_delta"
    assert session.run("again").text == "next"
    assert list_types(session).count("turn.cancelled") == 1
    assert list(stream) == []


async def test_a_cancelled_task_cancels_the_turn_and_frees_the_session(store: Store) -> None:
    @tool
    async def forever() -> str:
        started.set()
        await asyncio.sleep(3600)
        return "never"

    started = asyncio.Event()
    session = make_scripted_agent(call("forever"), "next", tools=[forever]).session(store=store)
    task = asyncio.create_task(session.run_async("go"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list_types(session)[-1] == "turn.cancelled"
    assert store.lease(session.log) is None
    assert (await session.run_async("again")).text == "next"


def test_turns_of_two_threads_happen_one_after_the_other(store: Store) -> None:
    agent = Agent(provider="scripted", script=lambda request: f"answer to {request.messages[-1].text}")
    session = agent.session("shared", store=store)
    run_together(*[lambda n=n: agent.session("shared", store=store).run(f"q{n}") for n in range(6)])  # type: ignore[misc]
    found = [message.text for message in session.messages]
    assert len(found) == 12
    for question, answer in zip(found[::2], found[1::2], strict=True):
        assert answer == f"answer to {question}"
    assert session.verify()


async def test_many_async_turns_of_one_session_wait_without_blocking_each_other(store: Store) -> None:
    agent = Agent(provider="scripted", script=lambda request: f"answer to {request.messages[-1].text}")
    session = agent.session(store=store)
    await asyncio.gather(*[session.run_async(f"q{n}") for n in range(12)])
    assert len(session) == 24


def test_a_waiter_gives_up_after_its_timeout(store: Store, way: str) -> None:
    session = make_scripted_agent("slow answer").session("s", store=store)
    stream = session.stream("go")
    next(stream)

    def other() -> None:
        with pytest.raises(SessionBusy):
            make_ask(way)(make_scripted_agent("x").session("s", store=store), "me too", timeout=0)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert [event.type for event in stream][-1] == "done"
    assert list_roles(session) == ["user", "assistant"]


async def test_blocking_calls_work_inside_a_running_loop(store: Store) -> None:
    @tool
    async def now() -> str:
        await asyncio.sleep(0)
        return "noon"

    session = make_scripted_agent(call("now"), "It is noon.", tools=[now]).session(store=store)
    assert session.run("time?").text == "It is noon."  # as in a notebook


def test_another_agent_may_answer_and_each_message_names_its_author(store: Store, ask: Ask) -> None:
    session = make_scripted_agent("mine", name="one").session(store=store)
    ask(session, "a")
    ask(session, "b", agent=make_scripted_agent("theirs", name="two"))
    assert [m.author for m in session.messages] == ["user", "one", "user", "two"]
    other = Agent(provider="scripted", script=["bound"], session=session)
    assert other.run("c").text == "bound"
    assert len(session) == 6
    assert make_scripted_agent("thrown away").run("x").text == "thrown away"


def test_options_of_a_call_reach_the_model(store: Store, ask: Ask) -> None:
    seen: list[ModelRequest] = []
    agent = make_scripted_agent(lambda request: seen.append(request) or "ok", temperature=0.1, max_tokens=9)
    ask(agent.session(store=store), "x", temperature=0.7, stop=["END"], tool_choice="none", metadata={"trace": "t1"})
    assert (seen[0].temperature, seen[0].max_tokens, list(seen[0].stop), seen[0].tool_choice) == (
        0.7,
        9,
        ["END"],
        "none",
    )


async def test_the_awaited_names(store: Store) -> None:
    agent = aio.Agent(provider="scripted", script=["one", "two", '{"n": 3}', "four"])
    session = agent.session(store=store)
    assert (await session.run("a")).text == "one"
    assert "".join([e.text async for e in session.stream("b") if e.type == "text_delta"]) == "two"  # type: ignore[attr-defined]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert (await session.json("c", schema=schema)).output == {"n": 3}
    assert (await agent.run("d")).text == "four"


# -- tools -----------------------------------------------------------------------------------------------------------


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Receipt:
    order_id: str
    cents: int


def test_what_a_tool_may_take_and_give(store: Store, ask: Ask) -> None:
    @tool(idempotent=True, timeout=30, max_result_bytes=262_144)
    async def charge(order_id: str, cents: int, ctx: ToolContext, size: Size = Size.SMALL) -> Receipt:
        """Charge an order.

        Args:
            order_id: which one
        """
        ctx.progress(f"charging {cents}")
        ctx.state.set("last", order_id)
        assert ctx.idempotency_key.endswith("c1")
        assert ctx.session.id == session.id
        assert not ctx.cancelled
        assert size is Size.LARGE
        return Receipt(order_id, cents)

    agent = make_scripted_agent(
        call("charge", {"order_id": "7", "cents": 5, "size": "large"}, id="c1"), "done", tools=[[charge]]
    )
    session = agent.session(store=store)
    ask(session, "pay")
    assert session.messages[2].text == '{"order_id": "7", "cents": 5}'
    assert session.state == {"last": "7"}


def test_calls_of_one_reply_run_at_the_same_time(store: Store, ask: Ask) -> None:
    gate = threading.Barrier(3)

    @tool
    def meet(name: str) -> str:
        gate.wait(timeout=30)  # passes only if all three are here
        return name

    names = ["a", "b", "c"]
    agent = make_scripted_agent([call("meet", {"name": name}, id=name) for name in names], "all met", tools=[meet])
    session = agent.session(store=store)
    assert ask(session, "go").text == "all met"
    assert sorted(m.text for m in session.messages if m.role == "tool") == names


def test_every_failure_of_a_call_is_reported_to_the_model(store: Store, ask: Ask) -> None:
    @tool
    def broken() -> str:
        raise RuntimeError("no fuse")

    @tool
    def leaves() -> str:
        raise SystemExit(3)

    @tool(max_result_bytes=200)
    def floods() -> str:
        return "x" * 100_000

    @tool
    def bytes_() -> bytes:
        return b"\0"

    agent = make_scripted_agent(
        [
            call("nobody", {}, id="1"),
            call("get_user_orders", {"user": 3}, id="2"),
            call("get_user_orders", "not json", id="3"),
            call("broken", id="4"),
            call("leaves", id="5"),
            call("floods", id="6"),
            call("bytes_", id="7"),
        ],
        "sorry",
        tools=[get_user_orders, broken, leaves, floods, bytes_],
    )
    session = agent.session(store=store)
    assert ask(session, "go").text == "sorry"
    results = {m.parts[0].call_id: m for m in session.messages if m.role == "tool"}  # type: ignore[union-attr]
    assert "no tool named 'nobody'" in results["1"].text
    assert "user_id" in results["2"].text
    assert "not JSON" in results["3"].text
    assert results["4"].text == "RuntimeError: no fuse"
    assert "stopped" in results["5"].text
    assert "of 100000 bytes are shown" in results["6"].text
    assert "bytes" in results["7"].text
    errors = {id for id, message in results.items() if message.parts[0].is_error}  # type: ignore[union-attr]
    assert errors == {"1", "2", "3", "4", "5", "7"}
    cut = next(e for e in session.events(types="tool.returned") if e.data["call_id"] == "6")
    assert store.blob(session.log, cut.data["whole"]) == b"x" * 100_000


def test_a_tool_that_hangs_is_left_behind(store: Store, ask: Ask) -> None:
    release = threading.Event()
    noticed = threading.Event()

    @tool(timeout=0.05)
    def hangs(ctx: ToolContext) -> str:
        while not ctx.cancelled and not release.wait(0.01):
            pass
        if ctx.cancelled:
            noticed.set()
        return "late"

    session = make_scripted_agent(call("hangs"), "gave up", tools=[hangs]).session(store=store)
    assert ask(session, "go").text == "gave up"
    assert "may still have taken effect" in session.messages[2].text
    assert noticed.wait(30)
    release.set()


def test_a_tool_cannot_write_after_its_turn(store: Store, ask: Ask) -> None:
    kept: list[ToolContext] = []

    @tool
    def keep(ctx: ToolContext) -> str:
        kept.append(ctx)
        ctx.state.set("during", 1)
        return "ok"

    session = make_scripted_agent(call("keep"), "done", "again", tools=[keep]).session(store=store)
    ask(session, "go")
    ask(session, "another turn")
    with pytest.raises(StaleEpoch):
        kept[0].state.set("after", 1)
    assert session.state == {"during": 1}


# -- approvals -------------------------------------------------------------------------------------------------------

paid: list[int] = []


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay."""
    paid.append(cents)
    return f"paid {cents}"


@pytest.fixture(autouse=True)
def _clear_payments() -> None:
    paid.clear()


def test_an_approved_call_runs(store: Store, way: str) -> None:
    agent = make_scripted_agent(call("pay", {"cents": 5}, id="c"), "It is paid.", tools=[pay])
    session = agent.session("s", store=store)
    response = make_ask(way)(session, "pay")
    assert (response.status, response.text) == ("waiting", "")
    assert [(p.call_id, p.name, p.arguments) for p in response.pending] == [("c", "pay", {"cents": 5})]
    assert session.status == "waiting"
    assert store.lease(session.log) is None
    with pytest.raises(ApprovalPending):
        make_ask(way)(session, "hello?")
    with pytest.raises(ApprovalPending):
        make_resume(way)(session)
    elsewhere = Session.open("s", store=store)  # as another process would do it
    assert [p.call_id for p in elsewhere.pending] == ["c"]
    with pytest.raises(NothingPending):
        elsewhere.approve("other")
    elsewhere.approve("c", actor="boss")
    with pytest.raises(NothingPending):
        elsewhere.deny("c")
    assert paid == []
    found = make_resume(way)(session)
    assert found is not None
    assert (found.text, found.status, paid) == ("It is paid.", "finished", [5])
    assert session.events(types="approval.decided")[0].actor == "boss"
    assert list_roles(session) == ["user", "assistant", "tool", "assistant"]
    assert make_resume(way)(session) is None


def test_a_denied_call_does_not_run(store: Store, way: str) -> None:
    agent = make_scripted_agent(call("pay", {"cents": 5}, id="c"), "Not paid then.", tools=[pay])
    session = agent.session(store=store)
    make_ask(way)(session, "pay")
    session.deny("c", "too much")
    found = make_resume(way)(session)
    assert found is not None
    assert (found.text, paid) == ("Not paid then.", [])
    assert session.messages[2].text == "A person denied this call: too much"


def test_calls_without_approval_run_while_others_wait(store: Store, way: str) -> None:
    both = [call("get_user_orders", {"user_id": "a"}, id="1"), call("pay", {"cents": 1}, id="2")]
    session = make_scripted_agent(both, "done", tools=[get_user_orders, pay]).session(store=store)
    response = make_ask(way)(session, "go")
    assert [p.call_id for p in response.pending] == ["2"]
    assert list_types(session).count("tool.returned") == 1
    session.approve("2")
    found = make_resume(way)(session)
    assert found is not None
    assert found.text == "done"
    assert list_types(session).count("tool.returned") == 2


def test_an_interrupt_asks_a_person_and_runs_the_call_again(store: Store, way: str) -> None:
    answers: list[str] = []

    @tool
    def ask_person(ctx: ToolContext) -> str:
        if not answers:
            raise Interrupt({"question": "which one?"})
        return answers[0]

    session = make_scripted_agent(call("ask_person", id="c"), "ok", tools=[ask_person]).session(store=store)
    response = make_ask(way)(session, "go")
    assert response.status == "waiting"
    assert session.pending[0].payload == {"question": "which one?"}
    answers.append("the blue one")
    session.approve("c")
    found = make_resume(way)(session)
    assert found is not None
    assert found.text == "ok"
    assert session.messages[2].text == "the blue one"


# -- structured output -----------------------------------------------------------------------------------------------


class Summary(BaseModel):
    title: str
    points: list[str]


@dataclass
class Point:
    x: int
    y: int


class Named(TypedDict):
    name: str


@pytest.mark.parametrize(
    ("schema", "text", "output"),
    [
        (Summary, '{"title": "T", "points": ["a"]}', Summary(title="T", points=["a"])),
        (Point, '```json\n{"x": 1, "y": 2}\n```', Point(1, 2)),
        (Named, '{"name": "Ann"}', {"name": "Ann"}),
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, '{"n": 3}', {"n": 3}),
    ],
)
def test_json_gives_an_instance(store: Store, schema: Any, text: str, output: Any) -> None:
    session = make_scripted_agent(text, text).session(store=store)
    assert session.json("Summarize our conversation", schema=schema).output == output
    assert asyncio.run(session.json_async("again", schema=schema)).output == output


def test_invalid_output_is_repaired_by_asking_again(store: Store, ask: Ask, way: str) -> None:
    seen: list[ModelRequest] = []

    def good(request: ModelRequest) -> str:
        seen.append(request)
        return '{"x": 1, "y": 2}'

    agent = make_scripted_agent("no json", '{"x": 1}', good, output_schema=Point)
    session = agent.session(store=store)
    response = ask(session, "a point, please")
    assert response.output == Point(1, 2)
    assert [m.text for m in session.messages] == ["a point, please", '{"x": 1, "y": 2}']
    assert list_types(session).count("model.replied") == 3
    assert "not valid" in seen[0].messages[-1].text
    assert store.rebuild_view(session.log) == store.view(session.log)


def test_output_that_stays_invalid_fails_the_turn(store: Store) -> None:
    session = Agent(provider="scripted", script=lambda request: "never json").session(store=store)
    with pytest.raises(SchemaValidationError) as caught:
        session.json("x", schema=Point)
    assert caught.value.tries == 4
    assert session.messages == []
    with pytest.raises(InvalidArgument):
        session.json("x", schema=7)
    with pytest.raises(InvalidArgument):
        session.json("x", schema={"tpye": "object"})


# -- budgets, lifecycle, state in instructions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "what"),
    [
        (Budget(tokens=1), "tokens"),
        (Budget(turns=1), "turns"),
        (Budget(steps=1), "steps"),
        (Budget(seconds=0), "seconds"),
        (Budget(cost=1e-9, prices={"input": 1.0, "output": 2.0}), "cost"),
    ],
)
def test_a_budget_is_checked_before_each_model_call(store: Store, ask: Ask, budget: Budget, what: str) -> None:
    session = make_scripted_agent("one", "two").session(store=store, budget=budget)
    if what != "seconds":
        ask(session, "a")
    with pytest.raises(BudgetExceeded) as caught:
        ask(session, "b")
    assert caught.value.what == what
    assert caught.value.used >= caught.value.limit
    assert session.budget == budget


def test_cost_follows_from_prices(store: Store) -> None:
    session = make_scripted_agent("one").session(store=store, budget={"prices": {"input": 1_000_000.0, "output": 0.0}})
    session.run("a")
    assert session.cost == session.usage.input_tokens
    assert isinstance(session.usage, Usage)
    for bad in ({"tokens": -1}, {"cost": 1.0}, {"prices": {"gold": 1.0}}, {"dollars": 3}):
        with pytest.raises(InvalidArgument):
            Session(store=store, budget=bad)


def test_a_paused_closed_or_archived_session_refuses_to_run(store: Store, ask: Ask) -> None:
    session = make_scripted_agent("one").session(store=store)
    for move in ("pause", "close", "archive"):
        getattr(session, move)()
        with pytest.raises(LifecycleError):
            ask(session, "x")
    session.reopen()
    assert ask(session, "x").text == "one"


def test_a_pause_takes_effect_at_the_next_step(store: Store, way: str) -> None:
    @tool
    def pauses(ctx: ToolContext) -> str:
        ctx.session.pause("lunch")
        return "ok"

    session = make_scripted_agent(call("pauses"), "after lunch", tools=[pauses]).session(store=store)
    response = make_ask(way)(session, "go")
    assert response.status == "waiting"
    assert (session.status, session.messages) == ("paused", [])
    found = make_resume(way)(session)
    assert found is not None
    assert found.text == "after lunch"
    assert list_roles(session) == ["user", "assistant", "tool", "assistant"]


def test_instructions_read_state_and_output_key_writes_it(store: Store, ask: Ask) -> None:
    seen: list[str] = []

    def improve(request: ModelRequest) -> str:
        seen.append(request.system_texts[0])
        return "better"

    writer = make_scripted_agent("a <b>draft</b>", output_key="writing.draft")
    editor = make_scripted_agent(improve, instructions="Improve: {writing.draft} {{really}}")
    session = writer.session(store=store)
    ask(session, "write")
    assert session.get_state("writing.draft") == "a <b>draft</b>"
    ask(session, "improve", agent=editor)
    assert seen == ["Improve: a <b>draft</b> {really}"]
    with pytest.raises(MissingState, match="missing"):
        ask(session, "x", agent=make_scripted_agent("x", instructions="{missing}"))
    with pytest.raises(MissingState):
        ask(session, "x", agent=make_scripted_agent("x", instructions="{writing.__class__}"))


def test_extract_stores_what_it_finds_in_the_append_that_finishes_the_turn(store: Store, ask: Ask) -> None:
    def find(response: Response) -> dict[str, Any]:
        return {"mood": response.text, "facts": ["Alice is happy"]}

    session = make_scripted_agent("happy", extract=find).session(store=store)
    ask(session, "how am I?")
    assert session.state == {"mood": "happy"}
    assert [fact.text for fact in session.facts.all()] == ["Alice is happy"]


def test_an_agent_says_what_is_wrong_with_it() -> None:
    for bad in (
        {"model": "gpt-4o"},
        {"provider": "nobody", "model": "x"},
        {"model": object()},
        {"instructions": "a", "system": "b"},
        {"provider": "echo", "max_steps": 0},
        {"provider": "echo", "tools": [7]},
    ):
        with pytest.raises(AgentError):
            Agent(**bad)  # type: ignore[arg-type]


def test_history_is_bounded_by_the_window_of_the_model(store: Store, ask: Ask) -> None:
    seen: list[ModelRequest] = []
    agent = make_scripted_agent(lambda request: seen.append(request) or "ok")
    session = agent.session(store=store)
    session.add_messages([Message.user("x" * 100_000) for _ in range(12)])
    ask(session, "and?")
    assert 1 < len(seen[0].messages) < 8
    assert seen[0].messages[-1].text == "and?"


def test_what_the_model_was_sent_is_named_by_the_log(store: Store, ask: Ask) -> None:
    session = make_scripted_agent("one", "two", instructions="Be kind.").session(store=store)
    ask(session, "a")
    ask(session, "b")
    calls = session.events(types="model.called")
    assert [(event.data["from"], event.data["upto"]) for event in calls] == [(2, 1), (3, 6)]
    assert b"Be kind." in store.blob(session.log, calls[0].data["context"])


# -- replay ----------------------------------------------------------------------------------------------------------


def test_a_replay_asks_no_model_and_names_the_first_difference(store: Store) -> None:
    ran: list[str] = []

    @tool
    def note(text: str) -> str:
        """Note."""
        ran.append(text)
        return f"noted {text}"

    agent = make_scripted_agent(call("note", {"text": "a"}), "one", "two", instructions="Be kind.", tools=[note])
    session = agent.session("s", store=store, messages=[Message.user("before")])
    session.run("q1")
    session.run("q2", temperature=0.5)
    head = session.head
    same = session.replay(agent)
    assert same
    assert (same.turns, same.first_difference, ran) == (2, None, ["a"])
    assert [m.text for m in same.session.messages] == [m.text for m in session.messages]
    assert session.head == head
    other = session.replay(make_scripted_agent(instructions="Be rude.", tools=[note]))
    assert not other
    assert other.first_difference is not None
    assert (other.first_difference.turn, other.first_difference.type) == (1, "model.called")
    without = session.replay(make_scripted_agent(instructions="Be kind."))
    assert without.first_difference is not None
    assert without.first_difference.type == "model.called"
    assert ran == ["a"]
    assert Session("empty", store=store).replay(agent).turns == 0
    assert asyncio.run(session.replay_async(agent)).same


def test_a_bug_inside_a_turn_is_an_agent_error_and_the_turn_is_recorded_as_failed(store: Store, ask: Ask) -> None:
    def breaks(response: Response) -> dict[str, Any]:
        raise ZeroDivisionError("oops")

    session = make_scripted_agent("one", extract=breaks).session(store=store)
    with pytest.raises(AgentError) as caught:
        ask(session, "x")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert list_types(session)[-1] == "turn.failed"
    assert store.lease(session.log) is None


def test_a_decided_turn_is_resumed_and_not_overrun(store: Store, ask: Ask) -> None:
    session = make_scripted_agent(call("pay", {"cents": 5}, id="c"), "paid", tools=[pay]).session(store=store)
    ask(session, "pay")
    session.approve("c")
    with pytest.raises(TurnOpen):
        ask(session, "something else")
    assert session.resume() is not None
    assert paid == [5]


def test_what_a_tool_did_is_recorded_although_the_budget_ends_there(store: Store, ask: Ask) -> None:
    agent = make_scripted_agent(call("get_user_orders", {"user_id": "a"}), "never", tools=[get_user_orders])
    session = agent.session(store=store, budget=Budget(steps=1))
    with pytest.raises(BudgetExceeded):
        ask(session, "go")
    assert list_types(session)[-2:] == ["tool.returned", "turn.failed"]
    assert session.messages == []


def test_a_cancelled_turn_does_not_hide_what_its_tools_did(store: Store) -> None:
    seen: list[ModelRequest] = []

    def last(request: ModelRequest) -> str:
        seen.append(request)
        return "ok"

    session = make_scripted_agent(call("get_user_orders", {"user_id": "a"}), last, tools=[get_user_orders]).session(
        store=store
    )
    for event in session.stream("go"):
        if event.type == "tool_result":
            break
    gc.collect()
    session.run("again")
    assert list_types(session).count("tool.returned") == 1
    assert "already finished: get_user_orders" in seen[0].system_texts[-1]


async def test_a_cancelled_call_is_reported_as_unknown(store: Store) -> None:
    @tool
    async def forever() -> str:
        started.set()
        await asyncio.sleep(3600)
        return "never"

    seen: list[ModelRequest] = []
    started = asyncio.Event()
    session = make_scripted_agent(
        call("forever"), lambda request: seen.append(request) or "ok", tools=[forever]
    ).session(store=store)
    task = asyncio.create_task(session.run_async("go"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await session.run_async("again")
    assert "may or may not have taken effect: forever" in seen[0].system_texts[-1]


def test_the_prompt_follows_every_change_of_the_view(store: Store) -> None:
    """One session object keeps the end of the conversation from turn to turn; it must not keep what is gone."""
    seen: list[list[str]] = []
    agent = Agent(provider="scripted", script=lambda request: seen.append([m.text for m in request.messages]) or "a")
    session = agent.session("s", store=store)
    elsewhere = Session.open("s", store=store)
    session.run("q1")
    elsewhere.add_message(Message.user("from elsewhere"))
    session.run("q2")
    point = session.head
    session.run("q3")
    session.rewind(to=point)
    session.run("q4")
    elsewhere.clear()
    session.run("q5")
    elsewhere.run("q6", agent=agent)
    session.run("q7")
    assert seen == [
        ["q1"],
        ["q1", "a", "from elsewhere", "q2"],
        ["q1", "a", "from elsewhere", "q2", "a", "q3"],
        ["q1", "a", "from elsewhere", "q2", "a", "q4"],
        ["q5"],
        ["q5", "a", "q6"],
        ["q5", "a", "q6", "a", "q7"],
    ]


def test_a_window_keeps_to_its_room_from_turn_to_turn(store: Store) -> None:
    from holdfast import LanguageModel

    seen: list[list[str]] = []
    reply = lambda request: seen.append([m.text for m in request.messages]) or "answer " + "y" * 390  # noqa: E731
    small = Agent(model=LanguageModel("scripted", script=reply, context_window=1500))
    large = Agent(model=LanguageModel("scripted", script=reply, context_window=100_000))
    session = small.session(store=store)
    session.add_messages([Message.user(f"{n} " + "x" * 398) for n in range(40)])
    for turn in range(4):
        session.run(f"q{turn}")
    everything = [message.text for message in session.messages]
    for number, sent in enumerate(seen):
        end = 40 + 2 * number
        assert 5 <= len(sent) - 1 <= 12
        assert sent[:-1] == everything[end - len(sent) + 1 : end]
    session.run("all of it", agent=large)
    assert len(seen[-1]) == 49


def test_a_forced_call_is_forced_once(store: Store, ask: Ask) -> None:
    choices: list[str | None] = []

    def reply(request: ModelRequest) -> Any:
        choices.append(request.tool_choice)
        return call("get_user_orders", {"user_id": "a"}) if request.tool_choice == "required" else "done"

    session = make_scripted_agent(reply, reply, tools=[get_user_orders]).session(store=store)
    assert ask(session, "go", tool_choice="required").text == "done"
    assert choices == ["required", "auto"]
