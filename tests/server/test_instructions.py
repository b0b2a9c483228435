"""Instructions functions of agents from an app file, at a real server process."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.server_process import PATIENCE, RawConnection, ServerProcess

APP = '''
import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import Agent, tool
from holdfast.testing import call

HERE = Path(__file__).parent


@tool(idempotent=True)
def wait() -> str:
    """Wait until the test says so."""
    (HERE / "waits").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return "went"


def reply(request):
    asked = any(message.role == "tool" for message in request.messages)
    return request.system_texts[0] if asked or not request.tools else call("wait")


async def describe(session):
    return f"{session.id} of process {os.getpid()} {{name}}"


def fail(session):
    raise LookupError("a secret of the program")


guide = Agent(provider="scripted", script=reply, instructions=describe)
slow = Agent(provider="scripted", script=reply, instructions=describe, tools=[wait])
broken = Agent(provider="scripted", script=reply, instructions=fail)
'''


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def test_an_app_file_may_have_instructions_functions(app: Path, tmp_path: Path) -> None:
    with ServerProcess(app, f"sqlite:///{tmp_path}/sessions.db") as server, server.client() as client:
        text = f"s of process {server.pid} {{name}}"
        assert client.post("/sessions", json={"id": "s"}).status_code == 201
        answer = client.post("/sessions/s/message", json={"agent_id": "guide", "message": "hi"})
        assert answer.json()["response"] == text
        parts = client.get("/sessions/s/context", params={"agent_id": "guide"}).json()["parts"]
        assert (parts[0]["kind"], parts[0]["text"]) == ("instructions", text)
        shown = {each["id"]: each["instructions"] for each in client.get("/agents").json()["agents"]}
        assert shown == {"guide": None, "slow": None, "broken": None}  # a function is no text
        refused = client.post("/sessions/s/message", json={"agent_id": "broken", "message": "hi"})
        assert (refused.status_code, refused.json()["code"]) == (500, "instructions_failed")
        assert "'fail'" in refused.json()["error"]
        assert "secret" not in refused.text
        assert "LookupError" in server.stderr  # the operator reads where, and the log holds no text of an error
        assert re.search(rf"{app}:\d+ fail", server.stderr)
        stored = client.post("/agents", json={"id": "x", "provider": "echo", "instructions": {"function": "describe"}})
        assert stored.status_code == 400


def test_a_server_that_takes_a_turn_over_sends_the_same_instructions(app: Path, tmp_path: Path) -> None:
    with ServerProcess(app, f"sqlite:///{tmp_path}/sessions.db", lease_seconds=2) as server, server.client() as client:
        client.post("/sessions", json={"id": "s"})
        first = server.pid
        request = RawConnection(server.port, "POST", "/sessions/s/message", body={"agent_id": "slow", "message": "hi"})
        request.send()
        wait_for(lambda: (tmp_path / "waits").exists())
        server.kill()
        request.close()
        (tmp_path / "go").touch()
        server.start()
        wait_for(lambda: client.get("/sessions/s/runs").json()["runs"][0]["status"] == "finished")
        assert server.pid != first
        messages = client.get("/sessions/s/history").json()["messages"]
        assert messages[-1]["content"] == f"s of process {first} {{name}}"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
