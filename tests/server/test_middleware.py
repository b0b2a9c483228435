"""What every request passes and every answer carries, on the wire."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from holdfast.errors import Conflict, StoreUnavailable
from holdfast.server import logging as server_logging
from holdfast.server.auth import Anyone, Reader, Writer
from holdfast.server.config import Config
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.routes import index
from tests.kit.minimal_server import TOKEN, Address, MinimalServer, start_server

SECRET = "the tree-house password"


class NoteBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    more: Any = None


def make_routes() -> APIRouter:
    router = APIRouter(route_class=StrictRoute, responses=ERRORS)

    @router.get("/empty")
    async def empty(who: Reader) -> Response:
        return Response(b"{}", media_type="application/json")

    @router.get("/open", dependencies=[Anyone])
    async def opened() -> Response:
        return Response(b"{}", media_type="application/json")

    @router.post("/notes")
    async def note(who: Writer, body: NoteBody) -> Response:
        return Response(json.dumps({"length": len(body.text)}), media_type="application/json")

    @router.post("/sessions/{sid}/message")
    async def message(who: Writer, sid: str, body: NoteBody) -> Response:
        return Response(json.dumps({"length": len(body.text)}), media_type="application/json")

    @router.post("/bare")
    async def bare(who: Writer) -> Response:
        return Response(b"{}", media_type="application/json")

    @router.delete("/notes/{name}")
    async def remove(who: Writer, name: str) -> Response:
        return Response(b"{}", media_type="application/json")

    @router.get("/conflict")
    async def conflict(who: Reader) -> Response:
        raise Conflict("s", expected=1, head=2)

    @router.get("/away")
    async def away(who: Reader) -> Response:
        raise StoreUnavailable("no connection")

    @router.get("/broken")
    async def broken(who: Reader) -> Response:
        raise RuntimeError(f"it said {SECRET}")

    @router.get("/half")
    async def half(who: Reader, request: Request) -> Response:
        class Half(Response):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"ha", "more_body": True})
                raise RuntimeError(SECRET)

        return Half()

    @router.get("/undeclared")
    async def undeclared() -> Response:
        return Response(b"{}")

    return router


CONFIG = Config(
    rate=0,
    names=("api.example.com",),
    origins=("https://app.example.com",),
    body=4096,
    large_body=65536,
    body_seconds=0.5,
)


@pytest.fixture(scope="module")
def minimal_server() -> MinimalServer:
    return MinimalServer(CONFIG)


@pytest.fixture(scope="module")
def server(minimal_server: MinimalServer) -> Iterator[Address]:
    with start_server(minimal_server.build_app(make_routes(), index.router)) as address:
        yield address


@pytest.fixture
def client(server: Address) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def make_request(
    path: str = "/empty", *lines: str, method: str = "GET", host: str | None = "localhost", body: str = ""
) -> str:
    head = [f"{method} {path} HTTP/1.1", *([] if host is None else [f"Host: {host}"]), f"Authorization: Bearer {TOKEN}"]
    return "\r\n".join([*head, *lines, "", ""]) + body


class TestHost:
    @pytest.mark.parametrize(
        "host",
        [
            "localhost",
            "LOCALHOST:2323",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:65535",
            "api.example.com",
            "API.example.com:443",
        ],
    )
    def test_is_served_under_its_names_and_on_any_port(self, server: Address, host: str) -> None:
        assert server.send_raw(make_request(host=host))[0] == 200

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "localhost.",
            "127.0.0.1.nip.io",
            "127.0.0.2",
            "0.0.0.0",
            "2130706433",
            "0x7f.1",
            "[::]",
            "[::ffff:127.0.0.1]",
            "::1",
            "localhost:",
            "localhost:99999999",
            "localhost:-1",
            "localhost:80:80",
            "local host",
            "localhost, evil.example",
            "user@localhost",
            "localhost/",
            "localhost#",
            "localhost\\evil",
            "xn--localhost",
            "ⓛocalhost".encode().decode("latin-1"),
            "",
            "*",
            "api.example.com.evil.example",
            "example.com",
        ],
    )
    def test_is_refused_under_every_other(self, server: Address, host: str) -> None:
        status, _, body = server.send_raw(make_request(host=host))
        assert status == 403
        assert json.loads(body)["code"] == "forbidden"

    def test_is_needed_exactly_once(self, server: Address) -> None:
        assert server.send_raw(make_request(host=None))[0] in (400, 403)
        assert server.send_raw(make_request("/empty", "Host: localhost"))[0] in (400, 403)
        assert server.send_raw(make_request("/empty", "Host: evil.example"))[0] in (400, 403)
        assert server.send_raw(f"GET /empty HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n")[0] == 403

    def test_decides_before_anything_else(self, server: Address) -> None:
        """Also for what is public, what does not exist, and requests without a key: a rebinding page learns nothing."""
        for path in ("/open", "/", "/openapi.json", "/nowhere", "/broken"):
            assert server.send_raw(make_request(path, host="evil.example"))[0] == 403
        absolute = server.send_raw(make_request("http://localhost/empty", host="evil.example"))
        assert absolute[0] in (400, 403)


class TestOrigin:
    @pytest.mark.parametrize(
        ("host", "origin"),
        [
            ("localhost:2323", "http://localhost:2323"),
            ("localhost:2323", "https://localhost:2323"),
            ("127.0.0.1:2323", "http://127.0.0.1:2323"),
            ("[::1]:2323", "http://[::1]:2323"),
            ("api.example.com", "https://api.example.com"),
            ("api.example.com:443", "https://api.example.com"),
            ("api.example.com", "https://API.example.com:443"),
        ],
    )
    def test_may_be_the_server_itself(self, server: Address, host: str, origin: str) -> None:
        status, headers, _ = server.send_raw(make_request("/empty", f"Origin: {origin}", host=host))
        assert status == 200
        assert "access-control-allow-origin" not in headers

    @pytest.mark.parametrize(
        "origin",
        [
            "null",
            "",
            "*",
            "http://evil.example",
            "http://localhost",
            "http://localhost:3000",
            "http://127.0.0.1:2323",
            "http://localhost:2323.evil.example",
            "http://localhost:2323@evil.example",
            "http://localhost:2323/",
            "ftp://localhost:2323",
            "file://",
            "localhost:2323",
            "chrome-extension://localhost:2323",
            "http://app.example.com",
            "https://app.example.com.evil.example",
            "https://app.example.com:8443",
            "https://APP.example.com",
            "http://localhost:2323 http://evil.example",
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
    def test_of_another_place_is_refused_on_every_method(self, server: Address, origin: str, method: str) -> None:
        status, headers, _ = server.send_raw(
            make_request("/empty", f"Origin: {origin}", method=method, host="localhost:2323")
        )
        assert status == 403
        assert "access-control-allow-origin" not in headers

    def test_may_come_only_once(self, server: Address) -> None:
        twice = make_request("/empty", "Origin: http://localhost", "Origin: http://localhost")
        assert server.send_raw(twice)[0] == 403

    def test_that_is_configured_may_call(self, server: Address) -> None:
        status, headers, _ = server.send_raw(
            make_request("/empty", "Origin: https://app.example.com", "Sec-Fetch-Site: cross-site")
        )
        assert status == 200
        assert headers["access-control-allow-origin"] == "https://app.example.com"
        assert headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in headers

    def test_that_is_configured_may_ask_first(self, server: Address) -> None:
        lines = ("Origin: https://app.example.com", "Access-Control-Request-Method: POST")
        status, headers, body = server.send_raw(make_request("/sessions/s/message", *lines, method="OPTIONS"))
        assert (status, body) == (204, b"")
        assert headers["access-control-allow-origin"] == "https://app.example.com"
        assert "Idempotency-Key" in headers["access-control-allow-headers"]

    def test_gets_no_preflight_unless_configured(self, server: Address) -> None:
        lines = ("Origin: http://localhost", "Access-Control-Request-Method: POST")
        status, headers, _ = server.send_raw(make_request("/empty", *lines, method="OPTIONS"))
        assert status == 405
        assert "access-control-allow-methods" not in headers

    @pytest.mark.parametrize("site", ["cross-site", "same-site", "", "nonsense", "none, cross-site"])
    def test_is_not_needed_to_see_that_another_site_sent_it(self, server: Address, site: str) -> None:
        for path in ("/empty", "/open", "/"):
            assert server.send_raw(make_request(path, f"Sec-Fetch-Site: {site}"))[0] == 403

    @pytest.mark.parametrize("site", ["same-origin", "none"])
    def test_of_our_own_page_or_of_a_person_is_fine(self, server: Address, site: str) -> None:
        assert server.send_raw(make_request("/empty", f"Sec-Fetch-Site: {site}"))[0] == 200


class TestBody:
    @pytest.mark.parametrize(
        "kind",
        [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/json-patch+json",
            "application/jsonx",
            "application/xml, application/json",
            "",
            None,
        ],
    )
    def test_must_be_declared_as_json(self, server: Address, kind: str | None) -> None:
        body = '{"text": "x"}'
        lines = [f"Content-Length: {len(body)}", *([] if kind is None else [f"Content-Type: {kind}"])]
        status, _, answer = server.send_raw(make_request("/notes", *lines, method="POST", body=body))
        assert status == 415
        assert json.loads(answer)["code"] == "unsupported_media_type"

    def test_may_be_missing_where_none_is_needed(self, server: Address) -> None:
        assert server.send_raw(make_request("/bare", method="POST"))[0] == 200
        assert server.send_raw(make_request("/bare", "Content-Length: 0", method="POST"))[0] == 200
        assert server.send_raw(make_request("/notes/x", method="DELETE"))[0] == 200

    def test_that_is_empty_must_not_be_declared_as_something_else(self, server: Address) -> None:
        lines = ("Content-Length: 0", "Content-Type: text/plain")
        assert server.send_raw(make_request("/bare", *lines, method="POST"))[0] == 415

    def test_may_name_a_charset(self, client: httpx2.Client) -> None:
        headers = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert client.post("/notes", content=b'{"text": "x"}', headers=headers).json() == {"length": 1}

    def test_has_a_limit_by_its_announcement(self, server: Address) -> None:
        lines = ("Content-Length: 5000", "Content-Type: application/json")
        status, headers, body = server.send_raw(make_request("/notes", *lines, method="POST"))
        assert (status, json.loads(body)["code"], headers["connection"]) == (413, "body_too_large", "close")
        huge = server.send_raw(make_request("/notes", "Content-Length: " + "9" * 19, lines[1], method="POST"))
        assert huge[0] in (400, 413)

    def test_has_a_limit_while_it_comes(self, server: Address) -> None:
        lines = ("Transfer-Encoding: chunked", "Content-Type: application/json")
        chunks = "1000\r\n" + "x" * 4096 + "\r\n" + "10\r\n" + "x" * 16 + "\r\n"
        status, headers, body = server.send_raw(make_request("/notes", *lines, method="POST", body=chunks))
        assert (status, json.loads(body)["code"], headers["connection"]) == (413, "body_too_large", "close")

    def test_of_a_message_may_be_larger(self, client: httpx2.Client) -> None:
        text = "x" * 10_000
        assert client.post("/notes", json={"text": text}).status_code == 413
        assert client.post("/sessions/s/message", json={"text": text}).json() == {"length": 10_000}
        assert client.post("/sessions/s/message", json={"text": text * 7}).status_code == 413

    def test_must_arrive_in_time(self, server: Address) -> None:
        lines = ("Content-Length: 100", "Content-Type: application/json")
        status, headers, body = server.send_raw(make_request("/notes", *lines, method="POST", body='{"te'))
        assert (status, json.loads(body)["code"], headers["connection"]) == (408, "request_timeout", "close")

    def test_is_not_waited_for_without_a_valid_key(self, server: Address) -> None:
        """Who asks is known before a byte of the body is: nothing is kept or parsed for a stranger."""
        head = (
            "POST /notes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n"
        )
        assert server.send_raw(head)[0] == 401

    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b'{"text": "x"} x',
            b'{"text": "x", "text": "y"}',
            b'{"text": NaN}',
            b'{"text": 1e999}',
            b'{"text": 123456789012345678901234567890123}',
            b'{"text": 92233720368547758080}',
            b'{"text": "\\ud800"}',
            b'{"text": "\xff"}',
            b'\xef\xbb\xbf{"text": "x"}',
            b"[" * 65 + b"]" * 65,
            b"'text'",
            b"\0",
        ],
    )
    def test_is_read_strictly(self, client: httpx2.Client, body: bytes) -> None:
        found = client.post("/notes", content=body, headers={"Content-Type": "application/json"})
        assert found.status_code == 400
        assert found.json()["code"] == "not_json"

    def test_has_a_limit_of_values(self, client: httpx2.Client) -> None:
        for more, status in (
            ([0] * 9_990, 200),
            ([0] * 10_001, 413),
            ([[]] * 10_001, 413),
            (["," * 20_000], 200),
            ([""] * 15_000, 413),
            ([{"": ""}] * 5_500, 413),
        ):
            found = client.post("/sessions/s/message", json={"text": "", "more": more})
            assert found.status_code == status, str(more)[:20]

    def test_that_does_not_fit_names_its_field(self, client: httpx2.Client) -> None:
        for body, field in (
            ({}, "text"),
            ({"text": 1}, "text"),
            ({"text": "x", "other": SECRET}, "other"),
            ([], "body"),
        ):
            found = client.post("/notes", json=body)
            assert found.status_code == 400
            error = found.json()
            assert (error["code"], error["field"]) == ("invalid_argument", field)
            assert SECRET not in found.text


class TestAnswers:
    def test_carry_what_keeps_browsers_careful(self, client: httpx2.Client) -> None:
        for path in ("/empty", "/nowhere", "/broken", "/away", "/openapi.json"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"

    def test_carry_a_request_id(self, client: httpx2.Client) -> None:
        found = client.get("/nowhere")
        assert found.headers["x-request-id"] == found.json()["request_id"]
        assert re.fullmatch(r"[A-Za-z0-9._-]{26,64}", found.headers["x-request-id"])
        assert found.headers["x-request-id"] != client.get("/nowhere").headers["x-request-id"]

    def test_keep_a_request_id_that_is_harmless(self, client: httpx2.Client) -> None:
        assert client.get("/empty", headers={"X-Request-ID": "trace-1.a_B"}).headers["x-request-id"] == "trace-1.a_B"
        for theirs in ("", "x" * 65, "a b", 'a"b', "a,b", "ä"):
            assert client.get("/empty", headers={b"X-Request-ID": theirs.encode()}).headers["x-request-id"] != theirs

    def test_are_the_one_json_error_for_every_failure(self, client: httpx2.Client) -> None:
        for method, path, status, code in (
            ("GET", "/nowhere", 404, "not_found"),
            ("PUT", "/empty", 405, "method_not_allowed"),
            ("GET", "/conflict", 409, "conflict"),
            ("GET", "/away", 503, "store_unavailable"),
            ("GET", "/broken", 500, "internal_error"),
            ("GET", "/undeclared", 403, "forbidden"),
        ):
            found = client.request(method, path)
            assert found.status_code == status
            assert set(found.json()) >= {"error", "code", "request_id"}
            assert found.json()["code"] == code
            assert found.headers["content-type"] == "application/json"
        assert client.put("/empty").headers["allow"] == "GET"
        assert client.get("/away").headers["retry-after"] == "1"
        assert client.get("/away").json()["retry_after"] == 1.0

    def test_reveal_nothing_about_an_unexpected_error(
        self, client: httpx2.Client, minimal_server: MinimalServer
    ) -> None:
        before = minimal_server.metrics.unexpected_errors._value.get()
        found = client.get("/broken")
        assert found.json()["error"] == "internal error: see the server's log"
        assert SECRET not in found.text
        assert minimal_server.metrics.unexpected_errors._value.get() == before + 1

    def test_that_break_off_are_cut(self, client: httpx2.Client) -> None:
        with pytest.raises(httpx2.RemoteProtocolError):
            client.get("/half")

    def test_of_a_page_let_it_look_well(self, client: httpx2.Client) -> None:
        found = client.get("/")
        assert found.headers["content-type"].startswith("text/html")
        assert found.headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
        assert "<script" not in found.text
        assert "/openapi.json" in found.text
        assert client.get("/openapi.json").json()["paths"]["/notes"]["post"]["security"] == [{"key": []}]


class TestLog:
    def test_has_a_line_for_each_request_without_content(self, client: httpx2.Client, tmp_path: Any) -> None:
        kept = {name: logging.getLogger(name) for name in server_logging.LOGGERS}
        before = {name: (list(each.handlers), each.propagate, each.level) for name, each in kept.items()}
        with (tmp_path / "log").open("w") as file:
            server_logging.configure_logging("info", secrets=[SECRET], stream=file)
            try:
                client.post("/sessions/s-1/message", json={"text": SECRET}, headers={"X-Request-ID": "mine"})
                client.get("/broken")
                client.get("/broken?token=" + TOKEN)
                client.get("/nowhere/%0d%0anew:%20line")
                logging.getLogger("holdfast.server").info("odd \x1b[31m\x7f\u2028 %s", f"Bearer {TOKEN}")
                logging.getLogger("uvicorn.error").error(SECRET, extra=server_logging.extra_fields(thing=object()))
                asyncio.run(asyncio.sleep(0.1))
            finally:
                for name, (handlers, propagate, level) in before.items():
                    kept[name].handlers[:], kept[name].propagate = handlers, propagate
                    kept[name].setLevel(level)
        text = (tmp_path / "log").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        first = lines[0]
        assert first["message"] == "request"
        assert (first["route"], first["method"], first["status"]) == ("/sessions/{sid}/message", "POST", 200)
        assert (first["request_id"], first["key_id"]) == ("mine", "server")
        assert first["milliseconds"] > 0
        unexpected = next(line for line in lines if line["message"] == "an unexpected error")
        assert unexpected["error"] == "builtins.RuntimeError"
        assert any("test_middleware.py" in frame for frame in unexpected["trace"])
        assert unexpected["request_id"] == next(line for line in lines if line.get("route") == "/broken")["request_id"]
        for never in (SECRET, TOKEN, "s-1", "nowhere", "\x1b", "\x7f", "\u2028"):
            assert never not in text, never

    def test_of_numbers_is_by_route(self, client: httpx2.Client, minimal_server: MinimalServer) -> None:
        for number in range(3):
            client.post(f"/sessions/{number}/message", json={"text": ""})
            client.get(f"/nowhere/{number}")
        text = minimal_server.metrics.render().decode()
        assert 'holdfast_request_seconds_count{method="POST",route="/sessions/{sid}/message",status="200"}' in text
        assert 'route="(none)"' in text
        assert "nowhere" not in text


def test_a_socket_that_only_connects_disturbs_no_client(server: Address, client: httpx2.Client) -> None:
    for _ in range(50):
        wire = socket.create_connection(("127.0.0.1", server.port))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        wire.sendall(b"POST /notes HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        wire.close()
    assert client.get("/empty").status_code == 200
