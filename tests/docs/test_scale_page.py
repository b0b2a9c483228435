"""docs/scale.md: its statements do to a real database what the page says, and sessions notice nothing."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from holdfast import Message, Session
from holdfast.errors import ImmutableSession
from holdfast.stores import PostgresStore
from tests.docs.pages import list_blocks
from tests.kit.postgres import PostgresServer

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_a_database_in_use_is_partitioned_and_sessions_notice_nothing(postgres_server: PostgresServer) -> None:
    database = postgres_server.database()
    with PostgresStore(database) as store, psycopg.connect(database, autocommit=True) as db:
        sessions = [Session(f"s{number}", store=store) for number in range(40)]
        for session in sessions:
            session.add_messages([Message.user("before"), Message.assistant("yes")])
        Session("kept", store=store, retention={"immutable": True}).add_message(Message.user("stay"))
        exports = [session.export() for session in sessions]
        for statements in list_blocks(PAGE, "sql"):
            db.execute(statements)
        db.execute("ALTER ROLE CURRENT_USER RESET ALL")  # it is the role of other tests too
        assert [session.export() for session in sessions] == exports
        used = db.execute("SELECT count(DISTINCT tableoid) FROM holdfast.events").fetchone()
        assert used is not None
        assert used[0] > 8
        for session in sessions:
            session.add_message(Message.user("after"))
            session.set_state("n", 1)
            assert [message.text for message in session.messages] == ["before", "yes", "after"]
            assert session.verify().ok
        fork = sessions[0].fork("fork", at=2)
        assert [message.text for message in fork.messages] == ["before"]
        sessions[0].redact(2, reason="asked to")
        assert sessions[0].verify().ok
        assert store.delete("s1")
        _is_still_guarded(store, db)


def _is_still_guarded(store: PostgresStore, db: psycopg.Connection[tuple[object, ...]]) -> None:
    kept = Session.open("kept", store=store)
    with pytest.raises(ImmutableSession):
        kept.clear()
    place = db.execute(
        "SELECT tableoid::regclass::text FROM holdfast.events WHERE log = %s LIMIT 1", (kept.log.number,)
    ).fetchone()
    assert place is not None
    for statement in (
        "UPDATE holdfast.events SET body = NULL",
        f"DELETE FROM {place[0]}",
        f"TRUNCATE {place[0]}",
        "TRUNCATE holdfast.events",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation):
            db.execute(statement)  # type: ignore[arg-type]


def test_the_rows_that_the_page_counts_with_are_among_the_figures() -> None:
    figures = (PAGE.parents[1] / "benchmarks" / "RESULTS.md").read_text()
    named = re.findall(r'\(R: "([^"]+)"\)', " ".join(PAGE.read_text().split()))
    assert len(named) > 5
    assert [row for row in named if f"| {row}" not in figures] == []
