"""Random histories, on two stores and against the model; then every projection, rebuilt from the events."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.stores import MemoryStore, SQLiteStore, append
from tests.properties.game import Game
from tests.properties.rebuild import complaints, complaints_without_caches


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_every_projection_is_what_the_events_say(
    tmp_path_factory: pytest.TempPathFactory, seed: int, episode: int
) -> None:
    path: Path = tmp_path_factory.mktemp("rebuild") / "log.db"
    with pytest.MonkeyPatch.context() as patch, SQLiteStore(path) as sqlite:
        patch.setattr(append, "SNAPSHOT_EVERY", 7)  # short logs with many snapshots
        game = Game([MemoryStore(), sqlite], seed, episode)
        game.play(120)
        for world in game.worlds:
            for check in (complaints, complaints_without_caches):
                for name in game.shelf.made:
                    assert list(check(world.store, world.store.require("session", name))) == []
