"""A real MCP server process, called from blocking and from async code, and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import InvalidArgument, MCPFailed, MissingExtra
from holdfast.tools.mcp import MCPServer
from holdfast.tools.tool import ToolContext, as_tools

COMMAND = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


@pytest.fixture(scope="module")
def server() -> Iterator[MCPServer]:
    with MCPServer(command=COMMAND) as found:
        yield found


def test_its_tools_are_listed_as_the_server_has_them(server: MCPServer) -> None:
    found = {tool.name: tool for tool in as_tools([server])}
    assert list(found) == ["add", "pid", "env_names", "fail", "die", "wait", "picture"]
    add = found["add"]
    assert add.description == "Add two numbers."
    assert add.parameters["properties"]["a"] == {"title": "A", "type": "integer"}
    assert add.parameters["required"] == ["a", "b"]
    assert add.is_async
    assert (add.idempotent, found["pid"].idempotent) == (False, True)


async def test_a_listed_tool_calls_the_server(server: MCPServer) -> None:
    found = {tool.name: tool for tool in server.tools()}
    assert await found["add"].start(found["add"].validate('{"a": 2, "b": 3}'), ToolContext()) == "5"
    assert "PATH" in await found["env_names"].start({}, ToolContext())


def test_it_is_called_from_blocking_code_and_from_many_threads(server: MCPServer) -> None:
    assert server.call("add", {"a": 1, "b": 2}) == "3"
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda n: server.call("add", {"a": n, "b": n}), range(40)))
    assert sums == [str(2 * n) for n in range(40)]


async def test_it_is_called_from_async_code_also_at_once(server: MCPServer) -> None:
    sums = await asyncio.gather(*(server.call_async("add", {"a": n, "b": 1}) for n in range(20)))
    assert sums == [str(n + 1) for n in range(20)]
    assert server.call("add", {"a": 1, "b": 1}) == "2"  # a blocking call inside a running loop


def test_failures_of_a_tool_are_reported_and_harm_nothing(server: MCPServer) -> None:
    before = server.call("pid", {})
    for name, arguments, text in [
        ("fail", {}, "Error executing tool fail"),
        ("add", {"a": "x", "b": 1}, "should be a valid integer"),
        ("nothing", {}, "Unknown tool: nothing"),
    ]:
        with pytest.raises(MCPFailed, match=text):
            server.call(name, arguments)
    assert server.call("pid", {}) == before


def test_what_is_no_text_is_named(server: MCPServer) -> None:
    assert server.call("picture", {}) == "here it is\n[image, image/png: left out]"


def test_a_server_that_dies_in_a_call_fails_it_and_is_started_by_the_next(server: MCPServer) -> None:
    first = server.call("pid", {})
    with pytest.raises(MCPFailed, match="ended during the call: the call may or may not have taken effect"):
        server.call("die", {})
    assert server.call("pid", {}) != first


def test_a_server_killed_between_calls_is_started_again(server: MCPServer) -> None:
    first = server.call("pid", {})
    os.kill(int(first), signal.SIGKILL)
    wait_for_process_end(first)
    try:
        second = server.call("pid", {})
    except MCPFailed:  # that its process is gone was not seen yet
        second = server.call("pid", {})
    assert second != first


async def test_a_server_killed_in_the_middle_of_a_call_fails_that_call(server: MCPServer, tmp_path: Path) -> None:
    process = int(await server.call_async("pid", {}))
    waiting = asyncio.create_task(server.call_async("wait", {"path": str(tmp_path / "here")}))
    await wait_for_file(tmp_path / "here")
    os.kill(process, signal.SIGKILL)
    with pytest.raises(MCPFailed, match="ended during the call"):
        await waiting
    assert await server.call_async("add", {"a": 1, "b": 1}) == "2"


async def test_cancelling_a_call_notifies_the_server(server: MCPServer, tmp_path: Path) -> None:
    waiting = asyncio.create_task(server.call_async("wait", {"path": str(tmp_path / "here")}))
    await wait_for_file(tmp_path / "here")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await wait_for_file(tmp_path / "here.cancelled")
    assert await server.call_async("add", {"a": 1, "b": 1}) == "2"


def test_a_call_without_an_answer_ends(server: MCPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.call("pid", {})  # started, so that only the call is in a hurry
    with monkeypatch.context() as patch:
        patch.setattr(server, "timeout", 0.05)
        with pytest.raises(MCPFailed, match="gave no answer in time: the call may or may not have taken effect"):
            server.call("wait", {"path": str(tmp_path / "here")})
    assert server.call("add", {"a": 1, "b": 1}) == "2"


async def wait_for_file(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


def wait_for_process_end(process: str) -> None:
    while Path("/proc", process).exists():
        time.sleep(0.01)


def test_closing_ends_the_process_and_calls_under_way(tmp_path: Path) -> None:
    server = MCPServer(command=COMMAND)
    process = server.call("pid", {})
    failures: list[BaseException] = []

    def call() -> None:
        try:
            server.call("wait", {"path": str(tmp_path / "here")})
        except MCPFailed as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    asyncio.run(wait_for_file(tmp_path / "here"))
    server.close()
    caller.join()
    assert not Path("/proc", process).exists()
    assert "ended during the call" in str(failures[0])
    server.close()
    assert server.call("add", {"a": 1, "b": 1}) == "2"  # it may be used again
    server.close()


def test_a_forgotten_server_ends_with_its_owner() -> None:
    server = MCPServer(command=COMMAND)
    process = server.call("pid", {})
    del server
    wait_for_process_end(process)
    script = f"from holdfast.tools.mcp import MCPServer\nprint(MCPServer(command={COMMAND!r}).call('pid', {{}}))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    wait_for_process_end(done.stdout.strip())


def test_only_a_small_part_of_the_environment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    with MCPServer(command=COMMAND, env={"GIVEN": "1"}) as server:
        names = server.call("env.names", {}).split()
    assert {"PATH", "LANG", "GIVEN"} <= set(names)
    assert not {"OPENAI_API_KEY", "HOLDFAST_TOKEN"} & set(names)


def test_a_server_that_cannot_start_says_why_without_its_secrets() -> None:
    broken = MCPServer(command=[*COMMAND, "broken"], env={"PASSWORD": "hunter22"})
    for _ in range(2):
        with pytest.raises(MCPFailed, match=r"could not be started: .*cannot find the database, password \*\*\*"):
            broken.tools()
    broken.close()
    with MCPServer(command=["/nowhere/server"]) as missing, pytest.raises(MCPFailed, match="No such file or directory"):
        missing.call("add", {})
    with (
        MCPServer(command=["sleep", "1000"], timeout=0.2) as slow,
        pytest.raises(MCPFailed, match=r"not ready after 0\.2 s"),
    ):
        slow.call("add", {})


def test_a_command_is_a_list() -> None:
    for command in ("uvx server", ()):
        with pytest.raises(InvalidArgument, match="as a list"):
            MCPServer(command=command)


def test_without_the_library_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"MCP servers needs an optional part: pip install 'holdfast\[mcp\]'"):
        MCPServer(command=COMMAND).tools()
