"""Detectors of bugs in imports and the sweep. They return what they found; nothing means all is well."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast import Agent, Message, Session
from holdfast.clock import Clock
from holdfast.errors import AgentError, ClocksDisagree
from holdfast.log.events import Draft
from holdfast.server.app import Server
from holdfast.server.config import Config
from holdfast.session.export import read_jsonl
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.testing import call
from tests.kit.forged_exports import PAID, approved_turn, export_of, refund, rewrite_export
from tests.kit.odd_payloads import replace_payload
from tests.proofs.models import make_directory

MOMENT = 1 / 86_400_000_000  # a microsecond, in days
DAY = 86_400_000_000


@contextmanager
def _open_stores() -> Iterator[list[Store]]:
    with make_directory() as home, SQLiteStore(home / "log.db") as sqlite:
        yield [MemoryStore(), sqlite]


def _compare(what: str, found: object, wanted: object) -> list[str]:
    return [] if found == wanted else [f"{what}: {found!r}, not {wanted!r}"]


def _make_agent(*script: Any) -> Agent:
    return Agent(provider="scripted", script=list(script), tools=[refund])


def find_imported_work(seed: int) -> list[str]:
    """No call of an import runs, and none waits for a decision; a document brings no decision."""
    found: list[str] = []
    PAID.clear()
    queued = {"message": {"role": "user", "text": "later"}, "run": "r9", "options": {}}
    ends = [
        (),
        (Draft(type="turn.failed", run="r1", data={"usage": {}}),),
        (Draft(type="message.queued", run="r9", data=queued),),
    ]
    with _open_stores() as stores:
        for store in stores:
            for number, end in enumerate(ends):
                text = export_of(*approved_turn(*end))
                session = Session.import_(text, session_id=f"s{number}", store=store, agent=_make_agent("Hm."))
                for move in (session.resume, session.retry):
                    try:
                        found += _compare(f"{move.__name__} of import {number}", move(), None)
                    except AgentError as error:
                        found.append(f"{move.__name__} of import {number} raised {error!r}")
                found += _compare("pending", session.pending, [])
                found += _compare("the queue", store.logs_with_queued_runs(), [])
            found += _forge_document(store)
    return found + _compare("paid", PAID, [])


def _forge_document(store: Store) -> list[str]:
    agent = _make_agent(call("refund", {"cents": 5}), "done")
    original = agent.session("original", store=MemoryStore())
    original.run("refund me")
    (waiting,) = original.pending
    document = original.to_dict()
    decided = {"type": "approval.decided", "data": {"call_id": waiting.call_id, "approved": True}}
    document["turn"]["events"].append(decided)
    try:
        store.save("forged", document)
    except AgentError:
        return []
    return ["a document brought a decision"]


def find_imported_rules(seed: int) -> list[str]:
    """An import brings no retention and no hold, nor do its forks and successors."""
    found: list[str] = []
    drafts = [
        Draft(type="retention.set", data={"immutable": True, "ttl_days": 9}),
        Draft(type="message.added", data={"role": "user", "text": "more"}),
        Draft(type="session.held", data={"reason": "mine"}),
    ]
    with _open_stores() as stores:
        for store in stores:
            session = Session.import_(export_of(*drafts), session_id="s", store=store)
            fork = session.fork("fork", at=4)
            for each in (session, fork, session.successor("next"), fork.successor("fork-next")):
                view = store.view(each.log)
                found += _compare("retention", (each.retention, view.immutable, view.ttl), (None, False, None))
                found += _compare("hold", each.held, None)
                found += _compare("deleted", _delete(store, each.id), True)
    return found


def _delete(store: Store, id: str) -> object:
    try:
        return store.delete(id)
    except AgentError as error:
        return error.code


def find_imported_actors(seed: int) -> list[str]:
    """The actors of an import are marked, in events and exports, in its forks and in their imports."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            session = Session.import_(export_of(*approved_turn()), session_id="s", store=store)
            fork = session.fork("fork", at=2)
            again = Session.import_(fork.export(), session_id="again", store=store)
            for each, last in ((session, session.head), (fork, 2), (again, again.head)):
                each.clear(actor="me")
                marks = [event.seq > last for event in each.events(limit=None)]
                found += _compare(each.id, [event.verified for event in each.events(limit=None)], marks)
                shown = [json.loads(line)["verified"] for line in each.export().splitlines()]
                found += _compare(f"the export of {each.id}", shown, marks)
    return found


