"""A report by several agents, whose process is killed: `python -m examples.research_pipeline`. No key is needed.

Two researchers work at the same time, the analyst computes with their results, the writer sums up. The process is
killed with kill -9 while the analyst's tool runs. Another process resumes the flow where it was: the researchers are
not asked again, and the tool runs again with the same key. The result of the report is stored in memory, and a third
process uses it in another session. Without HOLDFAST_MODEL the agents follow a few rules.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import Agent, Memory, Response, Runner, Session, ToolContext, tool
from holdfast.flow import ParallelAgent, SequentialAgent
from holdfast.log.messages import ToolResult
from holdfast.models import ModelRequest
from holdfast.stores import SQLiteStore
from holdfast.testing import call

QUESTION = "Which tea earns more in our shop, Assam or Sencha?"
LATER = "What do we know about what Assam earns?"
BOOKS = {"Assam": "410 cups at 2.40", "Sencha": "265 cups at 3.10"}
PATIENCE = 120.0  # seconds that each wait may take, enough for a slow machine


@tool(idempotent=True)
def look_up(tea: str) -> str:
    """How much of a tea was sold, and for how much."""
    return f"{tea}: {BOOKS.get(tea, 'not in the books')}"


@tool(idempotent=True)
def earnings(cups: list[int], prices: list[float], ctx: ToolContext) -> list[float]:
    """What was earned: cups times price, for each tea in order. The first time, this takes long."""
    with (Path(os.environ["RESEARCH_FOLDER"]) / "keys").open("a") as file:
        file.write(ctx.idempotency_key + "\n")
    if len(_keys()) == 1:
        time.sleep(PATIENCE)  # the process is killed during this sleep
    return [round(each * price, 2) for each, price in zip(cups, prices, strict=True)]


# -- answers of the agents without a model -----------------------------------------------------------------------------


def _research(tea: str) -> Any:  # noqa: ANN401 - a function of a request
    def say(request: ModelRequest) -> Any:  # noqa: ANN401
        result = request.messages[-1].parts[0]
        return result.content if isinstance(result, ToolResult) else call("look_up", {"tea": tea})

    return say


def _analyse(request: ModelRequest) -> Any:  # noqa: ANN401
    found = re.findall(r"^\[\w+\] (\w+): (\d+) cups at ([\d.]+)$", "\n".join(m.text for m in request.messages), re.M)
    result = request.messages[-1].parts[0]
    if not isinstance(result, ToolResult):
        cups, prices = [int(cups) for _, cups, _ in found], [float(price) for _, _, price in found]
        return call("earnings", {"cups": cups, "prices": prices})
    earned = re.findall(r"[\d.]+", result.content)
    return "; ".join(f"{tea} earned {float(each):.2f}" for (tea, _, _), each in zip(found, earned, strict=True))


def _write(request: ModelRequest) -> str:
    earned = re.findall(r"(\w+) earned ([\d.]+)", request.messages[-1].text)
    (best, most), (other, less) = sorted(earned, key=lambda each: -float(each[1]))
    return f"{best} earns more than {other}: {most} against {less}."


def _advise(request: ModelRequest) -> str:
    known = re.search(r"fact\): (.*earns more.*)", "\n".join(request.system_texts))
    return f"We found out before: {known[1]}" if known else "I do not know."


# -- the agents --------------------------------------------------------------------------------------------------------


def flow() -> SequentialAgent:
    researchers = [
        Agent(
            name=f"{tea.lower()}_researcher",
            instructions=f"Look up what is known about {tea}, and say it in one line. Say nothing else.",
            tools=[look_up],
            **_model(_research(tea)),
        )
        for tea in BOOKS
    ]
    analyst = Agent(
        name="analyst",
        instructions="Compute what each tea earned, with the tool, from what the researchers say.",
        tools=[earnings],
        **_model(_analyse),
    )
    writer = Agent(
        name="writer",
        instructions="Answer the user's question in one sentence, with the figures.",
        extract=lambda response: {"facts": [response.text]},  # the facts to keep in memory
        **_model(_write),
    )
    return SequentialAgent(name="report", sub_agents=[ParallelAgent(researchers, name="research"), analyst, writer])


def _model(rules: Any) -> dict[str, Any]:  # noqa: ANN401
    return {} if os.environ.get("HOLDFAST_MODEL") else {"provider": "scripted", "script": rules}


# -- the processes -----------------------------------------------------------------------------------------------------


def _ask(store: SQLiteStore) -> None:
    """The process that is killed."""
    session = Session("report", store=store, user_id="alice")
    _say(f"alice: {QUESTION}")
    for message in Runner(flow()).run_stream(QUESTION, session=session):
        if message.text:
            _say(f"{message.author}: {message.text}")


def _go_on(store: SQLiteStore) -> None:
    """The process that resumes the flow."""
    session = Session.open("report", store=store)
    cut, before = session.unfinished, session.head
    if cut is not None:
        _say(f"unfinished: {cut.question!r}; whether {' and '.join(cut.unknown_calls)} was done, nobody knows")
        response = session.resume(flow())
        _tell(response, after=before)
    asked = [event.author or "" for event in session.events(types="model.called", after=before, limit=None)]
    _say(f"asked by this process: {', '.join(dict.fromkeys(asked))}; what the others said was in the log")
    keys = _keys()
    _say(f"the tool ran {len(keys)} times, under {len(set(keys))} key; the log verifies: {session.verify().ok}")
    for each in Memory(store=store).for_user("alice").ingest_from_session(session):
        _say(f"remembered: {each.text} (from {each.source and each.source.session_id!r})")


def _keys() -> list[str]:
    """Return the idempotency key of each time that the tool ran, in any process."""
    file = Path(os.environ["RESEARCH_FOLDER"]) / "keys"
    return file.read_text().split() if file.exists() else []


def _tell(response: Response | None, *, after: int) -> None:
    for message in response.messages if response else ():
        if message.text and message.role == "assistant" and (message.seq or 0) > after:
            _say(f"{message.author}: {message.text}")


def _later(store: SQLiteStore) -> None:
    """A week later, another session of the same user."""
    advisor = Agent(
        name="advisor",
        instructions="Answer from what is known.",
        memory=Memory(store=store),
        **_model(_advise),
    )
    session = advisor.session("menu", store=store, user_id="alice")
    _say(f"alice: {LATER}")
    _say(f"advisor: {session.run(LATER).text}")


def _say(line: str) -> None:
    print(f"   {line}", flush=True)


# -- the story ---------------------------------------------------------------------------------------------------------


def _start(part: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.research_pipeline", part]
    return subprocess.Popen(command, env=os.environ | {"RESEARCH_FOLDER": str(folder)})


def _finish(part: str, folder: Path) -> None:
    if _start(part, folder).wait(PATIENCE):
        raise SystemExit(f"the process {part!r} failed")


def _patiently() -> Iterator[None]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)


def _story(folder: Path) -> None:
    print("1. A process runs the flow.", flush=True)
    first = _start("ask", folder)
    for _ in _patiently():
        if (folder / "keys").exists() or first.poll() is not None:
            break
    first.kill()  # kill -9: the process can flush nothing and runs no handler
    died = first.wait() == -signal.SIGKILL
    print(f"2. It is {'killed (kill -9) while the analyst computes' if died else 'done by itself'}. Another one looks:")
    _finish("go-on", folder)
    print("3. A week later, in another session and another process:", flush=True)
    _finish("later", folder)


def main() -> None:
    parts = {"ask": _ask, "go-on": _go_on, "later": _later}
    if len(sys.argv) > 1:
        with SQLiteStore(Path(os.environ["RESEARCH_FOLDER"]) / "sessions.db") as store:
            parts[sys.argv[1]](store)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-research-") as folder:
        _story(Path(folder))


if __name__ == "__main__":
    main()
