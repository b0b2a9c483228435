"""The steps of a process that is killed, and a model of what a store must hold after the first n steps.

Every step is all or nothing. So after a kill a store holds what the model holds after the acknowledged steps, or after
one step more. Less is a loss; anything else is a duplicate or a torn write.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from holdfast import Entity, File, Message, Session
from holdfast.errors import AgentError
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Log, Store

WORD = "hello"
PATIENCE = 5.0  # seconds for the writer's place of an entity: less than a lease, so a dead holder must be noticed
DEAD_AND_KEPT = """SELECT count(*) FROM {0}logs AS l
    WHERE id IS NULL AND NOT EXISTS (SELECT 1 FROM {0}lineage WHERE ancestor = l.log)"""
OTHERS = """SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database()
    AND pid <> pg_backend_pid() AND pid <> ALL(%s::int[])"""

StoreContent = dict[str, Any]


class Cart(Entity):
    def add(self, item: int) -> int:
        self.state.set("items", [*self.state.get("items", []), item])
        return len(self.state.get("items"))


class Step(NamedTuple):
    kind: str
    number: int
    on: str = ""  # which session: a suffix of the main one's id
    key: str | None = None  # idempotency key
    to: int = 0  # for a rewind or a fork: which event


@dataclass
class ExpectedSession:
    """What the model expects of one session."""

    head: int
    texts: list[str] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    status: str = "open"
    history: dict[int, tuple[list[str], dict[str, Any], str | None]] = field(default_factory=dict)

    def advance(self, events: int) -> None:
        self.head += events
        self.history[self.head] = (self.texts[:], dict(self.state), self.title)


class ExpectedStore:
    """What a store must hold after some steps."""

    def __init__(self) -> None:
        self.sessions: dict[str, ExpectedSession] = {}
        self.items: list[int] = []
        self.user_number: int | None = None

    def apply(self, step: Step) -> None:
        number = step.number
        if step.kind == "create":
            self.sessions[""] = talk = ExpectedSession(head=0, state={"count": 0}, title="a talk")
            return talk.advance(2)
        talk = self.sessions[step.on]
        match step.kind:
            case "say":
                talk.texts += make_texts(number)
                talk.advance(2)
            case "file":
                talk.texts.append(f"{WORD} file {number} {_make_bytes(number).hex()[:16]}")
                talk.advance(1)
            case "set":
                talk.state["last"] = number
                talk.advance(1)
            case "count":
                talk.state["count"] = talk.state.get("count", 0) + 1
                talk.advance(1)
            case "delete":
                if talk.state.pop("last", None) is not None:
                    talk.advance(1)
            case "title":
                talk.title = f"talk {number}"
                talk.advance(1)
            case "pause" | "resume":
                talk.status = "paused" if step.kind == "pause" else "open"
                talk.advance(1)
            case "clear":
                talk.texts = []
                talk.advance(1)
            case "rewind":
                said, state, _ = talk.history[step.to]
                talk.texts, talk.state = said[:], dict(state)
                talk.advance(1)
            case "fork":
                said, state, title = talk.history[step.to]
                past = {seq: then for seq, then in talk.history.items() if seq <= step.to}
                new = ExpectedSession(head=step.to, texts=said[:], state=dict(state), title=title, history=past)
                new.advance(1)
                self.sessions[f"-{number}"] = new
            case "import":
                new = copy.deepcopy(talk)
                new.advance(1)
                self.sessions[f"-{number}"] = new
            case "remove":
                del self.sessions[step.on]
            case "user":
                self.user_number = number
            case "cart":
                self.items.append(number)
        return None

    def read_content(self) -> StoreContent:
        """What `Workspace.holds` must be equal to."""
        talks = {
            suffix: {
                "head": talk.head,
                "texts": talk.texts,
                "found": talk.texts,
                "state": talk.state,
                "title": talk.title,
                "status": talk.status,
            }
            for suffix, talk in self.sessions.items()
        }
        return copy.deepcopy({"sessions": talks, "items": self.items, "user_number": self.user_number})


def make_texts(number: int) -> list[str]:
    return [f"{WORD} question {number}", f"{WORD} answer {number}"]


def _make_bytes(number: int) -> bytes:
    return bytes([number % 256]) * 3000


class Workspace:
    """A store, and the sessions in it whose names begin with the name of one workload."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def open_session(self, suffix: str) -> Session:
        return Session.open(self.name + suffix, store=self.store)

    def perform(self, step: Step) -> None:
        number, name = step.number, f"{self.name}-{step.number}"
        if step.kind == "create":
            Session(id=self.name, user_id=self.name, title="a talk", state={"count": 0}, store=self.store)
            return
        session = self.open_session(step.on)
        match step.kind:
            case "say":
                question, answer = make_texts(number)
                session.add_messages([Message.user(question), Message.assistant(answer)], once=step.key)
            case "file":
                part = File(data=_make_bytes(number), media_type="application/octet-stream")
                session.add_message(Message.user(f"{WORD} file {number}", part), once=step.key)
            case "set":
                session.set_state("last", number)
            case "count":
                session.update_state("count", lambda count: (count or 0) + 1)
            case "delete":
                session.delete_state("last")
            case "title":
                session.title = f"talk {number}"
            case "pause":
                session.pause()
            case "resume":
                session.resume()
            case "clear":
                session.clear()
            case "rewind":
                session.rewind(step.to)
            case "fork":
                session.fork(name, at=step.to)
            case "import":
                Session.import_(session.export(), session_id=name, store=self.store)
            case "remove":
                self.store.delete(session.id)
            case "user":
                session.set_state("seen", number, scope="user")
            case "cart":
                Cart(self.name, store=self.store, timeout=PATIENCE).add(number)
            case "search":
                session.search(WORD)

    def read_content(self) -> StoreContent:
        """Everything that a user can read of the workload."""
        infos = self.store.sessions(user_id=self.name, limit=1000)
        cart = self.store.find("entity.Cart", self.name)
        seen = self.store.find("user", self.name)
        return {
            "sessions": {info.log.id.removeprefix(self.name): self._read_session(info.log) for info in infos},
            "items": [] if cart is None else self.store.value(cart, "state/items", []),
            "user_number": None if seen is None else self.store.value(seen, "state/seen"),
        }

    def _read_session(self, log: Log) -> StoreContent:
        session = Session.open(log.id, store=self.store)
        return {
            "head": session.head,
            "texts": [_describe_message(message) for message in session.messages],
            "found": [_describe_message(message) for message in session.search(WORD, limit=1000)],
            "state": dict(session.state),
            "title": session.title,
            "status": session.status,
        }

    def list_logs(self) -> list[Log]:
        found = [info.log for info in self.store.sessions(user_id=self.name, limit=1000)]
        others = (self.store.find("entity.Cart", self.name), self.store.find("user", self.name))
        return found + [log for log in others if log is not None]

    def find_problems(self) -> list[str]:
        """What is wrong with the logs, their caches and the database, apart from what they hold."""
        store, found = self.store, []
        for log in self.list_logs():
            verdict = store.verify(log)
            if not verdict:
                found.append(f"{log.kind} {log.id} does not verify: {verdict.reason}")
            seqs = [row.seq for row in store.walk(log)]
            if seqs != list(range(1, store.head(log).head + 1)):
                found.append(f"{log.kind} {log.id} is not dense: {seqs}")
            if store.rebuild_view(log) != store.view(log):
                found.append(f"{log.kind} {log.id} has a view that its events do not give")
        return found + find_damage(store)


