"""`holdfast verify`: several files, standard input, and words for what is no export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Message, Session
from holdfast.stores import MemoryStore, SQLiteStore
from tests.cli.terminal import Terminal, run_command


def export(messages: int) -> str:
    session = Session("s", store=MemoryStore())
    session.add_messages([Message.user(f"hello {number}") for number in range(messages)])
    return session.export()


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    file = tmp_path / "s.jsonl"
    file.write_text(export(1))
    return file


def verdicts(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_it_checks_a_file_without_a_database(exported: Path) -> None:
    found = run_command("verify", exported)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{exported}: 2 events, chain holds\n", "")


def test_it_counts_one_event_as_one_event(tmp_path: Path) -> None:
    alone = tmp_path / "alone.jsonl"
    alone.write_text(Session("s", store=MemoryStore()).export())
    assert run_command("verify", alone).stdout == f"{alone}: 1 event, chain holds\n"
    for number, text in enumerate(("the first event holds", "the first 2 events hold"), 2):
        forged = tmp_path / f"{number}.jsonl"
        forged.write_text(export(3).replace(f"hello {number - 2}", "other"))
        found = run_command("verify", forged)
        assert (found.returncode, found.stdout) == (1, f"{forged}: event {number} was altered; {text}\n")
    forged.write_text(export(1).replace('"at":', '"at":1'))
    assert run_command("verify", forged).stdout == f"{forged}: event 1 was altered\n"


def test_a_cut_file_does_not_verify(tmp_path: Path) -> None:
    text, file = export(3), tmp_path / "cut.jsonl"
    file.write_text("".join(text.splitlines(keepends=True)[:2]))
    found = run_command("verify", file)
    assert (found.returncode, found.stdout) == (
        1,
        f"{file}: 4 events were written, 2 found; the first 2 events hold\n",
    )
    file.write_text(text[:-20])
    found = run_command("verify", file)
    assert (found.returncode, "line 4 is cut off" in found.stdout) == (1, True)


def test_it_says_that_the_end_of_an_older_export_is_not_proven(exported: Path) -> None:
    lines = exported.read_text().splitlines()
    first = json.loads(lines[0])
    del first["log"]["head"], first["log"]["hash"]
    exported.write_text("\n".join([json.dumps(first), *lines[1:]]))
    found = run_command("verify", exported)
    assert (found.returncode, found.stderr) == (0, "")
    assert "2 events, chain holds; the end is not proven" in found.stdout
    (verdict,) = verdicts(run_command("verify", exported, "--json").stdout)
    assert (verdict["ok"], verdict["end_proven"]) == (True, False)


def test_scripts_get_one_line_of_json_for_each_file_also_for_an_error(exported: Path, tmp_path: Path) -> None:
    forged, junk, missing = tmp_path / "forged.jsonl", tmp_path / "junk", tmp_path / "missing"
    forged.write_text(exported.read_text().replace("hello", "hullo"))
    junk.write_text("no export")
    found = run_command("verify", exported, forged, junk, missing, tmp_path, "--json")
    good, bad, *errors = verdicts(found.stdout)
    keys = {"events", "first_bad", "why", "end_proven", "signed_by", "signature_checked", "is_receipt"}
    unsigned = {"signed_by": None, "signature_checked": False, "is_receipt": False}
    assert found.returncode == 2
    holds = {"ok": True, "events": 2, "first_bad": None, "why": None, "end_proven": True}
    assert good == {"file": str(exported)} | holds | unsigned
    assert bad == good | {
        "file": str(forged),
        "ok": False,
        "events": 1,
        "first_bad": 2,
        "why": "event 2 was altered",
    }
    assert [(error["file"], error["ok"]) for error in errors] == [
        (str(each), False) for each in (junk, missing, tmp_path)
    ]
    for error in errors:
        assert {*error} == {"file", "ok", *keys}
        assert error["why"]
        assert "(" not in error["why"].split(":")[0]
    assert "NotJSON" not in found.stdout + found.stderr
    assert run_command("verify", exported, forged, "--json").returncode == 1


def test_people_get_one_line_for_each_file(exported: Path, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"\xff\xfe\x00")
    found = run_command("verify", exported, junk, tmp_path / "missing")
    assert found.returncode == 2
    assert found.stdout == f"{exported}: 2 events, chain holds\n"
    about_junk, about_missing = found.stderr.splitlines()
    assert about_junk.startswith(f"{junk}: line 1 is not a line of a jsonl export: not valid UTF-8")
    assert about_missing == f"{tmp_path / 'missing'}: No such file or directory"


def test_it_reads_standard_input(exported: Path) -> None:
    found = run_command("verify", "-", stdin=exported.read_bytes())
    assert (found.returncode, found.stdout) == (0, "-: 2 events, chain holds\n")
    found = run_command("verify", "-", "--json", stdin=b"junk")
    assert (found.returncode, verdicts(found.stdout)[0]["file"]) == (2, "-")


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_it_knows_a_database_and_says_how_to_export_a_session(tmp_path: Path, way: str) -> None:
    file = tmp_path / "s.db"
    with SQLiteStore(file) as store:
        Session("s", store=store).add_message(Message.user("hello"))
    found = run_command("verify", file) if way == "file" else run_command("verify", "-", stdin=file.read_bytes())
    assert (found.returncode, found.stdout) == (2, "")
    assert "is a SQLite database, not an export" in found.stderr
    command = found.stderr.partition("To export a session: ")[2].strip()
    assert command.startswith("python -c ")
    if way == "file":  # what it says to do works
        import subprocess

        shell = command.replace("'ID'", "'s'").replace("> session.jsonl", "")
        text = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
        assert run_command("verify", "-", stdin=text.encode()).returncode == 0


def test_a_bar_on_a_terminal_shows_how_far_it_is_after_a_second() -> None:
    first, second = export(9).encode().split(b"\n", 1)
    terminal = Terminal("verify", "-")
    terminal.write(first + b"\n")
    terminal.wait_for_error_text("verifying -")  # the input stays open until the bar is there
    terminal.write(second)
    assert terminal.end() == 0
    assert terminal.output == "-: 10 events, chain holds\n"


def test_an_interrupted_check_is_no_verdict() -> None:
    terminal = Terminal("verify", "-")
    terminal.wait_for_error_text("verifying -")
    terminal.interrupt()
    assert terminal.process.wait() == 130
    assert "Traceback" not in terminal.errors
    assert terminal.end() == 130
