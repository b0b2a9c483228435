"""The sandbox where a directory has no descriptor, as on Windows: every step is checked before and after.

The tests take `os.supports_dir_fd` away and swap directories between two steps. Another process that swaps at random
is in `test_sandbox.py`, for the systems that have descriptors.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import FileRefused
from holdfast.tools import directory as module
from holdfast.tools.directory import CheckedDirectory, open_directory
from holdfast.tools.sandbox import Sandbox
from holdfast.tools.tool import ToolContext
from tests.tools.sandbox_attacks import PATHS, Outcome, build_jail, read_outside, try_tool

KINDS = ["read", "list", "find", "search", "write", "edit"]
LINK = "it is a symbolic link, and links are not followed"
SWAPPED = "it was swapped while it was used: try again"


@pytest.fixture(scope="module")
def lock_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lock")


@pytest.fixture(autouse=True)
def no_descriptors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lock_folder: Path) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set())
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(lock_folder))
    assert isinstance(open_directory(tmp_path), CheckedDirectory)


class Swap:
    """`swap` and `swap.other` of a jail change places: a directory, and a link to the outside."""

    def __init__(self, jail: Path, name: str = "swap") -> None:
        self._one, self._other, self._third = jail / name, jail / f"{name}.other", jail / f"{name}.third"
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self._one.rename(self._third)
        self._other.rename(self._one)
        self._third.rename(self._other)


def act_around(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
    below: Path | str,
    calls: frozenset[int] = frozenset({1}),
) -> None:
    """Act before and after some calls of a function of `os` on a path below a directory, counted from 1."""
    real, numbers = getattr(os, name), count(1)

    def call(path: Any, *args: Any, **more: Any) -> Any:
        if not str(path).startswith(str(below)) or next(numbers) not in calls:
            return real(path, *args, **more)
        if before is not None:
            before()
        try:
            return real(path, *args, **more)
        finally:
            if after is not None:
                after()

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", PATHS)
def test_every_known_way_out_is_closed(tmp_path: Path, kind: str, path: str) -> None:
    jail, outside = build_jail(tmp_path)
    before, outcome = read_outside(outside), Outcome()
    for name in ("swap", "swapfile"):
        Swap(jail, name)()
    try_tool(ToolContext(work_dir=jail), kind, path.format(outside=outside), outcome)
    assert outcome.escapes == []
    assert read_outside(outside) == before


def test_the_tools_work(tmp_path: Path) -> None:
    jail, _ = build_jail(tmp_path)
    sandbox = Sandbox(jail)
    sandbox.write("new/deep/file.txt", b"one")
    sandbox.change("new/deep/file.txt", lambda data: data + b" two", limit=100)
    with sandbox.open("new/deep/file.txt") as file:
        assert file.read() == b"one two"
    assert [entry.path for entry in sandbox.walk("new", lambda: True)] == ["new/deep", "new/deep/file.txt"]


def test_the_working_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    Sandbox(tmp_path / "link").write("a/b.txt", b"x")
    assert (tmp_path / "real/a/b.txt").read_bytes() == b"x"


# -- swaps -------------------------------------------------------------------------------------------------------------


def read(jail: Path, path: str) -> str:
    try:
        with Sandbox(jail).open(path) as file:
            return file.read().decode()
    except FileRefused as error:
        return str(error).partition(": ")[2]


@pytest.mark.parametrize("swaps_back", [False, True])
@pytest.mark.parametrize("path", ["swap/secret.txt", "swap/inner/secret.txt", "swapfile"])
def test_a_file_that_is_swapped_as_it_is_opened_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, swaps_back: bool
) -> None:
    jail, _ = build_jail(tmp_path)
    assert read(jail, path) == "inside\n"
    swap = Swap(jail, path.partition("/")[0])
    act_around(monkeypatch, "open", before=swap, after=swap if swaps_back else None, below=jail)
    assert read(jail, path) in (LINK, SWAPPED)
    assert swap.count == 1 + swaps_back


@pytest.mark.parametrize("looks", [set(), {1}, {2}, {3}, {1, 2}, {1, 3}])
def test_a_directory_that_is_swapped_during_several_steps_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: set[int]
) -> None:
    """The file is looked at three times: to see what it is, before it is opened, and after that."""
    jail, _ = build_jail(tmp_path)
    swap, file = Swap(jail), jail / "swap/secret.txt"
    act_around(monkeypatch, "open", before=swap, after=swap, below=file)
    act_around(monkeypatch, "lstat", before=swap, after=swap, below=file, calls=frozenset(looks))
    assert read(jail, "swap/secret.txt") == SWAPPED
    assert swap.count == 2 + 2 * len(looks - {3})  # what is seen through is seen before the third look


def test_a_directory_that_is_swapped_for_another_one_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jail, _ = build_jail(tmp_path)
    (jail / "swap.other").unlink()
    (jail / "swap.other").mkdir()
    act_around(monkeypatch, "open", before=Swap(jail), below=jail)
    with pytest.raises(FileRefused, match=SWAPPED):
        Sandbox(jail).write("swap/new.txt", b"new")
    assert list((jail / "swap").iterdir()) == []


@pytest.mark.parametrize("swaps_back", [False, True])
def test_nothing_of_the_outside_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps_back: bool) -> None:
    jail, _ = build_jail(tmp_path)
    swap = Swap(jail)
    act_around(monkeypatch, "scandir", before=swap, after=swap if swaps_back else None, below=jail / "swap")
    if swaps_back:  # the names of the outside are looked up inside, and not found
        found = [entry.path for entry in Sandbox(jail).entries("swap", lambda: True)]
        assert set(found) <= {"swap/inner", "swap/secret.txt"}
    else:
        with pytest.raises(FileRefused, match=LINK):
            Sandbox(jail).entries("swap", lambda: True)
    assert swap.count == 1 + swaps_back


@pytest.mark.parametrize("moment", ["before the look", "after the look"])
def test_a_name_of_the_outside_is_not_looked_up_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The names come from the outside, and one of them is looked at while the directory is swapped again."""
    jail, _ = build_jail(tmp_path)
    swap, visits = Swap(jail), iter([True, False])
    if moment == "before the look":
        act_around(monkeypatch, "scandir", before=swap, below=jail / "swap")
        act_around(monkeypatch, "lstat", after=swap, below=f"{jail}/swap/")
    else:
        act_around(monkeypatch, "scandir", before=swap, after=swap, below=jail / "swap")
        act_around(monkeypatch, "lstat", before=swap, below=f"{jail}/swap/")
    with pytest.raises(FileRefused, match=LINK):
        Sandbox(jail).entries("swap", lambda: next(visits))


