"""The SQL of the PostgreSQL store alone."""

from __future__ import annotations

from holdfast.log.events import MESSAGE_TYPES
from holdfast.stores.erasure import INVALIDATING_TYPES
from holdfast.stores.statements import Statements, render_postgres, run_queue, size_of_log

_ROW = "seq, at, type, header, tokens, body, tombstone, hash"
_EVENT_COLUMNS = f"log, {_ROW}, changes_view"
_UNNEST_EVENTS = """unnest(?::bigint[], ?::bigint[], ?::text[], ?::bytea[], ?::bigint[], ?::bytea[], ?::bytea[],
    ?::bytea[], ?::boolean[])"""
_LEASE_COLUMNS = "x.epoch, x.holder, extract(epoch FROM x.expires - clock_timestamp())::float8"
# Writes events only if the head is still where the store expected it.
_APPEND = f"""WITH moved AS (UPDATE logs
    SET head=?, hash=?, tokens=?, view=?, busy=?, marks=?, updated_at=?
    WHERE log = ? AND head = ? AND epoch = ? AND id IS NOT NULL RETURNING log),
  added AS (INSERT INTO events({_EVENT_COLUMNS})
    SELECT moved.log, e.* FROM moved, {_UNNEST_EVENTS} AS e)"""


class PostgresStatements(Statements):
    HEADS = "SELECT log, head FROM logs WHERE log = ANY(?::bigint[]) AND id IS NOT NULL"
    ADD_EVENTS = f"INSERT INTO events({_EVENT_COLUMNS}) SELECT ?, e.* FROM {_UNNEST_EVENTS} AS e"
    # The whole append in one round trip.
    APPEND = _APPEND + " SELECT log FROM moved"
    APPEND_NAMED = (
        _APPEND
        + """, named AS (INSERT INTO names(log, name, seq, ref)
    SELECT moved.log, n.* FROM moved, unnest(?::bytea[], ?::bigint[], ?::bigint[]) AS n) SELECT log FROM moved"""
    )
    HASH_AT = "SELECT hash, tokens FROM events WHERE log = ? AND seq = ?"
    SCAN = f"SELECT {_ROW} FROM events WHERE log = ? AND seq BETWEEN ? AND ?"
    COUNT = f"""SELECT count(*) FROM events
        WHERE log = ? AND seq BETWEEN ? AND ? AND type IN ({",".join("?" * len(MESSAGE_TYPES))})"""
    NAME = """SELECT n.ref, e.seq, e.at, e.type, e.header, e.tokens, e.body, e.tombstone, e.hash
        FROM names n LEFT JOIN events e ON e.log = n.log AND e.seq = n.ref
        WHERE n.log = ? AND n.name = ? AND n.seq <= ? ORDER BY n.seq DESC LIMIT 1"""
    NAMES = """SELECT DISTINCT ON (name) name, ref FROM names
        WHERE log = ? AND name >= ? AND name < ? AND seq <= ? ORDER BY name, seq DESC"""
    HAS_TYPES = f"""SELECT 1 FROM events
        WHERE log = ? AND seq BETWEEN ? AND ? AND type IN ({",".join("?" * len(INVALIDATING_TYPES))}) LIMIT 1"""
    TOMBSTONES = SCAN + " AND tombstone IS NOT NULL"
    SET_TOMBSTONE = "UPDATE events SET body = NULL, tombstone = ? WHERE log = ? AND seq = ?"
    CUT_EVENTS = "DELETE FROM events WHERE log = ? AND seq > ?"
    CUT_WORDS = "DELETE FROM words WHERE log = ? AND seq > ?"
    SIZE_OF_LOG = size_of_log("log = ? AND seq BETWEEN ? AND ?")
    LOCK_USAGE = "LOCK TABLE usage IN SHARE ROW EXCLUSIVE MODE"
    ERASE_WHOLE = (*Statements.ERASE_WHOLE, "DELETE FROM words WHERE log = ?")

    TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    LEASE = f"SELECT {_LEASE_COLUMNS} FROM leases x WHERE log = ?"
    RUN_QUEUE = run_queue(_LEASE_COLUMNS)
    TAKE_LEASE = """INSERT INTO leases VALUES(?,?,?, clock_timestamp() + make_interval(secs => ?))
        ON CONFLICT(log) DO UPDATE SET epoch = excluded.epoch, holder = excluded.holder, expires = excluded.expires"""
    RENEW = """UPDATE leases SET expires = clock_timestamp() + make_interval(secs => ?)
        WHERE log = ? AND epoch = ? RETURNING log"""
    LOCK_MASTER_KEY = "LOCK TABLE master_key IN EXCLUSIVE MODE"

    UNINDEXED = SCAN + " AND type = ANY(?) ORDER BY seq LIMIT ?"
    LOCK_INDEX = "SELECT pg_advisory_xact_lock(1752132964, hashint8(?))"
    SHARE_LOG = "SELECT 1 FROM logs WHERE log = ? FOR SHARE"
    ADD_WORDS = """INSERT INTO words SELECT ?, seq, array_to_tsvector(string_to_array(text, ' '))
        FROM unnest(?::bigint[], ?::text[]) AS found(seq, text)"""
    MATCH = """SELECT seq FROM words WHERE log = ? AND seq BETWEEN ? AND ? AND words @@ ?::tsquery
        ORDER BY seq DESC LIMIT ?"""
    # The words of the log come first: the cost of a common word must not depend on how many other logs have it.
    WORD_MATCHES = """WITH mine AS MATERIALIZED (SELECT seq, words FROM words WHERE log = ?)
        SELECT word, seq FROM unnest(?::text[]) AS word, mine
        WHERE words @@ ('''' || word || '''')::tsquery ORDER BY seq"""
    DROP_WORDS = "DELETE FROM words WHERE log = ? AND seq = ?"


SQL = PostgresStatements(render_postgres)
