"""Memories by the words they have in common with a query, the rare ones counting most.

Which memories hold a word is asked of the store's index. The rank is computed here, so that every store gives the same
order; in an encrypted store, which has no index, the words are made from the texts, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log as ln
from typing import TYPE_CHECKING, Any

from holdfast.errors import SearchUnavailable
from holdfast.log.search_words import stems, telling
from holdfast.memory.service import Hit, said

if TYPE_CHECKING:
    from holdfast.memory.memory_log import Shelf
    from holdfast.stores.base import Log

MAX_WORDS = 64  # of a query that are looked for
CLOSE = 0.5  # how near to the best a memory must come to be put before a model


class KeywordMemoryService:
    """Finds memories by their words: no model, no vectors, nothing to set up."""

    def describe(self) -> str:
        return "keywords: words in common, without their endings, the rare ones counting most"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()!r})"

    def extras(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        return [{} for _ in texts]

    def ranked(self, shelf: Shelf, log: Log | None, live: Mapping[str, int], query: str) -> list[Hit]:
        return [] if log is None else by_words(shelf, log, live, query)


def by_words(shelf: Shelf, log: Log, live: Mapping[str, int], query: str) -> list[Hit]:
    """The living memories that share a telling word with the query, best first, the newer one of equals."""
    places = holding(shelf, log, live, telling(query)[:MAX_WORDS])
    scores: dict[int, float] = {}
    common = len(live) // 2 or 1
    rare: set[int] = set()  # memories that share a word which most others have not
    whole = 0.0
    for seqs in places.values():
        weight = ln(1 + (len(live) - len(seqs) + 0.5) / (len(seqs) + 0.5))
        whole += weight
        for seq in seqs:
            scores[seq] = scores.get(seq, 0.0) + weight
        if len(seqs) <= common:
            rare |= seqs
    found = sorted(((round(score, 6), seq) for seq, score in scores.items()), reverse=True)
    best = found[0][0] if found else 0.0
    return [Hit(seq, score, seq in rare and score >= CLOSE * best, score / whole) for score, seq in found]


def holding(shelf: Shelf, log: Log, live: Mapping[str, int], words: Sequence[str]) -> dict[str, set[int]]:
    """Of each word the living memories that hold it."""
    if not words:
        return {}
    seqs = set(live.values())
    try:
        return {word: seqs.intersection(found) for word, found in shelf.store.hits(log, words).items()}
    except SearchUnavailable:
        places: dict[str, set[int]] = {word: set() for word in words}
        for event in shelf.read(log, sorted(seqs)):
            for word in places.keys() & set(stems(said(event.data))):
                places[word].add(event.seq)
        return places


def like(shelf: Shelf, log: Log, live: Mapping[str, int], text: str) -> str | None:
    """The key of a living memory that says the same in nearly the same words: other endings, order or small words."""
    words = telling(text)
    places = holding(shelf, log, live, words[:MAX_WORDS])
    shared = set.intersection(*places.values()) if places else set()
    for event in shelf.read(log, sorted(shared, reverse=True)[:MAX_ALIKE]):
        if set(telling(event.data["text"])) == set(words) and shelf.holds(event):
            key: str = event.data["key"]
            return key
    return None


MAX_ALIKE = 32  # memories that are compared word by word
