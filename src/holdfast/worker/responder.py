"""What a run pool gets from its server: the agents that answer in a run, and the feed that hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.plan import Plan
from holdfast.prompt.session_cache import TurnSession
from holdfast.stores.base import Log, Store
from holdfast.turn.stream_events import StreamEvent


class Responder(NamedTuple):
    """The settings of the agent or agents that answer in a run, and the session object that tools see."""

    plan: Plan
    session: TurnSession


# Returns the responder of a run by the id of its agent; raises an AgentError if the agent is unknown.
ResponderLookup = Callable[[Store, Log, str | None], Responder]


class Listener(Protocol):
    """Receives the deltas and appends of turns: a feed."""

    def publish_delta(self, log: Log, delta: StreamEvent, after: int, n: int) -> None: ...
    def notify_append(self, log: Log) -> None: ...
