"""State values for a prompt."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import MissingUser
from holdfast.prompt.session_cache import TurnSession

ABSENT: Final = ...  # stands for a value that is not set: JSON has None, and a copy of an Ellipsis is the Ellipsis


def read_value(session: TurnSession, scope: str | None, name: str) -> Any:  # noqa: ANN401 - JSON, or ABSENT
    """Return a state value, ABSENT if it is not set or if the session has no such user or app. Without a scope, temp
    state comes before session state."""
    if scope is None and name in session.cache.temp:
        scope = "temp"
    try:
        return session.get_state(name, scope=scope or "session", default=ABSENT)
    except MissingUser:
        return ABSENT
