"""Instructions that a function of the user gives: its call, the text that the log has of an earlier call, and the head
of the session after a call.

The function runs before the first append of a turn, like everything that may refuse a question.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.errors import AgentError, Conflict, CorruptLog, InstructionsFailed, StoreError, TurnCancelled
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.view import View, decode_view
from holdfast.models.provider_errors import redact_secrets
from holdfast.prompt.session_cache import TurnSession
from holdfast.stores.append import Head
from holdfast.stores.base import Log, Store
from holdfast.turn.progress import AgentProgress


@dataclass(frozen=True, slots=True)
class InstructionsCall:
    """The call of an agent's instructions function. Gives its text, or an awaitable of it; empty for None."""

    function: Callable[[Any], Any]
    session: TurnSession
    agent: str | None
    is_detached: bool  # readers of an error are not the author of the function

    def __call__(self) -> str | Awaitable[str]:
        with self._name_function():
            value = self.function(self.session)
        return self._await_text(value) if inspect.isawaitable(value) else self._check_text(value)

    async def _await_text(self, value: Awaitable[Any]) -> str:
        with self._name_function():
            text = await value
        return self._check_text(text)

    def _check_text(self, value: object) -> str:
        if value is None or isinstance(value, str):
            return str(value or "")
        raise self._failure(
            f"returned a value of type {type(value).__name__}: return a str, or None for no instructions"
        )

    @contextmanager
    def _name_function(self) -> Iterator[None]:
        """Raise InstructionsFailed for an error of the function. Errors of the store stay as they are, because the turn
        may be resumed when the store is back."""
        try:
            yield
        except (StoreError, TurnCancelled):
            raise
        except Exception as error:
            failure = self._failure(f"raised {type(error).__name__} ({redact_secrets(str(error))})")
            raise (hide_cause(failure, error) if self.is_detached else failure) from error

    def _failure(self, reason: str) -> InstructionsFailed:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return InstructionsFailed(name, agent=self.agent, reason=reason)


def hide_cause(failure: InstructionsFailed, cause: BaseException | None) -> InstructionsFailed:
    """Return the error for readers that are not the author of the function: an unexpected error is named by its type
    only, because its text may hold internals of the program."""
    if cause is None or isinstance(cause, AgentError):
        return failure
    reason = f"raised {type(cause).__name__} (the server's log says more)"
    return InstructionsFailed(failure.function, agent=failure.agent, reason=reason)


def read_sent_instructions(store: Store, log: Log, progress: AgentProgress | None) -> str | None:
    """Return the instructions that an agent was given earlier in this turn, from its stored prompt. None if its model
    was not called yet, or if the prompt was erased."""
    if progress is None or progress.context is None:
        return None
    try:
        context = codec.decode(store.blob(log, progress.context))
    except CorruptLog:
        return None
    pieces = zip(context["kinds"], context["system"], strict=True)
    return "".join(text for kind, text in pieces if kind == "instructions")


def follow_head(store: Store, log: Log, head: Head, view: View, opening: Sequence[Draft]) -> tuple[Head, View]:
    """Return the head and the view at which a turn can begin that was prepared at `head`, before the user's function
    ran: the function may have written to the session. Raises Conflict if the turn must be prepared again."""
    now = store.head(log)
    if now.head == head.head:
        return head, view
    found = decode_view(now.view)
    is_same = all(getattr(found, name) == getattr(view, name) for name in ("turn", "turns", "lifecycle", "active"))
    is_same = is_same and found.queue[: len(view.queue)] == view.queue  # runs may have been added at its end
    # A message that is admitted by the first append is named by its seq, which has changed.
    if not is_same or any(draft.type == "message.queued" for draft in opening):
        raise Conflict(log.id, expected=head.head, head=now.head)
    return now, found
