"""Every store gives the same memories in the same order, encrypted ones included; and the log is the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import KeywordMemoryService, Memory, VectorMemoryService
from holdfast.clock import FixedClock
from holdfast.log.events import Event
from holdfast.log.named_values import names_of
from holdfast.memory.memory_log import MemoryLog
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Log, Store
from holdfast.stores.document_store import DocumentStore
from tests.kit.documents import DictStore
from tests.kit.stores import empty_tables

WORDS = ["migraine", "migraines", "cat", "cats", "tea", "berlin", "lives", "living", "the", "not", "café", "钻", "4711"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
small_keys = st.sampled_from(["a", "b", "c", "d", "e"])
moves = st.one_of(
    st.tuples(st.just("store"), small_keys, texts),
    st.tuples(st.just("store"), small_keys, texts),
    st.tuples(st.just("brief"), small_keys, texts),
    st.tuples(st.just("forget"), small_keys, st.just("")),
    st.tuples(st.just("wait"), st.just(""), st.just("")),
    st.tuples(st.just("search"), st.just(""), texts),
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, database: str) -> Any:
    folder: Path = tmp_path_factory.mktemp("same")
    made: list[Store] = [
        MemoryStore(),
        SQLiteStore(folder / "plain.db"),
        SQLiteStore(folder / "sealed.db", key=bytes(32)),
        PostgresStore(database),
        DocumentStore(DictStore()),
    ]
    empty_tables(made[3])  # type: ignore[arg-type]
    yield made
    for store in made:
        store.close()


PREFIXES = ("memory/", "expires/", "ingested/")


def rebuild_names(store: Store, log: Log) -> dict[str, int | None]:
    """Every name, and the event that holds it, from the events alone."""
    found: dict[str, int | None] = {}
    for event in map(Event, store.walk(log)):
        found |= {name: ref for name, _, ref in names_of(event.seq, event.type, event.data)}
    return dict(sorted(found.items()))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(moves, max_size=14), st.booleans(), st.integers(0, 10**9))
def test_all_stores_agree(stores: list[Store], moves: list[tuple[str, str, str]], hybrid: bool, user: int) -> None:
    told = []
    for store in stores:
        store.clock = FixedClock()
        memory = Memory(VectorMemoryService() if hybrid else KeywordMemoryService(), store=store, user_id=str(user))
        memory.forget("nothing")
        said: list[Any] = []
        for move, key, text in moves:
            if move == "wait":
                store.clock.sleep(3600)
            elif move == "forget":
                said.append(memory.forget(key))
            elif move == "search":
                said.append([(each.key, each.text, each.score) for each in memory.search(text, 3)])
            else:
                memory.store(key, text, expires=3600 if move == "brief" else None)
        said.append([(each.key, each.text) for each in memory.list()])
        log = MemoryLog(store, str(user), None).find()
        if log is not None:
            assert store.verify(log)
            assert rebuild_names(store, log) == dict(
                sorted(pair for prefix in PREFIXES for pair in store.refs(log, prefix).items())
            )
            said.append([row.type for row in store.walk(log)])
            said.append([row.body and row.body[16:] for row in store.walk(log)])
            store.remove(log.kind, log.id)
        told.append(said)
    assert all(each == told[0] for each in told[1:])
