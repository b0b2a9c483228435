"""One agent in a turn: its prompt, its tools, and the rules that the loop asks it for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.diagnostics import Fields, report
from holdfast.errors import BadArguments, HandoffLoop, TurnCancelled
from holdfast.log.events import Draft
from holdfast.log.flow_paths import handoff_root
from holdfast.log.identifiers import call_key
from holdfast.models.base import ModelRequest, ToolSpec
from holdfast.prompt.prompt import Prompt
from holdfast.tools.tool import EXIT_LOOP, Tool, ToolContext
from holdfast.turn.agent_loop import AgentRules, ControlResult
from holdfast.turn.askers import find_askers
from holdfast.turn.effects import PrepareAgent
from holdfast.turn.progress import AgentProgress, CallProgress
from holdfast.turn.response import response_of
from holdfast.turn.tool_calls import ToolCallBatch

if TYPE_CHECKING:
    from holdfast.turn.runtime import TurnRuntime

NO_CONTEXT = ToolContext()  # for tools that take no context
MAX_SAME_HANDOFFS = 2  # handoffs from one agent to the same other agent, in one turn


class AgentRuntime:
    """The prompt, the tools and the running effect of one agent in a turn. Used by one driver at a time."""

    def __init__(self, runtime: TurnRuntime, effect: PrepareAgent) -> None:
        self.runtime, self.path, self.spec, self.shape = runtime, effect.path, effect.spec, effect.shape
        self.in_loop, self.aside = effect.in_loop, effect.aside
        self.options = {**self.spec.options, **runtime.turn_options}
        self.progress = runtime.progress.enter_agent(effect.path, self.spec.name, effect.branches)
        self.progress.shape = self.shape
        self.is_calling_model = False  # a model call is under way, and its usage is not known yet
        self.is_halted = False  # the agent must stop: its result is not needed any more
        self.batch: ToolCallBatch | None = None  # the running tool calls
        self.streamed_text: list[str] = []  # text streamed in this step; stored if the turn fails or is cancelled
        self.unstored_results: list[Draft] = []  # tool results that wait for the next append
        self.effect_deadline: float | None = None  # end of the time that the running effect may take
        self._tool_specs = [
            ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in self.spec.tools.values()
        ]
        self.prompt = Prompt(runtime.store, runtime.log, runtime.cache, self.spec, self._tool_specs)

    def options_to_store(self) -> dict[str, Any]:
        """Return the options that are set, and the schema of the answer, for `model.called`."""
        options = {name: value for name, value in self.options.items() if value is not None}
        if self.shape is not None:
            options["schema"] = self.shape.schema
        return options

    # -- the rules for the loop ------------------------------------------------------------------------------------

    def build_rules(self) -> AgentRules:
        """Return the settings and functions that the agent loop needs."""
        return AgentRules(
            run=self.progress.run,
            path=self.path,
            author=self.spec.name,
            limits=self.runtime.store.limits,
            max_steps=self.runtime.progress.max_steps or self.spec.max_steps,
            shape=self.shape,
            aside=self.aside,
            draft_model_call=self.draft_model_call,
            refusal_reason=self._refusal_reason,
            control_result=self._control_result,
            approval_check=self._approval_check,
            approval_expiry=self._approval_expiry,
            find_askers=partial(find_askers, self.runtime.store, self.runtime.log),
            is_idempotent=lambda call: call.name in self.spec.tools and self.spec.tools[call.name].idempotent,
            assign_call_ids=self.runtime.assign_call_ids,
            count_steps=lambda: self.runtime.progress.steps,
            draft_outputs=self._draft_outputs,
            extract=None if self.spec.extract is None else self._extract,
            draft_extracted=self._draft_extracted,
        )

    def draft_model_call(self, progress: AgentProgress) -> Draft:
        return self.prompt.draft_model_call(
            progress.messages, progress.run, self.runtime.progress.steps + 1, self.options_to_store()
        )

    def _refusal_reason(self, call: CallProgress) -> str | None:
        """Return why a call cannot run (unknown tool, bad arguments), or None if it can."""
        tool = self.spec.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.spec.tools) or "none"
            return f"There is no tool named {call.name!r}. Tools: {known}."
        try:
            tool.validate(call.arguments)
        except BadArguments as error:
            return str(error)
        return None

    def _control_result(self, call: CallProgress) -> ControlResult | None:
        """Return the result of a handoff or of an exit from a loop; None for a call of an ordinary tool."""
        tool = self.spec.tools[call.name]
        if tool.signal is None:
            return None
        reason = tool.validate(call.arguments).get("reason") or ""
        if tool.signal != EXIT_LOOP:
            return self._handoff_result(tool, reason)
        if not self.in_loop:
            return ControlResult(text="There is no loop to leave here.", is_error=True, data={})
        return ControlResult(text=f"The loop ends here. {reason}".rstrip(), data={"exit": True})

    def _handoff_result(self, tool: Tool, reason: str) -> ControlResult:
        target, name = tool.signal or "", self.spec.name or ""
        if self.progress.handoff is not None:
            return ControlResult(
                text=f"The conversation was handed to {self.progress.handoff} already.", is_error=True, data={}
            )
        here = handoff_root(self.path)
        agents = list(self.runtime.progress.agents.items())
        handoffs = [(progress.name, progress.handoff) for path, progress in agents if handoff_root(path) == here]
        if handoffs.count((name, target)) >= MAX_SAME_HANDOFFS:
            if self.progress.is_handoff_refused:  # the model repeats a handoff that was refused once
                raise HandoffLoop(name, target)
            text = (
                f"{name} has handed this to {target} {MAX_SAME_HANDOFFS} times without an answer. Answer it yourself."
            )
            return ControlResult(text=text, is_error=True, data={"turned_back": True})
        text = f"The conversation goes on with {target}."
        return ControlResult(text=f"{text} {reason}" if reason else text, data={"handoff": target})

    def _approval_expiry(self, call: CallProgress) -> int | None:
        seconds = self.spec.tools[call.name].approval_timeout
        return None if seconds is None else self.runtime.store.clock.now() + round(seconds * 1_000_000)

    def _approval_check(self, call: CallProgress) -> object:
        """Return the `approval` of a call's tool, or the user's function that decides this, bound to its arguments."""
        tool, arguments = self.spec.tools.get(call.name), call.arguments
        if tool is None or not isinstance(arguments, dict):
            return None
        check = tool.approval
        return partial(check, arguments) if callable(check) else check

    def _draft_outputs(self, progress: AgentProgress) -> list[Draft]:
        """Return the event that stores the answer as state, if the agent has an `output_key`."""
        answer = progress.answer
        if self.spec.output_key is None or answer is None:
            return []
        data = {"name": self.spec.output_key, "value": answer.text}
        return [Draft(type="state.set", run=progress.run, data=data)]

    def _extract(self) -> Any:  # noqa: ANN401 - a mapping, or an awaitable of one
        assert self.spec.extract is not None
        return self.spec.extract(response_of(self.runtime.progress, self.path))

    def _draft_extracted(self, values: Mapping[str, Any] | None) -> list[Draft]:
        """Return the events for the values of the user's `extract`: facts under "facts", state under other names."""
        drafts = []
        for name, value in dict(values or {}).items():
            if name == "facts":
                for fact in value:
                    data = {"id": self.runtime.store.clock.new_id(), "text": str(fact), "kind": "fact"}
                    drafts.append(Draft(type="fact.added", run=self.progress.run, data=data))
            else:
                drafts.append(Draft(type="state.set", run=self.progress.run, data={"name": name, "value": value}))
        return drafts

    # -- effects, for the drivers ----------------------------------------------------------------------------------

    def begin_model_request(self) -> ModelRequest:
        """Begin the time limit of a model call, and return the request to send."""
        self.runtime.begin_effect(self, self.spec.timeout * 4)
        self.streamed_text = []
        report(logging.DEBUG, "model %(model)s is called in session %(session_id)s", self._name_model_call())
        options = self.options
        return ModelRequest(
            model=self.spec.model.name,
            system=self.prompt.system,
            messages=self.prompt.messages(self.progress.messages),
            tools=self._tool_specs,
            temperature=options.get("temperature"),
            max_tokens=options.get("max_tokens"),
            stop=options.get("stop") or (),
            tool_choice=self._tool_choice(),
            output_schema=None if self.shape is None else self.shape.schema,
            session_id=self.runtime.log.id,
            run_id=self.progress.run,
        )

    def _name_model_call(self) -> Fields:
        """Return what identifies a call of the model in a record of the logger."""
        return {
            "session_id": self.runtime.log.id,
            "run_id": self.progress.run,
            "agent": self.spec.name,
            "provider": self.spec.model.provider,
            "model": self.spec.model.name,
        }

    def _tool_choice(self) -> str | None:
        """Return the tool choice of this step. A forced call is forced in the first step only, because later the model
        must be free to answer."""
        choice: str | None = self.options.get("tool_choice")
        return "auto" if choice not in (None, "none") and self.progress.steps else choice

    def shorten_prompt(self) -> list[Draft]:
        """Shorten a prompt that the provider found too long. Returns the events that record the shorter call; none if
        the prompt cannot be shortened."""
        if not self.prompt.halve(self.progress.messages):
            return []
        text = "%(provider)s: the prompt was too long, the next attempt has a shorter one"
        report(logging.INFO, text, self._name_model_call())
        return [Draft(type="model.interrupted", run=self.progress.run), self.draft_model_call(self.progress)]

    def begin_tool_calls(self, calls: Sequence[CallProgress]) -> ToolCallBatch:
        """Begin the time limit of these calls, and return them as a batch for a driver to run."""
        runtime = self.runtime
        batch = ToolCallBatch(
            session_id=runtime.log.id,
            log_uid=runtime.log.uid,
            run=self.progress.run,
            model=self.spec.model,
            clock=runtime.store.clock,
            check_lease=runtime.check_open,
            limits=runtime.store.limits,
        )
        for call in calls:
            batch.add_call(call, self.spec.tools[call.name], partial(self._tool_context, call))
        now = runtime.store.clock.monotonic()
        runtime.begin_effect(self, max(running_call.deadline for running_call in batch.running) + 1 - now)
        self.batch = batch
        return batch

    def _tool_context(
        self, call: CallProgress, cancelled: threading.Event, on_progress: Callable[[str], None]
    ) -> ToolContext:
        if not self.spec.tools[call.name].wants_context:
            return NO_CONTEXT
        runtime = self.runtime
        work_dir = runtime.store.info(runtime.log).work_dir
        return ToolContext(
            session=runtime.session.in_turn(lambda: runtime.renewal is None or runtime.renewal.is_over),
            state=runtime.state,
            work_dir=None if work_dir is None else partial(runtime.cache.resolve_work_dir, work_dir),
            idempotency_key=call_key(runtime.log.uid, self.progress.run, call.id),
            cancelled=cancelled,
            on_progress=on_progress,
            meter=lambda used: runtime.meter_call(call.id, used),
        )

    def mark_result_stored(self, draft: Draft) -> None:
        """Note that a result is stored while other calls still run. If the turn ends now, this call is not reported as
        unknown."""
        if draft.type == "tool.returned":
            self.progress.calls[draft.data["call_id"]].is_result_stored = True

    def refuse_stopped(self) -> None:
        """Raise TurnCancelled if this agent, or the whole turn, must stop."""
        self.runtime.refuse_stopped()
        if self.is_halted:
            raise TurnCancelled

    def stop(self) -> None:
        """Make the agent end: at the next event of its model, or as soon as it waits for tools."""
        self.is_halted = True
        if self.batch is not None:
            self.batch.stop()
