"""A remote session has the names of a local one, with the same parameters; and the awaited one has them too."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast import Memory, Session
from holdfast.client.facts import AsyncRemoteFacts, RemoteFacts
from holdfast.client.memory import AsyncRemoteMemory, RemoteMemory
from holdfast.client.session import AsyncRemoteSession, RemoteSession
from holdfast.session.facts import Facts

# What belongs to where sessions are kept: a client opens, lists and imports.
OF_THE_STORE = {"store", "open", "list", "import_", "from_dict", "erase_user"}
# What the client takes besides: what happens if the session is busy.
MORE = {"on_busy"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_name_of_a_session_is_there() -> None:
    assert public(Session) - OF_THE_STORE <= public(RemoteSession) | {"agent"}
    plain = {name for name in public(Session) - OF_THE_STORE if not name.endswith("_async")}
    assert plain <= public(AsyncRemoteSession) | {"agent"}
    assert public(Facts) <= public(RemoteFacts)
    assert public(Facts) <= public(AsyncRemoteFacts)


@pytest.mark.parametrize("remote", [RemoteSession, AsyncRemoteSession])
def test_the_parameters_are_those_of_the_session(remote: type) -> None:
    for name in sorted(public(Session) & public(remote)):
        mine, theirs = inspect.getattr_static(Session, name), getattr(remote, name)
        if isinstance(mine, property) or not callable(mine):
            continue
        wanted, found = (list(inspect.signature(each).parameters) for each in (mine, theirs))
        assert [each for each in found if each not in MORE] == wanted, name


@pytest.mark.parametrize("remote", [RemoteMemory, AsyncRemoteMemory])
def test_a_memory_of_a_server_is_asked_as_a_local_one_is(remote: type) -> None:
    for name in ("store", "recall", "search", "forget", "list", "ingest_from_session"):
        mine, theirs = (inspect.signature(getattr(each, name)).parameters for each in (Memory, remote))
        assert list(mine) == list(theirs), name
        assert [each.default for each in mine.values()] == [each.default for each in theirs.values()], name


def test_what_is_read_can_be_read_and_what_can_be_set_can_be_set() -> None:
    for name in public(Session) - OF_THE_STORE:
        mine: Any = inspect.getattr_static(Session, name)
        if isinstance(mine, property):
            theirs: Any = inspect.getattr_static(RemoteSession, name)
            assert hasattr(theirs, "__get__"), name
            if mine.fset is not None:
                assert isinstance(theirs, property), name
                assert theirs.fset is not None, name
