"""B10: the loop in a simulation, where time, the model and all faults follow from one seed.

One process simulates several. Each dies, freezes or is overtaken at crash points. Others append at the same time, and
another process resumes the turn. Only one thread runs at a time, so a seed always gives the same run:

    python -m tests.proofs.simulation 1234

What must stay true is checked after every step (safety), and when the faults end every session gets its answer
(liveness).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from holdfast import Agent, Interrupt, Message, Response, Session, ToolContext, tool
from holdfast.clock import FixedClock
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import (
    AgentError,
    ApprovalPending,
    CorruptLog,
    ProviderUnavailable,
    RateLimited,
    SessionBusy,
    StreamTruncated,
    TurnFailed,
    TurnParked,
)
from holdfast.log.events import MESSAGE_TYPES, Draft, Event
from holdfast.log.messages import ToolCall, message_from_data
from holdfast.models.base import ModelEvent, ModelRequest
from holdfast.models.scripted import stream_items
from holdfast.stores import lease_renewal
from holdfast.stores.append import AppendResult
from holdfast.stores.base import Log
from holdfast.stores.lease import DEFAULT_SECONDS, Claim
from holdfast.stores.memory import MemoryStore
from holdfast.testing import call, error
from holdfast.turn import tool_calls
from tests.proofs import Report, proof
from tests.proofs.turns import find_message_faults, find_request_faults

NAME = "s"
FINAL, ANSWER = "the last question", "the last answer"
BOUND = ("ask", "gate")  # run only as often as a person agrees
REPEATABLE = ("put", "put_async")
SILENCE = 19.0  # seconds between two words of a slow model
HANG = 10.0  # seconds until a hanging tool is given up
OF_THE_LOOP = (
    "before record", "after record", "between deltas", "after answer", "before tool", "after tool", "before append",
)  # fmt: skip
DEADLY = 0.25  # the chance to die at each crash point: turns are resumed in vain until they are parked
SHAPE = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


class ProcessDied(BaseException):
    """A simulated process came to its end here."""


@dataclass(eq=False)
class SimulatedProcess:
    """A process that holds sessions until it dies."""

    number: int
    dead: bool = False
    frozen: bool = False
    overtaken: bool = False  # another process has its turn now
    hangs: bool = False  # it was frozen, or a tool has outlived its time: the lease may have gone with it


class SimulatedClock(FixedClock):
    """Time passes in `sleep`, and leases are renewed then, unless their process is dead or frozen."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[tuple[float, lease_renewal.Renewal, SimulatedProcess]] = []

    def renew_later(self, lease: lease_renewal.Renewal, seconds: float, process: SimulatedProcess) -> None:
        self._due.append((self.monotonic() + seconds, lease, process))

    def sleep(self, seconds: float) -> None:
        until = self.monotonic() + seconds
        while True:
            self._due = [item for item in self._due if not (item[1].is_over or item[2].dead)]
            ready = [item for item in self._due if item[0] <= until and not item[2].frozen]
            if not ready:
                break
            item = min(ready, key=lambda one: one[0])
            self._due.remove(item)
            self.time = max(self.time, int(item[0] * 1e6))
            again = item[1].renew()
            if again is not None:
                self.renew_later(item[1], again, item[2])
        self.time = max(self.time, int(until * 1e6))


class OwnerCheckingStore(MemoryStore):
    """A store in memory that checks which process writes in which epoch."""

    simulation: Simulation

    def append(
        self,
        log: Log,
        drafts: Sequence[Draft],
        *,
        once: str | None = None,
        epoch: int | None = None,
        expected: int | None = None,
        claim: Claim | None = None,
        release: bool = False,
    ) -> AppendResult:
        self.simulation.pass_crash_point("before append")
        done = super().append(log, drafts, once=once, epoch=epoch, expected=expected, claim=claim, release=release)
        self.simulation.check_append(drafts, epoch, claim, done)
        if release:
            self.simulation.held = None
        return done


