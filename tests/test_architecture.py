"""The drawing in docs/architecture.md is enforced: layers, cycles, purity, privacy, sizes, public names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load_tool(name: str) -> ModuleType:
    """A script of `tools/`, by its path: the folder is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


architecture = load_tool("architecture")
MODULES: list[tuple[str, Path]] = architecture.modules()
PURE = ("log.", "policy.", "plan", "turn.effects", "turn.agent_loop", "turn.flow_loop", "turn.progress")
IMPURE = {
    *("time", "threading", "asyncio", "socket", "os", "random", "subprocess", "secrets", "io", "shutil", "tempfile"),
    *("apsw", "psycopg", "httpx2"),
}
MAX_LINES = 500
LONG = {
    "testing.contract": "the contract that ships: every promise of a store is one test of it",
    "errors": "one home for every error, so that the tree and the rebuilding by a client are in one place",
}
# Private attributes of another package, each with its reason.
PRIVATE: dict[str, str] = {
    "server.agent_catalog agent._options": "a served agent is shown with its options; users of the library set them",
    "server.routes.sessions session._build_fields": "the server checks fields as the constructor does; not for users",
    "server.routes.state session._scope_log": "compare-and-set needs the head of a scope; users have update_state",
    "server.run_requests session._change_status": "a run resumes a paused session; users have resume()",
    "stores.group_commit sys._getframe": "a place is held by a call on the stack, whatever ends that call",
    "stores.places sys._current_frames": "a place is held by a call on the stack, whatever ends that call",
    "stores.places sys._getframe": "a place is held by a call on the stack, whatever ends that call",
    "stores.postgres sys._getframe": "a place is held by a call on the stack, whatever ends that call",
    "stores.postgres_connections pg._WaitTimeout": "psycopg raises it where a server is silent",
    "stores.postgres_connections sys._getframe": "a place is held by a call on the stack, whatever ends that call",
    "stores.sqlite_connections sys._getframe": "a place is held by a call on the stack, whatever ends that call",
    "testing.crash os._exit": "the only way to end a process without its cleanup",
}


def test_every_package_is_drawn() -> None:
    packages = {architecture.package_of(module) for module, _ in MODULES} - {architecture.FRONT}
    drawn = [package for _, members in architecture.LAYERS for package in members]
    assert sorted(packages) == sorted(drawn)


def test_imports_point_down_the_layers() -> None:
    against = [
        f"{each.module}:{each.line} imports {each.target}"
        for each in architecture.imports_between()
        if not architecture.is_allowed(each.package, each.target_package)
    ]
    assert against == []


def test_packages_have_no_cycle_but_among_what_users_hold() -> None:
    users = next(members for name, members in architecture.LAYERS if name == architecture.USERS)
    targets: dict[str, set[str]] = {}
    for each in architecture.imports_between():
        if each.package != architecture.FRONT and not (each.package in users and each.target_package in users):
            targets.setdefault(each.package, set()).add(each.target_package)

    def visit(package: str, path: tuple[str, ...]) -> None:
        assert package not in path, f"a cycle: {' -> '.join([*path, package])}"
        for target in targets.get(package, ()):
            visit(target, (*path, package))

    for package in targets:
        visit(package, ())


def test_the_page_shows_the_imports_as_they_are() -> None:
    page = architecture.PAGE.read_text(encoding="utf-8")
    assert page == architecture.page_with_table(page), "run: python tools/architecture.py --write"


def test_every_module_that_the_page_names_is_there() -> None:
    page = architecture.PAGE.read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", page) if not name.startswith(("tools/", "tests/"))}
    assert len(named) > 40
    assert sorted(name for name in named if not (architecture.SOURCE / name).exists()) == []


@pytest.mark.parametrize(("package", "target"), [("log", "stores"), ("stores", "models"), ("turn", "session")])
def test_an_import_against_the_layers_is_noticed(tmp_path: Path, package: str, target: str) -> None:
    for name in (package, target):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / package / "one.py").write_text(f"def late():\n    from holdfast.{target}.two import thing\n")
    (found,) = architecture.imports_between(tmp_path)
    assert (found.package, found.target_package, found.line) == (package, target, 2)
    assert not architecture.is_allowed(found.package, found.target_package)


