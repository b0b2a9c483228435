"""One agent's part in a turn: its prompt, its tools, and what the loop must know of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HandoffLoop, TurnCancelled
from holdfast.log.events import Draft
from holdfast.log.flow_paths import chain
from holdfast.log.identifiers import call_key
from holdfast.models.base import ModelRequest, ToolSpec
from holdfast.prompt.prompt import Prompt
from holdfast.tools.tool import EXIT, BadArguments, Tool, ToolContext
from holdfast.turn.agent_loop import Rules, Signal
from holdfast.turn.effects import Enter
from holdfast.turn.response import response_of
from holdfast.turn.tool_calls import Batch
from holdfast.turn.work import Call, Work

if TYPE_CHECKING:
    from holdfast.turn.runtime import World

NO_CONTEXT = ToolContext()  # for tools that do not ask for one
CIRCLES = 2  # handoffs from one agent to the same other one, in one turn


class Leg:
    """What one agent needs to take its part in a turn. Used by one driver at a time."""

    def __init__(self, world: World, entered: Enter) -> None:
        self.world, self.path, self.settings, self.shape = world, entered.path, entered.settings, entered.shape
        self.in_loop, self.aside = entered.in_loop, entered.aside
        self.options = {**self.settings.options, **world.given}
        self.work = world.trail.enter(entered.path, self.settings.name, entered.branches)
        self.work.shape = self.shape
        self.is_asking = False  # its model is at work: what that uses is not known yet
        self.halted = False  # nobody waits for it any more
        self.batch: Batch | None = None  # the tools under way
        self.shown: list[str] = []  # text that was streamed in this step, for a turn that is cancelled
        self.left: list[Draft] = []  # results that wait for the next append
        self.until: float | None = None  # when the effect under way has outlived its time
        self._specs = [
            ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in self.settings.tools.values()
        ]
        self.prompt = Prompt(world.store, world.log, world.session, self.settings, self._specs)

    def stored_options(self) -> dict[str, Any]:
        found = {name: value for name, value in self.options.items() if value is not None}
        if self.shape is not None:
            found["schema"] = self.shape.schema
        return found

    # -- what the loop asks ----------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        return Rules(
            run=self.work.run,
            path=self.path,
            author=self.settings.name,
            limits=self.world.store.limits,
            max_steps=self.settings.max_steps,
            shape=self.shape,
            aside=self.aside,
            model_called=self.model_called,
            refusal=self._refusal,
            signal=self._signal,
            needs_approval=self._needs_approval,
            is_idempotent=lambda call: call.name in self.settings.tools and self.settings.tools[call.name].idempotent,
            renamed=self.world.renamed,
            steps=lambda: self.world.trail.steps,
            closing=self._closing,
        )

    def model_called(self, work: Work) -> Draft:
        return self.prompt.called(work, self.world.trail.steps + 1, self.stored_options())

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

    def _signal(self, call: Call) -> Signal | None:
        """What the loop itself answers: a handoff, the end of a loop."""
        tool = self.settings.tools[call.name]
        if tool.signal == EXIT:
            if not self.in_loop:
                return Signal(text="There is no loop to leave here.", is_error=True, data={})
            return Signal(text="The loop ends here.", data={"exit": True})
        if tool.signal is None:
            return None
        return self._handoff(tool, tool.validate(call.arguments).get("reason") or "")

    def _handoff(self, tool: Tool, reason: str) -> Signal:
        taker, giver = tool.signal or "", self.settings.name or ""
        if self.work.handoff is not None:
            return Signal(text=f"The conversation was handed to {self.work.handoff} already.", is_error=True, data={})
        here = chain(self.path)
        legs = list(self.world.trail.legs.items())
        before = [(work.name, work.handoff) for path, work in legs if chain(path) == here]
        if before.count((giver, taker)) >= CIRCLES:
            if self.work.turned_back:  # it was told once, and does not listen
                raise HandoffLoop(giver, taker)
            text = f"{giver} has handed this to {taker} {CIRCLES} times without an answer. Answer it yourself."
            return Signal(text=text, is_error=True, data={"turned_back": True})
        text = f"The conversation goes on with {taker}."
        return Signal(text=f"{text} {reason}" if reason else text, data={"handoff": taker})

    def _needs_approval(self, call: Call) -> bool:
        tool = self.settings.tools.get(call.name)
        return tool is not None and isinstance(call.arguments, dict) and tool.needs_approval(call.arguments)

    def _closing(self, work: Work) -> list[Draft]:
        """What goes with the answer: the state that keeps it, and what is extracted from it."""
        drafts: list[Draft] = []
        answer = work.answer
        if self.settings.output_key is not None and answer is not None:
            data = {"name": self.settings.output_key, "value": answer.text}
            drafts.append(Draft(type="state.set", run=work.run, data=data))
        return drafts + self._extracted()

    def _extracted(self) -> list[Draft]:
        if self.settings.extract is None:
            return []
        found = self.settings.extract(response_of(self.world.trail, self.path)) or {}
        drafts = []
        for name, value in dict(found).items():
            if name == "facts":
                for fact in value:
                    data = {"id": self.world.store.ids.new(), "text": str(fact), "kind": "fact"}
                    drafts.append(Draft(type="fact.added", run=self.work.run, data=data))
            else:
                drafts.append(Draft(type="state.set", run=self.work.run, data={"name": name, "value": value}))
        return drafts

    # -- what drivers perform --------------------------------------------------------------------------------------

    def request(self) -> ModelRequest:
        """What the model is sent now."""
        self.world.begin_effect(self, self.settings.timeout * 4)
        self.shown = []
        options = self.options
        return ModelRequest(
            model=self.settings.model.name,
            system=self.prompt.system,
            messages=self.prompt.messages(self.work),
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

    def shrink(self) -> list[Draft]:
        """The prompt was too long: the events that say that a shorter one is sent; none if there is none."""
        if not self.prompt.halve(self.work):
            return []
        return [Draft(type="model.interrupted", run=self.work.run), self.model_called(self.work)]

    def calls(self, calls: Sequence[Call]) -> Batch:
        """The calls as something that can be run."""
        world = self.world
        batch = Batch(self.work.run, world.store.ids, world.check_open)
        for call in calls:
            tool = self.settings.tools[call.name]
            batch.add(call, tool, lambda cancelled, told, call=call: self._context(call, cancelled, told))  # type: ignore[misc]
        now = world.store.ids.elapsed()
        world.begin_effect(self, max(one.deadline for one in batch.running) + 1 - now)
        self.batch = batch
        return batch

    def _context(self, call: Call, cancelled: threading.Event, told: Callable[[str], None]) -> ToolContext:
        if not self.settings.tools[call.name].wants_context:
            return NO_CONTEXT
        world = self.world
        work_dir = world.store.info(world.log).work_dir
        return ToolContext(
            session=world.session,
            state=world.state,
            work_dir=None if work_dir is None else Path(work_dir),
            idempotency_key=call_key(world.log.uid, self.work.run, call.id),
            cancelled=cancelled,
            on_progress=told,
            meter=lambda used: world.meter(call.id, used),
        )

    def answered(self, draft: Draft) -> None:
        """A result is stored while others are waited for: whatever ends the turn now, that call is not unknown."""
        if draft.type == "tool.returned":
            self.work.calls[draft.data["call_id"]].stored = True

    def refuse_stopped(self) -> None:
        if self.halted:
            raise TurnCancelled
        self.world.refuse_stopped()

    def stop(self) -> None:
        """Nobody waits for this agent any more: it ends at the next word of its model, or as soon as it waits for
        tools."""
        self.halted = True
        if self.batch is not None:
            self.batch.stop()
