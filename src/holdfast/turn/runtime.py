"""The runtime of one turn: its log under a lease, its budget and its agents. Shared by both drivers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.errors import (
    AgentError,
    AlreadyAdmitted,
    BudgetExceeded,
    QuotaExceeded,
    StaleEpoch,
    StoreError,
    TurnCancelled,
)
from holdfast.log.events import Draft
from holdfast.log.flow_paths import is_within
from holdfast.log.messages import Message
from holdfast.log.times import to_datetime
from holdfast.log.view import View, decode_view
from holdfast.plan import AgentSpec, Plan, first_agent
from holdfast.policy.budget import Budget
from holdfast.prompt.session_cache import TurnSession
from holdfast.schema.output import OutputShape
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import Claim, encode_holder, lease_seconds
from holdfast.stores.lease_renewal import Renewal, report_takeover, run_on_lease_thread
from holdfast.tools.tool import CALLER_BUDGET
from holdfast.turn.agent_loop import (
    AgentRules,
    draft_not_run_results,
    draft_unknown_results,
    rename_used_call_ids,
)
from holdfast.turn.agent_runtime import AgentRuntime
from holdfast.turn.effects import CallUserFunction, PrepareAgent, Steps, StopAgents
from holdfast.turn.flow_loop import flow_loop
from holdfast.turn.instructions import InstructionsCall, follow_head, read_sent_instructions
from holdfast.turn.late_end import INTERRUPTS, append_end, find_lease, is_interrupt
from holdfast.turn.progress import AgentProgress, TurnProgress
from holdfast.turn.response import Response, response_of
from holdfast.turn.run_outcome import error_data, read_turn_events, read_turn_progress, sanitize_text
from holdfast.turn.turn_state import TurnState
from holdfast.turn.unread_stream import UnreadStream

# Event types that may have blobs. Such events never wait for the next agent's append, so they are not remembered here.
LARGE_TYPES = ("tool.returned", "model.called")
USER_FUNCTION_SECONDS = 600.0  # time limit of a user's function, such as the condition of a loop


class TurnRuntime:
    """The log under its lease, the budget and the agents of one turn. `start.py` starts it, one driver uses it."""

    def __init__(
        self,
        store: Store,
        log: Log,
        plan: Plan,
        *,
        session: TurnSession,
        shape: OutputShape | None = None,
        options: Mapping[str, Any] | None = None,
        run: str | None = None,
        substitute: Callable[[str, AgentSpec], AgentSpec] | None = None,
    ) -> None:
        self.store, self.log, self.plan, self.session, self.cache = store, log, plan, session, session.cache
        self.shape = shape  # shape of the answer that the caller asked for
        self.turn_options = dict(options or {})  # options of this turn, for all its agents
        self.substitute = substitute  # replay only: replaces an agent's model and tools by recorded ones
        self.progress = TurnProgress(run or store.clock.new_id())
        self.agents: dict[str, AgentRuntime] = {}
        self.state = TurnState(self)
        self.epoch = 0
        self.last_seq = 0  # seq of the last event of this turn's last append
        self.is_stop_requested = False  # `stop` was called
        self.is_detached = False  # a worker runs the turn, and the caller reads its outcome from the log
        self.renewal: Renewal | None = None  # None before the first append, which takes the lease
        self.may_have_queued = True  # runs may be queued in the session
        self.has_retention = False  # the session has a retention, which may ask for pruning after the turn
        self.once_key: str | None = None  # idempotency key of the first append
        self.stream: weakref.ref[Any] | None = None  # the generator that a program reads, if it reads a stream
        self._cancel_reason = ""  # why `stop` was called
        self._lock = threading.RLock()  # parallel agents append one after the other
        self._claim: Claim | None = None  # sent with the first append
        self._is_over = False
        self._halted_paths: list[str] = []  # paths whose agents may not append any more
        self._appended_drafts: list[Draft] = []  # appended events, so that `stop_agents` neither repeats nor loses one
        self._usage_before: dict[str, int] = {}  # usage of the session before this turn
        self._turns_before = 0  # turns of the session before this one
        self._budgets: list[Budget] = []  # of the session and of the agent: both must allow a model call
        self._call_ids: set[str] = set()  # call ids assigned in this process
        self._usage_by_call: dict[str, Mapping[str, int]] = {}  # call id -> usage of the agent that runs as that tool
        self._caller_budget = CALLER_BUDGET.get() or self.cache.meter  # takes the usage before each model call
        self._start_time = store.clock.monotonic()

    @property
    def run(self) -> str:
        return self.progress.run

    # -- starting: used by `start.py` ------------------------------------------------------------------------------

    def claim_lease(self, drafts: Sequence[Draft], head: Head | None) -> None:
        """Take the lease in the same append as `drafts`, and start to renew it. Raises AlreadyAdmitted if the append
        repeats an idempotency key."""
        seconds = lease_seconds()
        since = self.store.clock.monotonic()
        claim = self._claim = Claim(holder=encode_holder(self.run), seconds=seconds)
        expected = None if head is None else head.head
        done = self.store.append(self.log, drafts, once=self.once_key, claim=claim, expected=expected)
        if done.repeated:
            raise AlreadyAdmitted
        self._number_messages(drafts, done.first, done.at)
        self.epoch, self.last_seq = done.epoch, done.last
        check = None if self.stream is None else UnreadStream(self, self.stream).check
        renewal = Renewal(self.store, self.log, self.epoch, seconds=seconds, since=since, before_renewal=check)
        self.renewal = renewal.held_for(self)
        if done.has_taken_over:
            report_takeover(self.log, self.run)

    def read_progress(self, view: View, head: Head) -> TurnProgress:
        """Return the fold of the open turn's events."""
        turn = view.turn
        assert turn is not None
        events = read_turn_events(self.store, self.log, turn.run, turn.first, head.head)
        return read_turn_progress(self.store, self.log, turn.run, events)

    def prepare(self, head: Head, view: View, question: Message | None) -> None:
        """Read the budget, the usage and the view for the whole turn. If one agent answers, read its prompt too, so
        that a question that cannot be asked is refused before anything is stored."""
        self._usage_before, self._turns_before = dict(view.usage), view.turns
        found = [self.store.value(self.log, "budget"), self.plan.budget if isinstance(self.plan, AgentSpec) else None]
        self._budgets = [Budget.of(each) for each in found if each is not None]
        self._set_view(head, view, question)
        if isinstance(self.plan, AgentSpec) and not callable(self.plan.instructions):
            self._add_agent(self._root_effect(self.plan))

    def begin_preview(self, head: Head, view: View, question: Message | None) -> PrepareAgent:
        """Return the effect that prepares only the agent that runs first, to preview its prompt without a turn."""
        self._set_view(head, view, question)
        return self._root_effect(first_agent(self.plan))

    def _set_view(self, head: Head, view: View, question: Message | None) -> None:
        self._head, self._view, self._question = head, view, "" if question is None else question.text

    def _root_effect(self, spec: AgentSpec) -> PrepareAgent:
        return PrepareAgent(spec=spec, path="", shape=self.shape or spec.shape)

    def _add_agent(self, effect: PrepareAgent) -> AgentRuntime:
        if self.substitute is not None:
            effect = replace(effect, spec=self.substitute(effect.path, effect.spec))
        agent = AgentRuntime(self, effect)
        seen = self.progress.messages_seen_by(effect.path)
        agent.prompt.read(self._head, self._view, self.session, seen, self._question, effect.instructions)
        self.agents[effect.path] = agent
        return agent

    def discount_usage(self, usage: Mapping[str, int]) -> None:
        """Subtract what this turn used before it was resumed: the view has counted it already."""
        for name, amount in usage.items():
            self._usage_before[name] = self._usage_before.get(name, 0) - amount

    # -- effects of the loop ---------------------------------------------------------------------------------------

    def steps(self, opening: list[Draft]) -> Steps:
        """Return the loop of the turn, for a driver to perform."""
        owner = self._view.active
        return flow_loop(
            self.plan, self.progress, opening, owner=owner, shape=self.shape, draft_finished=self._draft_turn_finished
        )

    def _draft_turn_finished(self) -> Draft:
        data = {"usage": {"milliseconds": self._milliseconds_used()}}
        author = self.progress.last_agents()[-1].name if isinstance(self.plan, AgentSpec) else self.plan.name
        return Draft(type="turn.finished", run=self.run, author=author, data=data)

    def prepare_agent(self, effect: PrepareAgent) -> tuple[AgentRules | CallUserFunction, list[Draft]]:
        """Prepare an agent and return its rules, with the events that are still to be appended. The events of the
        agents before it are stored first; before the first append there is no lease, so they wait for it. If a function
        of the user gives the instructions, and was not called yet, its call is returned in place of the rules."""
        drafts = effect.drafts
        if self._is_halted(effect.path):
            raise TurnCancelled
        if drafts and self.renewal is not None:
            self.append_events(drafts, effect.drafts_path, last=False)
            drafts = []
        spec, agent = effect.spec, self.agents.get(effect.path)
        if agent is None and callable(spec.instructions) and self.substitute is None:
            if effect.instructions is None:
                sent = read_sent_instructions(self.store, self.log, self.progress.agents.get(effect.path))
                if sent is None:
                    call = InstructionsCall(spec.instructions, self.session, spec.name, self.is_detached)
                    return CallUserFunction(call), drafts
                effect = replace(effect, instructions=sent)
            elif drafts:  # before the first append of a turn
                self._head, self._view = follow_head(self.store, self.log, self._head, self._view, drafts)
        return (agent or self._add_agent(effect)).build_rules(), drafts

    def is_ready(self, effect: PrepareAgent) -> bool:
        """Whether `prepare_agent` has nothing to read or write."""
        return effect.path in self.agents and not (effect.drafts and self.renewal is not None)

    def append_events(self, drafts: Sequence[Draft], path: str, *, last: bool) -> None:
        """Append events of this turn. The first append takes the lease, the last one releases it. Raises TurnCancelled
        if the turn is over or the agent at `path` was stopped."""
        agent = self.agents.get(path)
        crashpoint("before record")
        with self._lock:
            if self._is_over or self._is_halted(path):
                # Another agent failed or ended the turn: the work of this agent is not needed.
                raise TurnCancelled(self._cancel_reason)
            branch = None if agent is None else agent.progress.branch
            stamped = [
                draft if branch is None or draft.branch is not None else replace(draft, branch=branch)
                for draft in drafts
            ]
            if self.renewal is None:
                self.claim_lease(stamped, self._head)
            else:
                if agent is not None and len(self.agents) == 1:
                    self.renewal.begin_effect(None)  # the only agent appends: no effect runs that needs a time limit
                done = self.store.append(self.log, stamped, epoch=self.epoch, release=last)
                self._limit_effects()
                self.has_retention, self.may_have_queued = done.has_retention, done.has_queued_runs
                self.last_seq = done.last
                self._number_messages(drafts, done.first, done.at)
            self._appended_drafts += [draft for draft in drafts if not draft.blobs or draft.type not in LARGE_TYPES]
            self.cache.stored_contexts |= {draft.data["context"] for draft in drafts if draft.type == "model.called"}
            if agent is not None and any(draft.type == "model.replied" for draft in drafts):
                agent.is_calling_model = False
            self._is_over = last
        if agent is not None:
            agent.unstored_results = []
            agent.progress.unstored_messages = [
                (draft, message) for draft, message in agent.progress.unstored_messages if message.seq is None
            ]
        if last:
            self.close()
        crashpoint("after record")

    def begin_model_call(self, drafts: list[Draft], called: Draft, path: str) -> bool:
        """Append `drafts` and `called`, the `model.called` event. Returns False, and appends nothing, if the session is
        paused. Raises BudgetExceeded if the budget is used up. May compact the view first."""
        agent = self.agents[path]
        agent.refuse_stopped()
        try:
            with self._lock:  # of two parallel agents only one may take the last call of the budget
                self._check_budget()
                agent.is_calling_model = True
        except (BudgetExceeded, QuotaExceeded):
            if drafts and self.renewal is not None:
                self.append_events(drafts, path, last=False)  # the results of the tools must not be lost
            raise
        if self.renewal is not None and decode_view(self.store.head(self.log).view).lifecycle != "live":
            return False  # before the first append there is nothing to pause
        if agent.prompt.needs_compaction:
            self.append_events(drafts, path, last=False)
            agent.prompt.compact(self.run, self.epoch)
            drafts, called = [], agent.draft_model_call(agent.progress)
        self.append_events([*drafts, called], path, last=False)
        return True

    def assign_call_ids(self, message: Message) -> Message:
        """Return the reply with call ids that no other call of the turn has, also if parallel agents reply at the same
        time."""
        with self._lock:
            renamed = rename_used_call_ids(message, self._call_ids | self.progress.call_ids)
            self._call_ids |= {call.id for call in renamed.tool_calls}
            return renamed

    def meter_call(self, call: str, used: Mapping[str, int]) -> None:
        """Take the usage so far of an agent that runs as the tool of `call`. It counts against this turn's budget:
        raises BudgetExceeded if that is used up."""
        with self._lock:
            self._usage_by_call[call] = dict(used)
            self._check_budget()
            self._usage_by_call[call] = {**used, "steps": used.get("steps", 0) + 1}  # with the step that begins now

    def _check_budget(self) -> None:
        if not self._budgets and self._caller_budget is None:
            return
        usage = dict(self._usage_before)
        open_calls = {call.id for progress in list(self.progress.agents.values()) for call in list(progress.open_calls)}
        under_way = sum(agent.is_calling_model and not agent.is_halted for agent in list(self.agents.values()))
        used = [self.progress.usage, {"steps": under_way}]
        for each in [*used, *(each for call, each in self._usage_by_call.items() if call in open_calls)]:
            for name, amount in each.items():
                usage[name] = usage.get(name, 0) + amount
        if self._caller_budget is not None:
            self._caller_budget({name: amount for name, amount in usage.items() if name != "milliseconds"})
        usage["milliseconds"] = usage.get("milliseconds", 0) + self._milliseconds_used()
        for budget in self._budgets:
            budget.check(usage=usage, turns=self._turns_before)

    def stop_agents(self, effect: StopAgents) -> list[Draft]:
        """Stop the agents at and inside a path that failed. Returns the events to append: unstored events that were
        passed to them, their results, and `agent.failed` for each."""
        error = error_data(effect.error, detached=self.is_detached)
        appended = {id(draft) for draft in self._appended_drafts}
        carried = [draft for draft in effect.unstored_drafts if id(draft) not in appended]
        drafts: list[Draft] = []
        with self._lock:  # none of these agents appends any more
            self.halt_agents(effect.path)
            self._forget_unstored(effect.path)
            for path, progress in list(self.progress.agents.items()):
                if path and is_within(path, effect.path) and not progress.end_status:
                    drafts += self._draft_unstored_work(path, progress)
                    drafts += draft_not_run_results(progress)
                    drafts += self._draft_agent_failed(path, effect, error)
        return [*carried, *(drafts or self._draft_agent_failed(effect.path, effect, error))]

    def halt_agents(self, path: str) -> None:
        """Stop the agents at `path` and inside it, and refuse their later appends."""
        self._halted_paths.append(path)
        for each, agent in list(self.agents.items()):
            if is_within(each, path) and not agent.progress.end_status:
                agent.stop()

    def _is_halted(self, path: str) -> bool:
        return any(is_within(path, each) for each in self._halted_paths)

    def _forget_unstored(self, path: str) -> None:
        """Rebuild the progress of stopped parallel agents from the log; their in-memory progress may hold events that
        were never stored."""
        if self.renewal is None or not any(agent.progress.branches for agent in self.agents.values()):
            return  # no agents ran in parallel: the one that failed was not in the middle of an append
        head = self.store.head(self.log)
        stored = self.read_progress(decode_view(head.view), head)
        for each, agent in list(self.agents.items()):
            if each and is_within(each, path) and not agent.progress.end_status and each in stored.agents:
                progress = stored.agents[each]
                progress.shape, self.progress.agents[each], agent.progress = agent.shape, progress, progress

    def _draft_unstored_work(self, path: str, progress: AgentProgress) -> list[Draft]:
        """Return the tool results of an agent that are not stored yet, and "unknown" results for its other calls that
        started."""
        agent = self.agents.get(path)
        unstored = [] if agent is None else agent.unstored_results
        for draft in unstored:
            if draft.type == "tool.returned" and draft.data["call_id"] in progress.calls:
                progress.calls[draft.data["call_id"]].has_result = True
        if agent is not None:
            agent.unstored_results = []
        stamped = [draft if progress.branch is None else replace(draft, branch=progress.branch) for draft in unstored]
        return [*stamped, *draft_unknown_results(progress)]

    def _draft_agent_failed(self, path: str, effect: StopAgents, error: dict[str, Any]) -> list[Draft]:
        progress = self.progress.agents.get(path) or self.progress.enter_agent(path, None, ())
        data = {"path": path, "at": effect.path, "error": error}
        failed = Draft(type="agent.failed", run=self.run, branch=progress.branch, author=progress.name, data=data)
        # The note has only the code of the error: the error's text may quote the question, and the note would survive a
        # redaction of the question.
        text = f"[{progress.name or 'This agent'} could not answer: {error['code']}]"
        note = {"role": "assistant", "text": text, "metadata": {"failed": True}}
        drafts = [failed]
        if effect.adds_note:
            added = Draft(type="message.added", run=self.run, branch=progress.branch, author=progress.name, data=note)
            drafts = [progress.fold_draft(added), failed]
        self.progress.fold_event("agent.failed", data, progress.branch)
        return drafts

    # -- time limits of effects ------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise StaleEpoch if this turn is over or another process has its lease. Tools act through their context only
        while their turn is open."""
        if self.renewal is None or self.renewal.is_over:
            raise StaleEpoch(self.log.id, epoch=self.epoch, current=self.epoch + 1)
        self.renewal.check()

    def begin_effect(self, agent: AgentRuntime, seconds: float) -> None:
        """Begin an effect of an agent that may take this many seconds. Raises StaleEpoch if the lease is lost."""
        assert self.renewal is not None
        self.renewal.check()
        agent.effect_deadline = self.store.clock.monotonic() + seconds
        self._limit_effects()

    @contextmanager
    def limit_user_function(self) -> Iterator[None]:
        """Limit the time of a user's function: a function that hangs must not hold the lease for ever. Raises
        TurnCancelled afterwards if the turn was stopped."""
        if self.renewal is not None:
            self.renewal.begin_effect(USER_FUNCTION_SECONDS)
        yield
        self._limit_effects()
        self.refuse_stopped()

    def extend_model_deadline(self, agent: AgentRuntime) -> None:
        """Restart the time limit of a model call, because the model sent an event: only its silence is limited."""
        seconds = agent.spec.timeout * 4
        agent.effect_deadline = self.store.clock.monotonic() + seconds
        if self.renewal is not None:
            if len(self.agents) == 1:
                self.renewal.begin_effect(seconds)
            else:
                self._limit_effects()

    def end_effect(self, agent: AgentRuntime) -> None:
        """End the time limit of the agent's effect."""
        agent.effect_deadline, agent.batch = None, None
        self._limit_effects()

    def _limit_effects(self) -> None:
        """Let the lease be renewed only as long as the running effects may take: a hanging effect must not hold the
        session."""
        if self.renewal is not None:
            ends = [agent.effect_deadline for agent in list(self.agents.values()) if agent.effect_deadline is not None]
            left = max(ends) - self.store.clock.monotonic() if ends else None
            self.renewal.begin_effect(None if left is None else max(left, lease_seconds()))

    def _milliseconds_used(self) -> int:
        return int((self.store.clock.monotonic() - self._start_time) * 1000)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _number_messages(self, drafts: Sequence[Draft], first: int, at: int) -> None:
        """Set seq and time of the messages that an append has stored."""
        numbers = {id(draft): number for number, draft in enumerate(drafts, first)}
        for progress in list(self.progress.agents.values()):
            for draft, message in list(progress.unstored_messages):  # a copy: parallel agents add to their lists
                if message.seq is None and id(draft) in numbers:
                    message.seq, message.created_at = numbers[id(draft)], to_datetime(at)

    def response(self) -> Response:
        return replace(response_of(self.progress), session=self.session)

    def stop(self, reason: str = "") -> None:
        """Ask the turn to end, from another thread: at the next event of the model, or as soon as it waits for
        tools."""
        self._cancel_reason = reason
        self.is_stop_requested = True
        for agent in list(self.agents.values()):
            if agent.batch is not None:
                agent.batch.stop()

    def refuse_stopped(self) -> None:
        """Raise TurnCancelled if `stop` was called."""
        if self.is_stop_requested:
            raise TurnCancelled(self._cancel_reason)

    def fail(self, error: BaseException) -> None:
        """Record that the turn failed or was cancelled, if this process still holds its lease."""
        with self._lock:
            is_left = self.is_detached and isinstance(error, StoreError)  # resumed by a worker when the store is back
            if self.renewal is None and self._claim is not None and is_interrupt(error):
                # Interrupted in its first append, perhaps after the commit.
                lease = find_lease(self.store, self.log, self._claim)
                if lease is not None:
                    self.epoch, self.renewal = lease.epoch, Renewal(self.store, self.log, lease.epoch)
            # The last append may have succeeded without an answer from the store: then a second end would be wrong.
            may_be_over = self.progress.is_ended and (isinstance(error, StoreError) or not isinstance(error, Exception))
            if self.renewal is None or self._is_over or may_be_over or is_left:
                self._is_over = True
                self.close()
                return
            self._is_over = True  # parallel agents append nothing more
        cancelled = isinstance(error, GeneratorExit | KeyboardInterrupt | TurnCancelled)
        cancelled = cancelled or type(error).__name__ == "CancelledError"
        data: dict[str, Any] = {"usage": {"milliseconds": self._milliseconds_used()}}
        if not cancelled:
            data["error"] = error_data(error, detached=self.is_detached)
        drafts, shown = list[Draft](), ""
        with suppress(AgentError):  # if the store is unreachable, the in-memory progress is used
            self._forget_unstored("")
        for path, agent in list(self.agents.items()):
            if not agent.progress.end_status:
                agent.stop()
                shown += "".join(agent.streamed_text)
                drafts += self._draft_unstored_work(path, agent.progress)
        if shown:
            data["shown"] = sanitize_text(shown)
        drafts.append(Draft(type="turn.cancelled" if cancelled else "turn.failed", run=self.run, data=data))
        try:
            self.last_seq = self.store.append(self.log, drafts, epoch=self.epoch, release=True).last
        except AgentError:
            pass  # taken over, or the store is unreachable: the log stays true, and the first error is raised
        except INTERRUPTS:  # perhaps after the commit
            run_on_lease_thread(partial(append_end, self.store, self.log, self.epoch, self.run, drafts))
            raise
        finally:
            self.close()

    def release_lease(self) -> None:
        """Release the lease of a turn that did not begin."""
        self.close()
        with suppress(AgentError):  # taken over, or the store is unreachable: the lease expires by itself
            self.store.append(self.log, [], epoch=self.epoch, release=True)

    def close(self) -> None:
        """Stop to renew the lease, and clear the temporary state of the turn."""
        if self.renewal is not None:
            self.renewal.__exit__(None, None, None)
            self.cache.temp.clear()
