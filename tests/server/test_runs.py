"""Messages over HTTP: admitted once, run in order, streamed, resumed and cancelled; on a real server over loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from holdfast import Agent, Session, tool
from holdfast.errors import ProviderUnavailable
from holdfast.stores.base import Store
from holdfast.testing import call, error
from tests.kit.local_server import TOKEN, Listener, LocalServer


class GatedScript:
    """A model or tool that says when it was entered, and goes on when it is let."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, request: Any) -> str:
        self.entered.set()
        assert self.go.wait(60)
        return f"slowly: {request.messages[-1].text}"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(approval="always")
def charge(cents: int) -> str:
    """Take money."""
    return f"charged {cents}"


class RunServer:
    def __init__(self, store: Store, **more: Any) -> None:
        self.store, self.gated_script = store, GatedScript()
        agents = {
            "say": Agent(name="say", provider="scripted", script=lambda r: f"heard {r.messages[-1].text}"),
            "slow": Agent(name="slow", provider="scripted", script=self.gated_script),
            "sum": Agent(name="sum", provider="scripted", script=[call("add", {"a": 2, "b": 3}), "five"], tools=[add]),
            "buy": Agent(
                name="buy", provider="scripted", script=[call("charge", {"cents": 5}), "bought"], tools=[charge]
            ),
            "broken": Agent(
                name="broken",
                provider="scripted",
                script=[error(ProviderUnavailable("down", provider="scripted"))] * 9,
                max_retries=0,
            ),
        }
        self.local_server = LocalServer(store, agents=agents, ping=0.2, **more).start()
        self.client = self.new_client()

    def new_client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.local_server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)

    def session(self, id: str = "s") -> Session:
        return Session(id, store=self.store)

    def ask(self, text: str, agent: str = "say", id: str = "s", key: str | None = None, **more: Any) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        body = {"agent_id": agent, "message": text, **more}
        return self.client.post(f"/sessions/{id}/message", json=body, headers=headers)

    def stream(self, path: str, method: str = "POST", **more: Any) -> list[tuple[str | None, str, dict[str, Any]]]:
        with self.client.stream(method, path, **more) as response:
            assert response.status_code == 200, response.read()
            return list(parse_frames(response.iter_lines()))

    def close(self) -> None:
        self.gated_script.go.set()
        self.client.close()
        self.local_server.stop()


def parse_frames(lines: Iterator[str]) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
    id: str | None = None
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "id":
            id = value
        elif field == "event":
            name = value
        elif field == "data":
            yield id, name, json.loads(value)
            id = None


@pytest.fixture
def run_server(durable_store: Store, listener: Listener) -> Iterator[RunServer]:
    run_server = RunServer(durable_store, listener=listener)
    yield run_server
    run_server.close()


def test_a_message_is_answered_with_the_promised_shape(run_server: RunServer) -> None:
    session = run_server.session()
    found = run_server.ask("2 and 3", "sum")
    assert found.status_code == 200
    answer = found.json()
    assert (answer["response"], answer["steps"], answer["status"]) == ("five", 2, "finished")
    assert answer["tool_calls"] == [{"id": "call_1", "name": "add", "arguments": {"a": 2, "b": 3}}]
    assert answer["usage"]["input_tokens"] > 0
    assert answer["usage"]["output_tokens"] > 0
    assert [m.text for m in session.messages if m.role != "tool"] == ["2 and 3", "", "five"]
    run = run_server.client.get(f"/sessions/s/runs/{answer['run_id']}").json()
    assert (run["status"], run["agent_id"], run["response"]) == ("finished", "sum", answer)
    assert session.verify()


def test_the_same_key_gets_the_same_answer_and_other_content_is_refused(run_server: RunServer) -> None:
    session = run_server.session()
    one, two = run_server.ask("hello", key="k"), run_server.ask("hello", key="k")
    assert one.json() == two.json()
    other = run_server.ask("something else", key="k")
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert len(session.messages) == 2


