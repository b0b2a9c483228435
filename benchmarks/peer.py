"""The persisted turn of one peer, compared with the raw limit. `benchmarks.peers` runs it with the peers' interpreter.

Each peer is used through its public calls and with its defaults. A peer without a public call for a plain append is
used through the calls that its own agent makes.
"""

# mypy: disable-error-code="import-not-found, misc"
# The peers are installed in another environment, so mypy finds no types of theirs.
from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.raw import RawSQLite
from benchmarks.timing import Act, folder, race
from benchmarks.workload import Plain, history, turn

Append = Callable[[list[Any]], object]  # persists one turn, given as messages of the peer
SESSION, USER = "s", "alice"
REPLACED_AFTER = 10  # turns before a short session is replaced


def _arguments(call: Plain) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call["function"]["arguments"])
    return found


class OpenAI:
    """OpenAI Agents SDK, SQLiteSession."""

    package = "openai-agents"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from agents import SQLiteSession

        self.loop = stack.enter_context(asyncio.Runner())
        self.session = SQLiteSession(SESSION, path / "peer.db")

    def native(self, messages: list[Plain]) -> list[Any]:
        found: list[Any] = []
        for message in messages:
            if calls := message.get("tool_calls"):
                for call in calls:
                    fields = {"call_id": call["id"], **call["function"]}
                    found.append({"type": "function_call", "status": "completed", **fields})
            elif message["role"] == "tool":
                output = {"call_id": message["tool_call_id"], "output": message["content"]}
                found.append({"type": "function_call_output", **output})
            else:
                found.append(message)
        return found

    def append(self, native: list[Any]) -> None:
        self.loop.run(self.session.add_items(native))


class LangGraph:
    """LangGraph, SqliteSaver: one update of the state, the cheapest way to store a turn."""

    package = "langgraph"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import END, START, StateGraph
        from langgraph.graph.message import add_messages

        schema = TypedDict("schema", {"messages": Annotated[list, add_messages]})  # noqa: UP013
        graph = StateGraph(schema)
        graph.add_node("agent", lambda _: {})
        graph.add_edge(START, "agent")
        graph.add_edge("agent", END)
        saver = stack.enter_context(SqliteSaver.from_conn_string(str(path / "peer.db")))
        self.graph = graph.compile(checkpointer=saver)
        self.count = 0

    def native(self, messages: list[Plain]) -> list[Any]:
        from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

        found: list[Any] = []
        for message in messages:
            self.count += 1
            id, text = str(self.count), message["content"]
            if message["role"] == "user":
                found.append(HumanMessage(text, id=id))
            elif message["role"] == "tool":
                found.append(ToolMessage(text, id=id, tool_call_id=message["tool_call_id"]))
            else:
                calls = [
                    {"id": call["id"], "name": call["function"]["name"], "args": _arguments(call)}
                    for call in message.get("tool_calls", ())
                ]
                found.append(AIMessage(text or "", id=id, tool_calls=calls))
        return found

    def append(self, native: list[Any]) -> None:
        self.graph.update_state({"configurable": {"thread_id": SESSION}}, {"messages": native}, as_node="agent")


class ADK:
    """Google ADK, SqliteSessionService: an event per message."""

    package = "google-adk"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        self.loop = stack.enter_context(asyncio.Runner())
        self.service = SqliteSessionService(str(path / "peer.db"))
        self.session = self.loop.run(self.service.create_session(app_name="bench", user_id=USER, session_id=SESSION))

    def native(self, messages: list[Plain]) -> list[Any]:
        from google.adk.events.event import Event
        from google.genai import types

        found: list[Any] = []
        for message in messages:
            if calls := message.get("tool_calls"):
                function = calls[0]["function"]
                call = types.FunctionCall(id=calls[0]["id"], name=function["name"], args=_arguments(calls[0]))
                part, author, role = types.Part(function_call=call), "agent", "model"
            elif message["role"] == "tool":
                result = types.FunctionResponse(
                    id=message["tool_call_id"], name="search_orders", response={"result": message["content"]}
                )
                part, author, role = types.Part(function_response=result), "agent", "user"
            else:
                is_user = message["role"] == "user"
                part = types.Part(text=message["content"])
                author, role = ("user", "user") if is_user else ("agent", "model")
            content = types.Content(role=role, parts=[part])
            found.append(Event(invocation_id="turn", author=author, content=content))
        return found

    def append(self, native: list[Any]) -> None:
        self.loop.run(self._append(native))

    async def _append(self, native: list[Any]) -> None:
        for event in native:
            await self.service.append_event(self.session, event)


