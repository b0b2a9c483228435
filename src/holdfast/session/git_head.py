"""The branch and commit of a work directory, read from the files of its `.git` folder.

Never runs git, which would obey the configuration of an untrusted repository, and accepts no ref whose name leads out
of the folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_MAX_REF_BYTES = 4096  # bytes read of a file with one ref
_MAX_PACKED_BYTES = 1 << 24  # bytes read of the file with all packed refs
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\s\x00-\x20\x7f~^:?*\[\\]{1,250}")


def git_head(folder: Path) -> str | None:
    """Return branch and commit of the repository that a folder is in, as "main 3fa9c1e2…".

    A detached head gives "HEAD 3fa9c1e2…". Returns None if there is no repository or no commit yet, or if a file of the
    repository cannot be read or is not as git writes it.
    """
    try:
        home = _git_folder(folder)
        return _read_head(home) if home else None
    except (OSError, ValueError):  # a file that cannot be read, or is not text
        return None


def _git_folder(folder: Path) -> Path | None:
    start = Path(os.path.realpath(folder))
    if not start.is_dir():
        return None
    for parent in (start, *start.parents):
        found = parent / ".git"
        if found.is_file():  # a worktree or a submodule: this file names the git folder
            kind, _, place = _read_small_file(found).partition(":")
            return parent / place.strip() if kind == "gitdir" else None
        if (found / "HEAD").is_file():
            return found
    return None


def _read_head(home: Path) -> str | None:
    head = _read_small_file(home / "HEAD")
    if _COMMIT.fullmatch(head):
        return f"HEAD {head}"
    name = _parse_ref(head)
    common = home / _read_small_file(home / "commondir") if (home / "commondir").is_file() else home
    commit = _read_commit(name, home, common) if name else None
    return f"{name.removeprefix('refs/heads/')} {commit}" if name and commit else None


def _read_commit(name: str, home: Path, common: Path) -> str | None:
    # A worktree has a few refs of its own and shares the others. A loose ref is newer than the same ref in packed-refs.
    for place in (home / name, common / name):
        if place.is_file():
            commit = _read_small_file(place)
            return commit if _COMMIT.fullmatch(commit) else None
    return _read_packed_commit(name, common / "packed-refs")


def _read_packed_commit(name: str, path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:  # as bytes: the names of other refs need not be UTF-8
        for line in file.read(_MAX_PACKED_BYTES).split(b"\n")[:-1]:  # without the last line: the limit may have cut it
            commit, _, ref = line.partition(b" ")
            if ref == name.encode() and _COMMIT.fullmatch(commit.decode()):
                return commit.decode()
    return None


def _parse_ref(text: str) -> str | None:
    kind, _, name = text.partition(":")
    name = name.strip()
    return name if kind == "ref" and _REF.fullmatch(name) and ".." not in name else None


def _read_small_file(path: Path) -> str:
    if not path.is_file():  # reading a pipe or a device may never end
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        return file.read(_MAX_REF_BYTES).decode().strip()
