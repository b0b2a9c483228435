"""Where async code crosses over to the blocking stores: one helper, so that there is one rule about cancellation."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


async def off_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call on a thread. If the task is cancelled, the call is awaited to its end first:
    otherwise no caller would know whether an append under way was stored."""
    import asyncio  # imported late: blocking programs need not load it

    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    work = loop.run_in_executor(None, partial(context.run, partial(call, *args, **kwargs)))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        work.exception()  # read, so that asyncio does not warn of an exception that was never retrieved
        raise


def is_event_loop_running() -> bool:
    """Whether code of this thread can await."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The awaited twin of a blocking method: `history_async = twin(history)`."""

    @wraps(method)
    async def call_async(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await off_thread(method, self, *args, **kwargs)

    call_async.__name__ = f"{method.__name__}_async"
    call_async.__qualname__ = f"{method.__qualname__}_async"
    return call_async  # type: ignore[return-value]


def class_twin(method: Any) -> Any:  # noqa: ANN401 - a classmethod object, which has no type of its own
    """The awaited twin of a class method: `open_async = class_twin(open)`."""
    return classmethod(twin(method.__func__))


def property_twin(name: str) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """The awaited twin of a property: `status_async = property_twin("status")`."""

    async def read_async(self: Any) -> Any:  # noqa: ANN401 - the value of the property
        return await off_thread(getattr, self, name)

    read_async.__name__ = read_async.__qualname__ = f"{name}_async"
    read_async.__doc__ = f"Read `{name}` without blocking the event loop."
    return read_async


def is_running(events: Generator[Any, Any, Any] | AsyncGenerator[Any, Any]) -> bool:
    """Whether the reader of a generator waits for its next item at this moment."""
    return events.gi_running if isinstance(events, Generator) else bool(events.ag_running)  # type: ignore[attr-defined]
