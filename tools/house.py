"""Measure how readable the code base is: names, words, sizes and duplicate code.

    python tools/house.py                  the table
    python tools/house.py --list           the table, then every offender as file:line
    python tools/house.py --root PATH      another checkout
    python tools/house.py journey          how many holdfast modules five common operations pass through

`tests/test_house.py` holds the bounds. What counts is decided by the word lists below: a name that is good English and
still reported belongs into a stop list, with a thought about whether a verb would say more.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MAX_PARTICIPLES = 1.5  # per cent of all functions
MAX_GERUND_MODULES = 2
MAX_RIDDLES = 1.0  # per 1,000 words
SIZES = (400, 500)  # lines of a module that is worth a second look, and of one that is too long

RIDDLES = (
    "whoever",
    "whatever",
    "whichever",
    "somebody",
    "someone",
    "anybody",
    "anyone",
    "nobody",
    "no one",
    "told",
    "meanwhile",
)
ONE_MEANING = ("plan", "keep", "work", "leg", "turn", "loop", "memory", "head", "frame", "tail", "batch")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Verbs that only look like a participle or a gerund, and gerunds that are the common noun for their subject.
NOT_ED = _split("""
    bed bleed breed creed deed embed exceed feed greed heed hundred need proceed red reed seed shed sled speed succeed
    weed
""")
NOT_ING = _split("""
    anything binding bring building ceiling cling ding docstring embedding encoding ending evening everything fling
    heading king listing logging mapping meaning morning nothing padding pending ping pricing ranking rating ring
    routing setting sibling sing sling something spelling spring sting string swing thing timing warning wing
""")
# Participles that do not end in -ed. Forms that are also the verb or a noun (read, run, put, cut, set, let, cast, hit,
# bound) are left out.
IRREGULAR = _split("""
    beaten begun bent bitten born borne bought broken brought built caught chosen dealt done drawn driven eaten fallen
    felt forgotten fought found frozen given gone grown heard held hidden kept known laid learnt led left lent lost
    made meant met paid proven ridden risen said seen sent shaken shown slept sold spent spoken stolen stood stuck
    sworn taken taught thought thrown told torn understood woken won worn woven written
""")
PREFIXES = ("un", "re", "over", "under", "mis", "out", "fore")

_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_RIDDLE = re.compile(r"\b(" + "|".join(RIDDLES).replace(" ", r"\s+") + r")\b", re.IGNORECASE)
_FENCE = re.compile(r"\s*(```+|~~~+)")
_CODE_SPAN = re.compile(r"`+[^`]*`+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A name or word in a file."""

    path: str  # relative to the root
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.name}"


@dataclass(frozen=True, slots=True)
class Prose:
    """A number of words, and the riddle words among them."""

    words: int
    riddles: list[Place]

    @property
    def rate(self) -> float:
        """Riddle words per 1,000 words."""
        return 1000 * len(self.riddles) / self.words if self.words else 0.0


@dataclass(slots=True)
class Measure:
    """The figures of one checkout."""

    functions: int = 0  # methods and nested functions included, @overload stubs not
    participles: list[Place] = field(default_factory=list)
    modules: list[Place] = field(default_factory=list)  # the line is the length of the module
    gerunds: list[Place] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # lines of each function, from `def` to its last line
    twins: list[Place] = field(default_factory=list)
    meanings: dict[str, list[Place]] = field(default_factory=lambda: {word: [] for word in ONE_MEANING})
    code_lines: int = 0
    docstring_lines: int = 0
    comment_lines: int = 0  # lines with a comment, behind code or alone
    source: Prose = field(default_factory=lambda: Prose(0, []))  # docstrings and comments of src
    pages: Prose = field(default_factory=lambda: Prose(0, []))  # docs and the pages at the root, without code

    @property
    def participle_share(self) -> float:
        """Functions named by a participle, in per cent."""
        return 100 * len(self.participles) / self.functions if self.functions else 0.0

    def longer_than(self, lines: int) -> list[Place]:
        """The modules of more than so many lines, longest first."""
        return sorted((place for place in self.modules if place.line > lines), key=lambda place: -place.line)


