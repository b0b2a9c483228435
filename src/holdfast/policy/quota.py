"""Quotas: what a tenant, or the user of an API key, may have at a time and may use in a day.

The same limits hold on every server of a store, because the store counts. A name without a limit is not limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from holdfast.errors import InvalidArgument, QuotaExceeded
from holdfast.log.arguments import suggest_name
from holdfast.log.times import to_datetime

DAY = 86_400_000_000  # microseconds
STOCKS = ("sessions", "forks", "memories", "bytes")  # what exists now; a deletion gives it back
FLOWS = ("tokens_per_day", "cost_per_day")  # what was used since midnight UTC
MAX_LIMIT = 10**15


class Usage(NamedTuple):
    """What a tenant, or a user of it, has and has used today."""

    sessions: int = 0  # forks included
    forks: int = 0
    memories: int = 0
    bytes: int = 0
    tokens_per_day: int = 0
    cost_per_day: float = 0.0
    measured_at: int = 0  # time of the last measurement of `bytes`, in microseconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of one tenant or user; None: no limit."""

    sessions: int | None = None
    forks: int | None = None
    memories: int | None = None
    bytes: int | None = None
    tokens_per_day: int | None = None
    cost_per_day: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            limit = getattr(self, each.name)
            if limit is None:
                continue
            is_number = isinstance(limit, int | float) and not isinstance(limit, bool) and math.isfinite(limit)
            if not is_number or not 0 <= limit <= MAX_LIMIT or (each.name != "cost_per_day" and limit != int(limit)):
                raise InvalidArgument(f"quota {each.name}={limit!r}: use a number from 0 to {MAX_LIMIT}")

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in (*STOCKS, *FLOWS))

    @property
    def has_flow(self) -> bool:
        return any(getattr(self, name) is not None for name in FLOWS)

    @classmethod
    def of(cls, limits: Mapping[str, Any]) -> Quota:
        for name in limits:
            if name not in (*STOCKS, *FLOWS):
                raise InvalidArgument(f"unknown quota {name!r}: {suggest_name(name, (*STOCKS, *FLOWS))}")
        return cls(**limits)

    def to_dict(self) -> dict[str, int | float]:
        return {name: limit for name in (*STOCKS, *FLOWS) if (limit := getattr(self, name)) is not None}

    def tighten(self, other: Quota) -> Quota:
        """Return the smaller limit of both, by name."""
        mine, theirs = self.to_dict(), other.to_dict()
        return Quota.of({name: min(each[name] for each in (mine, theirs) if name in each) for name in mine | theirs})

    def check_growth(self, used: Usage, growth: Mapping[str, int], *, user_id: str | None) -> None:
        """Raise QuotaExceeded if `used`, which has grown by these amounts, is above a limit of them."""
        for name, amount in growth.items():
            limit, total = getattr(self, name), getattr(used, name)
            if limit is not None and amount and total > limit:
                raise QuotaExceeded(name, limit=limit, used=total - amount, user_id=user_id)

    def check_day(self, used: Usage, now: int, *, user_id: str | None) -> None:
        """Raise QuotaExceeded if nothing is left of one of the limits of a day."""
        for name in FLOWS:
            limit, amount = getattr(self, name), getattr(used, name)
            if limit is not None and amount >= limit:
                wait = seconds_to_midnight(now)
                resets_at = to_datetime((now // DAY + 1) * DAY).isoformat().replace("+00:00", "Z")
                raise QuotaExceeded(
                    name, limit=limit, used=amount, user_id=user_id, resets_at=resets_at, retry_after=wait
                )


def parse_quota(texts: Iterable[str]) -> Quota:
    """Return the quota of texts such as "sessions=100"; raise InvalidArgument for one that is none."""
    return Quota.of(dict(_parse_limit(text) for text in texts))


def parse_tenant_quotas(texts: Iterable[str]) -> dict[str | None, Quota]:
    """Return the quotas of tenants, from texts such as "sessions=100" (every tenant) and "acme:sessions=500".

    A tenant that is named keeps the limits of every tenant that it has no own limit for. None: every tenant.
    """
    limits: dict[str | None, dict[str, Any]] = {None: {}}
    for text in texts:
        place, equals, limit = text.rpartition("=")
        tenant, colon, name = place.rpartition(":")
        key, value = _parse_limit(f"{name}{equals}{limit}")
        limits.setdefault(tenant if colon else None, {})[key] = value
    return {tenant: Quota.of(limits[None] | found) for tenant, found in limits.items()}


def _parse_limit(text: str) -> tuple[str, int | float]:
    name, _, limit = text.partition("=")
    try:
        number = float(limit)
    except ValueError:
        raise InvalidArgument(f"quota {text!r}: write it as name=limit, such as sessions=100") from None
    return name.strip(), int(number) if math.isfinite(number) and number == int(number) else number


def seconds_to_midnight(now: int) -> float:
    """Return the seconds until the next day begins, UTC."""
    return (DAY - now % DAY) / 1e6
