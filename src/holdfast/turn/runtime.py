"""What a turn acts on: the log with its lease, and the agents that take part. Both drivers share what does not wait."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from holdfast.clock import crashpoint
from holdfast.errors import (
    AgentError,
    ApprovalPending,
    BudgetExceeded,
    InvalidArgument,
    LifecycleError,
    SessionBusy,
    StaleEpoch,
    StoreError,
    TurnCancelled,
    TurnOpen,
    TurnParked,
)
from holdfast.log.events import Draft, Event, to_datetime
from holdfast.log.flow_paths import is_within
from holdfast.log.messages import Message
from holdfast.log.view import MOVES, View, cut, view_of
from holdfast.plan import Plan, Settings, first_agent
from holdfast.policy.budget import Budget
from holdfast.prompt.history_window import own_events
from holdfast.prompt.prompt import correction
from holdfast.schema.output import OutputShape
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store
from holdfast.stores.documents import message_draft
from holdfast.stores.lease import Claim, holder, lease_seconds
from holdfast.stores.lease_renewal import Renewal
from holdfast.tools.tool import METER
from holdfast.turn.agent_loop import Rules, loose_calls, not_run, renamed, settlement
from holdfast.turn.agent_runtime import Leg
from holdfast.turn.effects import Enter, Settle, Steps
from holdfast.turn.flow_loop import refuse_shape, turn
from holdfast.turn.progress import Trail
from holdfast.turn.response import Response, response_of
from holdfast.turn.run_outcome import clean, error_data, read_trail
from holdfast.turn.sent_context import Context, parts_of
from holdfast.turn.work import Work

LARGE = ("tool.returned", "model.called")  # which may bring bytes, and then are never carried from agent to agent
DECIDING = 600.0  # seconds for a condition or a strategy
MAX_ATTEMPTS = 5  # to finish a turn whose process ended each time


class AskedBefore(AgentError):
    """The key of a message has admitted it before: nothing was begun."""


class World:
    """One turn's access to everything. Made by `open_with` or `reopen`; used by one driver; over with the turn."""

    def __init__(
        self,
        store: Store,
        log: Log,
        plan: Plan,
        *,
        session: object,
        temp: dict[str, Any],
        shape: OutputShape | None = None,
        options: Mapping[str, Any] | None = None,
        run: str | None = None,
        stage: Callable[[str, Settings], Settings] | None = None,
    ) -> None:
        self.stage = stage  # makes an agent one that only plays its part
        self.store, self.log, self.plan, self.session, self.temp = store, log, plan, session, temp
        self.shape = shape
        self.given = dict(options or {})  # whoever answers
        self.trail = Trail(run or store.ids.new())
        self.legs: dict[str, Leg] = {}
        self.state = TurnState(self)
        self.epoch = 0
        self.at = 0  # the last event of this turn's last append
        self.stopped = False  # somebody asked for its end
        self.detached = False  # nobody but the log waits for it
        self.renewal: Renewal | None = None
        self.more = True  # something may be queued
        self.retained = False  # the session has a retention, which may ask for pruning after the turn
        self._once: str | None = None
        self._lock = threading.RLock()  # agents that work at the same time write one after the other
        self._is_over = False
        self._stopped: list[str] = []  # places where nobody may write any more
        self._kept: list[Draft] = []  # what was appended, so that nothing is twice and nothing is lost
        self._usage_before: dict[str, int] = {}
        self._turns_before = 0
        self._budget: Budget | None = None
        self._call_ids: set[str] = set()  # that were given in this process
        self._called: dict[str, Mapping[str, int]] = {}  # call -> what the agent that it called has used so far
        self._caller = METER.get()  # of the call that this turn is the work of
        self._began = store.ids.elapsed()
        self._contexts: set[str] = getattr(session, "_contexts", set())  # prompts that the log is known to hold

    @property
    def run(self) -> str:
        return self.trail.run

    # -- beginning -------------------------------------------------------------------------------------------------

    def open_with(
        self,
        message: Message,
        metadata: Mapping[str, Any] | None,
        queued: Event | None = None,
        admitting: Draft | None = None,
        once: str | None = None,
        head: Head | None = None,
    ) -> list[Draft] | None:
        """Get ready to ask `message`: the events of the first append, which also takes the lease; None if somebody else
        is at work. A turn that a crash left behind is settled first. `queued` is the event that brought the message,
        if it is in the log already; `admitting` brings it in the same append, if nothing else is to be run before."""
        head = head or self.store.head(self.log)
        view = view_of(head.view)
        self._refuse(view)
        if queued is not None and not any(seq == queued.seq for _, seq in view.queue):
            raise TurnCancelled  # taken from the queue meanwhile, or run by somebody else
        if admitting is not None:
            if view.turn is not None or view.queue:
                return None
            self._once = once
        settled: list[Draft] = []
        if view.turn is not None:
            lease = self.store.lease(self.log)
            if lease is not None and lease.alive:
                return None
            cut_off = self._trail_of(view, head)
            settled = settlement(cut_off.run, cut_off.legs.values())
        self.plan = self._for(view.active)
        if self.shape is not None:
            refuse_shape(self.plan)
        started: dict[str, Any] = {"agent": self.plan.name, "options": self._stored_options()}
        if metadata:
            started["metadata"] = dict(metadata)
        begun = Draft(type="turn.started", run=self.run, data=started)
        if admitting is not None:
            question, asked = admitting, [admitting, begun]
            started["question"] = head.head + 1
        elif queued is not None:
            question, asked = Draft(type=queued.type, data=queued.data), [begun]
            started["question"] = queued.seq
        else:
            question = message_draft(message, self.store.limits, run=self.run)
            asked = [begun, question]
        self._prepare(head, view, message)
        if settled:  # what was settled is history now: read it as the next turn will see it
            self._claim(settled, head)
            try:
                head = self.store.head(self.log)
                self._prepare(head, view_of(head.view), message)
            except BaseException:
                self.give_back()
                raise
        message = copy.copy(message)
        self.trail.take("turn.started", started, None)
        self.trail.take(question.type, question.data, None, message)
        self.trail.root.fresh.append((question, message))
        if settled:
            try:
                self.record(asked, "", last=False)
            except BaseException:
                self.give_back()
                raise
            return []
        return asked

    def reopen(self) -> bool:
        """Take up the unfinished turn; False if there is none. Raises if it waits for a person, or is parked."""
        head = self.store.head(self.log)
        view = view_of(head.view)
        turn = view.turn
        if turn is None:
            return False
        if view.life != "live":
            raise LifecycleError("resume a turn of", status=view.status, legal=MOVES[view.status])
        if turn.pending:
            raise ApprovalPending(self.log.id, sorted(turn.pending))
        lease = self.store.lease(self.log)
        if lease is not None and lease.alive:
            raise SessionBusy(self.log.id, retry_after=lease.remaining)  # somebody is at work on it: it may yet succeed
        if turn.parked or turn.attempts >= MAX_ATTEMPTS:
            self._park(view, head)
        self.trail = self._trail_of(view, head)
        self.plan = self._for(self.trail.root.name)  # whoever was asked, whoever has the conversation now
        self._refuse_other()
        options = self.trail.root.options
        own = self.plan.options if isinstance(self.plan, Settings) else {}
        self.given |= {name: value for name, value in options.items() if name != "schema" and own.get(name) != value}
        if self.shape is None and "schema" in options and not _is_own(self.plan, options["schema"]):
            self.shape = OutputShape(options["schema"])
        self._prepare(head, view, self.trail.question)
        for name, amount in self.trail.usage.items():  # the view has counted it already
            self._usage_before[name] = self._usage_before.get(name, 0) - amount
        drafts = [Draft(type="turn.resumed", run=turn.run)]
        for work in self.trail.legs.values():
            if work.asking:  # whoever watched saw a part of a reply that never came to be
                drafts.insert(0, Draft(type="model.interrupted", run=turn.run, branch=work.branch))
        self._claim(drafts, head)
        return True

    def _for(self, name: str | None) -> Plan:
        """Who answers in a conversation that is somebody's: that one, if it can be got to from here by handoffs."""
        plan = self.plan
        if name is None or name == plan.name or not isinstance(plan, Settings) or plan.member is None:
            return plan
        found = plan.member(name)
        if isinstance(found, Settings) and found.budget is None:
            found = replace(found, budget=plan.budget)
        return found or plan

    def _refuse_other(self) -> None:
        """A turn of several can only be gone on with by those several."""
        flow = any(path and not path.startswith("+") for path in self.trail.legs)
        alone = any(message.role == "assistant" for message in self.trail.root.own)
        whose = f"this turn is the work of {self.trail.root.name!r}"
        if flow and isinstance(self.plan, Settings):
            raise InvalidArgument(f"{whose}, which is a flow: go on with it by resume(agent=that_flow)")
        if alone and not isinstance(self.plan, Settings):
            raise InvalidArgument(f"{whose}, which is one agent: go on with it by resume(agent=that_agent)")

    def _park(self, view: View, head: Head) -> None:
        turn = view.turn
        assert turn is not None
        if not turn.parked:
            self.store.append(self.log, [Draft(type="turn.parked", run=turn.run)], expected=head.head)
        raise TurnParked(self.log.id, turn.attempts)

    def _refuse(self, view: View) -> None:
        if view.life != "live":
            raise LifecycleError("run", status=view.status, legal=MOVES[view.status])
        if view.turn is not None and view.turn.waiting and not view.turn.parked:
            if view.turn.pending:
                raise ApprovalPending(self.log.id, sorted(view.turn.pending))
            raise TurnOpen("run")  # decided, or paused and reopened: it only needs to be resumed

    def _claim(self, drafts: Sequence[Draft], head: Head | None) -> None:
        seconds = lease_seconds()
        since = self.store.ids.elapsed()
        claim = Claim(holder=holder(self.run), seconds=seconds)
        expected = None if head is None else head.head
        done = self.store.append(self.log, drafts, once=self._once, claim=claim, expected=expected)
        if done.repeated:
            raise AskedBefore
        self._number(drafts, done.first, done.at)
        self.epoch, self.at = done.epoch, done.last
        self.renewal = Renewal(self.store, self.log, self.epoch, seconds=seconds, since=since)
        self.renewal.__enter__()

    def _trail_of(self, view: View, head: Head) -> Trail:
        """The fold of the open turn's events."""
        turn = view.turn
        assert turn is not None
        events = own_events(self.store, self.log, turn.run, turn.first, head.head)
        return read_trail(self.store, self.log, turn.run, events)

    def _prepare(self, head: Head, view: View, question: Message | None) -> None:
        """Read what holds for the whole turn; and the prompt of its agent, if it has one: what cannot even be asked is
        refused before anything is stored."""
        self._head, self._view = head, view
        self._question = "" if question is None else question.text
        self._usage_before, self._turns_before = dict(view.usage), view.turns
        found = self.store.value(self.log, "budget")
        own = self.plan.budget if isinstance(self.plan, Settings) else None
        self._budget = own if found is None else Budget.of(found)
        if isinstance(self.plan, Settings):
            self._ready(self._root_of(self.plan))

    def _root_of(self, settings: Settings) -> Enter:
        """The one agent of a turn that has one."""
        return Enter(
            settings=settings,
            path="",
            branches=(),
            shape=self.shape or settings.shape,
            in_loop=False,
            aside=False,
            drafts=[],
            before="",
        )

    def _ready(self, entered: Enter) -> Leg:
        if self.stage is not None:
            entered = replace(entered, settings=self.stage(entered.path, entered.settings))
        leg = Leg(self, entered)
        leg.prompt.read(self._head, self._view, self.temp, self.trail.seen_by(entered.path), self._question)
        self.legs[entered.path] = leg
        return leg

    def _stored_options(self) -> dict[str, Any]:
        own = self.plan if isinstance(self.plan, Settings) else None
        found = {**(own.options if own else {}), **self.given}
        found = {name: value for name, value in found.items() if value is not None}
        shape = self.shape or (own.shape if own else None)
        return found if shape is None else found | {"schema": shape.schema}

    def preview(self) -> Context:
        """What the model would be sent now, without the next question; the open turn's messages, if there is one."""
        head = self.store.head(self.log)
        view = view_of(head.view)
        if view.turn is not None:
            self.trail = self._trail_of(view, head)
            self.plan = self._for(self.trail.root.name)
        else:
            self.plan = self._for(view.active)
        self._head, self._view, self._question = head, view, ""
        if self.trail.question is not None:
            self._question = self.trail.question.text
        leg = self._ready(self._root_of(first_agent(self.plan)))
        prompt, model = leg.prompt, leg.settings.model
        prompt.fit(leg.work)
        visible = self.store.count(self.log, cut(view.visible, head.head))
        messages = prompt.messages(leg.work, is_asked=self.trail.question is not None)
        parts = parts_of(prompt.pieces, prompt.tools, messages)
        estimated = sum(part.tokens for part in parts)
        return Context(
            parts=parts,
            tokens=round(estimated * correction(view.measured)),
            estimated=estimated,
            reported=None,
            window=model.context_window,
            model=f"{model.provider}:{model.name}",
            left_out=visible - prompt.history_length,
        )

    # -- what the loop asks for ------------------------------------------------------------------------------------

    def steps(self, opening: list[Draft]) -> Steps:
        """The turn, as something that a driver performs."""
        owner = self._view.active
        return turn(self.plan, self.trail, opening, owner=owner, shape=self.shape, ended=self._finished)

    def _finished(self) -> Draft:
        data = {"usage": {"milliseconds": self._elapsed()}}
        author = self.trail.last()[-1].name if isinstance(self.plan, Settings) else self.plan.name
        return Draft(type="turn.finished", run=self.run, author=author, data=data)

    def enter(self, entered: Enter) -> tuple[Rules, list[Draft]]:
        """Get an agent ready; what those before it left is stored first. Before the first append there is no lease, and
        what is to be appended waits for it."""
        drafts = entered.drafts
        if self._is_stopped(entered.path):
            raise TurnCancelled
        if drafts and self.renewal is not None:
            self.record(drafts, entered.before, last=False)
            drafts = []
        leg = self.legs.get(entered.path) or self._ready(entered)
        return leg.rules(), drafts

    def is_ready(self, entered: Enter) -> bool:
        """Whether `enter` has nothing to read or write."""
        return entered.path in self.legs and not (entered.drafts and self.renewal is not None)

    def record(self, drafts: Sequence[Draft], path: str, *, last: bool) -> None:
        """Append events of this turn; the first append takes the lease."""
        crashpoint("before record")
        leg = self.legs.get(path)
        with self._lock:
            if self._is_over or self._is_stopped(path):
                raise TurnCancelled  # nobody waits for what is done at the same time any more
            branch = None if leg is None else leg.work.branch
            stamped = [
                draft if branch is None or draft.branch is not None else replace(draft, branch=branch)
                for draft in drafts
            ]
            if self.renewal is None:
                self._claim(stamped, self._head)
            else:
                if leg is not None and len(self.legs) == 1:
                    self.renewal.allow(None)  # while it writes, nobody waits for an effect
                done = self.store.append(self.log, stamped, epoch=self.epoch, release=last)
                self._limit_effects()
                self.retained, self.at, self.more = done.retained, done.last, done.queued
                self._number(drafts, done.first, done.at)
            self._kept += [draft for draft in drafts if not draft.blobs or draft.type not in LARGE]
            self._contexts |= {draft.data["context"] for draft in drafts if draft.type == "model.called"}  # stored now
            if leg is not None and any(draft.type == "model.replied" for draft in drafts):
                leg.is_asking = False
            self._is_over = last
        if leg is not None:
            leg.left = []
            leg.work.fresh = [(draft, message) for draft, message in leg.work.fresh if message.seq is None]
        if last:
            self.close()
        crashpoint("after record")

    def proceed(self, drafts: list[Draft], called: Draft, path: str) -> bool:
        """Record what there is and that the model is called; False, and nothing done, if the session was paused."""
        leg = self.legs[path]
        leg.refuse_stopped()
        try:
            with self._lock:  # two at the same time must not both have the last call
                self._check_budget()
                leg.is_asking = True
        except BudgetExceeded:
            if drafts and self.renewal is not None:
                self.record(drafts, path, last=False)  # what the tools did is not lost with the budget
            raise
        if self.renewal is not None and view_of(self.store.head(self.log).view).life != "live":
            return False  # before the first append there is nothing to pause
        if leg.prompt.wants_room:
            self.record(drafts, path, last=False)
            leg.prompt.apply_policy(self.run, self.epoch)
            drafts, called = [], leg.model_called(leg.work)
        self.record([*drafts, called], path, last=False)
        return True

    def renamed(self, message: Message) -> Message:
        """A reply whose calls have ids that no other call of the turn has, whoever replies at the same time."""
        with self._lock:
            found = renamed(message, self._call_ids | self.trail.call_ids)
            self._call_ids |= {call.id for call in found.tool_calls}
            return found

    def meter(self, call: str, used: Mapping[str, int]) -> None:
        """An agent that was called as a tool has used this much so far: its budget is inside of this turn's."""
        with self._lock:
            self._called[call] = dict(used)
            self._check_budget()
            self._called[call] = {**used, "steps": used.get("steps", 0) + 1}  # the one that it is about to take

    def _check_budget(self) -> None:
        if self._budget is None and self._caller is None:
            return
        usage = dict(self._usage_before)
        open_calls = {call.id for work in list(self.trail.legs.values()) for call in list(work.unanswered)}
        under_way = sum(leg.is_asking and not leg.halted for leg in list(self.legs.values()))
        used = [self.trail.usage, {"steps": under_way}]
        for each in [*used, *(each for call, each in self._called.items() if call in open_calls)]:
            for name, amount in each.items():
                usage[name] = usage.get(name, 0) + amount
        if self._caller is not None:
            self._caller({name: amount for name, amount in usage.items() if name != "milliseconds"})
        if self._budget is not None:
            usage["milliseconds"] = usage.get("milliseconds", 0) + self._elapsed()
            self._budget.check(usage=usage, turns=self._turns_before)

    def settle(self, effect: Settle) -> list[Draft]:
        """Stop the agents at a place that failed: the events that say what they did, and that they are over."""
        error = error_data(effect.error, detached=self.detached)
        kept = {id(draft) for draft in self._kept}
        carried = [draft for draft in effect.carry if id(draft) not in kept]
        drafts: list[Draft] = []
        with self._lock:  # none of them writes any more
            self.halt(effect.path)
            self._forget_unstored(effect.path)
            for path, work in list(self.trail.legs.items()):
                if path and is_within(path, effect.path) and not work.over:
                    drafts += self._broken_off(path, work)
                    drafts += not_run(work)
                    drafts += self._failed(path, effect, error)
        return [*carried, *(drafts or self._failed(effect.path, effect, error))]

    def halt(self, path: str) -> None:
        """Nobody waits for whoever is at `path` or inside of it."""
        self._stopped.append(path)
        for each, leg in list(self.legs.items()):
            if is_within(each, path) and not leg.work.over:
                leg.stop()

    def _is_stopped(self, path: str) -> bool:
        return any(is_within(path, each) for each in self._stopped)

    def _forget_unstored(self, path: str) -> None:
        """Know of agents that were stopped at any point only what the log knows: one may have been about to write."""
        if self.renewal is None or not any(leg.work.branches for leg in self.legs.values()):
            return  # one after the other: whoever failed was not about to do anything
        head = self.store.head(self.log)
        known = self._trail_of(view_of(head.view), head)
        for each, leg in list(self.legs.items()):
            if each and is_within(each, path) and not leg.work.over and each in known.legs:
                found = known.legs[each]
                found.shape, self.trail.legs[each], leg.work = leg.shape, found, found

    def _broken_off(self, path: str, work: Work) -> list[Draft]:
        """What an agent did and had no time to store, and calls of it that nobody knows the outcome of."""
        leg = self.legs.get(path)
        left = [] if leg is None else leg.left
        for draft in left:
            if draft.type == "tool.returned" and draft.data["call_id"] in work.calls:
                work.calls[draft.data["call_id"]].answered = True
        if leg is not None:
            leg.left = []
        stamped = [draft if work.branch is None else replace(draft, branch=work.branch) for draft in left]
        return [*stamped, *loose_calls(work)]

    def _failed(self, path: str, effect: Settle, error: dict[str, Any]) -> list[Draft]:
        work = self.trail.legs.get(path) or self.trail.enter(path, None, ())
        data = {"path": path, "at": effect.path, "error": error}
        failed = Draft(type="agent.failed", run=self.run, branch=work.branch, author=work.name, data=data)
        # Not the error's own words: they may quote what was asked, and the conversation outlives a redaction of that.
        text = f"[{work.name or 'This agent'} could not answer: {error['code']}]"
        note = {"role": "assistant", "text": text, "metadata": {"failed": True}}
        drafts = [failed]
        if effect.note:
            told = Draft(type="message.added", run=self.run, branch=work.branch, author=work.name, data=note)
            drafts = [work.add(told), failed]
        self.trail.take("agent.failed", data, work.branch)
        return drafts

    # -- effects and their time ------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise if this turn is over, or somebody else's: what a tool does through its context belongs to the turn."""
        if self.renewal is None or self.renewal.over:
            raise StaleEpoch(self.log.id, epoch=self.epoch, current=self.epoch + 1)
        self.renewal.check()

    def begin_effect(self, leg: Leg, seconds: float) -> None:
        """An effect begins that may take this long."""
        assert self.renewal is not None
        self.renewal.check()
        leg.until = self.store.ids.elapsed() + seconds
        self._limit_effects()

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """A function of the user's is asked: one that hangs must not hold the session for ever."""
        if self.renewal is not None:
            self.renewal.allow(DECIDING)
        yield
        self._limit_effects()
        self.refuse_stopped()

    def heard(self, leg: Leg) -> None:
        """The model said something: the limit is about its silence."""
        seconds = leg.settings.timeout * 4
        leg.until = self.store.ids.elapsed() + seconds
        if self.renewal is not None:
            if len(self.legs) == 1:
                self.renewal.allow(seconds)
            else:
                self._limit_effects()

    def effect_over(self, leg: Leg) -> None:
        """The effect that was waited for is over, however long the rest takes."""
        leg.until, leg.batch = None, None
        self._limit_effects()

    def _limit_effects(self) -> None:
        """Renew the lease only for as long as the effects may take: one that hangs must not hold the session."""
        if self.renewal is not None:
            ends = [leg.until for leg in list(self.legs.values()) if leg.until is not None]
            left = max(ends) - self.store.ids.elapsed() if ends else None
            self.renewal.allow(None if left is None else max(left, lease_seconds()))

    def _elapsed(self) -> int:
        return int((self.store.ids.elapsed() - self._began) * 1000)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _number(self, drafts: Sequence[Draft], first: int, at: int) -> None:
        """Tell the messages of this turn which numbers and times they got."""
        numbers = {id(draft): number for number, draft in enumerate(drafts, first)}
        for work in list(self.trail.legs.values()):
            for draft, message in list(work.fresh):  # others may add to theirs meanwhile
                if message.seq is None and id(draft) in numbers:
                    message.seq, message.created_at = numbers[id(draft)], to_datetime(at)

    def response(self) -> Response:
        return response_of(self.trail)

    def stop(self) -> None:
        """Ask the turn to end, from another thread: at the next word of the model, or as soon as it waits for tools."""
        self.stopped = True
        for leg in list(self.legs.values()):
            if leg.batch is not None:
                leg.batch.stop()

    def refuse_stopped(self) -> None:
        if self.stopped:
            raise TurnCancelled

    def fail(self, error: BaseException) -> None:
        """Record that the turn ended without an answer, if this process still holds it."""
        with self._lock:
            is_left = self.detached and isinstance(error, StoreError)  # to be taken up when the store is back
            # Its last append may have been done although nobody knows: then another end would be wrong.
            may_be_over = self.trail.ended and (isinstance(error, StoreError) or not isinstance(error, Exception))
            if self.renewal is None or self._is_over or may_be_over or is_left:
                self._is_over = True
                self.close()
                return
            self._is_over = True  # those that work at the same time write nothing more
        cancelled = isinstance(error, GeneratorExit | KeyboardInterrupt | TurnCancelled)
        cancelled = cancelled or type(error).__name__ == "CancelledError"
        data: dict[str, Any] = {"usage": {"milliseconds": self._elapsed()}}
        if not cancelled:
            data["error"] = error_data(error, detached=self.detached)
        drafts: list[Draft] = []
        shown = ""
        with suppress(AgentError):  # the store may be away: then what this process knows has to do
            self._forget_unstored("")
        for path, leg in list(self.legs.items()):
            if not leg.work.over:
                leg.stop()
                shown += "".join(leg.shown)
                drafts += self._broken_off(path, leg.work)
        if shown:
            data["shown"] = clean(shown)
        drafts.append(Draft(type="turn.cancelled" if cancelled else "turn.failed", run=self.run, data=data))
        try:
            self.at = self.store.append(self.log, drafts, epoch=self.epoch, release=True).last
        except AgentError:
            pass  # taken over, or the store is away: what is stored tells the truth, and the first error is raised
        finally:
            self.close()

    def give_back(self) -> None:
        """Release the lease of a turn that did not begin."""
        self.close()
        with suppress(AgentError):  # taken over, or the store is away: the lease runs out by itself
            self.store.append(self.log, [], epoch=self.epoch, release=True)

    def close(self) -> None:
        """The turn is over in this process: so is what was only for it."""
        if self.renewal is not None:
            self.renewal.__exit__(None, None, None)
            self.temp.clear()


def _is_own(plan: Plan, schema: Mapping[str, Any]) -> bool:
    """Whether a shape is the agent's own, and was not asked for."""
    return isinstance(plan, Settings) and plan.shape is not None and plan.shape.schema == schema


class TurnState:
    """State as a tool sees it: its writes belong to the turn, and are refused once the turn is over or taken over."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, name: str, default: Any = None, scope: str = "session") -> Any:  # noqa: ANN401 - any JSON
        session: Any = self._world.session
        return session.get_state(name, scope=scope, default=default)

    def set(self, name: str, value: Any, scope: str = "session") -> None:  # noqa: ANN401 - any JSON
        world = self._world
        world.check_open()
        if scope == "session":
            draft = Draft(type="state.set", data={"name": name, "value": value})
            world.store.append(world.log, [draft], epoch=world.epoch)
            return
        session: Any = world.session
        session.set_state(name, value, scope=scope)

    def epoch(self) -> int:
        """The epoch that whatever a tool writes must carry; raises once the turn is over."""
        self._world.check_open()
        return self._world.epoch

    def delete(self, name: str) -> None:
        world = self._world
        world.check_open()
        world.store.append(world.log, [Draft(type="state.deleted", data={"name": name})], epoch=world.epoch)
