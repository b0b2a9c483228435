"""Detectors of seeded bugs: proofs at a small size. What they return is what they found; nothing means all is well."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from holdfast import Agent, Message, Session
from holdfast.clock import FixedClock
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import (
    AgentError,
    Conflict,
    ContextTooLong,
    ImmutableSession,
    InvalidArgument,
    NotJSON,
    SessionHeld,
    StaleEpoch,
    ViewChanged,
    WrongKey,
)
from holdfast.log import chain, codec
from holdfast.log.events import SALT_SIZE, Draft, Row
from holdfast.policy.pruning import strategy_of
from holdfast.prompt.compaction import plan_prune
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.document_store import DocumentStore
from holdfast.stores.erasure import plan_redaction
from holdfast.stores.lease import Claim, encode_holder
from holdfast.testing import error
from holdfast.worker.sweep import sweep
from tests.kit.documents import DictStore
from tests.kit.power_loss import survey_crashes
from tests.proofs.audit import RawSQLite, check_alteration, check_altered_export, open_databases
from tests.proofs.models import (
    check_field,
    find_unexplained,
    inject_every_fault,
    lost_on_the_wire,
    make_directory,
    open_database,
    run_episode,
    run_family,
    take_snapshots_every,
)
from tests.properties.compliance import RandomHistory
from tests.properties.fields import FIELDS
from tests.properties.random_operations import RandomOperations
from tests.properties.store_comparison import StoreSide
from tests.properties.strings import CORPUS


def _compare_stores(seed: int) -> list[str]:
    with _open_stores() as (memory, sqlite):
        for episode in range(1, 80):
            if found := run_episode([memory, sqlite], seed, episode, 200):
                return found
    return []


def _run_families(seed: int) -> list[str]:
    with _open_stores() as stores:
        for number in range(150):
            if found := run_family(stores[number % 2], f"{seed}/{number}", free=False):
                return found
    return []


def _rebuild_projections(seed: int) -> list[str]:
    with _open_stores() as stores, take_snapshots_every(7):
        for episode in range(1, 8):
            operations = RandomOperations(stores, seed, episode)
            operations.run(200)
            if found := find_unexplained(operations.sides[1], operations.tenant.live_names, Counter()):
                return found
    return []


def _round_trip_text(seed: int) -> list[str]:
    found: list[str | None] = []
    with _open_stores() as stores:
        for number, text in enumerate(CORPUS[:20]):
            found += [
                check_field([StoreSide(store) for store in stores], f"{name}{number}", text, name, Counter())
                for name in FIELDS
            ]
    for value in (float("nan"), float("inf"), 2**64, b"x", (1,), {1: 2}, "\ud800"):
        try:
            codec.encode({"value": value})
            found.append(f"{value!r} was taken for JSON")
        except NotJSON:
            pass
    return [complaint for complaint in found if complaint]


def _lose_power(seed: int) -> list[str]:
    def workload(path: str, vfs: str, acknowledge: Callable[[int], None]) -> None:
        with SQLiteStore(path, vfs=vfs) as store:
            session = Session("s", store=store)
            for number in range(25):
                session.add_message(Message.user(str(number)))
                acknowledge(number)

    def check(path: str, acknowledged: Sequence[int]) -> str | None:
        with SQLiteStore(path) as store:
            log = store.find("session", "s")
            said = [] if log is None else [message.text for message in Session.open("s", store=store).messages]
            lost = [number for number in acknowledged if str(number) not in said]
            return f"lost {lost} of {len(acknowledged)} acknowledged" if lost else None

    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    found = survey_crashes(workload, check, seed=seed, states=120, directory=place)
    return [f"{found.complaints} of {found.states}: {found.first}"] if found.complaints else []


def _mix_tenants(seed: int) -> list[str]:
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            ours, theirs = store.for_tenant("ours"), store.for_tenant("theirs")
            Session("s", store=ours, user_id="u").add_message(Message.user("secret"))
            for what, seen in (
                ("exists", theirs.exists("s")),
                ("load", theirs.load("s")),
                ("list", theirs.list_sessions() or Session.list(store=theirs, user_id="u")),
                ("delete", theirs.delete("s")),
                ("messages", Session("s", store=theirs).messages),
            ):
                found += [f"{store!r}: {what} of another tenant gives {seen!r}"] if seen else []
            found += [] if len(Session.open("s", store=ours)) == 1 else [f"{store!r}: ours is gone"]
    return found


def _tamper_with_log(seed: int) -> list[str]:
    """Alter an event together with its own hash: the link to the next one must show it."""
    store = MemoryStore()
    session = Session("s", store=store)
    session.add_messages([Message.user(text) for text in "abc"])
    rows = [Row(*row.columns()) for row in store.read(session.log)]
    rows[1].body = (rows[1].body or b"").replace(b'"a"', b'"X"')
    rows[1].hash = chain.next_hash(rows[0].hash, rows[1]) or b""
    verdict = chain.verify(session.log.origin, rows)
    return [] if verdict.first_bad == 3 else [f"an altered event was not noticed: {verdict}"]


def _check_salts(seed: int) -> list[str]:
    with _open_stores() as stores:
        for store in stores:
            session = Session("s", store=store)
            session.add_message(Message.user("same"))
            session.add_message(Message.user("same"))
            salts = [row.body[:SALT_SIZE] for row in store.read(session.log, 2) if row.body]
            if len(set(salts)) != len(salts):
                return [f"{store!r}: the same text has the same commitment"]
    return []


def _commit_group(seed: int) -> list[str]:
    """Jobs that write and are then refused, in one transaction with jobs that are not."""
    errors: list[str] = []
    with _open_stores() as (_, store):
        session = Session("s", store=store)
        gate = threading.Event()

        def refused(db: Any) -> None:
            db.execute("INSERT INTO indexed VALUES(987654, 1)")
            raise InvalidArgument("after it had written")

        def broken(db: Any) -> None:
            raise TypeError("a bug of its own")

        def attempt(act: Callable[[], Any], expected: type[Exception] | None) -> None:
            try:
                act()
                raised: type[Exception] | None = None
            except Exception as error:
                raised = type(error)
            if raised is not expected:
                errors.append(f"{raised} instead of {expected}")

        write = store.file.write  # type: ignore[attr-defined]
        jobs = [
            (lambda: write(lambda db: gate.wait(10)), None),
            (lambda: session.add_message(Message.user("one")), None),
            (lambda: write(refused), InvalidArgument),
            (lambda: write(broken), TypeError),
            (lambda: session.add_message(Message.user("two")), None),
        ]
        threads = [threading.Thread(target=attempt, args=job) for job in jobs]
        for number, thread in enumerate(threads):
            thread.start()
            while number and len(store.file._queue) <= number:  # type: ignore[attr-defined]
                threading.Event().wait(0.001)
            while not number and not store.file._batch:  # type: ignore[attr-defined]
                threading.Event().wait(0.001)
        gate.set()
        for thread in threads:
            thread.join()
        left = store.file.read(lambda db: db.execute("SELECT count(*) FROM indexed WHERE log = 987654").fetchone()[0])  # type: ignore[attr-defined]
        texts = [message.text for message in session.messages]
    return (
        errors
        + ([f"{left} rows of the refused job"] if left else [])
        + ([] if texts == ["one", "two"] else [f"{texts}"])
    )


def _write_from_two_stores(seed: int) -> list[str]:
    """Two processes' stores on one database, each with its own cached head and epoch of the log."""
    rng, found = random.Random(seed), []
    with open_database() as dsn, PostgresStore(dsn) as mine, PostgresStore(dsn) as yours:
        sessions = [Session(f"rivals {seed}", store=store) for store in (mine, yours)]
        for number in range(30):
            rng.choice(sessions).add_message(Message.user(str(number)))
        sessions[0].close()
        sessions[1].reopen()
        sessions[0].pause()
        log, claim = sessions[0].log, Claim(holder=encode_holder("me"), seconds=100)
        note = Draft(type="state.set", data={"name": "n", "value": 1})
        epoch = mine.append(log, [], claim=claim).epoch
        mine.append(log, [note], epoch=epoch)
        yours.append(log, [], claim=claim, epoch=epoch)
        try:
            mine.append(log, [note], epoch=epoch)
            found.append("an append in an old epoch was taken")
        except StaleEpoch:
            pass
        texts = [message.text for message in sessions[0].messages]
        if texts != [str(number) for number in range(30)]:
            found.append(f"not what was said: {texts}")
        if not sessions[1].verify():
            found.append(f"{sessions[1].verify()}")
    return found


