"""A session of a server: the methods, properties and types of `holdfast.Session`, one page of names for each way.

In `RemoteSession` a plain name blocks, and the awaited twins end in `_async`, as in the library. In
`AsyncRemoteSession` everything that asks the server is awaited, what is a property there included:
`await session.messages()`. What never changes (`id`, `user_id`, `app_name`, `created_at`) is plain in both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import aclosing, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast.client import history as history_flows
from holdfast.client import lifecycle as lifecycle_flows
from holdfast.client import runs as run_flows
from holdfast.client import state as state_flows
from holdfast.client.awaited import AwaitedNames
from holdfast.client.base import Remote
from holdfast.client.facts import AsyncRemoteFacts, RemoteFacts
from holdfast.client.requests import Flow, async_method, perform, perform_async, remote_property, sync_method
from holdfast.client.stream import LogTail, RunTail
from holdfast.errors import AgentError, InvalidArgument
from holdfast.session.open_streams import OpenStreams
from holdfast.session.turns import AsyncStream
from holdfast.turn.live_mapping import LiveMapping

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.client.transport import Transport
    from holdfast.log.events import Event
    from holdfast.policy.budget import Budget
    from holdfast.policy.retention import Retention
    from holdfast.turn.stream_events import StreamEvent

P = ParamSpec("P")
T = TypeVar("T")


def _ask_method(flow: Callable[Concatenate[RemoteSession, P], Flow[T]]) -> Callable[Concatenate[RemoteSession, P], T]:
    """A thread that asks again has left its last stream: that turn is cancelled first."""

    @wraps(flow)
    def method(self: RemoteSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._streams.close_abandoned()
        return perform(self._transport, flow(self, *args, **kwargs))

    return method


def _stream_method(
    tail: Callable[Concatenate[Remote, P], RunTail],
) -> Callable[Concatenate[RemoteSession, P], Iterator[StreamEvent]]:
    @wraps(tail)
    def method(self: RemoteSession, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[StreamEvent]:
        found = tail(self, *args, **kwargs)
        self._streams.close_abandoned()
        events = _stream_events(self, found)
        self._streams.add(events)
        return events

    return method


def _stream_method_async(
    tail: Callable[Concatenate[Remote, P], RunTail],
) -> Callable[Concatenate[Remote, P], AsyncStream]:
    @wraps(tail)
    def method(self: Remote, /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream:
        return AsyncStream(_stream_events_async(self, tail(self, *args, **kwargs)))

    return method


def _stream_events(session: Remote, tail: RunTail) -> Generator[StreamEvent, None, None]:
    try:
        yield from session._transport.follow(tail)
    except AgentError:
        raise  # the run failed, or cannot be reached: neither cancels it
    except BaseException:  # the caller left the loop, or was interrupted in it
        with suppress(AgentError):
            perform(session._transport, run_flows.cancel_stream(session, tail))
        raise


async def _stream_events_async(session: Remote, tail: RunTail) -> AsyncIterator[StreamEvent]:
    events: Any = session._transport.follow_async(tail)
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except AgentError:
        raise
    except BaseException:
        with suppress(AgentError):
            await perform_async(session._transport, run_flows.cancel_stream(session, tail))
        raise


def _log_tail(session: Remote, after: int, types: str | Sequence[str] | None) -> LogTail:
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise InvalidArgument(f"after={after!r}: use the number of the last event you have, or 0")
    return LogTail(session._path("events"), after, history_flows.types_of(types))


class RemoteSession(AwaitedNames):
    """A durable conversation that a server keeps and runs: `client.session("user-123").run("hello")`."""

    def __init__(self, wire: Transport, data: Mapping[str, Any], agent: str | None = None) -> None:
        super().__init__(wire, data, agent)
        self._streams = OpenStreams()

    # -- asking ----------------------------------------------------------------------------------------------------

    run = _ask_method(run_flows.run)
    json = _ask_method(run_flows.json)
    stream = _stream_method(run_flows.stream)
    stream_async = _stream_method_async(run_flows.stream)
    resume = sync_method(run_flows.resume)
    retry = sync_method(run_flows.retry)
    pending = remote_property(run_flows.pending)
    approve = sync_method(run_flows.approve)
    deny = sync_method(run_flows.deny)
    answer = sync_method(run_flows.answer)
    unfinished = remote_property(run_flows.unfinished)
    runs = sync_method(run_flows.runs)
    get_run = sync_method(run_flows.get_run)
    cancel = sync_method(run_flows.cancel)
    replay = sync_method(run_flows.replay)

    # -- history ---------------------------------------------------------------------------------------------------

    messages = remote_property(history_flows.messages)
    history = sync_method(history_flows.history)
    __len__ = sync_method(history_flows.length)
    add_message = sync_method(history_flows.add_message)
    add_messages = sync_method(history_flows.add_messages)
    send_message = sync_method(history_flows.send_message)
    clear = sync_method(history_flows.clear)
    search = sync_method(history_flows.search)
    rewind = sync_method(history_flows.rewind)
    events = sync_method(history_flows.events)
    verify = sync_method(history_flows.verify)
    export = sync_method(history_flows.export)
    to_dict = sync_method(history_flows.to_dict)
    fork = sync_method(history_flows.fork)
    forks = sync_method(history_flows.forks)
    parent = remote_property(history_flows.parent)
    compare = sync_method(history_flows.compare)
    brief = sync_method(history_flows.brief)
    successor = sync_method(history_flows.successor)

    def follow(self, after: int = 0, types: str | Sequence[str] | None = None) -> Iterator[Event]:
        """The events of the log after a number, then those to come, for as long as you listen."""
        return self._transport.follow(_log_tail(self, after, types))

    # -- state and facts -------------------------------------------------------------------------------------------

    set_state = sync_method(state_flows.set_state)
    put_state = sync_method(state_flows.set_state)
    get_state = sync_method(state_flows.get_state)
    delete_state = sync_method(state_flows.delete_state)
    update_state = sync_method(state_flows.update_state)
    scope_state = sync_method(state_flows.scope_state)
    state_at = sync_method(state_flows.state_at)

    @property
    def facts(self) -> RemoteFacts:
        return RemoteFacts(self)

    # -- what it is, and how it is kept ----------------------------------------------------------------------------

    about = sync_method(lifecycle_flows.about)
    change = sync_method(lifecycle_flows.change)
    status = remote_property(lifecycle_flows.status)
    head = remote_property(lifecycle_flows.head)
    updated_at = remote_property(lifecycle_flows.updated_at)
    held = remote_property(lifecycle_flows.held)
    usage = remote_property(lifecycle_flows.usage)
    cost = remote_property(lifecycle_flows.cost)
    pause = sync_method(lifecycle_flows.pause)
    close = sync_method(lifecycle_flows.close)
    archive = sync_method(lifecycle_flows.archive)
    reopen = sync_method(lifecycle_flows.reopen)
    prune = sync_method(lifecycle_flows.prune)
    undo_prune = sync_method(lifecycle_flows.undo_prune)
    context = sync_method(lifecycle_flows.context)
    hold = sync_method(lifecycle_flows.hold)
    release = sync_method(lifecycle_flows.release)
    redact = sync_method(lifecycle_flows.redact)
    erase = sync_method(lifecycle_flows.erase)

    @property
    def title(self) -> str | None:
        return perform(self._transport, lifecycle_flows.title(self))

    @title.setter
    def title(self, value: str | None) -> None:
        self.change(title=value)

    @property
    def system(self) -> str | None:
        return perform(self._transport, lifecycle_flows.system(self))

    @system.setter
    def system(self, value: str | None) -> None:
        self.change(system=value)

    @property
    def work_dir(self) -> Path | None:
        """A directory of the server's machine."""
        return perform(self._transport, lifecycle_flows.work_dir(self))

    @work_dir.setter
    def work_dir(self, value: str | Path | None) -> None:
        self.change(work_dir=value)

    @property
    def budget(self) -> Budget | None:
        return perform(self._transport, lifecycle_flows.budget(self))

    @budget.setter
    def budget(self, value: Budget | Mapping[str, Any] | None) -> None:
        self.change(budget=value)

    @property
    def active_agent(self) -> str | None:
        return perform(self._transport, lifecycle_flows.active_agent(self))

    @active_agent.setter
    def active_agent(self, value: str | None) -> None:
        self.change(active_agent=value)

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The state of scope "session", as a live mapping: every write is durable."""
        return self._mapping("session")

    @property
    def user_state(self) -> MutableMapping[str, Any]:
        """The state of the session's user, as a live mapping."""
        return self._mapping("user")

    @property
    def app_state(self) -> MutableMapping[str, Any]:
        """The state of the session's app, as a live mapping."""
        return self._mapping("app")

    @property
    def temp_state(self) -> MutableMapping[str, Any]:
        """The state that stays in this object and is gone when a run ends, as a live mapping."""
        return self._mapping("temp")

    def _mapping(self, scope: str) -> LiveMapping:
        return LiveMapping(
            partial(self.scope_state, scope),
            partial(self.get_state, scope=scope),
            partial(self.set_state, scope=scope),
            partial(self.delete_state, scope=scope),
        )

    @property
    def metadata(self) -> MutableMapping[str, Any]:
        """The metadata, as a live mapping. Two clients that change it at the same time: the later one wins."""

        def read() -> dict[str, Any]:
            return perform(self._transport, lifecycle_flows.metadata(self))

        def remove(name: str) -> bool:
            found = read()
            if name not in found:
                return False
            del found[name]
            self.change(metadata=found)
            return True

        return LiveMapping(
            read,
            lambda name, default: read().get(name, default),
            lambda name, value: self.change(metadata={**read(), name: value}),
            remove,
        )

    @metadata.setter
    def metadata(self, value: Mapping[str, Any]) -> None:
        self.change(metadata=value)

    @property
    def retention(self) -> dict[str, Any] | None:
        """How long the session is kept and in what form, as it was given; None if nothing was."""
        return perform(self._transport, lifecycle_flows.retention(self))

    @retention.setter
    def retention(self, value: Retention | Mapping[str, Any]) -> None:
        self.change(retention=value)


