"""The SQL of both SQL stores, written once and rendered for each database at import.

The text names tables without a schema, takes `?` for a value, and has row locks and `greatest`. `render_sqlite` writes
`max`, and removes the row locks, because a writer of SQLite has the whole file. `render_postgres` adds the schema and
writes `%s`. A statement with other differences is in `sqlite_statements.py` or `postgres_statements.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

_TABLE = re.compile(
    r"\b(FROM|JOIN|INTO|UPDATE|TABLE) "
    r"(blobs|erasures|events|indexed|key_values|leases|lineage|logs|master_key|names|once|retention|run_queue|sessions"
    r"|settled|signatures|sizes|snapshots|usage|words)\b"
)
_ROW_LOCK = re.compile(r" FOR (UPDATE|SHARE)( OF \w+)?$")


@cache
def render_sqlite(sql: str) -> str:
    return _ROW_LOCK.sub("", sql).replace("greatest(", "max(")


@cache
def render_postgres(sql: str) -> str:
    return _TABLE.sub(r"\1 holdfast.\2", sql).replace("?", "%s")


_LOG_COLUMNS = """l.log, l.uid, l.origin, l.kind, l.id, l.created_at, l.base, l.ancestry, s.user_id, s.app_name,
    l.parent, l.key"""
_LOG_TABLES = "FROM logs l LEFT JOIN sessions s ON s.log = l.log"
_LOG = f"SELECT {_LOG_COLUMNS} {_LOG_TABLES}"
_HEAD = "SELECT head, hash, epoch, tokens, view, busy, marks, updated_at FROM logs"

_OWNER = " WHERE tenant = ? AND owner = ?"
_SESSION_COUNTS = "SELECT count(*), count(l.parent) FROM sessions s JOIN logs l ON l.log = s.log"
_MEMORY_NAMES = "n.name >= ? AND n.name < ?"
_SIZES = "SELECT l.log, l.head, z.head, z.bytes FROM logs l LEFT JOIN sizes z ON z.log = l.log"
_BYTES = "coalesce(length(body), 0) + coalesce(length(tombstone), 0) + coalesce(length(header), 0)"


def size_of_log(range_of_events: str) -> str:
    """The query of the bytes of a log, with a database's own condition for a range of events."""
    return f"""SELECT coalesce((SELECT sum({_BYTES}) FROM events WHERE {range_of_events}), 0)
        + coalesce((SELECT sum(length(data)) FROM blobs WHERE log = ?), 0)"""


