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
from holdfast.server.idempotency import ANSWER_LINKS, ANSWERS
from holdfast.stores import MemoryStore
from tests.server.test_routes import TOKEN, Front, add_texts, failed, front, in_memory, light, ok, root, running

__all__ = ["front", "in_memory", "light", "root"]


def keep(client: httpx2.Client, key: str, text: str, **body: Any) -> Any:
    where: dict[str, Any] = {name: body.pop(name) for name in ("user_id", "app_name") if name in body}
    return ok(client.put(f"/memory/{key}", json={"text": text, **body}, params=where))


def keys(response: httpx2.Response) -> list[str]:
    return [each["key"] for each in ok(response)["memories"]]


def test_a_memory_is_kept_read_found_listed_updated_and_forgotten(front: Front) -> None:
    client = front.client()
    kept = keep(client, "home", "Lives in Bremen", kind="profile", confidence=0.5, user_id="alice", app_name="shop")
    assert (kept["key"], kept["text"], kept["kind"], kept["confidence"]) == ("home", "Lives in Bremen", "profile", 0.5)
    assert (kept["source"], kept["expires_at"], kept["score"]) == (None, None, None)
    alice = {"user_id": "alice", "app_name": "shop"}
    assert ok(client.get("/memory/home", params=alice)) == kept
    (found,) = ok(client.post("/memory/search", json={"query": "where does she live", **alice}))["memories"]
    assert found["score"] > 0
    assert found | {"score": None} == kept
    again = keep(client, "home", "Lives in Paris", **alice)
    assert again["created_at"] == kept["created_at"]
    for n in range(4):
        keep(client, f"k{n}", f"number {n}", **alice)
    page = ok(client.get("/memory", params={**alice, "limit": 2}))
    assert ([each["key"] for each in page["memories"]], page["next"]) == (["home", "k0"], "k0")
    page = ok(client.get("/memory", params={**alice, "limit": 3, "after": "k0"}))
    assert ([each["key"] for each in page["memories"]], page["next"]) == (["k1", "k2", "k3"], None)
    assert keys(client.get("/memory", params={**alice, "kind": "profile"})) == []  # the update said nothing of a kind
    assert ok(client.delete("/memory/home", params=alice)) == {"deleted": True}
    assert ok(client.delete("/memory/home", params=alice)) == {"deleted": False}
    assert "home" in failed(client.get("/memory/home", params=alice), 404, "not_found")
    assert keys(client.get("/memory")) == keys(client.get("/memory", params={"user_id": "alice"})) == []


def test_a_key_may_have_any_character(light: Front) -> None:
    client = light.client()
    for key in ("a/b", "search", "..", "ü 钻石", "a%2Fb?x=1&y=2#z"):
        from holdfast.client.requests import url_path

        kept = ok(client.put(url_path("memory", key), json={"text": "text"}))
        assert kept["key"] == key
        assert ok(client.get(url_path("memory", key)))["key"] == key
        assert ok(client.delete(url_path("memory", key))) == {"deleted": True}


def test_bad_input_names_its_field(light: Front) -> None:
    client = light.client()
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
        failed(client.put("/memory/k", json=body), 400, "invalid_argument", field)
    failed(client.put("/memory/k", json={"text": "x", "expires_at": "2001-01-01"}), 400, "invalid_argument")
    failed(client.put("/memory/k", json={"text": "  "}), 400, "invalid_argument")
    failed(client.put("/memory/k", json={"text": "x" * 20_000}), 413, "limit_exceeded")
    failed(client.put(f"/memory/{'k' * 600}", json={"text": "x"}), 413, "limit_exceeded")
    failed(client.get("/memory/"), 400, "invalid_id")
    failed(client.get("/memory", params={"limit": 0}), 400, "invalid_argument", "limit")
    failed(client.get("/memory", params={"user_id": ""}), 400, "invalid_id")
    failed(client.post("/memory/search", json={"query": "x", "limit": -1}), 400, "invalid_argument", "limit")
    failed(client.post("/memory/search", json={}), 400, "invalid_argument", "query")
    failed(client.post("/memory/home", json={"text": "x"}), 405, "method_not_allowed")
    assert keys(client.get("/memory")) == []


def test_a_key_of_a_user_reaches_that_users_memories_only(light: Front) -> None:
    service, alice, bob = (
        light.key(role="write"),
        light.key(role="write", user="alice"),
        light.key(role="admin", user="bob"),
    )
    reader = light.key(role="read", user="alice")
    keep(service, "note", "of nobody")
    keep(alice, "note", "of alice")
    keep(bob, "note", "of bob")
    for client, text in ((service, "of nobody"), (alice, "of alice"), (reader, "of alice"), (bob, "of bob")):
        assert ok(client.get("/memory/note"))["text"] == text
        assert [each["text"] for each in ok(client.get("/memory"))["memories"]] == [text]
        found = ok(client.post("/memory/search", json={"query": "note of alice bob nobody", "limit": 9}))["memories"]
        assert [each["text"] for each in found] == [text]
    assert ok(service.get("/memory/note", params={"user_id": "alice"}))["text"] == "of alice"
    assert ok(alice.get("/memory/note", params={"user_id": "alice"}))["text"] == "of alice"
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
        failed(response, 403, "forbidden")
    other = light.for_tenant("elsewhere")
    assert keys(other.key(role="admin").get("/memory", params={"user_id": "alice"})) == []
    other.close()


