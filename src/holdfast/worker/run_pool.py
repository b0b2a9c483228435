"""Runs in the background: messages are admitted to a session's log, and threads of this process run them in order.

An admitted run belongs to nobody: whichever process holds the lease of the session runs what is queued there, and one
that dies leaves its turn to whoever looks next. So disconnecting is nothing, and cancelling is an append: the canceller
takes the lease over, and the fence refuses whatever the turn's own process does from then on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from holdfast.clock import crashpoint
from holdfast.errors import (
    AgentError,
    ApprovalPending,
    Conflict,
    LifecycleError,
    SessionBusy,
    SessionNotFound,
    StaleEpoch,
    StoreError,
    TurnCancelled,
    TurnFailed,
    TurnOpen,
    TurnParked,
    Unavailable,
)
from holdfast.log.events import Draft, Event
from holdfast.log.messages import Message
from holdfast.log.view import MOVES, View, view_of
from holdfast.models.base import InputJSONDelta, TextDelta, ThinkingDelta
from holdfast.plan import Plan
from holdfast.prompt.history_window import own_events
from holdfast.schema.output import OutputShape
from holdfast.stores.append import Head
from holdfast.stores.base import Due, Log, Store
from holdfast.stores.documents import message_of
from holdfast.stores.lease import Claim, holder, lease_seconds
from holdfast.turn.agent_loop import loose_calls
from holdfast.turn.drivers import drive
from holdfast.turn.response import Response
from holdfast.turn.run_outcome import broken, error_data, read_trail
from holdfast.turn.runtime import AskedBefore, World
from holdfast.turn.stream_events import ContentBlockStart, ContentBlockStop, StreamEvent, ToolProgress, TurnDone

LOOKED_AT = 500  # sessions in one query
PATIENCE = 0.3  # seconds that a turn is given to end by itself when it is cancelled
# What a stream tells between events; everything else of it follows from the events themselves.
_DELTAS = (TextDelta, InputJSONDelta, ThinkingDelta, ContentBlockStart, ContentBlockStop, ToolProgress)


class Part(NamedTuple):
    """Who answers in a run: an agent's settings, or those of several; and the session object that tools see."""

    plan: Plan
    session: Any


class Cast(Protocol):
    """Finds who answers; raises an AgentError if nobody does."""

    def __call__(self, store: Store, log: Log, agent: str | None) -> Part: ...


class Listener(Protocol):
    """Where what happens is told: a feed."""

    def tell(self, log: Log, delta: StreamEvent, after: int, n: int) -> None: ...
    def nudge(self, log: Log) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A run that is in the log."""

    run_id: str
    seq: int
    repeated: bool  # the same key had admitted it before


def run_of_key(log: Log, once: str) -> str:
    """The name of the run that a key asks for: the same key asks for the same, so its name must follow from it."""
    return "R" + sha256(f"{log.uid}\n{once}".encode()).hexdigest()[:31].upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A message for an agent. With `once` the same key admits it once."""

    message: Message
    agent: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    on_busy: str = "enqueue"
    once: str | None = None
    actor: str | None = None

    def draft(self, store: Store, log: Log) -> Draft:
        run = store.ids.new() if self.once is None else run_of_key(log, self.once)
        stored, blobs = self.message.to_data(store.limits)
        data: dict[str, Any] = {"message": stored, "run": run, "options": dict(self.options)}
        if self.agent is not None:
            data["agent"] = self.agent
        if self.metadata:
            data["metadata"] = dict(self.metadata)
        if self.on_busy != "enqueue":
            data["on_busy"] = self.on_busy
        author = self.message._author
        return Draft(type="message.queued", run=run, author=author, actor=self.actor, data=data, blobs=blobs)


def admit(store: Store, log: Log, asked: Asked) -> Admitted:
    """Take a message into the queue of a session, durably."""
    draft = asked.draft(store, log)
    try:
        done = store.append(log, [draft], once=asked.once)
    except TurnOpen:
        lease = store.lease(log)
        raise SessionBusy(log.id, retry_after=1.0 if lease is None else max(1.0, lease.remaining)) from None
    crashpoint("admitted")
    return Admitted(run_id=draft.run or "", seq=done.first, repeated=done.repeated)


