"""Where async code crosses over to the blocking stores: one helper, so that there is one rule about cancellation."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


async def off_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call on a thread. If the task is cancelled meanwhile, the call is awaited to its end first:
    an append under way is never left behind with nobody knowing what became of it."""
    import asyncio  # whoever awaits this has it already; blocking programs need not load it

    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    work = loop.run_in_executor(None, partial(context.run, partial(call, *args, **kwargs)))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        work.exception()  # looked at, so that asyncio does not complain that nobody did
        raise


def twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The awaited twin of a blocking method: `history_async = twin(history)`."""

    @wraps(method)
    async def awaited(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await off_thread(method, self, *args, **kwargs)

    awaited.__name__ = f"{method.__name__}_async"
    awaited.__qualname__ = f"{method.__qualname__}_async"
    return awaited  # type: ignore[return-value]
