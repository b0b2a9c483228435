"""The raw limits that need a driver: batches of apsw, and commits of psycopg."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from pathlib import Path

import apsw
import psycopg

from benchmarks.raw import INSERT, SCHEMA, SYNCHRONOUS, WAL, encode
from benchmarks.workload import Plain

Waiting = tuple[str, int, Plain]  # session, seq, message


class RawApsw:
    """apsw, the driver of `SQLiteStore`, on one table: a batch of rows in one transaction."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.execute(WAL)
        self.db.execute(SYNCHRONOUS)
        self.db.execute(SCHEMA)

    def close(self) -> None:
        self.db.close()

    def add_rows(self, rows: Iterable[Waiting]) -> None:
        encoded = [(session, seq, encode(message)) for session, seq, message in rows]
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(INSERT, encoded)
        self.db.execute("COMMIT")


class SharedApsw:
    """The same, fed by threads: a writer thread commits all waiting rows and answers each thread. It checks nothing."""

    def __init__(self, raw: RawApsw, batch: int) -> None:
        self.raw, self.batch = raw, batch
        self._waiting: queue.SimpleQueue[tuple[Waiting, threading.Lock] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._commit_all)
        self._writer.start()

    def close(self) -> None:
        self._waiting.put(None)
        self._writer.join()

    def add(self, row: Waiting) -> None:
        stored = threading.Lock()
        stored.acquire()
        self._waiting.put((row, stored))
        stored.acquire()

    def _commit_all(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while len(batch) < self.batch and not self._waiting.empty():
                item = self._waiting.get()
                if item is not None:
                    batch.append(item)
            self.raw.add_rows([row for row, _ in batch])
            for _, stored in batch:
                stored.release()


PG_SCHEMA = """CREATE TABLE IF NOT EXISTS raw_messages(
    session text, seq bigint, body text, PRIMARY KEY(session, seq))"""
PG_INSERT = "INSERT INTO raw_messages SELECT %s, * FROM unnest(%s::bigint[], %s::text[])"


class RawPostgres:
    """psycopg: one statement with all rows, and a commit."""

    def __init__(self, dsn: str, *, autocommit: bool = False) -> None:
        self.db = psycopg.connect(dsn, autocommit=autocommit)
        self.db.execute(PG_SCHEMA)
        self.db.commit()
        self._heads: dict[str, int] = {}

    def close(self) -> None:
        self.db.close()

    def add(self, session: str, messages: Iterable[Plain]) -> None:
        seq = self._heads.get(session, 0)
        bodies = [encode(message) for message in messages]
        self.db.execute(PG_INSERT, (session, list(range(seq + 1, seq + 1 + len(bodies))), bodies))
        self.db.commit()
        self._heads[session] = seq + len(bodies)
