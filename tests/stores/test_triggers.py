"""Immutable sessions against changes of the database by hand: triggers refuse, and the chain shows the rest."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg
import pytest

from holdfast import File, Message, Session
from holdfast.clock import Clock
from holdfast.errors import AgentError
from holdfast.log.chain import genesis, next_hash
from holdfast.log.events import Row
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from tests.kit.odd_payloads import change_body
from tests.kit.postgres import PostgresServer

DAY = 86_400_000_000


class PastClock(Clock):
    """The clock as it was ten days ago."""

    def now(self) -> int:
        return super().now() - 10 * DAY


class DirectConnection(Protocol):
    """A connection to the database that bypasses holdfast; `:log` stands for the number of the session's log."""

    store: Store
    refusal: type[Exception]

    def execute(self, statement: str, log: int) -> list[Any]: ...
    def blob(self, data: bytes) -> str: ...
    def drop_triggers(self) -> None: ...


class DirectSQLite:
    refusal: type[Exception] = apsw.ConstraintError

    def __init__(self, path: Path) -> None:
        self.store: Store = SQLiteStore(path)
        self.db = apsw.Connection(str(path))

    def execute(self, statement: str, log: int) -> list[Any]:
        text = statement.replace("[own]", "event >> 32 = :log").replace("[seq]", "event & 4294967295")
        text = text.replace("[columns]", "event, at, type, tokens, body, hash").replace("[next]", "event + 1000")
        return self.db.execute(text.replace(":log", str(log))).fetchall()

    def blob(self, data: bytes) -> str:
        return f"x'{data.hex()}'"

    def drop_triggers(self) -> None:
        for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            self.db.execute(f'DROP TRIGGER "{name}"')


class DirectPostgres:
    refusal: type[Exception] = psycopg.errors.RestrictViolation

    def __init__(self, dsn: str) -> None:
        self.store: Store = PostgresStore(dsn)
        self.db = psycopg.connect(dsn, autocommit=True)
        self.db.execute("SET search_path = holdfast")

    def execute(self, statement: str, log: int) -> list[Any]:
        text = statement.replace("[own]", "log = :log").replace("[seq]", "seq")
        text = text.replace("[columns]", "log, seq, at, type, tokens, body, hash").replace("[next]", "log, seq + 1000")
        found = self.db.execute(text.replace(":log", str(log)).encode())
        return found.fetchall() if found.description else []

    def blob(self, data: bytes) -> str:
        return f"'\\x{data.hex()}'::bytea"

    def drop_triggers(self) -> None:
        named = "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
        for name, table in self.db.execute(named).fetchall():
            self.db.execute(f"DROP TRIGGER {name} ON {table}".encode())


