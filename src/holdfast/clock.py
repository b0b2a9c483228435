"""The only clock, the only ids and the only randomness of the package.

Stores and sessions take time, ids and salts from a `Clock`, so that a test can pass a `FixedClock` and get the same
bytes from every store.
"""

from __future__ import annotations

import os
import threading
import time

from holdfast.operating_system import read_boot_clock

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford: no I, L, O, U

LOCK_SECONDS = 0.1  # a lock that is held for longer was left by a call that an exception ended
_PAIRS = [one + two for one in _ALPHABET for two in _ALPHABET]  # ten bits at once


def encode_ulid(milliseconds: int, entropy: int) -> str:
    """Return an id of 26 characters that sorts by time."""
    value = (milliseconds << 80) | entropy
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def decode_ulid(text: str) -> int:
    """Return the number that an id encodes; the numbers sort as the ids do."""
    value = 0
    for character in text:
        value = value << 5 | _ALPHABET.index(character)
    return value


def is_ulid(text: str) -> bool:
    """Whether a text has the form of an id that sorts by time."""
    return len(text) == 26 and not set(text) - set(_ALPHABET)


class Clock:
    """Time, ids and randomness of the operating system."""

    is_simulated = False  # true for the time of a whole test, which holds for its database as well

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = (0, 0)

    def now(self) -> int:
        """Return microseconds since 1970. People read it; no order of events is ever taken from it."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Return the seconds of a clock that never jumps, counts suspended time and is the same in every process of
        this boot."""
        return read_boot_clock()

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new_id(self) -> str:
        """Return an id that sorts by time; the ids of one `Clock` are strictly increasing."""
        entropy = int.from_bytes(self.random_bytes(10), "big")
        milliseconds = self.now() // 1000
        lock = self._lock
        if not lock.acquire(timeout=LOCK_SECONDS):
            # A signal handler interrupted this very function in this thread, or an exception its end in another one.
            lock = self._lock = threading.Lock()
            lock.acquire()
        try:
            if milliseconds <= self._last[0]:
                # The clock stood still or went back: keep the last millisecond and add one to its entropy.
                milliseconds, entropy = self._last[0], (self._last[1] + 1) % (1 << 80)
            self._last = (milliseconds, entropy)
        finally:
            lock.release()
        return encode_ulid(milliseconds, entropy)


class FixedClock(Clock):
    """A clock that gives the same values in every run: each read moves it by `tick`, ids and salts are counted."""

    is_simulated = True

    def __init__(self, start: int = 1_700_000_000_000_000, tick: int = 1000) -> None:
        super().__init__()
        self.time, self.tick = start, tick
        self._count = 0

    def now(self) -> int:
        self.time += self.tick
        return self.time

    def monotonic(self) -> float:
        return self.time / 1e6

    def random_bytes(self, size: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(16, "big").rjust(size, b"\0")[-size:]

    def sleep(self, seconds: float) -> None:
        self.time += int(seconds * 1e6)


SYSTEM_CLOCK = Clock()
