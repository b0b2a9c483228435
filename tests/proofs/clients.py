"""Clients of real servers: each repeats a request under its key until it gets an answer, and records that answer.

The answers are compared with the log afterwards: each key has one question and one answer there, in the order in
which its client asked, also if servers, connections or databases failed.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from holdfast import Message, Session
from holdfast.log.events import Event
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from tests.kit.server_process import AUTHORIZED, RawConnection, ServerProcess
from tests.proofs.killed_server_app import answer_to
from tests.proofs.turns import find_session_faults

APP = Path(__file__).with_name("killed_server_app.py")
CLIENTS = 8
STUCK = 90.0  # seconds: an answer takes a fraction of a second, so this long a wait is a hang
CONNECTION_ERRORS = (httpx2.TransportError, OSError)  # the server, or the way to it


def open_url(url: str) -> Store:
    """Open the store behind a URL, to read it beside the server."""
    return SQLiteStore(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else PostgresStore(url)


@dataclass
class KeyedRequest:
    """A request under an idempotency key, and whether it was answered."""

    key: str
    session: str
    text: str
    answered: bool = False  # the client got the answer


@dataclass
class ClientLoad:
    """Clients that ask a number of servers about a number of sessions."""

    servers: Sequence[ServerProcess]
    sessions: Sequence[str]
    seed: str
    agent: str = "worker"
    clients: int = CLIENTS
    asked: list[KeyedRequest] = field(default_factory=list)
    added: list[KeyedRequest] = field(default_factory=list)
    statuses: Counter[Any] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    impatience: float = STUCK  # seconds after which a client asks again, maybe another server
    longest: float = 0.0  # seconds from the first attempt of a key to its answer
    refused: Callable[[str, int], bool] = lambda code, status: status == 503  # what may be tried again

    def __post_init__(self) -> None:
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._run_client, args=[each]) for each in range(self.clients)]
        self._answers = [0] * self.clients

    def make_sessions(self) -> None:
        with self.servers[0].client() as client:
            for name in self.sessions:
                client.post("/sessions", json={"id": name}).raise_for_status()

    @property
    def acknowledged(self) -> int:
        return sum(each.answered for each in (*self.asked, *self.added))

    @contextmanager
    def running(self) -> Iterator[ClientLoad]:
        """Under load; at the end every client gets the answer that it waits for."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self) -> float:
        """Wait until every client has a new answer; returns the seconds that it took."""
        began, before = time.monotonic(), list(self._answers)
        while any(now == then for now, then in zip(self._answers, before, strict=True)):
            if time.monotonic() - began > STUCK or not any(thread.is_alive() for thread in self._threads):
                break
            time.sleep(0.01)
        return time.monotonic() - began

    def _run_client(self, me: int) -> None:
        try:
            self._work(me)
        except Exception as error:
            self.failures.append(f"client {me} broke: {type(error).__name__}: {error}")

    def _work(self, me: int) -> None:
        rng = random.Random(f"{self.seed} client {me}")
        with httpx2.Client(headers=AUTHORIZED, timeout=self.impatience) as client:
            number = 0
            while not self._enough.is_set():
                number += 1
                text = f"{me}-{number}" + (" tools" if rng.random() < 0.4 else "")
                asked = KeyedRequest(f"key {me}-{number}", rng.choice(self.sessions), text)
                self.asked.append(asked)
                self._ask(client, asked, rng)
                self._answers[me] += 1
                if rng.random() < 0.1:
                    self._add(client, KeyedRequest(f"added {me}-{number}", asked.session, f"note {me}-{number}"), rng)

    def _ask(self, client: httpx2.Client, asked: KeyedRequest, rng: random.Random) -> None:
        """Ask until there is an answer; a broken connection says nothing about the result."""
        began = time.monotonic()
        while not asked.answered:
            if time.monotonic() - began > STUCK:
                self.failures.append(f"{asked}: nobody answered it in {STUCK:.0f} s")
                return
            server = rng.choice(self.servers)
            try:
                heard = (self._ask_blocking if rng.random() < 0.6 else self._ask_streaming)(client, server, asked)
            except CONNECTION_ERRORS as error:
                self.statuses[type(error).__name__] += 1
                time.sleep(0.02)
                continue
            if heard is None:
                time.sleep(0.05)
            elif heard == answer_to(asked.text):
                asked.answered = True
            else:
                self.failures.append(f"{asked} was answered {heard!r}")
                return
        self.longest = max(self.longest, time.monotonic() - began)

    def _make_body(self, asked: KeyedRequest) -> dict[str, Any]:
        return {"agent_id": self.agent, "message": asked.text}

    def _ask_blocking(self, client: httpx2.Client, server: ServerProcess, asked: KeyedRequest) -> str | None:
        path = f"{server.url}/sessions/{asked.session}/message"
        response = client.post(path, json=self._make_body(asked), headers={"Idempotency-Key": asked.key})
        self.statuses[response.status_code] += 1
        if response.status_code == 200:
            found: str = response.json()["response"]
            return found
        return self._check_refusal(response.status_code, response.json(), response.headers, asked)

    def _check_refusal(self, status: int, body: Any, headers: Any, asked: KeyedRequest) -> str | None:
        """Whether that may be tried again: None; or what is wrong."""
        code = body.get("code", "")
        if not self.refused(code, status):
            return f"{status} {body}"
        if "retry-after" not in headers:
            self.failures.append(f"{asked}: {status} without Retry-After: {body}")
        return None

    def _ask_streaming(self, client: httpx2.Client, server: ServerProcess, asked: KeyedRequest) -> str | None:
        path, headers = f"/sessions/{asked.session}/message/stream", {"Idempotency-Key": asked.key}
        wire = RawConnection(
            server.port, "POST", path, body=self._make_body(asked), headers=headers, seconds=self.impatience
        )
        text = ""
        try:
            wire.send()
            for frame in wire.frames():
                if frame.event == "message_start":
                    text = ""
                elif frame.event == "text_delta":
                    text += frame.data["text"]
                elif frame.event == "error":
                    self.statuses[f"error frame {frame.data['code']}"] += 1
                    again = self.refused(frame.data["code"], frame.data.get("status", 503))
                    return None if again and frame.data["code"].startswith("store") else f"{frame.data}"
                elif frame.event == "done":
                    self.statuses["done"] += 1
                    told = frame.data["response"]["response"]
                    return text if told == text else f"the text {text!r} and the response {told!r}"
            if wire.status not in (0, 200) and wire.is_complete:
                self.statuses[wire.status] += 1
                return self._check_refusal(wire.status, json.loads(wire.text), wire.headers, asked)
            self.statuses["stream ended" if wire.is_complete else "stream cut"] += 1
            return None
        finally:
            wire.close()

    def _add(self, client: httpx2.Client, added: KeyedRequest, rng: random.Random) -> None:
        """Record a message without asking for an answer. One whose server died under it may stay undecided: its key is
        taken for a minute."""
        self.added.append(added)
        for _ in range(40):
            path = f"{rng.choice(self.servers).url}/sessions/{added.session}/messages"
            body = {"messages": [{"role": "user", "content": added.text}]}
            try:
                response = client.post(path, json=body, headers={"Idempotency-Key": added.key})
            except CONNECTION_ERRORS:
                time.sleep(0.02)
                continue
            if response.status_code == 200:
                added.answered = True
                return
            code = response.json().get("code")
            if code == "key_in_use":
                return
            if not self.refused(str(code), response.status_code):
                self.failures.append(f"{added}: {response.status_code} {response.text}")
                return
            time.sleep(0.05)


