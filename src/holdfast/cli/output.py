"""What all commands share: the group, the flag `--json`, errors as one line, and words for numbers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from holdfast.errors import AgentError

UNUSABLE = 2  # exit code: the input, the settings or the store cannot be used; click uses it for wrong flags
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it: no verdict

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


class CommandGroup(click.Group):
    """A group whose list of commands is never cut, which honours NO_COLOR, and which ends with 130 after Ctrl-C."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        cmd.short_help = (cmd.help or "").partition("\n")[0]  # click cuts a summary of its own at the terminal's width
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what a command returns
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


@contextmanager
def exit_on_error(command: str, *, as_json: bool = False) -> Iterator[None]:
    """Print an AgentError of the block as one line on stderr, or as JSON on stdout, and exit with 2."""
    try:
        yield
    except AgentError as error:
        if as_json:
            click.echo(json.dumps({"error": str(error), "code": error.code}))
        else:
            click.echo(f"holdfast {command}: {error}", err=True)
        sys.exit(UNUSABLE)


def count_of(number: int, noun: str) -> str:
    """Return "1 event" or "2 events"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
