"""What people see on a terminal: whole summaries, defaults, colours only where they are wanted, completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.server.config import SETTINGS
from tests.cli.terminal import HOLDFAST, Terminal, run_command

SCRIPT = Path(sys.executable).parent / "holdfast"


@pytest.mark.parametrize("columns", ["40", "80", "200"])
@pytest.mark.parametrize("group", [[], ["keys"]])
def test_no_summary_of_a_command_is_cut(columns: str, group: list[str]) -> None:
    found = run_command(*group, "--help", env={"COLUMNS": columns})
    assert "..." not in found.stdout.split("Commands:")[1]
    for name in main.commands if not group else ("create", "list", "revoke"):
        assert re.search(rf"^  {name} ", found.stdout, re.MULTILINE), name


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_every_flag_of_a_server_shows_its_default(command: str) -> None:
    shown = " ".join(run_command(command, "--help", env={"COLUMNS": "200"}).stdout.split())
    for setting in SETTINGS:
        if setting.flag:
            about = shown.partition(f"{setting.flag} ")[2]
            assert f"default: {setting.shown.replace('`', '')}]" in about[:400], setting.flag
    assert "default: 2323]" in shown


def test_colours_are_for_terminals_and_not_for_those_who_want_none(tmp_path: Path) -> None:
    env = {"HOLDFAST_DATA": str(tmp_path / "data"), "HOLDFAST_PORT": "0", "HOLDFAST_STORE": ""}
    looks = {}
    for wanted in ("", "1"):
        terminal = Terminal("doctor", env=env | {"NO_COLOR": wanted})
        assert terminal.end() == 0
        looks[wanted] = terminal.output
    assert "\x1b[32mok" in looks[""]
    assert "\x1b" not in looks["1"]
    assert "\x1b" not in run_command("doctor", env=env).stdout
    assert looks["1"] == run_command("doctor", env=env).stdout


def test_no_bar_is_shown_where_there_is_no_terminal() -> None:
    process = subprocess.Popen(
        [*HOLDFAST, "verify", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    time.sleep(1.5)  # a bar would come after a second
    out, errors = process.communicate(b"junk")
    assert (process.returncode, out) == (2, b"")
    assert errors.startswith(b"-: line 1 is not a line of a jsonl export")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_flags(shell: str) -> None:
    def run(instruction: str, **environ: str) -> str:
        env = os.environ | {"_HOLDFAST_COMPLETE": f"{shell}_{instruction}", **environ}
        return subprocess.run([SCRIPT], capture_output=True, text=True, check=True, env=env).stdout

    assert "_HOLDFAST_COMPLETE" in run("source")
    assert "verify" in run("complete", COMP_WORDS="holdfast ver", COMP_CWORD="1" if shell != "fish" else "ver")
    words = {"COMP_WORDS": "holdfast serve --behind", "COMP_CWORD": "2" if shell != "fish" else "--behind"}
    assert "--behind-proxy" in run("complete", **words)
