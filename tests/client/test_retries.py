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
from tests.client.conftest import Scripted
from tests.kit.gated_model import Drip
from tests.kit.proxy import Proxy
from tests.kit.serving import TOKEN, Serving

Do = Callable[[RemoteSession], Any]


def add(session: RemoteSession) -> Any:
    return session.add_message(Message.user("x"))


def count(session: RemoteSession) -> Any:
    return session.update_state("n", lambda n: (n or 0) + 1)


MOVES: list[tuple[str, bytes, Do, Callable[[RemoteSession], Any], Any]] = [
    ("add", b"POST /sessions/s/messages", add, lambda s: len(s), 1),
    ("update", b"PUT /sessions/s/state", count, lambda s: s.get_state("n"), 1),
    ("set", b"PUT /sessions/s/state", lambda s: s.set_state("a", 1), lambda s: s.head, 2),
    ("fact", b"POST /sessions/s/facts", lambda s: s.facts.add("f"), lambda s: len(s.facts), 1),
    ("fork", b"POST /sessions/s/fork", lambda s: s.fork(), lambda s: len(s.forks()), 1),
    ("pause", b"POST /sessions/s/pause", lambda s: s.pause(), lambda s: (s.status, s.head), ("paused", 2)),
    ("title", b"PUT /sessions/s", lambda s: s.change(title="T"), lambda s: (s.title, s.head), ("T", 2)),
    ("clear", b"POST /sessions/s/clear", lambda s: s.clear(), lambda s: s.head, 2),
]


@pytest.mark.parametrize(("match", "do", "look", "found"), [m[1:] for m in MOVES], ids=[m[0] for m in MOVES])
@pytest.mark.parametrize("lost", ["the answer", "the request"])
def test_a_change_happens_once_whatever_is_lost(
    shaky: Client, proxy: Proxy, lost: str, match: bytes, do: Do, look: Do, found: Any
) -> None:
    session = shaky.session("s")
    cut = proxy.cut_replies_after if lost == "the answer" else proxy.cut_before
    cut(match, times=2)
    do(session)
    assert proxy.replies_lost + proxy.requests_cut == 2
    assert look(session) == found


def test_a_lost_answer_of_a_deletion_is_no_404(shaky: Client, proxy: Proxy) -> None:
    session = shaky.session("s", state={"a": 1})
    proxy.cut_replies_after(b"DELETE /sessions/s/state", times=1)
    assert session.delete_state("a") is True
    proxy.cut_replies_after(b"DELETE /sessions/s", times=1)
    assert shaky.delete("s") is True
    proxy.cut_replies_after(b"POST /sessions ", times=1)
    assert shaky.session("t").head == 1


@pytest.mark.parametrize("lost", ["the answer", "the request"])
def test_a_run_is_asked_once_and_its_answer_found_again(
    shaky: Client, proxy: Proxy, scripted: Scripted, lost: str
) -> None:
    scripted("one", "two")
    session = shaky.session("s", agent="a")
    (proxy.cut_replies_after if lost == "the answer" else proxy.cut_before)(b"/message", times=2)
    assert session.run("a").text == "one"
    assert proxy.replies_lost + proxy.requests_cut == 2
    assert [message.text for message in session.messages] == ["a", "one"]


def test_the_awaited_client_finds_it_again_as_well(proxy: Proxy, scripted: Scripted) -> None:
    scripted("one", "two")

    async def ask() -> list[str]:
        async with AsyncClient(f"http://127.0.0.1:{proxy.port}", token=TOKEN) as client:
            session = await client.session("s", agent="a")
            proxy.cut_replies_after(b"/message", times=2)
            await session.run("a")
            return [message.text for message in await session.messages()]

    assert asyncio.run(ask()) == ["a", "one"]
    assert proxy.replies_lost == 2


def test_a_connection_that_breaks_while_a_run_goes_on_does_not_cancel_it(
    shaky: Client, proxy: Proxy, serving: Serving
) -> None:
    model = Drip("a story that takes its time")
    serving.register("a", Agent(model=model))
    session = shaky.session("s", agent="a")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(session.run("go").text))
    asking.start()
    for _ in range(3):
        model.let(1)
        _until(lambda: model.asked == 1)
        proxy.cut_all()
    model.let()
    asking.join(30)
    assert answers == ["a story that takes its time"]
    assert model.asked == 1


def test_a_run_may_take_longer_than_the_timeout(serving: Serving) -> None:
    model = Drip("a story that takes its time")
    serving.register("a", Agent(model=model))
    with Client(serving.url, token=TOKEN, timeout=0.3) as client:
        session = client.session("s", agent="a")
        letting = threading.Timer(1.5, model.let)
        letting.start()
        assert session.run("go").text == "a story that takes its time"
    assert model.asked == 1


def test_a_resumed_turn_is_found_again(shaky: Client, proxy: Proxy, scripted: Scripted) -> None:
    paid: list[int] = []

    @tool(approval="always")
    def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    scripted(call("pay", {"cents": 5}, id="c"), "It is paid.", tools=[pay])
    session = shaky.session("s", agent="a")
    session.run("pay")
    session.approve("c")
    proxy.cut_replies_after(b"/resume", times=1)
    found = session.resume()
    assert found is not None
    assert (found.text, paid, proxy.replies_lost) == ("It is paid.", [5], 1)


