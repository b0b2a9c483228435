"""The client of a server: sessions, agents and memories over HTTP, with the methods and types of the library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar
from urllib.parse import urlsplit

from holdfast.client import agents
from holdfast.client.base import Remote, drop_none
from holdfast.client.lifecycle import encode_fields
from holdfast.client.memory import AsyncRemoteMemory, RemoteMemory
from holdfast.client.requests import Flow, async_method, delete, get, post, sync_method, url_path
from holdfast.client.session import AsyncRemoteSession, RemoteSession
from holdfast.client.transport import LOOPBACK, Transport, check_url
from holdfast.data_dir import data_directory
from holdfast.errors import CorruptLog, InvalidArgument, SessionNotFound
from holdfast.log.arguments import check_limit, merge_state
from holdfast.log.identifiers import check_id, check_owner
from holdfast.log.messages import Message
from holdfast.session.export import read_jsonl
from holdfast.turn.response import WaitingCall

if TYPE_CHECKING:
    from holdfast.policy.budget import Budget
    from holdfast.policy.retention import Retention

DEFAULT_URL = "http://127.0.0.1:2323"
PAGE = 200  # sessions that the server gives at once
R = TypeVar("R", bound=Remote)


class Base(Generic[R]):
    """Where the server is, and how to get in."""

    _session_class: ClassVar[type[Any]]

    def __init__(
        self, base_url: str = DEFAULT_URL, *, token: str | None = None, timeout: float = 120, retries: int = 8
    ) -> None:
        """`token` is a key or the server's own token; without one, `HOLDFAST_TOKEN`, else, for a server on this
        machine, the token in its data directory. `timeout` is how long the server may be silent or away, in seconds,
        `retries` how often a request is sent again at most."""
        address = check_url(base_url)
        self._transport = Transport(address, token=_token_for(address, token), timeout=timeout, retries=retries)

    @property
    def base_url(self) -> str:
        return self._transport.base_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def _new_session(self, data: Mapping[str, Any], agent: str | None = None) -> R:
        found: R = self._session_class(self._transport, data, agent)
        return found


def session(
    self: Base[R],
    id: str | None = None,
    *,
    session_id: str | None = None,
    agent: str | None = None,
    system: str | None = None,
    messages: Iterable[Message | Mapping[str, Any]] | None = None,
    user_id: str | None = None,
    app_name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    title: str | None = None,
    work_dir: str | Path | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    retention: Retention | Mapping[str, Any] | None = None,
) -> Flow[R]:
    """A session of the server: opened if the id exists, else created. `agent` is who answers in it, by default."""
    if id is not None and session_id is not None and id != session_id:
        raise InvalidArgument(f"id={id!r} and session_id={session_id!r} are the same thing: give one of them")
    chosen = id if id is not None else session_id
    fields = drop_none(
        title=title, system=system, metadata=metadata, work_dir=work_dir, budget=budget, retention=retention
    )
    body = encode_fields(**fields) | drop_none(
        id=None if chosen is None else check_id(chosen),
        user_id=check_owner(user_id, "user_id"),
        app_name=check_owner(app_name, "app_name"),
        messages=None if messages is None else [Message.of(message).to_dict() for message in messages],
        state=None if state is None else merge_state(state),
    )
    return self._new_session((yield post("/sessions", body | {"exist_ok": True})), agent)


def open_session(self: Base[R], id: str, *, agent: str | None = None) -> Flow[R]:
    """A session that exists; SessionNotFound if it does not."""
    return self._new_session((yield get(url_path("sessions", check_id(id)))), agent)


def sessions(
    self: Base[R],
    *,
    user_id: str | None = None,
    app_name: str | None = None,
    status: str | None = None,
    limit: int = 50,
    after: str | None = None,
) -> Flow[list[R]]:
    """Sessions, newest first; `after` is the id of the last one of the page before."""
    check_limit(limit)
    user_id, app_name = check_owner(user_id, "user_id"), check_owner(app_name, "app_name")
    query: dict[str, Any] = {"user_id": user_id, "app_name": app_name, "status": status}
    found: list[R] = []
    at = None if after is None else check_id(after, "after")
    while len(found) < limit:
        page = yield get("/sessions", limit=min(PAGE, limit - len(found)), after=at, **query)
        found += [self._new_session(each) for each in page["sessions"]]
        at = page["next"]
        if at is None:
            break
    return found


def waiting(
    self: Base[R],
    *,
    user_id: str | None = None,
    app_name: str | None = None,
    limit: int = 50,
    after: str | None = None,
) -> Flow[list[WaitingCall]]:
    """The calls of all sessions that wait for a person, of up to `limit` sessions; `after` is the id of the last
    session of the page before."""
    check_limit(limit)
    query: dict[str, Any] = {"user_id": user_id, "app_name": app_name, "limit": limit, "after": after}
    found = (yield get("/approvals", **query))["waiting"]
    return [WaitingCall(**(each | {"since": datetime.fromisoformat(each["since"])})) for each in found]


def delete_session(self: Base[R], id: str) -> Flow[bool]:
    """Delete a session; False if there is none."""
    try:
        yield delete(url_path("sessions", check_id(id)))
    except SessionNotFound:
        return False
    return True


def import_(
    self: Base[R],
    source: str | Path,
    *,
    session_id: str | None = None,
    user_id: str | None = None,
    app_name: str | None = None,
    agent: str | None = None,
) -> Flow[R]:
    """A session from the text or the file of a jsonl export, with its whole log; its chain is checked first."""
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    verdict = read_jsonl(text).verify()
    if not verdict:
        raise CorruptLog(f"the export does not verify: {verdict.reason}")
    body = drop_none(data=text, id=session_id, user_id=user_id, app_name=app_name)
    return self._new_session((yield post("/sessions/import", body)), agent)


def tools(self: Base[R]) -> Flow[list[dict[str, Any]]]:
    """The tools that agents of this server may be given: name, description, parameters."""
    found: list[dict[str, Any]] = (yield get("/tools"))["tools"]
    return found


def quotas(self: Base[R]) -> Flow[list[dict[str, Any]]]:
    """The limits of this client's key: name, user_id, limit, used, left and resets_at."""
    found: list[dict[str, Any]] = (yield get("/quota"))["quotas"]
    return found


