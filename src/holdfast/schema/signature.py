"""The JSON Schema of a function, from its hints and docstring, and the check of the arguments that a model sends.

The schema and the check come from one pydantic model, so they cannot disagree about what is allowed. Schemas are
self-contained: definitions are written out where they are used, and only recursive ones stay under `$defs`.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import docstring_parser
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from holdfast.errors import InvalidTool
from holdfast.log import codec

MAX_PROBLEMS = 10
ANY_VALUE = "Any JSON value."  # about a parameter without a type
USE_TYPES = "use str, int, float, bool, list, dict, an Enum, a dataclass, a TypedDict or a pydantic model"
MAX_SHOWN = 80  # characters of a wrong value, in an error
_ALLOWED_KINDS = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
_UNIONS = (Union, types.UnionType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A function: its description and schema for a model, and how its arguments are converted for the call."""

    description: str
    parameters: dict[str, Any]
    context_parameter: str | None  # the parameter that takes the ToolContext
    model: type[BaseModel]
    names: dict[str, str]  # parameters of the function, by field of the pydantic model
    optional: frozenset[str]  # fields that the function has a default for

    def convert_arguments(self, data: bytes) -> dict[str, Any]:
        """The arguments of the call, converted; raises pydantic's ValidationError."""
        found = self.model.model_validate_json(data)
        left_out = self.optional - found.model_fields_set
        return {name: getattr(found, field) for field, name in self.names.items() if field not in left_out}


def read_signature(function: Callable[..., Any], name: str, hidden: type) -> Signature:
    """Read the hints and the docstring of a function; a parameter of the `hidden` type is left out."""
    described = _parse_docstring(function)
    texts = {param.arg_name: param.description for param in described.params if param.description}
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    defaults: dict[str, object] = {}
    context: str | None = None
    hints = _read_hints(function, name)
    for key, parameter in _read_parameters(function, name).items():
        if parameter.kind not in _ALLOWED_KINDS:
            shown = str(parameter).partition(":")[0]
            raise InvalidTool(
                f"tool {name!r}: {shown!r} cannot be described to a model: name each argument, with no '/'"
            )
        hint = hints.get(key, Any)
        if _is_hidden(hint, hidden):
            if context is not None:
                raise InvalidTool(f"tool {name!r} takes a {hidden.__name__} twice: {context!r} and {key!r}")
            context = key
            continue
        if isinstance(parameter.default, FieldInfo):
            raise InvalidTool(f"tool {name!r}: write {key}: Annotated[..., Field(...)], with a plain default after it")
        field = f"a{len(names)}"
        names[field] = key
        extra: dict[str, Any] = {"alias": key}  # any name will do as an alias; as a field's name, not all would
        if not _field_text(hint):
            text = _bare_text(hint) or texts.get(key)
            if text or key not in hints:
                extra["description"] = text or ANY_VALUE
        if parameter.default is not parameter.empty:
            defaults[field] = parameter.default
            extra["default"] = None  # stands in: what is left out is left to the function
        fields[field] = (make_portable(hint), Field(**extra))
    model, parameters = _build_model(name, fields)
    for field, default in defaults.items():
        described_parameter = parameters["properties"][names[field]]
        try:
            described_parameter["default"] = to_jsonable_python(default)
            codec.check_json(described_parameter["default"])
        except ValueError:
            described_parameter.pop("default")  # JSON cannot hold it
    paragraphs = (described.short_description, described.long_description)
    return Signature(
        description="\n\n".join(text for text in paragraphs if text),
        parameters=parameters,
        context_parameter=context,
        model=model,
        names=names,
        optional=frozenset(defaults),
    )


def _read_parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    try:
        found = dict(inspect.signature(function).parameters)
    except ValueError as error:
        raise InvalidTool(f"tool {name!r} does not tell its parameters: wrap it in a function of your own") from error
    if is_unbound(function):
        del found["self"]
    return found


def is_unbound(function: Callable[..., Any]) -> bool:
    """Whether this is a method read from its class, not bound to an object."""
    return inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), None) == "self"


