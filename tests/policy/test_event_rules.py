"""The rules for imported events are true: everything that holdfast writes to the log of a session passes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.errors import CorruptLog, SchemaTooNew
from holdfast.log.events import VERSIONS
from holdfast.policy.event_rules import SESSION_EVENTS, find_fault
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from tests.kit.forged_exports import rewrite_export
from tests.kit.rich_sessions import make_rich_sessions
from tests.kit.stores import open_store
from tests.properties.compliance import RandomHistory

NOT_WRITTEN = {"turn.parked"}  # needs three processes that die: it has no fields


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, request, tmp_path)


def find_faults(store: Store) -> list[str]:
    found = []
    for id in store.list_sessions():
        log = store.require("session", id)
        fault = find_fault(store.walk(log), {})
        found += [] if fault is None else [f"{id}: {fault[1]}"]
    return found


def test_every_event_that_holdfast_writes_passes_the_rules(store: Store) -> None:
    make_rich_sessions(store)
    assert find_faults(store) == []
    types = {row.type for id in store.list_sessions() for row in store.walk(store.require("session", id))}
    assert types | NOT_WRITTEN == set(SESSION_EVENTS)


def test_every_rich_session_is_exported_and_imported_again() -> None:
    store = MemoryStore()
    make_rich_sessions(store)
    for id in store.list_sessions():
        text = Session.open(id, store=store).export()
        copy = Session.import_(text, session_id=f"{id}-copy", store=store)
        assert copy.verify()
        assert [json.loads(line)["hash"] for line in copy.export().splitlines()][:-1] == [
            json.loads(line)["hash"] for line in text.splitlines()
        ]


@pytest.mark.parametrize("seed", ["1/1", "2/2", "3/3", "4/4", "5/5", "6/6"])
def test_random_histories_pass_the_rules(seed: str) -> None:
    store = MemoryStore()
    history = RandomHistory(store, seed)
    assert history.run(60) == []
    assert find_faults(history.store) == []


def test_every_type_of_a_session_has_a_rule() -> None:
    other = {type for type in VERSIONS if type.startswith(("entity.", "memory.", "sweep."))}
    assert set(VERSIONS) - other == set(SESSION_EVENTS)


@pytest.fixture(scope="module")
def exports() -> dict[str, str]:
    store = MemoryStore()
    make_rich_sessions(store)
    return {id: Session.open(id, store=store).export() for id in store.list_sessions()}


def test_every_field_of_every_type_is_checked(exports: dict[str, str]) -> None:
    """An unknown field, and a value of another kind in any field that has a kind, are refused by the event's type."""
    seen: set[tuple[str, str]] = set()
    for text in exports.values():
        for at, line in enumerate(map(json.loads, text.splitlines())):
            for name in [*line.get("data", {}), "surprise"]:
                if "data" not in line or (line["type"], name) in seen:
                    continue
                seen.add((line["type"], name))
                free = name in ("value", "payload", "answer", "arguments")

                def change(lines: list[dict[str, Any]], at: int = at, name: str = name, free: bool = free) -> None:
                    lines[at]["data"][name if not free else "surprise"] = {"odd": [1.5]} if name != "metadata" else 7

                if name in ("options", "details", "state", "schema"):  # objects of any content
                    continue
                with pytest.raises(CorruptLog, match=f"{line['type']}.* is not one that holdfast writes|what is left"):
                    Session.import_(rewrite_export(text, change), session_id="x", store=MemoryStore())
    assert len(seen) > 150


@pytest.mark.parametrize("type", ["memory.stored", "entity.created", "sweep.planned"])
def test_an_event_of_another_kind_of_log_is_refused(exports: dict[str, str], type: str) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[-1] |= {"type": type, "data": {}, "salt": "00" * 16}

    with pytest.raises(CorruptLog, match="it belongs to no session"):
        Session.import_(rewrite_export(exports["talk"], change), session_id="x", store=MemoryStore())


def test_a_newer_version_and_an_unknown_type_are_refused_by_name(exports: dict[str, str]) -> None:
    text = rewrite_export(exports["talk"], lambda lines: lines[2].update(v=2))
    with pytest.raises(SchemaTooNew, match="version 2, this holdfast knows 1"):
        Session.import_(text, session_id="x", store=MemoryStore())
    with pytest.raises(SchemaTooNew, match=r"'made\.up'"):
        Session.import_(exports["talk"].replace('"message.added"', '"made.up"'), session_id="x", store=MemoryStore())


@pytest.mark.parametrize(
    "change",
    [{"at": 2**62}, {"at": -1}, {"run": 7}, {"run": ""}, {"actor": ["me"]}, {"branch": "x/y"}, {"author": "a" * 600}],
    ids=str,
)
def test_every_column_is_checked(exports: dict[str, str], change: dict[str, Any]) -> None:
    text = exports["talk"]
    with pytest.raises(CorruptLog):
        Session.import_(rewrite_export(text, lambda lines: lines[3].update(change)), store=MemoryStore())
