"""Memories by the words they have in common with a query, the rare ones counting most.

Which memories hold a word is asked of the store's index. The rank is computed here, so that every store gives the same
order; in an encrypted store, which has no index, the words are made from the texts, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log as ln
from typing import TYPE_CHECKING, Any

from holdfast.errors import SearchUnavailable
from holdfast.log.search_words import content_stems, stems
from holdfast.memory.service import Hit, searchable_text

if TYPE_CHECKING:
    from holdfast.memory.memory_log import MemoryLog
    from holdfast.stores.base import Log

MAX_WORDS = 64  # of a query that are looked for
MIN_RELATIVE_SCORE = 0.5  # how near to the best a memory must come to be put before a model


class KeywordMemoryService:
    """Finds memories by their words: no model, no vectors, nothing to set up."""

    def describe(self) -> str:
        return "keywords: words in common, without their endings, the rare ones counting most"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()!r})"

    def extras(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        return [{} for _ in texts]

    def ranked(self, shelf: MemoryLog, log: Log | None, live: Mapping[str, int], query: str) -> list[Hit]:
        return [] if log is None else rank_by_words(shelf, log, live, query)


def rank_by_words(shelf: MemoryLog, log: Log, live: Mapping[str, int], query: str) -> list[Hit]:
    """The living memories that share a telling word with the query, best first, the newer one of equals."""
    places = memories_by_word(shelf, log, live, content_stems(query)[:MAX_WORDS])
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
    return [Hit(seq, score, seq in rare and score >= MIN_RELATIVE_SCORE * best, score / whole) for score, seq in found]


def memories_by_word(shelf: MemoryLog, log: Log, live: Mapping[str, int], words: Sequence[str]) -> dict[str, set[int]]:
    """Of each word the living memories that hold it."""
    if not words:
        return {}
    seqs = set(live.values())
    try:
        return {word: seqs.intersection(found) for word, found in shelf.store.word_matches(log, words).items()}
    except SearchUnavailable:
        places: dict[str, set[int]] = {word: set() for word in words}
        for event in shelf.read(log, sorted(seqs)):
            for word in places.keys() & set(stems(searchable_text(event.data))):
                places[word].add(event.seq)
        return places


def find_duplicate(shelf: MemoryLog, log: Log, live: Mapping[str, int], text: str) -> str | None:
    """The key of a living memory that says the same in nearly the same words: other endings, order or small words."""
    words = content_stems(text)
    places = memories_by_word(shelf, log, live, words[:MAX_WORDS])
    shared = set.intersection(*places.values()) if places else set()
    for event in shelf.read(log, sorted(shared, reverse=True)[:MAX_ALIKE]):
        if set(content_stems(event.data["text"])) == set(words) and shelf.is_current(event):
            key: str = event.data["key"]
            return key
    return None


MAX_ALIKE = 32  # memories that are compared word by word
