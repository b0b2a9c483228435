"""Requests that ask a model outside of a run: each on a thread of its own, few at once for each tenant.

A provider may take minutes to answer. The threads of all other requests must not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from holdfast.concurrency import start_on_own_thread
from holdfast.server.auth import Caller
from holdfast.server.rate_limits import Slots

T = TypeVar("T")


async def call_model(slots: Slots, caller: Caller, work: Callable[[], T]) -> T:
    """Call `work` on a thread; raise TooManyRequests if the tenant or the server has too many of these threads.

    The slot is given back when the thread ends, which may be long after the client has hung up.
    """
    slot = slots.hold(caller.key_id, caller.tenant)

    def work_in_slot() -> T:
        with slot:
            return work()

    try:
        done = start_on_own_thread(work_in_slot, "holdfast-model")
    except BaseException:
        slot.release()
        raise
    done.add_done_callback(lambda _: None if done.cancelled() else done.exception())  # read, so that no warning follows
    return await asyncio.shield(done)