# -- leaving -----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_task_cancels_its_turn(async_client: AsyncClient, serving: Serving) -> None:
    model = Drip("never told")
    serving.register("a", Agent(model=model))
    session = await async_client.session("s", agent="a")
    task = asyncio.create_task(session.run("go"))
    while not model.asked:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [run.status for run in await session.runs()] == ["cancelled"]
    assert "turn.cancelled" in [event.type for event in await session.events()]
    assert await session.messages() == []
    model.let()


def test_an_interrupt_at_the_keyboard_cancels_the_turn(
    client: Client, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted("one")
    session = client.session("s", agent="a")
    asked: list[str] = []
    send = client._transport.send

    def interrupted(call: Any) -> Any:
        asked.append(call.path)
        if call.path.endswith("/message"):
            raise KeyboardInterrupt
        return send(call)

    monkeypatch.setattr(client._transport, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run("go")
    assert asked[0] == "/sessions/s/message"
    assert asked[1].startswith("/sessions/s/runs/")
    assert asked[1].endswith("/cancel")


def test_a_cancelled_run_raises_at_whoever_waits_for_it(client: Client, serving: Serving) -> None:
    model = Drip("never told")
    serving.register("a", Agent(model=model))
    session = client.session("s", agent="a")
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            session.run("go")
        except TurnCancelled as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    _until(lambda: model.asked == 1)
    session.cancel(session.runs()[0].run_id)
    model.let()
    asking.join(30)
    assert [type(failure) for failure in failures] == [TurnCancelled]


# -- what is tried again, and what is not ------------------------------------------------------------------------------


class Answering(BaseHTTPRequestHandler):
    """Gives the answers it was told to give, one a request, then the last one again."""

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
def answering() -> Iterator[Callable[..., Client]]:
    Answering.script, Answering.seen = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    clients: list[Client] = []

    def make(*script: tuple[int, dict[str, str], bytes], **options: Any) -> Client:
        Answering.script = list(script)
        clients.append(Client(f"http://127.0.0.1:{server.server_port}", token=TOKEN, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    server.shutdown()
    server.server_close()
    thread.join()


SESSION = b'{"id":"s","created_at":"2024-01-01T00:00:00+00:00","head":1}'
FINE = (201, {"content-type": "application/json"}, SESSION)


def problem(status: int, code: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    import json

    return (status, {"content-type": "application/json"}, json.dumps({"error": "no", "code": code, **more}).encode())


@pytest.mark.parametrize(
    "first",
    [
        (502, {}, b"<html>bad gateway</html>"),
        (503, {}, b""),
        (504, {}, b"gateway timeout"),
        (429, {}, b"slow down"),
        problem(503, "unavailable", retry_after=0.01),
        problem(503, "store_busy", retry_after=0.01),
        problem(429, "too_many_requests", retry_after=0.01),
        problem(409, "key_in_use", retry_after=0.01),
    ],
    ids=lambda first: f"{first[0]} {first[2][:30]!r}",
)
def test_what_passes_is_tried_again_under_the_same_key(answering: Callable[..., Client], first: Any) -> None:
    client = answering(first, first, FINE)
    assert client.session("s").id == "s"
    assert len(Answering.seen) == 3
    assert len({key for _, key in Answering.seen}) == 1
    assert Answering.seen[0][1]


def test_an_answer_is_an_answer(answering: Callable[..., Client]) -> None:
    client = answering(problem(502, "rate_limited", details={"provider": "openai", "retry_after": 0.01}))
    with pytest.raises(RateLimited) as caught:  # by the provider, and the turn is over
        client.session("s")
    assert (caught.value.provider, len(Answering.seen)) == ("openai", 1)


def test_a_wait_that_is_too_long_is_not_waited(answering: Callable[..., Client]) -> None:
    client = answering(problem(429, "too_many_requests", retry_after=3600))
    with pytest.raises(TooManyRequests) as caught:
        client.session("s")
    assert (caught.value.retry_after, len(Answering.seen)) == (3600, 1)


def test_retries_end(answering: Callable[..., Client]) -> None:
    client = answering((503, {}, b""), retries=2)
    with pytest.raises(ServerUnavailable, match="503"):
        client.session("s")
    assert len(Answering.seen) == 3


def test_something_else_at_that_address_is_named(answering: Callable[..., Client]) -> None:
    from holdfast.errors import AgentError

    for status, body in ((200, b"<html>hello</html>"), (404, b"nothing here")):
        with pytest.raises(AgentError, match="holdfast server"):
            answering((status, {}, body)).session("s")


def test_a_server_that_is_stopped_and_started_again_is_found_again(store: SQLiteStore) -> None:
    first = Serving(store).start()
    client = Client(first.url, token=TOKEN)
    session = client.session("s")
    session.add_message(Message.user("one"))
    first.stop()
    second: list[Serving] = []
    starting = threading.Timer(0.5, lambda: second.append(Serving(store, port=first.port).start()))
    starting.start()
    assert session.add_message(Message.user("two")) == 3
    starting.join()
    client.close()
    second[0].stop()


def _until(is_so: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(3000):
        if is_so():
            return
        waited.wait(0.01)
    raise AssertionError("it did not come true")
