"""`holdfast keys`, run as a process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from holdfast.server.api_keys import find_key
from holdfast.stores import SQLiteStore
from tests.cli.terminal import HOLDFAST, clean_environment


class KeysCommand:
    def __init__(self, home: Path) -> None:
        self.home, self.url = home, f"sqlite:///{home / 'sessions.db'}"

    def __call__(self, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [*HOLDFAST, "keys", *args]
        environ = clean_environment(self.home) | (env or {"HOLDFAST_STORE": self.url})
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


@pytest.fixture
def keys(tmp_path: Path) -> KeysCommand:
    return KeysCommand(tmp_path)


def test_a_key_is_made_shown_once_listed_and_revoked(keys: KeysCommand) -> None:
    owner = ["--user", "alice", "--tenant", "acme", "--role", "read"]
    made = keys("create", *owner, "--name", "laptop", "--expires-days", "30")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert key.startswith("hf_")
    assert len(key) == 55
    key_id = key.split("_")[1]
    assert f"holdfast keys revoke {key_id}" in made.stderr
    with SQLiteStore(keys.home / "sessions.db") as store:
        info = find_key(store, key)
        assert (info.tenant, info.user, info.role, info.name) == ("acme", "alice", "read", "laptop")
        assert info.expires_at == info.created_at + 30 * 86_400_000_000

    listed = keys("list")
    assert listed.returncode == 0
    assert key not in listed.stdout
    title, row = listed.stdout.splitlines()
    assert title.split()[:5] == ["ID", "STATUS", "ROLE", "TENANT", "USER"]
    assert row.split()[:5] == [key_id, "valid", "read", "acme", "alice"]

    assert keys("revoke", key_id).returncode == 0
    assert "revoked" in keys("list").stdout
    again = keys("revoke", key_id, "--json")
    assert (again.returncode, json.loads(again.stdout)) == (0, {"id": key_id, "revoked": True})


def test_a_device_key_is_a_users_and_may_approve_if_it_is_told_to(keys: KeysCommand) -> None:
    refused = keys("create", "--role", "chat")
    assert refused.returncode == 2
    assert "user" in refused.stderr
    made = json.loads(keys("create", "--role", "chat", "--user", "alice", "--approve", "--json").stdout)
    assert (made["role"], made["user"], made["may_approve"]) == ("chat", "alice", True)
    assert keys("list").stdout.splitlines()[1].split()[2] == "chat+approve"


def test_scripts_get_json(keys: KeysCommand) -> None:
    made = json.loads(keys("create", "--json").stdout)
    assert made["key"].split("_")[1] == made["id"]
    assert (made["role"], made["tenant"], made["user"], made["status"]) == ("write", "", None, "valid")
    listed = json.loads(keys("list", "--json").stdout)["keys"]
    assert listed == [{name: value for name, value in made.items() if name != "key"}]
    assert "digest" not in listed[0]


def test_exit_codes_tell_what_happened(keys: KeysCommand) -> None:
    missing = keys("list")
    assert missing.returncode == 2
    assert "does not exist" in missing.stderr
    assert not (keys.home / "sessions.db").exists()
    keys("create")
    unknown = keys("revoke", "nonesuch")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no key" in unknown.stderr
    for args in (
        ["create", "--role", "root"],
        ["create", "--expires-days", "0"],
        ["create", "--tenant", "a/b"],
        ["list", "--store", "nonsense:"],
        ["create", "--store", "memory:"],
        ["revoke", ""],
    ):
        found = keys(*args)
        assert found.returncode == 2, args
        assert "Traceback" not in found.stderr


def test_errors_are_json_for_scripts(keys: KeysCommand) -> None:
    for args in (["list"], ["revoke", "x"], ["create", "--store", "memory:"], ["create", "--expires-days", "0"]):
        found = keys(*args, "--json")
        assert (found.returncode, found.stderr) == (2, ""), args
        assert json.loads(found.stdout)["code"] == "invalid_argument"


def test_without_a_store_it_is_the_one_a_server_would_use(keys: KeysCommand) -> None:
    made = keys("create", env={"XDG_DATA_HOME": str(keys.home / "data")})
    assert made.returncode == 0, made.stderr
    directory = keys.home / "data" / "holdfast"
    assert (directory / "sessions.db").exists()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_names_cannot_paint_the_terminal(keys: KeysCommand) -> None:
    keys("create", "--name", "red \x1b[31m", "--user", "a\nb")
    found = keys("list").stdout
    assert "\x1b" not in found
    assert len(found.splitlines()) == 2
