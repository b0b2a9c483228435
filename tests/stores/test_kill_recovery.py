"""Processes killed on both durable stores: what was acknowledged is there, once. The proofs do this at size."""

from __future__ import annotations

import random

import pytest

from holdfast.errors import KeyReused
from holdfast.stores import MemoryStore
from holdfast.testing.crash import Point, crash_points, run_in_child
from tests.kit.crash_workload import Model, Step, World, judge, script, steps, work
from tests.proofs.postgres_servers import together

SEED = 7


class TestTheModel:
    """A model that is wrong proves nothing."""

    def test_it_foresees_what_a_store_does(self):
        for seed in range(3):
            world, model = World(MemoryStore(), "m"), Model()
            for step, _ in zip(steps(seed), range(80), strict=False):
                world.perform(step)
                model.apply(step)
                assert world.holds() == model.holds(), step
            assert world.problems() == []

    def test_it_notices_what_is_missing_and_what_is_there_twice(self):
        world, todo = World(MemoryStore(), "m"), script()
        for step in todo[:7]:
            world.perform(step)
        assert judge(world, todo, 7, go_on=False).failures == []
        assert judge(world, todo, 6, go_on=False).failures == []
        assert judge(world, todo, 8, go_on=False).failures
        world.perform(Step("say", 1))
        assert judge(world, todo, 7, go_on=False).failures

    def test_a_key_stands_for_one_content(self):
        world = World(MemoryStore(), "m")
        world.perform(Step("create", 0))
        world.perform(Step("say", 1, key="k"))
        world.perform(Step("say", 1, key="k"))
        with pytest.raises(KeyReused):
            world.perform(Step("say", 2, key="k"))


class TestKilled:
    def test_at_random_instants(self, opener):
        rng = random.Random(SEED)
        for cycle in range(6):
            end = run_in_child(work(opener, f"c{cycle}", steps((SEED, cycle))), after=rng.uniform(0.0, 0.1))
            assert end.killed
            with opener() as store:
                assert judge(World(store, f"c{cycle}"), steps((SEED, cycle)), len(end.acknowledged)).failures == []

    def test_at_every_named_point_of_every_kind_of_step(self, opener):
        todo = script()
        with opener():
            pass
        points = crash_points(work(opener, "listed", todo))
        last_of_each = {point.name: point for point in points}
        for number, point in enumerate([*last_of_each.values(), *points[:: len(points) // 12]]):
            end = run_in_child(work(opener, f"s{number}", todo), at=point)
            assert end.killed, point
            with opener() as store:
                assert judge(World(store, f"s{number}"), todo, len(end.acknowledged)).failures == [], point

    def test_while_the_schema_is_made(self, opener):
        end = run_in_child(work(opener, "s", script()), at=Point("migration applied"))
        assert (end.killed, end.acknowledged) == (True, [])
        with opener() as store:
            assert judge(World(store, "s"), script(), 0).failures == []


class TestStartingTogether:
    def test_six_processes_make_the_schema_once(self, opener):
        assert together(opener) == []
