"""Limits on the memory of answers while they are built: a large page counts for its key and tenant as it grows, and few
requests at once may read a whole session. When the answer begins to be sent, its real size counts instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.types import Scope

from holdfast.server.auth import Caller
from holdfast.server.rate_limits import Slot, Slots

STEP = 1 << 20  # bytes; a smaller answer is not counted
BUILDING = "holdfast.building"  # in the scope of a request: the slots of its answer while it is built

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class GrowingAnswer:
    """The size of an answer so far. It is counted in steps, before more is read."""

    def __init__(self, slots: Slots, caller: Caller, scope: Scope) -> None:
        self._slots, self._caller, self._scope = slots, caller, scope
        self.size, self._counted = 0, STEP

    def add(self, size: int) -> int:
        """Count more bytes and return the size so far; raise TooManyRequests if the key or its tenant has too many."""
        self.size += size
        if self.size > self._counted:
            more = self.size - self._counted + STEP
            hold_while_built(self._scope, self._slots.hold(self._caller.key_id, self._caller.tenant, more))
            self._counted += more
        return self.size


def hold_while_built(scope: Scope, slot: Slot) -> None:
    """Keep a slot until the answer of a request begins to be sent, or the request ends without one."""
    scope.setdefault(BUILDING, []).append(slot)


def release_built(scope: Scope) -> None:
    """Give back the slots of an answer that is built."""
    for slot in scope.pop(BUILDING, ()):
        slot.release()


def reads_whole_session(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint whose answer is as large as a session."""
    endpoint.reads_whole_session = True  # type: ignore[attr-defined]
    return endpoint
