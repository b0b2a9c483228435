"""What a memory was taught is found by the same object: stores, awaited names, and an erasure that is cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Memory, Message, Session, aio
from holdfast.errors import InvalidArgument
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.stores.base import Store


def talk(store: Store | None, text: str = "I like tea.", user_id: str | None = "alice") -> Session:
    session = Session(store=store, user_id=user_id)
    session.add_message(Message.user(text))
    return session


def test_a_memory_without_a_store_refuses_a_session_of_another_store(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        session = talk(store)
        with pytest.raises(InvalidArgument, match=r"Memory\(store="):
            Memory(user_id="alice").ingest_from_session(session)
        mine = Memory(user_id="alice", store=store)
        mine.ingest_from_session(session)
        assert [each.text for each in mine.search("tea")] == ["Likes tea"]


def test_a_memory_without_a_store_finds_what_it_learns_from_the_configured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path}/s.db")
    memory = Memory().for_user("alice")
    memory.ingest_from_session(talk(None))
    assert [each.text for each in memory.search("tea")] == ["Likes tea"]


async def test_the_same_lines_are_awaited_in_aio() -> None:
    store = MemoryStore()
    memory = aio.Memory(store=store)
    with pytest.raises(InvalidArgument, match=r"for_user\('alice'\).*shared=True"):
        await memory.ingest_from_session(talk(store))
    mine = memory.for_user("alice")
    assert isinstance(mine, aio.Memory)
    await mine.ingest_from_session(talk(store))
    assert [each.text for each in await mine.search("tea")] == ["Likes tea"]
    await memory.ingest_from_session(talk(store), shared=True)
    assert [each.text for each in await memory.search("tea")] == ["Likes tea"]