class AsyncRemoteSession(Remote):
    """The same with everything awaited: `await (await client.session("user-123")).run("hello")`."""

    run = async_method(run_flows.run)
    json = async_method(run_flows.json)
    stream = _stream_method_async(run_flows.stream)
    resume = async_method(run_flows.resume)
    retry = async_method(run_flows.retry)
    pending = async_method(run_flows.pending)
    approve = async_method(run_flows.approve)
    deny = async_method(run_flows.deny)
    answer = async_method(run_flows.answer)
    unfinished = async_method(run_flows.unfinished)
    runs = async_method(run_flows.runs)
    get_run = async_method(run_flows.get_run)
    cancel = async_method(run_flows.cancel)
    replay = async_method(run_flows.replay)

    messages = async_method(history_flows.messages)
    history = async_method(history_flows.history)
    length = async_method(history_flows.length)
    add_message = async_method(history_flows.add_message)
    add_messages = async_method(history_flows.add_messages)
    send_message = async_method(history_flows.send_message)
    clear = async_method(history_flows.clear)
    search = async_method(history_flows.search)
    rewind = async_method(history_flows.rewind)
    events = async_method(history_flows.events)
    verify = async_method(history_flows.verify)
    export = async_method(history_flows.export)
    to_dict = async_method(history_flows.to_dict)
    fork = async_method(history_flows.fork)
    forks = async_method(history_flows.forks)
    parent = async_method(history_flows.parent)
    compare = async_method(history_flows.compare)
    brief = async_method(history_flows.brief)
    successor = async_method(history_flows.successor)

    def follow(self, after: int = 0, types: str | Sequence[str] | None = None) -> AsyncIterator[Event]:
        """The events of the log after a number, then those to come, for as long as you listen."""
        return self._transport.follow_async(_log_tail(self, after, types))

    set_state = async_method(state_flows.set_state)
    put_state = async_method(state_flows.set_state)
    get_state = async_method(state_flows.get_state)
    delete_state = async_method(state_flows.delete_state)
    update_state = async_method(state_flows.update_state)
    state = async_method(state_flows.state)
    user_state = async_method(state_flows.user_state)
    app_state = async_method(state_flows.app_state)
    temp_state = async_method(state_flows.temp_state)
    scope_state = async_method(state_flows.scope_state)
    state_at = async_method(state_flows.state_at)

    @property
    def facts(self) -> AsyncRemoteFacts:
        return AsyncRemoteFacts(self)

    about = async_method(lifecycle_flows.about)
    change = async_method(lifecycle_flows.change)
    status = async_method(lifecycle_flows.status)
    head = async_method(lifecycle_flows.head)
    title = async_method(lifecycle_flows.title)
    active_agent = async_method(lifecycle_flows.active_agent)
    metadata = async_method(lifecycle_flows.metadata)
    retention = async_method(lifecycle_flows.retention)
    system = async_method(lifecycle_flows.system)
    work_dir = async_method(lifecycle_flows.work_dir)
    updated_at = async_method(lifecycle_flows.updated_at)
    held = async_method(lifecycle_flows.held)
    usage = async_method(lifecycle_flows.usage)
    cost = async_method(lifecycle_flows.cost)
    budget = async_method(lifecycle_flows.budget)
    pause = async_method(lifecycle_flows.pause)
    close = async_method(lifecycle_flows.close)
    archive = async_method(lifecycle_flows.archive)
    reopen = async_method(lifecycle_flows.reopen)
    prune = async_method(lifecycle_flows.prune)
    undo_prune = async_method(lifecycle_flows.undo_prune)
    context = async_method(lifecycle_flows.context)
    hold = async_method(lifecycle_flows.hold)
    release = async_method(lifecycle_flows.release)
    redact = async_method(lifecycle_flows.redact)
    erase = async_method(lifecycle_flows.erase)
