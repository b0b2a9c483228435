"""The agents of the servers that proofs kill: `holdfast serve killed_server_app.py`. An answer depends on the question.

Every reply says which process gave it, and every tool leaves a file named by its call and its process, so that what ran
is known from outside. Settings come from the environment, because the server is a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from holdfast import Agent, ToolContext, tool
from holdfast.log.messages import Thinking
from holdfast.models.base import ModelEvent, ModelRequest
from holdfast.models.scripted import call, stream_items
from holdfast.stores.postgres import PostgresStore

EFFECTS = Path(os.environ.get("HOLDFAST_PROVE_EFFECTS", "/nonexistent"))
PAUSE = float(os.environ.get("HOLDFAST_PROVE_PAUSE", "0"))  # seconds at most before each piece of a reply
LONG = float(os.environ.get("HOLDFAST_PROVE_LONG", "1"))  # seconds that the slow agent takes
STALLED = os.environ.get("HOLDFAST_PROVE_STALLED")
STORE_PATIENCE = os.environ.get("HOLDFAST_PROVE_PATIENCE")
numbers = count()

if STALLED is not None:
    from holdfast.server.http import header_limits

    header_limits.STALL_SECONDS = float(STALLED)
if STORE_PATIENCE is not None:
    PostgresStore.__init__.__kwdefaults__["patience"] = float(STORE_PATIENCE)  # type: ignore[index]


class Paced:
    """A scripted model that takes its time, and forgets what it was asked."""

    name = provider = "scripted"
    context_window = 128_000

    def __init__(self, script: Callable[[ModelRequest], Any], pause: Callable[[], float]) -> None:
        self._script, self._pause = script, pause

    def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
        found = self._script(request)
        for event in stream_items(found if isinstance(found, list) else [found], request):
            if pause := self._pause():
                time.sleep(pause)
            yield event

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        raise NotImplementedError("a server runs turns on threads")
        yield


@tool
def send(text: str, ctx: ToolContext) -> str:
    """Send something that cannot be called back."""
    return f"sent {text}" if _effect("send", ctx) else "sent twice!"


@tool(idempotent=True)
def put(text: str, ctx: ToolContext) -> str:
    """Put something where it may be already."""
    _effect("put", ctx)
    return f"put {text}"


def _effect(name: str, ctx: ToolContext) -> bool:
    """Leave a trace of this start; False if the call was started before."""
    key = ctx.idempotency_key
    (EFFECTS / f"{name}|{key}|{os.getpid()}|{next(numbers)}").touch()
    try:
        os.close(os.open(EFFECTS / f"done {name} {key}", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def answer_to(question: str) -> str:
    """The answer, which a client can compute as well: some pieces of text that no other question has."""
    digest = hashlib.sha256(question.encode()).hexdigest()
    return f"answer to {question}: " + " ".join(digest[at : at + 8] for at in range(0, 64, 8)) * 3


def working(request: ModelRequest) -> Any:
    """Two calls, then the answer. Which of them is next follows from the request."""
    asked = max(at for at, message in enumerate(request.messages) if message.role == "user")
    replies = sum(message.role == "assistant" for message in request.messages[asked:])
    question = request.messages[asked].text
    me = Thinking(text=f"by {os.getpid()}")
    if replies == 0 and "tools" in question:
        return [me, call("send", {"text": question}), call("put", {"text": question})]
    return [me, answer_to(question)]


def inspecting(_: ModelRequest) -> str:
    """What this process holds: tasks and threads, which cannot be seen from outside."""
    gc.collect()
    tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]
    return json.dumps({"tasks": len(tasks), "threads": threading.active_count()})


app = {
    "worker": Agent(name="worker", model=Paced(working, lambda: random.uniform(0, PAUSE)), tools=[send, put]),
    "quick": Agent(name="quick", model=Paced(working, lambda: 0.0)),
    "slow": Agent(name="slow", model=Paced(working, lambda: LONG / 15)),
    "inspector": Agent(name="inspector", model=Paced(inspecting, lambda: 0.0)),
}
