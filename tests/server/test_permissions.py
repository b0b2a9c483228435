"""Who may do what: every caller asks every route, for its own ids and for foreign ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from holdfast.server import auth
from holdfast.server.api_keys import create_key, revoke_key
from holdfast.server.app import Server, create_app
from holdfast.server.config import Config
from holdfast.stores import MemoryStore
from tests.proofs.http_detectors import FEW, add_unguarded_route, check_shared_state, check_unguarded_route
from tests.proofs.permission_table import CALLS, FIELDS
from tests.proofs.permissions import PermissionAttack, check_keys_per_user, check_taken_names, list_routes
from tests.proofs.secured_server import Caller, SecuredServer


@pytest.fixture(scope="module")
def secured_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with SecuredServer(tmp_path_factory.mktemp("house"), sessions=2) as secured_server:
        yield secured_server


@pytest.fixture(scope="module")
def attack(secured_server: SecuredServer) -> PermissionAttack:
    return PermissionAttack(secured_server, random.Random(5))


@pytest.fixture
def caller(secured_server: SecuredServer) -> Iterator[Caller]:
    with Caller(secured_server.port) as caller:
        yield caller


@pytest.fixture
def app() -> FastAPI:
    return create_app(Server(MemoryStore(), Config(open=True)))


class TestEveryRoute:
    def test_declares_a_permission_and_has_a_case(self, app: FastAPI) -> None:
        found, wrong = list_routes(app)
        assert wrong == []
        assert len(found) - len(FIELDS) == len(CALLS) > 50

    def test_is_missed_if_it_has_neither(self, app: FastAPI) -> None:
        @app.get("/forgotten")
        def forgotten() -> str:
            return "open to all"

        _, wrong = list_routes(app)
        assert [each.partition(":")[0] for each in wrong] == [
            "GET /forgotten declares no permission",
            "GET /forgotten has no case",
        ]

    def test_is_closed_without_a_declared_permission(self, tmp_path: Path) -> None:
        secured_server = SecuredServer(tmp_path, sessions=1)
        add_unguarded_route(secured_server)
        with secured_server, Caller(secured_server.port) as caller:
            assert list(check_unguarded_route(secured_server, caller)) == []

    @pytest.mark.parametrize("name", FEW)
    def test_shows_and_changes_only_what_the_caller_owns(
        self, attack: PermissionAttack, caller: Caller, name: str
    ) -> None:
        before, attack.failures = attack.cases, []
        attack.ask_every_route(caller, [attack.server.contents.principals[name]])
        assert attack.failures == []
        assert attack.cases - before > len(CALLS)

    def test_takes_no_tricks(self, attack: PermissionAttack, caller: Caller) -> None:
        attack.failures = []
        for name in FEW:
            attack.ask_random_routes(caller, attack.server.contents.principals[name], 40)
        assert attack.failures == []

    @pytest.mark.parametrize(
        ("path", "allowed"),
        [
            ("/sessions", {"GET", "POST"}),
            ("/agents/x", {"GET", "PUT", "DELETE"}),
            ("/sessions/x/state/y", {"GET", "PUT", "DELETE"}),
            ("/memory/x", {"GET", "PUT", "DELETE"}),
            ("/memory/search", {"GET", "PUT", "DELETE", "POST"}),
            ("/health", {"GET"}),
        ],
    )
    def test_names_all_its_methods_in_the_answer_to_another_one(
        self, secured_server: SecuredServer, caller: Caller, path: str, allowed: set[str]
    ) -> None:
        answer = caller.ask("PATCH", path, secured_server.contents.principals["server"].headers)
        assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
        assert {each.strip() for each in answer.headers["allow"].split(",")} == allowed


def test_a_key_for_a_request_is_ones_own(secured_server: SecuredServer, caller: Caller) -> None:
    assert list(check_keys_per_user(caller, secured_server)) == []


def test_a_taken_name_reveals_nothing_else(secured_server: SecuredServer, caller: Caller) -> None:
    assert list(check_taken_names(caller, secured_server)) == []


def test_what_all_users_share_is_written_by_none_of_them(secured_server: SecuredServer, caller: Caller) -> None:
    assert list(check_shared_state(caller, secured_server)) == []


def test_a_revoked_key_ends_soon(
    secured_server: SecuredServer, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, info = create_key(secured_server.store, role="read", tenant="acme", user="alice")
    headers = {"X-API-Key": key}
    monkeypatch.setattr(auth, "CACHED_SECONDS", 0.0)
    assert caller.ask("GET", "/sessions", headers).status == 200
    revoke_key(secured_server.store, info.id)
    assert caller.ask("GET", "/sessions", headers).status == 401


def test_a_key_in_two_headers_is_none(secured_server: SecuredServer, caller: Caller) -> None:
    alice = secured_server.contents.principals["acme alice read"]
    both = alice.headers | {"X-API-Key": str(alice.key)}
    assert caller.ask("GET", "/sessions", both).status == 401
