"""Sessions that are pruned, undone, redacted, erased, held, swept, forked and deleted, compared with a model.

Every text holds a word of its own, so that a text shows which event it comes from. What must stay true:
an event's hash never changes; a session shows words of its own events only, and of none that is erased; what is visible
is what the model says; what a model would be sent is what a provider takes.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any

from holdfast import Agent, File, Message, Session, ToolContext, tool
from holdfast.clock import FixedClock
from holdfast.errors import (
    AgentError,
    ImmutableSession,
    LifecycleError,
    SessionHeld,
)
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.repair import repair_history
from holdfast.log.view import View, fold
from holdfast.models.base import ModelRequest
from holdfast.stores.base import Store
from holdfast.testing import call, error
from holdfast.tools import remember
from holdfast.worker.sweep import sweep

WORD = re.compile(r"w\d{8}x")
DIGEST = re.compile(r"[0-9a-f]{64}")
DAY = 86_400_000_000
MAX_SESSIONS = 6  # sessions of one history


class Violation(AssertionError):
    """A session is not what the model says."""


@dataclass(frozen=True, slots=True)
class ShownState:
    """What a session showed after some event."""

    visible: tuple[int, ...] = ()
    prunes: tuple[tuple[tuple[int, ...], int | None], ...] = ()  # (visible before, seq of the summary), oldest first
    state: tuple[tuple[str, int], ...] = ()  # name and event


@dataclass(slots=True)
class ExpectedSession:
    """What the model knows of one session."""

    session: Session
    now: ShownState = field(default_factory=ShownState)
    history: dict[int, ShownState] = field(default_factory=dict)
    hashes: dict[int, bytes] = field(default_factory=dict)
    ttl: float | None = None
    archive_after: float | None = None
    archived: bool = False
    immutable: bool = False
    held: bool = False
    failed: bool = False
    released: bool = False
    erased: bool = False
    active: int = 0  # the time of the last activity

    @property
    def id(self) -> str:
        return self.session.id


@tool
def note(text: str) -> str:
    """Note something."""
    return f"noted {text[::-1]}"


@tool
def keep(text: str, ctx: ToolContext) -> str:
    """Keep something in the state."""
    ctx.state.set("kept", text)
    return "kept"


class RandomHistory:
    """A history of random operations on one store; `run` returns what is wrong, or nothing."""

    def __init__(self, store: Store, seed: str) -> None:
        self.rng = random.Random(seed)
        self.clock = FixedClock(start=1_700_000_000_000_000, tick=1000)
        self.store = store.for_tenant(f"{store.tenant} keeping {seed}".strip())
        self.store.clock = self.clock
        self.sessions: list[ExpectedSession] = []
        self.words: dict[bytes, set[str]] = {}  # by the event's hash
        self.attached: dict[str, str] = {}  # words that are attached bytes, by their digest
        self.erased_words: set[str] = set()  # words that no session may show
        self.erased: set[bytes] = set()
        self.done: Counter[str] = Counter()
        self.refused: list[str] = []
        self._numbers = count(1)
        self._names = count(1)
        self.open_session()

    # -- playing -------------------------------------------------------------------------------------------------------

    def run(self, operations: int) -> list[str]:
        performed: list[str] = []
        try:
            for number in range(operations):
                operation = self.rng.choices(OPERATIONS, WEIGHTS)[0] if self.sessions else RandomHistory.open_session
                performed.append(operation.__name__)
                one = self.rng.choice(self.sessions) if self.sessions else None
                if operation is RandomHistory.open_session:
                    self.open_session()
                elif one is not None:
                    self.perform(operation, one)
                self.done[operation.__name__] += 1
                if number % 8 == 7:
                    self.check_all()
            self.check_all()
        except Violation as violation:
            return [f"after {' '.join(performed[-12:])}: {violation}"]
        except AgentError as error:
            return [f"after {' '.join(performed[-12:])}: {error!r}"]
        except Exception as error:
            return [f"after {' '.join(performed[-12:])} it broke: {error!r}"]
        return []

    def perform(self, operation: Callable[..., None], one: ExpectedSession) -> None:
        """Do it; refusals that the model foresees change nothing."""
        before = one.session.head
        try:
            operation(self, one)
        except ImmutableSession:
            self.expect(self.is_locked(one), f"{operation.__name__} of {one.id}: it is not immutable")
            self.expect(one.session.head == before, f"{operation.__name__} of {one.id} was refused and wrote")
        except SessionHeld:
            self.expect(any(each.held for each in self.sessions), f"{operation.__name__} of {one.id}: nothing is held")
            self.expect(one.session.head == before, f"{operation.__name__} of {one.id} was refused and wrote")
        except LifecycleError:
            self.expect(
                one.erased or one.archived, f"{operation.__name__} of {one.id}: it is neither erased nor archived"
            )

    def expect(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise Violation(complaint)

    def make_word(self) -> str:
        return f"w{next(self._numbers):08}x"

    def is_locked(self, one: ExpectedSession) -> bool:
        return one.immutable and not one.erased and (one.ttl is None or self.clock.time < one.active + one.ttl * DAY)

    def record_events(self, one: ExpectedSession, point: ShownState, *, active: bool = True) -> None:
        """Take in what an operation appended, and that nothing before it changed."""
        rows = self.store.read(one.session.log, max(one.hashes, default=0) + 1)
        for row in rows:
            one.hashes[row.seq] = row.hash
            if row.body is not None:
                text = row.body.decode("utf-8", "replace")
                found = set(WORD.findall(text))
                found |= {self.attached[each] for each in DIGEST.findall(text) if each in self.attached}
                if found and row.type != "summary.added":
                    self.words[row.hash] = found
        one.now = point
        one.history[max(one.hashes)] = point
        if active:
            one.active = rows[-1].at if rows else one.active

    # -- operations ----------------------------------------------------------------------------------------------------

    def open_session(self) -> None:
        if len(self.sessions) >= MAX_SESSIONS:
            return
        rng = self.rng
        ttl = rng.choice((None, None, 5.0, 30.0))
        archive = rng.choice((None, 2.0)) if ttl is not None else None
        retention = {"ttl_days": ttl, "archive_after_days": archive, "immutable": rng.random() < 0.15}
        session = Session(f"s{next(self._names)}", store=self.store, title=self.make_word(), retention=retention)
        one = ExpectedSession(session, ttl=ttl, archive_after=archive, immutable=bool(retention["immutable"]))
        self.sessions.append(one)
        self.record_events(one, ShownState())

    def add_messages(self, one: ExpectedSession) -> None:
        messages = []
        for _ in range(self.rng.randint(1, 3)):
            if self.rng.random() < 0.5:
                messages.append(Message.assistant(self.make_word()))
                continue
            data = self.make_word().encode()
            self.attached[sha256(data).hexdigest()] = data.decode()
            extra = [File(data=data, media_type="x/y")] if self.rng.random() < 0.3 else []
            messages.append(Message.user(f"we speak of {self.make_word()}", *extra))
        if self.rng.random() < 0.05 and not one.now.visible:
            messages.insert(0, Message("system", [self.make_word()]))
        self._refuse_erased(
            one, lambda: one.session.add_messages(messages, once=self.rng.choice((None, self.make_word())))
        )
        self._record_new_messages(one)

    def _refuse_erased(self, one: ExpectedSession, act: Callable[[], Any]) -> None:
        act()
        self.expect(not one.erased, f"{one.id} was erased and took something")

    def _record_new_messages(self, one: ExpectedSession) -> None:
        """What came in last stands at the end."""
        rows = self.store.read(one.session.log, max(one.hashes) + 1, types=MESSAGE_TYPES)
        new = tuple(row.seq for row in rows)
        self.record_events(one, ShownState(one.now.visible + new, one.now.prunes, self._read_state(one)))

    def _read_state(self, one: ExpectedSession) -> tuple[tuple[str, int], ...]:
        rows = self.store.read(one.session.log, max(one.hashes) + 1, types=["state.set"])
        state = dict(one.now.state) | {Event(row).data["name"]: row.seq for row in rows}
        return tuple(sorted(state.items()))

    def set_state(self, one: ExpectedSession) -> None:
        name = self.rng.choice(("a", "b"))
        self._refuse_erased(one, lambda: one.session.set_state(name, self.make_word()))
        self.record_events(one, ShownState(one.now.visible, one.now.prunes, self._read_state(one)))

    def add_fact(self, one: ExpectedSession) -> None:
        self._refuse_erased(one, lambda: one.session.facts.add(self.make_word()))
        self.record_events(one, one.now)

    def run_turn(self, one: ExpectedSession) -> None:
        rng = self.rng
        fails = rng.random() < 0.2
        script: list[Any] = []
        for _ in range(rng.randint(0, 2)):
            script.append([self.make_word(), *[self._call() for _ in range(rng.randint(1, 2))]])
        script.append(error("no more") if fails else self.make_word())
        steps = iter(script)

        def reply(request: ModelRequest) -> Any:
            sent = list(request.messages)
            if repair_history(sent) != sent:
                self.refused.append(f"{one.id} was about to send {[(m.role, m.text, m.tool_calls) for m in sent]}")
            return next(steps)

        agent = Agent(provider="scripted", script=reply, tools=[note, keep, remember], max_retries=0)
        before = one.session.head
        try:
            one.session.run(f"what of {self.make_word()}?", agent=agent)
        except LifecycleError:
            raise
        except AgentError as failure:
            self.expect(fails, f"a turn of {one.id} failed: {failure!r}")
        one.failed, one.released = fails, one.released and False
        if self.refused:
            raise Violation(self.refused[0])
        if fails:
            self.record_events(one, ShownState(one.now.visible, one.now.prunes, self._read_state(one)))
            self.expect(one.session.head > before, f"a failed turn of {one.id} is not in the log")
        else:
            self._record_new_messages(one)

    def _call(self) -> Any:
        word = self.make_word()
        return call(self.rng.choice(("note", "keep", "remember")), {"text": word}, id=f"c-{word[1:-1]}")

    def prune(self, one: ExpectedSession) -> None:
        rng, size = self.rng, self.rng.randint(1, 5)
        chosen = set(rng.sample(one.now.visible, k=len(one.now.visible) // 2))

        def own(messages: list[Message]) -> list[Message]:
            return [message for message in messages if message.seq in chosen]

        ways: list[tuple[Any, dict[str, Any]]] = [
            (f"keep_last_{size}", {}),
            ("sliding_window", {"window_size": size}),
            ("token_budget", {"max_tokens": 40 * size}),
            ("summarize_old", {"threshold": size}),
            ("summarize_old", {"threshold": size}),
            ("keep_important", {}),
            (own, {}),
        ]
        strategy, options = rng.choice(ways)
        dry = one.session.prune(strategy, dry_run=True, **options)
        self.expect(one.session.head == max(one.hashes), f"a dry run wrote to {one.id}")
        done = one.session.prune(strategy, actor="p", **options)
        removed = list(done.removed)
        self.expect(list(dry.removed) == removed, f"{one.id}: the dry run said {dry}, the prune {done}")
        if done.seq is None:
            self.expect(not removed, f"{one.id}: {done} did nothing")
            return
        self.expect(not self.is_locked(one) and not one.erased, f"{one.id} is immutable and was pruned")
        before, gone = one.now.visible, set(removed)
        self.expect(gone <= set(before), f"{one.id}: {sorted(gone - set(before))} were not visible")
        self.expect(sorted(done.reasons) == sorted(gone), f"{one.id}: reasons for {sorted(done.reasons)} of {gone}")
        summary = done.seq - 1 if done.summary is not None else None
        after = []
        for seq in before:
            if seq in gone and summary is not None and summary not in after:
                after.append(summary)
            if seq not in gone:
                after.append(seq)
        self.record_events(
            one, ShownState(tuple(after), (*one.now.prunes, (before, summary))[-32:], one.now.state), active=False
        )
        self._check_exchanges(one)

    def undo(self, one: ExpectedSession) -> None:
        done = one.session.undo_prune()
        self.expect(done == bool(one.now.prunes), f"{one.id}: undo_prune gave {done}, cuts {one.now.prunes}")
        if done:
            *cuts, (before, summary) = one.now.prunes
            later = tuple(seq for seq in one.now.visible if seq not in before and seq != summary)
            self.record_events(one, ShownState(before + later, tuple(cuts), one.now.state), active=False)
            self._check_exchanges(one)

    def clear(self, one: ExpectedSession) -> None:
        one.session.clear()
        self.record_events(one, ShownState(state=one.now.state))

    def rewind(self, one: ExpectedSession) -> None:
        to = self.rng.choice(sorted(one.history))
        one.session.rewind(to)
        then = one.history[to]
        self.record_events(one, ShownState(then.visible, (), then.state))

    def fork(self, one: ExpectedSession) -> None:
        if len(self.sessions) >= MAX_SESSIONS or one.erased:
            return
        at = self.rng.choice((None, self.rng.choice(sorted(one.history))))
        session = one.session.fork(f"s{next(self._names)}", at=at)
        point = one.now if at is None else one.history[at]
        base = session.log.base
        child = ExpectedSession(session, history={seq: each for seq, each in one.history.items() if seq <= base})
        child.hashes = {seq: hash for seq, hash in one.hashes.items() if seq <= base}
        given = session.retention or {}
        child.ttl, child.immutable = given.get("ttl_days"), bool(given.get("immutable"))
        child.archive_after = given.get("archive_after_days")
        self.sessions.append(child)
        self.record_events(child, point)

    def redact(self, one: ExpectedSession) -> None:
        kinds = (*MESSAGE_TYPES, "state.set", "fact.added", "session.created")
        rows = [row for row in self.store.read(one.session.log, types=kinds) if row.hash not in self.erased]
        if not rows or one.erased:
            return
        row = self.rng.choice(rows)
        done = one.session.redact(row.seq, reason="asked", actor="officer")
        self.expect(not one.held, f"{one.id} is held and event {row.seq} was redacted")
        self._mark_erased({row.hash})
        if row.type in ("message.added", "model.replied"):  # its copies are erased with it
            self.erased_words |= self.words.get(row.hash, set())
        for seq in done.also:
            self._mark_erased(
                {each.hashes[seq] for each in self.sessions if seq in each.hashes and self._is_erased(each, seq)}
            )
        for each in self.sessions:  # the record is in the log that holds the event
            if max(each.hashes) < each.session.head:
                self.record_events(each, each.now, active=False)

    def _is_erased(self, one: ExpectedSession, seq: int) -> bool:
        rows = self.store.read(one.session.log, seq, seq)
        return bool(rows) and rows[0].body is None

    def _mark_erased(self, hashes: set[bytes]) -> None:
        self.erased |= hashes

    def erase(self, one: ExpectedSession) -> None:
        if self.rng.random() < 0.6:
            return
        one.session.erase(reason="asked", actor="officer")
        self.expect(not one.held, f"{one.id} is held and was erased")
        self._mark_erased({hash for seq, hash in one.hashes.items() if seq > one.session.log.base})
        one.erased, one.immutable = True, False
        self.record_events(one, ShownState(), active=False)
        self._mark_erased_with_fork()
        for each in self.sessions:
            if max(each.hashes) < each.session.head:
                self.record_events(each, each.now, active=False)

    def _mark_erased_with_fork(self) -> None:
        """What forks made of an erased session goes with it; and a deleted parent that only the erased still need."""
        using = {hash for each in self.sessions if not each.erased for hash in each.hashes.values()}
        for each in self.sessions:
            for row in self.store.read(each.session.log):
                if row.body is None and (row.type in ("summary.added", "session.forked") or row.hash not in using):
                    self._mark_erased({row.hash})

    def delete(self, one: ExpectedSession) -> None:
        if len(self.sessions) < 2:
            return
        self.store.delete(one.id)
        self.expect(not one.held and not self.is_locked(one), f"{one.id} is held or immutable and was deleted")
        self.sessions.remove(one)

    def toggle_hold(self, one: ExpectedSession) -> None:
        if one.held:
            one.session.release("no more")
        else:
            one.session.hold("a case", actor="officer")
        one.held, one.released = not one.held, one.held
        self.record_events(one, one.now, active=False)

    def set_retention(self, one: ExpectedSession) -> None:
        ttl = self.rng.choice((None, 1.0, 5.0, 60.0))
        locked = self.is_locked(one)
        shorter = ttl is not None and (one.ttl is None or ttl < one.ttl)
        one.session.retention = {"ttl_days": ttl} if ttl is not None else {"max_messages": 1000}
        same = one.session.head == max(one.hashes)
        self.expect(same or not locked, f"{one.id}: its retention was weakened ({shorter})")
        one.ttl, one.immutable, one.archive_after = ttl, False, None
        self.record_events(one, one.now, active=False)

    def sweep(self, one: ExpectedSession) -> None:
        """Some days pass, and the sweep comes by until it has nothing to do."""
        self.clock.time += int(self.rng.choice((0.5, 3, 10)) * DAY)
        wanted = {each.id for each in self.sessions if self._is_due(each)}
        dry = sweep(self.store, dry_run=True)
        purged: set[str] = set()
        for _ in range(3):
            report = sweep(self.store, batch=self.rng.choice((1, 2, 100)))
            self.expect(not report.busy, "nobody else sweeps")
            purged |= set(report.purged)
            for each in self.sessions:
                if each.id in report.archived:
                    self.expect(not each.archived, f"{each.id} was archived twice")
                    each.archived = True
                    self.record_events(each, each.now, active=False)
        self.expect(set(dry.purged) <= purged, f"the dry run said {dry.purged}, purged were {purged}")
        erased = {each.id for each in self.sessions if each.erased}  # what is left of them may stay as evidence
        self.expect(purged - erased == wanted - erased, f"purged {sorted(purged)}, due were {sorted(wanted)}")
        self.sessions = [each for each in self.sessions if each.id not in purged]
        for each in self.sessions:
            self.expect(self.store.exists(each.id), f"{each.id} is gone")

    def _is_due(self, one: ExpectedSession) -> bool:
        settled = one.released or not one.failed
        return one.ttl is not None and one.active + one.ttl * DAY <= self.clock.time and not one.held and settled

    def reopen(self, one: ExpectedSession) -> None:
        if one.archived and not one.erased:
            one.session.reopen()
            one.archived = False
            self.record_events(one, one.now)

    def search(self, one: ExpectedSession) -> None:
        words = sorted(set().union(*self.words.values())) if self.words else []
        if words and not one.erased and one.session.log.key is None:
            found = one.session.search(self.rng.choice(words))
            self._check_words(one, " ".join(message.text for message in found), "its search")
            seqs = {message.seq or 0 for message in found}
            self.expect(seqs <= set(one.now.visible), f"{one.id} finds what it hides")
            erased = {seq for seq in seqs if one.hashes[seq] in self.erased}
            self.expect(not erased, f"{one.id} still finds the erased {erased}")

    # -- what must be true ---------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        for one in self.sessions:
            self.check(one)

    def check(self, one: ExpectedSession) -> None:
        session, log = one.session, one.session.log
        verdict = session.verify()
        self.expect(bool(verdict), f"{one.id} does not verify: {verdict.reason}")
        rows = self.store.read(log)
        self.expect({row.seq: row.hash for row in rows} == one.hashes, f"{one.id}: an event is not what it was")
        for row in rows:
            gone = row.hash in self.erased
            self.expect((row.body is None) == gone, f"{one.id}: event {row.seq} is {'not ' * gone}erased")
        self.expect(self.store.rebuild_view(log) == self.store.view(log), f"{one.id}: the view is not the fold")
        at = self.rng.choice(sorted(one.hashes))
        self.expect(
            self.store.view(log, at) == fold(View(), map(Event, self.store.read(log, 1, at))),
            f"{one.id}: the view at {at} is not the fold",
        )
        messages = session.messages
        seqs = tuple(message.seq for message in messages)
        self.expect(seqs == one.now.visible, f"{one.id} shows {seqs} instead of {one.now.visible}")
        state = {name for name, seq in one.now.state if one.hashes[seq] not in self.erased}
        self.expect(set(session.state) == state or one.erased, f"{one.id} has the state {session.state}, not {state}")
        shown = [
            session.export(),
            str(session.to_dict()),
            session.brief(),
            str([_read_bytes(each) for each in messages]),
        ]
        for text, where in zip(shown, ("its export", "its document", "its brief", "its files"), strict=True):
            self._check_words(one, text, where)

    def _check_words(self, one: ExpectedSession, text: str, where: str) -> None:
        mine: set[str] = set()
        for hash in one.hashes.values():
            if hash not in self.erased:
                mine |= self.words.get(hash, set())
        strange = set(WORD.findall(text)) - (mine - self.erased_words)
        self.expect(not strange, f"{where} in {one.id} has {sorted(strange)}, which are not its own or were erased")

    def _check_exchanges(self, one: ExpectedSession) -> None:
        """No call without its result and no result without its call, unless one of them was redacted."""
        if not any(one.hashes[seq] in self.erased for seq in one.now.visible):
            messages = one.session.messages
            self.expect(repair_history(messages) == messages, f"{one.id} has half an exchange: {messages}")


def _read_bytes(message: Message) -> bytes:
    return b" ".join(part.data for part in message.parts if isinstance(part, File) and part.data)


OPERATIONS: tuple[Callable[..., None], ...]
WEIGHTS: tuple[int, ...]
OPERATIONS, WEIGHTS = zip(
    *{
        RandomHistory.open_session: 2, RandomHistory.add_messages: 16, RandomHistory.set_state: 4,
        RandomHistory.add_fact: 2, RandomHistory.run_turn: 8, RandomHistory.prune: 10, RandomHistory.undo: 5,
        RandomHistory.clear: 1, RandomHistory.rewind: 3, RandomHistory.fork: 5, RandomHistory.redact: 5,
        RandomHistory.erase: 1, RandomHistory.delete: 2, RandomHistory.toggle_hold: 2, RandomHistory.set_retention: 2,
        RandomHistory.sweep: 2, RandomHistory.reopen: 2, RandomHistory.search: 3,
    }.items(),
    strict=True,
)  # fmt: skip
