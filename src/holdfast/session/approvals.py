"""Calls that wait for a person: list them and decide about them, from any process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.concurrency import property_twin, twin
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_name
from holdfast.log.view import decode_view

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store
    from holdfast.turn.response import Pending


class ApprovalMethods:
    """The methods of `Session` for approvals: `pending`, `approve`, `deny`."""

    store: Store
    log: Log

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for the decision of a person."""
        from holdfast.turn.response import Pending

        turn = decode_view(self.store.head(self.log).view).turn
        found = []
        for seq in () if turn is None else turn.pending.values():
            data = self.store.event(self.log, seq).data
            found.append(
                Pending(
                    call_id=data["call_id"],
                    name=data["name"],
                    arguments=data["arguments"],
                    payload=data.get("payload"),
                    reason=data.get("reason"),
                )
            )
        return found

    def approve(self, call_id: str, *, actor: str | None = None) -> None:
        """Approve a waiting call, from any process; the next `resume()` runs it."""
        self._record_decision(call_id, {"approved": True}, actor)

    def deny(self, call_id: str, reason: str | None = None, *, actor: str | None = None) -> None:
        """Refuse a waiting call; the model gets the refusal and the reason as the result of the call."""
        data = {"approved": False}
        if reason is not None:
            data["reason"] = check_name(reason, "a reason", self.store.limits.metadata)  # type: ignore[assignment]
        self._record_decision(call_id, data, actor)

    def _record_decision(self, call_id: str, data: dict[str, Any], actor: str | None) -> None:
        call_id = check_name(call_id, "call_id")
        self.store.append(self.log, [Draft(type="approval.decided", data={"call_id": call_id, **data}, actor=actor)])

    pending_async = property_twin("pending")
    approve_async = twin(approve)
    deny_async = twin(deny)
