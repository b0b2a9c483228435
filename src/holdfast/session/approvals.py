"""Calls that wait for a person: list them, and decide about them from any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.concurrency import class_twin, property_twin, twin
from holdfast.errors import Conflict, InvalidArgument
from holdfast.log import codec
from holdfast.log.arguments import check_limit
from holdfast.log.events import Draft, Event
from holdfast.log.identifiers import check_id, check_name, check_owner
from holdfast.log.messages import Message, ToolCall
from holdfast.log.times import to_datetime
from holdfast.log.view import Turn, decode_view
from holdfast.policy.approvers import check_decider
from holdfast.stores.messages import message_of
from holdfast.stores.urls import open_store
from holdfast.turn.expiry import expire_requests

if TYPE_CHECKING:
    from holdfast.agent_base import BaseAgent
    from holdfast.stores.base import Log, SessionStore, Store
    from holdfast.turn.response import Pending, WaitingCall

_REPLIES = ["model.replied", "reply.edited"]


class ApprovalMethods:
    """The methods of `Session` for approvals: `pending`, `waiting`, `approve`, `deny`, `answer`."""

    store: Store
    log: Log
    agent: BaseAgent | None

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for the decision of a person. A request that has expired is not among them."""
        from holdfast.turn.response import Pending

        turn = decode_view(self.store.head(self.log).view).turn
        return [Pending(**_pending_fields(event)) for event in _open_requests(self.store, self.log, turn)]

    @classmethod
    def waiting(
        cls,
        *,
        store: Store | SessionStore | str | None = None,
        user_id: str | None = None,
        app_name: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> list[WaitingCall]:
        """Return the calls of all sessions that wait for a person, of up to `limit` sessions, newest session first;
        `after` is the id of the last session of the page before."""
        from holdfast.turn.response import WaitingCall

        found = open_store(store)
        page = found.sessions(
            user_id=check_owner(user_id, "user_id"),
            app_name=check_owner(app_name, "app_name"),
            status="waiting",
            limit=check_limit(limit),
            after=None if after is None else check_id(after, "after"),
        )
        return [
            WaitingCall(**_pending_fields(event), session_id=info.log.id, since=to_datetime(event.at))
            for info in page
            for event in _open_requests(found, info.log, decode_view(found.head(info.log).view).turn)
        ]

    def approve(self, call_id: str, *, arguments: Mapping[str, Any] | None = None, actor: str | None = None) -> None:
        """Approve a waiting call, from any process; the next `resume()` runs it.

        With `arguments`, the call runs with these instead of the model's. They are checked against the tool at once if
        the session has its agent, else when the call runs. Messages show what ran; the log has both.
        """
        data: dict[str, Any] = {"approved": True}
        if arguments is not None:
            codec.encode(dict(arguments))
            data["arguments"] = dict(arguments)
        self._record_decision(call_id, data, actor)

    def deny(self, call_id: str, reason: str | None = None, *, actor: str | None = None) -> None:
        """Refuse a waiting call; the model gets the refusal and the reason as the result of the call."""
        data: dict[str, Any] = {"approved": False}
        if reason is not None:
            data["reason"] = check_name(reason, "a reason", self.store.limits.metadata)
        self._record_decision(call_id, data, actor)

    def answer(self, call_id: str, value: Any, *, actor: str | None = None) -> None:  # noqa: ANN401 - any JSON
        """Answer the `interrupt(payload)` of a tool: when the call runs again, `interrupt` returns this value."""
        codec.encode(value)
        self._record_decision(call_id, {"approved": True, "answer": value}, actor)

    def _record_decision(self, call_id: str, data: dict[str, Any], actor: str | None) -> None:
        """Append a decision, if the rule of its request allows this actor to decide.

        Where there is a rule, the append is refused if the log has moved since the rule was read, and the rule is read
        again: the request of the same call may be another one by then.
        """
        call_id = check_name(call_id, "call_id")
        expire_requests(self.store, self.log)
        while True:
            head = self.store.head(self.log)
            turn = decode_view(head.view).turn
            drafts, rule = [Draft(type="approval.decided", data={"call_id": call_id, **data}, actor=actor)], None
            if turn is not None and call_id in turn.pending:  # otherwise the append refuses the decision
                request = self.store.event(self.log, turn.pending[call_id])
                if request.erased and data["approved"]:
                    raise InvalidArgument(f"the request for call {call_id!r} was erased: deny the call")
                rule = check_decider(call_id, request.data, actor)
                if rule is not None:
                    drafts = [replace(drafts[0], data=drafts[0].data | {"approvers": rule})]
                if "arguments" in data:
                    self._check_arguments(request.data["name"], data["arguments"])
                    drafts.append(self._edited_reply(turn, call_id, data["arguments"], actor))
            try:
                self.store.append(self.log, drafts, expected=None if rule is None else head.head)
                return
            except Conflict:
                if rule is None:
                    raise

    def _check_arguments(self, name: str, arguments: dict[str, Any]) -> None:
        """Raise BadArguments if the session's agent has the tool and it does not take these arguments."""
        tools = {} if self.agent is None else getattr(self.agent.plan(), "tools", {})
        if name in tools:
            tools[name].validate(arguments)

    def _edited_reply(self, turn: Turn, call_id: str, arguments: dict[str, Any], actor: str | None) -> Draft:
        """Return the event that shows the reply with the arguments that a person chose."""
        for row in self.store.read(self.log, turn.first, types=_REPLIES, reverse=True):
            message = message_of(self.store, self.log, row)
            if all(call.id != call_id for call in message.tool_calls):
                continue
            parts = [
                ToolCall(id=part.id, name=part.name, arguments=arguments)
                if isinstance(part, ToolCall) and part.id == call_id
                else part
                for part in message.parts
            ]
            edited = Message(message.role, parts, author=message.named_author, metadata=message.metadata)
            stored, blobs = edited.to_data(self.store.limits)
            event = Event(row)
            data: dict[str, Any] = {"of": row.seq, "call_id": call_id, "message": stored}
            if event.data.get("aside"):
                data["aside"] = True
            return Draft(
                type="reply.edited",
                run=turn.run,
                branch=event.branch,
                author=event.author,
                actor=actor,
                data=data,
                blobs=blobs,
            )
        raise InvalidArgument(f"the reply with call {call_id!r} was erased: deny the call")

    pending_async = property_twin("pending")
    waiting_async = class_twin(waiting)
    approve_async = twin(approve)
    deny_async = twin(deny)
    answer_async = twin(answer)


def _open_requests(store: Store, log: Log, turn: Turn | None) -> list[Event]:
    """Return the requests for a decision that have not expired."""
    events = [] if turn is None else [store.event(log, seq) for seq in turn.pending.values()]
    now = store.clock.now() if any("expires_at" in event.data for event in events) else 0
    return [event for event in events if event.data.get("expires_at", now + 1) > now]


def _pending_fields(event: Event) -> dict[str, Any]:
    data = event.data
    found = {name: data[name] for name in ("call_id", "name", "arguments")}
    return found | {"payload": data.get("payload"), "reason": data.get("reason")}