def measure(root: Path = ROOT) -> Measure:
    """Read `src`, `docs` and the pages at the root of a checkout."""
    found = Measure()
    texts: list[tuple[str, int, str]] = []
    for path in sorted((root / "src").rglob("*.py")):
        texts += _measure_module(path, str(path.relative_to(root)), found)
    found.source = count_riddles(texts)
    pages = [*sorted((root / "docs").rglob("*.md")), *(root / name for name in PAGES)]
    found.pages = count_riddles(
        (str(path.relative_to(root)), line, text)
        for path in pages
        if path.exists()
        for line, text in prose_of(path.read_text(encoding="utf-8"))
    )
    return found


# -- words ---------------------------------------------------------------------------------------------------------


def is_participle(name: str) -> bool:
    """Whether the first word of a function's name is a past participle or a gerund.

    `created_at` is not reported: with `at` the name of an instant is complete.
    """
    if name.startswith("__") and name.endswith("__"):
        return False
    words = name.strip("_").lower().split("_")
    first = words[0]
    if words[1:] == ["at"]:
        return False
    if first.endswith("ed"):
        return len(first) > 3 and first not in NOT_ED
    if first.endswith("ing"):
        return len(first) > 4 and first not in NOT_ING
    return first in IRREGULAR or any(first.removeprefix(prefix) in IRREGULAR for prefix in PREFIXES)


def is_gerund_module(path: Path) -> bool:
    """Whether the last word of a module's name is a gerund. Packages do not count."""
    last = path.stem.lower().rsplit("_", 1)[-1]
    return last.endswith("ing") and last not in NOT_ING


def count_riddles(texts: Iterable[tuple[str, int, str]]) -> Prose:
    """Count words, and find the riddle words with their lines, in (path, first line, text)."""
    words, riddles = 0, []
    for path, first, text in texts:
        words += len(_WORD.findall(text))
        for match in _RIDDLE.finditer(text):
            line = first + text.count("\n", 0, match.start())
            riddles.append(Place(path, line, " ".join(match[0].lower().split())))
    return Prose(words, riddles)


def prose_of(page: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a Markdown page, without fenced blocks and code spans."""
    fence = ""
    for number, line in enumerate(page.splitlines(), 1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield number, _CODE_SPAN.sub(" ", line)


# -- modules -------------------------------------------------------------------------------------------------------


def _measure_module(path: Path, name: str, found: Measure) -> Iterator[tuple[str, int, str]]:
    """Add one module to the figures; yields its docstrings and comments as (path, first line, text)."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, name)
    found.modules.append(Place(name, len(text.splitlines()), path.stem))
    if is_gerund_module(path):
        found.gerunds.append(Place(name, 1, path.stem))
    _note_meanings(Place(name, 1, path.stem), found)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function):
            _measure_function(node, name, found)
        if isinstance(node, ast.ClassDef):
            _note_meanings(Place(name, node.lineno, node.name), found)
        if isinstance(node, ast.ClassDef | ast.Module):
            found.twins += _find_twins(node, name)
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (docstring := _find_docstring(node)):
            docstrings.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
            yield name, docstring.lineno, docstring.value
    code: set[int] = set()
    comments: set[int] = set()
    blank = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
            yield name, token.start[0], token.string.lstrip("#")
        elif token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    found.code_lines += len(code - docstrings)
    found.docstring_lines += len(docstrings)
    found.comment_lines += len(comments)


class _Text(NamedTuple):
    value: str
    lineno: int
    end_lineno: int | None


def _find_docstring(node: ast.Module | ast.ClassDef | Function) -> _Text | None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return _Text(first.value.value, first.lineno, first.end_lineno)
    return None


def _measure_function(node: Function, name: str, found: Measure) -> None:
    if _is_overload(node):
        return
    found.functions += 1
    found.sizes.append((node.end_lineno or node.lineno) - node.lineno + 1)
    place = Place(name, node.lineno, node.name)
    _note_meanings(place, found)
    if is_participle(node.name) and not _returns_bool(node):
        found.participles.append(place)