def test_many_at_once_with_one_key_are_one_run(run_server: RunServer) -> None:
    session = run_server.session()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: run_server.ask("hello", key="k"), range(16)))
    assert {each.status_code for each in found} == {200}
    assert len({each.json()["run_id"] for each in found}) == 1
    assert [m.text for m in session.messages] == ["hello", "heard hello"]


def test_messages_to_one_session_at_once_are_answered_one_after_the_other(run_server: RunServer) -> None:
    session = run_server.session()
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda n: run_server.ask(f"m{n}").json()["response"], range(12)))
    assert sorted(found) == sorted(f"heard m{n}" for n in range(12))
    texts = [m.text for m in session.messages]
    assert [f"heard {question}" for question in texts[::2]] == texts[1::2]
    assert session.verify()


def test_a_busy_session_enqueues_rejects_or_is_interrupted(run_server: RunServer) -> None:
    session = run_server.session()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(run_server.ask, "one", "slow")
        assert run_server.gated_script.entered.wait(30)
        refused = run_server.ask("two", on_busy="reject")
        assert (refused.status_code, refused.json()["code"]) == (409, "session_busy")
        assert int(refused.headers["Retry-After"]) >= 1
        queued = pool.submit(run_server.ask, "three")
        while not run_server.client.get("/sessions/s").json()["queued"] > 1:
            pass
        statuses = [run["status"] for run in run_server.client.get("/sessions/s/runs").json()["runs"]]
        assert statuses == ["queued", "running"]
        urgent = run_server.ask("four", on_busy="interrupt")
        assert urgent.json()["response"] == "heard four"
        assert (first.result().status_code, first.result().json()["code"]) == (409, "turn_cancelled")
        assert queued.result().json()["response"] == "heard three"
    assert [m.text for m in session.messages] == ["four", "heard four", "three", "heard three"]


def test_a_message_waits_in_the_queue_for_no_longer_than_it_wants_to(run_server: RunServer) -> None:
    run_server.session()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run_server.ask, "one", "slow")
        assert run_server.gated_script.entered.wait(30)
        late = run_server.ask("two", timeout=0.1)
        assert (late.status_code, late.json()["code"]) == (409, "session_busy")
        run_server.gated_script.go.set()
        assert first.result().status_code == 200
    assert [m.text for m in Session.open("s", store=run_server.store).messages] == ["one", "slowly: one"]


def test_cancel_ends_a_run_and_disconnecting_does_not(run_server: RunServer) -> None:
    session = run_server.session()
    with run_server.new_client() as leaving, pytest.raises(httpx2.TimeoutException):
        leaving.post("/sessions/s/message", json={"agent_id": "slow", "message": "one"}, timeout=0.3)
    assert run_server.gated_script.entered.wait(30)
    (run,) = run_server.client.get("/sessions/s/runs").json()["runs"]
    assert run["status"] == "running"
    ended = run_server.client.post(f"/sessions/s/runs/{run['run_id']}/cancel", json={})
    assert (ended.status_code, ended.json()["status"]) == (200, "cancelled")
    again = run_server.client.post(f"/sessions/s/runs/{run['run_id']}/cancel", json={})
    assert again.json()["status"] == "cancelled"
    assert session.messages == []
    assert run_server.client.post("/sessions/s/runs/nothing/cancel", json={}).status_code == 404


def test_failures_have_their_code_and_are_not_in_the_history(run_server: RunServer) -> None:
    session = run_server.session()
    down = run_server.ask("one", "broken", key="k")
    assert (down.status_code, down.json()["code"]) == (502, "provider_unavailable")
    again = run_server.ask("one", "broken", key="k")
    assert (again.status_code, again.json()["error"]) == (502, down.json()["error"])
    nobody = run_server.ask("one", "nobody")
    assert (nobody.status_code, nobody.json()["code"]) == (404, "not_found")
    assert run_server.ask("one", id="missing").status_code == 404
    run_server.client.post("/sessions/s/close", json={})
    assert run_server.ask("one").json()["code"] == "lifecycle"
    assert session.messages == []


