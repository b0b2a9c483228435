"""Many writers at once: on one session, where no message may be lost, and on one each, where they share commits."""

from __future__ import annotations

import multiprocessing
import queue
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.raw import RawSQLite
from benchmarks.raw_drivers import RawApsw, SharedApsw
from benchmarks.report import Figure, at_least, duration, rate
from benchmarks.timing import Scale, clock, disk, flush_median, folder, places
from benchmarks.workload import Audit, Plain, audit, plain_texts, turn
from holdfast import Session
from holdfast.stores import SQLiteStore
from holdfast.stores.group_commit import MAX_BATCH

THREADS, PROCESSES, WRITERS = 8, 4, 64
SHARE_BOUND, BATCHED_BOUND, APSW_BOUND = 0.5, 3.0, 0.6
PATIENCE = 300  # seconds after which a writer counts as stuck

Add = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterResult:
    """The turns of one writer: acknowledged ones, errors, and the times of its start and end."""

    acknowledged: list[tuple[str, int]]
    errors: list[str]
    began: float
    ended: float


def _write(writer: str, turns: Sequence[Any], add: Add, wait: Callable[[], object]) -> WriterResult:
    acknowledged, errors = [], []
    wait()
    began = clock()
    for number, messages in enumerate(turns):
        try:
            add(messages)
        except Exception as error:
            errors.append(repr(error))
        else:
            acknowledged.append((writer, number))
    return WriterResult(acknowledged=acknowledged, errors=errors, began=began, ended=clock())


def _together(writers: dict[str, tuple[Sequence[Any], Add]]) -> list[WriterResult]:
    """Run each writer on its own thread, all started at once, and return their results."""
    barrier = threading.Barrier(len(writers))
    found: list[WriterResult] = []

    def run(name: str, turns: Sequence[Any], add: Add) -> None:
        found.append(_write(name, turns, add, barrier.wait))

    threads = [threading.Thread(target=run, args=(name, *work)) for name, work in writers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _rate(results: Sequence[WriterResult]) -> float:
    seconds = max(one.ended for one in results) - min(one.began for one in results)
    return sum(len(one.acknowledged) for one in results) / seconds


# -- one session -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Result:
    """The rate of each round of a crowd of writers, and the results of its audits."""

    rates: list[float]
    audits: list[Audit]
    errors: list[str]

    def take(self, results: Sequence[WriterResult], texts: Sequence[str]) -> None:
        acknowledged = [pair for one in results for pair in one.acknowledged]
        errors = [error for one in results for error in one.errors]
        self.rates.append(_rate(results))
        self.audits.append(audit(texts, acknowledged, len(errors)))
        self.errors += errors

    @property
    def total(self) -> Audit:
        def summed(field: str) -> int:
            return sum(getattr(one, field) for one in self.audits)

        return Audit(
            acknowledged=summed("acknowledged"),
            lost=summed("lost"),
            doubled=summed("doubled"),
            torn=summed("torn"),
            errors=summed("errors"),
        )


def _names(count: int) -> list[str]:
    return [f"w{number}" for number in range(count)]


def _our_threads(path: Path, id: str, turns: int) -> list[WriterResult]:
    with SQLiteStore(path) as store:
        return _together(
            {
                name: ([ours.prepared(turn(name, t)) for t in range(turns)], Session.open(id, store=store).add_messages)
                for name in _names(THREADS)
            }
        )


def _raw_threads(path: Path, id: str, turns: int) -> list[WriterResult]:
    raw = RawSQLite(path)
    try:
        return _together(
            {
                name: ([turn(name, t) for t in range(turns)], partial(raw.add_among_others, id))
                for name in _names(THREADS)
            }
        )
    finally:
        raw.close()


def _our_process(path: Path, id: str, turns: int, name: str, barrier: Any, answers: Any) -> None:
    with SQLiteStore(path) as store:
        session = Session.open(id, store=store)
        session.history(1)
        prepared = [ours.prepared(turn(name, t)) for t in range(turns)]
        answers.put(_write(name, prepared, session.add_messages, barrier.wait))


def _raw_process(path: Path, id: str, turns: int, name: str, barrier: Any, answers: Any) -> None:
    raw = RawSQLite(path)
    prepared = [turn(name, t) for t in range(turns)]
    answers.put(_write(name, prepared, partial(raw.add_among_others, id), barrier.wait))
    raw.close()


def _processes(target: Callable[..., None], path: Path, id: str, turns: int) -> list[WriterResult]:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=target, args=(path, id, turns, name, barrier, answers)) for name in _names(PROCESSES)
    ]
    for process in processes:
        process.start()
    found: list[WriterResult] = []
    deadline = clock() + PATIENCE
    try:
        while len(found) < PROCESSES:
            try:
                found.append(answers.get(timeout=0.5))
            except queue.Empty:  # a writer that died never reaches the barrier, and the others would wait there
                if any(process.exitcode for process in processes) or clock() > deadline:
                    raise RuntimeError("a writer process ended, or hung, before it had written everything") from None
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()
    return found


