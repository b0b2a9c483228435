"""What runs in a process of a simulated system: `python -m tests.other_systems.programs NAME FOLDER`.

Each program uses holdfast as a user does, and its result is printed as JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Agent, Entity, Memory, Session, aio, tool
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import AgentError, SessionBusy, ToolError
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.testing import call
from holdfast.tools import edit_file, file_tools, write_file
from holdfast.tools.mcp import MCPServer
from holdfast.tools.tool import ToolContext

MCP_COMMAND = [sys.executable, str(Path(__file__).parents[1] / "tools" / "mcp_server.py")]


def import_every_module(folder: Path) -> Any:
    import holdfast

    names = [each.name for each in pkgutil.walk_packages(holdfast.__path__, "holdfast.")]
    for name in names:
        importlib.import_module(name)
    return {"system": sys.platform, "modules": len(names), "counts": SYSTEM_CLOCK.monotonic() > 0}


def run_turns_on_two_connections(folder: Path) -> Any:
    """Two stores on one file, as two processes have them; each sees what the other one wrote."""
    with SQLiteStore(folder / "sessions.db") as one, SQLiteStore(folder / "sessions.db") as other:
        first = _ask_for_orders(Session("s", store=one))
        second = _ask_for_orders(Session.open("s", store=other))
        return [first, second, len(Session.open("s", store=one)), bool(Session.open("s", store=other).verify())]


def run_turns_in_memory(folder: Path) -> Any:
    session = Session("s", store=MemoryStore())
    return [_ask_for_orders(session), _ask_for_orders(session), len(session), bool(session.verify())]


def run_turns_on_postgres(folder: Path) -> Any:
    from psycopg.conninfo import make_conninfo

    from holdfast.stores import PostgresStore

    with PostgresStore(os.environ["DATABASE"]) as store:
        session = Session(f"other-systems-{sys.platform}", store=store)
        found = [_ask_for_orders(session), _ask_for_orders(session), len(session), bool(session.verify())]
    try:
        PostgresStore(make_conninfo(os.environ["DATABASE"], dbname="nowhere"), patience=0)
    except AgentError as error:
        found.append(error.code)
    return found


def _ask_for_orders(session: Session) -> str:
    @tool
    def get_orders(user_id: str) -> str:
        """Get the orders of a user."""
        return f"{user_id}: tea"

    script = [call("get_orders", {"user_id": "alice"}), lambda request: f"You ordered {request.messages[-1].text}."]
    return session.run("What did I order?", agent=Agent(provider="scripted", script=script, tools=[get_orders])).text


def use_entity_and_memory(folder: Path) -> Any:
    class Cart(Entity):
        def add(self, item: str) -> int:
            self.state.set("items", [*self.state.get("items", []), item])
            return len(self.state.get("items"))

    with SQLiteStore(folder / "sessions.db") as one, SQLiteStore(folder / "sessions.db") as other:
        counts = [Cart("user-1", store=one).add("tea"), Cart("user-1", store=other).add("milk")]
        Memory(store=one).store("patient_history", "Chronic migraines")
        return counts, [each.text for each in Memory(store=other).search("migraines")]


def await_turn(folder: Path) -> Any:
    async def ask() -> str:
        with SQLiteStore(folder / "sessions.db") as store:
            agent = aio.Agent(provider="scripted", script=["Hello."], store=store)
            session = agent.session("s")
            return (await session.run("Hello?")).text

    return asyncio.run(ask())


def use_file_tools(folder: Path) -> Any:
    """Every file tool in one turn, and paths that lead out of the directory."""
    from holdfast.tools.directory import open_directory

    work, outside = folder / "work", folder / "outside"
    work.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (work / "junction").symlink_to(outside)
    (work / "link.txt").symlink_to(outside / "secret.txt")
    script = [
        call("write_file", {"path": "notes/today.md", "content": "tea\nmilk\n"}),
        call("edit_file", {"path": "notes/today.md", "old": "milk", "new": "bread"}),
        call("read_file", {"path": "notes/today.md"}),
        call("search_files", {"text": "bread"}),
        call("list_files", {}),
        *(call("read_file", {"path": path}) for path in ("junction/secret.txt", "link.txt", "../outside/secret.txt")),
        call("write_file", {"path": "junction/new.txt", "content": "x"}),
        call("write_file", {"path": "junction/new/new.txt", "content": "x"}),
        call("list_files", {"path": "junction"}),
        call("search_files", {"text": "secret"}),
        "Done.",
    ]
    with SQLiteStore(folder / "sessions.db") as store:
        session = Session("s", store=store, work_dir=str(work))
        session.run("Take a note.", agent=Agent(provider="scripted", script=script, tools=[file_tools]))
        results = [message.text for message in session.messages if message.role == "tool"]
    return {
        "directory": type(open_directory(work)).__name__,
        "results": results,
        "files": sorted(str(path.relative_to(work)) for path in work.rglob("*")),
        "outside": sorted(path.name for path in outside.iterdir()),
    }


def write_names_of_windows(folder: Path) -> Any:
    """What the file tools say to names that mean something else on Windows."""
    names = ("a\\b", "..\\secret", "C:secret", "C:/secret", "a.txt:stream", "NUL", "nul.txt", "dir/COM1", "a. /b", "a.")
    found = {}
    for name in names:
        try:
            found[name] = write_file(ToolContext(work_dir=folder), name, "x")
        except ToolError as error:
            found[name] = str(error)
    return found


def edit_at_once(folder: Path) -> Any:
    names = [f"<{number}>" for number in range(40)]
    (folder / "file").write_text("".join(names))
    context = ToolContext(work_dir=folder)
    threads = [threading.Thread(target=edit_file, args=(context, "file", name, f"({name[1:-1]})")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (folder / "file").read_text()


def call_mcp_server(folder: Path) -> Any:
    with MCPServer(command=MCP_COMMAND) as server:
        found: list[object] = [server.call("add", {"a": 2, "b": 3})]
    with MCPServer(command=[sys.executable, "-c", "import sys; sys.exit('no such option')"]) as server:
        try:
            server.tools()
        except AgentError as error:
            found.append(str(error).partition("; ")[2])
    return found


def fork_in_the_crash_kit(folder: Path) -> Any:
    from holdfast.testing.crash import run_in_child

    try:
        run_in_child(lambda acknowledge: acknowledge(1))
    except AgentError as error:
        return str(error)
    return "forked"


# -- leases ------------------------------------------------------------------------------------------------------------


class LateClock(Clock):
    """The clock of a machine that has been up for UPTIME seconds more."""

    def monotonic(self) -> float:
        return super().monotonic() + float(os.environ.get("UPTIME", "0"))


def _traveller(book: Callable[[], str]) -> Agent:
    @tool(idempotent=True)
    def book_train() -> str:
        """Book a train."""
        return book()

    def answer(request: Any) -> Any:
        return call("book_train") if request.messages[-1].role == "user" else request.messages[-1].text

    return Agent(provider="scripted", script=answer, tools=[book_train], timeout=1)


def leave_turn(folder: Path) -> Any:
    """End this process inside a tool."""

    def end() -> str:
        os._exit(3)

    with SQLiteStore(folder / "sessions.db", clock=LateClock()) as store:
        Session("s", store=store).run("Book a train.", agent=_traveller(end))


def finish_turn(folder: Path) -> Any:
    with SQLiteStore(folder / "sessions.db", clock=LateClock()) as store:
        response = Session.open("s", store=store).resume(_traveller(lambda: "booked"))
        return None if response is None else response.text


def hold_turn(folder: Path) -> Any:
    """Stay inside a tool until a line comes from the standard input."""

    def wait() -> str:
        print("inside", flush=True)
        return sys.stdin.readline().strip()

    with SQLiteStore(folder / "sessions.db") as store:
        return Session("s", store=store).run("Book a train.", agent=_traveller(wait)).text


def disturb_turn(folder: Path) -> Any:
    """Ask a session whose turn runs in another process."""
    with SQLiteStore(folder / "sessions.db") as store:
        try:
            return Session.open("s", store=store).run("Another.", agent=_traveller(lambda: "booked")).text
        except SessionBusy:
            return "busy"


def read_pragmas(folder: Path) -> Any:
    """How a commit is flushed on macOS, where a plain flush stops at the cache of the drive."""
    with SQLiteStore(folder / "sessions.db") as store:
        return store.file.write(lambda db: [db.execute(f"PRAGMA {name}").get for name in ("synchronous", "fullfsync")])


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
