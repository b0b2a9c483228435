"""`holdfast sweep`: the store that a server would use, and a bar while it works."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from holdfast import Message, Session
from holdfast.stores import SQLiteStore
from holdfast.worker.sweep import sweep
from tests.cli.terminal import Terminal, run_command

SOON = 1 / 86_400_000  # of a day: a millisecond


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A user whose server has a session that is due."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with SQLiteStore(data / "sessions.db") as store:
        for name in ("old", "older"):
            Session(name, store=store, retention={"ttl_days": SOON}).add_message(Message.user("hello"))
    return {"HOLDFAST_DATA": str(data), "HOLDFAST_STORE": ""}


def test_without_a_store_it_sweeps_the_one_a_server_would_use(home: dict[str, str]) -> None:
    found = run_command("sweep", "--dry-run", env=home)
    assert (found.returncode, found.stdout.splitlines()[-1]) == (
        0,
        "2 looked at, 0 would be archived, 2 would be purged",
    )
    done = json.loads(run_command("sweep", "--json", env=home).stdout)
    assert sorted(each["id"] for each in done["sessions"] if each["act"] == "purged") == ["old", "older"]
    with SQLiteStore(Path(home["HOLDFAST_DATA"]) / "sessions.db") as store:
        assert store.list_sessions() == []


def test_it_makes_no_store_and_takes_none_in_memory(tmp_path: Path) -> None:
    env = {"HOLDFAST_DATA": str(tmp_path / "data"), "HOLDFAST_STORE": ""}
    found = run_command("sweep", env=env)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (
        f"holdfast sweep: {tmp_path / 'data' / 'sessions.db'} does not exist: "
        "give --store, e.g. sqlite:///sessions.db\n"
    )
    for url in ("memory:", "nonsense:", "sqlite:///missing.db"):
        found = run_command("sweep", "--json", "--store", url, env=env, cwd=tmp_path)
        assert (found.returncode, found.stderr) == (2, ""), url
        assert json.loads(found.stdout)["code"] == "invalid_argument"
    assert list(tmp_path.iterdir()) == []


def test_a_bar_on_a_terminal_shows_that_it_works(home: dict[str, str]) -> None:
    database = apsw.Connection(str(Path(home["HOLDFAST_DATA"]) / "sessions.db"))
    database.execute("BEGIN IMMEDIATE")  # the sweep has to wait for this writer
    terminal = Terminal("sweep", env=home)
    terminal.wait_for_error_text("sweeping")
    database.execute("ROLLBACK")
    database.close()
    assert terminal.end() == 0, terminal.errors
    assert terminal.output.endswith("2 looked at, 0 archived, 2 purged\n")


def test_a_dry_run_says_how_far_it_is(home: dict[str, str]) -> None:
    looked: list[int] = []
    with SQLiteStore(Path(home["HOLDFAST_DATA"]) / "sessions.db") as store:
        sweep(store, dry_run=True, batch=1, on_batch=lambda report: looked.append(report.looked))
    assert looked == [1, 2]
