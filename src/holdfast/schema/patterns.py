"""Regular expressions of JSON Schemas, matched in linear time.

A schema and the text that it is matched with may both come from strangers, and Python's `re` needs exponential time
for some patterns and holds the interpreter lock while it runs. So patterns run in the engine that pydantic has for its
own, which never backtracks. That engine has no look-around. The form that schemas do use, look-ahead at the beginning
of an anchored pattern (`^(?=.*[0-9])(?!admin).+$`), is split into several patterns without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

_LOOKAHEAD = re.compile(r"\(\?([=!])")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]|[()|]", re.DOTALL)  # possessive: no backtracking here either

Matcher = Callable[[str], bool]


class BadPattern(ValueError):
    """A pattern that cannot be matched in linear time, or is no pattern; the text says why."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Matcher:
    """A function that says whether a pattern occurs in a text. Raises BadPattern."""
    try:
        return _compile_linear(pattern)
    except BadPattern:
        parts = _split_lookaheads(pattern)
        if parts is None:
            raise
    matchers = [(_compile_linear(part), is_wanted) for part, is_wanted in parts]
    return lambda text: all(matches(text) is is_wanted for matches, is_wanted in matchers)


def _compile_linear(pattern: str) -> Matcher:
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].strip().removeprefix("SchemaError:").removeprefix("error:").strip()
        raise BadPattern(reason) from error


def _split_lookaheads(pattern: str) -> list[tuple[str, bool]] | None:
    """The patterns that together mean the same as `^(?=a)(?!b)c`, each with whether it must match.

    None if the pattern is not of that form.
    """
    if not pattern.startswith("^"):
        return None
    found: list[tuple[str, bool]] = []
    start = 1
    while opening := _LOOKAHEAD.match(pattern, start):
        end = _find_group_end(pattern, start)
        if end is None:
            return None
        found.append((f"^(?:{pattern[opening.end() : end]})", opening[1] == "="))
        start = end + 1
        if pattern[start : start + 1] in ("*", "+", "?", "{"):
            return None  # a repeated look-ahead may be absent
    if not found or _has_alternatives(pattern[start:]):
        return None
    return [*found, ("^" + pattern[start:], True)]


def _find_group_end(pattern: str, start: int) -> int | None:
    depth = 0
    for token in _TOKEN.finditer(pattern, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return token.start()
    return None


def _has_alternatives(pattern: str) -> bool:
    """Whether `|` stands outside every group: what comes before it is then only one of the alternatives."""
    depth = 0
    for token in _TOKEN.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 and token[0] == "|":
            return True
    return False
