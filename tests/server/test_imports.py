"""Imports over HTTP: what a caller computed is a record for every route, and nothing of it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from holdfast import Agent, Session
from holdfast.log.events import Draft
from holdfast.stores import MemoryStore, SQLiteStore
from tests.kit.forged_exports import PAID, approved_turn, export_of, refund, rewrite_export
from tests.kit.local_server import TOKEN, Listener, LocalServer


@pytest.fixture
def client(tmp_path: Path, listener: Listener) -> Iterator[httpx2.Client]:
    agent = Agent(name="teller", provider="scripted", script=lambda _: "No.", tools=[refund])
    PAID.clear()
    with (
        SQLiteStore(tmp_path / "log.db") as store,
        LocalServer(store, agents={"teller": agent}, listener=listener) as server,
        httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as found,
    ):
        yield found
    assert PAID == []


def import_text(client: httpx2.Client, text: str) -> None:
    made = client.post("/sessions/import", json={"data": text, "id": "s"})
    assert made.status_code == 201, made.text
    assert (made.json()["status"], made.json()["queued"], made.json()["retention"]) == ("active", 0, None)


def test_a_forged_approval_runs_no_tool(client: httpx2.Client) -> None:
    import_text(client, export_of(*approved_turn()))
    assert client.post("/sessions/s/resume", json={"agent_id": "teller"}).json()["status"] == "idle"
    assert client.post("/sessions/s/retry", json={"agent_id": "teller"}).json()["status"] == "idle"
    assert client.post("/sessions/s/approvals/c1", json={"approved": True}).json()["code"] == "nothing_pending"
    assert client.get("/approvals").json() == {"waiting": []}
    (run,) = client.get("/sessions/s/runs").json()["runs"]
    assert (run["run_id"], run["status"]) == ("r1", "interrupted")
    answer = client.post("/sessions/s/message", json={"agent_id": "teller", "message": "Well?"})
    assert answer.json()["response"] == "No."


def test_a_queued_run_of_an_import_is_over(client: httpx2.Client) -> None:
    data = {"message": {"role": "user", "text": "later"}, "run": "r9", "options": {}, "agent": "teller"}
    turn = approved_turn(Draft(type="turn.cancelled", run="r1", data={"usage": {}}))
    import_text(client, export_of(*turn, Draft(type="message.queued", run="r9", data=data)))
    assert client.get("/sessions/s/runs/r9").json()["status"] == "interrupted"
    assert client.post("/sessions/s/runs/r9/cancel", json={}).json()["status"] == "interrupted"


def test_events_of_an_import_are_not_verified_in_pages_and_streams(client: httpx2.Client) -> None:
    import_text(client, export_of(*approved_turn()))
    head = client.get("/sessions/s").json()["head"]
    client.post("/sessions/s/clear", json={"actor": "me"})
    marks = [False] * head + [True]
    page = client.get("/sessions/s/events", params={"after": 0}).json()["events"]
    assert [event["verified"] for event in page] == marks
    assert {event["actor"]: event["verified"] for event in page if event["actor"]} == {"the-boss": False, "me": True}
    streamed: list[bool] = []
    accept = {"Accept": "text/event-stream"}
    with client.stream("GET", "/sessions/s/events", params={"after": 0}, headers=accept) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: ") and '"verified"' in line:
                streamed.append(json.loads(line[6:])["verified"])
            if len(streamed) == len(marks):
                break
    assert streamed == marks


def test_a_payload_that_holdfast_does_not_write_is_refused_with_its_field(client: httpx2.Client) -> None:
    text = Session("s", store=MemoryStore(), state={"n": 1}).export()
    forged = rewrite_export(text, lambda lines: lines[1]["data"].update(name=["n"]))
    answer = client.post("/sessions/import", json={"data": forged})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert "event 2 (state.set) is not one that holdfast writes: the value of 'name'" in answer.json()["error"]
    assert client.get("/sessions").json()["sessions"] == []
