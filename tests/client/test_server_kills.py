"""A server that is killed in the middle of an answer: the client waits for it and reads the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import AsyncClient, Client
from tests.kit.server_process import TOKEN, ServerProcess

APP = '''
import time

from holdfast import Agent
from holdfast.models.base import TextDelta
from holdfast.models.scripted import stream_items


class Slow:
    """Says the same each time, a piece every 20 ms."""

    name, provider, context_window = "slow", "test", 128_000

    def stream(self, request):
        for event in stream_items(["piece " * 200], request):
            if isinstance(event, TextDelta):
                time.sleep(0.02)
            yield event

    async def stream_async(self, request):
        raise NotImplementedError("a server runs turns on threads")
        yield


agent = Agent(name="slow", model=Slow())
'''
TEXT = "piece " * 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    app = tmp_path / "app.py"
    app.write_text(APP)
    with ServerProcess(app, f"sqlite:///{tmp_path}/sessions.db", lease_seconds=1) as found:
        yield found


def test_a_stream_and_a_run_survive_a_kill(server: ServerProcess) -> None:
    with Client(server.url, token=TOKEN) as client:
        session, other = client.session("s", agent="slow"), client.session("t", agent="slow")
        answers: list[str] = []
        asking = threading.Thread(target=lambda: answers.append(other.run("go").text))
        asking.start()
        shown, starts = "", 0
        for event in session.stream("go"):
            if event.type == "message_start":
                shown, starts = "", starts + 1
            if event.type == "text_delta":
                if not shown and starts == 1:
                    server.kill()
                    server.launch()
                shown += event.text
        asking.join(60)
        assert (shown, answers) == (TEXT, [TEXT])
        assert event.type == "done"
        for each in (session, other):
            assert [message.text for message in each.messages] == ["go", TEXT]
            assert [run.status for run in each.runs()] == ["finished"]
            assert each.verify()


def test_a_log_is_followed_across_kills(server: ServerProcess) -> None:
    async def follow() -> list[int]:
        async with AsyncClient(server.url, token=TOKEN) as client:
            session = await client.session("s")
            seen = []
            async for event in session.follow():
                seen.append(event.seq)
                if len(seen) == 12:
                    return seen
                if len(seen) % 5 == 0:
                    server.kill()
                    server.launch()
                await session.set_state("n", len(seen))
        return []

    assert asyncio.run(follow()) == list(range(1, 13))
