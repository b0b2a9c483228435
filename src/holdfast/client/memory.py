"""Memories of a server, with the methods and types of `Memory`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from holdfast.client.base import Remote, drop_none
from holdfast.client.requests import Flow, async_method, delete, get, post, put, sync_method, url_path
from holdfast.errors import AgentError, InvalidArgument
from holdfast.log.arguments import check_limit
from holdfast.log.identifiers import check_owner
from holdfast.memory.service import (
    MAX_LIMIT,
    Remembered,
    Source,
    check_confidence,
    check_key,
    check_kind,
    check_query,
    check_taught_owner,
    check_text,
    resolve_bound_owner,
)

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.client.transport import Transport

PAGE = MAX_LIMIT - 1  # memories that the server gives at once
_list = list  # here, `list` is the method that lists memories


class Base:
    """Where the memories are, and whose: each method may name another user and app."""

    def __init__(self, wire: Transport, user_id: str | None = None, app_name: str | None = None) -> None:
        self._transport, self.user_id, self.app_name = wire, user_id, app_name

    def for_user(self, user_id: str, *, app_name: str | None = None) -> Self:
        """The same memory, bound to one user; with `app_name=` also to another app."""
        return type(self)(self._transport, *resolve_bound_owner(user_id, app_name, self.app_name))


def store(
    self: Base,
    key: str,
    text: str,
    *,
    kind: str = "fact",
    confidence: float = 1.0,
    expires: timedelta | float | datetime | None = None,
    source: Remote | tuple[Remote, int | Iterable[int]] | None = None,
    user_id: str | None = None,
    app_name: str | None = None,
) -> Flow[Remembered]:
    """Keep a text under a key, durably; the same key again replaces it."""
    body = drop_none(text=check_text(text), kind=check_kind(kind), confidence=check_confidence(confidence))
    body |= _expiry_fields(expires) | drop_none(source=None if source is None else _source_fields(source))
    where = _owner_fields(self, user_id, app_name)
    return parse_memory((yield put(url_path("memory", check_key(key)), body, **where)))


def recall(
    self: Base, keys: str | Iterable[str], *, user_id: str | None = None, app_name: str | None = None
) -> Flow[_list[Remembered]]:
    """The memories under these keys, in the order asked; those that are not there are left out."""
    if not isinstance(keys, Iterable):
        raise InvalidArgument(f"recall takes a key or a list of keys, not {type(keys).__name__}")
    wanted = [check_key(key) for key in ([keys] if isinstance(keys, str) else keys)]
    found: _list[Remembered] = []
    for key in wanted:
        try:
            found.append(parse_memory((yield get(url_path("memory", key), **_owner_fields(self, user_id, app_name)))))
        except AgentError as error:
            if error.code != "not_found":
                raise
    return found


def search(
    self: Base,
    query: str,
    limit: int = 5,
    *,
    kind: str | None = None,
    min_confidence: float | None = None,
    user_id: str | None = None,
    app_name: str | None = None,
) -> Flow[_list[Remembered]]:
    """The memories that fit the query, best first."""
    body = {"query": check_query(query), "limit": check_limit(limit, MAX_LIMIT)} | drop_none(
        kind=None if kind is None else check_kind(kind),
        min_confidence=None if min_confidence is None else check_confidence(min_confidence, "min_confidence"),
    )
    return _parse_memories((yield post("/memory/search", body | _owner_fields(self, user_id, app_name))))


def forget(self: Base, key: str, *, user_id: str | None = None, app_name: str | None = None) -> Flow[bool]:
    """Remove a memory for good, with every earlier version of it; False if there was none."""
    gone: bool = (yield delete(url_path("memory", check_key(key)), **_owner_fields(self, user_id, app_name)))["deleted"]
    return gone


def list(
    self: Base,
    kind: str | None = None,
    limit: int = 100,
    after: str | None = None,
    *,
    user_id: str | None = None,
    app_name: str | None = None,
) -> Flow[_list[Remembered]]:
    """Memories in order of key; `after` is the last key of the page before."""
    check_limit(limit, MAX_LIMIT)
    query = drop_none(kind=None if kind is None else check_kind(kind)) | _owner_fields(self, user_id, app_name)
    at = None if after is None else check_key(after)
    found: _list[Remembered] = []
    while len(found) < limit:
        page = yield get("/memory", limit=min(PAGE, limit - len(found)), after=at, **query)
        found += _parse_memories(page)
        at = page["next"]
        if at is None:
            break
    return found


def ingest_from_session(
    self: Base, session: Remote, *, model: str | Agent | None = None, shared: bool = False
) -> Flow[_list[Remembered]]:
    """Keep what a session says that is worth knowing later. The session must have the user and the app of this memory:
    see `for_user`. With `shared`, a memory of no user learns from the session of a user, and keeps it for all. `model`
    is an agent of the server, whose model is asked."""
    if not isinstance(session, Remote):
        raise InvalidArgument(f"{session!r} is no session of a server: open it with client.open(id)")
    owner, mine = (session.user_id, session.app_name), (self.user_id, self.app_name)
    check_taught_owner(session.id, owner, mine, shared=shared)
    body = drop_none(agent_id=None if model is None else session._agent_id(model))
    if mine != owner:
        body |= {"shared": True} | _owner_fields(self, None, None)
    return _parse_memories((yield post(session._path("memory"), body)))


def parse_memory(data: dict[str, Any]) -> Remembered:
    """A memory as the server tells it."""
    times = {name: data[name] for name in ("expires_at", "created_at", "updated_at")}
    source = data["source"]
    return Remembered(
        **{name: data[name] for name in ("key", "text", "kind", "confidence", "score")},
        **{name: None if at is None else datetime.fromisoformat(at) for name, at in times.items()},  # type: ignore[arg-type]
        source=None if source is None else Source(session_id=source["session_id"], seqs=tuple(source["seqs"])),
    )


def _parse_memories(data: dict[str, Any]) -> _list[Remembered]:
    return [parse_memory(each) for each in data["memories"]]


def _owner_fields(self: Base, user_id: str | None, app_name: str | None) -> dict[str, Any]:
    user, app = check_owner(user_id, "user_id"), check_owner(app_name, "app_name")
    return drop_none(user_id=user or self.user_id, app_name=app or self.app_name)


def _expiry_fields(expires: timedelta | float | datetime | None) -> dict[str, Any]:
    if isinstance(expires, datetime):
        return {"expires_at": (expires if expires.tzinfo else expires.replace(tzinfo=UTC)).isoformat()}
    if isinstance(expires, timedelta):
        expires = expires.total_seconds()
    if expires is None:
        return {}
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 < expires <= 1e10:
        raise InvalidArgument(f"expires={expires!r}: use a timedelta, a number of seconds above 0, or a datetime")
    return {"expires_in": expires}


def _source_fields(source: object) -> dict[str, Any]:
    session, seqs = source if isinstance(source, tuple) and len(source) == 2 else (source, ())
    numbers = [seqs] if isinstance(seqs, int) else _list(seqs) if isinstance(seqs, Iterable) else [None]
    if not isinstance(session, Remote) or not all(
        isinstance(seq, int) and not isinstance(seq, bool) for seq in numbers
    ):
        raise InvalidArgument("source= takes a session of the server, or (session, seq), or (session, [seqs])")
    return {"session_id": session.id, "seqs": numbers}


class RemoteMemory(Base):
    """`client.memory.search("where does she live?", user_id="alice")`."""

    store = sync_method(store)
    recall = sync_method(recall)
    search = sync_method(search)
    forget = sync_method(forget)
    list = sync_method(list)
    ingest_from_session = sync_method(ingest_from_session)


class AsyncRemoteMemory(Base):
    """`await client.memory.search("where does she live?", user_id="alice")`."""

    store = async_method(store)
    recall = async_method(recall)
    search = async_method(search)
    forget = async_method(forget)
    list = async_method(list)
    ingest_from_session = async_method(ingest_from_session)
