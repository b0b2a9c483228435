"""The same classes with the plain names awaited: a page of names, not a second implementation."""

from __future__ import annotations

from typing import Any

from holdfast import Entity, File, Image, Message
from holdfast.agent import Agent as _Agent
from holdfast.session import Session as _Session

__all__ = ["Agent", "Entity", "File", "Image", "Message", "Session"]


class Session(_Session):
    """A session whose I/O is awaited: `await session.history()`."""

    archive = _Session.archive_async  # type: ignore[assignment]
    close = _Session.close_async  # type: ignore[assignment]
    events = _Session.events_async  # type: ignore[assignment]
    export = _Session.export_async  # type: ignore[assignment]
    history = _Session.history_async  # type: ignore[assignment]
    pause = _Session.pause_async  # type: ignore[assignment]
    reopen = _Session.reopen_async  # type: ignore[assignment]
    resume = _Session.resume_async  # type: ignore[assignment]
    search = _Session.search_async  # type: ignore[assignment]
    send_message = _Session.send_message_async  # type: ignore[assignment]
    verify = _Session.verify_async  # type: ignore[assignment]


class Agent(_Agent):
    """An agent whose sessions are awaited."""

    def session(self, session_id: str | None = None, **options: Any) -> Session:  # noqa: ANN401 - those of Session
        return Session(session_id, agent=self, **options)
