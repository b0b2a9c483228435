"""Named values of a log: state, facts, memories, system prompt, metadata, title.

Each is a row `(name, seq, ref)`: from `seq` on, the name has the value held by event `ref`, or none if `ref` is None.
So the value at any past point is one look-up, a fork needs no copy, and a rewind is a few rows that point back. The
rows are a pure function of each event; a writer that must look things up first puts what it found into the event.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

NAMED_FIELDS = ("system", "title", "metadata", "work_dir", "budget")

NameRow = tuple[str, int, int | None]

_COLUMNS = ("title", "metadata", "work_dir")  # those that a list of sessions shows


def names_of(seq: int, type: str, data: dict[str, Any]) -> list[NameRow]:
    """The rows that an event adds; none for one that was erased with its names."""
    if type == "retention.set":
        return [("retention", seq, seq)]
    if type == "session.imported" or (type == "session.forked" and "unverified" in data):
        no_retention: list[NameRow] = [("retention", seq, None)]  # that of an import is a record and does not hold
        return no_retention + [(name, seq, seq) for name in NAMED_FIELDS if name in data]
    if not data:
        return []
    if type == "state.set":
        return [("state/" + data["name"], seq, seq)]
    if type == "state.deleted":
        return [("state/" + data["name"], seq, None)]
    if type in ("fact.added", "fact.updated"):
        return [("fact/" + data["id"], seq, seq)]
    if type == "fact.removed":
        return [("fact/" + data["id"], seq, None)]
    if type == "memory.stored":
        found: list[NameRow] = [(memory_name(data["app"], data["key"]), seq, seq)]
        if "expires_at" in data:  # so that those whose time has passed are found without reading the others
            found.append((expiry_name(data["expires_at"], seq), seq, seq))
        return found
    if type == "memory.ingested":
        return [("ingested/" + data["uid"], seq, seq)]
    if type == "message.queued":
        return [("run/" + data["run"], seq, seq)]
    if type in ("session.created", "session.changed", "session.forked"):
        return [(name, seq, seq) for name in NAMED_FIELDS if name in data]
    if type == "session.restored":
        return [("restored", seq, seq)]
    if type == "view.rewound":
        return [("state/" + name, seq, ref) for name, ref in sorted(data.get("state", {}).items())]
    if type == "view.restored":
        rows: list[NameRow] = [("state/" + name, seq, seq) for name in sorted(data.get("state", ()))]
        rows += [("state/" + name, seq, None) for name in sorted(data.get("dropped", ()))]
        rows += [(name, seq, seq) for name in NAMED_FIELDS if name in data]
        return rows
    return []


MEMORY_PREFIX = "memory/"  # of the names of memories


def memory_name(app: str | None, key: str) -> str:
    """The name of a memory: those of one app begin alike, and no app is written as nothing."""
    return f"{MEMORY_PREFIX}{quote(app or '', safe='')}/{key}"


def expiry_name(expires_at: int, seq: int) -> str:
    """The name under which event `seq` is found once its time has passed. It tells nothing of what it says."""
    return f"expires/{expires_at:020d}/{seq}"


def columns_of(type: str, data: dict[str, Any]) -> dict[str, Any]:
    """The columns of the session's row in the list that an event changes."""
    if type not in ("session.created", "session.changed", "session.forked", "view.restored"):
        return {}
    return {name: data[name] for name in _COLUMNS if name in data}


NAMING_TYPES = frozenset(
    (
        "state.set",
        "state.deleted",
        "fact.added",
        "fact.updated",
        "fact.removed",
        "memory.stored",
        "memory.ingested",
        "message.queued",
        "session.created",
        "session.changed",
        "session.forked",
        "session.imported",
        "retention.set",
        "session.restored",
        "view.rewound",
        "view.restored",
    )
)


def value_of(name: str, type: str, data: dict[str, Any]) -> Any:  # noqa: ANN401 - a JSON value
    """The value that an event gives to a name."""
    scope, _, rest = name.partition("/")
    if type == "state.set":
        return data["value"]
    if scope in ("fact", "run", "memory", "ingested") or name in ("retention", "restored"):
        return data
    if type == "view.restored" and scope == "state":
        return data["state"][rest]
    return data[name]
