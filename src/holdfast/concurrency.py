"""Where async code crosses over to the blocking stores: one helper, so that there is one rule about cancellation."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio

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


def start_on_own_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start a blocking call on a new thread and return its future. The process may end while the call hangs."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result(result) if error is None else done.set_exception(error)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(call)
        except BaseException as raised:  # noqa: BLE001 - raised where the future is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


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
