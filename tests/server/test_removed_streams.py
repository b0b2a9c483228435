"""What was removed on one server is told to no new reader of a stream, on any server, while others still watch."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Message, Session
from holdfast.stores import SQLiteStore
from tests.kit.local_server import TOKEN, LocalServer

SECRET = "heliotrope"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}


@contextmanager
def watch(server: LocalServer, id: str, after: int) -> Any:
    with (
        httpx2.Client(base_url=server.url, headers=HEADERS, timeout=30) as client,
        client.stream("GET", f"/sessions/{id}/events", params={"after": after}) as response,
    ):
        assert response.status_code == 200
        yield response.iter_lines()


def read_until(lines: Any, type: str) -> str:
    """The text of a stream up to the first event of a type."""
    found = []
    for line in lines:
        found.append(line)
        if f'"type":"{type}"' in line:
            return "\n".join(found)
    raise AssertionError(f"the stream ended before {type}")


@pytest.mark.parametrize("way", ["redact", "erase"])
@pytest.mark.parametrize("id", ["s", "fork"])
def test_a_new_reader_is_told_nothing_that_is_gone(tmp_path: Path, way: str, id: str) -> None:
    with ExitStack() as stack:
        stores = [stack.enter_context(SQLiteStore(tmp_path / "log.db")) for _ in range(2)]
        servers = [stack.enter_context(LocalServer(store)) for store in stores]
        session = Session("s", store=stores[0])
        watched = [stack.enter_context(watch(server, "s", 0)) for server in servers]
        seq = session.add_message(Message.user(SECRET))
        for lines in watched:
            assert SECRET in read_until(lines, "message.added")
        session.fork("fork")
        for server in servers:
            with watch(server, "fork", 0) as lines:
                assert SECRET in read_until(lines, "session.forked")
        with httpx2.Client(base_url=servers[0].url, headers=HEADERS, timeout=30) as client:
            body = {"reason": "asked", "seq": seq} if way == "redact" else {"reason": "asked"}
            assert client.post(f"/sessions/s/{way}", json=body).status_code == 200
        last = "session.erased" if (way, id) == ("erase", "s") else "event.redacted"
        for server in reversed(servers):
            with watch(server, id, 0) as lines:
                assert SECRET not in read_until(lines, last)
