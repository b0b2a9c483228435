"""Power loss, failing disks and files that others got hold of, on a SQLite store. The proofs do this at size."""

from __future__ import annotations

import pytest

from tests.kit.crash_workload import list_every_step
from tests.kit.power_loss import survey_crashes
from tests.proofs import storage
from tests.proofs.crashes import make_scratch_directory, shorten_leases

SEED = 7


class TestPowerLoss:
    def test_nothing_acknowledged_is_lost(self):
        todo = list_every_step()
        with make_scratch_directory(memory=True) as directory:
            found = survey_crashes(
                storage.make_power_loss_workload(todo, synchronous="FULL"),
                storage.make_power_loss_check(todo),
                seed=SEED,
                states=150,
                directory=directory,
            )
        assert found.complaints == 0, found.first

    def test_without_flushing_it_would_be(self):
        todo = list_every_step()
        with make_scratch_directory(memory=True) as directory:
            found = survey_crashes(
                storage.make_power_loss_workload(todo, synchronous="NORMAL"),
                storage.make_power_loss_check(todo),
                seed=SEED,
                states=40,
                directory=directory,
            )
        assert found.complaints > 0


class TestFailingDisk:
    @pytest.mark.parametrize("broken", [storage.work_on_broken_disk, storage.work_on_full_disk])
    def test_a_fault_is_raised_and_nothing_is_lost(self, broken):
        todo = list_every_step()
        with make_scratch_directory(memory=True) as directory, shorten_leases(0.2):
            counts = storage.count_operations(directory, todo)
            for index in range(3, counts["write"], counts["write"] // 12):
                _, failures = broken(str(directory / f"{index}.db"), todo, index)
                assert failures == [], index


class TestAwkwardFiles:
    @pytest.mark.parametrize(
        "case",
        [
            storage.check_locked_file,
            storage.check_read_only_file,
            storage.check_replaced_file,
            storage.check_removed_file,
            storage.check_missing_wal,
            storage.check_foreign_file,
        ],
        ids=lambda case: case.__name__,
    )
    def test_is_refused_by_name(self, case):
        with make_scratch_directory() as directory:
            assert case(directory) == []
