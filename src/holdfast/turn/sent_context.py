"""What a model is or was sent, part by part, with token counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import CorruptLog, InvalidArgument
from holdfast.log import codec
from holdfast.log.chain import estimate
from holdfast.log.events import MESSAGE_TYPES, Event
from holdfast.log.messages import Message
from holdfast.log.view import TURN_ENDS, cut
from holdfast.models.base import repaired
from holdfast.prompt.compaction import newest_first
from holdfast.prompt.history_window import own_events, shortened, tokens_of
from holdfast.prompt.perspective import presented
from holdfast.stores.base import Log, Store
from holdfast.stores.documents import message_of
from holdfast.turn.progress import Trail

REPLIES = 100  # that are looked through for the one to a call: others may have been asked at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPart:
    """One thing that a model is sent: `kind` is instructions, system, facts, memory, loose_ends, others, tool or
    message."""

    kind: str
    text: str
    tokens: int  # estimated
    seq: int | None = None  # of a message that the log holds
    message: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A whole prompt. `tokens` is the estimate corrected by what the provider reported, where it did."""

    parts: list[ContextPart]
    tokens: int
    estimated: int
    reported: int | None  # by the provider, for a call that was made
    window: int | None  # tokens that the model can take
    model: str
    left_out: int  # visible messages that are not sent

    @property
    def messages(self) -> list[Message]:
        return [part.message for part in self.parts if part.message is not None]

    def __str__(self) -> str:
        lines = [f"{part.kind:<12} {part.tokens:>6}  {' '.join(part.text.split())[:60]}" for part in self.parts]
        return "\n".join([*lines, f"{'total':<12} {self.tokens:>6}"])


def parts_of(
    pieces: Sequence[tuple[str, str]], tools: Sequence[Sequence[object]], messages: Sequence[Message]
) -> list[ContextPart]:
    """The parts of a prompt in the order in which they are sent."""
    found = [ContextPart(kind=kind, text=text, tokens=estimate(len(text.encode()))) for kind, text in pieces]
    for spec in tools:
        size = len(codec.encode(list(spec), room=codec.WRAPPING))
        found.append(ContextPart(kind="tool", text=str(spec[0]), tokens=estimate(size)))
    for message in messages:
        text = f"{message.role}: {message.text}" if message.text else message.role
        part = ContextPart(kind="message", text=text, tokens=tokens_of(message), seq=message.seq, message=message)
        found.append(part)
    return found


def sent_at(store: Store, log: Log, seq: int) -> Context:
    """What the model was sent by the call that event `seq` records, rebuilt from the log."""
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
        about = codec.decode(store.blob(log, data["context"]))
        pieces = list(zip(about.get("kinds", ["system"] * len(about["system"])), about["system"], strict=True))
        tools = about["tools"]
    except CorruptLog:  # an event that it repeated was redacted
        pieces, tools = [("system", "[erased]")], []
    visible = cut(store.view(log, data["upto"]).visible, data["upto"])
    items = []
    for item in newest_first(store, log, visible) if data["from"] <= data["upto"] else ():
        items.append(item)
        if item.seq == data["from"]:
            break
    front = [message_of(store, log, row) for each in data.get("pinned", ()) for row in store.read(log, each, each)]
    history = [*front, *(item.message for item in reversed(items))]
    assert called.run is not None
    seen, own = _turn_at(store, log, called)
    whole = repaired([*history, *shortened([*seen, *own], data.get("shortened", 0))])
    shown = presented(whole, called.author, has_tools=bool(tools), own=len(repaired(own)))
    parts = parts_of(pieces, tools, shown)
    reported = _reported(store, log, called)
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


def _turn_at(store: Store, log: Log, called: Event) -> tuple[list[Message], list[Message]]:
    """What a call was sent of its own turn: what its agent saw of the others, and its own."""
    trail = Trail(called.run or "")
    path = ""
    for event in own_events(store, log, trail.run, _first_of(store, log, called), called.seq):
        rows = store.read(log, event.seq, event.seq) if event.type in MESSAGE_TYPES else []
        trail.take(event.type, event.data, event.branch, message_of(store, log, rows[0]) if rows else None)
        if event.type == "agent.started" and event.branch == called.branch:
            path = event.data.get("path", "")
    return trail.seen_by(path), trail.legs[path].own


def _first_of(store: Store, log: Log, called: Event) -> int:
    rows = store.read(log, 1, called.seq, limit=1, types=["turn.started"], reverse=True)
    return rows[0].seq if rows else 1


def _reported(store: Store, log: Log, called: Event) -> int | None:
    for row in store.read(log, called.seq + 1, limit=REPLIES, types=["model.replied", "model.interrupted", *TURN_ENDS]):
        event = Event(row)
        if event.run == called.run and event.branch == called.branch:
            return event.data.get("usage", {}).get("input_tokens") or None if event.type == "model.replied" else None
    return None
