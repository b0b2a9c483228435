"""The end of a turn whose first or last append was interrupted, so that no caller knows whether it was stored."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import AgentError
from holdfast.log.events import Draft
from holdfast.log.view import decode_view
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import Claim, Lease

# Exceptions after which the process goes on. A test that simulates the death of a process raises another one.
INTERRUPTS = (Exception, GeneratorExit, KeyboardInterrupt, SystemExit)


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception came from outside, so that it says nothing about the store."""
    return isinstance(error, INTERRUPTS) and not isinstance(error, AgentError)


def append_end(store: Store, log: Log, epoch: int, run: str, drafts: Sequence[Draft]) -> None:
    """Append the last events of a turn, unless the interrupted append has stored them."""
    with suppress(AgentError):  # taken over, or the store is unreachable: the lease runs out
        head = store.head(log)
        turn = decode_view(head.view).turn
        if turn is not None and turn.run == run:
            store.append(log, drafts, epoch=epoch, expected=head.head, release=True)


def find_lease(store: Store, log: Log, claim: Claim) -> Lease | None:
    """The lease that a claim got, if the store has it."""
    with suppress(AgentError):
        lease = store.lease(log)
        if lease is not None and lease.holder == claim.holder:
            return lease
    return None
