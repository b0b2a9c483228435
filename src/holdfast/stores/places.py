"""Places that calls hold: the lead of a group commit, the slot of a connection, the lock of a log.

Ctrl-C, a signal handler or a time limit can raise an exception between any two instructions, also between the end of a
block and the release of a lock. So a place is not freed by its release alone: it belongs to a call, and it is free as
soon as that call is no longer on the stack of its thread. No lock is taken to hold a place, so code that a signal
handler or the garbage collector runs in the middle of it finds no half of it.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import FrameType

POLL_SECONDS = 0.05  # between two looks at a place whose holder may be gone
_NO_FRAME = object()  # the frame of a call that has ended


class Call:
    """A call that may hold a place: the frame of a function, on the stack of its thread."""

    __slots__ = ("frame", "thread")

    def __init__(self, frame: FrameType | None) -> None:
        """Without a frame, the call lasts until it releases its place."""
        self.frame: object = frame
        self.thread = threading.get_ident()

    def end(self) -> None:
        """Forget the frame, which would else keep its variables alive, and this call with them."""
        self.frame = _NO_FRAME

    def is_under_way(self) -> bool:
        """Whether the function has not returned or raised yet."""
        if self.frame is None:
            return True
        found = sys._getframe() if self.thread == threading.get_ident() else sys._current_frames().get(self.thread)
        while found is not None:
            if found is self.frame:
                return True
            found = found.f_back
        return False


class Places:
    """A fixed number of places. One call holds a place at a time."""

    def __init__(self, count: int = 1) -> None:
        self._numbers = range(count)
        self._holders: dict[int, Call] = {}
        self._waiters: deque[threading.Lock] = deque()
        self._clearing = threading.Lock()

    def try_take(self, call: Call) -> bool:
        """Take a place, if one is free. One step of the interpreter both takes it and says which call has it."""
        for number in self._numbers:  # noqa: SIM110 - `any` with a generator takes three times as long
            if self._holders.setdefault(number, call) is call:
                return True
        return False

    def take(self, call: Call, seconds: float | None = None) -> bool:
        """Wait for a place. Returns False after `seconds`, or at once if this thread itself holds the last place: it
        was interrupted there, and cannot go on before this call returns."""
        waited = 0.0
        while not self.try_take(call):
            if self.is_held_here() or (seconds is not None and waited >= seconds):
                return False
            wake = threading.Lock()
            wake.acquire()
            self._waiters.append(wake)
            if self.try_take(call):  # it was released before there was a waiter to wake
                return True
            if not wake.acquire(timeout=POLL_SECONDS):
                waited += POLL_SECONDS
                self.clear_left()
        return True

    def release(self, call: Call) -> None:
        """Give back the place of a call, if it has one, and wake a waiter."""
        holders = self._holders
        for number in self._numbers:
            if holders.get(number) is call:
                del holders[number]
                break
        if self._waiters:
            self._wake_waiter()

    def is_held_here(self) -> bool:
        """Whether a call of this thread holds a place, so that waiting for it would be waiting for itself."""
        here = threading.get_ident()
        for number, call in list(self._holders.items()):
            if call.thread == here and call.frame is not None:
                if call.is_under_way():
                    return True
                self._clear(number, call)
        return False

    def clear_left(self) -> None:
        """Free the places of calls that ended without a release."""
        for number, call in list(self._holders.items()):
            if not call.is_under_way():
                self._clear(number, call)

    def _clear(self, number: int, call: Call) -> None:
        with self._clearing:  # of two threads that see a call that has ended, one frees its place
            if self._holders.get(number) is call:
                del self._holders[number]

    def _wake_waiter(self) -> None:
        try:
            self._waiters.popleft().release()
        except IndexError:
            pass  # another call woke the last one


def is_inside_store() -> bool:
    """Whether this thread is in the middle of a call of a store. The garbage collector and signal handlers run code at
    any place; code that they run here must not wait for the store."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("holdfast.stores."):
            return True
        frame = frame.f_back
    return False
