"""`make demo-cluster`: two servers on one PostgreSQL, one is killed, nothing is lost and nothing happens twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.cluster", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_killed_server_loses_nothing_and_doubles_nothing() -> None:
    found = run_example()
    assert found.returncode == 0, found.stdout + found.stderr
    assert "3. A is killed (kill -9) while it charges for order 1 of customer-1." in found.stdout
    assert "18 orders, 18 answers, 18 payments" in found.stdout
    assert "python -m examples.cluster" in (ROOT / "Makefile").read_text()
