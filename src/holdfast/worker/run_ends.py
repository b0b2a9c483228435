"""The ends of runs in a run pool: the label of an outcome, and leases that are released for other processes."""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import AgentError, StaleEpoch, TurnCancelled
from holdfast.log.view import decode_view
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import Claim, encode_holder, lease_seconds
from holdfast.turn.response import Response
from holdfast.turn.runtime import TurnRuntime
from holdfast.worker.run_callbacks import RunResult


def release_turn(runtime: TurnRuntime) -> None:
    """Release the lease of a turn that this process will not finish; its later appends are refused."""
    claim = Claim(holder=encode_holder(runtime.store.clock.new_id()), seconds=lease_seconds())
    with suppress(AgentError):
        runtime.store.append(runtime.log, [], epoch=runtime.epoch, claim=claim, release=True)


def release_leftover_lease(store: Store, log: Log, run: str) -> None:
    """Release the lease of a turn that this process no longer runs, so that the turn is taken over at once."""
    head = store.head(log)
    turn, lease = decode_view(head.view).turn, store.lease(log)
    if turn is not None and turn.run == run and lease is not None and lease.holder == encode_holder(run):
        with suppress(StaleEpoch):
            store.append(log, [], epoch=head.epoch, release=True)


def outcome_label(result: RunResult) -> str:
    """Return the outcome of a run as the metrics label it."""
    if isinstance(result, Response):
        return result.status
    return "cancelled" if result is None or isinstance(result, TurnCancelled) else "failed"
