"""Section 1 of the promises: `response.output` is the instance where a schema was asked for, else the text."""

from __future__ import annotations

import pickle

import pytest
from pydantic import BaseModel

from holdfast import Agent, Session, tool
from holdfast.stores.base import Store
from holdfast.testing import call
from tests.kit.agents import make_scripted_agent
from tests.scenarios.ways import WAYS, Ask, make_ask


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest) -> Ask:
    return make_ask(request.param)


class Point(BaseModel):
    x: int


@tool(approval="always")
def pay() -> str:
    """Pay."""
    return "paid"


def test_the_output_is_the_text_where_no_schema_was_asked_for(store: Store, ask: Ask) -> None:
    session = make_scripted_agent("one", "").session(store=store)
    first, second = ask(session, "a"), ask(session, "b")
    assert (first.output, first.text) == ("one", "one")
    assert (second.output, second.text) == ("", "")


def test_the_methods_of_a_text_are_no_fields_of_the_response(store: Store, ask: Ask) -> None:
    response = ask(make_scripted_agent("one").session(store=store), "a")
    for name in ("title", "category", "upper"):
        with pytest.raises(AttributeError, match=f"no '{name}'.*output_schema="):
            getattr(response, name)
    assert pickle.loads(pickle.dumps(response)).output == "one"


def test_a_schema_of_a_text_gives_the_text_inside_the_reply(store: Store) -> None:
    session = make_scripted_agent('"ten"', '"ten"').session(store=store)
    response = session.json("a number", schema={"type": "string"})
    assert (response.output, response.text) == ("ten", '"ten"')


def test_a_turn_that_waits_has_no_text_and_no_instance_yet(store: Store, ask: Ask) -> None:
    session = make_scripted_agent(call("pay"), "done", tools=[pay]).session(store=store)
    assert ask(session, "a").output == ""
    session.approve(session.pending[0].call_id)
    resumed = session.resume()
    assert resumed is not None
    assert resumed.output == "done"
    shaped = make_scripted_agent(call("pay"), '{"x": 1}', tools=[pay]).session(store=store)
    assert shaped.json("a", schema=Point).output is None
    Session.open(shaped.id, store=store).approve(shaped.pending[0].call_id)
    resumed = shaped.resume()
    assert resumed is not None
    assert resumed.output == {"x": 1}  # a turn that another call finishes knows the JSON Schema, not the class


def test_the_output_of_a_throw_away_session_is_the_text() -> None:
    assert make_scripted_agent("one").run("a").output == "one"
    assert Agent(provider="scripted", script=['{"x": 1}'], output_schema=Point).run("a").output == Point(x=1)
    assert make_scripted_agent('{"x": 1}').json("a", schema=Point).output == Point(x=1)
