"""Time measurement: contestants alternate, round after round. Also the places, sizes and flushes of all jobs."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

clock = time.perf_counter
Act = Callable[[], object]
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The amount of work of a run."""

    rounds: int = 15
    calls: int = 20
    long: int = 100_000  # messages of a long session
    sessions: int = 10_000  # sessions of one user
    texts: int = 20_000  # messages for the size on disk
    turns: int = 100  # turns per writer of a crowd
    crowds: int = 5  # rounds of a crowd
    imports: int = 9
    deltas: int = 20_000  # deltas of one stream
    streams: int = 100  # streams at once
    seconds: int = 10  # duration of those streams
    peers: bool = True  # whether to measure the peers too, if they are installed


FULL = Scale()
QUICK = Scale(
    rounds=7,
    calls=10,
    long=5_000,
    sessions=1_000,
    texts=4_000,
    turns=25,
    crowds=3,
    imports=5,
    deltas=5_000,
    seconds=3,
)


@dataclass(frozen=True, slots=True)
class Race:
    """The median of each round, for each contestant."""

    rounds: Mapping[str, list[float]]

    def seconds(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, limit: str) -> float:
        """Return the time of `name` divided by that of `limit`: the median of the ratios within each round."""
        pairs = zip(self.rounds[name], self.rounds[limit], strict=True)
        return statistics.median(one / other for one, other in pairs)


def race(contestants: Mapping[str, Callable[[], Act]], *, rounds: int, calls: int) -> Race:
    """Time `calls` calls of each contestant per round. A contestant returns a function: only the function is timed."""
    names = list(contestants)
    for name in names:
        for _ in range(3):
            contestants[name]()()
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        samples: dict[str, list[float]] = {name: [] for name in names}
        half = max(1, calls // 2)
        for part in range(2):  # another contestant begins each part, so that a slow moment hits all alike
            shift = (number + part) % len(names)
            for name in names[shift:] + names[:shift]:
                samples[name] += [_timed(contestants[name]()) for _ in range(half)]
        for name in names:
            found[name].append(statistics.median(samples[name]))
    return Race(found)


def _timed(act: Act) -> float:
    start = clock()
    act()
    return clock() - start


@contextmanager
def folder(place: Path) -> Iterator[Path]:
    """Yield a temporary folder; it is deleted when the block ends."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=place))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def disk() -> Path:
    """Return a folder on a real disk: flushing a file in memory costs nothing, and would prove nothing."""
    for place in (Path(tempfile.gettempdir()), Path.cwd()):
        if filesystem(place) not in ("tmpfs", "ramfs"):
            return place
    raise RuntimeError("neither the folder for temporary files nor this one is on a disk: run it from one that is")


def places() -> dict[str, Path]:
    return {"tmpfs": MEMORY, "disk": disk()} if filesystem(MEMORY) == "tmpfs" else {"disk": disk()}


def fastest() -> Path:
    """Return the fastest place, in memory if there is one, where a flush costs nothing."""
    return next(iter(places().values()))


def filesystem(path: Path) -> str:
    """Return the type of the filesystem of a path; empty if the system does not say."""
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _device, mounted, found = line.split()[:3]
        if path.resolve().is_relative_to(mounted) and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind


def flush_median(place: Path, times: int = 200) -> float:
    """Return the median seconds of one fdatasync after an append of 4 KiB."""
    taken = []
    with folder(place) as path, (path / "flushed").open("ab", buffering=0) as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            start = clock()
            os.fdatasync(file.fileno())
            taken.append(clock() - start)
    return statistics.median(taken)
