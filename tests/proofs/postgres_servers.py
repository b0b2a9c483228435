"""B7 and B8: a server that restarts, a network that loses things, and processes that stop, wake and start together."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path

import psycopg

from holdfast import Message, Session
from holdfast.crashpoints import arm_crashpoints
from holdfast.errors import SessionBusy, StaleEpoch, StoreBusy, StoreReadOnly, StoreUnavailable
from holdfast.log.events import Draft
from holdfast.log.messages import Limits
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import Claim, encode_holder, lease_seconds
from holdfast.stores.lease_renewal import Renewal
from holdfast.stores.messages import message_draft
from holdfast.testing.crash import Acknowledge, Child, End
from tests.kit.crash_workload import (
    Cart,
    ExpectedStore,
    Step,
    Workspace,
    describe_difference,
    find_damage,
    generate_steps,
)
from tests.kit.postgres import PostgresServer
from tests.kit.proxy import PostgresProxy
from tests.proofs import Report, proof
from tests.proofs.crashes import Opener, make_openers, make_scratch_directory, shorten_leases
from tests.proofs.storage import check_refusal

WRITERS = 4
STARTERS = 6
FORKS = 10
LEASE = 0.15
FOREVER = 15.0  # seconds: a store that may wait half a second must not wait this long
SHARED = "shared"

# -- a server that goes away -------------------------------------------------------------------------------------------


@proof("B7", ci=10, long=500)
def restarts(size: int, seed: int) -> Report:
    """PostgreSQL crashes `size` times under four writing processes: they notice nothing, and nothing is lost."""
    rng = random.Random(seed)
    with make_scratch_directory() as directory, PostgresServer(durable=True) as server:
        dsn = server.database(tcp=True)
        with PostgresStore(dsn) as store:
            Session(id=SHARED, store=store)
        enough = directory / "enough"
        children = [Child(make_writer(dsn, name, enough)) for name in range(WRITERS)]
        longest = 0.0
        for _ in range(size):
            for child in children:
                child.watch(rng.uniform(0.02, 0.15))
            server.restart("immediate")
            began = time.monotonic()
            for child in children:  # until every writer has a new answer
                child.watch(0.0)
                with suppress(EOFError):
                    child.next()
            longest = max(longest, time.monotonic() - began)
        enough.touch()
        ends = [child.wait() for child in children]
        with PostgresStore(dsn) as store:
            failures = compare_with_writers(store, ends)
    acknowledged = sum(len(end.acknowledged) for end in ends)
    figures = (
        f"{size} crashes under {WRITERS} processes, {acknowledged} acknowledged, {len(failures)} lost or doubled; "
        f"all writing again after at most {longest:.1f} s"
    )
    return Report(figures=figures, failures=failures)


def make_writer(dsn: str, name: int, enough: Path) -> Callable[[Acknowledge], None]:
    """Add numbered messages to a session of the writer and to the shared one, with and without a key, until the end."""

    def work(acknowledge: Acknowledge) -> None:
        with PostgresStore(dsn, patience=30.0) as store:
            own, shared = Session(id=f"w{name}", store=store), Session.open(SHARED, store=store)
            for number in count():
                if enough.exists():
                    return
                text = f"{name} {number}"
                session = own if number % 2 else shared
                session.add_message(Message.user(text), once=text if number % 3 == 0 else None)
                if number % 5 == 0:
                    shared.update_state("count", lambda value: (value or 0) + 1)
                if number % 7 == 0:
                    Cart(SHARED, store=store).add(number)
                acknowledge(text)

    return work


def compare_with_writers(store: Store, ends: Sequence[End]) -> list[str]:
    """Compare the acknowledgements of the writers with the store."""
    failures = [f"writer {name}: {end.error}" for name, end in enumerate(ends) if end.error]
    sessions = [Session.open(SHARED, store=store)] + [
        Session.open(f"w{name}", store=store) for name in range(len(ends))
    ]
    there = Counter(message.text for session in sessions for message in session.messages)
    told = Counter(text for end in ends for text in end.acknowledged)
    failures += [f"{text!r} was acknowledged and is lost" for text in told - there]
    failures += [f"{text!r} is there {number} times" for text, number in there.items() if number > 1]
    failures += [f"{session.id} does not verify" for session in sessions if not session.verify()]
    if not any(end.error for end in ends):
        numbers = [int(text.split()[1]) for text in told]
        fifths, sevenths = (sum(number % every == 0 for number in numbers) for every in (5, 7))
        counted, cart = sessions[0].get_state("count"), len(Cart(SHARED, store=store).state.get("items", []))
        if (counted, cart) != (fifths, sevenths):
            failures.append(f"{fifths} updates and {sevenths} calls were acknowledged, {counted} and {cart} are there")
    return failures + find_damage(store)


# -- a network that loses things ---------------------------------------------------------------------------------------


@proof("B7", ci=200, long=20_000)
def lost_replies(size: int, seed: int) -> Report:
    """Connections cut before a request or before its reply, at any exchange of any step: every step happens once."""
    rng = random.Random(seed)
    todo = list(islice(generate_steps((seed, "network")), 60))
    failures: list[str] = []
    with PostgresServer() as server, PostgresProxy(server.port) as proxy:
        dsn = server.database(tcp=True)
        with PostgresStore(proxy.dsn(dsn)) as store, PostgresStore(dsn) as other:
            for round in count():
                if failures or proxy.requests_cut + proxy.replies_lost >= size:
                    break
                failures += run_lossy_steps(
                    Workspace(store, f"r{round}"), Workspace(other, f"r{round}"), proxy, rng, todo
                )
            cut, lost = proxy.requests_cut, proxy.replies_lost
            failures += run_crowd(proxy, store, other, rng)
    figures = (
        f"{cut} requests cut, {lost} replies lost, {proxy.connections_cut} connections cut under threads; "
        f"{len(failures)} lost or doubled"
    )
    return Report(figures=figures, failures=failures)


def run_lossy_steps(
    workspace: Workspace, other: Workspace, proxy: PostgresProxy, rng: random.Random, todo: Sequence[Step]
) -> list[str]:
    """Take the steps, losing something in each; another store looks on."""
    model = ExpectedStore()
    for step in todo:
        lose = rng.choice((proxy.cut_before, proxy.cut_replies_after))
        lose(match_after(rng.randrange(6)), times=1)
        workspace.perform(step)
        proxy.pass_all()
        model.apply(step)
        if (found := other.read_content()) != model.read_content():
            return [f"{step}: {describe_difference(model.read_content(), found)}"]
    return other.find_problems()


def match_after(exchanges: int) -> Callable[[bytes], bool]:
    """Matches the request that comes after so many others."""
    left = count(exchanges, -1)
    return lambda request: next(left) <= 0


def run_crowd(proxy: PostgresProxy, store: Store, other: Store, rng: random.Random) -> list[str]:
    """Threads write the same session while all connections are cut again and again."""
    Session(id=SHARED, store=other)
    told: list[str] = []
    errors: list[str] = []
    enough = threading.Event()

    def write(name: int) -> None:
        try:
            session = Session.open(SHARED, store=store)
            for number in count():
                if enough.is_set():
                    return
                session.add_message(Message.user(f"{name} {number}"))
                told.append(f"{name} {number}")
        except Exception as error:
            errors.append(f"thread {name}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=write, args=[name]) for name in range(WRITERS)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        time.sleep(rng.uniform(0.0, 0.03))
        proxy.cut_all()
    enough.set()
    for thread in threads:
        thread.join()
    session = Session.open(SHARED, store=other)
    there = [message.text for message in session.messages]
    if sorted(there) != sorted(told) or not session.verify():
        errors.append(f"{len(told)} were acknowledged, {len(there)} are there, {len(set(there))} of them different")
    return errors


# -- a process that was stopped ----------------------------------------------------------------------------------------


@proof("B8", ci=10, long=1000)
def zombies(size: int, seed: int) -> Report:
    """A writer is stopped past its lease, another one takes over, the first one wakes: all it does is refused."""
    figures, failures = [], []
    with make_openers(durable=False) as fresh, shorten_leases(LEASE):
        for kind, new in fresh.items():
            opener = new()
            for cycle in range(size):
                for play in (check_stopped_turn, check_stopped_call, check_dead_holder):
                    found = play(opener, f"{play.__name__}{cycle}")
                    failures += [f"{kind}, {play.__name__}, cycle {cycle}: {failure}" for failure in found]
            found = check_frozen_writer(opener)
            failures += [f"{kind}, frozen_inside: {failure}" for failure in found]
            figures.append(f"{kind} {size} zombies in a turn, {size} in a call, {size} dead holders, 1 frozen writer")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} stale writes or late takeovers", failures=failures)


@contextmanager
def open_gate() -> Iterator[tuple[Callable[[], object], Callable[[], object]]]:
    """(wait, open): a child waits where its parent wants it, so that it is stopped outside of any transaction."""
    ours, theirs = os.pipe()
    try:
        yield (lambda: os.read(ours, 1)), (lambda: os.write(theirs, b"!"))
    finally:
        os.close(ours)
        os.close(theirs)


def check_stopped_turn(opener: Opener, name: str) -> list[str]:
    """A turn appends in its epoch, under renewal; after the takeover neither append nor renewal succeed."""

    def work(acknowledge: Acknowledge) -> None:
        with opener() as store:
            log = Session(id=name, store=store).log
            epoch = store.append(log, [], claim=Claim(holder=encode_holder("turn"), seconds=lease_seconds())).epoch
            with Renewal(store, log, epoch):
                for number in range(3):
                    store.append(log, [make_note(f"turn {number}")], epoch=epoch)
                acknowledge(epoch)
                wait()
                for attempt in (
                    lambda: store.append(log, [make_note("too late")], epoch=epoch),
                    lambda: store.append(log, [make_note("too late")], epoch=epoch, once="key"),
                    lambda: store.append(log, [], epoch=epoch, release=True),
                    lambda: store.renew(log, epoch, 10.0),
                ):
                    try:
                        attempt()
                        acknowledge("accepted")
                    except StaleEpoch:
                        acknowledge("refused")

    with open_gate() as (wait, go), Child(work) as child:
        epoch = child.next()
        with opener() as store, stop_child(child, store):
            log = store.require("session", name)
            taken = take_over(store, log)
            store.append(log, [make_note("heir")], epoch=taken)
        go()
        answers = child.wait()
    with opener() as store:
        there = [message.text for message in Session.open(name, store=store).messages]
        failures = [] if store.verify(log) else ["the log does not verify"]
    if answers.error or answers.acknowledged[1:] != ["refused"] * 4:
        failures.append(f"the zombie was answered {answers.acknowledged[1:]} {answers.error or ''}")
    if there != ["turn 0", "turn 1", "turn 2", "heir"] or taken <= epoch:
        failures.append(f"the log holds {there}, epoch {taken} after {epoch}")
    return failures


def check_stopped_call(opener: Opener, name: str) -> list[str]:
    """An entity's method is stopped halfway; another process calls it; what the first one did is refused."""

    class Slow(Cart):
        def add_slowly(self, item: int) -> None:
            self.state.set("items", [*self.state.get("items", []), item])
            told("inside")
            wait()

    told: Callable[[str], None] = print

    def work(acknowledge: Acknowledge) -> None:
        nonlocal told
        told = acknowledge
        with opener() as store:
            slow = Slow(name, store=store)
            slow.add(1)
            try:
                slow.add_slowly(2)
                acknowledge("accepted")
            except StaleEpoch:
                acknowledge("refused")

    with open_gate() as (wait, go), Child(work) as child:
        child.next()
        with opener() as store, stop_child(child, store):
            Slow(name, store=store).add(3)
        go()
        answers = child.wait()
    with opener() as store:
        items = Slow(name, store=store).state.get("items")
    if answers.error or answers.acknowledged != ["inside", "refused"] or items != [1, 3]:
        return [f"the zombie was answered {answers.acknowledged} {answers.error or ''}, the cart holds {items}"]
    return []


