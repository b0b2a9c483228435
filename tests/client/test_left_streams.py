"""A program that leaves the stream of a server's run: the run is cancelled, also when the program ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.client import Client
from tests.client.test_server_kills import APP
from tests.kit.server_process import PATIENCE, TOKEN, ServerProcess

PROGRAM = """
import sys
from holdfast.client import Client
client = Client(sys.argv[1], token=sys.argv[2])
session = client.session("s", agent="slow")
stream = session.stream("go")
for event in stream:
    if event.type == "text_delta":
        break
{last}
"""


@pytest.mark.parametrize(
    "last", ["", "sys.exit(0)", "del stream"], ids=["the program ends", "exit is called", "the stream is dropped"]
)
def test_a_run_is_cancelled_when_its_reader_leaves(tmp_path: Path, last: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    with ServerProcess(tmp_path / "app.py", f"sqlite:///{tmp_path}/sessions.db", lease_seconds=15) as server:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(last=last), server.url, TOKEN],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        with Client(server.url, token=TOKEN) as client:
            assert wait_for_end_of_turn(client) == "turn.cancelled"


def test_breaking_out_of_a_stream_needs_no_garbage_collector(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    gc.disable()
    try:
        with (
            ServerProcess(tmp_path / "app.py", f"sqlite:///{tmp_path}/sessions.db", lease_seconds=15) as server,
            Client(server.url, token=TOKEN) as client,
        ):
            session = client.session("s", agent="slow")
            for event in session.stream("go"):
                if event.type == "text_delta":
                    break
            assert wait_for_end_of_turn(client) == "turn.cancelled"
    finally:
        gc.enable()


def wait_for_end_of_turn(client: Client) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = [event.type for event in client.open("s").events(limit=None) if event.type.startswith("turn.")][-1]
        if found != "turn.started":
            return found
        assert time.monotonic() < deadline, "the turn never ended"
        time.sleep(0.05)
