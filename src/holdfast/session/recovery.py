"""Turns that did not end, or failed: resume a turn that a crash or a person's decision interrupted, retry one that
failed or was cancelled. Both continue the turn from its log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.concurrency import off_thread, property_twin
from holdfast.log.events import Draft, Event, message_data
from holdfast.log.view import Turn, decode_view
from holdfast.session.turns import BusyWait, TurnMethods, TurnStart, last_response, last_response_async

if TYPE_CHECKING:
    from holdfast.agent_base import BaseAgent
    from holdfast.turn.response import Response
    from holdfast.turn.runtime import TurnRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A turn whose process ended before the turn did: `resume()` finishes it, `run()` settles it."""

    run_id: str
    question: str
    unknown_calls: list[str]  # tools that were called and may or may not have taken effect
    attempts: int  # how often the turn was started or resumed
    parked: bool  # whether the turn used up its attempts and waits for a decision


class RecoveryMethods(TurnMethods):
    """The methods of `Session` for turns that are not finished: `resume`, `retry`, `unfinished`."""

    def resume(
        self, agent: BaseAgent | None = None, *, reason: str | None = None, actor: str | None = None
    ) -> Response | None:
        """Resume the session if it is paused; then finish its open turn and return the response of the turn.

        The open turn is one that a crash cut short, or whose calls are decided. Returns None if there is none. Raises
        LifecycleError if the session is closed or archived.
        """
        if not self._reopen_for_resume(reason, actor):
            return None
        try:
            return last_response(self._stream_turn(self._start_resume(agent)))
        except _NoOpenTurn:  # another process has finished the turn first
            return None

    async def resume_async(
        self, agent: BaseAgent | None = None, *, reason: str | None = None, actor: str | None = None
    ) -> Response | None:
        """Do as `resume`, on the event loop."""
        if not await off_thread(self._reopen_for_resume, reason, actor):
            return None
        try:
            return await last_response_async(self._stream_turn_async(self._start_resume(agent)))
        except _NoOpenTurn:
            return None

    def retry(
        self, agent: BaseAgent | None = None, max_steps: int | None = None, *, actor: str | None = None
    ) -> Response | None:
        """Continue the last turn, which failed or was cancelled, and return its response; None if it did not fail.

        The results of its tools and the replies of its models are used; only what is missing runs. `max_steps` is the
        limit of the whole turn. A turn of a session that was cleared, rewound or redacted since cannot continue.
        """
        from holdfast.turn.start import reopen_ended_turn

        if not reopen_ended_turn(self.store, self.log, max_steps, actor):
            return None
        return last_response(self._stream_turn(self._start_resume(agent)))

    async def retry_async(
        self, agent: BaseAgent | None = None, max_steps: int | None = None, *, actor: str | None = None
    ) -> Response | None:
        """Do as `retry`, on the event loop."""
        from holdfast.turn.start import reopen_ended_turn

        if not await off_thread(reopen_ended_turn, self.store, self.log, max_steps, actor):
            return None
        return await last_response_async(self._stream_turn_async(self._start_resume(agent)))

    def _reopen_for_resume(self, reason: str | None, actor: str | None) -> bool:
        """Resume a paused session; return whether it has an open turn. Raises LifecycleError if closed or archived."""
        if self.status in ("paused", "closed", "archived"):
            self._change_status("session.resumed", reason, actor)
        return decode_view(self.store.head(self.log).view).turn is not None

    def _start_resume(self, agent: BaseAgent | None) -> TurnStart:
        def begin(runtime: TurnRuntime) -> list[Draft]:
            from holdfast.turn.start import resume_turn

            if not resume_turn(runtime):
                raise _NoOpenTurn
            return []

        wait = BusyWait(self.log.id, self.store, self._agent_or_default(agent).timeout)
        return TurnStart(lambda: self._new_runtime(agent, None, {}), begin, wait)

    @property
    def unfinished(self) -> Unfinished | None:
        """The turn that a crash cut short; None if there is none, or if a live process is running it."""
        turn = decode_view(self.store.head(self.log).view).turn
        if turn is None or turn.waiting:
            return None
        lease = self.store.lease(self.log)
        if lease is not None and lease.is_alive:
            return None
        return Unfinished(
            run_id=turn.run,
            question=self._question_of(turn),
            unknown_calls=[name for _seq, name in turn.calls.values()],
            attempts=turn.attempts,
            parked=turn.parked,
        )

    def _question_of(self, turn: Turn) -> str:
        if turn.question:
            rows = self.store.read(self.log, turn.question, turn.question)
        else:
            rows = self.store.read(self.log, turn.first, limit=1, types=["message.added"])
        text: str = message_data(Event(rows[0])).get("text", "") if rows else ""
        return text

    unfinished_async = property_twin("unfinished")


class _NoOpenTurn(Exception):
    """The session has no open turn to resume."""