# -- what is there -----------------------------------------------------------------------------------------------------


def compare_with_store(url: str, load: ClientLoad, effects: Path, others: Sequence[str] = ()) -> list[str]:
    """Compare the answers of the clients with the store after all runs have ended; `others` are sessions of other
    clients."""
    failures = list(load.failures)
    with open_url(url) as store:
        for name in load.sessions:
            failures += [f"{name}: {failure}" for failure in _check_session(store, name, load)]
        failures += check_effects(store, [*load.sessions, *others], effects)
    return failures


def _check_session(store: Store, name: str, load: ClientLoad) -> list[str]:
    session = Session.open(name, store=store)
    failures = find_session_faults(store, session)
    view = store.view(session.log)
    if view.queue:
        failures.append(f"{len(view.queue)} runs are still queued")
    messages = session.messages
    asked = {each.text: each for each in load.asked if each.session == name}
    added = {each.text: each for each in load.added if each.session == name}
    questions = [message.text for message in messages if message.role == "user" and message.text in asked]
    there = Counter(message.text for message in messages if message.role == "user")
    for text, each in (asked | added).items():
        if each.answered and there[text] != 1:
            failures.append(f"{each.key} was acknowledged and is there {there[text]} times")
        elif there[text] > 1:
            failures.append(f"{each.key} is there {there[text]} times")
    failures += [f"nobody asked {text!r}" for text in there if text not in asked and text not in added]
    for client in range(load.clients):
        own = [int(text.split()[0].split("-")[1]) for text in questions if text.startswith(f"{client}-")]
        if own != sorted(own):
            failures.append(f"the questions of client {client} are out of order: {own}")
    return failures + check_answers(messages, set(asked), added)


