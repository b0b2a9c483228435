"""The house stays as it was drawn: import directions, public names, what an import may load."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import errors

ROOT = Path(holdfast.__file__).parent

# Which rooms a room may import from, besides itself and the floor.
RUNNING = {"log", "policy", "stores", "models", "schema", "tools", "prompt", "plan", "turn"}
ALLOWED = {
    "log": set(),
    "policy": {"log"},
    "stores": {"log", "policy"},
    "models": {"log"},
    "schema": RUNNING,
    "prompt": RUNNING,
    "turn": RUNNING,
    "plan": RUNNING,
    "worker": RUNNING,
    "testing": RUNNING,
}
FLOOR = {"errors", "clock", "concurrency"}
HELD = {"agent", "agent_base", "session", "memory", "flow", "entity", "tools", "aio", "__init__"}
SHELLS = {"server", "client", "cli", "adapters"}
PURE = ("log", "policy")
IMPURE = {
    "time",
    "threading",
    "asyncio",
    "socket",
    "os",
    "random",
    "subprocess",
    "apsw",
    "psycopg",
    "httpx2",
    "secrets",
}


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
    "tool",
]


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found.append((name, path))
    return found


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_down(name: str, path: Path) -> None:
    room = name.split(".")[0]
    if room not in ALLOWED:
        assert room in HELD | SHELLS | FLOOR, f"{name} is in a room that is not drawn"
        return
    for target in imports(path):
        if not target.startswith("holdfast."):
            assert target != "holdfast", f"{name} imports the front door"
            continue
        inner = target.removeprefix("holdfast.")
        allowed = {room} | FLOOR | ALLOWED[room]
        assert any(inner == one or inner.startswith(one + ".") for one in allowed), f"{name} imports {target}"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_have_no_clock_no_threads_and_no_input_or_output(room: str) -> None:
    for name, path in modules():
        if name.startswith(room + "."):
            assert not {target.split(".")[0] for target in imports(path)} & IMPURE, name


def test_only_ids_and_the_kits_know_the_wall_clock_and_randomness() -> None:
    for name, path in modules():
        if name == "clock" or name.startswith("testing."):
            continue
        source = path.read_text()
        for banned in ("time.time(", "datetime.now", "datetime.utcnow", "os.urandom", "uuid4", "secrets."):
            assert banned not in source, f"{name} uses {banned}"


def test_the_public_names_are_these() -> None:
    expected = {
        "holdfast": PUBLIC,
        "holdfast.aio": PUBLIC,
        "holdfast.client": ["AsyncClient", "Client"],
        "holdfast.flow": ["LoopAgent", "ParallelAgent", "Router", "RoutingAgent", "SequentialAgent", "exit_loop"],
        "holdfast.stores": ["MemoryStore", "PostgresStore", "SQLiteStore", "SessionStore"],
        "holdfast.testing": ["FixedIds", "StoreContract", "call", "error"],
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


def test_every_error_has_a_code_and_a_status_of_its_own() -> None:
    codes: dict[str, str] = {}
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.AgentError):
            assert 400 <= value.status < 600, name
            assert codes.setdefault(value.code, name) == name, f"{name} and {codes[value.code]} share a code"
