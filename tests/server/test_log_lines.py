"""The log of a real server process: the tracebacks of its tools, takeovers, and nothing of what users wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.server_process import PATIENCE, ServerProcess
from tests.models.frames import Reply
from tests.models.loopback_provider import Provider, make_http_error

CANARY = "kanarienvogel"
KEY = "corporate.gateway.secret"
APP = """
import os, time
from pathlib import Path
from holdfast import Agent, ToolContext, tool
from holdfast.testing import call

@tool
def find_order(order_id: str, ctx: ToolContext) -> str:
    "Find an order."
    ctx.state.set("order", order_id)
    raise LookupError("the orders are away, key corporate.gateway.secret, token a-token-of-these-proofs-only")

@tool
def echo(text: str) -> str:
    "Echo."
    return text

@tool(idempotent=True)
def wait() -> str:
    "Wait until the file is there."
    Path("started").touch()
    while not Path("done").exists():
        time.sleep(0.01)
    return "waited"

given = {"order_id": "kanarienvogel"}
replies = [[call("find_order", given, id="c1"), call("echo", {"text": "kanarienvogel"})], "kanarienvogel"]
shop = Agent(name="shop", provider="scripted", script=replies, tools=[find_order, echo])
waiter = Agent(name="waiter", provider="scripted", script=lambda request: (
    "done" if request.messages[-1].role == "tool" else call("wait")), tools=[wait])
remote = Agent(name="remote", provider="openai", model="gpt-4o", base_url=os.environ["PROVIDER"], timeout=20,
               api_key="corporate.gateway.secret", tools=[find_order])
"""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROVIDER", f"{provider.url}/v1")
    (tmp_path / "app.py").write_text(APP)
    with ServerProcess(tmp_path / "app.py", f"sqlite:///{tmp_path}/s.db", log_level="info") as running:
        yield running


def ask(server: ServerProcess, agent: str, session: str) -> Any:
    with server.client() as client:
        client.post("/sessions", json={"id": session}).raise_for_status()
        return client.post(f"/sessions/{session}/message", json={"agent_id": agent, "message": CANARY})


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_there():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def lines(server: ServerProcess, logger: str = "holdfast") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.stderr.splitlines() if line.startswith("{")]
    return [line for line in found if line["logger"] == logger]


def test_the_traceback_of_a_tool_is_one_line(server: ServerProcess) -> None:
    answer = ask(server, "shop", "pat-12345678").json()
    (line,) = lines(server)
    names = ("level", "message", "session_id", "run_id", "tool", "call_id", "error")
    assert [line[name] for name in names] == [
        "warning",
        "tool find_order raised builtins.LookupError in session pat-12345678",
        "pat-12345678",
        answer["run_id"],
        "find_order",
        "c1",
        "builtins.LookupError",
    ]
    assert line["traceback"][0] == "Traceback (most recent call last):"
    assert any("app.py" in each and "in find_order" in each for each in line["traceback"])
    assert line["traceback"][-1].startswith("LookupError: the orders are away")
    # The client and the model get no traceback.
    (result,) = [each for each in answer["messages"] if each.get("tool_call_id") == "c1"]
    assert result["content"].startswith("LookupError: the orders are away")
    assert "Traceback" not in json.dumps(answer)
    assert CANARY in json.dumps(answer)
    assert CANARY not in server.stderr


def test_a_retry_is_a_line_without_the_words_and_the_key_of_the_provider(
    server: ServerProcess, provider: Provider
) -> None:
    provider.enqueue(make_http_error(500, message=f"{CANARY} {KEY}"), make_http_error(400, message=f"{CANARY} {KEY}"))
    assert ask(server, "remote", "s-1").status_code == 502
    (line,) = lines(server)
    assert (line["level"], line["session_id"], line["provider"], line["model"]) == ("info", "s-1", "openai", "gpt-4o")
    assert (line["attempt"], line["code"], line["status"]) == (1, "provider_unavailable", 500)
    assert CANARY not in server.stderr
    assert KEY not in server.stderr


def test_keys_and_tokens_in_a_traceback_are_removed(server: ServerProcess, provider: Provider) -> None:
    provider.enqueue(Reply(calls=[("c1", "find_order", json.dumps({"order_id": CANARY}))]))
    ask(server, "remote", "s-1").raise_for_status()
    (line,) = lines(server)
    assert line["traceback"][-1] == "LookupError: the orders are away, key [removed], token [removed]"
    assert KEY not in server.stderr
    assert "a-token-of-these-proofs-only" not in server.stderr


def test_a_server_that_goes_on_with_the_turn_of_a_dead_one_says_so(server: ServerProcess, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server, "waiter", "s-1")
        wait_for((tmp_path / "started").exists)
        server.kill()
        with pytest.raises(httpx2.TransportError):
            asked.result()
    assert lines(server) == []
    (tmp_path / "done").touch()
    server.start()
    with server.client() as client:
        wait_for(lambda: client.get("/sessions/s-1/runs").json()["runs"][0]["status"] == "finished")
        (run,) = client.get("/sessions/s-1/runs").json()["runs"]
    warning, info = lines(server)
    text = "the lease of session s-1 was taken over: its process ended, or was silent for too long"
    assert (warning["level"], warning["message"]) == ("warning", text)
    assert (info["level"], info["message"]) == ("info", "the turn of session s-1 is resumed")
    for line in (warning, info):
        assert (line["session_id"], line["run_id"]) == ("s-1", run["run_id"])
    assert CANARY not in server.stderr
