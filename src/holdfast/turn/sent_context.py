"""The context of a model call, past or next, part by part with token counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import CorruptLog, InvalidArgument
from holdfast.log import codec
from holdfast.log.chain import estimate_tokens
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.messages import Message
from holdfast.log.ranges import clip_ranges
from holdfast.log.repair import repair_history
from holdfast.log.view import TURN_ENDS, decode_view
from holdfast.prompt.compaction import read_newest_first
from holdfast.prompt.history_window import estimate_message_tokens, leave_out_results
from holdfast.prompt.perspective import as_seen_by
from holdfast.prompt.prompt import token_correction
from holdfast.stores.base import Log, Store
from holdfast.stores.messages import message_of
from holdfast.turn.drivers import perform_preview
from holdfast.turn.progress import TurnProgress
from holdfast.turn.run_outcome import read_turn_events
from holdfast.turn.runtime import TurnRuntime
from holdfast.turn.start import plan_for

MAX_REPLIES_READ = 100  # replies to search for the one to a call: parallel agents may have replied before


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPart:
    """One part of a prompt: `kind` is instructions, routing, system, facts, state, memory, loose_ends, others, tool
    or message."""

    kind: str
    text: str
    tokens: int  # estimated
    seq: int | None = None  # seq of a stored message
    message: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A whole prompt. `tokens` is the count that the provider reported for a past call, if it did; for the next call it
    is the estimate, corrected by the last reported count."""

    parts: list[ContextPart]
    tokens: int
    estimated: int
    reported: int | None  # tokens that the provider reported, for a past call
    window: int | None  # context window of the model, for the next call
    model: str
    left_out: int  # number of visible messages that are not sent

    @property
    def messages(self) -> list[Message]:
        return [part.message for part in self.parts if part.message is not None]

    def __str__(self) -> str:
        lines = [f"{part.kind:<12} {part.tokens:>6}  {' '.join(part.text.split())[:60]}" for part in self.parts]
        return "\n".join([*lines, f"{'total':<12} {self.tokens:>6}"])


def parts_of(
    pieces: Sequence[tuple[str, str]], tools: Sequence[Sequence[object]], messages: Sequence[Message]
) -> list[ContextPart]:
    """Return the parts of a prompt in the order in which they are sent."""
    parts = [ContextPart(kind=kind, text=text, tokens=estimate_tokens(len(text.encode()))) for kind, text in pieces]
    for spec in tools:
        size = len(codec.encode(list(spec), room=codec.WRAPPING_DEPTH))
        parts.append(ContextPart(kind="tool", text=str(spec[0]), tokens=estimate_tokens(size)))
    for message in messages:
        text = f"{message.role}: {message.text}" if message.text else message.role
        part = ContextPart(
            kind="message", text=text, tokens=estimate_message_tokens(message), seq=message.seq, message=message
        )
        parts.append(part)
    return parts


def preview_context(runtime: TurnRuntime) -> Context:
    """Return the prompt that the model would get now: without the next question, with the messages of an open turn."""
    store, log = runtime.store, runtime.log
    head = store.head(log)
    view = decode_view(head.view)
    if view.turn is not None:
        runtime.progress = runtime.read_progress(view, head)
    owner = view.active if view.turn is None else runtime.progress.root.name
    runtime.plan = plan_for(runtime.plan, owner)
    question = runtime.progress.question
    agent = perform_preview(runtime, runtime.begin_preview(head, view, question))
    prompt, model = agent.prompt, agent.spec.model
    prompt.fit(agent.progress.messages)
    parts = parts_of(
        prompt.pieces, prompt.tools, prompt.messages(agent.progress.messages, is_asked=question is not None)
    )
    estimated = sum(part.tokens for part in parts)
    return Context(
        parts=parts,
        tokens=round(estimated * token_correction(view.last_call_tokens)),
        estimated=estimated,
        reported=None,
        window=model.context_window,
        model=f"{model.provider}:{model.name}",
        left_out=store.count(log, clip_ranges(view.visible, head.head)) - prompt.history_length,
    )


def read_sent_context(store: Store, log: Log, seq: int) -> Context:
    """Return the prompt of the model call that event `seq` records, rebuilt from the log. Raises InvalidArgument if the
    event is no `model.called`, and CorruptLog if it was erased."""
    if isinstance(seq, bool) or not isinstance(seq, int):
        raise InvalidArgument(f"call={seq!r}: use the number of a model.called event; events(types=...) lists them")
    called = store.event(log, seq)
    if called.type != "model.called":
        raise InvalidArgument(
            f"event {seq} is {called.type}, not model.called: events(types='model.called') lists them"
        )
    data = called.data
    if "context" not in data:
        raise CorruptLog(f"event {seq} was erased: what the model was sent is not known any more")
    try:
        context = codec.decode(store.blob(log, data["context"]))
        pieces = list(zip(context.get("kinds", ["system"] * len(context["system"])), context["system"], strict=True))
        tools = context["tools"]
    except CorruptLog:  # the stored prompt repeated an event that was redacted, and was removed with it
        pieces, tools = [("system", "[erased]")], []
    visible = clip_ranges(store.view(log, data["upto"]).visible, data["upto"])
    items = []
    for item in read_newest_first(store, log, visible) if data["from"] <= data["upto"] else ():
        items.append(item)
        if item.seq == data["from"]:
            break
    front = [message_of(store, log, row) for each in data.get("pinned", ()) for row in store.read(log, each, each)]
    history = [*front, *(item.message for item in reversed(items))]
    assert called.run is not None
    seen, own = _read_turn_messages(store, log, called)
    whole = repair_history([*history, *leave_out_results([*seen, *own], data.get("shortened", 0))])
    shown = as_seen_by(whole, called.author, has_tools=bool(tools), own=len(repair_history(own)))
    parts = parts_of(pieces, tools, shown)
    reported = _find_reported_tokens(store, log, called)
    estimated = sum(part.tokens for part in parts)
    return Context(
        parts=parts,
        tokens=reported or estimated,
        estimated=estimated,
        reported=reported,
        window=None,
        model=f"{data['provider']}:{data['model']}",
        left_out=store.count(log, visible) - len(history),
    )


def _read_turn_messages(store: Store, log: Log, called: Event) -> tuple[list[Message], list[Message]]:
    """Return the messages of its own turn that a call was sent: those of other agents, and those of the calling
    agent."""
    turn = TurnProgress(called.run or "")
    path = ""
    for event in read_turn_events(store, log, turn.run, _find_turn_start(store, log, called), called.seq):
        rows = store.read(log, event.seq, event.seq) if event.type in MESSAGE_TYPES else []
        turn.fold_event(event.type, event.data, event.branch, message_of(store, log, rows[0]) if rows else None)
        if event.type == "agent.started" and event.branch == called.branch:
            path = event.data.get("path", "")
    return turn.messages_seen_by(path), turn.agents[path].messages


def _find_turn_start(store: Store, log: Log, called: Event) -> int:
    rows = store.read(log, 1, called.seq, limit=1, types=["turn.started"], reverse=True)
    return rows[0].seq if rows else 1


def _find_reported_tokens(store: Store, log: Log, called: Event) -> int | None:
    for row in store.read(
        log, called.seq + 1, limit=MAX_REPLIES_READ, types=["model.replied", "model.interrupted", *TURN_ENDS]
    ):
        event = Event(row)
        if event.run == called.run and event.branch == called.branch:
            return event.data.get("usage", {}).get("input_tokens") or None if event.type == "model.replied" else None
    return None
