"""Authentication and permissions: the caller of a request, and the rights of that caller.

The rights of a request come from its key alone: tenant, user and role are stored under the digest of the key, and never
read from the request. A permission is attached to a route, not to a path, and a route without one is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.types import Scope

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import AgentError, Forbidden, InvalidArgument, SessionNotFound, StoreError, Unauthorized
from holdfast.operating_system import find_exposed_mode
from holdfast.policy.quota import Quota
from holdfast.server.api_keys import (
    ROLES,
    KeyInfo,
    Role,
    digest_of,
    find_key,
    list_key_ids,
    public_id_of,
    record_key_use,
)
from holdfast.server.config import Config, is_token
from holdfast.server.errors import log_unexpected_error
from holdfast.server.metrics import Metrics
from holdfast.server.quotas import Quotas
from holdfast.server.rate_limits import RequestLimits
from holdfast.session.session import Session
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.server.app import Server

Permission = Literal["read", "chat", "write", "admin", "approve", "operator", "public"]

CACHED_SECONDS = 3.0  # longest time that a revoked key still works
USE_RECORD_SECONDS = 60.0  # time between two records of a key's use
MAX_CACHED_KEYS = 10_000
MAX_KEY_LENGTH = 512
KEY_THREADS = 4
CALLER = "holdfast.who"  # key of the caller in the scope of a request


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of a key: bound to a tenant, and to a user if the key is."""

    tenant: str
    user: str | None
    role: Role
    key_id: str
    store: Store = field(compare=False)
    is_approver: bool = False  # the key was given the permission to approve
    quota: Quota | None = None  # of the key; of its user, or of its tenant if it has none

    def has_role(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def may_approve(self) -> bool:
        return self.is_approver or self.role == "admin"

    @property
    def is_application(self) -> bool:
        """Whether the key is the application's: an admin's, or one to write that is bound to no user."""
        return self.role == "admin" or (self.role == "write" and self.user is None)

    @property
    def is_operator(self) -> bool:
        """Whether the key belongs to the operators of the server, not to a tenant or a user."""
        return self.tenant == "" and self.user is None

    def open_session(self, session_id: str, agent: Agent | None = None) -> Session:
        """Return a session of the caller; raise SessionNotFound if it does not exist or is another user's. Blocks."""
        session = Session.open(session_id, store=self.store, agent=agent)
        if self.user is not None and session.user_id != self.user:
            raise SessionNotFound(session_id)
        return session

    def resolve_owner(self, user_id: str | None) -> str | None:
        """Return the owner of a new session, or of the sessions to list. A key of a user allows only that user."""
        if self.user is None:
            return user_id
        if user_id is not None and user_id != self.user:
            raise Forbidden("this key belongs to another user than the one asked for: leave user_id out")
        return self.user


class Authenticator:
    """Finds the caller of a request by its key. Keys are looked up in the store and cached for a few seconds."""

    def __init__(
        self,
        store: Store,
        *,
        config: Config,
        token: str | None,
        limits: RequestLimits,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store, self._limits, self._metrics, self._clock = store, limits, metrics, clock
        self.quotas = Quotas(config)
        everything = Caller(tenant="", user=None, role="admin", key_id="server", store=store.for_tenant(""))
        self._open_server_caller = everything if config.open else None
        self._server_caller, self._server_digest = everything, digest_of(token) if token else ""
        if not config.open and not token:
            raise InvalidArgument("a server that is not open needs a token: see server_token()")
        # By digest of the key: when the entry expires, and the caller; None for a key that is not valid.
        self._callers_by_digest: OrderedDict[str, tuple[float, Caller | None]] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[Caller | None]] = {}
        self._next_record_times: dict[str, float] = {}
        # The public parts of all keys, for addresses that send many wrong ones.
        self._ids: frozenset[str] = frozenset()
        self._ids_until = 0.0
        self._ids_read: asyncio.Task[None] | None = None
        # Of their own: requests that take all other threads must not keep another tenant's key from being found.
        self._threads = ThreadPoolExecutor(KEY_THREADS, thread_name_prefix="holdfast-keys")

    async def identify(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> Caller:
        """Return the caller of these headers; raise `Unauthorized` if no key is valid, with one text for all causes."""
        if self._open_server_caller is not None:
            self._limits.count_request(address)
            return self._limit_caller(self._open_server_caller)
        caller = await self._find_caller(headers, address)
        if caller is None:
            self._metrics.refusals.labels("key").inc()
            raise Unauthorized
        self._limits.count_request(caller.key_id)
        return self._limit_caller(caller)

    def _limit_caller(self, caller: Caller) -> Caller:
        """Bind the store of a caller to its quotas, for one request: the headers of the answer show what it read."""
        limited = self.quotas.limit_store(caller.store, caller.user, caller.quota)
        return caller if limited is caller.store else replace(caller, store=limited)

    async def _find_caller(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> Caller | None:
        key = key_from_headers(headers)
        if key is None:
            return None
        digest = digest_of(key)
        if hmac.compare_digest(digest, self._server_digest):
            return self._server_caller
        now = self._clock.monotonic()
        until, caller = self._callers_by_digest.get(digest, (0.0, None))
        if now < until:
            return caller
        # A key that was valid a moment ago is not slowed down by its address.
        sources = [] if caller is not None else await self._check_guess(key, address)
        caller = await self._share_lookup(key, digest)
        if caller is None:
            self._limits.count_failure(*sources)
        return caller

    async def _check_guess(self, key: str, address: str) -> list[str]:
        """Return the sources for which a failure of this key counts; raise TooManyRequests if they failed too often.

        Many clients may share an address, and one of them may guess. So an address with too many failures gets no
        lookup for keys that do not exist, and a lookup for keys whose public part exists. Failures of such a key count
        for that key alone.
        """
        if self._limits.may_guess(address):
            return [address]
        key_id = public_id_of(key)
        if key_id is None or not await self._is_known_id(key_id):
            self._limits.refuse_guess(address)
        source = f"{address} {key_id}"
        if not self._limits.may_guess(source):
            self._limits.refuse_guess(source)
        return [address, source]

    async def _is_known_id(self, key_id: str) -> bool:
        """Whether a key with this public part exists, by a list of all of them that is read every few seconds."""
        if self._clock.monotonic() >= self._ids_until and key_id not in self._ids:
            if self._ids_read is None or self._ids_read.done():
                self._ids_read = asyncio.create_task(self._read_ids())
            await asyncio.shield(self._ids_read)
        return key_id in self._ids

    async def _read_ids(self) -> None:
        loop = asyncio.get_running_loop()
        self._ids = await loop.run_in_executor(self._threads, list_key_ids, self._store)
        self._ids_until = self._clock.monotonic() + CACHED_SECONDS

    async def is_still(self, caller: Caller, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether the key of a request that began a while ago still is what it was: not revoked, expired or changed."""
        key = key_from_headers(headers)
        if caller is self._open_server_caller or key is None or caller is self._server_caller:
            return True
        digest = digest_of(key)
        until, known = self._callers_by_digest.get(digest, (0.0, None))
        if self._clock.monotonic() >= until:
            known = await self._share_lookup(key, digest)
        return known == caller

    async def _share_lookup(self, key: str, digest: str) -> Caller | None:
        """Look a key up in the store. Concurrent requests with one key share one lookup."""
        lookup = self._lookups.get(digest)
        if lookup is None:
            lookup = self._lookups[digest] = asyncio.create_task(self._look_up_key(key, digest))
            lookup.add_done_callback(partial(self._end_lookup, digest))
        return await asyncio.shield(lookup)  # the request that started it may be cancelled

    def _end_lookup(self, digest: str, lookup: asyncio.Task[Caller | None]) -> None:
        del self._lookups[digest]
        if not lookup.cancelled():
            lookup.exception()  # retrieved, so that asyncio does not warn if no request waits for it

    async def _look_up_key(self, key: str, digest: str) -> Caller | None:
        loop = asyncio.get_running_loop()
        info = await loop.run_in_executor(self._threads, find_key, self._store, key)
        caller, now, until = None, self._clock.now(), self._clock.monotonic() + CACHED_SECONDS
        if info is not None and info.is_valid(now):
            caller = Caller(
                tenant=info.tenant,
                user=info.user,
                role=info.role,
                key_id=info.id,
                store=self._store.for_tenant(info.tenant),
                is_approver=info.may_approve,
                quota=None if info.quota is None else Quota.of(info.quota),
            )
            if info.expires_at is not None:
                until = min(until, self._clock.monotonic() + (info.expires_at - now) / 1e6)
            self._record_use(info, now)
        self._callers_by_digest[digest] = (until, caller)
        self._callers_by_digest.move_to_end(digest)
        if len(self._callers_by_digest) > MAX_CACHED_KEYS:
            self._callers_by_digest.popitem(last=False)
        return caller

    def _record_use(self, info: KeyInfo, now: int) -> None:
        """Record the use of a key on a thread. No request waits for it; a failure is made up for a minute later."""
        elapsed = self._clock.monotonic()
        if elapsed < self._next_record_times.get(info.id, 0.0):
            return
        self._next_record_times[info.id] = elapsed + USE_RECORD_SECONDS
        work = asyncio.get_running_loop().run_in_executor(None, record_key_use, self._store, info.id, now)
        work.add_done_callback(self._report_record_error)

    def _report_record_error(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) and not isinstance(error, AgentError):
            log_unexpected_error(error, metrics=self._metrics, where="the last use of a key")


def key_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the key of a request. A request with two keys has none, because no rule says which one counts."""
    found: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            found.append(rest.strip() if scheme.lower() == b"bearer" else b"")
        elif name == b"x-api-key":
            found.append(value.strip())
    if len(found) != 1 or not 0 < len(found[0]) <= MAX_KEY_LENGTH or not found[0].isascii():
        return None
    return found[0].decode("ascii")


async def identify_caller(request: Request) -> Caller:
    """Return the caller of a request; authenticates once per request and keeps the caller in its scope."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        client = request.client
        server = request.app.state.server
        caller = request.scope[CALLER] = await server.authenticator.identify(
            request.scope["headers"], client.host if client else ""
        )
    assert caller is not None
    return caller


async def check_key(server: Server, scope: Scope) -> None:
    """Raise Unauthorized if the key of a request that began a while ago is no longer what it was. A store that is away
    for a moment ends no request."""
    caller = scope.get(CALLER)
    if caller is not None:
        with suppress(StoreError):
            if not await server.authenticator.is_still(caller, scope["headers"]):
                raise Unauthorized


class Require(SecurityBase):
    """A dependency that requires a permission."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission
        self.model = HTTPBearer(description="An API key or the server's token; X-API-Key does as well.")
        self.scheme_name = "key"

    async def __call__(self, request: Request) -> Caller:
        caller = await identify_caller(request)
        if self.permission == "operator":
            if not caller.is_operator:
                raise Forbidden("this is for those who run the server: use a key without tenant and user")
        elif self.permission == "approve":
            if not caller.may_approve:
                raise Forbidden("this key may not decide about calls: use one made with --approve")
        elif not caller.has_role(self.permission):  # type: ignore[arg-type]
            raise Forbidden(f"this key may {caller.role}, and this needs {self.permission}: use another key")
        return caller


class Public:
    """A dependency that declares a route open to all."""

    permission: Permission = "public"

    async def __call__(self) -> None:
        return None


_REQUIREMENTS = {permission: Require(permission) for permission in (*ROLES, "approve", "operator")}  # type: ignore[arg-type]


def require(role: Role) -> Require:
    """Return the dependency for routes that need this role or a higher one."""
    return _REQUIREMENTS[role]


approve = _REQUIREMENTS["approve"]
operator = _REQUIREMENTS["operator"]
public = Public()

Reader = Annotated[Caller, Depends(require("read"))]
Chatter = Annotated[Caller, Depends(require("chat"))]
Writer = Annotated[Caller, Depends(require("write"))]
Admin = Annotated[Caller, Depends(require("admin"))]
Approver = Annotated[Caller, Depends(approve)]
Operator = Annotated[Caller, Depends(operator)]
Anyone = Depends(public)


def permission_of(route: Any) -> Permission | None:  # noqa: ANN401 - a route of FastAPI, or its context
    """Return the permission that a route requires; None if it declares none."""
    found = dependency_of(route)
    return None if found is None else found.permission


def dependency_of(route: Any) -> Require | Public | None:  # noqa: ANN401 - a route of FastAPI, or its context
    """Return the permission dependency of a route."""
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
    """The server's own token, and its file."""

    value: str
    path: Path | None = None  # None: the token comes from the environment
    is_new: bool = False

    def __repr__(self) -> str:
        return f"ServerToken(path={self.path!r}, is_new={self.is_new})"


def server_token(config: Config, clock: Clock = SYSTEM_CLOCK) -> ServerToken:
    """Return the token from `HOLDFAST_TOKEN`, or from the token file, which the first start creates."""
    if config.token:
        return ServerToken(value=config.token)
    path = Path(config.token_file or Path(config.data) / "token")
    if config.data and path.parent == Path(config.data):
        config.make_data_directory()
    try:
        is_new = _create_token_file(path, clock)
        value = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InvalidArgument(f"the token file {path} cannot be used: {reason}") from error
    if not is_token(value):
        raise InvalidArgument(f"the token file {path} holds no token: remove it, and a new one is made")
    if path.parent == Path(config.data) and find_exposed_mode(path):
        raise InvalidArgument(f"others can read the token file {path}: remove it, and a new one is made")
    return ServerToken(value=value, path=path, is_new=is_new)


def _create_token_file(path: Path, clock: Clock) -> bool:
    """Create the token file; return False if it exists. It appears whole, so that two servers that start at the same
    time use one token."""
    if path.exists():
        return False
    draft = path.with_name(f"{path.name}.{clock.random_bytes(8).hex()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "w") as opened:
            opened.write(f"hf_{clock.random_bytes(32).hex()}\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        return True
    finally:
        os.unlink(draft)
