"""docs/web.md says what happens to a turn whose client goes away; here the client of its chatbot really does."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Session
from tests.docs.pages import list_blocks

PAGE = Path(__file__).parents[2] / "docs" / "web.md"
PATIENCE = 60.0  # seconds for what takes about one
ENDS = ("turn.finished", "turn.cancelled", "turn.failed")
# The chatbot of the page with a model that says a piece of text, then calls a tool that waits for a file.
SLOW = """
import time
from pathlib import Path

import chatbot
from chatbot import app
from holdfast import Agent, tool
from holdfast.testing import call


@tool
def wait() -> str:
    while not Path("go").exists():
        time.sleep(0.01)
    return "waited"


def reply(request):
    return "Done." if any(message.role == "tool" for message in request.messages) else ["Wait a moment.", call("wait")]


chatbot.agent = Agent(name="slow", provider="scripted", script=reply, tools=[wait], store="sqlite:///chat.db")
"""


class Chatbot:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.store = f"sqlite:///{folder / 'chat.db'}"

    def ask(self, path: str) -> socket.socket:
        """Send a question; the answer comes through the connection."""
        body = b'{"text": "hello"}'
        head = f"POST {path}?user=alice HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection

    def wait_for(self, chat: str, *types: str) -> Session:
        """The session, once it has an event of one of these types."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if any(each.id == chat for each in Session.list(store=self.store)):
                session = Session.open(chat, store=self.store)
                if session.events(types=types):
                    return session
            time.sleep(0.02)
        raise AssertionError(f"none of {types} happened")


@pytest.fixture
def chatbot(tmp_path: Path) -> Iterator[Chatbot]:
    (code,) = [block for block in list_blocks(PAGE, "python") if block.startswith("# chatbot.py\n")]
    (tmp_path / "chatbot.py").write_text(code)
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "slow:app", "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while not (found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line := process.stderr.readline())):
        assert line, "the chatbot did not start"
    yield Chatbot(tmp_path, int(found[1]))
    (tmp_path / "go").touch()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)


def test_a_client_that_leaves_its_stream_cancels_the_turn(chatbot: Chatbot) -> None:
    with chatbot.ask("/chats/one/stream") as connection:
        data = b""
        while b"Wait a moment." not in data:
            data += (new := connection.recv(65536))
            assert new, data
    session = chatbot.wait_for("one", *ENDS)
    assert session.events()[-1].type == "turn.cancelled"
    assert session.messages == []


def test_a_client_that_does_not_wait_for_its_answer_finds_it_later(chatbot: Chatbot) -> None:
    with chatbot.ask("/chats/two"):
        chatbot.wait_for("two", "tool.called")
    (chatbot.folder / "go").touch()
    session = chatbot.wait_for("two", *ENDS)
    assert session.events()[-1].type == "turn.finished"
    assert session.messages[-1].text == "Done."
