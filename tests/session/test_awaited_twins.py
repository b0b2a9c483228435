"""Every call that touches a store has an awaited twin, so that an event loop never stands still for a database."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from holdfast import Agent, Message, Session
from holdfast.session.facts import Facts
from holdfast.stores import PostgresStore
from tests.kit.stores import empty_tables

# These read nothing: they are known with the session object, or only make one.
NOT_STORED = {"id", "session_id", "user_id", "app_name", "created_at", "facts", "on_log"}
# Live mappings ask the store when they are used: `get_state_async` and `set_state_async` are their twins.
MAPPINGS = {"state", "user_state", "app_state", "temp_state"}
# What other packages of holdfast call, and users do not.
INTERNAL = {"prune_if_due", "in_turn"}
OTHER_NAMES = {"import_": "import_async"}


@pytest.mark.parametrize("kind", [Session, Facts])
def test_every_call_has_an_awaited_twin(kind: type) -> None:
    names = {name for name in dir(kind) if not name.startswith("_") and not name.endswith("_async")}
    wanted = names - NOT_STORED - MAPPINGS - INTERNAL
    assert [name for name in sorted(wanted) if not hasattr(kind, OTHER_NAMES.get(name, f"{name}_async"))] == []


def test_a_twin_has_the_parameters_of_its_method() -> None:
    for name in dir(Session):
        twin = getattr(Session, f"{name}_async", None)
        method = getattr(Session, name)
        if twin is None or name.startswith("_") or not callable(method) or name in MAPPINGS:
            continue
        assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters), name
        assert inspect.iscoroutinefunction(twin) or name == "stream", name


CALLS: dict[str, Callable[[Session, PostgresStore], Any]] = {
    "set_state": lambda session, _: session.set_state_async("a", 1),
    "get_state": lambda session, _: session.get_state_async("a"),
    "update_state": lambda session, _: session.update_state_async("n", lambda n: (n or 0) + 1),
    "state": lambda session, _: session.state_async(),
    "add_message": lambda session, _: session.add_message_async(Message.user("hi")),
    "messages": lambda session, _: session.messages_async(),
    "history": lambda session, _: session.history_async(),
    "length": lambda session, _: session.length_async(),
    "status": lambda session, _: session.status_async(),
    "pending": lambda session, _: session.pending_async(),
    "usage": lambda session, _: session.usage_async(),
    "title": lambda session, _: session.title_async(),
    "change": lambda session, _: session.change_async(title="t"),
    "facts": lambda session, _: session.facts.add_async("a fact"),
    "fork": lambda session, _: session.fork_async(),
    "to_dict": lambda session, _: session.to_dict_async(),
    "open": lambda session, store: Session.open_async(session.id, store=store),
    "create": lambda session, store: Session.create_async("new", store=store, state={"a": 1}),
    "list": lambda session, store: Session.list_async(store=store),
    "agent.session": lambda session, store: Agent(provider="echo", store=store).session_async("another"),
    "run": lambda session, _: session.run_async("hello"),
}


@contextmanager
def hanging_database(dsn: str) -> Iterator[None]:
    """Hold locks that every other connection waits for, as a database does that hangs."""
    with psycopg.connect(dsn) as connection:
        connection.execute("LOCK TABLE holdfast.logs, holdfast.events, holdfast.names IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


@pytest.mark.parametrize("name", CALLS)
def test_the_loop_goes_on_while_the_database_hangs(name: str, shared_postgres: PostgresStore, database: str) -> None:
    empty_tables(shared_postgres)

    async def main(session: Session, store: PostgresStore) -> None:
        with hanging_database(database):
            call = asyncio.ensure_future(CALLS[name](session, store))
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not call.done(), "it did not ask the database"
        await call

    with PostgresStore(database) as store:
        session = Agent(provider="echo", store=store).session()
        asyncio.run(main(session, store))
