"""Built-in tools: `remember`, and files, confined to the session's `work_dir`.

    from holdfast.tools import file_tools
    agent = Agent(tools=[file_tools])
    session = agent.session(work_dir="project")

Nothing outside the directory can be read, listed or changed, with any path that a model writes and any link in the
directory. Every answer is bounded, and says so where it was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import BinaryIO, Literal

from holdfast.errors import FileRefused, ToolError
from holdfast.tools.sandbox import Entry, Sandbox, read_whole_file
from holdfast.tools.tool import Tool, ToolContext, tool

__all__ = ["edit_file", "file_tools", "list_files", "read_file", "remember", "search_files", "write_file"]

MAX_READ = 128 << 10  # bytes of one answer
MAX_FILE = 16 << 20  # bytes of a file that is read, written, edited or searched
MAX_LISTED = 1_000
MAX_VISITED = 50_000
MAX_MATCHES = 200
MAX_SEARCHED = 256 << 20  # bytes, over all files
MAX_LINE = 300  # characters of a matching line
SKIPPED_DIRECTORIES = frozenset({".git", ".venv", "__pycache__", "node_modules"})


@tool
def remember(
    ctx: ToolContext,
    text: str,
    kind: Literal["fact", "decision", "feature", "progress", "artifact"] = "fact",
    status: str | None = None,
    ref: str | None = None,
) -> str:
    """Keep something that must not be forgotten, however long the conversation gets.

    What is already known by the same words and kind is updated, not kept twice.

    Args:
        text: What to remember, in one sentence that can be understood on its own.
        kind: What it is: a fact, a decision, a feature to build, progress made, or an artifact.
        status: How far it is, for example 'open' or 'done'.
        ref: Where it can be found, for example a path or a link.
    """
    if ctx.session is None:
        raise ToolError("there is no session to remember it in")
    facts = ctx.session.facts.in_turn(ctx.state.epoch)
    for fact in facts.all():
        if (fact.text, fact.kind) == (text, kind):
            facts.update(fact.id, status=status, ref=ref)
            return f"updated: {text}"
    facts.add(text, kind, status=status, ref=ref)
    return f"remembered: {text}"


@tool(idempotent=True)
def list_files(ctx: ToolContext, path: str = ".", pattern: str = "") -> str:
    """List a directory, or find files by name.

    Without a pattern: what is in the directory; directories end in '/', files have their size in bytes. With one: all
    files below it whose name or path matches; .git, .venv, __pycache__ and node_modules are left out.

    Args:
        path: The directory, relative to the working directory.
        pattern: What to look for, for example '*.py' or 'src/**/*.md'.
    """
    jail, visits = _open_sandbox(ctx), _VisitLimit(ctx)
    found: Iterator[Entry]
    if pattern:
        found = (entry for entry in jail.walk(path, visits, skip=SKIPPED_DIRECTORIES) if _matches(entry, pattern))
    else:
        found = iter(jail.entries(path, visits))
    lines = [_entry_line(entry) for entry in islice(found, MAX_LISTED + 1)]
    if len(lines) > MAX_LISTED:
        lines[MAX_LISTED:] = [f"[only the first {MAX_LISTED} are shown: name a directory further down, or a pattern]"]
    return "\n".join([*lines, *visits.note()]) or ("nothing matches" if pattern else "the directory is empty")


@tool(idempotent=True)
def read_file(ctx: ToolContext, path: str, offset: int = 1, limit: int = 2000) -> str:
    """Read a text file, or some of its lines.

    Args:
        path: The file, relative to the working directory.
        offset: The first line to read, from 1.
        limit: How many lines to read at most.
    """
    if offset < 1 or limit < 1:
        raise ToolError("offset and limit count lines, from 1")
    with _open_sandbox(ctx).open(path) as file:
        if _is_binary(file):
            return _binary_note(path, file)
        return _read_lines(path, file, offset, limit)


@tool(idempotent=True)
def write_file(ctx: ToolContext, path: str, content: str) -> str:
    """Write a text file: a new one, or all of an existing one. Missing directories are made.

    Args:
        path: The file, relative to the working directory.
        content: The whole new content.
    """
    data = content.encode(errors="replace")
    if len(data) > MAX_FILE:
        raise FileRefused(path, f"the content has {len(data)} bytes, and at most {MAX_FILE} can be written")
    _open_sandbox(ctx).write(path, data)
    return f"wrote {path}, {len(data)} bytes"


@tool
def edit_file(ctx: ToolContext, path: str, old: str, new: str) -> str:
    """Replace one piece of text in a file. The old text must occur exactly once: give enough of it to be unique.

    Args:
        path: The file, relative to the working directory.
        old: The text to replace, exactly as it is in the file.
        new: The text to put in its place.
    """
    if not old:
        raise ToolError("old is empty: give the text to replace, or use write_file")
    if old == new:
        raise ToolError("old and new are the same: nothing to change")

    def edit_content(data: bytes) -> bytes:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise FileRefused(path, "it is not UTF-8 text and cannot be edited") from error
        count = _occurrences(text, old)
        if count == 1:
            return text.replace(old, new).encode(errors="replace")
        if count > 1:
            raise FileRefused(path, f"the old text occurs {count} times: give more of it, so that it is unique")
        hint = " The file has Windows line ends (\\r\\n)." if "\r\n" in text and "\n" in old else ""
        raise FileRefused(path, f"the old text occurs 0 times: read the file again and copy it exactly.{hint}")

    _open_sandbox(ctx).change(path, edit_content, limit=MAX_FILE)
    return f"edited {path}"


@tool(idempotent=True)
def search_files(ctx: ToolContext, text: str, path: str = ".", pattern: str = "*", ignore_case: bool = False) -> str:
    """Find the lines that contain a text, in all text files below a directory, as 'path:line: content'.

    Binary files, very large ones, and those in .git, .venv, __pycache__ and node_modules are left out.

    Args:
        text: The text to find, as it is: no regular expression.
        path: The directory, relative to the working directory.
        pattern: Which files to search, for example '*.py'.
        ignore_case: Whether upper and lower case are the same.
    """
    if not text or "\n" in text:
        raise ToolError("text must be a part of one line")
    jail, visits = _open_sandbox(ctx), _VisitLimit(ctx)
    fold: Callable[[str], str] = str.casefold if ignore_case else str
    found: list[str] = []
    searched = 0
    for entry in jail.walk(path, visits, skip=SKIPPED_DIRECTORIES):
        if not _matches(entry, pattern) or entry.size > MAX_FILE:
            continue
        searched += entry.size
        if searched > MAX_SEARCHED:
            found.append(f"[the search ended after {MAX_SEARCHED} bytes: name a directory further down, or a pattern]")
            break
        found += islice(_search_file(jail, entry.path, fold(text), fold), MAX_MATCHES + 1 - len(found))
        if len(found) > MAX_MATCHES:
            found[MAX_MATCHES:] = [f"[only the first {MAX_MATCHES} matches are shown: search for something rarer]"]
            break
    return "\n".join([*found, *visits.note()]) or "nothing matches"


file_tools: list[Tool] = [list_files, read_file, write_file, edit_file, search_files]


class _VisitLimit:
    """Counts what is looked at, so that no directory is too large."""

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx, self._left = ctx, MAX_VISITED

    def __call__(self) -> bool:
        if self._ctx.cancelled:
            raise ToolError("cancelled")
        self._left -= 1
        return self._left >= 0

    def note(self) -> list[str]:
        if self._left >= 0:
            return []
        return [
            f"[not everything was looked at: there are more than {MAX_VISITED} files; name a directory further down]"
        ]


def _open_sandbox(ctx: ToolContext) -> Sandbox:
    work_dir = ctx.work_dir
    if work_dir is None:
        raise ToolError("this session has no working directory: open it with Session(work_dir=...)")
    return Sandbox(work_dir)


def _matches(entry: Entry, pattern: str) -> bool:
    if not entry.is_file:
        return False
    if "/" not in pattern:
        return fnmatchcase(entry.path.rpartition("/")[2], pattern)
    # '**/' also stands for no directory at all; '*' crosses directories here, which finds more rather than less.
    return fnmatchcase(entry.path, pattern) or fnmatchcase(entry.path, pattern.replace("**/", ""))


def _entry_line(entry: Entry) -> str:
    if entry.is_directory:
        return f"{entry.path}/"
    return f"{entry.path}  {entry.size}" if entry.is_file else f"{entry.path}  (a link or a special file)"


def _is_binary(file: BinaryIO) -> bool:
    start = file.read(8192)
    file.seek(0)
    return b"\0" in start


def _binary_note(path: str, file: BinaryIO) -> str:
    return f"{path} is a binary file of {file.seek(0, 2)} bytes; it cannot be shown as text"


def _read_lines(path: str, file: BinaryIO, offset: int, limit: int) -> str:
    shown: list[bytes] = []
    number, room = 1, MAX_READ  # `number` is the line that comes next
    while room and number < offset + limit:
        piece = file.readline(room if number >= offset else MAX_READ)  # a very long line comes in pieces
        if not piece:
            break
        if number >= offset:
            shown.append(piece)
            room -= len(piece)
        elif file.tell() > MAX_SEARCHED:
            raise FileRefused(path, f"line {offset} lies behind the first {MAX_SEARCHED} bytes, and is too far to read")
        number += piece.endswith(b"\n")
    data, has_more = b"".join(shown), bool(file.read(1))
    if not data:
        return f"[{path} ends before line {offset}]" if offset > 1 else f"[{path} is empty]"
    if has_more and not data.endswith(b"\n"):
        if b"\n" in data:  # the line at the cut is left for the next answer
            data = data[: data.rindex(b"\n") + 1]
        else:
            data = data.decode(errors="ignore").encode() + b"\n[the rest of this line is left out]\n"
            number += 1
    text = data.decode(errors="replace")
    notes = [f"[there is more: read on with offset={number}]"] if has_more else []
    if "\ufffd" in text and "\ufffd".encode() not in data:
        notes.append("[what is not UTF-8 is shown as \ufffd]")
    return "\n".join([text.removesuffix("\n"), *notes]) if notes else text


def _occurrences(text: str, part: str) -> int:
    """How often a part occurs, overlaps included: 'aa' is twice in 'aaa', and to replace it would be a guess."""
    count, at = 0, text.find(part)
    while at >= 0:
        count, at = count + 1, text.find(part, at + 1)
    return count


def _search_file(jail: Sandbox, path: str, text: str, fold: Callable[[str], str]) -> Iterator[str]:
    try:
        with jail.open(path) as file:
            if _is_binary(file):
                return
            data = read_whole_file(file, path, limit=MAX_FILE)
    except FileRefused:
        return  # gone, swapped or unreadable since it was listed
    if text not in fold(data.decode(errors="replace")):
        return
    for number, line in enumerate(data.split(b"\n"), 1):  # lines as read_file counts them
        if text in fold(line.decode(errors="replace")):
            shown = line.decode(errors="replace").strip()
            yield f"{path}:{number}: {shown if len(shown) <= MAX_LINE else shown[:MAX_LINE] + '…'}"
