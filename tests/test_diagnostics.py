"""The records of the logger `holdfast`: which there are, what is in them, and what must never be in them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Entity, Interrupt, LanguageModel, Message, Session, ToolContext, tool
from holdfast.clock import Clock, FixedClock
from holdfast.diagnostics import FIELDS
from holdfast.errors import ProviderError, RequestRejected, ToolError, TurnParked
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.document_store import DocumentStore
from holdfast.stores.lease import Claim, encode_holder
from holdfast.testing import call
from holdfast.testing.crash import Acknowledge, run_in_child
from holdfast.tools import file_tools
from holdfast.worker.sweep import sweep
from tests.kit.documents import DictStore
from tests.models.conftest import KEY, RecordingClock
from tests.models.frames import Reply
from tests.models.loopback_provider import Provider, make_http_error
from tests.proofs.crashes import Opener
from tests.scenarios.ways import WAYS, Ask, make_ask, make_resume

DAY = 86_400_000_000  # microseconds
CANARY = "kanarienvogel"


class Records:
    """The records of the logger, as a handler gets them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def at(self, level: int) -> list[logging.LogRecord]:
        return [each for each in self._caplog.records if each.name == "holdfast" and each.levelno == level]

    def above_debug(self) -> list[tuple[str, str]]:
        found = [each for each in self._caplog.records if each.name == "holdfast" and each.levelno > logging.DEBUG]
        return [(each.levelname, each.getMessage()) for each in found]

    def printed(self, level: int = logging.DEBUG) -> str:
        """Everything that a handler could print: the text, each attribute, and the exception with what led to it."""
        found = ""
        for each in self._caplog.records:
            if each.levelno >= level:
                found += f"{logging.Formatter().format(each)} {vars(each)}\n"
                if each.exc_info and each.exc_info[1] is not None:
                    found += "".join(traceback.format_exception(each.exc_info[1]))
        return found


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Records:
    caplog.set_level(logging.DEBUG)
    return Records(caplog)


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest) -> Ask:
    return make_ask(request.param)


@pytest.fixture(params=["resume", "resume_async"])
def resume(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return make_resume(request.param)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


def scripted(*script: Any, **options: Any) -> Agent:
    return Agent(provider="scripted", script=list(script), **options)


def facts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name in FIELDS}


@tool
def find_order(order_id: str) -> str:
    """Find an order."""
    return {"a": "1"}[order_id]


@tool(name="find_order")
async def find_order_async(order_id: str) -> str:
    """Find an order."""
    await asyncio.sleep(0)
    return {"a": "1"}[order_id]


# -- tools ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [find_order, find_order_async], ids=["sync", "async"])
def test_a_tool_that_raises_is_reported_with_its_traceback(records: Records, ask: Ask, broken: Any) -> None:
    agent = scripted(call("find_order", {"order_id": "missing"}, id="c1"), "done", tools=[broken])
    session = agent.session(session_id="s-1", store=MemoryStore())
    ask(session, "where is it?")
    (record,) = records.at(logging.WARNING)
    assert record.getMessage() == "tool find_order raised builtins.KeyError in session s-1"
    run_id = next(event.run for event in session.events() if event.type == "turn.started")
    expected = {"session_id": "s-1", "run_id": run_id, "tool": "find_order", "call_id": "c1"}
    assert facts(record) == {**expected, "error": "builtins.KeyError"}
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    lines = logging.Formatter().format(record).splitlines()
    assert lines[1] == "Traceback (most recent call last):"
    assert any("test_diagnostics.py" in line and broken.function.__name__ in line for line in lines)
    assert lines[-1] == "KeyError: 'missing'"
    assert record.filename == "tool_failures.py"
    # Models see what they saw before.
    assert [message.text for message in session.messages if message.role == "tool"] == ["KeyError: 'missing'"]
    assert "Traceback" not in session.export()


def test_a_tool_that_exits_is_reported(records: Records, ask: Ask) -> None:
    @tool
    def leave() -> str:
        """Leave."""
        sys.exit(3)

    ask(scripted(call("leave"), "done", tools=[leave]).session(store=MemoryStore()), "go")
    (record,) = records.at(logging.WARNING)
    assert facts(record)["error"] == "builtins.SystemExit"