def _inject_faults(seed: int) -> list[str]:
    with make_directory() as home, SQLiteStore(home / "log.db") as faulty, SQLiteStore(home / "log.db") as observer:
        return inject_every_fault(faulty, observer, str(seed), Counter(), kinds=("after a write", "at a crash point"))


def _lose_requests(seed: int) -> list[str]:
    return lost_on_the_wire(120, seed).failures


def _copy_sessions(seed: int) -> list[str]:
    with _open_stores() as stores:
        for store in stores:
            mine = {"a": {"b": 1}}
            session = Session("s", store=store, metadata=mine, state={"v": [1]})
            mine["a"]["b"] = 2
            session.metadata["a"]["b"] = 3
            session.state["v"].append(2)
            found = session.metadata, session.state
            if found != ({"a": {"b": 1}}, {"v": [1]}):
                return [f"{store!r}: changing what was handed out changed the store: {found}"]
    return []


# -- what is kept ------------------------------------------------------------------------------------------------------


def _run_histories(seed: int) -> list[str]:
    with _open_stores() as stores, take_snapshots_every(7):
        for number in range(70):
            if found := RandomHistory(stores[number % 2], f"{seed}/{number}").run(50):
                return found
    return []


def _alter_logs(seed: int) -> list[str]:
    with make_directory() as home, open_databases(postgres=False) as found:
        for number in range(900):
            if wrong := check_alteration(found[number % 2], f"{seed}/{number}", Counter()):
                return wrong
        exports = [session.export() for session in found[0].sessions]
        for number in range(300):
            if wrong := check_altered_export(exports, home, f"{seed}/{number}", Counter()):
                return wrong
    return []


