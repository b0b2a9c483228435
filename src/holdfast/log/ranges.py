"""Ranges of event numbers: the form in which a view holds its messages.

The order of the ranges is the order of the messages, which need not be the order of the events.
"""

from __future__ import annotations

Ranges = list[list[int]]  # [first, last] of seqs, in the order of the messages; last = 0: open-ended


def append_seq(ranges: Ranges, seq: int) -> None:
    append_range(ranges, seq, seq)


def append_range(ranges: Ranges, first: int, last: int) -> None:
    """Add a range at the end; it becomes one piece with the last range if the two touch."""
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1][1] = last
    else:
        ranges.append([first, last])


def clip_ranges(ranges: Ranges, at: int) -> Ranges:
    """Return the part of the ranges that lies at or before `at`, with no open end."""
    kept: Ranges = []
    for first, last in ranges:
        if first <= at:
            kept.append([first, min(last or at, at)])
    return kept


def subtract_ranges(ranges: Ranges, drop: Ranges) -> tuple[Ranges, int]:
    """Return the ranges without the dropped ones, in the same order, and the index at which the first dropped piece
    stood."""
    kept: Ranges = []
    place: int | None = None
    for piece in ranges:
        first, last = piece
        for low, high in sorted(drop):
            if first and low <= (last or high) and high >= first:
                if place is None:
                    place = len(kept) + (low > first)
                if low > first:
                    kept.append([first, low - 1])
                first = 0 if last and high >= last else high + 1
        if first:
            kept.append([first, last])
    return kept, len(kept) if place is None else place
