"""What a server can be told, and what it refuses."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.options import server_options
from holdfast.errors import InvalidArgument
from holdfast.server.config import SETTINGS, Config, is_loopback, settings_table

HOME = {"HOME": "/home/alice"}


def test_defaults_are_safe() -> None:
    config = Config.from_env(HOME)
    config.check()
    assert (config.host, config.port, config.open) == ("127.0.0.1", 2323, False)
    assert config.origins == config.names == config.work_roots == ()
    assert config.store == "sqlite:////home/alice/.local/share/holdfast/sessions.db"
    assert config.token_file == "/home/alice/.local/share/holdfast/token"
    assert config.url == "http://127.0.0.1:2323"


def test_the_data_directory_is_where_the_system_has_it() -> None:
    assert Config.from_env(HOME | {"XDG_DATA_HOME": "/data"}).data == "/data/holdfast"
    assert Config.from_env(HOME | {"XDG_DATA_HOME": "relative"}).data == "/home/alice/.local/share/holdfast"
    assert Config.from_env(HOME | {"HOLDFAST_DATA": "/srv/holdfast"}).store == "sqlite:////srv/holdfast/sessions.db"
    assert Config.from_env(HOME, data="/srv/holdfast").token_file == "/srv/holdfast/token"


def test_a_flag_outranks_a_variable_and_a_variable_the_default() -> None:
    environ = HOME | {"HOLDFAST_PORT": "1", "HOLDFAST_RATE": "2.5", "HOLDFAST_STORE": "memory:"}
    config = Config.from_env(environ, port=3, rate=None)
    assert (config.port, config.rate, config.store, config.runs) == (3, 2.5, "memory:", 32)
    assert Config.from_env(HOME | {"HOLDFAST_PORT": ""}).port == 2323
    assert Config.from_env(HOME, rate=0).rate == 0


def test_lists_and_yes_or_no_in_variables() -> None:
    roots = os.pathsep.join(("/a", "/b"))
    environ = HOME | {
        "HOLDFAST_WORK_ROOTS": roots,
        "HOLDFAST_NAMES": "a.example, b.example,",
        "HOLDFAST_BEHIND_PROXY": "Yes",
    }
    config = Config.from_env(environ)
    assert config.work_roots == ("/a", "/b")
    assert config.names == ("a.example", "b.example")
    assert config.behind_proxy
    assert Config.from_env(environ, work_roots=("/c",), names=()).work_roots == ("/c",)
    assert Config.from_env(environ, names=()).names == ("a.example", "b.example")
    assert not Config.from_env(HOME | {"HOLDFAST_BEHIND_PROXY": "off"}).behind_proxy


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOLDFAST_PORT", "http"),
        ("HOLDFAST_RATE", "fast"),
        ("HOLDFAST_BEHIND_PROXY", "perhaps"),
        ("HOLDFAST_RUNS", "1.5"),
    ],
)
def test_a_variable_that_says_nothing_is_named(variable: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=variable):
        Config.from_env(HOME | {variable: value})
    with pytest.raises(InvalidArgument, match="unknown"):
        Config.from_env(HOME, colour="red")


def test_no_variable_turns_authentication_off() -> None:
    assert not Config.from_env(HOME | {"HOLDFAST_OPEN": "1", "OPEN": "1"}).open


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.2", "example.com", "127.0.0.1.nip.io", "", "10.0.0.1", "::2"]
)
def test_a_public_address_needs_authentication_and_tls(host: str) -> None:
    outside = Config(host=host)
    assert not outside.is_loopback
    with pytest.raises(InvalidArgument, match="in the clear"):
        outside.check()
    with pytest.raises(InvalidArgument, match="--open"):
        replace(outside, open=True, behind_proxy=True).check()
    replace(outside, behind_proxy=True).check()
    replace(outside, tls_cert="c.pem", tls_key="k.pem").check()
    for half in (replace(outside, tls_cert="c.pem"), replace(outside, tls_key="k.pem")):
        with pytest.raises(InvalidArgument, match="belong together"):
            half.check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_may_be_open(host: str) -> None:
    assert is_loopback(host)
    Config(host=host, open=True).check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65536},
        {"port": -1},
        {"runs": 0},
        {"queue": 0},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"ping": float("inf")},
        {"lease_seconds": 0.0},
        {"body": 1},
        {"large_body": 2048, "body": 4096},
        {"log_level": "loud"},
        {"token": "short"},
        {"token": "with spaces in the middle"},
        {"token": "ümläüts-are-not-for-headers"},
        {"names": ("https://a.example",)},
        {"names": ("a.example:80",)},
        {"names": ("*",)},
        {"names": ("a.example",) * 65},
        {"origins": ("*",)},
        {"origins": ("null",)},
        {"origins": ("https://a.example/",)},
        {"origins": ("a.example",)},
        {"work_roots": ("relative",)},
        {"work_roots": ("/no/such/directory",)},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Config(**wrong).check()


def test_secrets_are_not_shown() -> None:
    config = Config(token="a-token-of-sixteen", store="postgresql://me:password@db/holdfast")
    assert "a-token" not in repr(config)
    assert "password" not in repr(config)
    assert not any(setting.flag for setting in SETTINGS if setting.name == "token")


def test_the_store_is_opened_in_a_private_directory(tmp_path: Path) -> None:
    config = Config.from_env({"HOME": str(tmp_path)})
    with config.open_store():
        pass
    directory = Path(config.data)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "sessions.db").stat().st_mode & 0o777 == 0o600
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidArgument, match="cannot be made"):
        Config.from_env({"HOME": str(file)}).open_store()


def test_one_table_is_all_there_is() -> None:
    assert [setting.name for setting in SETTINGS] == [each.name for each in fields(Config)]
    variables = [setting.variable for setting in SETTINGS if setting.variable]
    flags = [setting.flag for setting in SETTINGS if setting.flag]
    assert len(set(variables)) == len(variables)
    assert len(set(flags)) == len(flags)
    table = settings_table()
    assert all(f"`{name}`" in table for name in (*variables, *flags))
    assert all(setting.help.endswith(".") for setting in SETTINGS)


def test_the_flags_of_a_command_are_that_table() -> None:
    told: dict[str, Any] = {}

    @click.command()
    @server_options
    def command(**flags: object) -> None:
        told.update(flags)

    args = "--port 1 --work-root /a --work-root /b --open --rate 0.5 --name x --store memory:"
    result = CliRunner().invoke(command, args.split())
    assert result.exit_code == 0, result.output
    config = Config.from_env(HOME, **told)
    assert (config.port, config.work_roots, config.open, config.rate) == (1, ("/a", "/b"), True, 0.5)
    assert Config.from_env(HOME, **dict.fromkeys(told)) == Config.from_env(HOME)
    shown = CliRunner().invoke(command, ["--help"]).output
    assert all(str(setting.flag) in shown for setting in SETTINGS if setting.flag)
    assert "--token " not in shown


def test_reading_settings_loads_no_server() -> None:
    import subprocess

    script = "import sys, holdfast.cli.options; print([m for m in ('fastapi', 'uvicorn', 'apsw') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
