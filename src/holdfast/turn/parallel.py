"""Runs the branches of a turn in parallel, on threads or as tasks, and yields their stream events as they happen.

The first failure stops the other branches, unless failures are collected. A thread that hangs in a silent model is not
waited for: what it appends later is refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Any

from holdfast.errors import TurnCancelled
from holdfast.turn.effects import RunParallel, Steps
from holdfast.turn.flow_loop import is_agent_failure
from holdfast.turn.stream_events import StreamEvent
from holdfast.turn.tool_threads import TOOL_THREADS

if TYPE_CHECKING:
    from holdfast.turn.runtime import TurnRuntime

# Stream events that wait to be read. The limit makes a slow reader slow the agents down, and bounds the memory.
MAX_QUEUED_EVENTS = 64

_Item = tuple[int, StreamEvent | None, Any]  # number of the branch; its event; if None, its result or exception


def run_parallel(
    runtime: TurnRuntime, effect: RunParallel, perform: Callable[[Steps], Iterable[StreamEvent]]
) -> Generator[StreamEvent, None, list[Any]]:
    """Run each branch on its own thread. Returns the result of each branch, in order."""
    outcomes: list[Any] = [None] * len(effect.steps)
    mailbox: Queue[_Item] = Queue(MAX_QUEUED_EVENTS)
    closed = threading.Event()

    def put_item(item: _Item) -> None:
        while not closed.is_set():
            try:
                mailbox.put(item, timeout=0.1)
                return
            except Full:
                continue
        raise TurnCancelled  # the mailbox has no reader any more

    def run_branch(number: int) -> None:
        try:
            running = iter(perform(effect.steps[number]))
            while True:
                try:
                    put_item((number, next(running), None))
                except StopIteration as end:
                    put_item((number, None, end.value))
                    return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that reads the mailbox
            try:
                put_item((number, None, error))
            except TurnCancelled:
                pass

    waiting = list(range(len(effect.steps)))[::-1]
    running = 0
    try:
        while waiting or running:
            while waiting and running < effect.max_parallel:
                number, context = waiting.pop(), contextvars.copy_context()
                TOOL_THREADS.submit(lambda number=number, context=context: context.run(run_branch, number))  # type: ignore[misc]
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
        _halt_agents(runtime, effect)
        raise
    finally:
        closed.set()
        while True:  # a branch that waits for room in the mailbox gets it, and then sees that it is closed
            try:
                mailbox.get_nowait()
            except Empty:
                break
    return outcomes


async def run_parallel_async(
    runtime: TurnRuntime,
    effect: RunParallel,
    perform: Callable[[Steps, Callable[[Any], None]], AsyncIterator[StreamEvent]],
    box: list[Any],
) -> AsyncIterator[StreamEvent]:
    """Run each branch as its own task. Puts the list of their results, in order, in `box`."""
    outcomes: list[Any] = [None] * len(effect.steps)
    closing = False
    mailbox: asyncio.Queue[_Item] = asyncio.Queue(MAX_QUEUED_EVENTS)
    free = asyncio.Semaphore(effect.max_parallel)

    async def run_branch(number: int) -> None:
        outcome: list[Any] = []
        async with free:
            events = perform(effect.steps[number], outcome.append)
            try:
                async for event in events:
                    await mailbox.put((number, event, None))
            except BaseException as error:
                if closing:
                    raise
                outcome = [error]
            finally:
                await events.aclose()  # type: ignore[attr-defined]
        await mailbox.put((number, None, outcome[0]))

    tasks = [asyncio.create_task(run_branch(number)) for number in range(len(effect.steps))]
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
        _halt_agents(runtime, effect)
        raise
    finally:
        closing = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    box.append(outcomes)


def _is_collected(effect: RunParallel, error: BaseException) -> bool:
    return effect.collects_failures and isinstance(error, Exception) and is_agent_failure(error)


def _halt_agents(runtime: TurnRuntime, effect: RunParallel) -> None:
    """Stop the agents of all branches that have not ended."""
    for path in effect.paths:
        runtime.halt_agents(path)
