"""Exceptions that strike anywhere: Ctrl-C, a time limit of a task queue, a signal handler that writes, the collector.

A child process does the work of a session. An injector raises KeyboardInterrupt in it: first at the bytecodes of
holdfast's own code, one after the other, then from a timer at random instants, while other threads write. After each
interrupt the session must take a write of the same thread, of another thread and of another connection, and hold what
was acknowledged once. A child that hangs is a failure.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.kit.postgres import PostgresServer
from tests.proofs import Report, proof
from tests.proofs.models import make_directory

PATIENCE = 400  # seconds for a child that works for a minute
STEP_PATIENCE = 40.0  # seconds for a write or a turn after an interrupt
SOURCE = str(Path(__file__).parents[2] / "src" / "holdfast")
KINDS = ("append", "state", "run", "stream", "fork", "read")
THREADS = 3


@proof("B27", ci=120, long=2000)
def interrupts_at_bytecodes(size: int, seed: int) -> Report:
    """KeyboardInterrupt at the bytecodes of each kind of work, spread evenly over all of them."""
    return run_children("bytecodes", size, seed)


@proof("B27", ci=150, long=2000)
def interrupts_at_random(size: int, seed: int) -> Report:
    """KeyboardInterrupt and an ordinary exception from a timer, while other threads write."""
    return run_children("random", size, seed)


@proof("B27", ci=60, long=2000)
def writes_inside_writes(size: int, seed: int) -> Report:
    """Signal handlers that write, and streams that the collector closes, in the middle of writes."""
    return run_children("nested", size, seed)


def run_children(way: str, size: int, seed: int) -> Report:
    """Do the work in a child process on each store, and collect what it found."""
    figures, failures = Counter[str](), list[str]()
    with make_directory() as directory, PostgresServer() as server:
        for name, url in (("sqlite", f"sqlite:///{directory}/a.db"), ("postgres", server.database(tcp=True))):
            found, complaints = run_child(way, size, seed, url)
            figures.update({f"{name} {what}": number for what, number in found.items()})
            failures += [f"{name}: {complaint}" for complaint in complaints]
    return Report(figures=", ".join(f"{number} {what}" for what, number in figures.items()), failures=failures)


def run_child(way: str, size: int, seed: int, url: str) -> tuple[dict[str, int], list[str]]:
    command = [sys.executable, "-m", "tests.proofs.interrupts", way, str(size), str(seed), url]
    # A turn that is interrupted while it is being ended leaves its lease to run out.
    environment = {**os.environ, "HOLDFAST_LEASE_SECONDS": "1.5"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        return {}, [f"hung: {str(error.stderr)[-1500:]}"]
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {}, [f"ended with {done.returncode}: {done.stderr[-1500:]}"]
    answer = json.loads(lines[-1])
    return answer["figures"], answer["failures"]


# -- in the child ------------------------------------------------------------------------------------------------------


class Injector:
    """Raises KeyboardInterrupt at one bytecode of holdfast, counted from the start of a call on this thread."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0
        self.has_struck = False
        self.place = ""

    def __enter__(self) -> Injector:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                self.has_struck = True
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno} +{frame.f_lasti}"
                raise KeyboardInterrupt
        return self._trace


