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


def test_20_a_parameter_that_a_route_does_not_have_is_refused_on_every_route(
    client: httpx2.Client, local_server: LocalServer, store: Store
) -> None:
    before = head(store)
    document = client.get("/openapi.json").json()
    addresses = [(method, path) for path, methods in document["paths"].items() for method in methods]
    assert len(addresses) > 60
    for method, path in [*addresses, ("get", "/"), ("get", "/openapi.json")]:
        path = path.replace("{session_id}", "s").replace("{", "").replace("}", "")
        body: dict[str, Any] = {"json": {}} if method in ("post", "put") else {}
        answer = client.request(method.upper(), path, params={"metdata": "x", "zzz": "1"}, **body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), (method, path, answer.text)
        assert answer.json()["error"].startswith("unknown in the query: 'metdata', 'zzz': "), answer.text
        assert answer.json()["field"] == "metdata"
    assert head(store) == before


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/sessions?usr_id=alice", "did you mean 'user_id'?"),
        ("/sessions?metadata=x", "use user_id, app_name, status, limit, after"),
        ("/sessions/s/history?limt=3", "did you mean 'limit'?"),
        ("/sessions/s/events?type=x", "did you mean 'types'?"),
        ("/sessions/s/compare?other=x", "use with"),
        ("/sessions/s?x=1", "use none"),
    ],
)
def test_20_the_error_names_the_parameters_that_there_are(client: httpx2.Client, path: str, advice: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(advice)


def test_parameters_that_a_route_has_are_taken(client: httpx2.Client) -> None:
    for path in (
        "/sessions?user_id=a&app_name=b&status=open&limit=5",
        "/sessions/s/events?after=0&limit=5&types=a&types=b&since=2024-01-01",
        "/sessions/s/history?limit=5&role=user&skip=1",
        "/sessions/s/state?scope=session&at=1",
        "/memory?limit=5",
        "/health",
    ):
        answer = client.get(path)
        assert answer.status_code == 200, answer.text


def test_a_key_that_is_missing_comes_before_a_wrong_parameter(local_server: LocalServer) -> None:
    assert httpx2.get(f"{local_server.url}/sessions?zzz=1").status_code == 401


def test_20_a_page_goes_on_after_its_last_session_was_deleted(client: httpx2.Client) -> None:
    ids = [client.post("/sessions", json={"id": id} if id else {}).json()["id"] for id in ("a", "", "b", "", "c")]
    first = client.get("/sessions?limit=2").json()
    assert [each["id"] for each in first["sessions"]] == [ids[4], ids[3]]
    client.delete(f"/sessions/{ids[3]}").raise_for_status()
    second = client.get("/sessions", params={"limit": 1, "after": first["next"]}).json()
    assert [each["id"] for each in second["sessions"]] == ["b"]
    client.delete("/sessions/b").raise_for_status()
    client.post("/sessions", json={"id": "b"}).raise_for_status()  # another one, under the same id
    third = client.get("/sessions", params={"limit": 5, "after": second["next"]}).json()
    assert [each["id"] for each in third["sessions"]] == [ids[1], "a", "s"]
    again = client.get("/sessions", params={"limit": 5, "after": ids[3]}).json()
    assert [each["id"] for each in again["sessions"]] == [ids[1], "a", "s"]
    answer = client.get("/sessions", params={"after": "never"})
    assert (answer.status_code, "start from the first page" in answer.text) == (400, True)
