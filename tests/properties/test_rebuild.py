"""Random histories, on two stores and against the model; then every projection, rebuilt from the events."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.stores import MemoryStore, SQLiteStore, append
from tests.properties.random_operations import RandomOperations
from tests.properties.rebuild import find_complaints, find_complaints_without_caches


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_every_projection_is_what_the_events_say(
    tmp_path_factory: pytest.TempPathFactory, seed: int, episode: int
) -> None:
    path: Path = tmp_path_factory.mktemp("rebuild") / "log.db"
    with pytest.MonkeyPatch.context() as patch, SQLiteStore(path) as sqlite:
        patch.setattr(append, "SNAPSHOT_EVERY", 7)  # short logs with many snapshots
        operations = RandomOperations([MemoryStore(), sqlite], seed, episode)
        operations.run(120)
        for side in operations.sides:
            for check in (find_complaints, find_complaints_without_caches):
                for name in operations.tenant.live_names:
                    assert list(check(side.store, side.store.require("session", name))) == []
