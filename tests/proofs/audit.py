"""B21: logs altered behind our back, in the files, in the server and in exports. Every alteration must be noticed.

The alterations are made by SQL on a connection of our own, without triggers or keys in the way, and undone afterwards.
What is altered is drawn from a seed; what must be named is the first event that is not what it was. An encrypted log
may also answer with a clear error, because what does not open cannot be checked further. The control: nothing is
noticed where nothing was altered.

Two alterations leave no trace in a log: a tail that is cut off together with the head's number and hash, and history
that is rewritten by a diligent attacker, who computes every hash and the head again. The signed head shows both, and an
earlier export shows the first.
"""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import psycopg
from click.testing import CliRunner

from holdfast import Agent, File, Message, Session, tool
from holdfast.cli.main import main as command
from holdfast.errors import AgentError
from holdfast.log.chain import next_hash
from holdfast.log.events import COMMITMENT_SIZE, SALT_SIZE, Row
from holdfast.session.export import read_jsonl
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.signing_keys import SigningKey
from holdfast.testing import call
from holdfast.worker.head_signer import sign_heads
from tests.proofs import Report, proof
from tests.proofs.models import ENOUGH, make_directory, open_database

MASTER = sha256(b"a master key").digest()
COLUMNS = ("body", "header", "hash", "tombstone", "at", "type", "tokens")
SIGNING_SEED = "44" * 32
PUBLIC_KEY = SigningKey(SIGNING_SEED).public_key
THROUGH_THE_COMMAND = 25  # of the altered exports, one in so many is given to the command itself


class StoredEvent(NamedTuple):
    """An event as the database has it."""

    seq: int
    at: int
    type: bytes
    header: bytes | None
    tokens: int
    body: bytes | None
    tombstone: bytes | None
    hash: bytes
    changes_view: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCopy:
    """All that a database has of one log, as far as the chain goes."""

    rows: tuple[StoredEvent, ...]
    head: int
    hash: bytes
    blobs: dict[str, bytes] = field(default_factory=dict)


class AlteredLog(NamedTuple):
    """A log that is not what it was, and the first event that shows it; None where several could be named."""

    how: str
    log_copy: LogCopy
    first: int | None
    traceless: bool = False  # within the log: only an export shows it
    diligent: bool = False  # traceless too, and no export is needed: the signature shows it
    residue: bool = False  # of an erased event: its record vouches for it, which a fork may have left before


class RawDatabase(Protocol):
    """A database, read and written without holdfast."""

    def read_log(self, number: int) -> LogCopy: ...
    def write_log(self, number: int, log_copy: LogCopy) -> None: ...


def _make_copy(about: Any, rows: list[Any], blobs: list[Any]) -> LogCopy:
    return LogCopy(rows=tuple(StoredEvent(*row) for row in rows), head=about[0], hash=about[1], blobs=dict(blobs))


class RawSQLite:
    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.set_busy_timeout(10_000)
        self.db.pragma("synchronous", "off")

    def read_log(self, number: int) -> LogCopy:
        bounds = (number << 32, (number + 1 << 32) - 1)
        rows: list[Any] = self.db.execute(
            "SELECT event & 4294967295, at, CAST(type AS BLOB), header, tokens, body, tombstone, hash, changes_view"
            " FROM events WHERE event BETWEEN ? AND ? ORDER BY event",
            bounds,
        ).fetchall()
        (about,) = self.db.execute("SELECT head, hash FROM logs WHERE log = ?", (number,)).fetchall()
        blobs: list[Any] = self.db.execute("SELECT digest, data FROM blobs WHERE log = ?", (number,)).fetchall()
        return _make_copy(about, rows, blobs)

    def write_log(self, number: int, log_copy: LogCopy) -> None:
        shifted, db = number << 32, self.db
        with db:
            db.execute("DELETE FROM events WHERE event BETWEEN ? AND ?", (shifted, (number + 1 << 32) - 1))
            db.executemany(
                "INSERT INTO events(event, at, type, header, tokens, body, tombstone, hash, changes_view)"
                " VALUES(?,?,CAST(? AS TEXT),?,?,?,?,?,?)",
                [(shifted | row.seq, *row[1:]) for row in log_copy.rows],
            )
            db.execute("UPDATE logs SET head = ?, hash = ? WHERE log = ?", (log_copy.head, log_copy.hash, number))
            db.execute("DELETE FROM blobs WHERE log = ?", (number,))
            db.executemany("INSERT INTO blobs VALUES(?,?,?)", [(number, *blob) for blob in log_copy.blobs.items()])


