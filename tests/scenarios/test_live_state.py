"""Section 4 of the promises: state and metadata as live mappings, on every store and over HTTP."""

from __future__ import annotations

import pytest

from holdfast import Agent, Session, ToolContext, tool
from holdfast.errors import MissingUser, NotJSON
from holdfast.stores.base import Store
from holdfast.testing import call


def test_state_is_a_live_mapping(store: Store) -> None:
    session = Session(store=store, user_id="alice", app_name="shop")
    session.state["step"] = 2
    session.user_state["theme"] = "dark"
    session.app_state["rate_limit"] = 1000
    session.temp_state["page"] = 3
    assert "step" in session.state
    assert "other" not in session.state
    assert dict(session.state) == {"step": 2}
    assert session.get_state("theme", scope="user") == "dark"
    assert session.get_state("rate_limit", scope="app") == 1000
    assert session.get_state("page", scope="temp") == 3
    session.state.update({"a": 1, "b": [2]})
    assert sorted(session.state) == ["a", "b", "step"]
    assert sorted(session.state.items()) == [("a", 1), ("b", [2]), ("step", 2)]
    assert session.state.pop("a") == 1
    assert session.state.setdefault("b", 0) == [2]
    del session.state["step"]
    assert (len(session.state), session.state == {"b": [2]}, repr(session.state)) == (1, True, "{'b': [2]}")
    with pytest.raises(KeyError):
        session.state["step"]
    with pytest.raises(KeyError):
        del session.state["step"]


def test_a_mapping_sees_what_other_sessions_write(store: Store) -> None:
    first, second = (Session(id, store=store, user_id="alice") for id in ("first", "second"))
    mine = first.user_state
    second.user_state["theme"] = "dark"
    assert mine["theme"] == "dark"
    again, state = Session.open("first", store=store), first.state
    again.state["n"] = 1
    assert state["n"] == 1


def test_a_write_through_a_mapping_is_checked(store: Store) -> None:
    session = Session(store=store)
    with pytest.raises(NotJSON):
        session.state["x"] = object()
    with pytest.raises(MissingUser):
        session.user_state["x"] = 1
    assert dict(session.state) == {}


def test_metadata_is_a_live_mapping(store: Store) -> None:
    session = Session(store=store, metadata={"a": 1})
    session.metadata["b"] = 2
    del session.metadata["a"]
    assert Session.open(session.id, store=store).metadata == {"b": 2}
    with pytest.raises(KeyError):
        session.metadata["a"]
    with pytest.raises(KeyError):
        del session.metadata["a"]
    session.metadata = {"c": 3}
    assert dict(session.metadata) == {"c": 3}
    session.change(title="Refund", system="Be brief.")
    assert (session.title, session.system) == ("Refund", "Be brief.")


def test_the_state_of_a_tool_is_the_same_mapping(store: Store) -> None:
    @tool
    def count(ctx: ToolContext) -> str:
        """Count."""
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.state.update(seen=True)
        ctx.state.set("theme", "dark", scope="user")
        del ctx.state["old"]
        return f"{ctx.state['n']} {'old' in ctx.state} {dict(ctx.state)}"

    agent = Agent(provider="scripted", script=[call("count", {}), "done"], tools=[count], store=store)
    session = agent.session(user_id="alice", state={"old": 1})
    response = session.run("count")
    result = next(message for message in response.messages if message.role == "tool")
    assert result.parts[0].content == "1 False {'n': 1, 'seen': True}"  # type: ignore[union-attr]
    assert dict(session.state) == {"n": 1, "seen": True}
    assert session.user_state["theme"] == "dark"