class Workshop:
    """A session, what was acknowledged in it, and the checks after an interrupt."""

    def __init__(self, url: str, seed: int) -> None:
        from holdfast import Agent, Message, Session, tool
        from holdfast.stores import PostgresStore, SQLiteStore
        from holdfast.testing import call

        path = url.removeprefix("sqlite:///")
        self.store, self.other = (PostgresStore(url) if path == url else SQLiteStore(path) for _ in range(2))
        self.message, self.session_class = Message, Session
        self.random = random.Random(seed)

        @tool
        def look(item: str) -> str:
            """Look something up."""
            return f"{item} is there"

        replies = [call("look", {"item": "tea"}), "done"]
        self.agent = Agent(provider="scripted", script=replies * 100_000, tools=[look])
        self.talker = Agent(
            provider="scripted", script=["an answer of several pieces, which are not all read"] * 10_000
        )
        self.failures: list[str] = []
        self.figures = Counter[str]()
        self._number = 0
        self.begin_session()

    def begin_session(self) -> None:
        """Go on in a new session: a turn reads the messages before it, and a long session would slow the proof down."""
        self._number += 1
        self.session = self.session_class(f"main {self._number}", store=self.store, agent=self.agent)
        self.acknowledged = Counter[str]()
        self.attempted = Counter[str]()

    def name(self) -> str:
        self._number += 1
        return f"text {self._number}"

    def work(self, kind: str) -> Callable[[], None]:
        """One piece of work, which counts what it acknowledges."""
        text = self.name()
        session = self.session
        if kind == "append":
            self.attempted[text] += 1
            return lambda: self._acknowledge(text, session.add_message(self.message.user(text)))
        if kind == "state":
            return lambda: session.set_state("key", text)
        if kind == "fork":
            return lambda: self._discard(session.fork())
        if kind == "read":
            return lambda: self._discard(session.history(limit=20))
        if kind == "stream":
            self.attempted[text] += 1
            return lambda: self._leave_stream(text)
        self.attempted[text] += 1
        return lambda: self._acknowledge(text, session.run(text))

    def _leave_stream(self, text: str) -> None:
        for event in self.session.stream(text):
            if event.type == "tool_result":
                break

    def _discard(self, _: object) -> None: ...

    def _acknowledge(self, text: str, _: object) -> None:
        self.acknowledged[text] += 1

    def check_usable(self, place: str) -> None:
        """The session takes writes of this thread, of another one and of another connection, and a turn."""
        self.work("append")()
        for what, store in (("another thread", self.store), ("another connection", self.other)):
            done: list[object] = []
            text = self.name()
            self.attempted[text] += 1
            thread = threading.Thread(target=self._add, args=(store, text, done), daemon=True)
            thread.start()
            thread.join(STEP_PATIENCE)
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                raise SystemExit(f"{what} hangs after an interrupt at {place}")
            if done != ["added"]:
                self.failures.append(f"{what} after an interrupt at {place}: {done}")
            else:
                self.acknowledged[text] += 1

    def _add(self, store: Any, text: str, done: list[object]) -> None:
        try:
            self.session_class.open(self.session.id, store=store).add_message(self.message.user(text))
            done.append("added")
        except BaseException as error:
            done.append(repr(error))

    def check_turn(self, place: str) -> None:
        """The session runs a turn, once the lease of an interrupted one is free."""
        text = self.name()
        self.attempted[text] += 1
        try:
            self.session.run(text, timeout=STEP_PATIENCE)
            self.acknowledged[text] += 1
        except Exception as error:
            self.failures.append(f"a turn after an interrupt at {place}: {error!r}")

    def is_long(self) -> bool:
        return sum(self.attempted.values()) > 100

    def end_session(self, place: str) -> None:
        """Check that the session still runs a turn, check its log, and go on in another one."""
        self.check_turn(place)
        self.check_log()
        self.begin_session()

    def check_log(self) -> None:
        """Everything acknowledged is there, nothing is there more often than it was tried, and the chain holds."""
        found = Counter(message.text for message in self.session.history() if message.role == "user")
        for text, number in self.acknowledged.items():
            if found[text] != number:
                self.failures.append(f"{text!r} was acknowledged {number} times and is there {found[text]} times")
        for text, number in found.items():
            if number > max(1, self.attempted[text]):
                self.failures.append(f"{text!r} is there {number} times")
        for store in (self.store, self.other):
            session = self.session_class.open(self.session.id, store=store)
            if not session.verify().ok:
                self.failures.append(f"the chain is broken: {session.verify()}")

    def report(self) -> None:
        self.check_log()
        self.store.close()
        self.other.close()
        print(json.dumps({"figures": self.figures, "failures": self.failures[:50]}))


