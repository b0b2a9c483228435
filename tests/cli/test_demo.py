"""`holdfast demo`: what it shows really happens, and it writes into no file that exists."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast import Session
from holdfast.stores import SQLiteStore
from tests.cli.terminal import run_command


def test_it_shows_what_really_happens_and_leaves_a_real_database(tmp_path: Path) -> None:
    found = run_command("demo", "--json", "--keep", tmp_path / "kept.db")
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
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
    cut, forged = steps[4]["lines"][-2:]
    assert "events were written" in cut
    assert "was altered" in forged
    with SQLiteStore(tmp_path / "kept.db") as store:
        assert Session.open("demo", store=store).verify()
    assert run_command("verify", tmp_path / "kept.jsonl").returncode == 0


def test_it_reads_well_on_a_terminal() -> None:
    found = run_command("demo")
    assert found.returncode == 0
    assert "1. A process keeps a conversation, and is killed while it writes." in found.stdout


def test_it_writes_into_no_file_that_exists_and_says_what_to_do(tmp_path: Path) -> None:
    for name in ("kept.db", "other.jsonl"):
        (tmp_path / name).write_text("mine")
    for keep, exists in (("kept.db", "kept.db"), ("other.db", "other.jsonl")):
        found = run_command("demo", "--keep", tmp_path / keep)
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr == (
            f"holdfast demo: {tmp_path / exists} exists already: give --keep another name, or remove the file first\n"
        )
        assert (tmp_path / exists).read_text() == "mine"
    found = run_command("demo", "--json", "--keep", tmp_path / "missing" / "x.db")
    assert (found.returncode, found.stderr) == (2, "")
    assert "is no folder that can be written" in json.loads(found.stdout)["error"]
