"""Structured output: from a pydantic model, dataclass, TypedDict or JSON Schema to a shape, from text to a value."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from holdfast.errors import InvalidArgument, NotJSON
from holdfast.log import codec
from holdfast.loop.schema import portable

REPAIR = "Your reply is not valid: {problem}. Reply again, with nothing but JSON that fits this schema: {schema}"


class BadOutput(Exception):
    """A reply that is not of the asked shape; the text tells the model why."""


class OutputShape:
    """A shape that a reply must have."""

    def __init__(self, schema: object) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        if isinstance(schema, Mapping):
            self.schema: dict[str, Any] = dict(schema)
            codec.encode(self.schema)
            if not {"type", "properties", "$ref", "anyOf", "oneOf", "enum", "items"} & set(self.schema):
                raise InvalidArgument("schema= is a JSON Schema, such as {'type': 'object', 'properties': {...}}")
        else:
            self._adapter = _adapter(schema)
            self.schema = self._adapter.json_schema()

    def read(self, text: str) -> Any:  # noqa: ANN401 - what the shape says
        """The value in a reply; BadOutput says what is wrong with it."""
        try:
            value = codec.parse(_json_in(text))
        except NotJSON as error:
            raise BadOutput(f"it is not JSON ({error})") from error
        if self._adapter is None:
            problem = mismatch(value, self.schema, self.schema, "the reply")
            if problem:
                raise BadOutput(problem)
            return value
        try:
            return self._adapter.validate_json(codec.encode(value))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the reply"
            raise BadOutput(f"{where}: {first['msg']}") from error


@lru_cache(maxsize=256)
def _adapter(schema: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any type
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(portable(schema))
        adapter.json_schema()
    except Exception as error:  # pydantic raises a family of its own for what is no type
        raise InvalidArgument(
            f"schema={schema!r} has no shape: use a pydantic model, a dataclass, a TypedDict or a JSON Schema dict"
        ) from error
    return adapter


def _json_in(text: str) -> str:
    """The JSON of a reply: models like to wrap it in a fence although they were told not to."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped[stripped.index("\n") + 1 : -3].strip()
    return stripped


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
        target: Any = root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target.get(step, {})
        return mismatch(value, target, root, where)
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
