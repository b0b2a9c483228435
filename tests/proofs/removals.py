"""B20 for what must be gone: words are planted through every feature, removed in every way, and looked for everywhere.

Two servers work on one database, with readers of their streams. After a removal no word of it may be in a table, in a
byte of a SQLite file, in an answer of a GET route, in a stream that opens, in a kept answer, or in a cache of a server.
Other memory is not looked at: a thread that waits for work still refers to its last run, and Python does not overwrite
what it frees.
"""

from __future__ import annotations

import gc
import random
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import httpx2
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from holdfast import Agent, File, Memory, Message, Session, tool
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.kept_answers import ANSWERS, open_answer
from holdfast.testing import call
from holdfast.worker.sweep import sweep
from tests.kit.local_server import TOKEN, LocalServer
from tests.proofs import Report, proof
from tests.proofs.models import ENOUGH, make_directory, open_database

WORD = re.compile(rb"zq(\d+)qz")
SOON = {"ttl_days": 1e-9}
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
WAYS = ("redact", "erase", "erase_user", "delete", "sweep")
AnyStore = SQLiteStore | PostgresStore
# What a cache refers to and does not hold: the store, code, and the agent with its model.
OUTSIDE = (Store, Agent, type, ModuleType, FunctionType, MethodType)


@tool
def echo(text: str) -> str:
    """Return a text."""
    return f"echo {text}"


def find_numbers(value: object) -> set[int]:
    """The numbers of the words in bytes, a text, or anything that prints as one."""
    data = value if isinstance(value, bytes) else (value if isinstance(value, str) else repr(value)).encode()
    return {int(number) for number in WORD.findall(data)}


class Planting:
    """One family of sessions, full of words. A word is known by its number alone, so that this class holds no text."""

    def __init__(self, stores: list[AnyStore], servers: list[LocalServer], rng: random.Random, first: int) -> None:
        self.stores, self.servers, self.rng = stores, servers, rng
        self.next = first
        self.user = f"user{first}"
        self.id = f"s{first}"
        self.shared: set[int] = set()  # words of the parent up to the point of its fork
        self.late: set[int] = set()  # words of the parent after that point
        self.fork_words: set[int] = set()
        self.wide: set[int] = set()  # words outside of these sessions that go with their user
        self.question = 0  # the word of a message, and the seq of the message
        self.question_seq = 0

    def plant(self, into: set[int]) -> str:
        self.next += 1
        into.add(self.next)
        return f"zq{self.next}qz"

    def post(self, path: str, key: str, body: dict[str, Any]) -> None:
        server = self.rng.choice(self.servers)
        with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
            client.post(path, json=body, headers={"Idempotency-Key": key}).raise_for_status()

    def run(self) -> Session:
        """Plant words in a random order, fork in the middle, and return the parent."""
        store, words = self.rng.choice(self.stores), self.shared
        body = {"id": self.id, "user_id": self.user, "title": self.plant(words), "system": self.plant(words)}
        self.post("/sessions", f"made {self.id}", body | {"metadata": {"note": self.plant(words)}})
        parent = Session.open(self.id, store=store)
        self._ask(parent, words)
        self._add_more(parent, words)
        fork = parent.fork(self.id + "f")
        # The fork has copies of the title and the metadata, which count as shared.
        self._add_more(parent, self.late)
        self._ask(parent, self.late)
        self.post(f"/sessions/{self.id}/fork", f"forked {self.id}", {"id": self.id + "g"})
        store.delete(self.id + "g")
        self._add_more(fork, self.fork_words)
        parent.set_state("wide", self.plant(self.wide), scope="user")
        return parent

    def _ask(self, session: Session, words: set[int]) -> None:
        """A turn with a tool and with an agent as a tool, in this process; and a turn of a server."""
        asked = self.plant(words)
        self.question = self.next
        child = Agent(provider="scripted", script=[self.plant(words)], name="child")
        calls = [call("echo", {"text": self.plant(words)}), call("child", {"request": self.plant(words)}, id="c2")]
        agent = Agent(provider="scripted", script=[*calls, "done"], tools=[echo, child.as_tool()])
        try:
            session.run(asked, agent=agent)
        finally:
            session.agent = None
        asked_events = [event for event in session.events() if event.type == "message.added"]
        self.question_seq = next(event.seq for event in asked_events if self.question in find_numbers(event.data))
        body = {"message": self.plant(words), "agent_id": "parrot"}
        self.post(f"/sessions/{session.id}/message", f"asked {session.id} {self.next}", body)

    def _add_more(self, session: Session, words: set[int]) -> None:
        steps: list[Callable[[], object]] = [
            lambda: session.add_message(Message.user(self.plant(words)), once=f"once {self.next}"),
            lambda: session.add_message(
                Message.user(self.plant(words), File(data=self.plant(words).encode(), media_type="text/plain"))
            ),
            lambda: session.set_state("name", self.plant(words)),
            lambda: session.facts.add(self.plant(words)),
            lambda: self.post(f"/sessions/{session.id}/facts", f"fact {self.next}", {"text": self.plant(words)}),
            lambda: Memory(store=session.store).for_user(self.user).ingest_from_session(session),
            lambda: session.prune("summarize_old", threshold=4),
            lambda: session.log.key is None and session.search("zq1qz"),
        ]
        self.rng.shuffle(steps)
        for step in steps:
            step()

    # -- removing --------------------------------------------------------------------------------------------------

    def remove(self, way: str) -> set[int]:
        """Remove words in one way; returns those that must be gone."""
        store = self.rng.choice(self.stores)
        parent = Session.open(self.id, store=store)
        if way == "redact":
            parent.redact(self.question_seq, reason="asked")
            return {self.question}
        if way == "erase":
            parent.erase(reason="asked", actor="officer")
            return self.shared | self.late
        if way == "erase_user":
            Session.erase_user(self.user, reason="asked", actor="officer", store=store)
            return self.shared | self.late | self.fork_words | self.wide
        # A deletion leaves memories and the sessions of called agents, so it is tried on what is in the log alone.
        self._forget_copies(store)
        if way == "delete":
            store.delete(self.id)
        else:
            parent.retention = SOON
            assert self.id in sweep(store).purged
        return self.late

    def _forget_copies(self, store: AnyStore) -> None:
        log = store.find("memory", self.user)
        if log is not None:
            store.remove("memory", self.user)
        for id in store.list_sessions():
            if not id.startswith(self.id):
                store.delete(id)