def find_forged_payloads(seed: int) -> list[str]:
    """A payload that holdfast does not write is refused, under a chain that holds; real ones are not."""
    found: list[str] = []
    cut = {"strategy": "t", "after": 0}
    forged: list[tuple[str, dict[str, Any]]] = [
        ("retention.set", {"ttl_days": 1e-9, "prune_strategy": "nonsense"}),
        ("state.set", {"name": 7, "value": 1}),
        ("state.set", {"name": "n", "value": 1, "more": 2}),
        ("fact.added", {"id": "x", "text": ["y"]}),
        ("view.pruned", cut | {"drop": [[1, 2**40]]}),
        ("view.unpruned", {"of": 1, "ranges": []}),
        ("view.rewound", {"to": 1, "ranges": [[1, 2], [1, 2], [1, 2]], "state": {}}),
        ("view.rewound", {"to": 1, "ranges": [], "state": {"n": 1}}),
        ("event.redacted", {"reason": "r", "erased": [[1, 2**40]], "tombs": "0" * 64}),
        ("summary.added", {"message": {"role": "user", "text": "s"}, "sections": [], "covers": 7, "usage": {}}),
        ("message.added", {"role": "user", "parts": [{"type": "tool_call", "id": 1, "name": [], "arguments": {}}]}),
        ("memory.stored", {"app": None, "key": "k", "text": "t"}),
    ]
    text = export_of(Draft(type="message.added", data={"role": "user", "text": "last"}))
    found += [] if read_jsonl(text).verify() else ["a real export is refused"]
    for type, data in forged:

        def change(lines: list[dict[str, Any]], type: str = type, data: dict[str, Any] = data) -> None:
            lines[-1] |= {"type": type, "data": data}

        try:
            Session.import_(rewrite_export(text, change), session_id="x", store=MemoryStore())
            found.append(f"accepted {type} {data}")
        except AgentError:
            pass
        except Exception as error:
            found.append(f"{type} {data} raised {error!r}")
    return found


def find_odd_payloads(seed: int) -> list[str]:
    """What removes text need not understand it."""
    found: list[str] = []
    rng = random.Random(seed)
    with _open_stores() as stores:
        for store in stores:
            for payload in (b"[]", b"7", b"\xff", b'{"message":7}'):
                session = Session("odd", store=store, messages=[Message.user("one"), Message.user("two")])
                seq = rng.randint(2, 3)
                replace_payload(store, session.log, seq, payload)
                for what, act in (
                    ("search", lambda: session.search("word")),  # noqa: B023 - called at once
                    ("redact", lambda: session.redact(seq, reason="r")),  # noqa: B023
                    ("erase", lambda: session.erase(reason="r", actor="a")),  # noqa: B023
                ):
                    try:
                        act()
                    except Exception as error:
                        found.append(f"{what} of {payload!r} raised {error!r}")
                found += _compare("deleted", _delete(store, "odd"), True)
    return found


def find_bad_sessions(seed: int) -> list[str]:
    """A session that cannot be judged is put off, and the others are swept."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            for name in ("a", "bad", "z"):
                Session(name, store=store, retention={"ttl_days": MOMENT})
            time.sleep(0.001)
            replace_payload(store, store.require("session", "bad"), 2, b'{"prune_strategy":"nonsense"}')
            report = Session.sweep(store)
            found += _compare("swept", (sorted(report.purged), report.failed), (["a", "z"], ["bad"]))
            found += _compare("looked at again", Session.sweep(store).looked, 0)
    return found


class _FailingStore(MemoryStore):
    """A store whose sweep fails with an error that holdfast does not know, as long as it is told to."""

    is_failing = False

    def due_for_sweep(self, now: int, *, limit: int) -> list[Any]:
        if self.is_failing:
            raise RecursionError
        return super().due_for_sweep(now, limit=limit)


def watch_maintenance(seed: int) -> list[str]:
    """With an interval of 0 there is no sweep; after an unexpected error there is another one."""
    found: list[str] = []
    quiet, failing = MemoryStore(), _FailingStore()
    for store in (quiet, failing):
        Session("due", store=store, retention={"ttl_days": MOMENT})
    failing.is_failing = True

    async def serve(store: MemoryStore, every: float, until: Callable[[], bool]) -> None:
        server = Server(store, Config(rate=0, sweep_every=every), token="t" * 40)
        await server.open()
        deadline = time.monotonic() + 5
        for _ in range(6):
            await asyncio.sleep(0.05)
        failing.is_failing = False
        while not until() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await server.close()

    asyncio.run(serve(quiet, 0, lambda: True))
    found += _compare("a due session without a sweep", quiet.exists("due"), True)
    failing.is_failing = True
    asyncio.run(serve(failing, 0.05, lambda: not failing.exists("due")))
    return found + _compare("a due session after an error", failing.exists("due"), False)


class _ShiftedClock(Clock):
    def __init__(self, days: float) -> None:
        super().__init__()
        self._shift = int(days * DAY)

    def now(self) -> int:
        return super().now() + self._shift


def watch_clocks(seed: int) -> list[str]:
    """A machine with a wrong clock neither sweeps nor makes a session older."""
    found: list[str] = []
    with PostgresStore(os.environ["HOLDFAST_PROVE_SERVER"]) as shared:
        store = shared.for_tenant(f"clocks-{seed}-{time.time_ns()}")
        session = Session("s", store=store, retention={"ttl_days": 365})
        session.add_message(Message.user("hello"))
        for days in (400, -400):
            wrong = store.for_tenant(store.tenant)
            wrong.clock = _ShiftedClock(days)
            try:
                report = Session.sweep(wrong)
                found.append(f"{days} days: swept {report.purged}")
            except ClocksDisagree:
                pass
        if store.exists("s"):
            Session.open("s", store=wrong).add_message(Message.user("more"))
        Session.sweep(store)
        found += _compare("the session is there", store.exists("s"), True)
    return found


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "imported work": find_imported_work,
    "imported rules": find_imported_rules,
    "imported actors": find_imported_actors,
    "forged payloads": find_forged_payloads,
    "odd payloads": find_odd_payloads,
    "bad sessions": find_bad_sessions,
    "maintenance": watch_maintenance,
    "clocks": watch_clocks,
}
