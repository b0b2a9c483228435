"""B4 and B6: what a disk can do to a SQLite file, and what other programs can."""

from __future__ import annotations

import os
import pwd
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import apsw

from holdfast import Message, Session
from holdfast.errors import AgentError, CorruptLog, StoreBusy, StoreError, StoreFull, StorePoisoned, StoreReadOnly
from holdfast.stores import SQLiteStore
from holdfast.testing.crash import Acknowledge, Child, run_in_child
from tests.kit.crash_workload import (
    ExpectedStore,
    Step,
    Workspace,
    compare_with_model,
    describe_difference,
    generate_steps,
    list_every_step,
)
from tests.kit.power_loss import survey_crashes
from tests.kit.sqlite_faults import FaultVFS
from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory, shorten_leases

NAME = "s"

# -- power loss --------------------------------------------------------------------------------------------------------


def make_power_loss_workload(todo: Sequence[Step], *, synchronous: str) -> Callable[[str, str, Acknowledge], None]:
    """Steps through a recording VFS, with all that happens to a WAL: filled, checkpointed, truncated, deleted."""

    def workload(path: str, vfs: str, acknowledge: Acknowledge) -> None:
        store = SQLiteStore(path, vfs=vfs, synchronous=synchronous)
        for step in todo:
            Workspace(store, NAME).perform(step)
            acknowledge(step.number)
            if step.number % 8 == 3:
                checkpoint_wal(path, vfs, "PASSIVE" if step.number % 16 == 3 else "TRUNCATE")
            if step.number % 24 == 15:
                store.close()
                store = SQLiteStore(path, vfs=vfs, synchronous=synchronous)
        store.close()

    return workload


def checkpoint_wal(path: str, vfs: str, mode: str) -> None:
    """As another process would."""
    with apsw.Connection(path, vfs=vfs) as other:
        other.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    other.close()


def make_power_loss_check(todo: Sequence[Step]) -> Callable[[str, Sequence[int]], str | None]:
    def check(path: str, acknowledged: Sequence[int]) -> str | None:
        try:
            with SQLiteStore(path) as store:
                verdict = compare_with_model(Workspace(store, NAME), todo, len(acknowledged), repeats=False)
                Session(id="next", store=store).add_message(Message.user("life goes on"), once="k")
        except AgentError as error:
            return f"{type(error).__name__}: {error}"
        return "; ".join(verdict.failures) or None

    return check


@proof("B4", ci=1000, long=100_000)
def power_loss(size: int, seed: int) -> Report:
    """Power lost at `size` moments: with FULL nothing that was acknowledged is missing, and NORMAL is caught."""
    todo = list(islice(generate_steps((seed, "power")), 40))
    with make_scratch_directory(memory=True) as directory:
        found = survey_crashes(
            make_power_loss_workload(todo, synchronous="FULL"),
            make_power_loss_check(todo),
            seed=seed,
            states=size,
            directory=directory,
        )
        control = survey_crashes(
            make_power_loss_workload(todo, synchronous="NORMAL"),
            make_power_loss_check(todo),
            seed=seed,
            states=min(size, 200),
            directory=directory,
        )
    failures = [f"{found.complaints} states of FULL, the first {found.first}"] if found.complaints else []
    if not control.complaints:
        failures.append("the control, synchronous=NORMAL, lost nothing: the simulation sees nothing")
    figures = (
        f"FULL {found.complaints} of {found.states} states lost or broken ({found.operations} operations); "
        f"control NORMAL {control.complaints} of {control.states}"
    )
    return Report(figures=figures, failures=failures)


# -- a disk that fails -------------------------------------------------------------------------------------------------


@proof("B6", ci=1000, long=100_000)
def disk_faults(size: int, seed: int) -> Report:
    """EIO and ENOSPC at every change to the files, or at `size` of them: a defined error, and nothing lost silently."""
    todo = list_every_step()
    told: Counter[str] = Counter()
    failures: list[str] = []
    with make_scratch_directory(memory=True) as directory, shorten_leases(0.2):
        counts = count_operations(directory, todo)
        cases = [(work_on_broken_disk, index) for index in range(counts.total())]
        cases += [(work_on_full_disk, index) for index in range(counts["write"])]
        if len(cases) > size:
            cases = random.Random(seed).sample(cases, size)
        for number, (broken, index) in enumerate(cases):
            with make_scratch_directory(memory=True) as place:
                error, found = broken(str(place / "log.db"), todo, index)
            told[type(error).__name__ if error else "inside close"] += 1
            failures += [f"{broken.__name__} {index} (case {number}): {failure}" for failure in found]
    errors = ", ".join(f"{name} {number}" for name, number in sorted(told.items()))
    figures = f"{len(cases)} faults in {counts.total()} operations: {errors}; {len(failures)} silent or wrong"
    return Report(figures=figures, failures=failures)