def _apply_stale_plans(seed: int) -> list[str]:
    """What was planned for a view or a log that has moved since must be refused."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            session = Session("s", store=store)
            session.add_messages([Message.user(f"text {number}") for number in range(9)])
            plan = plan_prune(store, session.log, store.head(session.log), strategy_of("keep_last_3"))
            session.clear()
            found += _expect_refusal(ViewChanged, lambda s=session, p=plan: s.store.append(s.log, p.drafts()))  # type: ignore[misc]
            other = Session("other", store=store)
            other.add_messages([Message.user(f"text {number}") for number in range(9)])
            for number, other_change in enumerate((lambda s=other: s.prune("summarize_old", threshold=3), other.fork)):  # type: ignore[misc]
                holder, burial = plan_redaction(store, other.log, 3 + number)
                other_change()
                draft = Draft(
                    type="event.redacted", data={"seq": 3 + number, "reason": "x", **burial.record_data(holder)}
                )
                erase = partial(store.apply_erasure, holder, [draft], burial)
                found += _expect_refusal(Conflict, erase)
    return found


def _expect_refusal(error: type[Exception], act: Callable[[], Any]) -> list[str]:
    try:
        act()
    except error:
        return []
    return [f"{error.__name__} was expected"]


def _check_guards(seed: int) -> list[str]:
    """What must not be removed is not: by its owner, and by a sweep that looked a moment too early."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            held = Session("held", store=store)
            held.hold("a case")
            kept = Session("kept", store=store, retention={"ttl_days": 9, "immutable": True})
            seq = kept.add_message(Message.user("text"))
            found += _expect_refusal(SessionHeld, lambda s=store: s.delete("held"))  # type: ignore[misc]
            found += _expect_refusal(SessionHeld, lambda h=held: h.erase(reason="x", actor="y"))  # type: ignore[misc]
            for act in (
                lambda s=store: s.delete("kept"),  # type: ignore[misc]
                kept.clear,
                lambda k=kept: k.prune("keep_last_1"),  # type: ignore[misc]
                lambda k=kept, at=seq: k.redact(at, reason="x"),  # type: ignore[misc]
                lambda k=kept: setattr(k, "retention", {"ttl_days": 1}),  # type: ignore[misc]
            ):
                found += _expect_refusal(ImmutableSession, act)
            found += _sweep_too_early(store)
    return found


def _sweep_too_early(store: Store) -> list[str]:
    """Sessions that are used between the plan of a sweep and its act, or that are running when it plans."""
    past = store.for_tenant("past")
    past.clock = clock = FixedClock(start=1_700_000_000_000_000)
    for name in ("used", "at work"):
        Session(name, store=past, retention={"ttl_days": 1})
    used, busy = Session.open("used", store=past), Session.open("at work", store=past)
    clock.time += 5 * 86_400_000_000
    past.append(busy.log, [], claim=Claim(holder=encode_holder("me"), seconds=1e6))

    def wake(name: str) -> None:
        if name == "sweep planned":
            used.add_message(Message.user("alive"))

    arm_crashpoints(wake)
    try:
        sweep(past)
    finally:
        arm_crashpoints(None)
    return [f"{store!r}: {name!r} was swept" for name in ("used", "at work") if not past.exists(name)]


