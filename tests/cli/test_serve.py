"""`holdfast serve` with something that it cannot serve: one line, no traceback, exit code 2."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.terminal import run_command

AGENT = "from holdfast import Agent\nagent = Agent(provider='echo')\n"
BAD = {
    "import": ("import nosuchpackage\n", "line 1", "No module named 'nosuchpackage'"),
    "import of a name": ("from holdfast import Agent, Nonesuch\n", "line 1", "cannot import name 'Nonesuch'"),
    "syntax": ("from holdfast import Agent\nagent = Agent(\n", "line 2", "'(' was never closed"),
    "error": (AGENT + "\n1 / 0\n", "line 4", "ZeroDivisionError: division by zero"),
    "error of ours": (
        "from holdfast import Agent\n\na = Agent(provider='opnai', model='x')\n",
        "line 3",
        "unknown provider",
    ),
    "exit": (AGENT + "raise SystemExit(0)\n", "line 3", "SystemExit"),
    "no agent": ("x = 1\n", "", "has no agents: define one"),
    "null byte": ("x = '\0'\n", "", "null bytes"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_file_that_cannot_be_loaded_is_one_clear_line(tmp_path: Path, case: str) -> None:
    code, place, reason = BAD[case]
    (tmp_path / "bad.py").write_text(code)
    for target in ("bad.py", "bad"):
        found = run_command("serve", target, "--port", "0", "--data", tmp_path / "data", cwd=tmp_path)
        assert (found.returncode, found.stdout) == (2, ""), found.stderr
        (line,) = found.stderr.splitlines()
        assert line.startswith("holdfast serve: ")
        assert "bad" in line
        assert place in line
        assert reason in line
    assert not (tmp_path / "data").exists()


def test_an_error_deep_inside_names_the_line_of_the_file_and_its_place(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("def make():\n    return {}['key']\n")
    (tmp_path / "app.py").write_text(AGENT + "from inner import make\nmake()\n")
    found = run_command("serve", "app.py", "--port", "0", "--data", tmp_path / "data", cwd=tmp_path)
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert "app.py, line 4: KeyError: 'key'" in line
    assert "python app.py" in line  # how to see the traceback


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    for target in ("missing.py", "missing", "missing:app", "a/b.py"):
        found = run_command("serve", target, "--port", "0", "--data", tmp_path / "data", cwd=tmp_path)
        assert found.returncode == 2
        assert len(found.stderr.splitlines()) == 1


def test_a_taken_port_is_one_clear_line_that_says_how_to_get_a_free_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = run_command("serve", "--port", str(port), "--data", tmp_path / "data")
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "--port 0" in line
