"""Spans of time: users speak of days, logs count microseconds."""

from __future__ import annotations

DAY = 86_400_000_000  # microseconds
FOREVER = 1 << 62  # later than any instant that is ever compared with it, and still a signed 64-bit number


def microseconds(days: float) -> int:
    """Never nothing, and never more than for ever."""
    # Compared before it is multiplied: a huge float would become infinite, and a tiny one no time at all.
    return FOREVER if days >= FOREVER / DAY else max(1, round(days * DAY))
