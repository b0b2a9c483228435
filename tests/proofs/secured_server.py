"""A real server with something to protect: two tenants, several users, a key for every kind of caller.

Everything that a user owns has that user's canary, a text that no other user may get. `SecuredServer` serves from a
thread of this process, so that seeded bugs are in it. `SecuredProcess` is `holdfast serve`, for what only a process of
its own can show: its log, its memory, its descriptors.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import apsw

from holdfast import Memory, Message, Session
from holdfast.server.agent_catalog import AgentCatalog
from holdfast.server.api_keys import ROLES, Role, create_key, revoke_key
from holdfast.server.app import Server, create_app
from holdfast.server.config import Config
from holdfast.server.process import DrainingServer, bind_sockets, uvicorn_config
from holdfast.stores import SQLiteStore
from holdfast.stores.base import Store
from tests.proofs.secured_server_app import helper

TOKEN = "hf_the-token-of-the-server-that-is-attacked"
APP = "shop"
SESSIONS_PER_OWNER = 4  # sessions of each owner
COMMON = "common"  # an id that a session has in every tenant
STORED = "stored"  # a stored agent that every tenant has
PATIENCE = 20.0  # seconds that a client waits for an answer before it counts as a hang
# Proofs ask as fast as they can with few keys, and streams must come to an end.
SETTINGS: dict[str, Any] = {
    "rate": 0,
    "runs_per_key": 1000,
    "streams_per_key": 1000,
    "stream_life": 0.1,
    "ping": 0.05,
    "sweep_every": 3600.0,
    "drain": 2.0,
}
TENANTS = ("", "acme", "evil")
OWNERS: tuple[tuple[str, str | None], ...] = (
    ("acme", "alice"),
    ("acme", "bob"),
    ("acme", None),
    ("evil", "alice"),  # a user of another tenant has this name too
    ("", None),
)

Owner = tuple[str, str | None]


def make_canary(tenant: str, user: str | None) -> str:
    """The text that marks what a user owns."""
    return "canary" + sha256(f"{tenant}/{user}".encode()).hexdigest()[:20]


SHARED = "everybody"  # stands for the user of what all users of a tenant share


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller: a key, and what it may do."""

    name: str
    key: str | None
    tenant: str = ""
    user: str | None = None
    role: Role | None = None  # None: every request is refused
    approves: bool = False

    def may(self, permission: str) -> bool:
        """Whether this caller has a role or a permission; "a+b" needs both."""
        if "+" in permission:
            return all(self.may(each) for each in permission.split("+"))
        if permission == "public":
            return True
        if self.role is None:
            return False
        if permission == "approve":
            return self.approves or self.role == "admin"
        if permission == "application":
            return self.role == "admin" or (self.role == "write" and self.user is None)
        if permission == "operator":
            return self.tenant == "" and self.user is None
        return ROLES.index(self.role) >= ROLES.index(permission)  # type: ignore[arg-type]

    def owns(self, owner: Owner) -> bool:
        """Whether what an owner has may be seen by this one."""
        return self.role is not None and self.tenant == owner[0] and self.user in (None, owner[1])

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    @property
    def foreign(self) -> list[str]:
        """The canaries that they may never see."""
        found = [make_canary(*owner) for owner in OWNERS if not self.owns(owner)]
        return found + [make_canary(tenant, SHARED) for tenant in TENANTS if self.role is None or tenant != self.tenant]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIds:
    """A session, and the ids in it that a request can name."""

    id: str
    fact_id: str
    run_id: str
    call_id: str
    seq: int  # of a message


@dataclass(slots=True, kw_only=True)
class ServerContents:
    """The sessions and callers of the server."""

    sessions: dict[Owner, list[SessionIds]]
    principals: dict[str, Principal] = field(default_factory=dict)


def fill_store(store: Store, sessions: int = SESSIONS_PER_OWNER) -> ServerContents:
    """Sessions with everything a session can have, for every owner; agents; and keys."""
    found = ServerContents(sessions={})
    for tenant, user in OWNERS:
        bound_to = store.for_tenant(tenant)
        names = [f"{user or 'default'}-{number}" for number in range(sessions)]
        if user == "alice" or tenant == "":
            names.append(COMMON)
        found.sessions[tenant, user] = [create_session(bound_to, name, user) for name in names]
    for tenant in TENANTS:
        for name in (STORED, name_tenant_agent(tenant)):
            store_agent(store.for_tenant(tenant), name)
    found.principals = {each.name: each for each in make_principals(store)}
    return found


