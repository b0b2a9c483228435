"""`holdfast backup` and `holdfast restore`: a copy beside a running server, and a store from it that verifies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw
import pytest

from holdfast import Message, Session
from holdfast.stores import SQLiteStore
from tests.cli.terminal import run_command
from tests.kit.postgres import PostgresServer

KEY = "ab" * 32


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A user whose server has sessions of two tenants, and a store that is in use."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with SQLiteStore(data / "sessions.db") as store:
        Session("a", store=store, user_id="alice").add_message(Message.user("the first"))
        Session("a", store=store, user_id="alice").set_state("language", "English", scope="user")
        Session("b", store=store.for_tenant("acme")).add_message(Message.user("the second"))
    return {"HOLDFAST_DATA": str(data), "HOLDFAST_STORE": "", "HOLDFAST_KEY": ""}


def test_a_copy_of_a_store_in_use_becomes_a_store_again(env: dict[str, str], tmp_path: Path) -> None:
    copy, again = tmp_path / "copy.db", tmp_path / "again.db"
    with SQLiteStore(Path(env["HOLDFAST_DATA"]) / "sessions.db") as live:
        found = run_command("backup", copy, "--json", env=env)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout) == {"file": str(copy), "bytes": copy.stat().st_size}
        Session.open("a", store=live).add_message(Message.user("after the copy"))
    assert copy.stat().st_mode & 0o777 == 0o600
    found = run_command("restore", copy, "--store", f"sqlite:///{again}", env=env)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == f"{again}: 3 logs verified\n"
    assert again.stat().st_mode & 0o777 == 0o600
    with SQLiteStore(again) as store:
        session = Session.open("a", store=store)
        assert [message.text for message in session.messages] == ["the first"]
        assert session.get_state("language", scope="user") == "English"
        assert Session.open("b", store=store.for_tenant("acme")).verify()
        session.add_message(Message.user("goes on"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again.db", "copy.db", "data"]


def test_without_a_store_the_one_of_a_server_is_restored(env: dict[str, str], tmp_path: Path) -> None:
    assert run_command("backup", tmp_path / "copy.db", env=env).returncode == 0
    lost = Path(env["HOLDFAST_DATA"])
    shutil.rmtree(lost)
    done = json.loads(run_command("restore", tmp_path / "copy.db", "--json", env=env).stdout)
    assert (done["ok"], done["verified"], done["store"]) == (True, 3, str(lost / "sessions.db"))
    assert lost.stat().st_mode & 0o777 == 0o700
    with SQLiteStore(lost / "sessions.db") as store:
        assert Session.open("a", store=store).verify()


def test_a_store_that_exists_is_never_replaced(env: dict[str, str], tmp_path: Path) -> None:
    copy, live = tmp_path / "copy.db", Path(env["HOLDFAST_DATA"]) / "sessions.db"
    assert run_command("backup", copy, env=env).returncode == 0
    again = run_command("backup", copy, env=env)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    with SQLiteStore(live) as store:
        for _ in range(2):
            refused = run_command("restore", copy, env=env)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert f"{live} exists already" in refused.stderr
            live.chmod(0o600)
        Session.open("a", store=store).add_message(Message.user("the server goes on"))
    live.unlink()
    Path(f"{live}-wal").write_bytes(b"left behind")
    refused = run_command("restore", copy, env=env)
    assert (refused.returncode, "sessions.db-wal exists already" in refused.stderr) == (2, True)
    assert not live.exists()


def test_what_is_no_copy_is_refused_and_leaves_nothing(env: dict[str, str], tmp_path: Path) -> None:
    other, newer, text = tmp_path / "other.db", tmp_path / "newer.db", tmp_path / "text.db"
    db = apsw.Connection(str(other))
    db.execute("CREATE TABLE t(a)")
    db.close()
    assert run_command("backup", newer, env=env).returncode == 0
    db = apsw.Connection(str(newer))
    db.execute("INSERT INTO migrations VALUES(999, 'later', 'x')")
    db.close()
    text.write_text("no database at all " * 1000)
    there = sorted(tmp_path.iterdir())
    for file, reason in (
        (other, "is no database of holdfast"),
        (newer, "upgrade holdfast"),
        (text, "is no SQLite database"),
        (tmp_path / "missing.db", "does not exist"),
    ):
        found = run_command("restore", file, "--store", f"sqlite:///{tmp_path / 'new.db'}", "--json", env=env)
        assert found.returncode == 2, found.stdout
        assert reason in json.loads(found.stdout)["error"]
        assert sorted(tmp_path.iterdir()) == there


def test_a_copy_with_an_altered_event_is_not_restored(env: dict[str, str], tmp_path: Path) -> None:
    copy, target = tmp_path / "copy.db", tmp_path / "new.db"
    assert run_command("backup", copy, env=env).returncode == 0
    db = apsw.Connection(str(copy))
    db.execute("UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'second', 'sceond') AS BLOB)")
    db.close()
    flags = ("restore", copy, "--store", f"sqlite:///{target}")
    found = run_command(*flags, env=env)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("session 'b': event 2 was altered\n")
    done = json.loads(run_command(*flags, "--json", env=env).stdout)
    assert (done["ok"], done["damages"]) == (
        False,
        [{"kind": "session", "id": "b", "reason": "event 2 was altered"}],
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "data"]
    assert run_command(*flags, "--skip-verify", env=env).returncode == 0
    assert target.exists()


def test_a_copy_with_a_damaged_page_is_not_restored_even_unverified(env: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with SQLiteStore(Path(env["HOLDFAST_DATA"]) / "sessions.db") as store:
        Session("long", store=store).add_messages([Message.user("x" * 3000) for _ in range(300)])
    assert run_command("backup", copy, env=env).returncode == 0
    data = bytearray(copy.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20_000] = bytes(20_000)
    copy.write_bytes(data)
    found = run_command("restore", copy, "--store", f"sqlite:///{tmp_path / 'new.db'}", "--skip-verify", env=env)
    assert (found.returncode, "is damaged" in found.stderr) == (2, True)
    assert not (tmp_path / "new.db").exists()


def test_an_encrypted_store_stays_encrypted(env: dict[str, str], tmp_path: Path) -> None:
    env |= {"HOLDFAST_KEY": KEY, "HOLDFAST_STORE": f"sqlite:///{tmp_path / 'vault.db'}"}
    with SQLiteStore(tmp_path / "vault.db", key=KEY) as store:
        Session("a", store=store).add_message(Message.user("a planted secret"))
    assert run_command("backup", tmp_path / "copy.db", env=env).returncode == 0
    assert b"planted" not in (tmp_path / "copy.db").read_bytes()
    flags = ("restore", tmp_path / "copy.db", "--store", f"sqlite:///{tmp_path / 'new.db'}")
    refused = run_command(*flags, env=env | {"HOLDFAST_KEY": ""})
    assert (refused.returncode, (tmp_path / "new.db").exists()) == (2, False)
    assert run_command(*flags, env=env).returncode == 0
    assert b"planted" not in (tmp_path / "new.db").read_bytes()
    with SQLiteStore(tmp_path / "new.db", key=KEY) as store:
        assert Session.open("a", store=store).messages[0].text == "a planted secret"


def test_postgresql_has_its_own_tools(env: dict[str, str], tmp_path: Path, postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    found = run_command("backup", tmp_path / "copy.db", "--store", url, env=env)
    assert (found.returncode, "pg_dump" in found.stderr) == (2, True)
    assert run_command("backup", tmp_path / "copy.db", env=env).returncode == 0
    found = run_command("restore", tmp_path / "copy.db", "--store", url, env=env)
    assert (found.returncode, "pg_restore" in found.stderr) == (2, True)
    assert run_command("backup", tmp_path / "more.db", "--store", "memory:", env=env).returncode == 2
