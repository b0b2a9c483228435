"""A family of sessions, forked, written, rewound and deleted by several threads in an order that a seed decides.

The scheduler lets one thread run at a time and may switch to another at every call of a store, so that an interleaving
is a function of its seed. Without it the threads run freely. In every order: an acknowledged event never changes, a
fork outlives its parent, a deleted session stays deleted, and nothing is left when the last one is deleted.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from holdfast import File, Message, Session
from holdfast.errors import AgentError, SessionExists, SessionNotFound
from holdfast.log.events import Event
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Log, Store

VERBS = ("append", "create", "remove", "find", "head", "view", "read", "refs", "value", "info")
TABLES = ("logs", "events", "names", "sessions", "once", "leases", "snapshots", "blobs", "lineage", "indexed", "words")
NAMES = ("root", "left", "right")
PATIENCE = 60.0


class SeededScheduler:
    """Runs tasks on threads, one at a time; who is next at each pause is drawn from the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: dict[int, threading.Semaphore] = {}
        self._idle = threading.Semaphore(0)
        self._thread = threading.local()

    def pause_at_calls(self, store: Store) -> None:
        """Pause before every call of the store: of the memory only the outermost, which holds no lock yet."""
        for verb in VERBS:
            setattr(store, verb, self._add_pause(getattr(store, verb), outermost=isinstance(store, MemoryStore)))

    def _add_pause(self, call: Callable[..., Any], *, outermost: bool) -> Callable[..., Any]:
        def pause_and_call(*args: Any, **kwargs: Any) -> Any:
            mine = self._thread
            depth = getattr(mine, "depth", None)
            if depth is None:  # not one of our threads
                return call(*args, **kwargs)
            if depth == 0 or not outermost:
                self._idle.release()
                mine.turn.acquire()
            mine.depth = depth + 1
            try:
                return call(*args, **kwargs)
            finally:
                mine.depth = depth

        return pause_and_call

    def run(self, tasks: list[Callable[[], None]]) -> None:
        waiting = {}
        for number, task in enumerate(tasks):
            turn = threading.Semaphore(0)
            waiting[number] = (turn, threading.Thread(target=self._task, args=(task, turn), daemon=True))
            waiting[number][1].start()
        while waiting:
            turn, thread = waiting[number := self._rng.choice(sorted(waiting))]
            turn.release()
            if not self._idle.acquire(timeout=PATIENCE):
                raise RuntimeError("a thread neither paused nor ended: the stores wait for each other")
            if getattr(thread, "over", False):
                thread.join()
                del waiting[number]

    def _task(self, task: Callable[[], None], turn: threading.Semaphore) -> None:
        self._thread.turn, self._thread.depth = turn, 0
        turn.acquire()
        try:
            task()
        finally:
            threading.current_thread().over = True  # type: ignore[attr-defined]
            self._idle.release()


def run_freely(tasks: list[Callable[[], None]]) -> None:
    """Run tasks on threads as they come."""
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            raise RuntimeError("a thread did not end: the stores wait for each other")


@dataclass(slots=True)
class FamilyMember:
    """A session of the family, with what may never change about it."""

    session: Session
    shared_hashes: list[bytes] = field(default_factory=list)  # the hashes it shared when it was forked
    ancestor_logs: set[str] = field(default_factory=set)  # the logs whose events may be in it


