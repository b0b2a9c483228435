"""Memories by their words and by their vectors, the two ranks fused.

A vector is kept in the event of its memory, a byte for each number, with the name of what made it: vectors of
different makers are never compared. What has none yet, because the embedder failed or is another one now, is found by
its words, and is embedded a portion at a time by later searches. The cache here is one of the log: it follows the
living events, and holds no text.
"""

from __future__ import annotations

import binascii
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import isfinite, sqrt
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import Conflict, InvalidArgument, LifecycleError, SessionNotFound
from holdfast.log.events import Draft, Event
from holdfast.memory import ngrams
from holdfast.memory.keyword import rank_by_words
from holdfast.memory.memory_log import STORED_TYPES
from holdfast.memory.service import Hit

if TYPE_CHECKING:
    from holdfast.memory.memory_log import MemoryLog
    from holdfast.stores.base import Log

Embedder = Callable[[list[str]], Sequence[Sequence[float]]]
FUSION = 3  # the constant of reciprocal rank fusion: how little the very first places count more than the next
FLOOR = 0.2  # the cosine below which a memory does not count as found
EMBED_BATCH = 64  # memories that one search embeds for those to come
MAX_DIMENSION = 16_384
MAX_CACHED = 64 << 20  # bytes of vectors in this process, over all users


class QuantizedVector(NamedTuple):
    """A vector as it is kept: whole numbers, and how long that makes it."""

    numbers: array[int]
    length: float


def quantize_vector(vector: array[float]) -> QuantizedVector:
    """A vector as it is kept: a quarter of what a search would have to read otherwise. What is lost is less than the
    third digit of a cosine."""
    largest = max(map(abs, vector))
    numbers = array("b", [round(127 * value / largest) for value in vector])
    return QuantizedVector(numbers, round(sqrt(sum(map(mul, numbers, numbers))), 3))


