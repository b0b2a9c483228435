"""`python -m benchmarks [job ...] [--quick] [--out FILE] [--peers | --no-peers]`: print the figures; exits with 1
if a bound is missed."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import (
    compliance,
    crowds,
    deltas,
    flows,
    footprint,
    lookups,
    loops,
    peers,
    report,
    serving,
    serving_readers,
    serving_takeover,
    timing,
    turns,
)
from benchmarks.report import Figure
from benchmarks.timing import Scale

JOBS: dict[str, Callable[[Scale], Iterator[Figure]]] = {
    "turn": turns.on_sqlite,
    "postgres": turns.on_postgres,
    "open": lookups.opening,
    "fork": lookups.forking,
    "state": lookups.state,
    "crowd": crowds.same_session,
    "writers": crowds.own_sessions,
    "list": lookups.listing,
    "size": footprint.size,
    "import": footprint.importing,
    "run": loops.runs,
    "window": loops.windows,
    "flow": flows.overhead,
    "delta": deltas.one_stream,
    "streams": deltas.many_streams,
    "prune": compliance.pruning,
    "verify": compliance.verifying,
    "sweep": compliance.sweeping,
    "encryption": compliance.encryption,
    "tools": compliance.tool_calls,
    "messages": serving.messages,
    "readers": serving_readers.readers,
    "empty": serving.empty,
    "takeover": serving_takeover.takeover,
    "sessions": serving.listing,
}


def main() -> int:
    arguments = _arguments()
    scale = replace(timing.QUICK if arguments.quick else timing.FULL, peers=not arguments.no_peers)
    if arguments.peers and not peers.are_installed():
        peers.install()
    flushes = [(name, timing.flush_median(place)) for name, place in timing.places().items()]
    notes = report.circumstances(flushes)
    figures: list[Figure] = []
    for job in arguments.jobs or JOBS:
        print(f"… {job}", file=sys.stderr, flush=True)
        figures += _figures(job, scale)
    if _with_peers(arguments):
        print("… peers", file=sys.stderr, flush=True)
        figures += peers.turns(scale)
    print(report.text_table(figures))
    print("\n" + "\n".join(notes))
    if arguments.out is not None:
        command = " ".join(["python -m benchmarks", *sys.argv[1:]])
        arguments.out.write_text(report.markdown(figures, notes, command))
    return int(any(figure.ok is False for figure in figures))


def _with_peers(arguments: argparse.Namespace) -> bool:
    """Return whether to measure the peers: they are installed, and the persisted turn or `--peers` was chosen."""
    wanted = not arguments.jobs or "turn" in arguments.jobs or arguments.peers
    return bool(wanted and not arguments.no_peers and peers.are_installed())


def _figures(job: str, scale: Scale) -> list[Figure]:
    """Return the rows of a job. A job that raises gives one missed row with the error, so the other jobs still run."""
    found: list[Figure] = []
    try:
        found.extend(JOBS[job](scale))
    except Exception as error:
        traceback.print_exc()
        found.append(Figure(job=job, ours=f"{type(error).__name__}: {error}"[:100], bound="a figure", ok=False))
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="job", help=f"all of them by default: {', '.join(JOBS)}")
    parser.add_argument("--quick", action="store_true", help="short sessions and few rounds: to see that it runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the figures as Markdown")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--peers", action="store_true", help="install the peers into benchmarks/.peers if need be")
    others.add_argument("--no-peers", action="store_true", help="leave the peers out even if they are installed")
    arguments = parser.parse_args()
    unknown = set(arguments.jobs) - set(JOBS)
    if unknown:
        parser.error(f"unknown job {', '.join(sorted(unknown))}: use {', '.join(JOBS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