def test_an_approval_is_decided_and_the_turn_resumed(run_server: RunServer) -> None:
    session = run_server.session()
    waiting = run_server.ask("buy it", "buy").json()
    assert (waiting["status"], waiting["response"], waiting["pending"][0]["name"]) == ("waiting", "", "charge")
    refused = run_server.ask("hello?")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_pending")
    call_id = waiting["pending"][0]["call_id"]
    run_server.client.post(f"/sessions/s/approvals/{call_id}", json={"approved": True})
    key = {"Idempotency-Key": "resume-1"}
    done = run_server.client.post("/sessions/s/resume", json={}, headers=key).json()
    assert (done["response"], done["status"], done["run_id"]) == ("bought", "finished", waiting["run_id"])
    assert run_server.client.post("/sessions/s/resume", json={}, headers=key).json() == done
    assert run_server.client.post("/sessions/s/resume", json={}).json()["status"] == "idle"
    assert [m.text for m in session.messages if m.role == "user"] == ["buy it"]


NAMES = [
    *["message_start", "content_block_start", "input_json_delta", "content_block_stop", "message_delta"],
    *["message_stop", "tool_result", "message_start", "content_block_start", "text_delta", "content_block_stop"],
    *["message_delta", "message_stop", "done"],
]


def test_a_stream_has_the_promised_names_live_and_when_attached_again(run_server: RunServer) -> None:
    run_server.session()
    body = {"agent_id": "sum", "message": "2 and 3"}
    headers = {"Idempotency-Key": "k"}
    live = run_server.stream("/sessions/s/message/stream", json=body, headers=headers)
    assert [name for _, name, _ in live] == NAMES
    assert all(data["type"] == name for _, name, data in live)
    result = next(data for _, name, data in live if name == "tool_result")
    assert (result["name"], result["content"], result["is_error"]) == ("add", "5", False)
    done = live[-1][2]
    assert (done["steps"], done["response"]["response"]) == (2, "five")
    again = run_server.stream("/sessions/s/message/stream", json=body, headers=headers)
    assert [name for _, name, _ in again] == NAMES
    assert again[-1][2] == done
    # From any frame that has an id, exactly the rest comes.
    ids = [id for id, _, _ in live if id is not None and "." not in id]
    for at, id in enumerate(ids[:-1]):
        rest = run_server.stream("/sessions/s/message/stream", json=body, headers={**headers, "Last-Event-ID": id})
        assert [each for each, _, _ in rest if each is not None and "." not in each] == ids[at + 1 :]
    assert run_server.ask("2 and 3", "sum", key="k").json() == done["response"]


def test_errors_in_a_stream_are_json(run_server: RunServer) -> None:
    run_server.session()
    found = run_server.stream("/sessions/s/message/stream", json={"agent_id": "broken", "message": "x"})
    assert found[-1][1] == "error"
    assert (found[-1][2]["type"], found[-1][2]["code"]) == ("error", "provider_unavailable")
    missing = run_server.client.post("/sessions/none/message/stream", json={"agent_id": "say", "message": "x"})
    assert (missing.status_code, missing.json()["code"]) == (404, "session_not_found")


def test_events_are_replayed_from_anywhere_and_go_live(run_server: RunServer) -> None:
    session = run_server.session()
    run_server.ask("one")
    head = session.head
    seen: list[tuple[str | None, str, dict[str, Any]]] = []
    ready = threading.Event()

    def read(client: httpx2.Client, after: int) -> None:
        headers = {"Accept": "text/event-stream"}
        with client.stream("GET", f"/sessions/s/events?after={after}", headers=headers) as response:
            for each in parse_frames(response.iter_lines()):
                if each[1] == "ping":
                    ready.set()
                    continue
                seen.append(each)
                if each[1] == "turn.finished" and int(each[0] or 0) > head:
                    return

    with run_server.new_client() as client, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, client, 2)
        assert ready.wait(30)
        assert [int(id or 0) for id, _, _ in seen] == list(range(3, head + 1))
        run_server.ask("two", "sum")
        reading.result()
    durable = [int(id or 0) for id, _, _ in seen if id is not None and "." not in id]
    assert durable == list(range(3, session.head + 1))
    assert {name for id, name, _ in seen if id is not None and "." in id} >= {"text_delta", "input_json_delta"}
    page = run_server.client.get("/sessions/s/events?after=0&limit=4").json()
    assert ([event["seq"] for event in page["events"]], page["next"]) == ([1, 2, 3, 4], 4)


