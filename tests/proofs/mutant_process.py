"""A mutant in a process of its own, with its detector.

What must stay true: `holdfast` is imported after the mutant is in place, so the process in which mutants begin never
imports it. That process is a fork server with the third-party packages loaded, which take most of the time to import.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any, NamedTuple

from tests.proofs.mutant import CONTROL, Edit
from tests.proofs.mutants import MUTANTS

PATIENCE = 100.0  # seconds for a detector
# Cheap ones first: a detector's process imports no further than to the module that has it.
DETECTOR_MODULES = (
    "tests.properties.detectors",
    "tests.proofs.flow_detectors",
    "tests.proofs.attacks.interrupts_detectors",
    "tests.proofs.attacks.files_detectors",
    "tests.proofs.attacks.imports_detectors",
    "tests.proofs.attacks.erasures_detectors",
    "tests.proofs.attacks.signatures_detectors",
    "tests.proofs.server_detectors",
    "tests.proofs.http_detectors",
    "tests.proofs.attacks.roles_detectors",
    "tests.proofs.attacks.fairness_detectors",
    "tests.proofs.attacks.quotas_detectors",
)
# None of these imports holdfast.
PRELOADED = [
    *("apsw", "click", "docstring_parser", "fastapi", "fastapi.openapi.utils", "httptools", "httpx2", "hypothesis"),
    *("orjson", "prometheus_client", "psycopg", "psycopg_binary", "pydantic", "pytest", "uvicorn", "uvloop"),
    "tests.proofs.mutants",
]
_context = get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


class _MutatingLoader(SourceFileLoader):
    """Loads a module with some of its text replaced."""

    edits: tuple[Edit, ...] = ()

    def get_code(self, fullname: str) -> CodeType:
        return compile(apply_edits(self.get_data(self.path).decode(), self.edits), self.path, "exec")


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return the text of a module as a mutant has it."""
    for edit in edits:
        if edit.old not in text:
            raise LookupError(f"{edit.module} no longer has the text {edit.old!r}")
        text = text.replace(edit.old, edit.new)
    return text


class _Finder:
    """Finds the modules that a mutant changes."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        edits = tuple(edit for edit in self._edits if edit.module == name)
        spec = PathFinder.find_spec(name, path) if edits else None
        if spec is None or spec.origin is None:
            return None
        loader = _MutatingLoader(name, spec.origin)
        loader.edits = edits
        spec.loader = loader
        return spec


class Verdict(NamedTuple):
    """What came of a detector's process."""

    is_sound: bool  # the mutant was in place and the detector ran
    complaints: list[str]


def run_detector(name: str, detector: str, seed: int, dsn: str) -> Verdict:
    """Run a detector in a new process, on the mutant of a name, or on the code as it is for `CONTROL`."""
    ours, theirs = _context.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile(prefix="mutant-", suffix=".log") as log, ours:
        process = _context.Process(target=_detect, args=(name, detector, seed, dsn, theirs, log.name))
        process.start()
        theirs.close()
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
            return Verdict(name != CONTROL, ["did not end"])
        answers = []
        while ours.poll():
            try:
                answers.append(ours.recv())
            except EOFError:
                break
        if len(answers) == 2:
            return Verdict(True, answers[1])
        errors = log.read().decode(errors="replace").strip()
        if answers and name != CONTROL:
            return Verdict(True, [f"died: {errors[-300:]}"])
        return Verdict(False, [errors[-400:]])


def _detect(name: str, detector: str, seed: int, dsn: str, connection: Connection, log: str) -> None:
    """Send "ready" once the mutant is in place, and then the complaints of the detector."""
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
    warnings.simplefilter("ignore")
    assert not any(module.partition(".")[0] == "holdfast" for module in sys.modules), "holdfast is imported already"
    os.environ["HOLDFAST_PROVE_SERVER"] = dsn
    try:
        edits = [edit for one in MUTANTS if one.name == name for edit in one.edits]
        sys.meta_path.insert(0, _Finder(edits))  # type: ignore[arg-type]
        for edit in edits:
            importlib.import_module(edit.module)  # a mutant that does not even load proves nothing
        run = next(
            found[detector]
            for module in DETECTOR_MODULES
            if detector in (found := importlib.import_module(module).DETECTORS)
        )
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return
    connection.send("ready")
    try:
        complaints = run(seed)
    except Exception as error:
        complaints = [f"raised {error!r}"]
    connection.send([text[:500] for text in complaints[:20]])  # no more than a pipe holds: the reader waits for the end
