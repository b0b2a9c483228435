"""Conversions of time: users give days and read dates, logs count microseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

DAY = 86_400_000_000  # microseconds
FOREVER = 1 << 62  # later than any instant that is ever compared with it, and still a signed 64-bit number
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """Return the moment that lies this many microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def days_to_microseconds(days: float) -> int:
    """Return the microseconds of a number of days: at least 1, at most FOREVER."""
    # Compared before it is multiplied: a huge float would become infinite, and a tiny one no time at all.
    return FOREVER if days >= FOREVER / DAY else max(1, round(days * DAY))
