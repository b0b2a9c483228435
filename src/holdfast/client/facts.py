"""The facts of a session of a server."""

from __future__ import annotations

from typing import Any

from holdfast.client.base import Remote, given
from holdfast.client.requests import Flow, awaited, blocking, delete, get, post, put
from holdfast.client.transport import Wire
from holdfast.errors import AgentError, InvalidArgument
from holdfast.log.identifiers import checked_name
from holdfast.session.facts import Fact


class Base:
    """Whose facts they are."""

    def __init__(self, session: Remote) -> None:
        self._session = session

    @property
    def _wire(self) -> Wire:
        return self._session._wire

    def __bool__(self) -> bool:
        return True


def add(self: Base, text: str, kind: str = "fact", *, status: str | None = None, ref: str | None = None) -> Flow[Fact]:
    """Record a fact; durable before this returns."""
    if not isinstance(text, str):
        raise InvalidArgument("a fact is a non-empty string")
    body = given(text=text, kind=kind, status=status, ref=ref)
    return _fact((yield post(self._session._path("facts"), body)))


def all(self: Base) -> Flow[list[Fact]]:
    """Every fact, in the order in which they were added."""
    return [_fact(each) for each in (yield get(self._session._path("facts")))["facts"]]


def get_one(self: Base, id: str) -> Flow[Fact]:
    """One fact by its id."""
    checked_name(id, "the id of a fact")
    found = {fact.id: fact for fact in (yield from all(self))}
    if id not in found:
        raise _unknown(id)
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
        return _fact((yield put(_place(self, id), given(text=text, kind=kind, status=status, ref=ref))))
    except AgentError as error:
        raise _about(id, error) from None


def remove(self: Base, id: str) -> Flow[None]:
    """Forget a fact; the log remembers that it was there."""
    try:
        yield delete(_place(self, id))
    except AgentError as error:
        raise _about(id, error) from None


def _place(self: Base, id: str) -> str:
    return self._session._path("facts", checked_name(id, "the id of a fact"))


def count(self: Base) -> Flow[int]:
    return len((yield from all(self)))


def _fact(data: dict[str, Any]) -> Fact:
    return Fact(**{name: data[name] for name in Fact.__dataclass_fields__ if name in data})


def _about(id: str, error: AgentError) -> AgentError:
    """The error as the library would raise it: that a fact is not there is a mistake of who asks."""
    return _unknown(id) if error.code == "not_found" else error


def _unknown(id: str) -> InvalidArgument:
    return InvalidArgument(f"there is no fact {id!r} in this session: facts.all() lists them")


class RemoteFacts(Base):
    """`session.facts.add("use PostgreSQL", kind="decision")`."""

    add = blocking(add)
    all = blocking(all)
    get = blocking(get_one)
    update = blocking(update)
    remove = blocking(remove)
    __len__ = blocking(count)


class AsyncRemoteFacts(Base):
    """`await session.facts.add("use PostgreSQL", kind="decision")`."""

    add = awaited(add)
    all = awaited(all)
    get = awaited(get_one)
    update = awaited(update)
    remove = awaited(remove)
    count = awaited(count)
