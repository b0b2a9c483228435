"""What a client can do at a server, blocking and awaited, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from holdfast import Budget, Memory, Message, Session, tool
from holdfast.client import AsyncClient, Client
from holdfast.client.client import _token_for
from holdfast.client.session import AsyncRemoteSession, RemoteSession
from holdfast.errors import (
    AgentError,
    ApprovalPending,
    Conflict,
    Forbidden,
    InvalidArgument,
    LifecycleError,
    MaxStepsExceeded,
    NotFound,
    ProviderUnavailable,
    SchemaValidationError,
    ServerUnavailable,
    SessionExists,
    SessionNotFound,
    Unauthorized,
)
from holdfast.log.events import Event
from holdfast.memory.service import Source
from holdfast.models.base import Usage
from holdfast.stores import SQLiteStore
from holdfast.stores.signing_keys import SigningKey
from holdfast.testing import call, error
from holdfast.turn.sent_context import Context
from tests.client.conftest import AgentFactory
from tests.kit.local_server import TOKEN, LocalServer


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_is_opened_or_made_and_listed_and_deleted(client: Client) -> None:
    made = client.session("s", user_id="alice", title="T", metadata={"a": 1}, state=[{"x": 1}, {"x": 2}])
    assert isinstance(made, RemoteSession)
    again = client.session("s")
    assert (again.id, again.user_id, again.title, again.state) == ("s", "alice", "T", {"x": 2})
    assert again.created_at == made.created_at
    assert client.open("s").updated_at >= made.created_at
    with pytest.raises(SessionNotFound) as caught:
        client.open("nobody")
    assert caught.value.session_id == "nobody"
    for number in range(205):  # more than a page
        client.session(f"n{number:03}")
    assert len(client.sessions(limit=500)) == 206
    assert [each.id for each in client.sessions(limit=2, after="n100")] == ["n099", "n098"]
    assert [each.id for each in client.sessions(user_id="alice")] == ["s"]
    assert (client.delete("s"), client.delete("s")) == (True, False)


def test_an_event_is_what_the_log_has(client: Client, store: SQLiteStore) -> None:
    session = client.session("s")
    session.add_message(Message.user("hi", author="alice"))
    session.pause("lunch", actor="bob")
    local = Session.open("s", store=store).events()
    remote = session.events()
    assert all(isinstance(event, Event) for event in remote)
    for name in ("seq", "at", "type", "v", "run", "branch", "author", "actor", "data", "hash", "timestamp", "erased"):
        assert [getattr(event, name) for event in remote] == [getattr(event, name) for event in local]
    session.redact(2, reason="a slip")
    assert [event.erased for event in session.events()] == [False, True, False, False]


def test_pages_are_put_together(client: Client) -> None:
    session = client.session("s")
    for first in range(0, 2500, 500):
        session.add_messages([Message.user(str(number)) for number in range(first, first + 500)])
    assert [message.text for message in session.messages] == [str(number) for number in range(2500)]
    assert [message.text for message in session.history(limit=1500)] == [str(number) for number in range(1000, 2500)]
    assert [event.seq for event in session.events(limit=None)] == list(range(1, 2502))
    assert [event.seq for event in session.events(limit=1200)] == list(range(1302, 2502))
    assert [event.seq for event in session.events(limit=1200, after=1)] == list(range(2, 1202))
    assert len(session.events(types="message.added", limit=None)) == 2500


def test_names_and_ids_may_hold_any_character(client: Client) -> None:
    session = client.session("a:b@c#d%2f ?x", user_id="../x")
    for name in ("..", ".", "a/b", "a b", "%2F", "ü", "#?&=", "/", "a//b"):
        session.set_state(name, name)
        session.set_state(name, [name], scope="user")
    assert session.state == {name: name for name in ("..", ".", "a/b", "a b", "%2F", "ü", "#?&=", "/", "a//b")}
    assert session.get_state("..") == ".."
    assert session.delete_state("a/b") is True
    assert session.delete_state("a/b") is False
    assert session.get_state("a//b", scope="user") == ["a//b"]


def test_temp_stays_with_the_client_and_is_gone_after_a_run(client: Client, register_agent: AgentFactory) -> None:
    register_agent("one")
    session = client.session("s", agent="a")
    session.set_state("t", [1], scope="temp")
    assert session.update_state("t", lambda t: [*t, 2], scope="temp") == [1, 2]
    assert client.open("s").get_state("t", scope="temp") is None
    assert session.head == 1
    session.run("go")
    assert session.scope_state("temp") == {}


def test_an_export_is_imported_with_its_log(client: Client, tmp_path: Path) -> None:
    session = client.session("s", messages=[Message.user("hi")], state={"a": 1})
    copy = client.import_(session.export(), session_id="copy")
    assert (copy.messages, copy.state, copy.verify().ok) == (session.messages, {"a": 1}, True)
    file = tmp_path / "s.jsonl"
    file.write_text(session.export(), encoding="utf-8")
    with pytest.raises(SessionExists):
        client.import_(file)


def test_agents_are_made_listed_replaced_and_deleted(client: Client) -> None:
    made = client.agents.create(name="helper", provider="echo", instructions="Be brief.", tools=["remember"])
    assert client.agents.get(made["id"]) == client.agents.get("helper") == made
    assert [each["id"] for each in client.agents.all()] == [made["id"]]
    assert client.agents.replace(made["id"], name="helper", provider="echo")["instructions"] is None
    assert "Alice" in client.session("s", agent="helper").run("My name is Alice").text
    assert "remember" in [each["name"] for each in client.tools()]
    assert (client.agents.delete(made["id"]), client.agents.delete(made["id"])) == (True, False)
    with pytest.raises(NotFound):
        client.session("s").run("hello", agent="helper")


# -- asking ------------------------------------------------------------------------------------------------------------


def test_a_turn_four_ways(client: Client, register_agent: AgentFactory) -> None:
    register_agent("one", "two", "three", "four", name="shop")
    session = client.session("s", agent="a")
    first = session.run("a", metadata={"trace": 1})
    assert (first.text, first.status, first.steps, [m.role for m in first.messages]) == (
        "one", "finished", 1, ["user", "assistant"],
    )  # fmt: skip
    assert session.usage == first.usage != Usage()
    assert asyncio.run(session.run_async("b")).text == "two"
    events = list(session.stream("c"))
    assert [event.type for event in events][:1] == ["message_start"]
    assert events[-1].response.text == "three"  # type: ignore[union-attr]

    async def read_stream() -> str:
        return "".join([event.text async for event in session.stream_async("d") if event.type == "text_delta"])

    assert asyncio.run(read_stream()) == "four"
    assert [message.author for message in session.messages] == ["user", "shop"] * 4
    assert session.get_run(first.run_id).status == "finished"
    assert [run.status for run in session.runs()] == ["finished"] * 4


class Point(BaseModel):
    x: int
    y: int = Field(le=9)


@dataclass
class Named:
    name: str


def test_json_gives_an_instance_of_a_class_that_only_the_client_knows(
    client: Client, register_agent: AgentFactory
) -> None:
    register_agent('{"x": 1, "y": 2}', '{"name": "Ann"}', '{"x": 1, "y": 2}')
    session = client.session("s", agent="a")
    assert session.json("a point", schema=Point).output == Point(x=1, y=2)
    assert session.json("a name", schema=Named).output == Named("Ann")
    assert list(session.stream("again", schema=Point))[-1].response.output == Point(x=1, y=2)  # type: ignore[union-attr]


class Even(BaseModel):
    n: int

    def model_post_init(self, _: Any) -> None:
        if self.n % 2:
            raise ValueError("odd")


def test_what_only_the_class_refuses_is_a_schema_error_too(client: Client, register_agent: AgentFactory) -> None:
    register_agent('{"n": 3}')
    with pytest.raises(SchemaValidationError):
        client.session("s", agent="a").json("even", schema=Even)


def test_approvals_from_another_object(client: Client, register_agent: AgentFactory) -> None:
    register_agent(call("pay", {"cents": 5}, id="c"), "It is paid.", tools=[pay])
    session = client.session("s", agent="a")
    waiting = session.run("pay")
    assert (waiting.status, waiting.text) == ("waiting", "")
    assert [(each.call_id, each.name, each.arguments) for each in session.pending] == [("c", "pay", {"cents": 5})]
    with pytest.raises(ApprovalPending) as caught:
        session.run("again")
    assert caught.value.calls == ("c",)
    other = client.open("s")
    other.approve("c", actor="alice")
    response = other.resume()
    assert response is not None
    assert response.text == "It is paid."
    assert other.resume() is None
    assert session.events(types="approval.decided")[0].actor == "alice"


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_the_library_with_their_facts(client: Client, register_agent: AgentFactory) -> None:
    register_agent(error("down"), *[call("pay", {"cents": 1})] * 3)
    session = client.session("s", agent="a")
    with pytest.raises(ProviderUnavailable):
        session.run("x")
    session.close()
    with pytest.raises(LifecycleError) as moved:
        session.pause()
    assert (moved.value.legal, moved.value.status, moved.value.code) == (("reopen", "archive"), 409, "lifecycle")
    with pytest.raises(InvalidArgument) as bad:
        session.rewind(to=99)
    assert isinstance(bad.value, ValueError)
    with pytest.raises(InvalidArgument, match="cannot travel"):
        session.prune(lambda messages: messages)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        session.get_run("nothing")


@pytest.mark.parametrize("way", ["run", "stream"])
def test_the_error_of_a_turn_is_the_same_over_a_stream(client: Client, local_server: LocalServer, way: str) -> None:
    from holdfast import Agent

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    local_server.register("a", Agent(provider="scripted", script=lambda _: call("look"), max_steps=3, tools=[look]))
    session = client.session("s", agent="a")
    with pytest.raises(MaxStepsExceeded) as caught:
        list(session.stream("go")) if way == "stream" else session.run("go")
    assert caught.value.steps == 3


def test_a_request_without_a_token_is_refused(
    local_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    for token in (None, "wrong-token-but-long-enough"):
        with pytest.raises(Unauthorized):
            Client(local_server.url, token=token).sessions()
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    assert Client(local_server.url).sessions() == []
    monkeypatch.delenv("HOLDFAST_TOKEN")
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert Client(local_server.url).sessions() == []
    assert _token_for("https://elsewhere.example", None) is None  # it would learn the token of this machine


def test_a_token_shows_nowhere(client: Client) -> None:
    nowhere = Client(f"http://127.0.0.1:{_free_port()}", token=TOKEN, retries=0)
    with pytest.raises(ServerUnavailable) as caught:
        nowhere.sessions()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    for shown in (str(caught.value), repr(nowhere), repr(client), repr(client.session("s"))):
        assert TOKEN not in shown
    with pytest.raises(InvalidArgument) as bad:
        Client(token="geheim\nX: y")
    assert "geheim" not in str(bad.value)


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "127.0.0.1:2323", "http://", "http://u:p@127.0.0.1", 7, "http://x/?a=1", "http://[::1", "http://x:y"],
)
def test_a_bad_address_is_refused_and_not_quoted(url: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Client(url)
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": "5"}, {"retries": -1}, {"retries": 1.5}])
def test_bad_patience_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Client(**options)


def test_a_key_of_a_user_sees_its_own(local_server: LocalServer, store: SQLiteStore, client: Client) -> None:
    from holdfast.server.api_keys import create_key

    client.session("of bob", user_id="bob")
    key, _ = create_key(store, user="alice", role="write")
    alice = Client(local_server.url, token=key)
    assert alice.session("mine").user_id == "alice"
    with pytest.raises(SessionNotFound):
        alice.open("of bob")
    with pytest.raises(Forbidden):
        alice.agents.create(name="x", provider="echo")
    assert [each.id for each in alice.sessions()] == ["mine"]


# -- awaited -----------------------------------------------------------------------------------------------------------


async def test_everything_is_awaited_in_the_awaited_client(
    async_client: AsyncClient, register_agent: AgentFactory
) -> None:
    register_agent("one", "two", '{"n": 3}', call("pay", {"cents": 5}, id="c"), "It is paid.", tools=[pay])
    session = await async_client.session("s", agent="a", user_id="alice", budget=Budget(turns=100))
    assert isinstance(session, AsyncRemoteSession)
    assert (await session.run("a")).text == "one"
    assert "".join([e.text async for e in session.stream("b") if e.type == "text_delta"]) == "two"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert (await session.json("c", schema=schema)).output == {"n": 3}
    assert (await session.run("pay")).status == "waiting"
    await session.approve((await session.pending())[0].call_id)
    resumed = await session.resume()
    assert resumed is not None
    assert resumed.text == "It is paid."
    assert (await session.length(), len(await session.messages()), len(await session.history(3))) == (10, 10, 3)
    await session.set_state("n", 1)
    assert await session.update_state("n", lambda n: n + 1) == 2
    assert (await session.state(), await session.get_state("n")) == ({"n": 2}, 2)
    fact = await session.facts.add("use PostgreSQL", kind="decision")
    await session.facts.update(fact.id, status="done")
    assert [(each.text, each.status) for each in await session.facts.all()] == [("use PostgreSQL", "done")]
    await session.change(title="T", metadata={"a": 1}, retention={"ttl_days": 7})
    assert (await session.title(), await session.metadata(), await session.retention()) == (
        "T", {"a": 1}, {"ttl_days": 7},
    )  # fmt: skip
    assert (await session.budget(), await session.cost()) == (Budget(turns=100), 0.0)
    fork = await session.fork("f")
    assert isinstance(fork, AsyncRemoteSession)
    assert [each.id for each in await session.forks()] == ["f"]
    assert await fork.parent() == "s"
    await fork.add_message(Message.user("mine"))
    compared = await session.compare(fork)
    assert (len(compared.common), len(compared.mine), len(compared.theirs)) == (10, 0, 1)
    assert isinstance(await session.context(), Context)
    assert (await session.prune("keep_last_4")).removed == 6
    assert await session.undo_prune()
    assert (await session.verify()).ok
    assert "use PostgreSQL" in await session.brief()
    assert isinstance(await session.successor("heir"), AsyncRemoteSession)
    await session.hold("case 42")
    assert await session.held() == "case 42"
    await session.release()
    await session.pause()
    assert await session.status() == "paused"
    assert await session.resume() is None
    assert (await session.replay()).same
    await session.close()
    assert (await session.erase(reason="asked to", actor="dpo")).events > 0
    assert {each.id for each in await async_client.sessions()} >= {"s", "f", "heir"}
    assert await async_client.delete("heir")
    with pytest.raises(SessionNotFound):
        await async_client.open("heir")
    assert (await async_client.health())["status"] == "ok"


async def test_many_at_once(async_client: AsyncClient, local_server: LocalServer) -> None:
    from holdfast import Agent

    local_server.register("a", Agent(provider="scripted", script=lambda request: request.messages[-1].text))
    sessions = await asyncio.gather(*[async_client.session(f"s{n}", agent="a") for n in range(20)])
    answers = await asyncio.gather(*[session.run(f"q{n}") for n, session in enumerate(sessions)])
    assert [answer.text for answer in answers] == [f"q{n}" for n in range(20)]
    await asyncio.gather(*[sessions[0].update_state("n", lambda n: (n or 0) + 1) for _ in range(10)])
    assert await sessions[0].get_state("n") == 10


def test_a_conflict_is_a_conflict(client: Client) -> None:
    from holdfast.client.requests import put

    session = client.session("s", state={"a": 1})
    with pytest.raises(Conflict):
        client._transport.send(put(session._path("state", "a"), {"value": 2, "expected": {"found": False}}))


def test_a_code_that_this_version_does_not_know_is_kept() -> None:
    from holdfast.client.errors import error_from_json

    found = error_from_json({"error": "later", "code": "of_tomorrow"}, 418)
    assert type(found) is AgentError
    assert (str(found), found.code, found.status) == ("later", "of_tomorrow", 418)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memories_of_a_server(client: Client, store: SQLiteStore) -> None:
    memory = client.memory
    kept = memory.store("home", "Lives in Bremen", kind="profile", confidence=0.5, user_id="alice", expires=3600)
    assert memory.recall(["home", "nothing"], user_id="alice") == [kept]
    assert [each.key for each in memory.search("live", user_id="alice", kind="profile", min_confidence=0.2)] == ["home"]
    for n in range(5):
        memory.store(f"k{n}", f"text {n}")
    assert [each.key for each in memory.list(limit=3, after="k0")] == ["k1", "k2", "k3"]
    assert memory.list(limit=0) == []
    assert [each.key for each in memory.list("profile", user_id="alice")] == ["home"]
    assert memory.forget("home", user_id="alice")
    assert not memory.forget("home", user_id="alice")
    session = client.session(user_id="alice", app_name="shop")
    seq = session.add_message(Message.user("My name is Alice"))
    with pytest.raises(InvalidArgument, match=r"for_user\('alice', app_name='shop'\).*shared=True"):
        memory.ingest_from_session(session)
    mine = memory.for_user("alice", app_name="shop")
    (found,) = mine.ingest_from_session(session)
    assert mine.recall("name") == [found]
    assert found.source == Source(session_id=session.id, seqs=(seq,))
    assert Memory(store=store).recall("name", user_id="alice", app_name="shop") == [found]
    noted = memory.store("a/b", "by hand", source=(session, seq), expires=datetime(2500, 1, 1, tzinfo=UTC))
    assert noted.source == found.source
    assert noted.expires_at == datetime(2500, 1, 1, tzinfo=UTC)
    anything: Any = memory
    for bad in (
        lambda: anything.store("", "text"),
        lambda: anything.store("k", ""),
        lambda: anything.store("k", "text", confidence=2),
        lambda: anything.store("k", "text", expires=-1),
        lambda: anything.store("k", "text", source="s"),
        lambda: anything.store("k", "text", source=session, user_id="bob"),
        lambda: anything.recall(7),
        lambda: anything.search(7),
        lambda: anything.list(limit=-1),
        lambda: anything.ingest_from_session("s"),
    ):
        with pytest.raises(InvalidArgument):
            bad()


async def test_memories_of_a_server_awaited(async_client: AsyncClient) -> None:
    memory = async_client.memory
    kept = await memory.store("home", "Lives in Bremen")
    assert await memory.recall("home") == await memory.list() == [kept]
    assert [each.key for each in await memory.search("live")] == ["home"]
    session = await async_client.session(user_id="alice")
    await session.add_message(Message.user("I like tea."))
    mine = memory.for_user("alice")
    (found,) = await mine.ingest_from_session(session)
    assert await mine.recall(found.key) == [found]
    (shared,) = await memory.ingest_from_session(session, shared=True)
    assert await memory.recall(shared.key) == [shared]
    assert await memory.forget(shared.key)
    assert await memory.forget("home")


def test_a_client_with_a_public_key_checks_a_session_itself(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    key = SigningKey("55" * 32)
    session = client.session("signed")
    session.add_message(Message.user("hello"))
    assert "no signed head" in str(session.verify(key.public_key).reason)
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", "55" * 32)
    assert session.verify(public_key=key.public_key).signed == 2
    assert session.verify().ok
    assert not session.verify(SigningKey("66" * 32).public_key)