class HybridService:
    """Words and vectors. Without an embedder the vectors are hashed n-grams, and it says so."""

    def __init__(self, embedder: Embedder | None = None, *, name: str | None = None, floor: float = FLOOR) -> None:
        self._embed: Embedder = ngrams.embed_texts if embedder is None else embedder
        self.embedder = ngrams.NAME if embedder is None else name or _embedder_name(embedder)
        self.floor = floor
        self.failure: str | None = None  # what the embedder said when it failed last; None once it works again
        self._vectors = _VectorCache()

    def describe(self) -> str:
        how = f"vectors of {self.embedder}"
        if self._embed is ngrams.embed_texts:
            how = "hashed n-grams: spelling, not meaning (pass embedder= for meaning)"
        down = f"; the embedder failed, so words alone are used: {self.failure}" if self.failure else ""
        return f"keywords and {how}, fused by rank{down}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()!r})"

    def extras(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        vectors = self._embed_texts(list(texts))
        return [{} if vector is None else self._pack_vector(vector) for vector in vectors]

    def ranked(self, shelf: MemoryLog, log: Log | None, live: Mapping[str, int], query: str) -> list[Hit]:
        if log is None or not live:
            self._vectors.drop_vectors(shelf)
            return []
        words = rank_by_words(shelf, log, live, query)
        (asked,) = self._embed_texts([query]) if query.strip() else (None,)
        if asked is None:
            return words
        known = self._vectors.read_vectors(shelf, log, live, self.embedder)
        self._embed_missing(shelf, log, [seq for seq in live.values() if seq not in known])
        close = _closest(known, asked, self.floor)
        scores = {seq: 1 / (FUSION + rank) for rank, seq in enumerate(close, 1)}
        for rank, hit in enumerate(words, 1):
            # A word in common by chance says little; having all that the query says is as good as being the closest.
            scores[hit.seq] = scores.get(hit.seq, 0.0) + hit.query_coverage**2 / (FUSION + rank)
        fits = {hit.seq for hit in words if hit.is_relevant} | set(close)
        found = sorted(((round(score, 6), seq) for seq, score in scores.items()), reverse=True)
        return [Hit(seq, score, seq in fits) for score, seq in found]

    def _embed_texts(self, texts: list[str]) -> list[array[float] | None]:
        """A vector of length one for each text; None for all of them if the embedder failed."""
        try:
            given = self._embed(texts)
        except Exception as error:  # noqa: BLE001 - a user's code, over a network: the text must not be lost
            self.failure = f"{type(error).__name__}: {error}"[:300]
            return [None] * len(texts)
        self.failure = None
        return _normalize_vectors(given, len(texts))

    def _pack_vector(self, vector: array[float]) -> dict[str, Any]:
        kept = quantize_vector(vector)
        data = binascii.b2a_base64(kept.numbers.tobytes(), newline=False).decode()
        return {"vector": data, "length": kept.length, "embedder": self.embedder, "dimension": len(vector)}

    def _embed_missing(self, shelf: MemoryLog, log: Log, seqs: Sequence[int]) -> None:
        """Embed some of the memories that have no vector of ours, for the searches to come."""
        if not seqs:
            return
        try:
            head = shelf.store.head(log).head
        except SessionNotFound:
            return
        events = list(shelf.read(log, sorted(seqs)[:EMBED_BATCH]))
        vectors = self._embed_texts([event.data["text"] for event in events])
        drafts = []
        for event, vector in zip(events, vectors, strict=True):
            if vector is not None:
                times = {"created": event.data.get("created", event.at), "updated": event.data.get("updated", event.at)}
                drafts.append(Draft(type="memory.stored", data=event.data | times | self._pack_vector(vector)))
        try:
            if drafts:
                shelf.store.append(log, drafts, expected=head)
        except (Conflict, SessionNotFound, LifecycleError):
            pass  # another writer changed the log, perhaps these memories: a later search will do it


def _embedder_name(embedder: Embedder) -> str:
    kind = embedder if hasattr(embedder, "__qualname__") else type(embedder)
    return str(getattr(embedder, "name", None) or f"{kind.__module__}.{kind.__qualname__}")


_CONTRACT = "an embedder takes a list of texts and gives a list with one vector, a list of floats, for each"


def _normalize_vectors(given: object, count: int) -> list[array[float] | None]:
    """Vectors of length one; None for one that is nothing but zeros. InvalidArgument for what is no vector."""
    try:
        vectors = [array("f", vector) for vector in given]  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{_CONTRACT}: this one gave {type(given).__name__} ({error})") from error
    if len(vectors) != count or len({len(vector) for vector in vectors}) > 1:
        raise InvalidArgument(f"{_CONTRACT}: this one gave {len(vectors)} for {count} texts, or not all of one length")
    if vectors and not 1 <= len(vectors[0]) <= MAX_DIMENSION:
        raise InvalidArgument(f"a vector of {len(vectors[0])} numbers: use 1 to {MAX_DIMENSION}")
    found: list[array[float] | None] = []
    for vector in vectors:
        length = sqrt(sum(map(mul, vector, vector)))
        if not isfinite(length):
            raise InvalidArgument(f"{_CONTRACT}: this one gave a number that is not finite")
        found.append(array("f", [value / length for value in vector]) if length else None)
    return found


def _closest(known: Mapping[int, QuantizedVector], asked: array[float], floor: float) -> list[int]:
    """The events whose vectors point where the query's does, the closest first."""
    fitting = {seq: vector for seq, vector in known.items() if len(vector.numbers) == len(asked)}
    found = zip(_cosines(list(fitting.values()), asked), fitting, strict=True)
    ranked = sorted(((round(cosine, 4), seq) for cosine, seq in found if cosine >= floor), reverse=True)
    return [seq for _, seq in ranked]


def _cosines(vectors: Sequence[QuantizedVector], asked: array[float]) -> list[float]:
    return [total / vector.length for total, vector in zip(_dot_products(vectors, asked), vectors, strict=True)]


def _dot_products(vectors: Sequence[QuantizedVector], asked: array[float]) -> list[float]:
    numpy = _numpy()
    rows = [vector.numbers for vector in vectors]
    if numpy is not None and rows:
        matrix = numpy.frombuffer(b"".join(rows), dtype=numpy.int8).reshape(len(rows), len(asked))
        found: list[float] = (matrix.astype(numpy.float32) @ numpy.frombuffer(asked, dtype=numpy.float32)).tolist()
        return found
    places = [place for place, value in enumerate(asked) if value]
    if len(places) * 4 < len(asked):  # hashed n-grams of a short query are nearly all zeros
        values = [asked[place] for place in places]
        return [sum([value * row[place] for place, value in zip(places, values, strict=True)]) for row in rows]
    return [sum(map(mul, asked, row)) for row in rows]


@cache
def _numpy() -> Any:  # noqa: ANN401 - the module, where it is installed
    try:
        import numpy
    except ImportError:
        return None
    return numpy


class _VectorCache:
    """The vectors of the shelves that were searched last. A cache of their logs, moved forward with them."""

    def __init__(self, limit: int = MAX_CACHED) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, ...], _CachedVectors] = OrderedDict()
        self._limit = limit

    def read_vectors(
        self, shelf: MemoryLog, log: Log, live: Mapping[str, int], embedder: str
    ) -> dict[int, QuantizedVector]:
        """Return the vectors of the living memories that have one. The vectors of forgotten memories are dropped, also
        if another process forgot them: the names are read anew each time, and are erased with their memories."""
        with self._lock:
            known = self._entries.get(shelf.cache_key)
        if known is None or known.uid != log.uid:
            known = _CachedVectors(log.uid, 0, {})
        wanted = set(live.values())
        newest = max(wanted)
        found = {seq: vector for seq, vector in known.vectors.items() if seq in wanted}
        if newest > known.upto:
            for row in shelf.store.read(log, known.upto + 1, newest, types=STORED_TYPES):
                if row.seq in wanted and row.body is not None:
                    data = Event(row).data
                    if data.get("embedder") == embedder:
                        found[row.seq] = _unpack_vector(data)
        self._put_entry(shelf.cache_key, _CachedVectors(log.uid, max(newest, known.upto), found))
        return found

    def drop_vectors(self, shelf: MemoryLog) -> None:
        with self._lock:
            self._entries.pop(shelf.cache_key, None)

    def _put_entry(self, place: tuple[str, ...], read: _CachedVectors) -> None:
        with self._lock:
            self._entries[place] = read
            self._entries.move_to_end(place)
            size = sum(each.size for each in self._entries.values())
            while size > self._limit and self._entries:
                size -= self._entries.popitem(last=False)[1].size


class _CachedVectors:
    """How far a log was read, and the vectors that were found."""

    def __init__(self, uid: str, upto: int, vectors: dict[int, QuantizedVector]) -> None:
        self.uid, self.upto, self.vectors = uid, upto, vectors
        self.size = sum(len(vector.numbers) for vector in vectors.values())


def _unpack_vector(data: Mapping[str, Any]) -> QuantizedVector:
    return QuantizedVector(array("b", binascii.a2b_base64(data["vector"])), data["length"])
