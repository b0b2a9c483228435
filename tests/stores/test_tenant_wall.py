"""Row-level security: a statement that forgets its tenant finds nothing of another one. The role is no superuser."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from holdfast import Message, Session
from holdfast.log.events import Draft
from holdfast.stores import PostgresStore
from holdfast.stores.signing_keys import SigningKey
from holdfast.testing import StoreContract
from holdfast.worker.head_signer import sign_heads
from tests.kit.postgres import PostgresServer

FORGETFUL = {
    "logs": "SELECT tenant FROM holdfast.logs",
    "sessions": "SELECT tenant FROM holdfast.sessions",
    "key values": "SELECT tenant FROM holdfast.key_values",
}


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresServer) -> Iterator[str]:
    found = postgres_server.database(plain_role=True)
    yield found
    postgres_server.drop(found)


@pytest.fixture
def root(dsn: str) -> Iterator[PostgresStore]:
    with PostgresStore(dsn, connections=2) as store:
        yield store


@pytest.fixture
def tenants(root: PostgresStore) -> Iterator[list[PostgresStore]]:
    found = [root.for_tenant(name) for name in ("acme", "globex", "every", "")]
    for store in found:
        Session("plan", store=store).add_message(Message.user(f"of {store.tenant}"))
        store.kv_put("space", "key", store.tenant.encode())
    yield found
    for store in found:
        store.delete("plan")
        store.kv_delete("space", "key")


@pytest.mark.parametrize("table", FORGETFUL)
def test_a_statement_without_a_tenant_finds_only_its_own(tenants, table):
    for store in tenants:
        assert set(store.server.fetch(FORGETFUL[table])) == {(store.tenant,)}
        assert set(store.server.transaction(lambda db: db.execute(FORGETFUL[table]).fetchall())) == {(store.tenant,)}


@pytest.mark.parametrize("table", FORGETFUL)
def test_a_statement_without_a_tenant_changes_only_its_own(tenants, table):
    name = FORGETFUL[table].split("holdfast.")[1]
    for store in tenants:
        changed = store.server.fetch(f"UPDATE holdfast.{name} SET tenant = tenant RETURNING tenant")
        assert set(changed) == {(store.tenant,)}
    with pytest.raises(Exception, match="row-level security"):
        tenants[0].server.fetch(f"UPDATE holdfast.{name} SET tenant = 'globex' RETURNING tenant")


def test_a_connection_that_says_no_tenant_sees_nothing(tenants, dsn):
    with psycopg.connect(dsn) as wire:
        for statement in FORGETFUL.values():
            assert wire.execute(statement.encode()).fetchall() == []


def test_connections_that_change_hands_show_each_tenant_its_own(tenants):
    """Two connections for four tenants, with units that are refused and rolled back in between."""
    rng = random.Random(7)
    for _ in range(200):
        store = rng.choice(tenants)
        match rng.randrange(4):
            case 0:
                Session("plan", store=store).add_message(Message.user(f"of {store.tenant}"))
            case 1:
                with pytest.raises(Exception, match="exists"):
                    store.create("session", "plan", [Draft(type="session.created")])
            case 2:
                assert store.kv_get("space", "key") == store.tenant.encode()
            case _:
                assert {m.text for m in Session.open("plan", store=store).messages} == {f"of {store.tenant}"}
        assert set(store.server.fetch(FORGETFUL["logs"])) == {(store.tenant,)}


def test_maintenance_of_a_store_that_is_bound_to_no_tenant_reaches_all(root, tenants):
    for store in tenants:
        Session("plan", store=store).retention = {"ttl_days": 1e-9}
        store.kv_put("space", "old", b"", expires=1)
    number = Session.open("plan", store=tenants[0]).log.number
    assert root.heads([number]) == {number: 3}
    names = {store.tenant for store in tenants}
    assert {each.tenant for each in root.logs_after(0, limit=100)} >= names
    assert sign_heads(root, SigningKey("11" * 32)).signed >= len(names)
    assert sign_heads(root, SigningKey("11" * 32)).signed == 0
    assert root.kv_purge(root.clock.now()) == len(names)
    assert {each.tenant for each in Session.sweep(root).sessions if each.act == "purged"} == names


def test_an_append_needs_no_more_statements_than_without_the_wall(root, monkeypatch):
    """One for an append of a tenant that had the connection last; the setting travels with the statement otherwise."""
    sent: list[str] = []
    execute = psycopg.Connection.execute
    session = Session("count", store=root.for_tenant("acme"))
    session.add_message(Message.user("warm"))
    monkeypatch.setattr(
        psycopg.Connection,
        "execute",
        lambda db, query, *rest, **more: sent.append(query) or execute(db, query, *rest, **more),
    )
    for number in range(5):
        session.add_message(Message.user(f"{number}"))
    assert len(sent) == 5
    session.store.delete("count")


class TestPostgresAsAPlainRole(StoreContract):
    """The whole contract, with the wall up."""

    @pytest.fixture
    def store(self, postgres_server: PostgresServer) -> Iterator[PostgresStore]:
        dsn = postgres_server.database(plain_role=True)
        with PostgresStore(dsn) as store:
            yield store
        postgres_server.drop(dsn)
