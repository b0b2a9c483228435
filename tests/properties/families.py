"""A family of sessions, forked, written, rewound and deleted by several threads in an order that a seed decides.

The baton lets one thread run at a time and may pass to another at every call of a store, so that an interleaving is a
function of its seed; without it the threads run freely. Whatever the order: an event once acknowledged is never
changed, a fork outlives its parent, the dead stay dead, and nothing is left when the last one is deleted.
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


class Baton:
    """Runs tasks on threads, one at a time; who is next at each pause is drawn from the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: dict[int, threading.Semaphore] = {}
        self._idle = threading.Semaphore(0)
        self._mine = threading.local()

    def watch(self, store: Store) -> None:
        """Pause before every call of the store: of the memory only the outermost, which holds no lock yet."""
        for verb in VERBS:
            setattr(store, verb, self._pausing(getattr(store, verb), outermost=isinstance(store, MemoryStore)))

    def _pausing(self, call: Callable[..., Any], *, outermost: bool) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            mine = self._mine
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

        return wrapped

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
        self._mine.turn, self._mine.depth = turn, 0
        turn.acquire()
        try:
            task()
        finally:
            threading.current_thread().over = True  # type: ignore[attr-defined]
            self._idle.release()


def freely(tasks: list[Callable[[], None]]) -> None:
    """Run tasks on threads as they come."""
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            raise RuntimeError("a thread did not end: the stores wait for each other")


@dataclass(slots=True)
class Member:
    """A session of the family, with what may never change about it."""

    session: Session
    past: list[bytes] = field(default_factory=list)  # the hashes it shared when it was forked
    lines: set[str] = field(default_factory=set)  # the logs whose events may be in it