def _note_meanings(place: Place, found: Measure) -> None:
    """File a name under each word of it that must have one meaning; a plural counts as the word."""
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", place.name)}
    for word, places in found.meanings.items():
        if parts & {word, f"{word}s", f"{word}es", f"{word[:-1]}ies"}:
            places.append(place)


def _find_twins(scope: ast.Module | ast.ClassDef, name: str) -> list[Place]:
    """Functions that are written out twice, as `x` and as `x_async`. Declarations without a body do not count."""
    own = {
        node.name: node
        for node in scope.body
        if isinstance(node, Function) and not _is_overload(node) and not _is_stub(node)
    }
    owner = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
    return [
        Place(name, own[f"{each}_async"].lineno, f"{owner}{each} / {each}_async")
        for each in own
        if f"{each}_async" in own
    ]


def _is_overload(node: Function) -> bool:
    return any(ast.unparse(each).rsplit(".", 1)[-1] == "overload" for each in node.decorator_list)


def _is_stub(node: Function) -> bool:
    body = node.body[1:] if _find_docstring(node) else node.body
    return all(isinstance(each, ast.Pass) or ast.unparse(each) == "..." for each in body)


def _returns_bool(node: Function) -> bool:
    return node.returns is not None and bool(re.match(r"(bool|Type(Guard|Is)\[.*)$", ast.unparse(node.returns)))


# -- the table -----------------------------------------------------------------------------------------------------


def format_table(found: Measure) -> str:
    """The figures, one a line, with their bounds."""
    sizes = sorted(found.sizes) or [0]
    rows: list[tuple[str, str, str]] = [
        ("modules", f"{len(found.modules)}", ""),
        ("lines of code", f"{found.code_lines:,}", ""),
        ("lines of docstrings", f"{found.docstring_lines:,}", ""),
        ("lines with a comment", f"{found.comment_lines:,}", ""),
        ("functions and methods", f"{found.functions:,}", ""),
        ("lines of a function: median", f"{statistics.median(sizes):g}", ""),
        ("lines of a function: 90th percentile", f"{sizes[int(0.9 * (len(sizes) - 1))]}", ""),
        ("functions named by a participle", f"{len(found.participles)}", ""),
        ("  of all functions", f"{found.participle_share:.1f} %", f"<= {MAX_PARTICIPLES} %"),
        ("modules named by a gerund", f"{len(found.gerunds)}", f"<= {MAX_GERUND_MODULES}"),
        ("riddle words in docstrings and comments", f"{len(found.source.riddles)}", ""),
        ("  per 1,000 words", f"{found.source.rate:.1f}", f"<= {MAX_RIDDLES:g}"),
        ("riddle words in docs", f"{len(found.pages.riddles)}", ""),
        ("  per 1,000 words", f"{found.pages.rate:.1f}", f"<= {MAX_RIDDLES:g}"),
        ("functions written twice (x, x_async)", f"{len(found.twins)}", ""),
    ]
    rows += [(f"modules over {size} lines", f"{len(found.longer_than(size))}", "") for size in SIZES]
    lines = [f"{name:<42}{value:>8}   {bound}".rstrip() for name, value, bound in rows]
    lines += [f"  {place.line:>4}  {place.path}" for place in found.longer_than(SIZES[0])]
    return "\n".join(lines)


def format_list(found: Measure) -> str:
    """Every offender, by kind, as file:line."""
    kinds: list[tuple[str, list[Place]]] = [
        ("functions named by a participle", found.participles),
        ("modules named by a gerund", found.gerunds),
        ("riddle words in docstrings and comments", found.source.riddles),
        ("riddle words in docs", found.pages.riddles),
        ("functions written twice", found.twins),
        *((f"names with the word {word!r}", places) for word, places in found.meanings.items()),
    ]
    return "\n\n".join("\n".join([f"# {title}: {len(places)}", *map(str, places)]) for title, places in kinds)


