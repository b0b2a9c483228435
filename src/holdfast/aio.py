"""The same classes with the plain names awaited: a page of names, not a second implementation."""

from __future__ import annotations

from typing import Any

from holdfast import (
    Budget,
    Entity,
    File,
    Image,
    Interrupt,
    KeywordMemoryService,
    LanguageModel,
    MCPServer,
    Message,
    Response,
    ToolContext,
    Usage,
    VectorMemoryService,
    interrupt,
    tool,
)
from holdfast.agent import Agent as _Agent
from holdfast.flow.runner import Runner as _Runner
from holdfast.memory.memory import Memory as _Memory
from holdfast.session.session import Session as _Session
from holdfast.stores.memory import MemoryStore

__all__ = [
    "Agent",
    "Budget",
    "Entity",
    "File",
    "Image",
    "Interrupt",
    "KeywordMemoryService",
    "LanguageModel",
    "MCPServer",
    "Memory",
    "Message",
    "Response",
    "Runner",
    "Session",
    "ToolContext",
    "Usage",
    "VectorMemoryService",
    "interrupt",
    "tool",
]


class Session(_Session):
    """A session whose I/O is awaited: `await session.run("...")`, `async for event in session.stream("...")`."""

    brief = _Session.brief_async  # type: ignore[assignment]
    prune = _Session.prune_async  # type: ignore[assignment]
    redact = _Session.redact_async  # type: ignore[assignment]
    successor = _Session.successor_async  # type: ignore[assignment]
    answer = _Session.answer_async  # type: ignore[assignment]
    approve = _Session.approve_async  # type: ignore[assignment]
    archive = _Session.archive_async  # type: ignore[assignment]
    close = _Session.close_async  # type: ignore[assignment]
    deny = _Session.deny_async  # type: ignore[assignment]
    events = _Session.events_async  # type: ignore[assignment]
    export = _Session.export_async  # type: ignore[assignment]
    history = _Session.history_async  # type: ignore[assignment]
    json = _Session.json_async  # type: ignore[assignment]
    pause = _Session.pause_async  # type: ignore[assignment]
    reopen = _Session.reopen_async  # type: ignore[assignment]
    replay = _Session.replay_async  # type: ignore[assignment]
    resume = _Session.resume_async  # type: ignore[assignment]
    retry = _Session.retry_async  # type: ignore[assignment]
    run = _Session.run_async  # type: ignore[assignment]
    search = _Session.search_async  # type: ignore[assignment]
    send_message = _Session.send_message_async  # type: ignore[assignment]
    stream = _Session.stream_async  # type: ignore[assignment]
    verify = _Session.verify_async  # type: ignore[assignment]


class Memory(_Memory):
    """A memory whose methods are awaited: `await memory.search("...")`."""

    forget = _Memory.forget_async  # type: ignore[assignment]
    ingest_from_session = _Memory.ingest_from_session_async  # type: ignore[assignment]
    list = _Memory.list_async  # type: ignore[assignment]
    recall = _Memory.recall_async  # type: ignore[assignment]
    search = _Memory.search_async  # type: ignore[assignment]
    store = _Memory.store_async  # type: ignore[assignment]


class Agent(_Agent):
    """An agent whose sessions are awaited: `await agent.run("...")`."""

    json = _Agent.json_async  # type: ignore[assignment]
    run = _Agent.run_async  # type: ignore[assignment]
    stream = _Agent.stream_async  # type: ignore[assignment]

    def session(self, session_id: str | None = None, **options: Any) -> Session:  # noqa: ANN401 - those of Session
        return Session(session_id, agent=self, **options)

    def default_session(self) -> _Session:
        return self._session if self._session is not None else Session(agent=self, store=MemoryStore())


class Runner(_Runner):
    """A runner that is awaited: `await Runner(flow).run("...", session=session)`."""

    run = _Runner.run_async  # type: ignore[assignment]
    stream = _Runner.stream_async  # type: ignore[assignment]
    run_stream = _Runner.run_stream_async  # type: ignore[assignment]