def _describe_message(message: Message) -> str:
    data = [part.data.hex()[:16] for part in message.parts if isinstance(part, File) and part.data]
    return " ".join([message.text, *data])


def wait_for_other_connections(store: Store) -> None:
    """Wait until a server has closed the connections of dead clients: their last statement may still be executed."""
    if isinstance(store, PostgresStore):
        own = [db.info.backend_pid for db in store.server.pool._idle]
        while store.server.fetch(OTHERS, (own,)):
            time.sleep(0.001)


def find_damage(store: Store) -> list[str]:
    """What is wrong with a database as a whole."""
    found = []
    kept: Any = 0
    if isinstance(store, SQLiteStore):
        integrity = store.file.read(lambda db: db.execute("PRAGMA integrity_check").get)
        if integrity != "ok":
            found.append(f"integrity_check: {integrity}")
        kept = store.file.read(lambda db: db.execute(DEAD_AND_KEPT.format("")).get)
    elif isinstance(store, PostgresStore):
        kept = (store.server.fetch_one(DEAD_AND_KEPT.format("holdfast.")) or (0,))[0]
    if kept:
        found.append(f"{kept} deleted logs are kept although no fork needs them")
    return found


# -- what to do --------------------------------------------------------------------------------------------------------


def list_every_step() -> list[Step]:
    """A short list with every kind of step, for tests that repeat it at each crash point."""
    model = ExpectedStore()
    todo: list[Step] = []

    def add_step(kind: str, on: str = "", *, key: bool = False, back: int = 0) -> str:
        number = len(todo)
        past = [] if not model.sessions else sorted(model.sessions[on].history)
        to = past[-1 - back] if kind in ("fork", "rewind") else 0
        step = Step(kind, number, on, f"key {number}" if key else None, to)
        model.apply(step)
        todo.append(step)
        return f"-{number}"

    add_step("create")
    add_step("say", key=True)
    add_step("set")
    add_step("user")
    first = add_step("fork")
    add_step("file", first, key=True)
    add_step("count")
    second = add_step("fork", first)
    add_step("remove", first)
    add_step("cart")
    third = add_step("fork", second)
    add_step("title")
    add_step("rewind", back=2)
    add_step("remove", second)
    add_step("search")
    add_step("say", third)
    copied = add_step("import")
    add_step("pause")
    add_step("remove", third)
    add_step("say", copied, key=True)
    add_step("cart")
    add_step("clear")
    return todo


