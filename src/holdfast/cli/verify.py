"""`holdfast verify`: checks exported files and receipts without a database, or a whole store."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

import click

from holdfast.cli.output import UNUSABLE, count_of, exit_on_error, json_option
from holdfast.cli.progress import Progress, show_progress
from holdfast.errors import AgentError, InvalidArgument
from holdfast.log import codec

if TYPE_CHECKING:
    from holdfast.stores.signing_keys import PublicKeys

SQLITE = b"SQLite format 3\0"  # the first bytes of a database
RECEIPT = b'{"key":'  # the first bytes of a receipt, whose keys are sorted
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
    signed_by: str | None = None  # fingerprint of the key with which it says that it was signed
    signature_checked: bool = False  # whether the signature is one of a key that was given
    is_receipt: bool = False

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else UNUSABLE if self.end_proven is None else 1

    def render(self) -> str:
        if self.ok and self.is_receipt:
            return f"{self.file}: receipt for {count_of(self.events, 'erased event')}{self._signature}"
        if self.ok:
            end = "" if self.end_proven else "; the end is not proven, because an older holdfast wrote the file"
            return f"{self.file}: {count_of(self.events, 'event')}, chain holds{end}{self._signature}"
        if not self.events:
            return f"{self.file}: {self.why}"
        first = "the first event holds" if self.events == 1 else f"the first {self.events} events hold"
        return f"{self.file}: {self.why}; {first}"

    @property
    def _signature(self) -> str:
        if self.signed_by is None:
            return ""
        return f"; signed with {self.signed_by}" + ("" if self.signature_checked else " (not checked: --public-key)")


@click.command()
@click.argument("files", metavar="[FILE...]", nargs=-1)
@click.option("--public-key", "keys", multiple=True, help="Key whose signatures count: 64 hex digits, or a file.")
@click.option("--store", "url", help="Check every log of this store instead, e.g. sqlite:///sessions.db.")
@click.option("--anchor", type=click.Path(exists=True, dir_okay=False), help="File with signed heads, for --store.")
@json_option
def verify(files: tuple[str, ...], keys: tuple[str, ...], url: str | None, anchor: str | None, as_json: bool) -> None:
    """Check exported files (jsonl) and receipts without a database; or, with --store, all logs of a store.

    Checks the hash chain of each FILE, and that its end is there; - is standard input. With --public-key (or
    HOLDFAST_PUBLIC_KEYS), each file must end with a head that one of the keys signed, and each log of a store must
    still have its signed heads, those in the anchor included. With --json, one line for each file or log.

    Exit code 0: everything holds; 1: something was altered or is missing; 2: a file is no export. Of several files,
    the highest counts.
    """
    from holdfast.cli.verify_store import verify_store
    from holdfast.stores.signing_keys import PublicKeys

    if bool(files) == bool(url):
        raise click.UsageError("give either files or --store")
    with exit_on_error("verify", as_json=as_json):
        known = PublicKeys(keys) if keys else PublicKeys.from_environment()
        if url is not None:
            sys.exit(verify_store(url, known, anchor, as_json=as_json))
    code = 0
    for name in files:
        verdict = check_file(name, known)
        code = max(code, verdict.exit_code)
        if as_json:
            click.echo(json.dumps(asdict(verdict)))
        else:
            click.echo(verdict.render(), err=verdict.exit_code == UNUSABLE)
    sys.exit(code)


def check_file(name: str, keys: PublicKeys) -> Verdict:
    """Check one file. A file that cannot be read, or is no export, has a verdict too."""
    from holdfast.session.export import read_lines

    try:
        with _open_file(name) as file, show_progress(f"verifying {name}", _size_of(name)) as progress:
            _refuse_database(name, file)
            if file.peek(len(RECEIPT))[: len(RECEIPT)] == RECEIPT:  # type: ignore[attr-defined]
                return _check_receipt(name, file.readline(), keys)
            exported = read_lines(_count_bytes(file, progress))
            found = exported.verify(keys)
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
        signed_by=None if exported.signed is None else exported.signed.key,
        signature_checked=found.signed is not None,
    )


def _check_receipt(name: str, line: bytes, keys: PublicKeys) -> Verdict:
    """The verdict on a receipt, whose events are those that were erased."""
    data = codec.parse(line)
    flaw = keys.find_receipt_flaw(data) if keys else "a receipt is checked with --public-key"
    found = Verdict(file=name, ok=flaw is None, events=0, first_bad=None, why=flaw, end_proven=True, is_receipt=True)
    if flaw is not None:
        return found
    events = data["receipt"].get("events", 0)
    return replace(found, events=events, signed_by=data["key"], signature_checked=True)


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
