"""The contract between a turn and the session object that it runs in. A turn uses nothing else of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from holdfast.policy.retention import Retention
    from holdfast.prompt.history_window import HistoryWindow  # loaded by the first turn, not with the session

# The logs whose turns called the code that runs here: a tool, or another function of the user. A turn that such code
# starts in one of them would wait for itself.
CALLING_LOGS: ContextVar[frozenset[str]] = ContextVar("holdfast_calling_logs", default=frozenset())


@contextmanager
def called_by(log_uid: str) -> Iterator[None]:
    """Note that a turn of this log calls the code of the block."""
    token = CALLING_LOGS.set(CALLING_LOGS.get() | {log_uid})
    try:
        yield
    finally:
        CALLING_LOGS.reset(token)


class UsageMeter(Protocol):
    """Takes what a session has used so far, in total; raises QuotaExceeded if no model may be called any more."""

    def __call__(self, used: Mapping[str, int]) -> None: ...
    def settle(self) -> None: ...


@dataclass(slots=True, eq=False)
class SessionCache:
    """Values that one session object keeps from one turn to the next. Losing them costs time, never data."""

    temp: dict[str, Any] = field(default_factory=dict)  # state of scope "temp"; cleared when a turn ends
    window: HistoryWindow | None = None  # the newest messages, read for the last prompt
    stored_contexts: set[str] = field(default_factory=set)  # digests of prompts that the log already holds
    meter: UsageMeter | None = None  # called before each model call, if a quota limits what the session uses
    prune_idle_until: int = 0  # head up to which a turn does not try to prune again
    # Each of these is one tuple, so that another thread never reads one part of it without the others.
    retention: tuple[int, Retention] | None = None  # the last retention.set event read: its seq and its retention
    visible_count: tuple[int, int, int] = (-1, 0, 0)  # edition of the view, head, number of visible messages at it

    resolve_work_dir: Callable[[str], Path] = Path  # makes a stored work_dir a folder for tools; a server may refuse it

    def forget_history(self) -> None:
        """Drop the messages and prompts that were read from the log: an erasure may have removed some of them."""
        self.window = None
        self.stored_contexts.clear()


class TurnSession(Protocol):
    """The session object of a turn: `Session`, or a test's own."""

    @property
    def cache(self) -> SessionCache: ...
    def prune_if_due(self) -> None:
        """Prune the session if its retention asks for it."""

    def in_turn(self, is_over: Callable[[], bool]) -> TurnSession:
        """Return the same session for a tool: until its turn is over it starts no other turn, on any thread."""

    def get_state(self, name: str, default: Any = None, *, scope: str = "session") -> Any: ...  # noqa: ANN401 - JSON
    def set_state(self, name: str, value: Any, *, scope: str = "session") -> None: ...  # noqa: ANN401 - JSON
    def delete_state(self, name: str, *, scope: str = "session") -> bool: ...
    def scope_state(self, scope: str) -> dict[str, Any]: ...