KINDS = {
    "say": 10, "file": 2, "set": 3, "count": 3, "delete": 1, "title": 1, "pause": 1, "resume": 1, "clear": 1,
    "rewind": 1, "fork": 3, "import": 1, "remove": 2, "user": 1, "cart": 3, "search": 1,
}  # fmt: skip


def generate_steps(seed: object, *, keyed: float = 0.5) -> Iterator[Step]:
    """Steps without end, the same ones for the same seed; about half of the messages carry a key."""
    rng = random.Random(repr(seed))
    model = ExpectedStore()
    number = 0
    while True:
        step = _choose_step(rng, model, number, keyed) if number else Step("create", 0)
        model.apply(step)
        yield step
        number += 1


def _choose_step(rng: random.Random, model: ExpectedStore, number: int, keyed: float) -> Step:
    while True:
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        on = rng.choice(list(model.sessions)) if rng.random() < 0.5 else ""
        talk = model.sessions[on]
        if kind == "remove" and not on:
            continue
        if kind in ("fork", "import") and len(model.sessions) > 6:
            continue
        if kind in ("pause", "resume") and (talk.status == "paused") == (kind == "pause"):
            continue
        key = f"key {number}" if kind in ("say", "file") and rng.random() < keyed else None
        to = rng.choice(sorted(talk.history)[-8:]) if kind in ("fork", "rewind") else 0
        return Step(kind, number, on, key, to)


def make_work(
    open_store: Callable[[], Store], name: str, todo: Iterable[Step]
) -> Callable[[Callable[[int], None]], None]:
    """The steps as a child's work: each is acknowledged by its number once it is done."""

    def run_child(acknowledge: Callable[[int], None]) -> None:
        with open_store() as store:
            workspace = Workspace(store, name)
            for step in todo:
                workspace.perform(step)
                acknowledge(step.number)

    return run_child


# -- what must be there ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found after `done` steps were acknowledged."""

    failures: list[str]
    unacknowledged: bool = False  # the step after them was stored, but not acknowledged


def compare_with_model(
    workspace: Workspace, todo: Iterator[Step] | Sequence[Step], done: int, *, repeats: bool = True, eager: bool = False
) -> Verdict:
    """Compare a store with the model after the first `done` steps, repeat the step that was cut short, compare again.

    An eager client repeats a step that has a key at once, while the server may still be busy with the first attempt.
    """
    planned = list(islice(todo, done + 1))
    model = ExpectedStore()
    for step in planned[:done]:
        model.apply(step)
    before = after = model.read_content()
    if len(planned) > done:
        model.apply(planned[done])
        after = model.read_content()
    failures: list[str] = []
    try:
        if eager and planned[done:] and planned[done].key is not None:
            workspace.perform(planned[done])
            before = after
        wait_for_other_connections(workspace.store)
        found = workspace.read_content()
        unacknowledged = found == after and found != before
        if found not in (before, after):
            failures.append(f"after {done} steps: {describe_difference(before, found)}")
        failures += workspace.find_problems()
        if repeats and not failures:
            failures += _repeat_cut_step(workspace, planned[done:], unacknowledged=unacknowledged, after=after)
            failures += _repeat_answered_step(workspace, planned[:done], after=after)
        return Verdict(failures=failures, unacknowledged=unacknowledged)
    except AgentError as error:
        return Verdict(failures=[*failures, f"after {done} steps: {type(error).__name__}: {error}"])


def _repeat_cut_step(
    workspace: Workspace, rest: Sequence[Step], *, unacknowledged: bool, after: StoreContent
) -> list[str]:
    """Repeat the step without an answer: with a key at once, without a key only if the step is missing."""
    for step in rest:
        if step.key is not None or not unacknowledged:
            workspace.perform(step)
        if (found := workspace.read_content()) != after:
            return [f"after {step} was repeated: {describe_difference(after, found)}"]
    return workspace.find_problems()


def _repeat_answered_step(workspace: Workspace, done: Sequence[Step], *, after: StoreContent) -> list[str]:
    """Repeat the last acknowledged step that has a key; nothing may change."""
    keyed = [step for step in done if step.key is not None and step.on in after["sessions"]]
    for step in keyed[-1:]:
        workspace.perform(step)
        if (found := workspace.read_content()) != after:
            return [f"after {step} came twice: {describe_difference(after, found)}"]
    return []


def describe_difference(wanted: Any, found: Any, where: str = "") -> str:
    """The first place where two things differ, in words."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in [*wanted, *(name for name in found if name not in wanted)]:
            if wanted.get(name) != found.get(name):
                return describe_difference(wanted.get(name), found.get(name), f"{where}{name!r} ")
    return f"{where}should be {wanted!r}, is {found!r}"
