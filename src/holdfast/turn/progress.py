"""The progress of a turn: the fold of its events, agent by agent. Pure.

`TurnProgress` holds one `AgentProgress` for each agent of the turn, by flow path; an agent that takes over by a handoff
has its own. A running turn and a resumed turn use the same fold, so resuming needs no code of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.log.events import Draft
from holdfast.log.flow_paths import is_within, outer_path, path_sort_key
from holdfast.log.messages import Message, message_from_data
from holdfast.log.view import TURN_ENDS
from holdfast.schema.output import OutputShape


@dataclass(slots=True)
class CallProgress:
    """The progress of one tool call of the newest reply."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    is_intended: bool = False  # tool.called is stored, or about to be: the tool may have started
    has_result: bool = False
    is_result_stored: bool = False  # the result is in the log; it is folded when the other results have arrived
    is_approval_requested: bool = False  # a person must decide, or has decided
    decision: bool | None = None
    reason: str | None = None
    payload: Any = None  # payload of an Interrupt
    is_interrupt: bool = False  # the tool asked, not its `approval=`
    answers: list[Any] = field(default_factory=list)  # what people answered to the interrupts of this call, in order
    is_intended_here: bool = False  # this process may run the call: without a result it has not run yet

    @property
    def awaits_decision(self) -> bool:
        return self.is_approval_requested and self.decision is None


