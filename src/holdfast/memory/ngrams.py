"""Vectors from spelling alone, for those who have no embedder: words and pieces of words, hashed into a few hundred
numbers. They find what is written alike, misspellings and compounds included, and know nothing of meaning."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from holdfast.log.search_words import content_stems

NAME = "hashed n-grams"
DIMENSION = 256
NGRAM_SIZE = 3
WORD_WEIGHT = 2.0  # what a whole word counts, beside its pieces


def embed_texts(texts: Sequence[str]) -> list[list[float]]:
    """A vector for each text."""
    return [_embed_text(text) for text in texts]


def _embed_text(text: str) -> list[float]:
    found = [0.0] * DIMENSION
    for word in content_stems(text):
        framed = f"^{word}$"
        _add_feature(found, framed, WORD_WEIGHT)
        for start in range(len(framed) - NGRAM_SIZE + 1):
            _add_feature(found, framed[start : start + NGRAM_SIZE], 1.0)
    return found


def _add_feature(found: list[float], piece: str, weight: float) -> None:
    place = crc32(piece.encode())
    # One bit decides the sign, so that what meets by chance cancels out on average.
    found[place % DIMENSION] += weight if place & 0x8000_0000 else -weight
