"""A session of a server: the methods, properties and types of `holdfast.Session`, one page of names for each way.

In `RemoteSession` a plain name blocks, and the awaited twins end in `_async`, as in the library. In
`AsyncRemoteSession` everything that asks the server is awaited, what is a property there included:
`await session.messages()`. What never changes (`id`, `user_id`, `app_name`, `created_at`) is plain in both.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast.client import history as talk
from holdfast.client import lifecycle as keeping
from holdfast.client import runs as turns
from holdfast.client import state as scopes
from holdfast.client.base import Remote
from holdfast.client.facts import AsyncRemoteFacts, RemoteFacts
from holdfast.client.requests import Flow, awaited, blocking, performed, performed_async, reading
from holdfast.client.stream import LogTail, RunTail
from holdfast.errors import AgentError, InvalidArgument
from holdfast.session.turns import AsyncStream

if TYPE_CHECKING:
    from holdfast.client.transport import Wire
    from holdfast.log.events import Event
    from holdfast.policy.retention import Retention
    from holdfast.turn.stream_events import StreamEvent

P = ParamSpec("P")
T = TypeVar("T")


def _asking(flow: Callable[Concatenate[RemoteSession, P], Flow[T]]) -> Callable[Concatenate[RemoteSession, P], T]:
    """A thread that asks again has left its last stream: that turn is cancelled first."""

    @wraps(flow)
    def method(self: RemoteSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._close_abandoned()
        return performed(self._wire, flow(self, *args, **kwargs))

    return method


def _streaming(
    tail: Callable[Concatenate[Remote, P], RunTail],
) -> Callable[Concatenate[RemoteSession, P], Iterator[StreamEvent]]:
    @wraps(tail)
    def method(self: RemoteSession, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[StreamEvent]:
        found = tail(self, *args, **kwargs)
        self._close_abandoned()
        events = _told(self, found)
        self._streams[threading.get_ident()] = events
        return events

    return method


def _streaming_async(tail: Callable[Concatenate[Remote, P], RunTail]) -> Callable[Concatenate[Remote, P], AsyncStream]:
    @wraps(tail)
    def method(self: Remote, /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream:
        return AsyncStream(_told_async(self, tail(self, *args, **kwargs)))

    return method


def _told(session: Remote, tail: RunTail) -> Iterator[StreamEvent]:
    try:
        yield from session._wire.follow(tail)
    except AgentError:
        raise  # the run failed, or cannot be reached: neither cancels it
    except BaseException:  # somebody left the loop, or was interrupted in it
        with suppress(AgentError):
            performed(session._wire, turns.leave(session, tail))
        raise


async def _told_async(session: Remote, tail: RunTail) -> AsyncIterator[StreamEvent]:
    events: Any = session._wire.follow_async(tail)
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except AgentError:
        raise
    except BaseException:
        with suppress(AgentError):
            await performed_async(session._wire, turns.leave(session, tail))
        raise


def _log_tail(session: Remote, after: int, types: str | Sequence[str] | None) -> LogTail:
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise InvalidArgument(f"after={after!r}: use the number of the last event you have, or 0")
    return LogTail(session._path("events"), after, talk.types_of(types))


class RemoteSession(Remote):
    """A durable conversation that a server keeps and runs: `client.session("user-123").run("hello")`."""

    def __init__(self, wire: Wire, data: Mapping[str, Any], agent: str | None = None) -> None:
        super().__init__(wire, data, agent)
        self._streams: dict[int, Iterator[StreamEvent]] = {}  # by thread: the stream that it has not finished

    def _close_abandoned(self) -> None:
        left: Any = self._streams.pop(threading.get_ident(), None)
        if left is not None:
            left.close()

    # -- asking ----------------------------------------------------------------------------------------------------

    run = _asking(turns.run)
    run_async = awaited(turns.run)
    json = _asking(turns.json)
    json_async = awaited(turns.json)
    stream = _streaming(turns.streamed)
    stream_async = _streaming_async(turns.streamed)
    resume = blocking(turns.resume)
    resume_async = awaited(turns.resume)
    pending = reading(turns.pending)
    approve = blocking(turns.approve)
    approve_async = awaited(turns.approve)
    deny = blocking(turns.deny)
    deny_async = awaited(turns.deny)
    unfinished = reading(turns.unfinished)
    runs = blocking(turns.runs)
    get_run = blocking(turns.get_run)
    cancel = blocking(turns.cancel)
    replay = blocking(turns.replay)
    replay_async = awaited(turns.replay)

    # -- history ---------------------------------------------------------------------------------------------------

    messages = reading(talk.messages)
    history = blocking(talk.history)
    history_async = awaited(talk.history)
    __len__ = blocking(talk.length)
    add_message = blocking(talk.add_message)
    add_messages = blocking(talk.add_messages)
    send_message = blocking(talk.send_message)
    send_message_async = awaited(talk.send_message)
    clear = blocking(talk.clear)
    search = blocking(talk.search)
    search_async = awaited(talk.search)
    rewind = blocking(talk.rewind)
    events = blocking(talk.events)
    events_async = awaited(talk.events)
    verify = blocking(talk.verify)
    verify_async = awaited(talk.verify)
    export = blocking(talk.export)
    export_async = awaited(talk.export)
    to_dict = blocking(talk.to_dict)
    fork = blocking(talk.fork)
    forks = blocking(talk.forks)
    parent = reading(talk.parent)
    compare = blocking(talk.compare)
    brief = blocking(talk.brief)
    brief_async = awaited(talk.brief)
    successor = blocking(talk.successor)
    successor_async = awaited(talk.successor)

    def follow(self, after: int = 0, types: str | Sequence[str] | None = None) -> Iterator[Event]:
        """The events of the log after a number, then those to come, for as long as you listen."""
        return self._wire.follow(_log_tail(self, after, types))

    # -- state and facts -------------------------------------------------------------------------------------------

    set_state = blocking(scopes.set_state)
    put_state = blocking(scopes.set_state)
    get_state = blocking(scopes.get_state)
    delete_state = blocking(scopes.delete_state)
    update_state = blocking(scopes.update_state)
    state = reading(scopes.state)
    scope_state = blocking(scopes.scope_state)
    state_at = blocking(scopes.state_at)

    @property
    def facts(self) -> RemoteFacts:
        return RemoteFacts(self)

    # -- what it is, and how it is kept ----------------------------------------------------------------------------

    about = blocking(keeping.about)
    change = blocking(keeping.change)
    status = reading(keeping.status)
    head = reading(keeping.head)
    system = reading(keeping.system)
    work_dir = reading(keeping.work_dir)
    updated_at = reading(keeping.updated_at)
    held = reading(keeping.held)
    usage = reading(keeping.usage)
    cost = reading(keeping.cost)
    budget = reading(keeping.budget)
    pause = blocking(keeping.pause)
    pause_async = awaited(keeping.pause)
    close = blocking(keeping.close)
    close_async = awaited(keeping.close)
    archive = blocking(keeping.archive)
    archive_async = awaited(keeping.archive)
    reopen = blocking(keeping.reopen)
    reopen_async = awaited(keeping.reopen)
    prune = blocking(keeping.prune)
    prune_async = awaited(keeping.prune)
    undo_prune = blocking(keeping.undo_prune)
    context = blocking(keeping.context)
    context_async = awaited(keeping.context)
    hold = blocking(keeping.hold)
    release = blocking(keeping.release)
    redact = blocking(keeping.redact)
    redact_async = awaited(keeping.redact)
    erase = blocking(keeping.erase)
    erase_async = awaited(keeping.erase)

    @property
    def title(self) -> str | None:
        return performed(self._wire, keeping.title(self))

    @title.setter
    def title(self, value: str | None) -> None:
        self.change(title=value)

    @property
    def active_agent(self) -> str | None:
        return performed(self._wire, keeping.active_agent(self))

    @active_agent.setter
    def active_agent(self, value: str | None) -> None:
        self.change(active_agent=value)

    @property
    def metadata(self) -> dict[str, Any]:
        return performed(self._wire, keeping.metadata(self))

    @metadata.setter
    def metadata(self, value: Mapping[str, Any]) -> None:
        self.change(metadata=value)

    @property
    def retention(self) -> dict[str, Any] | None:
        """How long the session is kept and in what form, as it was given; None if nothing was."""
        return performed(self._wire, keeping.retention(self))

    @retention.setter
    def retention(self, value: Retention | Mapping[str, Any]) -> None:
        self.change(retention=value)


class AsyncRemoteSession(Remote):
    """The same with everything awaited: `await (await client.session("user-123")).run("hello")`."""

    run = awaited(turns.run)
    json = awaited(turns.json)
    stream = _streaming_async(turns.streamed)
    resume = awaited(turns.resume)
    pending = awaited(turns.pending)
    approve = awaited(turns.approve)
    deny = awaited(turns.deny)
    unfinished = awaited(turns.unfinished)
    runs = awaited(turns.runs)
    get_run = awaited(turns.get_run)
    cancel = awaited(turns.cancel)
    replay = awaited(turns.replay)

    messages = awaited(talk.messages)
    history = awaited(talk.history)
    length = awaited(talk.length)
    add_message = awaited(talk.add_message)
    add_messages = awaited(talk.add_messages)
    send_message = awaited(talk.send_message)
    clear = awaited(talk.clear)
    search = awaited(talk.search)
    rewind = awaited(talk.rewind)
    events = awaited(talk.events)
    verify = awaited(talk.verify)
    export = awaited(talk.export)
    to_dict = awaited(talk.to_dict)
    fork = awaited(talk.fork)
    forks = awaited(talk.forks)
    parent = awaited(talk.parent)
    compare = awaited(talk.compare)
    brief = awaited(talk.brief)
    successor = awaited(talk.successor)

    def follow(self, after: int = 0, types: str | Sequence[str] | None = None) -> AsyncIterator[Event]:
        """The events of the log after a number, then those to come, for as long as you listen."""
        return self._wire.follow_async(_log_tail(self, after, types))

    set_state = awaited(scopes.set_state)
    put_state = awaited(scopes.set_state)
    get_state = awaited(scopes.get_state)
    delete_state = awaited(scopes.delete_state)
    update_state = awaited(scopes.update_state)
    state = awaited(scopes.state)
    scope_state = awaited(scopes.scope_state)
    state_at = awaited(scopes.state_at)

    @property
    def facts(self) -> AsyncRemoteFacts:
        return AsyncRemoteFacts(self)

    about = awaited(keeping.about)
    change = awaited(keeping.change)
    status = awaited(keeping.status)
    head = awaited(keeping.head)
    title = awaited(keeping.title)
    active_agent = awaited(keeping.active_agent)
    metadata = awaited(keeping.metadata)
    retention = awaited(keeping.retention)
    system = awaited(keeping.system)
    work_dir = awaited(keeping.work_dir)
    updated_at = awaited(keeping.updated_at)
    held = awaited(keeping.held)
    usage = awaited(keeping.usage)
    cost = awaited(keeping.cost)
    budget = awaited(keeping.budget)
    pause = awaited(keeping.pause)
    close = awaited(keeping.close)
    archive = awaited(keeping.archive)
    reopen = awaited(keeping.reopen)
    prune = awaited(keeping.prune)
    undo_prune = awaited(keeping.undo_prune)
    context = awaited(keeping.context)
    hold = awaited(keeping.hold)
    release = awaited(keeping.release)
    redact = awaited(keeping.redact)
    erase = awaited(keeping.erase)
