"""Agents at the same time: however their events interleave, the view has them in their order, snapshots or not."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from holdfast.log.flow_paths import child_path, path_sort_key
from holdfast.log.ranges import clip_ranges
from holdfast.log.view import View, decode_view
from holdfast.turn.progress import TurnProgress

RUN = "r"


@dataclass
class BranchMessage:
    """An event that brings a message, in some branch."""

    branch: str | None
    path: str
    number: int = 0


@dataclass
class BranchHistory:
    """What happens in one place: messages, and in between others at the same time inside of it."""

    events: list[BranchMessage] = field(default_factory=list)  # as they happen
    order: list[BranchMessage] = field(default_factory=list)  # as they are to stand


def make_history(rng: random.Random, path: str, branch: str | None, depth: int) -> BranchHistory:
    story = BranchHistory()
    for step in range(rng.randrange(1, 4)):
        here = child_path(path, str(step))
        if depth and rng.random() < 0.5:
            places = [child_path(here, str(number)) for number in range(rng.randrange(1, 4))]
            inner = [make_history(rng, each, each, depth - 1) for each in places]
            story.events += interleave(rng, [each.events for each in inner])
            story.order += [said for each in inner for said in each.order]
        else:
            said = [BranchMessage(branch, here) for _ in range(rng.randrange(1, 3))]
            story.events += said
            story.order += said
    return story


def interleave(rng: random.Random, several: list[list[BranchMessage]]) -> list[BranchMessage]:
    """Any interleaving that keeps the order of each."""
    left = [list(each) for each in several]
    found: list[BranchMessage] = []
    while any(left):
        found.append(rng.choice([each for each in left if each]).pop(0))
    return found


def list_visible(view: View, head: int) -> list[int]:
    return [seq for first, last in clip_ranges(view.visible, head) for seq in range(first, last + 1)]


@pytest.mark.parametrize("seed", range(300))
def test_the_view_has_them_in_their_order(seed: int) -> None:
    rng = random.Random(seed)
    story = make_history(rng, "", None, 3)
    view = View()
    view.apply(1, "session.created", None, {})
    view.apply(2, "turn.started", RUN, {"agent": "x"})
    seq = 2
    for said in story.events:
        if rng.random() < 0.3:
            seq += 1
            kind = rng.choice(["turn.waiting", "turn.resumed", "state.set"])  # which say nothing about who is over
            view.apply(seq, kind, None if kind == "state.set" else RUN, {"name": "a", "value": 1})
        seq += 1
        said.number = seq
        view.apply(seq, "model.replied", RUN, {"message": {"role": "assistant", "text": "x"}}, said.branch)
        if rng.random() < 0.2:
            assert decode_view(view.to_bytes()) == view
            view = decode_view(view.to_bytes())
    view.apply(seq + 1, "turn.finished", RUN, {})
    messages = {said.number for said in story.events}
    assert [each for each in list_visible(view, seq) if each in messages] == [said.number for said in story.order]
    assert view.turn is None


@pytest.mark.parametrize("seed", range(100))
def test_an_agent_does_not_see_agents_that_work_at_the_same_time(seed: int) -> None:
    """What an agent sees is what stands before its place and came from outside of those at the same time as it."""
    rng = random.Random(seed)
    story = make_history(rng, "", None, 3)
    branches = {said.branch for said in story.events if said.branch is not None}
    trail = TurnProgress(RUN)
    for said in story.order:
        around = tuple(sorted((each for each in branches if (said.path + "/").startswith(each + "/")), key=len))
        trail.enter_agent(said.path, said.path, around)
    paths = [path for path, _ in trail.agents_in_order if path]
    assert [path_sort_key(path) for path in paths] == sorted(path_sort_key(path) for path in paths)
    for path in paths:
        for other in paths:
            beside = any(
                (other + "/").startswith(each + "/")
                and not (path + "/").startswith(each + "/")
                and (path + "/").startswith(each.rpartition("/")[0] + "/" if "/" in each else "")
                for each in branches
            )
            assert trail._is_parallel_to(other, path) == beside