class Search:
    """Everything that two servers and their database hold."""

    def __init__(self, stores: list[AnyStore], servers: list[LocalServer], home: Path) -> None:
        self.stores, self.servers, self.home = stores, servers, home
        self.places = 0

    def run(self, gone: set[int]) -> list[str]:
        found: list[str] = []
        for place, numbers in self._look():
            self.places += 1
            left = numbers & gone
            if left:
                found.append(f"{place} has {len(left)} of {len(gone)} removed words: {sorted(left)[:5]}")
        return found

    def find_all(self) -> set[int]:
        found: set[int] = set()
        for _, numbers in self._look():
            found |= numbers
        return found

    def _look(self) -> Iterator[tuple[str, set[int]]]:
        yield from self._look_into_tables()
        for number, server in enumerate(self.servers):
            yield from self._ask_server(number, server)
        for store in self.stores:
            for key, value in store.kv_list(ANSWERS):
                yield "a kept answer", find_numbers(key) | find_numbers(open_answer(store, value, key) or b"")
        yield from self._look_into_memory()

    def _look_into_tables(self) -> Iterator[tuple[str, set[int]]]:
        store = self.stores[0]
        sweep(store)
        if isinstance(store, SQLiteStore):
            for path in self.home.glob("log.db*"):
                yield path.name, find_numbers(path.read_bytes())
            tables = [name for (name,) in store._fetch_all("SELECT name FROM sqlite_master WHERE type = 'table'")]
        else:
            query = "SELECT 'holdfast.' || tablename FROM pg_tables WHERE schemaname = 'holdfast'"
            tables = [name for (name,) in store._fetch_all(query)]
        for table in tables:
            if table != "words":  # its rows are in the tables of the index
                yield f"table {table}", find_numbers(store._fetch_all(f"SELECT * FROM {table}"))
        for (log,) in store._fetch_all(store.sql.render("SELECT log FROM logs")):
            rows = store._scan(log, 0, 1 << 31, limit=None, reverse=False, types=None, marked=False, since=None)
            yield f"log {log}", find_numbers([(row.body, row.tombstone) for row in rows])

    def _ask_server(self, number: int, server: LocalServer) -> Iterator[tuple[str, set[int]]]:
        with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
            paths = [path for path, methods in client.get("/openapi.json").json()["paths"].items() if "get" in methods]
            plain = [path for path in paths if "{" not in path and path != "/openapi.json"]
            ids = [each["id"] for each in client.get("/sessions", params={"limit": 200}).json()["sessions"]]
            of_session = [path for path in paths if path.count("{") == 1]
            for path in [*plain, *(path.replace("{session_id}", id) for id in ids for path in of_session)]:
                if "{" not in path:
                    yield f"server {number}: GET {path}", find_numbers(client.get(path).content)
            for id in ids:
                yield f"server {number}: stream of {id}", self._read_stream(client, id)

    def _read_stream(self, client: httpx2.Client, id: str) -> set[int]:
        head = client.get(f"/sessions/{id}/events", params={"limit": 1}).json()["head"]
        found: set[int] = set()
        headers = {"Accept": "text/event-stream"}
        with client.stream("GET", f"/sessions/{id}/events", params={"after": 0}, headers=headers) as response:
            for line in response.iter_lines():
                found |= find_numbers(line)
                if line == f"id: {head}":
                    break
        return found

    def _look_into_memory(self) -> Iterator[tuple[str, set[int]]]:
        """Texts that the caches of a server reach: its tails and its session objects. Before that the servers look for
        removals of other processes, as they do every few seconds."""
        for number, server in enumerate(self.servers):
            server.server.drop_removed_sessions()
            tails = [tail.items for tail in server.server.feed._tails.values()]
            caches = [(session.cache, session.__dict__) for session in server.server._sessions.values()]
            for name, cache in (("tails", tails), ("session objects", caches)):
                yield f"the {name} of server {number}", find_reachable_numbers(cache)


