"""The contract of a store, for pytest in a process of a simulated system; `test_other_systems.py` starts it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.testing import StoreContract


class TestSQLiteStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "sessions.db") as store:
            yield store


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()