class Family:
    """One store's family, what its threads were told, and what was wrong."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store, self.rng = store, rng
        self.members: list[Member] = []
        self.doomed: set[str] = set()  # names that somebody began to delete
        self.gone: set[str] = set()  # logs whose deletion was acknowledged
        self.acknowledged: list[tuple[str, int, str]] = []  # log, seq, text
        self.failures: list[str] = []
        self._texts = count()
        self.adopt(Session(NAMES[0], store=store))
        for _ in range(3):
            self.append(self.members[0])

    def adopt(self, session: Session, parent: Member | None = None, at: int = 0) -> None:
        member = Member(session, lines={session.log.uid} | (parent.lines if parent else set()))
        if parent is not None:
            try:
                member.past = [row.hash for row in self.store.read(session.log, 1, at)]
            except SessionNotFound:
                self.check(session.id in self.doomed, f"fork {session.id!r} vanished")
        self.members.append(member)

    def check(self, holds: bool, complaint: str) -> None:
        if not holds:
            self.failures.append(complaint)

    # -- what threads do ---------------------------------------------------------------------------------------------

    def task(self, seed: str, steps: int) -> Callable[[], None]:
        rng = random.Random(seed)
        script = [(rng.choice(DEEDS), rng.random(), rng.choice(NAMES)) for _ in range(steps)]

        def run() -> None:
            for deed, share, name in script:
                member = self.members[int(share * len(self.members))]
                try:
                    deed(self, member, share, name)
                except SessionNotFound:
                    names = {member.session.id, name}
                    self.check(bool(names & self.doomed), f"{deed.__name__}: none of {names} was ever deleted")
                except AgentError as error:
                    self.failures.append(f"{deed.__name__}: {error!r}")
                except Exception as error:
                    self.failures.append(f"{deed.__name__} broke: {error!r}")

        return run

    def append(self, member: Member, share: float = 0.0, name: str = "") -> None:
        number = next(self._texts)
        text, session = f"text {number}", member.session
        late = session.log.uid in self.gone
        extra = [File(data=text.encode(), media_type="x/y")] if number % 3 == 0 else []
        seq = session.add_messages([Message.user(text, *extra)], once=text if number % 2 else None)
        self.acknowledged.append((session.log.uid, seq, text))
        self.check(not late, f"an append to {session.id!r} came after its deletion and was taken")

    def fork(self, member: Member, share: float, name: str) -> None:
        head = member.session.head
        at = None if share < 0.5 else max(1, int((share - 0.5) * 2 * head))
        try:
            fork = member.session.fork(name, at=at)
        except SessionExists:
            return
        self.adopt(fork, member, fork.log.base)

    def clear(self, member: Member, share: float, name: str) -> None:
        member.session.clear()

    def rewind(self, member: Member, share: float, name: str) -> None:
        member.session.rewind(to=max(1, int(share * member.session.head)))

    def state(self, member: Member, share: float, name: str) -> None:
        member.session.update_state("n", lambda n: (n or 0) + 1)

    def search(self, member: Member, share: float, name: str) -> None:
        member.session.search("text")

    def recreate(self, member: Member, share: float, name: str) -> None:
        session = Session(name, store=self.store)
        known = {one.session.log.uid for one in self.members}
        if session.log.uid not in known and session.log.parent is None:
            self.adopt(session)

    def delete(self, member: Member, share: float, name: str) -> None:
        log = self.store.find("session", name)
        if log is not None:
            self.doomed.add(name)
            self.store.delete(name)  # a namesake, if another thread was faster with both
            if not self.is_alive(log):
                self.gone.add(log.uid)

    def is_alive(self, log: Log) -> bool:
        """Whether the name still means this log."""
        found = self.store.find("session", log.id)
        return found is not None and found.uid == log.uid

    # -- what must be true ---------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """After all threads have ended: what lives is whole, what died is dead."""
        for member in self.members:
            session = member.session
            if not self.is_alive(session.log):
                self.check(session.id in self.doomed, f"{session.id!r} is gone, but nobody deleted it")
                self._dead(member)
            else:
                self._whole(member)

    def _dead(self, member: Member) -> None:
        for what, act in (
            ("append", lambda s: s.add_message(Message.user("late"))),
            ("fork", lambda s: s.fork("late")),
        ):
            try:
                act(member.session)
                self.failures.append(f"{what} raised the dead {member.session.id!r}")
            except SessionNotFound:
                pass

    def _whole(self, member: Member) -> None:
        session, log = member.session, member.session.log
        verdict = session.verify()
        self.check(bool(verdict), f"{session.id!r}: {verdict}")
        rows = self.store.read(log)
        self.check([row.seq for row in rows] == list(range(1, session.head + 1)), f"{session.id!r} has gaps")
        self.check([row.hash for row in rows[: len(member.past)]] == member.past, f"{session.id!r}: its past changed")
        kept, folded = self.store.head(log).view, self.store.rebuild_view(log).to_bytes()
        self.check(kept == folded, f"{session.id!r}: the view is not the fold")
        texts = {row.seq: Event(row).data for row in rows if row.type == "message.added"}
        said = {(seq, _text(data)) for seq, data in texts.items()}
        mine = {(seq, text) for uid, seq, text in self.acknowledged if uid == log.uid}
        theirs = {(seq, text) for uid, seq, text in self.acknowledged if uid in member.lines}
        self.check(mine <= said, f"{session.id!r} lost {mine - said}")
        self.check(said <= theirs, f"{session.id!r} has what nobody told it: {said - theirs}")
        for message in session.messages:  # with their bytes
            self.check(message.seq in texts, f"{session.id!r} shows {message.seq}, which it does not have")

    def bury(self) -> None:
        """Delete the rest in some order: each stays whole until it is its turn, and then nothing is left."""
        names = self.store.list_sessions()
        self.rng.shuffle(names)
        while names:
            self.store.delete(names.pop())
            for member in self.members:
                if self.is_alive(member.session.log):
                    self._whole(member)
        for what, rows in left_over(self.store):
            self.failures.append(f"{rows} {what} are left although every session was deleted")

    def play(self, seed: str, *, threads: int, steps: int, free: bool) -> list[str]:
        tasks = [self.task(f"{seed}/{number}", steps) for number in range(threads)]
        if free:
            freely(tasks)
        else:
            baton = Baton(self.rng)
            baton.watch(self.store)
            baton.run(tasks)
        self.verify()
        self.bury()
        return self.failures


def _text(data: dict[str, Any]) -> str:
    found: str = data["text"] if "text" in data else data["parts"][0]["text"]
    return found


def left_over(store: Store) -> Iterator[tuple[str, int]]:
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


DEEDS: tuple[Callable[[Family, Member, float, str], None], ...] = (
    Family.append,
    Family.append,
    Family.fork,
    Family.fork,
    Family.clear,
    Family.rewind,
    Family.state,
    Family.search,
    Family.recreate,
    Family.delete,
    Family.delete,
)
