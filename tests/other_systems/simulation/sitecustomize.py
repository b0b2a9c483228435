"""A process of Linux that finds only what Windows or macOS has: `SIMULATED_SYSTEM` is `win32` or `darwin`.

Python loads this module when it starts, if this folder is on `PYTHONPATH`. It loads what it needs of the standard
library and the packages that holdfast uses (`SIMULATED_PACKAGES` names more), then takes away what the other system
lacks. What was loaded before that still sees Linux. holdfast is loaded after it, and sees `sys.platform`, `os`,
`signal`, `socket`, `time` and the files of the other system. Paths still have the form of Linux.
"""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import asyncio.unix_events
import builtins
import ctypes
import errno
import fcntl
import importlib
import io
import os
import platform
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

PACKAGES = (
    *("anyio._backends._asyncio", "apsw", "click", "cryptography.hazmat.primitives.ciphers.aead", "docstring_parser"),
    *("httpx2", "jsonschema", "orjson", "psycopg", "pydantic", "urllib.request", "zoneinfo"),
)
LOOKS_OF_HOLDFAST = re.compile(r"/proc/(sys|self/ns|[0-9]+)/")  # the metrics look at other files
KEEP_SYS = ("__main__", "importlib", "_frozen_importlib")  # the import system needs the module itself


class _LinuxSys:
    """`sys` for the modules that were loaded before: they go on as on Linux."""

    platform = "linux"

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(sys, name)


class _Junction:
    """What Windows says of a junction: a directory that is a reparse point, and no symbolic link."""

    st_file_attributes = stat.FILE_ATTRIBUTE_REPARSE_POINT | stat.FILE_ATTRIBUTE_DIRECTORY
    st_reparse_tag = 0xA0000003  # IO_REPARSE_TAG_MOUNT_POINT

    def __init__(self, found: os.stat_result) -> None:
        self._found = found
        self.st_mode = stat.S_IFDIR | stat.S_IMODE(found.st_mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)


def load_packages() -> None:
    platform.uname()  # kept by the module
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
    for name in [*PACKAGES, *os.environ.get("SIMULATED_PACKAGES", "").split()]:
        importlib.import_module(name)
    linux = _LinuxSys()
    for module in list(sys.modules.values()):
        if vars(module).get("sys") is sys and not module.__name__.startswith((*KEEP_SYS, __name__)):
            vars(module)["sys"] = linux


def remove_names(module: ModuleType, names: str) -> None:
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def hide_proc() -> None:
    """There is no /proc. A folder of that name could be any user's, so holdfast must not look there."""

    def hide(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def look(path: Any, *args: Any, **more: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
                assert not LOOKS_OF_HOLDFAST.match(os.fspath(path)), f"{path} means nothing on this system"
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
            return call(path, *args, **more)

        for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if call in known:
                known.add(look)
        return look

    builtins.open = io.open = hide(open)  # type: ignore[assignment]
    for name in ("access", "listdir", "lstat", "open", "readlink", "scandir", "stat"):
        setattr(os, name, hide(getattr(os, name)))


# -- Windows -----------------------------------------------------------------------------------------------------------


def become_windows() -> None:
    for name in ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "uvloop"):
        sys.modules[name] = None  # type: ignore[assignment]
    remove_names(
        os,
        """O_CLOEXEC O_DIRECT O_DIRECTORY O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC O_TMPFILE WEXITSTATUS
        WIFEXITED WIFSIGNALED WNOHANG WTERMSIG chown eventfd fchdir fchmod fchown fork forkpty getegid geteuid getgid
        getgroups getloadavg getpgid getpgrp getpriority getsid getuid killpg lchown lockf mkfifo mknod nice openpty
        pidfd_open posix_fadvise posix_fallocate posix_spawn pread pwrite register_at_fork sched_getaffinity sendfile
        setegid seteuid setgid setpgid setsid setuid statvfs sync sysconf uname wait""",
    )
    remove_names(
        time,
        """CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_MONOTONIC_RAW CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME CLOCK_TAI
        CLOCK_THREAD_CPUTIME_ID clock_getres clock_gettime clock_gettime_ns clock_settime pthread_getcpuclockid
        tzset""",
    )
    remove_names(select, "epoll poll")
    windows_signals = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}
    unix_signals = {each.name for each in signal.Signals} - windows_signals
    remove_names(signal, " ".join(unix_signals) + " SIGCLD alarm pause pthread_kill pthread_sigmask setitimer sigwait")
    _give_files_of_windows()
    _give_processes_of_windows()
    _give_network_of_windows()
    _give_locks_of_windows()