def count_operations(directory: Path, todo: Sequence[Step]) -> Counter[str]:
    with FaultVFS() as vfs:
        with SQLiteStore(directory / "counted.db", vfs=vfs.name) as store:
            for step in todo:
                Workspace(store, NAME).perform(step)
        return vfs.counts


def work_on_broken_disk(path: str, todo: Sequence[Step], index: int) -> tuple[Exception | None, list[str]]:
    """One operation fails with EIO: the store must say so and write no more; opened again, all is there."""
    failures: list[str] = []
    with FaultVFS() as vfs:
        vfs.fail(at=index, error="EIO")
        done, error, store = take_steps(path, vfs.name, todo)
        if vfs.injected and error is None:
            failures.append("an operation failed, and nobody was told")
        if isinstance(error, StorePoisoned) and store is not None:
            try:
                Session(id="other", store=store)
                failures.append("wrote on after a failed write or flush")
            except StorePoisoned:
                pass
        if store is not None:
            close_store(store)
    failures += check_error_type(error)
    with SQLiteStore(path) as again:
        failures += compare_with_model(Workspace(again, NAME), todo, done).failures
    return error, failures


def work_on_full_disk(path: str, todo: Sequence[Step], index: int) -> tuple[Exception | None, list[str]]:
    """No write succeeds from some moment on, until there is space again: then the same store goes on."""
    failures: list[str] = []
    with FaultVFS() as vfs:
        vfs.fail(at=index, error="ENOSPC", op="write", sticky=True)
        done, error, store = take_steps(path, vfs.name, todo)
        failures += check_error_type(error)
        if error is not None and not isinstance(error, StoreFull):
            failures.append(f"a full disk was told as {type(error).__name__}: {error}")
        if store is not None and error is not None and done > 0:
            Session.open(NAME, store=store).messages  # reading goes on
        vfs.heal()
        if store is None:
            store = SQLiteStore(path, vfs=vfs.name)
        verdict = compare_with_model(Workspace(store, NAME), todo, done)
        failures += verdict.failures
        if not verdict.failures and error is not None:
            failures += finish_steps(Workspace(store, NAME), todo, done + 1)
        close_store(store)
    with SQLiteStore(path) as again:
        failures += compare_with_model(Workspace(again, NAME), todo, len(todo)).failures if not failures else []
    return error, failures


def take_steps(path: str, vfs: str, todo: Sequence[Step]) -> tuple[int, Exception | None, SQLiteStore | None]:
    """Take steps until one fails: how many were acknowledged, what was raised, and the store if it opened."""
    store, done = None, 0
    try:
        store = SQLiteStore(path, vfs=vfs)
        for step in todo:
            Workspace(store, NAME).perform(step)
            done += 1
    except Exception as error:
        return done, error, store
    return done, None, store


def finish_steps(workspace: Workspace, todo: Sequence[Step], done: int) -> list[str]:
    """Take the rest of the steps; then everything must be there."""
    model = ExpectedStore()
    for step in todo:
        model.apply(step)
    for step in todo[done:]:
        workspace.perform(step)
    found = workspace.read_content()
    return (
        []
        if found == model.read_content()
        else [f"after space was freed: {describe_difference(model.read_content(), found)}"]
    )


def check_error_type(error: Exception | None) -> list[str]:
    if error is None or isinstance(error, StoreError):
        return []
    return [f"{type(error).__name__} is no error of holdfast: {error}"]


def close_store(store: SQLiteStore) -> None:
    """Close a store on a breakable disk. SQLite swallows what fails in its last checkpoint; apsw raises it here."""
    try:
        store.close()
    except apsw.Error:
        store.file._writer.close(True)


# -- other programs ----------------------------------------------------------------------------------------------------


@proof("F", ci=3, long=50)
def awkward_files(size: int, seed: int) -> Report:
    """Files that are locked, read-only, replaced, removed or no databases: a clear error, and nothing is written."""
    failures: list[str] = []
    cases = (
        check_locked_file,
        check_read_only_file,
        check_replaced_file,
        check_removed_file,
        check_missing_wal,
        check_foreign_file,
    )
    for _ in range(size):
        for case in cases:
            with make_scratch_directory() as directory:
                failures += [f"{case.__name__}: {failure}" for failure in case(directory)]
    return Report(figures=f"{len(cases)} kinds, {size} times each; {len(failures)} wrong", failures=failures)


def check_refusal(kind: type[AgentError], action: Callable[[], object]) -> list[str]:
    """What is wrong with how an action was refused."""
    try:
        action()
    except kind:
        return []
    except Exception as error:
        return [f"{type(error).__name__} instead of {kind.__name__}: {error}"]
    return [f"was accepted, not refused with {kind.__name__}"]


def list_texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