class SessionFamily:
    """The sessions of one store, the acknowledgements of the threads, and the failures."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store, self.rng = store, rng
        self.members: list[FamilyMember] = []
        self.deleted_names: set[str] = set()  # names whose deletion has begun
        self.deleted_logs: set[str] = set()  # logs whose deletion was acknowledged
        self.acknowledged: list[tuple[str, int, str]] = []  # log, seq, text
        self.failures: list[str] = []
        self._texts = count()
        self.add_member(Session(NAMES[0], store=store))
        for _ in range(3):
            self.append(self.members[0])

    def add_member(self, session: Session, parent: FamilyMember | None = None, at: int = 0) -> None:
        member = FamilyMember(session, ancestor_logs={session.log.uid} | (parent.ancestor_logs if parent else set()))
        if parent is not None:
            try:
                member.shared_hashes = [row.hash for row in self.store.read(session.log, 1, at)]
            except SessionNotFound:
                self.check(session.id in self.deleted_names, f"fork {session.id!r} vanished")
        self.members.append(member)

    def check(self, holds: bool, complaint: str) -> None:
        if not holds:
            self.failures.append(complaint)

    # -- what threads do ---------------------------------------------------------------------------------------------

    def make_task(self, seed: str, steps: int) -> Callable[[], None]:
        rng = random.Random(seed)
        script = [(rng.choice(OPERATIONS), rng.random(), rng.choice(NAMES)) for _ in range(steps)]

        def run() -> None:
            for operation, share, name in script:
                member = self.members[int(share * len(self.members))]
                try:
                    operation(self, member, share, name)
                except SessionNotFound:
                    names = {member.session.id, name}
                    self.check(
                        bool(names & self.deleted_names), f"{operation.__name__}: none of {names} was ever deleted"
                    )
                except AgentError as error:
                    self.failures.append(f"{operation.__name__}: {error!r}")
                except Exception as error:
                    self.failures.append(f"{operation.__name__} broke: {error!r}")

        return run

    def append(self, member: FamilyMember, share: float = 0.0, name: str = "") -> None:
        number = next(self._texts)
        text, session = f"text {number}", member.session
        late = session.log.uid in self.deleted_logs
        extra = [File(data=text.encode(), media_type="x/y")] if number % 3 == 0 else []
        seq = session.add_messages([Message.user(text, *extra)], once=text if number % 2 else None)
        self.acknowledged.append((session.log.uid, seq, text))
        self.check(not late, f"an append to {session.id!r} came after its deletion and was taken")

    def fork(self, member: FamilyMember, share: float, name: str) -> None:
        head = member.session.head
        at = None if share < 0.5 else max(1, int((share - 0.5) * 2 * head))
        try:
            fork = member.session.fork(name, at=at)
        except SessionExists:
            return
        self.add_member(fork, member, fork.log.base)

    def clear(self, member: FamilyMember, share: float, name: str) -> None:
        member.session.clear()

    def rewind(self, member: FamilyMember, share: float, name: str) -> None:
        member.session.rewind(to=max(1, int(share * member.session.head)))

    def increment_state(self, member: FamilyMember, share: float, name: str) -> None:
        member.session.update_state("n", lambda n: (n or 0) + 1)

    def search(self, member: FamilyMember, share: float, name: str) -> None:
        member.session.search("text")

    def recreate(self, member: FamilyMember, share: float, name: str) -> None:
        session = Session(name, store=self.store)
        known = {one.session.log.uid for one in self.members}
        if session.log.uid not in known and session.log.parent is None:
            self.add_member(session)

    def delete(self, member: FamilyMember, share: float, name: str) -> None:
        log = self.store.find("session", name)
        if log is not None:
            self.deleted_names.add(name)
            self.store.delete(name)  # a namesake, if another thread was faster with both
            if not self.is_alive(log):
                self.deleted_logs.add(log.uid)

    def is_alive(self, log: Log) -> bool:
        """Whether the name still means this log."""
        found = self.store.find("session", log.id)
        return found is not None and found.uid == log.uid

    # -- what must be true ---------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """After all threads have ended: live sessions are complete, and deleted ones refuse everything."""
        for member in self.members:
            session = member.session
            if not self.is_alive(session.log):
                self.check(session.id in self.deleted_names, f"{session.id!r} is gone, but nobody deleted it")
                self._check_deleted(member)
            else:
                self._check_member(member)

    def _check_deleted(self, member: FamilyMember) -> None:
        for what, act in (
            ("append", lambda s: s.add_message(Message.user("late"))),
            ("fork", lambda s: s.fork("late")),
        ):
            try:
                act(member.session)
                self.failures.append(f"{what} raised the dead {member.session.id!r}")
            except SessionNotFound:
                pass

    def _check_member(self, member: FamilyMember) -> None:
        session, log = member.session, member.session.log
        verdict = session.verify()
        self.check(bool(verdict), f"{session.id!r}: {verdict}")
        rows = self.store.read(log)
        self.check([row.seq for row in rows] == list(range(1, session.head + 1)), f"{session.id!r} has gaps")
        self.check(
            [row.hash for row in rows[: len(member.shared_hashes)]] == member.shared_hashes,
            f"{session.id!r}: its past changed",
        )
        kept, folded = self.store.head(log).view, self.store.rebuild_view(log).to_bytes()
        self.check(kept == folded, f"{session.id!r}: the view is not the fold")
        texts = {row.seq: Event(row).data for row in rows if row.type == "message.added"}
        found = {(seq, _read_text(data)) for seq, data in texts.items()}
        own = {(seq, text) for uid, seq, text in self.acknowledged if uid == log.uid}
        allowed = {(seq, text) for uid, seq, text in self.acknowledged if uid in member.ancestor_logs}
        self.check(own <= found, f"{session.id!r} lost {own - found}")
        self.check(found <= allowed, f"{session.id!r} has what nobody told it: {found - allowed}")
        for message in session.messages:  # with their bytes
            self.check(message.seq in texts, f"{session.id!r} shows {message.seq}, which it does not have")

    def delete_all(self) -> None:
        """Delete the rest in some order: each stays whole until it is its turn, and then nothing is left."""
        names = self.store.list_sessions()
        self.rng.shuffle(names)
        while names:
            self.store.delete(names.pop())
            for member in self.members:
                if self.is_alive(member.session.log):
                    self._check_member(member)
        for what, rows in count_leftovers(self.store):
            self.failures.append(f"{rows} {what} are left although every session was deleted")

    def run(self, seed: str, *, threads: int, steps: int, free: bool) -> list[str]:
        tasks = [self.make_task(f"{seed}/{number}", steps) for number in range(threads)]
        if free:
            run_freely(tasks)
        else:
            scheduler = SeededScheduler(self.rng)
            scheduler.pause_at_calls(self.store)
            scheduler.run(tasks)
        self.verify()
        self.delete_all()
        return self.failures


def _read_text(data: dict[str, Any]) -> str:
    found: str = data["text"] if "text" in data else data["parts"][0]["text"]
    return found


def count_leftovers(store: Store) -> Iterator[tuple[str, int]]:
    """What a store still keeps, for a store whose sessions were all deleted."""
    if isinstance(store, MemoryStore):
        if store._memory.logs:
            yield "logs", len(store._memory.logs)
        return
    for table in TABLES:
        if isinstance(store, SQLiteStore):
            rows = store.file.read(lambda db, table=table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # type: ignore[misc]
        else:
            assert isinstance(store, PostgresStore)
            rows = store.server.fetch(f"SELECT count(*) FROM holdfast.{table}")[0][0]
        if rows:
            yield table, rows


OPERATIONS: tuple[Callable[[SessionFamily, FamilyMember, float, str], None], ...] = (
    SessionFamily.append,
    SessionFamily.append,
    SessionFamily.fork,
    SessionFamily.fork,
    SessionFamily.clear,
    SessionFamily.rewind,
    SessionFamily.increment_state,
    SessionFamily.search,
    SessionFamily.recreate,
    SessionFamily.delete,
    SessionFamily.delete,
)
