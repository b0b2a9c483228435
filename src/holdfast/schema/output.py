"""Structured output: from a pydantic model, dataclass, TypedDict or JSON Schema to a shape, from text to a value."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from holdfast.errors import BadOutput, InvalidArgument, NotJSON
from holdfast.log import codec
from holdfast.schema.signature import make_portable
from holdfast.schema.validation import compile_schema

REPAIR_PROMPT = "Your reply is not valid: {problem}. Reply again, with nothing but JSON that fits this schema: {schema}"


class OutputShape:
    """A shape that a reply must have: a JSON Schema, or a type that pydantic has a schema for."""

    schema: dict[str, Any]  # JSON Schema, as the model is sent it
    _adapter: TypeAdapter[Any] | None = None

    def __init__(self, schema: object) -> None:
        """Raises InvalidArgument if the schema cannot be used: before a model is asked."""
        if isinstance(schema, Mapping):
            self.schema = dict(schema)
            compile_schema(codec.encode(self.schema))
        else:
            self._adapter = _build_adapter(schema)
            self.schema = self._adapter.json_schema()

    @classmethod
    def from_log(cls, schema: dict[str, Any]) -> OutputShape:
        """The shape of a schema that a session keeps.

        It was checked when it was stored, perhaps by an earlier version with other rules, or it is the schema of a
        type. So it is not refused, and a session stays readable: if this version cannot use it, any JSON fits.
        """
        found = cls.__new__(cls)
        found.schema = schema
        return found

    def read(self, text: str) -> Any:  # noqa: ANN401 - of the type that the shape has
        """The value in a reply. Raises BadOutput with what is wrong with it."""
        value = self._parse(text)
        if self._adapter is not None:
            return self._convert(self._adapter, value)
        try:
            find_problem = compile_schema(codec.encode(self.schema, room=codec.WRAPPING_DEPTH))
        except InvalidArgument:  # only a schema from the log, see there
            return value
        if problem := find_problem(value):
            raise BadOutput(problem)
        return value

    def read_accepted(self, text: str) -> Any:  # noqa: ANN401 - of the type that the shape has
        """The value in a reply that `read` accepted when it came. Raises BadOutput if it is not JSON.

        A JSON Schema is not checked again: the check may have become stricter since.
        """
        value = self._parse(text)
        return value if self._adapter is None else self._convert(self._adapter, value)

    def _parse(self, text: str) -> Any:  # noqa: ANN401 - a JSON value
        try:
            return codec.parse(_strip_code_fence(text))
        except NotJSON as error:
            raise BadOutput(f"it is not JSON ({error})") from error

    def _convert(self, adapter: TypeAdapter[Any], value: object) -> Any:  # noqa: ANN401 - what the type says
        try:
            return adapter.validate_json(codec.encode(value))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the reply"
            raise BadOutput(f"{where}: {first['msg']}") from error


@lru_cache(maxsize=256)
def _build_adapter(schema: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any type
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(make_portable(schema))
        adapter.json_schema()
    except Exception as error:  # pydantic raises a family of its own for what is no type
        raise InvalidArgument(
            f"schema={schema!r} has no shape: use a pydantic model, a dataclass, a TypedDict or a JSON Schema dict"
        ) from error
    return adapter


def _strip_code_fence(text: str) -> str:
    """The JSON of a reply: models wrap it in a code fence although the request says not to."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped[stripped.index("\n") + 1 : -3].strip()
    return stripped