def strike_bytecodes(shop: Workshop, size: int, kinds: Sequence[str] = KINDS) -> None:
    """Interrupt each kind of work at evenly spread bytecodes, `size` for each kind."""
    for kind in kinds:
        shop.work(kind)()  # imports and caches
        with Injector(None) as counted:
            shop.work(kind)()
        shop.figures[f"bytecodes of {kind}"] = counted.count
        step = max(1, counted.count // size)
        for at in range(1 + shop.random.randrange(step), counted.count + 1, step):
            task = shop.work(kind)
            injector = Injector(at)
            try:
                with injector:
                    task()
            except KeyboardInterrupt:
                pass
            shop.figures["interrupts"] += injector.has_struck
            shop.check_usable(f"{kind} {injector.place}")
            if kind in ("run", "stream") and shop.random.random() < 0.2:
                shop.check_turn(f"{kind} {injector.place}")
            if shop.is_long():
                shop.end_session(kind)
        shop.end_session(kind)


def strike_at_random(shop: Workshop, size: int) -> None:
    """Interrupt the main thread from a timer while other threads write to sessions of their own."""
    ended, struck = threading.Event(), threading.Event()
    refused: list[str] = []
    written = Counter[str]()

    def write(name: str) -> None:
        session = shop.session_class(name, store=shop.store)
        while not ended.is_set():
            try:
                session.add_message(shop.message.user("more"))
                written[name] += 1
                time.sleep(0.002)
            except BaseException as error:  # no interrupt of the main thread may end up here
                refused.append(repr(error))

    def strike(*_: object) -> None:
        struck.set()
        raise KeyboardInterrupt if shop.random.random() < 0.5 else TimeoutError("a time limit of a task queue")

    signal.signal(signal.SIGALRM, strike)
    threads = [threading.Thread(target=write, args=(f"thread {number}",), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for _ in range(size):
        struck.clear()
        task = shop.work(shop.random.choice(KINDS))
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, shop.random.uniform(0.0001, 0.012))
                while not struck.is_set():  # Python drops an exception that strikes while it closes a generator
                    task()
                    task = shop.work(shop.random.choice(KINDS))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, TimeoutError):
            shop.figures["interrupts"] += 1
        except Exception as error:  # the interrupt struck where it became the failure of a turn
            if "time limit" not in f"{error!r} {error.__cause__!r} {error.__context__!r}":
                shop.failures.append(f"instead of the interrupt: {error!r}")
            shop.figures["interrupts"] += 1
        shop.check_usable("random")
        if shop.is_long():
            shop.end_session("random")
    ended.set()
    for thread in threads:
        thread.join(STEP_PATIENCE)
    shop.failures += [f"a thread that was not interrupted: {text}" for text in refused[:5]]
    for name, number in written.items():
        found = len(shop.session_class.open(name, store=shop.other))
        if found != number:
            shop.failures.append(f"{name}: {number} acknowledged, {found} there")
    shop.figures["writes of other threads"] = sum(written.values())
    shop.check_turn("random")


def write_inside_writes(shop: Workshop, size: int) -> None:
    """Write from a signal handler, and let the collector close streams, while this thread writes."""
    from holdfast.errors import StoreError

    session = shop.session

    def handle(*_: object) -> None:
        try:
            shop.work("append")()
            shop.figures["written by a handler"] += 1
        except StoreError:
            shop.figures["refused to a handler"] += 1

    def leave_stream() -> None:
        stream = shop.session_class(f"left {shop.name()}", store=shop.store, agent=shop.talker).stream("go")
        cycle: list[Any] = [stream]
        cycle.append(cycle)
        for event in stream:
            if event.type == "text_delta":
                break
        shop.figures["streams for the collector"] += 1

    signal.signal(signal.SIGALRM, handle)
    gc.set_threshold(53, 3, 3)
    for number in range(size):
        signal.setitimer(signal.ITIMER_REAL, shop.random.uniform(0.0001, 0.004))
        if number % 4 == 0:
            leave_stream()
        for _ in range(4):
            shop.work("append")()
        signal.setitimer(signal.ITIMER_REAL, 0)
    gc.set_threshold(700, 10, 10)
    gc.collect()
    shop.check_usable("a handler")
    deadline = time.monotonic() + STEP_PATIENCE
    names = [each.id for each in shop.session_class.list(store=shop.other, limit=100_000) if each.id.startswith("left")]
    for name in names:  # each stream that was left is cancelled, by another thread
        left = shop.session_class.open(name, store=shop.other)
        while (types := [event.type for event in left.events()])[
            -1
        ] != "turn.cancelled" and time.monotonic() < deadline:
            time.sleep(0.05)
        if types[-1] != "turn.cancelled":
            shop.failures.append(f"{name} ends with {types[-3:]}")
    session.add_message(shop.message.user("at the end"))


WAYS = {"bytecodes": strike_bytecodes, "random": strike_at_random, "nested": write_inside_writes}


def main() -> None:
    way, size, seed, url = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    faulthandler.dump_traceback_later(PATIENCE - 20, exit=True)
    shop = Workshop(url, seed)
    WAYS[way](shop, size)
    shop.report()


if __name__ == "__main__":
    main()
