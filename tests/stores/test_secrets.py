"""Encryption and erasure, seen from the disk: what is in the files, and what is not any more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, File, Message, Session
from holdfast.errors import KeyNeeded, SearchUnavailable, WrongKey
from holdfast.stores import PostgresStore, SQLiteStore, sqlite
from holdfast.stores.base import Store
from tests.kit.postgres import PostgresServer

SECRETS = (
    "sapphire-message",
    "sapphire-answer",
    "sapphire-state",
    "sapphire-statename",
    "sapphire-fact",
    "sapphire-title",
    "sapphire-metadata",
    "sapphire-system",
    "sapphire-bytes",
    "sapphire-key",
    "sapphire-user-state",
    "sapphire-summary",
)


def read_folder(folder: Path) -> bytes:
    """Everything in the files of a folder. Only for stores that are closed, or files of another process."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def read_folder_elsewhere(folder: Path) -> bytes:
    """The same while the store is open: by another process, because this one must not open those files itself."""
    code = "import pathlib, sys\nfor p in pathlib.Path(sys.argv[1]).iterdir(): sys.stdout.buffer.write(p.read_bytes())"
    return subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, check=True).stdout


def find_leaks(found: bytes, secrets: Iterable[str] = SECRETS) -> list[str]:
    return [secret for secret in secrets if secret.encode() in found]


def make_secret_session(store: Store, id: str = "s") -> Session:
    """A session with a secret in every place that one can be in."""
    agent = Agent(provider="scripted", script=["sapphire-answer", "sapphire-summary of it all"])
    session = Session(
        id=id,
        store=store,
        agent=agent,
        user_id="user-7",
        title="sapphire-title",
        metadata={"note": "sapphire-metadata"},
        system="sapphire-system",
    )
    session.set_state("sapphire-statename", "sapphire-state")
    session.set_state("place", "sapphire-user-state", scope="user")
    session.facts.add("sapphire-fact")
    session.add_message(Message.user("look", File(data=b"sapphire-bytes", media_type="text/plain")))
    session.add_message(Message.user("sapphire-message one"), once="sapphire-key")
    session.run("sapphire-message two")
    for n in range(8):
        session.add_message(Message.user(f"sapphire-message {n}"))
    session.prune(strategy="summarize_old", threshold=4)
    return session


def test_nothing_that_was_said_is_readable_in_the_files_of_an_encrypted_store(tmp_path: Path) -> None:
    for name, key in (("plain", None), ("sealed", os.urandom(32))):
        folder = tmp_path / name
        folder.mkdir()
        with SQLiteStore(folder / "s.db", key=key) as store:
            session = make_secret_session(store)
            assert session.verify()
            assert session.title == "sapphire-title"
            assert session.get_state("sapphire-statename") == "sapphire-state"
            assert session.get_state("place", scope="user") == "sapphire-user-state"
            assert [info.metadata for info in store.sessions()] == [{"note": "sapphire-metadata"}]
            assert session.messages[0].text.startswith("[Summary of")
    assert find_leaks(read_folder(tmp_path / "plain")) == list(SECRETS)  # the test can see them where they are
    assert find_leaks(read_folder(tmp_path / "sealed")) == []


