"""Prunes, redactions, erasures, sweeps and changes of the key that are killed: all or nothing. The proofs do more."""

from __future__ import annotations

import pytest

from holdfast.testing.crash import Point, run_in_child
from tests.proofs.compliance import (
    LEASE,
    NEW,
    OLD,
    check_rotation,
    find_half_done,
    is_readable,
    kill_at_each,
    make_rotation,
    prepare_rotation,
)
from tests.proofs.compliance import keyed_openers as every_keyed_opener
from tests.proofs.compliance import run_sweepers as four_sweepers
from tests.proofs.crashes import shorten_leases


class TestTheJudge:
    """A check that finds nothing proves nothing."""

    def test_it_distinguishes_half_an_act_from_a_whole_one(self):
        was, will = {"sound": True, "said": 1}, {"sound": True, "said": 2}
        assert find_half_done({"a": was}, {"a": was}, {"a": will}, whole=True) == []
        assert find_half_done({"a": was}, {"a": will}, {"a": will}, whole=True) == []
        assert find_half_done({"a": was}, {"a": {"sound": True, "said": 3}}, {"a": will}, whole=True)
        assert find_half_done({"a": was, "b": was}, {"a": was, "b": will}, {"a": will, "b": will}, whole=True)
        assert find_half_done({"a": was}, {"a": was | {"sound": False}}, {"a": will}, whole=True)
        assert find_half_done({"a": was}, {}, {"a": will}, whole=True)
        assert find_half_done({"a": was}, {"a": was, "b": was}, {"a": will}, whole=True)


class TestKilled:
    @pytest.mark.parametrize("act", ["compaction", "redaction of a reply", "erasure"])
    def test_an_act_is_done_or_not_done_and_a_second_attempt_finishes_it(self, opener, act):
        deaths, failures = kill_at_each(opener, act)
        assert failures == []
        assert deaths >= 3

    def test_a_sweep_leaves_each_session_whole_or_gone(self, opener):
        with shorten_leases(LEASE):
            deaths, failures = kill_at_each(opener, "sweep", every=20)
        assert failures == []
        assert deaths >= 5

    def test_beside_three_other_sweepers(self, opener):
        with shorten_leases(LEASE):
            assert four_sweepers(opener, "t", seed=1) == []


class TestKilledWhileTheKeyChanges:
    @pytest.mark.parametrize("kind", ["sqlite", "postgres"])
    def test_exactly_one_of_the_two_keys_opens_everything(self, kind):
        with every_keyed_opener() as fresh:
            for point in (Point("inside rotation"), Point("before commit"), Point("after commit")):
                opener = prepare_rotation(fresh[kind]())
                assert run_in_child(make_rotation(opener), at=point).killed
                assert is_readable(opener, OLD) != is_readable(opener, NEW)
                assert check_rotation(opener) == []
