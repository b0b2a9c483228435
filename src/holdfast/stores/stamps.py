"""What an append or a new log draws once, however often it is tried: its time, its salts, its id.

An attempt whose answer was lost may have been committed. The next attempt finds it by what both have in common.
"""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.stores.append import AppendBatch


class AppendStamp:
    """The time and the salts of one append, the same for every attempt, and the batches that attempts wrote."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = 0
        self._salts = b""
        self.batches: list[AppendBatch] = []

    @property
    def at(self) -> int:
        self._at = self._at or self._clock.now()
        return self._at

    def random(self, size: int) -> bytes:
        self._salts = self._salts or self._clock.random_bytes(size)
        return self._salts


class NewLogStamp:
    """The time and the id of a new log, drawn once, and only after all checks have passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._drawn: tuple[int, str] | None = None

    @property
    def is_drawn(self) -> bool:
        return self._drawn is not None

    @property
    def time_and_uid(self) -> tuple[int, str]:
        self._drawn = self._drawn or (self._clock.now(), self._clock.new_id())
        return self._drawn
