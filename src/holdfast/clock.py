"""The only clock, the only randomness, and the places where a test may stop the world.

Stores and sessions ask an `Ids` for time, ids and salts, so that a test can hand in `FixedIds` and get the same bytes
on every store.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford: no I, L, O, U


_PAIRS = [one + two for one in _ALPHABET for two in _ALPHABET]  # ten bits at once


def encode_ulid(milliseconds: int, entropy: int) -> str:
    """Twenty-six characters that sort by time."""
    value = (milliseconds << 80) | entropy
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def decode_ulid(text: str) -> int:
    """The number behind such an id; it sorts as the id does."""
    value = 0
    for character in text:
        value = value << 5 | _ALPHABET.index(character)
    return value


class Ids:
    """Time, ids and randomness of the real world."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = (0, 0)

    def now(self) -> int:
        """Microseconds since 1970, for people: order never comes from it."""
        return time.time_ns() // 1000

    def elapsed(self) -> float:
        """Seconds on a clock that never jumps and counts suspended time, the same in every process of this boot."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def random(self, size: int) -> bytes:
        return os.urandom(size)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new(self) -> str:
        """A time-sortable id; ids made by one `Ids` are strictly increasing."""
        entropy = int.from_bytes(self.random(10), "big")
        milliseconds = self.now() // 1000
        with self._lock:
            if milliseconds <= self._last[0]:
                # The clock stood still or went back: stay in the last millisecond and count on from its entropy.
                milliseconds, entropy = self._last[0], (self._last[1] + 1) % (1 << 80)
            self._last = (milliseconds, entropy)
        return encode_ulid(milliseconds, entropy)


class FixedIds(Ids):
    """A world that repeats itself: the clock moves only when told, ids and salts are counted."""

    def __init__(self, start: int = 1_700_000_000_000_000, tick: int = 1000) -> None:
        super().__init__()
        self.time, self.tick = start, tick
        self._count = 0

    def now(self) -> int:
        self.time += self.tick
        return self.time

    def elapsed(self) -> float:
        return self.time / 1e6

    def random(self, size: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(16, "big").rjust(size, b"\0")[-size:]

    def sleep(self, seconds: float) -> None:
        self.time += int(seconds * 1e6)


REAL = Ids()

_armed: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """A place where a process may die. Does nothing unless a test armed it."""
    if _armed is not None:
        _armed(name)


def arm(action: Callable[[str], None] | None) -> None:
    """For tests: call `action` with the name of every crash point that is reached; None disarms."""
    global _armed
    _armed = action
