"""Processes killed on both durable stores: what was acknowledged is there, once. The proofs do this at size."""

from __future__ import annotations

import random

import pytest

from holdfast.errors import KeyReused
from holdfast.stores import MemoryStore
from holdfast.testing.crash import Point, crash_points, run_in_child
from tests.kit.crash_workload import (
    ExpectedStore,
    Step,
    Workspace,
    compare_with_model,
    generate_steps,
    list_every_step,
    make_work,
)
from tests.proofs.postgres_servers import open_together

SEED = 7


class TestTheModel:
    """A model that is wrong proves nothing."""

    def test_it_foresees_what_a_store_does(self):
        for seed in range(3):
            workspace, model = Workspace(MemoryStore(), "m"), ExpectedStore()
            for step, _ in zip(generate_steps(seed), range(80), strict=False):
                workspace.perform(step)
                model.apply(step)
                assert workspace.read_content() == model.read_content(), step
            assert workspace.find_problems() == []

    def test_it_notices_what_is_missing_and_what_is_there_twice(self):
        workspace, todo = Workspace(MemoryStore(), "m"), list_every_step()
        for step in todo[:7]:
            workspace.perform(step)
        assert compare_with_model(workspace, todo, 7, repeats=False).failures == []
        assert compare_with_model(workspace, todo, 6, repeats=False).failures == []
        assert compare_with_model(workspace, todo, 8, repeats=False).failures
        workspace.perform(Step("say", 1))
        assert compare_with_model(workspace, todo, 7, repeats=False).failures

    def test_a_key_stands_for_one_content(self):
        workspace = Workspace(MemoryStore(), "m")
        workspace.perform(Step("create", 0))
        workspace.perform(Step("say", 1, key="k"))
        workspace.perform(Step("say", 1, key="k"))
        with pytest.raises(KeyReused):
            workspace.perform(Step("say", 2, key="k"))


class TestKilled:
    def test_at_random_instants(self, opener):
        rng = random.Random(SEED)
        for cycle in range(6):
            end = run_in_child(
                make_work(opener, f"c{cycle}", generate_steps((SEED, cycle))), after=rng.uniform(0.0, 0.1)
            )
            assert end.killed
            with opener() as store:
                assert (
                    compare_with_model(
                        Workspace(store, f"c{cycle}"), generate_steps((SEED, cycle)), len(end.acknowledged)
                    ).failures
                    == []
                )

    def test_at_every_named_point_of_every_kind_of_step(self, opener):
        todo = list_every_step()
        with opener():
            pass
        points = crash_points(make_work(opener, "listed", todo))
        last_of_each = {point.name: point for point in points}
        for number, point in enumerate([*last_of_each.values(), *points[:: len(points) // 12]]):
            end = run_in_child(make_work(opener, f"s{number}", todo), at=point)
            assert end.killed, point
            with opener() as store:
                assert compare_with_model(Workspace(store, f"s{number}"), todo, len(end.acknowledged)).failures == [], (
                    point
                )

    def test_while_the_schema_is_made(self, opener):
        end = run_in_child(make_work(opener, "s", list_every_step()), at=Point("migration applied"))
        assert (end.killed, end.acknowledged) == (True, [])
        with opener() as store:
            assert compare_with_model(Workspace(store, "s"), list_every_step(), 0).failures == []


class TestStartingTogether:
    def test_six_processes_make_the_schema_once(self, opener):
        assert open_together(opener) == []