def test_a_tool_that_does_not_answer_in_time_is_reported(records: Records, ask: Ask) -> None:
    released = threading.Event()

    @tool(timeout=0.05)
    def hang() -> str:
        """Hang."""
        released.wait()
        return "late"

    try:
        ask(scripted(call("hang", id="c1"), "done", tools=[hang]).session("s-1", store=MemoryStore()), "go")
    finally:
        released.set()
    (record,) = records.at(logging.WARNING)
    assert record.getMessage() == "tool hang did not answer within 0.05 s in session s-1"
    assert (facts(record)["tool"], facts(record)["call_id"], facts(record)["seconds"]) == ("hang", "c1", 0.05)


def test_an_interrupt_and_a_bad_argument_are_no_failures(records: Records, ask: Ask, tmp_path: Path) -> None:
    @tool
    def confirm() -> str:
        """Ask a person."""
        raise Interrupt({"sure": True})

    script = [[call("find_order", {"order": 5}), call("read_file", {"path": "nowhere"}), call("confirm")], "done"]
    agent = scripted(*script, tools=[find_order, confirm, file_tools])
    assert ask(agent.session(store=MemoryStore(), work_dir=tmp_path), "go").status == "waiting"
    assert records.above_debug() == []


def test_a_group_of_exceptions_is_reported_with_each_of_them(records: Records) -> None:
    @tool
    def gather() -> str:
        """Gather."""
        try:
            raise ToolError(CANARY)
        except ToolError:
            raise ExceptionGroup("two problems", [ValueError("first"), KeyError("second")]) from None

    scripted(call("gather"), "done", tools=[gather]).session(store=MemoryStore()).run("go")
    text = records.printed(logging.WARNING)
    for said in ("two problems", "ValueError: first", "KeyError: 'second'"):
        assert said in text
    assert CANARY not in logging.Formatter().format(records.at(logging.WARNING)[0])


def test_what_the_users_code_raises_is_shown_and_the_words_of_holdfast_are_not(records: Records) -> None:
    class OrderMissing(ToolError):
        """A user's own error."""

    @tool
    def fail(order_id: str, ctx: ToolContext) -> str:
        """Fail."""
        try:
            ctx.session.set_state(order_id, object())
        except Exception as error:
            raise OrderMissing("there is no such order") from error
        return ""

    agent = scripted(call("fail", {"order_id": CANARY}), "done", tools=[fail])
    agent.session(store=MemoryStore()).run("go")
    (record,) = records.at(logging.WARNING)
    text = logging.Formatter().format(record)
    assert text.endswith("OrderMissing: there is no such order")
    assert "holdfast.errors.NotJSON (not_json)" in text
    assert "a object is not JSON" not in text
    assert record.exc_info is None


# -- content and keys ----------------------------------------------------------------------------------------------


def test_no_record_above_debug_has_content(records: Records, ask: Ask, provider: Provider, tmp_path: Path) -> None:
    clock = RecordingClock()
    helper = Agent(
        model=LanguageModel("openai", "gpt-4o", api_key=KEY, base_url=f"{provider.url}/v1", clock=clock),
        name="helper",
    )
    provider.enqueue(
        make_http_error(500, message=f"you asked {CANARY}"),  # repeated
        make_http_error(400, message=f"cannot answer {CANARY}"),  # raised in the tool
        make_http_error(400, message=f"cannot answer {CANARY}"),  # a result of the agent that is a tool
        make_http_error(400, message=f"cannot answer {CANARY}"),  # the end of the last turn
    )

    @tool
    def echo(text: str, ctx: ToolContext) -> str:
        """Echo."""
        ctx.state.set("secret", text)
        return text

    @tool
    def delegate(text: str) -> str:
        """Ask another agent."""
        return helper.run(text).text

    @tool
    def crash(text: str) -> str:
        """Crash."""
        raise RuntimeError("it broke")

    given = {"text": CANARY}
    replies = [
        [call("echo", given), call("delegate", given), call("crash", given), call(CANARY), call("echo", {CANARY: 1})],
        [call("read_file", {"path": CANARY}), call("helper", {"request": CANARY})],
        f"You said {CANARY}",
    ]
    agent = scripted(*replies, tools=[echo, delegate, crash, file_tools, helper.as_tool()], instructions=CANARY)
    session = agent.session(store=MemoryStore(), state={"bird": CANARY}, system=CANARY, work_dir=tmp_path)
    assert ask(session, f"remember {CANARY}").text == f"You said {CANARY}"
    with pytest.raises(ProviderError, match=CANARY):
        ask(session, f"once more {CANARY}", agent=helper)
    assert CANARY in session.export()
    raised = [facts(each)["tool"] for each in records.at(logging.WARNING)]
    assert sorted(map(str, raised)) == ["crash", "delegate"]
    assert [facts(each)["code"] for each in records.at(logging.INFO)] == ["provider_unavailable"]
    assert "RuntimeError: it broke" in records.printed(logging.WARNING)
    assert "holdfast.errors.RequestRejected (request_rejected)" in records.printed(logging.WARNING)
    assert CANARY not in records.printed(logging.INFO)
    assert RequestRejected.code == "request_rejected"


