"""JSON Schemas as providers want them for structured output: closed objects, and no constraints that they refuse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Constraints that grammars do not enforce. They move into the description; the answer is validated here anyway.
_UNENFORCED = frozenset(
    (
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "default",
        "examples",
        "discriminator",
    )
)


def close_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema with every object closed and without unenforced constraints; None if an object is open by intent."""
    try:
        return _close_node(schema)
    except _OpenObject:
        return None


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether every property of every object is required, as OpenAI's strict mode asks."""
    properties = schema.get("properties", {})
    if set(properties) != set(schema.get("required", ())):
        return False
    return all(is_strict(each) for each in _child_schemas(schema))


def schema_name(schema: Mapping[str, Any]) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(schema.get("title") or "output"))[:64]


class _OpenObject(Exception):
    pass


def _close_node(schema: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in schema.items():
        if name in _UNENFORCED:
            if name not in ("examples", "discriminator"):
                notes.append(f"{name}: {value}")
        elif name in ("properties", "$defs", "definitions"):
            found[name] = {key: _close_node(each) for key, each in value.items()}
        elif name in ("anyOf", "allOf", "oneOf", "prefixItems"):
            found["anyOf" if name == "oneOf" else name] = [_close_node(each) for each in value]
        elif name == "items" and isinstance(value, Mapping):
            found[name] = _close_node(value)
        else:
            found[name] = value
    if schema.get("type") == "object" or "properties" in schema:
        if "properties" not in schema or schema.get("additionalProperties") not in (None, False):
            raise _OpenObject
        found["additionalProperties"] = False
    if notes:
        found["description"] = (
            f"{found['description']} ({', '.join(notes)})" if "description" in found else ", ".join(notes)
        )
    return found


def _child_schemas(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    found += [each for name in ("anyOf", "allOf", "prefixItems") for each in schema.get(name, ())]
    if isinstance(schema.get("items"), Mapping):
        found.append(schema["items"])
    return [each for each in found if isinstance(each, Mapping)]
