"""Vectors from spelling alone, for those who have no embedder: words and pieces of words, hashed into a few hundred
numbers. They find what is written alike, misspellings and compounds included, and know nothing of meaning."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from holdfast.log.search_words import telling

NAME = "hashed n-grams"
DIMENSION = 256
PIECE = 3
WHOLE = 2.0  # what a whole word counts, beside its pieces


def hashed(texts: Sequence[str]) -> list[list[float]]:
    """A vector for each text."""
    return [_hashed(text) for text in texts]


def _hashed(text: str) -> list[float]:
    found = [0.0] * DIMENSION
    for word in telling(text):
        framed = f"^{word}$"
        _count(found, framed, WHOLE)
        for start in range(len(framed) - PIECE + 1):
            _count(found, framed[start : start + PIECE], 1.0)
    return found


def _count(found: list[float], piece: str, weight: float) -> None:
    place = crc32(piece.encode())
    # One bit decides the sign, so that what meets by chance cancels out on average.
    found[place % DIMENSION] += weight if place & 0x8000_0000 else -weight
