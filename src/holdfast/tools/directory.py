"""An open directory of the sandbox. Every name is looked up in this directory, and no link is ever followed.

Linux and macOS have a safe way: a descriptor of the directory. A name that is opened relative to it cannot lead
elsewhere, whatever other programs rename in the meantime. Windows has no such descriptors. There, the directories down
to this one are remembered by their identity, and looked at again before and after each step: a step during which one
of them was swapped is refused. A program that swaps a directory and swaps it back at the right moments can get around
that, and the docs say so.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from holdfast.clock import SYSTEM_CLOCK
from holdfast.operating_system import hold_lock

_TEMPORARY = ".holdfast-", ".tmp"
_LOCK_FILE = "holdfast-files.lock"
_REPLACE_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # seconds; Windows refuses to replace a file that is being read
_CHANGED = "it was swapped while it was used: try again"


def open_directory(path: Path | str) -> Directory:
    """Open the root of a sandbox. It is the developer's choice, and may itself be a link."""
    if sys.platform != "win32" and os.open in os.supports_dir_fd:
        return DescriptorDirectory(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    return CheckedDirectory.open_root(path)


class Directory(ABC):
    """What the sandbox does in a directory. Each method raises OSError."""

    def look(self, name: str) -> int:
        """The mode of what there is under a name; a link is a link."""
        return _mode(self._stat(name))

    def scan(self, visit: Callable[[], bool]) -> list[tuple[str, int, int]]:
        """Name, size and mode of what is in the directory, as long as `visit` agrees to one more."""
        found = []
        with os.scandir(self._place) as items:
            for item in items:
                if item.name.startswith(_TEMPORARY[0]) and item.name.endswith(_TEMPORARY[1]):
                    continue
                if not visit():
                    break
                with suppress(FileNotFoundError):  # gone since
                    about = self._stat(item.name)
                    found.append((item.name, about.st_size, _mode(about)))
        return found

    @abstractmethod
    def open_file(self, name: str) -> BinaryIO:
        """A file, for reading."""

    @abstractmethod
    def enter(self, name: str) -> Directory:
        """The directory under a name."""

    @abstractmethod
    def make(self, name: str) -> None:
        """Make a directory."""

    @abstractmethod
    def replace(self, name: str, data: bytes, mode: int | None) -> None:
        """Write beside the file, flush, and rename over it: readers see the old content or the new, a crash leaves one.

        `mode` is the mode of the file that is replaced.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the directory."""

    @property
    @abstractmethod
    def _place(self) -> int | Path:
        """The directory, for `os.scandir`."""

    @abstractmethod
    def _stat(self, name: str) -> os.stat_result:
        """What there is under a name; a link is a link."""

    @abstractmethod
    def _lock(self) -> AbstractContextManager[None]:
        """The lock for changes in this directory."""

    @contextmanager
    def lock_changes(self) -> Iterator[None]:
        """Changes in one directory wait for each other, in all processes, so that two edits of a file are both kept."""
        with ExitStack() as held:
            with suppress(OSError):  # a file system without locks
                held.enter_context(self._lock())
            yield


if sys.platform != "win32":
    _DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    _READ_FLAGS = (
        os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    )  # not blocking: a pipe must not hang
    _CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

    class DescriptorDirectory(Directory):
        """A directory by its descriptor: what was checked is what is used."""

        def __init__(self, descriptor: int) -> None:
            self._descriptor = descriptor

        @property
        def _place(self) -> int:
            return self._descriptor

        def _stat(self, name: str) -> os.stat_result:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

        def open_file(self, name: str) -> BinaryIO:
            return open(name, "rb", opener=lambda name, _: os.open(name, _READ_FLAGS, dir_fd=self._descriptor))

        def enter(self, name: str) -> Directory:
            try:
                return DescriptorDirectory(os.open(name, _DIRECTORY_FLAGS, dir_fd=self._descriptor))
            except NotADirectoryError:
                if stat.S_ISLNK(self.look(name)):  # Linux says ENOTDIR for a link that is opened as a directory
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                raise

        def make(self, name: str) -> None:
            os.mkdir(name, dir_fd=self._descriptor)
            os.fsync(self._descriptor)

        def replace(self, name: str, data: bytes, mode: int | None) -> None:
            directory, temporary = self._descriptor, _new_temporary()
            descriptor = os.open(temporary, _CREATE_FLAGS, 0o666, dir_fd=directory)
            try:
                with open(descriptor, "wb") as file:
                    if mode is not None:
                        os.fchmod(descriptor, mode & 0o777)
                    _write_durably(file, data)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
            os.fsync(directory)

        def close(self) -> None:
            os.close(self._descriptor)

        def _lock(self) -> AbstractContextManager[None]:
            return hold_lock(self._descriptor)


class CheckedDirectory(Directory):
    """A directory by its path, and by the identity of every directory from the root down to it."""

    def __init__(self, path: Path, chain: tuple[tuple[Path, os.stat_result], ...]) -> None:
        self._path, self._chain = path, chain

    @classmethod
    def open_root(cls, path: Path | str) -> CheckedDirectory:
        real = Path(os.path.realpath(path, strict=True))
        found = os.lstat(real)
        _check_directory(found)
        return cls(real, ((real, found),))

    @property
    def _place(self) -> Path:
        return self._path

    def _stat(self, name: str) -> os.stat_result:
        self._check()
        found = os.lstat(self._path / name)
        self._check()
        return found

    def open_file(self, name: str) -> BinaryIO:
        before = self._stat(name)
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        with ExitStack() as opened:
            path = self._path / name
            file = opened.enter_context(open(path, "rb", opener=lambda path, _: os.open(path, flags)))
            _check_same(before, os.fstat(file.fileno()))
            self._check_opened(file, name)
            opened.pop_all()  # the caller closes it
            return file

    def enter(self, name: str) -> Directory:
        path, found = self._path / name, self._stat(name)
        _check_directory(found)
        return CheckedDirectory(path, (*self._chain, (path, found)))

    def make(self, name: str) -> None:
        self._check()
        os.mkdir(self._path / name)

    def replace(self, name: str, data: bytes, mode: int | None) -> None:
        temporary = self._path / _new_temporary()
        self._check()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with open(descriptor, "wb") as file:
                self._check_opened(file, temporary.name)  # before anything is written
                written = os.fstat(descriptor)
                _write_durably(file, data)
            _replace_patiently(temporary, self._path / name)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _check_same(written, self._stat(name))

    def close(self) -> None:
        """Nothing is held."""

    def _check(self) -> None:
        """Refuse to go on if a directory of the path is not the one that it was."""
        for path, known in self._chain:
            found = os.lstat(path)
            _check_directory(found)
            _check_same(known, found)

    def _check_opened(self, file: BinaryIO, name: str) -> None:
        """Refuse a file that is not the one under its name."""
        _check_same(os.fstat(file.fileno()), self._stat(name))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        # One lock for all directories of this user, in a file of its own: a directory cannot be locked here.
        descriptor = os.open(Path(tempfile.gettempdir()) / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with hold_lock(descriptor):
                yield
        finally:
            os.close(descriptor)


def _mode(found: os.stat_result) -> int:
    """The mode; that of a link for every reparse point: a junction, a mounted volume and other detours of Windows."""
    is_reparse_point = getattr(found, "st_file_attributes", 0) & stat.FILE_ATTRIBUTE_REPARSE_POINT
    return stat.S_IFLNK if is_reparse_point else found.st_mode


def _check_directory(found: os.stat_result) -> None:
    mode = _mode(found)
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def _check_same(one: os.stat_result, other: os.stat_result) -> None:
    if not one.st_ino:
        raise OSError(errno.EINVAL, "its file system does not tell files apart")
    if not os.path.samestat(one, other):
        raise OSError(errno.EBUSY, _CHANGED)


def _replace_patiently(source: Path, target: Path) -> None:
    for pause in _REPLACE_PAUSES:
        try:
            return os.replace(source, target)
        except PermissionError:
            SYSTEM_CLOCK.sleep(pause)
    return os.replace(source, target)


def _new_temporary() -> str:
    return SYSTEM_CLOCK.random_bytes(8).hex().join(_TEMPORARY)


def _write_durably(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
