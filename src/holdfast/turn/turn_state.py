"""`ctx.state`: session state for tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.log.events import Draft
from holdfast.turn.live_mapping import LiveMapping

if TYPE_CHECKING:
    from holdfast.turn.runtime import TurnRuntime


class TurnState(LiveMapping):
    """Session state for tools: a live mapping, and `get`, `set` and `delete` for the other scopes. Writes belong to
    the turn, and are refused when the turn is over or taken over."""

    def __init__(self, runtime: TurnRuntime) -> None:
        self._turn = runtime
        session = runtime.session
        super().__init__(lambda: session.scope_state("session"), session.get_state, self.set, self.delete)

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

    def delete(self, name: str, *, scope: str = "session") -> bool:
        """Remove a name. Returns False if it had no value."""
        runtime = self._turn
        runtime.check_open()
        if scope != "session":
            return runtime.session.delete_state(name, scope=scope)
        if runtime.store.lookup(runtime.log, "state/" + name) is None:
            return False
        runtime.store.append(runtime.log, [Draft(type="state.deleted", data={"name": name})], epoch=runtime.epoch)
        return True

    def epoch(self) -> int:
        """Return the epoch for the writes of a tool. Raises StaleEpoch if the turn is over or taken over."""
        self._turn.check_open()
        return self._turn.epoch
