"""Those who asked for a turn: they may not decide about its calls where a second person must."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.log.view import decode_view
from holdfast.turn.run_outcome import read_turn_events

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

_QUESTIONS = ("message.queued", "message.added", "turn.reopened")


def find_askers(store: Store, log: Log) -> list[str]:
    """Return the names of those who asked for the open turn of a session, sorted.

    These are the user of the session, and the actors and authors of the turn's questions. If an agent runs here as the
    tool of another one, those who asked that agent are among them.
    """
    found: set[str | None] = set()
    waiting, seen = [log], {log.id}
    while waiting:
        each = waiting.pop()
        found |= {each.user_id, *_askers_of_turn(store, each)}
        caller_id = store.info(each).metadata.get("caller")  # as `Agent.as_tool` sets it
        caller = store.find("session", caller_id) if isinstance(caller_id, str) and caller_id not in seen else None
        if caller is not None:
            seen.add(caller.id)
            waiting.append(caller)
    return sorted(name for name in found if name)


def _askers_of_turn(store: Store, log: Log) -> set[str | None]:
    head = store.head(log)
    turn = decode_view(head.view).turn
    found: set[str | None] = set()
    for event in () if turn is None else read_turn_events(store, log, turn.run, turn.first, head.head):
        if event.type in _QUESTIONS:
            role = event.data.get("message", event.data).get("role", "user")
            found |= {event.actor, event.author if role == "user" else None}
    return found
