"""Section 4 of the promises: what an agent's instructions are made of. Each four ways, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Session
from holdfast.errors import MissingState
from holdfast.flow import RoutingAgent
from holdfast.models.base import ModelRequest
from holdfast.stores.base import Store
from tests.scenarios.ways import WAYS, Ask, asking


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def ask(way: str) -> Ask:
    return asking(way)


class Seen:
    """A script that notes what it was asked, and answers from a list, or always the same."""

    def __init__(self, *replies: Any) -> None:
        self.requests: list[ModelRequest] = []
        self._replies = list(replies)

    def __call__(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        return self._replies.pop(0) if self._replies else "ok"

    def agent(self, name: str | None = None, **options: Any) -> Agent:
        return Agent(provider="scripted", script=self, name=name, **options)

    @property
    def systems(self) -> list[list[str]]:
        return [list(request.system_texts) for request in self.requests]


def types(session: Session) -> list[str]:
    return [event.type for event in session.events(limit=None)]


def sound(session: Session) -> None:
    """What must hold after anything: the chain verifies, the view is the fold, no process holds the session."""
    store = session.store
    assert session.verify()
    assert store.rebuild_view(session.log) == store.view(session.log)
    assert store.lease(session.log) is None


def untouched(session: Session) -> bool:
    """Whether no turn began. A message that a server took for its queue was taken out of it."""
    return {*types(session)} <= {"session.created", "message.queued", "run.dropped"} and session.messages == []


# -- placeholders ------------------------------------------------------------------------------------------------------


def test_a_placeholder_reads_state_of_every_stored_scope(store: Store, ask: Ask) -> None:
    seen = Seen()
    text = "{writing.draft} {session:writing.draft} {user:theme} {app:rate-limit} {user:absent?}{absent?}|"
    session = seen.agent(instructions=text).session(store=store, user_id="alice", app_name="shop")
    session.set_state("writing.draft", "<b>A & B</b>")
    session.set_state("theme", "dark", scope="user")
    session.set_state("rate-limit", 10, scope="app")
    ask(session, "go")
    session.set_state("theme", "{absent} {{x}}", scope="user")  # text from state is never read for placeholders
    session.set_state("absent", "here")
    ask(session, "again")
    assert seen.systems == [
        ["<b>A & B</b> <b>A & B</b> dark 10 |"],
        ["<b>A & B</b> <b>A & B</b> {absent} {{x}} 10 here|"],
    ]
    sound(session)


def test_temp_state_comes_before_session_state_unless_a_scope_is_named(store: Store, ask: Ask) -> None:
    seen = Seen()
    session = seen.agent(instructions="{page} {temp:page?} {session:page}").session(store=store)
    session.set_state("page", 1)
    session.set_state("page", 2, scope="temp")
    ask(session, "go")
    ask(session, "again")
    assert seen.systems == [["2 2 1"], ["1  1"]]


@pytest.mark.parametrize(
    "text",
    [
        'Answer like {"a": 1, "b": {"c": []}}',
        "A code is [0-9]{3}, a set is {}, an empty one is {{}}.",
        "def f(x): return {y: x[y] for y in {1, 2}}",
        "{ spaced } {name!r} {name:>9} {usr:name} {1}",
    ],
)
def test_other_braces_stay_as_they_are(store: Store, ask: Ask, text: str) -> None:
    seen = Seen()
    session = seen.agent(instructions=text).session(store=store)
    assert ask(session, "go").text == "ok"
    assert seen.systems == [[text]]
    assert [part.text for part in session.context().parts if part.kind == "instructions"] == [text]


def test_a_name_in_two_braces_is_text(store: Store, ask: Ask) -> None:
    seen = Seen()
    session = seen.agent(instructions="{{name}} {{user:theme?}} {{{name}}}").session(store=store, state={"name": "A"})
    ask(session, "go")
    assert seen.systems == [["{name} {user:theme?} {A}"]]


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("Improve: {draft}", ["'draft'", "set_state('draft', ...)", "{draft?}", "{{draft}}"]),
        ("{draft.__class__}", ["'draft.__class__'"]),
        ("{user:theme}", ["'user:theme'", "set_state('theme', ..., scope='user')", "user_id=", "{user:theme?}"]),
        ("{app:limit}", ["'app:limit'", "scope='app'", "app_name=", "{{app:limit}}"]),
        ("{temp:page}", ["'temp:page'", "scope='temp'", "{temp:page?}"]),
    ],
)
def test_a_missing_key_is_refused_before_anything_is_stored(
    store: Store, ask: Ask, text: str, hints: list[str]
) -> None:
    session = Seen().agent(instructions=text).session(store=store)
    with pytest.raises(MissingState) as found:
        ask(session, "go")
    assert [hint for hint in hints if hint not in str(found.value)] == []
    assert untouched(session)
    sound(session)


def test_a_routing_agent_shows_names_and_descriptions_as_they_are(store: Store, ask: Ask) -> None:
    chooser = Seen("tech", "tech")
    helper = Seen().agent("tech", description='Knows {draft} and {"json": 1}.')
    router = RoutingAgent([helper], name="desk", provider="scripted", script=chooser, instructions="Be {mood}.")
    session = router.session(store=store, state={"mood": "quick"})
    ask(session, "go")
    (instructions, task) = chooser.systems[0]
    assert instructions == "Be quick."
    assert '- tech: Knows {draft} and {"json": 1}.' in task
    assert 'Reply with JSON: {"agent": "<one of these names>"}' in task
    assert [part.kind for part in session.context().parts][:2] == ["instructions", "routing"]
