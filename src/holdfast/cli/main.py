"""The `holdfast` command."""

from __future__ import annotations

import json
from pathlib import Path

import click

from holdfast.cli.backup import backup, restore
from holdfast.cli.doctor import doctor
from holdfast.cli.keys import keys
from holdfast.cli.output import CommandGroup, exit_on_error, json_option
from holdfast.cli.serve import serve
from holdfast.cli.sign import sign
from holdfast.cli.sweep import sweep
from holdfast.cli.verify import verify


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def main() -> None:
    """Durable sessions for AI agents."""


@main.command()
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the database in this new file, and its export beside it."
)
@json_option
def demo(as_json: bool, keep: Path | None) -> None:
    """Kill a process inside a tool, and finish its turn in another.

    Then the session is forked, compared, exported and verified. Needs no key and no network.

    Exit code 0: done; 2: the file exists already, or cannot be written.
    """
    from holdfast.cli.demo import check_new_files, run_demo

    with exit_on_error("demo", as_json=as_json):
        if keep is not None:
            check_new_files(keep)
        for step in run_demo(keep):
            click.echo(json.dumps({"step": step.title, "lines": step.lines}) if as_json else step.render())


for command in (serve, keys, doctor, sign, sweep, verify, backup, restore):
    main.add_command(command)
