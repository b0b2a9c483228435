"""Runs the tool calls of one reply in parallel, on threads or in an event loop, and makes a result of each.

Every call gets a result: the tool's own, an error for the model, or a timeout whose outcome is unknown. Only an
`Interrupt` becomes a request for a person's decision.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.clock import Clock
from holdfast.crashpoints import crashpoint
from holdfast.diagnostics import Fields, report
from holdfast.errors import AgentError, NotJSON, TurnCancelled
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.messages import File, Image, Limits
from holdfast.log.parts import part_to_data
from holdfast.models.base import Model
from holdfast.prompt.session_cache import CALLING_LOGS
from holdfast.tools.tool import ANSWERS, Interrupt, MeteredResult, Tool, ToolContext, clip, render
from holdfast.turn.agent_loop import draft_interrupt, draft_tool_result
from holdfast.turn.progress import CallProgress
from holdfast.turn.stream_events import ToolProgress
from holdfast.turn.tool_failures import report_failure, report_timeout
from holdfast.turn.tool_threads import ASYNC_TOOL_LOOP, TOOL_THREADS

DEFAULT_TIMEOUT = 120.0
MAX_WHOLE_BYTES = 16 << 20  # stored bytes of a result that is clipped for the model
TIMED_OUT = "The tool did not answer within {seconds:g} s. It may still have taken effect, or may yet do so."


@dataclass(slots=True)
class RunningCall:
    """A tool call that was started, or is about to be."""

    call: CallProgress
    tool: Tool
    kwargs: dict[str, Any]
    context: ToolContext
    cancelled: threading.Event
    deadline: float  # by the monotonic clock
    is_done: bool = False


CallOutcome = tuple[RunningCall, Draft]


@dataclass(slots=True)
class ToolCallBatch:
    """The calls of one reply, and the mailbox for their results."""

    session_id: str
    log_uid: str
    run: str
    model: Model  # the model that made the calls
    clock: Clock
    # Raises if another process has the lease, so that a process that was suspended too long starts no tool.
    check_lease: Callable[[], None]
    limits: Limits = field(default_factory=Limits)
    running: list[RunningCall] = field(default_factory=list)
    mailbox: SimpleQueue[tuple[RunningCall, Draft] | ToolProgress | None] = field(default_factory=SimpleQueue)
    loop: asyncio.AbstractEventLoop | None = None  # the caller's event loop, if the calls run in one
    awaited: list[Future[Any]] = field(default_factory=list)  # awaitables that blocking tools returned

    def add_call(
        self,
        call: CallProgress,
        tool: Tool,
        make_context: Callable[[threading.Event, Callable[[str], None]], ToolContext],
    ) -> None:
        """Add a call. `make_context` gets the call's cancel event and the function that reports its progress."""
        cancelled = threading.Event()
        context = make_context(cancelled, lambda text: self.mailbox.put(ToolProgress(call_id=call.id, text=text)))
        seconds = tool.timeout or DEFAULT_TIMEOUT
        kwargs = tool.validate(call.arguments)
        self.running.append(RunningCall(call, tool, kwargs, context, cancelled, self.clock.monotonic() + seconds))

    def stop(self) -> None:
        """Make `perform` raise TurnCancelled: the results are not needed any more."""
        self.mailbox.put(None)

    # -- on threads ------------------------------------------------------------------------------------------------

    def perform(self) -> Iterator[CallOutcome | ToolProgress]:
        """Run all calls on threads, and yield each result as it arrives. Closing the iterator sets the cancel event of
        the calls that still run."""
        for running_call in self.running:
            self._start_thread(running_call)
        try:
            yield from self._collect_results()
        finally:
            self._cancel_unfinished()

    def _collect_results(self) -> Iterator[CallOutcome | ToolProgress]:
        waiting = list(self.running)
        while waiting:
            next_deadline = min(running_call.deadline for running_call in waiting)
            try:
                item = self.mailbox.get(timeout=max(0.0, next_deadline - self.clock.monotonic()) + 0.001)
            except Empty:
                for running_call in [
                    running_call for running_call in waiting if running_call.deadline <= self.clock.monotonic()
                ]:
                    waiting.remove(running_call)
                    yield running_call, self._draft_timeout(running_call)
                continue
            if item is None:
                raise TurnCancelled
            if isinstance(item, ToolProgress):
                yield item
            elif item[0] in waiting:  # otherwise the result arrived after the timeout
                waiting.remove(item[0])
                yield item

    def _start_thread(self, running_call: RunningCall) -> None:
        context = contextvars.copy_context()
        TOOL_THREADS.submit(partial(context.run, self._run_tool, running_call))

    def _run_tool(self, running_call: RunningCall) -> None:
        """Run a tool on this thread, and put its result or its failure in the mailbox."""
        try:
            crashpoint("before tool")
            self.check_lease()
            ANSWERS.set(iter(running_call.call.answers))
            CALLING_LOGS.set(CALLING_LOGS.get() | {self.log_uid})
            result = running_call.tool.start(running_call.kwargs, running_call.context)
            if inspect.isawaitable(result):
                result = self._submit_awaitable(result).result()
            crashpoint("after tool")
            draft = self._draft_result(running_call, result)
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, and the mailbox must get a result
            draft = self._draft_failure(running_call, error)
        self.mailbox.put((running_call, draft))

    def _submit_awaitable(self, result: Awaitable[Any]) -> Future[Any]:
        """Await what a tool returned: in the caller's event loop, because it may belong to it, else in our own."""
        if self.loop is None:
            return ASYNC_TOOL_LOOP.submit(_await_result(result))
        self.awaited.append(asyncio.run_coroutine_threadsafe(_await_result(result), self.loop))
        return self.awaited[-1]

    # -- in an event loop ------------------------------------------------------------------------------------------

    async def perform_async(self) -> AsyncIterator[CallOutcome | ToolProgress]:
        """The same as `perform`, from async code: async tools run in this event loop, the others on threads."""
        loop = self.loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []
        wake = lambda: loop.call_soon_threadsafe(arrived.set)  # noqa: E731
        self.mailbox = _WakingQueue(wake)
        for running_call in self.running:
            if running_call.tool.is_async:
                tasks.append(asyncio.create_task(self._run_tool_async(running_call)))
            else:
                self._start_thread(running_call)
        waiting = list(self.running)
        try:
            while waiting:
                seconds = (
                    max(0.0, min(running_call.deadline for running_call in waiting) - self.clock.monotonic()) + 0.001
                )
                try:
                    await asyncio.wait_for(arrived.wait(), seconds)
                except TimeoutError:
                    for running_call in [
                        running_call for running_call in waiting if running_call.deadline <= self.clock.monotonic()
                    ]:
                        waiting.remove(running_call)
                        yield running_call, self._draft_timeout(running_call)
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
            self._cancel_unfinished()
            for task in tasks:
                task.cancel()
            for future in self.awaited:
                future.cancel()

    async def _run_tool_async(self, running_call: RunningCall) -> None:
        try:
            crashpoint("before tool")
            self.check_lease()
            ANSWERS.set(iter(running_call.call.answers))
            CALLING_LOGS.set(CALLING_LOGS.get() | {self.log_uid})
            result = await _await_result(running_call.tool.start(running_call.kwargs, running_call.context))
            crashpoint("after tool")
            draft = self._draft_result(running_call, result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            draft = self._draft_failure(running_call, error)
        self.mailbox.put((running_call, draft))

    # -- results ---------------------------------------------------------------------------------------------------

    def _draft_result(self, running_call: RunningCall, result: object) -> Draft:
        running_call.is_done = True
        more: dict[str, Any] = {}
        is_error = False
        if isinstance(result, MeteredResult):
            more, is_error = {"usage": dict(result.usage), "session": result.session}, result.is_error
            result = result.content
        found: list[Image | File] = []
        text, whole = clip(render(result, found), running_call.tool.max_result_bytes)
        blobs: dict[str, bytes] = {}
        media = [part_to_data(part, self.limits, blobs) for part in found]
        if whole is not None:
            more["whole"] = _digest(whole)
            blobs[more["whole"]] = whole[:MAX_WHOLE_BYTES]
        report(logging.DEBUG, "tool %(tool)s returned in session %(session_id)s", self._name_call(running_call))
        effect = not running_call.tool.idempotent
        return draft_tool_result(
            self.run, running_call.call, text, is_error=is_error, effect=effect, blobs=blobs, media=media, more=more
        )

    def _draft_failure(self, running_call: RunningCall, error: BaseException) -> Draft:
        running_call.is_done = True
        if isinstance(error, Interrupt):
            try:
                codec.encode(error.payload)
                return draft_interrupt(self.run, running_call.call, error.payload)
            except NotJSON as problem:
                error = problem
        if not isinstance(error, CancelledError):
            report_failure(error, self.model, self._name_call(running_call))
        if isinstance(error, CancelledError | SystemExit | KeyboardInterrupt | GeneratorExit):
            text = f"The tool was stopped before it was done ({type(error).__name__})."
        elif isinstance(error, AgentError):
            text = str(error)
        else:
            text = f"{type(error).__name__}: {error}"
        text, _ = clip(render(text), running_call.tool.max_result_bytes)
        return draft_tool_result(
            self.run, running_call.call, text, is_error=True, effect=not running_call.tool.idempotent
        )

    def _draft_timeout(self, running_call: RunningCall) -> Draft:
        running_call.cancelled.set()
        seconds = running_call.tool.timeout or DEFAULT_TIMEOUT
        report_timeout(seconds, self._name_call(running_call))
        text = TIMED_OUT.format(seconds=seconds)
        return draft_tool_result(
            self.run, running_call.call, text, is_error=True, effect=not running_call.tool.idempotent, unknown=True
        )

    def _name_call(self, running_call: RunningCall) -> Fields:
        """Return what identifies a call in a record of the logger."""
        call = running_call.call
        return {"session_id": self.session_id, "run_id": self.run, "tool": call.name, "call_id": call.id}

    def _cancel_unfinished(self) -> None:
        for running_call in self.running:
            if not running_call.is_done:
                running_call.cancelled.set()


class _WakingQueue(SimpleQueue):  # type: ignore[type-arg]
    """A mailbox that wakes an event loop."""

    def __init__(self, wake: Callable[[], object]) -> None:
        super().__init__()
        self._wake = wake

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        try:
            self._wake()
        except RuntimeError:
            pass  # the event loop is closed: the mailbox has no reader any more


async def _await_result(result: Any) -> Any:  # noqa: ANN401 - the value of the tool
    while inspect.isawaitable(result):  # a function may return the coroutine of another one
        result = await result
    return result


def _digest(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()
