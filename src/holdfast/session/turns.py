"""The turns of a session: ask an agent, and replay finished turns.

Every way to ask runs the same loop, and the lease of the session lets one turn run at a time.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

from holdfast.concurrency import off_thread, property_twin, twin
from holdfast.errors import Conflict, EventsLost, InvalidArgument, SessionBusy
from holdfast.log.events import Draft
from holdfast.log.messages import Message, read_question
from holdfast.log.view import decode_view
from holdfast.policy.budget import Budget
from holdfast.prompt.session_cache import CALLING_LOGS, SessionCache
from holdfast.session.call_options import CallOptions, model_options, refuse_unknown_options
from holdfast.session.open_streams import OpenStreams

if TYPE_CHECKING:
    from asyncio import Task

    from holdfast.agent_base import BaseAgent
    from holdfast.models.base import Usage
    from holdfast.schema.output import OutputShape
    from holdfast.stores.base import Log, Store
    from holdfast.turn.replay import Replay
    from holdfast.turn.response import Response
    from holdfast.turn.runtime import TurnRuntime
    from holdfast.turn.stream_events import StreamEvent

LONGEST_PAUSE = 0.05  # seconds between two tries to start a turn


class AsyncStream:
    """The events of a turn: `async for event in session.stream_async(...)`. Awaiting it returns itself."""

    def __init__(self, events: AsyncIterator[StreamEvent]) -> None:
        self._events = events

    def __await__(self) -> Generator[Any, None, AsyncStream]:
        return self
        yield  # never reached; it makes this function a generator, which `await` needs

    def __aiter__(self) -> AsyncStream:
        return self

    def __anext__(self) -> Awaitable[StreamEvent]:
        return self._events.__anext__()

    async def aclose(self) -> None:
        """Cancel the turn, if it is still running."""
        close: Callable[[], Awaitable[None]] = self._events.aclose  # type: ignore[attr-defined]
        await close()


class TurnMethods:
    """The methods of `Session` for turns: `run`, `stream`, `json`, `replay`, `usage`, `budget`, `cost`. The `_async`
    methods of the first three run on the event loop itself, so `twin` cannot make them: a twin runs on a thread."""

    store: Store
    agent: BaseAgent | None
    log: Log
    cache: SessionCache
    _is_turn_over: Callable[[], bool] | None = None  # of the session of a tool: whether the tool's turn has ended
    if TYPE_CHECKING:

        @classmethod
        def on_log(cls, store: Store, log: Log, agent: BaseAgent | None = None) -> Self: ...
        @property
        def status(self) -> str: ...
        def _change_status(self, type: str, reason: str | None, actor: str | None) -> None: ...
        def _change_fields(self, fields: dict[str, Any]) -> None: ...
        def prune_if_due(self) -> None: ...
        def get_state(self, name: str, default: Any = None, *, scope: str = "session") -> Any: ...  # noqa: ANN401
        def set_state(self, name: str, value: Any, *, scope: str = "session") -> None: ...  # noqa: ANN401
        def delete_state(self, name: str, *, scope: str = "session") -> bool: ...
        def scope_state(self, scope: str) -> dict[str, Any]: ...
        def fork(self, session_id: str | None = None, at: int | None = None) -> Self: ...

    def _init_caches(self) -> None:
        self.cache = SessionCache()
        self._streams = OpenStreams()

    def in_turn(self, is_over: Callable[[], bool]) -> Self:
        """Return the same session for a tool: until its turn is over it starts no other turn, on any thread."""
        session = copy.copy(self)
        session._is_turn_over = is_over
        return session

    # -- asking ----------------------------------------------------------------------------------------------------

    def run(self, message: str | Message | Mapping[str, Any], **options: Unpack[CallOptions]) -> Response:
        """Ask, wait for the answer and return it. A session runs one turn at a time; `timeout` bounds the wait.

        Options: agent, temperature, max_tokens, tool_choice, stop, metadata, timeout.
        """
        start = self._start("run", message, None, options)
        self._streams.close_abandoned()
        return last_response(self._stream_turn(start))

    async def run_async(self, message: str | Message | Mapping[str, Any], **options: Unpack[CallOptions]) -> Response:
        """Do as `run`, on the event loop."""
        start = self._start("run_async", message, None, options)
        await self._streams.close_abandoned_async(_current_task())
        return await last_response_async(self._stream_turn_async(start))

    def stream(
        self, message: str | Message | Mapping[str, Any], *, schema: object = None, **options: Unpack[CallOptions]
    ) -> Iterator[StreamEvent]:
        """Ask, and return the events of the turn as they happen. Leaving the loop over them early cancels the turn."""
        start = self._start("stream", message, schema, options)
        self._streams.close_abandoned()
        events = self._stream_turn(start)
        start.stream = weakref.ref(events)
        self._streams.add(events)
        return events

    def stream_async(
        self, message: str | Message | Mapping[str, Any], *, schema: object = None, **options: Unpack[CallOptions]
    ) -> AsyncStream:
        """Do as `stream`, on the event loop."""
        start = self._start("stream_async", message, schema, options)
        events = self._stream_turn_async(start, self._streams)
        start.stream = weakref.ref(events)
        return AsyncStream(events)

    def json(
        self, message: str | Message | Mapping[str, Any], *, schema: object, **options: Unpack[CallOptions]
    ) -> Response:
        """Ask for a `response.output` that fits `schema`: a pydantic model, dataclass, TypedDict or JSON Schema."""
        start = self._start("json", message, schema, options, needs_schema=True)
        self._streams.close_abandoned()
        return last_response(self._stream_turn(start))

    async def json_async(
        self, message: str | Message | Mapping[str, Any], *, schema: object, **options: Unpack[CallOptions]
    ) -> Response:
        """Do as `json`, on the event loop."""
        start = self._start("json_async", message, schema, options, needs_schema=True)
        await self._streams.close_abandoned_async(_current_task())
        return await last_response_async(self._stream_turn_async(start))

    # -- the two drivers -------------------------------------------------------------------------------------------

    def _stream_turn(self, start: TurnStart) -> Generator[StreamEvent, None, None]:
        """Run a turn as soon as the session is free, and yield its events. Raises SessionBusy when the wait is over."""
        from holdfast.turn.drivers import drive  # the first turn loads the loop, not the import of Session

        while True:
            runtime = start.new_runtime()
            runtime.stream = start.stream
            with _RetryBeforeLease(runtime):
                opening = start.begin(runtime)
                if opening is not None:
                    yield from drive(runtime, opening)
                    if runtime.has_retention:
                        self.prune_if_due()
                    return
            self.store.clock.sleep(start.next_pause())

    async def _stream_turn_async(
        self, start: TurnStart, streams: OpenStreams | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Do as `_stream_turn`, on the event loop. `streams` remembers the stream of the task that reads it."""
        import asyncio
        from contextlib import aclosing

        from holdfast.turn.drivers import drive_async

        if streams is not None and start.stream is not None:
            reader = asyncio.current_task()
            await streams.close_abandoned_async(reader)
            streams.add_async(start.stream, reader)
        while True:
            runtime = start.new_runtime()
            runtime.stream = start.stream
            with _RetryBeforeLease(runtime):
                opening = await off_thread(start.begin, runtime)
                if opening is not None:
                    async with aclosing(drive_async(runtime, opening)) as events:
                        async for event in events:
                            yield event
                    if runtime.has_retention:
                        await off_thread(self.prune_if_due)
                    return
            await asyncio.sleep(start.next_pause())

    def _start(
        self,
        method: str,
        message: str | Message | Mapping[str, Any],
        schema: object,
        options: CallOptions,
        *,
        needs_schema: bool = False,
    ) -> TurnStart:
        """Check every argument, and return the start of a turn that answers `message`."""
        refuse_unknown_options("Session", method, options, CallOptions)
        shape = _output_shape(schema) if needs_schema or schema is not None else None
        question, metadata = read_question(message), options.get("metadata")

        def begin(runtime: TurnRuntime) -> list[Draft] | None:
            from holdfast.turn.start import begin_turn

            return begin_turn(runtime, question, metadata)

        chosen = model_options(options)
        agent, timeout = self._agent_or_default(options.get("agent")), options.get("timeout")
        wait = BusyWait(self.log.id, self.store, agent.timeout if timeout is None else timeout)
        return TurnStart(lambda: self._new_runtime(agent, shape, chosen), begin, wait)

    def _new_runtime(
        self, agent: BaseAgent | None, shape: OutputShape | None, options: Mapping[str, Any]
    ) -> TurnRuntime:
        from holdfast.turn.runtime import TurnRuntime

        if self.log.uid in CALLING_LOGS.get() or (self._is_turn_over is not None and not self._is_turn_over()):
            raise InvalidArgument(
                f"session {self.log.id!r} runs the turn that called this function, so another turn would wait for it:"
                " return a result and let the model go on, or use another session, such as ctx.session.fork()"
            )
        plan = self._agent_or_default(agent).plan()
        return TurnRuntime(self.store, self.log, plan, session=self, shape=shape, options=options)

    def _agent_or_default(self, agent: BaseAgent | None) -> BaseAgent:
        if agent is None:
            agent = self.agent
        if agent is None:
            from holdfast.agent import Agent

            agent = self.agent = Agent()  # the configured default
        return agent

    # -- replay ----------------------------------------------------------------------------------------------------

    def replay(self, agent: BaseAgent | None = None) -> Replay:
        """Run the finished turns again, each in a fork from before that turn, with the recorded replies of the model
        and results of the tools.

        No model is called and no tool runs. The result names the first difference between the record and the turns as
        this agent would run them, and has the fork of that turn; without a difference, the fork of the last turn.
        """
        from holdfast.turn.recorded_turn import copy_log, find_finished_turns, replay_turn
        from holdfast.turn.replay import Replay

        store, log = self.store, self.log
        rows = list(store.walk(log, 1, store.head(log).head))
        turns = find_finished_turns(store, log, rows)
        if not turns:
            return Replay(turns=0, first_difference=None, session=None)
        plan, copy = self._agent_or_default(agent).plan(), self.on_log(*copy_log(store, log, rows))
        last = len(turns)
        for number, turn in enumerate(turns[:-1], 1):  # in a copy: these forks are of no use afterwards
            if replay_turn(copy.fork(at=turn.first - 1), number, turn, plan) is not None:
                last = number
                break
        fork = self.fork(at=turns[last - 1].first - 1)
        difference = replay_turn(fork, last, turns[last - 1], plan)
        return Replay(turns=len(turns), first_difference=difference, session=fork)

    replay_async = twin(replay)

    # -- usage and cost --------------------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        """The tokens of all model calls of this session, summed."""
        from holdfast.models.base import Usage

        used = decode_view(self.store.head(self.log).view).usage
        return Usage(**{name: used.get(name, 0) for name in Usage.__dataclass_fields__})

    @property
    def budget(self) -> Budget | None:
        """The budget of the session; None if it has none. Set it to raise, lower or remove it."""
        found = self.store.value(self.log, "budget")
        return None if found is None else Budget.of(found)

    @budget.setter
    def budget(self, value: Budget | Mapping[str, Any] | None) -> None:
        self._change_fields({"budget": None if value is None else Budget.of(value).to_dict()})

    @property
    def cost(self) -> float:
        """The cost of the usage, by the prices of the session's budget; 0 without prices."""
        budget = self.budget
        return 0.0 if budget is None else budget.cost_of(decode_view(self.store.head(self.log).view).usage)

    usage_async = property_twin("usage")
    budget_async = property_twin("budget")
    cost_async = property_twin("cost")


