"""Who may do what: every route, asked by everybody, for what is theirs and for what is not."""

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
from tests.proofs.http_detectors import FEW, shared_state, through_the_hole, with_hole
from tests.proofs.permissions import CALLS, Attack, keys_are_ones_own, routes, taken_names
from tests.proofs.secured_server import Caller, House


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("house"), rooms=2) as house:
        yield house


@pytest.fixture(scope="module")
def attack(house: House) -> Attack:
    return Attack(house, random.Random(5))


@pytest.fixture
def caller(house: House) -> Iterator[Caller]:
    with Caller(house.port) as caller:
        yield caller


@pytest.fixture
def app() -> FastAPI:
    return create_app(Server(MemoryStore(), Config(open=True)))


class TestEveryRoute:
    def test_declares_a_permission_and_has_a_case(self, app: FastAPI) -> None:
        found, wrong = routes(app)
        assert wrong == []
        assert len(found) == len(CALLS) > 50

    def test_is_missed_if_it_has_neither(self, app: FastAPI) -> None:
        @app.get("/forgotten")
        def forgotten() -> str:
            return "open to all"

        _, wrong = routes(app)
        assert [each.partition(":")[0] for each in wrong] == [
            "GET /forgotten declares no permission",
            "GET /forgotten has no case",
        ]

    def test_is_closed_if_nobody_says_for_whom_it_is(self, tmp_path: Path) -> None:
        house = House(tmp_path, rooms=1)
        with_hole(house)
        with house, Caller(house.port) as caller:
            assert list(through_the_hole(house, caller)) == []

    @pytest.mark.parametrize("name", FEW)
    def test_tells_and_gives_nobody_what_is_anothers(self, attack: Attack, caller: Caller, name: str) -> None:
        before, attack.failures = attack.cases, []
        attack.everything(caller, [attack.house.furniture.principals[name]])
        assert attack.failures == []
        assert attack.cases - before > len(CALLS)

    def test_takes_no_tricks(self, attack: Attack, caller: Caller) -> None:
        attack.failures = []
        for name in FEW:
            attack.anything(caller, attack.house.furniture.principals[name], 40)
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
    def test_names_all_its_methods_to_whoever_uses_another(
        self, house: House, caller: Caller, path: str, allowed: set[str]
    ) -> None:
        answer = caller.ask("PATCH", path, house.furniture.principals["server"].headers)
        assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
        assert {each.strip() for each in answer.headers["allow"].split(",")} == allowed


def test_a_key_for_a_request_is_ones_own(house: House, caller: Caller) -> None:
    assert list(keys_are_ones_own(caller, house)) == []


def test_a_name_that_is_taken_tells_no_more(house: House, caller: Caller) -> None:
    assert list(taken_names(caller, house)) == []


def test_what_all_users_share_is_written_by_none_of_them(house: House, caller: Caller) -> None:
    assert list(shared_state(caller, house)) == []


def test_a_revoked_key_ends_soon(house: House, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    key, info = create_key(house.store, role="read", tenant="acme", user="alice")
    headers = {"X-API-Key": key}
    monkeypatch.setattr(auth, "CACHED_SECONDS", 0.0)
    assert caller.ask("GET", "/sessions", headers).status == 200
    revoke_key(house.store, info.id)
    assert caller.ask("GET", "/sessions", headers).status == 401


def test_a_key_in_two_headers_is_none(house: House, caller: Caller) -> None:
    alice = house.furniture.principals["acme alice read"]
    both = alice.headers | {"X-API-Key": str(alice.key)}
    assert caller.ask("GET", "/sessions", both).status == 401
