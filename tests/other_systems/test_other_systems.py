"""holdfast on Windows and macOS, simulated: a process that finds only what the other system has.

The simulation is in `simulation/sitecustomize.py`, what the process does in `programs.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Client

SIMULATION = Path(__file__).parent / "simulation"
ROOT = Path(__file__).parents[2]
SYSTEMS = ["win32", "darwin"]
MCP = "mcp.client.stdio mcp.server"
SERVER = "fastapi prometheus_client uvicorn.lifespan.on uvicorn.loops.auto uvicorn.protocols.http.httptools_impl"
COMMAND_LINE = ["-c", "from holdfast.cli.main import main; main()"]


class System:
    """Processes of one simulated system."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.temporary = name, folder, tempfile.mkdtemp(dir=folder.parent)

    def environment(self, **more: str) -> dict[str, str]:
        paths = [str(SIMULATION), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return own | {
            "SIMULATED_SYSTEM": self.name,
            "PYTHONPATH": os.pathsep.join(paths),
            "TMPDIR": self.temporary,
            **more,
        }

    def run(self, *args: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment(**more))

    def start(self, *args: str | Path, **more: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, *map(str, args)], subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=self.environment(**more))

    def program(self, name: str, **more: str) -> Any:
        """The result of one of `programs.py`."""
        found = self.run("-m", "tests.other_systems.programs", name, self.folder, **more)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    return System(request.param, tmp_path)


@pytest.fixture
def windows(tmp_path: Path) -> System:
    return System("win32", tmp_path)


@pytest.fixture
def macos(tmp_path: Path) -> System:
    return System("darwin", tmp_path)


# -- the library -------------------------------------------------------------------------------------------------------


def test_every_module_is_imported_and_the_clock_counts(system: System) -> None:
    modules = len(list((ROOT / "src" / "holdfast").rglob("*.py"))) - 1  # without holdfast itself
    found = system.program("import_every_module", SIMULATED_PACKAGES=f"{MCP} {SERVER} numpy pytest")
    assert found == {"system": system.name, "modules": modules, "counts": True}


@pytest.mark.parametrize("program", ["run_turns_on_two_connections", "run_turns_in_memory"])
def test_a_turn_runs_with_a_tool(system: System, program: str) -> None:
    answer = "You ordered alice: tea."
    assert system.program(program) == [answer, answer, 8, True]


def test_the_stores_keep_their_contract(system: System) -> None:
    plain = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest", "--rootdir", system.folder)
    file = Path(__file__).with_name("contract_stores.py")
    found = system.run("-m", "pytest", *plain, file, SIMULATED_PACKAGES="pytest hypothesis pytest_asyncio.plugin")
    assert found.returncode == 0, found.stdout
    assert re.search(r"^1\d\d passed", found.stdout, re.MULTILINE), found.stdout


def test_a_turn_runs_on_postgresql(system: System, database: str) -> None:
    answer = "You ordered alice: tea."
    found = system.program("run_turns_on_postgres", DATABASE=database)
    assert found == [answer, answer, 8, True, "store_unavailable"]


def test_an_entity_and_a_memory_are_shared(system: System) -> None:
    assert system.program("use_entity_and_memory") == [[1, 2], ["Chronic migraines"]]


def test_a_turn_is_awaited(system: System) -> None:
    assert system.program("await_turn") == "Hello."


def test_an_mcp_server_is_called_and_its_last_words_are_shown(windows: System) -> None:
    assert windows.program("call_mcp_server", SIMULATED_PACKAGES=MCP) == ["5", "it said: no such option"]


def test_a_commit_reaches_the_medium(system: System) -> None:
    """The second setting has an effect on macOS only: a flush ends in the cache of the drive without it."""
    assert system.program("read_pragmas") == [2, 1]


def test_the_crash_kit_says_that_it_cannot_fork(windows: System) -> None:
    assert "run these tests on Linux or macOS" in windows.program("fork_in_the_crash_kit")


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_file_tools_work_and_stay_in_their_directory(system: System) -> None:
    found = system.program("use_file_tools")
    written, edited, read, searched, listed, *refused, searched_again = found["results"]
    assert (written, edited) == ("wrote notes/today.md, 9 bytes", "edited notes/today.md")
    assert (read, searched) == ("tea\nbread\n", "notes/today.md:2: bread")
    assert listed == "junction  (a link or a special file)\nlink.txt  (a link or a special file)\nnotes/"
    link = "it is a symbolic link, and links are not followed"
    assert [text.rpartition(": ")[2] for text in refused] == [
        *[link, link, "name the path from the working directory down", link, link, link],
    ]
    assert searched_again == "nothing matches"
    assert found["directory"] == {"win32": "CheckedDirectory", "darwin": "DescriptorDirectory"}[system.name]
    assert found["files"] == ["junction", "link.txt", "notes", "notes/today.md"]
    assert found["outside"] == ["secret.txt"]


def test_names_that_windows_reads_differently_are_refused(windows: System) -> None:
    found = windows.program("write_names_of_windows")
    assert len(found) == 10
    assert [name for name, text in found.items() if "is no plain name on Windows" not in text] == []
    assert sorted(path.name for path in windows.folder.iterdir()) == []


def test_edits_at_the_same_time_are_all_kept(windows: System) -> None:
    assert windows.program("edit_at_once") == "".join(f"({number})" for number in range(40))