# -- journeys ------------------------------------------------------------------------------------------------------


class Passage:
    """The holdfast modules whose functions are called while it is open, on this thread and on new ones."""

    def __init__(self, package: Path) -> None:
        self._package = str(package)
        self._codes: set[CodeType] = set()

    def __enter__(self) -> Passage:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def clear(self) -> None:
        """Count from here."""
        self._codes.clear()

    @property
    def modules(self) -> list[str]:
        """Their dotted names below the package, sorted."""
        paths = {Path(code.co_filename) for code in self._codes.copy() if code.co_filename.startswith(self._package)}
        return sorted(".".join(path.relative_to(self._package).with_suffix("").parts) for path in paths)


def run_journeys(folder: Path) -> dict[str, list[str]]:
    """Perform five common operations on a SQLite file with a scripted model; which modules each passes through.

    Each runs twice, and the second time counts: the first one imports modules and opens the file.
    """
    import holdfast
    from holdfast.stores import SQLiteStore
    from holdfast.testing import call

    package = Path(holdfast.__file__).parent

    @holdfast.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def script(request: Any) -> Any:  # noqa: ANN401 - a ModelRequest, and an item of a script
        last = request.messages[-1]
        return call("add", {"a": 2, "b": 3}) if last.role == "user" and request.tools else "five"

    found: dict[str, list[str]] = {}
    with SQLiteStore(folder / "sessions.db") as store:
        plain = holdfast.Agent(name="plain", provider="scripted", script=script, store=store)
        adder = holdfast.Agent(name="adder", provider="scripted", script=script, store=store, tools=[add])
        talk, sums = plain.session(), adder.session()
        journeys: dict[str, Callable[[], object]] = {
            "session.run": lambda: talk.run("hello"),
            "session.run with a tool": lambda: sums.run("2 and 3"),
            "session.stream": lambda: list(talk.stream("hello")),
            "session.fork and get_state": lambda: talk.fork().get_state("key"),
        }
        for name, journey in journeys.items():
            journey()
            with Passage(package) as passage:
                journey()
            found[name] = passage.modules
        found["a message over HTTP"] = _run_http_journey(package, store, plain)
    return found


def _run_http_journey(package: Path, store: Any, agent: Any) -> list[str]:  # noqa: ANN401 - a Store and an Agent
    """Post a message to the server's application, without a socket."""
    import asyncio

    import httpx2

    from holdfast.server.app import Server, create_app
    from holdfast.server.config import Config

    async def post(passage: Passage) -> list[str]:
        app = create_app(Server(store, Config(), token="journey", agents={"plain": agent}))
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app),
                base_url="http://127.0.0.1:2323",
                headers={"Authorization": "Bearer journey"},
            ) as client,
        ):
            (await client.post("/sessions", json={"id": "served"})).raise_for_status()
            body = {"agent_id": "plain", "message": "hello"}
            (await client.post("/sessions/served/message", json=body)).raise_for_status()
            await asyncio.sleep(0.2)  # the first run may still do its last work
            passage.clear()
            (await client.post("/sessions/served/message", json=body)).raise_for_status()
            return passage.modules

    # It opens before the server does: only threads that start while it is open are seen.
    with Passage(package) as passage:
        return asyncio.run(post(passage))


def main(arguments: list[str] | None = None) -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description="Measure how readable the code base is.")
    parser.add_argument("what", nargs="?", choices=("table", "journey"), default="table")
    parser.add_argument("--list", action="store_true", help="also print every offender as file:line")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    if options.what == "journey":
        sys.path.insert(0, str(root / "src"))
        with tempfile.TemporaryDirectory() as folder:
            journeys = run_journeys(Path(folder))
        for name, modules in journeys.items():
            print(f"{name:<42}{len(modules):>8} modules")
            if options.list:
                print("\n".join(f"  {module}" for module in modules))
        return 0
    found = measure(root)
    print(format_table(found))
    if options.list:
        print(f"\n{format_list(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
