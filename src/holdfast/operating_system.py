"""What differs between Linux, macOS and Windows, in one place.

A part of holdfast that needs something that only some systems have asks for it here. Nothing is guessed: a process is
dead only if the system proves it. `docs/stores.md` says what is weaker on which system.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    from socket import socket

_M_MMAP_THRESHOLD = -3  # of malloc.h
_PROC = Path("/proc")
_LOCK_PAUSE = 0.01  # seconds between two attempts to get a lock on Windows
_RESERVED_CHARACTERS = frozenset('<>:"|?*\\') | {chr(number) for number in range(32)}
_RESERVED_NAMES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{device}{digit}" for device in ("com", "lpt") for digit in "0123456789¹²³"]
)

# Ends a process at once. On Windows every signal does.
if sys.platform == "win32":
    KILL_SIGNAL = signal.SIGTERM
else:
    KILL_SIGNAL = signal.SIGKILL

# The seconds of a clock that never jumps, counts suspended time and is the same in every process of this boot.
read_boot_clock: Callable[[], float]
if sys.platform == "linux":
    read_boot_clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
elif sys.platform == "darwin":
    read_boot_clock = partial(time.clock_gettime, time.CLOCK_MONOTONIC_RAW)  # time.monotonic stands still during sleep
else:
    read_boot_clock = time.monotonic


def register_at_fork(**hooks: Callable[[], object]) -> None:
    """`os.register_at_fork`, on systems whose processes can fork."""
    if sys.platform != "win32":
        os.register_at_fork(**hooks)


def return_large_blocks() -> None:
    """Give every block of memory of 256 kB and more back to the system when it is freed; where glibc is the allocator.

    By itself glibc raises that limit to the largest block that was freed, up to 32 MB, and keeps such blocks in a heap
    for each thread. A server whose threads built large answers once then holds several times their size for ever:
    30 answers of 14 MB left 445 MB behind, and 2 MB with this.
    """
    if sys.platform == "linux":
        import ctypes  # imported late: only servers need it

        with suppress(OSError, AttributeError):  # another libc
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 256 << 10)


# -- processes ---------------------------------------------------------------------------------------------------------


@cache
def boot_id() -> str | None:
    """Return a text that names this boot of this machine and no other; None if the system has none."""
    if sys.platform == "darwin":
        return _read_sysctl(b"kern.bootsessionuuid")
    if sys.platform != "linux":
        return None  # `/proc` would be a folder of a user on Windows
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def _read_sysctl(name: bytes) -> str | None:
    import ctypes  # imported late: only macOS needs it

    try:
        query = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return None
    query.argtypes = [*(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)]
    value, size = ctypes.create_string_buffer(128), ctypes.c_size_t(128)
    if query(name, value, ctypes.byref(size), None, 0) != 0:
        return None
    return value.value.decode("ascii", "replace") or None


def pid_namespace() -> str | None:
    """Return the name of the namespace that the process ids of this process belong to; None if it cannot be seen. Only
    Linux has several."""
    if sys.platform != "linux":
        return ""
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return None


def process_mark(pid: int) -> str | None:
    """Return what is seen of the process with this id; None if there is no such process, or none can be seen.

    A process whose mark has changed has ended. On Linux the mark is the time of the start, which a process that reuses
    the id does not share. On macOS every process has the same mark, so one that reuses the id looks like the first.
    """
    if sys.platform == "darwin":  # never on Windows, where os.kill ends the process
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass  # a process of another user
        return "exists"
    if sys.platform != "linux":
        return None
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


# -- files and addresses -----------------------------------------------------------------------------------------------


@contextmanager
def hold_lock(descriptor: int) -> Iterator[None]:
    """Wait for the lock of an open file and hold it; on Linux and macOS also the lock of an open directory."""
    if sys.platform == "win32":
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                break
            except PermissionError:  # another descriptor has it
                time.sleep(_LOCK_PAUSE)
        try:
            yield
        finally:
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def create_private_file(path: str | Path) -> None:
    """Create an empty file that only its owner can read, from its first moment. Raises FileExistsError if it exists."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def flush_to_disk(path: Path) -> None:
    """Wait until a closed file, or the names in a directory, are on disk. Windows cannot flush a directory."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_exposed_mode(path: Path) -> str | None:
    """Return the mode of a path if it lets other users in. On Windows a mode says nothing about other users."""
    if sys.platform == "win32":
        return None
    mode = path.stat().st_mode & 0o777
    return f"{mode:o}" if mode & 0o077 else None


def reserve_address(listening: socket) -> None:
    """Let a server that starts again have its address at once, and let no other server share it."""
    import socket

    if sys.platform == "win32":  # there, SO_REUSEADDR lets two processes listen on one port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def is_plain_name(name: str) -> bool:
    """Whether the system takes a name for the file of that name, and for nothing else.

    Windows reads `\\` as `/`, `C:name` as a drive, `name:stream` as a hidden part of a file and `NUL.txt` as a device,
    and drops dots and spaces at the end of a name.
    """
    if sys.platform != "win32":
        return True
    device = name.partition(".")[0].rstrip(" ").lower()
    return not (_RESERVED_CHARACTERS & set(name) or name.endswith((".", " ")) or device in _RESERVED_NAMES)