def test_last_event_id_outranks_after_and_nonsense_is_refused(run_server: RunServer) -> None:
    run_server.session()
    run_server.ask("one")
    accept = {"Accept": "text/event-stream"}
    with run_server.client.stream(
        "GET", "/sessions/s/events?after=1", headers={**accept, "Last-Event-ID": "4"}
    ) as stream:
        assert next(parse_frames(stream.iter_lines()))[0] == "5"
    for nonsense in ("x", "1.x", "-1", "99999999999999999999", "1 2"):
        found = run_server.client.get("/sessions/s/events", headers={**accept, "Last-Event-ID": nonsense})
        assert (found.status_code, found.json()["code"]) == (400, "invalid_argument")


def test_what_another_process_writes_is_streamed_too(run_server: RunServer) -> None:
    session = run_server.session()
    ready = threading.Event()

    def read(client: httpx2.Client) -> list[str]:
        found: list[str] = []
        with client.stream("GET", "/sessions/s/events", headers={"Accept": "text/event-stream"}) as stream:
            for _, name, _ in parse_frames(stream.iter_lines()):
                if name == "ping":
                    ready.set()
                else:
                    found.append(name)
                    if name == "state.set":
                        return found
        return found

    with run_server.new_client() as client, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, client)
        assert ready.wait(30)
        session.set_state("x", 1)  # not through the server
        assert reading.result() == ["session.created", "state.set"]


def test_a_budget_of_a_stored_agent_holds_in_sessions_without_one(run_server: RunServer) -> None:
    run_server.session()
    spec = {"id": "small", "name": "small", "provider": "echo", "budget": {"turns": 1}}
    assert run_server.client.post("/agents", json=spec).status_code == 201
    assert run_server.ask("one", "small").status_code == 200
    used_up = run_server.ask("two", "small")
    assert (used_up.status_code, used_up.json()["code"]) == (429, "budget_exceeded")


def test_the_queue_is_bounded(durable_store: Store) -> None:
    run_server = RunServer(durable_store, queue=2)
    run_server.session()
    try:
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(run_server.ask, "one", "slow")]
            assert run_server.gated_script.entered.wait(30)
            waiting.append(pool.submit(run_server.ask, "two"))
            while run_server.client.get("/sessions/s").json()["queued"] < 2:
                pass
            full = run_server.ask("three")
            assert (full.status_code, full.json()["code"]) == (429, "queue_full")
            run_server.gated_script.go.set()
            assert [each.result().status_code for each in waiting] == [200, 200]
    finally:
        run_server.close()


def test_a_server_that_stops_ends_its_streams_and_leaves_the_rest_to_another(durable_store: Store) -> None:
    one = RunServer(durable_store, drain=1)
    session = one.session()
    ends: list[str] = []

    def read(client: httpx2.Client) -> None:
        with client.stream("GET", "/sessions/s/events", headers={"Accept": "text/event-stream"}) as stream:
            ends.extend(stream.iter_lines())

    with one.new_client() as client, ThreadPoolExecutor(2) as pool:
        reading = pool.submit(read, client)
        asking = pool.submit(one.ask, "one", "slow", key="k")
        assert one.gated_script.entered.wait(30)
        one.local_server.stop()
        reading.result()
        assert [line for line in ends if line][-1].startswith("retry: ")
        left = asking.result()
        assert (left.status_code, "Retry-After" in left.headers) == (503, True)
    two = RunServer(durable_store)
    try:
        two.gated_script.go.set()
        assert two.ask("one", "slow", key="k").json()["response"] == "slowly: one"
        assert [m.text for m in session.messages] == ["one", "slowly: one"]
    finally:
        two.close()
        one.gated_script.go.set()
