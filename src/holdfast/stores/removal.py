"""What stays of a deleted log: the past that living forks read, and nothing after it.

No caller can name a deleted log any more, so what no fork needs is removed at once. A fork that shows its past needs
the content. A fork that is erased shows nothing and needs only hashes, by which its chain verifies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.log.events import Event, Row
from holdfast.log.tombstones import make_tombstone
from holdfast.log.view import decode_view

if TYPE_CHECKING:
    from holdfast.stores.base import Log

_DIGEST = re.compile(rb"[0-9a-f]{64}")


class RemainingPast(NamedTuple):
    """The last events of a deleted log that are still needed; 0: none."""

    shown: int  # last event whose content a living fork shows
    chained: int  # last event whose hash a living fork verifies


def last_shared(number: int, readers: Iterable[Log]) -> int:
    """The last event of a log that one of these logs reads; 0 if none reads any."""
    return max((last for reader in readers for shared, last in reader.ancestry if shared == number), default=0)


def find_remaining_past(number: int, readers: Iterable[tuple[Log, bytes]]) -> RemainingPast:
    """What the logs that descend from a deleted log still need of it, by each of them and its view."""
    living = [(log, is_erased(view)) for log, view in readers if log.id]
    shown = last_shared(number, [log for log, erased in living if not erased])
    return RemainingPast(shown, last_shared(number, [log for log, _ in living]))


def is_erased(view: bytes) -> bool:
    return decode_view(view).lifecycle == "erased"


def make_tombstones(rows: Iterable[Row]) -> list[tuple[int, bytes]]:
    """Tombstones without names, for events of which only the hash is needed."""
    return [(row.seq, make_tombstone(Event(row), names=False)) for row in rows if row.type]


def named_digests(rows: Iterable[Row]) -> set[str]:
    """Every digest that stands in the payloads. It looks at bytes, because a removal must not depend on a payload
    that can be understood."""
    return {found.decode() for row in rows if row.body is not None for found in _DIGEST.findall(row.body)}
