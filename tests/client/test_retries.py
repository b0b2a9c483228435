"""Connections that break: what was asked for happens once, and its answer is found again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast import Agent, Message, tool
from holdfast.client import AsyncClient, Client
from holdfast.client.session import RemoteSession
from holdfast.errors import RateLimited, ServerUnavailable, TooManyRequests, TurnCancelled
from holdfast.stores import SQLiteStore
from holdfast.testing import call
from tests.client.conftest import AgentFactory
from tests.kit.gated_model import GatedModel
from tests.kit.local_server import TOKEN, LocalServer
from tests.kit.proxy import Proxy

Do = Callable[[RemoteSession], Any]


def add_message(session: RemoteSession) -> Any:
    return session.add_message(Message.user("x"))


def increment_counter(session: RemoteSession) -> Any:
    return session.update_state("n", lambda n: (n or 0) + 1)


CHANGES: list[tuple[str, bytes, Do, Callable[[RemoteSession], Any], Any]] = [
    ("add", b"POST /sessions/s/messages", add_message, lambda s: len(s), 1),
    ("update", b"PUT /sessions/s/state", increment_counter, lambda s: s.get_state("n"), 1),
    ("set", b"PUT /sessions/s/state", lambda s: s.set_state("a", 1), lambda s: s.head, 2),
    ("fact", b"POST /sessions/s/facts", lambda s: s.facts.add("f"), lambda s: len(s.facts), 1),
    ("fork", b"POST /sessions/s/fork", lambda s: s.fork(), lambda s: len(s.forks()), 1),
    ("pause", b"POST /sessions/s/pause", lambda s: s.pause(), lambda s: (s.status, s.head), ("paused", 2)),
    ("title", b"PUT /sessions/s", lambda s: s.change(title="T"), lambda s: (s.title, s.head), ("T", 2)),
    ("clear", b"POST /sessions/s/clear", lambda s: s.clear(), lambda s: s.head, 2),
]


@pytest.mark.parametrize(("match", "do", "look", "found"), [m[1:] for m in CHANGES], ids=[m[0] for m in CHANGES])
@pytest.mark.parametrize("lost", ["the answer", "the request"])
def test_a_change_happens_once_if_the_request_or_the_reply_is_lost(
    unreliable_client: Client, proxy: Proxy, lost: str, match: bytes, do: Do, look: Do, found: Any
) -> None:
    session = unreliable_client.session("s")
    cut = proxy.cut_replies_after if lost == "the answer" else proxy.cut_before
    cut(match, times=2)
    do(session)
    assert proxy.replies_lost + proxy.requests_cut == 2
    assert look(session) == found


def test_a_lost_answer_of_a_deletion_is_no_404(unreliable_client: Client, proxy: Proxy) -> None:
    session = unreliable_client.session("s", state={"a": 1})
    proxy.cut_replies_after(b"DELETE /sessions/s/state", times=1)
    assert session.delete_state("a") is True
    proxy.cut_replies_after(b"DELETE /sessions/s", times=1)
    assert unreliable_client.delete("s") is True
    proxy.cut_replies_after(b"POST /sessions ", times=1)
    assert unreliable_client.session("t").head == 1


@pytest.mark.parametrize("lost", ["the answer", "the request"])
def test_a_run_is_asked_once_and_its_answer_found_again(
    unreliable_client: Client, proxy: Proxy, register_agent: AgentFactory, lost: str
) -> None:
    register_agent("one", "two")
    session = unreliable_client.session("s", agent="a")
    (proxy.cut_replies_after if lost == "the answer" else proxy.cut_before)(b"/message", times=2)
    assert session.run("a").text == "one"
    assert proxy.replies_lost + proxy.requests_cut == 2
    assert [message.text for message in session.messages] == ["a", "one"]


def test_the_awaited_client_finds_it_again_as_well(proxy: Proxy, register_agent: AgentFactory) -> None:
    register_agent("one", "two")

    async def ask() -> list[str]:
        async with AsyncClient(f"http://127.0.0.1:{proxy.port}", token=TOKEN) as client:
            session = await client.session("s", agent="a")
            proxy.cut_replies_after(b"/message", times=2)
            await session.run("a")
            return [message.text for message in await session.messages()]

    assert asyncio.run(ask()) == ["a", "one"]
    assert proxy.replies_lost == 2


def test_a_connection_that_breaks_while_a_run_goes_on_does_not_cancel_it(
    unreliable_client: Client, proxy: Proxy, local_server: LocalServer
) -> None:
    model = GatedModel("a story that takes its time")
    local_server.register("a", Agent(model=model))
    session = unreliable_client.session("s", agent="a")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(session.run("go").text))
    asking.start()
    for _ in range(3):
        model.allow_pieces(1)
        _wait_until(lambda: model.request_count == 1)
        proxy.cut_all()
    model.allow_pieces()
    asking.join(30)
    assert answers == ["a story that takes its time"]
    assert model.request_count == 1


def test_a_run_may_take_longer_than_the_timeout(local_server: LocalServer) -> None:
    model = GatedModel("a story that takes its time")
    local_server.register("a", Agent(model=model))
    with Client(local_server.url, token=TOKEN, timeout=0.3) as client:
        session = client.session("s", agent="a")
        letting = threading.Timer(1.5, model.allow_pieces)
        letting.start()
        assert session.run("go").text == "a story that takes its time"
    assert model.request_count == 1


def test_a_resumed_turn_is_found_again(unreliable_client: Client, proxy: Proxy, register_agent: AgentFactory) -> None:
    paid: list[int] = []

    @tool(approval="always")
    def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    register_agent(call("pay", {"cents": 5}, id="c"), "It is paid.", tools=[pay])
    session = unreliable_client.session("s", agent="a")
    session.run("pay")
    session.approve("c")
    proxy.cut_replies_after(b"/resume", times=1)
    found = session.resume()
    assert found is not None
    assert (found.text, paid, proxy.replies_lost) == ("It is paid.", [5], 1)


# -- leaving -----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_task_cancels_its_turn(async_client: AsyncClient, local_server: LocalServer) -> None:
    model = GatedModel("never told")
    local_server.register("a", Agent(model=model))
    session = await async_client.session("s", agent="a")
    task = asyncio.create_task(session.run("go"))
    while not model.request_count:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [run.status for run in await session.runs()] == ["cancelled"]
    assert "turn.cancelled" in [event.type for event in await session.events()]
    assert await session.messages() == []
    model.allow_pieces()


def test_an_interrupt_at_the_keyboard_cancels_the_turn(
    client: Client, register_agent: AgentFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_agent("one")
    session = client.session("s", agent="a")
    asked: list[str] = []
    send = client._transport.send

    def interrupt_message(call: Any) -> Any:
        asked.append(call.path)
        if call.path.endswith("/message"):
            raise KeyboardInterrupt
        return send(call)

    monkeypatch.setattr(client._transport, "send", interrupt_message)
    with pytest.raises(KeyboardInterrupt):
        session.run("go")
    assert asked[0] == "/sessions/s/message"
    assert asked[1].startswith("/sessions/s/runs/")
    assert asked[1].endswith("/cancel")


def test_a_cancelled_run_raises_in_the_client_that_waits_for_it(client: Client, local_server: LocalServer) -> None:
    model = GatedModel("never told")
    local_server.register("a", Agent(model=model))
    session = client.session("s", agent="a")
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            session.run("go")
        except TurnCancelled as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    _wait_until(lambda: model.request_count == 1)
    session.cancel(session.runs()[0].run_id)
    model.allow_pieces()
    asking.join(30)
    assert [type(failure) for failure in failures] == [TurnCancelled]


# -- what is tried again, and what is not ------------------------------------------------------------------------------


class ScriptedHandler(BaseHTTPRequestHandler):
    """Gives the answers of its script, one for each request, and then repeats the last one."""

    script: list[tuple[int, dict[str, str], bytes]] = []
    seen: list[tuple[str, str | None]] = []

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer()

    def _answer(self) -> None:
        self.seen.append((self.path, self.headers["idempotency-key"]))
        status, headers, body = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def make_client() -> Iterator[Callable[..., Client]]:
    ScriptedHandler.script, ScriptedHandler.seen = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    clients: list[Client] = []

    def connect(*script: tuple[int, dict[str, str], bytes], **options: Any) -> Client:
        ScriptedHandler.script = list(script)
        clients.append(Client(f"http://127.0.0.1:{server.server_port}", token=TOKEN, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
    server.shutdown()
    server.server_close()
    thread.join()


SESSION = b'{"id":"s","created_at":"2024-01-01T00:00:00+00:00","head":1}'
FINE = (201, {"content-type": "application/json"}, SESSION)


def make_error_answer(status: int, code: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    import json

    return (status, {"content-type": "application/json"}, json.dumps({"error": "no", "code": code, **more}).encode())


@pytest.mark.parametrize(
    "first",
    [
        (502, {}, b"<html>bad gateway</html>"),
        (503, {}, b""),
        (504, {}, b"gateway timeout"),
        (429, {}, b"slow down"),
        make_error_answer(503, "unavailable", retry_after=0.01),
        make_error_answer(503, "store_busy", retry_after=0.01),
        make_error_answer(429, "too_many_requests", retry_after=0.01),
        make_error_answer(409, "key_in_use", retry_after=0.01),
    ],
    ids=lambda first: f"{first[0]} {first[2][:30]!r}",
)
def test_what_passes_is_tried_again_under_the_same_key(make_client: Callable[..., Client], first: Any) -> None:
    client = make_client(first, first, FINE)
    assert client.session("s").id == "s"
    assert len(ScriptedHandler.seen) == 3
    assert len({key for _, key in ScriptedHandler.seen}) == 1
    assert ScriptedHandler.seen[0][1]


def test_an_answer_is_an_answer(make_client: Callable[..., Client]) -> None:
    client = make_client(make_error_answer(502, "rate_limited", details={"provider": "openai", "retry_after": 0.01}))
    with pytest.raises(RateLimited) as caught:  # by the provider, and the turn is over
        client.session("s")
    assert (caught.value.provider, len(ScriptedHandler.seen)) == ("openai", 1)


def test_a_wait_that_is_too_long_is_not_waited(make_client: Callable[..., Client]) -> None:
    client = make_client(make_error_answer(429, "too_many_requests", retry_after=3600))
    with pytest.raises(TooManyRequests) as caught:
        client.session("s")
    assert (caught.value.retry_after, len(ScriptedHandler.seen)) == (3600, 1)


def test_retries_end(make_client: Callable[..., Client]) -> None:
    client = make_client((503, {}, b""), retries=2)
    with pytest.raises(ServerUnavailable, match="503"):
        client.session("s")
    assert len(ScriptedHandler.seen) == 3


def test_something_else_at_that_address_is_named(make_client: Callable[..., Client]) -> None:
    from holdfast.errors import AgentError

    for status, body in ((200, b"<html>hello</html>"), (404, b"nothing here")):
        with pytest.raises(AgentError, match="holdfast server"):
            make_client((status, {}, body)).session("s")


def test_a_server_that_is_stopped_and_started_again_is_found_again(store: SQLiteStore) -> None:
    first = LocalServer(store).start()
    client = Client(first.url, token=TOKEN)
    session = client.session("s")
    session.add_message(Message.user("one"))
    first.stop()
    second: list[LocalServer] = []
    starting = threading.Timer(0.5, lambda: second.append(LocalServer(store, port=first.port).start()))
    starting.start()
    assert session.add_message(Message.user("two")) == 3
    starting.join()
    client.close()
    second[0].stop()


def _wait_until(is_so: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(3000):
        if is_so():
            return
        waited.wait(0.01)
    raise AssertionError("it did not come true")
