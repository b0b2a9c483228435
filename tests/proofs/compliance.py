"""B20 and B2 for what is kept: pruning, redaction, erasure, retention and keys, interleaved, raced and killed.

The histories and their model are in `tests.properties.compliance`. What must stay true: the log never changes but for
what is erased, the view is what the model says, nothing that is gone comes back, and a killed process leaves the state
before or the state after.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import count
from typing import Any

from holdfast import Agent, File, Message, Session, tool
from holdfast.clock import Clock
from holdfast.errors import AgentError, TurnOpen, WrongKey
from holdfast.log.events import Event
from holdfast.log.repair import repair_history
from holdfast.models.base import ModelRequest
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.testing import call
from holdfast.testing.crash import Acknowledge, Child, Point, Work, crash_points, run_in_child
from holdfast.worker.sweep import sweep
from tests.kit.crash_workload import describe_difference, find_damage, wait_for_other_connections
from tests.kit.postgres import PostgresServer
from tests.proofs import Report, proof
from tests.proofs.crashes import Opener, make_openers, make_scratch_directory, shorten_leases
from tests.proofs.models import ENOUGH, open_stores, take_snapshots_every
from tests.properties.compliance import RandomHistory

EPISODE = 50  # operations of one history


@proof("B20", ci=2_500, long=1_000_000)
def kept_histories(size: int, seed: int) -> Report:
    """Interleavings of fork, prune, undo, append, run, redact, erase, hold, delete and sweep, against a model."""
    failures: list[str] = []
    shares: Counter[str] = Counter()
    done: Counter[str] = Counter()
    with open_stores() as (memory, sqlite, postgres), encrypted_store() as encrypted, take_snapshots_every(7):
        turns = {0: postgres, 2: encrypted, 6: encrypted, 4: sqlite, 8: sqlite}
        for number in range(-(-size // EPISODE)):
            store = turns.get(number % 10, memory)
            name = "encrypted" if store is encrypted else type(store).__name__.removesuffix("Store").lower()
            history = RandomHistory(store, f"{seed}/{number}")
            found = history.run(EPISODE)
            failures += [f"{name} history {seed}/{number}: {wrong}" for wrong in found]
            shares[name] += history.done.total()
            done += history.done
            if len(failures) >= ENOUGH:
                break
    stores = ", ".join(f"{count:,} {name}" for name, count in sorted(shares.items()))
    figures = f"{stores}; {done['prune']:,} prunes, {done['redact']:,} redactions, {done['sweep']:,} sweeps"
    return Report(figures=f"{figures}; {len(failures)} wrong", failures=failures)


@contextmanager
def encrypted_store() -> Iterator[SQLiteStore]:
    with make_scratch_directory(memory=True) as directory, SQLiteStore(directory / "encrypted.db", key=OLD) as store:
        yield store


# -- races -------------------------------------------------------------------------------------------------------------


@proof("B20", ci=4, long=400)
def compaction_races_appends(size: int, seed: int) -> Report:
    """One thread prunes, summarizes and undoes while others add messages and run turns: nothing is lost or doubled."""
    failures: list[str] = []
    told = cuts = 0
    with open_stores() as stores:
        for number in range(size):
            for store in stores:
                race = CompactionRace(store.for_tenant(f"race {seed} {number}"), auto=number % 4 == 3)
                failures += [f"{type(store).__name__} race {number}: {wrong}" for wrong in race.run()]
                told, cuts = told + len(race.acknowledged), cuts + race.cuts
    figures = f"{size} races on 3 stores: {told:,} messages acknowledged, {cuts:,} cuts; {len(failures)} wrong"
    return Report(figures=figures, failures=failures)


@tool
def weigh(text: str) -> str:
    """Weigh a word."""
    return f"{text} is {len(text)}"


class CompactionRace:
    """Threads with a session object each, on one log."""

    messages, turns, threads = 30, 8, 2

    def __init__(self, store: Store, *, auto: bool = False) -> None:
        self.store, self.auto = store, auto
        self.acknowledged: list[str] = []  # as acknowledged
        self.failures: list[str] = []
        self.cuts = 0
        self._left = self.threads + 1
        retention = {"auto_prune": True, "max_messages": 12} if auto else None
        Session("race", store=store, retention=retention)

    def run(self) -> list[str]:
        tasks: list[Callable[[Session], None]] = [self._run_turns, self._prune]
        tasks += [lambda session, name=name: self._add_messages(session, name) for name in range(self.threads)]  # type: ignore[misc]
        threads = [threading.Thread(target=self._run_task, args=(task,), daemon=True) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if any(thread.is_alive() for thread in threads):
            self.failures.append("somebody waits for ever")
        return self.failures + self._find_wrong()

    def _run_task(self, task: Callable[[Session], None]) -> None:
        try:
            task(Session.open("race", store=self.store))
        except Exception as error:
            self.failures.append(f"{getattr(task, '__name__', 'says')}: {error!r}")

    def _add_messages(self, session: Session, name: int) -> None:
        for number in range(self.messages):
            text = f"said by {name}, number {number}"
            session.add_message(Message.user(text), once=text if number % 2 else None)
            self.acknowledged.append(text)
            time.sleep(0.0005)
        self._left -= 1

    def _run_turns(self, session: Session) -> None:
        def reply(request: ModelRequest) -> Any:
            sent = list(request.messages)
            if repair_history(sent) != sent:
                self.failures.append(f"a model would be sent half an exchange: {sent}")
            last = sent[-1]
            return call("weigh", {"text": last.text}, id=f"c{next(ids)}") if last.role == "user" else "weighed"

        ids = count()
        agent = Agent(provider="scripted", script=reply, tools=[weigh])
        for number in range(self.turns):
            text = f"turn {number}"
            session.run(text, agent=agent)
            self.acknowledged.append(text)
        self._left -= 1

    def _prune(self, session: Session) -> None:
        ways: list[tuple[str, dict[str, Any]]] = [
            ("keep_last_7", {}),
            ("summarize_old", {"threshold": 5}),
            ("sliding_window", {"window_size": 6}),
            ("keep_important", {}),
            ("token_budget", {"max_tokens": 100}),
        ]
        for number in count():
            if not self._left:
                return
            strategy, options = ways[number % len(ways)]
            self.cuts += session.prune(strategy, **options).seq is not None
            if number % 4 == 3:
                try:
                    session.undo_prune()
                except TurnOpen:
                    pass
            time.sleep(0.001)

    def _find_wrong(self) -> list[str]:
        """What is not as it must be, now that all are done."""
        session, found = Session.open("race", store=self.store), []
        log = session.log
        events = session.events(limit=None)
        if not session.verify() or self.store.rebuild_view(log) != self.store.view(log):
            found.append(f"{session.verify()}, or the view is not the fold")
        places: dict[str, list[int]] = {}
        for event in events:
            if event.type == "message.added":
                places.setdefault(event.data["text"], []).append(event.seq)
        counts = {text: len(places.get(text, ())) for text in self.acknowledged}
        found += [f"{text!r} is {times} times in the log" for text, times in counts.items() if times != 1]
        # A cut names what it drops, and an undo what it brings back: what no cut dropped is in the view.
        dropped: set[int] = set()
        for event in events:
            if event.type in ("view.pruned", "view.compacted"):
                dropped |= {seq for first, last in event.data["drop"] for seq in range(first, last + 1)}
            elif event.type == "view.unpruned":
                back = {seq for first, last in event.data["ranges"] for seq in range(first, last + 1)}
                dropped -= back
        shown = Counter(message.seq for message in session.messages)
        kept = {seq: text for text in self.acknowledged for seq in places.get(text, ()) if seq not in dropped}
        found += [f"{text!r} was dropped by nobody and is not shown" for seq, text in kept.items() if not shown[seq]]
        found += [f"event {seq} is shown {times} times" for seq, times in shown.items() if times > 1]
        found += [f"event {seq} was dropped and is shown" for seq in shown if seq in dropped]
        if repair_history(session.messages) != session.messages:
            found.append(f"half an exchange is shown: {session.messages}")
        return found


@proof("B20", ci=3, long=400)
def redaction_races_summaries(size: int, seed: int) -> Report:
    """Secrets are redacted while others summarize, undo and fork what holds them: no text outlives its redaction."""
    failures: list[str] = []
    redacted = 0
    with open_stores() as stores:
        for number in range(size):
            for store in stores:
                race = RedactionRace(store.for_tenant(f"secrets {seed} {number}"), random.Random(f"{seed}/{number}"))
                failures += [f"{type(store).__name__} race {number}: {wrong}" for wrong in race.run()]
                redacted += len(race.gone)
            if failures:
                break
    return Report(figures=f"{size} races on 3 stores: {redacted} redactions; {len(failures)} wrong", failures=failures)


class RedactionRace:
    """A session and its forks, each cut by a thread of its own, while one redacts what they share."""

    secrets = 10

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store, self.rng = store, rng
        self.gone: list[str] = []
        self.failures: list[str] = []
        self._done = False
        self.pause = 0.02 if isinstance(store, PostgresStore) else 0.005
        root = Session("root", store=store, title="a title")
        self.seqs = {root.add_message(Message.user(text)): text for text in self._texts()}
        root.add_messages([Message.user("harmless") for _ in range(4)])
        root.fork("left")
        root.fork("right")

    def _texts(self) -> list[str]:
        return [f"secret number {number:04}" for number in range(self.secrets)]

    def run(self) -> list[str]:
        tasks: list[Callable[[], None]] = [self._redact, self._fork]
        tasks += [lambda name=name: self._summarize(name) for name in ("root", "left", "right")]  # type: ignore[misc]
        threads = [threading.Thread(target=self._run_task, args=(task,), daemon=True) for task in tasks]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            self._done = True
            return [*self.failures, f"after 20 s {len(self.gone)} secrets were redacted"]
        return self.failures + self._find_wrong()

    def _run_task(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:
            self.failures.append(f"{getattr(task, '__name__', 'cut')}: {error!r}")
        finally:
            self._done = self._done or task == self._redact

    def _redact(self) -> None:
        for seq in self.rng.sample(sorted(self.seqs), k=self.secrets - 2):
            session = Session.open(self.rng.choice(("root", "left", "right")), store=self.store)
            session.redact(seq, reason="asked to")
            self.gone.append(self.seqs[seq])
            time.sleep(0.002)

    def _summarize(self, name: str) -> None:
        session = Session.open(name, store=self.store)
        while not self._done:
            session.prune("summarize_old", threshold=3)
            session.undo_prune()
            time.sleep(self.pause)  # a redaction needs a moment without writers
        session.prune("summarize_old", threshold=3)

    def _fork(self) -> None:
        for number in range(3):
            Session.open("left", store=self.store).fork(f"late{number}").prune("summarize_old", threshold=2)
            time.sleep(0.03)

    def _find_wrong(self) -> list[str]:
        found = []
        for name in self.store.list_sessions():
            session = Session.open(name, store=self.store)
            if not session.verify():
                found.append(f"{name}: {session.verify()}")
            text = session.export() + str(session.messages)
            found += [f"{name} still tells {secret!r}" for secret in self.gone if secret in text]
            lost = [secret for secret in self._texts() if secret not in self.gone and secret not in session.export()]
            found += [f"{name} lost {secret!r}" for secret in lost]
        return found


# -- deaths ------------------------------------------------------------------------------------------------------------

OLD, NEW = sha256(b"the old master key").digest(), sha256(b"the new master key").digest()
LEASE = 0.4  # seconds, for sweepers that die
DAYS = 86_400_000_000
TABLES = ("names", "once", "blobs", "retention", "sessions")
PRUNED, ROTATED = 14, 6
MANY = 20  # crash points


def prepare_session(store: Store) -> None:
    """A session to cut, to redact and to erase, and a fork that repeats it."""
    talk = Session("talk", store=store, user_id="u", title="secret title", state={"a": "secret"})
    talk.add_messages([Message.user(f"secret {number}") for number in range(PRUNED)], once="first")
    talk.add_message(Message.user("look", File(data=b"secret bytes", media_type="x/y")))
    script = [call("weigh", {"text": "secret"}, id="c1"), "done"]
    talk.run("secret?", agent=Agent(provider="scripted", script=script, tools=[weigh]))
    talk.prune("keep_last_12")
    twin = talk.fork("twin")
    twin.add_message(Message.user("mine"))
    twin.prune("summarize_old", threshold=6)
    talk.search("secret")
    Session("other", store=store, user_id="u").add_message(Message.user("secret too"))


def prepare_due_sessions(store: Store) -> None:
    """Sessions for the sweep: to purge, to archive and to leave alone."""
    past = store.for_tenant(store.tenant)
    past.clock = PastClock(10)
    for number in range(2):
        Session(f"old{number}", store=past, retention={"ttl_days": 1}).add_message(Message.user("old"))
    Session("quiet", store=past, retention={"ttl_days": 30, "archive_after_days": 1})
    held = Session("held", store=past, retention={"ttl_days": 1})
    held.hold("a case")
    parent = Session("parent", store=past, retention={"ttl_days": 1})
    parent.add_message(Message.user("needed"))
    parent.fork("child").retention = {"ttl_days": 100}


class PastClock(Clock):
    """The clock as it was some days ago."""

    def __init__(self, days: int) -> None:
        super().__init__()
        self._days = days

    def now(self) -> int:
        return super().now() - self._days * DAYS


Act = Callable[[Store], object]


def _open_session(store: Store) -> Session:
    return Session.open("talk", store=store)


def _redact(store: Store) -> None:
    talk = _open_session(store)
    event = next(event for event in talk.events(types=["message.added"], limit=None) if event.seq > 4)
    if not event.erased:
        talk.redact(event.seq, reason="asked", actor="officer")


def _redact_reply(store: Store) -> None:
    talk = _open_session(store)
    event = talk.events(types=["model.replied"], limit=None)[0]
    if not event.erased:
        talk.redact(event.seq, reason="asked", actor="officer")


def _erase(store: Store) -> None:
    talk = _open_session(store)
    if talk.status != "erased":
        talk.erase(reason="asked", actor="officer")


def _undo(store: Store) -> None:
    talk = _open_session(store)
    if talk.events(types=["view.unpruned"], limit=None) == []:
        talk.undo_prune()


ACTS: dict[str, Act] = {
    "prune": lambda store: _open_session(store).prune("keep_last_4"),
    "compaction": lambda store: _open_session(store).prune("summarize_old", threshold=4),
    "undo": _undo,
    "redaction": _redact,
    "redaction of a reply": _redact_reply,
    "erasure": _erase,
    "erasure of a user": lambda store: Session.erase_user("u", reason="asked", actor="officer", store=store),
    "sweep": lambda store: sweep_until_idle(store),
}
IN_STEPS = ("erasure of a user", "sweep")  # one session after the other


def sweep_until_idle(store: Store) -> list[str]:
    """Sweep until no other sweeper works: the lease of a dead sweeper ends by itself."""
    purged: list[str] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        report = sweep(store, batch=2)
        purged += report.purged
        if not report.busy and not store.due_for_sweep(store.clock.now(), limit=1):
            return purged
        time.sleep(LEASE / 8)
    raise TimeoutError("the sweep did not come to its end")


def read_sessions(store: Store) -> dict[str, Any]:
    """What there is of each session, without what differs from one run to the next."""
    return {name: _read_session(store, name) for name in store.list_sessions()}


def _read_session(store: Store, name: str) -> dict[str, Any]:
    session = Session.open(name, store=store)
    log = session.log
    return {
        "status": session.status,
        "title": session.title,
        "events": [(row.seq, row.type, row.body is None) for row in store.read(log, log.base + 1)],
        "said": [(message.seq, message.text) for message in session.messages],
        "bytes": [part.data for message in session.messages for part in message.parts if isinstance(part, File)],
        "found": [] if session.status == "erased" else [message.seq for message in session.search("secret")],
        "state": dict(session.state),
        "rows": count_rows(store, log.number),
        "sound": bool(session.verify()) and store.rebuild_view(log) == store.view(log),
    }


def count_rows(store: Store, number: int) -> tuple[int, ...]:
    """How much of a log is beside its events."""
    schema = "holdfast." if isinstance(store, PostgresStore) else ""
    counts = [f"(SELECT count(*) FROM {schema}{table} WHERE log = {number})" for table in TABLES]
    query = f"SELECT {', '.join(counts)}"
    if isinstance(store, PostgresStore):
        return tuple(store.server.fetch(query)[0])
    assert isinstance(store, SQLiteStore)
    found: Any = store.file.read(lambda db: db.execute(query).fetchone())
    return tuple(found)


@proof("B2", ci=1, long=20)
def kill_while_keeping(size: int, seed: int) -> Report:
    """Kill -9 at every crash point of a prune, a compaction, an undo, a redaction, an erasure and a sweep."""
    figures, failures = [], []
    with make_openers(durable=False) as fresh, shorten_leases(LEASE):
        for kind, new in fresh.items():
            opener, deaths = new(), 0
            for name in ACTS:
                died, found = kill_at_each(opener, name, rounds=size, every=4)
                failures += [f"{kind}, {name}, {wrong}" for wrong in found]
                deaths += died
            figures.append(f"{kind} {deaths} deaths in {len(ACTS)} acts")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} not all-or-nothing", failures=failures)


def kill_at_each(opener: Opener, name: str, *, rounds: int = 1, every: int = 1) -> tuple[int, list[str]]:
    """Kill the act at each of its crash points, each time for a tenant of its own. Of an act with many points, which
    are much like each other, every n-th in each round, and always the last of each name."""
    failures: list[str] = []
    deaths = 0
    ready = prepare_due_sessions if name == "sweep" else prepare_session
    with opener() as store:
        ready(store.for_tenant(f"{name} listed"))
    points = crash_points(make_act(opener, name, f"{name} listed"))
    with opener() as store:
        after = read_sessions(store.for_tenant(f"{name} listed"))
    last = {point.name: point for point in points}
    rest = every if len(points) > MANY else 1
    chosen = [point for start in range(rounds) for point in sorted({*points[start % rest :: rest], *last.values()})]
    for number, point in enumerate(chosen):
        tenant = f"{name} {number}"
        with opener() as store:
            bound = store.for_tenant(tenant)
            ready(bound)
            before = read_sessions(bound)
        end = run_in_child(make_act(opener, name, tenant), at=point)
        deaths += end.killed
        with opener() as store:
            wait_for_other_connections(store)
            bound = store.for_tenant(tenant)
            found = [] if end.killed else [end.error or "the child came to its end"]
            if end.error is None and name == "sweep":
                found = []  # how often a sweep renews its lease depends on time, so it may not come to the last points
            found += find_half_done(before, read_sessions(bound), after, whole=name not in IN_STEPS)
            try:
                ACTS[name](bound)
            except AgentError as error:
                found.append(f"the second attempt: {error!r}")
            found += [
                f"the second attempt: {wrong}"
                for wrong in find_half_done(after, read_sessions(bound), after, whole=True)
            ]
        failures += [f"{point}: {wrong}" for wrong in found]
    with opener() as store:  # anew: a connection that searched may take what others removed for damage
        failures += find_damage(store)
    return deaths, failures


def make_act(opener: Opener, name: str, tenant: str) -> Work:
    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            ACTS[name](store.for_tenant(tenant))
            acknowledge("done")

    return work


def find_half_done(before: dict[str, Any], found: dict[str, Any], after: dict[str, Any], *, whole: bool) -> list[str]:
    """What is neither the state before nor the state after, session by session; and all of one kind, if `whole`."""
    if not whole:  # a fork may be as before, and what it shares as after
        before, found, after = (_select_own_fields(each) for each in (before, found, after))
    failures = [f"{name} does not verify" for name, seen in found.items() if not seen["sound"]]
    sides = []
    for name in {**before, **after}:
        was, now, will = before.get(name), found.get(name), after.get(name)
        if now not in (was, will):
            failures.append(f"{name} is neither as before nor as after: {describe_difference(will, now)}")
        elif was != will:
            sides.append(now == will)
    failures += [f"{name} is new" for name in found if name not in before and name not in after]
    if whole and len(set(sides)) > 1:
        failures.append("some sessions are as before and some as after")
    return failures


def _select_own_fields(pictures: dict[str, Any]) -> dict[str, Any]:
    own = ("status", "title", "events", "rows", "sound")
    return {name: {field: seen[field] for field in own} for name, seen in pictures.items()}


# -- a new master key --------------------------------------------------------------------------------------------------


@proof("B2", ci=1, long=20)
def kill_while_rotating(size: int, seed: int) -> Report:
    """Kill -9 at every crash point of a change of the master key: one of the two keys opens everything."""
    figures, failures = [], []
    with keyed_openers() as fresh:
        for kind, new in fresh.items():
            points = crash_points(make_rotation(prepare_rotation(new())))
            for point in points * size:
                opener = prepare_rotation(new())
                end = run_in_child(make_rotation(opener), at=point)
                found = [] if end.killed else [end.error or "the child came to its end"]
                found += check_rotation(opener)
                failures += [f"{kind}, {point}: {wrong}" for wrong in found]
            figures.append(f"{kind} {len(points) * size} deaths")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} not all-or-nothing", failures=failures)


KeyedOpener = Callable[[bytes], Store]


@contextmanager
def keyed_openers() -> Iterator[dict[str, Callable[[], KeyedOpener]]]:
    """For each durable store, a way to get a fresh database that is opened with a key."""
    with make_scratch_directory(memory=True) as directory, PostgresServer() as server:
        numbers = count()

        def sqlite() -> KeyedOpener:
            path = directory / f"{next(numbers)}.db"
            return lambda key: SQLiteStore(path, key=key)

        def postgres() -> KeyedOpener:
            dsn = server.database(tcp=True)
            return lambda key: PostgresStore(dsn, key=key)

        yield {"sqlite": sqlite, "postgres": postgres}


def prepare_rotation(opener: KeyedOpener) -> KeyedOpener:
    with opener(OLD) as store:
        for number in range(ROTATED):
            session = Session(f"s{number}", store=store, title=f"title {number}", state={"n": number})
            session.add_message(Message.user(f"text {number}", File(data=b"bytes", media_type="x/y")))
    return opener


def make_rotation(opener: KeyedOpener) -> Work:
    def work(acknowledge: Acknowledge) -> None:
        with opener(OLD) as store:
            acknowledge(store.rotate_key(NEW))  # type: ignore[attr-defined]

    return work


def check_rotation(opener: KeyedOpener) -> list[str]:
    """What is wrong after a rotation that may have been cut short; a second attempt finishes it."""
    wait_until_settled(opener)
    opens = [key for key in (OLD, NEW) if is_readable(opener, key)]
    if len(opens) != 1:
        return [f"{len(opens)} of the two keys open everything"]
    if opens == [OLD]:
        with opener(OLD) as store:
            store.rotate_key(NEW)  # type: ignore[attr-defined]
    if is_readable(opener, OLD) or not is_readable(opener, NEW):
        return ["the second attempt did not change the key"]
    return []


def wait_until_settled(opener: KeyedOpener) -> None:
    for key in (OLD, NEW):
        try:
            with opener(key) as store:
                wait_for_other_connections(store)
                return
        except WrongKey:
            continue


def is_readable(opener: KeyedOpener, key: bytes) -> bool:
    """Whether a key opens the store; then it must open every session, or that is an error."""
    try:
        store = opener(key)
    except WrongKey:
        return False
    with store:
        for number in range(ROTATED):
            session = Session.open(f"s{number}", store=store)
            texts = [message.text for message in session.messages], session.title, session.state
            assert texts == ([f"text {number}"], f"title {number}", {"n": number}), texts
            assert session.verify()
    return True


# -- several sweepers --------------------------------------------------------------------------------------------------


@proof("B2", ci=2, long=100)
def four_sweepers(size: int, seed: int) -> Report:
    """Four processes sweep at once, one is killed in the middle of a batch: each session goes once, none that stays."""
    figures, failures = [], []
    with make_openers(durable=False) as fresh, shorten_leases(LEASE):
        for kind, new in fresh.items():
            opener = new()
            for number in range(size):
                failures += [
                    f"{kind}, {number}: {wrong}" for wrong in run_sweepers(opener, f"t{number}", seed + number)
                ]
            figures.append(f"{kind} {size} deaths")
    return Report(figures=f"{'; '.join(figures)} beside 3 sweepers; {len(failures)} wrong", failures=failures)


def run_sweepers(opener: Opener, tenant: str, seed: int) -> list[str]:
    due, staying = [f"due{number}" for number in range(18)], [f"stays{number}" for number in range(6)]
    with opener() as store:
        past = store.for_tenant(tenant)
        past.clock = PastClock(10)
        for name in due:
            Session(name, store=past, retention={"ttl_days": 1}).add_message(Message.user("old"))
        for number, name in enumerate(staying):
            session = Session(name, store=past, retention={"ttl_days": 100 if number % 2 else 1})
            if number % 2 == 0:
                session.hold("a case")
    point = random.Random(seed).choice((Point("sweep planned", 2), Point("swept one", 4), Point("swept one", 7)))

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            acknowledge(sweep_until_idle(store.for_tenant(tenant)))

    failures = []
    with ExitStack() as stack:
        doomed = stack.enter_context(Child(work, at=point))
        children = [stack.enter_context(Child(work)) for _ in range(3)]
        ends = [child.wait() for child in children]
        doomed_end = doomed.wait()
    failures += [end.error for end in ends if end.error]
    if doomed_end.error:
        failures.append(doomed_end.error)
    purged = Counter(name for end in [*ends, doomed_end] for told in end.acknowledged for name in told)
    with opener() as store:
        wait_for_other_connections(store)
        bound = store.for_tenant(tenant)
        left = bound.list_sessions()
        failures += [f"{name} is still there" for name in due if name in left]
        failures += [f"{name} is gone" for name in staying if name not in left]
        failures += [f"{name} was purged {times} times" for name, times in purged.items() if times > 1]
        failures += [f"{name} was purged and should stay" for name in staying if purged[name]]
        if not doomed_end.killed and len(purged) != len(due):
            failures.append(f"nobody died, and {len(purged)} of {len(due)} were told")
        failures += [f"{name} does not verify" for name in left if not Session.open(name, store=bound).verify()]
        sweeps = bound.require("sweep", "sweep")
        planned = [Event(row).data["purge"] for row in bound.read(sweeps, types=["sweep.planned"])]
        named = {each["id"] for page in planned for each in page}
        if not bound.verify(sweeps) or named != set(due):
            failures.append(f"the record of the sweeps names {sorted(named)}")
        failures += find_damage(store)
    return failures
