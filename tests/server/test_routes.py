"""Every route for sessions and agents, on a real server over loopback. Each answer is checked against the OpenAPI
document, so what the document says is what is sent."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import jsonschema_rs
import pytest
import uvicorn

from holdfast import Agent, Message, Session, tool
from holdfast.errors import InvalidArgument
from holdfast.log import chain
from holdfast.log.events import PAYLOAD_AT, SALT_SIZE, Draft, Event
from holdfast.log.times import to_datetime
from holdfast.server.agent_catalog import AgentCatalog, load_app
from holdfast.server.api_keys import create_key
from holdfast.server.app import Server, create_app
from holdfast.server.config import Config
from holdfast.server.schemas.requests import MessageGiven
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from holdfast.stores.lease import Claim, encode_holder
from holdfast.testing import call

TOKEN = "the-token-of-this-very-server"
tenants = itertools.count()


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(approval="always")
def charge(cents: int) -> str:
    """Take money."""
    return f"charged {cents}"


class CheckedServer:
    """A server that listens, and clients whose answers are checked."""

    def __init__(
        self, server: Server, url: str, document: dict[str, Any], tenant: str = "", token: str = TOKEN
    ) -> None:
        self.server, self.url, self.document, self.tenant, self._token = server, url, document, tenant, token
        self.store = server.store.for_tenant(tenant)
        self._patterns = [
            (
                re.compile(
                    "^"
                    + re.sub(r"\{[a-z_]+\}", "(.*)" if "state/" in path or "memory/{" in path else "([^/]+)", path)
                    + "$"
                ),
                path,
            )
            for path in sorted(document["paths"], key=lambda path: (path.count("{"), -len(path)))
        ]
        self._open: list[httpx2.Client] = []
        self.seen: set[tuple[str, str]] = set()

    def for_tenant(self, tenant: str) -> CheckedServer:
        """The same server, as an administrator of a tenant sees it."""
        token, _ = create_key(self.server.store, role="admin", tenant=tenant)
        return CheckedServer(self.server, self.url, self.document, tenant, token)

    def client(self, token: str | None = None) -> httpx2.Client:
        client = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token or self._token}"},
            event_hooks={"response": [self._check]},
            timeout=30,
        )
        self._open.append(client)
        return client

    def key(self, **about: Any) -> httpx2.Client:
        return self.client(create_key(self.server.store, **{"tenant": self.tenant, **about})[0])

    def close(self) -> None:
        for client in self._open:
            client.close()

    def _check(self, response: httpx2.Response) -> None:
        """Whether the document knows this status of this operation, and the body fits its schema."""
        response.read()
        path = response.request.url.path
        method = response.request.method.lower()
        known = [each for pattern, each in self._patterns if pattern.match(path)]
        template = next((each for each in known if method in self.document["paths"][each]), None)
        if template is None:
            assert response.status_code in (404, 405), (method, path, response.text)
            return
        operation = self.document["paths"][template][method]
        self.seen.add((method, template))
        said = operation["responses"].get(str(response.status_code))
        assert said is not None, f"{method} {template} answers {response.status_code}: {response.text}"
        kind = response.headers["content-type"]
        assert kind in said["content"], (template, kind, list(said["content"]))
        if kind == "application/json":
            schema = said["content"][kind]["schema"]
            validator = jsonschema_rs.validator_for({**schema, "components": self.document["components"]})
            problems = [
                f"{list(each.instance_path)}: {each.message}" for each in validator.iter_errors(response.json())
            ]
            assert not problems, f"{method} {template}: {problems}"


@cache
def load_document() -> dict[str, Any]:
    return create_app(Server(MemoryStore(), Config(), token=TOKEN)).openapi()


@cache
def make_validator(method: str, path: str, status: str) -> Any:
    schema = load_document()["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": load_document()["components"]})


@contextmanager
def start_server(server: Server) -> Iterator[CheckedServer]:
    app = create_app(server)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", loop="asyncio", lifespan="on")
    uvicorn_server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(uvicorn_server.serve([listener])), daemon=True)
    thread.start()
    checked_server = CheckedServer(server, f"http://127.0.0.1:{listener.getsockname()[1]}", load_document())
    try:
        yield checked_server
    finally:
        checked_server.close()
        uvicorn_server.should_exit = True
        thread.join(20)
        listener.close()


def make_agents() -> dict[str, Agent]:
    script = [call("charge", {"cents": 5}), "done"]
    return {
        "echo": Agent(provider="echo", name="echo", tools=[add]),
        "cashier": Agent(provider="scripted", script=script, name="Cashier", tools=[charge]),
    }


@pytest.fixture
def work_root(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    found.mkdir()
    return found


@pytest.fixture
def checked_server(durable_store: Store, work_root: Path) -> Iterator[CheckedServer]:
    config = Config(rate=0, work_roots=(str(work_root),), poll=0.05, drain=1)
    with start_server(Server(durable_store, config, token=TOKEN, agents=make_agents(), tools={"add": add})) as found:
        yield found


@pytest.fixture(scope="module")
def memory_server() -> Iterator[CheckedServer]:
    server = Server(
        MemoryStore(), Config(rate=0, poll=0.05, drain=1), token=TOKEN, agents=make_agents(), tools={"add": add}
    )
    with start_server(server) as found:
        yield found


@pytest.fixture
def tenant_server(memory_server: CheckedServer) -> Iterator[CheckedServer]:
    """For what does not depend on the store: one server for all, and a tenant for each test."""
    found = memory_server.for_tenant(f"tenant-{next(tenants)}")
    yield found
    found.close()


@pytest.fixture
def rooted_server(work_root: Path) -> Iterator[CheckedServer]:
    """With a directory to work in."""
    with start_server(
        Server(MemoryStore(), Config(rate=0, work_roots=(str(work_root),), drain=1), token=TOKEN)
    ) as found:
        yield found


def expect_json(response: httpx2.Response, status: int = 200) -> Any:
    assert response.status_code == status, response.text
    return response.json()


def expect_error(response: httpx2.Response, status: int, code: str, field: str | None = None) -> str:
    found = response.json()
    assert (response.status_code, found["code"]) == (status, code), response.text
    if field is not None:
        assert found["field"] == field
    return str(found["error"])


def add_texts(client: httpx2.Client, id: str, *texts: str) -> int:
    messages = [
        {"role": "user" if place % 2 == 0 else "assistant", "content": text} for place, text in enumerate(texts)
    ]
    seq: int = expect_json(client.post(f"/sessions/{id}/messages", json={"messages": messages}))["seq"]
    return seq


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_is_made_read_changed_listed_and_deleted(checked_server: CheckedServer, work_root: Path) -> None:
    client, folder = checked_server.client(), work_root / "@" / "alice"
    folder.mkdir(parents=True)
    body = {
        "id": "s 1",
        "title": "Refund",
        "metadata": {"order": 7},
        "user_id": "alice",
        "app_name": "shop",
        "system": "Be kind.",
        "work_dir": str(folder),
        "messages": [{"role": "user", "content": "Hi"}],
        "state": {"language": "en"},
        "budget": {"tokens": 1000, "prices": {"input": 1}},
        "retention": {"ttl_days": 30},
    }
    made = expect_json(client.post("/sessions", json=body), 201)
    assert {name: made[name] for name in body if name not in ("messages", "state")} == {
        name: value for name, value in body.items() if name not in ("messages", "state")
    }
    assert (made["status"], made["length"], made["parent"], made["held"], made["queued"]) == ("open", 1, None, None, 0)
    assert expect_json(client.get("/sessions/s%201")) == made
    assert expect_json(client.get("/sessions/s%201/state"))["state"] == {"language": "en"}

    change = {"title": None, "metadata": {"order": 8}, "budget": None, "system": None, "work_dir": None}
    changed = expect_json(client.put("/sessions/s%201", json=change | {"retention": {"ttl_days": 60}}))
    assert {name: changed[name] for name in change} == change
    assert changed["retention"] == {"ttl_days": 60}
    assert changed["head"] == made["head"] + 2  # one change, one retention
    assert expect_json(client.put("/sessions/s%201", json={}))["head"] == changed["head"]

    expect_error(client.post("/sessions", json={"id": "s 1"}), 409, "session_exists")
    again = expect_json(client.post("/sessions", json={"id": "s 1", "title": "Again", "exist_ok": True}), 200)
    assert again["title"] == "Again"
    expect_json(client.post("/sessions", json={"id": "s2", "exist_ok": True}), 201)
    expect_error(
        client.post("/sessions", json={"id": "s 1", "exist_ok": True, "user_id": "bob"}), 409, "session_mismatch"
    )

    assert expect_json(client.delete("/sessions/s%201")) == {"status": "deleted"}
    assert expect_error(client.get("/sessions/s%201"), 404, "session_not_found") == "session not found: s 1"
    expect_error(client.delete("/sessions/s%201"), 404, "session_not_found")


def test_sessions_without_a_body_have_ids_that_sort_by_time(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    ids = [expect_json(client.post("/sessions", headers={"Idempotency-Key": f"k{n}"}), 201)["id"] for n in range(3)]
    assert ids == sorted(ids)


def test_lists_are_paged_and_filtered(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    for n in range(5):
        expect_json(client.post("/sessions", json={"id": f"s{n}", "user_id": "ab"[n % 2], "app_name": "shop"}), 201)
    expect_json(client.post("/sessions/s4/close"))
    page = expect_json(client.get("/sessions", params={"limit": 2}))
    assert [each["id"] for each in page["sessions"]] == ["s4", "s3"]
    assert page["next"].startswith("s3/")
    page = expect_json(client.get("/sessions", params={"limit": 3, "after": "s3"}))
    assert ([each["id"] for each in page["sessions"]], page["next"]) == (["s2", "s1", "s0"], None)
    assert [each["id"] for each in expect_json(client.get("/sessions", params={"user_id": "b"}))["sessions"]] == [
        "s3",
        "s1",
    ]
    found = expect_json(client.get("/sessions", params={"status": "closed", "app_name": "shop"}))["sessions"]
    assert [(each["id"], each["status"]) for each in found] == [("s4", "closed")]
    expect_error(client.get("/sessions", params={"status": "lost"}), 400, "invalid_argument", "status")
    expect_error(client.get("/sessions", params={"limit": 201}), 400, "invalid_argument", "limit")
    expect_error(client.get("/sessions", params={"after": "nothing"}), 400, "invalid_argument")


def test_a_session_goes_through_its_life(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    assert (
        expect_json(client.post("/sessions/s/pause", json={"reason": "lunch", "actor": "carol"}))["status"] == "paused"
    )
    assert expect_json(client.post("/sessions/s/close"))["status"] == "closed"
    assert "reopen" in expect_error(client.post("/sessions/s/pause", json={}), 409, "lifecycle")
    assert expect_json(client.post("/sessions/s/reopen", json={}))["status"] == "open"
    assert expect_json(client.post("/sessions/s/archive"))["status"] == "archived"
    events = Session.open("s", store=checked_server.store).events(types="session.paused")
    assert [(event.actor, event.data) for event in events] == [("carol", {"reason": "lunch"})]


# -- history -----------------------------------------------------------------------------------------------------------


def test_messages_are_recorded_read_found_rewound_and_cleared(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    add_texts(client, "s", "a diamond", "indeed", "a ruby", "yes", "more")
    history = expect_json(client.get("/sessions/s/history"))["messages"]
    assert [each["content"] for each in history] == ["a diamond", "indeed", "a ruby", "yes", "more"]
    assert [each["seq"] for each in history] == [2, 3, 4, 5, 6]

    def texts(**query: Any) -> list[str]:
        return [each["content"] for each in expect_json(client.get("/sessions/s/history", params=query))["messages"]]

    assert texts(limit=2) == ["yes", "more"]
    assert texts(limit=2, skip=1) == ["a ruby", "yes"]
    assert texts(limit=10, skip=4) == ["a diamond"]
    assert texts(skip=9) == []
    assert texts(limit=0) == []
    assert texts(role="assistant") == ["indeed", "yes"]
    assert texts(role="assistant", skip=1) == ["indeed"]
    found = expect_json(client.get("/sessions/s/search", params={"q": "diamond"}))["messages"]
    assert [each["content"] for each in found] == ["a diamond"]

    assert expect_json(client.post("/sessions/s/rewind", json={"to": 3}))["length"] == 2
    assert texts() == ["a diamond", "indeed"]
    expect_error(client.post("/sessions/s/rewind", json={"to": 99}), 400, "invalid_argument")
    assert expect_json(client.post("/sessions/s/clear"))["length"] == 0
    assert texts() == []


def test_history_is_paged_across_everything_that_cuts_the_view(tenant_server: CheckedServer) -> None:
    client = tenant_server.client()
    session = Session("s", store=tenant_server.store)
    session.add_messages([Message.user(str(n)) for n in range(2500)])
    session.prune("keep_last_2200")
    seen: list[str] = []
    while page := expect_json(client.get("/sessions/s/history", params={"limit": 700, "skip": len(seen)}))["messages"]:
        seen = [each["content"] for each in page] + seen
    assert seen == [message.text for message in session.messages]
    assert len(seen) == 2200


def test_every_kind_of_message_comes_back_as_it_was_sent(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    data = base64.b64encode(b"\0\xff").decode()
    sent: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind \0 é"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "url": "https://example.org/a.png"},
                {"type": "file", "data": data, "media_type": "application/pdf", "name": "a.pdf"},
            ],
            "author": "alice",
            "metadata": {"x": [1, 2.5, None]},
        },
        {
            "role": "assistant",
            "content": [{"type": "thinking", "text": "hm", "signature": "s", "provider": "p"}],
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "failed", "is_error": True},
        {"role": "user", "content": "then", "created_at": "2020-01-01T00:00:00+00:00"},
    ]
    expect_json(client.post("/sessions/s/messages", json={"messages": sent}))
    found = expect_json(client.get("/sessions/s/history"))["messages"]
    for one, two in zip(sent, found, strict=True):
        assert {name: two[name] for name in one} == one
    document = expect_json(client.get("/sessions/s/document"))
    assert document == json.loads(json.dumps(Session.open("s", store=checked_server.store).to_dict()))
    expect_json(client.post("/sessions/s/messages", json={"messages": found}))  # what was read can be sent
    assert expect_json(client.post("/sessions/s/messages", json={"messages": []}))["seq"] == 11


def test_a_page_with_too_many_bytes_is_refused(tenant_server: CheckedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.routes.history.MAX_BYTES", 3)
    client = tenant_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    part = {"type": "file", "data": base64.b64encode(b"ab").decode(), "media_type": "text/plain"}
    expect_json(client.post("/sessions/s/messages", json={"messages": [{"role": "user", "content": [part]}] * 2}))
    expect_error(client.get("/sessions/s/history"), 413, "limit_exceeded")
    expect_json(client.get("/sessions/s/history", params={"limit": 1}))


def test_pruning_reports_and_can_be_undone(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    add_texts(client, "s", *[f"message {n}" for n in range(6)])
    plan = expect_json(client.post("/sessions/s/prune", json={"strategy": "keep_last_2", "dry_run": True}))
    assert (plan["removed"], plan["kept"], plan["seq"], plan["dry_run"]) == ([2, 3, 4, 5], [6, 7], None, True)
    assert set(plan["reasons"]) == {"2", "3", "4", "5"}
    done = expect_json(client.post("/sessions/s/prune", json={"strategy": "summarize_old", "threshold": 2}))
    assert done["summary"]
    assert done["freed_tokens"] > 0
    assert expect_json(client.post("/sessions/s/undo_prune")) == {"undone": True}
    assert expect_json(client.post("/sessions/s/undo_prune", json={})) == {"undone": False}
    assert len(expect_json(client.get("/sessions/s/history"))["messages"]) == 6
    with_agent = {"strategy": "summarize_old", "threshold": 2, "agent_id": "echo", "dry_run": True}
    expect_json(client.post("/sessions/s/prune", json=with_agent))
    expect_json(client.post("/sessions/s/prune"))
    expect_error(client.post("/sessions/s/prune", json={"strategy": "all"}), 400, "invalid_argument")
    expect_error(client.post("/sessions/s/prune", json={"agent_id": "nobody"}), 404, "not_found")


def test_the_context_shows_what_the_model_is_and_was_sent(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "system": "Be kind."}), 201)
    expect_json(client.post("/sessions/s/message", json={"agent_id": "echo", "message": "My name is Alice"}))
    now = expect_json(client.get("/sessions/s/context", params={"agent_id": "echo"}))
    assert [part["kind"] for part in now["parts"]] == ["system", "tool", "message", "message"]
    seq = Session.open("s", store=checked_server.store).events(types="model.called")[0].seq
    then = expect_json(client.get("/sessions/s/context", params={"call": seq}))
    assert [part["kind"] for part in then["parts"]] == ["system", "tool", "message"]
    assert then["parts"][-1]["message"]["content"] == "My name is Alice"
    expect_json(client.get("/sessions/s/context"))  # no agent named: it does not matter which one would be asked
    expect_error(client.get("/sessions/s/context", params={"call": 1}), 400, "invalid_argument")
    expect_error(client.get("/sessions/s/context", params={"call": 2**63}), 400, "invalid_argument", "call")


# -- forks -------------------------------------------------------------------------------------------------------------


def test_forks_share_the_past_and_are_compared(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "user_id": "alice", "title": "Plan"}), 201)
    add_texts(client, "s", "one", "two", "three")
    fork = expect_json(client.post("/sessions/s/fork", json={"id": "alt", "at": 3}), 201)
    assert (fork["id"], fork["parent"], fork["length"], fork["user_id"]) == ("alt", "s", 2, "alice")
    assert fork["title"] == "Plan"
    add_texts(client, "alt", "other")
    assert [each["id"] for each in expect_json(client.get("/sessions/s/forks"))["sessions"]] == ["alt"]
    found = expect_json(client.get("/sessions/s/compare", params={"with": "alt"}))
    sides = {side: [each["content"] for each in messages] for side, messages in found.items()}
    assert sides == {"common": ["one", "two"], "mine": ["three"], "theirs": ["other"]}
    expect_error(client.post("/sessions/s/fork", json={"id": "alt"}), 409, "session_exists")
    expect_error(client.post("/sessions/s/fork", json={"at": 999}), 400, "invalid_argument")
    assert expect_json(client.post("/sessions/s/fork"), 201)["parent"] == "s"
    expect_error(client.get("/sessions/s/compare"), 400, "invalid_argument", "with")
    expect_error(client.get("/sessions/s/compare", params={"with": "none"}), 404, "session_not_found")


def test_a_replay_names_the_first_difference(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    expect_json(client.post("/sessions/s/message", json={"agent_id": "echo", "message": "Hello"}))
    same = expect_json(client.post("/sessions/s/replay", json={"agent_id": "echo"}))
    assert (same["turns"], same["first_difference"]) == (1, None)
    assert expect_json(client.get(f"/sessions/{same['session_id']}"))["parent"] == "s"
    expect_error(client.post("/sessions/s/replay", json={"agent_id": "nobody"}), 404, "not_found")
    expect_json(client.post("/sessions", json={"id": "empty"}), 201)
    assert expect_json(client.post("/sessions/empty/replay", json={"agent_id": "echo"}))["session_id"] is None


def test_a_successor_begins_with_the_brief(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "user_id": "alice"}), 201)
    expect_json(client.post("/sessions/s/facts", json={"text": "use PostgreSQL", "kind": "decision"}), 201)
    brief = expect_json(client.get("/sessions/s/brief"))["brief"]
    assert "use PostgreSQL" in brief
    made = expect_json(client.post("/sessions/s/successor", json={"id": "next"}), 201)
    assert (made["id"], made["user_id"], made["length"]) == ("next", "alice", 1)
    assert expect_json(client.get("/sessions/next/history"))["messages"][0]["content"] == brief
    expect_error(client.post("/sessions/s/successor", json={"id": "next"}), 409, "session_exists")
    expect_json(client.post("/sessions/s/successor"), 201)


# -- state and facts ---------------------------------------------------------------------------------------------------


def test_state_in_three_scopes_now_and_in_the_past(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "user_id": "alice", "app_name": "shop"}), 201)
    expect_json(client.post("/sessions", json={"id": "t", "user_id": "alice", "app_name": "shop"}), 201)
    assert expect_json(client.put("/sessions/s/state/cart", json={"value": ["apple"]})) == {
        "name": "cart",
        "value": ["apple"],
    }
    seq = expect_json(client.get("/sessions/s"))["head"]
    expect_json(client.put("/sessions/s/state/cart", json={"value": None}))
    assert expect_json(client.get("/sessions/s/state/cart")) == {"name": "cart", "found": True, "value": None}
    assert expect_json(client.get("/sessions/s/state", params={"at": seq}))["state"] == {"cart": ["apple"]}
    assert expect_json(client.delete("/sessions/s/state/cart")) == {"deleted": True}
    assert expect_json(client.delete("/sessions/s/state/cart")) == {"deleted": False}
    assert expect_json(client.get("/sessions/s/state/cart")) == {"name": "cart", "found": False, "value": None}
    for scope in ("user", "app"):
        expect_json(client.put("/sessions/s/state/language", json={"value": scope}, params={"scope": scope}))
        assert expect_json(client.get("/sessions/t/state/language", params={"scope": scope}))["value"] == scope
        assert expect_json(client.get("/sessions/t/state", params={"scope": scope}))["state"] == {"language": scope}
        expect_error(client.get("/sessions/s/state", params={"scope": scope, "at": 1}), 400, "invalid_argument", "at")
    expect_json(client.put("/sessions/s/state/language", json={"value": 1, "scope": "user"}))
    assert expect_json(client.delete("/sessions/t/state/language", params={"scope": "user"})) == {"deleted": True}
    both = client.put("/sessions/s/state/x", json={"value": 1, "scope": "user"}, params={"scope": "app"})
    expect_error(both, 400, "invalid_argument", "scope")


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "ä/é", "%2F", "state", "x" * 512, "writing.draft"])
def test_any_text_may_be_the_name_of_a_value(tenant_server: CheckedServer, name: str) -> None:
    client = tenant_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    place = "/sessions/s/state/" + quote(name, safe="").replace(".", "%2E")
    assert expect_json(client.put(place, json={"value": 1}))["name"] == name
    assert expect_json(client.get("/sessions/s/state"))["state"] == {name: 1}
    assert expect_json(client.get(place))["value"] == 1
    assert expect_json(client.delete(place)) == {"deleted": True}


def test_what_is_no_name_of_a_value_is_refused(tenant_server: CheckedServer) -> None:
    client = tenant_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    expect_error(client.put("/sessions/s/state/", json={"value": 1}), 400, "invalid_id")
    expect_error(client.put("/sessions/s/state/" + "x" * 513, json={"value": 1}), 413, "limit_exceeded")
    expect_error(client.get("/sessions/s/state/x", params={"scope": "user"}), 400, "missing_user")
    expect_error(client.get("/sessions/s/state/x", params={"scope": "temp"}), 400, "invalid_argument", "scope")
    expect_error(client.put("/sessions/s/state/x", json={}), 400, "invalid_argument", "value")


def test_compare_and_set_happens_once(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "user_id": "alice"}), 201)
    for scope in ("session", "user"):
        place = f"/sessions/s/state/n?scope={scope}"
        expect_json(client.put(place, json={"value": 1, "expected": {"found": False}}))
        expect_error(client.put(place, json={"value": 2, "expected": {"found": False}}), 409, "conflict")
        expect_error(client.put(place, json={"value": 2, "expected": {"found": True, "value": 1.0}}), 409, "conflict")
        expect_error(client.put(place, json={"value": 2, "expected": {"found": True, "value": True}}), 409, "conflict")
        expect_json(client.put(place, json={"value": None, "expected": {"found": True, "value": 1}}))
        expect_json(client.put(place, json={"value": 0, "expected": {"found": True, "value": None}}))

        def count(place: str = place) -> None:
            with checked_server.client() as mine:
                for _ in range(5):
                    while True:
                        known = mine.get(place).json()
                        expected = {"found": known["found"], "value": known["value"]}
                        body = {"value": known["value"] + 1, "expected": expected}
                        if mine.put(place, json=body).status_code == 200:
                            break

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert expect_json(client.get(place))["value"] == 20


def test_app_state_is_not_for_one_user_to_write(tenant_server: CheckedServer) -> None:
    client, admin = tenant_server.key(role="write", user="alice"), tenant_server.key(role="admin", user="root")
    expect_json(client.post("/sessions", json={"id": "s", "app_name": "shop"}), 201)
    expect_json(admin.post("/sessions", json={"id": "a", "app_name": "shop"}), 201)
    place = "/sessions/s/state/x?scope=app"
    expect_error(client.put(place, json={"value": 1}), 403, "forbidden")
    expect_error(client.put("/sessions/s/state/x", json={"value": 1, "scope": "app"}), 403, "forbidden")
    expect_error(client.delete(place), 403, "forbidden")
    expect_json(admin.put("/sessions/a/state/x?scope=app", json={"value": 2}))
    assert expect_json(client.get(place))["value"] == 2


def test_facts_are_added_changed_and_removed(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    fact = expect_json(client.post("/sessions/s/facts", json={"text": "use PostgreSQL", "kind": "decision"}), 201)
    assert {**fact, "id": ""} == {"id": "", "text": "use PostgreSQL", "kind": "decision", "status": None, "ref": None}
    second = expect_json(client.post("/sessions/s/facts", json={"text": "b"}, headers={"Idempotency-Key": "b"}), 201)
    changed = expect_json(client.put(f"/sessions/s/facts/{fact['id']}", json={"status": "done"}))
    assert changed == fact | {"status": "done"}
    assert expect_json(client.get("/sessions/s/facts"))["facts"] == [changed, second]
    assert expect_json(client.delete(f"/sessions/s/facts/{fact['id']}")) == {"deleted": True}
    assert expect_error(client.delete(f"/sessions/s/facts/{fact['id']}"), 404, "not_found").startswith("fact not found")
    expect_error(client.put("/sessions/s/facts/none", json={"text": "x"}), 404, "not_found")
    expect_error(
        client.post("/sessions/s/facts", json={"text": "x", "kind": "rumour"}), 400, "invalid_argument", "kind"
    )
    expect_error(client.post("/sessions/s/facts", json={"text": ""}), 400, "invalid_argument", "text")
    expect_error(client.put(f"/sessions/s/facts/{second['id']}", json={"text": None}), 400, "invalid_argument", "text")


# -- approvals and usage -----------------------------------------------------------------------------------------------


def test_a_waiting_call_is_seen_and_decided(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "budget": {"tokens": 9000}}), 201)
    assert expect_json(client.get("/sessions/s/approvals")) == {"pending": []}
    answer = expect_json(client.post("/sessions/s/message", json={"agent_id": "cashier", "message": "charge me"}))
    assert answer["status"] == "waiting"
    (pending,) = expect_json(client.get("/sessions/s/approvals"))["pending"]
    assert (pending["name"], pending["arguments"]) == ("charge", {"cents": 5})
    place = f"/sessions/s/approvals/{pending['call_id']}"
    expect_error(client.post("/sessions/s/approvals/none", json={"approved": True}), 409, "nothing_pending")
    expect_error(client.post(place, json={"approved": True, "reason": "x"}), 400, "invalid_argument", "reason")
    expect_error(client.post(place, json={"approved": 1}), 400, "invalid_argument", "approved")
    assert expect_json(client.get("/sessions/s/unfinished")) == {"unfinished": None}
    assert expect_json(client.post(place, json={"approved": False, "reason": "too much"})) == {"pending": []}
    expect_error(client.post(place, json={"approved": True}), 409, "nothing_pending")
    used = expect_json(client.get("/sessions/s/usage"))
    assert used["budget"] == {"tokens": 9000}
    assert used["cost"] == 0


def test_a_turn_that_was_cut_is_reported(checked_server: CheckedServer) -> None:
    session = Session("s", store=checked_server.store)
    started = Draft(type="turn.started", run="R", data={"agent": None, "options": {}})
    asked, data = Draft(type="message.added", run="R", data={"role": "user", "text": "Hello?"}), {"call_id": "c"}
    called = Draft(type="tool.called", run="R", data=data | {"name": "pay", "arguments": {}, "effect": True})
    checked_server.store.append(session.log, [started, asked, called])
    found = expect_json(checked_server.client().get("/sessions/s/unfinished"))["unfinished"]
    assert (found["run_id"], found["question"], found["unknown_calls"]) == ("R", "Hello?", ["pay"])


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_a_session_is_exported_verified_and_imported(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(
        client.post("/sessions", json={"id": "ä 1", "user_id": "alice", "app_name": "shop", "state": {"x": 1}}), 201
    )
    add_texts(client, "ä 1", "<script>alert(1)</script>", "two")
    for format, kind in (
        ("jsonl", "application/x-ndjson"),
        ("markdown", "text/markdown"),
        ("html", "text/html"),
    ):
        found = client.get("/sessions/ä 1/export", params={"format": format})
        assert found.headers["content-type"] == f"{kind}; charset=utf-8"
        assert found.headers["content-disposition"].startswith("attachment; ")
        assert "sandbox" in found.headers["content-security-policy"]
        assert "<script>" not in found.text or format != "html"
    expect_error(client.get("/sessions/ä 1/export", params={"format": "pdf"}), 400, "invalid_argument", "format")
    text = client.get("/sessions/ä 1/export").text
    length = text.count("\n")
    assert expect_json(client.get("/sessions/ä 1/verify")) == {
        "ok": True,
        "checked": length,
        "first_bad": None,
        "reason": None,
        "signed": None,
    }
    expect_error(client.post("/sessions/import", json={"data": text}), 409, "session_exists")
    made = expect_json(client.post("/sessions/import", json={"data": text, "id": "copy"}), 201)
    assert (made["user_id"], made["app_name"], made["length"]) == ("alice", "shop", 2)
    other = {"data": text, "id": "other", "user_id": "bob", "app_name": "b"}
    assert expect_json(client.post("/sessions/import", json=other), 201)["user_id"] == "bob"
    assert expect_json(client.get("/sessions/copy/state"))["state"] == {"x": 1}
    assert expect_json(client.get("/sessions/copy/verify"))["ok"]


def test_an_import_belongs_to_the_user_who_imports_it(tenant_server: CheckedServer) -> None:
    tenant_server.client().post("/sessions", json={"id": "s", "user_id": "bob"})
    text = tenant_server.client().get("/sessions/s/export").text
    alice = tenant_server.key(role="write", user="alice")
    assert expect_json(alice.post("/sessions/import", json={"data": text, "id": "mine"}), 201)["user_id"] == "alice"
    expect_error(alice.post("/sessions/import", json={"data": text, "id": "m2", "user_id": "bob"}), 403, "forbidden")


def forge_export(*drafts: Draft, change: Callable[[dict[str, Any]], None] | None = None) -> str:
    """An export with a valid chain that says what it likes."""
    store = MemoryStore()
    log = store.create("session", "forged", [Draft(type="session.created")])
    rows = store.read(log)
    head = store.head(log)
    encoded = [json.dumps(draft.data, sort_keys=True, separators=(",", ":")).encode() for draft in drafts]
    rows += chain.chain_rows(
        drafts, encoded, head=head.head, hash=head.hash, tokens=0, at=10**15, salts=b"s" * SALT_SIZE * len(drafts)
    )
    lines = []
    for row in rows:
        assert row.body is not None
        line = {
            "seq": row.seq,
            "timestamp": "",
            "type": row.type,
            "role": None,
            "message": None,
            "metadata": {},
            "tool_calls": [],
            "at": row.at,
            "v": 1,
            "run": None,
            "branch": None,
            "author": None,
            "actor": None,
            "hash": row.hash.hex(),
            "salt": row.body[:PAYLOAD_AT].hex(),
            "data": json.loads(row.body[PAYLOAD_AT:]),
        }
        line["timestamp"] = to_datetime(row.at).isoformat()
        if row.type == "message.added":
            data = Event(row).data
            line |= {"role": data.get("role"), "message": data.get("text")}
        if row.seq == 1:
            line["log"] = {"version": 1, "id": "forged", "origin": log.origin, "user_id": None, "app_name": None}
        if change is not None:
            change(line)
        lines.append(json.dumps(line))
    return "\n".join(lines)


def test_an_honest_forgery_is_imported(tenant_server: CheckedServer) -> None:
    text = forge_export(Draft(type="message.added", data={"role": "user", "text": "hi"}))
    assert expect_json(tenant_server.client().post("/sessions/import", json={"data": text}), 201)["length"] == 1


@pytest.mark.parametrize(
    "draft",
    [
        Draft(type="message.added", data={"role": "king", "text": "hi"}),
        Draft(type="message.added", data={"role": "user", "parts": [{"type": "tool_call", "id": 1, "name": []}]}),
        Draft(type="message.added", data={"role": "user", "parts": [{"type": "odd"}]}),
        Draft(type="view.pruned", data={}),
        Draft(type="view.pruned", data={"after": 0, "drop": 5}),
        Draft(type="view.rewound", data={"ranges": "all", "state": []}),
        Draft(type="retention.set", data={"ttl_days": "x"}),
        Draft(type="session.changed", data={"metadata": 5}),
        Draft(type="session.changed", data={"title": {"a": 1}}),
        Draft(type="session.changed", data={"budget": {"tokens": "many"}}),
        Draft(type="session.changed", data={"system": 5}),
        Draft(type="session.changed", data={"work_dir": "/etc"}),
        Draft(type="fact.added", data={"id": "x"}),
        Draft(type="state.set", data={"value": 1}),
        Draft(type="session.held", data={"reason": 5}),
        Draft(type="turn.started", data={}),
    ],
    ids=lambda draft: f"{draft.type} {json.dumps(draft.data)}",
)
def test_an_export_that_no_log_could_have_said_is_refused(tenant_server: CheckedServer, draft: Draft) -> None:
    client = tenant_server.client()
    expect_error(client.post("/sessions/import", json={"data": forge_export(draft)}), 400, "invalid_argument", "data")
    assert expect_json(client.get("/sessions"))["sessions"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"at": 2**62},
        {"seq": 7},
        {"v": 99},
        {"type": "made.up"},
        {"hash": "00"},
        {"salt": "zz"},
        {"data": {"title": "other"}},
        {"log": {"version": 99, "id": "x", "origin": "y"}},
        {"log": 5},
        {"role": "user"},
        {"blobs": {"x": 5}},
    ],
    ids=str,
)
def test_an_export_that_was_altered_is_refused(tenant_server: CheckedServer, change: dict[str, Any]) -> None:
    text = forge_export(change=lambda line: line.update(change))
    expect_error(tenant_server.client().post("/sessions/import", json={"data": text}), 400, "invalid_argument", "data")


@pytest.mark.parametrize("text", ["{}", "nothing", "\n", "[]", '{"log": {}}', "1\n2"])
def test_what_is_no_export_is_refused(tenant_server: CheckedServer, text: str) -> None:
    expect_error(tenant_server.client().post("/sessions/import", json={"data": text}), 400, "invalid_argument", "data")


def test_text_is_removed_held_and_erased(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    add_texts(client, "s", "secret", "ok")
    assert expect_json(client.post("/sessions/s/hold", json={"reason": "case 42"}))["held"] == "case 42"
    expect_error(client.post("/sessions/s/redact", json={"seq": 2, "reason": "x"}), 409, "held")
    expect_error(client.delete("/sessions/s"), 409, "held")
    expect_error(client.post("/sessions/s/erase", json={"reason": "x"}), 409, "held")
    assert expect_json(client.post("/sessions/s/release"))["held"] is None
    redacted = expect_json(client.post("/sessions/s/redact", json={"seq": 2, "reason": "gdpr"}))
    assert redacted == {"seq": 2, "also": [], "receipt": None}
    assert expect_json(client.get("/sessions/s/history"))["messages"][0]["content"] == "[erased]"
    expect_error(client.post("/sessions/s/redact", json={"seq": 999, "reason": "x"}), 400, "invalid_argument")
    expect_error(client.post("/sessions/s/redact", json={"seq": 2}), 400, "invalid_argument", "reason")
    erased = expect_json(client.post("/sessions/s/erase", json={"reason": "asked"}))
    assert erased["sessions"] == ["s"]
    assert expect_json(client.get("/sessions/s"))["status"] == "erased"
    assert expect_json(client.get("/sessions/s/verify"))["ok"]
    expect_error(
        client.post("/sessions/s/messages", json={"messages": [{"role": "user", "content": "x"}]}), 409, "lifecycle"
    )


def test_an_immutable_session_stays(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s", "retention": {"immutable": True, "ttl_days": 1}}), 201)
    add_texts(client, "s", "kept")
    for move in ("clear", "rewind", "prune", "redact"):
        body = {"rewind": {"to": 1}, "redact": {"seq": 2, "reason": "x"}}.get(move, {})
        expect_error(client.post(f"/sessions/s/{move}", json=body), 409, "immutable")
    expect_error(client.delete("/sessions/s"), 409, "immutable")
    expect_error(client.put("/sessions/s", json={"retention": {}}), 409, "immutable")
    expect_json(client.put("/sessions/s", json={"retention": {"immutable": True, "ttl_days": 2}}))


def test_a_session_that_runs_is_not_deleted(checked_server: CheckedServer) -> None:
    session = Session("s", store=checked_server.store)
    checked_server.store.append(session.log, [], claim=Claim(holder=encode_holder("test"), seconds=60))
    response = checked_server.client().delete("/sessions/s")
    expect_error(response, 409, "session_busy")
    assert int(response.headers["retry-after"]) > 1


# -- work_dir ----------------------------------------------------------------------------------------------------------


def list_attacks(work_root: Path) -> list[str]:
    outside = work_root.parent / "outside"
    outside.mkdir()
    (work_root.parent / "work-evil").mkdir()  # begins like the root, as a text
    (work_root / "link").symlink_to(outside)
    (work_root / "up").symlink_to("..")
    (work_root / "loop").symlink_to("loop")
    (work_root / "file").write_text("x")
    (work_root / "sub").mkdir()
    return [
        "/",
        "/etc",
        str(outside),
        str(work_root.parent),
        f"{work_root}-evil",
        f"{work_root}/..",
        f"{work_root}/../outside",
        f"{work_root}/sub/../../outside",
        f"{work_root}/link",
        f"{work_root}/link/..",
        f"{work_root}/up",
        f"{work_root}/up/outside",
        f"{work_root}/loop",
        f"{work_root}/file",
        f"{work_root}/missing",
        f"{work_root}/sub\0/etc",
        "\0",
        "work",
        ".",
        "..",
        "~",
        "",
        f"/{work_root.name}",
        "/" + "a/" * 3000,
        f"{work_root}/" + "x" * 300,
        "/proc/self/root/etc",
        "/proc/self/cwd",
    ]


def test_no_work_dir_leads_out_of_the_roots(rooted_server: CheckedServer, work_root: Path) -> None:
    client = rooted_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    for path in list_attacks(work_root):
        for response in (
            client.post("/sessions", json={"work_dir": path}),
            client.put("/sessions/s", json={"work_dir": path}),
            client.post("/sessions", json={"id": "s", "exist_ok": True, "work_dir": path}),
        ):
            text = expect_error(response, 400, "invalid_argument", "work_dir")
            assert str(work_root.parent) not in text.replace(str(work_root), "")  # it names the root alone
    text = forge_export(Draft(type="session.changed", data={"work_dir": str(work_root / "link")}))
    expect_error(client.post("/sessions/import", json={"data": text}), 400, "invalid_argument", "data")
    assert expect_json(client.get("/sessions/s"))["work_dir"] is None
    assert len(expect_json(client.get("/sessions"))["sessions"]) == 1


def test_a_work_dir_beneath_a_root_is_kept_resolved(rooted_server: CheckedServer, work_root: Path) -> None:
    client = rooted_server.client()
    (work_root / "sub").mkdir()
    (work_root / "inner").symlink_to("sub")
    for path in (work_root, work_root / "sub", work_root / "inner", f"{work_root}/sub/../sub/.", f"/{work_root}"):
        made = expect_json(client.post("/sessions", json={"work_dir": str(path)}), 201)
        assert made["work_dir"] == os.path.realpath(path)
    text = forge_export(Draft(type="session.changed", data={"work_dir": str(work_root / "sub")}))
    assert expect_json(client.post("/sessions/import", json={"data": text}), 201)["work_dir"] == str(work_root / "sub")


def test_without_roots_there_is_no_work_dir(tmp_path: Path) -> None:
    with start_server(Server(MemoryStore(), Config(rate=0), token=TOKEN)) as checked_server:
        text = expect_error(
            checked_server.client().post("/sessions", json={"work_dir": str(tmp_path)}),
            400,
            "invalid_argument",
            "work_dir",
        )
        assert "--work-root" in text


# -- agents ------------------------------------------------------------------------------------------------------------


def test_agents_are_made_read_replaced_and_deleted(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    body = {
        "id": "a1",
        "name": "support",
        "description": "helps",
        "instructions": "Be brief.",
        "provider": "openai",
        "model": "gpt-4o",
        "tools": ["read_file", "remember", "add"],
        "options": {"temperature": 0.2, "max_tokens": 100, "max_steps": 5, "timeout": 30},
        "output_schema": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "budget": {"tokens": 10},
    }
    assert expect_json(client.post("/agents", json=body), 201) == body | {"source": "stored"}
    assert (
        expect_json(client.get("/agents/a1"))
        == expect_json(client.get("/agents/support"))
        == body | {"source": "stored"}
    )
    expect_error(client.post("/agents", json={"id": "a1"}), 409, "agent_exists")
    assert [(each["id"], each["source"]) for each in expect_json(client.get("/agents"))["agents"]] == [
        ("echo", "code"),
        ("cashier", "code"),
        ("a1", "stored"),
    ]
    replaced = expect_json(client.put("/agents/a1", json={"provider": "echo"}))
    assert (replaced["name"], replaced["tools"], replaced["budget"]) == (None, [], None)
    expect_error(client.put("/agents/a1", json={"id": "a2"}), 400, "invalid_argument", "id")
    expect_error(client.put("/agents/none", json={}), 404, "not_found")
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    assert expect_json(client.post("/sessions/s/message", json={"agent_id": "a1", "message": "Hello"}))["response"]
    assert expect_json(client.delete("/agents/a1")) == {"status": "deleted"}
    expect_error(client.get("/agents/a1"), 404, "not_found")
    expect_error(client.delete("/agents/a1"), 404, "not_found")
    expect_error(client.post("/sessions/s/message", json={"agent_id": "a1", "message": "Hello"}), 404, "not_found")
    assert expect_json(client.post("/agents"), 201)["provider"] is None
    for move in (client.put("/agents/echo", json={}), client.delete("/agents/echo"), client.delete("/agents/Cashier")):
        expect_error(move, 409, "agent_from_code")
    expect_error(client.post("/agents", json={"id": "echo"}), 409, "agent_from_code")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": ["rm"]}, "tools"),
        ({"tools": ["remember", "remember"]}, "tools"),
        ({"provider": "acme", "model": "x"}, None),
        ({"model": "x"}, None),
        ({"provider": "openai"}, None),
        ({"provider": "scripted"}, "provider"),
        ({"model": "scripted"}, "provider"),
        ({"provider": "openai", "model": "x", "api_key": "k"}, "api_key"),
        ({"provider": "openai", "model": "x", "base_url": "http://169.254.169.254"}, "base_url"),
        ({"options": {"temperature": 3}}, "options.temperature"),
        ({"options": {"max_steps": 0}}, "options.max_steps"),
        ({"options": {"timeout": 0}}, "options.timeout"),
        ({"options": {"headers": {}}}, "options.headers"),
        ({"output_schema": {"title": "nothing"}}, None),
        ({"output_schema": "x"}, "output_schema"),
        ({"budget": {"cost": 1}}, None),
        ({"budget": {"tokens": -1}}, "budget.tokens"),
        ({"id": "a/b"}, None),
        ({"id": ".."}, None),
        ({"name": ""}, "name"),
    ],
    ids=str,
)
def test_an_agent_that_cannot_be_is_refused(
    tenant_server: CheckedServer, body: dict[str, Any], field: str | None
) -> None:
    response = tenant_server.client().post("/agents", json=body)
    assert response.status_code == 400, response.text
    assert response.json().get("field") == field
    assert all(each["source"] == "code" for each in expect_json(tenant_server.client().get("/agents"))["agents"])


def test_an_agent_is_found_by_a_name_that_only_it_has(tenant_server: CheckedServer) -> None:
    client = tenant_server.client()
    for id in ("a", "b"):
        expect_json(client.post("/agents", json={"id": id, "name": "twin", "provider": "echo"}), 201)
    assert "a, b" in expect_error(client.get("/agents/twin"), 400, "invalid_argument", "agent_id")
    assert expect_json(client.get("/agents/Cashier"))["id"] == "cashier"
    catalog, store = tenant_server.server.catalog, tenant_server.store
    assert catalog.find(store, "a") is catalog.find(store, "a")
    before = catalog.find(store, "a")
    expect_json(client.put("/agents/a", json={"name": "single", "provider": "echo", "budget": {"turns": 3}}))
    assert catalog.find(store, "a") is not before
    assert catalog.find(store, "single") is catalog.find(store, "a")
    assert catalog.budget_of(store, "a").turns == 3
    assert catalog.budget_of(store, "echo") is None
    assert catalog.find(store, "twin") is catalog.find(store, "b")


def test_stored_agents_belong_to_their_tenant(tenant_server: CheckedServer) -> None:
    one, two = tenant_server.key(role="admin", tenant="one"), tenant_server.key(role="admin", tenant="two")
    expect_json(one.post("/agents", json={"id": "a", "provider": "echo", "name": "one's"}), 201)
    expect_error(two.get("/agents/a"), 404, "not_found")
    expect_json(two.post("/agents", json={"id": "a", "provider": "echo", "name": "two's"}), 201)
    assert [expect_json(each.get("/agents/a"))["name"] for each in (one, two)] == ["one's", "two's"]
    expect_json(two.delete("/agents/a"))
    assert expect_json(one.get("/agents/a"))["name"] == "one's"


def test_tools_are_listed_with_their_schemas(tenant_server: CheckedServer) -> None:
    tools = {each["name"]: each for each in expect_json(tenant_server.client().get("/tools"))["tools"]}
    built_in = {"list_files", "read_file", "write_file", "edit_file", "search_files", "remember"}
    assert set(tools) == built_in | {"add"}
    assert tools["add"]["parameters"]["properties"]["a"]["type"] == "integer"


def test_the_default_agent_answers_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_MODEL", raising=False)
    only = Agent(provider="echo", name="only")
    store = MemoryStore()
    assert AgentCatalog(agents={"only": only}).find(store, None) is only
    with pytest.raises(InvalidArgument, match="one, two"):
        AgentCatalog(agents={"one": only, "two": only}).find(store, None)
    with pytest.raises(InvalidArgument, match="HOLDFAST_MODEL"):
        AgentCatalog().find(store, None)
    monkeypatch.setenv("HOLDFAST_MODEL", "echo")
    catalog = AgentCatalog()
    assert catalog.find(store, None).model.provider == "echo"
    assert catalog.find(store, None) is catalog.find(store, None)


# -- agents from code --------------------------------------------------------------------------------------------------

APP = """
from holdfast import Agent, tool
from holdfast.tools import read_file