def health(self: Base[R]) -> Flow[dict[str, Any]]:
    """That the server is there."""
    found: dict[str, Any] = yield get("/health")
    return found


class Client(Base[RemoteSession]):
    """A server, asked by blocking calls.

    client = Client(token="...")
    client.session("user-123", agent="support").run("hello").text
    """

    _session_class = RemoteSession
    session = sync_method(session)
    open = sync_method(open_session)
    sessions = sync_method(sessions)
    waiting = sync_method(waiting)
    delete = sync_method(delete_session)
    import_ = sync_method(import_)
    tools = sync_method(tools)
    quotas = sync_method(quotas)
    health = sync_method(health)

    @property
    def agents(self) -> agents.Agents:
        return agents.Agents(self._transport)

    @property
    def memory(self) -> RemoteMemory:
        return RemoteMemory(self._transport)

    def close(self) -> None:
        """Close the connections. Using the client again opens new ones."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(Base[AsyncRemoteSession]):
    """The same with every call awaited.

    async with AsyncClient(token="...") as client:
        session = await client.session("user-123", agent="support")
        print((await session.run("hello")).text)
    """

    _session_class = AsyncRemoteSession
    session = async_method(session)
    open = async_method(open_session)
    sessions = async_method(sessions)
    waiting = async_method(waiting)
    delete = async_method(delete_session)
    import_ = async_method(import_)
    tools = async_method(tools)
    quotas = async_method(quotas)
    health = async_method(health)

    @property
    def agents(self) -> agents.AsyncAgents:
        return agents.AsyncAgents(self._transport)

    @property
    def memory(self) -> AsyncRemoteMemory:
        return AsyncRemoteMemory(self._transport)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._transport.close_async()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _token_for(base_url: str, token: str | None) -> str | None:
    if token is None:
        token = os.environ.get("HOLDFAST_TOKEN") or _token_of_this_machine(base_url)
    if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable() and token.strip()):
        raise InvalidArgument("token= holds characters that cannot be sent")  # and it is not quoted
    return token


def _token_of_this_machine(base_url: str) -> str | None:
    """The token of this user's own server. It is for this machine: another server would learn it."""
    if urlsplit(base_url).hostname not in LOOPBACK:
        return None
    token_file = os.environ.get("HOLDFAST_TOKEN_FILE")
    folder = os.environ.get("HOLDFAST_DATA")
    file = Path(token_file) if token_file else (Path(folder) if folder else data_directory(os.environ)) / "token"
    try:
        return file.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