@dataclass
class Simulation:
    """One run of a seed: its processes, its faults and its checks."""

    seed: int
    trace: Callable[[str], None] = lambda _: None
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = SimulatedClock()
        self.store = OwnerCheckingStore(clock=self.clock)
        self.store.simulation = self
        self.process = SimulatedProcess(1)
        self.processes = 1
        self.quiet = True  # no faults now
        self.calm = False  # the model only answers
        self.owners: dict[int, SimulatedProcess] = {}  # of epochs
        self.held: SimulatedProcess | None = None  # who has the lease, and has not given it back
        self.starts: Counter[str] = Counter()  # of tools, by call
        self.agreed: Counter[str] = Counter()  # how often a tool that asks came to its question, by call
        self.unreported: set[int] = set()  # effects of failed turns that no request has named yet
        self.known_failures: set[int] = set()
        self.orphans = False  # a message from outside has calls without results, or the reverse
        self.late: list[Callable[[], None]] = []  # tools that hang
        self.death = self.random.choice((0.0, 0.01, 0.03, 0.1, DEADLY))
        self.interference = self.random.choice((0.0, 0.05, 0.2))
        self.overtaking = self.random.choice((0.0, 0.0, 0.03))
        self.model = SimulatedModel(self)
        self.agent = Agent(model=self.model, tools=TOOLS, name="a", max_steps=5, timeout=SILENCE + 1)
        Session(id=NAME, store=self.store)

    # -- who acts ----------------------------------------------------------------------------------------------------

    def session(self) -> Session:
        return Session.open(NAME, store=self.store, agent=self.agent)

    def new_process(self) -> SimulatedProcess:
        self.processes += 1
        return SimulatedProcess(self.processes)

    @contextmanager
    def act_as(self, process: SimulatedProcess, *, quiet: bool) -> Iterator[None]:
        before = self.process, self.quiet
        self.process, self.quiet = process, quiet
        try:
            yield
        finally:
            self.process, self.quiet = before

    def report_violation(self, what: str) -> None:
        self.violations.append(what)
        self.trace(f"!! {what}")

    # -- faults ------------------------------------------------------------------------------------------------------

    def pass_crash_point(self, name: str) -> None:
        """Pass a crash point. A dead process does nothing more, although its code still unwinds."""
        process = self.process
        if process.dead:
            raise ProcessDied
        if self.quiet:
            return
        roll = self.random.random()
        if roll < self.death:
            self.trace(f"   process {process.number} dies {name}")
            self.counts["deaths"] += 1
            process.dead = True
            raise ProcessDied
        if name not in OF_THE_LOOP or process.overtaken:
            return
        if self.random.random() < self.interference:
            with self.act_as(self.new_process(), quiet=True):
                self.interfere()
        if self.random.random() < self.overtaking:
            self.overtake(process, name)

    def interfere(self) -> None:
        """Something from outside, while a turn may be going on."""
        session = self.session()
        choice = self.random.choice(("message", "orphan", "state", "fact", "decide", "pause", "clear", "fork", "busy"))
        self.trace(f"   meanwhile: {choice}")
        self.counts["outside"] += 1
        try:
            if choice == "message":
                session.add_message(Message.user(f"by the way {self.clock.now()}"))
            elif choice == "orphan":  # as an import from elsewhere may bring it
                self.orphans = True
                lost = ToolCall(id=self.random.choice(("same", "lost")), name="lost", arguments={})
                found = Message.tool("a result", call_id=self.random.choice(("same", "found")))
                session.add_message(self.random.choice((Message("assistant", [lost]), found)))
            elif choice == "state":
                session.set_state("outside", self.clock.now())
            elif choice == "fact":
                session.facts.add("something is known")
            elif choice == "decide":
                self.decide(session)
            elif choice == "pause":
                session.pause()
            elif choice == "clear":
                session.clear()
            elif choice == "fork":
                self.check_fork(session.fork())
            elif self.random.random() < 0.5:
                self.ask(session, lambda: session.run("may I?", timeout=1.0))
            else:
                self.ask(session, session.resume)
        except AgentError as refusal:
            self.trace(f"   refused: {type(refusal).__name__}")

    def overtake(self, process: SimulatedProcess, name: str) -> None:
        """The process freezes for longer than its lease; another one takes up its turn; then it goes on."""
        self.counts["freezes"] += 1
        self.trace(f"   process {process.number} freezes {name}")
        process.frozen = True
        self.clock.sleep(DEFAULT_SECONDS + self.random.random())
        heir = self.new_process()
        epoch = self.store.head(self.session().log).epoch
        with self.act_as(heir, quiet=True):
            session = self.session()
            how = self.random.choice(("resume", "run", "nothing"))
            try:
                if how == "resume":
                    self.ask(session, session.resume)
                elif how == "run":
                    self.ask(session, lambda: session.run("instead"))
            except AgentError as refusal:
                self.trace(f"   refused: {type(refusal).__name__}")
        process.frozen, process.hangs = False, True
        if self.store.head(self.session().log).epoch != epoch:
            self.counts["overtaken"] += 1
            process.overtaken = True

    def decide(self, session: Session) -> None:
        for waiting in session.pending:
            if self.random.random() < 0.7:
                session.approve(waiting.call_id, actor="ann")
            else:
                session.deny(waiting.call_id, "no")

    # -- one step ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Perform one action; if its process dies, a new process takes its place."""
        session = self.session()
        choice = self.random.choices(
            ("run", "stream", "leave", "run_async", "json", "resume", "resume_async", "decide", "outside", "wait"),
            (6, 3, 2, 2, 2, 100 if self.death == DEADLY else 6, 2, 4, 3, 2),
        )[0]
        self.trace(f"{choice} by {self.process.number} ({session.status}, {self.store.head(session.log).head} events)")
        self.counts["steps"] += 1
        try:
            with self.act_as(self.process, quiet=False):
                self.perform(session, choice)
        except ProcessDied:
            self.process = self.new_process()
            if self.random.random() < 0.8:  # else the next process has to wait for the lease
                self.clock.sleep(DEFAULT_SECONDS)
        except AgentError as refusal:
            self.counts[type(refusal).__name__] += 1
            self.trace(f"   {type(refusal).__name__}: {refusal}")
        self.process.overtaken = self.process.hangs = False
        while self.late and self.random.random() < 0.5:
            self.late.pop()()
        self.check()

    def perform(self, session: Session, choice: str) -> None:
        text = f"question {self.clock.now()}"
        if choice == "run":
            self.ask(session, lambda: session.run(text))
        elif choice == "stream":
            self.ask(session, lambda: list(session.stream(text))[-1].response)  # type: ignore[union-attr]
        elif choice == "leave":
            self.leave_stream(session, text)
        elif choice == "json":
            self.ask(session, lambda: session.json(text, schema=SHAPE))
        elif choice == "resume":
            self.ask(session, session.resume)
        elif choice == "decide":
            self.decide(session)
        elif choice == "outside":
            with self.act_as(self.process, quiet=True):
                self.interfere()
        elif choice == "wait":
            self.clock.sleep(self.random.choice((1.0, 20.0)))
        else:
            # The awaited twins wait in real time: not while another process holds the lease.
            lease = self.store.lease(session.log)
            if lease is None or not lease.is_alive:
                awaited = session.run_async(text) if choice == "run_async" else session.resume_async()
                self.ask(session, lambda: asyncio.run(awaited))  # type: ignore[arg-type]
                return

    def leave_stream(self, session: Session, text: str) -> None:
        """Look at the beginning of an answer, and go."""
        events = session.stream(text)
        for _ in range(self.random.randrange(1, 8)):
            if next(events, None) is None:
                return
        events.close()  # type: ignore[attr-defined]

    def ask(self, session: Session, run: Callable[[], Response | None]) -> None:
        response = run()
        if response is None:
            return
        self.trace(f"   {response.status}: {response.text!r}")
        self.counts[response.status] += 1
        pending = {one.call_id for one in response.pending}
        if response.status == "waiting" and response.text:
            self.report_violation("a waiting response has a text")
        if response.status == "finished" and pending:
            self.report_violation(f"a finished response waits for {pending}")

    # -- what must stay true -----------------------------------------------------------------------------------------

    def check_append(self, drafts: Sequence[Draft], epoch: int | None, claim: Claim | None, done: AppendResult) -> None:
        """An append went through: was it this process's to make?"""
        process = self.process
        types = [draft.type for draft in drafts]
        if claim is not None:
            before = self.held
            if before not in (None, process) and not (before.dead or before.frozen or before.hangs):
                self.report_violation(
                    f"process {process.number} took the turn of {before.number}, which was at work on it"
                )
            self.owners[done.epoch] = self.held = process
            process.overtaken = False
        elif epoch is not None:
            if self.owners.get(epoch) is not process:
                self.report_violation(f"process {process.number} wrote {types} in the epoch of somebody else")
            if process.overtaken:
                self.report_violation(f"process {process.number} wrote {types} after it had been overtaken")
        elif types == ["turn.parked"]:
            lease = self.store.lease(self.session().log)
            if lease is not None and lease.is_alive and not self.owners[lease.epoch].dead:
                self.report_violation("a turn was parked while somebody was at work on it")
        elif any(draft.run is not None for draft in drafts):
            self.report_violation(f"{types} belong to a turn and were written without its epoch")

    def events(self) -> list[Event]:
        return self.session().events(limit=None)

    def record_tool_start(self, name: str, ctx: ToolContext) -> None:
        """A tool begins to do something that can be seen."""
        _uid, run, call_id = ctx.idempotency_key.split(":")
        own = [event for event in self.events() if event.run == run and event.data.get("call_id") == call_id]
        kinds = [event.type for event in own]
        decisions = [
            event
            for event in self.events()
            if event.type == "approval.decided" and event.data["call_id"] == call_id and event.data["approved"]
        ]
        self.starts[ctx.idempotency_key] += 1
        times = self.starts[ctx.idempotency_key]
        self.trace(f"   {name} {call_id} starts in {self.process.number}")
        if "tool.called" not in kinds:
            self.report_violation(f"{name} ran before its intent was stored")
        if "tool.returned" in kinds:
            self.report_violation(f"{name} had its result and ran again")
        if name in BOUND and times > len(decisions):
            self.report_violation(f"{name} ran {times} times, a person agreed {len(decisions)} times")
        if name not in (*BOUND, *REPEATABLE) and times > 1:
            self.report_violation(f"{name} ran {times} times")
        if self.process.dead or self.process.overtaken:
            self.report_violation(f"{name} was started by a process that had lost its turn")

    def check_request(self, request: ModelRequest) -> None:
        """A model is asked."""
        self.process.hangs = False
        for fault in find_request_faults(request):
            self.report_violation(f"a request would be refused: {fault}")
        if self.process.dead or self.process.overtaken:
            self.report_violation("the model was asked by a process that had lost its turn")
        self.check_turns(self.events())  # a turn may have failed a moment ago, inside this very step
        system = "\n".join(request.system_texts)
        for seq in sorted(self.unreported):
            event = self.store.event(self.session().log, seq)
            if f"{event.data['name']} (call {event.data['call_id']})" not in system:
                self.report_violation(
                    f"the model is not told of {event.data['name']}, which a failed turn had finished"
                )
        self.unreported.clear()

    def check(self) -> None:
        """The log, its caches and what is shown."""
        session = self.session()
        store, log, events = self.store, session.log, self.events()
        if [event.seq for event in events] != list(range(1, store.head(log).head + 1)):
            self.report_violation("the log is not dense")
        if store.rebuild_view(log) != store.view(log):
            self.report_violation("the view is not what the events give")
        shown = [(message.role, message.parts) for message in session.messages]
        given = [(message.role, message.parts) for message in list_expected_messages(events)]
        if shown != given:
            self.report_violation(f"{len(shown)} messages are shown, the events give {len(given)}: {shown} {given}")
        for fault in [] if self.orphans else find_message_faults(session.messages):
            self.report_violation(f"messages: {fault}")
        self.check_turns(events)
        for event in events:
            if event.type == "model.called":
                try:
                    store.blob(log, event.data["context"])
                except CorruptLog:
                    self.report_violation("what the model was told besides the messages is not stored")
        view, lease = store.view(log), store.lease(log)
        free = view.turn is None or view.turn.waiting
        holder = None if lease is None or lease.remaining <= 0 else self.owners.get(lease.epoch)  # None: died claiming
        if free and holder is not None and not holder.dead:
            self.report_violation("nobody is at work, and the lease is held")

    def check_turns(self, events: Sequence[Event]) -> None:
        results = Counter((event.run, event.data["call_id"]) for event in events if event.type == "tool.returned")
        for key, times in results.items():
            if times > 1:
                self.report_violation(f"call {key} has {times} results")
        ends = Counter(event.run for event in events if event.type in ENDS)
        if any(times > 1 for times in ends.values()):
            self.report_violation("a turn ended twice")
        for event in events:
            if event.type in ("turn.failed", "turn.cancelled") and event.seq not in self.known_failures:
                self.known_failures.add(event.seq)
                own = [each for each in events if each.run == event.run and each.type == "tool.returned"]
                finished = {each.seq for each in own if self.starts[self.key(each)]}
                self.unreported |= {seq for seq in finished if events[seq - 1].data["name"] not in REPEATABLE}

    def key(self, event: Event) -> str:
        return f"{self.session().log.uid}:{event.run}:{event.data['call_id']}"

    def check_fork(self, fork: Session) -> None:
        if self.store.rebuild_view(fork.log) != self.store.view(fork.log):
            self.report_violation("the view of a fork is not what its events give")
        if self.store.view(fork.log).turn is not None:
            self.report_violation("a fork has inherited an open turn")
        for fault in [] if self.orphans else find_message_faults(fork.messages):
            self.report_violation(f"messages of a fork: {fault}")

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """With nothing in the way, what is unfinished is finished, and a question gets its answer."""
        self.calm, self.quiet = True, True
        self.process = self.new_process()
        for late in self.late:
            late()
        session = self.session()
        for _ in range(8):
            try:
                for waiting in session.pending:
                    session.approve(waiting.call_id)
                if session.status in ("closed", "archived"):
                    session.reopen()
                self.ask(session, session.resume)
                if session.status != "waiting" and session.status != "paused":
                    break
            except TurnParked:
                self.counts["parked"] += 1
                break
            except TurnFailed:  # it had taken all of its steps
                break
            except (ApprovalPending, SessionBusy) as refusal:
                self.trace(f"   {type(refusal).__name__}: {refusal}")
        response = session.run(FINAL)
        if response.text != ANSWER:
            self.report_violation(f"the last question was answered {response.text!r}, {response.status}")
        if [message.text for message in session.messages][-2:] != [FINAL, ANSWER]:
            self.report_violation("the last answer is not the last message")
        self.check()
        if not session.verify():
            self.report_violation("the log does not verify")
        if self.store.lease(session.log) is not None:
            self.report_violation("the lease was not given back")

    def run(self) -> None:
        try:
            for _ in range(self.random.randrange(4, 14) * (3 if self.death == DEADLY else 1)):
                self.step()
                if self.violations:
                    return
            self.trace("-- the end")
            self.end()
        except Exception as broken:
            self.report_violation(f"{type(broken).__name__}: {broken}")
            if self.trace is print:
                raise