@pytest.mark.parametrize("swaps_back", [False, True])
@pytest.mark.parametrize("step", ["open", "replace"])
def test_no_content_is_written_to_the_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, swaps_back: bool
) -> None:
    """The worst that is left there is an empty file with a name of its own."""
    jail, outside = build_jail(tmp_path)
    before, swap = read_outside(outside), Swap(jail)
    act_around(monkeypatch, step, before=swap, after=swap if swaps_back else None, below=jail)
    with pytest.raises(FileRefused):
        Sandbox(jail).write("swap/secret.txt", b"new")
    after = read_outside(outside)
    left = {name: after.pop(name) for name in set(after) - set(before)}
    assert after == before
    assert all(name.startswith(".holdfast-") and data == b"" for name, data in left.items())
    assert swap.count == 1 + swaps_back


def test_a_write_that_ended_elsewhere_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is swapped inside the one step that no check can divide: this is what is weaker on Windows."""
    jail, outside = build_jail(tmp_path)
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: real(source, outside / Path(target).name))
    with pytest.raises(FileRefused, match=SWAPPED):
        Sandbox(jail).write("swap/secret.txt", b"new")


def test_a_directory_that_was_swapped_before_another_is_made_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jail, outside = build_jail(tmp_path)
    before = read_outside(outside)
    act_around(monkeypatch, "lstat", after=Swap(jail), below=jail / "swap/new")  # which is not there yet
    with pytest.raises(FileRefused, match=LINK):
        Sandbox(jail).write("swap/new/file.txt", b"new")
    assert read_outside(outside) == before


def test_a_directory_that_is_swapped_as_another_is_made_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jail, outside = build_jail(tmp_path)
    act_around(monkeypatch, "mkdir", before=Swap(jail), below=jail)
    with pytest.raises(FileRefused, match=LINK):
        Sandbox(jail).write("swap/new/file.txt", b"new")
    assert [path.name for path in (outside / "new").iterdir()] == []  # the directory may be left there, empty


# -- what Windows does otherwise ---------------------------------------------------------------------------------------


def refuse(code: int, times: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """A call that fails so many times."""
    left = iter(range(times))

    def call(*args: Any, **more: Any) -> Any:
        if next(left, None) is not None:
            raise OSError(code, os.strerror(code))
        return real(*args, **more)

    return call


def test_a_file_that_another_program_reads_is_replaced_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "replace", refuse(errno.EACCES, 3, os.replace))
    Sandbox(tmp_path).write("file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.ENOSPC), ("replace", errno.EACCES)])
def test_a_write_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(module, "_REPLACE_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(os, call, refuse(code, 100, getattr(os, call)))
    with pytest.raises(FileRefused):
        Sandbox(tmp_path).write("file", b"new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_system_that_does_not_tell_files_apart_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    real = os.lstat

    def without_identity(path: Any, **more: Any) -> os.stat_result:
        found = list(real(path, **more))
        found[1] = 0  # st_ino
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", without_identity)
    assert read(tmp_path, "file") == "its file system does not tell files apart"


def test_descriptors_are_all_closed(tmp_path: Path) -> None:
    jail, outside = build_jail(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for kind in KINDS:
        for path in PATHS:
            try_tool(ToolContext(work_dir=jail), kind, path.format(outside=outside), Outcome())
    assert len(os.listdir("/proc/self/fd")) == before
