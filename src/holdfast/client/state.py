"""State in four scopes, at the server; temp lives in the session object, and tools at the server do not see it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from holdfast.client.base import Remote
from holdfast.client.requests import Flow, delete, get, put
from holdfast.errors import Conflict, InvalidArgument
from holdfast.log import codec
from holdfast.log.identifiers import check_name
from holdfast.session.state import SCOPES


def set_state(self: Remote, name: str, value: Any, *, scope: str = "session") -> Flow[None]:  # noqa: ANN401 - any JSON
    """Give a name a value; durable before this returns, unless the scope is temp."""
    if _is_temp(name, scope):
        codec.encode(value)
        self._temp[name] = copy.deepcopy(value)
        return
    yield put(self._path("state", name), {"value": value, "scope": scope})


def get_state(self: Remote, name: str, default: Any = None, *, scope: str = "session") -> Flow[Any]:  # noqa: ANN401
    """The value of a name now, set by any process."""
    if _is_temp(name, scope):
        return copy.deepcopy(self._temp.get(name, default))
    found = yield get(self._path("state", name), scope=scope)
    return found["value"] if found["found"] else default


def delete_state(self: Remote, name: str, *, scope: str = "session") -> Flow[bool]:
    """Remove a name; False if it had no value."""
    if _is_temp(name, scope):
        return self._temp.pop(name, self) is not self
    gone: bool = (yield delete(self._path("state", name), scope=scope))["deleted"]
    return gone


def update_state(self: Remote, name: str, change: Callable[[Any], Any], *, scope: str = "session") -> Flow[Any]:
    """Replace a value by a function of it, atomically across threads and processes; returns the new value.

    `change` is called again if another process wrote first, so it should do nothing but compute.
    """
    is_temp = _is_temp(name, scope)
    if not callable(change):
        raise InvalidArgument("update_state takes a function of the old value: update_state(name, lambda n: n + 1)")
    if is_temp:
        yield from set_state(self, name, change(copy.deepcopy(self._temp.get(name))), scope="temp")
        return copy.deepcopy(self._temp[name])
    while True:
        found = yield get(self._path("state", name), scope=scope)
        old = found.get("value") if found["found"] else None
        value = change(copy.deepcopy(old))
        expected = {"found": True, "value": old} if found["found"] else {"found": False}
        change_it = {"value": value, "scope": scope, "expected": expected}
        try:
            yield put(self._path("state", name), change_it)
        except Conflict:
            continue
        return value


def state(self: Remote) -> Flow[dict[str, Any]]:
    """A copy of the session's own state."""
    return (yield from scope_state(self, "session"))


def scope_state(self: Remote, scope: str) -> Flow[dict[str, Any]]:
    """A copy of the state of a scope."""
    if _is_temp("any", scope):
        return copy.deepcopy(self._temp)
    found: dict[str, Any] = (yield get(self._path("state"), scope=scope))["state"]
    return found


def user_state(self: Remote) -> Flow[dict[str, Any]]:
    """A copy of the state of the session's user."""
    return (yield from scope_state(self, "user"))


def app_state(self: Remote) -> Flow[dict[str, Any]]:
    """A copy of the state of the session's app."""
    return (yield from scope_state(self, "app"))


def temp_state(self: Remote) -> Flow[dict[str, Any]]:
    """A copy of the state that stays in this object and is gone when a run ends."""
    return (yield from scope_state(self, "temp"))


def state_at(self: Remote, seq: int) -> Flow[dict[str, Any]]:
    """The session's own state as it was after event `seq`."""
    if isinstance(seq, bool) or not isinstance(seq, int) or seq < 0:
        raise InvalidArgument(f"state_at takes the number of an event, not {seq!r}")
    found: dict[str, Any] = (yield get(self._path("state"), at=seq))["state"]
    return found


def _is_temp(name: str, scope: str) -> bool:
    check_name(name, "a state name")
    if scope not in SCOPES:
        raise InvalidArgument(f"unknown scope {scope!r}: use one of {', '.join(SCOPES)}")
    return scope == "temp"
