"""No path leads out of the working directory, and no write leaves half a file."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import FileRefused, ToolError
from holdfast.tools import edit_file
from holdfast.tools.sandbox import Sandbox
from holdfast.tools.tool import ToolContext
from tests.tools.sandbox_attacks import CANARY, PATHS, Outcome, build_jail, read_outside, run_attacks, try_tool

KINDS = ["read", "list", "find", "search", "write", "edit"]


def test_five_thousand_attempts_during_swaps_do_not_get_out(tmp_path: Path) -> None:
    outcome = run_attacks(tmp_path, attempts=5_000, seed=1)
    assert outcome.attempts == 5_000
    assert outcome.escapes == []
    # The race was a real one: the same path was sometimes the file, sometimes a link.
    assert outcome.seen["read swap/secret.txt done"]
    assert outcome.seen["write swap/new.txt done"]
    assert outcome.seen["refused: it is a symbolic link, and links are not followed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", PATHS)
def test_every_known_way_out_is_closed(tmp_path: Path, kind: str, path: str) -> None:
    jail, outside = build_jail(tmp_path)
    before, outcome = read_outside(outside), Outcome()
    for other in ("swap", "swapfile"):  # as after a swap
        (jail / other).rename(jail / f"{other}.real")
        (jail / f"{other}.other").rename(jail / other)
    try_tool(ToolContext(work_dir=jail), kind, path.format(outside=outside), outcome)
    assert outcome.escapes == []
    assert read_outside(outside) == before


PARTS = ["..", ".", "", "dir", "sub", "swap", "up", "out", "abs", "filelink", "deep", "a", "b", "link", "loop", "here"]
PARTS += [
    "proc",
    "cwd",
    "null",
    "fifo",
    "hardlink",
    "secret.txt",
    "outside",
    "inner",
    "new",
    "~",
    "$HOME",
    "%2e%2e",
    "..\\",
]
COMPONENT = st.sampled_from(PARTS) | st.text(st.characters(), max_size=4) | st.just("x" * 300)


@pytest.fixture(scope="module")
def jail_and_outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_jail(tmp_path_factory.mktemp("prison"))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["", "/", "//", "./", "../"]), st.lists(COMPONENT, max_size=8), st.sampled_from(KINDS))
def test_no_generated_path_gets_out(
    jail_and_outside: tuple[Path, Path], front: str, parts: list[str], kind: str
) -> None:
    jail, outside = jail_and_outside
    outcome = Outcome()
    try_tool(ToolContext(work_dir=jail), kind, front + "/".join(parts), outcome)
    assert outcome.escapes == []
    assert set(read_outside(outside).values()) == {CANARY.encode(), None}
    assert len(read_outside(outside)) == 4


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", "use a path relative to the working directory"),
        ("dir/../hardlink", r"'\.\.' is not allowed"),
        ("a\0b", "no NUL character"),
        ("a\ud800", "not valid text"),
        ("x" * 300, "the name is too long"),
        ("/".join(["a"] * 65), "at most 64 parts"),
        ("nothing", "there is no such file or directory"),
        ("dir", "it is a directory"),
        ("dir/", "it is a directory; name a file"),
        (".", "it is a directory; name a file"),
        ("dir/plain.txt/x", "a part of the path is not a directory"),
        ("filelink", "it is a symbolic link, and links are not followed"),
        ("out/secret.txt", "it is a symbolic link, and links are not followed"),
        ("fifo", "it is a pipe"),
        ("null", "it is a symbolic link"),
    ],
)
def test_a_refusal_says_why(jail_and_outside: tuple[Path, Path], path: str, reason: str) -> None:
    with pytest.raises(FileRefused, match=reason) as caught, Sandbox(jail_and_outside[0]).open(path):
        pass
    assert str(jail_and_outside[0]) not in str(caught.value)


def test_devices_and_sockets_are_not_opened() -> None:
    with pytest.raises(FileRefused, match="'zero': it is a device"), Sandbox("/dev").open("zero"):
        pass
    with pytest.raises(FileRefused, match="it is a device"):
        Sandbox("/dev").write("null", b"x")


def test_a_hard_link_is_a_file_and_a_write_leaves_the_other_name_alone(tmp_path: Path) -> None:
    jail, _ = build_jail(tmp_path)
    Sandbox(jail).write("hardlink", b"new")
    assert (jail / "hardlink").read_bytes() == b"new"
    assert (jail / "dir/plain.txt").read_bytes() == b"inside\n"


def test_the_working_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    Sandbox(tmp_path / "link").write("a/b/c.txt", b"x")
    assert (tmp_path / "real/a/b/c.txt").read_bytes() == b"x"


def test_a_working_directory_that_is_gone_is_named_as_the_cause(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="the working directory cannot be opened: there is no such"):
        Sandbox(tmp_path / "gone").write("a.txt", b"x")


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old")
    (tmp_path / "run.sh").chmod(0o750)
    Sandbox(tmp_path).write("run.sh", b"new")
    assert (tmp_path / "run.sh").stat().st_mode & 0o7777 == 0o750


def test_a_reader_sees_a_whole_file_at_all_times(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    versions = {bytes([letter]) * 300_000 for letter in b"abcd"}
    sandbox.write("file", next(iter(versions)))
    over = threading.Event()

    def write() -> None:
        for _ in range(20):
            for version in versions:
                sandbox.write("file", version)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while not over.is_set():
        assert (tmp_path / "file").read_bytes() in versions
        seen += 1
    writer.join()
    assert seen
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


WRITER = """
import sys
from holdfast.tools.sandbox import Sandbox
sandbox, n = Sandbox(sys.argv[1]), 0
while True:
    n += 1
    sandbox.write("file", (b"%08d" % n) * 20_000)
    if n == 3: print("writing", flush=True)
"""


@pytest.mark.parametrize("attempts", range(5))
def test_a_killed_writer_leaves_the_old_file_or_the_new(tmp_path: Path, attempts: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    for _ in range(attempts * 10):
        (tmp_path / "file").read_bytes()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    data = (tmp_path / "file").read_bytes()
    assert data == data[:8] * 20_000
    assert [entry.path for entry in Sandbox(tmp_path).entries("", lambda: True)] == [
        "file"
    ]  # what was left is not shown


@contextmanager
def fail_call(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> Iterator[None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        yield


@pytest.mark.parametrize("call", ["fsync", "rename", "fchmod"])
def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (tmp_path / "file").write_text("old")
    with fail_call(monkeypatch, call, errno.ENOSPC), pytest.raises(FileRefused, match="no space is left on the disk"):
        Sandbox(tmp_path).write("file", b"new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_edits_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [f"<{number}>" for number in range(40)]
    (tmp_path / "file").write_text("".join(names))
    ctx = ToolContext(work_dir=tmp_path)
    threads = [threading.Thread(target=edit_file, args=(ctx, "file", name, f"({name[1:-1]})")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_text() == "".join(f"({number})" for number in range(40))


def test_descriptors_are_all_closed(jail_and_outside: tuple[Path, Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for kind in KINDS:
        for path in PATHS:
            try_tool(
                ToolContext(work_dir=jail_and_outside[0]), kind, path.format(outside=jail_and_outside[1]), Outcome()
            )
    assert len(os.listdir("/proc/self/fd")) == before