class Agno:
    """Agno, SqliteDb: the row of the session and the row of the run, as its agent persists them."""

    package = "agno"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from agno.db.sqlite import SqliteDb
        from agno.session import AgentSession

        self.db = SqliteDb(db_file=str(path / "peer.db"))
        stack.callback(self.db.close)
        self.session = AgentSession(
            session_id=SESSION,
            agent_id="agent",
            user_id=USER,
            session_data={"session_state": {}},
            runs=[],
            created_at=1,
        )
        self.db.upsert_session(self.session)
        self.count = 0

    def native(self, messages: list[Plain]) -> list[Any]:
        from agno.models.message import Message
        from agno.run.agent import RunInput, RunOutput
        from agno.run.base import RunStatus

        found: list[Any] = []
        for start in range(0, len(messages), 4):  # four messages are a turn, which Agno stores as a run
            self.count += 1
            part = messages[start : start + 4]
            run = RunOutput(
                run_id=f"run{self.count}",
                agent_id="agent",
                session_id=SESSION,
                user_id=USER,
                messages=[Message(**message) for message in part],
                input=RunInput(input_content=part[0]["content"]),
                content=part[-1]["content"],
                status=RunStatus.completed,
            )
            found.append(run)
        return found

    def append(self, native: list[Any]) -> None:
        from agno.session._utils import resolve_run_index

        for run in native:
            self.session.upsert_run(run)
            index = resolve_run_index(self.session, run)
            self.db.upsert_session(self.session)
            self.db.upsert_run(run, SESSION, USER, index)


class Strands:
    """Strands, FileSessionManager: a file per message, never flushed; with the calls of its agent's hooks."""

    package = "strands-agents"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from strands import Agent
        from strands.session.file_session_manager import FileSessionManager

        self.manager = FileSessionManager(session_id=SESSION, storage_dir=str(path / "peer"))
        self.agent = Agent(agent_id="agent", session_manager=self.manager, callback_handler=None, model=_no_model())

    def native(self, messages: list[Plain]) -> list[Any]:
        found: list[Any] = []
        for message in messages:
            if calls := message.get("tool_calls"):
                call = calls[0]
                use = {"toolUseId": call["id"], "name": call["function"]["name"], "input": _arguments(call)}
                found.append({"role": "assistant", "content": [{"toolUse": use}]})
            elif message["role"] == "tool":
                content = [{"text": message["content"]}]
                result = {"toolUseId": message["tool_call_id"], "status": "success", "content": content}
                found.append({"role": "user", "content": [{"toolResult": result}]})
            else:
                found.append({"role": message["role"], "content": [{"text": message["content"]}]})
        return found

    def append(self, native: list[Any]) -> None:
        for message in native:
            self.agent.messages.append(message)
            self.manager.append_message(message, self.agent)
            self.manager.sync_agent(self.agent)
        self.manager.sync_agent(self.agent)


def _no_model() -> Any:
    """Return a model that is never called."""
    from strands.models import Model

    class Silent(Model):
        def update_config(self, **_: Any) -> None: ...
        def get_config(self) -> Any: ...
        def structured_output(self, *_: Any, **__: Any) -> Any: ...
        def stream(self, *_: Any, **__: Any) -> Any: ...

    return Silent()


PEERS: dict[str, Any] = {peer.__name__.lower(): peer for peer in (OpenAI, Agno, ADK, LangGraph, Strands)}


def measure(name: str, length: int, rounds: int, calls: int, place: Path) -> dict[str, Any]:
    """Time the turn of a peer and the raw turn alternately, at one length of the session."""
    with ExitStack() as stack:
        raw = RawSQLite(stack.enter_context(folder(place)) / "raw.db")
        stack.callback(raw.close)
        past = list(history(length))
        raw.add(SESSION, past)
        count = itertools.count()

        def seeded() -> Any:
            peer = PEERS[name](stack.enter_context(folder(place)), stack)
            for start in range(0, length, 100):
                peer.append(peer.native(past[start : start + 100]))
            return peer

        peer, left = seeded(), REPLACED_AFTER

        def theirs() -> Act:
            nonlocal peer, left
            if (
                not left and length < 100
            ):  # a short session must stay short: some peers write the whole session every time
                peer, left = seeded(), REPLACED_AFTER
            left -= 1
            native, append = peer.native(turn("t", next(count))), peer.append
            return lambda: append(native)

        def plain() -> Act:
            messages = turn("t", next(count))
            return lambda: raw.add(SESSION, messages)

        found = race({"peer": theirs, "raw": plain}, rounds=rounds, calls=calls)
    return {
        "peer": found.seconds("peer"),
        "raw": found.seconds("raw"),
        "ratio": found.ratio("peer", "raw"),
        "title": peer.__doc__.splitlines()[0].split(":")[0].rstrip("."),
        "version": version(peer.package),
    }


if __name__ == "__main__":
    name, length, rounds, calls, place = sys.argv[1:]
    print(json.dumps(measure(name, int(length), int(rounds), int(calls), Path(place))))
