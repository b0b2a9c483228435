"""`holdfast doctor`: it sees what is wrong, and leaves everything as it was."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Message, Session
from holdfast.stores import PostgresStore, SQLiteStore
from tests.cli.terminal import HOLDFAST, clean_environment
from tests.kit.postgres import PostgresServer


class DoctorCommand:
    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [*HOLDFAST, "doctor", *args]
        env = clean_environment(self.home) | {"HOLDFAST_PORT": "0", **environ}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    def serve(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = clean_environment(self.home)
        return subprocess.run([*HOLDFAST, "serve", *args], capture_output=True, text=True, check=False, env=env)

    def __call__(self, *args: str, **environ: str) -> dict[str, tuple[str, str]]:
        found = self.run(*args, "--json", **environ)
        assert found.returncode in (0, 1), found.stderr
        report: dict[str, Any] = json.loads(found.stdout)
        assert report["ok"] == (found.returncode == 0)
        assert report["ok"] == all(each["verdict"] != "fail" for each in report["findings"])
        return {each["what"]: (each["verdict"], each["text"]) for each in report["findings"]}


@pytest.fixture
def doctor(tmp_path: Path) -> DoctorCommand:
    return DoctorCommand(tmp_path)


def test_a_fresh_machine_is_well_and_stays_untouched(doctor: DoctorCommand) -> None:
    found = doctor.run()
    assert found.returncode == 0, found.stdout
    assert found.stdout.splitlines()[0].startswith("ok    python: 3.")
    assert all(line.startswith(("ok ", "warn")) for line in found.stdout.splitlines())
    assert "\x1b" not in found.stdout
    assert list(doctor.home.iterdir()) == []


def test_it_knows_a_store(doctor: DoctorCommand) -> None:
    file = doctor.home / "sessions.db"
    SQLiteStore(file).close()
    before = file.stat().st_mtime_ns
    url = f"sqlite:///{file}"
    assert doctor(HOLDFAST_STORE=url)["store"][0] == "ok"
    assert "schema" in doctor("--store", url)["store"][1]
    file.chmod(0o644)
    assert doctor(HOLDFAST_STORE=url)["store"][0] == "warn"
    file.chmod(0o600)
    assert file.stat().st_mtime_ns == before
    db = apsw.Connection(str(file))
    db.execute("INSERT INTO migrations VALUES(999, 'later', 'x')")
    db.close()
    verdict, text = doctor(HOLDFAST_STORE=url)["store"]
    assert (verdict, "upgrade" in text) == ("fail", True)
    file.write_text("this is no database, whatever its name says" * 100)
    assert doctor(HOLDFAST_STORE=url)["store"][0] == "fail"
    assert doctor(HOLDFAST_STORE="memory:")["store"][0] == "warn"
    assert doctor(HOLDFAST_STORE="mongodb://secret")["store"] == (
        "fail",
        "a store URL with 'mongodb' is not understood",
    )


def test_an_older_schema_is_only_named(doctor: DoctorCommand) -> None:
    file = doctor.home / "sessions.db"
    SQLiteStore(file).close()
    db = apsw.Connection(str(file))
    db.execute("UPDATE migrations SET version = 0")
    db.close()
    verdict, text = doctor(HOLDFAST_STORE=f"sqlite:///{file}")["store"]
    assert verdict == "warn"
    assert "will be brought to" in text
    db = apsw.Connection(str(file))
    assert db.execute("SELECT max(version) FROM migrations").get == 0
    db.close()


def test_it_knows_postgresql(doctor: DoctorCommand, postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    assert doctor(HOLDFAST_STORE=url)["store"] == ("ok", "PostgreSQL answers; the tables will be made")
    PostgresStore(url).close()
    assert doctor(HOLDFAST_STORE=url)["store"][0] == "ok"
    verdict, text = doctor(HOLDFAST_STORE="postgresql://me:password@127.0.0.1:1/none")["store"]
    assert verdict == "fail"
    assert "password" not in text


def test_it_reports_insecure_settings(doctor: DoctorCommand) -> None:
    assert doctor("--host", "0.0.0.0")["settings"][0] == "fail"
    assert doctor("--host", "0.0.0.0", "--behind-proxy")["settings"][0] == "ok"
    assert doctor("--open")["token"][0] == "warn"
    assert doctor(HOLDFAST_TOKEN="short")["settings"][0] == "fail"
    assert doctor(HOLDFAST_TOKEN="long-enough-for-a-token")["token"] == ("ok", "from HOLDFAST_TOKEN")
    data = doctor.home / ".local/share/holdfast"
    data.mkdir(parents=True)
    data.chmod(0o755)
    token = data / "token"
    token.write_text("x" * 40)
    token.chmod(0o644)
    found = doctor()
    assert found["data directory"][0] == "warn"
    assert found["token"][0] == "fail"
    token.chmod(0o600)
    data.chmod(0o700)
    found = doctor()
    assert (found["data directory"][0], found["token"][0]) == ("ok", "ok")


def test_it_sees_what_cannot_work(doctor: DoctorCommand) -> None:
    assert doctor(HOLDFAST_LEASE_SECONDS="soon")["settings"] == (
        "fail",
        "HOLDFAST_LEASE_SECONDS='soon' is no number",
    )
    assert doctor(HOLDFAST_LEASE_SECONDS="0")["settings"][0] == "fail"
    assert doctor(HOLDFAST_KEY="a passphrase")["encryption"][0] == "fail"
    assert doctor(HOLDFAST_KEY="ab" * 32)["encryption"][0] == "ok"
    roots = doctor(HOLDFAST_WORK_ROOTS=str(doctor.home / "missing"))
    assert (roots["work root"][0], roots["settings"][0]) == ("fail", "fail")
    assert doctor("--work-root", str(doctor.home))["work root"][0] == "ok"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        verdict, text = doctor("--port", str(port))["port"]
        assert (verdict, "--port 0 takes a free one" in text) == ("fail", True)
        found = doctor.run("--port", str(port))
        assert found.returncode == 1
        served = doctor.serve("--port", str(port))  # the verdict is true
        assert served.returncode == 2
    assert doctor.run("--port", str(port)).returncode == 0


def fill(file: Path) -> str:
    with SQLiteStore(file) as store:
        for n in range(6):
            Session(f"s{n}", store=store).add_messages([Message.user(f"the words of {n} " * 300) for _ in range(20)])
    return f"sqlite:///{file}"


def test_it_verifies_sessions_and_pages_and_changes_nothing(doctor: DoctorCommand) -> None:
    file = doctor.home / "sessions.db"
    url = fill(file)
    before = file.read_bytes()
    found = doctor("--store", url)
    assert (found["pages"], found["sessions"]) == (("ok", "sound"), ("ok", "6 verified"))
    assert doctor("--store", url, "--sample", "2")["sessions"] == ("ok", "2 verified")
    assert "sessions" not in doctor("--store", url, "--sample", "0")
    assert file.read_bytes() == before
    assert [each.name for each in doctor.home.iterdir()] == ["sessions.db"]


def test_a_flipped_byte_in_a_text_is_damage(doctor: DoctorCommand) -> None:
    file = doctor.home / "sessions.db"
    url = fill(file)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"the words of 3", b"the worms of 3", 1))
    found = doctor.run("--store", url, "--json")
    assert found.returncode == 1
    (sessions,) = [each for each in json.loads(found.stdout)["findings"] if each["what"] == "sessions"]
    assert (sessions["verdict"], "session 's3'" in sessions["text"]) == ("fail", True)


def test_a_damaged_page_is_damage(doctor: DoctorCommand) -> None:
    file = doctor.home / "sessions.db"
    url = fill(file)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 30_000] = bytes(30_000)
    file.write_bytes(data)
    found = doctor("--store", url)
    assert found["pages"][0] == "fail"


def test_sessions_in_postgresql_are_verified_too(doctor: DoctorCommand, postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    with PostgresStore(url) as store:
        Session("s", store=store).add_message(Message.user("hello"))
    assert doctor("--store", url)["sessions"] == ("ok", "1 verified")