class RawPostgres:
    def __init__(self, dsn: str) -> None:
        self.db = psycopg.connect(dsn, autocommit=True)
        self.db.execute("SET search_path = holdfast")

    def read_log(self, number: int) -> LogCopy:
        rows = self.db.execute(
            "SELECT seq, at, convert_to(type, 'UTF8'), header, tokens, body, tombstone, hash, changes_view"
            " FROM events WHERE log = %s ORDER BY seq",
            (number,),
        ).fetchall()
        (about,) = self.db.execute("SELECT head, hash FROM logs WHERE log = %s", (number,)).fetchall()
        blobs = self.db.execute("SELECT digest, data FROM blobs WHERE log = %s", (number,)).fetchall()
        return _make_copy(about, rows, blobs)

    def write_log(self, number: int, log_copy: LogCopy) -> None:
        with self.db.transaction(), self.db.cursor() as db:
            db.execute("DELETE FROM events WHERE log = %s", (number,))
            db.executemany(
                "INSERT INTO events(log, seq, at, type, header, tokens, body, tombstone, hash, changes_view)"
                " VALUES(%s,%s,%s,convert_from(%s, 'UTF8'),%s,%s,%s,%s,%s,%s)",
                [(number, *row) for row in log_copy.rows],
            )
            db.execute("UPDATE logs SET head = %s, hash = %s WHERE log = %s", (log_copy.head, log_copy.hash, number))
            db.execute("DELETE FROM blobs WHERE log = %s", (number,))
            db.executemany("INSERT INTO blobs VALUES(%s,%s,%s)", [(number, *blob) for blob in log_copy.blobs.items()])


# -- what is altered ---------------------------------------------------------------------------------------------------


def make_sessions(store: Store, *, name: str = "") -> list[Session]:
    """Sessions of every kind that an audit meets."""
    plain = Session(f"{name}plain", store=store, user_id="u", title="a title", state={"n": 1})
    picture = File(data=b"\x89 bytes of a picture" * 3, media_type="image/png")
    plain.add_messages([Message.user("hello"), Message.assistant("hi"), Message.user("look", picture)])
    plain.set_state("n", 2)
    plain.facts.add("a fact", kind="decision")

    redacted = Session(f"{name}redacted", store=store, title="secret title")
    redacted.add_messages([Message.user(f"secret {number}") for number in range(4)])
    redacted.set_state("password", "secret")
    _run_turn(redacted, "remember this secret")
    redacted.add_message(Message.user("secret bytes", File(data=b"secret" * 5, media_type="x/y")))
    replied = [event.seq for event in redacted.events(types=["model.replied"], limit=None)]
    for seq in (3, 4, 6, replied[0], redacted.events(types=["message.added"], limit=None)[-1].seq):
        redacted.redact(seq, reason="asked to")

    compacted = Session(f"{name}compacted", store=store)
    compacted.add_messages([Message.user(f"old {number}") for number in range(8)])
    compacted.prune("summarize_old", threshold=3)
    branch = compacted.fork(f"{name}branch")
    branch.add_messages([Message.user(f"of the branch {number}") for number in range(5)])
    branch.prune("summarize_old", threshold=2)
    compacted.redact(4, reason="in both", actor="officer")
    _run_turn(branch, "and now?")

    orphan = compacted.fork(f"{name}orphan")
    orphan.add_message(Message.user("my parent went"))
    orphan.redact(5, reason="asked to")
    dead = Session(f"{name}dead", store=store)
    dead.add_messages([Message.user(f"secret {number}") for number in range(3)])
    late = dead.fork(f"{name}late")
    late.add_messages([Message.user(f"of the fork {number}") for number in range(4)])
    late.prune("summarize_old", threshold=2)
    store.delete(dead.id)
    late.redact(3, reason="asked to")

    erased = Session(f"{name}erased", store=store, user_id="u2")
    erased.add_messages([Message.user("gone"), Message.user("gone too", File(data=b"g" * 40, media_type="x/y"))])
    heir = erased.fork(f"{name}heir")
    heir.add_message(Message.user("mine"))
    erased.erase(reason="asked to", actor="officer")
    return [plain, redacted, compacted, branch, orphan, late, erased, heir]


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} means secret"


