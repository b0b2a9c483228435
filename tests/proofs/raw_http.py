"""B12: bytes that are no request, requests that are no JSON, ids that are no ids; and clients that take their time.

For any bytes the answer is no 5xx, the connection ends, and the memory stays where it was. A client that sends its
request a byte at a time, or never ends it, is disconnected, and other clients do not notice it.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import holdfast.server.http.header_limits as heads
from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.permission_table import CALLS
from tests.proofs.permissions import Route
from tests.proofs.secured_server import COMMON, PATIENCE, STORED, TOKEN, Caller, SecuredProcess, SecuredServer

CALLERS = 12  # connections at once
QUIET = 0.25  # seconds without an answer, after which a client says that it has said everything
GROWTH = 50.0  # megabytes
WARM = 300  # cases, after which everything is loaded that will be
TRUSTED = b"Host: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent, and whether it may be accepted."""

    kind: str
    data: bytes
    refused: bool = False


# -- what is sent ------------------------------------------------------------------------------------------------------

# No JSON, or none that we keep: the code that uses it as a value puts `{}` around it.
NO_VALUES = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"9" * 100_000,
    b"-" + b"1" * 5000,
    b"0." + b"3" * 100_000,
    b"01",
    b"+1",
    b".5",
    b"0x10",
    b"'text'",
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\\u12"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\xc0\x80"',
    b'"a\x00b"',
    b'"line\nbreak"',
    b'{"a": 1, "a": 2}',
    b'{"a": {"b": 1, "b": 2}}',
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"[" * 100_000,
    b"[1,]",
    b'{"a": 1,}',
    b"undefined",
    b"True",
    b"//comment\n1",
]
NO_BODIES = [
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b"{} {}",
    b"{}garbage",
    b"{",
    b"\x00",
    b'"just text"',
    b"[]",
    b"1",
    b"true",
    b"[" + b"1," * 20_000 + b"1]",
    b"{" + b",".join(b'"k%d": 1' % number for number in range(11_000)) + b"}",
]
IDS = [
    "a/b",
    "../../etc/passwd",
    "..",
    ".",
    "%2f..%2f",
    "%2e%2e",
    "%00",
    "\0",
    "a\0b",
    "a" * 10_000,
    "é" * 300,
    "\u202edcba",
    "\ud7ff\ue000",
    "🙂" * 200,
    "a\r\nSet-Cookie: x=1",
    "\u0085\u2028",
    "' OR 1=1 --",
    "{session_id}",
    "null",
    "-1",
    " ",
    "\ufeff",
    "\uffff",
    "\\..\\",
    "C:",
    "~root",
]
METHODS = [b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PROPFIND"]
NO_METHODS = [b"", b"get", b"GE T", b"GET\x00", b"\xff", b"A" * 5000, b"GET\t", b"PRI", b"POST\r"]
TARGETS = [
    b"/",
    b"/health",
    b"/openapi.json",
    b"/sessions",
    b"/sessions/" + COMMON.encode(),
    b"/sessions/" + COMMON.encode() + b"/message",
    b"/sessions/" + COMMON.encode() + b"/events?after=0",
    b"/sessions/" + COMMON.encode() + b"/state/a/b/c",
    b"/agents/" + STORED.encode(),
    b"*",
    b"",
    b"health",
    b"//health",
    b"/../health",
    b"/health/../sessions",
    b"http://localhost/health",
    b"http://evil.example/health",
    b"http://",
    b"localhost:80",
    b"/%",
    b"/%zz",
    b"/%00",
    b"/sessions/%2e%2e/%2e%2e",
    b"/sessions/a%2fb",
    b"/sessions/%ff%fe",
    b"/\xff\xfe",
    b"/sessions?limit=\x00",
    b"/sessions?limit=" + b"9" * 5000,
    b"/sessions?limit=1&limit=2",
    b"/sessions?" + b"&".join(b"a=%d" % number for number in range(2000)),
    b"/sessions/" + b"a" * 10_000,
    b"/" + b"a" * 70_000,
    b"/health#fragment",
    b"/health?\r\nX-Y: z",
    b"/he alth",
    b"/sessions/" + "\u00e9\u202e".encode(),
]
VERSIONS = [
    b" HTTP/1.1",
    b" HTTP/1.0",
    b" HTTP/0.9",
    b" HTTP/2.0",
    b" HTTP/9.9",
    b"",
    b" HTTP/1.1 x",
    b" http/1.1",
    b" HTTP/",
]
LENGTHS = [
    b"0",
    b"-1",
    b"+5",
    b" 5",
    b"5, 5",
    b"0x5",
    b"5;",
    b"99999999999999999999999",
    b"10000000000",
    b"",
    b"5\x00",
    b"1e3",
]
HEADERS = [
    b"",
    b"Host: evil.example",
    b"Host: localhost",
    b"Host:",
    b"Host: localhost, evil.example",
    b"Host : localhost",
    b" Host: localhost",
    b"X-Empty:",
    b": no name",
    b"no colon",
    b"X Y: z",
    b"X-\x00: z",
    b"X-A: a\x00b",
    b"X-A: a\rb",
    b"X-A: a\nX-B: b",
    b"X-A: a\r\n folded",
    b"X-\xff: \xff",
    b"X-Long: " + b"a" * 20_000,
    b"\r\n".join(b"X-%d: a" % number for number in range(1500)),
    b"Connection: close",
    b"Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZQ==",
    b"Expect: 100-continue",
    b"Expect: the-unexpected",
    b"Range: bytes=0-18446744073709551615",
    b"Accept: text/event-stream\r\nLast-Event-ID: 1.2.3",
    b"Accept: text/event-stream\r\nLast-Event-ID: 99999999999999999999",
    b"Accept: text/event-stream\r\nLast-Event-ID: \xff",
    b"Accept: " + b"text/event-stream," * 500,
    b"Idempotency-Key: \x01",
    b"Idempotency-Key: \xc3\xa9",
    b"Idempotency-Key: " + b"k" * 300,
    b"Idempotency-Key: a\r\nIdempotency-Key: b",
    b"Authorization: Bearer x",
    b"Authorization: \xff\xff",
    b"X-API-Key: " + b"k" * 600,
    b"Cookie: " + b"a=b; " * 1000,
    b"Origin: null",
    b"Sec-Fetch-Site: cross-site",
    b"X-Request-ID: " + b"a" * 100,
    b"X-Request-ID: a\tb",
    b"Content-Encoding: gzip",
    b"Content-Type: application/json; charset=utf-16",
    b"Content-Type: application/json\r\nContent-Type: text/plain",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 4",
    b"Transfer-Encoding:\x0bchunked",
    b"Content-Length: 5\r\nContent-Length: 6",
]
CHUNKS = [
    b"0\r\n\r\n",
    b"2\r\n{}\r\n0\r\n\r\n",
    b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
    b"2;ext=1\r\n{}\r\n0;\r\n\r\n",
    b"2\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
    b"2\n{}\n0\n\n",
    b"-1\r\n{}\r\n0\r\n\r\n",
    b"FFFFFFFFFFFFFFFFF\r\n{}",
    b"7fffffffffffffff\r\n{}",
    b"zz\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}{}\r\n0\r\n\r\n",
    b"3\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}0\r\n\r\n",
    b"00000000000000000000000000000000000002\r\n{}\r\n0\r\n\r\n",
    b"2" + b";x" * 20_000 + b"\r\n{}\r\n0\r\n\r\n",
    b"0\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    b"".join(b"1\r\n \r\n" for _ in range(5000)) + b"2\r\n{}\r\n0\r\n\r\n",
]
ENDS = [b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\n\r", b"\r\r\n"]
MARK = "@@"  # where a value is put that is no JSON


def generate_cases(rng: random.Random) -> Iterator[Case]:
    """Without end: each kind in turn."""
    makers: list[Callable[[random.Random], Case]] = [
        make_odd_line,
        make_odd_head,
        make_odd_length,
        make_odd_chunks,
        make_odd_json,
        make_odd_json,
    ]
    makers += [make_odd_body, make_odd_id, make_odd_id, make_flipped_request, make_cut_request]
    while True:
        yield rng.choice(makers)(rng)


def make_odd_line(rng: random.Random) -> Case:
    method = rng.choice(METHODS if rng.random() < 0.7 else NO_METHODS)
    line = method + b" " + rng.choice(TARGETS) + rng.choice(VERSIONS if rng.random() < 0.3 else VERSIONS[:1])
    return Case("line", line + rng.choice(ENDS) + TRUSTED + b"\r\n")


def make_odd_head(rng: random.Random) -> Case:
    chosen = [rng.choice(HEADERS) for _ in range(rng.randint(1, 4))]
    end = rng.choice(ENDS)
    head = end.join([b"GET " + rng.choice(TARGETS[:9]) + b" HTTP/1.1", *chosen, TRUSTED.rstrip(), b"", b""])
    if rng.random() < 0.3:
        head = head.replace(b"GET", b"POST", 1).removesuffix(end) + JSON + b"Content-Length: 2\r\n\r\n{}"
    return Case("head", head)


def make_odd_length(rng: random.Random) -> Case:
    lengths = b"".join(b"Content-Length: " + rng.choice(LENGTHS) + b"\r\n" for _ in range(rng.randint(1, 2)))
    return Case("length", b"POST /sessions HTTP/1.1\r\n" + TRUSTED + JSON + lengths + b"\r\n" + b"{}   ")


def make_odd_chunks(rng: random.Random) -> Case:
    head = b"POST /sessions HTTP/1.1\r\n" + TRUSTED + JSON + b"Transfer-Encoding: chunked\r\n"
    if rng.random() < 0.2:
        head += b"Content-Length: " + rng.choice(LENGTHS) + b"\r\n"
    return Case("chunks", head + b"\r\n" + rng.choice(CHUNKS))


WRITING = [Route(name, call) for name, call in CALLS.items() if call.body and "erase" not in name]
NAMING = [route for route in (Route(name, call) for name, call in CALLS.items()) if route.places]


def _draw_values(rng: random.Random) -> dict[str, Any]:
    """What a call may name, and how: mostly what is there."""
    return {
        "$session": COMMON,
        "$other": COMMON,
        "$mine": STORED,
        "$agent": "helper",
        "$fact": "f",
        "$run": "r",
        "$call": "c",
        "$name": "note",
        "$key": "note",
        "$seq": 2,
        "$user": None,
        "$new": f"raw-{rng.getrandbits(60)}",
        "$export": "{}",
    }


def make_odd_json(rng: random.Random) -> Case:
    """A body that would be fine, but for one value that is no JSON."""
    route = rng.choice(WRITING)
    target, body = route.fill_in(_draw_values(rng))
    body[rng.choice([*body, "more"])] = MARK
    text = json.dumps(body).encode().replace(f'"{MARK}"'.encode(), rng.choice(NO_VALUES))
    return Case("json", _encode_request(route.method, target, text), refused=True)


def make_odd_body(rng: random.Random) -> Case:
    route = rng.choice(WRITING)
    target, _ = route.fill_in(_draw_values(rng))
    return Case("body", _encode_request(route.method, target, rng.choice(NO_BODIES)), refused=True)


def make_odd_id(rng: random.Random) -> Case:
    """An id of any kind, in any place, that is none."""
    route = rng.choice(NAMING)
    target, body = route.fill_in(_draw_values(rng) | {rng.choice(route.places): rng.choice(IDS)})
    if rng.random() < 0.3:  # as it is, and not as a careful client would write it
        target, _ = route.fill_in(_draw_values(rng))
        target = target.replace(COMMON, rng.choice(IDS)).replace(" ", "+")
    data = None if body is None else json.dumps(body).encode()
    return Case("id", _encode_request(route.method, target, data))


def _encode_request(method: str, target: str, body: bytes | None) -> bytes:
    head = f"{method} ".encode() + target.encode() + b" HTTP/1.1\r\n" + TRUSTED
    if body is None:
        return head + b"\r\n"
    return head + JSON + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _make_good_request(rng: random.Random) -> bytes:
    route = rng.choice(WRITING)
    target, body = route.fill_in(_draw_values(rng))
    return _encode_request(route.method, target, json.dumps(body).encode())


def make_flipped_request(rng: random.Random) -> Case:
    """A request that would be fine, but for some bytes."""
    data = bytearray(_make_good_request(rng))
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(data))
        choice = rng.random()
        if choice < 0.5:
            data[place] = rng.randrange(256)
        elif choice < 0.8:
            del data[place : place + rng.randint(1, 8)]
        else:
            data[place:place] = rng.randbytes(rng.randint(1, 8))
        if not data:
            break
    return Case("flipped", bytes(data))


def make_cut_request(rng: random.Random) -> Case:
    data = _make_good_request(rng)
    return Case("cut", data[: rng.randrange(len(data))])


# -- what comes back ---------------------------------------------------------------------------------------------------


def send_and_receive(port: int, data: bytes) -> tuple[int | None, bytes]:
    """Send, then listen until the server has ended it. The status is None if it said nothing, -1 if it hangs."""
    found = b""
    deadline = time.monotonic() + PATIENCE
    with socket.create_connection(("127.0.0.1", port), timeout=QUIET) as wire:
        try:
            wire.sendall(data)
        except TimeoutError:
            return -1, b"does not read"
        except OSError:
            pass  # it has heard enough, and may have said why
        has_ended = False
        while time.monotonic() < deadline:
            try:
                got = wire.recv(65536)
            except TimeoutError:
                has_ended = has_ended or _end_request(
                    wire
                )  # it waits for more, or has answered and keeps the connection
                continue
            except OSError:
                return _read_status(found), found
            if not got:
                return _read_status(found), found
            found += got
            if not has_ended and b"\r\n\r\n" in found:
                has_ended = _end_request(wire)
    return -1, found


def _end_request(wire: socket.socket) -> bool:
    with suppress(OSError):  # it was faster
        wire.shutdown(socket.SHUT_WR)
    return True


def _read_status(found: bytes) -> int | None:
    """The last answer's: an interim one may have come before."""
    lines = [line for line in found.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    finals = [line for line in lines if not line.startswith(b"HTTP/1.1 1")]
    return int(finals[0][9:12]) if finals else None


@proof("B12", ci=4_000, long=1_000_000)
def raw_requests(size: int, seed: int) -> Report:
    """Malformed requests over sockets, at a real process: no 5xx, no hang, no memory, and it still works."""
    rng = random.Random(seed)
    counted: Counter[str] = Counter()
    failures: list[str] = []
    with make_scratch_directory(memory=True) as directory, SecuredProcess(directory, "--body-seconds", "2") as server:
        before = peak = 0.0

        def send_case(case: Case) -> None:
            status, answer = send_and_receive(server.port, case.data)
            counted["silent" if status is None else f"{status // 100}xx" if status > 0 else "hangs"] += 1
            if complaint := find_problem(case, (status, answer)):
                failures.append(complaint)

        endless = generate_cases(rng)
        with ThreadPoolExecutor(CALLERS) as pool:
            for start in range(0, size, WARM):
                list(pool.map(send_case, islice(endless, min(WARM, size - start))))
                before = before or server.rss
                peak = max(peak, server.rss)
                if not server.is_alive or len(failures) > 20:
                    break
        failures += _check_server_works(server)
        if peak - before > GROWTH:
            failures.append(f"memory grew from {before:.0f} MB to {peak:.0f} MB")
        failures += [f"the log says: {line[:600]}" for line in server.log.splitlines() if "unexpected" in line][:3]
    answers = ", ".join(f"{number:,} {kind}" for kind, number in sorted(counted.items()))
    return Report(figures=f"{answers}; memory {before:.0f} MB, then {peak:.0f} MB at most", failures=failures)


def find_problem(case: Case, answer: tuple[int | None, bytes]) -> str | None:
    """What is wrong with an answer."""
    status, text = answer
    is_accepted = status is not None and 200 <= status < 300
    if status == -1 or (status or 0) >= 500 or (case.refused and is_accepted):
        return f"{case.kind} {_shorten(case.data)} -> {status} {text[-200:]!r}"
    return None


def _shorten(data: bytes) -> str:
    return repr(data if len(data) < 600 else data[:400] + b"..." + data[-100:])


def _check_server_works(server: SecuredProcess) -> Iterator[str]:
    if not server.is_alive:
        yield "the server is gone"
        return
    with Caller(server.port) as caller:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        made = caller.ask("POST", "/sessions", headers, {"title": "still here"})
        if made.status != 201:
            yield f"afterwards, POST /sessions -> {made.status} {made.body[:200]!r}"
            return
        said = caller.ask("POST", f"/sessions/{made.json['id']}/message", headers, {"message": "hello"})
        if said.status != 200:
            yield f"afterwards, POST /message -> {said.status} {said.body[:200]!r}"


# -- clients that take their time --------------------------------------------------------------------------------------

SECONDS = 0.8  # for a head, and for a body
DRIP = 0.1  # seconds between two bytes
IDLE = 5  # connections that say nothing at all, for each that says something
_POST = b"POST /sessions HTTP/1.1\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
_LONG = b"Content-Length: 1000\r\n\r\n{"
_HOST = b"Host: localhost\r\n"
# What is said at once, and what is said again and again.
SLOW: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "a line that does not end": (b"GET /heal", b"t"),
    "headers that do not end": (b"GET /health HTTP/1.1\r\n" + TRUSTED, b"X-Y: z\r\n"),
    "a header that does not end": (b"GET /health HTTP/1.1\r\n" + TRUSTED + b"X-Y: ", b"z"),
    "empty lines": (b"", b"\r\n"),
    "a body": (_POST + TRUSTED + JSON + _LONG, b" "),
    "a body that never comes": (_POST + TRUSTED + JSON + _LONG, b""),
    "chunks": (_POST + TRUSTED + JSON + _CHUNKED, b"1\r\n \r\n"),
    "the name of a chunk": (_POST + TRUSTED + JSON + _CHUNKED + b"1;", b"x"),
    "trailers": (_POST + TRUSTED + JSON + _CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-Y: z\r\n"),
    "a body without a key": (_POST + _HOST + JSON + _LONG, b" "),
    "one byte without a key, and no more": (_POST + _HOST + JSON + _LONG, b""),
    "chunks without a key": (_POST + _HOST + JSON + _CHUNKED, b"1\r\n \r\n"),
    "a body that nobody wants": (b"GET /health HTTP/1.1\r\n" + _HOST + _LONG, b" "),
    "chunks that nobody wants": (b"GET /health HTTP/1.1\r\n" + _HOST + _CHUNKED, b"1\r\n \r\n"),
    "a body for nowhere": (b"POST /nowhere HTTP/1.1\r\n" + TRUSTED + JSON + _LONG, b" "),
    "a second head": (b"GET /health HTTP/1.1\r\n" + _HOST + b"\r\nGET /he", b"a"),
    "a promise to go on": (_POST + TRUSTED + JSON + b"Expect: 100-continue\r\n" + _LONG[:-1], b""),
}
LARGE = {
    "a header": b"GET /health HTTP/1.1\r\n" + _HOST + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "a header without end": b"GET /health HTTP/1.1\r\n" + _HOST + b"X: " + b"a" * 1_000_000,
    "headers": b"GET /health HTTP/1.1\r\n" + _HOST + b"X: y\r\n" * 100_000 + b"\r\n",
    "an address": b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
    "a method": b"A" * 1_000_000,
}


@contextmanager
def shorten_head_limit(seconds: float) -> Iterator[None]:
    """So that a proof need not wait as long as the server would."""
    before, heads.HEAD_SECONDS = heads.HEAD_SECONDS, seconds
    try:
        yield
    finally:
        heads.HEAD_SECONDS = before


def send_slowly(port: int, first: bytes, again: bytes, patience: float = PATIENCE) -> tuple[float | None, bytes]:
    """Send bytes slowly. Returns the seconds until the server closed, or None if it did not; and its answer."""
    began = said = time.monotonic()
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=DRIP) as wire:
        wire.sendall(first)
        while time.monotonic() - began < patience:
            try:
                got = wire.recv(65536)
                if not got:
                    return time.monotonic() - began, found
                found += got
            except TimeoutError:
                pass
            except OSError:
                return time.monotonic() - began, found
            if again and time.monotonic() - said >= DRIP:
                said = time.monotonic()
                try:
                    wire.sendall(again)
                except OSError:
                    return time.monotonic() - began, found
    return None, found


def _count_open(idle: list[socket.socket]) -> int:
    """How many are still open."""
    left = 0
    for wire in idle:
        with wire, suppress(ConnectionError):
            try:
                while wire.recv(4096):
                    pass
            except TimeoutError:
                left += 1
    return left


@proof("B12", ci=108, long=1_800)
def slow_requests(size: int, seed: int) -> Report:
    """Clients that never end their request are disconnected, while others are served; large heads are not read."""
    failures: list[str] = []
    served: list[float] = []
    kinds = list(SLOW) * (size // len(SLOW) + 1)
    random.Random(seed).shuffle(kinds)
    settings: dict[str, Any] = {"sessions": 1, "body_seconds": SECONDS, "keep_alive": SECONDS}
    with (
        shorten_head_limit(SECONDS),
        make_scratch_directory(memory=True) as directory,
        SecuredServer(directory, **settings) as server,
    ):
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(size * IDLE)]
        with ThreadPoolExecutor(size) as pool, Caller(server.port) as caller:
            dripping = {pool.submit(send_slowly, server.port, *SLOW[kind]): kind for kind in kinds[:size]}
            while not all(each.done() for each in dripping):
                began = time.monotonic()
                answer = caller.ask("GET", f"/sessions/{COMMON}", {"Authorization": f"Bearer {TOKEN}"})
                served.append(time.monotonic() - began)
                if answer.status != 200:
                    failures.append(f"meanwhile, GET /sessions -> {answer.status} {answer.body[:200]!r}")
                time.sleep(0.01)
        ends = {future: future.result() for future in dripping}
        failures += (
            [f"{idlers} of {len(idle)} connections that say nothing stay"] if (idlers := _count_open(idle)) else []
        )
        failures += sorted({f"{dripping[each]}: it never ends" for each, (spent, _) in ends.items() if spent is None})
        for kind, data in LARGE.items():
            status, answered = send_and_receive(server.port, data)
            if status not in (400, 431, None):
                failures.append(f"{kind} of a megabyte -> {status} {answered[:100]!r}")
        if left := len(server.connections):
            failures.append(f"{left} connections are still there")
    longest = max((spent for spent, _ in ends.values() if spent is not None), default=0.0)
    slowest = sorted(served)[int(len(served) * 0.99)]
    figures = (
        f"{len(ends)} clients of {len(SLOW)} kinds and {len(idle)} silent ones, out after at most {longest:.1f} s "
        f"where {SECONDS} s are given; {len(served)} others served meanwhile, 99 % in {slowest * 1000:.0f} ms; "
        f"{len(LARGE)} large heads refused"
    )
    return Report(figures=figures, failures=failures)
