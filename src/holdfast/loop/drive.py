"""Two drivers for one loop: `drive` performs a turn on this thread, `drive_async` in this event loop.

Both give what happens as it happens. Whatever breaks out of an effect ends the turn, is recorded, and is raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.errors import AgentError, ContextTooLong, StreamTruncated, TurnFailed
from holdfast.ids import crashpoint
from holdfast.log.events import Draft
from holdfast.loop.crossing import off_thread
from holdfast.loop.stream import (
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
from holdfast.loop.turn import Ask, Effect, Proceed, Ran, Record, turn
from holdfast.loop.world import World
from holdfast.models.base import BlockStart, BlockStop, Done, ModelEvent, TextDelta
from holdfast.models.faults import redacted

T = TypeVar("T")


def drive(world: World, opening: list[Draft]) -> Iterator[StreamEvent]:
    """Perform a turn on this thread, yielding what happens as it happens."""
    steps = turn(world.work, world.rules(), opening)
    try:
        effect: Effect = next(steps)
        while True:
            outcome: Any = None
            if isinstance(effect, Record):
                world.record(effect.drafts, last=effect.last)
            elif isinstance(effect, Proceed):
                outcome = world.proceed(effect.drafts, effect.called)
            elif isinstance(effect, Ask):
                yield MessageStart(run_id=world.work.run, step=effect.step)
                for again in (True, False):
                    try:
                        for event in world.settings.model.stream(world.request()):
                            if isinstance(event, Done):
                                outcome = event
                            else:
                                yield _told(world, event)
                        break
                    except ContextTooLong:  # once: with a shorter prompt
                        drafts = world.shrink() if again else []
                        if not drafts:
                            raise
                        world.record(drafts, last=False)
                outcome = _answered(world, outcome)
                yield MessageDelta(stop_reason=outcome.stop_reason, usage=outcome.usage)
                yield MessageStop()
            else:
                outcome = Ran([], [])
                for item in world.batch(effect.calls).perform():
                    if isinstance(item, ToolProgress):
                        yield item
                        continue
                    draft = item[1]
                    if len(outcome.stored) + 1 < len(effect.calls):
                        world.record([draft], last=False)
                        outcome.stored.append(draft)
                    else:
                        outcome.left.append(draft)
                        world.left.append(draft)
                    yield from _result(draft)
            world.effect_over()
            effect = steps.send(outcome)
    except StopIteration:
        pass
    except BaseException as error:  # noqa: BLE001 - recorded, and raised
        world.fail(error)
        raise _as_ours(error) from _cause(error)
    response = world.response()
    yield TurnDone(usage=response.usage, steps=response.steps, response=response)


async def drive_async(world: World, opening: list[Draft]) -> AsyncIterator[StreamEvent]:
    """The same in an event loop; the store is reached through threads, an append under way is always awaited."""
    steps = turn(world.work, world.rules(), opening)
    try:
        effect: Effect = next(steps)
        while True:
            outcome: Any = None
            if isinstance(effect, Record):
                await off_thread(world.record, effect.drafts, last=effect.last)
            elif isinstance(effect, Proceed):
                outcome = await off_thread(world.proceed, effect.drafts, effect.called)
            elif isinstance(effect, Ask):
                yield MessageStart(run_id=world.work.run, step=effect.step)
                for again in (True, False):
                    try:
                        async with _closed(world.settings.model.stream_async(world.request())) as reply:
                            async for event in reply:
                                if isinstance(event, Done):
                                    outcome = event
                                else:
                                    yield _told(world, event)
                        break
                    except ContextTooLong:  # once: with a shorter prompt
                        drafts = world.shrink() if again else []
                        if not drafts:
                            raise
                        await off_thread(world.record, drafts, last=False)
                outcome = _answered(world, outcome)
                yield MessageDelta(stop_reason=outcome.stop_reason, usage=outcome.usage)
                yield MessageStop()
            else:
                outcome = Ran([], [])
                batch = await off_thread(world.batch, effect.calls)
                async with _closed(batch.perform_async()) as results:
                    async for item in results:
                        if isinstance(item, ToolProgress):
                            yield item
                            continue
                        draft = item[1]
                        if len(outcome.stored) + 1 < len(effect.calls):
                            await off_thread(world.record, [draft], last=False)
                            outcome.stored.append(draft)
                        else:
                            outcome.left.append(draft)
                            world.left.append(draft)
                        for told in _result(draft):
                            yield told
            world.effect_over()
            effect = steps.send(outcome)
    except StopIteration:
        pass
    except BaseException as error:  # noqa: BLE001 - recorded, and raised
        await off_thread(world.fail, error)
        raise _as_ours(error) from _cause(error)
    response = world.response()
    yield TurnDone(usage=response.usage, steps=response.steps, response=response)


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


def _told(world: World, event: ModelEvent) -> StreamEvent:
    """A model's event as a stream tells it; deltas pass as they are."""
    crashpoint("between deltas")
    if world.stopped:
        world.refuse_stopped()
    world.heard()
    if type(event) is TextDelta:
        world.shown.append(event.text)
        return event
    if isinstance(event, BlockStart):
        return ContentBlockStart(index=event.index, content_block=event.block)
    if isinstance(event, BlockStop):
        return ContentBlockStop(index=event.index)
    assert not isinstance(event, Done)
    return event


def _answered(world: World, done: Done | None) -> Done:
    crashpoint("after answer")
    if done is None:
        raise StreamTruncated("the model's stream ended without an answer", provider=world.settings.model.provider)
    return done


def _result(draft: Draft) -> Iterator[ToolReturned]:
    if draft.type == "tool.returned":
        part = draft.data["message"]["parts"][0]
        yield ToolReturned(
            call_id=draft.data["call_id"],
            name=draft.data["name"],
            content=part["content"],
            is_error=part.get("is_error", False),
        )
