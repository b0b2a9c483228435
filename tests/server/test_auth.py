"""Who may do what: keys, roles, users, tenants and limits, on the wire."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import iter_route_contexts
from starlette.responses import Response

from holdfast import Session
from holdfast.clock import FixedClock
from holdfast.concurrency import off_thread
from holdfast.errors import Forbidden, InvalidArgument, SessionNotFound, StoreUnavailable, TooManyRequests
from holdfast.server import auth
from holdfast.server.api_keys import create_key, find_key, list_keys, record_key_use, revoke_key
from holdfast.server.auth import (
    CACHED_SECONDS,
    Admin,
    Anyone,
    Authenticator,
    Caller,
    Operator,
    Reader,
    Writer,
    permission_of,
    server_token,
)
from holdfast.server.config import Config
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.metrics import Metrics
from holdfast.server.rate_limits import Buckets, RequestLimits, Slots
from holdfast.server.routes import index
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from tests.kit.minimal_server import TOKEN, Address, MinimalServer, start_server


def describe_caller(who: Caller) -> Response:
    facts = {"tenant": who.tenant, "user": who.user, "role": who.role, "key_id": who.key_id, "store": who.store.tenant}
    return Response(json.dumps(facts), media_type="application/json")


router = APIRouter(route_class=StrictRoute)


@router.get("/read")
async def read(who: Reader) -> Response:
    return describe_caller(who)


@router.post("/write")
async def write(who: Writer) -> Response:
    return describe_caller(who)


@router.post("/admin")
async def admin(who: Admin) -> Response:
    return describe_caller(who)


@router.get("/operator")
async def operator(who: Operator) -> Response:
    return describe_caller(who)


@router.get("/anyone", dependencies=[Anyone])
async def anyone() -> Response:
    return Response(b"{}")


@router.get("/sessions/{session_id}")
async def session(who: Reader, session_id: str) -> Response:
    found = await off_thread(who.open_session, session_id)
    return Response(json.dumps({"id": found.id}))


@router.get("/owner")
async def owner(who: Reader, user_id: str | None = None) -> Response:
    return Response(json.dumps({"owner": who.resolve_owner(user_id)}))


@pytest.fixture
def minimal_server(store: Store) -> MinimalServer:
    return MinimalServer(Config(rate=0), store)


@pytest.fixture
def server(minimal_server: MinimalServer) -> Iterator[Address]:
    with start_server(minimal_server.build_app(router, index.router)) as address:
        yield address


@pytest.fixture
def uncached_server(monkeypatch: pytest.MonkeyPatch) -> MinimalServer:
    """Keys are looked up at every request."""
    monkeypatch.setattr(auth, "CACHED_SECONDS", 0.0)
    return MinimalServer(Config(rate=0))


def count_lookups(store: Store) -> list[str]:
    """A list that gets the space of every value that is read from the store."""
    found: list[str] = []
    read = type(store).kv_get

    class Counting(type(store)):  # type: ignore[misc]
        def kv_get(self, space: str, key: str) -> bytes | None:
            found.append(space)
            return read(self, space, key)

    store.__class__ = Counting
    return found


def read_status(server: Address, path: str, headers: dict[str, str], method: str = "GET") -> int:
    with server.client(None) as client:
        return client.request(method, path, headers=headers).status_code


class TestKeys:
    def test_are_needed(self, server: Address, store: Store) -> None:
        key, info = create_key(store, role="read", tenant="acme", user="alice", name="laptop")
        with server.client(key) as client:
            facts = {"tenant": "acme", "user": "alice", "role": "read", "key_id": info.id, "store": "acme"}
            assert client.get("/read").json() == facts
        assert read_status(server, "/read", {"X-API-Key": key}) == 200
        assert read_status(server, "/read", {"Authorization": f"bearer  {key}"}) == 200
        with server.client() as client:
            assert client.get("/read").json()["key_id"] == "server"
            assert client.get("/read").json()["tenant"] == ""
        assert read_status(server, "/anyone", {}) == 200
        assert read_status(server, "/anyone", {"Authorization": "Bearer nonsense"}) == 200

    def test_that_are_wrong_get_one_and_the_same_answer(self, server: Address, store: Store) -> None:
        key, _ = create_key(store, role="admin")
        revoked, info = create_key(store, role="admin")
        revoke_key(store, info.id)
        expired, _ = create_key(store, role="admin", expires_days=1e-12)
        answers = set()
        for headers in (
            {},
            {"Authorization": ""},
            {"Authorization": "Bearer"},
            {"Authorization": f"Basic {key}"},
            {"Authorization": key},
            {"Authorization": f"Bearer {key}x"},
            {"Authorization": f"Bearer {key[:-1]}"},
            {"Authorization": f"Bearer {key[:-1]}{'a' if key[-1] != 'a' else 'b'}"},
            {"Authorization": f"Bearer {key.upper()}"},
            {"Authorization": f"Bearer {key} {key}"},
            {"Authorization": f"Bearer {revoked}"},
            {"Authorization": f"Bearer {expired}"},
            {"Authorization": f"Bearer hf_{info.id}_{'A' * 43}"},
            {"Authorization": "Bearer hf_unknown1_" + "A" * 43},
            {"Authorization": "Bearer " + "x" * 10_000},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Bearer {info.digest}"},
            {"Authorization": "Bearer ' OR 1=1 --"},
            {"Authorization": f"Bearer {key}", "X-API-Key": key},
            {"X-API-Key": f"Bearer {key}"},
            {"Cookie": f"token={key}"},
        ):
            with server.client(None) as client:
                found = client.get(f"/read?token={key}&access_token={key}", headers=headers)
            assert found.status_code == 401, headers
            assert found.headers["www-authenticate"] == "Bearer"
            answers.add((found.json()["error"], found.json()["code"], len(found.json())))
        assert len(answers) == 1
        for line in (b"X-API-Key: \xff\xfe", b"X-API-Key: ", b"Authorization: Bearer "):
            assert server.send_raw(b"GET /read HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n")[0] == 401

    def test_are_kept_as_digests(self, store: Store) -> None:
        key, info = create_key(store, role="write", tenant="acme", user="alice")
        kept = b"".join(value for space in ("api-keys",) for _, value in store.kv_list(space))
        assert key.encode() not in kept
        assert key.split("_", 2)[2].encode() not in kept  # the secret itself may hold an underscore
        assert info.digest.encode() in kept
        assert key not in repr(info)

    def test_do_what_their_row_says_and_not_what_the_request_says(self, server: Address, store: Store) -> None:
        reader, _ = create_key(store, role="read", tenant="acme", user="alice")
        with server.client(reader) as client:
            found = client.get("/read", headers={"X-Tenant": "other", "X-Role": "admin"})
            assert client.get("/read?role=admin&tenant=other&user=bob").status_code == 400
            assert (found.json()["tenant"], found.json()["user"], found.json()["role"]) == ("acme", "alice", "read")

    @pytest.mark.parametrize(
        ("role", "allowed"), [("read", (200, 403, 403)), ("write", (200, 200, 403)), ("admin", (200, 200, 200))]
    )
    def test_have_a_role(self, server: Address, store: Store, role: Any, allowed: tuple[int, ...]) -> None:
        key, _ = create_key(store, role=role, tenant="acme")
        with server.client(key) as client:
            found = client.get("/read"), client.post("/write"), client.post("/admin")
        assert tuple(each.status_code for each in found) == allowed
        assert {each.json()["code"] for each in found if each.status_code == 403} <= {"forbidden"}

    def test_of_tenants_and_users_do_not_run_the_server(self, server: Address, store: Store) -> None:
        for expected, bound in ((200, {}), (403, {"tenant": "acme"}), (403, {"user": "alice"})):
            key, _ = create_key(store, role="admin", **bound)  # type: ignore[arg-type]
            assert read_status(server, "/operator", {"X-API-Key": key}) == expected

    def test_end_when_they_are_revoked(self, uncached_server: MinimalServer) -> None:
        key, info = create_key(uncached_server.store, role="read")
        with start_server(uncached_server.build_app(router)) as server, server.client(key) as client:
            assert client.get("/read").status_code == 200
            assert revoke_key(uncached_server.store, info.id)
            assert client.get("/read").status_code == 401
        assert not revoke_key(uncached_server.store, "nonesuch")

    def test_are_looked_up_once_in_a_while(self, minimal_server: MinimalServer, server: Address, store: Store) -> None:
        key, _ = create_key(store, role="read")
        looked: list[str] = []
        inner = type(minimal_server.store).kv_get

        def kv_get(self: Store, space: str, name: str) -> bytes | None:
            looked.append(space)
            return inner(self, space, name)

        began = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(minimal_server.store), "kv_get", kv_get)
            with ThreadPoolExecutor(8) as threads:
                found = list(threads.map(lambda _: read_status(server, "/read", {"X-API-Key": key}), range(40)))
        assert found == [200] * 40
        assert 1 <= looked.count("api-keys") <= 1 + (time.monotonic() - began) // CACHED_SECONDS

    def test_note_when_they_were_used_without_undoing_a_revocation(self, uncached_server: MinimalServer) -> None:
        store = uncached_server.store
        key, info = create_key(store, role="read", name="one")
        with start_server(uncached_server.build_app(router)) as server, server.client(key) as client:
            for _ in range(5):
                client.get("/read")
        used = list_keys(store)[0].last_used
        assert used is not None
        assert used >= info.created_at
        revoke_key(store, info.id)
        record_key_use(store, info.id, used + 1)
        assert list_keys(store)[0].revoked_at is not None
        assert list_keys(store)[0].last_used == used + 1

    def test_cannot_be_checked_while_the_store_is_away(
        self, minimal_server: MinimalServer, server: Address, store: Store
    ) -> None:
        key, _ = create_key(store, role="read")

        def kv_get(*_: object) -> bytes:
            raise StoreUnavailable("no connection")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(minimal_server.store), "kv_get", kv_get)
            assert read_status(server, "/read", {"X-API-Key": key}) == 503
            assert read_status(server, "/read", {"X-API-Key": TOKEN}) == 200
        assert read_status(server, "/read", {"X-API-Key": key}) == 200

    def test_are_made_of_sensible_things_only(self, store: Store) -> None:
        for wrong in (
            {"role": "root"},
            {"role": "read", "tenant": "a/b"},
            {"role": "read", "tenant": "\0"},
            {"role": "read", "user": ""},
            {"role": "read", "name": "x" * 201},
            {"role": "read", "expires_days": 0},
            {"role": "read", "expires_days": float("nan")},
            {"role": "read", "expires_days": 1e9},
        ):
            with pytest.raises(InvalidArgument):
                create_key(store, **wrong)  # type: ignore[arg-type]
        assert list_keys(store) == []

    def test_are_found_by_all_of_them(self, store: Store) -> None:
        keys = [create_key(store, role="read")[0] for _ in range(3)]
        assert [find_key(store, key).digest for key in keys] == [info.digest for info in list_keys(store)]
        assert find_key(store, keys[0][:12] + keys[1][12:]) is None
        assert find_key(store.for_tenant("acme"), keys[0]) is not None


class TestUsers:
    def test_open_their_own_sessions_only(self, server: Address, store: Store) -> None:
        acme = store.for_tenant("acme")
        Session("hers", store=acme, user_id="alice")
        Session("his", store=acme, user_id="bob")
        Session("nobodys", store=acme)
        Session("elsewhere", store=store.for_tenant("other"), user_id="alice")
        alice, _ = create_key(store, role="admin", tenant="acme", user="alice")
        anyone, _ = create_key(store, role="read", tenant="acme")
        with server.client(alice) as client:
            assert client.get("/sessions/hers").json() == {"id": "hers"}
            texts = []
            for name in ("his", "nobodys", "elsewhere", "missing"):
                found = client.get(f"/sessions/{name}")
                assert found.status_code == 404
                body = found.json()
                texts.append((body["error"].replace(name, "X"), body["code"], sorted(body)))
            assert len({str(text) for text in texts}) == 1
        with server.client(anyone) as client:
            assert [client.get(f"/sessions/{name}").status_code for name in ("hers", "his", "nobodys")] == [200] * 3
            assert client.get("/sessions/elsewhere").status_code == 404

    def test_own_what_they_make(self, server: Address, store: Store) -> None:
        alice, _ = create_key(store, role="read", tenant="acme", user="alice")
        tenant, _ = create_key(store, role="read", tenant="acme")
        with server.client(alice) as client:
            assert client.get("/owner").json() == {"owner": "alice"}
            assert client.get("/owner?user_id=alice").json() == {"owner": "alice"}
            assert client.get("/owner?user_id=bob").json()["code"] == "forbidden"
        with server.client(tenant) as client:
            assert client.get("/owner").json() == {"owner": None}
            assert client.get("/owner?user_id=bob").json() == {"owner": "bob"}

    def test_are_the_same_error_in_the_library(self) -> None:
        store = MemoryStore()
        Session("his", store=store, user_id="bob")
        who = Caller(tenant="", user="alice", role="read", key_id="k", store=store)
        with pytest.raises(SessionNotFound) as his:
            who.open_session("his")
        with pytest.raises(SessionNotFound) as none:
            who.open_session("none")
        assert str(his.value).replace("his", "X") == str(none.value).replace("none", "X")
        with pytest.raises(Forbidden):
            who.resolve_owner("bob")


class TestLimits:
    def test_hold_a_key_back(self) -> None:
        minimal_server = MinimalServer(Config(rate=0.5, burst=3), clock=FixedClock(tick=0))
        one, _ = create_key(minimal_server.store, role="read")
        two, _ = create_key(minimal_server.store, role="read")
        with (
            start_server(minimal_server.build_app(router)) as server,
            server.client(one) as client,
            server.client(two) as other,
        ):
            assert [client.get("/read").status_code for _ in range(4)] == [200, 200, 200, 429]
            refused = client.get("/read")
            assert refused.json()["code"] == "too_many_requests"
            assert refused.headers["retry-after"] == "2"
            assert refused.json()["retry_after"] == 2
            assert other.get("/read").status_code == 200
            assert client.get("/anyone").status_code == 200
        assert b'holdfast_refused_total{reason="rate"} 2.0' in minimal_server.metrics.render()

    def test_keep_guessing_away_from_the_store(self) -> None:
        clock = FixedClock(tick=0)
        minimal_server = MinimalServer(Config(rate=0), clock=clock)
        key, _ = create_key(minimal_server.store, role="read")
        late, _ = create_key(minimal_server.store, role="read")
        with start_server(minimal_server.build_app(router)) as server, server.client(key) as client:
            assert client.get("/read").status_code == 200
            found = [read_status(server, "/read", {"X-API-Key": f"hf_guess{n:03}_{'A' * 43}"}) for n in range(120)]
            assert found == [401] * 50 + [429] * 70
            assert client.get("/read").status_code == 200, "a key that is known works on"
            assert read_status(server, "/read", {"X-API-Key": TOKEN}) == 200
            assert read_status(server, "/read", {"X-API-Key": late}) == 200, "another client of the address gets in"
            assert read_status(server, "/read", {}) == 401
            clock.sleep(1)
            guess = {"X-API-Key": f"hf_guess999_{'A' * 43}"}
            assert read_status(server, "/read", guess) == 401, "the address may try again after a while"

    def test_of_guesses_for_one_key_do_not_hold_another_key_back(self) -> None:
        clock = FixedClock(tick=0)
        minimal_server = MinimalServer(Config(rate=0), clock=clock)
        (_, guessed), (late, _) = (create_key(minimal_server.store, role="read") for _ in range(2))
        lookups = count_lookups(minimal_server.store)
        with start_server(minimal_server.build_app(router)) as server:
            wrong = [f"hf_{guessed.id}_{n:043}" for n in range(200)]
            found = [read_status(server, "/read", {"X-API-Key": key}) for key in wrong]
            assert found == [401] * 100 + [429] * 100, "50 of the address, and 50 of this key"
            assert len(lookups) == 100
            assert read_status(server, "/read", {"X-API-Key": late}) == 200

    def test_fill_up_with_time_and_forget_the_oldest(self) -> None:
        ids = FixedClock(tick=0)
        buckets = Buckets(2.0, 2, clock=ids, most=3)
        assert [buckets.take_token("a") for _ in range(3)] == [0, 0, 0.5]
        ids.sleep(0.5)
        assert buckets.take_token("a") == 0
        ids.sleep(100)
        assert [buckets.take_token("a") for _ in range(3)] == [0, 0, 0.5]
        for name in "bcd":
            buckets.take_token(name)
        assert len(buckets._left) == 3
        assert buckets.seconds_to_wait("a") == 0

    def test_count_slots_from_every_thread_that_gives_them_back(self) -> None:
        slots = Slots("open streams", 2)
        first, second = slots.hold("k"), slots.hold("k")
        with pytest.raises(TooManyRequests, match="2 open streams"):
            slots.hold("k")
        with slots.hold("other"):
            assert slots.count_held("other") == 1
        threads = [threading.Thread(target=first.release) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert slots.count_held("k") == 1
        second.release()
        assert slots._held == {}


class TestOpen:
    def test_lets_every_caller_do_everything(self) -> None:
        minimal_server = MinimalServer(Config(open=True))
        with start_server(minimal_server.build_app(router)) as server:
            for headers in ({}, {"X-API-Key": "nonsense"}):
                assert read_status(server, "/operator", headers) == 200
                assert read_status(server, "/admin", headers, "POST") == 200
            assert server.send_raw("GET /read HTTP/1.1\r\nHost: evil.example\r\n\r\n")[0] == 403
            assert (
                server.send_raw("GET /read HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n")[0]
                == 403
            )

    def test_must_be_asked_for(self) -> None:
        config, metrics = Config(), Metrics()
        for token in (None, ""):
            with pytest.raises(InvalidArgument, match="token"):
                Authenticator(
                    MemoryStore(),
                    config=config,
                    token=token,
                    limits=RequestLimits(config, metrics=metrics),
                    metrics=metrics,
                )


class TestServerToken:
    def test_is_made_once_and_for_this_user_only(self, tmp_path: Path) -> None:
        config = Config.from_env({"HOME": str(tmp_path)})
        first = server_token(config)
        assert first.is_new
        assert first.path == tmp_path / ".local/share/holdfast/token"
        assert first.path.stat().st_mode & 0o777 == 0o600
        assert first.path.parent.stat().st_mode & 0o777 == 0o700
        assert len(first.value) > 40
        again = server_token(config)
        assert (again.value, again.is_new) == (first.value, False)
        assert first.value not in repr(first)
        assert [each.name for each in first.path.parent.iterdir()] == ["token"]

    def test_is_one_for_all_servers_that_start_together(self, tmp_path: Path) -> None:
        config = Config.from_env({"HOME": str(tmp_path)})
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: server_token(config), range(16)))
        assert len({each.value for each in found}) == 1
        assert sum(each.is_new for each in found) == 1

    def test_may_come_from_the_environment(self, tmp_path: Path) -> None:
        config = Config.from_env({"HOME": str(tmp_path), "HOLDFAST_TOKEN": "sixteen-letters-or-more"})
        assert server_token(config).value == "sixteen-letters-or-more"
        assert server_token(config).path is None
        assert list(tmp_path.iterdir()) == []
        assert "sixteen" not in repr(config)

    def test_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        config = Config.from_env({"HOME": str(tmp_path)})
        path = server_token(config).path
        path.chmod(0o644)
        with pytest.raises(InvalidArgument, match="others can read"):
            server_token(config)
        path.chmod(0o600)
        path.write_text("short")
        with pytest.raises(InvalidArgument, match="holds no token"):
            server_token(config)

    def test_may_be_a_mounted_secret(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("sixteen-letters-or-more\n")
        secret.chmod(0o444)
        config = Config.from_env({"HOME": str(tmp_path), "HOLDFAST_TOKEN_FILE": str(secret)})
        assert server_token(config).value == "sixteen-letters-or-more"
        with pytest.raises(InvalidArgument, match="cannot be used"):
            server_token(Config.from_env({"HOME": str(tmp_path), "HOLDFAST_TOKEN_FILE": str(tmp_path / "no" / "such")}))


def test_a_route_says_what_it_needs() -> None:
    app = MinimalServer().build_app(router, index.router)
    found = {context.path: permission_of(context) for context in iter_route_contexts(app.routes)}
    assert found == {
        "/read": "read",
        "/write": "write",
        "/admin": "admin",
        "/operator": "operator",
        "/anyone": "public",
        "/sessions/{session_id}": "read",
        "/owner": "read",
        "/": "public",
        "/openapi.json": "public",
    }
    app.get("/forgotten")(lambda: None)
    assert [permission_of(context) for context in iter_route_contexts(app.routes) if context.path == "/forgotten"] == [
        None
    ]
