"""Running the calls of one reply at the same time, on threads or in an event loop, and turning each into a result.

Whatever a tool does, something comes back: a result, an error for the model, or the word that nobody knows. Only an
`Interrupt` asks for a person instead.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.clock import Ids, crashpoint
from holdfast.errors import AgentError, NotJSON, TurnCancelled
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.tools.tool import Interrupt, Spent, Tool, ToolContext, clip, render
from holdfast.turn.agent_loop import interrupted, returned
from holdfast.turn.stream_events import ToolProgress
from holdfast.turn.tool_threads import ASYNC_TOOLS, TOOLS
from holdfast.turn.work import Call

DEFAULT_TIMEOUT = 120.0
MAX_WHOLE = 16 << 20
TIMED_OUT = "The tool did not answer within {seconds:g} s. It may still have taken effect, or may yet do so."


@dataclass(slots=True)
class Running:
    """A call that is under way."""

    call: Call
    tool: Tool
    kwargs: dict[str, Any]
    context: ToolContext
    cancelled: threading.Event
    deadline: float
    done: bool = False


Outcome = tuple[Running, Draft]


@dataclass(slots=True)
class Batch:
    """The calls of one reply, and the mailbox where their results arrive."""

    run: str
    ids: Ids
    check: Callable[[], None]  # raises if the lease is somebody else's: a process that slept too long starts nothing
    running: list[Running] = field(default_factory=list)
    mailbox: SimpleQueue[tuple[Running, Draft] | ToolProgress | None] = field(default_factory=SimpleQueue)

    def add(
        self, call: Call, tool: Tool, context: Callable[[threading.Event, Callable[[str], None]], ToolContext]
    ) -> None:
        cancelled = threading.Event()
        told = context(cancelled, lambda text: self.mailbox.put(ToolProgress(call_id=call.id, text=text)))
        seconds = tool.timeout or DEFAULT_TIMEOUT
        kwargs = tool.validate(call.arguments)
        self.running.append(Running(call, tool, kwargs, told, cancelled, self.ids.elapsed() + seconds))

    def stop(self) -> None:
        """Nobody waits for the results any more."""
        self.mailbox.put(None)

    # -- on threads ------------------------------------------------------------------------------------------------

    def perform(self) -> Iterator[Outcome | ToolProgress]:
        """Every result as it comes, from blocking code. Closing this tells the tools that nobody waits any more."""
        for one in self.running:
            context = contextvars.copy_context()
            TOOLS.submit(lambda one=one, context=context: context.run(self._work, one))  # type: ignore[misc]
        try:
            yield from self._collect()
        finally:
            self._give_up()

    def _collect(self) -> Iterator[Outcome | ToolProgress]:
        waiting = list(self.running)
        while waiting:
            next_deadline = min(one.deadline for one in waiting)
            try:
                item = self.mailbox.get(timeout=max(0.0, next_deadline - self.ids.elapsed()) + 0.001)
            except Empty:
                for one in [one for one in waiting if one.deadline <= self.ids.elapsed()]:
                    waiting.remove(one)
                    yield one, self._timed_out(one)
                continue
            if item is None:
                raise TurnCancelled
            if isinstance(item, ToolProgress):
                yield item
            elif item[0] in waiting:  # else it came after its time had run out
                waiting.remove(item[0])
                yield item

    def _work(self, one: Running) -> None:
        """On a tool's thread: run it and post what came of it, whatever that is."""
        try:
            crashpoint("before tool")
            self.check()
            result = one.tool.start(one.kwargs, one.context)
            if one.tool.is_async:
                result = ASYNC_TOOLS.submit(_awaited(result)).result()
            crashpoint("after tool")
            draft = self._result(one, result)
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, and somebody waits for an answer
            draft = self._failure(one, error)
        self.mailbox.put((one, draft))

    # -- in an event loop ------------------------------------------------------------------------------------------

    async def perform_async(self) -> AsyncIterator[Outcome | ToolProgress]:
        """The same from async code: async tools run in this loop, the others on threads."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []
        wake = lambda: loop.call_soon_threadsafe(arrived.set)  # noqa: E731
        self.mailbox = _Waking(wake)
        for one in self.running:
            if one.tool.is_async:
                tasks.append(asyncio.create_task(self._work_async(one)))
            else:
                context = contextvars.copy_context()
                TOOLS.submit(lambda one=one, context=context: context.run(self._work, one))  # type: ignore[misc]
        waiting = list(self.running)
        try:
            while waiting:
                seconds = max(0.0, min(one.deadline for one in waiting) - self.ids.elapsed()) + 0.001
                try:
                    await asyncio.wait_for(arrived.wait(), seconds)
                except TimeoutError:
                    for one in [one for one in waiting if one.deadline <= self.ids.elapsed()]:
                        waiting.remove(one)
                        yield one, self._timed_out(one)
                    continue
                arrived.clear()
                while True:
                    try:
                        item = self.mailbox.get_nowait()
                    except Empty:
                        break
                    if item is None:
                        raise TurnCancelled
                    if isinstance(item, ToolProgress):
                        yield item
                    elif item[0] in waiting:
                        waiting.remove(item[0])
                        yield item
        finally:
            self._give_up()
            for task in tasks:
                task.cancel()

    async def _work_async(self, one: Running) -> None:
        try:
            crashpoint("before tool")
            self.check()
            result = await one.tool.start(one.kwargs, one.context)
            crashpoint("after tool")
            draft = self._result(one, result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            draft = self._failure(one, error)
        self.mailbox.put((one, draft))

    # -- what came of it -------------------------------------------------------------------------------------------

    def _result(self, one: Running, result: object) -> Draft:
        one.done = True
        more: dict[str, Any] = {}
        is_error = False
        if isinstance(result, Spent):
            more, is_error = {"usage": dict(result.usage), "session": result.session}, result.is_error
            result = result.content
        text, whole = clip(render(result), one.tool.max_result_bytes)
        blobs = None if whole is None else {_digest(whole): whole[:MAX_WHOLE]}
        effect = not one.tool.idempotent
        return returned(self.run, one.call, text, is_error=is_error, effect=effect, blobs=blobs, more=more)

    def _failure(self, one: Running, error: BaseException) -> Draft:
        one.done = True
        if isinstance(error, Interrupt):
            try:
                codec.encode(error.payload)
                return interrupted(self.run, one.call, error.payload)
            except NotJSON as problem:
                error = problem
        if isinstance(error, CancelledError | SystemExit | KeyboardInterrupt | GeneratorExit):
            text = f"The tool was stopped before it was done ({type(error).__name__})."
        elif isinstance(error, AgentError):
            text = str(error)
        else:
            text = f"{type(error).__name__}: {error}"
        text, _ = clip(render(text), one.tool.max_result_bytes)
        return returned(self.run, one.call, text, is_error=True, effect=not one.tool.idempotent)

    def _timed_out(self, one: Running) -> Draft:
        one.cancelled.set()
        text = TIMED_OUT.format(seconds=one.tool.timeout or DEFAULT_TIMEOUT)
        return returned(self.run, one.call, text, is_error=True, effect=not one.tool.idempotent, unknown=True)

    def _give_up(self) -> None:
        for one in self.running:
            if not one.done:
                one.cancelled.set()


class _Waking(SimpleQueue):  # type: ignore[type-arg]
    """A mailbox that wakes an event loop."""

    def __init__(self, wake: Callable[[], object]) -> None:
        super().__init__()
        self._wake = wake

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        try:
            self._wake()
        except RuntimeError:
            pass  # the loop is closed: nobody reads this any more


async def _awaited(result: Any) -> Any:  # noqa: ANN401 - what the tool gives
    return await result


def _digest(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()
