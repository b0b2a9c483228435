"""What is left of an event whose payload is erased: its commitment, and the few numbers and names that folds need.

The chain checks by the commitment. The rest keeps the view, the usage and the names rebuildable: which call a result
answered, which name a value had. Never a text of a user, a model or a tool.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from holdfast.log import codec
from holdfast.log.chain import estimate_tokens
from holdfast.log.events import COMMITMENT_SIZE, MESSAGE_TYPES, PAYLOAD_AT, UNREADABLE, VERSIONS, Event, Row
from holdfast.log.named_values import NAMED_FIELDS

# Fields that hold no text of a person or a model.
_STRUCTURAL_FIELDS = {
    "agent.assigned": ("agent",),
    "agent.failed": ("path", "at"),
    "agent.finished": ("path",),
    "agent.started": ("agent", "path", "active", "branches"),
    "approval.decided": ("call_id", "approved"),
    "approval.requested": ("call_id", "name"),
    "event.redacted": ("seq", "erased", "tombs", "blobs"),
    "loop.ended": ("path", "iterations", "reason"),
    "message.added": ("rejected",),
    "message.queued": ("agent", "on_busy", "run"),
    "model.called": ("step", "provider", "model", "from", "upto", "pinned", "shortened"),
    "model.replied": ("usage", "stop_reason", "provider", "model", "aside"),
    "reply.edited": ("of", "call_id", "aside"),
    "retention.set": ("ttl_days", "archive_after_days", "auto_prune", "prune_strategy", "max_messages", "immutable"),
    "session.forked": ("at", "unverified"),
    "session.restored": ("usage", "turns", "started"),
    "summary.added": ("usage", "covers"),
    "tool.called": ("call_id", "name"),
    "tool.returned": ("call_id", "name", "effect", "unknown", "usage", "handoff", "exit"),
    "turn.cancelled": ("usage",),
    "turn.failed": ("usage",),
    "turn.finished": ("usage",),
    "turn.started": ("agent", "question"),
    "view.compacted": ("after", "drop", "strategy"),
    "view.pruned": ("after", "drop", "strategy"),
    "view.restored": ("active",),
    "view.rewound": ("to", "ranges", "active"),
    "view.unpruned": ("of", "ranges"),
}
_NAME_FIELDS = {
    "fact.added": ("id",),
    "fact.removed": ("id",),
    "fact.updated": ("id",),
    "memory.ingested": ("uid", "upto"),
    "state.deleted": ("name",),
    "state.set": ("name",),
    "view.rewound": ("state",),
    "view.restored": ("dropped",),
}


def kept_fields(type: str) -> frozenset[str]:
    """The fields of an event that the tombstone of a redaction keeps."""
    return frozenset((*_STRUCTURAL_FIELDS.get(type, ()), *_NAME_FIELDS.get(type, ())))


def make_tombstone(event: Event, *, names: bool) -> bytes:
    """The tombstone of an event. Without `names` the names of state and the ids of facts go as well."""
    commitment = sha256(event.body).digest() if event.body is not None else (event.tombstone or b"")[:COMMITMENT_SIZE]
    try:
        kept = _keep_fields(event, names=names)
        return commitment + (codec.encode(kept) if kept else b"")
    except UNREADABLE:  # it cannot be read, and is to go all the same
        return commitment


def tombstone_of_row(row: Row) -> bytes:
    """The tombstone of a row in an erasure of its whole log; of a type that a newer holdfast wrote, too."""
    if row.type in VERSIONS:
        return make_tombstone(Event(row), names=False)
    return sha256(row.body).digest() if row.body is not None else (row.tombstone or b"")[:COMMITMENT_SIZE]


def _keep_fields(event: Event, *, names: bool) -> dict[str, Any]:
    data = event.data
    if event.body is None:
        return data if names else _keep_structure(event)
    kept = _keep_structure(event)
    if names:
        kept |= {field: data[field] for field in _NAME_FIELDS.get(event.type, ()) if field in data}
        if event.type == "view.restored":
            kept["state"] = dict.fromkeys(data["state"])
        if event.type in ("session.created", "session.changed", "session.forked", "view.restored"):
            kept |= {field: None for field in NAMED_FIELDS if field in data}
    return kept


def _keep_structure(event: Event) -> dict[str, Any]:
    data = event.data
    found = {field: data[field] for field in _STRUCTURAL_FIELDS.get(event.type, ()) if field in data}
    role = data.get("role") or data.get("message", {}).get("role")
    if event.type in MESSAGE_TYPES and role is not None:
        found["role"] = role
    if event.type in MESSAGE_TYPES and event.body is not None:
        found["tokens"] = estimate_tokens(len(event.body) - PAYLOAD_AT)  # so that the running sum can still be checked
    elif "tokens" in data:
        found["tokens"] = data["tokens"]
    if data.get("rejected"):
        found["rejected"] = True  # why it was is the model's own text
    return found
