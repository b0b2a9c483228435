"""The store of the commands that work beside a server: the one that `holdfast serve` would use, or another one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.progress import show_progress
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.stores.base import Store

store_option = click.option(
    "--store",
    "url",
    help="The store without a password, e.g. sqlite:///sessions.db.  "
    "[HOLDFAST_STORE; default: the one that `holdfast serve` would use]",
)


@contextmanager
def open_server_store(url: str | None, *, create: bool = False) -> Iterator[Store]:
    """Open the store of a URL; without one, the store that a server would use. Closes it after the block.

    Raises InvalidArgument for a store in memory, which has nothing to show, and for a SQLite file that does not exist,
    unless `create` allows to create it.
    """
    from holdfast.server.config import Config

    config = Config.from_env(os.environ, store=url)
    if config.store.startswith("memory:"):
        raise InvalidArgument("a store in memory ends with this command: give --store, e.g. sqlite:///sessions.db")
    file = Path(config.store.removeprefix("sqlite:///"))
    if config.store.startswith("sqlite:///") and not create and not file.exists():
        raise InvalidArgument(f"{file} does not exist: give --store, e.g. sqlite:///sessions.db")
    with show_progress("opening the store"):
        store = config.open_store()
    with store:
        yield store