def check_answers(messages: Sequence[Message], asked: set[str], added: Iterable[str]) -> list[str]:
    """Each question is followed by its turn, which ends with its answer; notes may stand between turns."""
    failures: list[str] = []
    notes = set(added)
    waiting: str | None = None
    for message in messages:
        if message.role == "user" and message.text not in notes:
            if waiting is not None:
                failures.append(f"{waiting!r} has no answer before {message.text!r}")
            waiting = message.text
        elif message.role == "assistant" and not message.tool_calls:
            if waiting is None or message.text != answer_to(waiting):
                failures.append(f"{message.text[:40]!r} answers {waiting!r}")
            waiting = None
    if waiting is not None:
        failures.append(f"{waiting!r} has no answer")
    return failures


def check_effects(store: Store, sessions: Iterable[str], effects: Path) -> list[str]:
    """What tools did, against what the log says: nothing ran twice that may not, nothing again after its result."""
    starts = Counter(path.name.rpartition("|")[0].rpartition("|")[0] for path in effects.iterdir() if "|" in path.name)
    failures: list[str] = []
    known: set[str] = set()
    for name in sessions:
        session = Session.open(name, store=store)
        events = session.events(limit=None)
        for called in (event for event in events if event.type == "tool.called"):
            own = [event for event in events if event.run == called.run and event.seq > called.seq]
            call_id, tool = called.data["call_id"], called.data["name"]
            returned = [event for event in own if event.type == "tool.returned" and event.data["call_id"] == call_id]
            key = f"{tool}|{session.log.uid}:{called.run}:{call_id}"
            known.add(key)
            failures += [f"{key}: {found}" for found in _check_call(tool, own, returned, starts[key])]
        failures += [f"{name}: {failure}" for failure in find_stale_writes(events)]
    return failures + [f"{key} ran, and no log knows of it" for key in starts if key not in known]


def _check_call(tool: str, own: Sequence[Event], returned: Sequence[Event], starts: int) -> list[str]:
    if len(returned) != 1:
        return [f"{len(returned)} results are recorded"]
    result = returned[0]
    before = [event for event in own if event.seq < result.seq]
    resumed = sum(event.type == "turn.resumed" for event in before)
    most = 1 if tool == "send" else 1 + resumed
    failures = [f"started {starts} times, at most {most} was right"] if starts > most else []
    unknown = result.data.get("unknown", False)
    if not unknown and not starts:
        failures.append("it has a result and never ran")
    if unknown and not resumed:
        failures.append("told as unknown, and nobody died")
    if "twice" in str(result.data):
        failures.append("it ran a second time")
    return failures


def find_stale_writes(events: Sequence[Event]) -> list[str]:
    """Replies of one process only between two takeovers: one that lost its turn has written nothing since."""
    failures: list[str] = []
    writers: dict[str, str] = {}
    ended: dict[str, int] = {}
    for event in events:
        if event.run is None:
            continue
        if event.run in ended:
            failures.append(f"{event.type} {event.seq} comes after the end of its run at {ended[event.run]}")
        if event.type in ("turn.started", "turn.resumed"):
            writers.pop(event.run, None)
        elif event.type == "model.replied":
            parts = event.data["message"].get("parts", [])
            (by,) = [part["text"] for part in parts if part["type"] == "thinking"]
            if writers.setdefault(event.run, by) != by:
                failures.append(f"the reply {event.seq} is {by}, the turn was {writers[event.run]}'s")
        elif event.type in ("turn.finished", "turn.failed", "turn.cancelled", "turn.interrupted", "run.dropped"):
            ended[event.run] = event.seq
    return failures