ENDS = ("turn.finished", "turn.failed", "turn.cancelled", "turn.interrupted")


def list_expected_messages(events: Sequence[Event]) -> list[Message]:
    """The visible messages, by the events alone: what a turn said counts once it is kept, and stands before
    messages that others added during the turn."""
    shown: list[Message] = []
    own: list[Message] = []
    outside: list[Message] = []
    run: str | None = None
    for event in events:
        if event.type == "turn.started":
            run, own, outside = event.run, [], []
        elif event.type in MESSAGE_TYPES:
            message = message_from_data(
                event.data if event.type == "message.added" else event.data["message"], refuse_blob
            )
            if run is None:
                shown.append(message)
            elif event.run != run:
                outside.append(message)
            elif not event.data.get("rejected"):
                own.append(message)
        elif event.type == "view.cleared":
            shown, outside = [], []
        elif event.type in ENDS:
            shown += (own if event.type in ("turn.finished", "turn.interrupted") else []) + outside
            run, outside = None, []
    return shown + outside


def refuse_blob(digest: str) -> bytes:
    raise AssertionError("nobody here sends files")


# -- the model and its tools -------------------------------------------------------------------------------------------


class SimulatedModel:
    """Draws its replies from the seed; many are invalid."""

    name = provider = "simulated"
    context_window = 128_000

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        simulation = self.simulation
        simulation.check_request(request)
        items, cut = self.reply(request)
        pace = simulation.random.choice((0.0, 0.0, 0.0, SILENCE))  # a slow one, but never silent for too long
        for number, event in enumerate(stream_items(items, request, self.provider)):
            simulation.clock.sleep(pace)
            if number == cut:
                if simulation.random.random() < 0.5:
                    return
                raise StreamTruncated("cut", provider=self.provider)
            yield event

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self.stream(request):
            yield event

    def reply(self, request: ModelRequest) -> tuple[list[Any], int | None]:
        rng = self.simulation.random
        if self.simulation.calm:
            shaped = '{"x": 1}' if request.output_schema else ANSWER
            return [shaped], None
        roll = rng.random()
        if roll < 0.03:
            return [error(RateLimited("slow down", provider=self.provider))], None
        if roll < 0.06:
            return ["a beginning", error(ProviderUnavailable("gone", provider=self.provider))], None
        if roll < 0.08:
            return [error(OSError("a bug in somebody's model"))], None
        if roll < 0.12:
            return ["this will never be whole"], rng.randrange(0, 4)
        if roll < 0.14:
            return [], None
        if roll < 0.65:
            return [self.call() for _ in range(rng.randrange(1, 4))], None
        if request.output_schema:
            return [rng.choice(('{"x": 1}', "no json", '{"x": "one"}'))], None
        return [f"answer {rng.randrange(1000)}" + " and so on" * rng.choice((0, 0, 0, 20))], None

    def call(self) -> Any:
        rng = self.simulation.random
        call_id = rng.choice((None, None, None, "same", ""))
        roll = rng.random()
        if roll < 0.04:
            return call("nobody", {"n": 1}, id=call_id)
        if roll < 0.08:
            return call("act", rng.choice(('{"n": ', "[]", '{"n": "x"}', '{"m": 1}', "null")), id=call_id)
        return call(rng.choice(TOOLS).name, {"n": rng.randrange(100)}, id=call_id)


