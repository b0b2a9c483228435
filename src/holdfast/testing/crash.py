"""Processes that die on purpose, and what had been acknowledged to them by then.

    def work(acknowledge):
        with MyStore(path) as store:                    # its own: a connection does not survive a fork
            for number in count():
                store.append(...)
                acknowledge(number)                     # after the call, so that the parent knows what may not be lost

    for point in crash_points(work):                    # every crash point that the work passes, one after the other
        died = dying(work, at=point)

What must stay true: the parent knows an acknowledgement if and only if its `acknowledge` wrote all of it to the pipe,
independent of the child's later fate. Children are forked, which is quick (nothing is imported again) and needs a
parent whose other threads hold no locks. Windows has no fork.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Self

from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import UnsupportedSystem
from holdfast.operating_system import KILL_SIGNAL

CHILD_TIMEOUT = 60.0  # seconds for a child that takes well under one when all is well

Acknowledge = Callable[[Any], None]  # takes any JSON
Work = Callable[[Acknowledge], object]


class Point(NamedTuple):
    """The `nth` time, from 1, that the crash point `name` is reached."""

    name: str
    nth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a child ended."""

    acknowledged: list[Any]
    killed: bool
    error: str | None = None  # what it raised, or that it had to be ended because it hung


class Child:
    """A forked process that does some work and tells what is acknowledged to it. As a block, it is ended at the end."""

    def __init__(self, work: Work, *, at: Point | None = None, trace: bool = False) -> None:
        self.acknowledged: list[Any] = []  # as far as it was read
        self.passed: list[str] = []  # crash points, if traced
        self._taken = 0  # how many of them `next` gave
        self._error: str | None = None
        self._buffer = b""
        self._status: int | None = None
        self._pipe: int
        self.pid: int
        if sys.platform == "win32":
            raise UnsupportedSystem("the crash kit forks, which Windows cannot: run these tests on Linux or macOS")
        self._pipe, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            _run_child(work, at, trace, theirs)
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has been waited for."""
        if self._status is None:
            os.kill(self.pid, number)

    def next(self, patience: float = CHILD_TIMEOUT) -> Any:  # noqa: ANN401 - any JSON
        """The next thing that is acknowledged; EOFError if the child ended instead, TimeoutError if it takes long."""
        deadline = time.monotonic() + patience
        while len(self.acknowledged) == self._taken:
            if not self._read(deadline):
                raise EOFError(self._error or "the child ended and acknowledged nothing more")
        self._taken += 1
        return self.acknowledged[self._taken - 1]

    def kill(self) -> End:
        """End it at once, in any state."""
        self.signal(KILL_SIGNAL)
        return self.wait()

    def wait(self, patience: float = CHILD_TIMEOUT) -> End:
        """Let it come to its end; one that does not is killed, and that is its error."""
        if not self.watch(patience):
            self._error = "the child hung: it told nothing more and did not end"
            self.signal(KILL_SIGNAL)
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
            os.close(self._pipe)
        killed = os.waitstatus_to_exitcode(self._status) == -KILL_SIGNAL
        return End(acknowledged=self.acknowledged, killed=killed, error=self._error)

    def watch(self, seconds: float) -> bool:
        """Take in what it tells for so long, so that `next` waits for what comes later; True as soon as it ended."""
        deadline = time.monotonic() + seconds
        try:
            while self._status is None and self._read(deadline):
                pass
        except TimeoutError:
            return False
        finally:
            self._taken = len(self.acknowledged)
        return True

    def _read(self, deadline: float) -> bool:
        """Read the child's messages; False once it is gone."""
        readable, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise TimeoutError("the child told nothing in time")
        chunk = os.read(self._pipe, 1 << 16)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            kind, value = json.loads(line)
            if kind == "acknowledged":
                self.acknowledged.append(value)
            elif kind == "passed":
                self.passed.append(value)
            else:
                self._error = value
        return bool(chunk)


def run_in_child(work: Work, *, at: Point | None = None, after: float | None = None) -> End:
    """Do the work in a process that is killed at a crash point or `after` seconds; without either it is not."""
    with Child(work, at=at) as child:
        if after is None:
            return child.wait()
        child.watch(after)
        return child.kill()


def crash_points(work: Work) -> list[Point]:
    """Do the work to its end in a process of its own, and list the crash points that it passes, in order."""
    with Child(work, trace=True) as child:
        end = child.wait()
    if end.error is not None or end.killed:
        raise RuntimeError(end.error or "the child was killed")
    return [Point(name, child.passed[: index + 1].count(name)) for index, name in enumerate(child.passed)]


def _run_child(work: Work, at: Point | None, trace: bool, pipe: int) -> NoReturn:
    """The life of a child. It leaves by `os._exit`: what it inherited must not be flushed or closed a second time."""
    lock = threading.Lock()
    status = 1

    def tell(kind: str, value: object) -> None:
        line = json.dumps([kind, value]).encode() + b"\n"
        with lock:
            while line:
                line = line[os.write(pipe, line) :]

    try:
        arm_crashpoints(_kill_at(at) if at else (lambda name: tell("passed", name)) if trace else None)
        work(lambda value: tell("acknowledged", value))
        status = 0
    except BaseException:  # noqa: BLE001 - the parent reports every exception
        tell("raised", traceback.format_exc())
    finally:
        os._exit(status)


def _kill_at(at: Point) -> Callable[[str], None]:
    lock = threading.Lock()
    left = at.nth

    def action(name: str) -> None:
        nonlocal left
        if name == at.name:
            with lock:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), KILL_SIGNAL)

    return action
