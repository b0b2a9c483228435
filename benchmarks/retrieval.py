"""`python -m benchmarks.retrieval [--quick]`: how many questions find their memory, and how fast; exits
with 1 if a bound is missed.

`make bench-retrieval` runs it with a real embedding model. Every way of searching gets the same questions and the
same memories. PostgreSQL must find the same memories as SQLite, in the same order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks import report, retrieval_crowd
from benchmarks.minilm import Array, MiniLM, verify
from benchmarks.retrieval_questions import Note, notes
from benchmarks.timing import fastest, flush_median, folder, places
from benchmarks.turns import database
from holdfast import KeywordMemoryService, Memory, VectorMemoryService
from holdfast.memory import ngrams
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store

Embedder = Callable[[list[str]], list[list[float]]]
Search = Callable[[str], list[str]]  # takes a question, returns the keys of three memories, the best first
HEADINGS = ("search", "right at 1", "right in 3", "right at 1, no word shared", "must be", "verdict")
ENOUGH = 0.85  # share of the questions whose first result is right, with the real model
SHOWN = 3
HYBRID = "hybrid, MiniLM"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few users and rounds: to see that it runs")
    parser.add_argument("--misses", action="store_true", help="also tell which questions the hybrid search missed")
    arguments = parser.parse_args()
    with both() as stores:
        model = Remembering(MiniLM())
        grades = {name: graded(store, model) for name, store in stores.items()}
    rows, held = table(grades)
    print(report.markdown_table(HEADINGS, rows) + "\n", flush=True)
    if arguments.misses:
        print("\n".join(grades["SQLite"][HYBRID].missed()) + "\n")
    timed, in_time = retrieval_crowd.table(quick=arguments.quick)
    print(report.markdown_table(retrieval_crowd.HEADINGS, timed) + "\n")
    flushes = [(name, flush_median(place)) for name, place in places().items()]
    print("\n".join(f"- {note}" for note in report.circumstances(flushes)))
    return int(not (held and in_time))


@contextmanager
def both() -> Iterator[dict[str, Store]]:
    """Yield an empty store of each kind, by its name."""
    with ExitStack() as stack:
        path = stack.enter_context(folder(fastest()))
        dsn = stack.enter_context(database(durable=False))
        stores: list[Store] = [SQLiteStore(path / "memories.db"), PostgresStore(dsn)]
        yield dict(zip(("SQLite", "PostgreSQL"), map(stack.enter_context, stores), strict=True))


@dataclass(frozen=True, slots=True)
class Grades:
    """The results of one way of searching, for each question."""

    found: list[tuple[Note, str, list[str]]]

    def right(self, within: int, *, unshared: bool = False) -> float:
        counted = [
            note.key in keys[:within] for note, question, keys in self.found if not (unshared and note.shared(question))
        ]
        return sum(counted) / len(counted)

    def missed(self) -> Iterator[str]:
        for note, question, keys in self.found:
            if keys[:1] != [note.key]:
                yield f"{question}  {note.key}, not {', '.join(keys) or 'nothing'}"


def graded(store: Store, model: Remembering) -> dict[str, Grades]:
    """Ask every question with each way of searching, and return the grades."""
    known = notes()
    hybrid = VectorMemoryService(embedder=model)
    ways: dict[str, Search] = {
        "keyword": kept(store, "keyword", KeywordMemoryService(), known),
        "n-grams alone": nearest(ngrams.embed_texts, known),
        "hybrid, n-grams": kept(store, "n-grams", VectorMemoryService(), known),
        "MiniLM alone": nearest(model, known),
        HYBRID: kept(store, "model", hybrid, known),
    }
    grades = {
        name: Grades([(note, question, search(question)) for note in known for question in note.questions])
        for name, search in ways.items()
    }
    if hybrid.failure:
        raise RuntimeError(f"the model failed, and words alone were used: {hybrid.failure}")
    return grades


class Remembering:
    """An embedder that computes each text once: this benchmark grades the results, not the speed of the model."""

    def __init__(self, model: MiniLM) -> None:
        verify(model)
        self._model = model
        self._known: dict[str, list[float]] = {}

    def __call__(self, texts: list[str]) -> list[list[float]]:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(new, self._model(new), strict=True))
        return [self._known[text] for text in texts]


def kept(store: Store, user: str, service: KeywordMemoryService | VectorMemoryService, known: list[Note]) -> Search:
    """Store memories of a user, and return a search of them through the public calls."""
    memory = Memory(service=service, store=store)
    for note in known:
        memory.store(note.key, note.text, user_id=user, kind="fact")
    return lambda question: [found.key for found in memory.search(question, limit=SHOWN, user_id=user)]


def nearest(embed: Embedder, known: list[Note]) -> Search:
    """Return a search by vectors alone, computed here: the baseline of the vector service."""
    matrix = _unit(embed([note.text for note in known]))

    def search(question: str) -> list[str]:
        order = np.argsort(-(matrix @ _unit(embed([question]))[0]), kind="stable")
        return [known[place].key for place in order[:SHOWN]]

    return search


def _unit(vectors: list[list[float]]) -> Array:
    matrix = np.array(vectors, dtype=np.float32)
    return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.float32(1e-9))


def table(grades: dict[str, dict[str, Grades]]) -> tuple[list[tuple[str, ...]], bool]:
    """Return the rows of the table, and whether all bounds hold."""
    (first, found), *others = grades.items()
    rows, held = [], []
    for way, grade in found.items():
        shares = (grade.right(1), grade.right(SHOWN), grade.right(1, unshared=True))
        bound, verdict = "", ""
        if way == HYBRID:
            held.append(shares[0] >= ENOUGH)
            bound, verdict = f">= {ENOUGH:.0%}", _verdict(held[-1])
        rows.append((way, *(f"{share:.1%}" for share in shares), bound, verdict))
    for name, again in others:
        different = sum(
            one != other for way in found for one, other in zip(found[way].found, again[way].found, strict=True)
        )
        held.append(not different)
        rows.append((f"answers of {name} other than of {first}", str(different), "", "", "0", _verdict(held[-1])))
    return rows, all(held)


def _verdict(holds: bool) -> str:
    return "ok" if holds else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
