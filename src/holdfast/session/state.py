"""State in four scopes.

Session state is in the session's own log. User state and app state have a log each, which every session of that user or
app reads and writes. Temp state is in the session object and is never stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.concurrency import off_thread, twin
from holdfast.errors import Conflict, InvalidArgument, MissingApp, MissingUser, SessionExists, SessionNotFound
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_name
from holdfast.turn.live_mapping import LiveMapping

if TYPE_CHECKING:
    from holdfast.prompt.session_cache import SessionCache
    from holdfast.stores.base import Log, Store

SCOPES = ("session", "user", "app", "temp")


class StateMethods:
    """The methods of `Session` for state: `set_state` (also `put_state`), `get_state`, `delete_state`, `update_state`,
    `state`, `user_state`, `app_state`, `temp_state`, `scope_state`, `state_at`."""

    store: Store
    log: Log
    cache: SessionCache

    def set_state(self, name: str, value: Any, *, scope: str = "session") -> None:  # noqa: ANN401 - any JSON
        """Set the value of a name. It is durable when this returns, unless the scope is temp."""
        check_name(name, "a state name")
        if self._is_temp(scope):
            codec.encode(value)
            self.cache.temp[name] = copy.deepcopy(value)
            return
        self._append_state(scope, [Draft(type="state.set", data={"name": name, "value": value})])

    put_state = set_state

    def get_state(self, name: str, default: Any = None, *, scope: str = "session") -> Any:  # noqa: ANN401 - any JSON
        """Return the current value of a name, also if another process set it; `default` if it has none."""
        check_name(name, "a state name")
        if self._is_temp(scope):
            return copy.deepcopy(self.cache.temp.get(name, default))
        log = self._scope_log(scope)
        return default if log is None else self.store.value(log, "state/" + name, default)

    def delete_state(self, name: str, *, scope: str = "session") -> bool:
        """Remove a name. Returns False if it had no value."""
        check_name(name, "a state name")
        if self._is_temp(scope):
            return self.cache.temp.pop(name, _NOTHING) is not _NOTHING
        log = self._scope_log(scope)
        if log is None or self.store.lookup(log, "state/" + name) is None:
            return False
        self._append_state(scope, [Draft(type="state.deleted", data={"name": name})])
        return True

    def update_state(self, name: str, change: Callable[[Any], Any], *, scope: str = "session") -> Any:  # noqa: ANN401
        """Replace a value by `change(value)`, atomically across threads and processes, and return the new value.

        If another writer is first, `change` is called again with the new value, so it should have no side effects.
        """
        check_name(name, "a state name")
        if not callable(change):
            raise InvalidArgument("update_state takes a function of the old value: update_state(name, lambda n: n + 1)")
        if self._is_temp(scope):
            self.set_state(name, change(copy.deepcopy(self.cache.temp.get(name))), scope="temp")
            return copy.deepcopy(self.cache.temp[name])
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
                if tries > 3:  # many writers at once: each sleeps for a random time, so that they do not collide again
                    spread = int.from_bytes(self.store.clock.random_bytes(1), "big") / 255
                    self.store.clock.sleep(spread * min(tries, 20) * 0.0005)

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The state of scope "session", as a live mapping: every write is durable."""
        return self._mapping("session")

    @property
    def user_state(self) -> MutableMapping[str, Any]:
        """The state of the session's user, as a live mapping."""
        return self._mapping("user")

    @property
    def app_state(self) -> MutableMapping[str, Any]:
        """The state of the session's app, as a live mapping."""
        return self._mapping("app")

    @property
    def temp_state(self) -> MutableMapping[str, Any]:
        """The state that is gone when the run ends, as a live mapping."""
        return self._mapping("temp")

    def _mapping(self, scope: str) -> LiveMapping:
        if scope in ("user", "app"):
            self._scope_id(scope)  # raises MissingUser here, not at the first use
        return LiveMapping(
            partial(self.scope_state, scope),
            partial(self.get_state, scope=scope),
            partial(self.set_state, scope=scope),
            partial(self.delete_state, scope=scope),
        )

    def scope_state(self, scope: str) -> dict[str, Any]:
        """Return a copy of the state of a scope."""
        if self._is_temp(scope):
            return copy.deepcopy(self.cache.temp)
        log = self._scope_log(scope)
        return {} if log is None else self.store.values(log, "state/")

    def state_at(self, seq: int) -> dict[str, Any]:
        """Return the state of scope "session" as it was after event `seq`."""
        if isinstance(seq, bool) or not isinstance(seq, int) or seq < 0:
            raise InvalidArgument(f"state_at takes the number of an event, not {seq!r}")
        return self.store.values(self.log, "state/", at=seq)

    def _is_temp(self, scope: str) -> bool:
        if scope not in SCOPES:
            raise InvalidArgument(f"unknown scope {scope!r}: use one of {', '.join(SCOPES)}")
        return scope == "temp"

    def _scope_id(self, scope: str) -> str:
        owner = self.log.user_id if scope == "user" else self.log.app_name
        if owner is None:
            field, missing = ("user_id", MissingUser) if scope == "user" else ("app_name", MissingApp)
            raise missing(
                f"scope={scope!r} needs to know whose: open the session with {field}=, as in agent.session({field}='…')"
            )
        return quote(owner, safe="")  # an owner may be any text, the id of a log may not

    def _scope_log(self, scope: str) -> Log | None:
        return self.log if scope == "session" else self.store.find(scope, self._scope_id(scope))

    def _new_scope_log(self, scope: str) -> Log:
        id = self._scope_id(scope)
        try:
            return self.store.create(scope, id, [Draft(type="entity.created")])
        except SessionExists:
            return self.store.require(scope, id)

    def _append_state(self, scope: str, drafts: list[Draft]) -> None:
        if scope == "session":
            self.store.append(self.log, drafts)
            return
        while True:
            try:
                self.store.append(self._scope_log(scope) or self._new_scope_log(scope), drafts)
                return
            except SessionNotFound:
                continue  # an erasure removed the log after it was found: create a new one

    set_state_async = twin(set_state)
    put_state_async = set_state_async
    get_state_async = twin(get_state)
    delete_state_async = twin(delete_state)
    update_state_async = twin(update_state)
    scope_state_async = twin(scope_state)
    state_at_async = twin(state_at)

    async def state_async(self) -> dict[str, Any]:
        """Return a copy of the state of scope "session"."""
        return await off_thread(self.scope_state, "session")


_NOTHING = object()
