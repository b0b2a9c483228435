"""The faults and power loss that other tests rely on, tried on plain SQLite: what holds, and what must be caught."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise

import apsw
import pytest

from tests.kit.power_loss import Recording, Survey, survey_crashes
from tests.kit.sqlite_faults import FaultVFS, Kind, Operation

SEED = 20261
ROWS = 24
TABLE = "CREATE TABLE IF NOT EXISTS pairs (id INTEGER, half TEXT, body TEXT, PRIMARY KEY (id, half))"

KILLED = """
import os, runpy, signal, sys
file, path, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
here = runpy.run_path(file)
with here["FaultVFS"]() as vfs:
    vfs.observe(lambda operation: operation.index == last and os.kill(os.getpid(), signal.SIGKILL))
    here["make_workload"]()(path, vfs.name, lambda number: print(number, flush=True))
"""

Acknowledge = Callable[[int], None]


@pytest.fixture
def directory(tmp_path) -> Iterator[str]:
    """A place in memory where there is one: crash states are many, and their own durability is of no interest."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as place:
        yield place


@pytest.fixture
def vfs() -> Iterator[FaultVFS]:
    with FaultVFS() as vfs:
        yield vfs


@pytest.fixture
def path(directory) -> str:
    return os.path.join(directory, "log.db")


def connect(path: str, vfs_name: str | None, *, journal: str = "WAL", synchronous: str = "FULL") -> apsw.Connection:
    connection = apsw.Connection(path, vfs=vfs_name)
    try:
        run_statements(connection, f"PRAGMA journal_mode={journal}", f"PRAGMA synchronous={synchronous}")
        run_statements(connection, "PRAGMA wal_autocheckpoint=12", TABLE)
    except apsw.Error:
        connection.close()
        raise
    return connection


def run_statements(connection: apsw.Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement).fetchall()


def make_body(number: int, half: str) -> str:
    return f"{number}{half}" * 150


def insert_pair(connection: apsw.Connection, number: int) -> None:
    with connection:
        for half in "ab":
            connection.execute("INSERT INTO pairs VALUES (?, ?, ?)", (number, half, make_body(number, half))).fetchall()


def truncate_wal(connection: apsw.Connection) -> None:
    run_statements(connection, "PRAGMA wal_checkpoint(TRUNCATE)")


def make_workload(
    *, journal: str = "WAL", synchronous: str = "FULL", early: bool = False
) -> Callable[[str, str, Acknowledge], None]:
    """A workload with checkpoints, a WAL that starts again, is truncated, is deleted and created anew."""

    def workload(path: str, vfs_name: str, acknowledge: Acknowledge) -> None:
        connection = connect(path, vfs_name, journal=journal, synchronous=synchronous)
        for number in range(ROWS):
            if early:
                acknowledge(number)
            insert_pair(connection, number)
            if not early:
                acknowledge(number)
            if number % 10 == 7:
                truncate_wal(connection)
            if number == 16:
                connection.close()
                connection = connect(path, vfs_name, journal=journal, synchronous=synchronous)
        connection.close()

    return workload


def find_lost_pairs(path: str, acknowledged: Sequence[int]) -> str | None:
    connection = apsw.Connection(path)
    try:
        if connection.pragma("integrity_check") != "ok":
            return "corrupt"
        if not acknowledged and not connection.pragma("table_list('pairs')"):
            return None
        halves: Counter[int] = Counter()
        for number, half, text in connection.execute("SELECT id, half, body FROM pairs"):
            if text != make_body(number, half):
                return f"row {number}{half} is not what was written"
            halves[number] += 1
        if torn := [number for number, found in halves.items() if found != 2]:
            return f"half a transaction: {torn}"
        lost = [number for number in acknowledged if number not in halves]
        return f"lost {lost}" if lost else None
    finally:
        connection.close()


