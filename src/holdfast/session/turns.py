"""Running an agent in a session: four ways to ask, one loop; and taking up what was left."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from holdfast.concurrency import off_thread, twin
from holdfast.errors import AgentError, Conflict, InvalidArgument, SessionBusy
from holdfast.log.events import MESSAGE_TYPES, Draft, Event, message_data
from holdfast.log.identifiers import checked_name
from holdfast.log.messages import Message
from holdfast.log.view import Turn, view_of
from holdfast.policy.budget import Budget
from holdfast.stores.documents import message_of

if TYPE_CHECKING:
    from holdfast.agent_base import Askable
    from holdfast.models.base import Usage
    from holdfast.plan import Plan
    from holdfast.schema.output import OutputShape
    from holdfast.stores.base import Log, Store
    from holdfast.turn.replay import Difference, RecordedTurn, Replay
    from holdfast.turn.response import Pending, Response
    from holdfast.turn.runtime import World
    from holdfast.turn.stream_events import StreamEvent

LONGEST_PAUSE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A turn whose process has gone: `resume()` finishes it, `run()` settles it."""

    run_id: str
    question: str
    unknown_calls: list[str]  # tools that may or may not have taken effect
    attempts: int
    parked: bool


class AsyncStream:
    """The events of a turn: `async for event in session.stream_async(...)`, with or without an await before it."""

    def __init__(self, events: AsyncIterator[StreamEvent]) -> None:
        self._events = events

    def __await__(self) -> Generator[Any, None, AsyncStream]:
        return self
        yield  # a generator, so that it can be awaited

    def __aiter__(self) -> AsyncStream:
        return self

    def __anext__(self) -> Awaitable[StreamEvent]:
        return self._events.__anext__()

    async def aclose(self) -> None:
        """Cancel the turn, if it is still going on."""
        close: Callable[[], Awaitable[None]] = self._events.aclose  # type: ignore[attr-defined]
        await close()


