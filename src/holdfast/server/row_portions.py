"""Rows of a log in portions of bounded size: a page of large events must not be in memory at once before it is known to
be too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.log.events import Row
from holdfast.stores.base import MAX_SEQ, PAGE, Log, Store

GROWTH = 4  # from one row on, because the size of the next rows is not known
PORTION_BYTES = 1 << 20  # approximate size of a portion, unless a single row is larger


def read_portions(
    store: Store,
    log: Log,
    first: int = 1,
    last: int = MAX_SEQ,
    *,
    reverse: bool = False,
    types: Sequence[str] | None = None,
    since: int | None = None,
) -> Iterator[list[Row]]:
    """Yield the rows of a range in order, or the last ones first."""
    limit = 1
    while rows := store.read(log, first, last, limit=limit, reverse=reverse, types=types, since=since):
        yield rows
        if len(rows) < limit:
            return
        if reverse:
            last = rows[-1].seq - 1
        else:
            first = rows[-1].seq + 1
        if last < first:
            return
        size = sum(len(row.body or b"") for row in rows)
        limit = max(1, limit // 2) if size > PORTION_BYTES else min(PAGE, limit * GROWTH)