def create_session(store: Store, name: str, user: str | None, *, alone: bool = False) -> SessionIds:
    """A session with everything, and with a turn that waits for a person. `alone`: what it shares with other sessions
    is left as it is, and it waits for no person."""
    mark = make_canary(store.tenant, user)
    session = Session(
        name,
        store=store,
        agent=helper,
        user_id=user,
        app_name=APP,
        title=f"title {mark}",
        metadata={"note": mark},
        system=f"system {mark}",
        state={"note": mark},
        messages=[Message.user(f"said {mark}")],
    )
    seq = session.head
    fact = session.facts.add(f"fact {mark}")
    run = session.run(f"hello {mark}").run_id
    if alone:
        return SessionIds(id=name, fact_id=fact.id, run_id=run, call_id="", seq=seq)
    session.set_state("shared", make_canary(store.tenant, SHARED), scope="app")
    if user is not None:
        session.set_state("note", mark, scope="user")
    Memory(store=store).store("note", f"memory {mark}", user_id=user)
    waiting = session.run("spend a little")
    return SessionIds(id=name, fact_id=fact.id, run_id=run, call_id=waiting.pending[0].call_id, seq=seq)


def store_agent(store: Store, name: str) -> None:
    given = {"name": name, "provider": "echo", "instructions": make_canary(store.tenant, SHARED)}
    AgentCatalog().create(store, name, given, actor="proof")


def name_tenant_agent(tenant: str) -> str:
    """The id of an agent that no other tenant has."""
    return f"only-{tenant or 'default'}"


def make_principals(store: Store) -> Iterator[Principal]:
    """Every kind of caller: one without a key, some with bad keys, and every role of some users and tenants."""
    made = [
        *(("acme", "alice", role) for role in ROLES),
        ("acme", "alice", "chat+approve"),
        ("acme", "alice", "write+approve"),
        ("acme", None, "read+approve"),
        *(("acme", "bob", role) for role in ("write", "admin")),
        *(("acme", None, role) for role in ("write", "admin")),
        *(("evil", "alice", role) for role in ("write", "admin")),
        ("evil", None, "admin"),
        ("", None, "read"),
        ("", "alice", "admin"),
    ]
    yield Principal(name="nobody", key=None)
    for tenant, user, role in made:
        name = f"{tenant or 'default'} {user or 'service'} {role}"
        role, _, more = role.partition("+")
        approves = more == "approve"
        key, _ = create_key(store, role=role, tenant=tenant, user=user, may_approve=approves)  # type: ignore[arg-type]
        yield Principal(name=name, key=key, tenant=tenant, user=user, role=role, approves=approves)  # type: ignore[arg-type]
    # The public part of a key that works, with another secret.
    yield Principal(name="wrong", key=key[:12] + "x" * 43)
    expired, _ = create_key(store, role="admin", tenant="acme", user="alice", expires_days=1e-9)
    yield Principal(name="expired", key=expired)
    revoked, info = create_key(store, role="admin", tenant="acme", user="alice")
    revoke_key(store, info.id)
    yield Principal(name="revoked", key=revoked)
    yield Principal(name="server", key=TOKEN, role="admin")


# -- what is kept ------------------------------------------------------------------------------------------------------

EVERY_LOG = """
    SELECT l.log, l.tenant, l.kind, l.id, l.head, l.hash, l.epoch, l.updated_at,
           s.user_id, s.app_name, s.status, s.title, s.metadata, s.work_dir, k.held
    FROM logs l LEFT JOIN sessions s USING (log) LEFT JOIN retention k USING (log)
"""
EVERY_KEY_VALUE = "SELECT tenant, space, key, value FROM key_values WHERE space <> 'api-key-uses'"
EVERY_LEASE = "SELECT log, epoch FROM leases"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDump:
    """Everything that is kept, read past the server."""

    logs: dict[int, tuple[Any, ...]]
    key_values: dict[tuple[Any, ...], bytes]
    leases: dict[int, int]

    def list_changes(self, later: StoreDump, by: Principal | None = None) -> list[str]:
        """What differs, besides what `by` may change."""
        found = []
        for number in sorted(self.logs.keys() | later.logs.keys()):
            before, after = self.logs.get(number), later.logs.get(number)
            rows = [row for row in (before, after) if row is not None]
            if before != after and not all(_may_write(by, row) for row in rows):
                found.append(f"log {number} was {_describe_row(before)} and is {_describe_row(after)}")
        for place in sorted(self.key_values.keys() | later.key_values.keys()):
            same = self.key_values.get(place) == later.key_values.get(place)
            may_write = by is not None and (by.may("chat") or by.may("approve")) and by.tenant == place[0]
            if not same and not may_write:
                found.append(f"slip {place} changed")
        if (by is None or not by.may("chat")) and self.leases != later.leases:
            found.append(f"leases were {self.leases} and are {later.leases}")
        return found


def _may_write(who: Principal | None, row: tuple[Any, ...]) -> bool:
    """Whether the caller could have changed this row through the API."""
    tenant, kind, id, user = row[1], row[2], row[3], row[8]
    if who is None or who.tenant != tenant or not (who.may("chat") or who.may("approve")):
        return False
    if kind == "session":
        if id is None or row[10] == "erased":  # deleted or erased, and without an owner: the row before counts
            return True
        return who.user in (None, None if user is None else bytes(user).decode())
    if not who.may("write"):
        return False
    if kind == "user":
        return who.user in (None, id)
    if kind == "memory":
        return who.user in (None, id)
    if kind == "memory.app":
        return who.user is None
    if kind == "app":
        return who.user is None or who.may("admin")
    return kind == "agents" and who.may("admin")


