"""Two drivers for one loop: `drive` performs a turn on this thread, `drive_async` in this event loop.

Both give what happens as it happens. What breaks out of an effect is told to the loop, which may know somebody who does
better; if it does not, that ends the turn, is recorded, and is raised.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.clock import crashpoint
from holdfast.concurrency import off_thread
from holdfast.errors import AgentError, ContextTooLong, StreamTruncated, TurnFailed
from holdfast.log.events import Draft
from holdfast.models.base import BlockStart, BlockStop, Done, InputJSONDelta, ModelEvent, TextDelta, ThinkingDelta
from holdfast.models.provider_errors import redacted
from holdfast.turn.agent_runtime import Leg
from holdfast.turn.effects import Ask, Decide, Enter, Proceed, Ran, Record, RunCalls, Settle, Steps, Together
from holdfast.turn.parallel import together, together_async
from holdfast.turn.runtime import World
from holdfast.turn.stream_events import (
    ContentBlockStart,
    ContentBlockStop,
    MessageDelta,
    MessageStart,
    MessageStop,
    StreamEvent,
    ToolProgress,
    ToolReturned,
    TurnDone,
)
from holdfast.turn.tool_threads import ASYNC_TOOLS

T = TypeVar("T")


def drive(world: World, opening: list[Draft]) -> Iterator[StreamEvent]:
    """Perform a turn on this thread, yielding what happens as it happens."""
    try:
        yield from _perform(world, world.steps(opening))
    except BaseException as error:  # noqa: BLE001 - recorded, and raised
        world.fail(error)
        raise _as_ours(error) from _cause(error)
    response = world.response()
    yield TurnDone(usage=response.usage, steps=response.steps, response=response, agent=world.plan.name)


def _perform(world: World, steps: Steps) -> Generator[StreamEvent, None, Any]:
    """Every effect that the steps ask for, one after the other; gives what they come to."""
    outcome: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = steps.send(outcome) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        outcome = failure = None
        try:
            if isinstance(effect, Record):
                world.record(effect.drafts, effect.path, last=effect.last)
            elif isinstance(effect, Proceed):
                outcome = world.proceed(effect.drafts, effect.called, effect.path)
            elif isinstance(effect, Ask):
                outcome = yield from _ask(world.legs[effect.path], effect)
            elif isinstance(effect, RunCalls):
                outcome = yield from _run(world.legs[effect.path], effect)
            elif isinstance(effect, Enter):
                outcome = world.enter(effect)
            elif isinstance(effect, Settle):
                outcome = world.settle(effect)
            elif isinstance(effect, Decide):
                with world.deciding():
                    outcome = _decided(effect)
            else:
                outcome = yield from together(world, effect, lambda inner: _perform(world, inner))
        except Exception as error:  # noqa: BLE001 - the loop may have an answer to it
            failure = error


def _ask(leg: Leg, effect: Ask) -> Generator[StreamEvent, None, Done]:
    world, name = leg.world, leg.settings.name
    outcome: Done | None = None
    yield MessageStart(run_id=world.run, step=effect.step, agent=name)
    for again in (True, False):
        try:
            for event in leg.settings.model.stream(leg.request()):
                if isinstance(event, Done):
                    outcome = event
                else:
                    yield from _told(leg, event)
            break
        except ContextTooLong:  # once: with a shorter prompt
            drafts = leg.shrink() if again else []
            if not drafts:
                raise
            world.record(drafts, leg.path, last=False)
    done = _answered(leg, outcome)
    yield MessageDelta(stop_reason=done.stop_reason, usage=done.usage, agent=name)
    yield MessageStop(agent=name)
    world.effect_over(leg)
    return done


def _run(leg: Leg, effect: RunCalls) -> Generator[StreamEvent, None, Ran]:
    world, outcome = leg.world, Ran([], [])
    for item in leg.calls(effect.calls).perform():
        if isinstance(item, ToolProgress):
            yield _named(leg, item)
            continue
        draft = item[1]
        if len(outcome.stored) + 1 < len(effect.calls):
            world.record([draft], leg.path, last=False)
            leg.answered(draft)
            outcome.stored.append(draft)
        else:
            outcome.left.append(draft)
            leg.left.append(draft)
        yield from _result(leg, draft)
    world.effect_over(leg)
    return outcome


def _decided(effect: Decide) -> Any:  # noqa: ANN401 - whatever was asked
    found = effect.ask()
    return ASYNC_TOOLS.submit(_awaited(found)).result() if inspect.isawaitable(found) else found


# -- the same in an event loop -----------------------------------------------------------------------------------------


async def drive_async(world: World, opening: list[Draft]) -> AsyncIterator[StreamEvent]:
    """The same in an event loop; the store is reached through threads, an append under way is always awaited."""
    try:
        async with _closed(_perform_async(world, world.steps(opening), lambda end: None)) as events:
            async for event in events:
                yield event
    except BaseException as error:  # noqa: BLE001 - recorded, and raised
        await off_thread(world.fail, error)
        raise _as_ours(error) from _cause(error)
    response = world.response()
    yield TurnDone(usage=response.usage, steps=response.steps, response=response, agent=world.plan.name)


async def _perform_async(world: World, steps: Steps, ended: Callable[[Any], None]) -> AsyncIterator[StreamEvent]:
    outcome: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = steps.send(outcome) if failure is None else steps.throw(failure)
        except StopIteration as end:
            ended(end.value)
            return
        outcome = failure = None
        box: list[Any] = []  # what an effect that tells something comes to
        try:
            if isinstance(effect, Record):
                await off_thread(world.record, effect.drafts, effect.path, last=effect.last)
            elif isinstance(effect, Proceed):
                outcome = await off_thread(world.proceed, effect.drafts, effect.called, effect.path)
            elif isinstance(effect, Enter):
                outcome = world.enter(effect) if world.is_ready(effect) else await off_thread(world.enter, effect)
            elif isinstance(effect, Settle):
                outcome = await off_thread(world.settle, effect)
            elif isinstance(effect, Decide):
                with world.deciding():
                    outcome = await off_thread(effect.ask)
                    outcome = await outcome if inspect.isawaitable(outcome) else outcome
            else:
                async with _closed(_telling(world, effect, box)) as events:
                    async for event in events:
                        yield event
                outcome = box[0]
        except Exception as error:  # noqa: BLE001 - the loop may have an answer to it
            failure = error


def _telling(world: World, effect: Ask | RunCalls | Together, box: list[Any]) -> AsyncIterator[StreamEvent]:
    if isinstance(effect, Ask):
        return _ask_async(world.legs[effect.path], effect, box)
    if isinstance(effect, RunCalls):
        return _run_async(world.legs[effect.path], effect, box)
    return together_async(world, effect, lambda inner, ended: _perform_async(world, inner, ended), box)


async def _ask_async(leg: Leg, effect: Ask, box: list[Any]) -> AsyncIterator[StreamEvent]:
    world, name = leg.world, leg.settings.name
    outcome: Done | None = None
    yield MessageStart(run_id=world.run, step=effect.step, agent=name)
    for again in (True, False):
        try:
            async with _closed(leg.settings.model.stream_async(leg.request())) as reply:
                async for event in reply:
                    if isinstance(event, Done):
                        outcome = event
                    else:
                        for told in _told(leg, event):
                            yield told
            break
        except ContextTooLong:  # once: with a shorter prompt
            drafts = leg.shrink() if again else []
            if not drafts:
                raise
            await off_thread(world.record, drafts, leg.path, last=False)
    done = _answered(leg, outcome)
    yield MessageDelta(stop_reason=done.stop_reason, usage=done.usage, agent=name)
    yield MessageStop(agent=name)
    world.effect_over(leg)
    box.append(done)


async def _run_async(leg: Leg, effect: RunCalls, box: list[Any]) -> AsyncIterator[StreamEvent]:
    world, outcome = leg.world, Ran([], [])
    batch = await off_thread(leg.calls, effect.calls)
    async with _closed(batch.perform_async()) as results:
        async for item in results:
            if isinstance(item, ToolProgress):
                yield _named(leg, item)
                continue
            draft = item[1]
            if len(outcome.stored) + 1 < len(effect.calls):
                await off_thread(world.record, [draft], leg.path, last=False)
                leg.answered(draft)
                outcome.stored.append(draft)
            else:
                outcome.left.append(draft)
                leg.left.append(draft)
            for told in _result(leg, draft):
                yield told
    world.effect_over(leg)
    box.append(outcome)


# -- what both share ---------------------------------------------------------------------------------------------------


def _as_ours(error: BaseException) -> BaseException:
    """Every failure of a turn is an AgentError; cancellation passes as it is."""
    if isinstance(error, AgentError) or not isinstance(error, Exception):
        return error
    return TurnFailed(f"the turn broke: {type(error).__name__}: {redacted(str(error))}")


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ if _as_ours(error) is error else error


@asynccontextmanager
async def _closed(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Iterate, and close whatever is left at once, not when it is collected."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


async def _awaited(found: Any) -> Any:  # noqa: ANN401 - whatever was asked
    return await found


def _told(leg: Leg, event: ModelEvent) -> Sequence[StreamEvent]:
    """A model's event as a stream tells it; nothing of one that only decides who answers."""
    crashpoint("between deltas")
    if leg.world.stopped or leg.halted:
        leg.refuse_stopped()
    leg.world.heard(leg)
    return () if leg.aside else (_delta(leg, event),)


