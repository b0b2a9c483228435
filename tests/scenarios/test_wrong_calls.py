"""Calls that new users got wrong: each one is refused with an error that says what to do, and nothing is stored.

The numbers in the names are those of the list of wrong calls that new users made. A call that now does what the user
means has a test of its own, below the table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
import holdfast.flow
import holdfast.stores
from holdfast import Agent, LanguageModel, Session
from holdfast.errors import AgentError, InvalidArgument
from holdfast.stores.base import Store
from tests.kit.stores import open_store

KINDS = ("memory", "sqlite", "postgres", "documents")

# A type checker would refuse most of these calls, so it knows nothing of these names.
hf: Any = holdfast
flow: Any = holdfast.flow
stores: Any = holdfast.stores


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store in turn. Not over HTTP: the calls never reach a server."""
    return open_store(request.param, request, tmp_path)


class World:
    """The objects that a wrong call uses."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.agent = Agent(provider="scripted", script=["never asked"] * 3, store=store)
        self.session = self.agent.session("s", user_id="alice")

    def contents(self) -> tuple[list[str], int, str]:
        """What the store holds: its sessions, and the head and status of this one."""
        return self.store.list_sessions(), self.session.head, self.session.status


class Wrong(NamedTuple):
    """A wrong call: its number and text, the call, the error, and a part of the error's text that says what to do."""

    name: str
    call: Callable[[Any], object]
    error: type[BaseException]
    advice: str


def meant(name: str) -> str:
    return f": did you mean {name!r}?"


RUN_TYPO = "Session.run() got an unexpected keyword argument 'temprature': did you mean 'temperature'?"
TYPOS = [
    Wrong("13 Agent(temprature=)", lambda w: hf.Agent(temprature=0.5), TypeError, meant("temperature")),
    Wrong("14 run(temprature=)", lambda w: w.session.run("x", temprature=1), TypeError, RUN_TYPO),
    Wrong("14 agent.run(temprature=)", lambda w: w.agent.run("x", temprature=1), TypeError, RUN_TYPO),
    Wrong("14 stream(shema=)", lambda w: w.session.stream("x", shema=1), TypeError, meant("schema")),
    Wrong("14 run(schema=)", lambda w: w.session.run("x", schema=dict), TypeError, "Session.json(message, schema=...)"),
    Wrong(
        "14 json(max_token=)", lambda w: w.session.json("x", schema=dict, max_token=5), TypeError, meant("max_tokens")
    ),
    Wrong("15 agent.session(sesion_id=)", lambda w: w.agent.session(sesion_id="x"), TypeError, meant("session_id")),
    Wrong("15 Session(metdata=)", lambda w: hf.Session(metdata={}), TypeError, meant("metadata")),
    Wrong("Agent('WriterAgent')", lambda w: hf.Agent("WriterAgent"), TypeError, "by name, as in provider=..., model="),
    Wrong("37 json() without schema", lambda w: w.session.json("x"), TypeError, "Session.json() missing"),
    Wrong("tool(idempotant=)", lambda w: hf.tool(idempotant=True), TypeError, meant("idempotent")),
    Wrong("75 set_state('k')", lambda w: w.session.set_state("k"), TypeError, "Session.set_state() missing"),
    Wrong("96 prune(windowsize=)", lambda w: w.session.prune(windowsize=3), TypeError, "Session.prune() got"),
    Wrong(
        "98 retention={'ttl': 30}",
        lambda w: hf.Session(retention={"ttl": 30}, store=w.store),
        InvalidArgument,
        meant("ttl_days"),
    ),
    Wrong("103 Budget(token=)", lambda w: hf.Budget(token=5), TypeError, meant("tokens")),
    Wrong(
        "103 budget={'token': 5}",
        lambda w: hf.Session(budget={"token": 5}, store=w.store),
        InvalidArgument,
        meant("tokens"),
    ),
    Wrong(
        "LanguageModel(temprature=)",
        lambda w: hf.LanguageModel("openai", "gpt-4o", temprature=1),
        TypeError,
        meant("temperature"),
    ),
    Wrong(
        "LoopAgent(max_iteration=)", lambda w: flow.LoopAgent([w.agent], max_iteration=3), TypeError, "max_iterations"
    ),
    Wrong("126 SequentialAgent(a, b)", lambda w: flow.SequentialAgent(w.agent, w.agent), TypeError, "as one list: Seq"),
]

CALLS = [*TYPOS]


@pytest.mark.parametrize("wrong", CALLS, ids=lambda wrong: wrong.name)
def test_a_wrong_call_says_what_to_do_and_stores_nothing(store: Store, tmp_path: Path, wrong: Wrong) -> None:
    world = World(store, tmp_path)
    before = world.contents()
    with pytest.raises(wrong.error) as caught:
        wrong.call(world)
    assert wrong.advice in str(caught.value)
    assert isinstance(caught.value, AgentError | TypeError)
    assert world.contents() == before


# -- calls that do what is meant -----------------------------------------------------------------------------------


def test_options_of_a_provider_that_look_like_ours_pass() -> None:
    names = ("top_p", "seed", "min_tokens", "max_completion_tokens", "store", "user", "temperature_last", "top_k")
    more: dict[str, Any] = dict.fromkeys(names, 1)
    LanguageModel("openai", "gpt-4o", **more)


def test_a_type_error_inside_a_function_keeps_its_own_text() -> None:
    def script(request: object) -> str:
        raise TypeError("f() got an unexpected keyword argument 'name'")

    with pytest.raises(AgentError, match=r"TypeError: f\(\) got an unexpected keyword argument 'name'$"):
        Agent(provider="scripted", script=script).run("x")

    class Broken(Session):
        def prune_if_due(self) -> None:
            raise TypeError("prune() got an unexpected keyword argument 'sesion_id'")

    with pytest.raises(TypeError, match=r"'sesion_id'$"):
        Broken(retention={"auto_prune": True, "max_messages": 5})


async def test_a_forgotten_await_is_named_as_the_user_wrote_it() -> None:
    session: Any = Agent(provider="scripted", script=["a"]).session()
    waiting = [session.run_async("x"), session.history_async()]
    for each in waiting:
        each.close()
    assert [each.__qualname__ for each in waiting] == ["Session.run_async", "Session.history_async"]
