"""`python -m tests.prove --size ci|long [--only NAME] [--seed N]`: run the proofs; the exit code is 1 if one fails."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import time
import traceback
from pathlib import Path

# As pytest has it: `kit`, `crash` and `prove` are top-level names.
sys.path.insert(0, str(Path(__file__).parents[1]))

from prove import PROOFS, Proof, Report

MODULES = (
    "crashes",
    "storage",
    "servers",
    "turns",
    "flows",
    "simulation",
    "chaos",
    "models",
    "audit",
    "keeping",
    "server_kills",
    "server_many",
    "server_races",
    "server_streams",
    "server_crowds",
    "schema",
    "rawhttp",
    "matrix",
    "browsers",
    "leaks",
    "mutants",
)
SEED = 2026
SHOWN = 5

logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of every connection that is cut on purpose
logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # and it of every request that is none


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.prove", description="Prove what must survive.")
    options.add_argument("--size", choices=("ci", "long"), default="ci")
    options.add_argument(
        "--only", metavar="NAME", help="the proofs whose name or number this is, or whose name holds it"
    )
    options.add_argument("--seed", type=int, default=SEED)
    asked = options.parse_args()
    for module in MODULES:
        importlib.import_module(f"prove.{module}")
    chosen = [
        one for one in PROOFS.values() if asked.only is None or asked.only == one.number or asked.only in one.name
    ]
    if not chosen:
        options.error(f"no proof is called {asked.only!r}; there are {', '.join(PROOFS)}")
    began = time.monotonic()
    failed = [one.name for one in chosen if not _holds(one, asked.size, asked.seed)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} proofs hold ({time.monotonic() - began:.0f} s)")
    return 1 if failed else 0


def _holds(one: Proof, size: str, seed: int) -> bool:
    began = time.monotonic()
    try:
        report = one.run(one.sizes[size], seed)
    except Exception:
        report = Report(figures="broke off", failures=[traceback.format_exc()])
    verdict = "FAILED" if report.failures else "ok"
    spent = time.monotonic() - began
    print(
        f"{one.number:<4}{one.name:<24}size={one.sizes[size]} seed={seed}  {report.figures}  {verdict} ({spent:.1f} s)",
        flush=True,
    )
    for failure in report.failures[:SHOWN]:
        print("      " + failure.rstrip().replace("\n", "\n      "))
    if len(report.failures) > SHOWN:
        print(f"      and {len(report.failures) - SHOWN} more")
    if report.failures:
        print(f"      again: python -m tests.prove --size {size} --only {one.name} --seed {seed}", flush=True)
    return not report.failures


if __name__ == "__main__":
    sys.exit(main())