def check_dead_holder(opener: Opener, name: str) -> list[str]:
    """A lease of a process that is dead is taken at once, however long it has to run."""

    def work(acknowledge: Acknowledge) -> None:
        store = opener()
        log = Session(id=name, store=store).log
        acknowledge(store.append(log, [], claim=Claim(holder=encode_holder("turn"), seconds=3600.0)).epoch)
        signal.pause()

    with Child(work) as child:
        epoch = child.next()
    with opener() as store:
        log = store.require("session", name)
        taken = store.append(log, [make_note("heir")], claim=Claim(holder=encode_holder("heir"), seconds=60.0)).epoch
        store.append(log, [], epoch=taken, release=True)
        return [] if taken == epoch + 1 else [f"epoch {taken} after {epoch}"]


def check_frozen_writer(opener: Opener) -> list[str]:
    """A writer is stopped inside its transaction, which no other process can end: the others must not wait for ever."""

    def freeze(point: str) -> None:
        if point == "before commit":
            arm_crashpoints(None)
            os.kill(os.getpid(), signal.SIGSTOP)

    def frozen(acknowledge: Acknowledge) -> None:
        with open_impatient_store(opener, 0.5) as store:
            session = Session(id="frozen", store=store)
            acknowledge("about to")
            arm_crashpoints(freeze)
            session.add_message(Message.user("from the frozen one"), once="a key, so that it is a transaction")

    def other(acknowledge: Acknowledge) -> None:
        with open_impatient_store(opener, 0.5) as store:
            acknowledge("open")
            wait()
            try:
                Session.open("frozen", store=store).add_message(Message.user("from another"))
                acknowledge("accepted")
            except StoreBusy:
                acknowledge("busy")

    with open_gate() as (wait, go), Child(other) as second:
        second.next()
        with Child(frozen) as child:
            child.next()
            os.waitpid(child.pid, os.WUNTRACED)
            go()
            end = second.wait(patience=FOREVER)
            child.signal(signal.SIGCONT)
            thawed = child.wait()
    failures = [f"another writer was answered {end.acknowledged} {end.error}"] if len(end.acknowledged) != 2 else []
    if thawed.error and "StoreBusy" not in thawed.error and "StoreUnavailable" not in thawed.error:
        failures.append(thawed.error)
    with opener() as store:
        return failures if Session.open("frozen", store=store).verify() else [*failures, "the log does not verify"]


