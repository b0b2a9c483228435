"""`holdfast serve` as the pages start it: a real process on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

HOLDFAST = [
    sys.executable,
    "-c",
    "from holdfast.cli.main import main; main()",
]
PAGES_SAY = "127.0.0.1:2323"
PATIENCE = 60.0  # seconds for what takes about one
_ADDRESS = re.compile(r"holdfast serves https?://(127\.0\.0\.1:\d+)")


class PageServer:
    """A server in a folder of its own; gone when the block is left."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._log = folder / "server.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*HOLDFAST, "serve", *arguments, "--port", "0"],
                cwd=folder,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self.address = self._address()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _address(self) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            if found := _ADDRESS.search(self.log):
                return found[1]
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self.log[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it, and say how it ended."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"the server did not stop: {self.log[-2000:]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
