"""The run pool: threads of this process that run what is queued in the logs of sessions, in order.

An admitted run belongs to no process: the process that holds the lease of the session runs its queue. When that process
dies, the next process that polls the store takes the turn over. So a client may disconnect at any time, and cancelling
is an append: the canceller takes the lease over, and the fence refuses every later append of the turn's process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from holdfast.crashpoints import crashpoint
from holdfast.errors import (
    AgentError,
    AlreadyAdmitted,
    ApprovalPending,
    Conflict,
    InstructionsFailed,
    SessionBusy,
    SessionNotFound,
    StaleEpoch,
    StoreError,
    TurnCancelled,
    TurnFailed,
    TurnParked,
    Unavailable,
)
from holdfast.log.events import Draft, Event
from holdfast.log.view import decode_view
from holdfast.models.base import InputJSONDelta, TextDelta, ThinkingDelta
from holdfast.schema.output import OutputShape
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store, TenantLog
from holdfast.stores.messages import message_of
from holdfast.turn.drivers import drive
from holdfast.turn.response import Response
from holdfast.turn.run_outcome import error_data, hide_error
from holdfast.turn.runtime import TurnRuntime
from holdfast.turn.start import begin_turn, resume_turn
from holdfast.turn.stream_events import (
    ContentBlockStart,
    ContentBlockStop,
    ToolProgress,
    TurnDone,
)
from holdfast.worker.admission import AdmittedRun, RunRequest, admit_message, cancel_run
from holdfast.worker.fair_queue import FairQueue
from holdfast.worker.responder import Listener, ResponderLookup
from holdfast.worker.responder import Responder as Responder
from holdfast.worker.run_callbacks import RunCallbacks, RunResult
from holdfast.worker.run_ends import outcome_label, release_leftover_lease, release_turn
from holdfast.worker.thread_shares import ThreadShares

POLL_PAGE = 500  # sessions in one query
CANCEL_GRACE_SECONDS = 0.3  # time for a cancelled turn to end by itself
# Published live, because no event of the log holds them; readers derive the rest of a stream from the events.
_DELTAS = (TextDelta, InputJSONDelta, ThinkingDelta, ContentBlockStart, ContentBlockStop, ToolProgress)


class Job(NamedTuple):
    """Work for a thread of the pool, and the tenant in whose share the thread is."""

    tenant: str
    work: Callable[[], object]


@dataclass(slots=True, eq=False)
class ActiveRun:
    """The session that a thread works on: the run, and its runtime once the turn has begun."""

    run: str = ""
    runtime: TurnRuntime | None = None


class RunPool:
    """The threads of this process that run queued messages, fair to tenants."""

    def __init__(
        self, store: Store, cast: ResponderLookup, listener: Listener, *, threads: int = 32, look_every: float = 0.5
    ) -> None:
        self.store, self._responder_for, self._listener = store, cast, listener
        self._shares = ThreadShares(threads)
        self._threads, self._look_every = self._shares.total, look_every
        self._wake = threading.Condition()
        self._ready = FairQueue()
        self._jobs: deque[Job] = deque()  # calls of `submit` that wait for their thread
        self._idle = 0  # threads without work
        self._busy: dict[int, ActiveRun] = {}  # by log number: sessions that a thread works on
        self._driven: set[str] = set()  # runs that a thread drives, also after they were cancelled
        self._moved_while_busy: set[int] = set()  # log numbers that were scheduled again while busy
        self._turns_to_reopen: dict[int, str | None] = {}  # by log number: the agent for an open turn to resume
        # By log number: turns whose lease this process still holds, because the store was unavailable at their end.
        self._unreleased: dict[int, tuple[Store, Log, str]] = {}
        self._callbacks = RunCallbacks()
        self._stopping = False
        self.is_hurried = False  # `stop` waits no longer
        self.takeovers = 0
        self.on_left: Callable[[str], None] = lambda run: None  # no thread of this process works for the run any more
        self.on_end: Callable[[str, Store, Log], None] = lambda outcome, store, log: None
        self.on_unexpected_error: Callable[[BaseException], None] = lambda error: None

    # -- from any thread -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the threads."""
        for number in range(self._threads):
            threading.Thread(target=self._run_jobs, name=f"holdfast-run-{number}", daemon=True).start()
        threading.Thread(target=self._poll_abandoned, name="holdfast-look", daemon=True).start()

    def schedule_session(self, due: TenantLog) -> None:
        """Run the queue of a session when a thread is free."""
        with self._wake:
            if self._stopping:
                return
            if due.log.number in self._busy:
                self._moved_while_busy.add(due.log.number)
            elif due.log.number not in self._ready:
                self._ready.add(due)
                self._wake.notify()

    def reopen_turn(self, store: Store, log: Log, agent: str | None) -> AdmittedRun | None:
        """Mark the open turn of a session to be resumed by the next thread; return None if no turn is open."""
        head = store.head(log)
        turn = decode_view(head.view).turn
        if turn is None:
            return None
        if turn.pending:
            raise ApprovalPending(log.id, sorted(turn.pending))
        if turn.parked:
            raise TurnParked(log.id, turn.attempts)
        lease = store.lease(log)
        if lease is None or not lease.is_alive:
            self._turns_to_reopen[log.number] = agent
        return AdmittedRun(run_id=turn.run, seq=head.head, repeated=False)

    def submit(self, tenant: str, work: Callable[[], object]) -> bool:
        """Call `work` on a free thread now; return False if no thread is free for the tenant. `work` must not raise."""
        with self._wake:
            if self._stopping or self._idle <= len(self._jobs) + len(self._ready) or not self._shares.may_take(tenant):
                return False
            self._shares.take(tenant)
            self._jobs.append(Job(tenant, work))
            self._wake.notify()
            return True

    def admit_and_run(
        self,
        store: Store,
        log: Log,
        head: Head,
        run_request: RunRequest,
        on_run_end: Callable[[str, RunResult], object] | None = None,
        on_begin: Callable[[str], object] = lambda run: None,
    ) -> Response | AdmittedRun:
        """Admit a message and begin its run on this thread in one append; only admit it if the session is busy.

        Returns the response, or the admitted run if the message was only admitted. Raises what the run raises. `head`
        is a head that the caller has read: if the session has moved since, the message is only admitted. `on_run_end`
        gets the result when the run ends, which may be earlier than this thread notices: it may wait for a model.
        `on_begin` gets the id of the run before it begins.
        """
        due = TenantLog(store.tenant, log)
        with self._wake:
            is_free = log.number not in self._busy and log.number not in self._ready
            active_run = ActiveRun()
            if is_free:
                self._busy[log.number] = active_run
        if not is_free:
            return admit_message(store, log, run_request)
        more, draft = True, None
        try:
            draft = run_request.draft(store, log)
            runtime = self._make_runtime(store, log, draft, run_request.agent)
            opening = begin_turn(
                runtime,
                run_request.message,
                run_request.metadata,
                admitting=draft,
                once=run_request.once,
                head=head,
            )
            if opening is None:
                return admit_message(store, log, run_request)
            run = draft.run or ""
            active_run.run, active_run.runtime = run, runtime
            on_begin(run)
            if on_run_end is not None:
                self.on_finished(run, partial(on_run_end, run))
            result = self._drive_turn(runtime, opening, store, log, run, direct=True)
            more = runtime.may_have_queued
        except (Conflict, SessionBusy, AlreadyAdmitted):  # another thread or process was faster
            if draft is not None:
                self._callbacks.discard(draft.run or "")  # the run is not run by this call
            return admit_message(store, log, run_request)
        finally:
            self._driven.discard(active_run.run)
            self._leave_session(due, active_run, more)
        if result is None:
            return AdmittedRun(run_id=run, seq=0, repeated=True)  # cancelled or taken over: the log has the outcome
        if isinstance(result, BaseException):
            raise result
        return result

    def on_finished(self, run: str, callback: Callable[[RunResult], object]) -> Callable[[], None]:
        """Call `callback` on a thread when this process has run a run: with its response, its error, or None if it
        ended here without either. Returns a function that removes the callback."""
        return self._callbacks.add(run, callback)

    def cancel(self, store: Store, log: Log, run: str, *, actor: str | None = None) -> bool:
        """End a run; return False if it was over. A turn of this process gets a moment to end by itself, so that the
        text that readers have seen is in the log."""
        running = self._busy.get(log.number)
        runtime = running.runtime if running is not None and running.run == run else None
        if runtime is not None and runtime.renewal is not None:
            runtime.stop()
            deadline = store.clock.monotonic() + CANCEL_GRACE_SECONDS
            while self._busy.get(log.number) is running and store.clock.monotonic() < deadline:
                store.clock.sleep(0.005)
        done = cancel_run(store, log, run, actor=actor)
        self._listener.notify_append(log)
        if done:
            if run in self._driven:
                self._callbacks.notify(run, TurnCancelled())  # its thread may hang: `on_left` follows when it is free
            else:
                self._report_end(run, TurnCancelled())
            if running is not None and runtime is not None:
                # The thread of the turn may hang: another thread must run the rest of the queue.
                self._leave_session(TenantLog(store.tenant, log), running, again=True)
            return True
        return runtime is not None and runtime.is_stop_requested

    def is_driven(self, run: str) -> bool:
        """Whether a thread of this process drives a run, also after the run was cancelled."""
        return run in self._driven

    def is_working_on(self, run: str, number: int) -> bool:
        """Whether a thread of this process still works for a run: pruning may follow its end."""
        running = self._busy.get(number)
        return running is not None and running.run == run

    def is_local_run(self, run: str, number: int) -> bool:
        """Whether a thread of this process works on the run, or will."""
        if number in self._ready or number in self._moved_while_busy or number in self._turns_to_reopen:
            return True
        running = self._busy.get(number)
        return running is not None and running.run in ("", run)

    @property
    def queue_length(self) -> int:
        return len(self._ready)

    @property
    def busy_count(self) -> int:
        return len(self._busy)

    def stop_intake(self) -> None:
        """Begin no more runs: other processes run what is queued."""
        with self._wake:
            self._stopping = True
            self._ready.clear()
            self._turns_to_reopen.clear()
            self._wake.notify_all()

    def stop(self, seconds: float) -> int:
        """Begin no more runs, and wait for running turns. Release the leases of turns that are left after `seconds`, so
        that another process takes them over at once; return their number."""
        self.stop_intake()
        clock = self.store.clock
        deadline = clock.monotonic() + seconds
        while self._busy and clock.monotonic() < deadline and not self.is_hurried:
            clock.sleep(0.02)
        left = [running for running in list(self._busy.values()) if running.runtime is not None]
        for running in left:
            assert running.runtime is not None
            release_turn(running.runtime)
            self._callbacks.notify(
                running.run, Unavailable("this server is shutting down, another one goes on: ask again", retry_after=1)
            )
        return len(left)

    # -- on the threads of the pool --------------------------------------------------------------------------------

    def _next_job(self) -> Job | None:
        with self._wake:
            while not self._jobs and not self._stopping:
                due = self._ready.take(self._shares.may_take)
                if due is not None:
                    self._shares.take(due.tenant)
                    mine = self._busy[due.log.number] = ActiveRun()
                    self._wake_another()
                    return Job(due.tenant, partial(self._run_session, due, mine))
                self._idle += 1
                self._wake.wait()
                self._idle -= 1
            return self._jobs.popleft() if self._jobs else None

    def _wake_another(self) -> None:
        """Under the lock: wake a thread for the sessions that are left. Each thread that finds one wakes the next."""
        if self._ready and self._idle:
            self._wake.notify()

    def _run_jobs(self) -> None:
        while (job := self._next_job()) is not None:
            job.work()
            with self._wake:
                self._shares.give_back(job.tenant)
                self._wake_another()

    def _run_session(self, due: TenantLog, mine: ActiveRun) -> None:
        again = False
        try:
            again = self._run_next(due, mine)
        except StoreError:
            pass  # the store is unavailable: the run is still queued, and the next poll finds it
        except SessionNotFound:
            pass
        except Exception as error:  # noqa: BLE001 - a run must not end the thread of all the others
            self.on_unexpected_error(error)
        finally:
            self._driven.discard(mine.run)
            self._leave_session(due, mine, again)

    def _report_end(self, run: str, result: RunResult) -> None:
        """Tell that no thread works for a run any more, and then its result to the requests that wait for it."""
        self.on_left(run)
        self._callbacks.notify(run, result)

    def _leave_session(self, due: TenantLog, mine: ActiveRun, again: bool) -> None:
        """End the work of a thread on a session; schedule the session again if its queue may hold more. Does nothing
        if another thread works there now, because this one hung."""
        with self._wake:
            if self._busy.get(due.log.number) is not mine:
                return
            del self._busy[due.log.number]
            again = again or due.log.number in self._moved_while_busy
            self._moved_while_busy.discard(due.log.number)
        if again:
            self.schedule_session(due)

    def _run_next(self, due: TenantLog, active_run: ActiveRun) -> bool:
        """Run the first run in the queue of a session; return whether more may be queued."""
        store, log = self.store.for_tenant(due.tenant), due.log
        view = decode_view(store.head(log).view)
        turn, must_reopen = view.turn, log.number in self._turns_to_reopen
        agent = self._turns_to_reopen.pop(log.number, None)
        if view.lifecycle != "live":
            return False
        if turn is not None and must_reopen:
            run, seq = turn.run, turn.question or turn.first
        elif view.queue:
            run, seq = view.queue[0]
        else:
            return False
        is_open = turn is not None and turn.run == run
        if turn is not None and turn.waiting and not turn.parked and not (is_open and must_reopen):
            return False  # the turn waits for a person
        begun = store.event(log, seq)  # the queued message; of a turn that was never queued, its first event
        if begun.erased and not is_open:
            self._drop_run(store, log, run, None)
            return True
        try:
            runtime = self._make_runtime(store, log, begun, agent or begun.data.get("agent"))
            opening = self._begin_turn(runtime, begun, resumed=is_open)
        except (SessionBusy, Conflict):
            return False  # another process holds the lease, and runs the queue after its turn
        except StoreError:
            raise
        except TurnCancelled:
            return True  # the run was taken from the queue since the head was read
        except TurnParked as error:
            self._report_end(run, error)
            return True
        except AgentError as error:  # it cannot begin: an unknown agent, instructions that lack state
            self._drop_run(store, log, run, error)
            return True
        if opening is None:
            return False
        if is_open and not must_reopen:
            self.takeovers += 1
        active_run.run, active_run.runtime = run, runtime
        self._drive_turn(runtime, opening, store, log, run)
        return runtime.may_have_queued

    def _make_runtime(self, store: Store, log: Log, begun: Event | Draft, agent: str | None) -> TurnRuntime:
        part = self._responder_for(store, log, agent)
        options = dict(begun.data.get("options", {}))
        schema = options.pop("schema", None)
        shape = None if schema is None else OutputShape.from_log(schema)
        runtime = TurnRuntime(
            store,
            log,
            part.plan,
            session=part.session,
            shape=shape,
            options=options,
            run=begun.run,
        )
        runtime.is_detached = True
        return runtime

    def _begin_turn(self, runtime: TurnRuntime, queued: Event, *, resumed: bool) -> list[Draft] | None:
        if resumed:
            return [] if resume_turn(runtime) else None
        (row,) = runtime.store.read(runtime.log, queued.seq, queued.seq)
        message = message_of(runtime.store, runtime.log, row)
        return begin_turn(runtime, message, queued.data.get("metadata"), queued=queued)

    def _drive_turn(
        self, runtime: TurnRuntime, opening: list[Draft], store: Store, log: Log, run: str, *, direct: bool = False
    ) -> RunResult:
        """Drive a turn, publish its deltas and return its result. A `direct` turn is admitted by its first append: if
        that append is refused, its error is raised."""
        result: RunResult = None
        publish, at, n = self._listener.publish_delta, -1, 0
        self._driven.add(run)
        try:
            for event in drive(runtime, opening):
                if runtime.last_seq != at:  # the turn appended something
                    at, n = runtime.last_seq, 0
                    self._listener.notify_append(log)
                if isinstance(event, _DELTAS):
                    n += 1
                    publish(log, event, at, n)
                elif type(event) is TurnDone:
                    result = event.response
        except (Conflict, SessionBusy, AlreadyAdmitted) as error:
            if runtime.renewal is None:
                if direct:
                    raise
                return None  # another process began it first
            result = error
        except StaleEpoch:
            result = None  # cancelled or taken over: the log has the outcome
        except StoreError as error:
            result = error if runtime.renewal is None else None  # a begun turn is resumed when the store is back
            self._unreleased[log.number] = (store, log, run)
        except AgentError as error:
            result = error
            cause = error.__cause__
            if isinstance(error, TurnFailed) and cause is not None and not isinstance(cause, AgentError):
                self.on_unexpected_error(cause)
                if not isinstance(error, InstructionsFailed):  # which names the function, and hides the rest itself
                    result = error = hide_error(cause)
            if runtime.renewal is None:  # it was refused before its first append
                if direct:
                    raise error
                self._drop_run(store, log, run, error)
        finally:
            self._listener.notify_append(log)
        if runtime.has_retention and isinstance(result, Response):
            with suppress(AgentError):
                runtime.session.prune_if_due()
        crashpoint("run over")
        self.on_end(outcome_label(result), store, log)
        self._report_end(run, result)
        return result

    def _drop_run(self, store: Store, log: Log, run: str, error: AgentError | None) -> None:
        """Take a run that cannot begin out of the queue, with the reason."""
        data: dict[str, Any] = {}
        if error is not None:
            data["error"] = error_data(error)
        store.append(log, [Draft(type="run.dropped", run=run, data=data)])
        self._listener.notify_append(log)
        self.on_end(outcome_label(error or TurnCancelled()), store, log)
        self._report_end(run, error or TurnCancelled())

    # -- runs of other processes -----------------------------------------------------------------------------------

    def _poll_abandoned(self) -> None:
        """Find queued runs that no process works on: their process died, or a process without threads admitted them."""
        while not self._stopping:
            with suppress(AgentError):
                self._release_leftover_leases()
                self._start_abandoned_runs()
            self.store.clock.sleep(self._look_every)

    def _release_leftover_leases(self) -> None:
        """Release leases that this process holds for turns it no longer runs, so that they are taken over at once."""
        for number, (store, log, run) in list(self._unreleased.items()):
            if number not in self._busy:
                release_leftover_lease(store, log, run)
                self._unreleased.pop(number, None)

    def _start_abandoned_runs(self) -> None:
        """Schedule every session with queued runs and no live lease."""
        after = 0
        while found := self.store.logs_with_queued_runs(after=after, limit=POLL_PAGE):
            after = found[-1].log.number
            for due in found:
                is_ours = due.log.number in self._busy or due.log.number in self._ready
                if not is_ours and (due.lease is None or not due.lease.is_alive):
                    self.schedule_session(due)
