"""A remote session has the names of a local one, with the same parameters; and the awaited one has them too."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast import Memory, Session
from holdfast.client import Client
from holdfast.client.facts import AsyncRemoteFacts, RemoteFacts
from holdfast.client.memory import AsyncRemoteMemory, RemoteMemory
from holdfast.client.runs import RemoteCallOptions
from holdfast.client.session import AsyncRemoteSession, RemoteSession
from holdfast.session.call_options import CallOptions
from holdfast.session.facts import Facts

# What belongs to where sessions are kept: a client opens, lists and imports.
OF_THE_STORE = {"store", "on_log", "open", "list", "import_", "from_dict", "erase_user", "sweep"}
OF_THE_STORE |= {"waiting", "waiting_async"}
OF_THE_STORE |= {
    "create_async",
    "open_async",
    "list_async",
    "import_async",
    "from_dict_async",
    "erase_user_async",
    "sweep_async",
}
# What other packages of holdfast call, and users do not.
INTERNAL = {"prune_if_due", "in_turn"}


def list_public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - INTERNAL


def test_every_name_of_a_session_is_there() -> None:
    assert list_public_names(Session) - OF_THE_STORE <= list_public_names(RemoteSession) | {"agent"}
    plain = {name for name in list_public_names(Session) - OF_THE_STORE if not name.endswith("_async")}
    assert plain <= list_public_names(AsyncRemoteSession) | {"agent"}
    assert list_public_names(Facts) <= list_public_names(RemoteFacts)
    assert {name for name in list_public_names(Facts) if not name.endswith("_async")} <= list_public_names(
        AsyncRemoteFacts
    )


@pytest.mark.parametrize("remote", [RemoteSession, AsyncRemoteSession])
def test_the_parameters_are_those_of_the_session(remote: type) -> None:
    for name in sorted(list_public_names(Session) & list_public_names(remote)):
        mine, theirs = inspect.getattr_static(Session, name), getattr(remote, name)
        if isinstance(mine, property) or not callable(mine):
            continue
        wanted, found = (list(inspect.signature(each).parameters) for each in (mine, theirs))
        assert found == wanted, name


def test_the_options_are_those_of_the_session_and_one_more() -> None:
    assert set(RemoteCallOptions.__annotations__) - set(CallOptions.__annotations__) == {"on_busy"}
    assert set(CallOptions.__annotations__) <= set(RemoteCallOptions.__annotations__)


@pytest.mark.parametrize("method", ["run", "stream", "json"])
def test_an_unknown_option_is_a_type_error_before_anything_is_asked(method: str) -> None:
    options: dict[str, Any] = {"temprature": 1} | ({"schema": {"type": "object"}} if method == "json" else {})
    session = Session()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'temprature'"):
        getattr(session, method)("hi", **options)
    assert session.head == 1
    with Client("http://127.0.0.1:9", token="none", timeout=1) as client:
        about = {"id": "s", "created_at": "2024-01-31T00:00:00Z", "user_id": None, "app_name": None}
        remote = RemoteSession(client._transport, about)
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'temprature'"):
            list(getattr(remote, method)("hi", **options))


@pytest.mark.parametrize("remote", [RemoteMemory, AsyncRemoteMemory])
def test_a_memory_of_a_server_is_asked_as_a_local_one_is(remote: type) -> None:
    for name in ("store", "recall", "search", "forget", "list", "ingest_from_session", "for_user"):
        mine, theirs = (inspect.signature(getattr(each, name)).parameters for each in (Memory, remote))
        assert list(mine) == list(theirs), name
        assert [each.default for each in mine.values()] == [each.default for each in theirs.values()], name


def test_what_is_read_can_be_read_and_what_can_be_set_can_be_set() -> None:
    for name in list_public_names(Session) - OF_THE_STORE:
        mine: Any = inspect.getattr_static(Session, name)
        if isinstance(mine, property):
            theirs: Any = inspect.getattr_static(RemoteSession, name)
            assert hasattr(theirs, "__get__"), name
            if mine.fset is not None:
                assert isinstance(theirs, property), name
                assert theirs.fset is not None, name
