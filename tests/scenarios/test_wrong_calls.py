"""Calls that new users got wrong: each one is refused with an error that says what to do, and nothing is stored.

The numbers in the names are those of the list of wrong calls that new users made. A call that now does what the user
means has a test of its own, below the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

import holdfast
import holdfast.flow
import holdfast.stores
from holdfast import Agent, File, Image, LanguageModel, Message, Session
from holdfast.errors import (
    AgentError,
    InvalidArgument,
    InvalidTool,
    LimitExceeded,
    NotJSON,
    SessionMismatch,
    StoreClosed,
    StoreReadOnly,
)
from holdfast.stores.base import Store
from holdfast.testing import call
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


def ask(message: object) -> Callable[[Any], object]:
    return lambda w: w.session.run(message)


MESSAGES = [
    Wrong("30 run('')", ask(""), InvalidArgument, "the message says nothing: ask with a text"),
    Wrong("30 run(' \\n')", ask(" \n"), InvalidArgument, "the message says nothing"),
    Wrong("30 run(Message.user())", ask(Message.user()), InvalidArgument, "the message says nothing"),
    Wrong("34 run(Message.assistant('x'))", ask(Message.assistant("x")), InvalidArgument, "add_message() records it"),
    Wrong("34 run(Message.system('x'))", ask(Message.system("x")), InvalidArgument, "of the role 'system'"),
    Wrong("34 run(Message.tool('x'))", ask(Message.tool("x", call_id="c")), InvalidArgument, "of the role 'tool'"),
    Wrong(
        "34 run({'role': 'assistant'})", ask({"role": "assistant", "content": "x"}), InvalidArgument, "add_message()"
    ),
    Wrong("145 run('\\ud800')", ask("a \ud800 b"), InvalidArgument, "lone surrogate, which is not valid Unicode"),
    Wrong("145 add_message('\\ud800')", lambda w: w.session.add_message("\ud800"), InvalidArgument, "surrogate"),
    Wrong(
        "85 an image without its source",
        lambda w: w.session.send_message({"role": "user", "content": [{"type": "image", "sorce": {}}]}),
        InvalidArgument,
        "unknown in a part of type 'image': 'sorce': use url, data, media_type, name",
    ),
    Wrong(
        "85 a source that is a file id",
        lambda w: w.session.send_message(
            {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}
        ),
        InvalidArgument,
        "use base64, url or text",
    ),
    Wrong(
        "89 Message('user', 'a', content='b')", lambda w: hf.Message("user", "a", content="b"), InvalidArgument, "one"
    ),
    Wrong(
        "90 Message('user', 5)", lambda w: hf.Message("user", 5), InvalidArgument, "a text, a part or a list of them"
    ),
    Wrong("136 File(path=)", lambda w: hf.File(path="x.pdf"), TypeError, ": use File.from_path(...)"),
    Wrong(
        "136 from_path of nothing", lambda w: hf.File.from_path(w.folder / "no.pdf"), InvalidArgument, "No such file"
    ),
    Wrong("136 from_path of a folder", lambda w: hf.File.from_path(w.folder), InvalidArgument, "Is a directory"),
    Wrong("137 Image('photo.png')", ask(hf.Message.user(hf.Image("photo.png"))), InvalidArgument, "Image.from_path()"),
    Wrong("137 Image(b'...')", lambda w: hf.Image(b"png"), InvalidArgument, "use Image(data=...) for bytes"),
]


class Weird:
    """No data: a model can neither send nor read it."""


def find(x: str) -> str:
    return x


def find_weird(x: Weird) -> str:
    return ""


def call_back(f: Callable[[], None]) -> str:
    return ""


def find_listed(xs: list[Weird]) -> str:
    return ""


USE_TYPES = "cannot be described to a model: use str, int, float, bool"
TOOLS = [
    Wrong("16 tools=lambda", lambda w: hf.Agent(provider="echo", tools=lambda x: x), InvalidTool, "write it with def"),
    Wrong("18 a class as a type", lambda w: hf.tool(find_weird), InvalidTool, f"type of 'x', Weird, {USE_TYPES}"),
    Wrong("18 a list of a class", lambda w: hf.tool(find_listed), InvalidTool, USE_TYPES),
    Wrong("19 a function as a type", lambda w: hf.tool(call_back), InvalidTool, USE_TYPES),
    Wrong(
        "22 two tools of one name",
        lambda w: hf.Agent(provider="echo", tools=[find, find]),
        InvalidTool,
        "two tools are named 'find': give one another name with @tool(name='...')",
    ),
    Wrong("23 tools=['search']", lambda w: hf.Agent(provider="echo", tools=["search"]), InvalidTool, "from a function"),
    Wrong("24 @tool('search')", lambda w: hf.tool("search"), InvalidTool, "name it with @tool(name='search')"),
]


def use_closed(store: Store) -> object:
    store.close()
    return Session(store=store)


class Order(BaseModel):
    id: int = 1


@dataclass
class Cart:
    items: int = 1


def run_with(**options: Any) -> Callable[[Any], object]:
    return lambda w: w.session.run("x", **options)


def agent_with(**options: Any) -> Callable[[Any], object]:
    return lambda w: hf.Agent(provider="echo", **options)


def model_with(**options: Any) -> Callable[[Any], object]:
    return lambda w: hf.LanguageModel("openai", "gpt-4o", **options)


def keep(value: object) -> Callable[[Any], object]:
    return lambda w: w.session.set_state("k", value)


NUMBER = "use a number that is not negative, such as 0.7"
OPTIONS = [
    Wrong("143 run(temperature='hot')", run_with(temperature="hot"), InvalidArgument, f"temperature='hot': {NUMBER}"),
    Wrong("143 run(temperature=True)", run_with(temperature=True), InvalidArgument, NUMBER),
    Wrong("143 run(temperature=nan)", run_with(temperature=float("nan")), InvalidArgument, NUMBER),
    Wrong(
        "143 run(max_tokens=-1)", run_with(max_tokens=-1), InvalidArgument, "max_tokens=-1: use a whole number above"
    ),
    Wrong("143 run(max_tokens=1.5)", run_with(max_tokens=1.5), InvalidArgument, "use a whole number above 0"),
    Wrong("143 run(stop=5)", run_with(stop=5), InvalidArgument, "use a text, or a list of texts"),
    Wrong("143 run(tool_choice=find)", run_with(tool_choice=find), InvalidArgument, "or the name of a tool"),
    Wrong("143 run(metadata='x')", run_with(metadata="x"), InvalidArgument, "metadata='x': use a dict"),
    Wrong("143 stream(max_tokens=0)", lambda w: w.session.stream("x", max_tokens=0), InvalidArgument, "above 0"),
    Wrong(
        "143 json(temperature=-1)", lambda w: w.session.json("x", schema=dict, temperature=-1), InvalidArgument, NUMBER
    ),
    Wrong("141 run(timeout='x')", run_with(timeout="x"), InvalidArgument, "timeout='x': use a number of seconds"),
    Wrong("143 Agent(temperature='hot')", agent_with(temperature="hot"), InvalidArgument, NUMBER),
    Wrong("143 Agent(max_tokens=0)", agent_with(max_tokens=0), InvalidArgument, "use a whole number above 0"),
    Wrong("143 Agent(timeout='x')", agent_with(timeout="x"), InvalidArgument, "use a number of seconds"),
    Wrong("143 Agent(timeout=None)", agent_with(timeout=None), InvalidArgument, "use a number of seconds"),
    Wrong("143 Agent(max_retries=-1)", agent_with(max_retries=-1), InvalidArgument, "0 means one try"),
    Wrong("143 LanguageModel(temperature=)", model_with(temperature="hot"), InvalidArgument, NUMBER),
    Wrong("143 LanguageModel(timeout=-1)", model_with(timeout=-1), InvalidArgument, "use a number of seconds"),
    Wrong("143 LanguageModel(context_window=)", model_with(context_window="8k"), InvalidArgument, "above 0"),
    Wrong("72 set_state('k', datetime)", keep(datetime(2024, 1, 31, tzinfo=UTC)), NotJSON, "store its isoformat()"),
    Wrong("72 set_state('k', [date])", keep([date(2024, 1, 31)]), NotJSON, "a date is not JSON: store its isoformat()"),
    Wrong("73 set_state('k', model)", keep(Order()), NotJSON, "store its model_dump(mode='json')"),
    Wrong("73 set_state('k', dataclass)", keep({"cart": Cart()}), NotJSON, "store its dataclasses.asdict()"),
]

STORES = [
    Wrong(
        "43 another user's id",
        lambda w: hf.Session("s", store=w.store, user_id="bob"),
        SessionMismatch,
        "give the user_id that it has, or choose another id",
    ),
    Wrong("46 Session.load('s')", lambda w: hf.Session.load("s"), AttributeError, "Session.open(id) opens a session"),
    Wrong("46 Session.get('s')", lambda w: hf.Session.get("s"), AttributeError, "no attribute 'get': Session.open(id)"),
    Wrong(
        "56 store=SQLiteStore", lambda w: hf.Session(store=stores.SQLiteStore), InvalidArgument, "pass an object of it"
    ),
    Wrong(
        "59 SQLiteStore(folder)", lambda w: stores.SQLiteStore(w.folder), StoreReadOnly, "is a directory: name a file"
    ),
    Wrong(
        "61 SQLiteStore(url)", lambda w: stores.SQLiteStore("sqlite:///x.db"), InvalidArgument, "SQLiteStore('x.db')"
    ),
    Wrong("64 a closed MemoryStore", lambda w: use_closed(stores.MemoryStore()), StoreClosed, "open a new one"),
    Wrong(
        "113 import_('junk')", lambda w: hf.Session.import_("junk"), InvalidArgument, "what session.export() returned"
    ),
]

CALLS = [*TYPOS, *MESSAGES, *TOOLS, *OPTIONS, *STORES]


@pytest.mark.parametrize("wrong", CALLS, ids=lambda wrong: wrong.name)
def test_a_wrong_call_says_what_to_do_and_stores_nothing(store: Store, tmp_path: Path, wrong: Wrong) -> None:
    world = World(store, tmp_path)
    before = world.contents()
    with pytest.raises(wrong.error) as caught:
        wrong.call(world)
    assert wrong.advice in str(caught.value)
    assert isinstance(caught.value, AgentError | TypeError | AttributeError)
    assert "pydantic" not in str(caught.value).replace("a pydantic model", "")
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


def test_88_a_message_takes_a_role_and_a_text(store: Store) -> None:
    picture = Image(data=b"png", media_type="image/png")
    for made in (
        Message("user", "hi"),
        Message(role="user", content="hi"),
        Message(role="user", content=["hi"]),
        Message(role="user", content=[{"type": "text", "text": "hi"}]),
    ):
        assert made == Message.user("hi")
    assert Message("user", picture) == Message(role="user", content=picture) == Message.user(picture)
    assert Message("user", ["hi", picture]) == Message.user("hi", picture)
    assert Message("assistant").parts == ()
    session = Session(store=store)
    session.add_message(Message("user", "hi"))
    assert [each["content"] for each in session.messages] == ["hi"]


def test_85_images_and_documents_as_anthropic_writes_them(store: Store) -> None:
    session = Session(store=store)
    content = [
        "look",
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
        {"type": "image", "source": {"type": "url", "url": "https://e.com/a.png"}, "cache_control": {"type": "x"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "cGRm"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}, "title": "note.txt"},
        {"type": "image_url", "image_url": "https://e.com/b.png"},
    ]
    session.send_message({"role": "user", "content": content})
    assert session.messages == [
        Message.user(
            "look",
            Image(data=b"png", media_type="image/png"),
            Image("https://e.com/a.png"),
            File(data=b"pdf", media_type="application/pdf"),
            File(data="é".encode(), media_type="text/plain", name="note.txt"),
            Image(url="https://e.com/b.png"),
        )
    ]


def test_136_images_and_files_are_read_from_a_path(tmp_path: Path) -> None:
    for name in ("chart.webp", "photo.JPG", "report.pdf", "notes.md", "odd.q1"):
        (tmp_path / name).write_bytes(name.encode())
    assert Image.from_path(tmp_path / "chart.webp") == Image(
        data=b"chart.webp", media_type="image/webp", name="chart.webp"
    )
    assert Image.from_path(str(tmp_path / "photo.JPG")).media_type == "image/jpeg"
    assert File.from_path(tmp_path / "report.pdf").media_type == "application/pdf"
    assert File.from_path(tmp_path / "notes.md").media_type == "text/markdown"
    assert File.from_path(tmp_path / "odd.q1", "application/x-odd").media_type == "application/x-odd"
    with pytest.raises(InvalidArgument, match=r"'odd\.q1' does not tell its media type: give media_type="):
        File.from_path(tmp_path / "odd.q1")
    with pytest.raises(InvalidArgument, match=r"application/pdf, which is no image: use File\.from_path"):
        Image.from_path(tmp_path / "report.pdf")


def test_136_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    large = tmp_path / "large.pdf"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing: no memory holds it
    with pytest.raises(LimitExceeded, match=r"large\.pdf has 1099511627776 bytes, the limit is 16777216: send it by"):
        File.from_path(large)
    (tmp_path / "small.pdf").write_bytes(b"12345")
    assert File.from_path(tmp_path / "small.pdf", max_bytes=5).data == b"12345"
    with pytest.raises(LimitExceeded):
        File.from_path(tmp_path / "small.pdf", max_bytes=4)


def test_16_one_function_is_a_list_of_tools() -> None:
    assert list(Agent(provider="echo", tools=find).tools) == ["find"]


def test_17_a_parameter_without_a_type_takes_any_value(store: Store) -> None:
    taken: list[Any] = []

    def keep(value, other=None):  # type: ignore[no-untyped-def]
        """Keep something.

        Args:
            other: anything else
        """
        taken.append(value)

    agent = Agent(provider="scripted", script=[call("keep", {"value": {"a": [1]}}), "done"], tools=[keep])
    properties = agent.tools["keep"].parameters["properties"]
    assert properties["value"] == {"description": "Any JSON value."}
    assert properties["other"]["description"] == "anything else"
    agent.session(store=store).run("x")
    assert taken == [{"a": [1]}]


def list_ids(store: Store, **query: Any) -> list[str]:
    return [session.id for session in Session.list(store=store, **query)]


def test_20_a_list_goes_on_after_its_last_session_was_deleted(store: Store) -> None:
    ids = [Session(id, store=store).id for id in (None, "b", None, "a", None)][::-1]
    assert list_ids(store) == ids
    page = Session.list(store=store, limit=3)
    for session in page:
        store.delete(session.id)
    assert list_ids(store, after=page[2]) == list_ids(store, after=page[2].id) == ids[3:]
    assert list_ids(store, after=page[0].id) == ids[3:]
    page = Session.list(store=store, limit=1)
    store.delete("b")
    Session("b", store=store)  # another session, under the same id: it is the newest
    assert list_ids(store, after=page[0]) == ids[4:]
    assert list_ids(store, after="b") == ids[4:]
    assert list_ids(store, after=ids[4]) == []
    store.delete("b")
    with pytest.raises(InvalidArgument, match=r"after='b' is not a session here: give the session itself \(after=page"):
        Session.list(store=store, after="b")


def test_20_every_session_is_listed_while_sessions_are_deleted(store: Store) -> None:
    made = [Session(store=store).id for _ in range(9)]
    seen: list[str] = []
    while page := Session.list(store=store, limit=2, after=seen[-1] if seen else None):
        seen += [session.id for session in page]
        for session in page:
            store.delete(session.id)
    assert seen == made[::-1]
    assert store.list_sessions() == []


def test_46_an_attribute_that_says_what_to_use_is_still_none() -> None:
    assert not hasattr(Session, "load")
    assert not hasattr(Session("s"), "get")
