"""`holdfast doctor`: checks whether a server would start here, and reports problems. It changes nothing."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import click

from holdfast.cli.options import FREE_PORT, server_options
from holdfast.cli.output import json_option
from holdfast.cli.soundness import check_pages, check_sessions
from holdfast.errors import AgentError, InvalidArgument, SchemaTooNew, WrongKey
from holdfast.operating_system import find_exposed_mode, reserve_address
from holdfast.server.config import Config

EXTRAS = {
    "server": ("fastapi", "httptools", "prometheus_client", "uvicorn"),
    "postgres": ("psycopg",),
    "secure": ("cryptography",),
    "mcp": ("mcp",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    what: str
    verdict: Literal["ok", "warn", "fail"]
    text: str
    is_current: bool = field(default=False, repr=False)  # the store exists, with the schema of this holdfast


@click.command()
@server_options
@click.option(
    "--sample",
    default=20,
    show_default=True,
    type=click.IntRange(min=0),
    help="Sessions to verify: the newest, and others at random; 0: none, and no check of the pages of a SQLite file.",
)
@click.option(
    "--sample-seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0.1, max=86_400),
    help="Seconds for the check of the pages, and again for the sessions.",
)
@json_option
def doctor(as_json: bool, sample: int, sample_seconds: float, **flags: object) -> None:
    """Check whether `holdfast serve` would start here, and whether its data is sound.

    Looks at everything that a server needs, with these flags and variables, and changes nothing.

    Exit code 0: it would start; 1: something has to be put right first, or data is damaged.
    """
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    found = []
    for each in examine(os.environ, sample, sample_seconds, **flags):
        found.append(each)
        if not as_json:  # at once: the check of a database that is away takes seconds
            click.echo(f"{click.style(f'{each.verdict:<4}', fg=colours[each.verdict])}  {each.what}: {each.text}")
    is_well = all(each.verdict != "fail" for each in found)
    if as_json:
        click.echo(json.dumps({"ok": is_well, "findings": [_public(each) for each in found]}))
    sys.exit(0 if is_well else 1)


def _public(found: Finding) -> dict[str, str]:
    return {name: value for name, value in asdict(found).items() if name != "is_current"}


def examine(environ: Mapping[str, str], sample: int, seconds: float, **flags: object) -> Iterator[Finding]:
    """Run all checks, in the order in which a server needs them."""
    yield _check_python()
    yield _check_sqlite()
    try:
        config = Config.from_env(environ, **flags)
    except AgentError as error:
        yield Finding(what="settings", verdict="fail", text=str(error))
        return
    yield _check_settings(config)
    yield from _check_extras(config, environ)
    yield _check_data_directory(config)
    store = _check_store(config)
    yield store
    yield from _check_tenant_wall(config)
    yield _check_master_key(environ)
    yield _check_signing_key()
    if sample and store.is_current:
        yield from _check_data(config, sample, seconds)
    yield _check_token(config)
    yield _check_port(config)
    yield from _check_work_roots(config)


def _check_python() -> Finding:
    return Finding(what="python", verdict="ok", text=platform.python_version())


def _check_sqlite() -> Finding:
    import apsw

    from holdfast.stores.sqlite_connections import check_version

    version = apsw.sqlite_lib_version()
    try:
        check_version(version)
    except AgentError as error:
        return Finding(what="sqlite", verdict="fail", text=str(error))
    return Finding(what="sqlite", verdict="ok", text=version)


def _check_settings(config: Config) -> Finding:
    try:
        config.check()
    except AgentError as error:
        return Finding(what="settings", verdict="fail", text=str(error))
    return Finding(what="settings", verdict="ok", text=f"{config.url}, lease {config.lease_seconds:g} s")


def _check_extras(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    needed = {"server"}
    if config.store.startswith(("postgresql:", "postgres:")):
        needed.add("postgres")
    if environ.get("HOLDFAST_KEY"):
        needed.add("secure")
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if not missing:
            yield Finding(what=f"extra {extra}", verdict="ok", text="installed")
        elif extra in needed:
            text = f"{', '.join(missing)} missing: pip install 'holdfast[{extra}]'"
            yield Finding(what=f"extra {extra}", verdict="fail", text=text)
        else:
            yield Finding(what=f"extra {extra}", verdict="ok", text="not installed, and not needed by these settings")


def _check_data_directory(config: Config) -> Finding:
    path = Path(config.data)
    if not path.exists():
        return Finding(what="data directory", verdict="ok", text=f"{path} will be made")
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return Finding(what="data directory", verdict="fail", text=f"{path} is no directory that can be written")
    if others := find_exposed_mode(path):
        text = f"{path} has mode {others}, so other users can look into it: chmod 700 {path}"
        return Finding(what="data directory", verdict="warn", text=text)
    return Finding(what="data directory", verdict="ok", text=str(path))


def _check_store(config: Config) -> Finding:
    """Check the store without opening it as a server does, which would create it or migrate its schema."""
    kind = config.store.partition(":")[0]
    try:
        if kind == "memory":
            return Finding(what="store", verdict="warn", text="memory: everything is lost when the server stops")
        if kind == "sqlite":
            return _check_sqlite_store(Path(config.store.removeprefix("sqlite:///")))
        if kind in ("postgresql", "postgres"):
            return _check_postgres_store(config.store)
    except SchemaTooNew as error:
        return Finding(what="store", verdict="fail", text=str(error))
    return Finding(what="store", verdict="fail", text=f"a store URL with {kind[:20]!r} is not understood")


def _check_sqlite_store(file: Path) -> Finding:
    import apsw

    from holdfast.stores.restoration import open_copy
    from holdfast.stores.sqlite_connections import MIGRATIONS

    if not file.exists():
        parent = next(each for each in file.absolute().parents if each.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            return Finding(what="store", verdict="fail", text=f"{file} cannot be made: {parent} cannot be written")
        return Finding(what="store", verdict="ok", text=f"{file} will be made")
    try:
        with open_copy(file) as db:
            applied = [row[0] for row in db.execute(MIGRATIONS)]
    except (apsw.Error, InvalidArgument) as error:
        return Finding(what="store", verdict="fail", text=f"{file} cannot be read: {error}")
    if not os.access(file, os.W_OK):
        return Finding(what="store", verdict="fail", text=f"{file} cannot be written: check its permissions")
    if others := find_exposed_mode(file):
        text = f"{file} has mode {others}, so other users can read it: chmod 600 {file}"
        return replace(_check_schema("sqlite", applied, str(file)), verdict="warn", text=text)
    return _check_schema("sqlite", applied, str(file))


def _check_postgres_store(url: str) -> Finding:
    from holdfast.stores.postgres_connections import MIGRATIONS

    try:
        import psycopg
    except ImportError:
        return Finding(what="store", verdict="fail", text="PostgreSQL needs pip install 'holdfast[postgres]'")
    try:
        with psycopg.connect(url, connect_timeout=5) as db:
            try:
                applied = [row[0] for row in db.execute(MIGRATIONS)]
            except psycopg.errors.UndefinedTable:
                return Finding(what="store", verdict="ok", text="PostgreSQL answers; the tables will be made")
    except psycopg.Error as error:
        # By its class: the text repeats the address, and with it perhaps a password.
        text = f"PostgreSQL cannot be reached ({type(error).__name__}): check the URL, and that the server runs"
        return Finding(what="store", verdict="fail", text=text)
    return _check_schema("postgres", applied, "PostgreSQL")


def _check_schema(dialect: str, applied: list[int], name: str) -> Finding:
    from holdfast.stores.migrations import migrations

    known, there = migrations(dialect)[-1].version, max(applied, default=0)
    if there > known:
        raise SchemaTooNew(f"{name} has schema {there}, this holdfast knows {known}: upgrade holdfast to open it")
    if there < known:
        text = f"{name} has schema {there} and will be brought to {known} when a server starts"
        return Finding(what="store", verdict="warn", text=text)
    return Finding(what="store", verdict="ok", text=f"{name}, schema {there}", is_current=True)


def _check_data(config: Config, sample: int, seconds: float) -> Iterator[Finding]:
    """Check that what the store holds is sound. Opening a store of this schema changes nothing in it."""
    if config.store.startswith("sqlite:"):
        yield _check_pages(Path(config.store.removeprefix("sqlite:///")), seconds)
    try:
        with config.open_store() as store:
            checked, wrong = check_sessions(store, sample, seconds)
    except WrongKey as error:
        yield Finding(what="sessions", verdict="fail", text=str(error))
        return
    except AgentError as error:
        yield Finding(what="sessions", verdict="fail", text=f"the store cannot be read: {error}")
        return
    if wrong:
        yield Finding(what="sessions", verdict="fail", text=f"damaged: {'; '.join(wrong)}: restore a backup")
    else:
        yield Finding(what="sessions", verdict="ok", text=f"{checked} verified")


def _check_pages(file: Path, seconds: float) -> Finding:
    try:
        damage = check_pages(file, seconds)
    except TimeoutError:
        text = f"not all checked in {seconds:g} s: give --sample-seconds"
        return Finding(what="pages", verdict="warn", text=text)
    if damage is not None:
        return Finding(what="pages", verdict="fail", text=f"{file} is damaged ({damage}): restore a backup")
    return Finding(what="pages", verdict="ok", text="sound")


def _check_master_key(environ: Mapping[str, str]) -> Finding:
    from holdfast.stores.encryption import Vault

    if not environ.get("HOLDFAST_KEY"):
        return Finding(what="encryption", verdict="ok", text="off (HOLDFAST_KEY is not set)")
    try:
        vault = Vault(environ["HOLDFAST_KEY"])
    except AgentError as error:
        return Finding(what="encryption", verdict="fail", text=str(error))
    return Finding(what="encryption", verdict="ok", text=f"on, with the master key {vault.fingerprint}")


def _check_tenant_wall(config: Config) -> Iterator[Finding]:
    """Whether PostgreSQL itself keeps the rows of tenants apart, besides the statements of the store."""
    if not config.store.startswith(("postgresql:", "postgres:")) or find_spec("psycopg") is None:
        return
    import psycopg

    try:
        with psycopg.connect(config.store, connect_timeout=5) as db:
            is_free = db.execute(
                "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            walls = db.execute("SELECT count(*) FROM pg_policies WHERE schemaname = 'holdfast'").fetchone()
    except psycopg.Error:
        return  # the check of the store says so
    if is_free is None or is_free[0]:
        text = "row-level security does not hold this role, a superuser or one with BYPASSRLS: connect as another role"
        yield Finding(what="tenants", verdict="warn", text=text)
    elif walls is None or not walls[0]:
        yield Finding(what="tenants", verdict="ok", text="row-level security will be on when the tables are made")
    else:
        yield Finding(what="tenants", verdict="ok", text="row-level security is on")


def _check_signing_key() -> Finding:
    from holdfast.stores.signing_keys import SigningKey

    try:
        key = SigningKey.from_environment()
    except AgentError as error:
        return Finding(what="signatures", verdict="fail", text=str(error))
    if key is None:
        return Finding(what="signatures", verdict="ok", text="off (HOLDFAST_SIGNING_KEY is not set)")
    return Finding(what="signatures", verdict="ok", text=f"on, with the key {key.fingerprint}")


def _check_token(config: Config) -> Finding:
    if config.open:
        return Finding(what="token", verdict="warn", text="--open: nobody is asked for a key")
    if config.token:
        return Finding(what="token", verdict="ok", text="from HOLDFAST_TOKEN")
    path = Path(config.token_file)
    if not path.exists():
        return Finding(what="token", verdict="ok", text=f"{path} will be made")
    if not os.access(path, os.R_OK):
        return Finding(what="token", verdict="fail", text=f"{path} cannot be read")
    if others := find_exposed_mode(path):
        verdict: Literal["warn", "fail"] = "fail" if path.parent == Path(config.data) else "warn"
        text = f"{path} has mode {others}, so other users can read it: remove it, and a new one is made"
        return Finding(what="token", verdict=verdict, text=text)
    return Finding(what="token", verdict="ok", text=str(path))


def _check_port(config: Config) -> Finding:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as wire:
            reserve_address(wire)
            wire.bind((config.host, config.port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no such port"
        text = f"{config.host}:{config.port} cannot be listened on ({reason}): {FREE_PORT}"
        return Finding(what="port", verdict="fail", text=text)
    return Finding(what="port", verdict="ok", text=f"{config.host}:{config.port} is free")


def _check_work_roots(config: Config) -> Iterator[Finding]:
    if not config.work_roots:
        yield Finding(what="work roots", verdict="ok", text="none: sessions have no work_dir")
    for root in config.work_roots:
        if not os.path.isdir(root):
            yield Finding(what="work root", verdict="fail", text=f"{root} is no directory: make it first")
        elif not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            yield Finding(what="work root", verdict="warn", text=f"{root} cannot be written")
        else:
            yield Finding(what="work root", verdict="ok", text=root)