class TestFaultVFS:
    def test_wal_works_with_several_connections(self, vfs, path):
        first, second = connect(path, vfs.name), connect(path, vfs.name)
        insert_pair(first, 1)
        insert_pair(second, 2)
        assert first.pragma("journal_mode") == "wal"
        assert first.execute("SELECT count(*) FROM pairs").get == second.execute("SELECT count(*) FROM pairs").get == 4
        assert os.path.exists(path + "-shm")
        first.close()
        second.close()
        assert find_lost_pairs(path, [1, 2]) is None

    def test_it_is_registered_for_its_block_only(self):
        with FaultVFS() as vfs, FaultVFS() as other:
            assert {vfs.name, other.name} <= set(apsw.vfs_names())
            assert vfs.name != other.name
        assert {vfs.name, other.name}.isdisjoint(apsw.vfs_names())

    def test_every_operation_is_numbered_and_observed_in_order(self, vfs, path):
        told: list[Operation] = []
        vfs.observe(told.append)
        make_workload()(path, vfs.name, lambda _: None)
        assert [operation.index for operation in told] == list(range(len(told)))
        assert vfs.counts == Counter(operation.kind for operation in told)
        assert {operation.path.removeprefix(path) for operation in told} == {"", "-wal", "-journal"}
        assert set(vfs.counts) == {"create", "write", "truncate", "sync", "delete"}
        assert vfs.injected == 0

    def test_the_first_sync_of_a_new_journal_or_wal_syncs_the_directory(self, vfs, path):
        told: list[Operation] = []
        vfs.observe(told.append)
        connect(path, vfs.name).close()
        syncs = [(op.path.removeprefix(path), op.syncs_directory) for op in told if op.kind == "sync"]
        assert syncs[:5] == [("-journal", True), ("-journal", False), ("", False), ("-wal", True), ("-wal", False)]

    @pytest.mark.parametrize(
        ("op", "error", "code", "kind"),
        [
            ("write", "EIO", apsw.SQLITE_IOERR_WRITE, apsw.IOError),
            ("write", "ENOSPC", apsw.SQLITE_FULL, apsw.FullError),
            ("sync", "EIO", apsw.SQLITE_IOERR_FSYNC, apsw.IOError),
            ("sync", "ENOSPC", apsw.SQLITE_IOERR_FSYNC, apsw.IOError),
            ("truncate", "EIO", apsw.SQLITE_IOERR_TRUNCATE, apsw.IOError),
            ("delete", "EIO", apsw.SQLITE_IOERR_DELETE, apsw.IOError),
            ("create", "ENOSPC", apsw.SQLITE_CANTOPEN, apsw.CantOpenError),
        ],
    )
    def test_a_fault_has_the_code_that_sqlite_gives_it(self, vfs, path, op, error, code, kind):
        vfs.fail(at=0, error=error, op=op)
        with pytest.raises(kind) as caught:
            make_workload()(path, vfs.name, lambda _: None)
        assert caught.value.extendedresult == code
        assert vfs.injected == 1

    def test_a_fault_happens_once_and_then_the_file_works_again(self, vfs, path):
        connection = connect(path, vfs.name)
        vfs.fail(at=1, op="write", error="ENOSPC")
        with pytest.raises(apsw.FullError):
            insert_pair(connection, 1)
        insert_pair(connection, 2)
        connection.close()
        assert find_lost_pairs(path, [2]) is None

    def test_a_sticky_fault_stays_until_it_is_healed(self, vfs, path):
        connection = connect(path, vfs.name)
        vfs.fail(at=0, op="sync", sticky=True)
        for _ in range(3):
            with pytest.raises(apsw.IOError):
                insert_pair(connection, 1)
        assert connection.execute("SELECT count(*) FROM pairs").get == 0
        vfs.heal()
        insert_pair(connection, 1)
        connection.close()
        assert vfs.injected == 3
        assert find_lost_pairs(path, [1]) is None

    def test_a_fault_without_a_kind_counts_every_operation(self, vfs, path):
        failed: list[Operation] = []
        vfs.observe(lambda operation: failed.append(operation) if operation.failed else None)
        vfs.fail(at=5)
        with pytest.raises(apsw.IOError):
            make_workload()(path, vfs.name, lambda _: None)
        assert [operation.index for operation in failed] == [5]

    def test_a_full_disk_may_leave_the_start_of_a_write(self, vfs, path):
        connection = connect(path, vfs.name)
        truncate_wal(connection)
        vfs.fail(at=2, op="write", error="ENOSPC", prefix=100)  # after the headers of the WAL and of the frame
        with pytest.raises(apsw.FullError):
            insert_pair(connection, 1)
        assert os.path.getsize(path + "-wal") == 32 + 24 + 100
        insert_pair(connection, 2)
        connection.close()
        assert find_lost_pairs(path, [2]) is None

    @pytest.mark.parametrize("last", [40, 90, 140])
    def test_an_observer_may_kill_the_process(self, path, last):
        child = subprocess.run(
            [sys.executable, "-c", KILLED, __file__, path, str(last)], capture_output=True, check=False
        )
        assert child.returncode == -signal.SIGKILL, child.stderr
        acknowledged = [int(line) for line in child.stdout.split()]
        assert acknowledged
        assert find_lost_pairs(path, acknowledged) is None