def find_simulation(ctx: ToolContext) -> Simulation:
    found: Simulation = ctx.session.store.simulation
    return found


@tool
def act(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("act", ctx)
    return f"acted {n}"


@tool(idempotent=True)
def put(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("put", ctx)
    return f"put {n}"


@tool(idempotent=True)
async def put_async(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("put_async", ctx)
    return f"put {n}"


@tool
def boom(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("boom", ctx)
    raise ValueError(n)


@tool(approval="always")
def ask(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("ask", ctx)
    return f"allowed {n}"


@tool
def gate(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).agreed[ctx.idempotency_key] += 1
    if find_simulation(ctx).agreed[ctx.idempotency_key] == 1:
        raise Interrupt({"really": n})
    find_simulation(ctx).record_tool_start("gate", ctx)
    return f"passed {n}"


@tool
def note(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("note", ctx)
    ctx.state.set("noted", n)
    return "noted"


@tool
def slow(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("slow", ctx)
    find_simulation(ctx).clock.sleep(n / 3)  # three of them, one after the other, within the time of one
    ctx.progress("still there")
    return "at last"


@tool(timeout=HANG)
def hang(n: int, ctx: ToolContext) -> str:
    """Comes back when its turn is long over: whatever it writes then must be refused."""
    simulation = find_simulation(ctx)
    if not ctx.cancelled:
        simulation.report_violation("a tool that was given up is not told so")
    before = ctx.session.get_state("late")
    try:
        ctx.state.set("late", n)
    except AgentError:
        pass
    turn = simulation.store.view(ctx.session.log).turn
    if ctx.session.get_state("late") != before and (turn is None or turn.run not in ctx.idempotency_key):
        simulation.report_violation("a tool wrote in the name of a turn that was over")
    return "too late"


@tool
def pauses(n: int, ctx: ToolContext) -> str:
    find_simulation(ctx).record_tool_start("pauses", ctx)
    ctx.session.pause()
    return "paused"


TOOLS = (act, put, put_async, boom, ask, gate, note, slow, hang, pauses)


# -- time and threads that are not there -------------------------------------------------------------------------------


class InlineExecutor:
    """Runs tools where they are called, one after the other; one that hangs runs later, when no caller waits for it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def submit(self, work: partial[None]) -> None:
        (running,) = [value for value in work.args if isinstance(value, tool_calls.RunningCall)]
        if running.tool.name != "hang":
            work()
            return
        process = self.simulation.process
        process.hangs = True
        self.simulation.clock.sleep(HANG + 0.5)
        self.simulation.late.append(lambda: self.later(process, work))

    def later(self, process: SimulatedProcess, work: Callable[[], None]) -> None:
        if not process.dead:
            with self.simulation.act_as(process, quiet=True):
                work()


class SimulatedRenewer:
    """Renews leases while simulated time passes."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def add(self, lease: lease_renewal.Renewal, seconds: float) -> None:
        self.simulation.clock.renew_later(lease, seconds, self.simulation.process)


@contextmanager
def patch_threads(simulation: Simulation) -> Iterator[None]:
    """Replace the two places where the loop uses threads by the simulation."""
    with (
        patch.object(tool_calls, "TOOL_THREADS", InlineExecutor(simulation)),
        patch.object(lease_renewal, "_renewer", SimulatedRenewer(simulation)),
    ):
        arm_crashpoints(simulation.pass_crash_point)
        try:
            yield
        finally:
            arm_crashpoints(None)


def run_simulation(seed: int, trace: Callable[[str], None] = lambda _: None) -> Simulation:
    """Run one seed to its end, or to the first violation."""
    simulation = Simulation(seed, trace)
    with patch_threads(simulation):
        simulation.run()
    return simulation


@proof("B10", ci=500, long=200_000)
def simulate(size: int, seed: int) -> Report:
    """`size` runs from `seed` on: no violation on the way, and an answer at the end."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for number in range(seed, seed + size):
        simulation = run_simulation(number)
        counts += simulation.counts
        failures += [f"{what}; again: python -m tests.proofs.simulation {number}" for what in simulation.violations]
    told = ", ".join(f"{counts[name]} {name}" for name in ("steps", "finished", "deaths", "overtaken", "outside"))
    figures = f"seeds {seed} to {seed + size - 1}: {told}, {counts['parked']} parked; {len(failures)} violations"
    return Report(figures=figures, failures=failures)


def main() -> int:
    wrong = 0
    for seed in map(int, sys.argv[1:]):
        print(f"seed {seed}")
        wrong += len(run_simulation(seed, print).violations)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
