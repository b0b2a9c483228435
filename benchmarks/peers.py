"""The persisted turn of the peers, compared with the same raw limit. They are installed in their own environment: none
is a dependency of holdfast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peer import PEERS
from benchmarks.report import Figure, duration
from benchmarks.timing import Scale, fastest

HERE = Path(__file__).resolve().parent
PYTHON = HERE / ".peers" / "bin" / "python"
READY = HERE / ".peers" / "ready"
PINNED = HERE / "peers.txt"
LENGTHS = (10, 1_000)  # messages; at 100,000 some peers need minutes for a turn
PATIENCE = 900  # seconds after which a peer counts as stuck
QUIET = {
    "OTEL_SDK_DISABLED": "true",
    "AGNO_TELEMETRY": "false",
    "LANGSMITH_TRACING": "false",
    "PYTHONWARNINGS": "ignore",
}


def are_installed() -> bool:
    return READY.exists() and READY.read_text() == PINNED.read_text()


def install() -> None:
    """Create the environment of the peers with the packages of `peers.txt`."""
    subprocess.run([sys.executable, "-m", "venv", str(PYTHON.parent.parent)], check=True)
    subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", "-r", str(PINNED)], check=True)
    READY.write_text(PINNED.read_text())


def turns(scale: Scale) -> Iterator[Figure]:
    for name in PEERS:
        for length in LENGTHS:
            yield _turn(name, length, scale)


def _turn(name: str, length: int, scale: Scale) -> Figure:
    command = [
        str(PYTHON),
        "-m",
        "benchmarks.peer",
        name,
        str(length),
        str(max(3, scale.rounds // 3)),
        "10",
        str(fastest()),
    ]
    done = subprocess.run(
        command, cwd=HERE.parent, env=os.environ | QUIET, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Figure(job=f"turn at {length:,}, peer {name}", ours=f"did not run: {reason}"[:100])
    found = json.loads(done.stdout.splitlines()[-1])
    return Figure(
        job=f"turn, tmpfs, at {length:,}, peer: {found['title']} {found['version']}",
        ours=f"{duration(found['peer'])}",
        limit=duration(found["raw"]),
        ratio=f"{found['ratio']:.1f} x",
    )
