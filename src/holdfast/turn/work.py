"""What one agent did in a turn so far: the fold of its events, stored or about to be. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.log.events import Draft
from holdfast.log.messages import Message, from_data
from holdfast.schema.output import OutputShape


@dataclass(slots=True)
class Call:
    """A call of the newest reply, and how far it is."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    intended: bool = False  # tool.called is stored: it may have started
    answered: bool = False
    stored: bool = False  # its result is in the log, and is folded when the others have come
    requested: bool = False  # a person was asked
    decision: bool | None = None
    reason: str | None = None
    payload: Any = None
    fresh: bool = False  # intended in this process: if it has no result yet, it did not run yet

    @property
    def undecided(self) -> bool:
        return self.requested and self.decision is None


@dataclass(slots=True)
class Work:
    """What is known of one agent's part in a turn: the fold of its events."""

    run: str
    own: list[Message] = field(default_factory=list)  # question, replies and results, in order; the prompt's end
    shown: list[Message] = field(default_factory=list)  # the same without rejected attempts
    calls: dict[str, Call] = field(default_factory=dict)  # of the newest reply
    steps: int = 0
    repairs: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    asking: bool = False  # the model was called and has not replied
    name: str | None = None  # of the agent
    branches: tuple[str, ...] = ()  # of agents at the same time that it is in, the outermost first
    shape: OutputShape | None = None  # of its answers
    over: str = ""  # of an agent among several: "finished" or "failed"
    handoff: str | None = None  # whom it handed the conversation to
    left: bool = False  # it left the loop that it is in
    turned_back: bool = False  # a handoff of it was refused, because the conversation went in circles
    failed_at: str | None = None  # the place that failed with it: its own, or one around it
    problem: str = ""  # why it failed
    fresh: list[tuple[Draft, Message]] = field(default_factory=list)  # messages that are about to be stored

    @property
    def branch(self) -> str | None:
        return self.branches[-1] if self.branches else None

    def add(self, draft: Draft) -> Draft:
        """Fold an event that is about to be stored."""
        data = draft.data if draft.type == "message.added" else draft.data.get("message")
        message = None
        if draft.type in ("message.added", "model.replied", "tool.returned") and data:
            message = from_data(data, lambda digest: draft.blobs[digest], author=draft.author)
            self.fresh.append((draft, message))
        self.take(draft.type, draft.data, message)
        return draft

    def take(self, type: str, data: dict[str, Any], message: Message | None = None) -> None:
        """Fold one event of this turn, stored or about to be."""
        if message is not None:
            self.own.append(message)
            if not data.get("rejected") and not data.get("aside"):
                self.shown.append(message)
        if type in ("model.called", "model.replied", "model.interrupted"):
            self.asking = type == "model.called"
        if type == "turn.started":
            self.options, self.name = data.get("options", {}), data.get("agent")
        elif type == "model.replied":
            self.steps += 1
            self.stop_reason = data.get("stop_reason")
            self._use(data)
            if data.get("rejected"):
                self.repairs += 1
            wanted = message.tool_calls if message else ()
            self.calls = {call.id: Call(call.id, call.name, call.arguments) for call in wanted}
        elif data.get("call_id") in self.calls:  # else the reply that made it was erased
            self._take_call(self.calls[data["call_id"]], type, data)
        if type == "tool.returned":
            self.handoff = self.handoff or data.get("handoff")
            self.left = self.left or bool(data.get("exit"))
            self.turned_back = self.turned_back or bool(data.get("turned_back"))
            self._use(data)  # of agents that were called as tools

    def _take_call(self, call: Call, type: str, data: dict[str, Any]) -> None:
        if type == "tool.called":
            call.intended = True
        elif type == "tool.returned":
            call.answered = True
        elif type == "approval.requested":
            call.requested, call.decision, call.intended = True, None, False
            call.payload, call.reason = data.get("payload"), data.get("reason")
        elif type == "approval.decided":
            call.decision, call.reason = data["approved"], data.get("reason")

    def _use(self, data: dict[str, Any]) -> None:
        for name, amount in data.get("usage", {}).items():
            self.usage[name] = self.usage.get(name, 0) + amount

    @property
    def unanswered(self) -> list[Call]:
        return [call for call in self.calls.values() if not call.answered]

    @property
    def question(self) -> Message | None:
        return self.shown[0] if self.shown else None

    @property
    def answer(self) -> Message | None:
        """The final reply, if the model has had its say. After one that was rejected stands what was said about it."""
        last = self.own[-1] if self.own else None
        return last if last is not None and last.role == "assistant" and not last.tool_calls else None
