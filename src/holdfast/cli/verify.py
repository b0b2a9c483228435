"""`holdfast verify`: checks exported files without a database."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import BinaryIO

import click

from holdfast.cli.output import UNUSABLE, count_of, json_option
from holdfast.cli.progress import Progress, show_progress
from holdfast.errors import AgentError, InvalidArgument

SQLITE = b"SQLite format 3\0"  # the first bytes of a database
EXPORT_COMMAND = (
    """python -c "from holdfast import Session; """
    """print(Session.open('ID', store='{url}').export(), end='')" > session.jsonl"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known about one file; its fields are those of `--json`."""

    file: str
    ok: bool
    events: int  # the number of events that hold
    first_bad: int | None
    why: str | None
    end_proven: bool | None  # whether the file names its last event; None: it is no export

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else UNUSABLE if self.end_proven is None else 1

    def render(self) -> str:
        if self.ok:
            end = "" if self.end_proven else "; the end is not proven, because an older holdfast wrote the file"
            return f"{self.file}: {count_of(self.events, 'event')}, chain holds{end}"
        if not self.events:
            return f"{self.file}: {self.why}"
        first = "the first event holds" if self.events == 1 else f"the first {self.events} events hold"
        return f"{self.file}: {self.why}; {first}"


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@json_option
def verify(files: tuple[str, ...], as_json: bool) -> None:
    """Check exported files (jsonl) without a database.

    Checks the hash chain of each FILE, and that its end is there; - is standard input. With --json, one line for each
    file.

    Exit code 0: everything holds; 1: something was altered or is missing; 2: a file is no export. Of several files,
    the highest counts.
    """
    code = 0
    for name in files:
        verdict = check_file(name)
        code = max(code, verdict.exit_code)
        if as_json:
            click.echo(json.dumps(asdict(verdict)))
        else:
            click.echo(verdict.render(), err=verdict.exit_code == UNUSABLE)
    sys.exit(code)


def check_file(name: str) -> Verdict:
    """Check one file. A file that cannot be read, or is no export, has a verdict too."""
    from holdfast.session.export import read_lines

    try:
        with _open_file(name) as file, show_progress(f"verifying {name}", _size_of(name)) as progress:
            _refuse_database(name, file)
            exported = read_lines(_count_bytes(file, progress))
            found = exported.verify()
    except (AgentError, OSError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        return Verdict(file=name, ok=False, events=0, first_bad=None, why=why, end_proven=None)
    return Verdict(
        file=name,
        ok=found.ok,
        events=found.checked,
        first_bad=found.first_bad,
        why=found.reason,
        end_proven=exported.is_end_known,
    )


@contextmanager
def _open_file(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as file:
        yield file


def _size_of(name: str) -> int | None:
    return None if name == "-" else os.stat(name).st_size


def _refuse_database(name: str, file: BinaryIO) -> None:
    if file.peek(len(SQLITE))[: len(SQLITE)] == SQLITE:  # type: ignore[attr-defined]
        what = "this" if name == "-" else name
        command = EXPORT_COMMAND.format(url=f"sqlite:///{'FILE' if name == '-' else name}")
        raise InvalidArgument(f"{what} is a SQLite database, not an export. To export a session: {command}")


def _count_bytes(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    for line in file:
        progress.done += len(line)
        yield line
