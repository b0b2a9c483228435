"""Four-method stores that several processes share: what was acknowledged is kept, or its writer gets a Conflict."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import Entity, Message, Session, tool
from holdfast.errors import Conflict, EventsLost, SessionNotFound, StaleEpoch
from holdfast.log.events import Draft
from holdfast.stores.document_store import DocumentStore
from holdfast.testing import call
from tests.kit.agents import RecordingScript, list_texts, make_scripted_agent
from tests.kit.documents import DictStore, FileStore
from tests.scenarios.ways import WAYS, make_ask

# A process that adds messages to one session, when its parent says so, and reports each outcome on a line of its own.
WRITER = """
import sys
from holdfast import Message, Session
from holdfast.errors import Conflict
from tests.kit.documents import FileStore

folder, name, count, is_in_turns = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "in turns"
store = FileStore(folder)
session = Session.open("shared", store=store)
print("open", flush=True)
sys.stdin.readline()
for number in range(count):
    if is_in_turns and number:
        sys.stdin.readline()
    text = f"{name} {number}"
    try:
        session.add_message(Message.user(text))
        print("kept", text, flush=True)
    except Conflict:
        session = Session.open("shared", store=store)
        print("conflict", text, flush=True)
print("done", flush=True)
sys.stdin.readline()
try:
    Session.open("shared", store=store)
    print("as it was", flush=True)
except Conflict:
    print("conflict at the end", flush=True)
"""


class Writer:
    """A process that runs WRITER."""

    def __init__(self, folder: Path, name: str, count: int, how: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), name, str(count), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read_line() == "open"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"writer {self.name} ended early"
        return line.strip()

    def read_until_done(self) -> list[str]:
        return list(iter(self.read_line, "done"))

    def end(self) -> str:
        rest, _ = self._process.communicate("\n")
        assert self._process.returncode == 0
        return rest.strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_two_processes_that_take_turns_lose_nothing(tmp_path: Path) -> None:
    Session("shared", store=FileStore(tmp_path))
    with Writer(tmp_path, "a", 30, "in turns") as one, Writer(tmp_path, "b", 30, "in turns") as two:
        for number in range(30):
            for writer in (one, two):
                writer.go()
                assert writer.read_line() == f"kept {writer.name} {number}"
        for writer in (one, two):
            assert writer.read_until_done() == []
            assert writer.end() == "as it was"
    session = Session.open("shared", store=FileStore(tmp_path))
    assert list_texts(session) == [f"{name} {number}" for number in range(30) for name in ("a", "b")]
    assert session.verify()


def test_two_processes_at_the_same_time_keep_each_message_or_get_a_conflict(tmp_path: Path) -> None:
    Session("shared", store=FileStore(tmp_path))
    with Writer(tmp_path, "a", 30, "at once") as one, Writer(tmp_path, "b", 30, "at once") as two:
        one.go()
        two.go()
        outcomes = {writer.name: writer.read_until_done() for writer in (one, two)}
        for writer in (one, two):
            outcomes[writer.name].append(writer.end())
    session = Session.open("shared", store=FileStore(tmp_path))
    found = set(list_texts(session))
    for name, lines in outcomes.items():
        assert len(lines) == 31
        for place, line in enumerate(lines):
            outcome, _, text = line.partition(" ")
            if outcome == "kept" and text not in found:
                assert any(later.startswith("conflict") for later in lines[place + 1 :]), (name, line, lines)
    assert session.verify()


# Two stores over one dict are two processes: nothing is shared but the documents.


@pytest.fixture
def documents() -> DictStore:
    return DictStore()


def open_twice(documents: DictStore, **options: Any) -> tuple[Session, Session]:
    one = Session("s", store=DocumentStore(documents), **options)
    return one, Session.open("s", store=DocumentStore(documents))


def test_an_append_goes_on_top_of_what_another_process_saved(documents: DictStore) -> None:
    one, two = open_twice(documents)
    one.add_message(Message.user("1"))
    two.add_message(Message.user("2"))
    one.set_state("language", "English")
    two.facts.add("3")
    one.add_message(Message.user("4"))
    for session in (one, Session.open("s", store=DocumentStore(documents))):
        assert list_texts(session) == ["1", "2", "4"]
        assert (dict(session.state), session.facts.all()[0].text) == ({"language": "English"}, "3")
        assert session.verify()


def test_an_expected_head_is_compared_with_the_document(documents: DictStore) -> None:
    one, two = open_twice(documents)
    two.add_message(Message.user("2"))
    with pytest.raises(Conflict) as caught:
        one.store.append(one.log, [Draft(type="view.cleared")], expected=1)
    assert (caught.value.expected, caught.value.head) == (1, 2)


def test_an_idempotency_key_holds_across_processes(documents: DictStore) -> None:
    one, two = open_twice(documents)
    one.send_message({"role": "user", "content": "hello"}, once="request-17")
    two.send_message({"role": "user", "content": "hello"}, once="request-17")
    assert list_texts(two) == ["hello"]


def test_state_and_entities_of_several_processes_are_counted_together(documents: DictStore) -> None:
    class Cart(Entity):
        def add(self) -> None:
            self.state.set("items", self.state.get("items", 0) + 1)

    one, two = open_twice(documents, user_id="alice")
    for session in (one, two, one, two):
        session.update_state("visits", lambda n: (n or 0) + 1, scope="user")
        session.update_state("steps", lambda n: (n or 0) + 1)
        Cart("c", store=session.store).add()
    assert one.get_state("visits", scope="user") == 4
    assert Session.open("s", store=DocumentStore(documents)).get_state("steps") == 4
    assert Cart("c", store=DocumentStore(documents)).state.get("items") == 4


class RacingStore(DictStore):
    """A store in which another process saves between a load and the save that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], object] | None = None

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        between, self.between = self.between, None
        if between is not None:
            between()
        super().save(session_id, data)