def open_impatient_store(opener: Opener, seconds: float) -> Store:
    """The store, but it waits for others no longer than this."""
    with opener() as store:
        if isinstance(store, SQLiteStore):
            return SQLiteStore(store.file.path, busy_seconds=seconds)
        assert isinstance(store, PostgresStore)
        return PostgresStore(store.server.dsn, patience=seconds)


def make_note(text: str) -> Draft:
    return message_draft(Message.user(text), Limits())


def take_over(store: Store, log: Log) -> int:
    """Claim the lease as soon as it has run out; the new epoch."""
    while True:
        try:
            return store.append(log, [], claim=Claim(holder=encode_holder("heir"), seconds=60.0)).epoch
        except SessionBusy:
            time.sleep(0.005)


@contextmanager
def stop_child(child: Child, store: Store) -> Iterator[None]:
    """Stop a process outside of any transaction: its renewal may be inside of one when the signal comes."""
    while True:
        child.signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        if not isinstance(store, SQLiteStore) or is_free(store):
            break
        child.signal(signal.SIGCONT)
        time.sleep(0.001)
    try:
        yield
    finally:
        child.signal(signal.SIGCONT)


def is_free(store: SQLiteStore) -> bool:
    patience, store.file.busy_seconds = store.file.busy_seconds, 0.02
    try:
        store.file.write(lambda db: None)
        return True
    except StoreBusy:
        return False
    finally:
        store.file.busy_seconds = patience


