"""Detectors of bugs in interrupted and abandoned calls. They return what they found; nothing means all is well."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from holdfast import Agent, Message, Session
from holdfast.errors import StoreError, StorePoisoned, StoreReentered
from holdfast.stores import PostgresStore, SQLiteStore
from tests.kit.proxy import PostgresProxy
from tests.proofs import interrupts
from tests.proofs.models import make_directory

HANG_SECONDS = 12.0


@contextmanager
def end_if_it_hangs(seconds: float = HANG_SECONDS) -> Iterator[None]:
    """End this process when the block takes too long: a thread that waits for itself cannot be ended otherwise."""
    timer = threading.Timer(seconds, os._exit, args=(1,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def detect_interrupted_writes(seed: int) -> list[str]:
    with make_directory() as directory, end_if_it_hangs():
        shop = interrupts.Workshop(f"sqlite:///{directory}/a.db", seed)
        interrupts.strike_bytecodes(shop, 250, kinds=("append",))
        shop.check_log()
        return shop.failures


def detect_interrupted_leader(seed: int) -> list[str]:
    return [*_interrupt_leader(KeyboardInterrupt), *_interrupt_leader(TimeoutError)]


def _interrupt_leader(interrupt: type[BaseException]) -> list[str]:
    """This thread leads a batch of three jobs, and a signal handler raises while it runs the second one."""
    gate, answers, struck, main = threading.Event(), list[str](), list[bool](), threading.get_ident()
    with make_directory() as directory, SQLiteStore(f"{directory}/a.db") as store, end_if_it_hangs():

        def work(db: Any) -> None:
            if threading.get_ident() == main and not struck:
                struck.append(True)
                raise interrupt("a signal handler raises")

        def write(job: Callable[[Any], object]) -> None:
            try:
                store.file.write(job)
                answers.append("written")
            except BaseException as error:
                answers.append("interrupted" if threading.get_ident() == main else repr(error))

        first = threading.Thread(target=write, args=(lambda db: gate.wait(20),))
        followers = [threading.Thread(target=write, args=(work,)) for _ in range(2)]

        def start_followers() -> None:
            _wait_for(lambda: len(store.file._queue) == 2)  # the first job, and that of the main thread
            for follower in followers:
                follower.start()
            _wait_for(lambda: len(store.file._queue) == 4)
            gate.set()

        first.start()
        _wait_for(lambda: bool(store.file._batch))
        starter = threading.Thread(target=start_followers)
        starter.start()
        write(lambda db: None)
        for thread in (first, starter, *followers):
            thread.join()
    if not struck:
        return []  # a follower led, and nothing struck it
    return [] if sorted(answers) == ["interrupted", *["written"] * 3] else [f"{interrupt.__name__}: {answers}"]


def _wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def detect_writes_inside_writes(seed: int) -> list[str]:
    """A job writes to its own store, as a signal handler does that interrupts it."""
    with make_directory() as directory, SQLiteStore(f"{directory}/a.db") as store, end_if_it_hangs():
        session = Session("s", store=store)
        found: list[str] = []

        def job(db: Any) -> None:
            try:
                session.add_message(Message.user("inside"))
                found.append("a write inside a write was taken")
            except StoreReentered:
                pass

        store.file.write(job)
        session.add_message(Message.user("after"))
        if [message.text for message in session.messages] != ["after"]:
            found.append(f"{[message.text for message in session.messages]}")
        return found


def detect_collected_streams(seed: int) -> list[str]:
    """A stream is collected in the middle of a write of the same thread."""
    with make_directory() as directory, SQLiteStore(f"{directory}/a.db") as store, end_if_it_hangs():
        agent = Agent(provider="scripted", script=["an answer of several pieces"] * 3)
        session = Session("s", store=store, agent=agent)

        def leave_stream() -> None:
            stream = session.stream("go")
            cycle: list[Any] = [stream]
            cycle.append(cycle)
            next(event for event in stream if event.type == "text_delta")

        gc.disable()
        leave_stream()
        store.file.write(lambda db: gc.collect())
        gc.enable()
        deadline = time.monotonic() + 10
        while (last := session.events()[-1].type) != "turn.cancelled" and time.monotonic() < deadline:
            time.sleep(0.01)
        return [] if last == "turn.cancelled" else [f"the log ends with {last}"]


def detect_silent_server(seed: int) -> list[str]:
    """PostgreSQL falls silent, and comes back."""
    dsn = os.environ["HOLDFAST_PROVE_SERVER"]
    found: list[str] = []
    with PostgresProxy(int(str(conninfo_to_dict(dsn)["port"]))) as proxy, end_if_it_hangs(30.0):
        store = PostgresStore(proxy.dsn(dsn), patience=1.0)
        session = Session(store=store)
        together = threading.Barrier(4)
        with ThreadPoolExecutor(4) as threads:  # each has a connection of its own
            list(threads.map(lambda _: store.server.pool.run_once(lambda _: together.wait()), range(4)))
        proxy.delay(3600.0)
        try:
            session.add_message(Message.user("into the silence"))
            found.append("a write into the silence was acknowledged")
        except StoreError:
            pass
        if store.server.pool._idle:
            found.append(f"{len(store.server.pool._idle)} connections to a silent server are kept")
        proxy.pass_all()
        proxy.cut_all()
        session.add_message(Message.user("back"))
        store.close()
    return found


def detect_replaced_file(seed: int) -> list[str]:
    """Another file takes the name of the file of an open store."""
    with make_directory() as directory, SQLiteStore(f"{directory}/a.db") as store:
        session = Session("s", store=store)
        store.backup(f"{directory}/copy.db")
        os.replace(f"{directory}/copy.db", f"{directory}/a.db")
        try:
            session.history()
        except StorePoisoned:
            return []
        return ["a read did not notice that the file was replaced"]


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "interrupted writes": detect_interrupted_writes,
    "interrupted leader": detect_interrupted_leader,
    "writes inside writes": detect_writes_inside_writes,
    "collected streams": detect_collected_streams,
    "silent server": detect_silent_server,
    "replaced file": detect_replaced_file,
}