@pytest.mark.parametrize(
    ("key", "shown"),
    [(KEY, KEY), ("corporate.gateway.secret", "corporate.gateway.secret"), (KEY, "gsk_0123456789abcdef")],
    ids=["its own", "its own, of any shape", "another"],
)
def test_no_record_has_the_key_of_a_model(records: Records, ask: Ask, provider: Provider, key: str, shown: str) -> None:
    @tool
    def fetch(key_of_the_order: str) -> str:
        """Fetch."""
        raise RuntimeError(f"the key {shown} is refused ({key_of_the_order})")

    provider.enqueue(
        Reply(calls=[("c1", "fetch", '{"key_of_the_order": "o-1"}')]), make_http_error(500, message=f"bad key {key}")
    )
    model = LanguageModel("openai", "gpt-4o", api_key=key, base_url=f"{provider.url}/v1", clock=RecordingClock())
    ask(Agent(model=model, tools=[fetch]).session(store=MemoryStore()), "go")
    (record,) = records.at(logging.WARNING)
    text = logging.Formatter().format(record)
    assert key not in records.printed()
    assert shown not in records.printed()
    assert record.exc_info is None
    assert "the key [removed] is refused (o-1)" in text
    assert "({key_of_the_order})" in text  # a name in the source code stays readable
    assert len(records.at(logging.INFO)) == 1


# -- models --------------------------------------------------------------------------------------------------------


def test_a_retry_of_a_model_is_reported(records: Records, ask: Ask, provider: Provider) -> None:
    provider.enqueue(make_http_error(500), make_http_error(429, retry_after="3"))
    model = LanguageModel("openai", "gpt-4o", api_key=KEY, base_url=f"{provider.url}/v1", clock=RecordingClock())
    session = Agent(model=model).session(session_id="s-1", store=MemoryStore())
    ask(session, "hello")
    run_id = next(event.run for event in session.events() if event.type == "turn.started")
    first, second = (facts(each) for each in records.at(logging.INFO))
    known = {"session_id": "s-1", "run_id": run_id, "provider": "openai", "model": "gpt-4o"}
    assert {name: first[name] for name in known} == known
    assert (first["attempt"], first["code"], first["status"]) == (1, "provider_unavailable", 500)
    assert (second["attempt"], second["code"], second["status"]) == (2, "rate_limited", 429)
    assert isinstance(second["seconds"], float)
    assert second["seconds"] >= 3
    assert records.at(logging.WARNING) == []


def test_a_prompt_that_was_too_long_is_reported(records: Records, ask: Ask, provider: Provider) -> None:
    provider.enqueue(make_http_error(400, "context_length_exceeded"))
    model = LanguageModel("openai", "gpt-4o", api_key=KEY, base_url=f"{provider.url}/v1", clock=RecordingClock())
    history = [Message.user("a"), Message.assistant("b"), Message.user("c"), Message.assistant("d")]
    ask(Agent(model=model).session(session_id="s-1", store=MemoryStore(), messages=history), "hello")
    assert records.above_debug() == [
        ("INFO", "openai: the prompt was too long, the next attempt has a shorter one"),
    ]


# -- turns and leases ----------------------------------------------------------------------------------------------