# -- processes that start together -------------------------------------------------------------------------------------


@proof("F", ci=10, long=500)
def starts_together(size: int, seed: int) -> Report:
    """Six processes open a database that is not there yet, at once: its schema is made once, and all can write."""
    figures, failures = [], []
    with make_openers(durable=False) as fresh:
        for kind, new in fresh.items():
            for start in range(size):
                found = open_together(new())
                failures += [f"{kind}, start {start}: {failure}" for failure in found]
            figures.append(f"{kind} {size} starts of {STARTERS} processes")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrong", failures=failures)


def open_together(opener: Opener) -> list[str]:
    def starter(name: int) -> Callable[[Acknowledge], None]:
        def work(acknowledge: Acknowledge) -> None:
            wait()
            with opener() as store:
                Session(id=SHARED, user_id="u", store=store).add_message(Message.user(str(name)))
                Cart(SHARED, store=store).add(name)
            acknowledge(name)

        return work

    with open_gate() as (wait, go):
        children = [Child(starter(name)) for name in range(STARTERS)]
        for _ in children:
            go()
        ends = [child.wait() for child in children]
    failures = [end.error for end in ends if end.error]
    with opener() as store:
        session = Session.open(SHARED, store=store)
        said = sorted(message.text for message in session.messages)
        items = sorted(Cart(SHARED, store=store).state.get("items"))
        if said != [str(name) for name in range(STARTERS)] or items != list(range(STARTERS)) or not session.verify():
            failures.append(f"the session holds {said}, the cart {items}")
        return failures + find_damage(store)


