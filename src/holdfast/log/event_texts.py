"""The texts of an event: what a person, a model or a tool says in it. Ids, names of tools and settings are no texts.

The fields that a tombstone keeps are no texts either, so a field of a new event type counts as text until it is kept.
"""

from __future__ import annotations

from typing import Any

from holdfast.log import codec
from holdfast.log.events import PAYLOAD_AT, UNREADABLE, Event
from holdfast.log.tombstones import kept_fields

# Fields of payloads with ids, digests, settings and words of the log format.
_SETTINGS = frozenset((
    "by_model", "context", "created_at", "from", "kind", "options", "response_id", "role", "schema", "session", "whole",
))  # fmt: skip
_PART_SETTINGS = frozenset(("call_id", "id", "media_type", "model", "provider", "type"))
_ERROR_SETTINGS = frozenset(("code", "type"))


def find_texts(event: Event, *, keys: bool = False) -> list[str]:
    """Return the texts of an event: its strings, its whole numbers, and those inside texts that are JSON.

    With `keys`, the keys of its JSON objects are texts too. An erased event has no texts. Of a payload that is not as
    holdfast writes it, every string is a text; one that is no JSON has none.
    """
    if event.erased:
        return []
    try:
        values = _select_values(event)
    except UNREADABLE:
        values = _read_payload(event)
    return texts_in(values, keys=keys)


def _read_payload(event: Event) -> list[Any]:
    try:
        return [codec.decode((event.body or b"")[PAYLOAD_AT:])]
    except ValueError:
        return []


def texts_in(value: Any, *, keys: bool = False) -> list[str]:  # noqa: ANN401 - a JSON value
    """Return the texts of a JSON value, without spaces around them."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
            found += each if keys else ()
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, str):
            found.append(each.strip())
            waiting += _read_json(each)
        elif type(each) is int:
            found.append(str(each))
    return found


def _select_values(event: Event) -> list[Any]:
    """Return the values of the fields that hold texts."""
    kept = kept_fields(event.type)
    fields = {name: value for name, value in event.data.items() if name not in kept and name not in _SETTINGS}
    if isinstance(fields.get("error"), dict):
        fields["error"] = _drop_fields(fields["error"], _ERROR_SETTINGS)
    message = _drop_fields(fields.pop("message", {}), _SETTINGS)
    parts = fields.pop("parts", message.pop("parts", ()))  # `message.added` is the message itself
    return [*fields.values(), message, *(_drop_fields(part, _part_settings(part)) for part in parts)]


def _part_settings(part: dict[str, Any]) -> frozenset[str]:
    """Return the fields of a part that are no texts: the name of a tool is none, the name of a file is one."""
    return _PART_SETTINGS | {"name"} if part["type"] == "tool_call" else _PART_SETTINGS


def _drop_fields(value: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in names}


def _read_json(text: str) -> list[Any]:
    """Return the JSON object or list that a text is, in a code fence or not; nothing for any other text."""
    inner = text.strip().removeprefix("```json").strip("`").strip()
    if not inner.startswith(("{", "[")):
        return []
    try:
        return [codec.decode(inner.encode())]
    except ValueError:
        return []