def _delta(leg: Leg, event: ModelEvent) -> StreamEvent:
    name = leg.settings.name
    if type(event) is TextDelta:
        leg.shown.append(event.text)
        return event if name is None else TextDelta(index=event.index, text=event.text, agent=name)
    if isinstance(event, BlockStart):
        return ContentBlockStart(index=event.index, content_block=event.block, agent=name)
    if isinstance(event, BlockStop):
        return ContentBlockStop(index=event.index, agent=name)
    if isinstance(event, ThinkingDelta):
        return ThinkingDelta(index=event.index, text=event.text, agent=name)
    assert isinstance(event, InputJSONDelta)
    return InputJSONDelta(index=event.index, input_json=event.input_json, agent=name)


def _named(leg: Leg, event: ToolProgress) -> ToolProgress:
    return ToolProgress(call_id=event.call_id, text=event.text, agent=leg.settings.name)


def _answered(leg: Leg, done: Done | None) -> Done:
    crashpoint("after answer")
    if done is None:
        raise StreamTruncated("the model's stream ended without an answer", provider=leg.settings.model.provider)
    return done


def _result(leg: Leg, draft: Draft) -> Iterator[ToolReturned]:
    if draft.type == "tool.returned":
        part = draft.data["message"]["parts"][0]
        yield ToolReturned(
            call_id=draft.data["call_id"],
            name=draft.data["name"],
            content=part["content"],
            is_error=part.get("is_error", False),
            agent=leg.settings.name,
        )