def make_race() -> tuple[RacingStore, Session, Session]:
    """A session in two processes, the first of which has just lost its message "lost" to the second."""
    documents = RacingStore()
    one, two = open_twice(documents)
    one.add_message(Message.user("kept"))
    documents.between = lambda: one.add_message(Message.user("lost"))
    two.add_message(Message.user("won"))
    return documents, one, two


def test_a_writer_whose_events_were_saved_over_gets_a_conflict_and_goes_on_by_opening_again() -> None:
    documents, one, two = make_race()
    for attempt in ("again", "and again"):
        with pytest.raises(EventsLost, match="open it again") as caught:
            one.add_message(Message.user(attempt))
        assert (caught.value.expected, caught.value.head, caught.value.lost) == (3, 3, 3)
    one = Session.open("s", store=one.store)  # the Conflict was reported: no second one
    one.add_message(Message.user("next"))
    two.add_message(Message.user("last"))
    assert list_texts(Session.open("s", store=DocumentStore(documents))) == ["kept", "won", "next", "last"]
    assert two.verify()


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_after_a_loss_is_refused_until_the_session_is_opened_again(way: str) -> None:
    _, one, _ = make_race()
    script = RecordingScript("ok")
    ask = make_ask(way)
    for _ in range(2):
        with pytest.raises(EventsLost):
            ask(one, "go", agent=script.agent("a"))
    assert script.requests == []
    one = Session.open("s", store=one.store)
    assert ask(one, "go", agent=script.agent("a")).text == "ok"
    assert list_texts(one) == ["kept", "won", "go", "ok"]


def test_opening_the_session_reports_the_loss_once() -> None:
    _, one, _ = make_race()
    assert [info.id for info in Session.list(store=one.store)] == ["s"]  # a list reports nothing, and hides nothing
    with pytest.raises(Conflict):
        Session.open("s", store=one.store)
    assert list_texts(Session.open("s", store=one.store)) == ["kept", "won"]


def test_a_loss_does_not_hide_behind_an_expected_head() -> None:
    _, one, _ = make_race()
    one.update_state("steps", lambda n: (n or 0) + 1)  # compares and tries again, on top of what is there
    with pytest.raises(Conflict):
        one.add_message(Message.user("again"))
    assert Session.open("s", store=one.store).get_state("steps") == 1


def test_a_session_that_another_process_deleted_is_not_there_and_does_not_come_back(documents: DictStore) -> None:
    one, two = open_twice(documents)
    two.store.delete("s")
    with pytest.raises(SessionNotFound):
        one.add_message(Message.user("1"))
    assert documents.list_sessions() == []
    assert not one.store.exists("s")


def test_a_session_that_another_process_replaced_is_a_conflict(documents: DictStore) -> None:
    one, two = open_twice(documents)
    one.add_message(Message.user("1"))
    two.store.delete("s")
    Session("s", store=two.store).add_message(Message.user("new"))
    with pytest.raises(EventsLost) as caught:
        one.add_message(Message.user("2"))
    assert caught.value.lost == 1
    assert list_texts(Session.open("s", store=one.store)) == ["new"]


def test_turns_of_several_processes_see_each_other(documents: DictStore) -> None:
    scripts = RecordingScript("one"), RecordingScript("two", "four"), RecordingScript("three")
    one, two = open_twice(documents)
    for number, (session, script) in enumerate([(one, 0), (two, 1), (one, 2), (two, 1)]):
        session.run(f"question {number}", agent=scripts[script].agent("a"))
    asked = [text for _, text in scripts[1].list_messages()]
    assert asked == ["question 0", "one", "question 1", "two", "question 2", "three", "question 3"]


def test_a_turn_goes_on_while_another_process_adds_a_message(documents: DictStore) -> None:
    other = DocumentStore(documents)

    @tool
    def look_up() -> str:
        """Look something up."""
        Session.open("s", store=other).add_message(Message.user("by the way"))
        return "found"

    agent = make_scripted_agent(call("look_up"), "done", tools=[look_up])
    session = agent.session("s", store=DocumentStore(documents))
    assert session.run("go").text == "done"
    assert sorted(list_texts(Session.open("s", store=other))) == sorted(list_texts(session))
    assert "by the way" in list_texts(session)
    assert session.verify()


def test_a_turn_that_another_process_takes_over_ends_with_an_error(documents: DictStore) -> None:
    other = DocumentStore(documents)

    @tool
    def look_up() -> str:
        """Look something up."""
        mine = make_scripted_agent("mine").session("s", store=other)
        thread = threading.Thread(target=mine.run, args=["another question"])  # as another process: not of this turn
        thread.start()
        thread.join()
        return "found"

    agent = make_scripted_agent(call("look_up"), "done", tools=[look_up])
    session = agent.session("s", store=DocumentStore(documents))
    with pytest.raises(StaleEpoch):
        session.run("go")
    assert list_texts(Session.open("s", store=other))[-2:] == ["another question", "mine"]


def test_each_change_loads_once_and_saves_once(documents: DictStore) -> None:
    class CountingStore(DictStore):
        calls: list[str] = []

        def save(self, session_id: str, data: dict[str, Any]) -> None:
            self.calls.append("save")
            super().save(session_id, data)

        def load(self, session_id: str) -> dict[str, Any] | None:
            self.calls.append("load")
            return super().load(session_id)

    counting = CountingStore()
    session = Session("s", store=counting)
    counting.calls.clear()
    session.add_message(Message.user("1"))
    assert counting.calls == ["load", "save"]
    assert json.loads(counting.kept["s"])["log"]["head"] == 2
