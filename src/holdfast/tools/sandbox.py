"""A directory that no path leads out of.

Paths are opened one component at a time, each in the open directory before it (`directory.py`) and never through a
symbolic link: a directory swapped for a link in between is not followed, it is an error. No decision is ever taken on a
path as a string.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import FileRefused, ToolError
from holdfast.operating_system import is_plain_name
from holdfast.tools.directory import Directory, open_directory

MAX_DEPTH = 64
_REASONS = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EISDIR: "it is a directory",
    errno.ELOOP: "it is a symbolic link, and links are not followed",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENXIO: "it is not a regular file",
    errno.EMFILE: "too many files are open",
}
_KINDS: dict[int, str] = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link, and links are not followed",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something found in the jail; links and special files are shown, and never opened."""

    path: str
    size: int
    mode: int

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Sandbox:
    """The files below one directory: `Jail(work_dir).read("notes/today.md", limit=1 << 20)`."""

    def __init__(self, root: Path | str) -> None:
        self.root = root

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """A regular file, for reading."""
        *parents, name = _components(path, is_file=True)
        with (
            self._open_directory(path, parents) as directory,
            _translate_os_errors(path),
            _open_regular(directory, name, path) as file,
        ):
            yield file

    def write(self, path: str, data: bytes) -> None:
        """Put a file there, whole or not at all, and make the directories that are missing."""
        *parents, name = _components(path, is_file=True)
        with (
            self._open_directory(path, parents, make=True) as directory,
            _translate_os_errors(path),
            directory.lock_changes(),
        ):
            try:
                mode = directory.look(name)
            except FileNotFoundError:
                return directory.replace(name, data, None)
            _check_regular(path, mode)
            return directory.replace(name, data, mode)

    def change(self, path: str, edit: Callable[[bytes], bytes], *, limit: int) -> None:
        """Replace a file by what `edit` makes of its content, whole or not at all."""
        *parents, name = _components(path, is_file=True)
        with self._open_directory(path, parents) as directory, _translate_os_errors(path), directory.lock_changes():
            with _open_regular(directory, name, path) as file:
                mode, data = os.fstat(file.fileno()).st_mode, read_whole_file(file, path, limit=limit)
            directory.replace(name, edit(data), mode)

    def entries(self, path: str, visit: Callable[[], bool]) -> list[Entry]:
        """What is in a directory, by name, as long as `visit` agrees to one more."""
        components = _components(path)
        with self._open_directory(path, components) as directory, _translate_os_errors(path):
            return _entries(directory, "/".join(components), visit)

    def walk(self, path: str, visit: Callable[[], bool], *, skip: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Everything below a directory, depth first, by name, without going into the directories to `skip`."""
        components = _components(path)
        with self._open_directory(path, components) as directory, _translate_os_errors(path):
            yield from _walk(directory, "/".join(components), visit, skip, 0)

    @contextmanager
    def _open_directory(self, path: str, components: list[str], *, make: bool = False) -> Iterator[Directory]:
        try:
            current = open_directory(self.root)
        except OSError as error:
            raise ToolError(f"the working directory cannot be opened: {_explain_error(error)}") from error
        try:
            with _translate_os_errors(path):
                for name in components:
                    inner = _enter_directory(current, name, make=make)
                    current.close()
                    current = inner
            yield current
        finally:
            current.close()


def read_whole_file(file: BinaryIO, path: str, *, limit: int) -> bytes:
    """All of a file, or an error if it is larger than the limit."""
    data = file.read(limit + 1)
    if len(data) > limit:
        size = os.fstat(file.fileno()).st_size
        raise FileRefused(path, f"it has {size} bytes, and at most {limit} can be used here")
    return data


def _components(path: str, *, is_file: bool = False) -> list[str]:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise FileRefused(path, "it is not valid text") from error
    if "\0" in path:
        raise FileRefused(path, "a path has no NUL character")
    if path.startswith("/"):
        raise FileRefused(path, "use a path relative to the working directory, without the '/' in front")
    found = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in found:
        raise FileRefused(path, "'..' is not allowed: name the path from the working directory down")
    if odd := [name for name in found if not is_plain_name(name)]:
        raise FileRefused(path, f"{odd[0]!r} is no plain name on Windows: use letters, digits and '/'")
    if len(found) > MAX_DEPTH:
        raise FileRefused(path, f"a path has at most {MAX_DEPTH} parts")
    if is_file and (not found or path.endswith(("/", "/."))):
        raise FileRefused(path, "it is a directory; name a file")
    return found


def _enter_directory(current: Directory, name: str, *, make: bool) -> Directory:
    try:
        return current.enter(name)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):  # another process made it; entering it shows whether it is a directory
            current.make(name)
        return current.enter(name)


def _check_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise FileRefused(path, f"it is {_KINDS.get(stat.S_IFMT(mode), 'a special file')}")


@contextmanager
def _open_regular(directory: Directory, name: str, path: str) -> Iterator[BinaryIO]:
    # Looked at first, since merely opening a device can do something; and again after, since it may be another by then.
    _check_regular(path, directory.look(name))
    with directory.open_file(name) as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        yield file


def _entries(directory: Directory, prefix: str, visit: Callable[[], bool]) -> list[Entry]:
    found = [
        Entry(path=f"{prefix}/{name}" if prefix else name, size=size, mode=mode)
        for name, size, mode in directory.scan(visit)
    ]
    return sorted(found, key=lambda entry: entry.path)


def _walk(
    directory: Directory, prefix: str, visit: Callable[[], bool], skip: frozenset[str], depth: int
) -> Iterator[Entry]:
    for entry in _entries(directory, prefix, visit):
        yield entry
        name = entry.path.rpartition("/")[2]
        if not entry.is_directory or name in skip or depth >= MAX_DEPTH:
            continue
        try:
            inner = directory.enter(name)
        except OSError:
            continue  # gone, not readable, or no directory any more
        try:
            yield from _walk(inner, entry.path, visit, skip, depth + 1)
        finally:
            inner.close()


@contextmanager
def _translate_os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileRefused(path, _explain_error(error)) from error


def _explain_error(error: OSError) -> str:
    return _REASONS.get(error.errno or 0) or (error.strerror or "it cannot be used").lower()
