"""Named places in the code at which a test may stop or kill the process.

A crash point costs one comparison when no test armed it.
"""

from __future__ import annotations

from collections.abc import Callable

_action: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """Mark a place where a process may die. Does nothing unless a test armed the crash points."""
    if _action is not None:
        _action(name)


def arm_crashpoints(action: Callable[[str], None] | None) -> None:
    """For tests: call `action` with the name of every crash point that is reached; None disarms them."""
    global _action
    _action = action
