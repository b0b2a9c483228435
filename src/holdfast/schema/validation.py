"""JSON Schema, checked by `jsonschema`: whether a schema can be used, and whether a value fits it.

Both may come from strangers: a server takes schemas from its callers, and values come from models. So nothing is ever
fetched for a `$ref`, patterns run in linear time, and one check of a value costs a bounded number of steps.
`jsonschema` takes 0.1 s to import; only a schema that is checked imports it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time
from fractions import Fraction
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument
from holdfast.log import codec
from holdfast.schema.patterns import compile_pattern
from holdfast.schema.schema_rules import path_text, refuse_malformed, shorten

if TYPE_CHECKING:
    from jsonschema import FormatChecker
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

MAX_STEPS = 200_000  # keywords checked for one value; the slowest of them take 4 s
STEPS_PER_CHARACTER = 2  # of a text that a pattern is matched with
MAX_ERRORS = 100  # compared, to find the one that says most

# Those that jsonschema checks without another package. Named one by one: what is checked must not depend on which
# packages happen to be installed.
_FORMATS = ("date", "email", "idn-email", "ipv4", "ipv6", "regex", "uuid")
_OFFSET = r"(?:[Zz]|[+-]\d{2}:\d{2})"
_TIME = re.compile(rf"\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d{{1,9}})?{_OFFSET}", re.ASCII)
_DATE_TIME = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}[Tt ]{_TIME.pattern}", re.ASCII)

_PROBLEMS = {
    "type": "is not of type {}",
    "enum": "is not one of {}",
    "const": "is not {}",
    "minimum": "is less than {}",
    "maximum": "is more than {}",
    "exclusiveMinimum": "is not more than {}",
    "exclusiveMaximum": "is not less than {}",
    "multipleOf": "is not a multiple of {}",
    "minLength": "has fewer than {} characters",
    "maxLength": "has more than {} characters",
    "pattern": "does not match the pattern {}",
    "format": "is not a valid {}",
    "minItems": "has fewer than {} items",
    "maxItems": "has more than {} items",
    "uniqueItems": "has the same item twice",
    "contains": "has no item that fits {}",
    "minProperties": "has fewer than {} properties",
    "maxProperties": "has more than {} properties",
    "unevaluatedItems": "has items that the schema does not allow",
    "not": "fits a schema that it must not fit: {}",
}
_steps = threading.local()


class _TooManySteps(Exception):
    pass


@lru_cache(maxsize=256)
def compile_schema(encoded: bytes) -> Callable[[object], str | None]:
    """A function that says why a value does not fit a schema, or None; the schema is given as canonical bytes.

    Raises InvalidArgument if any part of the schema is not as a schema must be: before a model is asked, not after it
    answered.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = codec.decode(encoded)
    base: Any = validator_for(schema, default=Draft202012Validator)
    if not set(schema) & set(base.VALIDATORS):
        raise InvalidArgument("schema= is a JSON Schema, such as {'type': 'object', 'properties': {...}}")
    try:
        refuse_malformed(schema, base)
    except RecursionError:
        raise InvalidArgument("schema is not a JSON Schema: it is nested too deeply") from None
    validator = _limit_steps(base)(schema, registry=Registry(), format_checker=_format_checker())
    return lambda value: _find_problem(validator, value)


def _find_problem(validator: Validator, value: object) -> str | None:
    from jsonschema.exceptions import best_match

    _steps.left = MAX_STEPS
    try:
        error = best_match(islice(validator.iter_errors(value), MAX_ERRORS))
    except _TooManySteps:
        return "the reply takes too many steps to check: send a shorter one"
    except RecursionError:
        return "the reply is nested too deeply to be checked"
    return None if error is None else _describe_error(error)