@tool
def shout(text: str) -> str:
    "Say it loudly."
    return text.upper()

@tool
def inner(text: str) -> str:
    "Only in an agent."
    return text

support = Agent(provider="echo", tools=[inner])
sales = Agent(provider="echo", name="Sales")
again = sales
_hidden = Agent(provider="echo")
"""


def test_a_file_defines_agents_and_tools(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    agents, tools, _ = load_app(str(path))
    assert list(agents) == ["support", "Sales"]
    assert set(tools) == {"shout", "inner", "read_file"}
    assert list(load_app(f"{path}:support")[0]) == ["support"]
    for app, expected in (
        ("app = [sales]", ["Sales"]),
        ("app = {'x': support, 'y': sales}", ["x", "Sales"]),
        ("app = support", ["app"]),
    ):
        path.write_text(f"{APP}\n{app}\n")
        assert list(load_app(str(path))[0]) == expected


def test_agents_of_a_file_may_share_a_memory(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        "from holdfast import Agent, Memory\n"
        "memory = Memory()\n"
        "one = Agent(provider='echo', memory=memory)\n"
        "two = Agent(provider='echo', memory=memory)\n"
    )
    agents, tools, _ = load_app(str(path))
    assert [sorted(agent.tools) for agent in agents.values()] == [["save_memory", "search_memory"]] * 2
    assert tools == {}  # the tools of a memory belong to their agents: stored agents cannot name them


def test_a_module_defines_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_of_the_test.py").write_text(APP + "app = [sales]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(load_app("shop_of_the_test:app")[0]) == ["Sales"]
    assert list(load_app("shop_of_the_test")[0]) == ["Sales"]


@pytest.mark.parametrize(
    ("code", "target", "text"),
    [
        ("x = 1", "app.py", "no agents"),
        ("", "missing.py", "no file"),
        ("", "no_such_module_here:app", "no module"),
        ("", "app.py:other", "'other'"),
        ("app = 5", "app.py", "list or dict"),
        ("app = [5]", "app.py", "a int is none"),
        ("app = [Agent(provider='echo')]", "app.py", "no name"),
        ("a = Agent(provider='echo', name='x'); b = Agent(provider='echo', name='x')", "app.py", "two agents"),
        ("a = Agent(provider='echo', name='x/y')", "app.py", "name of an agent"),
        (
            "a = tool(name='t')(lambda: 1); b = tool(name='t')(lambda: 2); c = Agent(provider='echo')",
            "app.py",
            "two tools",
        ),
    ],
)
def test_an_app_that_cannot_be_served_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, target: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(f"from holdfast import Agent, tool\n{code}\n")
    with pytest.raises(InvalidArgument, match=text):
        load_app(target)


# -- who may do what ---------------------------------------------------------------------------------------------------


def list_operations(checked_server: CheckedServer) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, item in checked_server.document["paths"].items()
        for method, operation in item.items()
        if "{session_id}" in path
    ]


BODIES: dict[str, Any] = {
    "rewind": {"to": 1},
    "messages": {"messages": []},
    "facts": {"text": "x"},
    "{call_id}": {"approved": True},
    "redact": {"seq": 1, "reason": "x"},
    "hold": {"reason": "x"},
    "erase": {"reason": "x"},
    "{name}": {"value": 1},
    "message": {"message": "x"},
    "stream": {"message": "x"},
}


QUERIES: dict[str, dict[str, str]] = {"compare": {"with": "s"}, "search": {"q": "x"}}


def test_a_foreign_session_is_as_missing_as_one_that_is_not_there(checked_server: CheckedServer) -> None:
    owner = checked_server.key(role="admin", user="alice")
    expect_json(owner.post("/sessions", json={"id": "secret"}), 201)
    fact = expect_json(owner.post("/sessions/secret/facts", json={"text": "x"}), 201)["id"]
    before = expect_json(owner.get("/sessions/secret"))
    strangers = [
        checked_server.key(role="admin", user="bob"),
        checked_server.key(role="admin", tenant="other", user="alice"),
    ]
    strangers.append(checked_server.key(role="admin", tenant="other"))
    for method, path, _ in list_operations(checked_server):
        body = BODIES.get(path.rsplit("/", 1)[-1], {})
        if "/resume/stream" in path:
            body = {}
        for client in strangers:
            answers = []
            for id in ("secret", "absent"):
                place = path.replace("{session_id}", id).replace("{fact_id}", fact)
                place = place.replace("{name}", "x").replace("{call_id}", "c").replace("{run_id}", "r")
                query = QUERIES.get(path.rsplit("/", 1)[-1])
                more = {"params": query} if method == "get" else {"json": body}
                response = client.request(method.upper(), place, **more)
                text = expect_error(response, 404, "session_not_found")
                answers.append(text.replace(id, "ID"))
            assert answers[0] == answers[1], (method, path)
    assert expect_json(owner.get("/sessions/secret")) == before
    bob = strangers[0]
    expect_json(bob.post("/sessions", json={"id": "bobs"}), 201)
    expect_error(bob.get("/sessions/bobs/compare", params={"with": "secret"}), 404, "session_not_found")
    assert [each["id"] for each in expect_json(bob.get("/sessions"))["sessions"]] == ["bobs"]
    expect_error(bob.get("/sessions", params={"user_id": "alice"}), 403, "forbidden")
    missing = expect_error(bob.get("/sessions", params={"after": "absent"}), 400, "invalid_argument")
    foreign = expect_error(bob.get("/sessions", params={"after": "secret"}), 400, "invalid_argument")
    assert foreign.replace("secret", "absent") == missing
    for exist_ok in (True, False):
        expect_error(bob.post("/sessions", json={"id": "secret", "exist_ok": exist_ok}), 409, "session_exists")
    expect_error(bob.post("/sessions", json={"user_id": "alice"}), 403, "forbidden")


def test_a_key_may_do_what_its_role_says(tenant_server: CheckedServer) -> None:
    reader, writer = tenant_server.key(role="read"), tenant_server.key(role="write")
    expect_json(writer.post("/sessions", json={"id": "s"}), 201)
    expect_error(reader.post("/sessions", json={}), 403, "forbidden")
    for method, path, _ in list_operations(tenant_server):
        place = path.replace("{session_id}", "s").replace("{name}", "x")
        if method == "get" and "run_id" not in path:
            response = reader.get(place, params=QUERIES.get(path.rsplit("/", 1)[-1]))
            assert response.status_code == 200, response.text
        elif method != "get":
            expect_error(reader.request(method.upper(), place, json={}), 403, "forbidden")
    for move in ("redact", "release", "erase"):
        expect_error(writer.post(f"/sessions/s/{move}", json={}), 403, "forbidden")
    expect_error(writer.post("/agents", json={}), 403, "forbidden")
    expect_error(writer.put("/agents/x", json={}), 403, "forbidden")
    expect_error(writer.delete("/agents/x"), 403, "forbidden")


def test_who_did_it_is_in_the_log(tenant_server: CheckedServer) -> None:
    alice, anybody = tenant_server.key(role="admin", user="alice"), tenant_server.key(role="write")
    expect_json(alice.post("/sessions", json={"id": "s"}), 201)
    expect_json(alice.post("/sessions/s/clear"))
    expect_json(alice.post("/sessions/s/clear", json={"actor": "alice"}))
    expect_error(alice.post("/sessions/s/clear", json={"actor": "bob"}), 403, "forbidden")
    expect_json(anybody.post("/sessions/s/clear", json={"actor": "bob"}))
    expect_json(anybody.post("/sessions/s/clear"))
    actors = [event.actor for event in Session.open("s", store=tenant_server.store).events(types="view.cleared")]
    assert actors[:3] == ["alice", "alice", "bob"]
    assert re.fullmatch("[A-Za-z0-9]{8}", actors[3] or "")


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"id": 5}, "id"),
        ({"id": ""}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"unknown": 1}, "unknown"),
        ({"title": 5}, "title"),
        ({"metadata": []}, "metadata"),
        ({"user_id": ""}, "user_id"),
        ({"exist_ok": "true"}, "exist_ok"),
        ({"messages": {}}, "messages"),
        ({"messages": [{"role": "king"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, None),
        ({"messages": [{"role": "user", "author": 5}]}, "messages.0.author"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "data": "!!", "media_type": "a"}]}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, None),
        ({"messages": [{"role": "tool", "content": "x"}]}, None),
        ({"messages": [{"role": "user", "created_at": "yesterday"}]}, None),
        ({"state": []}, "state"),
        ({"state": {"": 1}}, None),
        ({"budget": {"tokens": True}}, "budget.tokens"),
        ({"budget": {"prices": {"gold": 1}}}, "budget.prices.gold"),
        ({"budget": {"cost": 1}}, None),
        ({"retention": {"ttl_days": 0}}, "retention.ttl_days"),
        ({"retention": {"prune_strategy": "all"}}, None),
        ([], None),
        (5, None),
        ("x", None),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_session_that_cannot_be_is_refused(tenant_server: CheckedServer, body: Any, field: str | None) -> None:
    response = tenant_server.client().post("/sessions", json=body)
    assert response.status_code == 400, response.text
    if field is not None:
        assert response.json()["field"] == field
    assert expect_json(tenant_server.client().get("/sessions"))["sessions"] == []


@pytest.mark.parametrize("id", ["a%2Fb", "%2E", "%2E%2E", "%00", "x" * 129, "%0A", "%E2%80%AE", "%FF"])
def test_what_is_no_id_is_no_session(tenant_server: CheckedServer, id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/history"), ("POST", "/clear")):
        response = tenant_server.client().request(
            method, f"/sessions/{id}{path}", json={} if method == "POST" else None
        )
        assert response.status_code in (400, 404, 405), response.text


def test_numbers_beyond_all_bounds_are_refused(tenant_server: CheckedServer) -> None:
    client = tenant_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    for path in (
        "/history?limit=1001",
        "/history?skip=-1",
        "/history?limit=x",
        f"/state?at={2**70}",
        "/search?q=x&limit=9999",
    ):
        assert client.get(f"/sessions/s{path}").status_code == 400
    for path, body in (
        ("rewind", {"to": 2**62}),
        ("rewind", {"to": 0}),
        ("fork", {"at": -1}),
        ("redact", {"seq": 2**40, "reason": "x"}),
        ("prune", {"strategy": "sliding_window", "window_size": 0}),
        ("prune", {"strategy": "keep_last_0"}),
    ):
        assert client.post(f"/sessions/s/{path}", json=body).status_code == 400
    for retention in ({"ttl_days": 1e308}, {"ttl_days": 5e-324}, {"max_messages": 2**31 - 1}):
        expect_json(client.put("/sessions/s", json={"retention": retention}))


def test_the_model_of_a_message_says_what_the_library_takes() -> None:
    for body in ({"role": "user", "content": "x"}, {"role": "assistant", "content": None}, {"role": "user", "seq": 3}):
        assert Message.of(MessageGiven.model_validate(body).fields_sent()).role == body["role"]


# -- the same key, the same thing --------------------------------------------------------------------------------------


def forget_answers(store: Store) -> None:
    """As if the server had died after it made something and before it kept the answer."""
    for key, _ in store.kv_list("answers"):
        store.kv_delete("answers", key)


def test_a_request_repeated_after_a_crash_finds_what_it_made(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "s"}), 201)
    add_texts(client, "s", "one")
    exported = client.get("/sessions/s/export").text
    requests: list[tuple[str, Any]] = [
        ("/sessions", {"title": "A", "messages": [{"role": "user", "content": "x"}]}),
        ("/sessions", {"id": "chosen"}),
        ("/sessions/s/fork", {}),
        ("/sessions/s/fork", {"id": "fork"}),
        ("/sessions/s/successor", {}),
        ("/sessions/s/successor", {"id": "after"}),
        ("/sessions/import", {"data": exported, "id": "copy"}),
        ("/agents", {"name": "x", "provider": "echo"}),
        ("/agents", {"id": "chosen", "provider": "echo"}),
        ("/sessions/s/facts", {"text": "x"}),
    ]
    for number, (path, body) in enumerate(requests):
        headers = {"Idempotency-Key": f"key-{number}"}
        first = client.post(path, json=body, headers=headers)
        assert client.post(path, json=body, headers=headers).text == first.text
        forget_answers(checked_server.store)
        again = client.post(path, json=body, headers=headers)
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"]), path
    facts, agents = expect_json(client.get("/sessions/s/facts"))["facts"], expect_json(client.get("/agents"))["agents"]
    assert (len(facts), len([each for each in agents if each["source"] == "stored"])) == (1, 2)
    assert len(expect_json(client.get("/sessions"))["sessions"]) == 8
    message = {"messages": [{"role": "user", "content": "once"}]}
    for _ in range(2):
        expect_json(client.post("/sessions/s/messages", json=message, headers={"Idempotency-Key": "m"}))
        forget_answers(checked_server.store)
    assert expect_json(client.get("/sessions/s"))["length"] == 2


def test_an_idempotency_key_does_not_open_the_session_of_another_user(checked_server: CheckedServer) -> None:
    client = checked_server.client()
    expect_json(client.post("/sessions", json={"id": "taken", "title": "theirs"}), 201)
    for _ in range(2):
        headers = {"Idempotency-Key": "mine"}
        expect_error(client.post("/sessions", json={"id": "taken"}, headers=headers), 409, "session_exists")
        expect_error(client.post("/sessions/taken/fork", json={"id": "taken"}, headers=headers), 409, "session_exists")
    made = expect_json(client.post("/sessions", json={"id": "free"}, headers={"Idempotency-Key": "mine"}), 201)
    assert made["id"] == "free"


def test_two_at_once_make_one_session(checked_server: CheckedServer) -> None:
    found: list[int] = []

    def make() -> None:
        with checked_server.client() as client:
            found.append(client.post("/sessions", json={"id": "race", "state": {"x": 1}}).status_code)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [201] + [409] * 7


# -- the document ------------------------------------------------------------------------------------------------------


def test_the_document_describes_every_operation(tenant_server: CheckedServer) -> None:
    ids = []
    for path, item in tenant_server.document["paths"].items():
        for method, operation in item.items():
            ids.append(operation["operationId"])
            assert operation["summary"], path
            assert operation["tags"], path
            assert any(status.startswith("2") for status in operation["responses"]), (method, path)
            if "{session_id}" in path:
                assert {"400", "401", "403", "404", "409"} <= set(operation["responses"]), path
    assert len(ids) == len(set(ids))
    assert all(
        "__" not in name for name in tenant_server.document["components"]["schemas"]
    )  # no two models of one name
    jsonschema_rs.validator_for({"components": tenant_server.document["components"]})
