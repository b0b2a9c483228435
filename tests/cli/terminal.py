"""The `holdfast` command as a process of its own: with pipes, or with a terminal as its output and its errors."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

HOLDFAST = [sys.executable, "-c", "from holdfast.cli.main import main; main()"]
PATIENCE = 60.0  # seconds for what takes about one


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of a user without settings, with this home."""
    return {"HOME": str(home), "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def run_command(
    *args: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, stdin: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, without a terminal."""
    found = subprocess.run(
        [*HOLDFAST, *map(str, args)],
        input=b"" if stdin is None else stdin,
        capture_output=True,
        check=False,
        cwd=cwd,
        env=os.environ | (env or {}),
    )
    return subprocess.CompletedProcess(found.args, found.returncode, found.stdout.decode(), found.stderr.decode())


class Terminal:
    """A command with one terminal for its output and another one for its errors. Input comes through a pipe."""

    def __init__(self, *args: str | Path, env: dict[str, str] | None = None) -> None:
        self._texts = {"out": b"", "err": b""}
        self._changed, self._ended = threading.Condition(), set[str]()
        self._masters: list[int] = []
        self._readers: list[threading.Thread] = []
        out, err = self._open_terminal("out"), self._open_terminal("err")
        self.process = subprocess.Popen(
            [*HOLDFAST, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "80"} | (env or {}),
        )
        os.close(out)
        os.close(err)

    def _open_terminal(self, name: str) -> int:
        master, slave = pty.openpty()
        self._masters.append(master)
        reader = threading.Thread(target=self._read, args=(name, master), daemon=True)
        self._readers.append(reader)
        reader.start()
        return slave

    def _read(self, name: str, master: int) -> None:
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # the last process that had the terminal has ended
                with self._changed:
                    self._ended.add(name)
                    self._changed.notify_all()
                return
            with self._changed:
                self._texts[name] += data
                self._changed.notify_all()

    @property
    def output(self) -> str:
        return self._texts["out"].decode().replace("\r\n", "\n")

    @property
    def errors(self) -> str:
        return self._texts["err"].decode().replace("\r\n", "\n")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for_error_text(self, text: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: text in self.errors or "err" in self._ended, PATIENCE)
            assert text in self.errors, self.errors

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Close the input, wait for the end of the command, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        for master in self._masters:
            os.close(master)
        return code
