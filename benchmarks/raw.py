"""The raw limit of most jobs: the plainest code that stores the same bytes and guarantees nothing else.

It uses only the standard library, so that the peers, in their own environment, are compared with the same limit.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.workload import Plain

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages(
    session TEXT, seq INTEGER, body TEXT, PRIMARY KEY(session, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state(session TEXT, name TEXT, value TEXT, PRIMARY KEY(session, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions(
    number INTEGER PRIMARY KEY, id TEXT, owner TEXT, parent TEXT, upto INTEGER, title TEXT, metadata TEXT);
CREATE INDEX IF NOT EXISTS session_by_owner ON sessions(owner, number);
"""
INSERT = "INSERT INTO messages VALUES(?,?,?)"
LAST = "SELECT body FROM messages WHERE session = ? ORDER BY seq DESC LIMIT ?"
ALL = "SELECT body FROM messages WHERE session = ? ORDER BY seq"
HEAD = "SELECT coalesce(max(seq), 0) FROM messages WHERE session = ?"
FORK = "INSERT INTO sessions(id, parent, upto) VALUES(?,?,?)"
SET = "INSERT INTO state VALUES(?,?,?) ON CONFLICT(session, name) DO UPDATE SET value = excluded.value"
GET = "SELECT value FROM state WHERE session = ? AND name = ?"
ADD_SESSION = "INSERT INTO sessions(id, owner, title, metadata) VALUES(?,?,?,?)"
LIST = "SELECT id, owner, title, metadata FROM sessions WHERE owner = ? ORDER BY number DESC LIMIT ?"

encode = json.JSONEncoder(ensure_ascii=False).encode  # the smallest and fastest JSON of the standard library
WAL, SYNCHRONOUS = "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"


class RawSQLite:
    """The standard library's sqlite3 on one table, one transaction per turn, as durable as holdfast's default."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self.db.execute(WAL)
        self.db.execute(SYNCHRONOUS)
        self.db.executescript(SCHEMA)
        self._lock = threading.Lock()
        self._heads: dict[str, int] = {}

    def close(self) -> None:
        self.db.close()

    def add(self, session: str, messages: Iterable[Plain]) -> None:
        """Add messages in one transaction. The only writer keeps the head in memory, so it need not read it."""
        seq = self._heads.get(session, 0)
        rows = [(session, seq + offset, encode(message)) for offset, message in enumerate(messages, 1)]
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        db.executemany(INSERT, rows)
        db.execute("COMMIT")
        self._heads[session] = seq + len(rows)

    def add_among_others(self, session: str, messages: Iterable[Plain]) -> None:
        """Do the same when threads share this connection and other processes share the file."""
        db = self.db
        bodies = [encode(message) for message in messages]
        with self._lock:
            db.execute("BEGIN IMMEDIATE")
            (seq,) = db.execute(HEAD, (session,)).fetchone()
            db.executemany(INSERT, [(session, seq + offset, body) for offset, body in enumerate(bodies, 1)])
            db.execute("COMMIT")

    def last(self, session: str, count: int) -> list[Plain]:
        rows = self.db.execute(LAST, (session, count)).fetchall()
        return [json.loads(body) for (body,) in reversed(rows)]

    def texts(self, session: str) -> list[str]:
        return [body for (body,) in self.db.execute(ALL, (session,))]

    def fork(self, session: str, new: str) -> None:
        self.db.execute(FORK, (new, session, self._heads[session]))

    def set_state(self, session: str, name: str, value: object) -> None:
        self.db.execute(SET, (session, name, encode(value)))

    def get_state(self, session: str, name: str) -> object:
        (value,) = self.db.execute(GET, (session, name)).fetchone()
        found: object = json.loads(value)
        return found

    def add_sessions(self, rows: Iterable[tuple[str, str, str, Plain]]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(ADD_SESSION, [(id, owner, title, encode(metadata)) for id, owner, title, metadata in rows])
        self.db.execute("COMMIT")

    def list(self, owner: str, count: int) -> list[tuple[Any, ...]]:
        return self.db.execute(LIST, (owner, count)).fetchall()
