"""Two drivers for one loop: `drive` performs a turn on this thread, `drive_async` in this event loop.

Both yield stream events while they perform effects. An exception in an effect is thrown into the loop, so that a router
can try another agent. If the loop does not handle it, the turn is recorded as failed and the exception is raised.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.concurrency import is_event_loop_running, off_thread
from holdfast.crashpoints import crashpoint
from holdfast.diagnostics import class_name, report
from holdfast.errors import AgentError, ContextTooLong, StreamTruncated, TurnFailed
from holdfast.log.events import Draft
from holdfast.models.base import BlockStart, BlockStop, Done, InputJSONDelta, ModelEvent, TextDelta, ThinkingDelta
from holdfast.models.provider_errors import redact_secrets
from holdfast.prompt.session_cache import called_by
from holdfast.stores.lease_renewal import run_on_lease_thread
from holdfast.stores.places import is_inside_store
from holdfast.turn.agent_runtime import AgentRuntime
from holdfast.turn.effects import (
    AppendEvents,
    BeginModelCall,
    CallModel,
    CallTools,
    CallUserFunction,
    Effect,
    PrepareAgent,
    RunParallel,
    Steps,
    StopAgents,
    ToolResults,
)
from holdfast.turn.flow_loop import prepare_agent
from holdfast.turn.parallel import run_parallel, run_parallel_async
from holdfast.turn.response import Response
from holdfast.turn.runtime import TurnRuntime
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
from holdfast.turn.tool_threads import ASYNC_TOOL_LOOP

T = TypeVar("T")


def drive(runtime: TurnRuntime, opening: list[Draft]) -> Iterator[StreamEvent]:
    """Perform a turn on this thread. Yields its stream events as they happen."""
    _report_start(runtime)
    try:
        yield from _perform_effects(runtime, runtime.steps(opening))
    except BaseException as error:  # noqa: BLE001 - recorded, and raised
        if isinstance(error, GeneratorExit) and is_inside_store():
            run_on_lease_thread(partial(runtime.fail, error))
        else:
            runtime.fail(error)
        _report_failure(runtime, error)
        raise _as_agent_error(error) from _cause(error)
    response = runtime.response()
    _report_end(runtime, response)
    yield TurnDone(usage=response.usage, steps=response.steps, response=response, agent=runtime.plan.name)


def perform_preview(runtime: TurnRuntime, effect: PrepareAgent) -> AgentRuntime:
    """Prepare an agent on this thread, outside of a turn, and return it with its prompt."""
    for _ in _perform_effects(runtime, prepare_agent(effect)):
        pass
    return runtime.agents[effect.path]


def _perform_effects(runtime: TurnRuntime, steps: Generator[Effect, Any, Any]) -> Generator[StreamEvent, None, Any]:
    """Perform the effects of `steps` one after the other. Returns what `steps` returns."""
    outcome: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = steps.send(outcome) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        outcome = failure = None
        try:
            if isinstance(effect, AppendEvents):
                runtime.append_events(effect.drafts, effect.path, last=effect.last)
            elif isinstance(effect, BeginModelCall):
                outcome = runtime.begin_model_call(effect.drafts, effect.model_call, effect.path)
            elif isinstance(effect, CallModel):
                outcome = yield from _call_model(runtime.agents[effect.path], effect)
            elif isinstance(effect, CallTools):
                outcome = yield from _call_tools(runtime.agents[effect.path], effect)
            elif isinstance(effect, PrepareAgent):
                outcome = runtime.prepare_agent(effect)
            elif isinstance(effect, StopAgents):
                outcome = runtime.stop_agents(effect)
            elif isinstance(effect, CallUserFunction):
                with runtime.limit_user_function(), called_by(runtime.log.uid):
                    outcome = _call_user_function(effect)
            else:
                outcome = yield from run_parallel(runtime, effect, lambda inner: _perform_effects(runtime, inner))
        except Exception as error:  # noqa: BLE001 - thrown into the loop, which may handle it
            failure = error


def _call_model(agent: AgentRuntime, effect: CallModel) -> Generator[StreamEvent, None, Done]:
    runtime, name = agent.runtime, agent.spec.name
    outcome: Done | None = None
    yield MessageStart(run_id=runtime.run, step=effect.step, agent=name)
    for may_retry in (True, False):
        try:
            for event in agent.spec.model.stream(agent.begin_model_request()):
                if isinstance(event, Done):
                    outcome = event
                else:
                    yield from _convert_event(agent, event)
            break
        except ContextTooLong:  # retry once, with a shorter prompt
            drafts = agent.shorten_prompt() if may_retry else []
            if not drafts:
                raise
            runtime.append_events(drafts, agent.path, last=False)
    done = _require_reply(agent, outcome)
    yield MessageDelta(stop_reason=done.stop_reason, usage=done.usage, agent=name)
    yield MessageStop(agent=name)
    runtime.end_effect(agent)
    return done


def _call_tools(agent: AgentRuntime, effect: CallTools) -> Generator[StreamEvent, None, ToolResults]:
    runtime, outcome = agent.runtime, ToolResults([], [])
    for item in agent.begin_tool_calls(effect.calls).perform():
        if isinstance(item, ToolProgress):
            yield _label_progress(agent, item)
            continue
        draft = item[1]
        if len(outcome.stored) + 1 < len(effect.calls):
            runtime.append_events([draft], agent.path, last=False)
            agent.mark_result_stored(draft)
            outcome.stored.append(draft)
        else:
            outcome.unstored.append(draft)
            agent.unstored_results.append(draft)
        yield from _result_events(agent, draft)
    runtime.end_effect(agent)
    return outcome


def _call_user_function(effect: CallUserFunction) -> Any:  # noqa: ANN401 - the value of the user's function
    value = effect.function()
    return ASYNC_TOOL_LOOP.submit(_await_value(value)).result() if inspect.isawaitable(value) else value


# -- the same in an event loop -----------------------------------------------------------------------------------------


async def drive_async(runtime: TurnRuntime, opening: list[Draft]) -> AsyncGenerator[StreamEvent, None]:
    """Perform a turn in this event loop. Calls of the store run on threads, and a running append is always awaited,
    also by a task that is cancelled."""
    _report_start(runtime)
    try:
        async with _close_at_exit(_perform_effects_async(runtime, runtime.steps(opening), lambda end: None)) as events:
            async for event in events:
                yield event
    except BaseException as error:  # noqa: BLE001 - recorded, and raised
        if isinstance(error, GeneratorExit) and not is_event_loop_running():
            run_on_lease_thread(partial(runtime.fail, error))  # dropped outside of its event loop: nothing can await
        else:
            await off_thread(runtime.fail, error)
        _report_failure(runtime, error)
        raise _as_agent_error(error) from _cause(error)
    response = runtime.response()
    _report_end(runtime, response)
    yield TurnDone(usage=response.usage, steps=response.steps, response=response, agent=runtime.plan.name)


async def _perform_effects_async(
    runtime: TurnRuntime, steps: Steps, on_end: Callable[[Any], None]
) -> AsyncIterator[StreamEvent]:
    """Perform the effects of `steps` one after the other. Calls `on_end` with what `steps` returns, because an async
    generator cannot return a value."""
    outcome: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = steps.send(outcome) if failure is None else steps.throw(failure)
        except StopIteration as end:
            on_end(end.value)
            return
        outcome = failure = None
        box: list[Any] = []  # receives the result of an effect that yields stream events
        try:
            if isinstance(effect, AppendEvents):
                await off_thread(runtime.append_events, effect.drafts, effect.path, last=effect.last)
            elif isinstance(effect, BeginModelCall):
                outcome = await off_thread(runtime.begin_model_call, effect.drafts, effect.model_call, effect.path)
            elif isinstance(effect, PrepareAgent):
                outcome = (
                    runtime.prepare_agent(effect)
                    if runtime.is_ready(effect)
                    else await off_thread(runtime.prepare_agent, effect)
                )
            elif isinstance(effect, StopAgents):
                outcome = await off_thread(runtime.stop_agents, effect)
            elif isinstance(effect, CallUserFunction):
                with runtime.limit_user_function(), called_by(runtime.log.uid):
                    outcome = await off_thread(effect.function)
                    outcome = await outcome if inspect.isawaitable(outcome) else outcome
            else:
                async with _close_at_exit(_stream_effect_async(runtime, effect, box)) as events:
                    async for event in events:
                        yield event
                outcome = box[0]
        except Exception as error:  # noqa: BLE001 - thrown into the loop, which may handle it
            failure = error


def _stream_effect_async(
    runtime: TurnRuntime, effect: CallModel | CallTools | RunParallel, box: list[Any]
) -> AsyncIterator[StreamEvent]:
    """Perform an effect that yields stream events. Its result is put in `box`."""
    if isinstance(effect, CallModel):
        return _call_model_async(runtime.agents[effect.path], effect, box)
    if isinstance(effect, CallTools):
        return _call_tools_async(runtime.agents[effect.path], effect, box)
    return run_parallel_async(
        runtime, effect, lambda inner, on_end: _perform_effects_async(runtime, inner, on_end), box
    )


async def _call_model_async(agent: AgentRuntime, effect: CallModel, box: list[Any]) -> AsyncIterator[StreamEvent]:
    runtime, name = agent.runtime, agent.spec.name
    outcome: Done | None = None
    yield MessageStart(run_id=runtime.run, step=effect.step, agent=name)
    for may_retry in (True, False):
        try:
            async with _close_at_exit(agent.spec.model.stream_async(agent.begin_model_request())) as reply:
                async for event in reply:
                    if isinstance(event, Done):
                        outcome = event
                    else:
                        for stream_event in _convert_event(agent, event):
                            yield stream_event
            break
        except ContextTooLong:  # retry once, with a shorter prompt
            drafts = agent.shorten_prompt() if may_retry else []
            if not drafts:
                raise
            await off_thread(runtime.append_events, drafts, agent.path, last=False)
    done = _require_reply(agent, outcome)
    yield MessageDelta(stop_reason=done.stop_reason, usage=done.usage, agent=name)
    yield MessageStop(agent=name)
    runtime.end_effect(agent)
    box.append(done)


async def _call_tools_async(agent: AgentRuntime, effect: CallTools, box: list[Any]) -> AsyncIterator[StreamEvent]:
    runtime, outcome = agent.runtime, ToolResults([], [])
    batch = await off_thread(agent.begin_tool_calls, effect.calls)
    async with _close_at_exit(batch.perform_async()) as results:
        async for item in results:
            if isinstance(item, ToolProgress):
                yield _label_progress(agent, item)
                continue
            draft = item[1]
            if len(outcome.stored) + 1 < len(effect.calls):
                await off_thread(runtime.append_events, [draft], agent.path, last=False)
                agent.mark_result_stored(draft)
                outcome.stored.append(draft)
            else:
                outcome.unstored.append(draft)
                agent.unstored_results.append(draft)
            for stream_event in _result_events(agent, draft):
                yield stream_event
    runtime.end_effect(agent)
    box.append(outcome)


# -- shared by both drivers --------------------------------------------------------------------------------------------


def _report_start(runtime: TurnRuntime) -> None:
    text = "turn %(run_id)s of session %(session_id)s begins"
    report(logging.DEBUG, text, {"session_id": runtime.log.id, "run_id": runtime.run, "agent": runtime.plan.name})


def _report_end(runtime: TurnRuntime, response: Response) -> None:
    text = "turn %(run_id)s of session %(session_id)s is " + response.status
    report(logging.DEBUG, text, {"session_id": runtime.log.id, "run_id": runtime.run, "agent": runtime.plan.name})


def _report_failure(runtime: TurnRuntime, error: BaseException) -> None:
    """Report a turn that failed or was cancelled, by the class of the error. The caller gets the error itself."""
    text = "turn %(run_id)s of session %(session_id)s ended by %(error)s"
    report(logging.DEBUG, text, {"session_id": runtime.log.id, "run_id": runtime.run, "error": class_name(error)})


def _as_agent_error(error: BaseException) -> BaseException:
    """Return the error as an AgentError, so that every failure of a turn is one. Cancellation and other exceptions that
    are no `Exception` are returned unchanged."""
    if isinstance(error, AgentError) or not isinstance(error, Exception):
        return error
    return TurnFailed(f"the turn broke: {type(error).__name__}: {redact_secrets(str(error))}")


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ if _as_agent_error(error) is error else error


class _close_at_exit(Generic[T]):
    """Close the iterator when the block ends, not when it is garbage-collected. A model's own iterator may have no
    `aclose`."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items

    async def __aenter__(self) -> AsyncIterator[T]:
        return self._items

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