def _run_turn(session: Session, text: str) -> None:
    script = [["Let me see.", call("look_up", {"word": "x"})], "Done."]
    session.run(text, agent=Agent(provider="scripted", script=script, tools=[look_up]))


def alter_log(log_copy: LogCopy, rng: random.Random) -> AlteredLog:
    """One alteration of a log. Those of a single byte are the most, because there are most of them."""
    many = ("flip",) * 10 + ("truncate",) * 3 + ("insert",) * 3 + ("rewrite",) * 2
    kinds = (*many, "swap", "drop", "blob")
    while True:
        how = rng.choice(kinds)
        found = ALTERATIONS[how](log_copy, rng)
        if found is not None:
            return found


def _flip(log_copy: LogCopy, rng: random.Random) -> AlteredLog | None:
    at, column = rng.randrange(len(log_copy.rows)), rng.choice(COLUMNS)
    row = log_copy.rows[at]
    old = getattr(row, column)
    if old is None or old == b"":
        return None
    new: Any
    place = 0
    if isinstance(old, int):
        new = old ^ 1 << rng.randrange(50)
    else:
        place = rng.randrange(len(old))
        flipped = old[place] ^ 1 << rng.randrange(7 if column == "type" else 8)
        new = old[:place] + bytes([flipped]) + old[place + 1 :]
        if column == "type" and b"\0" in new:
            return None
    how = f"a byte of {column} of event {row.seq}"
    residue = column == "tombstone" and place >= COMMITMENT_SIZE
    # What is left of an erased event is vouched for by the record of its erasure, which is what is named then.
    first = None if residue else row.seq
    return AlteredLog(how, _replace_row(log_copy, at, row._replace(**{column: new})), first, residue=residue)


def _swap(log_copy: LogCopy, rng: random.Random) -> AlteredLog | None:
    if len(log_copy.rows) < 2:
        return None
    one, two = sorted(rng.sample(range(len(log_copy.rows)), 2))
    a, b = log_copy.rows[one], log_copy.rows[two]
    rows = list(log_copy.rows)
    rows[one], rows[two] = b._replace(seq=a.seq), a._replace(seq=b.seq)
    return AlteredLog(f"events {a.seq} and {b.seq} changed places", replace(log_copy, rows=tuple(rows)), a.seq)


def _drop(log_copy: LogCopy, rng: random.Random) -> AlteredLog | None:
    if len(log_copy.rows) < 2:
        return None
    at = rng.randrange(len(log_copy.rows) - 1)
    rows = log_copy.rows[:at] + log_copy.rows[at + 1 :]
    if rng.random() < 0.5:
        return AlteredLog(f"event {log_copy.rows[at].seq} is gone", replace(log_copy, rows=rows), log_copy.rows[at].seq)
    closed = tuple(row if index < at else row._replace(seq=row.seq - 1) for index, row in enumerate(rows))
    new = replace(log_copy, rows=closed, head=log_copy.head - 1)
    return AlteredLog(f"event {log_copy.rows[at].seq} is gone, and the gap closed", new, log_copy.rows[at].seq)


