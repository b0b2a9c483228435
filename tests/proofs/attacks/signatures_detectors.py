"""Detectors of bugs in signed heads and in the walls inside the database. They return what they found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import psycopg

from holdfast import Message, Session
from holdfast.errors import AgentError
from holdfast.log.chain import genesis, next_hash
from holdfast.log.events import Row
from holdfast.session.export import read_jsonl
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.signing_keys import PublicKeys, SigningKey
from holdfast.worker.head_signer import Anchor, sign_heads
from tests.kit.odd_payloads import change_body

SEED = "33" * 32
PUBLIC = SigningKey(SEED).public_key
OPEN = "INSERT INTO erasures(log, at, whole, open) VALUES({log}, 1, 1, 1)"


def _make_session(store: Any, name: str, **options: Any) -> Session:
    session = Session(name, store=store, **options)
    session.add_messages([Message.user("pay 100"), Message.assistant("paid")])
    return session


def _rewrite(db: apsw.Connection, session: Session) -> None:
    """Write another amount by plain statements, and compute the whole chain and the head again."""
    number, previous = session.log.number, genesis(session.log.origin)
    for row in session.store.read(session.log):
        body = change_body(row.body, b"pay 100", b"pay 900")
        previous = next_hash(previous, Row(row.seq, row.at, row.type, row.header, row.tokens, body, None, b"")) or b""
        change = "UPDATE events SET body = ?, tombstone = NULL, hash = ? WHERE event = ?"
        db.execute(change, (body, previous, number << 32 | row.seq))
    db.execute("UPDATE logs SET hash = ? WHERE log = ?", (previous, number))


def _cut(db: apsw.Connection, session: Session) -> None:
    """Remove the last event, and move the head back."""
    number, (last,) = session.log.number, session.store.read(session.log, 2, 2)
    db.execute("DELETE FROM events WHERE event > ? AND event < ?", (number << 32 | 2, number + 1 << 32))
    db.execute("UPDATE logs SET head = 2, hash = ?, tokens = ? WHERE log = ?", (last.hash, last.tokens, number))


def detect_forged_history(seed: int) -> list[str]:
    """What a diligent attacker does to a signed log must be found by its signature, by its anchor and in its export."""
    found: list[str] = []
    os.environ["HOLDFAST_SIGNING_KEY"] = SEED
    with tempfile.TemporaryDirectory() as home:
        path, key = Path(home) / "log.db", SigningKey(SEED)
        with SQLiteStore(path) as store:
            db = apsw.Connection(str(path))
            for name, attack in (("rewritten", _rewrite), ("cut", _cut)):
                session = _make_session(store, name)
                sign_heads(store, key, Anchor(f"file:{home}/heads"))
                if not session.verify(PUBLIC):
                    found.append(f"{name}: it does not verify before the attack")
                session.add_message(Message.user("more"))
                attack(db, session)
                if session.verify(PUBLIC):
                    found.append(f"{name}: the signature did not show it")
                if name not in sign_heads(store, key).altered:
                    found.append(f"{name}: it was signed again")
                if session.verify(PUBLIC):
                    found.append(f"{name}: a second round of signing hid it")
            two = [_make_session(store, name) for name in ("one", "two")]
            sign_heads(store, key)
            theirs = f"(SELECT signature FROM signatures WHERE log = {two[0].log.number})"
            db.execute(f"UPDATE signatures SET signature = {theirs} WHERE log = {two[1].log.number}")
            if two[1].verify(PUBLIC):
                found.append("the signature of one log counts for another")
            lines = two[0].export().splitlines(keepends=True)
            db.close()
        for left in (lines[:-1], [*lines[:-2], lines[-1]]):
            if read_jsonl("".join(left)).verify(PublicKeys([PUBLIC])):
                found.append("an export without its last line verifies")
    return found


def detect_open_triggers(seed: int) -> list[str]:
    """A row in the table of erasures must not let a session be rewritten, and `verify` must miss its record."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() as home, SQLiteStore(Path(home) / "log.db") as store:
        db = apsw.Connection(str(Path(home) / "log.db"))
        ledger = _make_session(store, "ledger", retention={"ttl_days": 30, "immutable": True})
        number = ledger.log.number
        db.execute("BEGIN")
        db.execute(OPEN.format(log=number))
        for statement in ("rewrite", f"UPDATE retention SET immutable = 0 WHERE log = {number}"):
            try:
                _rewrite(db, ledger) if statement == "rewrite" else db.execute(statement)
            except apsw.ConstraintError:
                continue
            found.append(f"not refused: {statement}")
        db.execute("ROLLBACK")
        db.execute(OPEN.format(log=number))
        db.execute(f"UPDATE erasures SET open = 0 WHERE log = {number}")
        if ledger.verify():
            found.append("an erasure without its record was not missed")
        free = _make_session(store, "free")
        before, row = store.read(free.log, 1, 2)
        kept = b'{"role":"user","tokens":%d}' % (row.tokens - before.tokens)
        stone, place = sha256(row.body or b"").digest() + kept, free.log.number << 32 | 2
        db.execute("UPDATE events SET body = NULL, tombstone = ? WHERE event = ?", (stone, place))
        if free.verify():
            found.append("a tombstone without its record was not missed")
        db.close()
    return found


def detect_forgotten_tenants(seed: int) -> list[str]:
    """As a role that is no superuser, a statement without its tenant finds nothing of another one."""
    found: list[str] = []
    dsn, role = os.environ["HOLDFAST_PROVE_SERVER"], f"plain_{os.getpid()}"
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN".encode())
        db.execute(f"GRANT CREATE ON DATABASE {urlsplit(dsn).path.strip('/')} TO {role}".encode())
    try:
        with PostgresStore(dsn.replace("//postgres@", f"//{role}@", 1), connections=1) as root:
            stores = [root.for_tenant(name) for name in ("acme", "globex")]
            for store in stores:
                _make_session(store, "plan")
            for store in (*stores, *stores):
                for table in ("logs", "sessions"):
                    seen = {tenant for (tenant,) in store.server.fetch(f"SELECT tenant FROM holdfast.{table}")}
                    if seen != {store.tenant}:
                        found.append(f"{store.tenant} sees {sorted(seen)} in {table}")
                try:
                    store.create("session", "plan", [])
                except AgentError:
                    pass  # a unit that is rolled back
    finally:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute(f"DROP OWNED BY {role} CASCADE".encode())
            db.execute(f"DROP ROLE {role}".encode())
    return found


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "forged history": detect_forged_history,
    "open triggers": detect_open_triggers,
    "forgotten tenants": detect_forgotten_tenants,
}
