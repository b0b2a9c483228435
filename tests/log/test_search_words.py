"""Words for the index: the same for every spelling of a text, and nothing a database could misread."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given

from holdfast.log.search_words import content_stems, stems, words
from tests.properties.values import texts


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


@given(texts)
def test_stems_are_plain_ascii_and_one_for_each_word(text: str) -> None:
    assert all(re.fullmatch(r"[a-z0-9_]+", stem) for stem in stems(text))
    assert len(stems(text)) == len(words(text))


@given(texts)
def test_telling_stems_are_stems_without_repeats_and_exist_if_there_are_words(text: str) -> None:
    found = content_stems(text)
    assert set(found) <= set(stems(text))
    assert len(found) == len(set(found))
    assert bool(found) == bool(words(text))


@pytest.mark.parametrize(
    "family",
    [
        "migraine migraines",
        "allergic allergy allergies",
        "like likes liked liking",
        "live lives lived living",
        "run runs running",
        "prefer prefers preferred",
        "city cities",
        "class classes",
        "headache headaches",
        "box boxes",
        "quick quickly",
    ],
)
def test_forms_of_one_word_share_a_stem(family: str) -> None:
    assert len(set(stems(family))) == 1


@pytest.mark.parametrize(
    "pair", ["his this", "gas ga", "bus bu", "thing th", "need ne", "analysis analysi", "4711s 4711"]
)
def test_short_and_odd_words_are_left_alone(pair: str) -> None:
    assert len(set(stems(pair))) == 2


def test_stop_words_count_only_if_there_are_no_other_words() -> None:
    assert content_stems("What do I like?") == ["lik"]
    assert content_stems("Who am I?") == ["who", "am", "i"]
