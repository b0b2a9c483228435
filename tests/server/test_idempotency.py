"""The same Idempotency-Key, the same answer: on the wire, on every store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import httpx2
import pytest
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from holdfast.concurrency import off_thread
from holdfast.errors import SessionBusy, StoreUnavailable
from holdfast.log.events import Draft
from holdfast.server import idempotency
from holdfast.server.api_keys import create_key
from holdfast.server.auth import Writer
from holdfast.server.config import Config
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import handles_idempotency_itself, key_of, scope_of
from holdfast.stores.base import Store
from tests.kit.minimal_server import Address, MinimalServer, start_server

CONTENT = "the words of the fourth letter"


class ThingBody(BaseModel):
    text: str = ""


class CountingRoutes:
    """Routes that count how often they are run."""

    def __init__(self) -> None:
        self.ran = 0
        self.hold = threading.Event()
        self.hold.set()
        self.fails: list[Exception] = []
        self.scopes: list[str | None] = []
        self.router = router = APIRouter(route_class=StrictRoute)

        @router.post("/things")
        async def make(who: Writer, body: ThingBody, request: Request, x: int = 0) -> Response:
            self.ran += 1
            self.scopes.append(scope_of(request, who))
            await off_thread(self.hold.wait)
            if self.fails:
                raise self.fails.pop()
            headers = {"Location": f"/things/{self.ran}"}
            return Response(json.dumps({"n": self.ran, "text": body.text}), 201, headers, "application/json")

        @router.put("/things/{name}")
        @router.delete("/things/{name}")
        async def change(who: Writer, name: str) -> Response:
            self.ran += 1
            return Response(json.dumps({"n": self.ran}), media_type="application/json")

        @router.get("/things")
        async def count(who: Writer) -> Response:
            self.ran += 1
            return Response(json.dumps({"n": self.ran}))

        @router.post("/streamed")
        async def streamed(who: Writer) -> Response:
            self.ran += 1

            async def parts() -> AsyncIterator[bytes]:
                yield str(self.ran).encode()

            return StreamingResponse(parts())

        @router.post("/own")
        @handles_idempotency_itself
        async def own(who: Writer, request: Request) -> Response:
            self.ran += 1
            return Response(json.dumps({"n": self.ran, "key": key_of(request)}))

        @router.post("/sessions")
        @router.post("/sessions/{session_id}/fork")
        @router.post("/sessions/{session_id}/facts")
        async def session(who: Writer, body: ThingBody, session_id: str = "") -> Response:
            self.ran += 1
            shape = {"id": body.text, "work_dir": None, "status": "idle", "title": CONTENT, "n": self.ran}
            return Response(json.dumps(shape), 201, media_type="application/json")


@pytest.fixture
def routes() -> CountingRoutes:
    return CountingRoutes()


@pytest.fixture
def server(store: Store, routes: CountingRoutes) -> Iterator[Address]:
    with start_server(MinimalServer(Config(rate=0), store).build_app(routes.router)) as address:
        yield address


@pytest.fixture
def client(server: Address) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def make_key_header(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


def test_the_same_key_and_body_get_the_same_answer(client: httpx2.Client, routes: CountingRoutes) -> None:
    first = client.post("/things", json={"text": "a"}, headers=make_key_header("k"))
    again = client.post("/things", json={"text": "a"}, headers=make_key_header("k"))
    assert (first.status_code, first.json()) == (201, {"n": 1, "text": "a"})
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["location"] == first.headers["location"] == "/things/1"
    assert again.headers["content-type"] == "application/json"
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert routes.ran == 1


def test_without_a_key_everything_is_done_again(client: httpx2.Client, routes: CountingRoutes) -> None:
    for _ in range(2):
        client.post("/things", json={})
        client.get("/things", headers=make_key_header("k"))
    assert routes.ran == 4


def test_another_body_is_refused(client: httpx2.Client, routes: CountingRoutes) -> None:
    client.post("/things", json={"text": "a"}, headers=make_key_header("k"))
    other = client.post("/things", json={"text": "b"}, headers=make_key_header("k"))
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    query = client.post("/things?x=1", json={"text": "a"}, headers=make_key_header("k"))
    assert query.status_code == 422
    assert routes.ran == 1


def test_a_key_belongs_to_an_address_a_method_a_user_and_a_tenant(
    server: Address, store: Store, client: httpx2.Client, routes: CountingRoutes
) -> None:
    assert client.put("/things/a", headers=make_key_header("k")).json() == {"n": 1}
    assert client.put("/things/b", headers=make_key_header("k")).json() == {"n": 2}
    assert client.delete("/things/b", headers=make_key_header("k")).json() == {"n": 3}
    assert client.delete("/things/b", headers=make_key_header("k")).json() == {"n": 3}
    for n, (tenant, user) in enumerate((("acme", None), ("acme", "alice"), ("", "alice")), 4):
        key, _ = create_key(store, role="write", tenant=tenant, user=user)
        second, _ = create_key(store, role="write", tenant=tenant, user=user)
        with server.client(key) as one, server.client(second) as two:
            assert one.delete("/things/b", headers=make_key_header("k")).json() == {"n": n}
            assert two.delete("/things/b", headers=make_key_header("k")).json() == {"n": n}, (
                "another key of the same user"
            )


def test_many_at_once_have_one_effect(server: Address, routes: CountingRoutes) -> None:
    routes.hold.clear()

    def post(_: int) -> int:
        with server.client() as client:
            return client.post("/things", json={"text": "a"}, headers=make_key_header("k")).status_code

    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(post, n) for n in range(8)]
        deadline = time.monotonic() + 10
        while sum(each.done() for each in sent) < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        routes.hold.set()
        found = sorted(each.result() for each in sent)
    assert found == [201] + [409] * 7
    assert routes.ran == 1


def test_a_key_whose_first_request_runs_is_in_use(server: Address, routes: CountingRoutes) -> None:
    routes.hold.clear()

    def post(text: str) -> httpx2.Response:
        with server.client() as client:
            return client.post("/things", json={"text": text}, headers=make_key_header("k"))

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(post, "a")
        deadline = time.monotonic() + 10
        while not routes.ran and time.monotonic() < deadline:
            time.sleep(0.01)
        second, other = post("a"), post("b")
        routes.hold.set()
        assert first.result().status_code == 201
    assert (second.status_code, second.json()["code"], second.headers["retry-after"]) == (409, "key_in_use", "1")
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert post("a").json() == {"n": 1, "text": "a"}


def test_the_mark_of_a_dead_server_runs_out(
    store: Store, client: httpx2.Client, routes: CountingRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MARK_LIFETIME", 300_000)
    body = json.dumps({"text": "a"}, separators=(",", ":")).encode()
    client.post("/things", content=body, headers=make_key_header("other") | {"Content-Type": "application/json"})
    slips = {key for key, _ in store.kv_list("answers")}
    # A server that dies in the middle leaves the mark, and no process renews it.
    scope = sha256(b'[null,"POST","/things","k"]').hexdigest()
    idempotency._AnswerRecord(store, None, scope).put_mark(sha256(b"\n" + body).hexdigest())
    assert len(store.kv_list("answers")) == len(slips) + 1

    def post() -> httpx2.Response:
        return client.post("/things", content=body, headers=make_key_header("k") | {"Content-Type": "application/json"})

    assert post().status_code == 409
    time.sleep(0.35)
    assert post().json() == {"n": 2, "text": "a"}
    assert post().json() == {"n": 2, "text": "a"}


def test_a_long_request_keeps_its_mark(
    server: Address, routes: CountingRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MARK_LIFETIME", 400_000)
    monkeypatch.setattr(idempotency, "RENEWAL_SECONDS", 0.1)
    routes.hold.clear()

    def post() -> httpx2.Response:
        with server.client() as client:
            return client.post("/things", json={}, headers=make_key_header("k"))

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(post)
        time.sleep(1.0)
        assert post().status_code == 409
        routes.hold.set()
        assert first.result().status_code == 201
    assert post().json()["n"] == 1
    assert routes.ran == 1


def test_what_failed_may_be_tried_again(client: httpx2.Client, routes: CountingRoutes) -> None:
    routes.fails = [RuntimeError("x"), StoreUnavailable("away"), SessionBusy("s", retry_after=1.0)]
    found = [client.post("/things", json={}, headers=make_key_header("k")).status_code for _ in range(5)]
    assert found == [409, 503, 500, 201, 201]
    assert routes.ran == 4
    assert client.post("/things", json={"text": 1}, headers=make_key_header("n")).status_code == 400
    assert client.post("/things", json={"text": "1"}, headers=make_key_header("n")).status_code == 201
    assert len(set(routes.scopes[:4])) == 1, "a retry can be known by its scope"


def test_streams_are_not_kept(client: httpx2.Client, routes: CountingRoutes) -> None:
    assert [client.post("/streamed", headers=make_key_header("k")).text for _ in range(2)] == ["1", "2"]


def test_an_endpoint_may_do_it_itself(client: httpx2.Client, routes: CountingRoutes) -> None:
    assert [client.post("/own", headers=make_key_header("k")).json() for _ in range(2)] == [
        {"n": 1, "key": "k"},
        {"n": 2, "key": "k"},
    ]


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"\xc3\xa4", b"a\tb"])
def test_a_key_is_short_and_printable(server: Address, client: httpx2.Client, key: bytes) -> None:
    head = b"POST /things HTTP/1.1\r\nHost: localhost\r\nX-API-Key: hf_the-token-of-this-server\r\n"
    more = b"Content-Type: application/json\r\nContent-Length: 2\r\nIdempotency-Key: " + key + b"\r\n\r\n{}"
    status, _, body = server.send_raw(head + more)
    assert (status, json.loads(body)["code"]) == (400, "invalid_argument")
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert client.post("/things", json={}, headers=twice).status_code == 400
    assert client.post("/things", json={}, headers=make_key_header("x" * 255)).status_code == 201
    assert client.post("/things", json={}, headers=make_key_header("a b~!")).status_code == 201


def test_answers_about_a_session_go_with_it(client: httpx2.Client, store: Store, routes: CountingRoutes) -> None:
    """Those to requests about it, and those that made it, wherever they were asked for."""
    for id in ("a", "b", "x"):
        store.create("session", id, [Draft(type="session.created")])
    for path, text in (("/sessions", "a"), ("/sessions/b/fork", "a"), ("/sessions/a/facts", "x"), ("/sessions", "b")):
        client.post(path, json={"text": text}, headers=make_key_header(f"{path}-{text}"))
    assert len(store.kv_list("answers")) == 4
    assert routes.ran == 4
    store.delete("a")
    assert len(store.kv_list("answers")) == 1
    assert client.post("/sessions", json={"text": "b"}, headers=make_key_header("/sessions-b")).json()["n"] == 4
    assert client.post("/sessions", json={"text": "a"}, headers=make_key_header("/sessions-a")).json()["n"] == 5
    assert len(store.kv_list("answers")) == 1  # an answer about a session that is gone is not kept
    store.delete("b")
    store.delete("x")
    assert store.kv_list("answers") == store.kv_list("answers-about") == []


def test_a_session_id_that_is_none_is_no_trouble(client: httpx2.Client) -> None:
    for name in ("x" * 5000, "%0a", "..%2f", "%00"):
        found = client.post(f"/sessions/{name}/facts", json={"text": "y"}, headers=make_key_header("k"))
        assert found.status_code in (201, 404)


def test_answers_are_encrypted_where_the_store_is(encrypted_store: Store, routes: CountingRoutes) -> None:
    with (
        start_server(MinimalServer(Config(rate=0), encrypted_store).build_app(routes.router)) as server,
        server.client() as client,
    ):
        found = [client.post("/things", json={"text": CONTENT}, headers=make_key_header("k")) for _ in range(2)]
        assert [each.status_code for each in found] == [201, 201]
        assert found[0].content == found[1].content
        assert routes.ran == 1
    kept = encrypted_store.kv_list("answers")
    assert len(kept) == 1
    assert CONTENT.encode() not in kept[0][1]