class Statements:
    """The statements that both databases have. A subclass adds its own; an instance has the rendered text."""

    # Logs
    FIND = _LOG + " WHERE l.tenant = ? AND l.kind = ? AND l.id = ?"
    FIND_AND_LOCK = FIND + " FOR UPDATE OF l"
    LOG_NUMBERS = "SELECT log, kind FROM logs WHERE id IS NOT NULL ORDER BY log DESC"
    FIND_NUMBER = _LOG + " WHERE l.log = ?"
    FIND_DELETED = _LOG + " WHERE l.log = ? AND l.id IS NULL"
    DESCENDANTS = _LOG + " WHERE l.log IN (SELECT log FROM lineage WHERE ancestor = ?) ORDER BY l.log"
    ID_OF = "SELECT id FROM logs WHERE tenant = ? AND log = ? AND id IS NOT NULL"
    ADD_LOG = """INSERT INTO logs(uid, origin, tenant, kind, id, base, ancestry, parent, created_at,
        head, hash, epoch, tokens, view, busy, marks, updated_at, key)
        VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) RETURNING log"""
    LOCK_PARENT = "SELECT 1 FROM logs WHERE log = ? AND id IS NOT NULL FOR SHARE"
    LOCK_LOG = "SELECT 1 FROM logs WHERE log = ? FOR UPDATE"
    FREE_NAME = "UPDATE logs SET id = NULL WHERE log = ?"

    # Heads
    HEAD = _HEAD + " WHERE log = ? AND id IS NOT NULL"
    LOCK_HEAD = HEAD + " FOR UPDATE"
    HEAD_OF_NUMBER = _HEAD + " WHERE log = ?"
    LOCK_HEAD_OF_NUMBER = HEAD_OF_NUMBER + " FOR UPDATE"
    SET_HEAD = """UPDATE logs SET head=?, hash=?, epoch=?, tokens=?, view=?, busy=?, marks=?, updated_at=?
        WHERE log = ?"""

    # Lineage
    ADD_LINEAGE = "INSERT INTO lineage VALUES(?,?)"
    READERS = "SELECT log FROM lineage WHERE ancestor = ?"
    DROP_LINEAGE = "DELETE FROM lineage WHERE ancestor = ? AND log = ?"

    # Sessions
    INFO = f"""SELECT {_LOG_COLUMNS}, s.status, s.title, s.metadata, s.work_dir, l.updated_at
        FROM sessions s JOIN logs l ON l.log = s.log"""
    INFO_ONE = INFO + " WHERE s.log = ?"
    NUMBER_OF = "SELECT log FROM logs WHERE tenant = ? AND kind = 'session' AND id = ?"
    ADD_SESSION = "INSERT INTO sessions VALUES(?,?,?,?,?,?,?,?)"
    SET_SESSION = {
        "status": "UPDATE sessions SET status = ? WHERE log = ?",
        "title": "UPDATE sessions SET title = ? WHERE log = ?",
        "metadata": "UPDATE sessions SET metadata = ? WHERE log = ?",
        "work_dir": "UPDATE sessions SET work_dir = ? WHERE log = ?",
    }
    DROP_SESSION = "DELETE FROM sessions WHERE log = ?"

    # Names, blobs, snapshots, idempotency keys
    ADD_NAME = "INSERT INTO names VALUES(?,?,?,?)"
    DROP_NAME = "DELETE FROM names WHERE log = ? AND name = ? AND seq = ?"
    ADD_BLOB = "INSERT INTO blobs VALUES(?,?,?) ON CONFLICT DO NOTHING"
    BLOB_NAMES = "SELECT digest FROM blobs WHERE log = ?"
    BLOB = "SELECT data FROM blobs WHERE log = ? AND digest = ?"
    DROP_BLOB = "DELETE FROM blobs WHERE log = ? AND digest = ?"
    ADD_SNAPSHOT = "INSERT INTO snapshots VALUES(?,?,?)"
    SNAPSHOT = "SELECT seq, view FROM snapshots WHERE log = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
    ONCE = "SELECT digest, first, last FROM once WHERE log = ? AND key = ?"
    ADD_ONCE = "INSERT INTO once VALUES(?,?,?,?,?,?)"
    CLEAR_ONCE_DIGEST = "UPDATE once SET digest = ? WHERE log = ? AND first <= ? AND last >= ?"

    # Retention, sweep, run queue
    SET_RETENTION = """INSERT INTO retention AS k (log, ttl, immutable, held, active, due) VALUES(?,?,?,?,?,0)
        ON CONFLICT(log) DO UPDATE SET ttl = excluded.ttl, immutable = excluded.immutable, held = excluded.held,
        active = greatest(k.active, excluded.active), due = 0"""
    SET_ACTIVE = "UPDATE retention SET active = greatest(active, ?) WHERE log = ?"
    DUE_FOR_SWEEP = f"""SELECT {_LOG_COLUMNS}, l.tenant {_LOG_TABLES} JOIN retention k ON k.log = l.log
        WHERE k.due <= ? AND l.id IS NOT NULL AND (? = '' OR l.tenant = ?) ORDER BY k.due, k.log LIMIT ?"""
    SCHEDULE_SWEEP = "UPDATE retention SET due = ? WHERE log = ?"
    ADD_TO_RUN_QUEUE = "INSERT INTO run_queue VALUES(?,?) ON CONFLICT DO NOTHING"
    DROP_FROM_RUN_QUEUE = "DELETE FROM run_queue WHERE log = ?"

    # Leases; a subclass adds TAKE_LEASE and RENEW, because the clocks differ
    LEASE = ""
    RUN_QUEUE = ""
    DROP_LEASE = "DELETE FROM leases WHERE log = ? AND epoch = ?"

    # Counters of quotas, which `sql_usage.py` explains
    USAGE = "SELECT sessions, forks, memories, bytes, measured_at, day, tokens, cost FROM usage" + _OWNER
    ADD_USAGE = """INSERT INTO usage(tenant, owner, sessions, forks, memories) VALUES(?,?,?,?,?)
        ON CONFLICT DO NOTHING"""
    CHANGE_COUNTS = "UPDATE usage SET sessions = sessions + ?, forks = forks + ?, memories = memories + ?" + _OWNER
    COUNT_TENANT = _SESSION_COUNTS + " WHERE s.tenant = ?"
    COUNT_USER = _SESSION_COUNTS + " WHERE s.tenant = ? AND s.user_id = ?"
    COUNT_MEMORIES = f"""SELECT count(*) FROM (SELECT DISTINCT n.log, n.name FROM names n JOIN logs l ON l.log = n.log
        WHERE l.tenant = ? AND l.kind IN ('memory', 'memory.app') AND l.id IS NOT NULL AND {_MEMORY_NAMES}) AS found"""
    COUNT_USER_MEMORIES = f"""SELECT count(DISTINCT n.name) FROM names n JOIN logs l ON l.log = n.log
        WHERE l.tenant = ? AND l.kind = 'memory' AND l.id = ? AND {_MEMORY_NAMES}"""
    MEMORIES_OF_LOG = f"SELECT count(DISTINCT n.name) FROM names n WHERE n.log = ? AND {_MEMORY_NAMES}"
    HAS_NAME = "SELECT 1 FROM names WHERE log = ? AND name = ? AND seq < ? LIMIT 1"
    BEGIN_SETTLING = "INSERT INTO settled VALUES(?,?) ON CONFLICT DO NOTHING"
    SETTLED = "SELECT usage FROM settled WHERE log = ? FOR UPDATE"
    SET_SETTLED = "UPDATE settled SET usage = ? WHERE log = ?"
    # The clocks of two servers may differ: the later day counts.
    ADD_TO_DAY = (
        """UPDATE usage SET tokens = CASE WHEN day < ? THEN 0 ELSE tokens END + ?,
        cost = CASE WHEN day < ? THEN 0 ELSE cost END + ?, day = greatest(day, ?)"""
        + _OWNER
    )
    ADD_BYTES = f"""UPDATE usage SET bytes = bytes + ?{_OWNER}
        RETURNING sessions, forks, memories, bytes, measured_at, day, tokens, cost"""
    CLAIM_MEASUREMENT = f"UPDATE usage SET measured_at = ?{_OWNER} AND measured_at <= ? RETURNING bytes"
    SET_BYTES = f"UPDATE usage SET bytes = ? + bytes - ?, measured_at = ?{_OWNER}"
    SIZES_OF_TENANT = _SIZES + " WHERE l.tenant = ? AND l.id IS NOT NULL"
    SIZES_OF_DELETED = _SIZES + " WHERE l.tenant = ? AND l.id IS NULL"
    SIZES_OF_USER = _SIZES + " JOIN sessions s ON s.log = l.log WHERE s.tenant = ? AND s.user_id = ?"
    SIZES_OF_NAMED = _SIZES + " WHERE l.tenant = ? AND l.kind IN ('memory', 'user') AND l.id = ?"
    SIZES_OF_ANCESTORS = (
        SIZES_OF_DELETED
        + """ AND l.log IN
        (SELECT n.ancestor FROM lineage n JOIN sessions s ON s.log = n.log WHERE s.user_id = ?)"""
    )
    SIZE_OF_VALUES = "SELECT coalesce(sum(length(value)), 0) FROM key_values WHERE tenant = ?"
    SIZE_OF_LOG = ""
    SET_SIZE = """INSERT INTO sizes VALUES(?,?,?)
        ON CONFLICT(log) DO UPDATE SET head = excluded.head, bytes = excluded.bytes"""

    # Removal and erasure
    PURGE: tuple[str, ...] = (
        "DELETE FROM names WHERE log = ?",
        "DELETE FROM once WHERE log = ?",
        "DELETE FROM leases WHERE log = ?",
        "DELETE FROM snapshots WHERE log = ?",
        "DELETE FROM blobs WHERE log = ?",
        "DELETE FROM indexed WHERE log = ?",
        "DELETE FROM retention WHERE log = ?",
        "DELETE FROM run_queue WHERE log = ?",
        "DELETE FROM signatures WHERE log = ?",
        "DELETE FROM settled WHERE log = ?",
        "DELETE FROM sizes WHERE log = ?",
        "DELETE FROM logs WHERE log = ?",
    )
    # One row for each erasure, also when the clock stands still: a row is never used again.
    ADD_ERASURE = """INSERT INTO erasures(log, at, whole, open)
        VALUES(?, greatest(?, coalesce((SELECT max(at) + 1 FROM erasures WHERE log = ?), 0)), ?, TRUE)"""
    ERASURES = "SELECT whole FROM erasures WHERE log = ?"
    # What a deleted log has besides its past: it is not run, kept or written to any more.
    PURGE_WORK: tuple[str, ...] = (
        "DELETE FROM once WHERE log = ?",
        "DELETE FROM leases WHERE log = ?",
        "DELETE FROM retention WHERE log = ?",
        "DELETE FROM run_queue WHERE log = ?",
    )
    CUT: tuple[str, ...] = (
        "DELETE FROM names WHERE log = ? AND seq > ?",
        "DELETE FROM snapshots WHERE log = ? AND seq > ?",
    )
    DROP_LINKED_ANSWERS = """DELETE FROM key_values WHERE tenant = ? AND space = 'answers' AND key IN
        (SELECT value FROM key_values WHERE tenant = ? AND space = 'answers-about' AND key >= ? AND key < ?)"""
    DROP_ANSWERS = """DELETE FROM key_values
        WHERE tenant = ? AND space IN ('answers', 'answers-about') AND key >= ? AND key < ?"""
    CLOSE_ERASURE = "UPDATE erasures SET open = FALSE WHERE log = ? AND open"
    FORGET_OWNER = "UPDATE sessions SET user_id = NULL, title = NULL, metadata = NULL, work_dir = NULL WHERE log = ?"
    ERASE_WHOLE: tuple[str, ...] = (
        "DELETE FROM names WHERE log = ?",
        "DELETE FROM once WHERE log = ?",
        "DELETE FROM blobs WHERE log = ?",
        "DELETE FROM indexed WHERE log = ?",
        "DELETE FROM sizes WHERE log = ?",
    )

    # Signatures
    LOGS_AFTER = f"""SELECT {_LOG_COLUMNS}, l.tenant {_LOG_TABLES}
        WHERE l.log > ? AND l.id IS NOT NULL AND (? = '' OR l.tenant = ?) ORDER BY l.log LIMIT ?"""
    HEADS_TO_SIGN = f"""SELECT {_LOG_COLUMNS}, l.tenant, l.head, l.hash, g.seq, g.hash, g.at, g.key, g.signature
        {_LOG_TABLES} LEFT JOIN signatures g ON g.log = l.log
        WHERE l.log > ? AND l.id IS NOT NULL AND (? = '' OR l.tenant = ?)
          AND (g.log IS NULL OR g.seq <> l.head OR g.hash <> l.hash OR NOT g.anchored) ORDER BY l.log LIMIT ?"""
    SIGNATURE = "SELECT seq, hash, at, key, signature FROM signatures WHERE log = ?"
    PUT_SIGNATURE = """INSERT INTO signatures AS g SELECT ?,?,?,?,?,?,? FROM logs WHERE log = ?
        ON CONFLICT(log) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, at = excluded.at, key = excluded.key,
        signature = excluded.signature, anchored = excluded.anchored WHERE excluded.seq >= g.seq"""

    # Keys
    KEY = "SELECT uid, key FROM logs WHERE log = ?"
    KEYS = "SELECT log, uid, key FROM logs WHERE key IS NOT NULL ORDER BY log FOR UPDATE"
    SET_KEY = "UPDATE logs SET key = ? WHERE log = ?"
    MASTER = "SELECT master FROM master_key FOR SHARE"
    SET_MASTER = "INSERT INTO master_key VALUES(1, ?) ON CONFLICT(one) DO UPDATE SET master = excluded.master"

    # Search
    INDEXED = "SELECT upto FROM indexed WHERE log = ?"
    SET_INDEXED = "INSERT INTO indexed VALUES(?,?) ON CONFLICT(log) DO UPDATE SET upto = excluded.upto"

    # Reads of events, whose key the databases write in different ways
    SCAN = ""
    COUNT = ""
    NAME = ""
    NAMES = ""
    HEADS = ""
    TOMBSTONES = ""
    SET_TOMBSTONE = ""
    HAS_TYPES = ""

    def __init__(self, render: Callable[[str], str]) -> None:
        self.render = render  # for a query that is put together at the call; each text is rendered once
        for name in dir(type(self)):
            if name.isupper():
                setattr(self, name, _render_all(getattr(self, name), render))


def run_queue(lease_columns: str) -> str:
    """The query of the run queue with a database's own columns of a lease, which come last."""
    return f"""SELECT {_LOG_COLUMNS}, l.tenant, {lease_columns} {_LOG_TABLES}
        JOIN run_queue w ON w.log = l.log LEFT JOIN leases x ON x.log = l.log
        WHERE w.log > ? AND l.id IS NOT NULL AND (? = '' OR l.tenant = ?) ORDER BY w.log LIMIT ?"""


def _render_all(text: Any, render: Callable[[str], str]) -> Any:  # noqa: ANN401 - a text, or texts
    if isinstance(text, dict):
        return {key: render(each) for key, each in text.items()}
    return render(text) if isinstance(text, str) else tuple(map(render, text))
