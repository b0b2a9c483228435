"""Answers that a server keeps for repeated requests go with the text in them, in every way of removing it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Memory, Message, Session
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.kept_answers import ANSWER_LINKS, ANSWERS, open_answer
from holdfast.worker.sweep import sweep
from tests.kit.local_server import TOKEN, LocalServer
from tests.kit.stores import open_store

SECRET = "heliotrope"
MASTER, OTHER = sha256(b"mine").digest(), sha256(b"other").digest()


@pytest.fixture(params=["memory", "sqlite", "postgres", "sqlite encrypted", "postgres encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    kind, _, encrypted = request.param.partition(" ")
    return open_store(kind, request, tmp_path, key=MASTER if encrypted else None)


@pytest.fixture
def client(store: Store) -> Iterator[httpx2.Client]:
    with (
        LocalServer(store) as server,
        httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as client,
    ):
        yield client


def post(client: httpx2.Client, path: str, key: str, **body: Any) -> httpx2.Response:
    return client.post(path, json=body, headers={"Idempotency-Key": key})


def read_answers(store: Store) -> str:
    found = store.kv_list(ANSWERS)
    opened = [(open_answer(store, value, key) or b"").decode() for key, value in found]
    return " ".join([*(key for key, _ in found), *opened, *map(str, store.kv_list(ANSWER_LINKS))])


def fill(client: httpx2.Client, store: Store) -> Session:
    """Keep an answer of every kind that shows the secret of one session."""
    made = post(client, "/sessions", "made", id="s", user_id="alice", title=SECRET, metadata={"k": SECRET})
    assert made.status_code == 201
    assert post(client, "/sessions/s/facts", "added", text=SECRET).status_code == 201
    assert post(client, "/sessions/s/fork", "forked", id="f").status_code == 201
    assert SECRET in read_answers(store)
    return Session.open("s", store=store)


@pytest.mark.parametrize("way", ["erase", "erase_user", "delete", "sweep", "redact", "HTTP erase", "HTTP delete"])
def test_no_kept_answer_tells_what_was_removed(client: httpx2.Client, store: Store, way: str) -> None:
    session = fill(client, store)
    if way == "erase":
        session.erase(reason="asked", actor="officer")
    elif way == "erase_user":
        Session.erase_user("alice", reason="asked", actor="officer", store=store)
    elif way == "delete":
        store.delete("s")
        store.delete("f")
    elif way == "sweep":
        session.retention = Session.open("f", store=store).retention = {"ttl_days": 1e-9}
        assert sorted(sweep(store).purged) == ["f", "s"]
    elif way == "redact":
        for event in session.events():
            if SECRET in str(event.data):
                session.redact(event.seq, reason="asked")
    elif way == "HTTP erase":
        assert client.post("/sessions/s/erase", json={"reason": "asked"}).status_code == 200
    else:
        assert client.delete("/sessions/s").status_code == 200
        assert client.delete("/sessions/f").status_code == 200
    assert SECRET not in read_answers(store)
    again = post(client, "/sessions", "made", id="s", user_id="alice", title=SECRET, metadata={"k": SECRET})
    assert again.headers.get("Idempotency-Replayed") is None


def test_answers_about_memories_go_with_the_session_that_they_came_from(client: httpx2.Client, store: Store) -> None:
    client.post("/sessions", json={"id": "s", "user_id": "alice"})
    Session.open("s", store=store).add_message(Message.user(f"I like {SECRET}."))
    assert post(client, "/sessions/s/memory", "learned").status_code == 200
    put = client.put(
        "/memory/k", json={"text": SECRET}, params={"user_id": "alice"}, headers={"Idempotency-Key": "put"}
    )
    assert put.status_code == 200
    assert SECRET in read_answers(store)
    Memory(store=store).for_user("alice").forget("k")
    Session.open("s", store=store).erase(reason="asked", actor="officer")
    assert SECRET not in read_answers(store)


def test_a_retry_of_the_removal_itself_finds_its_answer(client: httpx2.Client, store: Store) -> None:
    fill(client, store)
    for path in ("redact", "erase"):
        body = {"reason": "asked", "seq": 1} if path == "redact" else {"reason": "asked"}
        first, again = (post(client, f"/sessions/s/{path}", "gone", **body) for _ in range(2))
        assert (first.status_code, again.json()) == (200, first.json())
        assert again.headers["Idempotency-Replayed"] == "true"
    deleted = [client.delete("/sessions/f", headers={"Idempotency-Key": "d"}) for _ in range(2)]
    assert [each.status_code for each in deleted] in ([200, 200], [200, 404])


def test_an_answer_that_is_late_is_not_kept(client: httpx2.Client, store: Store) -> None:
    """The session is erased after a request was carried out, and before its answer is stored."""
    fill(client, store)
    put, waiting, go = store.kv_replace, threading.Event(), threading.Event()

    def replace_late(*args: Any, **options: Any) -> bool:
        waiting.set()
        go.wait(20)
        return put(*args, **options)

    type(store).kv_replace, original = replace_late, type(store).kv_replace  # type: ignore[method-assign, assignment]
    try:
        late = threading.Thread(target=post, args=(client, "/sessions/s/fork", "late"), kwargs={"id": "g"})
        late.start()
        assert waiting.wait(20)
        Session.open("s", store=store).erase(reason="asked", actor="officer")
        go.set()
        late.join(20)
    finally:
        type(store).kv_replace = original  # type: ignore[method-assign]
    assert SECRET not in read_answers(store)


@pytest.mark.parametrize("store", ["sqlite encrypted", "postgres encrypted"], indirect=True)
def test_an_erasure_makes_old_copies_of_answers_unreadable(client: httpx2.Client, store: Store) -> None:
    session = fill(client, store)
    copies = store.kv_list(ANSWERS)
    shown = [key for key, value in copies if SECRET.encode() in (open_answer(store, value, key) or b"")]
    assert shown
    session.erase(reason="asked", actor="officer")
    Session.open("f", store=store).erase(reason="asked", actor="officer")
    assert [key for key, value in copies if SECRET.encode() in (open_answer(store, value, key) or b"")] == []


@pytest.mark.parametrize("store", ["sqlite encrypted", "postgres encrypted"], indirect=True)
def test_answers_stay_readable_after_the_master_key_is_rotated(client: httpx2.Client, store: Store) -> None:
    fill(client, store)
    assert isinstance(store, (SQLiteStore, PostgresStore))
    store.rotate_key(OTHER)
    again = post(client, "/sessions/s/fork", "forked", id="f")
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")
    assert Session.open("s", store=store).add_message(Message.user("more"))
