"""The SQL of the SQLite store alone. An event's key is `log * 2^32 + seq`, so a range of a log is a range of keys."""

from __future__ import annotations

from holdfast.log.events import MESSAGE_TYPES
from holdfast.stores.erasure import INVALIDATING_TYPES
from holdfast.stores.statements import Statements, render_sqlite, run_queue, size_of_log

SHIFT = 32
_ROW = "event & 4294967295, at, type, header, tokens, body, tombstone, hash"
_LEASE_COLUMNS = "x.epoch, x.holder, x.boot, x.expires"


class SQLiteStatements(Statements):
    HEADS = "SELECT log, head FROM logs WHERE log IN (SELECT value FROM json_each(?)) AND id IS NOT NULL"
    SET_HEAD_ONLY = "UPDATE logs SET head=?, hash=?, tokens=?, updated_at=? WHERE log = ?"
    ADD_EVENT = """INSERT INTO events(event, at, type, header, tokens, body, tombstone, hash, changes_view)
        VALUES(?,?,?,?,?,?,?,?,?)"""
    SCAN = f"SELECT {_ROW} FROM events WHERE event BETWEEN ? AND ?"
    COUNT = f"""SELECT count(*) FROM events
        WHERE event BETWEEN ? AND ? AND type IN ({",".join("?" * len(MESSAGE_TYPES))})"""
    NAME = """SELECT n.ref, e.event & 4294967295, e.at, e.type, e.header, e.tokens, e.body, e.tombstone, e.hash
        FROM names n LEFT JOIN events e ON e.event = (n.log << 32 | n.ref)
        WHERE n.log = ? AND n.name = ? AND n.seq <= ? ORDER BY n.seq DESC LIMIT 1"""
    NAMES = "SELECT name, ref, max(seq) FROM names WHERE log = ? AND name >= ? AND name < ? AND seq <= ? GROUP BY name"
    HAS_TYPES = f"""SELECT 1 FROM events
        WHERE event BETWEEN ? AND ? AND type IN ({",".join("?" * len(INVALIDATING_TYPES))}) LIMIT 1"""
    TOMBSTONES = SCAN + " AND tombstone IS NOT NULL"
    SET_TOMBSTONE = "UPDATE events SET body = NULL, tombstone = ? WHERE event = ?"
    CUT_EVENTS = "DELETE FROM events WHERE event BETWEEN ? AND ?"
    SIZE_OF_LOG = size_of_log("event BETWEEN ? AND ?")
    # Refuses INSERT OR REPLACE, which fires no other trigger. The trigger is created with the first immutable session,
    # because every insert pays for it.
    GUARD_REPLACE = """CREATE TRIGGER IF NOT EXISTS events_no_replace BEFORE INSERT ON events
        WHEN EXISTS (SELECT 1 FROM locked WHERE log = NEW.event >> 32)
        BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable') FROM events WHERE event = NEW.event; END"""

    LEASE = f"SELECT {_LEASE_COLUMNS} FROM leases x WHERE log = ?"
    RUN_QUEUE = run_queue(_LEASE_COLUMNS)
    TAKE_LEASE = "INSERT OR REPLACE INTO leases VALUES(?,?,?,?,?)"
    RENEW = "UPDATE leases SET expires = ?, boot = ? WHERE log = ? AND epoch = ? RETURNING log"

    ADD_WORDS = "INSERT INTO words(rowid, text) VALUES(?,?)"
    MATCH = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?"
    WORD_MATCHES = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid"
    FORGET_WORDS = "INSERT INTO words(words, rowid, text) VALUES('delete', ?, ?)"
    FORGET_ALL_WORDS = ("INSERT INTO words(words) VALUES('delete-all')", "DELETE FROM indexed")


class _Scans(dict[tuple[bool, bool, bool, int], str]):
    """The text of each shape of a range query, made once: (reverse, only events that change the view, since, types)."""

    def __missing__(self, shape: tuple[bool, bool, bool, int]) -> str:
        reverse, changes_view, since, types = shape
        query = SQL.SCAN
        query += " AND changes_view IS NOT NULL" if changes_view else ""
        query += " AND at >= ?" if since else ""
        query += f" AND type IN ({','.join('?' * types)})" if types else ""
        query += f" ORDER BY event {'DESC' if reverse else 'ASC'} LIMIT ?"
        return self.setdefault(shape, query)


SQL = SQLiteStatements(render_sqlite)
SCANS = _Scans()