class TestFaultsAtEveryIndex:
    """A failure of any operation gives a defined error, and every acknowledged row is kept."""

    @pytest.mark.parametrize(
        ("op", "error", "prefix", "code"),
        [
            ("sync", "EIO", 0, apsw.SQLITE_IOERR_FSYNC),
            ("write", "EIO", 0, apsw.SQLITE_IOERR_WRITE),
            ("write", "ENOSPC", 0, apsw.SQLITE_FULL),
            ("write", "ENOSPC", 700, apsw.SQLITE_FULL),
        ],
    )
    def test_no_acknowledged_row_is_lost(self, directory, op, error, prefix, code):
        for index in count():
            path = os.path.join(directory, f"{index}.db")
            acknowledged: list[int] = []
            with FaultVFS() as vfs:
                vfs.fail(at=index, op=op, error=error, prefix=prefix)
                errors = self.write_after_faults(path, vfs, acknowledged)
                if not vfs.injected:
                    break
            assert [error.extendedresult for error in errors] == [code]
            assert len(acknowledged) >= 11
            assert find_lost_pairs(path, acknowledged) is None
        assert index > 20

    def write_after_faults(self, path: str, vfs: FaultVFS, acknowledged: list[int]) -> list:
        errors, connection = [], None
        for number in range(12):
            try:
                connection = connection or connect(path, vfs.name)
                insert_pair(connection, number)
                acknowledged.append(number)
                if number == 7:
                    truncate_wal(connection)
            except apsw.Error as error:
                errors.append(error)
        if connection:
            try:
                connection.close()
            except apsw.Error as error:
                errors.append(error)
        return errors


