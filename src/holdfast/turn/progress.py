"""How far a turn is: the fold of its events, agent by agent.

A turn of one agent has one leg. In a flow every agent has its own, named by its place, and after a handoff whoever
takes over has one too. What an agent sees of the turn is what stands before its place, and is not at work at the same
time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.log.flow_paths import around, is_within, place
from holdfast.log.messages import Message
from holdfast.log.view import TURN_ENDS
from holdfast.schema.output import OutputShape
from holdfast.turn.work import Work


@dataclass(slots=True)
class Trail:
    """What is known of a turn."""

    run: str
    legs: dict[str, Work] = field(default_factory=dict)  # by path, in the order in which they began
    looped: set[str] = field(default_factory=set)  # loops that are over
    ended: bool = False
    _at: dict[str | None, str] = field(default_factory=dict)  # branch -> the path of whoever is at work there

    def __post_init__(self) -> None:
        self.legs.setdefault("", Work(run=self.run))

    @property
    def root(self) -> Work:
        """The one agent of a turn that has one; in a flow it has only the question."""
        return self.legs[""]

    def enter(self, path: str, name: str | None, branches: tuple[str, ...]) -> Work:
        """Whoever is at `path` begins, or goes on."""
        if path not in self.legs:
            self.legs[path] = Work(run=self.run)
        work = self.legs[path]
        work.name, work.branches = name, branches
        self._at[work.branch] = path
        return work

    def take(self, type: str, data: dict[str, Any], branch: str | None, message: Message | None = None) -> None:
        """Fold one event of the turn."""
        if type == "agent.started":
            branches = () if branch is None else tuple(data.get("branches", (branch,)))
            work = self.enter(data.get("path", ""), data.get("agent"), branches)
            work.shape = OutputShape(data["schema"]) if "schema" in data else None
        elif type in ("agent.finished", "agent.failed"):
            if data["path"] not in self.legs:  # it failed before it could begin
                self.enter(data["path"], None, () if branch is None else (branch,))
            work = self.legs[data["path"]]
            work.over, work.failed_at = type.removeprefix("agent."), data.get("at")
            work.problem = data.get("error", {}).get("text", "")
        elif type == "loop.ended":
            self.looped.add(data["path"])
        elif type == "approval.decided":  # comes from outside, and knows only the call
            for work in self.legs.values():
                call = work.calls.get(data.get("call_id", ""))
                if call is not None and call.undecided:
                    work.take(type, data)
        else:
            self.ended = self.ended or type in TURN_ENDS
            self.legs[self._at.get(branch, "")].take(type, data, message)

    # -- what it comes to ------------------------------------------------------------------------------------------

    @property
    def in_order(self) -> list[tuple[str, Work]]:
        """Every leg, in the order of the conversation."""
        return sorted(self.legs.items(), key=lambda item: place(item[0]))

    @property
    def question(self) -> Message | None:
        return self.root.question

    @property
    def steps(self) -> int:
        return sum(work.steps for work in list(self.legs.values()))

    @property
    def usage(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for work in list(self.legs.values()):
            for name, amount in list(work.usage.items()):
                found[name] = found.get(name, 0) + amount
        return found

    @property
    def call_ids(self) -> set[str]:
        """Of every call that the turn made: none is used twice, so that a person can name one."""
        return {
            call.id for work in list(self.legs.values()) for message in list(work.own) for call in message.tool_calls
        }

    def seen_by(self, path: str) -> list[Message]:
        """What the agent at `path` sees of the turn besides its own: what stands before it, and did not come from
        somebody who works at the same time."""
        here = place(path)
        return [
            message
            for each, work in self.in_order
            if each != path and place(each) < here and not self._is_beside(each, path)
            for message in work.shown
        ]

    def _is_beside(self, other: str, path: str) -> bool:
        return any(
            is_within(other, branch) and not is_within(path, branch) and is_within(path, around(branch))
            for branch in _branches(list(self.legs.values()))
        )

    def last(self, path: str = "") -> list[Work]:
        """Who had the last word, at or inside of `path`: one agent, or the last one of each branch where several worked
        at the same time."""
        legs = [(each, work) for each, work in self.in_order if each and is_within(each, path)]
        if not legs:
            return [self.root]
        outer = [branch for branch in legs[0][1].branches if is_within(path, branch)]
        return self._last_in(outer[-1] if outer else None, legs)

    def _last_in(self, branch: str | None, legs: list[tuple[str, Work]]) -> list[Work]:
        _, work = legs[-1]
        if work.branch == branch:
            return [work]
        # It is in a branch inside of this one: so are others beside it.
        mine = work.branches[0 if branch is None else work.branches.index(branch) + 1]
        known = _branches(each for _, each in legs)
        siblings = sorted((each for each in known if around(each) == around(mine)), key=place)
        return [
            found
            for each in siblings
            for found in self._last_in(each, [item for item in legs if is_within(item[0], each)])
        ]


def _branches(legs: Iterable[Work]) -> set[str]:
    return {branch for work in legs for branch in work.branches}