async def _await_value(awaitable: Any) -> Any:  # noqa: ANN401 - the value of the user's function
    return await awaitable


def _convert_event(agent: AgentRuntime, event: ModelEvent) -> Sequence[StreamEvent]:
    """Return the stream events for a model's event; none for an agent whose replies are no part of the conversation.
    Raises TurnCancelled if the agent must stop."""
    crashpoint("between deltas")
    if agent.runtime.is_stop_requested or agent.is_halted:
        agent.refuse_stopped()
    agent.runtime.extend_model_deadline(agent)
    return () if agent.aside else (_convert_delta(agent, event),)


def _convert_delta(agent: AgentRuntime, event: ModelEvent) -> StreamEvent:
    name = agent.spec.name
    if type(event) is TextDelta:
        agent.streamed_text.append(event.text)
        return event if name is None else TextDelta(index=event.index, text=event.text, agent=name)
    if isinstance(event, BlockStart):
        return ContentBlockStart(index=event.index, content_block=event.block, agent=name)
    if isinstance(event, BlockStop):
        return ContentBlockStop(index=event.index, agent=name)
    if isinstance(event, ThinkingDelta):
        return ThinkingDelta(index=event.index, text=event.text, agent=name)
    assert isinstance(event, InputJSONDelta)
    return InputJSONDelta(index=event.index, input_json=event.input_json, agent=name)


def _label_progress(agent: AgentRuntime, event: ToolProgress) -> ToolProgress:
    return ToolProgress(call_id=event.call_id, text=event.text, agent=agent.spec.name)


def _require_reply(agent: AgentRuntime, done: Done | None) -> Done:
    crashpoint("after answer")
    if done is None:
        raise StreamTruncated("the model's stream ended without an answer", provider=agent.spec.model.provider)
    return done


def _result_events(agent: AgentRuntime, draft: Draft) -> Iterator[ToolReturned]:
    if draft.type == "tool.returned":
        part = draft.data["message"]["parts"][0]
        yield ToolReturned(
            call_id=draft.data["call_id"],
            name=draft.data["name"],
            content=part["content"],
            is_error=part.get("is_error", False),
            agent=agent.spec.name,
        )