def _move_sealed_payloads(seed: int) -> list[str]:
    """A sealed payload that is put in another place does not open there, and a key that is changed opens all."""
    found: list[str] = []
    key, new = sha256(b"one").digest(), sha256(b"two").digest()
    with make_directory() as home:
        with SQLiteStore(home / "log.db", key=key) as store:
            session = Session("s", store=store)
            session.add_messages([Message.user("mine"), Message.user("yours")])
            raw = RawSQLite(home / "log.db")
            log_copy = raw.read_log(session.log.number)
            rows = list(log_copy.rows)
            rows[1] = rows[1]._replace(body=rows[2].body)
            raw.write_log(session.log.number, replace(log_copy, rows=tuple(rows)))
            found += _expect_refusal(WrongKey, lambda: session.messages)
            raw.write_log(session.log.number, log_copy)
            store.rotate_key(new)
        found += _expect_refusal(WrongKey, lambda: SQLiteStore(home / "log.db", key=key).close())
        with SQLiteStore(home / "log.db", key=new) as store:
            texts = [message.text for message in Session.open("s", store=store).messages]
            found += [] if texts == ["mine", "yours"] else [f"after a change of the key: {texts}"]
    return found


def _find_remains(seed: int) -> list[str]:
    """What a redaction leaves in the file: no text, no digest of it, no word in the index."""
    found: list[str] = []
    secret = "confidential" * 800
    with make_directory() as home:
        path = home / "log.db"
        with SQLiteStore(path) as store:
            session = Session("s", store=store)
            seq = session.add_message(Message.user(secret), once="k")
            other = session.add_message(Message.user("confidential too"))
            session.search("confidential")
            digests = store.file.read(lambda db: db.execute("SELECT digest FROM once").fetchall())
            session.redact(seq, reason="x")
            left = store.file.read(lambda db: db.execute("SELECT digest FROM once").fetchall())
            found += ["a digest of what was said is kept"] if left == digests else []
            query = "SELECT count(*) FROM words WHERE rowid & 4294967295 = ?"
            words = store.file.read(lambda db: db.execute(query, (seq,)).get)
            found += ["the index still has it"] if words else []
            found += [] if [each.seq for each in session.search("confidential")] == [other] else ["search finds it"]
        found += ["the text is in the file"] if secret[:200].encode() in path.read_bytes() else []
    return found


def _send_long_prompt(seed: int) -> list[str]:
    """A provider that always finds the prompt too long is asked twice, not for ever."""
    asked = []

    def reply(request: Any) -> Any:
        asked.append(len(request.messages))
        if len(asked) > 5:
            raise RuntimeError("asked for ever")
        return error(ContextTooLong)

    session = Session("s", store=MemoryStore(), agent=Agent(provider="scripted", script=reply, max_retries=0))
    session.add_messages([Message.user("long " * 500) for _ in range(40)])
    found = _expect_refusal(AgentError, lambda: session.run("and now?"))
    return found + ([] if len(asked) == 2 else [f"asked {len(asked)} times"])


def _share_documents(seed: int) -> list[str]:
    """Two processes on a four-method store: a change keeps what the other one saved, and a loss is reported."""

    class RacingStore(DictStore):
        between: Callable[[], object] | None = None

        def save(self, session_id: str, data: dict[str, Any]) -> None:
            between, self.between = self.between, None
            if between is not None:
                between()
            super().save(session_id, data)

    documents = RacingStore()
    one = Session("s", store=DocumentStore(documents))
    two = Session.open("s", store=DocumentStore(documents))
    for number, session in enumerate((one, two, one, two)):
        session.add_message(Message.user(f"message {number}"))
    left = len(Session.open("s", store=DocumentStore(documents)))
    found = [] if left == 4 else [f"{left} of 4 messages are left"]
    documents.between = lambda: one.add_message(Message.user("lost"))
    two.add_message(Message.user("won"))
    return found + _expect_refusal(Conflict, lambda: one.add_message(Message.user("next")))


@contextmanager
def _open_stores() -> Iterator[list[Store]]:
    with make_directory() as home, SQLiteStore(home / "log.db") as sqlite:
        yield [MemoryStore(), sqlite]


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "random operations": _compare_stores,
    "families": _run_families,
    "rebuild": _rebuild_projections,
    "hostile text": _round_trip_text,
    "power loss": _lose_power,
    "tenants": _mix_tenants,
    "tampering": _tamper_with_log,
    "salts": _check_salts,
    "group commit": _commit_group,
    "two stores": _write_from_two_stores,
    "faults": _inject_faults,
    "lost requests": _lose_requests,
    "copies": _copy_sessions,
    "histories": _run_histories,
    "altered logs": _alter_logs,
    "stale plans": _apply_stale_plans,
    "guards": _check_guards,
    "sealed payloads": _move_sealed_payloads,
    "remains of redaction": _find_remains,
    "long prompts": _send_long_prompt,
    "shared documents": _share_documents,
}
