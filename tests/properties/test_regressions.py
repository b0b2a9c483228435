"""What random histories once found, in its shortest form. A failing seed ends here."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import permutations
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import File, Message, Session
from holdfast.errors import InvalidArgument, NotJSON, SessionNotFound, StoreError, StoreFull
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.document_store import DocumentStore
from tests.properties.families import count_leftovers

STARTED, FINISHED = Draft(type="turn.started", run="r"), Draft(type="turn.finished", run="r")


def list_texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


@pytest.fixture
def two_sessions(database: str, shared_postgres: PostgresStore) -> Iterator[list[Session]]:
    """The same session as two processes hold it."""
    with PostgresStore(database) as other:
        first = Session(store=shared_postgres)
        yield [first, Session.open(first.id, store=other)]


def test_a_refusal_is_never_made_from_memory(two_sessions: list[Session]) -> None:
    mine, yours = two_sessions
    mine.close()
    yours.reopen()
    mine.pause()
    assert yours.status == "paused"


@pytest.mark.parametrize("order", list(permutations(["parent", "child", "grandchild"])))
def test_nothing_is_left_of_a_family_that_was_deleted(store: Store, order: tuple[str, ...]) -> None:
    if isinstance(store, DocumentStore):
        return  # forks are copies there
    parent = Session("parent", store=store)
    parent.add_message(Message.user("one", File(data=b"x", media_type="x/y")))
    parent.fork("child").fork("grandchild").search("one")
    for name in order:
        assert store.delete(name)
    assert list(count_leftovers(store)) == []


def test_messages_cleared_during_a_turn_stay_cleared(store: Store) -> None:
    session = Session(store=store)
    store.append(session.log, [STARTED])
    session.add_message(Message.user("from outside"))
    session.clear()
    store.append(session.log, [FINISHED])
    assert list_texts(session) == []


def test_a_message_added_with_the_start_of_a_turn_is_in_the_past_view(store: Store) -> None:
    session = Session(store=store)
    outside = Draft(type="message.added", data={"role": "user", "text": "outside"})
    last = store.append(session.log, [STARTED, outside]).last
    session.set_state("a", 1)
    assert store.view(session.log, last).to_bytes() == store.view(session.log).to_bytes()


def test_a_fork_before_an_open_turn_has_the_title_of_that_point(store: Store) -> None:
    session = Session(store=store, title="before", metadata={"n": 1})
    store.append(session.log, [STARTED])
    session.title, session.metadata = "meanwhile", {"n": 2}
    fork = session.fork()
    assert (fork.title, fork.metadata) == ("before", {"n": 1})


def test_a_fork_keeps_an_empty_title(store: Store) -> None:
    fork = Session(store=store, title="").fork()
    assert fork.title == "" == store.value(fork.log, "title")


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_an_export_with_any_line_end_in_it_can_be_imported(store: Store, end: str) -> None:
    session = Session(store=store)
    session.add_message(Message.user(f"one{end}two"))
    assert list_texts(Session.import_(session.export(), session_id="copy", store=store)) == [f"one{end}two"]


def test_an_imported_log_with_an_erased_event_verifies(store: Store) -> None:
    session = Session(store=store)
    session.add_messages([Message.user("secret"), Message.user("rest")])
    lines = [json.loads(line) for line in session.export().split("\n") if line]
    salt, data = bytes.fromhex(lines[1].pop("salt")), codec.encode(lines[1].pop("data"))
    lines[1] |= {"commitment": sha256(salt + data).hexdigest(), "message": None, "role": None}
    copy = Session.import_("\n".join(map(json.dumps, lines)), session_id="copy", store=store)
    assert copy.verify()
    assert list_texts(copy) == ["[erased]", "rest"]


@pytest.mark.parametrize("depth", range(56, 66))
def test_what_is_taken_can_also_be_taken_out(store: Store, depth: int) -> None:
    session, value = Session(store=store), json.loads("[" * depth + "]" * depth)
    try:
        session.set_state("deep", value)
    except NotJSON:
        return
    assert Session.import_(session.export(), session_id="copy", store=store).state == {"deep": value}
    store.save("saved", session.to_dict())
    store.save("copy", session.to_dict() | {"title": "other"})
    assert Session.open("saved", store=store).state == Session.open("copy", store=store).state == {"deep": value}


@pytest.mark.parametrize("parts", [[], ["text"], ["one", "two"]])
def test_a_tool_message_without_a_result_is_refused_or_can_be_saved(store: Store, parts: list[str]) -> None:
    session = Session(store=store)
    try:
        session.add_message(Message("tool", parts))
    except InvalidArgument:
        return
    store.save("copy", session.to_dict())
    assert Session.open("copy", store=store).messages == session.messages


def test_reading_json_from_outside_takes_time_in_proportion() -> None:
    with pytest.raises(NotJSON):
        codec.parse('"' + '\\"' * 300_000)  # took six seconds for every 20,000, and four times that for twice as many


def test_every_word_of_a_large_message_is_found(store: Store) -> None:
    words = [f"{chr(0x430 + n % 30)}{chr(0x430 + n // 30 % 30)}{chr(0x430 + n // 900)}" for n in range(27_000)]
    session = Session(store=store)
    session.add_message(Message.user(" ".join(words)))
    assert [word for word in words[::1500] if not session.search(word)] == []


def test_search_folds_what_only_decomposition_reveals(store: Store) -> None:
    session = Session(store=store)
    session.add_message(Message.user("ℌello"))
    assert list_texts(session) == [message.text for message in session.search("hello")]


@pytest.mark.parametrize("after", [2**31, 2**32, 2**33 + 1, 2**63, 2**70])
def test_there_is_nothing_after_the_end(store: Store, after: int) -> None:
    for _ in range(4):  # with several internal log numbers
        assert Session(store=store).events(after=after) == []


def test_what_a_store_hands_out_is_a_copy(store: Store) -> None:
    given = {"a": {"b": 1}}
    session = Session(store=store, metadata=given)
    given["a"]["b"] = 2
    session.metadata["a"]["b"] = 3
    assert session.metadata == {"a": {"b": 1}}


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", "a/b", "x" * 9000, "", "."])
def test_what_cannot_be_an_id_is_nowhere(store: Store, bad: str) -> None:
    assert (store.load(bad), store.exists(bad), store.delete(bad)) == (None, False, False)
    with pytest.raises(InvalidArgument):
        store.save(bad, {"version": 1})
    with pytest.raises(InvalidArgument):
        Session.list(store=store, after=bad)
    assert store.list_sessions() == []


@pytest.mark.parametrize(
    "document",
    [
        {"facts": [{"id": "1", "text": "t", "title": "not mine"}]},
        {"facts": [{"id": "1", "text": "t", "kind": 7}]},
        {"state": {"x" * 9000: 1}},
        {"state": {"": 1}},
        {"user_id": "x" * 9000},
    ],
)
def test_a_document_is_checked_before_it_is_believed(store: Store, document: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        store.save("s", {"version": 1, **document})
    assert not store.exists("s")


@pytest.mark.parametrize("who", ["\ud800", 5])
def test_an_author_is_checked_before_anything_is_locked(store: Store, who: Any) -> None:
    session = Session(store=store)
    with pytest.raises(InvalidArgument):
        session.add_message(Message.user("x", author=who))
    with pytest.raises(InvalidArgument):
        session.pause(actor=who)
    assert session.head == 1


# -- one store -------------------------------------------------------------------------------------------------------


def run_batch(store: SQLiteStore, *jobs: Callable[[Any], Any]) -> list[BaseException | None]:
    """Run jobs in one group commit, independent of the scheduler; returns what each raised."""
    gate, raised = threading.Event(), list[BaseException | None]([None] * len(jobs))

    def run(number: int, job: Callable[[Any], Any]) -> None:
        try:
            store.file.write(job)
        except Exception as error:
            raised[number] = error

    leader = threading.Thread(target=store.file.write, args=[lambda _: gate.wait(30)])
    followers = [threading.Thread(target=run, args=one) for one in enumerate(jobs)]
    for queued, thread in enumerate([leader, *followers]):
        thread.start()
        while len(store.file._queue) != queued + 1 or not store.file._batch:
            threading.Event().wait(0.001)
    gate.set()
    for thread in [leader, *followers]:
        thread.join()
    return raised


def test_a_broken_job_is_answered_by_itself(tmp_path: Path) -> None:
    def broken(_: Any) -> None:
        raise TypeError("a bug of its own")

    with SQLiteStore(tmp_path / "log.db") as store:
        raised = run_batch(store, lambda db: db.execute("SELECT 1").fetchall(), broken, lambda db: None)
    assert [type(error) for error in raised] == [type(None), TypeError, type(None)]


def test_an_error_of_the_database_has_its_name_in_a_batch_too(tmp_path: Path) -> None:
    def full(_: Any) -> None:
        raise apsw.FullError("database or disk is full")

    with SQLiteStore(tmp_path / "log.db") as store:
        raised = run_batch(store, lambda db: None, full)
    assert [type(error) for error in raised] == [type(None), StoreFull]


def test_a_failed_flush_in_a_batch_poisons_the_file(tmp_path: Path) -> None:
    def fails(_: Any) -> None:
        raise apsw.IOError("disk I/O error")

    with SQLiteStore(tmp_path / "log.db") as store:
        raised = run_batch(store, fails, lambda db: None)
        assert isinstance(raised[0], StoreError)
        assert store.file.poison_reason


def test_a_search_is_content_with_one_connection(database: str) -> None:
    with PostgresStore(database, connections=1, patience=1.0) as store:
        session = Session(store=store)
        session.add_message(Message.user("hello"))
        assert len(session.search("hello")) == 1


def test_a_deletion_done_again_spares_a_namesake(database: str) -> None:
    """The answer to the first attempt is lost, and another process takes the name before the second."""
    with PostgresStore(database) as store, PostgresStore(database) as other:
        Session("namesake", store=store)
        real, calls = store.server.pool._use_connection, list[int]()

        def lossy(work: Callable[[Any], Any]) -> Any:
            calls.append(1)
            if len(calls) == 2:
                Session("namesake", store=other, title="another")

            def lose(db: Any) -> Any:
                result = work(db)
                if len(calls) == 1:
                    raise make_connection_error()
                return result

            return real(lose)

        store.server.pool._use_connection = lossy  # type: ignore[method-assign]
        assert store.delete("namesake")
        assert Session.open("namesake", store=other).title == "another"
        other.delete("namesake")


def make_connection_error() -> Exception:
    import psycopg

    return psycopg.OperationalError("the connection is lost")


def test_bytes_of_a_deleted_session_are_not_called_corrupt(durable_store: Store) -> None:
    session = Session(store=durable_store)
    session.add_message(Message.user("look", File(data=b"bytes", media_type="x/y")))
    digest = sha256(b"bytes").hexdigest()
    durable_store.delete(session.id)
    with pytest.raises(SessionNotFound):
        durable_store.blob(session.log, digest)