def _truncate(log_copy: LogCopy, rng: random.Random) -> AlteredLog | None:
    if len(log_copy.rows) < 2:
        return None
    left = log_copy.rows[: rng.randrange(1, len(log_copy.rows))]
    how, last = f"the log was cut after event {left[-1].seq}", left[-1]
    match rng.choice(("rows", "head", "hash")):
        case "rows":
            return AlteredLog(how, replace(log_copy, rows=left), last.seq + 1)
        case "head":
            return AlteredLog(f"{how}, its head too", replace(log_copy, rows=left, head=last.seq), None)
    new = replace(log_copy, rows=left, head=last.seq, hash=last.hash)
    return AlteredLog(f"{how}, its head and hash too", new, last.seq + 1, traceless=True)


def _insert(log_copy: LogCopy, rng: random.Random) -> AlteredLog | None:
    source = rng.choice(log_copy.rows)
    if rng.random() < 0.4:
        row = source._replace(seq=log_copy.rows[-1].seq + 1)
        new = replace(log_copy, rows=(*log_copy.rows, row))
        if rng.random() < 0.5:
            return AlteredLog("an event was put behind the head", new, row.seq)
        return AlteredLog("an event was put behind the head, which was moved", replace(new, head=row.seq), row.seq)
    at = rng.randrange(len(log_copy.rows))
    place = log_copy.rows[at].seq
    later = [row._replace(seq=row.seq + 1) for row in log_copy.rows[at:]]
    rows = (*log_copy.rows[:at], source._replace(seq=place), *later)
    first = place if source.seq != place else place + 1
    moved = replace(log_copy, rows=rows, head=log_copy.head + 1)
    return AlteredLog(f"event {source.seq} was put before event {place}", moved, first)


def _replace_blob(log_copy: LogCopy, rng: random.Random) -> AlteredLog | None:
    if not log_copy.blobs:
        return None
    digest = rng.choice(sorted(log_copy.blobs))
    data = log_copy.blobs[digest]
    match rng.choice(("flip", "replace", "drop")):
        case "flip":
            place = rng.randrange(len(data))
            new = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case "replace":
            new = b"other bytes"
        case _:
            rest = {name: each for name, each in log_copy.blobs.items() if name != digest}
            return AlteredLog(f"the bytes {digest[:8]} are gone", replace(log_copy, blobs=rest), None)
    return AlteredLog(
        f"the bytes {digest[:8]} were replaced", replace(log_copy, blobs=log_copy.blobs | {digest: new}), None
    )


def _rewrite(log_copy: LogCopy, rng: random.Random) -> AlteredLog | None:
    """Change a payload, and compute the hashes of all later events and the head again, as holdfast would."""
    places = [at for at, row in enumerate(log_copy.rows) if row.type == b"message.added" and row.body is not None]
    if not places or log_copy.rows[0].seq != 1 or b'"text":"' not in (log_copy.rows[places[0]].body or b""):
        return None  # a fork begins with the hash of its parent; an encrypted text cannot be changed without its key
    at = rng.choice(places)
    row, rows = log_copy.rows[at], list(log_copy.rows)
    body = row.body or b""
    salt = rng.randbytes(SALT_SIZE)  # another salt is another commitment: the text need not even change
    rows[at] = row._replace(body=salt + body[SALT_SIZE:])
    previous = rows[at - 1].hash
    for place in range(at, len(rows)):
        each = rows[place]
        plain = Row(each.seq, each.at, each.type.decode(), each.header, each.tokens, each.body, each.tombstone, b"")
        previous = next_hash(previous, plain) or b""
        rows[place] = each._replace(hash=previous)
    new = replace(log_copy, rows=tuple(rows), hash=previous)
    return AlteredLog(f"event {row.seq} was rewritten, with the chain and the head", new, row.seq, diligent=True)


ALTERATIONS: dict[str, Callable[[LogCopy, random.Random], AlteredLog | None]] = {
    "flip": _flip,
    "swap": _swap,
    "drop": _drop,
    "truncate": _truncate,
    "insert": _insert,
    "blob": _replace_blob,
    "rewrite": _rewrite,
}


def _replace_row(log_copy: LogCopy, at: int, row: StoredEvent) -> LogCopy:
    return replace(log_copy, rows=(*log_copy.rows[:at], row, *log_copy.rows[at + 1 :]))


