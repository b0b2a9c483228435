"""Retention: how long a session is kept and in what form, and what the sweep does about it.

A session that is held, unsettled or running is never purged, and none is purged before its TTL has passed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from holdfast.errors import InvalidArgument
from holdfast.log.arguments import suggest_keywords, suggest_name
from holdfast.log.times import FOREVER, days_to_microseconds

AUTO_PRUNE_WINDOW = 1_000  # messages that auto_prune keeps if no number is given
BUSY_DELAY = 60_000_000  # time after which the sweep returns to a session that is running

_KEEP_LAST = re.compile(r"keep_last_([1-9][0-9]{0,17})")
_STRATEGIES = ("sliding_window", "token_budget", "summarize_old", "keep_important")


@suggest_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a session is kept, and in what form; what is not given is kept for ever, whole.

    `ttl_days` and `archive_after_days` count from the last activity and may be fractions. With `auto_prune` the view is
    kept to `max_messages`, or to the n of `prune_strategy="keep_last_<n>"`, or to 1,000 messages if neither is given.
    An immutable session can only grow until its TTL has passed: `Retention(ttl_days=730, immutable=True)`.
    """

    ttl_days: float | None = None
    archive_after_days: float | None = None
    auto_prune: bool = False
    prune_strategy: str | None = None
    max_messages: int | None = None
    immutable: bool = False

    def __post_init__(self) -> None:
        for name in ("auto_prune", "immutable"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name}={getattr(self, name)!r}: use True or False")
        self._check_days()
        self._check_pruning()
        if self.auto_prune and self.immutable:
            raise InvalidArgument("auto_prune=True with immutable=True: an immutable session is never pruned; use one")

    def _check_days(self) -> None:
        for name in ("ttl_days", "archive_after_days"):
            days = getattr(self, name)
            if days is not None and not _is_positive(days):
                raise InvalidArgument(f"{name}={days!r}: use a number of days above 0, or None for never")
        if (
            self.ttl_days is not None
            and self.archive_after_days is not None
            and self.archive_after_days > self.ttl_days
        ):
            raise InvalidArgument(
                f"archive_after_days={self.archive_after_days!r} is later than ttl_days={self.ttl_days!r}: "
                f"use at most {self.ttl_days!r}, or leave one of them out"
            )

    def _check_pruning(self) -> None:
        most = self.max_messages
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise InvalidArgument(f"max_messages={most!r}: use a whole number that is at least 1, or None for no limit")
        if self.prune_strategy is not None and not _is_strategy(self.prune_strategy):
            raise InvalidArgument(
                f"prune_strategy={self.prune_strategy!r}: use keep_last_<n> with n at least 1, {', '.join(_STRATEGIES)}"
            )

    @classmethod
    def of(cls, value: Retention | Mapping[str, Any]) -> Retention:
        if isinstance(value, Retention):
            return value
        if not isinstance(value, Mapping):
            raise InvalidArgument(f"retention= is a Retention or a dict, not {type(value).__name__}")
        known = [each.name for each in fields(cls)]
        for name in value:
            if name not in known:
                raise InvalidArgument(f"unknown in a retention: {name!r}: {suggest_name(name, known)}")
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {each.name: found[each.name] for each in fields(self) if found[each.name] != each.default}

    @property
    def ttl(self) -> int | None:
        """Microseconds; None is for ever."""
        return None if self.ttl_days is None else days_to_microseconds(self.ttl_days)

    @property
    def archive_after(self) -> int | None:
        """Microseconds; None is never."""
        return None if self.archive_after_days is None else days_to_microseconds(self.archive_after_days)

    @property
    def strategy(self) -> str | None:
        """How the view is pruned; None if nothing says how."""
        return self.prune_strategy or ("sliding_window" if self.auto_prune else None)

    @property
    def window(self) -> int | None:
        """How many messages pruning leaves; None if nothing says how many, and nothing is pruned automatically."""
        last = _KEEP_LAST.fullmatch(self.prune_strategy or "")
        limits = [limit for limit in (self.max_messages, last and int(last[1])) if limit is not None]
        return min(limits, default=AUTO_PRUNE_WINDOW if self.auto_prune else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepState:
    """What the sweep knows of a session, read in the transaction that acts on it."""

    now: int
    last_activity: int
    retention: Retention
    archived: bool
    held: bool
    running: bool  # a process holds its lease
    review_reason: str | None  # "parked", "failed", "waiting" or "unfinished": archived, never purged, until released


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDecision:
    """What the sweep does with a session, and when it looks again."""

    action: Literal["keep", "archive", "purge"]
    reason: str  # one plain sentence
    next_sweep_at: int | None  # microseconds; None: never, until something changes


def decide_sweep(standing: SweepState) -> SweepDecision:
    """What is to be done with a session now."""
    if standing.running:
        return SweepDecision(
            action="keep", reason="running: somebody holds its lease", next_sweep_at=standing.now + BUSY_DELAY
        )
    ends = _instant_after(standing, standing.retention.ttl)
    if ends is not None and ends <= standing.now:
        return _decide_after_ttl(standing)
    archives = _instant_after(standing, standing.retention.archive_after)
    if archives is not None and archives <= standing.now and not standing.archived:
        days = standing.retention.archive_after_days
        return SweepDecision(action="archive", reason=f"quiet for its archive_after_days of {days}", next_sweep_at=ends)
    ahead = [instant for instant in (archives, ends) if instant is not None and instant > standing.now]
    why = "its time has not come" if ahead else "nothing ends its time"
    return SweepDecision(action="keep", reason=why, next_sweep_at=min(ahead, default=None))


def _decide_after_ttl(standing: SweepState) -> SweepDecision:
    reasons = [reason for reason in ("held" if standing.held else None, standing.review_reason) if reason]
    if reasons:
        act: Literal["keep", "archive"] = "keep" if standing.archived else "archive"
        return SweepDecision(
            action=act, reason=f"{' and '.join(reasons)}: not purged until it is released", next_sweep_at=None
        )
    over = f"quiet for its ttl_days of {standing.retention.ttl_days}"
    if standing.retention.archive_after is not None and not standing.archived:
        # A sweep that did not run for long must not skip the archive: its watcher is to see every session there.
        return SweepDecision(
            action="archive", reason=f"{over}: archived first, purged by the next look", next_sweep_at=standing.now
        )
    return SweepDecision(action="purge", reason=over, next_sweep_at=None)


def _instant_after(standing: SweepState, after: int | None) -> int | None:
    instant = FOREVER if after is None else standing.last_activity + after
    return instant if instant < FOREVER else None


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_strategy(value: object) -> bool:
    return isinstance(value, str) and (value in _STRATEGIES or _KEEP_LAST.fullmatch(value) is not None)