def check_locked_file(directory: Path) -> list[str]:
    """Another process holds the write lock: StoreBusy in the end, no open transaction, and the store works again."""
    path = str(directory / "log.db")

    def hold(acknowledge: Acknowledge) -> None:
        other = apsw.Connection(path)
        other.execute("BEGIN IMMEDIATE")
        acknowledge("locked")
        signal.pause()

    with SQLiteStore(path, busy_seconds=0.1) as store:
        session = Session(id=NAME, store=store)
        with Child(hold) as child:
            child.next()
            failures = check_refusal(StoreBusy, lambda: session.add_message(Message.user("refused")))
            with SQLiteStore(path, busy_seconds=0.1) as another:  # a schema that is there needs no lock
                if list_texts(Session.open(NAME, store=another)) != []:
                    failures.append("opening and reading do not go on")
            if store.file._writer.in_transaction:
                failures.append("a transaction was left open")
            if list_texts(session) != []:
                failures.append("reading does not go on")
        session.add_message(Message.user("accepted"))
        return failures if list_texts(session) == ["accepted"] else [*failures, f"holds {list_texts(session)}"]


def check_read_only_file(directory: Path) -> list[str]:
    """A file or folder that this user cannot write: StoreReadOnly at once, and the file is as it was."""
    directory.chmod(0o755)
    failures: list[str] = []
    for file_mode, folder_mode in ((0o444, 0o777), (0o444, 0o555), (0o666, 0o555), (0o000, 0o777), (None, 0o555)):
        folder = directory / f"{file_mode}-{folder_mode}"
        folder.mkdir()
        path = folder / "log.db"
        if file_mode is not None:
            with SQLiteStore(path) as store:
                Session(id=NAME, store=store).add_message(Message.user("kept"))
            path.chmod(file_mode)
        folder.chmod(folder_mode)
        where = f"file {file_mode and oct(file_mode)} in folder {oct(folder_mode)}"
        failures += [f"{where}: {failure}" for failure in check_refusal_without_rights(partial(SQLiteStore, path))]
        folder.chmod(0o755)
        if file_mode is not None:
            path.chmod(0o644)
            with SQLiteStore(path) as store:
                if list_texts(Session.open(NAME, store=store)) != ["kept"]:
                    failures.append(f"{where}: was changed")
    for wrong in (directory, directory / "no" / "such.db"):
        failures += [
            f"{wrong.name}: {failure}" for failure in check_refusal(StoreReadOnly, partial(SQLiteStore, wrong))
        ]
    return failures


def check_refusal_without_rights(action: Callable[[], object]) -> list[str]:
    """What is wrong with how an action is refused for lack of permissions, which root does not lack."""

    def child(acknowledge: Acknowledge) -> None:
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
        acknowledge(check_refusal(StoreReadOnly, action))

    end = run_in_child(child)
    failures: list[str] = end.acknowledged[0] if end.acknowledged else [str(end.error)]
    return failures


def check_replaced_file(directory: Path) -> list[str]:
    """Another file lies under the name: nothing is written into either."""
    path = directory / "log.db"
    with SQLiteStore(path) as store, SQLiteStore(directory / "other.db") as other:
        session = Session(id=NAME, store=store)
        session.add_message(Message.user("kept"))
        other.backup(directory / "copy.db")
        os.rename(directory / "copy.db", path)
        failures = check_refusal(StorePoisoned, lambda: session.add_message(Message.user("lost")))
        return failures + check_refusal(StorePoisoned, lambda: session.set_state("a", 1))


def check_removed_file(directory: Path) -> list[str]:
    """The file is gone: what would be written could never be found again."""
    path = directory / "log.db"
    with SQLiteStore(path) as store:
        session = Session(id=NAME, store=store)
        os.rename(path, directory / "elsewhere.db")
        return check_refusal(StoreError, lambda: session.add_message(Message.user("lost")))


def check_missing_wal(directory: Path) -> list[str]:
    """The WAL is gone or is another one: a commit would go into a file that cannot be opened again."""
    path = directory / "log.db"
    with SQLiteStore(path) as store:
        session = Session(id=NAME, store=store)
        session.add_message(Message.user("kept"))
        os.unlink(f"{path}-wal")
        failures = check_refusal(StorePoisoned, lambda: session.add_message(Message.user("lost")))
        Path(f"{path}-wal").touch()
        return failures + check_refusal(StorePoisoned, lambda: session.add_message(Message.user("lost too")))


def check_foreign_file(directory: Path) -> list[str]:
    """A file of something else is refused by name, and not changed."""
    path = directory / "notes.txt"
    failures: list[str] = []
    for content in (b"Dear diary, " * 1000, bytes(4096), b"SQLite format 3\0" + b"\xff" * 8000):
        path.write_bytes(content)
        failures += check_refusal(CorruptLog, lambda: SQLiteStore(path))
        if path.read_bytes() != content:
            failures.append("the file was changed")
    with SQLiteStore(directory / "log.db") as store:
        Session(id=NAME, store=store).add_message(Message.user("kept"))
    with open(directory / "log.db", "r+b") as file:
        file.truncate(3 * 4096)
    return failures + check_refusal(
        CorruptLog, lambda: Session.open(NAME, store=SQLiteStore(directory / "log.db")).messages
    )