def _read_hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target: Any = function
    while isinstance(target, partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise InvalidTool(f"tool {name!r}: {error}: the types in its hints must be known at module level") from error
    except TypeError as error:
        raise InvalidTool(f"tool {name!r}: its hints cannot be read: {error}") from error


def _parse_docstring(function: Callable[..., Any]) -> docstring_parser.Docstring:
    text = inspect.getdoc(function) or ""
    try:
        return docstring_parser.parse(text)
    except docstring_parser.ParseError:
        found = docstring_parser.Docstring()
        found.short_description = text
        return found


def _is_hidden(hint: Any, hidden: type) -> bool:  # noqa: ANN401 - hints have no common type
    if get_origin(hint) is Annotated:
        return _is_hidden(get_args(hint)[0], hidden)
    return hint is hidden or (get_origin(hint) in _UNIONS and hidden in get_args(hint))


def _metadata(hint: Any) -> Iterable[Any]:  # noqa: ANN401
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _field_text(hint: Any) -> str | None:  # noqa: ANN401
    texts = [item.description for item in _metadata(hint) if isinstance(item, FieldInfo)]
    return next((text for text in texts if text), None)


def _bare_text(hint: Any) -> str | None:  # noqa: ANN401
    texts = [item if isinstance(item, str) else getattr(item, "documentation", None) for item in _metadata(hint)]
    return next((text for text in texts if isinstance(text, str)), None)


def make_portable(hint: Any) -> Any:  # noqa: ANN401
    """The same hint, with each `typing.TypedDict` in a form that pydantic reads also before Python 3.12."""
    if sys.version_info >= (3, 12):
        return hint
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(make_portable(arguments[0]), *arguments[1:])]
    if origin in _UNIONS:
        return Union[tuple(make_portable(item) for item in arguments)]  # noqa: UP007 - made from parts
    if origin in (list, dict, set, frozenset, tuple):
        return origin[tuple(make_portable(item) for item in arguments)]
    if origin in (typing.Required, typing.NotRequired):
        return origin[make_portable(arguments[0])]
    if not typing.is_typeddict(hint) or type(hint).__module__ != "typing":
        return hint
    keys: dict[str, Any] = {}
    for key, item in get_type_hints(hint, include_extras=True).items():
        if get_origin(item) not in (typing.Required, typing.NotRequired):
            item = (typing.Required if key in hint.__required_keys__ else typing.NotRequired)[item]
        keys[key] = make_portable(item)
    make: Any = typing_extensions.TypedDict
    found = make(hint.__name__, keys)
    found.__doc__ = hint.__doc__
    return found


def _build_model(name: str, fields: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        return model, inline_definitions(model.model_json_schema())
    except (PydanticUserError, TypeError) as error:
        raise InvalidTool(f"tool {name!r}: {_find_bad_field(fields) or error}") from error


def _find_bad_field(fields: dict[str, Any]) -> str | None:
    for hint, field in fields.values():
        try:
            TypeAdapter(hint).json_schema()
        except PydanticUserError:
            name = hint.__qualname__ if isinstance(hint, type) else str(hint)
            return f"the type of {field.alias!r}, {name}, cannot be described to a model: {USE_TYPES}"
    return None


def inline_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without titles, strict about unknown keys, with definitions written out where they are used."""
    definitions = schema.pop("$defs", {})
    kept: dict[str, Any] = {}

    def walk(node: Any, inside: tuple[str, ...]) -> Any:  # noqa: ANN401
        if isinstance(node, list):
            return [walk(item, inside) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve_ref(node, inside)
        found: dict[str, Any] = {}
        for key, value in node.items():
            if key in ("properties", "patternProperties"):
                found[key] = {name: walk(item, inside) for name, item in value.items()}
            elif key in _NESTED:
                found[key] = walk(value, inside)
            elif key not in ("title", "discriminator"):  # a discriminator points at definitions that move
                found[key] = value
        if "properties" in found:
            found.setdefault("additionalProperties", False)
        return found

    def resolve_ref(node: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
        name = node["$ref"].rpartition("/")[2]
        rest = {key: value for key, value in node.items() if key not in ("$ref", "title")}
        if name in inside or name in kept:
            if name not in kept:
                kept[name] = None  # claimed, so that the definition can point at itself
                kept[name] = walk(definitions[name], (name,))
            return {"$ref": f"#/$defs/{name}", **rest}
        found = walk(definitions[name], (*inside, name))
        # A definition that turned out to contain itself is referred to, here as in its own body.
        return {"$ref": f"#/$defs/{name}", **rest} if name in kept else {**found, **rest}

    found: dict[str, Any] = walk(schema, ())
    found.setdefault("properties", {})
    return {**found, "$defs": kept} if kept else found


_NESTED = {
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "additionalProperties",
    "propertyNames",
    "not",
    "contains",
}


def describe_problems(error: ValidationError, arguments: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """The problems of the arguments, one line each, with the place and what is allowed there."""
    found = []
    for item in error.errors(include_url=False):
        place, reading = _locate_problem(item["loc"], arguments, is_missing=item["type"] == "missing")
        if item["type"] == "missing":
            found.append(f"{place}{reading} is missing")
        elif item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
            found.append(f"there is no argument {place}; the arguments are: {', '.join(known) or 'none'}")
        elif item["type"] == "extra_forbidden":
            found.append(f"{place} is not known there")
        else:
            shown = repr(item["input"])
            shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "…"
            found.append(f"{place}{reading}: {item['msg']}, not {shown}")
    if len(found) > MAX_PROBLEMS:
        found[MAX_PROBLEMS:] = [f"and {len(found) - MAX_PROBLEMS} more"]
    return found


def _locate_problem(loc: tuple[int | str, ...], arguments: object, *, is_missing: bool) -> tuple[str, str]:
    """The place in the arguments, and the member of a union that was tried there."""
    place, reading, value = "", "", arguments
    for number, step in enumerate(loc):
        is_absent = is_missing and number == len(loc) - 1
        if isinstance(value, Mapping) and (step in value or is_absent):
            place, value = f"{place}.{step}" if place else str(step), value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            place, value = f"{place}[{step}]", value[step] if step < len(value) else None
        else:
            reading = f" (as {step})"
    return repr(place), reading
