"""State values that are too large for a prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.log import codec
from holdfast.prompt.state_values import MIN_BEGINNING, shorten_value

MARK = re.compile(r"… \[shortened: \d+ bytes in all\]$")
texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.builds(
    lambda text, times: text * times, st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), st.integers(1, 500)
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(texts, inner, max_size=8),
    max_leaves=30,
)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


@given(values, st.integers(200, 3_000))
@example('"' * 5_000, 4_000)
@example("x" * 150 + "\x00" * 5_000, 400)
@example([["x" * 90_000]] * 3, 2_000)
def test_a_shortened_value_fits_and_shows_no_short_beginning(value: Any, room: int) -> None:
    """A redaction looks for the first bytes of a text, so less of a text is never shown."""
    short = shorten_value(value, room)
    assert len(codec.encode(short)) <= room
    whole = list(strings(value))
    if len(codec.encode(value)) <= room:
        assert short == value
        return
    assert any(MARK.search(text) for text in strings(short))
    for text in strings(short):
        beginning = MARK.sub("", text)
        is_beginning = len(beginning) >= MIN_BEGINNING and any(each.startswith(beginning) for each in whole)
        assert text in whole or beginning == "" or is_beginning


@pytest.mark.parametrize("levels", [10, 60])
def test_deep_values_are_shortened(levels: int) -> None:
    value: Any = "x" * 10_000
    for _ in range(levels):
        value = [value]
    short = shorten_value(value, 4_000)
    assert len(codec.encode(short)) <= 4_000
    assert next(strings(short)) == f"… [shortened: {10_002 + 2 * (levels - 8)} bytes in all]"
