"""Structured output: from a pydantic model, dataclass, TypedDict or JSON Schema to a shape, from text to a value."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from holdfast.errors import InvalidArgument, NotJSON
from holdfast.log import codec
from holdfast.schema.signature import portable
from holdfast.schema.validation import mismatch, refuse_malformed

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
            refuse_malformed(self.schema)
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
