"""`holdfast backup` and `holdfast restore`: a copy of the SQLite database of a server, and the way back."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.output import count_of, exit_on_error, json_option
from holdfast.cli.progress import show_progress
from holdfast.cli.store import open_server_store, store_option
from holdfast.errors import InvalidArgument

file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.command()
@file_argument
@store_option
@json_option
def backup(file: Path, url: str | None, as_json: bool) -> None:
    """Copy a SQLite store to a new FILE, while servers use it.

    The copy holds what was stored when the command began. Its owner alone can read it. An encrypted store stays
    encrypted.

    Exit code 0: done; 2: FILE exists already, or the store cannot be used.
    """
    from holdfast.stores.sqlite import SQLiteStore

    with exit_on_error("backup", as_json=as_json), open_server_store(url) as store:
        if not isinstance(store, SQLiteStore):
            raise InvalidArgument("the store is not SQLite: use pg_dump --schema=holdfast for a copy of PostgreSQL")
        with show_progress(f"copying to {file}", os.stat(store.file.path).st_size) as progress:
            store.backup(file, on_progress=lambda size: setattr(progress, "done", size))
        size = file.stat().st_size
    click.echo(json.dumps({"file": str(file), "bytes": size}) if as_json else f"{file}: {size} bytes")


@click.command()
@file_argument
@store_option
@click.option("--skip-verify", is_flag=True, help="Do not verify the sessions; the pages of FILE are always checked.")
@json_option
def restore(file: Path, url: str | None, skip_verify: bool, as_json: bool) -> None:
    """Make a new SQLite store from FILE, a copy that `holdfast backup` made.

    FILE is checked, and every session of it verified, before the store appears. A store that exists is never replaced:
    stop its servers and move it away first.

    Exit code 0: done; 1: a session does not verify, and nothing was restored; 2: FILE or the store cannot be used.
    """
    from holdfast.server.config import Config
    from holdfast.stores.restoration import restore_database

    with exit_on_error("restore", as_json=as_json):
        config = Config.from_env(os.environ, store=url)
        if not config.store.startswith("sqlite:///"):
            raise InvalidArgument(
                "the store is not SQLite: give --store sqlite:///sessions.db, or use pg_restore for PostgreSQL"
            )
        target = Path(config.store.removeprefix("sqlite:///"))
        config.make_store_directory()
        with show_progress(f"restoring {file}") as progress:
            done = restore_database(
                file,
                target,
                key=os.environ.get("HOLDFAST_KEY") or None,
                is_verified=not skip_verify,
                on_progress=lambda size: setattr(progress, "done", size),
            )
    if as_json:
        damages = [asdict(each) for each in done.damages]
        facts = {"file": str(file), "store": str(target), "verified": done.checked}
        click.echo(json.dumps({"ok": not damages} | facts | {"damages": damages}))
    elif done.damages:
        for each in done.damages:
            click.echo(f"{each.kind} {each.id!r}: {each.reason}", err=True)
        click.echo(f"{file} does not verify: nothing was restored; take an earlier copy, or --skip-verify", err=True)
    else:
        click.echo(f"{target}: {'not' if skip_verify else count_of(done.checked, 'log')} verified")
    sys.exit(1 if done.damages else 0)
