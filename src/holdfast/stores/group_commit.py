"""Group commit on the one connection that writes to a SQLite file.

There is a leader, and there are followers. A thread that finds no leader leads: it commits every queued job, with a
savepoint for each, then wakes the first thread that queued a job since. A job returns only after the COMMIT that
contains it.

A leader can be interrupted at any instruction, by Ctrl-C for example. Jobs stay in the queue until they are settled,
and `_settle` finds out from the connection how a batch ended, so the next leader settles what the last one left.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

import apsw

from holdfast.clock import Clock
from holdfast.crashpoints import crashpoint
from holdfast.diagnostics import SLOW_SECONDS, report_slow_store
from holdfast.errors import AgentError, StoreError, StoreReentered
from holdfast.stores.places import POLL_SECONDS, Call, Places
from holdfast.stores.write_faults import LASTING_FAULTS

T = TypeVar("T")
Connection = apsw.Connection

MAX_BATCH = 64
_MAIN_THREAD = threading.main_thread().ident


class _Job(Call):
    """A write that waits for its turn."""

    __slots__ = ("error", "is_cancelled", "is_done", "result", "run", "wake")

    def __init__(self, run: Callable[[Connection], Any], frame: FrameType) -> None:
        super().__init__(frame)
        self.run = run
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.is_cancelled = False  # its caller was interrupted
        self.wake: threading.Lock | None = None  # held while the thread of the job waits


class GroupCommit(ABC):
    """The queue of writes to one file. `SQLiteFile` has the connection."""

    path: str
    clock: Clock
    poison_reason: str | None
    write_fault: StoreError | None
    _writer: Connection

    def _reset_queue(self) -> None:
        self.max_batch = MAX_BATCH
        self._lead = Places()  # held by the call that uses the writer
        self._queue: deque[_Job] = deque()
        self._batch: list[_Job] = []  # jobs of the transaction that a leader began and has not settled
        self._has_run = False  # every job of the batch has run: the transaction is open, or it was committed

    @abstractmethod
    def check_writable(self) -> None:
        """Raise if the file is closed or poisoned."""

    @abstractmethod
    def check_file(self) -> None:
        """Raise if the file must not be written to: it is closed, poisoned or replaced."""

    @abstractmethod
    def _translate_errors(self) -> AbstractContextManager[None]:
        """A block whose errors of SQLite are raised as ours."""

    @abstractmethod
    def _translate(self, error: apsw.Error) -> StoreError: ...

    def write(self, run: Callable[[Connection], T]) -> T:
        """Run a job in a transaction, together with the other queued jobs, and return when it is durable."""
        self.check_writable()
        job = _Job(run, sys._getframe())
        try:
            self._queue.append(job)
            while not job.is_done:
                if self._lead.try_take(job):
                    try:
                        if not job.is_done:
                            self._commit_queued(job)
                    finally:
                        self._give_up_lead(job)
                else:
                    self._wait(job)
        except BaseException:  # a signal, for example: if it is too late to leave the queue, the outcome is unknown
            job.is_cancelled = True
            raise
        finally:
            job.end()
        if job.error is not None:
            if isinstance(job.error, LASTING_FAULTS):
                self.write_fault = job.error
            raise job.error
        self.write_fault = None
        result: T = job.result
        return result

    def _wait(self, job: _Job) -> None:
        """Until the job is done, or it is this thread's turn to lead."""
        if self._lead.is_held_here():
            raise StoreReentered(
                f"this thread was interrupted inside a write to {self.path}, by a signal handler or a finalizer that "
                "writes as well: let it set a flag or start a thread, and write from there"
            )
        wake = job.wake = threading.Lock()
        wake.acquire()
        if job.is_done or self._lead.try_take(job):  # the leader left before it could wake this thread
            return
        if not wake.acquire(timeout=POLL_SECONDS):
            self._lead.clear_left()

    def _give_up_lead(self, call: Call) -> None:
        """End the lead of a call, and wake the first thread that waits."""
        self._lead.release(call)
        for waiting in list(self._queue):
            if not waiting.is_done and not waiting.is_cancelled:
                _wake(waiting)
                break

    def _run_alone(self, action: Callable[[Connection], T]) -> T:
        """Run an action on the writer, outside of a transaction."""
        call = Call(sys._getframe())
        if not self._lead.take(call):
            raise StoreReentered(f"this thread was interrupted inside a write to {self.path}: do this from a thread")
        try:
            self._settle()
            return action(self._writer)
        finally:
            self._give_up_lead(call)
            call.end()

    def _commit_queued(self, mine: _Job) -> None:
        """Commit the jobs of the queue, and settle what came of it."""
        began = self.clock.monotonic()
        self._settle()
        batch = self._take_batch(mine)
        interrupt: Exception | None = None
        try:
            interrupt = self._commit(batch)
        except AgentError as error:
            if isinstance(error, StoreReentered):
                raise  # by a signal handler of this thread: no answer to the other jobs
            self._roll_back()
            for job in batch:
                job.error = job.error or error
            self._close_batch(batch)
        finally:
            self._settle()
        if interrupt is not None:
            raise interrupt
        seconds = self.clock.monotonic() - began
        if seconds > SLOW_SECONDS:
            report_slow_store(self.path, seconds)

    def _take_batch(self, mine: _Job) -> list[_Job]:
        """The first jobs of the queue. They stay in the queue until they are settled."""
        queue = self._queue
        if len(queue) == 1:
            return [mine]
        while queue and (queue[0].is_done or queue[0].is_cancelled):
            queue.popleft()
        return list(islice((job for job in list(queue) if not (job.is_done or job.is_cancelled)), self.max_batch))

    def _commit(self, batch: list[_Job]) -> Exception | None:
        """Run jobs in a transaction and commit it. Returns what `_run_in_savepoint` returned for one of them."""
        db = self._writer
        with self._translate_errors():
            self.check_file()
            self._has_run, self._batch = False, batch
            interrupt: Exception | None = None
            db.execute("BEGIN IMMEDIATE")
            if len(batch) == 1:
                batch[0].result = batch[0].run(db)
            else:
                for job in batch:
                    interrupt = self._run_in_savepoint(db, job) or interrupt
            crashpoint("before commit")
            self._has_run = True
            try:
                db.execute("COMMIT")
            except apsw.Error:
                self._has_run = False  # the connection may have rolled back by itself, which looks like a commit
                raise
            crashpoint("after commit")
            return interrupt

    def _settle(self) -> None:
        """Answer the jobs of the last batch, or leave them in the queue if their transaction was not committed.

        A transaction that is open was interrupted. One that is closed, with jobs that all ran, was committed: only the
        COMMIT closes it after they ran.
        """
        batch = self._batch
        if not batch:
            return
        if self._writer.in_transaction:
            self._roll_back()
        elif self._has_run:
            self._close_batch(batch)
        self._batch = []

    def _roll_back(self) -> None:
        self._has_run = False
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _close_batch(self, batch: list[_Job]) -> None:
        """Mark the jobs of a batch as done, and wake their threads."""
        for job in batch:
            job.is_done = True
            _wake(job)
        queue = self._queue
        while queue and (queue[0].is_done or queue[0].is_cancelled):
            queue.popleft()

    def _run_in_savepoint(self, db: Connection, job: _Job, *, is_repeated: bool = False) -> Exception | None:
        """Run one job of several. Returns an exception that a signal handler raised meanwhile in this thread."""
        interrupt: Exception | None = None
        job.error = None
        db.execute("SAVEPOINT job")
        try:
            job.result = job.run(db)
        except Exception as error:  # refused, or broken: the others go on
            if isinstance(error, StoreReentered):
                raise
            job.error = self._translate(error) if isinstance(error, apsw.Error) else error
            if not db.in_transaction or self.poison_reason:
                raise  # SQLite rolled back the transaction, or the state on disk is unknown: the other jobs fail too
            db.execute("ROLLBACK TO job")
            # Signal handlers run in the main thread and raise there, whichever job it runs: a time limit of a task
            # queue does. The job itself raises again when it is run again.
            if not is_repeated and job.thread != _MAIN_THREAD == threading.get_ident():
                self._run_in_savepoint(db, job, is_repeated=True)
                interrupt = error if job.error is None else None
        db.execute("RELEASE job")
        return interrupt


def _wake(job: _Job) -> None:
    """Wake the thread of a job, if it waits."""
    wake, job.wake = job.wake, None
    if wake is not None:
        wake.release()
