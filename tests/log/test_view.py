"""The view: folding piece by piece, through snapshots, is folding the whole; and its ranges make sense."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import LifecycleError, TurnOpen
from holdfast.log.ranges import clip_ranges
from holdfast.log.view import View, decode_view

runs = st.sampled_from([None, None, "r1", "r2"])
kinds = st.sampled_from(
    [
        "message.added", "message.added", "model.replied", "tool.called", "tool.returned", "state.set",
        "turn.started", "turn.started", "turn.finished", "turn.finished", "turn.failed", "turn.cancelled",
        "turn.interrupted", "view.cleared", "view.rewound", "session.paused", "session.resumed", "session.closed",
        "session.reopened", "session.forked",
    ]
)  # fmt: skip
steps = st.lists(st.tuples(kinds, runs, st.booleans(), st.integers(0, 100)), max_size=40)
FoldedEvent = tuple[int, str, str | None, dict[str, Any]]


def apply_legal_steps(asked: list[tuple[str, str | None, bool, int]]) -> tuple[list[FoldedEvent], View, list[View]]:
    """The steps that the rules allow, the view they lead to, and the views on the way."""
    view, told, views = View(), list[FoldedEvent](), [View()]
    for kind, run, rejected, where in asked:
        seq = len(told) + 1
        data: dict[str, Any] = {"call_id": "c", "name": "t"}
        if kind == "turn.started":
            run = run or "r1"
        if kind == "model.replied" and rejected:
            data["rejected"] = True
        if kind == "session.forked" and view.turn is not None:
            continue  # a fork begins where no turn is open
        if kind == "view.rewound":
            to = where % seq
            if views[to].turn is not None:
                continue
            data = {"to": to, "ranges": clip_ranges(decode_view(views[to].to_bytes()).visible, to), "state": {}}
        after = decode_view(view.to_bytes())
        try:
            after.apply(seq, kind, run, data)
        except (LifecycleError, TurnOpen):
            continue
        view = after
        told.append((seq, kind, run, data))
        views.append(decode_view(view.to_bytes()))
    return told, view, views


def list_visible(view: View, head: int) -> list[int]:
    return [seq for first, last in clip_ranges(view.visible, head) for seq in range(first, last + 1)]


@given(steps)
def test_folding_through_snapshots_is_folding_the_whole(asked: list[tuple[str, str | None, bool, int]]) -> None:
    told, view, _ = apply_legal_steps(asked)
    whole = View()
    for one in told:
        whole.apply(*one)
    assert whole.to_bytes() == view.to_bytes()


@given(steps)
def test_no_event_is_shown_twice_or_before_it_happened(asked: list[tuple[str, str | None, bool, int]]) -> None:
    _, _, views = apply_legal_steps(asked)
    for head, view in enumerate(views):
        shown = list_visible(view, head)
        assert len(shown) == len(set(shown))
        assert all(1 <= seq <= head for seq in shown)
        assert all(first <= last or last == 0 for first, last in view.ranges)
        assert all(last != 0 for _, last in view.ranges[:-1])


@given(steps)
def test_an_open_turn_shows_nothing_of_its_own(asked: list[tuple[str, str | None, bool, int]]) -> None:
    told, _, views = apply_legal_steps(asked)
    for head, view in enumerate(views):
        if view.turn is not None:
            own = {seq for seq, _, run, _ in told[:head] if run == view.turn.run and seq >= view.turn.first}
            assert not own & set(list_visible(view, head))


@given(steps)
def test_a_message_from_outside_is_shown_at_once(asked: list[tuple[str, str | None, bool, int]]) -> None:
    told, _, views = apply_legal_steps(asked)
    for seq, kind, run, _ in told:
        if kind == "message.added" and run is None:
            assert list_visible(views[seq], seq)[-1] == seq
