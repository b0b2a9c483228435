"""What is removed is gone from every table: what a deleted parent said, also where a fork keeps a part of it."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Agent, File, Message, Session, tool
from holdfast.errors import SessionHeld, SessionNotFound
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.testing import call
from holdfast.worker.sweep import sweep
from tests.kit.postgres import PostgresServer
from tests.kit.stores import open_store

KEY = sha256(b"master").digest()
SOON = {"ttl_days": 1e-9}
TABLES = (
    *("logs", "events", "names", "sessions", "once", "leases", "snapshots", "blobs", "indexed", "words", "retention"),
    *("erasures", "key_values", "run_queue", "lineage", "settled", "signatures", "sizes", "usage"),
)


@pytest.fixture(params=["memory", "sqlite", "postgres", "sqlite encrypted", "postgres encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    kind, _, encrypted = request.param.partition(" ")
    return open_store(kind, request, tmp_path, key=KEY if encrypted else None)


def read_everything(store: Store) -> bytes:
    """Everything that the tables of a store hold, opened where it is sealed."""
    found: list[Any] = []
    if isinstance(store, MemoryStore):
        for kept in store._memory.logs.values():
            found += [vars(kept), kept.head.view, *((row.body, row.tombstone) for row in kept.rows)]
        found += store._memory.key_values.items()
    elif isinstance(store, SQLiteStore):
        for table in TABLES:
            found += store._fetch_all(f"SELECT * FROM {table}") if table != "words" else []
        found += store._fetch_all("SELECT * FROM words_data")
    elif isinstance(store, PostgresStore):
        for table in TABLES:
            found += store._fetch_all(f"SELECT * FROM holdfast.{table}")
    if isinstance(store, (SQLiteStore, PostgresStore)) and store._keys.has_master:
        numbers = [number for (number,) in store._fetch_all(store.sql.render("SELECT log FROM logs"))]
        for number in numbers:
            rows = store._scan(number, 0, 1 << 31, limit=None, reverse=False, types=None, marked=False, since=None)
            found += [(row.body, row.tombstone) for row in rows]
            found += store._list_names(number, "state/", 1 << 31)
    return repr(found).encode()


@tool
def weigh(what: str) -> str:
    """Weigh a thing."""
    return f"{what} weighs 3 kg"


def make_parent(store: Store) -> tuple[Session, int]:
    """A session with a past that is to be shared, and the seq up to which it is."""
    script = [call("weigh", {"what": "sharedcall"}), "sharedanswer", call("weigh", {"what": "latecall"}), "lateanswer"]
    agent = Agent(provider="scripted", script=script, tools=[weigh])
    parent = Session("parent", store=store, agent=agent, user_id="alice", title="latetitle", metadata={"k": "latemeta"})
    parent.run("sharedquestion")
    parent.add_message(Message.user("sharedfile", File(data=b"sharedbytes", media_type="text/plain")))
    parent.set_state("sharedname", "sharedvalue")
    at = store.head(parent.log).head
    parent.run("latequestion")
    parent.add_message(Message.user("latefile", File(data=b"latebytes", media_type="text/plain")), once="lateonce")
    parent.set_state("latename", "latevalue")
    parent.facts.add("latefact")
    parent.add_messages([Message.user(f"latenumber {n}") for n in range(150)])
    return parent, at


LATE = [
    *("latequestion", "latecall", "lateanswer", "latefile", "latebytes", "lateonce", "latename", "latevalue"),
    *("latefact", "latenumber"),
]
SHARED = ["sharedquestion", "sharedcall", "sharedanswer", "sharedfile", "sharedvalue", "sharedname"]


def find_words(store: Store, words: list[str]) -> list[str]:
    held = read_everything(store)
    return [word for word in words if word.encode() in held]


class TestAParentThatAForkStillNeeds:
    @pytest.mark.parametrize("how", ["delete", "purge"])
    def test_what_it_said_after_the_fork_is_gone_at_once(self, store: Store, how: str) -> None:
        parent, at = make_parent(store)
        fork = parent.fork("fork", at=at)
        if parent.log.key is None:
            assert parent.search("latequestion")
        before = [message.text for message in fork.messages]
        if how == "delete":
            store.delete("parent")
        else:
            parent.retention = SOON
            assert sweep(store).purged == ["parent"]
        assert find_words(store, LATE) == []
        assert [message.text for message in fork.messages] == before
        assert fork.state["sharedname"] == "sharedvalue"
        assert fork.verify()
        assert find_words(store, SHARED[:3]) == SHARED[:3]

    def test_the_rest_goes_with_the_last_fork(self, store: Store) -> None:
        parent, at = make_parent(store)
        near, far = parent.fork("near", at=2), parent.fork("far", at=at)
        store.delete("parent")
        store.delete("far")
        assert find_words(store, [*LATE, *SHARED]) == []
        assert near.verify()
        store.delete("near")
        assert b"sharedquestion" not in read_everything(store)
        with pytest.raises(SessionNotFound):
            store.log_of_number(parent.log.number)
        assert far.log.number not in store.heads([far.log.number])

    def test_a_fork_of_a_deleted_fork_keeps_only_its_own_past(self, store: Store) -> None:
        parent, at = make_parent(store)
        fork = parent.fork("fork", at=at)
        fork.add_message(Message.user("forkwords"))
        grandchild = fork.fork("grandchild", at=2)
        store.delete("parent")
        store.delete("fork")
        assert find_words(store, [*LATE, *SHARED, "forkwords"]) == []
        assert grandchild.verify()

    def test_erasing_one_fork_removes_what_only_it_showed(self, store: Store) -> None:
        parent, at = make_parent(store)
        near, far = parent.fork("near", at=3), parent.fork("far", at=at)
        store.delete("parent")
        far.erase(reason="asked", actor="officer")
        assert find_words(store, [*LATE, "sharedanswer", "sharedfile", "sharedname", "sharedvalue"]) == []
        assert [message.text for message in near.messages] == ["sharedquestion"] or near.messages == []
        assert near.verify()
        assert far.verify()
        near.erase(reason="asked", actor="officer")
        assert find_words(store, [*LATE, *SHARED]) == []
        assert near.verify()
        assert far.verify()

    def test_forks_that_are_erased_keep_hashes_only(self, store: Store) -> None:
        parent, at = make_parent(store)
        fork = parent.fork("fork", at=at)
        fork.erase(reason="asked", actor="officer")
        store.delete("parent")
        assert find_words(store, [*LATE, *SHARED]) == []
        assert fork.verify()

    @pytest.mark.parametrize("order", [("near", "far"), ("far", "near")])
    def test_erasing_the_user_removes_the_whole_deleted_parent(self, store: Store, order: tuple[str, str]) -> None:
        parent, at = make_parent(store)
        forks = {"near": 2, "far": at}
        for name in order:
            parent.fork(name, at=forks[name])
        store.delete("parent")
        done = Session.erase_user("alice", reason="asked", actor="officer", store=store)
        assert sorted(done.sessions) == ["far", "near"]
        assert find_words(store, [*LATE, *SHARED]) == []

    def test_a_redacted_file_of_a_deleted_parent_is_not_missed(self, store: Store) -> None:
        parent, at = make_parent(store)
        fork = parent.fork("fork", at=at)
        seq = next(row.seq for row in store.read(parent.log) if b"sharedfile" in (row.body or b""))
        parent.redact(seq, reason="asked")
        store.delete("parent")
        assert find_words(store, ["sharedfile", "sharedbytes"]) == []
        assert fork.verify()


class TestAnErasureThatLosesARace:
    @pytest.mark.parametrize("name", ["erase", "erase_user"])
    def test_a_session_that_is_deleted_meanwhile_is_erased_in_its_forks(self, store: Store, name: str) -> None:
        parent, at = make_parent(store)
        fork = parent.fork("fork", at=at)
        other = parent.fork("other", at=at)
        fork.add_message(Message.user("forkwords"))
        apply = store.apply_erasure
        tries: list[bool] = []

        def lose_the_race(log: Any, drafts: Any, burial: Any) -> Any:
            if not tries and log.number == parent.log.number:
                tries.append(store.delete("parent"))
            return apply(log, drafts, burial)

        store.apply_erasure = lose_the_race  # type: ignore[method-assign]
        if name == "erase":
            done = parent.erase(reason="asked", actor="officer")
            assert done.events > 0
        else:
            Session.erase_user("alice", reason="asked", actor="officer", store=store)
        assert tries == [True]
        assert find_words(store, [*LATE, *SHARED]) == []
        assert fork.verify()
        assert other.verify()
        if name == "erase":
            assert [message.text for message in fork.messages][-1] == "forkwords"
            record = [event for event in fork.events() if event.type == "event.redacted"]
            assert [(event.actor, event.data["by"], event.data["reason"]) for event in record] == [
                ("officer", "parent", "asked")
            ]

    def test_a_held_fork_stops_it(self, store: Store) -> None:
        parent, at = make_parent(store)
        fork = parent.fork("fork", at=at)
        apply = store.apply_erasure

        def lose_the_race(log: Any, drafts: Any, burial: Any) -> Any:
            if store.delete("parent"):
                fork.hold("a lawsuit")
            return apply(log, drafts, burial)

        store.apply_erasure = lose_the_race  # type: ignore[method-assign]
        with pytest.raises(SessionHeld):
            parent.erase(reason="asked", actor="officer")
        assert fork.messages[0].text == "sharedquestion"


def test_what_a_deleted_parent_said_is_not_in_the_files(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "log.db") as store:
        parent, at = make_parent(store)
        parent.fork("fork", at=at)
        store.delete("parent")
        store.tidy()
    raw = b"".join(path.read_bytes() for path in tmp_path.glob("log.db*"))
    assert [word for word in LATE if word.encode() in raw] == []


def redact_among_many(store: SQLiteStore, seed: int) -> list[bytes]:
    """Fill pages in turns, so that rows move between them, then redact some; returns the redacted words."""
    rng = random.Random(seed)
    sessions = [Session(f"s{number}", store=store) for number in range(12)]
    added = []
    for number in range(400):
        session, word = rng.choice(sessions), f"secret{number}x"
        added.append((session, session.add_message(Message.user(word + "z" * rng.randrange(1200))), word))
    gone = rng.sample(added, 100)
    for session, seq, _ in gone:
        session.redact(seq, reason="asked")
    return [word.encode() for _, _, word in gone]


@pytest.mark.parametrize("seed", [2, 3, 5, 6, 7])
def test_a_sweep_leaves_no_trace_in_the_pages_of_a_file(tmp_path: Path, seed: int) -> None:
    with SQLiteStore(tmp_path / "log.db", synchronous="NORMAL") as store:
        words = redact_among_many(store, seed)
        assert sweep(store).purged == []
        raw = b"".join(path.read_bytes() for path in tmp_path.glob("log.db*"))
        assert [word for word in words if word in raw] == []
        assert Session.open("s0", store=store).verify()


def test_a_file_is_rewritten_only_after_a_removal_and_only_up_to_the_size_that_is_given(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "log.db") as store, SQLiteStore(tmp_path / "log.db") as other:
        session = Session("s", store=store)
        session.redact(session.add_message(Message.user("words")), reason="asked")
        due = other._fetch_one("PRAGMA user_version")
        assert due != (0,)
        other.tidy(max_bytes=1000)
        assert store._fetch_one("PRAGMA user_version") == due
        other.tidy()
        assert store._fetch_one("PRAGMA user_version") == (0,)
        session.add_message(Message.user("more words"))
        assert store._fetch_one("PRAGMA user_version") == (0,)
        store.delete("s")
        assert other._fetch_one("PRAGMA user_version") != (0,)


def test_the_tables_of_this_module_are_all_that_there_are(tmp_path: Path, postgres_server: PostgresServer) -> None:
    with SQLiteStore(tmp_path / "log.db") as store:
        rows = store._fetch_all("SELECT name FROM sqlite_master WHERE type = 'table'")
    names = {name for (name,) in rows if not name.startswith(("sqlite_", "words_"))}
    assert names == {*TABLES, "master_key", "migrations"}
    dsn = postgres_server.database()
    PostgresStore(dsn).close()
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'").fetchall()
    assert {name for (name,) in found} == {*TABLES, "master_key", "migrations"}