@pytest.fixture(params=["sqlite", "postgres"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DirectConnection]:
    if request.param == "sqlite":
        on_sqlite = DirectSQLite(tmp_path / "log.db")
        yield on_sqlite
        on_sqlite.db.close()
        on_sqlite.store.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    dsn = server.database()
    on_postgres = DirectPostgres(dsn)
    yield on_postgres
    on_postgres.db.close()
    on_postgres.store.close()
    server.drop(dsn)


def make_session(store: Store, name: str, **retention: Any) -> Session:
    session = Session(name, store=store, retention=retention or None)
    session.add_message(Message.user("hello", File(data=b"some bytes", media_type="x/y")))
    session.add_message(Message.assistant("hi"))
    return session


# What would change or remove something of a log, on both databases.
FORBIDDEN = {
    "delete an event": "DELETE FROM events WHERE [own] AND [seq] = 3",
    "delete all events": "DELETE FROM events WHERE [own]",
    "alter an event": "UPDATE events SET body = hash WHERE [own] AND [seq] = 3",
    "alter nothing of an event": "UPDATE events SET tokens = tokens WHERE [own] AND [seq] = 3",
    "bury an event": "UPDATE events SET tombstone = hash, body = NULL WHERE [own] AND [seq] = 3",
    "delete bytes": "DELETE FROM blobs WHERE log = :log",
    "alter bytes": "UPDATE blobs SET data = data WHERE log = :log",
    "delete the log": "DELETE FROM logs WHERE log = :log",
    "free its name": "UPDATE logs SET id = NULL WHERE log = :log",
    "rename it": "UPDATE logs SET id = 'another' WHERE log = :log",
    "alter where its chain begins": "UPDATE logs SET origin = 'another' WHERE log = :log",
    "say that it is encrypted": "UPDATE logs SET key = hash WHERE log = :log",
    "delete its retention": "DELETE FROM retention WHERE log = :log",
    "clear immutable": "UPDATE retention SET immutable = (1 = 0) WHERE log = :log",
    "move its last activity back": "UPDATE retention SET active = active - 1 WHERE log = :log",
    "shorten its ttl": "UPDATE retention SET ttl = 1 WHERE log = :log",
    "give its retention to another log": "UPDATE retention SET log = 987654 WHERE log = :log",
}
ONLY_SQLITE = {
    "replace an event": """INSERT OR REPLACE INTO events(event, at, type, tokens, body, hash)
        SELECT event, at, type, tokens, x'00', hash FROM events WHERE [own] AND [seq] = 3""",
    "replace an event by moving another": "UPDATE OR REPLACE events SET event = event - 1 WHERE [own] AND [seq] = 4",
    "replace an event by moving one of another log": """UPDATE OR REPLACE events SET event = (:log << 32) | 3
        WHERE event = (SELECT min(event) FROM events WHERE event >> 32 <> :log)""",
    "replace bytes": "INSERT OR REPLACE INTO blobs SELECT log, digest, x'00' FROM blobs WHERE log = :log",
    "replace bytes by moving others": """UPDATE OR REPLACE blobs SET log = :log,
        digest = (SELECT digest FROM blobs WHERE log = :log) WHERE log <> :log""",
    "replace the log": """INSERT OR REPLACE INTO logs SELECT log, uid, origin, tenant, kind, id, base, ancestry, parent,
        created_at, 0, hash, epoch, tokens, view, busy, marks, updated_at, key FROM logs WHERE log = :log""",
    "take its name": """INSERT OR REPLACE INTO logs(uid, origin, tenant, kind, id, base, created_at, head, hash, epoch,
        tokens, view, busy, marks, updated_at) SELECT 'u', 'u', tenant, kind, id, 0, 0, 0, hash, 0, 0, view, 0, 0, 0
        FROM logs WHERE log = :log""",
    "take its name by renaming another": "UPDATE OR REPLACE logs SET id = 'kept' WHERE log <> :log",
    "take its number": "UPDATE OR REPLACE logs SET log = :log WHERE log <> :log",
    "replace its retention": """INSERT OR REPLACE INTO retention(log, ttl, immutable, held, active)
        VALUES(:log, 1, 0, 0, 0)""",
    "replace its retention by moving another": """UPDATE OR REPLACE retention SET log = :log, immutable = 0
        WHERE log <> :log""",
}
ONLY_POSTGRES = {
    "truncate events": "TRUNCATE events",
    "truncate blobs": "TRUNCATE blobs",
    "truncate logs": "TRUNCATE logs",
    "truncate retention": "TRUNCATE retention",
    "truncate erasures": "TRUNCATE erasures",
    "truncate everything": "TRUNCATE events, blobs, logs, retention CASCADE",
    "replace an event": """INSERT INTO events SELECT * FROM events WHERE [own] AND [seq] = 3
        ON CONFLICT (log, seq) DO UPDATE SET body = NULL""",
    "replace its retention": """INSERT INTO retention(log, ttl, immutable, held, active)
        VALUES(:log, 1, FALSE, FALSE, 0) ON CONFLICT (log) DO UPDATE SET ttl = 1, immutable = FALSE""",
    "merge its retention": """MERGE INTO retention k USING (SELECT :log::bigint AS log) s ON k.log = s.log
        WHEN MATCHED THEN DELETE""",
}


def list_statements(connection: DirectConnection) -> dict[str, str]:
    return FORBIDDEN | (ONLY_SQLITE if isinstance(connection, DirectSQLite) else ONLY_POSTGRES)


class TestAnImmutableSession:
    def test_refuses_every_statement_that_would_change_it(self, connection):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        make_session(connection.store, "neighbour", ttl_days=1)
        before, number, allowed = session.export(), session.log.number, []
        for what, statement in list_statements(connection).items():
            connection.execute("BEGIN", 0)
            try:
                connection.execute(statement, number)
                allowed.append(what)
            except connection.refusal as refusal:
                allowed += [] if "holdfast" in str(refusal) else [f"{what}: {refusal}"]
            connection.execute("ROLLBACK", 0)
        assert not allowed, allowed
        assert session.export() == before
        assert session.verify()
        assert connection.store.value(session.log, "retention") == {"ttl_days": 730, "immutable": True}
        with pytest.raises(connection.refusal):
            connection.execute("DELETE FROM events", number)

    def test_without_a_ttl_it_is_kept_for_ever(self, connection):
        session = make_session(connection.store, "kept", immutable=True)
        for what in ("delete an event", "alter bytes", "shorten its ttl", "clear immutable"):
            with pytest.raises(connection.refusal):
                connection.execute(FORBIDDEN[what], session.log.number)

    def test_still_grows_and_is_used(self, connection):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        session.add_message(Message.user("more"))
        session.set_state("n", 1)
        session.title = "a title"
        session.retention = {"ttl_days": 800, "immutable": True}
        session.hold("a case")
        session.close()
        assert session.verify()
        assert connection.execute("SELECT ttl FROM retention WHERE log = :log", session.log.number) == [(800 * DAY,)]

    def test_takes_longer_keeping_by_hand(self, connection):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        connection.execute("UPDATE retention SET ttl = ttl + 1, due = 7 WHERE log = :log", session.log.number)
        connection.execute("UPDATE retention SET ttl = NULL WHERE log = :log", session.log.number)
        with pytest.raises(connection.refusal):
            connection.execute("UPDATE retention SET ttl = 1 WHERE log = :log", session.log.number)

    @pytest.mark.parametrize(
        "attempt",
        [
            "UPDATE logs SET updated_at = 0 WHERE log = :log",
            "UPDATE logs SET head = 0, updated_at = 0 WHERE log = :log",
            "UPDATE logs SET view = (SELECT view FROM logs WHERE id = 'free') WHERE log = :log",
            "INSERT INTO events([columns]) SELECT [next], 0, type, tokens, body, hash FROM events WHERE [own]",
        ],
        ids=["last activity", "head", "view", "an old event"],
    )
    def test_is_not_unlocked_by_what_may_be_written(self, connection, attempt):
        """Appends move the head, so triggers let that pass; it must unlock nothing, and `verify` reports it."""
        make_session(connection.store, "free")
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        number = session.log.number
        try:
            connection.execute(attempt, number)
        except connection.refusal:
            assert session.verify()
            return
        for what in ("delete an event", "alter an event", "delete bytes", "delete the log", "clear immutable"):
            with pytest.raises(connection.refusal):
                connection.execute(FORBIDDEN[what], number)
        with pytest.raises(AgentError):
            connection.store.delete("kept")
        assert connection.store.exists("kept")
        if "logs" in attempt and "head" in attempt:
            assert not session.verify()

    def test_may_be_changed_by_hand_once_its_time_has_passed(self, connection):
        connection.store.clock = PastClock()
        session = make_session(connection.store, "kept", ttl_days=5, immutable=True)
        for what, statement in FORBIDDEN.items():
            if what not in ("delete its retention", "clear immutable", "give its retention to another log"):
                connection.execute("BEGIN", 0)
                connection.execute(statement, session.log.number)
                connection.execute("ROLLBACK", 0)
        assert session.verify()

    def test_gives_way_to_a_legal_erasure_whose_record_stays(self, connection):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        number = session.log.number
        session.erase(reason="the law", actor="officer")
        assert session.verify()
        assert len(connection.execute("SELECT at FROM erasures WHERE log = :log", number)) == 1
        with pytest.raises(connection.refusal, match="erasure"):
            connection.execute("DELETE FROM erasures WHERE log = :log", number)
        with pytest.raises(connection.refusal, match="erasure"):
            connection.execute("UPDATE erasures SET at = 0 WHERE log = :log", number)
        assert len(connection.execute("SELECT at FROM erasures WHERE log = :log", number)) == 1


class TestOtherSessions:
    @pytest.mark.parametrize("retention", [{}, {"ttl_days": 730}], ids=["none", "not immutable"])
    def test_are_not_guarded_and_do_not_pay_for_those_that_are(self, connection, retention):
        make_session(connection.store, "kept", ttl_days=730, immutable=True)
        session = make_session(connection.store, "free", **retention)
        for what, statement in FORBIDDEN.items():
            connection.execute("BEGIN", 0)
            connection.execute(statement, session.log.number)
            connection.execute("ROLLBACK", 0)
            assert session.verify(), what
        assert connection.store.delete("free")


class TestWhoDropsTheTriggers:
    @pytest.mark.parametrize(
        ("what", "first"),
        [
            ("delete an event", 3),
            ("alter an event", 3),
            ("bury an event", 3),
            ("delete bytes", 3),
            ("alter where its chain begins", 1),
        ],
    )
    def test_is_found_out_by_the_chain(self, connection, what, first):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        connection.drop_triggers()
        connection.execute(FORBIDDEN[what], session.log.number)
        verdict = Session.open("kept", store=connection.store).verify()
        assert not verdict
        assert first is None or verdict.first_bad == first

    def test_and_dropping_them_alone_changes_nothing(self, connection):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        connection.drop_triggers()
        assert session.verify()


OPEN = "INSERT INTO erasures(log, at, whole, open) VALUES(:log, 1, (1 = 1), (1 = 1))"
CLOSE = "UPDATE erasures SET open = (1 = 0) WHERE log = :log"
STILL_ALLOWED = ("bury an event", "delete bytes")  # by an open erasure: it removes, and `verify` misses its record


def rewrite(connection, session, text):
    """Rewrite a message by plain statements, and compute the chain and the head again."""
    number, previous = session.log.number, genesis(session.log.origin)
    for row in session.store.read(session.log):
        body = change_body(row.body, b"hi", text) if row.seq == 4 else row.body
        row = Row(row.seq, row.at, row.type, row.header, row.tokens, body, None, row.hash)
        previous = next_hash(previous, row) or b""
        change = (
            f"UPDATE events SET body = {connection.blob(body)}, tombstone = NULL, hash = {connection.blob(previous)}"
        )
        connection.execute(f"{change} WHERE [own] AND [seq] = {row.seq}", number)
    connection.execute(f"UPDATE logs SET hash = {connection.blob(previous)} WHERE log = :log", number)


class TestWhoOpensTheTriggers:
    """A row in the table of erasures lets an erasure through, and nothing else."""

    @pytest.mark.parametrize("what", [what for what in FORBIDDEN if what not in STILL_ALLOWED])
    def test_can_alter_nothing(self, connection, what):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        connection.execute("BEGIN", 0)
        connection.execute(OPEN, session.log.number)
        with pytest.raises(connection.refusal, match="immutable"):
            connection.execute(FORBIDDEN[what], session.log.number)
        connection.execute("ROLLBACK", 0)
        assert session.verify()

    def test_cannot_rewrite_a_message_and_its_chain(self, connection):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        connection.execute("BEGIN", 0)
        connection.execute(OPEN, session.log.number)
        with pytest.raises(connection.refusal, match="immutable"):
            rewrite(connection, session, b"ha")
        connection.execute("ROLLBACK", 0)
        assert session.messages[-1].text == "hi"
        assert session.verify()

    @pytest.mark.parametrize("whole", ["1 = 1", "1 = 0"], ids=["whole", "part"])
    def test_is_found_out_by_verify_or_refused_at_the_end_of_the_transaction(self, connection, whole):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        connection.execute("BEGIN", 0)
        connection.execute(OPEN.replace("1 = 1", whole, 1), session.log.number)
        connection.execute(CLOSE, session.log.number)
        try:
            connection.execute("COMMIT", 0)
        except connection.refusal:
            assert session.verify()
            return
        verdict = session.verify()
        assert not verdict
        assert "erasure that no event records" in str(verdict.reason)

    def test_who_empties_and_rewrites_a_session_is_found_out(self, connection):
        """The only way around the triggers: bury everything, end the retention, write other events, lock it again."""
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        number, rows = session.log.number, session.store.read(session.log)
        connection.execute("BEGIN", 0)
        connection.execute(OPEN, number)
        for row in rows:
            stone = connection.blob(sha256(row.body or b"").digest())
            connection.execute(
                f"UPDATE events SET body = NULL, tombstone = {stone} WHERE [own] AND [seq] = {row.seq}", number
            )
        connection.execute("UPDATE retention SET immutable = (1 = 0) WHERE log = :log", number)
        for row in rows:
            back = f"UPDATE events SET body = {connection.blob(row.body or b'')}, tombstone = NULL"
            connection.execute(f"{back} WHERE [own] AND [seq] = {row.seq}", number)
        rewrite(connection, session, b"ha")
        connection.execute("UPDATE retention SET immutable = (1 = 1) WHERE log = :log", number)
        connection.execute(CLOSE, number)
        try:
            connection.execute("COMMIT", 0)
        except connection.refusal:
            assert session.messages[-1].text == "hi"
            assert session.verify()
            return
        assert not Session.open("kept", store=connection.store).verify()

    def test_who_buries_an_event_with_its_right_commitment_is_found_out(self, connection):
        session = make_session(connection.store, "free")
        before, row = session.store.read(session.log, 2, 3)
        kept = b'{"role":"assistant","tokens":%d}' % (row.tokens - before.tokens)
        stone = connection.blob(sha256(row.body or b"").digest() + kept)
        connection.execute(
            f"UPDATE events SET body = NULL, tombstone = {stone} WHERE [own] AND [seq] = 3", session.log.number
        )
        verdict = session.verify()
        assert (verdict.ok, verdict.first_bad) == (False, 3)
        assert "no event records" in str(verdict.reason)

    def test_a_record_of_an_erasure_is_not_replaced(self, connection):
        session = make_session(connection.store, "kept", ttl_days=730, immutable=True)
        session.erase(reason="the law", actor="officer")
        again = OPEN.replace("VALUES(:log, 1", "SELECT log, at").replace("(1 = 1))", "(1 = 1) FROM erasures")
        statement = again if isinstance(connection, DirectPostgres) else again.replace("INSERT", "INSERT OR REPLACE")
        with pytest.raises((connection.refusal, psycopg.errors.UniqueViolation)):
            connection.execute(statement, session.log.number)


def test_a_redaction_of_the_record_of_a_redaction_leaves_a_session_that_verifies(connection):
    session = make_session(connection.store, "free")
    session.redact(2, reason="a name that should not be here")
    session.redact(session.events()[-1].seq, reason="asked to")
    assert session.verify()
    copy = Session.import_(session.export(), session_id="copy", store=connection.store)
    assert copy.verify()
