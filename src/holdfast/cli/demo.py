"""The steps of `holdfast demo`. Run as a module, it is the process that the demo kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Agent, Message, Session, tool
from holdfast.errors import InvalidArgument
from holdfast.log.messages import ToolResult
from holdfast.models.base import ModelRequest
from holdfast.operating_system import KILL_SIGNAL, create_private_file
from holdfast.stores import SQLiteStore
from holdfast.testing import call

SESSION = "demo"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the demo."""

    title: str
    lines: list[str]

    def render(self) -> str:
        return "\n".join([f"\n{self.title}", *(f"  {line}" for line in self.lines)])


def check_new_files(keep: Path) -> None:
    """Raise InvalidArgument if the demo cannot make its files: it writes into no file that exists."""
    for file in (keep, _export_file(keep)):
        if file.exists():
            raise InvalidArgument(f"{file} exists already: give --keep another name, or remove the file first")
    if not os.access(keep.absolute().parent, os.W_OK | os.X_OK):
        raise InvalidArgument(f"{keep.absolute().parent} is no folder that can be written: choose another one")


def _export_file(database: Path) -> Path:
    return database.with_suffix(".jsonl")


def run_demo(keep: Path | None = None) -> Iterator[Step]:
    """Yield the steps; each really happens before it is shown."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        path = keep or Path(folder) / "sessions.db"
        yield _kill_writer(path)
        with SQLiteStore(path) as store:
            session = Session.open(SESSION, store=store)
            yield _reopen_session(session)
            yield _finish_turn(session, path)
            yield _fork_and_compare(session)
            yield _verify_export(session, _export_file(path))


def _kill_writer(path: Path) -> Step:
    """Start a process that writes and is killed while it writes: no flush, no handler."""
    child = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.demo", str(path)], stdout=subprocess.PIPE, text=True, check=False
    )
    said = child.stdout.splitlines()
    fate = _describe_end(child.returncode)
    return Step("1. A process keeps a conversation, and is killed while it writes.", [*said, f"({fate})"])


def _describe_end(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"killed, exit code {exit_code}" if exit_code == KILL_SIGNAL else "ended by itself"


def _reopen_session(session: Session) -> Step:
    lines = [f"{message.author}: {message.text}" for message in session.messages]
    lines += [
        f"state: visits={session.get_state('visits')}, user language={session.get_state('language', scope='user')}"
    ]
    lines += [f"facts: {[fact.text for fact in session.facts.all()]}", f"events in the log: {session.head}"]
    return Step(
        "2. This process opens the same session: what was acknowledged is there, the half-written turn is not.", lines
    )


def _finish_turn(session: Session, path: Path) -> Step:
    """Kill a process inside a tool, in the middle of a turn; finish the turn in this process."""
    child = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.demo", str(path), "turn"], stdout=subprocess.PIPE, text=True, check=False
    )
    unfinished = session.unfinished
    lines = [*child.stdout.splitlines(), f"({_describe_end(child.returncode)})"]
    if unfinished is not None:
        lines.append(f"here: {unfinished.question!r} is unfinished, unknown: {unfinished.unknown_calls}")
    response = session.resume(_travel_agent())
    if response is not None:
        lines += [
            f"{message.author}: {message.text or [c.name for c in message.tool_calls]}" for message in response.messages
        ]
    return Step("3. A process is killed inside a tool; this one finishes its turn, and runs nothing twice.", lines)


def _travel_agent() -> Agent:
    """Return an agent without a network: it finds a train, books it, and reports."""

    @tool(idempotent=True)
    def find_train(to: str) -> str:
        """Find a train."""
        return f"the 9:04 to {to}"

    @tool
    def book(train: str) -> str:
        """Book a train; booking twice costs twice."""
        print(f"booking {train} …", flush=True)
        os.kill(os.getpid(), KILL_SIGNAL)
        return "never told"

    def answer(request: ModelRequest) -> Any:  # noqa: ANN401 - a script item
        done = [part for message in request.messages[-6:] for part in message.parts if isinstance(part, ToolResult)]
        if not done:
            return call("find_train", {"to": "Bremen"})
        if len(done) == 1:
            return call("book", {"train": done[0].content})
        return "I cannot tell whether the train was booked: I will look it up before I try again."

    return Agent(name="traveller", provider="scripted", script=answer, tools=[find_train, book])


def _fork_and_compare(session: Session) -> Step:
    alternative = session.fork("demo-alternative")
    session.add_messages([Message.user("Then let us go by train."), Message.assistant("The train leaves at nine.")])
    alternative.add_message(Message.user("Then let us fly."))
    found = session.compare(alternative)
    return Step(
        "4. It is forked, both sides go on, and the two are compared.",
        [
            f"in common: {len(found.common)} messages",
            f"{session.id}: {[message.text for message in found.mine]}",
            f"{alternative.id}: {[message.text for message in found.theirs]}",
        ],
    )


def _verify_export(session: Session, exported: Path) -> Step:
    create_private_file(exported)  # it tells as much as the database
    exported.write_text(session.export(), encoding="utf-8")
    verdict = session.verify()
    lines = exported.read_text(encoding="utf-8").splitlines()
    forged = "\n".join(lines).replace("by train", "by boat")
    from holdfast.session.export import read_jsonl

    found, cut = read_jsonl(forged).verify(), read_jsonl("\n".join(lines[:-1])).verify()
    return Step(
        "5. The log is verified and exported; a forged export and a cut one are caught.",
        [
            f"verify(): {'holds' if verdict else verdict.reason}, {verdict.checked} events",
            f"exported {len(lines)} lines, {exported.stat().st_size} bytes",
            f"without the last line: {cut.reason}",
            f"with one word changed: {found.reason}",
        ],
    )


def _write_until_killed(path: str) -> None:
    """The process that is killed. It says a line after each thing that was acknowledged."""
    from holdfast.crashpoints import arm_crashpoints

    session = Session(SESSION, store=SQLiteStore(path), user_id="alice", title="A trip")
    session.add_messages([Message.user("My name is Alice."), Message.assistant("Nice to meet you, Alice.")])
    print("acknowledged: two messages", flush=True)
    session.set_state("language", "English", scope="user")
    session.update_state("visits", lambda visits: (visits or 0) + 1)
    session.facts.add("Alice wants to travel in May", kind="decision")
    print("acknowledged: state and a fact", flush=True)
    print("writing four more messages …", flush=True)
    arm_crashpoints(lambda point: os.kill(os.getpid(), KILL_SIGNAL) if point == "before commit" else None)
    session.add_messages([Message.user(f"This turn is never finished ({part} of 4).") for part in range(1, 5)])


def _book_until_killed(path: str) -> None:
    """The process that is killed inside a tool."""
    print("asking for a train to Bremen", flush=True)
    Session.open(SESSION, store=SQLiteStore(path)).run("Book me a train to Bremen.", agent=_travel_agent())


if __name__ == "__main__":
    (_book_until_killed if sys.argv[2:] else _write_until_killed)(sys.argv[1])
