"""A turn whose stream is kept and not read is cancelled, so that a variable of a program does not hold a session."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from holdfast.concurrency import is_running
from holdfast.errors import TurnCancelled

if TYPE_CHECKING:
    from holdfast.turn.runtime import TurnRuntime


class UnreadStream:
    """Watches the stream of one turn. `check` is called by the thread that renews leases."""

    def __init__(self, runtime: TurnRuntime, stream: weakref.ref[Any]) -> None:
        self._runtime, self._stream = weakref.ref(runtime), stream  # weak: a turn that is dropped must go
        self._seen: object = None  # progress of the turn when the reader was last seen away
        self._since = 0.0

    def check(self) -> None:
        """Cancel the turn if its reader has taken no event for the agent's `timeout`."""
        runtime, stream = self._runtime(), self._stream()
        if runtime is None:
            return
        agents = list(runtime.agents.values())
        progress = (runtime.last_seq, [(agent.effect_deadline, len(agent.streamed_text)) for agent in agents])
        now = runtime.store.clock.monotonic()
        if stream is None or is_running(stream) or progress != self._seen:
            self._seen, self._since = progress, now
            return
        timeout = max((agent.spec.timeout for agent in agents), default=0.0)
        if now - self._since >= timeout:
            reason = f"its stream was not read for {timeout:g} seconds"
            runtime.stop(reason)
            runtime.fail(TurnCancelled(reason))
