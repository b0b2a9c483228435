"""Runs the blocks of a page of the documentation, in order, and compares what they print with what the page says.

`python` is executed in one namespace for the page; one that begins with `# name.py` is a file that the page tells its
reader to write. `sh` is run by bash. In `console`, `$ holdfast serve` starts a server, on a free port instead of 2323,
and what follows talks to that; on a page that serves, the other `$ holdfast` commands are run as well. `text` is what
the block before it printed, where `…` stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.docs.page_server import HOLDFAST, PAGES_SAY, PATIENCE, PageServer

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
KINDS = ("python", "text", "sh", "console", "sql")
QUIET = 1.0  # seconds after which a stream that goes on for ever counts as complete
_FILE = re.compile(r"# (\w+\.py)\n")
_ERROR = '{"error":"'  # how an answer of the server begins that is not what was asked for
_WRITTEN = re.compile(r"-o (\S+)")
_RUN_ID = re.compile(r'"run_id":"(\w+)"')


class Page:
    """One page, run in a folder of its own."""

    def __init__(self, path: Path, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.path, self.folder = path, folder
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # `python` is ours
        self.environment = {"HOLDFAST_DATA": str(folder / "data"), "PATH": programs, **(environment or {})}
        self.names: dict[str, object] = {"__name__": path.stem}
        self._serves = "$ holdfast serve" in path.read_text()
        self._server: PageServer | None = None
        self._printed: str | None = None

    def run(self) -> None:
        try:
            for language, code in BLOCK.findall(self.path.read_text()):
                assert language in KINDS, f"a block of unknown kind in {self.path.name}: {language}"
                getattr(self, f"_{language}")(self._at_our_port(code))
        finally:
            close = getattr(self.names.get("store"), "close", None)
            if close:
                close()
            self._stop()

    def _at_our_port(self, code: str) -> str:
        return code if self._server is None else code.replace(PAGES_SAY, self._server.address)

    def _python(self, code: str) -> None:
        if file := _FILE.match(code):
            (self.folder / file[1]).write_text(code)
            return
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(self.path), "exec", dont_inherit=True), self.names)
        self._printed = out.getvalue()
        assert self._printed or "print(" not in code, code

    def _text(self, expected: str) -> None:
        assert self._printed is not None, f"{self.path.name} says what nothing printed: {expected}"
        if not matches_page(expected, self._printed):
            raise AssertionError(f"{self.path.name} says\n{expected}\nand what is printed is\n{self._printed}")
        assert (_ERROR in self._printed) == (_ERROR in expected), f"{self.path.name} has an error: {self._printed}"
        self._printed = None

    def _sh(self, code: str) -> None:
        self._printed = self._shell(code)
        if "Idempotency-Key" in code:  # a retry is what it is there for
            assert _RUN_ID.findall(self._shell(code)) == _RUN_ID.findall(self._printed) != [], code

    def _shell(self, code: str) -> str:
        """Run a script with bash and return what it prints. A command without an end is interrupted, as on the page."""
        goes_on = "/events" in code and "curl -N" in code
        with (self.folder / "out").open("w+") as out:
            process = subprocess.Popen(
                ["bash", "-ec", code],
                cwd=self.folder,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if goes_on:
                _wait_until_quiet(Path(out.name))
                assert process.poll() is None, f"the stream ended by itself: {code}"
                os.killpg(process.pid, signal.SIGTERM)  # SIGINT is ignored below a shell that runs in the background
            status = process.wait(PATIENCE)
            assert goes_on or status == 0, f"{code}\nended with {status}"
            for name in _WRITTEN.findall(code):
                assert _ERROR not in (self.folder / name).read_text(), f"{code}\n{(self.folder / name).read_text()}"
            return Path(out.name).read_text()

    def _console(self, code: str) -> None:
        if not self._serves:
            return
        said: list[str] = []
        printed = ""
        for line in code.splitlines(keepends=True):
            if not line.startswith("$ "):
                said.append(line)
                continue
            self._compare_output("".join(said), printed)
            said, printed = [], ""
            words = shlex.split(line[2:], comments=True)
            if words[:2] == ["holdfast", "serve"]:
                self._serve(words[2:])
            elif words[0] == "holdfast":
                printed = self._command(words[1:])
        self._compare_output("".join(said), printed)

    def _compare_output(self, expected: str, printed: str) -> None:
        if expected:
            self._printed = printed
            self._text(expected)

    def _command(self, words: list[str]) -> str:
        found = subprocess.run(
            [*HOLDFAST, *words],
            cwd=self.folder,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, f"holdfast {shlex.join(words)}: {found.stderr}"
        return found.stdout

    def _serve(self, arguments: list[str]) -> None:
        self._stop()
        self._server = PageServer(arguments, self.folder, self.environment)

    def _stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            assert server.stop() == 0, server.log[-2000:]

    def _sql(self, code: str) -> None:
        """Statements for a database of the reader's; a test of their own runs them."""


def matches_page(expected: str, printed: str) -> bool:
    """Whether the printed text is what the page says; `…` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return expected == printed or re.fullmatch(pattern, printed.rstrip("\n") + "\n", re.DOTALL) is not None


def _wait_until_quiet(out: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    size, since = 0, time.monotonic()
    while not size or time.monotonic() - since < QUIET:
        assert time.monotonic() < deadline, "a stream told nothing, or never paused"
        if out.stat().st_size != size:
            size, since = out.stat().st_size, time.monotonic()
        time.sleep(0.02)


def list_blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text()) if found == language]


def run_page() -> None:
    """Run the page that the command line names, in the working directory."""
    Page(Path(sys.argv[1]), Path.cwd()).run()
