"""Ctrl-C at `holdfast serve`, with a real process: exit code 0, no traceback, and no turn is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.kit.server_process import PATIENCE, ServerProcess

APP = """
import time
from pathlib import Path
from holdfast import Agent, tool
from holdfast.testing import call

@tool(idempotent=True)
def wait() -> str:
    "Wait until the file is there."
    Path("started").touch()
    while not Path("done").exists():
        time.sleep(0.01)
    return "waited"

waiter = Agent(name="waiter", provider="scripted", script=lambda request: (
    "done" if request.messages[-1].role == "tool" else call("wait")), tools=[wait])
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    store = f"sqlite:///{tmp_path}/s.db"
    with ServerProcess(tmp_path / "app.py", store, log_level="info", drain=60) as running:
        yield running


def ask(server: ServerProcess) -> httpx2.Response:
    with server.client() as client:
        client.post("/sessions", json={"id": "s-1"}).raise_for_status()
        return client.post("/sessions/s-1/message", json={"agent_id": "waiter", "message": "go"})


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_there():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def assert_clean_end(server: ServerProcess) -> None:
    assert server.wait() == 0
    for word in ("Traceback", "CancelledError", "KeyboardInterrupt", "Aborted", '"error"'):
        assert word not in server.stderr, server.stderr


def test_ends_a_server_without_work(server: ServerProcess) -> None:
    server.signal(signal.SIGINT)
    assert_clean_end(server)


def test_ends_a_server_with_an_open_stream(server: ServerProcess) -> None:
    with server.client() as client:
        client.post("/sessions", json={"id": "s-1"}).raise_for_status()
        with client.stream("GET", "/sessions/s-1/events", headers={"Accept": "text/event-stream"}) as stream:
            received = stream.iter_text()
            next(received)
            server.signal(signal.SIGINT)
            for _ in received:
                pass
    assert_clean_end(server)


def test_lets_a_running_turn_finish(server: ServerProcess, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server)
        wait_for((tmp_path / "started").exists)
        server.signal(signal.SIGINT)
        wait_for(lambda: "Waiting for connections to close" in server.stderr)
        (tmp_path / "done").touch()
        assert asked.result().json()["response"] == "done"
    assert_clean_end(server)


def test_twice_gives_a_running_turn_back(server: ServerProcess, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server)
        wait_for((tmp_path / "started").exists)
        server.signal(signal.SIGINT)
        wait_for(lambda: "Waiting for connections to close" in server.stderr)
        server.signal(signal.SIGINT)
        assert asked.result().status_code == 503
    assert_clean_end(server)
    assert "runs were given back" in server.stderr
    (tmp_path / "done").touch()
    server.start()
    with server.client() as client:
        wait_for(lambda: client.get("/sessions/s-1/runs").json()["runs"][0]["status"] == "finished")


def test_many_times_ends_it_as_well(server: ServerProcess) -> None:
    for _ in range(200):
        server.signal(signal.SIGINT)
        if server.wait(0.01) is not None:
            break
    assert_clean_end(server)


def test_before_it_serves_ends_it_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("import time\nopen('loading', 'w').close()\ntime.sleep(600)\n")
    server = ServerProcess(tmp_path / "app.py", f"sqlite:///{tmp_path}/s.db")
    try:
        server.launch()
        wait_for((tmp_path / "loading").exists)
        server.signal(signal.SIGINT)
        assert_clean_end(server)
    finally:
        server.__exit__()
