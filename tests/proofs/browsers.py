"""B14: what a page in a browser can send to a server on loopback. Nothing of it is accepted.

Accepted means: something changed, or the page can read the answer. A page reads what comes from its own origin, which a
name that is made to point here gives it, and what the server allows it to read. What counts is the server with --open,
which asks for no key; the others get the key as well, as if the page had it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.raw_http import send_and_receive
from tests.proofs.secured_server import COMMON, TOKEN, SecuredServer, StoreDump, dump_store

APP_ORIGIN = "https://app.example"
SESSION = f"/sessions/{COMMON}"
# What an attacker would want done, and what they would want to read.
WRITES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/sessions", {"id": "planted"}),
    ("POST", f"{SESSION}/message", {"message": "spend everything"}),
    ("POST", f"{SESSION}/messages", {"messages": [{"role": "user", "content": "planted"}]}),
    ("PUT", f"{SESSION}/state/note", {"value": "planted"}),
    ("PUT", SESSION, {"title": "planted"}),
    ("DELETE", f"{SESSION}/state/note", None),
    ("DELETE", SESSION, None),
    ("POST", f"{SESSION}/close", None),
    ("POST", "/agents", {"id": "planted", "provider": "echo"}),
]
READS = ["/sessions", SESSION, f"{SESSION}/history", f"{SESSION}/events", f"{SESSION}/export", "/agents", "/metrics"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request of a browser."""

    kind: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    can_read: bool = False  # also if the answer does not allow it: for the browser the page has the same origin

    def encode(self, port: int, key: str | None) -> bytes:
        headers = [(name, value.replace("PORT", str(port))) for name, value in self.headers]
        if not any(name == "Host" for name, _ in headers):
            headers.insert(0, ("Host", f"localhost:{port}"))
        headers = [(name, value) for name, value in headers if value != "(none)"]
        if key is not None:
            headers.append(("Authorization", f"Bearer {key}"))
        if self.body:
            headers.append(("Content-Length", str(len(self.body))))
        lines = [f"{self.method} {self.target.replace('PORT', str(port))} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + self.body


NAMES = [
    "evil.example",
    "evil.example:PORT",
    "127.0.0.1.evil.example:PORT",
    "localhost.evil.example:PORT",
    "localhost:PORT.evil.example",
    "evil.example/localhost:PORT",
    "evil.example#localhost",
    "localhost:PORT@evil.example",
    "evil.example\\localhost",
    "localhost evil.example",
    "localhost,evil.example",
    "0.0.0.0:PORT",
    "127.0.0.2:PORT",
    "127.1:PORT",
    "2130706433:PORT",
    "0x7f000001:PORT",
    "0177.0.0.1:PORT",
    "[::]:PORT",
    "[::ffff:127.0.0.1]:PORT",
    "localhost.:PORT",
    "localhost.localdomain:PORT",
    "l\u043ecalhost:PORT",
    "testserver",
    "",
    "(none)",
]
ORIGINS = [
    "null",
    "https://evil.example",
    "http://evil.example:PORT",
    "http://localhost.evil.example:PORT",
    "http://localhost:PORT.evil.example",
    "http://localhost:1",
    "http://localhost",
    "http://127.0.0.1:PORT",  # not the name that is asked for
    "http://evil.example@localhost:PORT",
    "http://localhost:PORT@evil.example",
    "http://localhost:PORT/",
    "http://localhost:PORT, https://evil.example",
    "https://evil.example, http://localhost:PORT",
    "file://",
    "chrome-extension://abcdefghijklmnop",
    "moz-extension://abc",
    "http://[::1]:PORT",
    "http://localhost:0PORT",
    "localhost:PORT",
    "//localhost:PORT",
    "",
    "https://app.example.evil.example",
    "http://app.example",
    "https://app.example:444",
    "https://xapp.example",
    "https://app.example.",
]
FORMS = [
    "text/plain",
    "text/plain;charset=UTF-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain; application/json",
    "text/plain, application/json",
    "application/jsonp",
    "application/json-patch+json",
    "text/json",
    "application/csp-report",
    "",
    "(none)",
]
SITES = ["cross-site", "same-site", "CROSS-SITE", "none, cross-site", "", "whatever"]
JSON_TYPE = ("Content-Type", "application/json")


def list_attempts() -> Iterator[Attempt]:
    yield from list_rebinding()
    yield from list_foreign_origins()
    yield from list_forms()
    yield from list_fetches()
    yield from list_preflights()
    yield from list_websockets()


def list_rebinding() -> Iterator[Attempt]:
    """A name of the attacker's that points here: for the browser, the page and the server are one origin."""
    for name in NAMES:
        host = ("Host", name)
        for path in READS:
            yield Attempt("Host", "GET", path, (host,), can_read=True)
        for method, target, body in WRITES:
            own = ("Origin", f"http://{name}")
            sent = b"" if body is None else json.dumps(body).encode()
            headers = (host, own, ("Sec-Fetch-Site", "same-origin"), *([JSON_TYPE] if sent else []))
            yield Attempt("Host", method, target, headers, sent, can_read=True)
    yield Attempt("Host", "GET", "/sessions", (("Host", "localhost:PORT"), ("Host", "evil.example")), can_read=True)
    yield Attempt("Host", "GET", "http://evil.example/sessions", (("Host", "evil.example"),), can_read=True)
    trust = (("Host", "evil.example"), ("X-Forwarded-Host", "localhost:PORT"), ("Forwarded", "host=localhost"))
    yield Attempt("Host", "GET", "/sessions", trust, can_read=True)


def list_foreign_origins() -> Iterator[Attempt]:
    """fetch() of a page elsewhere, with JSON, whether or not its preflight was answered."""
    for origin in ORIGINS:
        for method, target, body in WRITES:
            sent = b"" if body is None else json.dumps(body).encode()
            yield Attempt(
                "Origin", method, target, (("Origin", origin), *([JSON_TYPE] if sent else [])), sent, can_read=False
            )
        for path in READS:
            yield Attempt("Origin", "GET", path, (("Origin", origin),))
        stream = (("Origin", origin), ("Accept", "text/event-stream"), ("Sec-Fetch-Site", "cross-site"))
        yield Attempt("EventSource", "GET", f"{SESSION}/events", stream)
    yield Attempt(
        "Origin", "GET", "/sessions", (("Origin", "http://localhost:PORT"), ("Origin", "https://evil.example"))
    )


def list_forms() -> Iterator[Attempt]:
    """What a form sends without asking first; some browsers, and some pages, leave the Origin out."""
    for kind in FORMS:
        for method, target, body in WRITES:
            if method != "POST":
                continue
            given = json.dumps(body or {}).encode()
            bodies = [given, b"=" + given, b"message=planted&_method=DELETE"]
            bodies.append(b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + given + b"\r\n--x--\r\n")
            for sent in bodies:
                yield Attempt("form", method, target, (("Content-Type", kind),), sent)
            hidden = (("Content-Type", kind), ("Origin", "null"), ("Sec-Fetch-Mode", "navigate"))
            yield Attempt("form", method, target, hidden, given)
        overridden = (("Content-Type", kind), ("X-HTTP-Method-Override", "DELETE"))
        yield Attempt("form", "POST", SESSION, overridden, b"_method=DELETE")


def list_fetches() -> Iterator[Attempt]:
    """What says itself that it comes from elsewhere, without an Origin: images, scripts, frames, links, beacons."""
    for site in SITES:
        for mode in ("no-cors", "navigate", "cors"):
            meta = (("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode), ("Sec-Fetch-Dest", "empty"))
            for path in READS:
                yield Attempt("Sec-Fetch", "GET", path, meta, can_read=mode == "cors")
            for method, target, body in WRITES:
                sent = b"" if body is None else json.dumps(body).encode()
                yield Attempt("Sec-Fetch", method, target, (*meta, *([JSON_TYPE] if sent else [])), sent)
    for path in READS:  # an old browser says nothing at all: it gets an answer that no page can read
        yield Attempt("image", "GET", path, (("Accept", "image/*"), ("Referer", "https://evil.example/")))


def list_preflights() -> Iterator[Attempt]:
    for origin in ORIGINS:
        for method in ("POST", "PUT", "DELETE", "GET"):
            asked = (
                ("Origin", origin),
                ("Access-Control-Request-Method", method),
                ("Access-Control-Request-Headers", "authorization,content-type"),
                ("Access-Control-Request-Private-Network", "true"),
            )
            yield Attempt("preflight", "OPTIONS", SESSION, asked)


def list_websockets() -> Iterator[Attempt]:
    """Browsers let every page open a WebSocket to everywhere."""
    shake = (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    )
    for target in ("/", "/sessions", f"{SESSION}/events"):
        for origin in ("https://evil.example", "null", "http://localhost:PORT"):
            yield Attempt("WebSocket", "GET", target, (("Origin", origin), *shake), can_read=True)


class BrowserAttack:
    """The attempts of browsers on one server."""

    def __init__(self, server: SecuredServer, key: str | None) -> None:
        self._server, self._key = server, key
        self.tried, self.failures = 0, list[str]()

    def run(self, chosen: list[Attempt]) -> None:
        before = dump_store(self._server.path)
        for attempt in chosen:
            self._send(attempt)
        self._check_store(before)

    def _send(self, attempt: Attempt) -> None:
        self.tried += 1
        status, answer = send_and_receive(self._server.port, attempt.encode(self._server.port, self._key))
        head = answer.partition(b"\r\n\r\n")[0].lower()
        is_answered = status is not None and (status < 400 or status == 101)
        told = f"{attempt.kind}: {attempt.method} {attempt.target} {dict(attempt.headers)} {attempt.body!r} -> {status}"
        if is_answered and (attempt.can_read or b"\r\naccess-control-allow-origin:" in head):
            self.failures.append(f"{told}, and the page can read it")
        elif is_answered and attempt.method not in ("GET", "OPTIONS"):
            self.failures.append(f"{told}, and it was done")
        elif status is None or status == -1 or status >= 500:
            self.failures.append(told)
        if is_answered and not all(each in head for each in SHIELD_HEADERS):
            self.failures.append(f"{told}, without {[each for each in SHIELD_HEADERS if each not in head]}")

    def _check_store(self, before: StoreDump) -> None:
        self.failures += [
            f"a page has changed something: {each}" for each in before.list_changes(dump_store(self._server.path))
        ]


# What keeps a page from using an answer that it has not asked for: as a script, in a frame, as an image's bytes.
SHIELD_HEADERS = (
    b"x-content-type-options: nosniff",
    b"x-frame-options: deny",
    b"cross-origin-resource-policy: same-origin",
)


@contextmanager
def start_servers(directory: Path) -> Iterator[list[tuple[str, SecuredServer, str | None]]]:
    """Open, with a key, and with an origin that may call: each with the key that a page would have."""
    places = {name: directory / name for name in ("open", "locked", "configured")}
    for place in places.values():
        place.mkdir()
    with (
        SecuredServer(places["open"], sessions=1, open=True, token=None) as unlocked,
        SecuredServer(places["locked"], sessions=1) as locked,
        SecuredServer(places["configured"], sessions=1, origins=(APP_ORIGIN,)) as configured,
    ):
        yield [("open", unlocked, None), ("locked", locked, TOKEN), ("configured", configured, TOKEN)]


@proof("B14", ci=5_000, long=100_000)
def browser_attacks(size: int, seed: int) -> Report:
    """Every attempt on every kind of server, up to a size; and what must be let in is let in."""
    rng = random.Random(seed)
    every = list(list_attempts())
    failures: list[str] = []
    tried = 0
    with make_scratch_directory(memory=True) as directory, start_servers(directory) as served:
        for name, server, key in served:
            chosen = rng.sample(every, min(len(every), size // len(served)))
            attack = BrowserAttack(server, key)
            attack.run(chosen)
            tried += attack.tried
            failures += [f"{name}: {each}" for each in attack.failures]
            failures += [f"{name}: {each}" for each in check_own_requests(server, key)]
    return Report(figures=f"{tried:,} attempts of {len(every):,} kinds, {len(failures)} accepted", failures=failures)


def check_own_requests(server: SecuredServer, key: str | None) -> Iterator[str]:
    """The control: a person's own requests, our own page's, and those of an origin that is configured."""
    own = (("Origin", "http://localhost:PORT"), ("Sec-Fetch-Site", "same-origin"), JSON_TYPE)
    fine = [
        Attempt("curl", "GET", SESSION, ()),
        Attempt("person", "GET", SESSION, (("Sec-Fetch-Site", "none"), ("Sec-Fetch-Mode", "navigate"))),
        Attempt("page", "POST", "/sessions", own, b"{}"),
        Attempt("name", "GET", SESSION, (("Host", "127.0.0.1:PORT"),)),
    ]
    if server.config.origins:
        fine.append(Attempt("app", "GET", SESSION, (("Origin", APP_ORIGIN), ("Sec-Fetch-Site", "cross-site"))))
        asked = (("Origin", APP_ORIGIN), ("Access-Control-Request-Method", "POST"))
        fine.append(Attempt("app", "OPTIONS", "/sessions", asked))
    for attempt in fine:
        status, answer = send_and_receive(server.port, attempt.encode(server.port, key))
        if status is None or not 200 <= status < 300:
            yield f"{attempt.kind}: {attempt.method} {attempt.target} -> {status} {answer[-200:]!r}"
        elif attempt.kind == "app" and b"access-control-allow-origin: https://app.example" not in answer:
            yield f"{attempt.kind}: {attempt.method} {attempt.target} cannot be read by it"
