"""Checks of arguments that sessions, memories, models and clients share, and the texts about misspelt names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from holdfast.errors import InvalidArgument
from holdfast.log.identifiers import check_name

Call = TypeVar("Call", bound=Callable[..., Any])

MAX_LIMIT = 2**31 - 1
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_TOO_MANY = re.compile(r"takes .*positional arguments? but")


def check_limit(limit: object, most: int = MAX_LIMIT) -> int:
    """Return `limit`; InvalidArgument if it is not a whole number from 0 to `most`."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidArgument(f"limit={limit!r}: use a whole number")
    if limit < 0:
        raise InvalidArgument(f"limit={limit} is negative: use 0 or more")
    if limit > most:
        raise InvalidArgument(f"limit={limit} is more than {most}: use a smaller one")
    return limit


def check_options(options: Mapping[str, object]) -> None:
    """Refuse options of a model, or of a call of it, that no provider takes. None leaves an option open."""
    for name, value in options.items():
        if value is not None and name in _RULES:
            check_option(name, value)


def check_option(name: str, value: object) -> None:
    """Raise InvalidArgument if an option has not the type, or not the range, that it needs."""
    is_right, advice = _RULES[name]
    if not is_right(value):
        raise InvalidArgument(f"{name}={value!r}: {advice}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_stop(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(each, str) for each in value))


_SECONDS = (_is_number, "use a number of seconds")
_COUNT = (_is_count, "use a whole number above 0")
_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "temperature": (_is_number, "use a number that is not negative, such as 0.7"),
    "max_tokens": _COUNT,
    "stop": (_is_stop, "use a text, or a list of texts"),
    "tool_choice": (lambda value: isinstance(value, str), "use 'auto', 'none', 'required' or the name of a tool"),
    "metadata": (lambda value: isinstance(value, Mapping), "use a dict"),
    "timeout": _SECONDS,
    "max_seconds": _SECONDS,
    "max_wait": _SECONDS,
    "max_retries": (lambda value: type(value) is int and value >= 0, "use a whole number; 0 means one try"),
    "max_bytes": _COUNT,
    "context_window": _COUNT,
}


def merge_state(state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return one dict from a dict or several; a later dict wins. InvalidArgument for other types and bad names."""
    if state is None:
        return {}
    merged: dict[str, Any] = {}
    for one in [state] if isinstance(state, Mapping) else state:
        if not isinstance(one, Mapping):
            raise InvalidArgument(f"state= is a dict or a list of dicts, not {type(one).__name__}")
        merged |= one
    for name in merged:
        check_name(name, "a state name")
    return merged


# -- misspelt names ----------------------------------------------------------------------------------------------------


def looks_like(name: str, known: Iterable[str]) -> bool:
    """Whether a name is most likely a misspelt known one. Near misses such as `min_tokens` and `max_tokens` are not."""
    from difflib import get_close_matches  # for names that are not known

    return bool(get_close_matches(name, list(known), n=1, cutoff=0.85))


def suggest_name(name: object, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the known name that looks like it, else all of them."""
    from difflib import get_close_matches  # for errors only

    names, given = list(known), str(name)
    close = get_close_matches(given, names, n=1) or [each for each in names if each.startswith(f"{given}_")]
    return f"did you mean {close[0]!r}?" if close else f"use {', '.join(names) or 'none'}"


def unexpected_keyword(function: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the TypeError for a keyword argument that a function does not have, as Python words it."""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}: {suggest_name(name, known)}")


def suggest_keywords(function: Call) -> Call:
    """Make the TypeError for a misspelt keyword argument name the argument that was meant. Also decorates a class.

    Python raises that error before the function begins. An error from inside the function passes unchanged.
    """
    if isinstance(function, type):
        setattr(function, "__init__", suggest_keywords(vars(function)["__init__"]))  # noqa: B010 - for a type checker
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function has it
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            at = error.__traceback__
            if at is None or at.tb_next is not None:  # raised inside the function
                raise
            problem = _explain_call(function, args, str(error))
            if problem is None:
                raise
            raise problem from None

    return cast("Call", call)


def _explain_call(function: Callable[..., Any], args: tuple[Any, ...], text: str) -> TypeError | None:
    """Return the clearer form of Python's error about the arguments of a call; None if there is none."""
    import inspect  # for errors only

    name, functions = function.__name__, [function]
    if name == "__init__":  # a class with `**options` passes them on to the class above it
        kind = type(args[0])
        name = kind.__name__
        functions = [vars(each)["__init__"] for each in kind.__mro__[:-1] if "__init__" in vars(each)]
    own = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    unexpected = _UNEXPECTED.search(text)
    if unexpected is not None:
        other = f"from_{unexpected[1]}"
        if function.__name__ == "__init__" and hasattr(type(args[0]), other):
            return TypeError(f"{name}() got an unexpected keyword argument {unexpected[1]!r}: use {name}.{other}(...)")
        every = [each for one in functions for each in inspect.signature(one).parameters.values()]
        known = [each.name for each in every if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        return unexpected_keyword(name, unexpected[1], [each for each in dict.fromkeys(known) if each != "self"])
    named = [f"{each.name}=..." for each in own if each.kind is each.KEYWORD_ONLY]
    if _TOO_MANY.search(text) and named:
        return TypeError(f"{name}() got too many positional arguments: give them by name, as in {', '.join(named[:3])}")
    return None