def find_reachable_numbers(root: object) -> set[int]:
    """The numbers of the words in all texts that an object refers to, directly or through others."""
    found: set[int] = set()
    seen, waiting = {id(root)}, [root]
    while waiting:
        for value in gc.get_referents(waiting.pop()):
            if isinstance(value, (str, bytes, bytearray)):
                found |= find_numbers(value.encode(errors="replace") if isinstance(value, str) else bytes(value))
            elif id(value) not in seen and not isinstance(value, OUTSIDE):
                seen.add(id(value))
                waiting.append(value)
    return found


@contextmanager
def open_pair(kind: str, home: Path, dsn: str) -> Iterator[tuple[list[AnyStore], list[LocalServer]]]:
    """Two servers on one database, each with a store object of its own, as in two processes."""
    key = sha256(b"master").digest() if "encrypted" in kind else None
    with ExitStack() as stack:
        stores: list[AnyStore] = []
        for _ in range(2):
            store: AnyStore = SQLiteStore(home / "log.db", key=key) if "sqlite" in kind else PostgresStore(dsn, key=key)
            stack.enter_context(store)
            stores.append(store)
        parrot = Agent(provider="echo")
        yield stores, [stack.enter_context(LocalServer(store, agents={"parrot": parrot})) for store in stores]


@contextmanager
def watch(servers: list[LocalServer], id: str) -> Iterator[None]:
    """Keep the tails of a session alive on both servers."""
    with ExitStack() as stack:
        for server in servers:
            client = stack.enter_context(httpx2.Client(base_url=server.url, headers=HEADERS, timeout=60))
            headers = {"Accept": "text/event-stream"}
            stack.enter_context(client.stream("GET", f"/sessions/{id}/events", params={"after": 0}, headers=headers))
        yield


@proof("B20", ci=5, long=1_000)
def removed_texts(size: int, seed: int) -> Report:
    """Words planted through every feature, removed in every way, looked for in every table, file, route and stream."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    kinds = ("sqlite", "postgres", "sqlite encrypted", "postgres encrypted")
    with open_database() as dsn:
        for number in range(size):
            way, kind = WAYS[number % len(WAYS)], kinds[(number + number // len(WAYS)) % len(kinds)]
            with make_directory() as home, open_pair(kind, home, _new_database(dsn)) as (stores, servers):
                planting = Planting(stores, servers, random.Random(f"{seed}/{number}"), 1_000 + 1_000 * number)
                parent = planting.run()
                search = Search(stores, servers, home)
                with watch(servers, parent.id):
                    planted = planting.shared | planting.late
                    unseen = planted - search.find_all()
                    if unseen:
                        failures.append(f"{kind} {way}: the search never saw {sorted(unseen)}")
                    del parent
                    gone = planting.remove(way)
                    counts["removed"] += len(gone)
                    failures += [f"{seed}/{number} {kind} {way}: {each}" for each in search.run(gone)]
                counts["planted"] += len(planted)
                counts["places"] += search.places
            if len(failures) >= ENOUGH:
                break
    figures = f"{counts['planted']:,} words planted, {counts['removed']:,} removed, {counts['places']:,} places"
    return Report(figures=f"{figures}; {len(failures)} wrong", failures=failures)


def _new_database(dsn: str) -> str:
    """An empty database beside the one that is given."""
    name = f"removals_{secrets.token_hex(8)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_conninfo(dsn, dbname=name)
