"""The `holdfast` command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from holdfast.cli.doctor import doctor
from holdfast.cli.keys import keys
from holdfast.cli.serve import serve
from holdfast.errors import AgentError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def main() -> None:
    """Durable sessions for AI agents."""


main.add_command(serve)
main.add_command(keys)
main.add_command(doctor)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a step, for scripts.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the database in this file.")
def demo(as_json: bool, keep: Path | None) -> None:
    """A process is killed while it writes, and another inside a tool; what is left is finished, forked and verified.

    Needs no key and no network.
    """
    from holdfast.cli.demo import run_demo

    for step in run_demo(keep):
        click.echo(json.dumps({"step": step.title, "lines": step.lines}) if as_json else step.render())


@main.command()
@click.option("--store", "url", envvar="HOLDFAST_STORE", required=True, help="The store, e.g. sqlite:///sessions.db.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option(
    "--batch", default=200, show_default=True, type=click.IntRange(min=1), help="Sessions looked at in one go."
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def sweep(url: str, dry_run: bool, batch: int, as_json: bool) -> None:
    """Archive and purge the sessions of a store whose time has come.

    Several sweepers may run: one works at a time. Exit code 0: done; 1: another sweeper is at work; 2: no such store.
    """
    from holdfast.stores.urls import open_store
    from holdfast.worker.sweep import sweep as run

    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        click.echo(f"{url.removeprefix('sqlite:///')} does not exist: nothing to sweep", err=True)
        sys.exit(2)
    try:
        report = run(open_store(url), dry_run=dry_run, batch=batch)
    except AgentError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if as_json:
        sessions = [
            {"id": each.id, "tenant": each.tenant, "act": each.act, "why": each.why} for each in report.sessions
        ]
        click.echo(json.dumps({"dry_run": dry_run, "busy": report.busy, "looked": report.looked, "sessions": sessions}))
    elif report.busy:
        click.echo("another sweeper is at work: nothing was done")
    else:
        for each in report.sessions:
            if each.act != "kept":
                click.echo(f"{each.act:<9} {each.id}: {each.why}")
        would = "would be " if dry_run else ""
        click.echo(
            f"{report.looked} looked at, {len(report.archived)} {would}archived, {len(report.purged)} {would}purged"
        )
    sys.exit(1 if report.busy else 0)


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def verify(file: Path, as_json: bool) -> None:
    """Check the hash chain of an exported FILE (jsonl), without a database.

    Exit code 0: everything holds; 1: something was altered; 2: not an export.
    """
    from holdfast.session.export import read_jsonl

    try:
        exported = read_jsonl(file.read_text(encoding="utf-8"))
    except (AgentError, UnicodeDecodeError) as error:
        click.echo(f"{file}: {error}", err=True)
        sys.exit(2)
    verdict = exported.verify()
    if as_json:
        click.echo(
            json.dumps(
                {"ok": verdict.ok, "events": verdict.checked, "first_bad": verdict.first_bad, "why": verdict.reason}
            )
        )
    elif verdict:
        click.echo(f"{file}: {verdict.checked} events, chain holds")
    else:
        click.echo(f"{file}: {verdict.reason}; the {verdict.checked} events before it hold")
    sys.exit(0 if verdict else 1)