def _describe_row(row: tuple[Any, ...] | None) -> str:
    return "not there" if row is None else f"{row[1]}/{row[2]}/{row[3]} at {row[4]} of {row[8]!r}"


def dump_store(path: Path) -> StoreDump:
    """Read the database of the server. A connection of the same library, so no lock of the store's own is lost."""
    database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return StoreDump(
            logs={row[0]: row for row in database.execute(EVERY_LOG)},
            key_values={row[:3]: row[3] for row in database.execute(EVERY_KEY_VALUE)},
            leases={row[0]: row[1] for row in database.execute(EVERY_LEASE)},
        )
    finally:
        database.close()


# -- served ------------------------------------------------------------------------------------------------------------


class SecuredServer:
    """The server in a thread of this process."""

    def __init__(
        self,
        directory: Path,
        *,
        sessions: int = SESSIONS_PER_OWNER,
        token: str | None = TOKEN,
        keep_alive: float = 30,
        **settings: Any,
    ) -> None:
        self.path = directory / "secured.db"
        self.store = SQLiteStore(self.path)
        self.contents = fill_store(self.store, sessions)
        config = Config(**{**SETTINGS, "port": 0, **settings})
        self._sockets = bind_sockets(config)
        self.port: int = self._sockets[0].getsockname()[1]
        self.config = replace(config, port=self.port)
        self.server = Server(self.store, self.config, token=token, agents={"helper": helper})
        self.app = create_app(self.server)
        self._uvicorn = DrainingServer(
            uvicorn_config(self.app, self.config, timeout_keep_alive=keep_alive), self.server
        )
        self._thread = threading.Thread(target=self._uvicorn.run, args=[self._sockets], name="secured", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        _wait_until(lambda: self._uvicorn.started or not self._thread.is_alive())
        if not self._uvicorn.started:
            raise RuntimeError("the server did not start")
        return self

    @property
    def connections(self) -> set[Any]:
        """Those that are open."""
        return self._uvicorn.server_state.connections

    def __exit__(self, *_: object) -> None:
        self._uvicorn.stop()
        self._thread.join(PATIENCE)
        self.store.close()


class SecuredProcess:
    """`holdfast serve` in a process of its own; its log is a file."""

    def __init__(self, directory: Path, *flags: str, **environment: str) -> None:
        self.path, self._log = directory / "secured.db", directory / "stderr"
        with SQLiteStore(self.path) as store:
            self.contents = fill_store(store)
        serve = "from holdfast.cli.serve import serve; serve()"
        self._command = [sys.executable, "-c", serve, str(Path(__file__).parent / "secured_server_app.py")]
        self._command += ["--store", f"sqlite:///{self.path}", "--data", str(directory), "--port", "0", "--rate", "0"]
        self._command += ["--ping", "0.05", "--stream-life", "1", "--streams-per-key", "1000", "--runs-per-key", "1000"]
        self._command += flags
        self._environment = os.environ | {"HOLDFAST_TOKEN": TOKEN} | environment
        self._environment.pop("HOLDFAST_STORE", None)

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        _wait_until(lambda: _SERVES.search(self.log) is not None or self._child.poll() is not None)
        match = _SERVES.search(self.log)
        if match is None:
            raise RuntimeError(f"the server did not start: {self.log[-2000:]}")
        self.port = int(match.group(1))
        _wait_until(lambda: _is_answering(self.port) or self._child.poll() is not None)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            raise

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    @property
    def rss(self) -> float:
        """Megabytes of memory that it has now."""
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert match is not None
        return int(match.group(1)) / 1024

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._child.pid}/fd"))


_SERVES = re.compile(r"holdfast serves http://127\.0\.0\.1:(\d+)")


def _wait_until(happened: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_answering(port: int) -> bool:
    try:
        with Caller(port) as caller:
            return caller.ask("GET", "/health").status == 200
    except OSError:
        return False


# -- asking ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """A client with one connection, which it keeps."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._wire = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Answer:
        """Send JSON, get an answer; a connection that the server has closed is opened again."""
        sent = dict(headers or {})
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        for again in (True, False):
            try:
                self._wire.request(method, target, data, sent)
                found = self._wire.getresponse()
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._wire.close()
                if not again:
                    raise
        answer = Answer(
            status=found.status,
            headers={name.lower(): value for name, value in found.getheaders()},
            body=found.read(),
        )
        if answer.headers.get("connection") == "close":
            self._wire.close()
        return answer


@contextmanager
def open_caller(port: int) -> Iterator[Caller]:
    with Caller(port) as caller:
        yield caller
