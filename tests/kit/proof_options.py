"""The options of pytest for the proofs, and their figures after the tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

SEED = 2026
NUMBERS = ("F", *(f"B{number}" for number in range(1, 41)))


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("proofs")
    group.addoption("--size", choices=("ci", "long"), default="ci", help="how much each proof tries")
    group.addoption("--seed", type=int, default=SEED, help="the seed of every proof")


def add_markers(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "proof: a proof of the bar in docs/reliability.md")
    for number in NUMBERS:
        config.addinivalue_line("markers", f"{number}: a proof of this number of the bar")


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Whether a file has nothing but proofs, and none is asked for: importing them takes seconds."""
    return path.name == "test_proofs.py" and config.option.markexpr == "not proof"


def print_figures(terminal: pytest.TerminalReporter) -> None:
    """One line for each proof that came to its end, one for all mutants."""
    lines, mutants, controls = [], Counter[str](), Counter[str]()
    for outcome in ("passed", "failed"):
        for report in terminal.getreports(outcome):
            if report.when != "call":
                continue
            for name, value in report.user_properties:
                if name == "proof":
                    verdict = "ok" if report.passed else "FAILED"
                    lines.append(f"{value}  {verdict} ({report.duration:.1f} s)")
                elif name == "mutant":
                    mutants[outcome] += 1
                elif name == "control":
                    controls[outcome] += 1
    if mutants or controls:
        silence = "silent" if not controls["failed"] else "NOT silent"
        lines.append(
            f"B23 {mutants['passed']} of {mutants.total()} mutants killed, {controls.total()} controls {silence}"
        )
    if lines:
        terminal.section("proofs")
        for line in sorted(lines, key=_order):
            terminal.write_line(line)


def _order(line: str) -> tuple[int, str]:
    number = line.split()[0]
    return (int(number[1:]) if number[1:].isdigit() else 99, line)
