"""State in four scopes. Session state is in the session's own log; user and app state are logs of their own, shared
live by every session of that user or app; temp lives in the object and is never stored."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.errors import Conflict, InvalidArgument, MissingUser, SessionExists, SessionNotFound
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.identifiers import checked_name

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

SCOPES = ("session", "user", "app", "temp")


class Scopes:
    """The state methods of a session."""

    store: Store
    _log: Log
    _temp: dict[str, Any]

    def set_state(self, name: str, value: Any, scope: str = "session") -> None:  # noqa: ANN401 - any JSON
        """Give a name a value; durable before this returns, unless the scope is temp."""
        checked_name(name, "a state name")
        if self._is_temp(scope):
            codec.encode(value)
            self._temp[name] = copy.deepcopy(value)
            return
        self._append_state(scope, [Draft(type="state.set", data={"name": name, "value": value})])

    put_state = set_state

    def get_state(self, name: str, scope: str = "session", default: Any = None) -> Any:  # noqa: ANN401 - any JSON
        """The value of a name now, whoever set it in whichever process."""
        checked_name(name, "a state name")
        if self._is_temp(scope):
            return copy.deepcopy(self._temp.get(name, default))
        log = self._scope_log(scope)
        return default if log is None else self.store.value(log, "state/" + name, default)

    def delete_state(self, name: str, scope: str = "session") -> bool:
        """Remove a name; False if it had no value."""
        checked_name(name, "a state name")
        if self._is_temp(scope):
            return self._temp.pop(name, _NOTHING) is not _NOTHING
        log = self._scope_log(scope)
        if log is None or self.store.lookup(log, "state/" + name) is None:
            return False
        self._append_state(scope, [Draft(type="state.deleted", data={"name": name})])
        return True

    def update_state(self, name: str, change: Callable[[Any], Any], scope: str = "session") -> Any:  # noqa: ANN401
        """Replace a value by a function of it, atomically across threads and processes; returns the new value.

        `change` is called again if somebody else wrote first, so it should do nothing but compute.
        """
        checked_name(name, "a state name")
        if not callable(change):
            raise InvalidArgument("update_state takes a function of the old value: update_state(name, lambda n: n + 1)")
        if self._is_temp(scope):
            self.set_state(name, change(copy.deepcopy(self._temp.get(name))), scope="temp")
            return copy.deepcopy(self._temp[name])
        tries = 0
        while True:
            log = self._scope_log(scope) or self._new_scope_log(scope)
            head = self.store.head(log).head
            value = change(self.store.value(log, "state/" + name, at=head))
            draft = Draft(type="state.set", data={"name": name, "value": value})
            try:
                self.store.append(log, [draft], expected=head)
                return value
            except Conflict:
                tries += 1
                if tries > 3:  # a crowd: step back for a moment, each for another one
                    spread = int.from_bytes(self.store.ids.random(1), "big") / 255
                    self.store.ids.sleep(spread * min(tries, 20) * 0.0005)

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the session's own state."""
        return self.store.values(self._log, "state/")

    def scope_state(self, scope: str) -> dict[str, Any]:
        """A copy of the state of a scope."""
        if self._is_temp(scope):
            return copy.deepcopy(self._temp)
        log = self._scope_log(scope)
        return {} if log is None else self.store.values(log, "state/")

    def state_at(self, seq: int) -> dict[str, Any]:
        """The session's own state as it was after event `seq`."""
        if isinstance(seq, bool) or not isinstance(seq, int) or seq < 0:
            raise InvalidArgument(f"state_at takes the number of an event, not {seq!r}")
        return self.store.values(self._log, "state/", at=seq)

    def _is_temp(self, scope: str) -> bool:
        if scope not in SCOPES:
            raise InvalidArgument(f"unknown scope {scope!r}: use one of {', '.join(SCOPES)}")
        return scope == "temp"

    def _scope_id(self, scope: str) -> str:
        owner = self._log.user_id if scope == "user" else self._log.app_name
        if owner is None:
            field = "user_id" if scope == "user" else "app_name"
            raise MissingUser(
                f"scope={scope!r} needs to know whose: open the session with {field}=, as in agent.session({field}='…')"
            )
        return quote(owner, safe="")  # any text may be an owner; a log's id is plain

    def _scope_log(self, scope: str) -> Log | None:
        return self._log if scope == "session" else self.store.find(scope, self._scope_id(scope))

    def _new_scope_log(self, scope: str) -> Log:
        id = self._scope_id(scope)
        try:
            return self.store.create(scope, id, [Draft(type="entity.created")])
        except SessionExists:
            return self.store.require(scope, id)

    def _append_state(self, scope: str, drafts: list[Draft]) -> None:
        if scope == "session":
            self.store.append(self._log, drafts)
            return
        while True:
            try:
                self.store.append(self._scope_log(scope) or self._new_scope_log(scope), drafts)
                return
            except SessionNotFound:
                continue  # erased in this very moment: start a new one


_NOTHING = object()
