"""A server in its own process, with its CPU time and memory as the kernel counts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers import HERE

TOKEN = "hf_benchmark_0123456789abcdef"
PATIENCE = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
# The server limits the rate of one key; here one key stands for many users.
WITHOUT_LIMITS = {
    "HOLDFAST_RATE": "1000000",
    "HOLDFAST_BURST": "1000000",
    "HOLDFAST_RUNS_PER_KEY": "10000",
    "HOLDFAST_STREAMS_PER_KEY": "10000",
}
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class ServerProcess:
    """`python -m benchmarks.<module>`, a server that prints its address. It is killed when the block ends."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", prefix="holdfast-bench-", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=HERE.parent,
            env=os.environ | WITHOUT_LIMITS | {"HOLDFAST_TOKEN": TOKEN} | environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self.port = self._port()
        except BaseException:
            self.kill()
            raise

    def _port(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := _ADDRESS.search(self.log):
                return int(found[1])
            if self.process.poll() is not None:
                raise RuntimeError(f"the server did not start: {self.log[-500:]}")
            time.sleep(0.02)
        raise RuntimeError(f"the server said nothing for {PATIENCE:.0f} s: {self.log[-500:]}")

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    @property
    def cpu(self) -> float:
        """Return the seconds of CPU so far, including time in the kernel."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def rss(self) -> int:
        """Return the bytes of memory now."""
        return self._memory("VmRSS")

    @property
    def peak_rss(self) -> int:
        """Return the highest number of bytes of memory so far."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0]) * 1024

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()


def holdfast_server(store: str, **environment: str) -> ServerProcess:
    """Return a process with `holdfast serve` on a store, with the agents of `serving_app`."""
    return ServerProcess(
        "benchmarks.serving_app",
        "benchmarks.serving_app",
        "--port=0",
        f"--store={store}",
        HOLDFAST_DATA=str(Path(tempfile.gettempdir())),
        **environment,
    )
