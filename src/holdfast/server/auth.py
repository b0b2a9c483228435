"""Who asks, and what they may do.

What a request may do comes from the key alone: its tenant, its user and its role are in the row that the key's digest
names, never in the request. A permission is attached to a route, not to a path, and a route without one is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import stat
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from holdfast.clock import REAL, Ids
from holdfast.concurrency import off_thread
from holdfast.errors import AgentError, Forbidden, InvalidArgument, SessionNotFound, Unauthorized
from holdfast.server.api_keys import ROLES, KeyInfo, Role, digest_of, find_key, note_use
from holdfast.server.config import Config, is_token
from holdfast.server.errors import unexpected
from holdfast.server.metrics import Metrics
from holdfast.server.rate_limits import Limits
from holdfast.session.session import Session
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.agent import Agent

Permission = Literal["read", "write", "admin", "operator", "public"]

CACHED_SECONDS = 3.0  # a revoked key works for so long at most
NOTED_EVERY = 60.0  # seconds between two notes of a key's use
MOST_CACHED = 10_000
LONGEST_KEY = 512
WHO = "holdfast.who"  # in the scope of a request, once it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Whoever asks: bound to a tenant, and to a user if the key is."""

    tenant: str
    user: str | None
    role: Role
    key_id: str
    store: Store

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def is_operator(self) -> bool:
        """Whether this is a key of those who run the server, not of a tenant or a user."""
        return self.tenant == "" and self.user is None

    def open(self, session_id: str, agent: Agent | None = None) -> Session:
        """A session of theirs. Another user's is as missing as one that is not there. Blocks."""
        session = Session.open(session_id, store=self.store, agent=agent)
        if self.user is not None and session.user_id != self.user:
            raise SessionNotFound(session_id)
        return session

    def owner(self, asked: str | None) -> str | None:
        """Whose a new session is, or whose sessions are listed: a key of a user is for that user's only."""
        if self.user is None:
            return asked
        if asked is not None and asked != self.user:
            raise Forbidden("this key belongs to another user than the one asked for: leave user_id out")
        return self.user


