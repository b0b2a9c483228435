"""Words for the index: the same for every spelling of a text, and nothing a database could misread."""

from __future__ import annotations

import re
import unicodedata

from hypothesis import given

from holdfast.log.words import words
from properties.values import texts


@given(texts)
def test_words_are_plain_ascii_in_lower_case(text: str) -> None:
    assert all(re.fullmatch(r"[a-z0-9_]+", word) for word in words(text))


@given(texts)
def test_composed_and_decomposed_text_have_the_same_words(text: str) -> None:
    assert words(unicodedata.normalize("NFC", text)) == words(unicodedata.normalize("NFD", text))


@given(texts)
def test_case_does_not_matter(text: str) -> None:
    assert words(text.casefold()) == words(text)


@given(texts, texts)
def test_texts_side_by_side_have_the_words_of_both(one: str, two: str) -> None:
    assert words(f"{one} {two}") == words(one) + words(two)


@given(texts)
def test_a_text_is_found_by_each_of_its_pieces(text: str) -> None:
    found = set(words(text))
    for piece in text.split():
        assert set(words(piece)) <= found
