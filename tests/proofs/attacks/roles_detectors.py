"""Detectors of bugs in roles, approvals and work directories. They return what they found: nothing if all is well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import Agent, Message, Session, tool
from holdfast.errors import InvalidArgument, WrongApprover
from holdfast.server.config import Config
from holdfast.stores import MemoryStore
from holdfast.testing import call
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.secured_server import Caller, SecuredServer
from tests.proofs.work_dirs import check_later_work_dirs, check_work_dirs, make_folders


def _use_foreign_work_dirs(seed: int) -> list[str]:
    """Sessions of every owner, in the folders of all others."""
    with make_scratch_directory(memory=True) as directory:
        root = directory / "work"
        make_folders(root)
        with SecuredServer(directory, sessions=1, work_roots=(str(root),)) as server, Caller(server.port) as caller:
            return [*check_work_dirs(caller, server, root), *check_later_work_dirs(caller, server, root)]


def _decide_as_everybody(seed: int) -> list[str]:
    """Decisions of those who may not decide, in every place where the rule could be lost; and a lifted budget."""
    store = MemoryStore()
    found: list[str] = []
    for name, approval, refused, allowed in (
        ("second", "second_person", ("alice", "dave", None), "bob"),
        ("named", ["boss", "alice"], ("alice", "bob", None), "boss"),
    ):
        payer = _make_payer(approval, store)
        session = payer.session(name, user_id="alice")
        session.run(Message.user("Pay.", author="dave"))
        found += _try_decisions(session, refused, allowed)
    script = [call("payer", {"request": "Pay."}, id="p1"), "done"]
    tools = [_make_payer("second_person", store).as_tool()]
    desk = Agent(name="desk", provider="scripted", script=script, tools=tools, store=store)
    waiting = desk.session("desk").run(Message.user("Have it paid.", author="dave"))
    child = Session.open(waiting.pending[0].payload["session"], store=store)
    return found + _try_decisions(child, ("dave",), "bob") + _lift_budget()


def _make_payer(approval: Any, store: MemoryStore) -> Agent:
    @tool(approval=approval)
    def pay() -> str:
        """Pay."""
        return "paid"

    return Agent(name="payer", provider="scripted", script=[call("pay", {}, id="c1"), "done"], tools=[pay], store=store)


def _try_decisions(session: Session, refused: tuple[str | None, ...], allowed: str) -> list[str]:
    for actor in refused:
        try:
            session.approve("c1", actor=actor)
        except WrongApprover:
            continue
        return [f"{session.id}: {actor} approved"]
    session.approve("c1", actor=allowed)
    return []


def _lift_budget() -> list[str]:
    """A session with a larger budget than its agent."""
    with (
        make_scratch_directory(memory=True) as directory,
        SecuredServer(directory, sessions=1) as server,
        Caller(server.port) as caller,
    ):
        admin = server.contents.principals["acme service admin"].headers
        caller.ask("POST", "/agents", admin, {"id": "thrifty", "provider": "echo", "budget": {"turns": 1}})
        caller.ask("POST", "/sessions", admin, {"id": "s", "budget": {"turns": 9}})
        body = {"agent_id": "thrifty", "message": "hello"}
        answers = [caller.ask("POST", "/sessions/s/message", admin, body).status for _ in range(2)]
    return [] if answers == [200, 429] else [f"an agent with one turn, in a session with nine -> {answers}"]


def _ask_as_device(seed: int) -> list[str]:
    """A device opens a session that the application has paused; and a password on a command line."""
    found = []
    with (
        make_scratch_directory(memory=True) as directory,
        SecuredServer(directory, sessions=1) as server,
        Caller(server.port) as caller,
    ):
        device = server.contents.principals["acme alice chat"].headers
        backend = server.contents.principals["acme service write"].headers
        caller.ask("POST", "/sessions", device, {"id": "s"})
        caller.ask("POST", "/sessions/s/pause", backend, {})
        for path in ("resume", "resume/stream"):
            if (answer := caller.ask("POST", f"/sessions/s/{path}", device, {})).status != 403:
                found.append(f"{path} of a paused session by a device -> {answer.status} {answer.body[:200]!r}")
    try:
        Config.from_env({}, store="postgresql://me:hunter2@127.0.0.1/db")
        found.append("a password on the command line is taken")
    except InvalidArgument:
        pass
    return found


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "work directories of others": _use_foreign_work_dirs,
    "second persons": _decide_as_everybody,
    "devices": _ask_as_device,
}
