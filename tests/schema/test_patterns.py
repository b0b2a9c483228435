"""Patterns of JSON Schemas run in linear time and mean what they mean elsewhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.schema.patterns import BadPattern, compile_pattern

PASSWORD = r"^(?=.*[0-9])(?=.*[a-z])(?!admin|root).{4,8}$"
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # pydantic writes it for Decimal


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("b", ["abc", "b"], ["", "ac"]),
        ("^a$", ["a"], ["a\n", "ab"]),
        (r"^\d{3}-\d{4}$", ["555-1234"], ["5551234"]),
        (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", ["a@b.co"], ["a@b", "a b@c.de"]),
        (r"^\p{L}+$", ["Zoë"], ["a1"]),
        (r"\/", ["a/b"], ["ab"]),
        (PASSWORD, ["abc1", "1234a"], ["abcd", "1234", "admin1", "root12", "a1", "abcdefgh1"]),
        (DECIMAL, ["12.5", "-3", "+.5"], ["+", ".", "-.", "x"]),
        (r"^(?=[)(]a)..$", [")a", "(a"], ["aa"]),
        (r"^(?=\)a)..$", [")a"], ["(a"]),
        (r"^(?=(a|b)c)(x|[ab])c$", ["ac", "bc"], ["xc"]),
    ],
)
def test_patterns_match(pattern: str, good: list[str], bad: list[str]) -> None:
    matches = compile_pattern(pattern)
    assert [text for text in good if not matches(text)] == []
    assert [text for text in bad if matches(text)] == []


@pytest.mark.parametrize(
    "pattern",
    ["(", "a{2,1}", r"(a)\1", "(?<=a)b", "a(?=b)", "^(?=a)b|c", "^(?=a)?b", "^(?=a", r"\w{1000}", "(?=a)b"],
)
def test_what_cannot_run_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern) as caught:
        compile_pattern(pattern)
    assert "\n" not in str(caught.value)
    assert str(caught.value)


@given(st.text(alphabet="ab1().", max_size=8))
def test_a_split_pattern_means_the_same_as_for_re(text: str) -> None:
    for pattern in (r"^(?=.*a)(?!.*b1)(?:[ab1().])*$", r"^(?!a|b)(?=..).*[)a]$", r"^(?!(?:a|b)+$).+$"):
        assert compile_pattern(pattern)(text) == bool(re.search(pattern, text))


def test_a_catastrophic_pattern_ends() -> None:
    """An engine that backtracks needs more steps for each of these than there are atoms."""
    for pattern in ("^(a+)+$", "^(a|a|a|a)+$", r"^(?=(a+)+$)(\w*)*$", "(.*.*.*.*)*x"):
        assert not compile_pattern(pattern)("a" * 10_000 + "!")