def test_nothing_that_was_said_is_readable_in_an_encrypted_database(postgres_server: PostgresServer) -> None:
    rows: dict[str, bytes] = {}
    for name, key in (("plain", None), ("sealed", os.urandom(32))):
        with PostgresStore(postgres_server.database(), key=key) as store:
            make_secret_session(store)
            tables = [t for (t,) in store.server.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")]
            found = b""
            for table in tables:
                for row in store.server.fetch(f"SELECT * FROM holdfast.{table}"):
                    found += b" ".join(v if isinstance(v, bytes) else str(v).encode() for v in row)
            rows[name] = found
    assert find_leaks(rows["plain"]) == list(SECRETS)
    assert find_leaks(rows["sealed"]) == []


def test_an_erased_session_is_gone_from_the_files(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        session = make_secret_session(store)
        assert session.search("sapphire") != []  # so that there is an index
        other = Session(id="other", store=store)
        other.add_message(Message.user("an emerald stays"))
        Session.erase_user("user-7", reason="request 881", actor="dpo", store=store)
        assert session.verify()
        assert session.status == "erased"
        # While the store is still open: neither the file nor the log beside it has them.
        found = read_folder_elsewhere(tmp_path)
        assert find_leaks(found) == []
        assert b"emerald" in found
    assert find_leaks(read_folder(tmp_path)) == []


def test_a_redacted_event_is_gone_from_the_file_and_the_rest_is_not(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        session = Session(id="s", store=store)
        seq = session.add_message(Message.user("ruby " + "r" * 20_000))
        session.add_message(Message.user("an emerald stays"))
        session.search("ruby")
        session.redact(seq, reason="a mistake", actor="me")
    found = read_folder(tmp_path)
    assert b"ruby" not in found
    assert b"r" * 100 not in found
    assert b"emerald" in found


@pytest.mark.parametrize("many", [False, True])
def test_no_word_of_what_was_removed_stays_in_the_index(
    tmp_path: Path, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words stand in the index one by one, and the first of each letter in full."""
    if many:
        monkeypatch.setattr(sqlite, "MANY_WORDS", 1)
    with SQLiteStore(tmp_path / "s.db") as store:
        kept, gone, purged = (Session(id=id, store=store) for id in ("kept", "gone", "purged"))
        for session, text in ((kept, "an emerald stays"), (gone, "garnet hush"), (purged, "lapis quiet")):
            session.add_messages([Message.user(text), Message.user(f"{text} {text}")])
            assert len(session.search(text)) == 2
        seq = kept.add_message(Message.user("ruby secret"))
        assert kept.search("ruby")
        kept.redact(seq, reason="a mistake", actor="me")
        gone.erase(reason="request", actor="me")
        store.delete("purged")
        store.tidy()  # a plain deletion leaves the write-ahead log to the sweep
        assert len(kept.search("emerald")) == 2
        words = ("ruby", "secret", "garnet", "hush", "lapis", "quiet")
        assert find_leaks(read_folder_elsewhere(tmp_path), words) == []
        assert len(kept.search("emerald")) == 2
    assert find_leaks(read_folder(tmp_path), words) == []


def test_a_wrong_or_missing_key_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    path, key = tmp_path / "s.db", os.urandom(32)
    with SQLiteStore(path, key=key) as store:
        make_secret_session(store)
    with pytest.raises(WrongKey, match="encrypted with the master key"):
        SQLiteStore(path, key=os.urandom(32))
    with SQLiteStore(path) as store:
        with pytest.raises(KeyNeeded, match="key="):
            Session.open("s", store=store)
        with pytest.raises(KeyNeeded):
            Session.list(store=store)
    with SQLiteStore(path, key=lambda: key.hex()) as store:
        assert Session.open("s", store=store).verify()


def test_a_plain_store_takes_on_a_key_and_keeps_its_old_sessions(tmp_path: Path) -> None:
    path, key = tmp_path / "s.db", os.urandom(32)
    with SQLiteStore(path) as store:
        Session(id="old", store=store).add_message(Message.user("in the open"))
    with SQLiteStore(path, key=key) as store:
        assert Session.open("old", store=store).history()[0].text == "in the open"
        Session(id="new", store=store).add_message(Message.user("between us"))
        assert Session.open("old", store=store).search("open") != []
        with pytest.raises(SearchUnavailable):
            Session.open("new", store=store).search("us")
        fork = Session.open("new", store=store).fork("fork")
        fork.add_message(Message.user("also between us"))
        assert [message.text for message in fork.messages] == ["between us", "also between us"]
        assert fork.verify()
    assert b"between us" not in read_folder(tmp_path)


def test_a_new_master_key_rewrites_no_payload(encrypted_store: Store) -> None:
    store = encrypted_store
    session = make_secret_session(store)
    before = _read_bodies(store)
    new = os.urandom(32)
    assert store.rotate_key(new) >= 2  # type: ignore[attr-defined]
    assert _read_bodies(store) == before
    assert session.verify()
    assert Session(id="after", store=store).verify()
    if isinstance(store, SQLiteStore):
        path = store.file.path
        store.close()
        with pytest.raises(WrongKey):
            SQLiteStore(path, key=bytes(range(32)))
        with SQLiteStore(path, key=new) as again:
            assert Session.open("s", store=again).title == "sapphire-title"


def test_rows_moved_to_another_place_do_not_open(encrypted_store: Store) -> None:
    store = encrypted_store
    session = Session(id="s", store=store)
    session.add_messages([Message.user("pay 1"), Message.user("pay 2")])
    if isinstance(store, SQLiteStore):
        swap = (
            "UPDATE events SET body = (SELECT body FROM events o WHERE o.event = events.event + 1) WHERE event & 7 = 2"
        )
        store.file.write(lambda db: db.execute(swap))
    else:
        assert isinstance(store, PostgresStore)
        swap = """UPDATE holdfast.events e SET body = o.body FROM holdfast.events o
            WHERE o.log = e.log AND o.seq = 3 AND e.seq = 2"""
        store.server.run_unit(lambda db: db.execute(swap))
    with pytest.raises(WrongKey):
        Session.open("s", store=store).history()


def test_erasing_replaces_the_key_of_the_session(encrypted_store: Store) -> None:
    store = encrypted_store
    session = make_secret_session(store)
    before = store.require("session", "s").key
    session.redact(session.history(1)[0].seq or 0, reason="r", actor="me")
    session.erase(reason="request", actor="dpo")
    after = store.require("session", "s").key
    assert before is not None
    assert after is not None
    assert before != after
    assert session.verify()
    assert [event.data.get("reason") for event in session.events(limit=1)] == ["request"]


def _read_bodies(store: Store) -> list[Any]:
    if isinstance(store, SQLiteStore):
        return [
            row[0]
            for row in store.file.read(lambda db: db.execute("SELECT body FROM events ORDER BY event").fetchall())
        ]
    assert isinstance(store, PostgresStore)
    return [row[0] for row in store.server.fetch("SELECT body FROM holdfast.events ORDER BY log, seq")]
