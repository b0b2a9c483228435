"""Power loss, failing disks and files that others got hold of, on a SQLite store. The proofs do this at size."""

from __future__ import annotations

import pytest

from tests.kit.crash_workload import script
from tests.kit.power_loss import survey
from tests.proofs import storage
from tests.proofs.crashes import scratch, short_leases

SEED = 7


class TestPowerLoss:
    def test_nothing_acknowledged_is_lost(self):
        todo = script()
        with scratch(memory=True) as directory:
            found = survey(
                storage.losing_power(todo, synchronous="FULL"),
                storage.after_power_loss(todo),
                seed=SEED,
                states=150,
                directory=directory,
            )
        assert found.complaints == 0, found.first

    def test_without_flushing_it_would_be(self):
        todo = script()
        with scratch(memory=True) as directory:
            found = survey(
                storage.losing_power(todo, synchronous="NORMAL"),
                storage.after_power_loss(todo),
                seed=SEED,
                states=40,
                directory=directory,
            )
        assert found.complaints > 0


class TestFailingDisk:
    @pytest.mark.parametrize("broken", [storage.broken_disk, storage.full_disk])
    def test_a_fault_is_told_and_nothing_is_lost(self, broken):
        todo = script()
        with scratch(memory=True) as directory, short_leases(0.2):
            counts = storage.count_operations(directory, todo)
            for index in range(3, counts["write"], counts["write"] // 12):
                _, failures = broken(str(directory / f"{index}.db"), todo, index)
                assert failures == [], index


class TestAwkwardFiles:
    @pytest.mark.parametrize(
        "case",
        [
            storage.locked,
            storage.read_only,
            storage.replaced,
            storage.removed,
            storage.without_wal,
            storage.not_a_database,
        ],
        ids=lambda case: case.__name__,
    )
    def test_is_refused_by_name(self, case):
        with scratch() as directory:
            assert case(directory) == []
