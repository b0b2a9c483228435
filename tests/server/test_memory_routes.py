"""Memories over HTTP: the routes, whose memories a key reaches, and that nothing of what was forgotten stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Agent, Memory, Session, VectorMemoryService
from holdfast.errors import InvalidArgument
from holdfast.server.app import Server
from holdfast.server.app_loader import load_app
from holdfast.server.config import Config
from holdfast.stores import MemoryStore
from holdfast.stores.kept_answers import ANSWER_LINKS, ANSWERS
from tests.server.test_routes import (
    TOKEN,
    CheckedServer,
    add_texts,
    checked_server,
    expect_error,
    expect_json,
    memory_server,
    start_server,
    tenant_server,
    work_root,
)

__all__ = ["checked_server", "memory_server", "tenant_server", "work_root"]


def put_memory(client: httpx2.Client, key: str, text: str, **body: Any) -> Any:
    where: dict[str, Any] = {name: body.pop(name) for name in ("user_id", "app_name") if name in body}
    return expect_json(client.put(f"/memory/{key}", json={"text": text, **body}, params=where))


def list_keys(response: httpx2.Response) -> list[str]:
    return [each["key"] for each in expect_json(response)["memories"]]


def test_a_memory_is_kept_read_found_listed_updated_and_forgotten(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    kept = put_memory(
        client, "home", "Lives in Bremen", kind="profile", confidence=0.5, user_id="alice", app_name="shop"
    )
    assert (kept["key"], kept["text"], kept["kind"], kept["confidence"]) == ("home", "Lives in Bremen", "profile", 0.5)
    assert (kept["source"], kept["expires_at"], kept["score"]) == (None, None, None)
    alice = {"user_id": "alice", "app_name": "shop"}
    assert expect_json(client.get("/memory/home", params=alice)) == kept
    (found,) = expect_json(client.post("/memory/search", json={"query": "where does she live", **alice}))["memories"]
    assert found["score"] > 0
    assert found | {"score": None} == kept
    again = put_memory(client, "home", "Lives in Paris", **alice)
    assert again["created_at"] == kept["created_at"]
    for n in range(4):
        put_memory(client, f"k{n}", f"number {n}", **alice)
    page = expect_json(client.get("/memory", params={**alice, "limit": 2}))
    assert ([each["key"] for each in page["memories"]], page["next"]) == (["home", "k0"], "k0")
    page = expect_json(client.get("/memory", params={**alice, "limit": 3, "after": "k0"}))
    assert ([each["key"] for each in page["memories"]], page["next"]) == (["k1", "k2", "k3"], None)
    assert (
        list_keys(client.get("/memory", params={**alice, "kind": "profile"})) == []
    )  # the update said nothing of a kind
    assert expect_json(client.delete("/memory/home", params=alice)) == {"deleted": True}
    assert expect_json(client.delete("/memory/home", params=alice)) == {"deleted": False}
    assert "home" in expect_error(client.get("/memory/home", params=alice), 404, "not_found")
    assert list_keys(client.get("/memory")) == list_keys(client.get("/memory", params={"user_id": "alice"})) == []


def test_a_key_may_have_any_character(tenant_server: CheckedServer) -> None:
    client = tenant_server.client()
    for key in ("a/b", "search", "..", "ü 钻石", "a%2Fb?x=1&y=2#z"):
        from holdfast.client.requests import url_path

        kept = expect_json(client.put(url_path("memory", key), json={"text": "text"}))
        assert kept["key"] == key
        assert expect_json(client.get(url_path("memory", key)))["key"] == key
        assert expect_json(client.delete(url_path("memory", key))) == {"deleted": True}


def test_bad_input_names_its_field(tenant_server: CheckedServer) -> None:
    client = tenant_server.client()
    for body, field in (
        ({"text": ""}, "text"),
        ({}, "text"),
        ({"text": "x", "confidence": 2}, "confidence"),
        ({"text": "x", "kind": ""}, "kind"),
        ({"text": "x", "expires_in": 0}, "expires_in"),
        ({"text": "x", "expires_in": 1, "expires_at": "2500-01-01"}, "expires_in"),
        ({"text": "x", "expires_at": "soon"}, "expires_at"),
        ({"text": "x", "other": 1}, "other"),
    ):
        expect_error(client.put("/memory/k", json=body), 400, "invalid_argument", field)
    expect_error(client.put("/memory/k", json={"text": "x", "expires_at": "2001-01-01"}), 400, "invalid_argument")
    expect_error(client.put("/memory/k", json={"text": "  "}), 400, "invalid_argument")
    expect_error(client.put("/memory/k", json={"text": "x" * 20_000}), 413, "limit_exceeded")
    expect_error(client.put(f"/memory/{'k' * 600}", json={"text": "x"}), 413, "limit_exceeded")
    expect_error(client.get("/memory/"), 400, "invalid_id")
    expect_error(client.get("/memory", params={"limit": 0}), 400, "invalid_argument", "limit")
    expect_error(client.get("/memory", params={"user_id": ""}), 400, "invalid_id")
    expect_error(client.post("/memory/search", json={"query": "x", "limit": -1}), 400, "invalid_argument", "limit")
    expect_error(client.post("/memory/search", json={}), 400, "invalid_argument", "query")
    expect_error(client.post("/memory/home", json={"text": "x"}), 405, "method_not_allowed")
    assert list_keys(client.get("/memory")) == []


def test_a_key_of_a_user_reaches_that_users_memories_only(tenant_server: CheckedServer) -> None:
    service, alice, bob = (
        tenant_server.key(role="write"),
        tenant_server.key(role="write", user="alice"),
        tenant_server.key(role="admin", user="bob"),
    )
    reader = tenant_server.key(role="read", user="alice")
    put_memory(service, "note", "of nobody")
    put_memory(alice, "note", "of alice")
    put_memory(bob, "note", "of bob")
    for client, text in ((service, "of nobody"), (alice, "of alice"), (reader, "of alice"), (bob, "of bob")):
        assert expect_json(client.get("/memory/note"))["text"] == text
        assert [each["text"] for each in expect_json(client.get("/memory"))["memories"]] == [text]
        found = expect_json(client.post("/memory/search", json={"query": "note of alice bob nobody", "limit": 9}))[
            "memories"
        ]
        assert [each["text"] for each in found] == [text]
    assert expect_json(service.get("/memory/note", params={"user_id": "alice"}))["text"] == "of alice"
    assert expect_json(alice.get("/memory/note", params={"user_id": "alice"}))["text"] == "of alice"
    for response in (
        alice.get("/memory/note", params={"user_id": "bob"}),
        alice.get("/memory", params={"user_id": "bob"}),
        alice.put("/memory/note", params={"user_id": "bob"}, json={"text": "x"}),
        alice.delete("/memory/note", params={"user_id": "bob"}),
        alice.post("/memory/search", json={"query": "x", "user_id": "bob"}),
        bob.get("/memory/note", params={"user_id": "alice"}),
        reader.put("/memory/note", json={"text": "x"}),
        reader.delete("/memory/note"),
    ):
        expect_error(response, 403, "forbidden")
    other = tenant_server.for_tenant("elsewhere")
    assert list_keys(other.key(role="admin").get("/memory", params={"user_id": "alice"})) == []
    other.close()


def test_the_source_is_a_session_that_the_key_reaches(tenant_server: CheckedServer) -> None:
    alice, bob = tenant_server.key(role="write", user="alice"), tenant_server.key(role="write", user="bob")
    expect_json(alice.post("/sessions", json={"id": "s", "app_name": "shop"}), 201)
    seq = add_texts(alice, "s", "hello")
    kept = put_memory(alice, "k", "text", source={"session_id": "s", "seqs": [seq]})
    assert kept["source"] == {"session_id": "s", "seqs": [seq]}
    assert list_keys(alice.get("/memory", params={"app_name": "shop"})) == ["k"]  # in the session's own scope
    body = {"text": "x", "source": {"session_id": "s", "seqs": [seq]}}
    expect_error(bob.put("/memory/k", json=body), 404, "session_not_found")
    expect_error(alice.put("/memory/k", json=body, params={"app_name": "other"}), 400, "invalid_argument")
    far = {"text": "x", "source": {"session_id": "s", "seqs": [999]}}
    expect_error(alice.put("/memory/k", json=far), 400, "invalid_argument")


def test_a_session_is_learnt_from_with_and_without_a_model(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "user_id": "alice"}), 201)
    add_texts(client, "s", "My name is Alice. I like tea.")
    found = expect_json(client.post("/sessions/s/memory"))["memories"]
    assert [(each["key"], each["source"]) for each in found] == [
        ("name", {"session_id": "s", "seqs": [2]}),
        ("likes.tea", {"session_id": "s", "seqs": [2]}),
    ]
    assert expect_json(client.post("/sessions/s/memory", json={})) == {"memories": []}
    reply = '{"memories": [{"key": "pet", "text": "Has a cat", "kind": "fact", "confidence": 1, "sources": [3]}]}'
    checked_server.server.catalog._code_agents["learner"] = Agent(provider="scripted", script=[reply])
    add_texts(client, "s", "my cat is asleep")
    found = expect_json(client.post("/sessions/s/memory", json={"agent_id": "learner"}))["memories"]
    assert [each["text"] for each in found] == ["Has a cat"]
    add_texts(client, "s", "more")
    expect_error(client.post("/sessions/s/memory", json={"agent_id": "nobody"}), 404, "not_found")
    expect_error(client.post("/sessions/nowhere/memory"), 404, "session_not_found")


def test_what_a_session_says_may_be_shared_by_a_key_of_no_user(tenant_server: CheckedServer) -> None:
    service, alice = tenant_server.key(role="write"), tenant_server.key(role="write", user="alice")
    expect_json(alice.post("/sessions", json={"id": "s", "app_name": "shop"}), 201)
    add_texts(alice, "s", "I like tea.")
    expect_error(service.post("/sessions/s/memory", json={"app_name": "shop"}), 400, "invalid_argument", "shared")
    other_app = {"shared": True, "app_name": "elsewhere"}
    expect_error(service.post("/sessions/s/memory", json=other_app), 400, "invalid_argument")
    expect_error(alice.post("/sessions/s/memory", json={"shared": True, "user_id": "bob"}), 403, "forbidden")
    assert list_keys(alice.post("/sessions/s/memory", json={"shared": True})) == ["likes.tea"]  # for alice, in no app
    assert list_keys(alice.get("/memory")) == ["likes.tea"]
    assert list_keys(service.get("/memory")) == []
    shared = {"shared": True, "app_name": "shop"}
    assert list_keys(service.post("/sessions/s/memory", json=shared)) == ["likes.tea"]
    assert list_keys(service.get("/memory", params={"app_name": "shop"})) == ["likes.tea"]
    assert list_keys(alice.get("/memory", params={"app_name": "shop"})) == []


def test_forgetting_a_shared_memory_drops_the_stored_answer_that_shows_it(checked_server: CheckedServer) -> None:
    client, store = checked_server.client(), checked_server.store
    expect_json(client.post("/sessions", json={"id": "s", "user_id": "alice", "app_name": "shop"}), 201)
    add_texts(client, "s", "I like amethysts.")
    shop = {"app_name": "shop"}
    expect_json(client.post("/sessions/s/memory", json={"shared": True, **shop}, headers={"Idempotency-Key": "one"}))
    assert "amethysts" in str(store.kv_list(ANSWERS))
    assert expect_json(client.delete("/memory/likes.amethysts", params=shop)) == {"deleted": True}
    assert "amethysts" not in str(store.kv_list(ANSWERS))


def test_an_idempotency_key_gives_the_same_answer_and_nothing_forgotten_stays_with_it(
    checked_server: CheckedServer,
) -> None:
    client = checked_server.client()

    def read_answers() -> str:
        pages = [checked_server.store.kv_list(space) for space in (ANSWERS, ANSWER_LINKS)]
        return " ".join(str(value) for page in pages for _, value in page)

    once = {"Idempotency-Key": "one"}
    first = client.put("/memory/k", json={"text": "an amethyst"}, params={"user_id": "alice"}, headers=once)
    put_memory(client, "k", "a ruby", user_id="alice")
    again = client.put("/memory/k", json={"text": "an amethyst"}, params={"user_id": "alice"}, headers=once)
    assert again.json() == expect_json(first)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (
        expect_json(client.get("/memory/k", params={"user_id": "alice"}))["text"] == "a ruby"
    )  # it was not done again
    other = client.put("/memory/k", json={"text": "other"}, params={"user_id": "alice"}, headers=once)
    expect_error(other, 422, "key_reused")
    expect_json(client.post("/memory/search", json={"query": "ruby", "user_id": "alice"}, headers=once))
    assert "amethyst" in read_answers()
    assert "ruby" not in read_answers()
    expect_json(client.delete("/memory/k", params={"user_id": "alice"}))
    assert "amethyst" not in read_answers()
    expect_json(client.post("/sessions", json={"id": "s", "user_id": "alice"}), 201)
    seq = add_texts(client, "s", "I am allergic to peanuts.")
    learnt = expect_json(client.post("/sessions/s/memory", headers=once))["memories"]
    assert expect_json(client.post("/sessions/s/memory", headers=once))["memories"] == learnt
    assert "peanuts" in read_answers()
    expect_json(client.post("/sessions/s/redact", json={"seq": seq, "reason": "asked for"}))
    assert "peanuts" not in read_answers()
    assert list_keys(client.get("/memory", params={"user_id": "alice"})) == []


def test_the_file_of_a_server_may_bring_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    start = "from holdfast import Agent, Memory, VectorMemoryService\nagent = Agent(provider='echo', name='a')\n"
    path.write_text(start)
    assert load_app(str(path)).memory is None
    path.write_text(start + "known = Memory(VectorMemoryService(), user_id='somebody')\n")
    found = load_app(str(path)).memory
    assert found is not None
    path.write_text(start + "one = Memory()\ntwo = Memory()\n")
    with pytest.raises(InvalidArgument, match="2 memories"):
        load_app(str(path))
    path.write_text(start + "one = Memory()\nmemory = Memory()\n")
    assert load_app(str(path)).memory is not None
    with start_server(Server(MemoryStore(), Config(rate=0, drain=1), token=TOKEN, memory=found)) as checked_server:
        client = checked_server.client()
        put_memory(client, "k", "strawberry")
        assert list_keys(client.post("/memory/search", json={"query": "strawbery"})) == ["k"]  # as its service finds it
        assert list_keys(client.get("/memory", params={"user_id": "somebody"})) == []  # the request names the user


def test_what_the_library_keeps_the_server_shows(tenant_server: CheckedServer) -> None:
    memory = Memory(VectorMemoryService(), store=tenant_server.store)
    memory.store("k", "text", user_id="alice")
    Session("s", store=tenant_server.store, user_id="alice")
    assert list_keys(tenant_server.client().get("/memory", params={"user_id": "alice"})) == ["k"]
