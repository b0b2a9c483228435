"""`holdfast sweep`: carries out retention once."""

from __future__ import annotations

import json
import sys

import click

from holdfast.cli.output import exit_on_error, json_option
from holdfast.cli.progress import show_progress
from holdfast.cli.store import open_server_store, store_option


@click.command()
@store_option
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option(
    "--batch", default=200, show_default=True, type=click.IntRange(min=1), help="Sessions looked at in one go."
)
@json_option
def sweep(url: str | None, dry_run: bool, batch: int, as_json: bool) -> None:
    """Archive and purge the sessions whose time has come.

    Several sweepers may run: one works at a time. Exit code 0: done; 1: another sweeper is at work; 2: the store cannot
    be used.
    """
    from holdfast.worker.sweep import SweepReport
    from holdfast.worker.sweep import sweep as sweep_store

    with (
        exit_on_error("sweep", as_json=as_json),
        open_server_store(url) as store,
        show_progress("sweeping") as progress,
    ):

        def count_sessions(report: SweepReport) -> None:
            progress.done = report.looked

        report = sweep_store(store, dry_run=dry_run, batch=batch, on_batch=count_sessions)
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
