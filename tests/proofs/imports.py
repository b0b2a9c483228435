"""B12 for imports: logs that a forger computed, under a hash chain that holds.

Payloads and columns of real exports are changed at random, the chain is computed anew, and the result is imported over
HTTP. What is accepted is then read and worked on by every route. No answer is a 5xx, none takes for ever, no tool runs,
and every accepted session is erased and deleted.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import httpx2

from holdfast import Agent, Session, tool
from holdfast.log.events import UNREADABLE
from holdfast.stores import MemoryStore, SQLiteStore
from tests.kit.forged_exports import approved_turn, export_of, rewrite_export
from tests.kit.local_server import TOKEN, LocalServer
from tests.kit.rich_sessions import make_rich_sessions
from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.models import ENOUGH

PATIENCE = 30.0  # seconds for one answer
ODD_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**53, 2**62, -(2**62), 0.5, 1e-9, 1e300, "", "x", "\0", "..", "/etc/passwd",
    "a" * 600, "9" * 5000, [], [[]], [1], [[1, 2]], [[1, 2**62]], [[0, 0]], [[2, 1]], [None], ["x"], {}, {"x": 1},
    {"x": None}, {"role": "user"}, {"role": "king", "text": "x"}, {"type": "tool_call"}, {"parts": [{"type": "odd"}]},
]  # fmt: skip
COLUMNS = ("run", "branch", "author", "actor", "at", "v", "type")
RAN: list[str] = []


@tool
def pay(cents: int) -> str:
    """Pay."""
    RAN.append(f"pay {cents}")
    return "paid"


@tool
def refund(cents: int) -> str:
    """Refund."""
    RAN.append(f"refund {cents}")
    return "paid"


class Forger:
    """Changes exports at random."""

    def __init__(self, rng: random.Random) -> None:
        store = MemoryStore()
        make_rich_sessions(store)
        self.texts = [Session.open(id, store=store).export() for id in store.list_sessions()]
        self.texts.append(export_of(*approved_turn()))
        self._rng = rng

    def forge(self) -> str | None:
        """Return a changed export; None if a change is none that JSON can hold."""
        try:
            return rewrite_export(self._rng.choice(self.texts), self._change)
        except UNREADABLE:
            return None

    def _change(self, lines: list[dict[str, Any]]) -> None:
        rng = self._rng
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            line = rng.choice(lines)
            kind = rng.randrange(12)
            if kind == 0:
                name = rng.choice(COLUMNS)
                others = [each[name] for each in lines]
                line[name] = rng.choice((rng.choice(ODD_VALUES), rng.choice(others)))
            elif kind == 1:
                other = copy.deepcopy(rng.choice(lines))
                for name in ("seq", "log", "hash"):
                    other.pop(name, None)
                lines.insert(rng.randint(1, len(lines)), other)
            elif kind == 2 and len(lines) > 2:
                del lines[rng.randint(1, len(lines) - 1)]
            elif kind == 3:
                lines[0]["log"][rng.choice(("id", "origin", "user_id", "removed"))] = rng.choice(ODD_VALUES)
            elif "data" in line:
                self._change_value(line, "data")
        for seq, line in enumerate(lines, 1):
            line["seq"] = seq

    def _change_value(self, holder: Any, key: Any) -> None:
        """Change a value somewhere below: put another in its place, add a field or take one away."""
        rng, value = self._rng, holder[key]
        if isinstance(value, dict | list) and value and rng.random() < 0.8:
            inner = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
            if rng.random() < 0.2:
                del value[inner]
            else:
                self._change_value(value, inner)
        elif isinstance(value, dict) and rng.random() < 0.5:
            value[rng.choice(("x", "blob", "whole", "call_id", "parts", "text", "usage"))] = rng.choice(ODD_VALUES)
        else:
            holder[key] = rng.choice((rng.choice(ODD_VALUES), f"{value}", [value]))


def visit_routes(client: httpx2.Client, id: str, rng: random.Random, head: int) -> list[tuple[str, int]]:
    """Call every reading and working route of a session; return each with its status."""
    at, agent = rng.randint(1, head), {"agent_id": "helper"}
    calls: list[tuple[str, str, Any]] = [
        *(
            ("GET", path, None)
            for path in (
                *(
                    "",
                    "/history",
                    "/search?q=the",
                    "/search?q=note",
                    "/events?after=0&limit=1000",
                    "/document",
                    "/brief",
                ),
                *("/export", "/export?format=html", "/export?format=markdown", "/verify", "/facts", "/state", "/runs"),
                *("/approvals", "/unfinished", "/usage", "/forks", "/context", "/context?agent_id=helper"),
                *(f"/context?call={at}", f"/compare?with={id}", "/memory"),
            )
        ),
        ("POST", "/replay", agent),
        ("POST", "/resume", agent),
        ("POST", "/retry", agent),
        ("POST", "/approvals/c1", {"approved": True}),
        ("POST", "/fork", {"id": f"{id}-fork", "at": at}),
        ("POST", "/successor", {"id": f"{id}-next"}),
        ("POST", "/prune", {"strategy": "summarize_old", "threshold": 2}),
        ("POST", "/undo_prune", {}),
        ("POST", "/prune", {"strategy": "keep_last_2"}),
        ("POST", "/memory", {}),
        ("POST", "/reopen", {}),
        ("POST", "/message", {**agent, "message": "Go on."}),
        ("POST", "/rewind", {"to": at}),
        ("POST", "/redact", {"seq": at, "reason": "asked"}),
        ("POST", "/redact", {"seq": rng.randint(1, head), "reason": "asked"}),
        ("GET", "/verify", None),
    ]
    found = []
    for method, path, body in calls:
        response = client.request(method, f"/sessions/{id}{path}", json=body)
        found.append((f"{method} {path}", response.status_code))
    return found


@proof("B12", ci=200, long=20_000)
def forged_imports(size: int, seed: int) -> Report:
    """Changed payloads under a chain that holds: refused, or a session that every route can serve and remove."""
    rng = random.Random(f"imports/{seed}")
    forger = Forger(rng)
    failures: list[str] = []
    done: Counter[str] = Counter()
    RAN.clear()
    # It always answers, and its tools must not run.
    agent = Agent(name="helper", provider="scripted", script=lambda _: "Well.", tools=[pay, refund])
    with (
        make_scratch_directory() as home,
        SQLiteStore(home / "log.db") as store,
        LocalServer(store, agents={"helper": agent}) as server,
        httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE) as client,
    ):
        for number in range(size):
            text = forger.forge()
            if text is None or len(failures) >= ENOUGH:
                continue
            id = f"i{number}"
            try:
                failures += _try_import(client, text, id, rng, done)
            except httpx2.TimeoutException as error:
                failures.append(f"{id}: no answer in {PATIENCE} s: {error.request.url}")
    failures += [f"a tool ran: {each}" for each in RAN]
    if not done["accepted"] or not done["refused"]:
        failures.append(f"nothing was tried: {done}")
    figures = (
        f"{done['refused']:,} refused, {done['accepted']:,} accepted; {done['requests']:,} requests, "
        f"{done['erased']:,} erased and deleted"
    )
    return Report(figures=figures, failures=failures)


def _try_import(client: httpx2.Client, text: str, id: str, rng: random.Random, done: Counter[str]) -> list[str]:
    answer = client.post("/sessions/import", json={"data": text, "id": id})
    if answer.status_code != 201:
        done["refused"] += 1
        return [] if answer.status_code < 500 else [f"{id}: the import is {answer.status_code}: {answer.text[:200]}"]
    done["accepted"] += 1
    found = visit_routes(client, id, rng, answer.json()["head"])
    done["requests"] += len(found)
    failures = [f"{id}: {what} is {status}" for what, status in found if status >= 500]
    for each in (f"{id}-fork", f"{id}-next", id):
        if client.get(f"/sessions/{each}").status_code == 404:
            continue
        erased = client.post(f"/sessions/{each}/erase", json={"reason": "asked"})
        is_erased = erased.status_code == 200 or "erased" in erased.text
        deleted = client.delete(f"/sessions/{each}").status_code
        done["erased"] += is_erased and deleted == 200
        if not is_erased or deleted != 200:
            failures.append(f"{each}: erase is {erased.status_code} {erased.text[:150]}, delete is {deleted}")
    return failures