class Gate:
    """Turns the key of a request into `Who`. Keys are looked up in the store and remembered for a few seconds."""

    def __init__(
        self, store: Store, *, config: Config, token: str | None, limits: Limits, metrics: Metrics, ids: Ids = REAL
    ) -> None:
        self._store, self._limits, self._metrics, self._ids = store, limits, metrics, ids
        everything = Who(tenant="", user=None, role="admin", key_id="server", store=store.for_tenant(""))
        self._everybody = everything if config.open else None
        self._server, self._server_digest = everything, digest_of(token) if token else ""
        if not config.open and not token:
            raise InvalidArgument("a server that is not open needs a token: see server_token()")
        self._known: OrderedDict[str, tuple[float, Who | None]] = OrderedDict()  # by digest: until when
        self._lookups: dict[str, asyncio.Task[Who | None]] = {}
        self._noted: dict[str, float] = {}

    async def identify(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> Who:
        """Whoever these headers belong to; `Unauthorized`, always the same one, if nobody."""
        if self._everybody is not None:
            self._limits.admit(address)
            return self._everybody
        who = await self._holder(headers, address)
        if who is None:
            self._metrics.refused.labels("key").inc()
            raise Unauthorized
        self._limits.admit(who.key_id)
        return who

    async def _holder(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> Who | None:
        key = presented(headers)
        if key is None:
            return None
        digest = digest_of(key)
        if hmac.compare_digest(digest, self._server_digest):
            return self._server
        now = self._ids.elapsed()
        until, who = self._known.get(digest, (0.0, None))
        if now < until:
            return who
        if who is None:  # a key that was good a moment ago is not held up by others at its address
            self._limits.check_address(address)
        # Many requests of one key at once look it up once.
        lookup = self._lookups.get(digest)
        if lookup is None:
            lookup = self._lookups[digest] = asyncio.create_task(self._look_up(key, digest))
            lookup.add_done_callback(partial(self._looked_up, digest))
        who = await asyncio.shield(lookup)  # whoever started it may be cancelled
        if who is None:
            self._limits.failed(address)
        return who

    def _looked_up(self, digest: str, lookup: asyncio.Task[Who | None]) -> None:
        del self._lookups[digest]
        if not lookup.cancelled():
            lookup.exception()  # looked at, so that asyncio does not complain if nobody waits any more

    async def _look_up(self, key: str, digest: str) -> Who | None:
        info = await off_thread(find_key, self._store, key)
        who, now, until = None, self._ids.now(), self._ids.elapsed() + CACHED_SECONDS
        if info is not None and info.is_valid(now):
            who = Who(
                tenant=info.tenant,
                user=info.user,
                role=info.role,
                key_id=info.id,
                store=self._store.for_tenant(info.tenant),
            )
            if info.expires_at is not None:
                until = min(until, self._ids.elapsed() + (info.expires_at - now) / 1e6)
            self._note_use(info, now)
        self._known[digest] = (until, who)
        self._known.move_to_end(digest)
        if len(self._known) > MOST_CACHED:
            self._known.popitem(last=False)
        return who

    def _note_use(self, info: KeyInfo, now: int) -> None:
        """Off the request path: nobody waits for it, and if it fails, the next minute's will do."""
        elapsed = self._ids.elapsed()
        if elapsed < self._noted.get(info.id, 0.0):
            return
        self._noted[info.id] = elapsed + NOTED_EVERY
        work = asyncio.get_running_loop().run_in_executor(None, note_use, self._store, info.id, now)
        work.add_done_callback(self._noted_use)

    def _noted_use(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) and not isinstance(error, AgentError):
            unexpected(error, metrics=self._metrics, where="the last use of a key")


def presented(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The one key that a request shows. Two of them are none: which one would be meant?"""
    found: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            found.append(rest.strip() if scheme.lower() == b"bearer" else b"")
        elif name == b"x-api-key":
            found.append(value.strip())
    if len(found) != 1 or not 0 < len(found[0]) <= LONGEST_KEY or not found[0].isascii():
        return None
    return found[0].decode("ascii")


async def identified(request: Request) -> Who:
    """Who sends this request; asked once, however many parts of the server want to know."""
    who: Who | None = request.scope.get(WHO)
    if who is None:
        client = request.client
        server = request.app.state.server
        who = request.scope[WHO] = await server.gate.identify(request.scope["headers"], client.host if client else "")
    assert who is not None
    return who


class Require(SecurityBase):
    """A dependency that lets through whoever has a permission."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission
        self.model = HTTPBearer(description="An API key or the server's token; X-API-Key does as well.")
        self.scheme_name = "key"

    async def __call__(self, request: Request) -> Who:
        who = await identified(request)
        if self.permission == "operator":
            if not who.is_operator:
                raise Forbidden("this is for those who run the server: use a key without tenant and user")
        elif not who.may(self.permission):  # type: ignore[arg-type]
            raise Forbidden(f"this key may {who.role}, and this needs {self.permission}: use another key")
        return who


class Public:
    """A dependency that lets everybody through, and says so."""

    permission: Permission = "public"

    async def __call__(self) -> None:
        return None


_REQUIRED = {permission: Require(permission) for permission in (*ROLES, "operator")}  # type: ignore[arg-type]


def require(role: Role) -> Require:
    """The dependency of routes that need this role or a higher one."""
    return _REQUIRED[role]


operator = _REQUIRED["operator"]
public = Public()

Reader = Annotated[Who, Depends(require("read"))]
Writer = Annotated[Who, Depends(require("write"))]
Admin = Annotated[Who, Depends(require("admin"))]
Operator = Annotated[Who, Depends(operator)]
Anyone = Depends(public)


def permission_of(route: Any) -> Permission | None:  # noqa: ANN401 - a route of FastAPI, or its context
    """What a route asks of those who call it; None: it does not say."""
    found = dependency_of(route)
    return None if found is None else found.permission


def dependency_of(route: Any) -> Require | Public | None:  # noqa: ANN401 - a route of FastAPI, or its context
    """The dependency that guards a route."""
    waiting = [getattr(route, "dependant", None)]
    while waiting:
        dependant = waiting.pop()
        if dependant is not None:
            if isinstance(dependant.call, Require | Public):
                return dependant.call
            waiting += dependant.dependencies
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerToken:
    """The server's own token, and where it is kept."""

    value: str
    path: Path | None = None  # None: it came from the environment
    is_new: bool = False

    def __repr__(self) -> str:
        return f"ServerToken(path={self.path!r}, is_new={self.is_new})"


def server_token(config: Config, ids: Ids = REAL) -> ServerToken:
    """The token from `HOLDFAST_TOKEN`, or from the token file, which is made at the first start."""
    if config.token:
        return ServerToken(value=config.token)
    path = Path(config.token_file or Path(config.data) / "token")
    if config.data and path.parent == Path(config.data):
        config.make_data_directory()
    try:
        is_new = _made(path, ids)
        value = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InvalidArgument(f"the token file {path} cannot be used: {reason}") from error
    if not is_token(value):
        raise InvalidArgument(f"the token file {path} holds no token: remove it, and a new one is made")
    if path.parent == Path(config.data) and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidArgument(f"others can read the token file {path}: remove it, and a new one is made")
    return ServerToken(value=value, path=path, is_new=is_new)


def _made(path: Path, ids: Ids) -> bool:
    """Whether the file had to be made. It appears whole, so that of two servers that start, one token counts."""
    if path.exists():
        return False
    draft = path.with_name(f"{path.name}.{ids.random(8).hex()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "w") as opened:
            opened.write(f"hf_{ids.random(32).hex()}\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        return True
    finally:
        os.unlink(draft)