# -- leases ------------------------------------------------------------------------------------------------------------


def leave_turn(system: System, **more: str) -> None:
    """A process ends inside a tool."""
    found = system.run("-m", "tests.other_systems.programs", "leave_turn", system.folder, **more)
    assert found.returncode == 3, found.stderr


def test_macos_takes_the_lease_of_a_dead_process_at_once(macos: System) -> None:
    leave_turn(macos, HOLDFAST_LEASE_SECONDS="3600")
    assert macos.program("finish_turn", HOLDFAST_LEASE_SECONDS="3600") == "booked"


def test_macos_takes_the_lease_of_another_boot_at_once(macos: System) -> None:
    leave_turn(macos, HOLDFAST_LEASE_SECONDS="3600", UPTIME="1000000")
    assert macos.program("finish_turn", BOOT="1F1E33C7-6CB3-4E15-8F62-5B2A0E0E4B0C") == "booked"


def test_windows_waits_for_the_lease_of_a_dead_process(windows: System) -> None:
    leave_turn(windows, HOLDFAST_LEASE_SECONDS="1")
    assert windows.program("finish_turn") == "booked"


@pytest.mark.parametrize(("name", "boot"), [("win32", "x"), ("darwin", "")])
def test_a_lease_ends_in_time_after_a_reboot_that_no_boot_id_shows(tmp_path: Path, name: str, boot: str) -> None:
    """The clock that counts from the boot begins again: a lease must not last until the old uptime is reached."""
    system = System(name, tmp_path)
    leave_turn(system, HOLDFAST_LEASE_SECONDS="1", UPTIME="1000000", BOOT=boot)
    assert system.program("finish_turn", BOOT=boot) == "booked"


def test_a_process_that_works_is_neither_ended_nor_robbed(system: System) -> None:
    """On Windows `os.kill(pid, 0)` would end it."""
    with system.start("-m", "tests.other_systems.programs", "hold_turn", system.folder) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "inside\n"
        assert system.program("disturb_turn") == "busy"
        out, err = holder.communicate("booked\n")
    assert (holder.returncode, out) == (0, '"booked"\n'), err


# -- the command line and the server -----------------------------------------------------------------------------------


def test_the_demo_runs_to_its_end(system: System) -> None:
    seconds = {"win32": "1", "darwin": "3600"}[system.name]
    found = system.run(*COMMAND_LINE, "demo", "--json", HOLDFAST_LEASE_SECONDS=seconds)
    assert found.returncode == 0, found.stderr
    steps = [json.loads(line)["lines"] for line in found.stdout.splitlines()]
    end = {"win32": "(killed, exit code 15)", "darwin": "(killed by SIGKILL)"}[system.name]
    assert len(steps) == 5
    assert steps[0][-1] == end
    assert end in steps[2]
    assert "cannot tell" in steps[2][-1]


@contextmanager
def serve(system: System) -> Iterator[str]:
    """`holdfast serve` on a free port; its URL."""
    settings = {"HOLDFAST_DATA": str(system.folder / "data"), "HOLDFAST_PORT": "0", "SIMULATED_PACKAGES": SERVER}
    with system.start(*COMMAND_LINE, "serve", **settings) as server:
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            found = re.search(r"holdfast serves (http://127\.0\.0\.1:\d+)", line)
            assert found is not None, line + server.stderr.read()
            yield found[1]
        finally:
            server.terminate()
            _, rest = server.communicate()
        assert server.returncode == 0, rest


def test_the_server_answers_a_message(system: System) -> None:
    with serve(system) as url:
        token = (system.folder / "data" / "token").read_text().strip()
        with Client(url, token=token) as client:
            client.agents.create(id="assistant", provider="echo")
            session = client.session("trip", agent="assistant")
            assert session.run("My name is Alice.").text == "Nice to meet you, Alice."
            streamed = "".join(event.text for event in session.stream("Who am I?") if event.type == "text_delta")
            assert streamed == "Your name is Alice."


def test_two_servers_do_not_share_a_port(windows: System) -> None:
    with serve(windows) as url:
        port = url.rpartition(":")[2]
        settings = {"HOLDFAST_DATA": str(windows.folder / "data"), "HOLDFAST_PORT": port, "SIMULATED_PACKAGES": SERVER}
        with windows.start(*COMMAND_LINE, "serve", **settings) as second:
            assert second.stderr is not None
            line = second.stderr.readline()
            if "cannot listen" not in line:
                second.terminate()
        assert f"cannot listen on 127.0.0.1:{port}" in line
        assert second.returncode == 2
        report = json.loads(windows.run(*COMMAND_LINE, "doctor", "--json", **settings).stdout)
    verdicts = {each["what"]: each["verdict"] for each in report["findings"]}
    assert verdicts["port"] != "ok"
    assert {verdicts[name] for name in ("data directory", "store", "token")} == {"ok"}


def test_keys_are_made(windows: System) -> None:
    store = f"sqlite:///{windows.folder / 'sessions.db'}"
    made = windows.run(*COMMAND_LINE, "keys", "create", "--store", store, "--json")
    assert made.returncode == 0, made.stderr
    listed = windows.run(*COMMAND_LINE, "keys", "list", "--store", store, "--json")
    assert [key["id"] for key in json.loads(listed.stdout)["keys"]] == [json.loads(made.stdout)["id"]]
