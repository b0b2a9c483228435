"""An open turn as a part of a session's document: its question, its steps so far and the calls that wait for a person.

The turn is written as its events, so that it continues elsewhere as after a crash. Decisions of people are left out: a
call that was decided and has not run is asked for again.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument
from holdfast.log.events import MESSAGE_TYPES, Draft, Event, message_data
from holdfast.log.messages import message_from_data
from holdfast.stores.messages import blobs_of_event

if TYPE_CHECKING:
    from holdfast.log.view import Turn
    from holdfast.stores.base import Log, Store

# Events that point into the log, such as those of model calls, mean nothing in another one.
KEPT_TYPES = frozenset(
    (
        "turn.started",
        "turn.waiting",
        "turn.failed",
        "turn.cancelled",
        "turn.reopened",
        "message.added",
        "model.replied",
        "tool.called",
        "tool.returned",
        "approval.requested",
        "agent.started",
        "agent.finished",
        "agent.failed",
        "loop.ended",
    )
)


def turn_document(store: Store, log: Log, turn: Turn, head: int) -> dict[str, Any]:
    """Return the open turn of a session."""
    events = [Event(row) for row in store.read(log, turn.first, head) if row.type in KEPT_TYPES]
    events = [event for event in events if event.run == turn.run]
    blobs = {digest: store.blob(log, digest) for event in events for digest in blobs_of_event(event)}
    encoded = [_encode_event(event.type, event.data, event.author, event.branch) for event in events]
    if turn.question:  # the question was queued before the turn started, and has other fields there
        queued = store.event(log, turn.question)
        blobs |= {digest: store.blob(log, digest) for digest in blobs_of_event(queued)}
        encoded[0]["data"] = {name: value for name, value in encoded[0]["data"].items() if name != "question"}
        encoded.insert(1, _encode_event("message.added", message_data(queued), queued.author, None))
    found: dict[str, Any] = {"run": turn.run, "events": encoded}
    if blobs:
        found["blobs"] = {digest: base64.b64encode(data).decode() for digest, data in sorted(blobs.items())}
    return found


def _encode_event(type: str, data: dict[str, Any], author: str | None, branch: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": type, "data": dict(data), "author": author, "branch": branch}
    return {name: value for name, value in found.items() if value is not None}


def turn_drafts(turn: object) -> list[Draft]:
    """Return the events that restore an open turn. Raises InvalidArgument if they are not as `to_dict` writes them."""
    try:
        return _read_turn(turn)
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"'turn' of a session document is not as to_dict() writes it: {error!r}") from error


def _read_turn(turn: Any) -> list[Draft]:  # noqa: ANN401 - JSON that was written by to_dict, or by hand
    run, drafts = str(turn["run"]), []
    blobs = {digest: base64.b64decode(text, validate=True) for digest, text in turn.get("blobs", {}).items()}
    for digest, content in blobs.items():
        if sha256(content).hexdigest() != digest:
            raise InvalidArgument("'turn' of a session document names bytes that are not those of its blob")
    for given in turn["events"]:
        type, data = given["type"], dict(given["data"])
        if type not in KEPT_TYPES:
            raise InvalidArgument(f"'turn' of a session document has an event {type!r}, which no open turn has")
        named = {}
        if type in MESSAGE_TYPES:
            message = data if type == "message.added" else data["message"]
            named = {part["blob"]: blobs[part["blob"]] for part in message.get("parts", ()) if "blob" in part}
            message_from_data(message, blobs.__getitem__)  # raises if it is no message
            if "whole" in data:
                named[data["whole"]] = blobs[data["whole"]]
        author, branch = given.get("author"), given.get("branch")
        drafts.append(Draft(type=type, run=run, data=data, author=author, branch=branch, blobs=named))
    if not drafts or drafts[0].type != "turn.started":
        raise InvalidArgument("'turn' of a session document begins with 'turn.started'")
    return drafts
