"""Callbacks for the ends of runs: requests that wait for a run of this process get its result at once."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.turn.response import Response

RunResult = Response | BaseException | None  # of a run in this process; None: only the log has the outcome


class RunCallbacks:
    """Callbacks by the id of their run. Each is called at most once."""

    def __init__(self) -> None:
        self._by_run: dict[str, list[Callable[[RunResult], object]]] = {}

    def add(self, run: str, callback: Callable[[RunResult], object]) -> Callable[[], None]:
        """Add a callback for the end of a run; return a function that removes it."""
        self._by_run.setdefault(run, []).append(callback)

        def remove_callback() -> None:
            waiting = self._by_run.get(run, [])
            if callback in waiting:
                waiting.remove(callback)
            if not waiting:
                self._by_run.pop(run, None)

        return remove_callback

    def notify(self, run: str, result: RunResult) -> None:
        """Call and remove the callbacks of a run."""
        for callback in self._by_run.pop(run, []):
            callback(result)

    def discard(self, run: str) -> None:
        """Remove the callbacks of a run without calling them."""
        self._by_run.pop(run, None)
