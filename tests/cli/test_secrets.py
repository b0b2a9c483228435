"""No command takes a secret as a flag: every user of a machine can read its command lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest

from holdfast.cli.main import main
from holdfast.server.config import has_password
from tests.cli.terminal import HOLDFAST, clean_environment

WITH = [
    "postgresql://me:hunter2@127.0.0.1:1/db",
    "postgres://me:hunter2@127.0.0.1:1,127.0.0.1:2/db?sslmode=require",
    "postgresql://127.0.0.1:1/db?user=me&password=hunter2",
    "postgresql://127.0.0.1:1/db?user=me&p%61ssword=hunter2",
    "postgresql://127.0.0.1:1/db?sslpassword=hunter2",
    "postgresql://me:hunter2#x@127.0.0.1:1/db",
    "postgresql://me:hunter2/x@127.0.0.1:1/db",
]
WITHOUT = [
    "postgresql://me@127.0.0.1:1/db",
    "postgresql://me:@127.0.0.1:1/db",
    "postgresql://127.0.0.1:1/db?service=main",
    "postgresql:///db?passfile=/run/secrets/pgpass",
    "sqlite:////srv/a:b@c.db",
    "memory:",
]


@pytest.mark.parametrize("command", [["serve"], ["doctor"], ["sweep"], ["keys", "list"], ["keys", "create"]])
def test_a_password_on_a_command_line_is_refused(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*HOLDFAST, *command, "--store", WITH[0]],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(tmp_path),
    )
    told = done.stdout + done.stderr
    assert done.returncode == (1 if command == ["doctor"] else 2), told
    assert "HOLDFAST_STORE" in told
    assert "PGPASSFILE" in told
    assert "hunter2" not in told


def test_the_same_url_is_taken_from_the_environment(tmp_path: Path) -> None:
    environ = clean_environment(tmp_path) | {"HOLDFAST_STORE": WITH[0]}
    done = subprocess.run([*HOLDFAST, "keys", "list"], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 2
    assert "command line" not in done.stderr  # it was tried, and no PostgreSQL listens there
    assert "hunter2" not in done.stdout + done.stderr


def test_a_password_is_found_wherever_it_is() -> None:
    assert [url for url in WITH if not has_password(url)] == []
    assert [url for url in WITHOUT if has_password(url)] == []


def test_no_flag_of_any_command_asks_for_a_secret() -> None:
    found: list[str] = []
    waiting: list[click.Command] = [main]
    while waiting:
        command = waiting.pop()
        waiting += list(getattr(command, "commands", {}).values())
        found += [flag for each in command.params for flag in each.opts if flag.startswith("--")]
    assert "--store" in found
    secrets = ("password", "secret", "token", "api-key", "encryption")
    assert [flag for flag in found if any(word in flag for word in secrets)] == ["--token-file"] * found.count(
        "--token-file"
    )