def test_pure_modules_have_no_clock_no_threads_and_no_input_or_output() -> None:
    pure = [(module, path) for module, path in MODULES if module.startswith(PURE)]
    assert len(pure) > 15
    found = {
        module: impure
        for module, path in pure
        if (impure := {name.split(".")[0] for name, _ in architecture.imported_names(path)} & IMPURE)
    }
    assert found == {}


def test_the_loop_knows_no_store() -> None:
    for module, path in MODULES:
        if module.startswith(("turn.effects", "turn.agent_loop", "turn.flow_loop", "turn.progress")):
            used = {name for name, _ in architecture.imported_names(path)}
            assert not [name for name in used if name.startswith("holdfast.stores")], module


def test_only_the_clock_and_the_kits_know_wall_time_and_randomness() -> None:
    for module, path in MODULES:
        if module == "clock" or module.startswith("testing."):
            continue
        source = path.read_text()
        for banned in ("time.time(", "datetime.now", "datetime.utcnow", "os.urandom", "uuid4", "secrets."):
            assert banned not in source, f"{module} uses {banned}"


def test_no_module_uses_a_private_attribute_of_another_package() -> None:
    private = _private_names()
    found = {
        use
        for module, path in MODULES
        for use in _private_uses(module, ast.parse(path.read_text()), private[architecture.package_of(module)])
    }
    assert sorted(found) == sorted(PRIVATE)


def _private_names() -> dict[str, set[str]]:
    """The private names that each package defines."""
    found: dict[str, set[str]] = {}
    for module, path in MODULES:
        names = found.setdefault(architecture.package_of(module), set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)  # in __slots__
    return found


def _private_uses(module: str, tree: ast.AST, own: set[str]) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if node.attr in own or node.attr in ("_replace", "_asdict", "_fields"):  # those of named tuples are public
                continue
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):  # inherited
                continue
            found.append(f"{module} {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast."):
            here = architecture.package_of(module)
            if architecture.package_of((node.module or "").removeprefix("holdfast.")) != here:
                found += [f"{module} {alias.name}" for alias in node.names if alias.name.startswith("_")]
    return found


def test_no_module_is_longer_than_its_ceiling() -> None:
    sizes = {module: len(path.read_text().splitlines()) for module, path in MODULES}
    assert {module for module, lines in sizes.items() if lines > MAX_LINES} <= set(LONG)


PUBLIC = [
    "Agent",
    "Budget",
    "Entity",
    "File",
    "Image",
    "Interrupt",
    "KeywordMemoryService",
    "LanguageModel",
    "MCPServer",
    "Memory",
    "Message",
    "Response",
    "Runner",
    "Session",
    "ToolContext",
    "Usage",
    "VectorMemoryService",
    "interrupt",
    "tool",
]


def test_the_public_names_are_these() -> None:
    expected = {
        "holdfast": PUBLIC,
        "holdfast.aio": PUBLIC,
        "holdfast.client": ["AsyncClient", "Client"],
        "holdfast.flow": ["LoopAgent", "ParallelAgent", "Router", "RoutingAgent", "SequentialAgent", "exit_loop"],
        "holdfast.stores": ["MemoryStore", "PostgresStore", "SQLiteStore", "SessionStore"],
        "holdfast.testing": ["FixedClock", "StoreContract", "call", "error"],
        "holdfast.tools": [
            *["edit_file", "file_tools", "list_files", "read_file", "remember", "search_files", "write_file"]
        ],
    }
    for module, names in expected.items():
        found = importlib.import_module(module)
        assert sorted(found.__all__) == names
        for name in names:
            assert getattr(found, name) is not None


def test_importing_holdfast_loads_nothing_heavy() -> None:
    script = "import sys, holdfast; print([m for m in sys.argv[1].split(',') if m in sys.modules])"
    heavy = "psycopg,httpx2,fastapi,uvicorn,rich,click,mcp,cryptography,asyncpg,openai,anthropic"
    found = subprocess.run([sys.executable, "-c", script, heavy], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
