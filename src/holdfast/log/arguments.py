"""Checks of arguments that sessions, memories and clients share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidArgument
from holdfast.log.identifiers import check_name

MAX_LIMIT = 2**31 - 1


def check_limit(limit: object, most: int = MAX_LIMIT) -> int:
    """Return `limit`; InvalidArgument if it is not a whole number from 0 to `most`."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidArgument(f"limit={limit!r}: use a whole number")
    if limit < 0:
        raise InvalidArgument(f"limit={limit} is negative: use 0 or more")
    if limit > most:
        raise InvalidArgument(f"limit={limit} is more than {most}: use a smaller one")
    return limit


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
