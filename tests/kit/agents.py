"""Scripted agents, and what tests read of a session: used by the scenarios and by the detectors of seeded bugs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import Agent, Message, Session
from holdfast.models.base import ModelRequest


def make_scripted_agent(*script: Any, **options: Any) -> Agent:
    return Agent(provider="scripted", script=list(script), **options)


def make_named_agent(name: str | None, *script: Any, **options: Any) -> Agent:
    return Agent(provider="scripted", script=list(script), name=name, **options)


class RecordingScript:
    """A script that records the requests that it gets, and answers from a list."""

    def __init__(self, *replies: Any) -> None:
        self.requests: list[ModelRequest] = []
        self._replies = list(replies)

    def __call__(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        return self._replies.pop(0)

    def agent(self, name: str | None, **options: Any) -> Agent:
        return Agent(provider="scripted", script=self, name=name, **options)

    def list_messages(self, at: int = -1) -> list[tuple[str, str]]:
        """Role and text of the messages of one request; of the last request by default."""
        return [(message.role, message.text) for message in self.requests[at].messages]


def make_messages(count: int, first: int = 1) -> list[Message]:
    """Messages of a user: `message 1`, `message 2` and so on."""
    return [Message.user(f"message {number}") for number in range(first, first + count)]


def read_texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def list_texts(session: Session) -> list[str]:
    return read_texts(session.messages)


def list_authored_texts(session: Session) -> list[tuple[str, str]]:
    return [(message.author, message.text) for message in session.messages]


def list_types(session: Session) -> list[str]:
    """The type of every event of the log, in order."""
    return [event.type for event in session.events(limit=None)]


def check_session(session: Session) -> None:
    """Assert what holds after every turn: the chain verifies, the view is the fold, and no process holds the lease."""
    store = session.store
    assert session.verify()
    assert store.rebuild_view(session.log) == store.view(session.log)
    assert store.lease(session.log) is None
