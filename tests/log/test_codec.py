"""The codec: what it takes comes back equal and of the same types, in the one spelling; the rest is refused by name."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import NotJSON
from holdfast.log import codec
from tests.properties.values import refused, texts, values


def describe_types(value: Any) -> Any:
    """A value with its types, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: describe_types(one) for key, one in value.items()}
    if isinstance(value, list):
        return [describe_types(one) for one in value]
    return type(value), repr(value)


def nest_value(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@given(values)
def test_what_is_encoded_comes_back_with_its_types(value: Any) -> None:
    assert describe_types(codec.decode(codec.encode(value))) == describe_types(value)


@given(values)
def test_reading_from_outside_gives_the_same_bytes_again(value: Any) -> None:
    data = codec.encode(value)
    assert codec.encode(codec.parse(data)) == data
    assert codec.encode(codec.parse(json.dumps(value, indent=1))) == data


@given(st.dictionaries(texts, values, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], rng: random.Random) -> None:
    items = list(value.items())
    rng.shuffle(items)
    assert codec.encode(dict(items)) == codec.encode(value)


@given(refused, st.integers(0, 3))
def test_what_is_not_json_is_refused_wherever_it_stands(value: Any, depth: int) -> None:
    with pytest.raises(NotJSON):
        codec.encode({"here": nest_value(value, depth)})


@given(st.integers(0, 80))
def test_depth_has_one_limit_for_writing_and_reading(depth: int) -> None:
    value = nest_value(1, depth)
    if depth <= codec.MAX_DEPTH:
        assert codec.parse(codec.encode(value)) == value
    else:
        with pytest.raises(NotJSON):
            codec.encode(value)
        with pytest.raises(NotJSON):
            codec.parse(json.dumps(value))


@given(st.text(max_size=60) | st.binary(max_size=60) | texts.map(lambda text: "[" + text))
@example('{"a":1,"a":2}')
@example("[NaN]")
@example("[1e999]")
@example("1" * 50)
@example("[" * 100)
@example('"\\ud800"')
@example(b"\xff")
@example('"' + '\\"' * 30)
def test_anything_from_outside_is_read_or_refused_by_name(text: str | bytes) -> None:
    try:
        value = codec.parse(text)
    except NotJSON:
        return
    assert codec.parse(codec.encode(value)) == value