class _RetryBeforeLease:
    """Swallows a conflict that happens before the turn has its lease: another process took it first, so try again.
    Events that were lost are for the caller."""

    def __init__(self, runtime: TurnRuntime) -> None:
        self._runtime = runtime

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is None or issubclass(kind, EventsLost):
            return False
        return issubclass(kind, Conflict | SessionBusy) and self._runtime.renewal is None


class BusyWait:
    """The pauses of a caller that waits for the session to be free: each is longer, until the deadline."""

    def __init__(self, session_id: str, store: Store, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:  # nan is no number
            raise InvalidArgument(f"timeout={seconds!r}: use a number of seconds")
        self._id, self._clock = session_id, store.clock
        self._deadline = self._clock.monotonic() + seconds
        self._next = 0.001

    def next_pause(self) -> float:
        """Return the seconds to sleep before the next try. Raises SessionBusy when no time is left."""
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            raise SessionBusy(self._id, retry_after=1.0)
        self._next = min(self._next * 1.5, LONGEST_PAUSE)
        return min(self._next, left)


@dataclass(slots=True)
class TurnStart:
    """How to start one turn; tried again until the session is free."""

    new_runtime: Callable[[], TurnRuntime]
    begin: Callable[[TurnRuntime], list[Draft] | None]  # returns None if another process runs a turn
    wait: BusyWait
    stream: weakref.ref[Any] | None = None  # the stream of the turn, if a program reads one

    def next_pause(self) -> float:
        """Return the seconds to sleep before the next try. Raises SessionBusy when no time is left."""
        return self.wait.next_pause()


def _current_task() -> Task[Any] | None:
    import asyncio

    return asyncio.current_task()


def _output_shape(schema: object) -> OutputShape:
    from holdfast.schema.output import OutputShape

    return OutputShape(schema)


def last_response(events: Iterator[StreamEvent]) -> Response:
    found: Response | None = None
    for event in events:  # read to the end: the driver still has work to do after the last event
        if event.type == "done":
            found = event.response
    assert found is not None, "a turn ends with its response, or raises"
    return found


async def last_response_async(events: AsyncIterator[StreamEvent]) -> Response:
    found: Response | None = None
    async for event in events:  # read to the end, so that the garbage collector has no open generator to close
        if event.type == "done":
            found = event.response
    assert found is not None, "a turn ends with its response, or raises"
    return found