# -- databases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditedDatabase:
    """A database with sessions, and a connection that bypasses holdfast."""

    name: str
    store: Store
    raw: RawDatabase
    sessions: list[Session]


@contextmanager
def open_databases(*, postgres: bool = True) -> Iterator[list[AuditedDatabase]]:
    """SQLite and PostgreSQL, with a key and without."""
    with ExitStack() as stack:
        home = stack.enter_context(make_directory())
        found = []
        for name, key in (("sqlite", None), ("sqlite encrypted", MASTER)):
            path = home / f"{name}.db"
            store: Store = stack.enter_context(SQLiteStore(path, key=key))
            found.append(AuditedDatabase(name, store, RawSQLite(path), make_sessions(store)))
        if postgres:
            dsn = stack.enter_context(open_database())
            for name, key in (("postgres", None), ("postgres encrypted", MASTER)):
                store = stack.enter_context(PostgresStore(dsn, key=key))
                prefix = "locked " if key else ""
                found.append(AuditedDatabase(name, store, RawPostgres(dsn), make_sessions(store, name=prefix)))
        for place in found:
            sign_heads(place.store, SigningKey(SIGNING_SEED))
        yield found


@proof("B21", ci=1_500, long=80_000)
def altered_logs(size: int, seed: int) -> Report:
    """Alter a log in the database, ask every session that reads it, put it back."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    with open_databases() as found:
        for place in found:
            failures += [f"{place.name}, control: {wrong}" for wrong in check_unaltered(place)]
        for number in range(size):
            place = found[0] if number % 2 else found[number // 2 % len(found)]
            failures += check_alteration(place, f"{seed}/{number}", counts)
            if len(failures) >= ENOUGH:
                break
    return _report(counts, failures)


def _report(counts: Counter[str], failures: list[str]) -> Report:
    named = ", ".join(f"{counts[name]:,} {name}" for name in ("named", "error", "by a signature"))
    return Report(figures=f"{counts['all']:,} alterations: {named}; {len(failures)} unnoticed", failures=failures)


def check_unaltered(place: AuditedDatabase) -> list[str]:
    verdicts = [(one.id, verdict) for one in place.sessions for verdict in (one.verify(), one.verify(PUBLIC_KEY))]
    return [f"{id}: {verdict}" for id, verdict in verdicts if not verdict]


def check_alteration(place: AuditedDatabase, seed: str, counts: Counter[str]) -> list[str]:
    """One alteration: what was not noticed about it."""
    rng = random.Random(seed)
    session = rng.choice(place.sessions)
    number = rng.choice([session.log.number, *(each for each, _ in session.log.ancestry)])
    before = place.raw.read_log(number)
    alteration = alter_log(before, rng)
    exports = (
        {}
        if not alteration.traceless
        else {each.id: each.export() for each in _list_readers(place, number, alteration)}
    )
    place.raw.write_log(number, alteration.log_copy)
    failures = []
    try:
        readers = _list_readers(place, number, alteration)
        counts["all"] += bool(readers)
        for reader in readers:
            if (alteration.traceless or alteration.diligent) and number == reader.log.number:
                wrong = "its signature does not show it" if reader.verify(PUBLIC_KEY) else None
                counts["by a signature"] += wrong is None
                if alteration.traceless and wrong is None:
                    wrong = _compare_with_export(reader, exports[reader.id])
            else:
                wrong = find_unnoticed(reader, alteration, encrypted=reader.log.key is not None, counts=counts)
            if wrong is not None:
                failures.append(f"{place.name}, {seed}: {alteration.how}, read by {reader.id}: {wrong}")
    finally:
        place.raw.write_log(number, before)
    return failures


def _list_readers(place: AuditedDatabase, number: int, alteration: AlteredLog) -> list[Session]:
    """The sessions that have the altered events: a fork has its parent's only up to where it left."""
    found = []
    for session in place.sessions:
        if session.log.number == number:
            found.append(session)
            continue
        shared = dict(session.log.ancestry).get(number)
        if shared is not None and alteration.first is not None and alteration.first <= shared:
            found.append(session)
    if alteration.residue and not found:  # its own log was deleted: a session that still reads it has the record
        found = [session for session in place.sessions if number in dict(session.log.ancestry)]
    return found


