"""The flags of commands that start or examine a server, made from the one table of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast.server.config import SETTINGS, Setting

FREE_PORT = "stop the server that listens there, or take another port; --port 0 takes a free one and prints it"


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a flag for every setting; the command hands what it gets to `Config.from_env(os.environ, **flags)`."""
    for setting in reversed(SETTINGS):
        if setting.flag:
            command = _option(setting.flag, setting)(command)
    return command


def _option(flag: str, setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # Without a default of click's own: None means that the flag was not given, so that its variable counts.
    default = f"default: {setting.shown.replace('`', '')}"
    shown = f"{setting.help}  [{f'{setting.variable}; ' if setting.variable else ''}{default}]"
    if setting.kind is bool:
        return click.option(flag, setting.name, is_flag=True, default=None, help=shown)
    if setting.kind is tuple:
        return click.option(flag, setting.name, multiple=True, help=shown)
    return click.option(flag, setting.name, type=setting.kind, default=None, help=shown)
