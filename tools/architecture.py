"""The layers of `src/holdfast` as data, the imports between its packages as the code has them, and the table of both
that `docs/architecture.md` shows.

`python tools/architecture.py` prints the table; `python tools/architecture.py --write` puts it into the page.
`tests/test_architecture.py` fails if the page is out of date or an import points against the layers.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "holdfast"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- imports: begin -->", "<!-- imports: end -->"

# From top to bottom: a package imports only from layers below its own. A package is a folder or a module at the top.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("command line", ("cli",)),
    ("shells", ("server", "client", "testing")),
    ("awaited names", ("aio",)),
    ("what users hold", ("flow", "agent", "agent_base", "session", "entity")),
    ("memories", ("memory",)),
    ("queued runs", ("worker",)),
    ("one turn", ("turn",)),
    ("prompts", ("prompt",)),
    ("plans", ("plan",)),
    ("tools", ("tools",)),
    ("ports", ("stores", "models", "schema")),
    ("pure decisions", ("policy",)),
    ("pure log", ("log",)),
    ("helpers", ("concurrency", "http_client", "data_dir", "media_file")),
    ("floor", ("errors", "clock", "crashpoints", "diagnostics")),
    ("operating systems", ("operating_system",)),
)
# Packages of this layer may import each other: a session makes its default agent, an agent opens a session.
USERS = "what users hold"
FRONT = "holdfast"  # the front door: only the public names, loaded when they are asked for


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement between two packages; imports inside functions count, and so do those for types only."""

    module: str
    package: str
    target: str  # dotted name of what is imported
    target_package: str
    line: int


def modules(source: Path = SOURCE) -> list[tuple[str, Path]]:
    """Every module as its dotted name below `holdfast`, and its file."""
    return [(".".join(path.relative_to(source).with_suffix("").parts), path) for path in sorted(source.rglob("*.py"))]


def package_of(module: str) -> str:
    """The package of a dotted name below `holdfast`."""
    first = module.split(".")[0]
    return FRONT if first == "__init__" else first


def imported_names(path: Path) -> Iterator[tuple[str, int]]:
    """The dotted name of everything that a file imports, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def imports_between(source: Path = SOURCE) -> list[Import]:
    """Every import from one package of holdfast into another."""
    packages = {package_of(module) for module, _ in modules(source)}
    found = []
    for module, path in modules(source):
        package = package_of(module)
        for target, line in imported_names(path):
            if target != "holdfast" and not target.startswith("holdfast."):
                continue
            first = package_of(target.removeprefix("holdfast."))
            target_package = first if first in packages else FRONT  # `from holdfast import Session`
            if target_package != package:
                found.append(Import(module, package, target, target_package, line))
    return found


def layer_of(package: str) -> int | None:
    """The number of a package's layer, 0 for the top; None for a package that is not drawn."""
    return next((number for number, (_, members) in enumerate(LAYERS) if package in members), None)


def is_allowed(package: str, target: str) -> bool:
    """Whether the layers allow an import from one package into another."""
    if package == FRONT:
        return True  # it names everything, for type checkers only
    here, there = layer_of(package), layer_of(target)
    if target == FRONT:
        return here is not None and here <= 2  # shells and `aio` use the public names as users do
    if here is None or there is None:
        return False
    if here == there:
        return LAYERS[here][0] == USERS
    return here < there


def table(source: Path = SOURCE) -> str:
    """The layers and imports as a Markdown table."""
    targets: dict[str, set[str]] = {}
    for each in imports_between(source):
        targets.setdefault(each.package, set()).add(each.target_package)
    order = [package for _, members in LAYERS for package in members]
    lines = ["| layer | package | imports |", "|---|---|---|"]
    for name, members in LAYERS:
        for package in members:
            if not (source / package).exists() and not (source / f"{package}.py").exists():
                continue
            used = sorted(targets.get(package, ()), key=lambda each: order.index(each) if each in order else -1)
            lines.append(f"| {name} | `{package}` | {', '.join(used) or 'nothing'} |")
    return "\n".join(lines)


def page_with_table(page: str, source: Path = SOURCE) -> str:
    """The page with the table between its two marks replaced by the present one."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(source)}\n{END}{after}"


def main() -> None:
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())


if __name__ == "__main__":
    main()
