"""What a turn acts on: the log with its lease, the model, the tools. Both drivers share what does not wait."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.errors import (
    AgentError,
    ApprovalPending,
    BudgetExceeded,
    ImmutableSession,
    LifecycleError,
    SessionBusy,
    StaleEpoch,
    StoreError,
    TurnCancelled,
    TurnOpen,
    TurnParked,
    ViewChanged,
)
from holdfast.ids import crashpoint
from holdfast.log import codec
from holdfast.log.chain import estimate
from holdfast.log.events import MESSAGE_TYPES, Draft, Event, to_datetime
from holdfast.log.messages import Message
from holdfast.log.view import MOVES, View, cut, view_of
from holdfast.loop.context import Context, parts_of
from holdfast.loop.cutting import frees, plan_cut
from holdfast.loop.outcome import clean, error_data, response_of, work_of
from holdfast.loop.output import OutputShape
from holdfast.loop.prompt import (
    FACTS_BYTES,
    WINDOW_SHARE,
    History,
    Window,
    facts_text,
    filled,
    loose_ends,
    names_in,
    own_events,
    shortened,
    tokens_of,
)
from holdfast.loop.response import Response
from holdfast.loop.settings import Settings
from holdfast.loop.toolrun import Batch
from holdfast.loop.tools import BadArguments, ToolContext
from holdfast.loop.turn import Call, Rules, Work, loose_calls, settlement
from holdfast.models.base import ModelRequest, ToolSpec, repaired
from holdfast.policy.budget import Budget
from holdfast.policy.pruning import Strategy, strategy_of
from holdfast.policy.retention import Retention
from holdfast.stores.base import Log, Store
from holdfast.stores.lease import Claim, holder, lease_seconds
from holdfast.stores.plan import Appended, Head
from holdfast.stores.portable import message_draft
from holdfast.stores.renewal import Renewal

NO_CONTEXT = ToolContext()  # for tools that do not ask for one
IDLE = 100  # events before a strategy that freed nothing is tried again
MAX_ATTEMPTS = 5  # to finish a turn whose process ended each time


class AskedBefore(AgentError):
    """The key of a message has admitted it before: nothing was begun."""


class World:
    """One turn's access to everything. Made by `begin` or `resume`; used by one driver; over with the turn."""

    def __init__(
        self,
        store: Store,
        log: Log,
        settings: Settings,
        *,
        session: object,
        temp: dict[str, Any],
        shape: OutputShape | None = None,
        options: Mapping[str, Any] | None = None,
        run: str | None = None,
    ) -> None:
        self.store, self.log, self.settings, self.session, self.temp = store, log, settings, session, temp
        self.shape = shape
        self.options = {**settings.options, **(options or {})}
        self.work = Work(run=run or store.ids.new())
        self.epoch = 0
        self.at = 0  # the last event of this turn's last append
        self.stopped = False  # somebody asked for its end
        self.detached = False  # nobody but the log waits for it
        self._batch: Batch | None = None  # the tools under way
        self.renewal: Renewal | None = None
        self.shown: list[str] = []  # text that was streamed in this step, for a turn that is cancelled
        self._until: float | None = None  # when the effect under way has outlived its time
        self.left: list[Draft] = []  # results that wait for the next append
        self._history = History([], whole=True, after=1)
        self._pieces: list[tuple[str, str]] = []  # (kind, text) of what is sent before the messages
        self._shortened = 0  # results of this turn that are left out of the prompt
        self._limit = 0  # tokens, by our own estimate, that may be sent
        self._fixed = 0  # tokens of what is sent besides messages
        self._policy_tried = False
        self._numbers: list[tuple[int, int]] = []  # of this turn's messages that it stored: seq and time
        self.more = True  # something may be queued
        self._once: str | None = None
        self.retained = False  # the session has a retention, which may ask for pruning after the turn
        self._usage_before: dict[str, int] = {}
        self._turns_before = 0
        self._budget: Budget | None = None
        self._specs = [
            ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in settings.tools.values()
        ]
        self._began = store.ids.elapsed()
        self._contexts: set[str] = getattr(session, "_contexts", set())  # prompts that the log is known to hold

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
            settled = settlement(self._work_of(view, head))
        started: dict[str, Any] = {"agent": self.settings.name, "options": self._stored_options()}
        if metadata:
            started["metadata"] = dict(metadata)
        begun = Draft(type="turn.started", run=self.work.run, data=started)
        if admitting is not None:
            question, asked = admitting, [admitting, begun]
            started["question"] = head.head + 1
        elif queued is not None:
            question, asked = Draft(type=queued.type, data=queued.data), [begun]
            started["question"] = queued.seq
        else:
            question = message_draft(message, self.store.limits, run=self.work.run)
            asked = [begun, question]
        drafts = [*settled, *asked]
        self._prepare(head, view)
        if settled:  # what was settled is history now: read it as the next turn will see it
            self._claim(settled, head)
            try:
                head = self.store.head(self.log)
                self._prepare(head, view_of(head.view))
                done = self.store.append(self.log, drafts[len(settled) :], epoch=self.epoch)
                self._number(drafts[len(settled) :], done)
                self.at = done.last
            except BaseException:
                self.give_back()
                raise
            drafts = []
        self.work.take("turn.started", started)
        self.work.take(question.type, question.data, copy.copy(message))
        self._head = head
        return drafts

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
        self.work = self._work_of(view, head)
        self.options |= {name: value for name, value in self.work.options.items() if name != "schema"}
        if self.shape is None and "schema" in self.work.options:
            self.shape = OutputShape(self.work.options["schema"])
        self._prepare(head, view)
        drafts = [Draft(type="turn.resumed", run=turn.run)]
        if self.work.asking:  # whoever watched saw a part of a reply that never came to be
            drafts.insert(0, Draft(type="model.interrupted", run=turn.run))
        self._claim(drafts, head)
        return True

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
        claim = Claim(holder=holder(self.work.run), seconds=seconds)
        expected = None if head is None else head.head
        done = self.store.append(self.log, drafts, once=self._once, claim=claim, expected=expected)
        if done.repeated:
            raise AskedBefore
        self._number(drafts, done)
        self.epoch, self.at = done.epoch, done.last
        self.renewal = Renewal(self.store, self.log, self.epoch, seconds=seconds, since=since)
        self.renewal.__enter__()

    def _work_of(self, view: View, head: Head) -> Work:
        """The fold of the open turn's events."""
        turn = view.turn
        assert turn is not None
        return work_of(
            self.store, self.log, turn.run, own_events(self.store, self.log, turn.run, turn.first, head.head)
        )

    def _prepare(self, head: Head, view: View) -> None:
        """Read what every step of this turn sends: instructions, facts, history."""
        store, log = self.store, self.log
        self._usage_before, self._turns_before = dict(view.usage), view.turns
        budget = store.value(log, "budget")
        self._budget = self.settings.budget if budget is None else Budget.of(budget)
        facts = list(store.values(log, "fact/").values())
        room = int(self.settings.model.context_window * WINDOW_SHARE)  # bytes: about a quarter of what may be sent
        pieces = (
            ("instructions", self._instructions()),
            ("system", store.value(log, "system") or ""),
            ("facts", facts_text(facts, min(FACTS_BYTES, room))),
            ("loose_ends", loose_ends(store, log, view.loose)),
        )
        self._pieces = [(kind, text) for kind, text in pieces if text]
        self._fixed = sum(estimate(len(text.encode())) for _, text in self._pieces)
        self._fixed += sum(estimate(len(codec.encode(_spec(spec), room=codec.WRAPPING))) for spec in self._specs)
        # A provider that counts more than we do leaves less room; one that counts less does not give more.
        off = max(1.0, correction(view.measured))
        self._limit = int(self.settings.model.context_window * WINDOW_SHARE / off)
        self._read_history(head)

    def preview(self) -> Context:
        """What the model would be sent now, without the next question; the open turn's messages, if there is one."""
        head = self.store.head(self.log)
        view = view_of(head.view)
        if view.turn is not None:
            self.work = self._work_of(view, head)
        self._prepare(head, view)
        self.fit()
        visible = self.store.count(self.log, cut(view.visible, head.head))
        own = shortened(self.work.own, self._shortened)
        tools = [_spec(spec) for spec in self._specs]
        parts = parts_of(self._pieces, tools, repaired([*self._history.messages, *own]))
        estimated = sum(part.tokens for part in parts)
        model = self.settings.model
        return Context(
            parts=parts,
            tokens=round(estimated * correction(view.measured)),
            estimated=estimated,
            reported=None,
            window=model.context_window,
            model=f"{model.provider}:{model.name}",
            left_out=visible - len(self._history.messages),
        )

    def _read_history(self, head: Head) -> None:
        kept: dict[str, Window] = getattr(self.session, "_windows", {})
        window = kept.setdefault("window", Window())
        self._history = window.read(self.store, self.log, head, max(0, self._limit - self._fixed))
        self._head = head

    @property
    def _system(self) -> list[str]:
        return [text for _, text in self._pieces]

    def fit(self) -> int:
        """Make the prompt fit: leave out the oldest history, then the oldest results of this turn. Returns about how
        many tokens it has then."""
        own = [tokens_of(message) for message in self.work.own]
        room = self._limit - self._fixed
        self._history.shorten(max(0, room - sum(own)))
        self._shortened = 0
        results = [at for at, message in enumerate(self.work.own) if message.role == "tool"]
        while sum(own) + self._history.tokens > room and self._shortened < len(results):
            at = results[self._shortened]
            self._shortened += 1
            own[at] = tokens_of(shortened([self.work.own[at]], 1)[0])
        if sum(own) + self._history.tokens > room:
            self._history.unpin(max(0, room - sum(own)))
        return self._fixed + self._history.tokens + sum(own)

    def shrink(self) -> list[Draft]:
        """The provider says that the prompt is too long: aim at half of it. Gives the events that say so; none if
        there is nothing that could be left out."""
        before = self.fit()
        self._limit = max(1, before // 2)
        if self.fit() >= before:
            return []
        return [Draft(type="model.interrupted", run=self.work.run), self._model_called(self.work)]

    def _apply_policy(self) -> None:
        """Let the session's own strategy make room, once a turn. What it cannot do, `fit` does for this prompt."""
        self._policy_tried = True
        found = self.store.value(self.log, "retention")
        strategy = None if found is None else automatic(Retention.of(found), self._limit - self._fixed)
        idle: dict[str, int] = getattr(self.session, "_idle_policy", {})
        if strategy is None or idle.get("until", 0) > self._head.head:
            return
        room = max(200, (self._limit - self._fixed))  # a quarter of the prompt, at about four bytes a token
        head = self.store.head(self.log)
        plan = plan_cut(self.store, self.log, head, strategy, model=self.settings.model, room=room)
        if not plan.drop or not frees(self.store, self.log, plan):
            idle["until"] = self._head.head + IDLE  # it frees nothing: do not pay for trying at every turn
            return
        with suppress(ViewChanged, ImmutableSession):
            self.store.append(self.log, plan.drafts(run=self.work.run), epoch=self.epoch)
        self._read_history(self.store.head(self.log))

    def _instructions(self) -> str:
        text = self.settings.instructions
        if text is None:
            return ""
        names = names_in(text)
        state = {name: self.temp[name] for name in names if name in self.temp}
        for name in names:
            event = self.store.lookup(self.log, "state/" + name)
            if event is not None and name not in state:
                state[name] = self.store.value(self.log, "state/" + name)
        return filled(text, state)

    def _stored_options(self) -> dict[str, Any]:
        found = {name: value for name, value in self.options.items() if value is not None}
        if self.shape is not None:
            found["schema"] = self.shape.schema
        return found

    # -- what the loop asks for ------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        return Rules(
            run=self.work.run,
            author=self.settings.name,
            limits=self.store.limits,
            max_steps=self.settings.max_steps,
            shape=self.shape,
            model_called=self._model_called,
            refusal=self._refusal,
            needs_approval=self._needs_approval,
            is_idempotent=lambda call: call.name in self.settings.tools and self.settings.tools[call.name].idempotent,
            finished=self._finished,
        )

    def record(self, drafts: Sequence[Draft], *, last: bool) -> None:
        """Append events of this turn; the first append takes the lease."""
        crashpoint("before record")
        if self.renewal is None:
            self._claim(drafts, self._head)
        else:
            self.renewal.allow(None)  # while it writes, nobody waits for an effect
            done = self.store.append(self.log, drafts, epoch=self.epoch, release=last)
            self.retained, self.at, self.more = done.retained, done.last, done.queued
            self._number(drafts, done)
            self._limit_effect()
        self.left = []
        self._contexts |= {draft.data["context"] for draft in drafts if draft.type == "model.called"}  # stored now
        if last:
            self.close()
        crashpoint("after record")

    def proceed(self, drafts: list[Draft], called: Draft) -> bool:
        """Record what there is and that the model is called; False, and nothing done, if the session was paused."""
        self.refuse_stopped()
        try:
            self._check_budget()
        except BudgetExceeded:
            if drafts and self.renewal is not None:
                self.record(drafts, last=False)  # what the tools did is not lost with the budget
            raise
        if self.renewal is not None and view_of(self.store.head(self.log).view).life != "live":
            return False  # before the first append there is nothing to pause
        if self.settings.condenses and not self._history.whole and not self._policy_tried:
            self.record(drafts, last=False)
            self._apply_policy()
            drafts, called = [], self._model_called(self.work)
        self.record([*drafts, called], last=False)
        return True

    def _check_budget(self) -> None:
        if self._budget is not None:
            usage = dict(self._usage_before)
            for name, amount in self.work.usage.items():
                usage[name] = usage.get(name, 0) + amount
            usage["milliseconds"] = usage.get("milliseconds", 0) + self._elapsed()
            self._budget.check(usage=usage, turns=self._turns_before)

    def request(self) -> ModelRequest:
        """What the model is sent now. Always valid: no call without its result, whatever crashed or was pruned."""
        assert self.renewal is not None
        self.renewal.check()
        self._until = self.store.ids.elapsed() + self.settings.timeout * 4
        self._limit_effect()
        self.shown = []
        options = self.options
        return ModelRequest(
            model=self.settings.model.name,
            system=self._system,
            messages=repaired([*self._history.messages, *shortened(self.work.own, self._shortened)]),
            tools=self._specs,
            temperature=options.get("temperature"),
            max_tokens=options.get("max_tokens"),
            stop=options.get("stop") or (),
            tool_choice=self._tool_choice(),
            output_schema=None if self.shape is None else self.shape.schema,
        )

    def _tool_choice(self) -> str | None:
        """A forced call is forced once: after it the model must be free to answer."""
        choice: str | None = self.options.get("tool_choice")
        return "auto" if choice not in (None, "none") and self.work.steps else choice

    def check_open(self) -> None:
        """Raise if this turn is over, or somebody else's: what a tool does through its context belongs to the turn."""
        if self.renewal is None or self.renewal.over:
            raise StaleEpoch(self.log.id, epoch=self.epoch, current=self.epoch + 1)
        self.renewal.check()

    def batch(self, calls: Sequence[Call]) -> Batch:
        """The calls as something that can be run."""
        assert self.renewal is not None
        self.renewal.check()
        batch = Batch(self.work.run, self.store.ids, self.renewal.check)
        for call in calls:
            tool = self.settings.tools[call.name]
            batch.add(call, tool, lambda cancelled, told, call=call: self._context(call, cancelled, told))  # type: ignore[misc]
        self._until = max(one.deadline for one in batch.running) + 1
        self._limit_effect()
        self._batch = batch
        return batch

    def heard(self) -> None:
        """The model said something: the limit is about its silence."""
        if self.renewal is not None:
            self.renewal.allow(self.settings.timeout * 4)

    def effect_over(self) -> None:
        """The effect that was waited for is over, however long the rest takes."""
        self._until = self._batch = None
        self._limit_effect()

    def _limit_effect(self) -> None:
        """Renew the lease only for as long as the effect may take: one that hangs must not hold the session."""
        if self.renewal is not None:
            left = None if self._until is None else self._until - self.store.ids.elapsed()
            self.renewal.allow(None if left is None else max(left, lease_seconds()))

    def _context(self, call: Call, cancelled: threading.Event, told: Callable[[str], None]) -> ToolContext:
        if not self.settings.tools[call.name].wants_context:
            return NO_CONTEXT
        work_dir = self.store.info(self.log).work_dir
        return ToolContext(
            session=self.session,
            state=TurnState(self),
            work_dir=None if work_dir is None else Path(work_dir),
            idempotency_key=f"{self.log.uid}:{self.work.run}:{call.id}",
            cancelled=cancelled,
            on_progress=told,
        )

    def _model_called(self, work: Work) -> Draft:
        """What the model is about to be sent: the range of the log, and a name for everything that is not in it."""
        tokens = self.fit()
        about = {
            "system": self._system,
            "kinds": [kind for kind, _ in self._pieces],
            "tools": [_spec(spec) for spec in self._specs],
            "options": self._stored_options(),
        }
        context = codec.encode(about, room=codec.WRAPPING)
        digest = sha256(context).hexdigest()
        data = {
            "step": work.steps + 1,
            "provider": self.settings.model.provider,
            "model": self.settings.model.name,
            "from": self._history.first_seq,
            "upto": self._head.head,
            "context": digest,
            "tokens": tokens,
        }
        if self._history.pinned:
            data["pinned"] = self._history.pinned
        if self._shortened:
            data["shortened"] = self._shortened
        blobs = {} if digest in self._contexts else {digest: context}
        return Draft(type="model.called", run=work.run, author=self.settings.name, data=data, blobs=blobs)

    def _refusal(self, call: Call) -> str | None:
        tool = self.settings.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.settings.tools) or "none"
            return f"There is no tool named {call.name!r}. Tools: {known}."
        try:
            tool.validate(call.arguments)
        except BadArguments as error:
            return str(error)
        return None

    def _needs_approval(self, call: Call) -> bool:
        tool = self.settings.tools.get(call.name)
        return tool is not None and isinstance(call.arguments, dict) and tool.needs_approval(call.arguments)

    def _finished(self, work: Work) -> list[Draft]:
        drafts: list[Draft] = []
        answer = work.answer
        if self.settings.output_key is not None and answer is not None:
            data = {"name": self.settings.output_key, "value": answer.text}
            drafts.append(Draft(type="state.set", run=work.run, data=data))
        drafts += self._extracted()
        end = {"usage": {"milliseconds": self._elapsed()}}
        return [*drafts, Draft(type="turn.finished", run=work.run, author=self.settings.name, data=end)]

    def _extracted(self) -> list[Draft]:
        if self.settings.extract is None:
            return []
        found = self.settings.extract(self.response()) or {}
        drafts = []
        for name, value in dict(found).items():
            if name == "facts":
                for fact in value:
                    data = {"id": self.store.ids.new(), "text": str(fact), "kind": "fact"}
                    drafts.append(Draft(type="fact.added", run=self.work.run, data=data))
            else:
                drafts.append(Draft(type="state.set", run=self.work.run, data={"name": name, "value": value}))
        return drafts

    def _elapsed(self) -> int:
        return int((self.store.ids.elapsed() - self._began) * 1000)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _number(self, drafts: Sequence[Draft], done: Appended) -> None:
        """Remember which numbers and times the messages of this turn got."""
        run, first = self.work.run, done.first
        for at, draft in enumerate(drafts):
            if draft.type in MESSAGE_TYPES and draft.run == run and draft.type != "summary.added":
                self._numbers.append((first + at, done.at))

    def response(self) -> Response:
        fresh = [message for message in self.work.own if message.seq is None]
        for message, (seq, at) in zip(fresh, self._numbers, strict=False):
            message.seq, message.created_at = seq, to_datetime(at)
        return response_of(self.work, self.shape)

    def stop(self) -> None:
        """Ask the turn to end, from another thread: at the next word of the model, or as soon as it waits for tools."""
        self.stopped = True
        batch = self._batch
        if batch is not None:
            batch.stop()

    def refuse_stopped(self) -> None:
        if self.stopped:
            raise TurnCancelled

    def fail(self, error: BaseException) -> None:
        """Record that the turn ended without an answer, if this process still holds it."""
        if self.detached and isinstance(error, StoreError):
            self.close()  # nothing is wrong with the turn: it is taken up again when the store is back
            return
        if self.renewal is None or self.work.ended:
            self.close()
            return
        cancelled = isinstance(error, GeneratorExit | KeyboardInterrupt | TurnCancelled)
        cancelled = cancelled or type(error).__name__ == "CancelledError"
        data: dict[str, Any] = {"usage": {"milliseconds": self._elapsed()}}
        if not cancelled:
            data["error"] = error_data(error, detached=self.detached)
        if self.shown:
            data["shown"] = clean("".join(self.shown))
        for draft in self.left:  # results that came and were not stored yet
            if draft.type == "tool.returned":
                self.work.calls[draft.data["call_id"]].answered = True
        ended = Draft(type="turn.cancelled" if cancelled else "turn.failed", run=self.work.run, data=data)
        drafts = [*self.left, *loose_calls(self.work), ended]
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


def _spec(spec: ToolSpec) -> list[Any]:
    return [spec.name, spec.description, dict(spec.parameters)]


def correction(measured: Sequence[int]) -> float:
    """By how much our estimate of tokens was off at the last call, where the provider reported its own count."""
    if not measured or not measured[0] or not measured[1]:
        return 1.0
    return min(4.0, max(0.5, measured[1] / measured[0]))


def automatic(retention: Retention, room: int) -> Strategy | None:
    """The strategy that makes room in a prompt; None where leaving old messages out of the prompt is the strategy."""
    name, window = retention.strategy, retention.window
    if name == "summarize_old":
        return Strategy(name=name, tokens=max(1, room // 2), messages=window, summarize=True)
    if retention.immutable or name in (None, "token_budget"):
        return None
    return strategy_of(name, window_size=window) if name == "sliding_window" else strategy_of(name)


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
