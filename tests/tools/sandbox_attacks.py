"""Attempts to get out of a working directory while its directories and files are swapped for links, again and again.

`run_attacks` is for tests of any size: it counts attempts and escapes.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import ToolError
from holdfast.tools import edit_file, list_files, read_file, search_files, write_file
from holdfast.tools.tool import ToolContext

CANARY = "the-secret-outside"
EXCHANGE = 2  # RENAME_EXCHANGE: two names change places in one step, so that there is never a moment without either


@dataclass
class Outcome:
    attempts: int = 0
    escapes: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


def build_jail(base: Path) -> tuple[Path, Path]:
    """A jail full of ways out, and the outside."""
    outside, jail = base / "outside", base / "jail"
    (outside / "inner").mkdir(parents=True)
    (outside / "secret.txt").write_text(CANARY)
    (outside / f"{CANARY}-name.txt").write_text(CANARY)
    (outside / "inner" / "secret.txt").write_text(CANARY)
    for directory in ("dir/sub", "swap/inner", "deep/a/b"):
        (jail / directory).mkdir(parents=True)
    for file in (
        "writefile",
        "dir/plain.txt",
        "dir/sub/plain.txt",
        "swap/secret.txt",
        "swap/inner/secret.txt",
        "swapfile",
        "pipefile",
    ):
        (jail / file).write_text("inside\n")
    os.link(jail / "dir/plain.txt", jail / "hardlink")
    os.mkfifo(jail / "fifo")
    os.mkfifo(jail / "pipefile.other")
    for name, target in {
        "up": "..",
        "out": "../outside",
        "abs": str(outside),
        "filelink": "../outside/secret.txt",
        "deep/a/b/link": str(outside),
        "loop": "loop",
        "here": ".",
        "proc": "/proc/self/root",
        "cwd": "/proc/self/cwd",
        "null": "/dev/null",
        "swap.other": str(outside),
        "swapfile.other": str(outside / "secret.txt"),
        "writefile.other": str(outside / "secret.txt"),
    }.items():
        (jail / name).symlink_to(target)
    return jail, outside


def read_outside(outside: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(outside)): path.read_bytes() if path.is_file() else None for path in outside.rglob("*")
    }


PATHS = [
    "swap/secret.txt",
    "swap/inner/secret.txt",
    "swap/new.txt",
    "swap/new/new.txt",
    "swap",
    "swap/inner",
    "swapfile",
    "pipefile",
    "dir/../swap/secret.txt",
    "dir/plain.txt",
    "hardlink",
    "fifo",
    "up/outside/secret.txt",
    "out/secret.txt",
    "out/new.txt",
    "abs/secret.txt",
    "abs/new/new.txt",
    "filelink",
    "deep/a/b/link/secret.txt",
    "loop/x",
    "here/here/dir/plain.txt",
    "proc/etc/passwd",
    "null",
    "../outside/secret.txt",
    "dir/../../outside/secret.txt",
    "./../outside/new.txt",
    "{outside}/secret.txt",
    "/{outside}/secret.txt",
    "dir/plain.txt/../../../outside/secret.txt",
    "dir//sub/./plain.txt",
    "swap/secret.txt\0",
    "",
    ".",
]


def try_tool(ctx: ToolContext, kind: str, path: str, outcome: Outcome) -> None:
    """One try of one tool; a result that shows something of the outside is an escape."""
    outcome.attempts += 1
    try:
        if kind == "read":
            text = read_file(ctx, path)
        elif kind == "list":
            text = list_files(ctx, path)
        elif kind == "find":
            text = list_files(ctx, path, pattern="*.txt")
        elif kind == "search":
            text = search_files(ctx, CANARY, path=path)
        elif kind == "write":
            text = write_file(ctx, path, "inside\n")
        else:
            text = edit_file(ctx, path, CANARY, "edited") + CANARY  # to find it there is to have read it
    except ToolError as error:
        text = str(error)
        outcome.seen[f"refused: {text.rpartition(': ')[2]}"] += 1
    else:
        outcome.seen[f"{kind} done"] += 1
        outcome.seen[f"{kind} {path} done"] += 1
    if CANARY in text:
        outcome.escapes.append(f"{kind} {path!r}: {text[:200]}")


def run_attacks(base: Path, attempts: int, seed: int) -> Outcome:
    """Random tools on random paths while another process swaps what they name."""
    jail, outside = build_jail(base)
    before = read_outside(outside)
    ctx, chance, outcome = ToolContext(work_dir=jail), random.Random(seed), Outcome()
    kinds = ["read"] * 8 + ["list"] * 4 + ["find", "search"] + ["write"] * 4 + ["edit"] * 2
    with swap_names(jail, "swap", "swapfile", "pipefile", "writefile"):
        for _ in range(attempts):
            kind = chance.choice(kinds)
            path = chance.choice(PATHS[:8]) if chance.random() < 0.7 else chance.choice(PATHS)
            if kind == "write" and path in ("swapfile", "pipefile"):
                path = "writefile"  # a write replaces a link by a file, which would end the race for the readers
            try_tool(ctx, kind, path.format(outside=outside), outcome)
    if read_outside(outside) != before:
        outcome.escapes.append(f"the outside has changed: {read_outside(outside)}")
    return outcome


@contextmanager
def swap_names(jail: Path, *names: str) -> Iterator[None]:
    """Another process lets `name` and `name.other` change places without end."""
    child = subprocess.Popen([sys.executable, __file__, str(jail), *names], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def swap_for_ever(jail: str, names: list[str]) -> None:
    here = os.open(jail, os.O_RDONLY)
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    pairs = [(name.encode(), f"{name}.other".encode()) for name in names]
    print("ready", flush=True)
    while True:
        for one, other in pairs:
            if rename(here, one, here, other, EXCHANGE):
                raise OSError(ctypes.get_errno(), "renameat2")


if __name__ == "__main__":
    swap_for_ever(sys.argv[1], sys.argv[2:])
