"""Embedders for tests: small, deterministic, and with a meaning that a test can see through."""

from __future__ import annotations

from typing import Any

from holdfast.log.search_words import stems

MEANINGS = (
    ("migrain", "headach", "pain", "head"),
    ("cat", "pet", "kitten", "dog"),
    ("car", "vehicl", "truck", "driv"),
    ("coffe", "tea", "drink"),
    ("berlin", "home", "liv", "hous", "address"),
)


class MeaningEmbedder:
    """Texts that speak of the same thing point the same way; what it does not know points nowhere in particular."""

    def __init__(self, name: str = "meaning", extra: int = 0) -> None:
        self.name, self.extra = name, extra
        self.calls: list[list[str]] = []
        self.error: Exception | None = None

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(list(texts))
        if self.error is not None:
            raise self.error
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        found = set(stems(text))
        return [float(len(found.intersection(words))) for words in MEANINGS] + [0.01] * (1 + self.extra)


def list_keys(found: list[Any]) -> list[str]:
    return [each.key for each in found]
