"""A real MCP server, started by the tests as a child process."""

import os
import signal
import sys

if sys.argv[1:] == ["broken"]:
    sys.exit(f"cannot find the database, password {os.environ['PASSWORD']}")

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp_types import ToolAnnotations

server = MCPServer("for tests")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def pid() -> str:
    """The server's process."""
    return str(os.getpid())


@server.tool(name="env.names")
def environment() -> str:
    """The names of all environment variables."""
    return " ".join(sorted(os.environ))


@server.tool()
def fail() -> str:
    """Never works."""
    raise RuntimeError("out of paper")


@server.tool()
def die() -> str:
    """Ends its own process in the middle of a call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "not reached"


@server.tool()
async def wait(path: str) -> str:
    """Leaves a file, then waits for ever; leaves another when told to stop."""
    import anyio

    await anyio.Path(path).touch()
    try:
        await anyio.sleep_forever()
    finally:
        open(path + ".cancelled", "w").close()
    return "not reached"


@server.tool()
def picture() -> list[str | Image]:
    """A picture with a text."""
    return ["here it is", Image(data=b"png", format="png")]


if __name__ == "__main__":
    server.run(transport="stdio")