@tool(idempotent=True)
def stop_process() -> str:
    """End the process, unless a person is there to see it."""
    if os.environ.get("STAY"):
        return "stayed"
    os._exit(3)


def deadly_agent() -> Agent:
    return scripted(call("stop_process"), "done", tools=[stop_process])


def leave_unfinished(opener: Opener) -> None:
    """Run a turn in another process, which ends inside of it."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            session = deadly_agent().session(session_id="s-1", store=store)
            if session.unfinished is None:
                session.run("go")
            session.resume()

    assert run_in_child(work).error is None


def test_a_turn_that_is_taken_over_and_resumed_is_reported(
    records: Records, opener: Opener, resume: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_unfinished(opener)
    monkeypatch.setenv("STAY", "1")
    with opener() as store:
        session = Session.open("s-1", store=store, agent=scripted("done", tools=[stop_process]))
        left = session.unfinished
        assert left is not None
        assert resume(session).text == "done"
    (warning,) = records.at(logging.WARNING)
    text = "the lease of session s-1 was taken over: its process ended, or was silent for too long"
    assert warning.getMessage() == text
    assert facts(warning) == {"session_id": "s-1", "run_id": left.run_id}
    (info,) = records.at(logging.INFO)
    assert info.getMessage() == "the turn of session s-1 is resumed"
    assert facts(info) == {"session_id": "s-1", "run_id": left.run_id, "attempt": 1}


def test_a_turn_that_is_taken_over_and_settled_is_reported(records: Records, opener: Opener, ask: Ask) -> None:
    leave_unfinished(opener)
    with opener() as store:
        session = Session.open("s-1", store=store, agent=scripted("new"))
        left = session.unfinished
        assert left is not None
        assert ask(session, "something else").text == "new"
    assert [each[0] for each in records.above_debug()] == ["WARNING", "INFO"]
    (info,) = records.at(logging.INFO)
    assert info.getMessage() == "an unfinished turn of session s-1 is closed as interrupted"
    assert facts(info)["run_id"] == left.run_id


def test_a_turn_is_reported_once_when_it_is_parked(
    records: Records, opener: Opener, resume: Callable[..., Any]
) -> None:
    for _ in range(6):  # the start, and five attempts
        leave_unfinished(opener)
    with opener() as store:
        session = Session.open("s-1", store=store, agent=deadly_agent())
        for _ in range(2):
            with pytest.raises(TurnParked):
                resume(session)
    (record,) = records.at(logging.WARNING)
    text = "the turn of session s-1 is parked: its process ended in each of 5 attempts"
    assert (record.getMessage(), facts(record)["attempt"]) == (text, 5)


def test_a_turn_that_goes_on_after_a_decision_is_resumed_and_not_taken_over(
    records: Records, store: Store, resume: Callable[..., Any]
) -> None:
    @tool(approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    session = scripted(call("pay", id="c1"), "done", tools=[pay]).session(session_id="s-1", store=store)
    session.run("go")
    session.approve("c1")
    assert resume(session).text == "done"
    assert records.above_debug() == [("INFO", "the turn of session s-1 is resumed")]


class Cart(Entity):
    def add(self, item: str) -> int:
        self.state.set("items", [*self.state.get("items", []), item])
        return len(self.state.get("items"))


def test_the_lease_of_an_entity_that_is_taken_over_is_reported(records: Records, durable_store: Store) -> None:
    assert Cart("user-1", store=durable_store).add("apple") == 1
    (log,) = [log for log in [durable_store.find(Cart("user-1")._kind, "user-1")] if log is not None]
    durable_store.append(log, [], claim=Claim(holder=encode_holder("gone"), seconds=-1.0))
    assert records.above_debug() == []
    assert Cart("user-1", store=durable_store).add("pear") == 2
    (record,) = records.at(logging.WARNING)
    assert facts(record) == {"kind": log.kind, "key": "user-1"}


def test_a_turn_begins_and_ends_at_debug(records: Records, ask: Ask) -> None:
    session = scripted("hi", name="greeter").session(session_id="s-1", store=MemoryStore())
    ask(session, "hello")
    texts = [each.getMessage() for each in records.at(logging.DEBUG)]
    run_id = next(event.run for event in session.events() if event.type == "turn.started")
    assert texts == [
        f"turn {run_id} of session s-1 begins",
        "model scripted is called in session s-1",
        f"turn {run_id} of session s-1 is finished",
    ]
    assert records.above_debug() == []


# -- stores --------------------------------------------------------------------------------------------------------


class SteppingClock(Clock):
    """A clock that moves by `step` seconds at each look."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self._monotonic = 0.0, 1000.0

    def monotonic(self) -> float:
        self._monotonic += self.step
        return self._monotonic


