"""Retention: what may be asked for, what an immutable session allows, and every verdict of the sweep."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ImmutableSession, InvalidArgument, SessionHeld
from holdfast.log.times import DAY, FOREVER
from holdfast.policy.retention import BUSY_DELAY, Retention, SweepDecision, SweepState, decide_sweep

NOW = 1_700_000_000_000_000
EVERYTHING = {
    "ttl_days": 730,
    "archive_after_days": 90,
    "auto_prune": True,
    "prune_strategy": "sliding_window",
    "max_messages": 1000,
    "immutable": False,
}


def test_what_is_not_given_is_kept_for_ever() -> None:
    nothing = Retention()
    assert (nothing.ttl, nothing.archive_after, nothing.strategy, nothing.window) == (None, None, None, None)
    assert nothing.to_dict() == {}


def test_the_promised_dict_is_taken_and_comes_back_without_its_defaults() -> None:
    retention = Retention.of(EVERYTHING)
    assert (retention.ttl, retention.archive_after) == (730 * DAY, 90 * DAY)
    assert retention.to_dict() == {name: value for name, value in EVERYTHING.items() if name != "immutable"}
    assert Retention.of(json.loads(json.dumps(retention.to_dict()))) == retention
    assert Retention.of(retention) is retention


def test_days_may_be_fractions_tiny_or_huge() -> None:
    assert Retention(ttl_days=0.5).ttl == DAY // 2
    assert Retention(ttl_days=1e-300).ttl == 1
    assert Retention(ttl_days=1e300, archive_after_days=10**30).archive_after == FOREVER


@pytest.mark.parametrize("name", ["ttl_days", "archive_after_days"])
@pytest.mark.parametrize("days", [0, -1, math.nan, math.inf, True, "30", [1]])
def test_days_that_are_no_number_above_nought_are_refused(name: str, days: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Retention.of({name: days})
    assert str(caught.value) == f"{name}={days!r}: use a number of days above 0, or None for never"


@pytest.mark.parametrize("most", [0, -5, 1.5, 10.0, True, "10"])
def test_max_messages_is_a_whole_number_from_one_on(most: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"max_messages=.*: use a whole number that is at least 1"):
        Retention(max_messages=most)


@pytest.mark.parametrize("name", ["auto_prune", "immutable"])
@pytest.mark.parametrize("value", [None, 0, 1, "yes"])
def test_switches_are_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{name}={value!r}: use True or False"):
        Retention.of({name: value, "max_messages": 5})


STRATEGIES = ["keep_last_1", "keep_last_50", "sliding_window", "token_budget", "summarize_old", "keep_important"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_has_its_name(strategy: str) -> None:
    assert Retention(prune_strategy=strategy).strategy == strategy


@pytest.mark.parametrize(
    "strategy", ["", "keep_last_0", "keep_last_", "keep_last_05", "keep_last_٣", "keep_last_5\n", "all", 5]
)
def test_other_strategies_are_refused_with_the_known_ones(strategy: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Retention(prune_strategy=strategy)
    assert str(caught.value).startswith(f"prune_strategy={strategy!r}: use keep_last_<n> with n at least 1, sliding_")


def test_unknown_keys_are_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument) as caught:
        Retention.of({7: 1, "max_messages": 5})  # type: ignore[dict-item]
    assert str(caught.value) == f"unknown in a retention: 7: use {', '.join(EVERYTHING)}"
    with pytest.raises(InvalidArgument, match="unknown in a retention: 'ttl': did you mean 'ttl_days'"):
        Retention.of({"ttl": 5, "max_messages": 5})
    with pytest.raises(InvalidArgument, match="a Retention or a dict, not int"):
        Retention.of(30)  # type: ignore[arg-type]


def test_an_archive_comes_before_the_end() -> None:
    with pytest.raises(InvalidArgument, match="archive_after_days=31 is later than ttl_days=30: use at most 30"):
        Retention(ttl_days=30, archive_after_days=31)
    assert Retention(ttl_days=30, archive_after_days=30).archive_after == 30 * DAY


def test_pruning_by_itself_keeps_a_thousand_messages_unless_it_is_given_a_number() -> None:
    for strategy in (None, "sliding_window", "token_budget", "summarize_old", "keep_important"):
        assert Retention(auto_prune=True, prune_strategy=strategy).window == 1_000
        assert Retention(prune_strategy=strategy).window is None
    assert Retention(auto_prune=True).to_dict() == {"auto_prune": True}
    assert Retention(auto_prune=True, max_messages=7).strategy == "sliding_window"
    assert Retention(auto_prune=True, max_messages=7).window == 7
    assert Retention(auto_prune=True, prune_strategy="keep_last_5").window == 5


@pytest.mark.parametrize(("last", "most", "window"), [(5, 7, 5), (7, 5, 5)])
def test_the_smaller_window_counts(last: int, most: int, window: int) -> None:
    assert Retention(prune_strategy=f"keep_last_{last}", max_messages=most).window == window


def test_an_immutable_session_is_never_pruned() -> None:
    with pytest.raises(InvalidArgument, match="an immutable session is never pruned"):
        Retention(auto_prune=True, max_messages=5, immutable=True)


@pytest.mark.parametrize(
    ("until", "end"),
    [
        (1_857_945_600_000_000, "until 2028-11-16T00:00:00Z"),
        (1_857_945_599_000_001, "until 2028-11-16T00:00:00Z"),
        (None, "for ever"),
        (FOREVER, "for ever"),
    ],
)
def test_the_error_says_until_when(until: int | None, end: str) -> None:
    error = ImmutableSession("prune", until=until)
    assert str(error) == f"cannot prune an immutable session: it is kept unchanged {end}"
    assert (error.what, error.until) == ("prune", until)


def test_a_hold_says_why_and_how_it_ends() -> None:
    error = SessionHeld("delete", reason="case 42")
    assert str(error) == "cannot delete a session under a legal hold (case 42): release() ends the hold"
    assert (error.code, error.status, error.reason) == ("held", 409, "case 42")


def decide(
    *,
    quiet: float,
    ttl_days: float | None = None,
    archive_after_days: float | None = None,
    archived: bool = False,
    held: bool = False,
    running: bool = False,
    unsettled: str | None = None,
) -> SweepDecision:
    """What is decided about a session that was quiet for so many days."""
    return decide_sweep(
        SweepState(
            now=NOW,
            last_activity=NOW - round(quiet * DAY),
            retention=Retention(ttl_days=ttl_days, archive_after_days=archive_after_days),
            archived=archived,
            held=held,
            running=running,
            review_reason=unsettled,
        )
    )


def test_without_limits_a_session_is_kept_and_never_looked_at_again() -> None:
    found = decide(quiet=10_000)
    assert (found.action, found.next_sweep_at, found.reason) == ("keep", None, "nothing ends its time")
    assert decide(quiet=10_000, ttl_days=1e300).next_sweep_at is None


def test_before_its_time_a_session_is_kept_until_the_next_instant() -> None:
    assert decide(quiet=1, ttl_days=30).next_sweep_at == NOW + 29 * DAY
    assert decide(quiet=1, ttl_days=30, archive_after_days=7).next_sweep_at == NOW + 6 * DAY
    assert decide(quiet=1, archive_after_days=7).next_sweep_at == NOW + 6 * DAY
    assert decide(quiet=8, ttl_days=30, archive_after_days=7, archived=True).next_sweep_at == NOW + 22 * DAY
    assert decide(quiet=8, archive_after_days=7, archived=True).next_sweep_at is None
    assert decide(quiet=1, ttl_days=30).action == "keep"
    assert decide(quiet=8, ttl_days=30, archive_after_days=7, archived=True).action == "keep"


def test_a_quiet_session_is_archived_and_then_waits_for_its_end() -> None:
    found = decide(quiet=7, ttl_days=30, archive_after_days=7)
    assert (found.action, found.next_sweep_at) == ("archive", NOW + 23 * DAY)
    assert found.reason == "quiet for its archive_after_days of 7"
    found = decide(quiet=8, archive_after_days=7)
    assert (found.action, found.next_sweep_at) == ("archive", None)


@pytest.mark.parametrize("reasons", [{"held": True}, {"unsettled": "parked"}])
def test_what_is_held_or_unsettled_is_archived_like_the_rest(reasons: dict[str, Any]) -> None:
    assert decide(quiet=8, ttl_days=30, archive_after_days=7, **reasons).action == "archive"


def test_at_its_end_a_session_is_purged() -> None:
    found = decide(quiet=30, ttl_days=30)
    assert (found.action, found.next_sweep_at, found.reason) == ("purge", None, "quiet for its ttl_days of 30")
    assert decide(quiet=31, ttl_days=30, archive_after_days=7, archived=True).action == "purge"


def test_a_session_that_was_to_be_archived_is_archived_before_it_is_purged() -> None:
    found = decide(quiet=31, ttl_days=30, archive_after_days=7)
    assert (found.action, found.next_sweep_at) == ("archive", NOW)
    assert "purged by the next look" in found.reason


@pytest.mark.parametrize("quiet", [1, 8, 31])
def test_a_running_session_is_left_alone_for_a_minute(quiet: float) -> None:
    found = decide(quiet=quiet, ttl_days=30, archive_after_days=7, running=True, held=True)
    assert (found.action, found.next_sweep_at) == ("keep", NOW + BUSY_DELAY)
    assert found.reason.startswith("running")


@pytest.mark.parametrize(
    ("held", "unsettled", "reason"),
    [
        (True, None, "held"),
        (False, "parked", "parked"),
        (False, "failed", "failed"),
        (False, "waiting", "waiting"),
        (False, "unfinished", "unfinished"),
        (True, "failed", "held and failed"),
    ],
)
@pytest.mark.parametrize("archive_after_days", [None, 7])
def test_what_is_held_or_unsettled_outlives_its_end(
    held: bool, unsettled: str | None, reason: str, archive_after_days: float | None
) -> None:
    for archived, act in ((False, "archive"), (True, "keep")):
        found = decide(
            quiet=31,
            ttl_days=30,
            archive_after_days=archive_after_days,
            archived=archived,
            held=held,
            unsettled=unsettled,
        )
        assert (found.action, found.next_sweep_at) == (act, None)
        assert found.reason == f"{reason}: not purged until it is released"


days = st.none() | st.floats(1e-9, 1e6) | st.integers(1, 10_000)


@st.composite
def retentions(draw: st.DrawFn) -> Retention:
    ttl_days, archive_after_days = draw(days), draw(days)
    if ttl_days is not None and archive_after_days is not None:
        archive_after_days, ttl_days = sorted((archive_after_days, ttl_days))
    return Retention(ttl_days=ttl_days, archive_after_days=archive_after_days, immutable=draw(st.booleans()))


@st.composite
def sweep_states(draw: st.DrawFn) -> SweepState:
    retention = draw(retentions())
    instants = [after for after in (retention.ttl, retention.archive_after) if after is not None]
    # The instants themselves are where it goes wrong, if it does.
    ages = [st.integers(-DAY, 10_000 * DAY)] + [st.integers(after - 1, after + 1) for after in instants]
    return SweepState(
        now=NOW,
        last_activity=NOW - draw(st.one_of(ages)),
        retention=retention,
        archived=draw(st.booleans()),
        held=draw(st.booleans()),
        running=draw(st.booleans()),
        review_reason=draw(st.sampled_from([None, "parked", "failed", "waiting", "unfinished"])),
    )


@settings(deadline=None)
@given(sweep_states())
def test_nothing_held_unsettled_or_running_is_purged_and_nothing_before_its_end(standing: SweepState) -> None:
    if decide_sweep(standing).action == "purge":
        assert not standing.held
        assert not standing.running
        assert standing.review_reason is None
        assert standing.retention.ttl is not None
        assert standing.now >= standing.last_activity + standing.retention.ttl


@settings(deadline=None)
@given(sweep_states())
def test_the_next_look_lies_ahead_unless_a_purge_waits_for_an_archive(standing: SweepState) -> None:
    found = decide_sweep(standing)
    if found.next_sweep_at is not None and found.next_sweep_at <= standing.now:
        assert (found.action, found.next_sweep_at) == ("archive", standing.now)
        after = SweepState(**{name: getattr(standing, name) for name in SweepState.__slots__} | {"archived": True})
        assert decide_sweep(after).action == "purge"


@settings(deadline=None)
@given(sweep_states())
def test_what_is_archived_is_not_archived_again(standing: SweepState) -> None:
    assert not (standing.archived and decide_sweep(standing).action == "archive")


@settings(deadline=None)
@given(retentions())
def test_a_retention_survives_json(retention: Retention) -> None:
    assert Retention.of(json.loads(json.dumps(retention.to_dict()))) == retention
