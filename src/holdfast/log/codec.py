"""The one codec: JSON values to canonical UTF-8 bytes and back, under one policy on every store.

What `encode` accepts comes back equal and of the same types; everything else is refused before a byte is stored:
NaN and infinities, integers beyond 64 bits, keys that are not strings, lone surrogates, tuples, bytes and other
classes, nesting deeper than `MAX_DEPTH`. U+0000 is an ordinary character. `parse` reads JSON from outside and also
refuses duplicate keys.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import orjson

from holdfast.errors import LimitExceeded, NotJSON

MAX_DEPTH = 64
WRAPPING_DEPTH = 16  # levels that exports and documents may add around values
MAX_DIGITS = 32  # of one number in a JSON text from outside
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS
_INFINITY = float("inf")
# Possessive, so that a long text costs no memory per character.
_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]|-?\d[\d.eE+-]*', re.DOTALL)


def check_json(value: object, depth: int = 0) -> None:
    """Refuse what JSON cannot hold unchanged."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return  # orjson itself refuses lone surrogates
    if kind is int:
        if not _INT_MIN <= value <= _INT_MAX:  # type: ignore[operator]
            raise NotJSON("an integer beyond 64 bits is not kept exactly by JSON readers: store it as a string")
    elif kind is float:
        if value != value or value in (_INFINITY, -_INFINITY):
            raise NotJSON(f"{value} is not JSON: store None or a string instead")
    elif kind is dict or kind is list:
        if depth >= MAX_DEPTH:
            raise NotJSON(f"nested deeper than {MAX_DEPTH} levels: flatten it")
        if kind is dict:
            for key in value:  # type: ignore[attr-defined]
                if type(key) is not str:
                    raise NotJSON(f"a key of type {type(key).__name__} is not JSON: use a string")
            value = value.values()  # type: ignore[attr-defined]
        for item in value:  # type: ignore[attr-defined]
            if type(item) is not str:
                check_json(item, depth + 1)
    else:
        _reject_type(value)


def _reject_type(value: object) -> NoReturn:
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise NotJSON("bytes are not JSON: keep them in a message part, File(data=...) or Image(data=...)")
    if isinstance(value, tuple):
        raise NotJSON("a tuple would come back as a list: use a list")
    name = type(value).__name__
    if hasattr(value, "model_dump"):
        raise NotJSON(f"a {name} is a pydantic model and not JSON: store its model_dump(mode='json')")
    if hasattr(value, "isoformat"):
        raise NotJSON(f"a {name} is not JSON: store its isoformat()")
    if hasattr(value, "__dataclass_fields__"):
        raise NotJSON(f"a {name} is a dataclass and not JSON: store its dataclasses.asdict()")
    raise NotJSON(f"a {name} is not JSON: convert it to dict, list, str, int, float, bool or None")


def encode(value: object, *, room: int = 0) -> bytes:
    """Canonical bytes: sorted keys, no spaces, UTF-8. `room` is for what wraps a value that was checked before."""
    check_json(value, -room)
    try:
        return orjson.dumps(value, option=_SORTED)
    except orjson.JSONEncodeError as error:
        if "surrogate" in str(error):
            raise NotJSON("text with a lone surrogate is not valid Unicode: replace it first") from error
        raise NotJSON(f"not JSON: {error}") from error


def text_bytes(value: str, what: str, limit: int) -> bytes:
    """The UTF-8 bytes of a name or title, within its limit."""
    if type(value) is not str:
        raise NotJSON(f"{what} must be a string, not {type(value).__name__}")
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise NotJSON(f"{what} has a lone surrogate, which is not valid Unicode: replace it first") from error
    if len(data) > limit:
        raise LimitExceeded(what, size=len(data), limit=limit, hint="shorten it")
    return data


def decode(data: bytes) -> Any:  # noqa: ANN401 - a JSON value
    """The value behind canonical bytes that we wrote ourselves."""
    return orjson.loads(data)


def parse(text: str | bytes, *, room: int = 0) -> Any:  # noqa: ANN401 - a JSON value
    """Read JSON from outside, under the same policy as `encode`, before anything recursive sees it."""
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise NotJSON("not valid UTF-8") from error
    depth = 0
    for match in _STRUCTURE.finditer(text):
        token = match.group()
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH + room:
                raise NotJSON(f"nested deeper than {MAX_DEPTH} levels")
        elif token in "]}":
            depth -= 1
        elif token[0] != '"' and len(token) > MAX_DIGITS:
            raise NotJSON(f"a number of {len(token)} characters: at most {MAX_DIGITS} are read")
    try:
        value = json.loads(text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant)
    except ValueError as error:
        if isinstance(error, NotJSON):
            raise
        raise NotJSON(f"not JSON: {error}") from error
    encode(value, room=room)
    return value


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotJSON("an object names the same key twice: which one is meant?")
    return found


def _reject_constant(name: str) -> NoReturn:
    raise NotJSON(f"{name} is not JSON")