@pytest.fixture(params=["sqlite", "postgres", "documents"])
def clocked_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, SteppingClock, str]]:
    clock = SteppingClock()
    if request.param == "sqlite":
        found: tuple[Store, str] = SQLiteStore(tmp_path / "a.db", clock=clock), str(tmp_path / "a.db")
    elif request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        found = PostgresStore(server.database(), clock=clock), "PostgreSQL"
    else:
        found = DocumentStore(DictStore(), clock=clock), "DictStore"
    with found[0]:
        yield found[0], clock, found[1]


def test_a_store_call_that_takes_longer_than_a_second_is_reported(
    records: Records, clocked_store: tuple[Store, SteppingClock, str]
) -> None:
    store, clock, name = clocked_store
    session = Session("s-1", store=store)
    session.add_message(Message.user("quick"))
    clock.step = 1.0
    session.add_message(Message.user("a second"))
    assert records.above_debug() == []
    clock.step = 1.5
    session.add_message(Message.user(CANARY))
    warnings = records.at(logging.WARNING)
    assert len(warnings) == 1
    assert warnings[0].getMessage() == f"a call of the store {name} took 1.5 s"
    assert facts(warnings[0]) == {"store": name, "seconds": 1.5}
    assert CANARY not in records.printed()


def test_a_handler_that_raises_does_not_change_the_outcome_of_an_append(tmp_path: Path) -> None:
    class Broken(logging.Handler):
        count = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.count += 1
            raise RuntimeError("no disk for logs")

    handler, clock = Broken(), SteppingClock()
    logger = logging.getLogger("holdfast")
    with SQLiteStore(tmp_path / "a.db", clock=clock) as store:
        session = Session("s-1", store=store)
        logger.addHandler(handler)
        try:
            clock.step = 2.0
            session.add_message(Message.user("stored"))
        finally:
            logger.removeHandler(handler)
        assert [message.text for message in session.messages] == ["stored"]
    assert handler.count == 1


def test_a_sweep_is_reported_by_its_numbers(records: Records, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FixedClock()
    monkeypatch.setattr(store, "clock", clock)
    sweep(store)
    assert records.above_debug() == []
    Session(CANARY, store=store, retention={"ttl_days": 1})
    clock.time += 2 * DAY
    sweep(store)
    (record,) = records.at(logging.INFO)
    assert record.getMessage() == "a sweep looked at 1 sessions: 0 archived, 1 purged, 0 kept"
    assert {name: facts(record)[name] for name in ("looked", "archived", "purged", "kept")} == {
        "looked": 1,
        "archived": 0,
        "purged": 1,
        "kept": 0,
    }
    assert CANARY not in records.printed()


# -- the logger ----------------------------------------------------------------------------------------------------

PROGRAM = """
import logging
from holdfast import Agent, tool
from holdfast.testing import call

@tool
def fail() -> str:
    "Fail."
    raise RuntimeError("it broke")

print(Agent(provider="scripted", script=[call("fail"), "done"], tools=[fail]).run("go").text)
logger = logging.getLogger("holdfast")
print([type(each).__name__ for each in logger.handlers], logger.level, logger.propagate, logging.getLogger().handlers)
"""


def test_a_program_that_configures_nothing_sees_nothing() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout == "done\n['NullHandler'] 0 True []\n"
    assert found.stderr == ""


def test_a_program_that_asks_for_the_records_gets_them_on_stderr() -> None:
    program = PROGRAM.replace("import logging\n", "import logging\nlogging.basicConfig()\n", 1)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stderr.startswith("WARNING:holdfast:tool fail raised builtins.RuntimeError in session ")
    assert found.stderr.endswith("RuntimeError: it broke\n")
