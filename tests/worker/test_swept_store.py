"""Which store a sweep means: an object, a URL, a store of four methods, or the configured one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Message, Session, aio
from holdfast.errors import InvalidArgument
from holdfast.stores import MemoryStore
from holdfast.worker.sweep import sweep
from tests.kit.documents import DictStore

MOMENT = 1 / 86_400_000_000  # a microsecond, in days


def make_sessions(store: Any) -> None:
    for name, days in (("old", MOMENT), ("fresh", 30)):
        Session(name, store=store, retention={"ttl_days": days}).add_message(Message.user("hello"))
    time.sleep(0.001)  # a microsecond passes


def test_a_sweep_takes_a_store_a_url_or_the_configured_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    make_sessions(url)
    assert Session.sweep(url, dry_run=True).purged == ["old"]
    monkeypatch.setenv("HOLDFAST_STORE", url)
    assert Session.sweep(dry_run=True).purged == ["old"]
    assert Session.sweep(None).purged == ["old"]
    monkeypatch.delenv("HOLDFAST_STORE")
    assert sweep("memory:", dry_run=True).purged == sweep(dry_run=True).purged
    for wrong in (7, object(), "redis://localhost"):
        with pytest.raises(InvalidArgument):
            sweep(wrong)  # type: ignore[arg-type]


async def test_a_sweep_is_awaited_as_well() -> None:
    store = MemoryStore()
    make_sessions(store)
    assert (await Session.sweep_async(store)).purged == ["old"]
    make_sessions(store)
    assert (await aio.Session.sweep_async(store, dry_run=True)).purged == ["old"]


def test_a_sweep_takes_a_store_of_four_methods() -> None:
    documents = DictStore()
    make_sessions(documents)
    assert Session.sweep(documents, dry_run=True).purged == ["old"]
    assert sweep(documents).purged == ["old"]
    assert sorted(documents.kept) == ["fresh", "holdfast::sweep:sweep"]
