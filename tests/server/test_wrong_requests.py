"""Requests that clients got wrong: each one is a 400 that names what is wrong, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Agent, File, Image, Message
from holdfast.stores import SQLiteStore
from holdfast.stores.base import Store
from tests.kit.local_server import TOKEN, Listener, LocalServer


@pytest.fixture
def local_server(tmp_path: Path, listener: Listener) -> Iterator[LocalServer]:
    with SQLiteStore(tmp_path / "sessions.db") as store, LocalServer(store, listener=listener) as found:
        found.register("echo", Agent(provider="echo"))
        yield found


@pytest.fixture
def store(local_server: LocalServer) -> Store:
    return local_server.server.store


@pytest.fixture
def client(local_server: LocalServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=local_server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as found:
        found.post("/sessions", json={"id": "s"}).raise_for_status()
        yield found


def head(store: Store) -> int:
    return store.head(store.require("session", "s")).head


@pytest.mark.parametrize("way", ["message", "message/stream"])
@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("", "says nothing"),
        (" ", "says nothing"),
        ({"role": "user", "content": []}, "says nothing"),
        ({"role": "assistant", "content": "x"}, "add_message() records it"),
        ({"role": "system", "content": "x"}, "of the role 'system'"),
        ({"role": "tool", "content": "x", "tool_call_id": "c"}, "of the role 'tool'"),
        ({"role": "user", "content": [{"type": "image", "url": "photo.png"}]}, "is no URL"),
    ],
)
def test_a_message_that_no_turn_can_answer_is_refused(
    client: httpx2.Client, store: Store, way: str, message: Any, advice: str
) -> None:
    before = head(store)
    answer = client.post(f"/sessions/s/{way}", json={"agent_id": "echo", "message": message})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), answer.text
    assert advice in answer.json()["error"]
    assert head(store) == before


def test_parts_as_anthropic_writes_them_are_taken(client: httpx2.Client) -> None:
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
        {"type": "document", "source": {"type": "text", "data": "note"}, "title": "n.txt", "cache_control": {"a": 1}},
        {"type": "image_url", "image_url": "https://e.com/a.png"},
    ]
    client.post("/sessions/s/messages", json={"messages": [{"role": "user", "content": content}]}).raise_for_status()
    (found,) = client.get("/sessions/s/history").json()["messages"]
    assert Message.of(found) == Message.user(
        Image(data=b"png", media_type="image/png"),
        File(data=b"note", media_type="text/plain", name="n.txt"),
        Image("https://e.com/a.png"),
    )
    wrong = {"role": "user", "content": [{"type": "image", "source": {"type": "text", "data": "x"}}]}
    answer = client.post("/sessions/s/messages", json={"messages": [wrong]})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert "use base64 or url" in answer.json()["error"]
