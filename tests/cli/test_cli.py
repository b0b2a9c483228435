"""The commands, run as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Message, Session
from holdfast.stores import MemoryStore, SQLiteStore


def run_command(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from holdfast.cli.main import main; main()", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_tells_its_story_and_leaves_a_real_database(tmp_path: Path) -> None:
    found = run_command("demo", "--json", "--keep", tmp_path / "kept.db")
    assert found.returncode == 0, found.stderr
    steps = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(steps) == 5
    assert steps[0]["lines"][-1] == "(killed by SIGKILL)"
    assert "user: My name is Alice." in steps[1]["lines"]
    assert not any("never finished" in line for line in steps[1]["lines"])
    assert "(killed by SIGKILL)" in steps[2]["lines"]
    assert "here: 'Book me a train to Bremen.' is unfinished, unknown: ['book']" in steps[2]["lines"]
    assert steps[2]["lines"].count("booking the 9:04 to Bremen …") == 1
    assert "cannot tell" in steps[2]["lines"][-1]
    assert "was altered" in steps[4]["lines"][-1]
    with SQLiteStore(tmp_path / "kept.db") as store:
        assert Session.open("demo", store=store).verify()


def test_the_demo_reads_well_on_a_terminal() -> None:
    found = run_command("demo")
    assert found.returncode == 0
    assert "1. A process keeps a conversation, and is killed while it writes." in found.stdout


@pytest.fixture
def exported_file(tmp_path: Path) -> Path:
    session = Session("s", store=MemoryStore())
    session.add_message(Message.user("hello"))
    file = tmp_path / "s.jsonl"
    file.write_text(session.export())
    return file


def test_verify_checks_a_file_without_a_database(exported_file: Path) -> None:
    found = run_command("verify", exported_file)
    assert (found.returncode, found.stdout) == (0, f"{exported_file}: 2 events, chain holds\n")


def test_verify_tells_a_script_by_its_exit_code(exported_file: Path) -> None:
    exported_file.write_text(exported_file.read_text().replace("hello", "hullo"))
    found = run_command("verify", exported_file, "--json")
    assert found.returncode == 1
    assert json.loads(found.stdout) == {"ok": False, "events": 1, "first_bad": 2, "why": "event 2 was altered"}
    exported_file.write_text("no export")
    found = run_command("verify", exported_file)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