def find_unnoticed(session: Session, alteration: AlteredLog, *, encrypted: bool, counts: Counter[str]) -> str | None:
    """None if `verify` reports the alteration."""
    try:
        verdict = session.verify()
    except AgentError as error:
        counts["error"] += 1
        return None if encrypted else f"{error!r} instead of a verdict"
    except Exception as error:
        return f"it broke: {error!r}"
    if verdict:
        return "nobody noticed"
    counts["named"] += 1
    # A fork has the hash at which it left: of rewritten history it names its own first event, which no longer follows.
    if alteration.first is not None and verdict.first_bad != alteration.first and not alteration.diligent:
        return f"event {verdict.first_bad} was named instead of {alteration.first}: {verdict.reason}"
    return None


def _compare_with_export(session: Session, export: str) -> str | None:
    """None if the log lacks what its export has; such a log verifies, and that is why heads are exported."""
    if not session.verify():
        return None
    last = read_jsonl(export).rows[-1]
    rows = session.store.read(session.log, last.seq, last.seq)
    return "the export says the same" if rows and rows[0].hash == last.hash else None


# -- exports -----------------------------------------------------------------------------------------------------------


@proof("B21", ci=500, long=20_000)
def altered_exports(size: int, seed: int) -> Report:
    """Alter an exported file: no database is there to compare it with."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    with make_directory() as home, open_databases(postgres=False) as found:
        exports = [session.export() for place in found for session in place.sessions]
        for text in exports:
            wrong = read_jsonl(text).verify()
            failures += [] if wrong else [f"control: {wrong}"]
        for number in range(size):
            failures += check_altered_export(exports, home, f"{seed}/{number}", counts)
            if len(failures) >= ENOUGH:
                break
    return _report(counts, failures)


def check_altered_export(exports: list[str], home: Path, seed: str, counts: Counter[str]) -> list[str]:
    rng = random.Random(seed)
    text = rng.choice(exports)
    how, new, first = _alter_lines(text.splitlines(), rng)
    counts["all"] += 1
    wrong = _find_unnoticed_in_file(new, first, counts)
    if wrong is None and rng.randrange(THROUGH_THE_COMMAND) == 0:
        file = home / "export.jsonl"
        file.write_bytes(new)
        done = CliRunner().invoke(command, ["verify", str(file)])
        if done.exit_code not in (1, 2):
            wrong = f"holdfast verify says {done.output!r} and {done.exception!r}"
    return [] if wrong is None else [f"{seed}: {how}: {wrong}"]


def _alter_lines(lines: list[str], rng: random.Random) -> tuple[str, bytes, int | None]:
    """How, the new file, and the first bad event where it is decidable."""
    kind = rng.choice(("flip", "flip", "value", "value", "swap", "drop", "insert", "blob"))
    at = rng.randrange(len(lines))
    if kind == "swap" and len(lines) > 1:
        one, two = sorted(rng.sample(range(len(lines)), 2))
        new = list(lines)
        new[one], new[two] = lines[two], lines[one]
        return f"lines {one + 1} and {two + 1} changed places", _join_lines(new), None if one == 0 else one + 1
    if kind == "drop" and len(lines) > 1:
        return f"line {at + 1} is gone", _join_lines(lines[:at] + lines[at + 1 :]), None if at == 0 else at + 1
    if kind == "insert":
        source = rng.choice(lines)
        if json.loads(source)["seq"] == 1 and at == 0:
            at = 1
        return f"a line was put before line {at + 1}", _join_lines([*lines[:at], source, *lines[at:]]), None
    if kind == "value":
        found = _alter_value(lines, at, rng)
        if found is not None:
            return found
    if kind == "blob":
        with_bytes = [index for index, line in enumerate(lines) if "blobs" in json.loads(line)]
        if with_bytes:
            at = rng.choice(with_bytes)
            line = json.loads(lines[at])
            digest = rng.choice(sorted(line["blobs"]))
            data = bytearray(base64.b64decode(line["blobs"][digest]))
            data[rng.randrange(len(data))] ^= 1
            line["blobs"][digest] = base64.b64encode(data).decode()
            return f"the bytes of line {at + 1}", _join_lines([*lines[:at], json.dumps(line), *lines[at + 1 :]]), at + 1
    while True:
        old = lines[at].encode()
        place = rng.randrange(len(old))
        new_line = old[:place] + bytes([old[place] ^ 1 << rng.randrange(8)]) + old[place + 1 :]
        if not _means_the_same(old, new_line) and not _is_unrecorded(lines, at, old, place):
            break
    before, after = "".join(f"{line}\n" for line in lines[:at]), "".join(f"{line}\n" for line in lines[at + 1 :])
    near = old[max(0, place - 20) : place + 10]
    return f"byte {place} of line {at + 1}, near {near!r}", before.encode() + new_line + b"\n" + after.encode(), None


def _is_unrecorded(lines: list[str], at: int, line: bytes, place: int) -> bool:
    """Whether this is what is left of a shared event that was redacted after the fork had left: the record is in the
    log of the parent, whose own export shows it."""
    start = line.find(b'"commitment":"') + len(b'"commitment":"') + 2 * COMMITMENT_SIZE
    if b'"commitment":"' not in line or not start <= place < line.index(b'"', start):
        return False
    records = [json.loads(each).get("data", {}).get("erased", []) for each in lines[at:]]
    return not any(first <= at + 1 <= last for ranges in records for first, last in ranges)


def _alter_value(lines: list[str], at: int, rng: random.Random) -> tuple[str, bytes, int | None] | None:
    """Another value for one field, in a file that is well formed in every other way."""
    line = json.loads(lines[at])
    name = rng.choice([each for each in sorted(line) if each not in NOT_IN_THE_CHAIN])
    old = line[name]
    if isinstance(old, str):
        if not old:
            return None
        digits = "0123456789abcdef" if name in ("hash", "salt", "commitment") else "abcdefgh 12345"
        place = rng.randrange(len(old))
        if name == "commitment" and place >= 2 * COMMITMENT_SIZE:
            return None  # that is for the flips
        line[name] = old[:place] + rng.choice([each for each in digits if each != old[place]]) + old[place + 1 :]
    elif isinstance(old, bool) or old is None:
        line[name] = "other"
    elif isinstance(old, int):
        line[name] = old + rng.choice((-1, 1, 1000))
    elif isinstance(old, dict):
        line[name] = old | {"extra": 1}
    else:
        line[name] = [*old, {"extra": 1}]
    new = [*lines[:at], json.dumps(line, ensure_ascii=False), *lines[at + 1 :]]
    return f"{name} of line {at + 1}", _join_lines(new), None


# The name and the owner of a log are in no event: a copy may have others.
NOT_IN_THE_CHAIN = ("log", "blobs")


def _means_the_same(old: bytes, new: bytes) -> bool:
    """Whether a flipped byte changed nothing but the name or the owner, or the case of a hexadecimal digit."""
    try:
        one, two = json.loads(old), json.loads(new)
    except ValueError:
        return False
    if not isinstance(two, dict):
        return False
    for line in (one, two):
        about = line.get("log")
        if isinstance(about, dict):
            line["log"] = [about.get("origin"), about.get("head"), str(about.get("hash")).lower()]
        for name in ("hash", "salt", "commitment"):
            if isinstance(line.get(name), str):
                line[name] = line[name].lower()
    return bool(one == two)


def _find_unnoticed_in_file(data: bytes, first: int | None, counts: Counter[str]) -> str | None:
    try:
        verdict = read_jsonl(data.decode()).verify()
    except (AgentError, UnicodeDecodeError):
        counts["error"] += 1
        return None
    except Exception as error:
        return f"it broke: {error!r}"
    if verdict:
        return "nobody noticed"
    counts["named"] += 1
    if first is not None and verdict.first_bad != first:
        return f"event {verdict.first_bad} was named instead of {first}: {verdict.reason}"
    return None


def _join_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
