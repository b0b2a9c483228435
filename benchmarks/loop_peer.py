"""Whole agent runs of one peer, on request. `benchmarks.loops` starts this program with the interpreter of the peers.

Each agent has a model that answers at once, written for that peer, and one tool: the model calls the tool, reads its
result and answers. Agent and session are made before the clock starts. For a line with a number on stdin, the program
does that many runs and writes their seconds as a line on stdout, so that the peers alternate with holdfast.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-def"
# The peers are installed in another environment, so mypy finds no types of theirs.
from __future__ import annotations

import asyncio
import json
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.timing import folder
from benchmarks.workload import turn

ASK, CALL, RESULT, REPLY = turn("reply", 0)
CALL_ID: str = CALL["tool_calls"][0]["id"]
ARGUMENTS: str = CALL["tool_calls"][0]["function"]["arguments"]
ANSWER: str = REPLY["content"]
USER = "alice"

Run = Callable[[str], str]  # asks one question in a prepared session, and returns the answer


def search_orders(query: str, limit: int) -> str:
    """Search the orders."""
    return str(RESULT["content"])


class OpenAI:
    """OpenAI Agents SDK, SQLiteSession."""

    package = "openai-agents"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
        from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

        set_tracing_disabled(True)

        class Instant(Model):
            async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:
                item: Any
                if input[-1].get("type") == "function_call_output":
                    said = ResponseOutputText(type="output_text", text=ANSWER, annotations=[])
                    item = ResponseOutputMessage(
                        id="m", type="message", role="assistant", status="completed", content=[said]
                    )
                else:
                    item = ResponseFunctionToolCall(
                        type="function_call", id="f", call_id=CALL_ID, name="search_orders", arguments=ARGUMENTS
                    )
                return ModelResponse(output=[item], usage=Usage(), response_id=None)

            def stream_response(self, *_: Any, **__: Any) -> Any: ...

        self.path, self.runner = path / "peer.db", Runner
        self.loop = stack.enter_context(asyncio.Runner())
        self.agent = Agent(name="agent", model=Instant(), tools=[function_tool(search_orders)])

    def ready(self, session: str) -> Run:
        from agents import SQLiteSession

        kept = SQLiteSession(session, self.path)

        async def ask(text: str) -> str:
            return str((await self.runner.run(self.agent, text, session=kept)).final_output)

        return lambda text: self.loop.run(ask(text))


class Agno:
    """Agno, SqliteDb."""

    package = "agno"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from agno.agent import Agent
        from agno.db.sqlite import SqliteDb
        from agno.models.base import Model
        from agno.models.response import ModelResponse

        function = {"name": "search_orders", "arguments": ARGUMENTS}

        class Instant(Model):
            def invoke(self, messages: Any, *_: Any, **__: Any) -> Any:
                if messages[-1].role == "tool":
                    return ModelResponse(role="assistant", content=ANSWER)
                call = {"id": CALL_ID, "type": "function", "function": dict(function)}
                return ModelResponse(role="assistant", tool_calls=[call])

            async def ainvoke(self, *_: Any, **__: Any) -> Any: ...
            def invoke_stream(self, *_: Any, **__: Any) -> Any: ...
            def ainvoke_stream(self, *_: Any, **__: Any) -> Any: ...

            def _parse_provider_response(self, response: Any, **_: Any) -> Any:
                return response

            def _parse_provider_response_delta(self, response: Any) -> Any:
                return response

        self.db = SqliteDb(db_file=str(path / "peer.db"))
        stack.callback(self.db.close)
        self.agent = Agent(
            id="agent",
            model=Instant(id="instant"),
            tools=[search_orders],
            db=self.db,
            add_history_to_context=True,
            telemetry=False,
        )

    def ready(self, session: str) -> Run:
        from agno.session import AgentSession

        empty: dict[str, Any] = {"session_state": {}}
        self.db.upsert_session(
            AgentSession(session_id=session, agent_id="agent", user_id=USER, session_data=empty, runs=[], created_at=1)
        )
        return lambda text: str(self.agent.run(text, session_id=session, user_id=USER).content)


class Strands:
    """Strands, FileSessionManager."""

    package = "strands-agents"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from strands import tool
        from strands.models import Model

        class Instant(Model):
            def update_config(self, **_: Any) -> None: ...
            def get_config(self) -> Any:
                return {}

            def structured_output(self, *_: Any, **__: Any) -> Any: ...

            async def stream(self, messages: Any, *_: Any, **__: Any) -> Any:
                answered = any("toolResult" in block for block in messages[-1]["content"])
                yield {"messageStart": {"role": "assistant"}}
                if answered:
                    yield {"contentBlockStart": {"start": {}}}
                    yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
                else:
                    yield {"contentBlockStart": {"start": {"toolUse": {"name": "search_orders", "toolUseId": CALL_ID}}}}
                    yield {"contentBlockDelta": {"delta": {"toolUse": {"input": ARGUMENTS}}}}
                yield {"contentBlockStop": {}}
                yield {"messageStop": {"stopReason": "end_turn" if answered else "tool_use"}}

        self.path, self.model, self.tool = path / "peer", Instant(), tool(search_orders)
        self.loop = stack.enter_context(asyncio.Runner())

    def ready(self, session: str) -> Run:
        from strands import Agent
        from strands.session.file_session_manager import FileSessionManager

        manager = FileSessionManager(session_id=session, storage_dir=str(self.path))
        agent = Agent(
            agent_id="agent", model=self.model, tools=[self.tool], session_manager=manager, callback_handler=None
        )

        async def ask(text: str) -> str:
            return str(await agent.invoke_async(text)).strip()

        return lambda text: self.loop.run(ask(text))


class LangGraph:
    """LangGraph, create_react_agent, SqliteSaver."""

    package = "langgraph"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from langchain_core.language_models.chat_models import BaseChatModel
        from langchain_core.messages import AIMessage, ToolMessage
        from langchain_core.outputs import ChatGeneration, ChatResult
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.prebuilt import create_react_agent

        call = {"name": "search_orders", "args": json.loads(ARGUMENTS), "id": CALL_ID}

        class Instant(BaseChatModel):
            @property
            def _llm_type(self) -> str:
                return "instant"

            def bind_tools(self, tools: Any, **_: Any) -> Any:
                return self

            def _generate(self, messages: Any, *_: Any, **__: Any) -> Any:
                answered = isinstance(messages[-1], ToolMessage)
                reply = AIMessage(ANSWER) if answered else AIMessage("", tool_calls=[call])
                return ChatResult(generations=[ChatGeneration(message=reply)])

        saver = stack.enter_context(SqliteSaver.from_conn_string(str(path / "peer.db")))
        saver.setup()
        self.graph = create_react_agent(Instant(), [search_orders], checkpointer=saver)

    def ready(self, session: str) -> Run:
        config = {"configurable": {"thread_id": session}}
        return lambda text: str(self.graph.invoke({"messages": [("user", text)]}, config)["messages"][-1].content)


class ADK:
    """Google ADK, SqliteSessionService."""

    package = "google-adk"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from google.adk.agents import LlmAgent
        from google.adk.models.base_llm import BaseLlm
        from google.adk.models.llm_response import LlmResponse
        from google.adk.runners import Runner
        from google.adk.sessions.sqlite_session_service import SqliteSessionService
        from google.genai import types

        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1, candidates_token_count=1, total_token_count=2
        )
        arguments = json.loads(ARGUMENTS)

        class Instant(BaseLlm):
            async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                if llm_request.contents[-1].parts[-1].function_response:
                    part = types.Part(text=ANSWER)
                else:
                    part = types.Part(function_call=types.FunctionCall(name="search_orders", args=arguments))
                yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=used)

        self.types = types
        self.loop = stack.enter_context(asyncio.Runner())
        self.service = SqliteSessionService(str(path / "peer.db"))
        agent = LlmAgent(name="agent", model=Instant(model="instant"), tools=[search_orders])
        self.runner = Runner(app_name="bench", agent=agent, session_service=self.service)

    def ready(self, session: str) -> Run:
        self.loop.run(self.service.create_session(app_name="bench", user_id=USER, session_id=session))

        async def ask(text: str) -> str:
            message, answer = self.types.Content(role="user", parts=[self.types.Part(text=text)]), ""
            async for event in self.runner.run_async(user_id=USER, session_id=session, new_message=message):
                if event.content and event.content.parts and event.content.parts[0].text:
                    answer = event.content.parts[0].text
            return answer

        return lambda text: self.loop.run(ask(text))


AGENTS: dict[str, Any] = {agent.__name__.lower(): agent for agent in (Agno, OpenAI, Strands, LangGraph, ADK)}


def serve(name: str, place: Path) -> None:
    """Answer the requests on stdin until it ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # a peer may print, and its output is no answer
    warnings.simplefilter("ignore")
    with ExitStack() as stack:
        agent = AGENTS[name](stack.enter_context(folder(place)), stack)
        about = {"title": agent.__doc__.rstrip("."), "version": version(agent.package)}
        print(json.dumps(about), file=answers, flush=True)
        number = 0
        for line in sys.stdin:
            taken = []
            for _ in range(int(line)):
                number += 1
                ask = agent.ready(f"s{number}")
                start = time.perf_counter()
                answer = ask(ASK["content"])
                taken.append(time.perf_counter() - start)
                if answer.strip() != ANSWER.strip():
                    raise RuntimeError(f"{name} answered {answer[:80]!r}")
            print(json.dumps(taken), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
