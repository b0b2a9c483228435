"""The size of a message on disk, and the time to import the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import apsw

from benchmarks import ours
from benchmarks.raw import RawSQLite
from benchmarks.report import Figure, at_most, duration
from benchmarks.timing import Scale, clock, fastest, folder
from benchmarks.workload import TEXT, plain_texts
from holdfast import Session
from holdfast.stores import SQLiteStore

BARE_BOUND, SEARCH_BOUND, IMPORT_BOUND = 1.8, 2.3, 1.6

EMPTY = "pass"
OURS = "from holdfast import Agent, Message, Session"  # a bare `import holdfast` loads none of the names
LIMIT = "from pydantic import BaseModel, TypeAdapter; import apsw"


def size(scale: Scale) -> Iterator[Figure]:
    messages = plain_texts(scale.texts)
    with ExitStack() as stack:
        path = stack.enter_context(folder(fastest()))
        raw = RawSQLite(path / "raw.db")
        for start in range(0, len(messages), ours.CHUNK):
            raw.add("s", messages[start : start + ours.CHUNK])
        raw.close()
        bare = _bytes(path / "raw.db")
        with SQLiteStore(path / "ours.db") as store:
            session = Session("s", store=store)
            ours.fill(session, messages)
            without = _bytes(path / "ours.db")
            assert session.search(messages[0]["content"].split()[0])
            searchable = _bytes(path / "ours.db")
    job = f"bytes on disk per message of {TEXT} bytes ({scale.texts:,} messages)"
    limit = f"{bare / len(messages):,.0f} B"
    yield at_most(job, without / bare, BARE_BOUND, ours=f"{without / len(messages):,.0f} B", limit=limit)
    yield at_most(
        f"{job}, searchable", searchable / bare, SEARCH_BOUND, ours=f"{searchable / len(messages):,.0f} B", limit=limit
    )


def _bytes(path: Path) -> int:
    """Return the size of a database after a checkpoint of its write-ahead log.

    The checkpoint uses the SQLite library that has the file open: when a second SQLite library in one process closes
    the file, the operating system drops the locks of the first.
    """
    db = apsw.Connection(str(path))
    busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
    db.close()
    if busy:
        raise RuntimeError(f"the write-ahead log of {path} could not be folded in")
    return path.stat().st_size


def importing(scale: Scale) -> Iterator[Figure]:
    with folder(fastest()) as path:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(
            path
        )  # a cache of compiled files, as every installation has it after the first import, and no others

        def seconds(code: str) -> float:
            start = clock()
            subprocess.run([sys.executable, "-c", code], env=environment, check=True)
            return clock() - start

        best = dict.fromkeys((EMPTY, OURS, LIMIT), float("inf"))
        for code in best:
            seconds(code)
        for _ in range(scale.imports):
            for code in best:
                best[code] = min(best[code], seconds(code))
    mine, limit = best[OURS] - best[EMPTY], best[LIMIT] - best[EMPTY]
    yield at_most(
        f"import Agent, Message and Session, cold, minus an empty interpreter, best of {scale.imports}",
        mine / limit,
        IMPORT_BOUND,
        ours=duration(mine),
        limit=duration(limit),
    )