def _give_files_of_windows() -> None:
    """No descriptor of a directory, no mode for other users, junctions, and no rename over a file."""
    real_open, real_mkdir, real_rename, real_chmod = os.open, os.mkdir, os.rename, os.chmod
    real_stat, real_lstat, real_scandir, real_listdir = os.stat, os.lstat, os.scandir, os.listdir
    os.umask(0)
    os.O_BINARY = os.O_NOINHERIT = 0  # type: ignore[attr-defined]
    os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks = set(), set(), set()
    shutil._use_fd_functions = False  # type: ignore[attr-defined]

    def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
        _refuse_descriptors(dir_fd)
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real_open(path, flags, 0o666)

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: None = None) -> None:
        _refuse_descriptors(dir_fd)
        real_mkdir(path, 0o777)

    def rename(source: Any, target: Any, *, src_dir_fd: None = None, dst_dir_fd: None = None) -> None:
        _refuse_descriptors(src_dir_fd, dst_dir_fd)
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        real_rename(source, target)

    def chmod(path: Any, mode: int, *, dir_fd: None = None, follow_symlinks: bool = True) -> None:
        _refuse_descriptors(dir_fd)
        if not os.path.isdir(path):
            real_chmod(path, 0o666 if mode & 0o200 else 0o444)

    def look(path: Any, *, dir_fd: None = None, follow_symlinks: bool = True) -> Any:
        _refuse_descriptors(dir_fd)
        return real_stat(path) if follow_symlinks else look_at_link(path)

    def look_at_link(path: Any, *, dir_fd: None = None) -> Any:
        _refuse_descriptors(dir_fd)
        found = real_lstat(path)
        return _Junction(found) if stat.S_ISLNK(found.st_mode) and os.path.isdir(path) else found

    def scan(path: Any = ".") -> Any:
        _refuse_descriptors(path if isinstance(path, int) else None)
        return real_scandir(path)

    def list_names(path: Any = ".") -> Any:
        _refuse_descriptors(path if isinstance(path, int) else None)
        return real_listdir(path)

    os.open, os.mkdir, os.rename, os.chmod = open_file, mkdir, rename, chmod  # type: ignore[assignment]
    os.stat, os.lstat, os.scandir, os.listdir = look, look_at_link, scan, list_names  # type: ignore[assignment]


def _refuse_descriptors(*given: object) -> None:
    if any(each is not None for each in given):
        raise NotImplementedError("dir_fd unavailable on this platform")


def _give_processes_of_windows() -> None:
    """`os.kill` ends a process whichever signal it is given, and an event loop watches no descriptor and no signal."""
    real_kill, kill = os.kill, signal.Signals(9)

    def end(pid: int, number: int) -> None:
        if pid == os.getpid():
            os._exit(number)  # its exit code is the number of the signal
        real_kill(pid, kill)

    def refuse(*_: object) -> None:
        raise NotImplementedError

    os.kill = end
    subprocess.Popen.kill = subprocess.Popen.terminate  # type: ignore[method-assign]
    signal.SIGBREAK = signal.SIGINT  # type: ignore[attr-defined]
    asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # type: ignore[attr-defined]
    for name in ("add_reader", "add_writer", "remove_reader", "remove_writer"):
        setattr(asyncio.selector_events.BaseSelectorEventLoop, name, refuse)
    for name in ("add_signal_handler", "remove_signal_handler"):
        setattr(asyncio.unix_events._UnixSelectorEventLoop, name, refuse)  # type: ignore[attr-defined]


def _give_network_of_windows() -> None:
    """SO_REUSEADDR lets two processes listen on one port, which is what SO_REUSEPORT does on Linux."""
    real_setsockopt, shared = socket.socket.setsockopt, socket.SO_REUSEPORT
    exclusive = -5
    socket.SO_EXCLUSIVEADDRUSE = exclusive  # type: ignore[attr-defined]
    del socket.SO_REUSEPORT

    def setsockopt(self: socket.socket, level: int, option: int, *value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_REUSEADDR):
            real_setsockopt(self, level, shared, *value)
        elif (level, option) != (socket.SOL_SOCKET, exclusive):
            real_setsockopt(self, level, option, *value)

    socket.socket.setsockopt = setsockopt  # type: ignore[assignment, method-assign]


def _give_locks_of_windows() -> None:
    """`msvcrt.locking`, which fails at once if another descriptor has the lock."""

    def locking(descriptor: int, mode: int, size: int) -> None:
        try:
            fcntl.flock(descriptor, {2: fcntl.LOCK_EX | fcntl.LOCK_NB, 0: fcntl.LOCK_UN}[mode])
        except BlockingIOError:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None

    msvcrt: Any = ModuleType("msvcrt")
    msvcrt.LK_UNLCK, msvcrt.LK_NBLCK, msvcrt.locking = 0, 2, locking
    sys.modules["msvcrt"] = msvcrt


# -- macOS -------------------------------------------------------------------------------------------------------------


def become_macos() -> None:
    remove_names(time, "CLOCK_BOOTTIME CLOCK_TAI")
    remove_names(
        os,
        """O_DIRECT O_NOATIME O_PATH O_TMPFILE copy_file_range eventfd getrandom memfd_create pidfd_open posix_fadvise
        posix_fallocate sched_getaffinity setns splice unshare""",
    )
    remove_names(select, "epoll")
    remove_names(signal, "SIGCLD SIGPOLL SIGPWR SIGSTKFLT")
    _give_boot_of_macos()


def _give_boot_of_macos() -> None:
    """`sysctlbyname("kern.bootsessionuuid")` of the C library names the boot. BOOT is another boot; if empty, none."""
    prototype = ctypes.CFUNCTYPE(
        *(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    )

    def query(name: bytes, value: int, size: int, new_value: int | None, new_size: int) -> int:
        found = os.environ.get("BOOT", "5E6FFEBE-34C0-4F4C-9D5A-1B1F3D0C9E61").encode() + b"\0"
        room = ctypes.c_size_t.from_address(size)
        if name != b"kern.bootsessionuuid" or new_value or new_size or not 1 < len(found) <= room.value:
            return -1
        ctypes.memmove(value, found, len(found))
        room.value = len(found)
        return 0

    class Library(ctypes.CDLL):
        sysctlbyname = prototype(query)

    ctypes.CDLL = Library  # type: ignore[misc]


def simulate(system: str) -> None:
    load_packages()
    {"win32": become_windows, "darwin": become_macos}[system]()
    hide_proc()
    sys.platform = system  # type: ignore[misc]


if os.environ.get("SIMULATED_SYSTEM"):
    try:
        simulate(os.environ["SIMULATED_SYSTEM"])
    except BaseException:
        traceback.print_exc()
        os._exit(70)  # Python goes on after an error in this module, and the test would be one of Linux