def _describe_error(error: ValidationError) -> str:
    """Where the problem is and which, short, without quoting the value: a model is sent this."""
    where = path_text("the reply", error.absolute_path)
    word, wanted, value = str(error.validator), error.validator_value, error.instance
    if error.validator is None:  # the schema `false`
        return f"{where} is not allowed"
    if word == "anyOf" or (word == "oneOf" and error.context):
        return f"{where} fits none of the {len(wanted)} alternatives"
    if word == "oneOf":
        return f"{where} fits more than one of the {len(wanted)} alternatives"
    if word == "required" and isinstance(wanted, list):
        return f"{where} lacks {', '.join(repr(name) for name in wanted if name not in value)}"
    if word in _PROBLEMS:
        return f"{where} {_PROBLEMS[word].format(shorten(wanted))}"
    return f"{where}: {shorten(error.message)}"


# -- the keywords ------------------------------------------------------------------------------------------------------


@cache
def _limit_steps(base: Any) -> Any:  # noqa: ANN401 - classes that jsonschema makes
    """The validator of a draft, with a limit to the steps of one check, and with patterns that run in linear time."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    newest = Draft202012Validator.VALIDATORS
    own = {
        "additionalProperties": _check_additional_properties,
        "multipleOf": _check_multiple,
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "properties": _check_properties,
    }
    # A keyword that an old draft reads in its own way stays as it is: `properties` of draft 3 is one.
    replaced = {name: check for name, check in own.items() if base.VALIDATORS.get(name) is newest[name]}
    checks = {**base.VALIDATORS, **replaced}
    return extend(base, {name: _count_steps(check) for name, check in checks.items()})


def _count_steps(check: Callable[..., Any]) -> Callable[..., Any]:
    def run(validator: Validator, wanted: object, value: object, schema: object) -> Any:  # noqa: ANN401 - its errors
        _spend(1)
        return check(validator, wanted, value, schema)

    return run


def _spend(steps: int) -> None:
    _steps.left -= steps
    if _steps.left < 0:
        raise _TooManySteps


def _matches(pattern: str, text: str) -> bool:
    _spend(len(text) * STEPS_PER_CHARACTER)
    return compile_pattern(pattern)(text)


def _check_pattern(_: Validator, pattern: str, value: object, __: object) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError("does not match the pattern")


def _check_properties(
    validator: Validator, schemas: Mapping[str, Any], value: object, _: object
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for name, schema in schemas.items():
            if name in value:
                yield from _check_property(validator, name, value[name], schema)


def _check_pattern_properties(
    validator: Validator, patterns: Mapping[str, Any], value: object, _: object
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, schema in patterns.items():
            for name, item in value.items():
                if _matches(pattern, name):
                    yield from _check_property(validator, name, item, schema)


def _check_additional_properties(
    validator: Validator, wanted: object, value: object, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            if name not in named and not any(_matches(pattern, name) for pattern in patterns):
                yield from _check_property(validator, name, item, wanted)


def _check_property(validator: Any, name: str, value: object, schema: object) -> Iterator[ValidationError]:  # noqa: ANN401 - `descend` is not in the protocol
    from jsonschema.exceptions import ValidationError

    if schema is False:  # `descend` would not say which property
        yield ValidationError("is not allowed", validator=None, path=[name])
    else:
        yield from validator.descend(value, schema, path=name, schema_path=name)


def _check_multiple(validator: Validator, divisor: float, value: object, _: object) -> Iterator[ValidationError]:
    """As people count: 19.99 is a multiple of 0.01, although the quotient of the two floats is not whole."""
    from jsonschema.exceptions import ValidationError

    if validator.is_type(value, "number") and (Fraction(repr(value)) / Fraction(repr(divisor))).denominator != 1:
        yield ValidationError("is not a multiple")


@cache
def _format_checker() -> FormatChecker:
    from jsonschema import FormatChecker

    found = FormatChecker(formats=_FORMATS)
    found.checks("date-time", raises=ValueError)(_is_date_time)
    found.checks("time", raises=ValueError)(_is_time)
    return found


def _is_date_time(value: object) -> bool:
    """RFC 3339: with an offset. Raises ValueError for a day that does not exist."""
    return not isinstance(value, str) or bool(_DATE_TIME.fullmatch(value) and datetime.fromisoformat(value.upper()))


def _is_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return bool(_TIME.fullmatch(value)) and time.fromisoformat(value.upper()) is not None