@dataclass(slots=True)
class AgentProgress:
    """The progress of one agent in a turn: the fold of its events."""

    run: str
    messages: list[Message] = field(default_factory=list)  # question, replies and results, in order; the prompt's end
    visible_messages: list[Message] = field(default_factory=list)  # the same without rejected attempts
    calls: dict[str, CallProgress] = field(default_factory=dict)  # calls of the newest reply, by id
    steps: int = 0
    repairs: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    is_awaiting_reply: bool = False  # the model was called and has not replied
    context: str | None = None  # digest of the stored prompt of the newest model call
    name: str | None = None  # name of the agent
    branches: tuple[str, ...] = ()  # parallel branches that contain the agent, the outermost first
    shape: OutputShape | None = None  # required shape of the answers
    end_status: str = ""  # "finished" or "failed", for an agent of a flow that has ended
    handoff: str | None = None  # name of the agent that took over the conversation
    has_left_loop: bool = False  # the agent left the loop that contains it
    is_handoff_refused: bool = False  # a handoff was refused, because the conversation went in circles
    failed_path: str | None = None  # path of the step that failed: the agent itself, or a flow that contains it
    problem: str = ""  # text of the error
    unstored_messages: list[tuple[Draft, Message]] = field(default_factory=list)  # messages without a seq yet

    @property
    def branch(self) -> str | None:
        return self.branches[-1] if self.branches else None

    def fold_draft(self, draft: Draft) -> Draft:
        """Fold an event that is about to be stored. Returns it."""
        data = draft.data if draft.type == "message.added" else draft.data.get("message")
        message = None
        if draft.type in ("message.added", "model.replied", "tool.returned") and data:
            message = message_from_data(data, lambda digest: draft.blobs[digest], author=draft.author)
            self.unstored_messages.append((draft, message))
        self.fold_event(draft.type, draft.data, message)
        return draft

    def fold_event(self, type: str, data: dict[str, Any], message: Message | None = None) -> None:
        """Fold one event of this turn, stored or about to be."""
        if type == "reply.edited":
            self._replace_message(data["of"], message)
            return
        if message is not None:
            self.messages.append(message)
            if not data.get("rejected") and not data.get("aside"):
                self.visible_messages.append(message)
        if type in ("model.called", "model.replied", "model.interrupted"):
            self.is_awaiting_reply = type == "model.called"
        if type == "model.called":
            self.context = data.get("context")
        elif type == "turn.started":
            self.options, self.name = data.get("options", {}), data.get("agent")
        elif type == "model.replied":
            self.steps += 1
            self.stop_reason = data.get("stop_reason")
            self._add_usage(data)
            if data.get("rejected"):
                self.repairs += 1
            wanted = message.tool_calls if message else ()
            self.calls = {call.id: CallProgress(call.id, call.name, call.arguments) for call in wanted}
        elif data.get("call_id") in self.calls:  # otherwise the reply with the call was erased
            self._fold_call_event(self.calls[data["call_id"]], type, data)
        if type == "tool.returned":
            self.handoff = self.handoff or data.get("handoff")
            self.has_left_loop = self.has_left_loop or bool(data.get("exit"))
            self.is_handoff_refused = self.is_handoff_refused or bool(data.get("turned_back"))
            self._add_usage(data)  # usage of an agent that was called as a tool

    def _replace_message(self, old: int, message: Message | None) -> None:
        for messages in (self.messages, self.visible_messages):
            for place, each in enumerate(messages):
                if each.seq == old and message is not None:
                    messages[place] = message

    def _fold_call_event(self, call: CallProgress, type: str, data: dict[str, Any]) -> None:
        if type == "tool.called":
            call.is_intended = True
        elif type == "tool.returned":
            call.has_result = True
        elif type == "approval.requested":
            call.is_approval_requested, call.decision, call.is_intended = True, None, False
            call.payload, call.reason = data.get("payload"), data.get("reason")
            call.is_interrupt = bool(data.get("interrupt"))
        elif type == "approval.decided":
            call.decision, call.reason = data["approved"], data.get("reason")
            call.arguments = data.get("arguments", call.arguments)
            if call.is_interrupt and call.decision:
                call.answers.append(data.get("answer"))

    def _add_usage(self, data: dict[str, Any]) -> None:
        for name, amount in data.get("usage", {}).items():
            self.usage[name] = self.usage.get(name, 0) + amount

    @property
    def open_calls(self) -> list[CallProgress]:
        return [call for call in self.calls.values() if not call.has_result]

    @property
    def question(self) -> Message | None:
        return self.visible_messages[0] if self.visible_messages else None

    @property
    def answer(self) -> Message | None:
        """The final reply: the last message, if it is a reply without tool calls. After a rejected reply the last
        message is the request for a repair, so a rejected reply is never the answer."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == "assistant" and not last.tool_calls else None


@dataclass(slots=True)
class TurnProgress:
    """The progress of a turn, with all its agents."""

    run: str
    agents: dict[str, AgentProgress] = field(default_factory=dict)  # by path, in the order of their start
    ended_loops: set[str] = field(default_factory=set)  # paths of loops that have ended
    is_ended: bool = False
    max_steps: int | None = None  # limit of a turn that was reopened with another one than its agents have
    # branch -> path of the agent that runs there: an event carries its branch, not its path
    _path_by_branch: dict[str | None, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agents.setdefault("", AgentProgress(run=self.run))

    @property
    def root(self) -> AgentProgress:
        """The agent of a turn that has one agent. In a flow it holds only the question."""
        return self.agents[""]

    def enter_agent(self, path: str, name: str | None, branches: tuple[str, ...]) -> AgentProgress:
        """Make the agent at `path` the running agent of its branch, and return its progress."""
        if path not in self.agents:
            self.agents[path] = AgentProgress(run=self.run)
        progress = self.agents[path]
        progress.name, progress.branches = name, branches
        self._path_by_branch[progress.branch] = path
        return progress

    def fold_event(self, type: str, data: dict[str, Any], branch: str | None, message: Message | None = None) -> None:
        """Fold one event of the turn."""
        if type == "agent.started":
            branches = () if branch is None else tuple(data.get("branches", (branch,)))
            progress = self.enter_agent(data.get("path", ""), data.get("agent"), branches)
            progress.shape = OutputShape.from_log(data["schema"]) if "schema" in data else None
        elif type in ("agent.finished", "agent.failed"):
            if data["path"] not in self.agents:  # the agent failed before its start was stored
                self.enter_agent(data["path"], None, () if branch is None else (branch,))
            progress = self.agents[data["path"]]
            progress.end_status, progress.failed_path = type.removeprefix("agent."), data.get("at")
            progress.problem = data.get("error", {}).get("text", "")
        elif type == "turn.reopened":
            self._reopen(data)
        elif type == "loop.ended":
            self.ended_loops.add(data["path"])
        elif type == "approval.decided":  # written outside of the turn: it names the call, but no branch
            for progress in self.agents.values():
                call = progress.calls.get(data.get("call_id", ""))
                if call is not None and call.awaits_decision:
                    progress.fold_event(type, data)
        else:
            self.is_ended = self.is_ended or type in TURN_ENDS
            self.agents[self._path_by_branch.get(branch, "")].fold_event(type, data, message)

    def _reopen(self, data: dict[str, Any]) -> None:
        """Continue a turn that failed or was cancelled: agents that failed run again, with their results so far."""
        self.is_ended, self.max_steps = False, data.get("max_steps", self.max_steps)
        for progress in self.agents.values():
            progress.repairs = 0
            if progress.end_status == "failed":
                progress.end_status, progress.failed_path, progress.problem = "", None, ""
                # The note that the agent could not answer would otherwise be taken for its answer.
                progress.messages = [message for message in progress.messages if not message.metadata.get("failed")]

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def agents_in_order(self) -> list[tuple[str, AgentProgress]]:
        """The agents with their paths, in the order of the conversation."""
        return sorted(self.agents.items(), key=lambda item: path_sort_key(item[0]))

    @property
    def question(self) -> Message | None:
        return self.root.question

    @property
    def steps(self) -> int:
        return sum(progress.steps for progress in list(self.agents.values()))

    @property
    def usage(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for progress in list(self.agents.values()):
            for name, amount in list(progress.usage.items()):
                total[name] = total.get(name, 0) + amount
        return total

    @property
    def call_ids(self) -> set[str]:
        """The ids of all calls of the turn. None is used twice, so that a person can name a call by its id."""
        return {
            call.id
            for progress in list(self.agents.values())
            for message in list(progress.messages)
            for call in message.tool_calls
        }

    def messages_seen_by(self, path: str) -> list[Message]:
        """Return the turn's messages by other agents that the agent at `path` sees: those before it in the
        conversation, without those of agents that run in parallel to it."""
        here = path_sort_key(path)
        return [
            message
            for each, progress in self.agents_in_order
            if each != path and path_sort_key(each) < here and not self._is_parallel_to(each, path)
            for message in progress.visible_messages
        ]

    def _is_parallel_to(self, other: str, path: str) -> bool:
        return any(
            is_within(other, branch) and not is_within(path, branch) and is_within(path, outer_path(branch))
            for branch in _branches(list(self.agents.values()))
        )

    def last_agents(self, path: str = "") -> list[AgentProgress]:
        """Return the last agent at or inside `path`; where the flow ends in parallel branches, the last agent of each
        branch."""
        agents = [(each, progress) for each, progress in self.agents_in_order if each and is_within(each, path)]
        if not agents:
            return [self.root]
        outer = [branch for branch in agents[0][1].branches if is_within(path, branch)]
        return self._last_agents_in(outer[-1] if outer else None, agents)

    def _last_agents_in(self, branch: str | None, agents: list[tuple[str, AgentProgress]]) -> list[AgentProgress]:
        _, progress = agents[-1]
        if progress.branch == branch:
            return [progress]
        # The last agent is in a branch inside this one, and that branch has siblings: collect the last agents of all.
        mine = progress.branches[0 if branch is None else progress.branches.index(branch) + 1]
        known = _branches(each for _, each in agents)
        siblings = sorted((each for each in known if outer_path(each) == outer_path(mine)), key=path_sort_key)
        return [
            last
            for each in siblings
            for last in self._last_agents_in(each, [item for item in agents if is_within(item[0], each)])
        ]


def _branches(agents: Iterable[AgentProgress]) -> set[str]:
    return {branch for progress in agents for branch in progress.branches}
