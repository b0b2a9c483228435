"""Stores of a user's own: what works on four methods, and the errors of a store that returns something else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from holdfast import Message, Session
from holdfast.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.urls import open_store
from tests.kit.documents import DictStore

MOMENT = 1 / 86_400_000_000  # a microsecond, in days


class FakeRedis:
    """As much of a Redis client as the documented RedisStore uses. Without `decode_responses` it gives bytes, which is
    the default of redis-py."""

    def __init__(self, *, decode_responses: bool = False) -> None:
        self._is_decoding, self._kept = decode_responses, dict[str, str]()

    def _encode(self, text: str) -> Any:
        return text if self._is_decoding else text.encode()

    def set(self, key: str, value: str) -> None:
        self._kept[key] = value

    def get(self, key: str) -> Any:
        return self._encode(self._kept[key]) if key in self._kept else None

    def delete(self, key: str) -> int:
        return int(self._kept.pop(key, None) is not None)

    def keys(self, pattern: str) -> list[Any]:
        return [self._encode(key) for key in self._kept if key.startswith(pattern.removesuffix("*"))]


class RedisStore:
    """The store of docs/stores.md; no subclass of ours."""

    def __init__(self, client: FakeRedis) -> None:
        self.client = client

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self.client.set(f"session:{session_id}", json.dumps(data))

    def load(self, session_id: str) -> dict[str, Any] | None:
        text = self.client.get(f"session:{session_id}")
        return None if text is None else json.loads(text)

    def delete(self, session_id: str) -> bool:
        return self.client.delete(f"session:{session_id}") > 0

    def list_sessions(self) -> list[str]:
        return [key.removeprefix("session:") for key in self.client.keys("session:*")]


def make_sessions(store: Any) -> None:
    for name, days in (("old", MOMENT), ("fresh", 30)):
        session = Session(name, store=store, user_id="alice", retention={"ttl_days": days})
        session.add_message(Message.user("hello"))
        session.set_state("language", "English", scope="user")
    time.sleep(0.001)  # a microsecond passes


def test_a_redis_client_that_decodes_can_do_everything() -> None:
    store: Any = RedisStore(FakeRedis(decode_responses=True))
    make_sessions(store)
    session = Session.open("fresh", store=store)
    session.fork("fork")
    assert {info.id for info in Session.list(store=store, user_id="alice")} == {"old", "fresh", "fork"}
    assert [fork.id for fork in session.forks()] == ["fork"]
    assert Session.sweep(store).purged == ["old"]
    session.erase(reason="asked for it", actor="dpo")
    assert Session.open("fresh", store=store).status == "erased"
    erased = Session.erase_user("alice", reason="asked for it", actor="dpo", store=store)
    assert (erased.sessions, erased.user_state) == (["fork"], True)
    assert sorted(store.list_sessions()) == ["fork", "fresh", "holdfast::sweep:sweep"]
    assert "hello" not in str(store.client._kept)


@pytest.mark.parametrize(
    "act",
    [
        lambda store: Session.list(store=store),
        lambda store: Session.open("fresh", store=store).forks(),
        lambda store: Session.erase_user("alice", reason="asked for it", actor="dpo", store=store),
        lambda store: Session.sweep(store),
        lambda store: Session.sweep(store, dry_run=True),
        lambda store: open_store(store).list_sessions(),
    ],
    ids=["list", "forks", "erase_user", "sweep", "dry sweep", "list_sessions"],
)
def test_a_redis_client_that_gives_bytes_is_an_error_that_names_the_option(act: Any) -> None:
    store: Any = RedisStore(FakeRedis())
    make_sessions(store)
    assert [message.text for message in Session.open("fresh", store=store).messages] == ["hello"]
    with pytest.raises(StoreUnavailable, match="decode_responses=True") as caught:  # removeprefix of bytes takes bytes
        act(store)
    assert isinstance(caught.value.__cause__, TypeError)


def test_ids_that_are_bytes_are_an_error_that_names_the_option() -> None:
    class BytesStore(DictStore):
        def list_sessions(self) -> list[Any]:
            return [name.encode() for name in self.kept]

    store = BytesStore()
    make_sessions(store)
    for act in (Session.list, Session.sweep):
        with pytest.raises(InvalidArgument, match=r"b'old'.*decode_responses=True"):
            act(store=store)


def test_what_is_no_text_and_no_document_is_a_clear_error() -> None:
    class OddStore(DictStore):
        def list_sessions(self) -> list[Any]:
            return [7]

        def load(self, session_id: str) -> Any:
            return self.kept.get(session_id)  # without json.loads

    store = OddStore()
    with pytest.raises(InvalidArgument, match="gave 7: return texts"):
        Session.list(store=store)
    session = Session("s", store=store)
    with pytest.raises(InvalidArgument, match="gave str: return the dict that was saved"):
        session.add_message(Message.user("hello"))


def test_a_store_that_fails_is_an_error_of_ours_and_changes_nothing() -> None:
    class BrokenStore(DictStore):
        is_broken = False

        def load(self, session_id: str) -> dict[str, Any] | None:
            if self.is_broken:
                raise ConnectionError("no route")
            return super().load(session_id)

        def list_sessions(self) -> list[str]:
            raise ConnectionError("no route")

    store = BrokenStore()
    session = Session("s", store=store)
    store.is_broken = True
    for act in (lambda: session.add_message(Message.user("hello")), lambda: Session.open("s", store=store)):
        with pytest.raises(StoreUnavailable, match=r"load.*no route"):
            act()
    with pytest.raises(StoreUnavailable, match=r"list_sessions.*no route"):
        Session.list(store=store)
    store.is_broken = False
    session.add_message(Message.user("hello"))
    assert [message.text for message in session.messages] == ["hello"]


def test_a_sweep_of_no_tenant_sweeps_the_documents_of_all_tenants() -> None:
    documents = DictStore()
    store = open_store(documents)
    for tenant in ("", "acme", "a:session:b"):
        make_sessions(store.for_tenant(tenant))
    again: Any = RedisStore(FakeRedis(decode_responses=True))
    again.client._kept = {f"session:{name}": text for name, text in documents.kept.items()}  # as a new process sees it
    report = Session.sweep(again)
    assert sorted((each.tenant, each.id) for each in report.sessions if each.act == "purged") == [
        ("", "old"), ("a:session:b", "old"), ("acme", "old"),
    ]  # fmt: skip
    assert open_store(again).for_tenant("acme").list_sessions() == ["fresh"]
