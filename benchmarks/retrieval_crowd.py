"""The time of one user's search when 100 users have 1,000 memories each, in one SQLite file or one PostgreSQL.

Other processes search, which stored nothing themselves: `python -m benchmarks.retrieval_crowd ADDRESS SERVICE USERS
SEARCHES` prints the seconds. `--without-numpy` hides numpy, because most installations have none.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

from benchmarks.retrieval_questions import WORD, notes
from benchmarks.timing import clock, disk, folder
from benchmarks.turns import database
from holdfast import KeywordMemoryService, Memory, VectorMemoryService
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store

Taken = tuple[float, float]  # seconds on the clock, and seconds of CPU
HEADINGS = ("search", "median", "p99", "CPU of this process, median", "must be", "verdict")
BOUND = 0.025  # seconds that the median may take
DIMENSION = 384
LENGTH, QUERY = 9, 4  # words of a memory and of a query
ROOT = Path(__file__).resolve().parent.parent
SERVICES = (["keyword"], ["vector"], ["vector", "--without-numpy"])
FIRST = "the first search of a process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The number of users, memories and searches of a run."""

    users: int = 100
    memories: int = 1000
    searches: int = 300
    processes: int = 15


FULL, QUICK = Size(), Size(users=5, memories=200, searches=30, processes=3)


def table(*, quick: bool) -> tuple[list[tuple[str, ...]], bool]:
    """Return the rows of the table, and whether all bounds hold."""
    size = QUICK if quick else FULL
    rows: list[tuple[str, ...]] = []
    with ExitStack() as stack:
        path = stack.enter_context(folder(disk()))
        dsn = stack.enter_context(database(durable=False))
        for name, address in (("SQLite", str(path / "memories.db")), ("PostgreSQL", dsn)):
            print(f"… {size.users * size.memories:,} memories in {name}", file=sys.stderr, flush=True)
            fill(address, size)
            rows.append(_row(f"{name}, keyword: the first after {size.memories:,} were stored", indexed(address, size)))
            for service in SERVICES:
                print(f"… {name}, {' '.join(service)}", file=sys.stderr, flush=True)
                for case, taken in measured(address, service, size).items():
                    rows.append(_row(f"{name}, {' '.join(service)}: {case}", taken, bound=case != FIRST))
    return rows, not any("MISSED" in row for row in rows)


def _row(name: str, taken: list[Taken], *, bound: bool = False) -> tuple[str, ...]:
    clocked = sorted(seconds for seconds, _ in taken)
    median, last = statistics.median(clocked), clocked[int(len(clocked) * 0.99)]
    worked = statistics.median(seconds for _, seconds in taken)
    limit, verdict = (f"<= {BOUND * 1e3:g} ms", "ok" if median <= BOUND else "MISSED") if bound else ("", "")
    return name, *(f"{seconds * 1e3:.1f} ms" for seconds in (median, last, worked)), limit, verdict


def fill(address: str, size: Size) -> None:
    """Store the memories of all users, each with a vector."""
    with opened(address) as store:
        memory = fresh(store, "vector")
        for number, text in enumerate(sentences(1, LENGTH, size.users * size.memories)):
            user, place = divmod(number, size.memories)
            memory.store(f"note-{place}", text, user_id=f"user-{user}")


def indexed(address: str, size: Size) -> list[Taken]:
    """Return the seconds of each user's first search, which has to build the index."""
    with opened(address) as store:
        memory = fresh(store, "keyword")
        return [timed(memory, user, query) for user, query in enumerate(sentences(3, QUERY, size.users))]


def measured(address: str, service: list[str], size: Size) -> dict[str, list[Taken]]:
    """Return the seconds of each case, measured in processes that run one after the other."""

    def searched(searches: int) -> dict[str, list[Taken]]:
        numbers = [str(size.users), str(searches)]
        command = [sys.executable, "-m", "benchmarks.retrieval_crowd", address, *service, *numbers]
        found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        seconds: dict[str, list[Taken]] = json.loads(found.stdout)
        return seconds

    firsts = [second for _ in range(size.processes) for second in searched(0)[FIRST]]
    return searched(size.searches) | {FIRST: firsts}


def search(store: Store, service: str, users: int, searches: int) -> dict[str, list[Taken]]:
    """Return the seconds of each search, for each case."""
    queries = sentences(2, QUERY, 1 + 3 * searches)
    kept = fresh(store, service)
    seconds = {FIRST: [timed(kept, 0, next(queries))]}
    return seconds | {
        "a Memory that has searched nothing yet": [
            timed(fresh(store, service), number % users, next(queries)) for number in range(searches)
        ],
        "the same user again": [timed(kept, 0, next(queries)) for _ in range(searches)],
        "all users in turn": [timed(kept, number % users, next(queries)) for number in range(searches)],
    }


def fresh(store: Store, service: str) -> Memory:
    return Memory(
        service=KeywordMemoryService() if service == "keyword" else VectorMemoryService(embedder=scattered), store=store
    )


def timed(memory: Memory, user: int, query: str) -> Taken:
    """Search once; return the seconds on the clock and the seconds of CPU. On a busy machine only CPU is reliable."""
    start, worked = clock(), time.process_time()
    memory.search(query, limit=5, user_id=f"user-{user}")
    return clock() - start, time.process_time() - worked


def opened(address: str) -> Store:
    return PostgresStore(address) if address.startswith("postgresql:") else SQLiteStore(address)


def sentences(seed: int, length: int, count: int) -> Iterator[str]:
    """Yield `count` texts of `length` words, some frequent and most rare; the same texts for the same seed."""
    vocabulary = sorted({word for note in notes() for word in WORD.findall(note.text.lower())})
    random.Random(0).shuffle(vocabulary)
    chance = random.Random(seed)
    weights = [1 / (10 + place) for place in range(len(vocabulary))]
    for _ in range(count):
        yield " ".join(chance.choices(vocabulary, weights, k=length))


def scattered(texts: list[str]) -> list[list[float]]:
    """Return a vector for each text, always the same for the same text. It has no meaning: only time matters here."""
    found = []
    for text in texts:
        chance = random.Random(text)
        found.append([chance.random() for _ in range(DIMENSION)])
    return found


class WithoutNumpy(MetaPathFinder):
    """Makes an import of numpy fail, as in an installation without numpy."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'", name=fullname)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval_crowd", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("service", choices=["keyword", "vector"])
    parser.add_argument("users", type=int)
    parser.add_argument("searches", type=int)
    parser.add_argument("--without-numpy", action="store_true")
    asked = parser.parse_args()
    if asked.without_numpy:
        sys.meta_path.insert(0, WithoutNumpy())
    with opened(asked.address) as store:
        print(json.dumps(search(store, asked.service, asked.users, asked.searches)))


if __name__ == "__main__":
    main()