class TestPowerLoss:
    def survey(self, directory: str, states: int = 300, **options) -> Survey:
        return survey_crashes(make_workload(**options), find_lost_pairs, seed=SEED, states=states, directory=directory)

    def test_wal_with_full_sync_loses_nothing(self, directory):
        report = self.survey(directory, states=600)
        assert (report.complaints, report.first) == (0, None)
        assert report.states > 2 * report.operations > 400

    def test_threads_that_write_at_once_lose_nothing(self, directory):
        def workload(path: str, vfs_name: str, acknowledge: Acknowledge) -> None:
            connections = [connect(path, vfs_name) for _ in range(2)]

            def write(connection: apsw.Connection, numbers: range) -> None:
                for number in numbers:
                    insert_pair(connection, number)
                    acknowledge(number)

            for connection in connections:
                connection.set_busy_timeout(10_000)
            threads = [
                threading.Thread(target=write, args=(connection, range(start, 16, 2)))
                for start, connection in enumerate(connections)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for connection in connections:
                connection.close()

        report = survey_crashes(workload, find_lost_pairs, seed=SEED, states=150, directory=directory)
        assert report.first is None

    @pytest.mark.parametrize(
        "mistake",
        [
            {"synchronous": "NORMAL"},
            {"synchronous": "OFF"},
            {"early": True},
            {"journal": "DELETE"},  # SQLite documents it: the unlinked journal may come back
        ],
    )
    def test_a_known_mistake_is_caught(self, directory, mistake):
        report = self.survey(directory, **mistake)
        assert report.complaints > 30
        assert report.first

    def test_without_syncs_the_database_is_corrupted_too(self, directory):
        corrupt = 0

        def count_corrupt(path: str, acknowledged: Sequence[int]) -> str | None:
            nonlocal corrupt
            try:
                complaint = find_lost_pairs(path, [])
            except apsw.CorruptError:
                complaint = "corrupt"
            corrupt += complaint == "corrupt"
            return complaint

        survey_crashes(make_workload(synchronous="OFF"), count_corrupt, seed=SEED, states=300, directory=directory)
        assert corrupt > 10

    @pytest.mark.parametrize("options", [{"journal": "DELETE", "synchronous": "EXTRA"}, {"journal": "PERSIST"}])
    def test_a_safe_rollback_journal_loses_nothing(self, directory, options):
        assert self.survey(directory, **options).first is None

    def test_a_seed_repeats_its_states_and_another_does_not(self, vfs, path):
        recording: Recording[int] = Recording(vfs, path)
        make_workload()(path, vfs.name, recording.acknowledge)
        states = [list(recording.states(seed, 50)) for seed in (1, 1, 2)]
        assert states[0] == states[1] != states[2]
        assert all(before.point <= after.point for before, after in pairwise(states[0]))

    @pytest.mark.parametrize("closes", [True, False])
    def test_after_a_failed_sync_only_a_checkpoint_of_the_same_connection_is_safe(self, directory, closes):
        """Who merely reopens reads from the cache frames that are not on the disk, and builds on them."""
        complaints = 0
        for index in range(8):
            with tempfile.TemporaryDirectory(dir=directory) as home, FaultVFS() as vfs:
                path = os.path.join(home, "log.db")
                recording: Recording[int] = Recording(vfs, path)
                connection = connect(path, vfs.name)
                vfs.fail(at=index, op="sync")
                for number in range(8):
                    try:
                        insert_pair(connection, number)
                        recording.acknowledge(number)
                    except apsw.IOError:
                        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0 if closes else 1)
                        connection.close()
                        connection = connect(path, vfs.name)
                connection.close()
                assert vfs.injected == 1
                for number, state in enumerate(recording.states(SEED, 40)):
                    crashed = os.path.join(home, f"{number}.db")
                    state.materialise(crashed)
                    complaints += find_lost_pairs(crashed, state.acknowledged) is not None
        assert (complaints == 0) is closes


