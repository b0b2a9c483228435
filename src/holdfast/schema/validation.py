"""The common part of JSON Schema: whether a schema can be used, and whether a value fits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import InvalidArgument

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def mismatch(value: object, schema: Any, root: Mapping[str, Any], where: str) -> str | None:  # noqa: ANN401 - JSON Schema
    """What keeps a value from fitting the common part of JSON Schema; None if it fits."""
    if isinstance(schema, bool):
        return None if schema else f"{where} is not allowed"
    if "$ref" in schema:
        return mismatch(value, _target(schema["$ref"], root), root, where)
    for word in ("anyOf", "oneOf"):
        if word in schema and all(mismatch(value, each, root, where) for each in schema[word]):
            return f"{where} fits none of the {len(schema[word])} alternatives"
    for each in schema.get("allOf", ()):
        if problem := mismatch(value, each, root, where):
            return problem
    wanted = schema.get("type")
    if wanted is not None and not _is_type(value, [wanted] if isinstance(wanted, str) else wanted):
        return f"{where} is not of type {wanted}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        return f"{where} is not {schema['const']!r}"
    if isinstance(value, dict):
        return _object_mismatch(value, schema, root, where)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            if problem := mismatch(item, schema["items"], root, f"{where}[{index}]"):
                return problem
    return None


def _is_type(value: object, names: list[str]) -> bool:
    is_number = isinstance(value, bool)
    return any(
        isinstance(value, _TYPES.get(name, ())) and not (is_number and name in ("integer", "number")) for name in names
    )


def _object_mismatch(value: dict[str, Any], schema: Any, root: Mapping[str, Any], where: str) -> str | None:  # noqa: ANN401
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where} lacks {name!r}"
    for name, item in value.items():
        inner: Any = properties.get(name, schema.get("additionalProperties", True))
        if problem := mismatch(item, inner, root, f"{where}.{name}"):
            return problem
    return None


def refuse_malformed(schema: Mapping[str, Any]) -> None:
    """Raise if any part of a schema is not as a schema must be: before a model is asked, not after it has answered."""
    waiting: list[tuple[str, Any]] = [("schema", schema)]
    while waiting:
        where, part = waiting.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise InvalidArgument(f"{where} is not a JSON Schema: use an object, true or false")
        problem = _problem(part, schema)
        if problem:
            raise InvalidArgument(f"{where} is not a JSON Schema: {problem}")
        waiting += [(f"{where}.{name}", inner) for name, inner in _parts(part)]


def _problem(part: Mapping[str, Any], root: Mapping[str, Any]) -> str | None:
    for word in ("properties", "$defs", "definitions"):
        if word in part and not isinstance(part[word], Mapping):
            return f"{word} is an object of schemas"
    for word in ("anyOf", "oneOf", "allOf"):
        if word in part and not (isinstance(part[word], list) and part[word]):
            return f"{word} is a list of schemas"
    if "enum" in part and not isinstance(part["enum"], list):
        return "enum is a list"
    for word in ("required", "type"):
        names = part.get(word, [])
        names = [names] if word == "type" and isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return f"{word} is a list of names"
    if unknown := [name for name in _listed(part.get("type")) if name not in _TYPES]:
        return f"there is no type {unknown[0]!r}"
    return _loop(part, root) if "$ref" in part else None


def _listed(names: Any) -> list[Any]:  # noqa: ANN401 - what the schema has there
    return [] if names is None else names if isinstance(names, list) else [names]


def _loop(part: Mapping[str, Any], root: Mapping[str, Any]) -> str | None:
    """References that lead nowhere, or back to themselves without a value in between."""
    seen: set[str] = set()
    while "$ref" in part:
        ref = part["$ref"]
        if not isinstance(ref, str) or not ref.startswith("#"):
            return "$ref names a part of the same schema, such as '#/$defs/item'"
        if ref in seen:
            return f"$ref {ref!r} leads back to itself"
        seen.add(ref)
        try:
            part = _target(ref, root)
        except KeyError:
            return f"$ref {ref!r} leads nowhere"
        if isinstance(part, bool):
            return None
        if not isinstance(part, Mapping):
            return f"$ref {ref!r} leads to no schema"
    return None


def _target(ref: str, root: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON Schema
    target: Any = root
    for step in ref.removeprefix("#").removeprefix("/").split("/") if ref != "#" else ():
        if not isinstance(target, Mapping):
            raise KeyError(step)
        target = target[step.replace("~1", "/").replace("~0", "~")]
    return target


def _parts(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for word in ("properties", "$defs", "definitions"):
        for name, inner in part.get(word, {}).items():
            yield f"{word}.{name}", inner
    for word in ("anyOf", "oneOf", "allOf"):
        for index, inner in enumerate(part.get(word, ())):
            yield f"{word}[{index}]", inner
    for word in ("items", "additionalProperties"):
        if word in part:
            yield word, part[word]
