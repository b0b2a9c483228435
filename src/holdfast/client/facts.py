"""The facts of a session of a server."""

from __future__ import annotations

from typing import Any

from holdfast.client.base import Remote, drop_none
from holdfast.client.requests import Flow, async_method, delete, get, post, put, sync_method
from holdfast.client.transport import Transport
from holdfast.errors import AgentError, InvalidArgument
from holdfast.log.identifiers import check_name
from holdfast.session.facts import Fact


class Base:
    """Whose facts they are."""

    def __init__(self, session: Remote) -> None:
        self._session = session

    @property
    def _transport(self) -> Transport:
        return self._session._transport

    def __bool__(self) -> bool:
        return True


def add(self: Base, text: str, kind: str = "fact", *, status: str | None = None, ref: str | None = None) -> Flow[Fact]:
    """Record a fact; durable before this returns."""
    if not isinstance(text, str):
        raise InvalidArgument("a fact is a non-empty string")
    body = drop_none(text=text, kind=kind, status=status, ref=ref)
    return _parse_fact((yield post(self._session._path("facts"), body)))


def all(self: Base) -> Flow[list[Fact]]:
    """Every fact, in the order in which they were added."""
    return [_parse_fact(each) for each in (yield get(self._session._path("facts")))["facts"]]


def get_one(self: Base, id: str) -> Flow[Fact]:
    """One fact by its id."""
    check_name(id, "the id of a fact")
    found = {fact.id: fact for fact in (yield from all(self))}
    if id not in found:
        raise _no_such_fact(id)
    return found[id]


def update(
    self: Base,
    id: str,
    *,
    text: str | None = None,
    kind: str | None = None,
    status: str | None = None,
    ref: str | None = None,
) -> Flow[Fact]:
    """Change what is given, keep the rest."""
    try:
        return _parse_fact((yield put(_fact_path(self, id), drop_none(text=text, kind=kind, status=status, ref=ref))))
    except AgentError as error:
        raise _translate_error(id, error) from None


def remove(self: Base, id: str) -> Flow[None]:
    """Forget a fact; the log remembers that it was there."""
    try:
        yield delete(_fact_path(self, id))
    except AgentError as error:
        raise _translate_error(id, error) from None


def _fact_path(self: Base, id: str) -> str:
    return self._session._path("facts", check_name(id, "the id of a fact"))


def count(self: Base) -> Flow[int]:
    return len((yield from all(self)))


def _parse_fact(data: dict[str, Any]) -> Fact:
    return Fact(**{name: data[name] for name in Fact.__dataclass_fields__ if name in data})


def _translate_error(id: str, error: AgentError) -> AgentError:
    """The error as the library would raise it: that a fact is not there is a mistake of who asks."""
    return _no_such_fact(id) if error.code == "not_found" else error


def _no_such_fact(id: str) -> InvalidArgument:
    return InvalidArgument(f"there is no fact {id!r} in this session: facts.all() lists them")


class RemoteFacts(Base):
    """`session.facts.add("use PostgreSQL", kind="decision")`."""

    # Before the plain names, which stand for the functions above until they are assigned here.
    add_async = async_method(add)
    all_async = async_method(all)
    get_async = async_method(get_one)
    update_async = async_method(update)
    remove_async = async_method(remove)
    add = sync_method(add)
    all = sync_method(all)
    get = sync_method(get_one)
    update = sync_method(update)
    remove = sync_method(remove)
    __len__ = sync_method(count)


class AsyncRemoteFacts(Base):
    """`await session.facts.add("use PostgreSQL", kind="decision")`."""

    add = async_method(add)
    all = async_method(all)
    get = async_method(get_one)
    update = async_method(update)
    remove = async_method(remove)
    count = async_method(count)
