"""`ctx.state`: session state for tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.log.events import Draft

if TYPE_CHECKING:
    from holdfast.turn.runtime import TurnRuntime


class TurnState:
    """Session state for tools. Writes belong to the turn, and are refused when the turn is over or taken over."""

    def __init__(self, runtime: TurnRuntime) -> None:
        self._turn = runtime

    def get(self, name: str, default: Any = None, *, scope: str = "session") -> Any:  # noqa: ANN401 - any JSON
        return self._turn.session.get_state(name, default, scope=scope)

    def set(self, name: str, value: Any, *, scope: str = "session") -> None:  # noqa: ANN401 - any JSON
        runtime = self._turn
        runtime.check_open()
        if scope == "session":
            draft = Draft(type="state.set", data={"name": name, "value": value})
            runtime.store.append(runtime.log, [draft], epoch=runtime.epoch)
            return
        runtime.session.set_state(name, value, scope=scope)

    def epoch(self) -> int:
        """Return the epoch for the writes of a tool. Raises StaleEpoch if the turn is over or taken over."""
        self._turn.check_open()
        return self._turn.epoch

    def delete(self, name: str) -> None:
        runtime = self._turn
        runtime.check_open()
        runtime.store.append(runtime.log, [Draft(type="state.deleted", data={"name": name})], epoch=runtime.epoch)