# -- a store that crosses a fork ---------------------------------------------------------------------------------------


@proof("F", ci=5, long=200)
def forked_stores(size: int, seed: int) -> Report:
    """A process forks while its store is open: parent and child go on, each on its own connections and locks."""
    figures, failures = [], []
    cases = (fork_while_writing, fork_while_opening, check_parent_closes, check_parent_closes_another)
    with make_openers(durable=False) as fresh:
        for kind, new in fresh.items():
            for number in range(size):
                for case in cases:
                    failures += [f"{kind}, {case.__name__} {number}: {failure}" for failure in case(new())]
            opening = f", {size * FORKS} under another opening" if kind == "sqlite" else ""
            figures.append(f"{kind} {size} forks under a write{opening}, {2 * size} before the parent closes")
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} wrong", failures=failures)


def fork_while_writing(opener: Opener) -> list[str]:
    """One thread of the parent is in the middle of a write; several of the child start at once."""
    inside = threading.Event()
    parent = os.getpid()

    def hold(point: str) -> None:
        if point == "before commit" and os.getpid() == parent and not inside.is_set():
            inside.set()
            time.sleep(0.1)  # a fork may wait for this write, or not

    def work(acknowledge: Acknowledge) -> None:
        own = list_connections(store)
        barrier = threading.Barrier(WRITERS)

        def write(name: int) -> None:
            try:
                barrier.wait()
                used = use_connection(store)
                session.add_message(Message.user(f"child {name}"))
                acknowledge("used its parent's connection" if used in own else "")
            except Exception as error:
                acknowledge(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=write, args=[name]) for name in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with open_impatient_store(opener, 2.0) as store:
        session = Session(id=SHARED, store=store)
        session.add_message(Message.user("before"))
        arm_crashpoints(hold)
        thread = threading.Thread(target=lambda: session.add_message(Message.user("parent")))
        thread.start()
        inside.wait()
        with Child(work) as child:
            end = child.wait(patience=FOREVER)
        thread.join()
        arm_crashpoints(None)
        session.add_message(Message.user("after"))
        there = sorted(message.text for message in session.messages)
        failures = [*filter(None, end.acknowledged), *([end.error] if end.error else [])]
        if there != sorted(["before", "parent", "after", *(f"child {name}" for name in range(WRITERS))]):
            failures.append(f"the session holds {there}")
        return failures + ([] if session.verify() else ["the log does not verify"])


def fork_while_opening(opener: Opener) -> list[str]:
    """Another thread opens and closes stores all the time; a fork in the middle of that must not leave a lock held."""
    if opens_kind(opener, PostgresStore):
        return []  # what a resolver or a TLS library does while it connects is not in our hands

    def work(acknowledge: Acknowledge) -> None:
        enough = threading.Event()

        def churn() -> None:
            while not enough.is_set():
                opener().close()

        with opener() as store:
            session = Session(id=SHARED, store=store)
            thread = threading.Thread(target=churn)
            thread.start()
            for number in range(FORKS):
                with Child(lambda _: session.add_message(Message.user("child"))) as child:
                    acknowledge(child.wait(patience=FOREVER).error)
                session.add_message(Message.user(f"parent {number}"))
            enough.set()
            thread.join()

    end = Child(work).wait(patience=2 * FOREVER)
    failures = [error for error in (*end.acknowledged, end.error) if error]
    with opener() as store:
        there = len(Session.open(SHARED, store=store).messages)
        return failures if failures or there == 2 * FORKS else [f"{there} messages are there, not {2 * FORKS}"]


