"""What each type of event may say: the fields of its payload, and what each of them may hold. Pure.

A valid hash chain proves only that a log was not changed since its chain was computed, and every client can compute
one. So an import is checked here, event by event and field by field, before anything of it is stored. A test holds
these rules against what holdfast itself writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from holdfast.errors import AgentError, SchemaTooNew
from holdfast.log import codec
from holdfast.log.events import VERSIONS, Event, Row
from holdfast.log.messages import ROLES, Limits
from holdfast.log.named_values import names_of
from holdfast.log.view import View
from holdfast.policy.budget import Budget
from holdfast.policy.retention import Retention

MAX_NAME = Limits().name
MAX_TIME = 253_402_300_799_999_999  # the end of the year 9999, in microseconds
MAX_AMOUNT = 10**12  # tokens or milliseconds of one event: the sum over a log stays a 64-bit number
MAX_PATH = 200
_PATH = re.compile(r"[0-9./+]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Rule = Callable[[Any, int], bool]  # a value, and the number of its event -> whether the event may hold it


# -- kinds of values ---------------------------------------------------------------------------------------------------


def _any(value: Any, seq: int) -> bool:  # noqa: ANN401 - a JSON value, in all these rules
    return True


def _text(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is str


def _name(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is str and 0 < len(value.encode()) <= MAX_NAME


def _flag(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is bool


def _signed_head(value: Any, seq: int) -> bool:  # noqa: ANN401
    """A signed head that came with the imported file: the claim of its signer."""
    return type(value) is dict and all(type(each) in (str, int) for each in value.values())


def _object(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is dict


def is_amount(value: object) -> bool:
    """Whether this can be a number of tokens, turns or milliseconds."""
    return type(value) is int and 0 <= value <= MAX_AMOUNT


def _amount(value: Any, seq: int) -> bool:  # noqa: ANN401
    return is_amount(value)


def _time(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is int and 0 <= value <= MAX_TIME


def _earlier(value: Any, seq: int) -> bool:  # noqa: ANN401
    """The number of an event before this one, or 0."""
    return type(value) is int and 0 <= value < seq


def _path(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is str and len(value) <= MAX_PATH and _PATH.fullmatch(value) is not None


def _digest(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is str and _DIGEST.fullmatch(value) is not None


def _iso_time(value: Any, seq: int) -> bool:  # noqa: ANN401
    try:
        datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _covers(value: Any, seq: int) -> bool:  # noqa: ANN401
    """Ranges of earlier events."""
    return type(value) is list and all(
        type(pair) is list and len(pair) == 2 and all(type(end) is int for end in pair) and 0 < pair[0] <= pair[1] < seq
        for pair in value
    )


def _ranges(value: Any, seq: int) -> bool:  # noqa: ANN401
    """Ranges of earlier events that do not overlap, so that no message is shown twice."""
    return _covers(value, seq) and sum(last - first + 1 for first, last in value) < seq


def _usage(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is dict and all(_name(name, seq) and _amount(amount, seq) for name, amount in value.items())


def _arguments(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) in (dict, str)


def _message(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is dict and _fields_hold(value, _MESSAGE_NEEDS, _MESSAGE_MAY, seq) and _has_parts(value)


def _part(value: Any, seq: int) -> bool:  # noqa: ANN401
    if type(value) is not dict or type(value.get("type")) is not str or value["type"] not in _PARTS:
        return False
    needs, may = _PARTS[value["type"]]
    if not _fields_hold(value, {"type": _text, **needs}, may, seq):
        return False
    if value["type"] in ("image", "file"):
        return ("url" in value) != ("blob" in value) and ("blob" not in value or "media_type" in value)
    return True


def _tool_message(value: Any, seq: int) -> bool:  # noqa: ANN401
    """A message that begins with the result of a call."""
    return _message(value, seq) and [part["type"] for part in value.get("parts", [])[:1]] == ["tool_result"]


def _section(value: Any, seq: int) -> bool:  # noqa: ANN401
    needs: dict[str, Rule] = {"covers": _covers, "count": _amount, "text": _text, "by_model": _flag}
    return type(value) is dict and _fields_hold(value, needs, {}, seq) and value["covers"] != []


def _error(value: Any, seq: int) -> bool:  # noqa: ANN401
    needs: dict[str, Rule] = {"code": _text, "text": _text, "type": _text}
    return type(value) is dict and _fields_hold(value, needs, {"details": _object}, seq)


def _state_refs(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is dict and all(_name(name, seq) and _or_null(_earlier)(ref, seq) for name, ref in value.items())


def _state(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is dict and all(_name(name, seq) for name in value)


def _options(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is dict and _object(value.get("schema", {}), seq)


def _budget(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is dict and _accepts(Budget.of, value)


def _or_null(rule: Rule) -> Rule:
    return lambda value, seq: value is None or rule(value, seq)


def _list_of(rule: Rule) -> Rule:
    return lambda value, seq: type(value) is list and all(rule(each, seq) for each in value)


def _one_of(*words: str) -> Rule:
    return lambda value, seq: type(value) is str and value in words


def _accepts(check: Callable[[Any], object], value: Any) -> bool:  # noqa: ANN401
    try:
        check(value)
    except (AgentError, TypeError, OverflowError):
        return False
    return True


def _has_parts(message: dict[str, Any]) -> bool:
    return ("text" in message) != ("parts" in message)


def _fields_hold(data: dict[str, Any], needs: Mapping[str, Rule], may: Mapping[str, Rule], seq: int) -> bool:
    return _find_fault(data, needs, may, seq) is None


def _find_fault(data: dict[str, Any], needs: Mapping[str, Rule], may: Mapping[str, Rule], seq: int) -> str | None:
    """Return why these fields are not those of an event; None if they are."""
    for name in needs:
        if name not in data:
            return f"{name!r} is missing"
    for name, value in data.items():
        rule = needs.get(name) or may.get(name)
        if rule is None:
            return f"the field {name[:40]!r} is unknown"
        if not rule(value, seq):
            return f"the value of {name!r} is not one that holdfast writes"
    return None


# -- the fields of each type: those that it needs, and those that it may have ------------------------------------------

_Fields = tuple[dict[str, Rule], dict[str, Rule]]

_MESSAGE_NEEDS: dict[str, Rule] = {"role": _one_of(*ROLES)}
_MESSAGE_MAY: dict[str, Rule] = {
    "text": _text,
    "parts": _list_of(_part),
    "metadata": _object,
    "created_at": _iso_time,
}
_MEDIA: _Fields = ({}, dict.fromkeys(("url", "media_type", "name"), _text) | {"blob": _digest})
_PARTS: dict[str, _Fields] = {
    "text": ({"text": _text}, {}),
    "image": _MEDIA,
    "file": _MEDIA,
    "tool_call": ({"id": _text, "name": _text, "arguments": _arguments}, {}),
    "tool_result": ({"call_id": _text, "content": _text}, {"is_error": _flag}),
    "thinking": ({"text": _text}, dict.fromkeys(("signature", "provider", "model"), _text)),
}
_NAMED: dict[str, Rule] = {
    "system": _or_null(_text),
    "title": _or_null(_text),
    "metadata": _or_null(_object),
    "work_dir": _or_null(_text),
    "budget": _or_null(_budget),
}
_LIFECYCLE: _Fields = ({}, {"reason": _text, "restored": _flag})
_FACT: _Fields = (
    {"id": _name, "text": _text},
    {"kind": _one_of("fact", "decision", "feature", "progress", "artifact"), "status": _text, "ref": _text},
)
_ERASURE: _Fields = ({"reason": _text, "erased": _ranges, "tombs": _digest}, {"blobs": _list_of(_digest)})
_CUT: _Fields = ({"strategy": _text, "after": _earlier, "drop": _ranges}, {})
_CALL: dict[str, Rule] = {"call_id": _text, "name": _text, "arguments": _arguments}
_TURN_END: _Fields = ({}, {"usage": _usage, "shown": _text, "error": _error})

# Types that are not here belong to logs of other things than sessions, which are not imported.
SESSION_EVENTS: dict[str, _Fields] = {
    "session.created": ({}, _NAMED | {"predecessor": _text}),
    "session.changed": ({}, _NAMED),
    "session.forked": ({"parent": _text, "at": _earlier}, _NAMED | {"unverified": _earlier}),
    "session.imported": ({"from": _text}, {"blobs": _list_of(_digest), "signed": _signed_head}),
    "session.paused": _LIFECYCLE,
    "session.resumed": _LIFECYCLE,
    "session.closed": _LIFECYCLE,
    "session.archived": _LIFECYCLE,
    "session.reopened": _LIFECYCLE,
    "session.held": ({"reason": _text}, {}),
    "session.released": ({}, {"reason": _text}),
    "session.restored": (
        {"created_at": _iso_time, "updated_at": _iso_time, "usage": _usage, "turns": _amount, "started": _flag},
        {},
    ),
    "session.erased": _ERASURE,
    "event.redacted": (_ERASURE[0], _ERASURE[1] | {"seq": _earlier, "by": _text}),
    "retention.set": ({}, dict.fromkeys(Retention.__dataclass_fields__, _any)),
    "message.added": (_MESSAGE_NEEDS, _MESSAGE_MAY | {"rejected": _flag}),
    "message.queued": (
        {"message": _message, "run": _name, "options": _options},
        {"agent": _text, "metadata": _object, "on_busy": _one_of("enqueue", "reject", "interrupt")},
    ),
    "run.dropped": ({}, {"error": _error}),
    "summary.added": (
        {"message": _message, "sections": _list_of(_section), "covers": _covers, "usage": _usage},
        {"model": _text},
    ),
    "state.set": ({"name": _name, "value": _any}, {}),
    "state.deleted": ({"name": _name}, {}),
    "fact.added": _FACT,
    "fact.updated": _FACT,
    "fact.removed": ({"id": _name}, {}),
    "view.cleared": ({}, {}),
    "view.rewound": ({"to": _earlier, "ranges": _ranges, "state": _state_refs}, {"active": _text}),
    "view.restored": ({"state": _state, "dropped": _list_of(_name)}, _NAMED | {"active": _text}),
    "view.pruned": _CUT,
    "view.compacted": _CUT,
    "view.unpruned": ({"of": _earlier, "ranges": _ranges}, {}),
    "turn.started": ({"options": _options}, {"agent": _or_null(_text), "question": _earlier, "metadata": _object}),
    "turn.finished": _TURN_END,
    "turn.failed": _TURN_END,
    "turn.cancelled": _TURN_END,
    "turn.interrupted": _TURN_END,
    "turn.waiting": ({}, {"reason": _text}),
    "turn.resumed": ({}, {}),
    "turn.reopened": ({}, {"max_steps": _amount}),
    "turn.parked": ({}, {}),
    "approval.requested": (_CALL, {"reason": _text, "payload": _any, "expires_at": _time, "interrupt": _flag}),
    "approval.decided": (
        {"call_id": _text, "approved": _flag},
        {"reason": _text, "arguments": _object, "answer": _any, "expired": _flag},
    ),
    "model.called": (
        {"step": _amount, "provider": _text, "model": _text, "from": _amount, "upto": _earlier, "context": _digest},
        {"tokens": _amount, "pinned": _list_of(_earlier), "shortened": _amount},
    ),
    "model.replied": (
        {"message": _message, "usage": _usage, "stop_reason": _text, "provider": _text, "model": _text},
        {"response_id": _text, "aside": _flag, "rejected": _text},
    ),
    "reply.edited": ({"of": _earlier, "call_id": _text, "message": _message}, {"aside": _flag}),
    "model.interrupted": ({}, {}),
    "tool.called": (_CALL, {}),
    "tool.returned": (
        {"call_id": _text, "name": _text, "message": _tool_message},
        {"usage": _usage, "session": _or_null(_text), "whole": _digest, "handoff": _text}
        | dict.fromkeys(("effect", "unknown", "turned_back", "exit"), _flag),
    ),
    "agent.started": (
        {"agent": _or_null(_text), "path": _path},
        {"from": _or_null(_text), "active": _text, "branches": _list_of(_path), "schema": _object},
    ),
    "agent.finished": ({"path": _path}, {}),
    "agent.failed": ({"path": _path, "at": _path, "error": _error}, {}),
    "agent.assigned": ({"agent": _or_null(_text)}, {}),
    "loop.ended": ({"path": _path, "iterations": _amount, "reason": _text}, {}),
}
# What is left of a payload that was erased may also hold these.
_ERASED: dict[str, Rule] = {"tokens": _amount, "role": _one_of(*ROLES), "rejected": _flag}
_TURN_TYPES = frozenset(
    type
    for type in SESSION_EVENTS
    if type.startswith(("turn.", "model.", "tool.", "agent.", "loop.")) and type != "agent.assigned"
) | {"approval.requested", "reply.edited", "message.queued", "run.dropped"}  # they belong to a run
_STATE_TYPES = ("state.set", "view.restored")
_NAMED_EVENTS = {  # the types of events that `of` may name
    "reply.edited": ("model.replied", "reply.edited"),
    "view.unpruned": ("view.pruned", "view.compacted"),
}


def fault_of(event: Event) -> str | None:
    """Return why this is no event that holdfast writes to the log of a session; None if it is one.

    Raises SchemaTooNew for a version that this holdfast does not know.
    """
    if event.type not in SESSION_EVENTS:
        return "it belongs to no session"
    if type(event.v) is not int or event.v < 1:
        return "its version is no version"
    if event.v > VERSIONS[event.type]:
        text = f"event {event.seq} is {event.type} version {event.v}, this holdfast knows {VERSIONS[event.type]}"
        raise SchemaTooNew(f"{text}: upgrade it")
    if not _time(event.at, event.seq):
        return "its time is no time"
    for name in ("run", "author", "actor"):
        if not _or_null(_name)(getattr(event, name), event.seq):
            return f"its {name} is no name"
    if not _or_null(_path)(event.branch, event.seq):
        return "its branch is no path"
    if event.run is None and event.type in _TURN_TYPES:
        return "it belongs to no run"
    data: Any = event.data
    if type(data) is not dict:
        return "its payload is no object"
    needs, may = SESSION_EVENTS[event.type]
    if event.erased:
        return _find_fault(data, {}, needs | may | _ERASED, event.seq)
    fault = _find_fault(data, needs, may, event.seq)
    if fault is None and event.type == "message.added" and not _has_parts(data):
        return "a message has either a text or parts"
    if fault is None and event.type == "retention.set" and not _accepts(Retention.of, data):
        return "it is no retention"
    return fault


def find_fault(rows: Iterable[Row], blobs: Mapping[str, bytes]) -> tuple[int, str] | None:
    """Return the number of the first event of a log that holdfast would not have written, and why; None if there is
    none. `blobs` are the bytes beside the log; those that were removed are not among them."""
    events: list[Event] = []
    view = View()
    for row in rows:
        event = Event(row)
        try:
            fault = fault_of(event) or _find_bad_reference(event, events, blobs)
            if fault is None:
                view.apply(event.seq, event.type, event.run, event.data, event.branch)
                names_of(event.seq, event.type, event.data)
        except SchemaTooNew:
            raise
        except AgentError as error:  # the payload cannot be read, or the event is not legal after those before it
            fault = str(error)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            fault = type(error).__name__  # what is left of an erased event lacks a field
        if fault is not None:
            return event.seq, f"event {event.seq} ({event.type}) is not one that holdfast writes: {fault}"
        events.append(event)
    return None


def _find_bad_reference(event: Event, earlier: list[Event], blobs: Mapping[str, bytes]) -> str | None:
    """Return which event or which bytes this event names that are not what it takes them for."""
    data = event.data
    if event.seq != len(earlier) + 1:
        return "its number is not the next one"
    if event.seq == 1 and event.type != "session.created":
        return "a log begins with session.created"
    if event.type == "view.rewound":
        for name, ref in data.get("state", {}).items():
            if ref is not None and not _holds_state(earlier, ref, name):
                return f"event {ref} holds no such state"
    if event.type == "turn.started" and data.get("question"):
        queued = earlier[data["question"] - 1]
        if queued.type != "message.queued" or queued.run != event.run:
            return f"event {queued.seq} is not its question"
    if event.type == "message.queued" and data.get("run", event.run) != event.run:
        return "it names another run"
    wanted = _NAMED_EVENTS.get(event.type, ())
    if wanted and not event.erased and (not data["of"] or earlier[data["of"] - 1].type not in wanted):
        return f"event {data['of']} is none that it can name"
    if event.type == "view.compacted" and earlier[-1].type != "summary.added":
        return "no summary stands before it"
    if event.type == "model.called" and data.get("context") in blobs and not _is_prompt(blobs[data["context"]]):
        return "the bytes of its prompt are no prompt"
    return None


def _holds_state(earlier: list[Event], ref: int, name: str) -> bool:
    holder = earlier[ref - 1] if ref else None
    if holder is None or holder.type not in _STATE_TYPES:
        return False
    if holder.erased:
        return True  # its value is gone, and perhaps its name
    return name == holder.data["name"] if holder.type == "state.set" else name in holder.data["state"]


def _is_prompt(data: bytes) -> bool:
    try:
        found = codec.parse(data, room=codec.WRAPPING_DEPTH)
    except ValueError:
        return False
    needs: dict[str, Rule] = {"system": _list_of(_text), "tools": _list_of(_tool), "options": _object}
    if type(found) is not dict or not _fields_hold(found, needs, {"kinds": _list_of(_text)}, 0):
        return False
    return "kinds" not in found or len(found["kinds"]) == len(found["system"])


def _tool(value: Any, seq: int) -> bool:  # noqa: ANN401
    return type(value) is list and len(value) == 3 and [type(each) for each in value] == [str, str, dict]
