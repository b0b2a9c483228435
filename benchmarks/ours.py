"""The holdfast side of the jobs: stores, and sessions with a history."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from benchmarks.workload import Plain, history
from holdfast import Message, Session
from holdfast.stores.base import Store

CHUNK = 1000


def seeded(store: Store, id: str, count: int) -> Session:
    """Create a session with `count` messages."""
    session = Session(id, store=store)
    fill(session, history(count))
    return session


def fill(session: Session, messages: Iterable[Plain]) -> None:
    rest = iter(messages)
    while chunk := list(itertools.islice(rest, CHUNK)):
        session.add_messages(chunk)


def prepared(messages: Iterable[Plain]) -> list[Message]:
    """Return the messages as objects, as a caller has them before the clock starts."""
    return [Message.of(message) for message in messages]


def texts(session: Session) -> list[str]:
    """Return the text of every message of a session, for an audit."""
    return [_said(message.to_dict()) for message in session.messages]


def _said(message: dict[str, Any]) -> str:
    calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
    return f"{message['content'] or ''}{calls}"
