"""The crash kit itself: what a child acknowledged is known, and it dies at the chosen point."""

from __future__ import annotations

import os
import signal
import time
from itertools import count

import pytest

from holdfast.crashpoints import arm_crashpoints, crashpoint
from holdfast.testing.crash import Child, Point, crash_points, run_in_child


def work(acknowledge):
    for number in range(3):
        crashpoint("before")
        acknowledge(number)
        crashpoint("after")


def count_for_ever(acknowledge):
    for number in count():
        acknowledge({"number": number})


class TestDying:
    def test_a_child_that_is_not_killed_comes_to_its_end(self):
        end = run_in_child(work)
        assert (end.acknowledged, end.killed, end.error) == ([0, 1, 2], False, None)

    def test_a_child_dies_at_the_nth_time_it_reaches_a_point(self):
        assert run_in_child(work, at=Point("before")).acknowledged == []
        assert run_in_child(work, at=Point("before", 3)).acknowledged == [0, 1]
        assert run_in_child(work, at=Point("after", 3)).acknowledged == [0, 1, 2]
        assert run_in_child(work, at=Point("after", 3)).killed

    def test_a_child_that_never_reaches_its_point_says_so(self):
        assert not run_in_child(work, at=Point("after", 4)).killed
        assert not run_in_child(work, at=Point("elsewhere")).killed

    def test_every_point_of_a_work_is_listed_in_order(self):
        assert crash_points(work) == [
            Point("before", 1), Point("after", 1), Point("before", 2), Point("after", 2), Point("before", 3),
            Point("after", 3),
        ]  # fmt: skip

    def test_a_child_is_killed_after_a_while_and_its_acknowledgements_are_known(self):
        end = run_in_child(count_for_ever, after=0.05)
        assert end.killed
        assert end.acknowledged == [{"number": number} for number in range(len(end.acknowledged))]

    def test_the_error_of_a_child_is_reported(self):
        def fail(acknowledge):
            acknowledge("so far")
            raise ValueError("and no further")

        end = run_in_child(fail)
        assert end.acknowledged == ["so far"]
        assert "ValueError: and no further" in (end.error or "")
        with pytest.raises(RuntimeError, match="and no further"):
            crash_points(fail)

    def test_the_parent_is_not_armed(self):
        def armed(name):
            raise AssertionError(name)

        run_in_child(work, at=Point("after"))
        crashpoint("after")
        arm_crashpoints(armed)
        try:
            assert run_in_child(work).acknowledged == [0, 1, 2]
        finally:
            arm_crashpoints(None)


class TestChild:
    def test_acknowledgements_can_be_awaited_one_by_one(self):
        with Child(work) as child:
            assert [child.next() for _ in range(3)] == [0, 1, 2]
            with pytest.raises(EOFError):
                child.next()

    def test_a_child_is_ended_with_its_block(self):
        with Child(lambda _: signal.pause()) as child:
            pid = child.pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_child_that_hangs_is_killed_and_that_is_its_error(self):
        end = Child(lambda _: time.sleep(60)).wait(patience=0.05)
        assert end.killed
        assert "hung" in (end.error or "")

    def test_more_than_a_pipe_holds_can_be_acknowledged(self):
        end = run_in_child(lambda acknowledge: [acknowledge("x" * 1000) for _ in range(300)])
        assert len(end.acknowledged) == 300
