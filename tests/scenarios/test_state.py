"""Sections 4, 5 (facts), 6, 8 (lifecycle) and 11 (entities) of the promises, on every store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Agent, Entity, Message, Session, ToolContext, tool
from holdfast.errors import (
    InvalidArgument,
    LifecycleError,
    LimitExceeded,
    MissingApp,
    MissingUser,
    NotJSON,
    SessionExists,
    TurnOpen,
)
from holdfast.log.events import Draft
from holdfast.stores.base import Store
from holdfast.testing import call
from holdfast.testing.contract import run_together
from tests.scenarios.ways import WAYS, make_ask


def test_state_in_four_scopes(store: Store) -> None:
    agent = Agent(store=store)
    session = agent.session(user_id="alice", app_name="shop")
    session.set_state("shopping_cart", ["item1"])
    session.set_state("language", "English", scope="user")
    session.set_state("theme", "dark", scope="app")
    session.set_state("scratch", 1, scope="temp")
    other = agent.session(user_id="alice", app_name="shop")
    assert session.get_state("language", scope="user", default=None) == "English"
    assert other.get_state("language", scope="user") == "English"
    assert other.get_state("theme", scope="app") == "dark"
    assert other.get_state("shopping_cart") is None
    assert other.get_state("scratch", scope="temp") is None
    other.set_state("language", "French", scope="user")
    assert session.get_state("language", scope="user") == "French"
    assert session.delete_state("language", scope="user") is True
    assert session.delete_state("language", scope="user") is False
    assert other.get_state("language", scope="user", default="none") == "none"
    assert list(session.state.keys()) == ["shopping_cart"]
    session.put_state("last_seen_location", "library")
    assert session.state == {"last_seen_location": "library", "shopping_cart": ["item1"]}
    assert session.scope_state("app") == {"theme": "dark"}
    assert store.list_sessions() == [session.id, other.id]


def test_the_second_argument_of_get_state_is_the_default_and_scope_is_named(store: Store) -> None:
    session = Session(store=store, user_id="alice")
    head = session.head
    assert (session.get_state("n", 0), session.get_state("n", "user"), session.get_state("n", 5, scope="user")) == (
        *(0, "user"),
        5,
    )
    for wrong in (
        lambda: session.get_state("n", None, "user"),  # type: ignore[misc]
        lambda: session.set_state("n", 1, "user"),  # type: ignore[misc]
        lambda: session.put_state("n", 1, "user"),  # type: ignore[misc]
        lambda: session.delete_state("n", "user"),  # type: ignore[misc]
        lambda: session.update_state("n", lambda n: n, "user"),  # type: ignore[misc]
    ):
        with pytest.raises(TypeError, match="positional argument"):
            wrong()
    assert session.head == head


def test_a_tool_reads_state_with_a_default(store: Store) -> None:
    @tool
    def look(ctx: ToolContext) -> str:
        ctx.state.set("seen", 1, scope="user")
        return f"{ctx.state.get('absent', 'nothing')} {ctx.state.get('seen', 0, scope='user')}"

    agent = Agent(provider="scripted", script=[call("look"), "done"], tools=[look])
    session = agent.session(store=store, user_id="alice")
    session.run("look")
    assert session.messages[2].text == "nothing 1"


def test_update_state_is_atomic(store: Store) -> None:
    sessions = [Session(store=store, user_id="alice") for _ in range(4)]

    def visit(session: Session) -> None:
        for _ in range(10):
            session.update_state("visits", lambda n: (n or 0) + 1, scope="user")

    run_together(*[lambda session=session: visit(session) for session in sessions])  # type: ignore[misc]
    assert sessions[0].get_state("visits", scope="user") == 40
    assert sessions[0].update_state("own", lambda n: (n or 0) + 5) == 5
    assert sessions[0].update_state("t", lambda n: [*(n or []), 1], scope="temp") == [1]


def test_state_of_any_past_point(store: Store) -> None:
    session = Session(store=store)
    points = []
    for value in range(4):
        session.set_state("n", value)
        session.set_state(f"k{value}", True)
        points.append(session.head)
    assert [session.state_at(point)["n"] for point in points] == [0, 1, 2, 3]
    assert session.state_at(points[0]) == {"n": 0, "k0": True}
    assert session.state_at(0) == {}
    with pytest.raises(ValueError, match="number of an event"):
        session.state_at(-1)


def test_state_of_another_process_is_live(store: Store) -> None:
    here, there = Session("s", store=store), Session("s", store=store)
    here.set_state("n", 1)
    assert there.get_state("n") == 1
    there.set_state("n", 2)
    assert here.get_state("n") == 2


@pytest.mark.parametrize(
    ("value", "error"),
    [
        *[(value, NotJSON) for value in (b"x", {1: 2}, (1,), float("inf"), 2**63, "\ud800", {"a": object()})],
        ("x" * (1 << 20), LimitExceeded),
    ],
)
def test_a_value_that_is_not_json_is_refused_and_nothing_is_stored(store: Store, value: object, error: type) -> None:
    session = Session(store=store, user_id="alice")
    for scope in ("session", "user"):
        with pytest.raises(error):
            session.set_state("x", value, scope=scope)
        assert session.get_state("x", scope=scope) is None
    assert session.head == 1


def test_the_error_for_bytes_names_message_parts(store: Store) -> None:
    with pytest.raises(NotJSON, match="message part"):
        Session(store=store).set_state("x", b"bytes")


def test_a_deep_value_is_refused(store: Store) -> None:
    deep: list[object] = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(NotJSON, match="deeper"):
        Session(store=store).set_state("x", deep)


def test_scopes_without_an_owner_name_the_fix(store: Store) -> None:
    session = Session(store=store)
    with pytest.raises(MissingUser, match="user_id="):
        session.set_state("x", 1, scope="user")
    with pytest.raises(MissingApp, match="app_name=") as caught:
        session.get_state("x", scope="app")
    assert isinstance(caught.value, MissingUser)  # handlers of both scopes go on working
    assert "user" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="unknown scope"):
        session.set_state("x", 1, scope="galaxy")
    for bad in ("", 7, None, "x" * 600):
        with pytest.raises(ValueError):
            session.set_state(bad, 1)  # type: ignore[arg-type]
    assert session.head == 1


def test_owners_are_opaque(store: Store) -> None:
    for owner in ("a\0b", "../x", "日本", "x" * 512, "' OR 1=1", "a/b%2f"):
        session = Session(store=store, user_id=owner, app_name=owner)
        session.set_state("who", owner, scope="user")
        assert Session.open(session.id, store=store).get_state("who", scope="user") == owner
        assert [found.id for found in Session.list(store=store, user_id=owner)] == [session.id]
    for bad in ("", "x" * 513, 7, "\ud800"):
        with pytest.raises(ValueError):
            Session(store=store, user_id=bad)  # type: ignore[arg-type]


def test_facts_are_kept_by_kind(store: Store) -> None:
    session = Session(store=store)
    decision = session.facts.add("use PostgreSQL", kind="decision", ref="ADR-7")
    feature = session.facts.add("login", kind="feature", status="open")
    session.facts.update(feature.id, status="done")
    assert [(fact.text, fact.kind, fact.status, fact.ref) for fact in session.facts.all()] == [
        ("use PostgreSQL", "decision", None, "ADR-7"),
        ("login", "feature", "done", None),
    ]
    session.facts.remove(decision.id)
    assert [fact.id for fact in session.facts.all()] == [feature.id]
    for bad in (
        lambda: session.facts.add(""),
        lambda: session.facts.add("x", kind="rumour"),
        lambda: session.facts.get("?"),
    ):
        with pytest.raises(InvalidArgument):
            bad()


# -- forks ------------------------------------------------------------------------------------------------------------


def test_a_fork_has_everything_as_it_was_at_that_point(store: Store) -> None:
    session = Session(
        "plan", store=store, user_id="alice", system="be kind", metadata={"v": 1}, title="Plan", state={"a": 1}
    )
    session.add_message(Message.user("one"))
    session.facts.add("known")
    point = session.head
    session.add_message(Message.user("two"))
    session.set_state("a", 2)
    session.metadata = {"v": 2}
    session.facts.add("later")
    session.set_state("lang", "en", scope="user")
    alt = session.fork(session_id="alternative-plan", at=point)
    assert [message.text for message in alt.messages] == ["one"]
    assert (alt.state, alt.system, alt.metadata, alt.title) == ({"a": 1}, "be kind", {"v": 1}, "Plan")
    assert [fact.text for fact in alt.facts.all()] == ["known"]
    assert (alt.parent, [fork.id for fork in session.forks()]) == ("plan", ["alternative-plan"])
    alt.set_state("lang", "fr", scope="user")
    assert session.get_state("lang", scope="user") == "fr"
    alt.add_message(Message.user("three"))
    alt.set_state("a", 3)
    assert [message.text for message in session.messages] == ["one", "two"]
    assert session.state == {"a": 2}
    found = session.compare(alt)
    assert [[m.text for m in side] for side in (found.common, found.mine, found.theirs)] == [
        ["one"],
        ["two"],
        ["three"],
    ]
    assert alt.verify()
    assert session.verify()
    with pytest.raises(SessionExists):
        session.fork("alternative-plan")
    alt.rewind(to=point - 2)
    assert alt.messages == []
    assert alt.state == {"a": 1}


def test_a_fork_inside_a_turn_is_a_fork_before_it(store: Store) -> None:
    session = Session(store=store, messages=[Message.user("before")])
    drafts = [
        Draft(type="turn.started", run="r"),
        Draft(type="message.added", run="r", data={"role": "user", "text": "q"}),
    ]
    store.append(session.log, drafts)
    session.set_state("x", 1)
    assert [message.text for message in session.fork().messages] == ["before"]
    assert session.fork().state == {}
    with pytest.raises(TurnOpen):
        session.rewind(to=2)
    store.append(session.log, [Draft(type="turn.finished", run="r")])
    assert [message.text for message in session.fork().messages] == ["before", "q"]
    assert [message.text for message in session.fork(at=4).messages] == ["before"]


def test_a_fork_survives_the_deletion_of_its_parent(store: Store) -> None:
    session = Session("parent", store=store, messages=[Message.user("shared")])
    alt = session.fork("child")
    assert store.delete("parent") is True
    assert [message.text for message in alt.messages] == ["shared"]
    assert alt.parent is None
    Session("parent", store=store)
    assert alt.parent is None  # a namesake is not the parent


# -- lifecycle --------------------------------------------------------------------------------------------------------


def test_lifecycle_moves(store: Store) -> None:
    session = Session(store=store)
    assert session.status == "open"
    session.pause("lunch", actor="alice")
    assert session.status == "paused"
    assert session.events()[-1].actor == "alice"
    assert session.resume() is None
    assert session.events()[-1].type == "session.resumed"
    assert session.resume() is None
    session.close()
    with pytest.raises(LifecycleError) as caught:
        session.pause()
    assert caught.value.legal == ("reopen", "archive")
    assert str(caught.value) == "cannot pause a session that is closed; legal moves now: reopen, archive"
    with pytest.raises(LifecycleError):
        session.resume()
    session.archive()
    with pytest.raises(LifecycleError):
        session.close()
    session.reopen()
    assert session.status == "open"
    assert [info.status for info in store.sessions()] == ["open"]


def test_a_paused_or_closed_session_starts_no_turn(store: Store) -> None:
    session = Session(store=store)
    for move in ("pause", "close", "archive"):
        getattr(session, move)()
        with pytest.raises(LifecycleError):
            store.append(session.log, [Draft(type="turn.started", run="r")])
    session.reopen()
    store.append(session.log, [Draft(type="turn.started", run="r"), Draft(type="turn.finished", run="r")])
    assert session.status == "active"


def test_close_drops_temp_and_keeps_the_rest(store: Store) -> None:
    session = Session(store=store, state={"a": 1})
    session.set_state("t", 1, scope="temp")
    session.close()
    assert session.get_state("t", scope="temp") is None
    assert session.state == {"a": 1}


# -- entities ---------------------------------------------------------------------------------------------------------


class Cart(Entity):
    def add(self, item: str) -> int:
        self.state.set("items", [*self.state.get("items", []), item])
        return len(self.state.get("items"))

    def add_twice(self, item: str) -> int:
        self.add(item)
        return int(self.add(item))

    def fail(self, item: str) -> None:
        self.add(item)
        raise RuntimeError("no")

    @Entity.read_only
    def count(self) -> int:
        return len(self.state.get("items", []))

    @Entity.read_only
    def sneak(self) -> None:
        self.state.set("items", [])

    async def add_later(self, item: str) -> int:
        return int(self.add(item))


@dataclass
class CounterState:
    value: int = 0
    seen: list[str] = field(default_factory=list)


class Counter(Entity):
    state: CounterState

    def up(self, who: str) -> int:
        self.state.value += 1
        self.state.seen.append(who)
        return self.state.value


class Profile(BaseModel):
    name: str = "nobody"
    tags: dict[str, int] = {}


class Person(Entity):
    state: Profile

    def rename(self, name: str) -> None:
        self.state.name = name
        self.state.tags[name] = len(name)


def test_an_entity_is_saved_on_success_only(store: Store) -> None:
    assert Cart("user-1", store=store).add("apple") == 1
    cart = Cart("user-1", store=store)
    with pytest.raises(RuntimeError):
        cart.fail("pear")
    assert cart.count() == 1
    assert cart.add_twice("plum") == 3
    assert cart.state.get("items") == ["apple", "plum", "plum"]
    assert Cart("user-2", store=store).count() == 0
    with pytest.raises(InvalidArgument, match="read-only"):
        cart.sneak()
    with pytest.raises(InvalidArgument, match="read-only"):
        cart.state.set("items", [])
    with pytest.raises(NotJSON):
        cart.add(b"bytes")  # type: ignore[arg-type]
    assert cart.count() == 3
    assert store.list_sessions() == []


def test_an_entity_has_one_writer_at_a_time(store: Store) -> None:
    def shop(name: str) -> None:
        for n in range(5):
            Cart("shared", store=store).add(f"{name}{n}")

    run_together(*[lambda name=name: shop(name) for name in "abcd"])  # type: ignore[misc]
    assert sorted(Cart("shared", store=store).state.get("items")) == sorted(f"{a}{n}" for a in "abcd" for n in range(5))


def test_reading_an_entity_does_not_wait_for_its_writer(store: Store) -> None:
    cart = Cart("k", store=store)
    cart.add("a")

    class Slow(Cart):
        def hold(self) -> int:
            self.state.set("items", ["half-written"])
            return Cart("k", store=store).count()

    Slow.__name__ = "Cart"
    assert Slow("k", store=store).hold() == 1  # the last stored state, while the writer is at work
    assert cart.state.get("items") == ["half-written"]


def test_an_entity_may_have_typed_state(store: Store) -> None:
    assert Counter("c", store=store).up("alice") == 1
    assert Counter("c", store=store).up("bob") == 2
    assert Counter("c", store=store).state == CounterState(2, ["alice", "bob"])
    Person("p", store=store).rename("Ann")
    assert Person("p", store=store).state == Profile(name="Ann", tags={"Ann": 3})


async def test_an_entity_method_may_be_async(store: Store) -> None:
    assert await Cart("later", store=store).add_later("a") == 1
    assert await Cart("later", store=store).add_later("b") == 2


@pytest.mark.parametrize("way", WAYS)
def test_temp_is_there_for_one_run_and_gone_after_it(store: Store, way: str) -> None:
    """What a caller puts there before a run, its instructions and tools see; the next run does not."""
    seen: list[Any] = []

    @tool
    def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx.state.get("t", scope="temp"))
        return "looked"

    agent = Agent(
        provider="scripted", script=[call("look", {}), "done", call("look", {}), "done"], tools=[look], store=store
    )
    session, ask = agent.session(), make_ask(way)
    session.set_state("t", 1, scope="temp")
    ask(session, "go")
    assert (seen, session.get_state("t", scope="temp")) == ([1], None)
    ask(session, "go")
    assert seen == [1, None]