class Turns:
    """The methods of a session that ask a model."""

    store: Store
    agent: Askable | None
    _log: Log
    _temp: dict[str, Any]
    if TYPE_CHECKING:

        @property
        def status(self) -> str: ...
        def _move(self, type: str, reason: str | None, actor: str | None) -> None: ...
        def _prune_if_asked(self) -> None: ...
        def fork(self, session_id: str | None = None, at: int | None = None) -> Self: ...

    def _begin_empty(self) -> None:
        """What a session object has before it did anything."""
        self._temp = {}
        self._contexts: set[str] = set()  # prompts that this log is known to hold already
        self._windows: dict[str, Any] = {}  # the end of the conversation as the last prompt had it
        self._idle_policy: dict[str, int] = {}  # since when pruning by itself frees nothing
        self._streams: dict[int, Iterator[StreamEvent]] = {}  # by thread: the stream that it has not finished

    def _drop_windows(self) -> None:
        """Forget what was read: some of it must not be shown again."""
        self._windows.clear()
        self._contexts.clear()

    # -- asking ----------------------------------------------------------------------------------------------------

    def run(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        agent: Askable | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tool_choice: str | None = None,
        stop: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Ask, and wait for the answer. Turns of one session happen one after the other; `timeout` bounds the wait."""
        options = _options(temperature, max_tokens, tool_choice, stop)
        self._close_abandoned()
        return _last(self._turn(message, agent, None, options, metadata, timeout))

    async def run_async(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        agent: Askable | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tool_choice: str | None = None,
        stop: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Response:
        options = _options(temperature, max_tokens, tool_choice, stop)
        return await _last_async(self._turn_async(message, agent, None, options, metadata, timeout))

    def stream(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        agent: Askable | None = None,
        schema: object = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tool_choice: str | None = None,
        stop: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Iterator[StreamEvent]:
        """Ask, and see the answer come. Leaving the loop early cancels the turn."""
        options = _options(temperature, max_tokens, tool_choice, stop)
        shape = None if schema is None else _shape(schema)
        self._close_abandoned()
        events = self._turn(message, agent, shape, options, metadata, timeout)
        self._streams[threading.get_ident()] = events
        return events

    def stream_async(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        agent: Askable | None = None,
        schema: object = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tool_choice: str | None = None,
        stop: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AsyncStream:
        options = _options(temperature, max_tokens, tool_choice, stop)
        shape = None if schema is None else _shape(schema)
        return AsyncStream(self._turn_async(message, agent, shape, options, metadata, timeout))

    def json(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        schema: object,
        agent: Askable | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Ask for `response.output` of a shape: a pydantic model, dataclass, TypedDict or JSON Schema."""
        options = _options(temperature, max_tokens, None, stop)
        self._close_abandoned()
        return _last(self._turn(message, agent, _shape(schema), options, metadata, timeout))

    async def json_async(
        self,
        message: str | Message | Mapping[str, Any],
        *,
        schema: object,
        agent: Askable | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Response:
        options = _options(temperature, max_tokens, None, stop)
        return await _last_async(self._turn_async(message, agent, _shape(schema), options, metadata, timeout))

    # -- the two drivers -------------------------------------------------------------------------------------------

    def _turn(
        self,
        message: str | Message | Mapping[str, Any],
        agent: Askable | None,
        shape: OutputShape | None,
        options: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        timeout: float | None,
    ) -> Iterator[StreamEvent]:
        from holdfast.turn.drivers import drive  # the loop is loaded by those who run one

        question, wait = Message.of(message), self._wait(agent, timeout)
        while True:
            world = self._world(agent, shape, options)
            try:
                opening = world.open_with(question, metadata)
                if opening is not None:
                    yield from drive(world, opening)
                    if world.retained:
                        self._prune_if_asked()
                    return
            except (Conflict, SessionBusy):
                if world.renewal is not None:
                    raise  # not about beginning
            self.store.ids.sleep(wait.pause())

    async def _turn_async(
        self,
        message: str | Message | Mapping[str, Any],
        agent: Askable | None,
        shape: OutputShape | None,
        options: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        timeout: float | None,
    ) -> AsyncIterator[StreamEvent]:
        import asyncio

        from holdfast.turn.drivers import drive_async

        question, wait = Message.of(message), self._wait(agent, timeout)
        while True:
            world = self._world(agent, shape, options)
            try:
                opening = await off_thread(world.open_with, question, metadata)
                if opening is not None:
                    async for event in drive_async(world, opening):
                        yield event
                    if world.retained:
                        await off_thread(self._prune_if_asked)
                    return
            except (Conflict, SessionBusy):
                if world.renewal is not None:
                    raise
            await asyncio.sleep(wait.pause())

    def _world(self, agent: Askable | None, shape: OutputShape | None, options: Mapping[str, Any]) -> World:
        from holdfast.turn.runtime import World

        plan = self._agent(agent).plan()
        return World(self.store, self._log, plan, session=self, temp=self._temp, shape=shape, options=options)

    def _agent(self, agent: Askable | None) -> Askable:
        if agent is None:
            agent = self.agent
        if agent is None:
            from holdfast.agent import Agent

            agent = self.agent = Agent()  # the configured default
        return agent

    def _wait(self, agent: Askable | None, timeout: float | None) -> _Wait:
        seconds = self._agent(agent).timeout if timeout is None else timeout
        return _Wait(self._log.id, self.store, seconds)

    def _close_abandoned(self) -> None:
        """A thread that asks again has left its last stream: that turn is cancelled."""
        left = self._streams.pop(threading.get_ident(), None)
        close: Callable[[], None] | None = getattr(left, "close", None)
        if close is not None:
            close()

    # -- taking up what was left -----------------------------------------------------------------------------------

    def resume(
        self, agent: Askable | None = None, *, reason: str | None = None, actor: str | None = None
    ) -> Response | None:
        """Un-pause if paused; then finish the unfinished or decided turn, if there is one, and return its response."""
        if self.status in ("paused", "closed", "archived"):
            self._move("session.resumed", reason, actor)
        if view_of(self.store.head(self._log).view).turn is None:
            return None
        from holdfast.turn.drivers import drive

        wait = self._wait(agent, None)
        while True:
            world = self._world(agent, None, {})
            try:
                if not world.reopen():
                    return None
                response = _last(drive(world, []))
                if world.retained:
                    self._prune_if_asked()
                return response
            except (Conflict, SessionBusy):
                if world.renewal is not None:
                    raise
            self.store.ids.sleep(wait.pause())

    async def resume_async(
        self, agent: Askable | None = None, *, reason: str | None = None, actor: str | None = None
    ) -> Response | None:
        if (await off_thread(lambda: self.status)) in ("paused", "closed", "archived"):
            await off_thread(self._move, "session.resumed", reason, actor)
        if view_of((await off_thread(self.store.head, self._log)).view).turn is None:
            return None
        import asyncio

        from holdfast.turn.drivers import drive_async

        wait = self._wait(agent, None)
        while True:
            world = self._world(agent, None, {})
            try:
                if not await off_thread(world.reopen):
                    return None
                response = await _last_async(drive_async(world, []))
                if world.retained:
                    await off_thread(self._prune_if_asked)
                return response
            except (Conflict, SessionBusy):
                if world.renewal is not None:
                    raise
            await asyncio.sleep(wait.pause())

    @property
    def unfinished(self) -> Unfinished | None:
        """The turn that a crash cut, if there is one and nobody is at work on it."""
        turn = view_of(self.store.head(self._log).view).turn
        if turn is None or turn.waiting:
            return None
        lease = self.store.lease(self._log)
        if lease is not None and lease.alive:
            return None
        return Unfinished(
            run_id=turn.run,
            question=self._question_of(turn),
            unknown_calls=[name for _seq, name in turn.calls.values()],
            attempts=turn.attempts,
            parked=turn.parked,
        )

    def _question_of(self, turn: Turn) -> str:
        if turn.question:
            rows = self.store.read(self._log, turn.question, turn.question)
        else:
            rows = self.store.read(self._log, turn.first, limit=1, types=["message.added"])
        text: str = message_data(Event(rows[0])).get("text", "") if rows else ""
        return text

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for a person's decision."""
        from holdfast.turn.response import Pending

        turn = view_of(self.store.head(self._log).view).turn
        found = []
        for seq in () if turn is None else turn.pending.values():
            data = self.store.event(self._log, seq).data
            found.append(
                Pending(
                    call_id=data["call_id"],
                    name=data["name"],
                    arguments=data["arguments"],
                    payload=data.get("payload"),
                    reason=data.get("reason"),
                )
            )
        return found

    def approve(self, call_id: str, *, actor: str | None = None) -> None:
        """Let a waiting call run, at the next `resume()`; from any process."""
        self._decide(call_id, {"approved": True}, actor)

    def deny(self, call_id: str, reason: str | None = None, *, actor: str | None = None) -> None:
        """Refuse a waiting call; the model is told so, and why."""
        data = {"approved": False}
        if reason is not None:
            data["reason"] = checked_name(reason, "a reason", self.store.limits.metadata)  # type: ignore[assignment]
        self._decide(call_id, data, actor)

    def _decide(self, call_id: str, data: dict[str, Any], actor: str | None) -> None:
        call_id = checked_name(call_id, "call_id")
        self.store.append(self._log, [Draft(type="approval.decided", data={"call_id": call_id, **data}, actor=actor)])

    # -- again -----------------------------------------------------------------------------------------------------

    def replay(self, agent: Askable | None = None) -> Replay:
        """Run the finished turns again in a fork, with the recorded replies and results as the world.

        Nothing is asked and no tool runs; the report names the first thing that this agent would do differently.
        """
        from holdfast.turn.replay import Replay, recorded_turns

        store, log = self.store, self._log
        rows = list(store.walk(log, 1, store.head(log).head))
        messages = {row.seq: message_of(store, log, row) for row in rows if row.type in MESSAGE_TYPES}
        turns = recorded_turns([Event(row) for row in rows], messages)
        if not turns:
            return Replay(turns=0, first_difference=None, session=None)
        fork = self.fork(at=turns[0].first - 1)
        plan = self._agent(agent).plan()
        difference = None
        for number, turn in enumerate(turns, 1):
            difference = fork._replay_turn(number, turn, plan)
            if difference is not None:
                break
        return Replay(turns=len(turns), first_difference=difference, session=fork)

    def _replay_turn(self, number: int, turn: RecordedTurn, plan: Plan) -> Difference | None:
        from holdfast.turn.drivers import drive
        from holdfast.turn.replay import compared
        from holdfast.turn.runtime import World

        schema = turn.options.get("schema")
        world = World(
            self.store,
            self._log,
            plan,
            session=self,
            temp=self._temp,
            shape=None if schema is None else _shape(schema),
            options={name: value for name, value in turn.options.items() if name != "schema"},
            stage=turn.stage,
        )
        before = self.store.head(self._log).head
        opening = world.open_with(turn.question, None)
        assert opening is not None, "nobody else knows this fork"
        try:
            _last(drive(world, opening))
        except AgentError:
            pass  # the log of the fork says how it ended, and the comparison finds it
        replayed = [Event(row) for row in self.store.read(self._log, before + 1)]
        return compared(number, turn.events, [event for event in replayed if event.run == world.run])

    replay_async = twin(replay)
    approve_async = twin(approve)
    deny_async = twin(deny)

    # -- what it took ----------------------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        """Tokens of every model call of this session."""
        from holdfast.models.base import Usage

        used = view_of(self.store.head(self._log).view).usage
        return Usage(**{name: used.get(name, 0) for name in Usage.__dataclass_fields__})

    @property
    def budget(self) -> Budget | None:
        found = self.store.value(self._log, "budget")
        return None if found is None else Budget.of(found)

    @property
    def cost(self) -> float:
        """What the usage costs, by the prices of the session's budget; 0 without prices."""
        budget = self.budget
        return 0.0 if budget is None else budget.cost_of(view_of(self.store.head(self._log).view).usage)


class _Wait:
    """Waiting for the session to be free: longer pauses each time, until the deadline."""

    def __init__(self, session_id: str, store: Store, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
            raise InvalidArgument(f"timeout={seconds!r}: use a number of seconds")
        self._id, self._ids = session_id, store.ids
        self._deadline = self._ids.elapsed() + seconds
        self._next = 0.001

    def pause(self) -> float:
        """How long to sleep before the next try; SessionBusy when there is no time left."""
        left = self._deadline - self._ids.elapsed()
        if left <= 0:
            raise SessionBusy(self._id, retry_after=1.0)
        self._next = min(self._next * 1.5, LONGEST_PAUSE)
        return min(self._next, left)


def _options(
    temperature: float | None, max_tokens: int | None, tool_choice: str | None, stop: Sequence[str] | None
) -> dict[str, Any]:
    if isinstance(stop, str):
        stop = [stop]
    given = {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "tool_choice": tool_choice,
        "stop": None if stop is None else list(stop),
    }
    return {name: value for name, value in given.items() if value is not None}


def _shape(schema: object) -> OutputShape:
    from holdfast.schema.output import OutputShape

    return OutputShape(schema)


def _last(events: Iterator[StreamEvent]) -> Response:
    found: Response | None = None
    for event in events:  # to its end: there is work after the last event
        if event.type == "done":
            found = event.response
    assert found is not None, "a turn ends with its response, or raises"
    return found


async def _last_async(events: AsyncIterator[StreamEvent]) -> Response:
    found: Response | None = None
    async for event in events:  # to its end, so that nothing is left for the collector
        if event.type == "done":
            found = event.response
    assert found is not None, "a turn ends with its response, or raises"
    return found