def refuse_waiting(view: View, session_id: str) -> None:
    """Raise what `run` raises: a session that is not live, or waits for a person, takes no message."""
    if view.life != "live":
        raise LifecycleError("run", status=view.status, legal=MOVES[view.status])
    if view.turn is not None and view.turn.waiting and not view.turn.parked:
        if view.turn.pending:
            raise ApprovalPending(session_id, sorted(view.turn.pending))
        raise TurnOpen("run")


def cancel(store: Store, log: Log, run: str, *, actor: str | None = None) -> bool:
    """End a run, queued or under way, wherever it is: False if it is over already."""
    while True:
        head = store.head(log)
        view = view_of(head.view)
        drafts: list[Draft] = []
        fence: dict[str, Any] = {}
        if view.turn is not None and view.turn.run == run:
            events = own_events(store, log, run, view.turn.first, head.head)
            ended = Draft(type="turn.cancelled", run=run, actor=actor, data={"usage": {}})
            legs = read_trail(store, log, run, events).legs.values()
            drafts = [*(draft for work in legs for draft in loose_calls(work)), ended]
            claim = Claim(holder=holder(store.ids.new()), seconds=lease_seconds())
            fence = {"epoch": head.epoch, "claim": claim, "release": True}
        elif any(entry[0] == run for entry in view.queue):
            drafts = [Draft(type="run.dropped", run=run, actor=actor)]
        else:
            return False
        try:
            store.append(log, drafts, expected=head.head, **fence)
            return True
        except (Conflict, StaleEpoch):
            continue  # it went on meanwhile: look again


Result = Response | BaseException | None  # of a run in this process; None: the log says what became of it


@dataclass(slots=True, eq=False)
class Running:
    """A thread of this process that is at a session; and the turn that it runs there, once it has begun one."""

    run: str = ""
    world: World | None = None


