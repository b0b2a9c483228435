"""What the built-in file tools say and do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Agent
from holdfast.errors import BadArguments, StaleEpoch, ToolError
from holdfast.tools import edit_file, file_tools, list_files, read_file, remember, search_files, write_file
from holdfast.tools import files as tools
from holdfast.tools.tool import ToolContext, as_tools


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    return ToolContext(work_dir=tmp_path)


def test_they_are_five_and_hide_the_context() -> None:
    assert [found.name for found in as_tools(file_tools)] == [
        "list_files",
        "read_file",
        "write_file",
        "edit_file",
        "search_files",
    ]
    for found in file_tools:
        assert found.description
        assert found.wants_context
        for key, parameter in found.parameters["properties"].items():
            assert key != "ctx"
            assert parameter["description"]
    assert [found.idempotent for found in file_tools] == [True, True, True, False, True]


def test_they_are_called_as_a_model_would(ctx: ToolContext) -> None:
    def run_tool(name: str, **arguments: Any) -> str:
        found = next(item for item in file_tools if item.name == name)
        text: str = found.start(found.validate(arguments), ctx)
        return text

    assert run_tool("list_files") == "the directory is empty"
    assert run_tool("write_file", path="src/a.py", content="x = 1\ny = 2\n") == "wrote src/a.py, 12 bytes"
    assert run_tool("list_files") == "src/"
    assert run_tool("list_files", path="src") == "src/a.py  12"
    assert run_tool("read_file", path="src/a.py") == "x = 1\ny = 2\n"
    assert run_tool("edit_file", path="src/a.py", old="x = 1", new="x = 3") == "edited src/a.py"
    assert run_tool("search_files", text="= 3") == "src/a.py:1: x = 3"
    with pytest.raises(BadArguments, match="'path' is missing"):
        run_tool("read_file")


def test_without_a_working_directory_the_fix_is_named() -> None:
    for found in file_tools:
        arguments = {"path": "a", "content": "", "old": "a", "new": "b", "text": "x"}
        known = {key: value for key, value in arguments.items() if key in found.parameters["properties"]}
        with pytest.raises(ToolError, match=r"open it with Session\(work_dir=\.\.\.\)"):
            found.start(found.validate(known), ToolContext())


def test_listing_shows_what_is_there(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "b.txt").write_text("12345")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "link").symlink_to("b.txt")
    assert list_files(ctx) == ".hidden  0\nb.txt  5\ndir/\nlink  (a link or a special file)"
    with pytest.raises(ToolError, match=r"'b\.txt': a part of the path is not a directory"):
        list_files(ctx, "b.txt")


def test_files_are_found_by_pattern(ctx: ToolContext, tmp_path: Path) -> None:
    for name in ("a.py", "src/b.py", "src/deep/c.py", "src/deep/d.md", ".git/e.py", "node_modules/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def find(pattern: str, path: str = ".") -> list[str]:
        return [line.split()[0] for line in list_files(ctx, path, pattern).splitlines()]

    assert find("*.py") == find("**/*.py") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert find("*.py", "src") == ["src/b.py", "src/deep/c.py"]
    assert find("src/**/*.md") == ["src/deep/d.md"]
    assert find("*.py", ".git") == [".git/e.py"]
    assert list_files(ctx, pattern="*.rs") == "nothing matches"


def test_long_listings_are_cut_and_say_so(ctx: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}").write_text("needle")
    monkeypatch.setattr(tools, "MAX_LISTED", 10)
    lines = list_files(ctx).splitlines()
    assert lines[9:] == ["09  6", "[only the first 10 are shown: name a directory further down, or a pattern]"]
    monkeypatch.setattr(tools, "MAX_VISITED", 5)
    assert "[not everything was looked at: there are more than 5 files" in list_files(ctx)
    assert "[not everything was looked at" in search_files(ctx, "needle")


def test_a_file_is_read_by_lines(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    assert read_file(ctx, "f", offset=9) == "line 9\nline 10\n"
    assert read_file(ctx, "f", limit=2) == "line 1\nline 2\n[there is more: read on with offset=3]"
    assert read_file(ctx, "f", offset=10, limit=1) == "line 10\n"
    assert read_file(ctx, "f", offset=11) == "[f ends before line 11]"
    (tmp_path / "empty").write_text("")
    assert read_file(ctx, "empty") == "[empty is empty]"
    (tmp_path / "open").write_text("a\r\nb")
    assert read_file(ctx, "open") == "a\r\nb"
    with pytest.raises(ToolError, match="count lines, from 1"):
        read_file(ctx, "f", offset=0)


def test_reading_on_gives_the_whole_file(ctx: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_READ", 100)
    whole = "".join(f"zeile {number} mit ü und € und 😀\n" for number in range(50))
    (tmp_path / "f").write_text(whole)
    read, offset = "", 1
    while True:
        text = read_file(ctx, "f", offset=offset)
        body, marker, rest = text.partition("[there is more: read on with offset=")
        read += body
        if not marker:
            break
        offset = int(rest.removesuffix("]"))
    assert read == whole


def test_a_very_long_line_is_cut(ctx: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_READ", 100)
    (tmp_path / "f").write_text("ü" * 500 + "\nnext\n")
    assert read_file(ctx, "f").splitlines() == [
        "ü" * 50,
        "[the rest of this line is left out]",
        "[there is more: read on with offset=2]",
    ]
    assert read_file(ctx, "f", offset=2) == "next\n"


def test_binary_files_are_said_to_be_binary(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0needle")
    assert read_file(ctx, "image.png") == "image.png is a binary file of 12 bytes; it cannot be shown as text"
    assert search_files(ctx, "needle") == "nothing matches"
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert read_file(ctx, "latin") == "caf\ufffd\n[what is not UTF-8 is shown as \ufffd]"
    with pytest.raises(ToolError, match="'latin': it is not UTF-8 text and cannot be edited"):
        edit_file(ctx, "latin", "caf", "tea")


def test_writing_makes_directories_and_replaces_files(ctx: ToolContext, tmp_path: Path) -> None:
    assert write_file(ctx, "a/b/c.txt", "grün\0") == "wrote a/b/c.txt, 6 bytes"
    assert write_file(ctx, "a/b/c.txt", "") == "wrote a/b/c.txt, 0 bytes"
    assert (tmp_path / "a/b/c.txt").read_bytes() == b""
    with pytest.raises(ToolError, match="'a/b': it is a directory"):
        write_file(ctx, "a/b", "x")
    with pytest.raises(ToolError, match=r"'a/b/c\.txt/d': a part of the path is not a directory"):
        write_file(ctx, "a/b/c.txt/d", "x")


def test_what_is_too_large_is_refused(ctx: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_FILE", 10)
    (tmp_path / "f").write_text("needle-------")
    with pytest.raises(ToolError, match="the content has 11 bytes, and at most 10 can be written"):
        write_file(ctx, "g", "x" * 11)
    with pytest.raises(ToolError, match="'f': it has 13 bytes, and at most 10 can be used here"):
        edit_file(ctx, "f", "needle", "x")
    assert search_files(ctx, "needle") == "nothing matches"
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("content", "old", "text"),
    [
        ("abc", "x", "the old text occurs 0 times: read the file again"),
        ("one two one", "one", "the old text occurs 2 times: give more of it"),
        ("aaa", "aa", "the old text occurs 2 times"),
        ("a\r\nb", "a\nb", r"Windows line ends \(\\r\\n\)"),
        ("abc", "", "old is empty"),
        ("abc", "new", "old and new are the same"),
    ],
)
def test_an_edit_needs_exactly_one_place(ctx: ToolContext, tmp_path: Path, content: str, old: str, text: str) -> None:
    (tmp_path / "f").write_bytes(content.encode())
    with pytest.raises(ToolError, match=text):
        edit_file(ctx, "f", old, "new")
    assert (tmp_path / "f").read_bytes() == content.encode()


def test_an_edit_changes_that_place_only(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("\ufeffone\r\ntwo €\r\n".encode())
    edit_file(ctx, "f", "two €", "zwei")
    assert (tmp_path / "f").read_bytes() == "\ufeffone\r\nzwei\r\n".encode()
    with pytest.raises(ToolError, match="'g': there is no such file"):
        edit_file(ctx, "g", "a", "b")


def test_searching_finds_lines(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\n\nOS = 1  \u2028 os\n" + "x" * 1000 + "os")
    (tmp_path / "b.md").write_text("os\n")
    assert search_files(ctx, "os", pattern="*.py").splitlines()[0] == "a.py:1: import os"
    assert search_files(ctx, "os", pattern="*.md") == "b.md:1: os"
    assert search_files(ctx, "OS") == "a.py:3: OS = 1  \u2028 os"
    assert len(search_files(ctx, "OS", ignore_case=True).split("\n")) == 4
    assert search_files(ctx, "xos") == f"a.py:4: {'x' * 300}…"
    assert search_files(ctx, ".*") == "nothing matches"
    for bad in ("", "a\nb"):
        with pytest.raises(ToolError, match="a part of one line"):
            search_files(ctx, bad)


def test_many_matches_are_cut(ctx: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / f"{number}").write_text("needle\n" * 100)
    lines = search_files(ctx, "needle").splitlines()
    assert len(lines) == 201
    assert lines[-1] == "[only the first 200 matches are shown: search for something rarer]"
    monkeypatch.setattr(tools, "MAX_SEARCHED", 1000)
    assert "[the search ended after 1000 bytes" in search_files(ctx, "needle")


def test_a_cancelled_search_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(ToolError, match="cancelled"):
        search_files(ToolContext(work_dir=tmp_path, cancelled=lambda: True), "x")


def test_a_late_tool_remembers_nothing() -> None:
    session = Agent(provider="scripted", script=[]).session()

    def epoch() -> int:
        raise ToolError("the turn is over")

    late: Any = SimpleNamespace(epoch=epoch)
    with pytest.raises(ToolError, match="over"):
        remember(ToolContext(session=session, state=late), "too late")
    stale: Any = SimpleNamespace(epoch=lambda: 7)
    with pytest.raises(StaleEpoch):
        remember(ToolContext(session=session, state=stale), "of a turn that another process took over")
    assert session.facts.all() == []
