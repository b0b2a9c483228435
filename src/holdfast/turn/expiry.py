"""Requests for approval that expire: one without a decision in time counts as denied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import NothingPending
from holdfast.log.events import Draft
from holdfast.log.view import decode_view

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store


def expire_requests(store: Store, log: Log) -> bool:
    """Record the requests of a session's open turn that have expired as denied. Returns whether there were any."""
    turn = decode_view(store.head(log).view).turn
    found = False
    for call_id, seq in () if turn is None else turn.pending.items():
        request = store.event(log, seq)
        expires_at = request.data.get("expires_at")
        if expires_at is None or expires_at > store.clock.now():
            continue
        data = {"call_id": call_id, "approved": False, "reason": "it was not approved in time", "expired": True}
        try:
            store.append(log, [Draft(type="approval.decided", data=data)])
        except NothingPending:  # a person decided in this moment
            continue
        found = True
    return found
