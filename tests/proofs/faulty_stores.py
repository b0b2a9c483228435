"""Stores that fail on purpose at one chosen place, and a client's work that has to come through all the same.

A fault happens at a write of the store (before it, after it was done, or while another writer goes first), at a crash
point, at a single SQL statement, or on the wire. Afterwards there is all of a step or nothing of it, never a half; and
a client that does the step again, as its step allows, ends where one without faults ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import apsw

from holdfast import File, Message, Session
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import StoreError
from holdfast.log.events import Draft
from holdfast.log.messages import Limits
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.lease import Claim, encode_holder
from tests.properties.rebuild import find_complaints

LEASE_SECONDS = 1e6  # seconds of a lease
RIVAL = "rival"  # a state name that only the other writer sets
UNCOUNTED = ("BEGIN", "ROLLBACK", "SAVEPOINT", "RELEASE", "PRAGMA")
STATEMENT_FAILED = "SQLite failed"
TO_THE_END = 5  # one in so many works goes on to its end after the fault


class InjectedFault(StoreError):
    """A fault that a test asked for."""

    code = "injected"


@dataclass(slots=True)
class PlannedFault:
    """A fault at the n-th opportunity; `landed` says whether the write it hit took place."""

    at: int
    seen: int = 0
    landed: str | None = None  # "before", "after" or "delay"

    def is_due(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.at


Injector = Callable[[Store, PlannedFault, Callable[[], None]], AbstractContextManager[None]]


def fail_calls(mode: str) -> Injector:
    """Fault at a whole write: `SQLiteFile.write` or `PostgresServer.transaction`."""

    @contextmanager
    def inject(store: Store, fault: PlannedFault, rival: Callable[[], None]) -> Iterator[None]:
        owner, name = (store.file, "write") if isinstance(store, SQLiteStore) else (_get_server(store), "transaction")
        real = getattr(owner, name)

        def faulty(work: Any) -> Any:
            if not fault.is_due():
                return real(work)
            fault.landed = mode
            if mode == "before":
                raise InjectedFault("the request was lost")
            if mode == "delay":
                rival()
                return real(work)
            real(work)
            raise InjectedFault("the answer was lost")

        setattr(owner, name, faulty)
        try:
            yield
        finally:
            delattr(owner, name)

    return inject


@contextmanager
def fail_points(store: Store, fault: PlannedFault, rival: Callable[[], None]) -> Iterator[None]:
    """Fault at a crash point: inside the transaction, and right after it."""

    def action(name: str) -> None:
        if fault.is_due():
            fault.landed = "after" if name == "after commit" else "before"
            raise InjectedFault(name)

    arm_crashpoints(action)
    try:
        yield
    finally:
        arm_crashpoints(None)


@contextmanager
def fail_statements(store: Store, fault: PlannedFault, rival: Callable[[], None]) -> Iterator[None]:
    """Fault at one statement of SQLite's writer: it and what follows does not happen."""
    assert isinstance(store, SQLiteStore)

    def trace(cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
        if not statement.startswith(UNCOUNTED) and fault.is_due():
            fault.landed = "before"
            return False
        return True

    store.file._writer.exec_trace = trace
    try:
        yield
    finally:
        store.file._writer.exec_trace = None


def _get_server(store: Store) -> Any:
    assert isinstance(store, PostgresStore)
    return store.server


# -- the work ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One thing a client wants done; `is_done` is what it looks at before doing it again, if doing it twice is more."""

    name: str
    act: Callable[[], Any]
    is_done: Callable[[], bool] | None = None
    writes: int = 1  # more than one: what comes after the first of them may still be missing


class ClientWork:
    """A conversation with everything in it that is written."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store = store
        self._words = [f"w{rng.randrange(1000)}" for _ in range(8)]
        self._size = rng.randint(1, 3)
        self._bytes = rng.randbytes(rng.randint(0, 50))

    def session(self, id: str = "s") -> Session:
        return Session.open(id, store=self.store)

    def steps(self) -> list[Step]:
        word, message = self._words, Message.user
        exists = self.store.exists
        many = [message(f"{word[0]} {number}") for number in range(self._size)]
        file = message(word[1], File(data=self._bytes, media_type="x/y"))
        return [
            Step("create", self._create, lambda: exists("s")),
            Step("add", lambda: self.session().add_messages(many, once="k1")),
            Step("add bytes", lambda: self.session().add_message(file, once="k2")),
            Step("set", lambda: self.session().set_state("a", word[2])),
            Step("count", lambda: self.session().update_state("n", lambda n: (n or 0) + 1), lambda: self._counts(1)),
            Step("note", lambda: self.session().facts.add(word[3]), lambda: len(self.session().facts) == 1),
            Step("name", lambda: setattr(self.session(), "title", word[4])),
            Step("start a turn", self._start),
            Step("speak up", lambda: self.session().add_message(message("outside"), once="k3")),
            Step("call", lambda: self._turn("t2", Draft(type="tool.called", data=_CALL, run="r"))),
            Step("end the turn", self._end),
            Step("share", lambda: self.session().set_state("u", word[5], scope="user"), writes=2),
            Step("fork", lambda: self.session().fork("f"), lambda: exists("f")),
            Step("add to the fork", lambda: self.session("f").add_messages(many, once="k1")),
            Step("rewind", lambda: self.session().rewind(to=4)),
            Step("clear the fork", lambda: self.session("f").clear()),
            Step(
                "count again", lambda: self.session().update_state("n", lambda n: (n or 0) + 1), lambda: self._counts(1)
            ),
            Step("pause", lambda: self.session().pause(), lambda: self.session().status == "paused"),
            Step("search", lambda: self.session().search(word[0])),
            Step("save", lambda: self.store.save("d", self.session().to_dict())),
            Step("import", self._import, lambda: exists("i")),
            Step("delete", lambda: self.store.delete("f")),
            Step("resume", lambda: self.session().resume(), lambda: self.session().status != "paused"),
        ]

    def _counts(self, value: int) -> bool:
        return bool(self.session().get_state("n") == value)

    def _create(self) -> None:
        first = [Message.system("be kind"), Message.user(self._words[6])]
        Session("s", store=self.store, user_id="ann", title="t", messages=first, state={"a": 1}, metadata={"m": [1]})

    def _turn(self, once: str, *drafts: Draft, **guards: Any) -> None:
        self.store.append(self.session().log, drafts, once=once, **({"epoch": 1} | guards))

    def _start(self) -> None:
        question = Draft(type="message.added", data={"role": "user", "text": self._words[7]}, run="r")
        claim = Claim(holder=encode_holder("work"), seconds=LEASE_SECONDS)
        self._turn("t1", Draft(type="turn.started", run="r", data={"options": {}}), question, claim=claim, epoch=None)

    def _end(self) -> None:
        result = Message.tool("42", call_id="c").to_data(Limits())[0]
        reply = Message.assistant("done").to_data(Limits())[0]
        self._turn(
            "t3",
            Draft(type="tool.returned", data={"call_id": "c", "name": "tool", "message": result}, run="r"),
            Draft(type="model.replied", data={"message": reply, **_REPLY}, run="r"),
            Draft(type="turn.finished", run="r"),
            release=True,
        )

    def _import(self) -> None:
        Session.import_(self.session().export(), session_id="i", store=self.store)


_CALL = {"call_id": "c", "name": "tool", "arguments": {}}
_REPLY = {"usage": {"input_tokens": 3}, "stop_reason": "end_turn", "provider": "p", "model": "m"}


def read_store(store: Store, *, heads: bool = False) -> dict[str, Any]:
    """What users see of a store; with the heads also how often it was written."""
    found: dict[str, Any] = {}
    for id in store.list_sessions():
        session = Session.open(id, store=store)
        document = session.to_dict()
        found[id] = {
            "messages": [(m.role, m.text, m.parts) for m in session.messages],
            "state": {name: value for name, value in document["state"].items() if name != RIVAL},
            "facts": [fact["text"] for fact in document["facts"]],
            "shared": session.scope_state("user") if session.user_id else None,
            "turn": store.view(session.log).turn is not None,
            "epoch": store.head(session.log).epoch,
            "leased": store.lease(session.log) is not None,
            "head": session.head if heads else None,
        } | {name: document[name] for name in ("title", "status", "system", "metadata", "usage")}
    return found


def find_unsound(store: Store) -> list[str]:
    """Find what is stored in part: rows without their projection, or projections without their rows."""
    found: list[str] = []
    for id in store.list_sessions():
        found += find_complaints(store, store.require("session", id), past=False)
    return found


def record_reference(store: Store, seed: str, *, heads: bool = False) -> list[dict[str, Any]]:
    """What there is after each step when nothing goes wrong."""
    pictures = [read_store(store, heads=heads)]
    for step in ClientWork(store, random.Random(seed)).steps():
        step.act()
        pictures.append(read_store(store, heads=heads))
    return pictures


def _compare_step(step: Step, observer: Store, expected: dict[str, Any]) -> list[str]:
    now = read_store(observer)
    return [] if now == expected else [f"after {step.name!r}: {now} instead of {expected}"]


def work_with_fault(
    faulty: Store, observer: Store, inject: Injector, at: int, seed: str, pictures: list[dict[str, Any]]
) -> tuple[PlannedFault, list[str]]:
    """Do the work with one fault in it. Returns whether there was one, and what was wrong."""
    fault, failures, rivals = PlannedFault(at), list[str](), list[int]()

    def write_as_rival() -> None:
        """Another writer, in the middle of this one's write."""
        if observer.exists("s"):
            Session.open("s", store=observer).set_state(RIVAL, len(rivals))
            rivals.append(1)

    for number, step in enumerate(ClientWork(faulty, random.Random(seed)).steps()):
        was_hit = fault.landed is not None
        try:
            with inject(faulty, fault, write_as_rival):
                step.act()
        except StoreError as error:
            if not isinstance(error, InjectedFault) and STATEMENT_FAILED not in str(error):
                raise
            now, expected = read_store(observer), pictures[number + (fault.landed == "after")]
            if now != expected and (step.writes == 1 or now != pictures[number]):
                failures.append(f"half of {step.name!r}: {now} instead of {expected}")
            failures += [f"after {step.name!r}: {complaint}" for complaint in find_unsound(observer)]
            if step.is_done is None or not step.is_done():
                step.act()
        if fault.landed and not was_hit:
            failures += _compare_step(step, observer, pictures[number + 1])
            if failures or at % TO_THE_END:
                break
    else:
        failures += _compare_step(step, observer, pictures[-1])
    if rivals:
        told = Session.open("s", store=observer).events(limit=None, types="state.set")
        if sum(event.data["name"] == RIVAL for event in told) != len(rivals):
            failures.append("what another writer was told is stored is not there")
    return fault, failures


INJECTORS: dict[str, Injector] = {
    "before a write": fail_calls("before"),
    "after a write": fail_calls("after"),
    "a write delayed": fail_calls("delay"),
    "at a crash point": fail_points,
    "at a statement": fail_statements,
}
