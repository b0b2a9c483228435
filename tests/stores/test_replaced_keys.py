"""Processes that share an encrypted store: one erases or rotates, and the others have the old keys in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast import Agent, Message, Session
from holdfast.errors import WrongKey
from holdfast.stores import PostgresStore, SQLiteStore
from tests.kit.postgres import PostgresServer

OLD, NEW = sha256(b"old").digest(), sha256(b"new").digest()
Open = Callable[[bytes], SQLiteStore | PostgresStore]


@pytest.fixture(params=["sqlite", "postgres"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens one database, each time as another process would."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield lambda key: stack.enter_context(SQLiteStore(tmp_path / "log.db", key=key))
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            dsn = server.database()
            yield lambda key: stack.enter_context(PostgresStore(dsn, key=key))


def test_an_erasure_leaves_the_forks_readable_in_every_process(open_again: Open) -> None:
    here, there = open_again(OLD), open_again(OLD)
    parent = Session("parent", store=here)
    parent.add_message(Message.user("sharedwords"))
    parent.set_state("name", "value")
    parent.fork("fork").add_message(Message.user("forkwords"))
    agent = Agent(provider="scripted", script=["answer"])
    fork, erased = Session.open("fork", store=there, agent=agent), Session.open("parent", store=there)
    assert [message.text for message in fork.messages] == ["sharedwords", "forkwords"]
    assert fork.get_state("name") == "value"
    assert fork.verify()
    parent.erase(reason="asked", actor="officer")
    assert [message.text for message in fork.messages] == ["[erased]", "forkwords"]
    assert fork.get_state("name") is None
    assert fork.verify()
    assert erased.verify()
    assert "sharedwords" not in fork.export()
    assert fork.run("question").text == "answer"
    there.delete("parent")
    assert fork.verify()


def test_a_second_erasure_by_a_process_with_the_old_key_keeps_the_tombstones(open_again: Open) -> None:
    here, there = open_again(OLD), open_again(OLD)
    parent = Session("parent", store=here, user_id="alice")
    parent.add_message(Message.user("sharedwords"))
    fork = parent.fork("fork")
    theirs = Session.open("fork", store=there)
    assert len(theirs.messages) == 1
    parent.erase(reason="asked", actor="officer")
    here.delete("parent")
    theirs.erase(reason="asked", actor="officer")
    assert theirs.verify()
    assert fork.verify()


def test_what_was_altered_is_still_told(open_again: Open) -> None:
    store = open_again(OLD)
    session = Session("one", store=store)
    seq = session.add_message(Message.user("words"))
    if isinstance(store, SQLiteStore):
        store.file.write(lambda db: db.execute("UPDATE events SET body = zeroblob(60) WHERE event & 255 = ?", (seq,)))
    else:
        store.server.run_unit(
            lambda db: db.execute("UPDATE holdfast.events SET body = %s WHERE seq = %s", (bytes(60), seq))
        )
    with pytest.raises(WrongKey):
        print(session.messages)
    assert session.verify().first_bad == seq


def test_a_process_with_the_old_master_key_wraps_no_key_after_a_rotation(open_again: Open) -> None:
    here, there = open_again(OLD), open_again(OLD)
    session = Session("one", store=here)
    session.add_message(Message.user("words"))
    theirs = Session.open("one", store=there)
    assert [message.text for message in theirs.messages] == ["words"]
    here.rotate_key(NEW)
    with pytest.raises(WrongKey, match="master key"):
        theirs.erase(reason="asked", actor="officer")
    assert [message.text for message in session.messages] == ["words"]
    assert session.verify()
    assert here.rotate_key(OLD) == 1
    session.erase(reason="asked", actor="officer")
    assert here.rotate_key(NEW) == 1
    assert session.verify()
