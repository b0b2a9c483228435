"""Going on in several places of a turn at the same time: on threads, or as tasks. What happens comes as it happens.

The first failure stops the others, unless failures are collected. A thread that hangs in a model's silence is not
waited for: what it does later is refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Any

from holdfast.errors import TurnCancelled
from holdfast.turn.effects import Steps, Together
from holdfast.turn.flow_loop import is_of_the_agent
from holdfast.turn.stream_events import StreamEvent
from holdfast.turn.tool_threads import TOOLS

if TYPE_CHECKING:
    from holdfast.turn.runtime import World

WAITING = 64  # events that may wait to be read, so that a slow reader slows the agents down, and memory stays bounded

_Item = tuple[int, StreamEvent | None, Any]  # which place; what happened; if nothing did, how it ended


def together(
    world: World, effect: Together, perform: Callable[[Steps], Iterable[StreamEvent]]
) -> Generator[StreamEvent, None, list[Any]]:
    """Each place on a thread of its own."""
    outcomes: list[Any] = [None] * len(effect.steps)
    mailbox: Queue[_Item] = Queue(WAITING)
    closed = threading.Event()

    def put(item: _Item) -> None:
        while not closed.is_set():
            try:
                mailbox.put(item, timeout=0.1)
                return
            except Full:
                continue
        raise TurnCancelled  # nobody reads it any more

    def work(number: int) -> None:
        try:
            running = iter(perform(effect.steps[number]))
            while True:
                try:
                    put((number, next(running), None))
                except StopIteration as end:
                    put((number, None, end.value))
                    return
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            try:
                put((number, None, error))
            except TurnCancelled:
                pass

    waiting = list(range(len(effect.steps)))[::-1]
    running = 0
    try:
        while waiting or running:
            while waiting and running < effect.most:
                number, context = waiting.pop(), contextvars.copy_context()
                TOOLS.submit(lambda number=number, context=context: context.run(work, number))  # type: ignore[misc]
                running += 1
            number, event, end = mailbox.get()
            if event is not None:
                yield event
                continue
            running -= 1
            if isinstance(end, BaseException) and not _is_collected(effect, end):
                raise end
            outcomes[number] = end
    except BaseException:
        _halt(world, effect)
        raise
    finally:
        closed.set()
        while True:  # whoever waits for room finds some, and then that it is over
            try:
                mailbox.get_nowait()
            except Empty:
                break
    return outcomes


async def together_async(
    world: World,
    effect: Together,
    perform: Callable[[Steps, Callable[[Any], None]], AsyncIterator[StreamEvent]],
    box: list[Any],
) -> AsyncIterator[StreamEvent]:
    """Each place as a task of its own."""
    outcomes: list[Any] = [None] * len(effect.steps)
    closing = False
    mailbox: asyncio.Queue[_Item] = asyncio.Queue(WAITING)
    free = asyncio.Semaphore(effect.most)

    async def work(number: int) -> None:
        found: list[Any] = []
        async with free:
            events = perform(effect.steps[number], found.append)
            try:
                async for event in events:
                    await mailbox.put((number, event, None))
            except BaseException as error:
                if closing:
                    raise
                found = [error]
            finally:
                await events.aclose()  # type: ignore[attr-defined]
        await mailbox.put((number, None, found[0]))

    tasks = [asyncio.create_task(work(number)) for number in range(len(effect.steps))]
    running = len(tasks)
    try:
        while running:
            number, event, end = await mailbox.get()
            if event is not None:
                yield event
                continue
            running -= 1
            if isinstance(end, BaseException) and not _is_collected(effect, end):
                raise end
            outcomes[number] = end
    except BaseException:
        _halt(world, effect)
        raise
    finally:
        closing = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    box.append(outcomes)


def _is_collected(effect: Together, error: BaseException) -> bool:
    return effect.collects and isinstance(error, Exception) and is_of_the_agent(error)


def _halt(world: World, effect: Together) -> None:
    """Nobody waits for those that are not over yet."""
    for path in effect.paths:
        world.halt(path)
