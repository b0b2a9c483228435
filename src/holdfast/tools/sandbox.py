"""A directory that no path leads out of.

Paths are opened one component at a time, each relative to the open directory before it and never through a symbolic
link, so what was checked is what is used: a directory swapped for a link in between is not followed, it is an error.
No decision is ever taken on a path as a string.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import FileRefused, ToolError

MAX_DEPTH = 64
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
)  # not blocking: a pipe must not hang
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = ".holdfast-", ".tmp"
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
            _lock_directory(directory),
        ):
            try:
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return _replace_file(directory, name, data, None)
            _check_regular(path, mode)
            return _replace_file(directory, name, data, mode)

    def change(self, path: str, edit: Callable[[bytes], bytes], *, limit: int) -> None:
        """Replace a file by what `edit` makes of its content, whole or not at all."""
        *parents, name = _components(path, is_file=True)
        with self._open_directory(path, parents) as directory, _translate_os_errors(path), _lock_directory(directory):
            with _open_regular(directory, name, path) as file:
                mode, data = os.fstat(file.fileno()).st_mode, read_whole_file(file, path, limit=limit)
            _replace_file(directory, name, edit(data), mode)

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
    def _open_directory(self, path: str, components: list[str], *, make: bool = False) -> Iterator[int]:
        try:
            # The root is the developer's choice and may itself be a link; nothing below it may.
            current = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ToolError(f"the working directory cannot be opened: {_explain_error(error)}") from error
        try:
            with _translate_os_errors(path):
                for name in components:
                    current = _enter_directory(current, name, make=make)
            yield current
        finally:
            os.close(current)


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
    if len(found) > MAX_DEPTH:
        raise FileRefused(path, f"a path has at most {MAX_DEPTH} parts")
    if is_file and (not found or path.endswith(("/", "/."))):
        raise FileRefused(path, "it is a directory; name a file")
    return found


def _enter_directory(current: int, name: str, *, make: bool) -> int:
    """From an open directory to the one inside it; the first is closed, unless this fails."""
    try:
        following = os.open(name, _DIRECTORY_FLAGS, dir_fd=current)
    except FileNotFoundError:
        if not make:
            raise
        try:
            os.mkdir(name, dir_fd=current)
            os.fsync(current)
        except FileExistsError:
            pass  # another process made it; opening it shows whether it is a directory
        following = os.open(name, _DIRECTORY_FLAGS, dir_fd=current)
    except NotADirectoryError:
        mode = os.stat(name, dir_fd=current, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):  # Linux says ENOTDIR for a link that is opened as a directory
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    os.close(current)
    return following


def _check_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise FileRefused(path, f"it is {_KINDS.get(stat.S_IFMT(mode), 'a special file')}")


@contextmanager
def _open_regular(directory: int, name: str, path: str) -> Iterator[BinaryIO]:
    # Looked at first, since merely opening a device can do something; and again after, since it may be another by then.
    _check_regular(path, os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    with open(name, "rb", opener=lambda name, _: os.open(name, _READ_FLAGS, dir_fd=directory)) as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        yield file


@contextmanager
def _lock_directory(directory: int) -> Iterator[None]:
    """Changes in one directory wait for each other, in all processes, so that two edits of a file are both kept."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(directory, fcntl.LOCK_EX)
    yield  # closing the directory ends the lock


def _replace_file(directory: int, name: str, data: bytes, mode: int | None) -> None:
    """Write beside the file, flush, and rename over it: readers see the old content or the new, a crash leaves one."""
    temporary = SYSTEM_CLOCK.random_bytes(8).hex().join(_TEMPORARY)
    descriptor = os.open(temporary, _CREATE_FLAGS, 0o666, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)


def _entries(directory: int, prefix: str, visit: Callable[[], bool]) -> list[Entry]:
    found = []
    with os.scandir(directory) as items:
        for item in items:
            if item.name.startswith(_TEMPORARY[0]) and item.name.endswith(_TEMPORARY[1]):
                continue
            if not visit():
                break
            try:
                about = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since
            path = f"{prefix}/{item.name}" if prefix else item.name
            found.append(Entry(path=path, size=about.st_size, mode=about.st_mode))
    return sorted(found, key=lambda entry: entry.path)


def _walk(directory: int, prefix: str, visit: Callable[[], bool], skip: frozenset[str], depth: int) -> Iterator[Entry]:
    for entry in _entries(directory, prefix, visit):
        yield entry
        name = entry.path.rpartition("/")[2]
        if not entry.is_directory or name in skip or depth >= MAX_DEPTH:
            continue
        try:
            inner = os.open(name, _DIRECTORY_FLAGS, dir_fd=directory)
        except OSError:
            continue  # gone, not readable, or no directory any more
        try:
            yield from _walk(inner, entry.path, visit, skip, depth + 1)
        finally:
            os.close(inner)


@contextmanager
def _translate_os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileRefused(path, _explain_error(error)) from error


def _explain_error(error: OSError) -> str:
    return _REASONS.get(error.errno or 0) or (error.strerror or "it cannot be used").lower()