def test_the_source_is_a_session_that_the_key_reaches(light: Front) -> None:
    alice, bob = light.key(role="write", user="alice"), light.key(role="write", user="bob")
    ok(alice.post("/sessions", json={"id": "s", "app_name": "shop"}), 201)
    seq = add_texts(alice, "s", "hello")
    kept = keep(alice, "k", "text", source={"session_id": "s", "seqs": [seq]})
    assert kept["source"] == {"session_id": "s", "seqs": [seq]}
    assert keys(alice.get("/memory", params={"app_name": "shop"})) == ["k"]  # in the session's own scope
    body = {"text": "x", "source": {"session_id": "s", "seqs": [seq]}}
    failed(bob.put("/memory/k", json=body), 404, "session_not_found")
    failed(alice.put("/memory/k", json=body, params={"app_name": "other"}), 400, "invalid_argument")
    far = {"text": "x", "source": {"session_id": "s", "seqs": [999]}}
    failed(alice.put("/memory/k", json=far), 400, "invalid_argument")


def test_a_session_is_learnt_from_with_and_without_a_model(front: Front) -> None:
    client = front.client()
    ok(client.post("/sessions", json={"id": "s", "user_id": "alice"}), 201)
    add_texts(client, "s", "My name is Alice. I like tea.")
    found = ok(client.post("/sessions/s/memory"))["memories"]
    assert [(each["key"], each["source"]) for each in found] == [
        ("name", {"session_id": "s", "seqs": [2]}),
        ("likes.tea", {"session_id": "s", "seqs": [2]}),
    ]
    assert ok(client.post("/sessions/s/memory", json={})) == {"memories": []}
    reply = '{"memories": [{"key": "pet", "text": "Has a cat", "kind": "fact", "confidence": 1, "sources": [3]}]}'
    front.server.catalog._code_agents["learner"] = Agent(provider="scripted", script=[reply])
    add_texts(client, "s", "my cat is asleep")
    found = ok(client.post("/sessions/s/memory", json={"agent_id": "learner"}))["memories"]
    assert [each["text"] for each in found] == ["Has a cat"]
    add_texts(client, "s", "more")
    failed(client.post("/sessions/s/memory", json={"agent_id": "nobody"}), 404, "not_found")
    failed(client.post("/sessions/nowhere/memory"), 404, "session_not_found")


def test_an_idempotency_key_gives_the_same_answer_and_nothing_forgotten_stays_with_it(front: Front) -> None:
    client = front.client()

    def answers() -> str:
        pages = [front.store.kv_list(space) for space in (ANSWERS, ANSWER_LINKS)]
        return " ".join(str(value) for page in pages for _, value in page)

    once = {"Idempotency-Key": "one"}
    first = client.put("/memory/k", json={"text": "an amethyst"}, params={"user_id": "alice"}, headers=once)
    keep(client, "k", "a ruby", user_id="alice")
    again = client.put("/memory/k", json={"text": "an amethyst"}, params={"user_id": "alice"}, headers=once)
    assert again.json() == ok(first)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert ok(client.get("/memory/k", params={"user_id": "alice"}))["text"] == "a ruby"  # it was not done again
    other = client.put("/memory/k", json={"text": "other"}, params={"user_id": "alice"}, headers=once)
    failed(other, 422, "key_reused")
    ok(client.post("/memory/search", json={"query": "ruby", "user_id": "alice"}, headers=once))
    assert "amethyst" in answers()
    assert "ruby" not in answers()
    ok(client.delete("/memory/k", params={"user_id": "alice"}))
    assert "amethyst" not in answers()
    ok(client.post("/sessions", json={"id": "s", "user_id": "alice"}), 201)
    seq = add_texts(client, "s", "I am allergic to peanuts.")
    learnt = ok(client.post("/sessions/s/memory", headers=once))["memories"]
    assert ok(client.post("/sessions/s/memory", headers=once))["memories"] == learnt
    assert "peanuts" in answers()
    ok(client.post("/sessions/s/redact", json={"seq": seq, "reason": "asked for"}))
    assert "peanuts" not in answers()
    assert keys(client.get("/memory", params={"user_id": "alice"})) == []


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
    with running(Server(MemoryStore(), Config(rate=0, drain=1), token=TOKEN, memory=found)) as front:
        client = front.client()
        keep(client, "k", "strawberry")
        assert keys(client.post("/memory/search", json={"query": "strawbery"})) == ["k"]  # as its service finds it
        assert keys(client.get("/memory", params={"user_id": "somebody"})) == []  # whom it is for is said by requests


def test_what_the_library_keeps_the_server_shows(light: Front) -> None:
    memory = Memory(VectorMemoryService(), store=light.store)
    memory.store("k", "text", user_id="alice")
    Session("s", store=light.store, user_id="alice")
    assert keys(light.client().get("/memory", params={"user_id": "alice"})) == ["k"]