def check_parent_closes(opener: Opener) -> list[str]:
    """The parent closes its store and goes; its child uses the object that it inherited."""
    return check_orphaned_child(opener, inherits=True)


def check_parent_closes_another(opener: Opener) -> list[str]:
    """The parent closes its store and goes; its child has opened one of its own."""
    return check_orphaned_child(opener, inherits=False)


def check_orphaned_child(opener: Opener, *, inherits: bool) -> list[str]:
    """What a child stores after its parent is gone must be in the file that others open."""

    def work(acknowledge: Acknowledge) -> None:
        session = Session.open(SHARED, store=store if inherits else opener())
        for text in ("first", "second"):
            session.add_message(Message.user(text))
            acknowledge(text)
            wait()

    with open_gate() as (wait, go):
        store = opener()
        Session(id=SHARED, store=store)
        with Child(work) as child:
            with suppress(EOFError):
                child.next()
                store.close()
                go()
                child.next()
            end = child.kill()
    with opener() as again:
        there = [message.text for message in Session.open(SHARED, store=again).messages]
    if there != end.acknowledged or len(there) != 2:
        return [f"{end.acknowledged} were acknowledged, {there} are there {end.error or ''}"]
    return []


def opens_kind(opener: Opener, kind: type[Store]) -> bool:
    with opener() as store:
        return isinstance(store, kind)


def list_connections(store: Store) -> list[int]:
    """Ids of the connections of a store."""
    if isinstance(store, SQLiteStore):
        return [id(store.file._writer)]
    assert isinstance(store, PostgresStore)
    return [db.info.backend_pid for db in store.server.pool._idle]


def use_connection(store: Store) -> int:
    """Use a connection, and say which."""
    if isinstance(store, SQLiteStore):
        return store.file.write(id)
    assert isinstance(store, PostgresStore)
    return store.server.run_unit(lambda db: db.info.backend_pid)


# -- servers that refuse -----------------------------------------------------------------------------------------------


@proof("F", ci=2, long=50)
def awkward_servers(size: int, seed: int) -> Report:
    """A server that does not let us write, is not there or does not know us: a clear error, and it works afterwards."""
    failures: list[str] = []
    with PostgresServer() as server:
        for _ in range(size):
            failures += check_refusing_server(server, server.database(tcp=True))
    return Report(figures=f"read-only and stopped {size} times; {len(failures)} wrong", failures=failures)


def check_refusing_server(server: PostgresServer, dsn: str) -> list[str]:
    with PostgresStore(dsn, patience=0.2) as store:
        session = Session(id=SHARED, store=store)
        session.add_message(Message.user("1"))
        change_setting(server, "ALTER SYSTEM SET default_transaction_read_only = on")
        failures = check_refusal(StoreReadOnly, lambda: wait_until_refused(session))
        change_setting(server, "ALTER SYSTEM RESET default_transaction_read_only")
        wait_until_accepted(session)
        server._end(signal.SIGQUIT)
        failures += check_refusal(StoreUnavailable, lambda: session.add_message(Message.user("refused")))
        failures += check_refusal(StoreUnavailable, lambda: session.messages)
        failures += check_refusal(StoreUnavailable, lambda: PostgresStore(dsn, patience=0.2))
        server._launch(server.port)
        session.add_message(Message.user("3"))
        texts = [message.text for message in session.messages]
        if texts[:1] + texts[-2:] != ["1", "2", "3"] or "refused" in texts or not session.verify():
            failures.append(f"the session holds {texts}")
    return failures


def change_setting(server: PostgresServer, statement: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True, options="-c default_transaction_read_only=off") as db:
        db.execute(statement)
        db.execute("SELECT pg_reload_conf()")


def wait_until_refused(session: Session) -> None:
    """Write until the server refuses: its processes learn of a new setting after a moment."""
    for number in range(1000):
        session.add_message(Message.user(f"still {number}"))
        time.sleep(0.005)


def wait_until_accepted(session: Session) -> None:
    while True:
        try:
            session.add_message(Message.user("2"), once="2")
            return
        except Exception:
            time.sleep(0.005)
