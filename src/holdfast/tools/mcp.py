"""Tools of an MCP server that runs as a child process and is spoken to over its standard input and output.

Each server has one thread with an event loop of its own, started at first use; every call crosses over to it, so that
the same server serves blocking code, several event loops and notebooks. A server that died is started again by the
next call; the call that saw it die is never repeated, since what became of it is unknown.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.errors import InvalidArgument, MCPFailed, MissingExtra
from holdfast.tools.tool import Tool, render

if TYPE_CHECKING:
    import mcp
    import mcp_types
    from anyio.streams.memory import MemoryObjectSendStream

T = TypeVar("T")
# What a server needs to start and to speak the user's language. No keys: what else it needs is given by env=.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
MAX_TOOLS = 1_000
MAX_STDERR_BYTES = 2_000  # bytes of what a failing server wrote on its standard error
LAST_WORDS_SECONDS = 1.0  # for the standard error of a server that has ended
MIN_SECRET = 6  # characters of an env= value that is hidden in errors
_OUTCOME_UNKNOWN = "the call may or may not have taken effect"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class MCPServer:
    """An MCP server: `Agent(tools=[MCPServer(command=["uvx", "mcp-server-git"])])`.

    It gets a small part of our environment, and `env`. `close()`, or leaving its `with` block, ends the process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        timeout: float = 60,
    ) -> None:
        if isinstance(command, str) or not command:
            raise InvalidArgument("MCPServer(command=[...]) takes a program and its arguments, as a list")
        self.command, self.timeout = [str(part) for part in command], timeout
        self._env, self._cwd = dict(env or {}), cwd
        self._lock = threading.Lock()
        self._server_thread: _ServerThread | None = None
        self._close_thread: Callable[[], object] | None = None

    def tools(self) -> list[Tool]:
        """The server's tools, under their own names and with their own schemas; it checks the arguments itself."""
        return [self._tool(found) for found in _wait_for_result(self._submit(lambda line: line.list_tools()))]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the server and wait for what it says."""
        return _wait_for_result(self._call(name, arguments))

    async def call_async(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The same, awaited; cancelling it tells the server."""
        return await asyncio.wrap_future(self._call(name, arguments))

    def close(self) -> None:
        """End the process. A later call starts a new one."""
        with self._lock:
            end, self._close_thread, self._server_thread = self._close_thread, None, None
        if end is not None:
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MCPServer(command={self.command!r})"

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Future[str]:
        return self._submit(lambda line: line.call_tool(name, dict(arguments), self.timeout))

    def _submit(self, work: Callable[[_ServerThread], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:  # held until the work is handed over, so that none comes after the end
            line = self._server_thread
            if line is None or line.pid != os.getpid():  # after a fork the thread is not there
                line = self._server_thread = _ServerThread(self.command, self._env, self._cwd, self.timeout)
                self._close_thread = weakref.finalize(self, line.close)  # also when it is forgotten, and at exit
            return asyncio.run_coroutine_threadsafe(work(line), line.loop)

    def _tool(self, found: mcp_types.Tool) -> Tool:
        async def run(**arguments: Any) -> str:  # noqa: ANN401 - as the server has them
            return await self.call_async(found.name, arguments)

        hints = found.annotations
        return Tool(
            name=_NOT_IN_NAMES.sub("_", found.name)[:64],
            description=found.description or found.title or "",
            parameters=found.input_schema,
            function=run,
            is_async=True,
            idempotent=bool(hints and (hints.read_only_hint or hints.idempotent_hint)),
            timeout=self.timeout,
        )


def _wait_for_result(future: Future[T]) -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()  # an interrupted wait tells the server, too
        raise


class _ServerThread:
    """The thread of one server, its event loop, and the connection of the moment. Never refers to the server's object,
    so that a forgotten one can be collected."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: Path | str | None, timeout: float) -> None:
        try:
            import mcp
        except ImportError as error:
            raise MissingExtra("MCP servers", "mcp") from error
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self.parameters = mcp.StdioServerParameters(
            command=command[0], args=command[1:], env=inherited | env, cwd=cwd, encoding_error_handler="replace"
        )
        self.secrets = [value for value in env.values() if len(value) >= MIN_SECRET]
        self.timeout, self.pid = timeout, os.getpid()
        self._connection: _Connection | None = None
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run_loop(started)), name="mcp", daemon=True)
        self._thread.start()
        started.wait()

    async def _run_loop(self, started: threading.Event) -> None:
        self.loop, self._close_event = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await self._close_event.wait()
        if self._connection is not None:
            self._connection.stop.set()
        # Calls under way hear that the connection is closed; then connections end their processes.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def close(self) -> None:
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self._close_event.set)
        if threading.current_thread() is not self._thread:  # as it would be if collected there
            self._thread.join()

    async def list_tools(self) -> list[mcp_types.Tool]:
        async def all_pages(client: mcp.Client) -> list[mcp_types.Tool]:
            page = await client.list_tools()
            found = list(page.tools)
            while page.next_cursor is not None and len(found) < MAX_TOOLS:
                page = await client.list_tools(cursor=page.next_cursor)
                found += page.tools
            return found

        return await self._call_client(all_pages)

    async def call_tool(self, name: str, arguments: dict[str, Any], timeout: float) -> str:
        result = await self._call_client(lambda client: client.call_tool(name, arguments, read_timeout_seconds=timeout))
        text = _result_text(result)
        if result.is_error:
            raise MCPFailed(text or f"{name} failed and did not say why")
        return text

    async def _call_client(self, ask: Callable[[mcp.Client], Coroutine[Any, Any, T]]) -> T:
        import mcp_types
        from mcp import MCPError

        if self._connection is None or self._connection.is_over:
            if self._close_event.is_set():
                raise MCPFailed("the MCP server was closed")
            self._connection = _Connection(self)
        connection = self._connection
        client = await asyncio.shield(connection.ready)
        try:
            return await ask(client)
        except MCPError as error:
            if error.code == mcp_types.CONNECTION_CLOSED:
                connection.stop.set()
                raise MCPFailed(
                    f"the MCP server ended during the call: {_OUTCOME_UNKNOWN}; the next one starts it again"
                ) from error
            if error.code == mcp_types.REQUEST_TIMEOUT:
                raise MCPFailed(f"the MCP server gave no answer in time: {_OUTCOME_UNKNOWN}") from error
            raise MCPFailed(f"the MCP server refused: {error.message}") from error
        except (ValueError, RuntimeError) as error:
            raise MCPFailed(f"the MCP server's answer makes no sense: {str(error).splitlines()[0]}") from error


class _Connection:
    """One life of the child process, from its start to its end, in a task of its own."""

    def __init__(self, line: _ServerThread) -> None:
        self._server_thread = line
        self._stderr = _StderrTail()
        self._send_stream: MemoryObjectSendStream[Any] | None = None
        self.ready: asyncio.Future[mcp.Client] = line.loop.create_future()
        # Read the exception even if the caller is gone: asyncio warns about one that is never read.
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self.stop = asyncio.Event()
        self._task = line.loop.create_task(self._keep_open())

    @property
    def is_over(self) -> bool:
        if self.stop.is_set() or self._task.done():
            return True
        # The library closes the writing end once it sees that the process is gone.
        is_closed = self._send_stream is not None and not self._send_stream.statistics().open_send_streams
        if is_closed:
            self.stop.set()
        return is_closed

    async def _keep_open(self) -> None:
        import anyio
        from mcp import Client

        client = Client(self._transport(), read_timeout_seconds=self._server_thread.timeout, cache=None)
        try:
            with anyio.fail_after(self._server_thread.timeout) as limit:
                async with client:
                    limit.deadline = math.inf
                    self.ready.set_result(client)
                    await self.stop.wait()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised in the callers that wait
            if not self.ready.done():
                self.ready.set_exception(self._start_error(error))
        finally:
            self._stderr.close()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        from mcp import stdio_client

        async with stdio_client(self._server_thread.parameters, errlog=self._stderr.writing) as (reading, writing):
            self._stderr.writing.close()  # the child has it now
            self._send_stream = writing  # type: ignore[assignment]
            yield reading, writing

    def _start_error(self, error: BaseException) -> MCPFailed:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = (
            f"it was not ready after {self._server_thread.timeout} s" if isinstance(error, TimeoutError) else str(error)
        )
        text = f"the MCP server {self._server_thread.parameters.command!r} could not be started: {reason}"
        if words := self._stderr.text():
            text += f"; it said: {words}"
        for secret in self._server_thread.secrets:
            text = text.replace(secret, "***")
        found = MCPFailed(text)
        found.__cause__ = error
        return found


class _StderrTail:
    """The end of what a server writes on its standard error; read all the time, so that it never has to wait.

    A thread reads, because the event loop of Windows watches no pipes. It ends when every process that has the pipe has
    ended.
    """

    def __init__(self) -> None:
        self._tail = b""
        read_end, write_end = os.pipe()
        self.writing = open(write_end, "w")  # noqa: SIM115 - closed once the child has it
        self._reader = threading.Thread(target=self._read, args=(read_end,), name="mcp-stderr", daemon=True)
        self._reader.start()

    def _read(self, read_end: int) -> None:
        with open(read_end, "rb", buffering=0) as file:
            while data := file.read(65536):
                self._tail = (self._tail + data)[-MAX_STDERR_BYTES:]

    def text(self) -> str:
        """What a server that has ended said last; a process that it started may still have the pipe."""
        self.close()
        self._reader.join(LAST_WORDS_SECONDS)
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        self.writing.close()


def _result_text(result: mcp_types.CallToolResult) -> str:
    """What a model reads of a result: its texts; what is no text is named."""
    parts = []
    for block in result.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource":
            text = getattr(block.resource, "text", None)
            parts.append(f"[{block.resource.uri}: not text, left out]" if text is None else text)
        elif block.type == "resource_link":
            parts.append(f"[{block.name}: {block.uri}]")
        else:
            parts.append(f"[{block.type}, {block.mime_type}: left out]")
    if not parts and result.structured_content is not None:
        return render(result.structured_content)
    return render("\n".join(parts))
