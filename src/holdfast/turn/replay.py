"""Replay: the first difference between a recorded turn and the same turn as another agent runs it.

Only what an agent decides is compared: its model, instructions and tools, its replies, the results that it was given,
the state and the facts that it keeps, the order of agents. What the session brings into a prompt (facts, memories,
messages), numbers, times, sizes and usage are no differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from holdfast.errors import CorruptLog
from holdfast.log import codec
from holdfast.log.events import Event
from holdfast.log.flow_paths import path_sort_key
from holdfast.log.view import TURN_ENDS

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

QUESTION_TYPES = ("message.added", "message.queued")
# Events about how a turn ran (waiting, resuming, making room), not about what it did.
_IGNORED_TYPES = (
    "tool.called",  # it follows from the reply, and a call that a person denied has none
    "approval.requested",
    "approval.decided",
    "reply.edited",
    "turn.waiting",
    "turn.resumed",
    "turn.reopened",
    "turn.parked",
    "turn.failed",  # of a turn that was reopened and finished
    "turn.cancelled",
    "model.interrupted",
    "summary.added",
    "view.compacted",
    "view.pruned",
)
_IGNORED_FIELDS = (
    "context",
    "step",
    "from",
    "upto",
    "tokens",
    "pinned",
    "shortened",
    "usage",
    "whole",
    "unknown",
    "response_id",
    "session",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first event in which a replay differs from the recorded turn."""

    turn: int  # number of the turn, from 1
    seq: int | None  # seq of the recorded event; None if the replay has more events than the recording
    type: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay: true if there is no difference."""

    turns: int  # number of turns that can be replayed
    first_difference: Difference | None
    session: Any  # fork in which the turn with the difference ran again, or the last turn; None without turns

    @property
    def same(self) -> bool:
        return self.first_difference is None

    def __bool__(self) -> bool:
        return self.same


def pair_with_paths(events: Sequence[Event]) -> list[tuple[str, Event]]:
    """Return the events of a turn, each with the path of its agent."""
    pairs: list[tuple[str, Event]] = []
    path_by_branch: dict[str | None, str] = {}
    for event in events:
        if event.type == "agent.started":
            path_by_branch[event.branch] = event.data.get("path", "")
        pairs.append((path_by_branch.get(event.branch, ""), event))
    return pairs


def read_agent_contexts(store: Store, log: Log, events: Sequence[Event]) -> dict[str, dict[str, Any]]:
    """Return what each agent of a turn brought into its prompt, by its path: instructions, tools and options. An agent
    whose stored prompt was redacted is left out."""
    digests: dict[str, str] = {}
    for path, event in pair_with_paths(events):
        if event.type == "model.called":
            digests.setdefault(path, event.data["context"])
    found: dict[str, dict[str, Any]] = {}
    for path, digest in digests.items():
        try:
            context = codec.decode(store.blob(log, digest))
        except CorruptLog:
            continue
        sections = dict(zip(context.get("kinds", ()), context["system"], strict=False))
        found[path] = {name: context[name] for name in ("tools", "options")}
        found[path] |= {name: sections[name] for name in ("instructions", "routing") if name in sections}
    return found


def find_difference(
    number: int,
    recorded: Sequence[Event],
    recorded_contexts: Mapping[str, dict[str, Any]],
    replayed: Sequence[Event],
    replayed_contexts: Mapping[str, dict[str, Any]],
) -> Difference | None:
    """Return the first difference between a recorded and a replayed turn, or None. `number` is the turn's number."""
    for one, two in zip_longest(_select_actions(recorded), _select_actions(replayed)):
        old, new = (None if each is None else _comparable_data(each[1]) for each in (one, two))
        if old is not None and new is not None and old["type"] == new["type"] == "model.called":
            _add_contexts(old, recorded_contexts.get(one[0]), new, replayed_contexts.get(two[0]))
        if old != new:
            path_and_event = one or two
            return Difference(
                turn=number,
                seq=None if one is None else one[1].seq,
                type=path_and_event[1].type,
                recorded=old,
                replayed=new,
            )
    return None


def _add_contexts(
    old: dict[str, Any], recorded: dict[str, Any] | None, new: dict[str, Any], replayed: dict[str, Any] | None
) -> None:
    """Add the parts of the prompts of two model calls that differ. A prompt that was redacted differs in nothing."""
    if recorded is None or replayed is None:
        return
    for name in sorted({*recorded, *replayed}):
        if recorded.get(name) != replayed.get(name):
            old[name], new[name] = recorded.get(name), replayed.get(name)


def _select_actions(events: Sequence[Event]) -> list[tuple[str, Event]]:
    """Return the events to compare, each with the path of its agent. A model call that failed or was interrupted, and
    was repeated, counts once. The question is left out, because it is the same in both."""
    pairs = _sort_by_agent(events)
    question = next((event for _, event in pairs if event.type in QUESTION_TYPES), None)
    found = [
        (path, event)
        for path, event in pairs
        if event is not question
        and event.type not in _IGNORED_TYPES
        and not event.data.get("metadata", {}).get("failed")  # the note about a failed agent: `agent.failed` counts
    ]
    repeated = {one[1].seq for one, two in pairwise(found) if _is_call(one) and _is_call(two) and one[0] == two[0]}
    return _sort_results([(path, event) for path, event in found if event.seq not in repeated])


def _is_call(pair: tuple[str, Event]) -> bool:
    return pair[1].type == "model.called"


def _sort_by_agent(events: Sequence[Event]) -> list[tuple[str, Event]]:
    """Return the events agent by agent, because the events of parallel agents are in another order in each run."""
    pairs = pair_with_paths(events)
    ends = [pair for pair in pairs if pair[1].type in TURN_ENDS]
    steps = [pair for pair in pairs if pair[1].type not in TURN_ENDS]
    return [*sorted(steps, key=lambda pair: path_sort_key(pair[0])), *ends]


def _sort_results(pairs: Sequence[tuple[str, Event]]) -> list[tuple[str, Event]]:
    """Return the events with the results of each reply in order, because the calls of a reply end in any order."""
    found: list[tuple[str, Event]] = []
    for is_result, group in groupby(pairs, key=lambda pair: pair[1].type == "tool.returned"):
        same = list(group)
        found += sorted(same, key=lambda pair: codec.encode(_comparable_data(pair[1]))) if is_result else same
    return found


def _comparable_data(event: Event) -> dict[str, Any]:
    """Return the data of an event to compare: without seqs, sizes, usage, and the prefix of a raised error's text."""
    data = {name: value for name, value in event.data.items() if name not in _IGNORED_FIELDS}
    if event.type == "tool.returned":
        part = data["message"]["parts"][0]
        content = part["content"].removeprefix("_Failed: ")
        data = {"name": data["name"], "content": content, "is_error": part.get("is_error", False)}
    elif event.type == "agent.failed":
        data.pop("error")  # a replayed agent fails because its replies are used up, not with the first error
    elif event.type == "fact.added":
        data.pop("id")
    elif event.type == "turn.started":
        data = {"options": data["options"]}
    return {"type": event.type, **data}