class Runs:
    """The threads of this process that run what is queued, fairly: tenants in turn, then the sessions of each."""

    def __init__(
        self, store: Store, cast: Cast, listener: Listener, *, threads: int = 32, look_every: float = 0.5
    ) -> None:
        self.store, self._cast, self._listener = store, cast, listener
        self._threads, self._look_every = threads, look_every
        self._wake = threading.Condition()
        self._ready: OrderedDict[str, deque[Due]] = OrderedDict()  # by tenant
        self._queued: set[int] = set()  # logs in `_ready`
        self._asking: deque[Callable[[], object]] = deque()  # messages that a free thread admits and runs
        self._idle = 0  # threads that wait for work
        self._busy: dict[int, Running] = {}  # logs that a thread is at
        self._again: set[int] = set()  # logs that moved while a thread was at them
        self._reopened: dict[int, str | None] = {}  # logs whose open turn is to be taken up, and by which agent
        self._owed: dict[int, tuple[Store, Log, str]] = {}  # turns that a store which was away left with our lease
        self._waiters: dict[str, list[Callable[[Result], object]]] = {}
        self._stopping = False
        self._started = False
        self.taken_over = 0
        self.on_end: Callable[[str], None] = lambda outcome: None
        self.on_broken: Callable[[BaseException], None] = lambda error: None  # what nobody expected

    # -- from anywhere ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._started = True
        for number in range(self._threads):
            threading.Thread(target=self._work, name=f"holdfast-run-{number}", daemon=True).start()
        threading.Thread(target=self._look, name="holdfast-look", daemon=True).start()

    def start(self, due: Due) -> None:
        """Something is queued in this session: run it when its turn comes."""
        with self._wake:
            if self._stopping:
                return
            if due.log.number in self._busy:
                self._again.add(due.log.number)
            elif due.log.number not in self._queued:
                self._queued.add(due.log.number)
                self._ready.setdefault(due.tenant, deque()).append(due)
                self._wake.notify()

    def reopen(self, store: Store, log: Log, agent: str | None) -> Admitted | None:
        """Have the open turn of a session taken up; None if there is none."""
        head = store.head(log)
        turn = view_of(head.view).turn
        if turn is None:
            return None
        if turn.pending:
            raise ApprovalPending(log.id, sorted(turn.pending))
        if turn.parked:
            raise TurnParked(log.id, turn.attempts)
        lease = store.lease(log)
        if lease is None or not lease.alive:
            self._reopened[log.number] = agent
        return Admitted(run_id=turn.run, seq=head.head, repeated=False)

    def submit(self, work: Callable[[], object]) -> bool:
        """Have a free thread do something now; False if there is none. It must not raise."""
        with self._wake:
            if self._stopping or self._idle <= len(self._asking) + len(self._queued):
                return False
            self._asking.append(work)
            self._wake.notify()
            return True

    def ask(
        self, store: Store, log: Log, head: Head, asked: Asked, over: Callable[[str, Result], object] | None = None
    ) -> Response | Admitted:
        """Admit a message and run it on this thread, in one append, if nothing is before it in its session; else only
        admit it. Raises what the run raises. `head` was read before: if the session has moved, it is only admitted.
        `over` is told of a run's end, which may come before this thread notices: it may hang in a model's silence."""
        due = Due(store.tenant, log)
        with self._wake:
            is_free = log.number not in self._busy and log.number not in self._queued
            mine = Running()
            if is_free:
                self._busy[log.number] = mine
        if not is_free:
            return admit(store, log, asked)
        more, draft = True, None
        try:
            draft = asked.draft(store, log)
            world = self._world(store, log, draft, asked.agent)
            opening = world.open_with(asked.message, asked.metadata, admitting=draft, once=asked.once, head=head)
            if opening is None:
                return admit(store, log, asked)
            run = draft.run or ""
            mine.run, mine.world = run, world
            if over is not None:
                self.when_over(run, partial(over, run))
            result = self._perform(world, opening, store, log, run, direct=True)
            more = world.more
        except (Conflict, SessionBusy, AskedBefore):  # somebody else was faster
            if draft is not None:
                self._waiters.pop(draft.run or "", None)  # it is not run here after all
            return admit(store, log, asked)
        finally:
            self._leave(due, mine, more)
        if result is None:
            return Admitted(run_id=run, seq=0, repeated=True)  # it ended elsewhere: the log says how
        if isinstance(result, BaseException):
            raise result
        return result

    def when_over(self, run: str, told: Callable[[Result], object]) -> Callable[[], None]:
        """Have `told` called, on a thread, when this process has run it: with its response, its error, or None if it
        ended here without either. Returns what takes that back."""
        self._waiters.setdefault(run, []).append(told)

        def forget() -> None:
            waiting = self._waiters.get(run, [])
            if told in waiting:
                waiting.remove(told)
            if not waiting:
                self._waiters.pop(run, None)

        return forget

    def cancel(self, store: Store, log: Log, run: str, *, actor: str | None = None) -> bool:
        """End a run. One of this process may end by itself first, so that what was shown of it is in the log."""
        running = self._busy.get(log.number)
        world = running.world if running is not None and running.run == run else None
        if world is not None and world.renewal is not None:
            world.stop()
            deadline = store.ids.elapsed() + PATIENCE
            while self._busy.get(log.number) is running and store.ids.elapsed() < deadline:
                store.ids.sleep(0.005)
        done = cancel(store, log, run, actor=actor)
        self._listener.nudge(log)
        if done:
            self._tell_waiters(run, TurnCancelled())
            if running is not None and world is not None:
                self._leave(Due(store.tenant, log), running, again=True)  # its thread may hang: others go on
            return True
        return world is not None and world.stopped

    def is_at(self, run: str, number: int) -> bool:
        """Whether a thread of this process still has something to do for a run: after its end there may be pruning."""
        running = self._busy.get(number)
        return running is not None and running.run == run

    def is_here(self, run: str, number: int) -> bool:
        """Whether a thread of this process is at the run, or will be."""
        if number in self._queued or number in self._again or number in self._reopened:
            return True
        running = self._busy.get(number)
        return running is not None and running.run in ("", run)

    @property
    def waiting(self) -> int:
        return len(self._queued)

    @property
    def running(self) -> int:
        return len(self._busy)

    def refuse(self) -> None:
        """Begin nothing more: what is queued is left to others."""
        with self._wake:
            self._stopping = True
            self._ready.clear()
            self._queued.clear()
            self._reopened.clear()
            self._wake.notify_all()

    def stop(self, seconds: float) -> int:
        """Begin nothing more, and give what is under way some time. What is left then is given back, so that another
        process takes it up at once; returns how many that were."""
        self.refuse()
        ids = self.store.ids
        deadline = ids.elapsed() + seconds
        while self._busy and ids.elapsed() < deadline:
            ids.sleep(0.02)
        left = [running for running in list(self._busy.values()) if running.world is not None]
        for running in left:
            assert running.world is not None
            _give_up(running.world)
            self._tell_waiters(
                running.run, Unavailable("this server is shutting down, another one goes on: ask again", retry_after=1)
            )
        return len(left)

    # -- on the threads --------------------------------------------------------------------------------------------

    def _next(self) -> tuple[Due, Running] | Callable[[], object] | None:
        with self._wake:
            while not self._ready and not self._asking and not self._stopping:
                self._idle += 1
                self._wake.wait()
                self._idle -= 1
            if self._asking:
                return self._asking.popleft()
            if self._stopping:
                return None
            tenant, sessions = self._ready.popitem(last=False)
            due = sessions.popleft()
            if sessions:
                self._ready[tenant] = sessions  # the tenants take turns
            self._queued.discard(due.log.number)
            mine = self._busy[due.log.number] = Running()
            return due, mine

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if not isinstance(job, tuple):
                job()
                continue
            due, mine = job
            again = False
            try:
                again = self._run_next(due, mine)
            except StoreError:
                pass  # the store is away: whoever looks next finds it still queued
            except SessionNotFound:
                pass
            except Exception as error:  # noqa: BLE001 - a run must not end the thread of all the others
                self.on_broken(error)
            finally:
                self._leave(due, mine, again)

    def _leave(self, due: Due, mine: Running, again: bool) -> None:
        """A thread is done with a session; whether there is more to do there. One that hung may not be the last."""
        with self._wake:
            if self._busy.get(due.log.number) is not mine:
                return
            del self._busy[due.log.number]
            again = again or due.log.number in self._again
            self._again.discard(due.log.number)
        if again:
            self.start(due)

    def _run_next(self, due: Due, mine: Running) -> bool:
        """Run what is first in a session's queue; whether there may be more."""
        store, log = self.store.for_tenant(due.tenant), due.log
        view = view_of(store.head(log).view)
        turn, asked = view.turn, log.number in self._reopened
        agent = self._reopened.pop(log.number, None)
        if view.life != "live":
            return False
        if turn is not None and asked:
            run, seq = turn.run, turn.question or turn.first
        elif view.queue:
            run, seq = view.queue[0]
        else:
            return False
        is_open = turn is not None and turn.run == run
        if turn is not None and turn.waiting and not turn.parked and not (is_open and asked):
            return False  # a person comes first
        begun = store.event(log, seq)  # the queued message; or how a turn began that was never queued
        if begun.erased and not is_open:
            self._drop(store, log, run, None)
            return True
        try:
            world = self._world(store, log, begun, agent or begun.data.get("agent"))
            opening = self._begin(world, begun, resumed=is_open)
        except (SessionBusy, Conflict):
            return False  # somebody else is at work there, and goes on with the queue when that is done
        except StoreError:
            raise
        except TurnCancelled:
            return True  # it was taken from the queue meanwhile
        except TurnParked as error:
            self._tell_waiters(run, error)
            return True
        except AgentError as error:  # it cannot even begin: nobody to answer, instructions that lack state
            self._drop(store, log, run, error)
            return True
        if opening is None:
            return False
        if is_open and not asked:
            self.taken_over += 1
        mine.run, mine.world = run, world
        self._perform(world, opening, store, log, run)
        return world.more

    def _world(self, store: Store, log: Log, begun: Event | Draft, agent: str | None) -> World:
        part = self._cast(store, log, agent)
        options = dict(begun.data.get("options", {}))
        schema = options.pop("schema", None)
        shape = None if schema is None else OutputShape(schema)
        world = World(
            store,
            log,
            part.plan,
            session=part.session,
            temp=part.session._temp,
            shape=shape,
            options=options,
            run=begun.run,
        )
        world.detached = True
        return world

    def _begin(self, world: World, queued: Event, *, resumed: bool) -> list[Draft] | None:
        if resumed:
            return [] if world.reopen() else None
        (row,) = world.store.read(world.log, queued.seq, queued.seq)
        message = message_of(world.store, world.log, row)
        return world.open_with(message, queued.data.get("metadata"), queued)

    def _perform(
        self, world: World, opening: list[Draft], store: Store, log: Log, run: str, *, direct: bool = False
    ) -> Result:
        """Drive a turn, and tell what happens. A `direct` one whose beginning is refused was never admitted."""
        result: Result = None
        tell, at, n = self._listener.tell, -1, 0
        try:
            for event in drive(world, opening):
                if world.at != at:  # the turn appended something
                    at, n = world.at, 0
                    self._listener.nudge(log)
                if isinstance(event, _DELTAS):
                    n += 1
                    tell(log, event, at, n)
                elif type(event) is TurnDone:
                    result = event.response
        except (Conflict, SessionBusy, AskedBefore) as error:
            if world.renewal is None:
                if direct:
                    raise
                return None  # somebody else began first
            result = error
        except StaleEpoch:
            result = None  # cancelled or taken over: the log says what became of it
        except StoreError as error:
            result = error if world.renewal is None else None  # else the turn is taken up again when the store is back
            self._owed[log.number] = (store, log, run)
        except AgentError as error:
            result = error
            cause = error.__cause__
            if isinstance(error, TurnFailed) and cause is not None and not isinstance(cause, AgentError):
                self.on_broken(cause)
                result = error = broken(cause)
            if world.renewal is None:  # it was refused before anything was stored
                if direct:
                    raise error
                self._drop(store, log, run, error)
        finally:
            self._listener.nudge(log)
        if world.retained and isinstance(result, Response):
            with suppress(AgentError):
                world.session._prune_if_asked()  # type: ignore[attr-defined]
        crashpoint("run over")
        self.on_end(_word(result))
        self._tell_waiters(run, result)
        return result

    def _drop(self, store: Store, log: Log, run: str, error: AgentError | None) -> None:
        """Take a run from the queue that cannot be begun, and say why."""
        data: dict[str, Any] = {}
        if error is not None:
            data["error"] = error_data(error)
        store.append(log, [Draft(type="run.dropped", run=run, data=data)])
        self._listener.nudge(log)
        self.on_end(_word(error or TurnCancelled()))
        self._tell_waiters(run, error or TurnCancelled())

    def _tell_waiters(self, run: str, result: Result) -> None:
        for told in self._waiters.pop(run, []):
            told(result)

    # -- what others left ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find queued runs that nobody is at: of a process that died, or that was admitted by one that runs nothing."""
        while not self._stopping:
            with suppress(AgentError):
                self._give_back_owed()
                self._look_once()
            self.store.ids.sleep(self._look_every)

    def _give_back_owed(self) -> None:
        """Free what this process holds and is not at any more, so that the turn is taken up at once."""
        for number, (store, log, run) in list(self._owed.items()):
            if number not in self._busy:
                head = store.head(log)
                turn, lease = view_of(head.view).turn, store.lease(log)
                if turn is not None and turn.run == run and lease is not None and lease.holder == holder(run):
                    with suppress(StaleEpoch):
                        store.append(log, [], epoch=head.epoch, release=True)
                self._owed.pop(number, None)

    def _look_once(self) -> None:
        after = 0
        while found := self.store.work(after=after, limit=LOOKED_AT):
            after = found[-1].log.number
            for due in found:
                is_ours = due.log.number in self._busy or due.log.number in self._queued
                if not is_ours and (due.lease is None or not due.lease.alive):
                    self.start(due)


def _give_up(world: World) -> None:
    """Free the session of a turn that this process will not finish: its own appends are refused from now on."""
    claim = Claim(holder=holder(world.store.ids.new()), seconds=lease_seconds())
    with suppress(AgentError):
        world.store.append(world.log, [], epoch=world.epoch, claim=claim, release=True)


def _word(result: Result) -> str:
    """An outcome as a metric counts it."""
    if isinstance(result, Response):
        return result.status
    return "cancelled" if result is None or isinstance(result, TurnCancelled) else "failed"