class TestDisk:
    """The model itself, by operations made by hand."""

    def list_crash_files(self, vfs: FaultVFS, path: str, *operations: Operation) -> list[dict[str, bytes]]:
        recording: Recording[None] = Recording(vfs, path)
        for operation in operations:
            vfs.perform(operation, lambda _: None)
        last = len(operations)
        return [dict(state.files) for state in recording.states(SEED, 100 * (last + 1)) if state.point == last]

    def make_operation(self, kind: Kind, path: str, **facts) -> Operation:
        return Operation(kind=kind, path=path, **facts)

    def test_what_was_synced_is_kept_and_the_rest_is_old_or_new_by_sectors(self, vfs, path):
        states = self.list_crash_files(
            vfs,
            path,
            self.make_operation("create", path),
            self.make_operation("write", path, data=b"a" * 1024),
            self.make_operation("sync", path),
            self.make_operation("write", path, offset=256, data=b"b" * 512),
        )
        first, second = b"a" * 256 + b"b" * 256, b"b" * 256 + b"a" * 256
        old = b"a" * 512
        assert {state[""] for state in states} == {old + old, first + old, old + second, first + second}

    def test_of_many_unsynced_writes_all_none_or_some_survive(self, vfs, path):
        created = [self.make_operation("create", path), self.make_operation("sync", path)]
        writes = [self.make_operation("write", path, offset=512 * number, data=b"a" * 512) for number in range(20)]
        survived = Counter(
            state[""].count(b"a") // 512 for state in self.list_crash_files(vfs, path, *created, *writes)
        )
        assert survived[0] > 5
        assert survived[20] > 5
        assert len(survived) > 5

    def test_a_truncate_may_be_lost_until_it_is_synced(self, vfs, path):
        written = [
            self.make_operation("create", path),
            self.make_operation("write", path, data=b"a" * 600),
            self.make_operation("sync", path),
        ]
        cut = self.make_operation("truncate", path, offset=0)
        assert {state[""] for state in self.list_crash_files(vfs, path, *written, cut)} == {b"a" * 600, b""}
        assert self.list_crash_files(vfs, path, *written, cut, self.make_operation("sync", path))[0] == {"": b""}

    def test_a_new_file_is_there_for_certain_once_it_was_synced(self, vfs, path):
        create = self.make_operation("create", path)
        assert {"" in state for state in self.list_crash_files(vfs, path, create)} == {True, False}
        assert {
            "" in state for state in self.list_crash_files(vfs, path, create, self.make_operation("sync", path))
        } == {True}

    def test_a_deleted_file_may_come_back_until_its_directory_is_synced(self, vfs, path):
        journal, wal = path + "-journal", path + "-wal"
        deleted = [
            self.make_operation("create", journal),
            self.make_operation("sync", journal),
            self.make_operation("delete", journal),
        ]
        assert {"-journal" in state for state in self.list_crash_files(vfs, path, *deleted)} == {True, False}
        synced = [self.make_operation("create", wal), self.make_operation("sync", wal, syncs_directory=True)]
        assert {"-journal" in state for state in self.list_crash_files(vfs, path, *deleted, *synced)} == {False}

    def test_a_file_created_again_is_the_old_one_the_new_one_or_none(self, vfs, path):
        wal = path + "-wal"
        states = self.list_crash_files(
            vfs,
            path,
            self.make_operation("create", wal),
            self.make_operation("write", wal, data=b"old"),
            self.make_operation("sync", wal),
            self.make_operation("delete", wal),
            self.make_operation("create", wal),
            self.make_operation("write", wal, data=b"new"),
        )
        assert {state.get("-wal") for state in states} == {b"old", b"new", b"", None}

    def test_what_a_failed_sync_dropped_stays_off_the_disk(self, vfs, path):
        written = [self.make_operation("create", path), self.make_operation("write", path, data=b"a" * 512)]
        states = self.list_crash_files(
            vfs,
            path,
            *written,
            self.make_operation("sync", path, failed=True),
            self.make_operation("write", path, offset=512, data=b"b" * 512),
            self.make_operation("sync", path),
        )
        assert {state[""] for state in states} == {bytes(512) + b"b" * 512}

    def test_a_database_that_was_there_before_is_durable(self, vfs, path):
        connect(path, None).close()
        before = apsw.Connection(path)
        insert_pair(before, 1)
        before.close()
        recording: Recording[int] = Recording(vfs, path)
        recording.acknowledge(1)
        connection = connect(path, vfs.name)
        insert_pair(connection, 2)
        connection.close()
        for number, state in enumerate(recording.states(SEED, 60)):
            state.materialise(f"{path}.{number}")
            assert find_lost_pairs(f"{path}.{number}", state.acknowledged) is None

    def test_an_acknowledgement_counts_from_its_place_on(self, vfs, path):
        recording: Recording[str] = Recording(vfs, path)
        recording.acknowledge("before")
        vfs.perform(self.make_operation("create", path), lambda _: None)
        recording.acknowledge("after")
        assert {(state.point, *state.acknowledged) for state in recording.states(SEED, 20)} == {
            (0, "before"),
            (1, "before", "after"),
        }

    def test_a_survey_names_what_it_could_not_open(self, directory):
        def workload(path: str, vfs_name: str, acknowledge: Acknowledge) -> None:
            connect(path, vfs_name).close()

        def refuse(path: str, acknowledged: Sequence[int]) -> str | None:
            raise apsw.CorruptError("malformed")

        report = survey_crashes(workload, refuse, seed=SEED, states=5, directory=directory)
        assert (report.seed, report.states, report.complaints) == (SEED, 5, 5)
        assert report.first
        assert report.first.endswith("CorruptError: malformed")
