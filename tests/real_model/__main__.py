"""`python -m tests.real_model [--only NAME] [--seed N]`: the proofs with a real model; exit code 1 if one fails."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.proofs import Report
from tests.real_model.engine import MODEL, EngineFailed, start_model
from tests.real_model.formats import FORMATS
from tests.real_model.proofs import PROOFS
from tests.real_model.session_setup import ProofSetup
from tests.real_model.wire_recorder import WireRecorder

SEED = 2026
SHOWN = 5

logging.getLogger("holdfast").setLevel(logging.ERROR)  # turns that fail here are meant to


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.real_model", description="Prove it with a real model.")
    options.add_argument("--only", metavar="NAME", help="the proofs whose name holds this")
    options.add_argument("--seed", type=int, default=SEED, help="chooses words and figures; the model has none")
    asked = options.parse_args()
    chosen = [one for one in PROOFS if asked.only is None or asked.only in one.__name__]
    if not chosen:
        options.error(f"no proof is called {asked.only!r}; there are {', '.join(one.__name__ for one in PROOFS)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hf-model-") as home:
        try:
            held = _run_all(chosen, Path(home), asked.seed)
        except EngineFailed as error:
            print(f"the model does not start: {error}")
            return 1
    print(f"{sum(held)} of {len(held)} proofs hold ({time.monotonic() - began:.0f} s)")
    return 0 if all(held) else 1


def _run_all(chosen: list[Callable[[ProofSetup], Report]], home: Path, seed: int) -> list[bool]:
    began = time.monotonic()
    held = []
    with start_model(home / "engine.log") as address, WireRecorder(address) as recorder:
        print(f"{MODEL} on {address}, started in {time.monotonic() - began:.1f} s", flush=True)
        for format in FORMATS:
            for one in chosen:
                file = home / f"{format.provider}-{one.__name__}.db"
                held.append(_run_proof(one, ProofSetup(format=format, recorder=recorder, file=file, seed=seed)))
    return held


def _run_proof(proof: Callable[[ProofSetup], Report], setup: ProofSetup) -> bool:
    began, mark = time.monotonic(), len(setup.recorder.exchanges)
    try:
        report = proof(setup)
    except Exception:
        report = Report(figures="broke off", failures=[*setup.failures, traceback.format_exc()])
    exchanges = setup.recorder.since(mark)
    strangers = {exchange.path for exchange in exchanges} - {setup.format.path}
    failures = [*report.failures, *(f"asked {path}, not {setup.format.path}" for path in strangers)]
    if not exchanges:
        failures.append("the model was never asked")
    verdict = "FAILED" if failures else "ok"
    spent = time.monotonic() - began
    print(
        f"{setup.format.provider:<10}{proof.__name__:<18}{report.figures}  {verdict} "
        f"({len(exchanges)} requests, {spent:.1f} s)",
        flush=True,
    )
    for failure in failures[:SHOWN]:
        print("      " + failure.rstrip().replace("\n", "\n      "))
    if len(failures) > SHOWN:
        print(f"      and {len(failures) - SHOWN} more")
    if failures:
        print(f"      again: python -m tests.real_model --only {proof.__name__} --seed {setup.seed}", flush=True)
    return not failures


if __name__ == "__main__":
    sys.exit(main())