def _one_session(
    job: str,
    scale: Scale,
    place: Path,
    our_crowd: Callable[[Path, str, int], list[WriterResult]],
    raw_crowd: Callable[[Path, str, int], list[WriterResult]],
) -> Iterator[Figure]:
    mine, raw = Result([], [], []), Result([], [], [])
    with folder(place) as path:
        for number in range(scale.crowds + 1):
            id = f"shared{number}"
            with SQLiteStore(path / "ours.db") as store:
                session = Session(id, store=store)
                results = our_crowd(path / "ours.db", id, scale.turns)
                texts = ours.texts(session)
            raw_wrote = raw_crowd(path / "raw.db", id, scale.turns)
            reader = RawSQLite(path / "raw.db")
            raw_texts = reader.texts(id)
            reader.close()
            if number:  # the first round only warms up
                mine.take(results, texts)
                raw.take(raw_wrote, raw_texts)
    total = mine.total
    detail = f" ({mine.errors[0]})" if mine.errors else ""
    yield Figure(
        job=f"{job}: {total.acknowledged:,} turns",
        ours=f"{total}{detail}",
        limit=str(raw.total),
        bound="0, 0, 0, 0",
        ok=total.clean,
    )
    share = statistics.median(one / other for one, other in zip(mine.rates, raw.rates, strict=True))
    yield at_least(
        f"{job}: rate",
        share,
        SHARE_BOUND,
        ours=rate(statistics.median(mine.rates)),
        limit=rate(statistics.median(raw.rates)),
    )


def same_session(scale: Scale) -> Iterator[Figure]:
    for name, place in places().items():
        job = f"{THREADS} threads on one session, {name}"
        yield from _one_session(job, scale, place, _our_threads, _raw_threads)
        yield from _one_session(
            f"{PROCESSES} processes on one session, {name}",
            scale,
            place,
            partial(_processes, _our_process),
            partial(_processes, _raw_process),
        )


# -- one session per writer --------------------------------------------------------------------------------------------


def own_sessions(scale: Scale) -> Iterator[Figure]:
    each = scale.turns // 2
    messages = plain_texts(each)
    batched: list[float] = []
    unbatched: list[float] = []
    driver: list[float] = []
    crowd: list[float] = []
    with ExitStack() as stack:
        place = disk()
        path = stack.enter_context(folder(place))
        store = stack.enter_context(SQLiteStore(path / "ours.db"))
        raw, shared_raw = RawApsw(path / "raw.db"), RawApsw(path / "shared.db")
        stack.callback(raw.close)
        stack.callback(shared_raw.close)
        sessions = [Session(f"s{number}", store=store) for number in range(WRITERS)]
        mine = ours.prepared(messages)
        flushes = []
        for number in range(scale.crowds + 1):
            for batch, rates in ((MAX_BATCH, batched), (1, unbatched)):
                store.file.max_batch = batch
                results = _together({session.id: (mine, session.add_message) for session in sessions})
                failed = [error for one in results for error in one.errors]
                if failed:
                    raise RuntimeError(f"{len(failed)} of {WRITERS * each} appends failed: {failed[0]}")
                rates.append(_rate(results))
            start = clock()
            for seq, message in enumerate(messages, number * each):
                raw.add_rows([(session.id, seq, message) for session in sessions])
            driver.append(WRITERS * each / (clock() - start))
            shared = SharedApsw(shared_raw, WRITERS)
            numbered = list(enumerate(messages, number * each))
            crowd.append(_rate(_together({s.id: (numbered, partial(_add_numbered, shared, s.id)) for s in sessions})))
            shared.close()
            flushes.append(flush_median(place, 50))
    batched, unbatched, driver, crowd = batched[1:], unbatched[1:], driver[1:], crowd[1:]
    job = f"{WRITERS} writers on {WRITERS} sessions, FULL, disk (fdatasync {duration(statistics.median(flushes))})"
    ours_rate = rate(statistics.median(batched))
    yield at_least(
        f"{job}, beside max_batch=1",
        statistics.median(one / other for one, other in zip(batched, unbatched, strict=True)),
        BATCHED_BOUND,
        ours=ours_rate,
        limit=rate(statistics.median(unbatched)),
    )
    yield at_least(
        f"{job}, beside apsw, {WRITERS} rows a transaction",
        statistics.median(one / other for one, other in zip(batched, driver, strict=True)),
        APSW_BOUND,
        ours=ours_rate,
        limit=rate(statistics.median(driver)),
    )
    yield Figure(
        job=f"{job}, beside apsw fed by {WRITERS} threads (no bound)",
        ours=ours_rate,
        limit=rate(statistics.median(crowd)),
        ratio=f"{statistics.median(one / other for one, other in zip(batched, crowd, strict=True)):.2f} x",
    )


def _add_numbered(shared: SharedApsw, session: str, numbered: tuple[int, Plain]) -> None:
    seq, message = numbered
    shared.add((session, seq, message))
