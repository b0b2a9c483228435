"""B16, for the server: secrets planted in every part of a request, and looked for everywhere they could
come out: the log of a real process, answers that are errors, the numbers, and what the server says of itself.

What a caller says to an agent is content: it may come back to the caller as content, but it is in no log and in no
unexpected error. A key is in no answer at all.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import quote

from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.raw_http import send_and_receive
from tests.proofs.secured_server import COMMON, TOKEN, Answer, Caller, SecuredProcess

PROVIDER_KEY = "sk-proj-provider-key-of-this-server-0123456789"
LOCAL = "crossed-out"  # a stored agent whose provider repeats what it is sent
MESSAGES_PATH = "/sessions/{session}/messages"
MESSAGE_PATH = "/sessions/{session}/message"


@dataclass(frozen=True, slots=True)
class PlantedRequest:
    """A request with a secret in it."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any = None
    is_key: bool = False  # it may not come back in any answer


Plant = Callable[[str, str], PlantedRequest]
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


def _in_body(method: str, target: str, body: Callable[[str], Any]) -> Plant:
    return lambda secret, session: PlantedRequest(method, target.format(session=session), AUTHORIZED, body(secret))


def _in_header(name: str, value: str = "{}", target: str = "/sessions/{session}", *, trusted: bool = True) -> Plant:
    def plant(secret: str, session: str) -> PlantedRequest:
        headers = (AUTHORIZED if trusted else {}) | {name: value.format(secret)}
        return PlantedRequest("GET", target.format(session=session), headers, is_key=True)

    return plant


def _in_target(target: str) -> Plant:
    def plant(secret: str, session: str) -> PlantedRequest:
        return PlantedRequest("GET", target.format(secret=quote(secret, safe=""), session=session), AUTHORIZED)

    return plant


def _raw(text: str) -> Plant:
    """A body that is no JSON."""
    return _in_body("POST", MESSAGES_PATH, lambda secret: text.replace("SECRET", secret).encode())


TOOL = "what a tool stumbles over"  # the server's owner wrote the tool, and finds the text in its traceback, only there
PLACES: dict[str, Plant] = {
    "a key that is none": _in_header("Authorization", "Bearer {}", trusted=False),
    "a key of our shape": _in_header("Authorization", "Bearer hf_abcd1234_{}", trusted=False),
    "a password": _in_header("Authorization", "Basic {}", trusted=False),
    "an API key": _in_header("X-API-Key", trusted=False),
    "a second key": _in_header("X-API-Key"),
    "a cookie": _in_header("Cookie", "session={}"),
    "a user agent": _in_header("User-Agent"),
    "a referer": _in_header("Referer", "https://app.example/?token={}"),
    "an origin": _in_header("Origin", "https://{}.example"),
    "a host": _in_header("Host", "{}.example"),
    "a forwarded address": _in_header("X-Forwarded-For"),
    "a header nobody knows": _in_header("X-Secret"),
    "a header nobody can have": _in_header("X-{}", "1"),
    "an accept header": _in_header("Accept", "text/{}"),
    "a content type": lambda secret, session: PlantedRequest(
        "POST", "/sessions", AUTHORIZED | {"Content-Type": f"text/{secret}"}, b"{}", is_key=True
    ),
    "a request id": _in_header("X-Request-ID", "not allowed {}"),
    "a key in the address": _in_target("/sessions/{session}?access_token={secret}"),
    "an address that there is not": _in_target("/nowhere/{secret}"),
    "words to search for": _in_target("/sessions/{session}/search?q={secret}"),
    "a number that is none": _in_target("/sessions/{session}/history?limit={secret}"),
    "a choice that is none": _in_target("/sessions/{session}/state?scope={secret}"),
    "a title": _in_body("PUT", "/sessions/{session}", lambda secret: {"title": secret}),
    "metadata": _in_body("PUT", "/sessions/{session}", lambda secret: {"metadata": {"password": secret}}),
    "a system prompt": _in_body("PUT", "/sessions/{session}", lambda secret: {"system": secret}),
    "a value": _in_body("PUT", "/sessions/{session}/state/note", lambda secret: {"value": {"token": secret}}),
    "a fact": _in_body("POST", "/sessions/{session}/facts", lambda secret: {"text": secret}),
    "a message": _in_body("POST", MESSAGES_PATH, lambda secret: {"messages": [{"role": "user", "content": secret}]}),
    "a question": _in_body("POST", MESSAGE_PATH, lambda secret: {"message": f"hello {secret}"}),
    "a streamed question": _in_body("POST", MESSAGE_PATH + "/stream", lambda secret: {"message": f"hello {secret}"}),
    TOOL: _in_body("POST", MESSAGE_PATH, lambda secret: {"message": f"stumble {secret}"}),
    "what a model fails with": _in_body("POST", MESSAGE_PATH, lambda secret: {"message": f"fail {secret}"}),
    "what the code fails with": _in_body("POST", MESSAGE_PATH, lambda secret: {"message": f"crash {secret}"}),
    "the same, streamed": _in_body("POST", MESSAGE_PATH + "/stream", lambda secret: {"message": f"crash {secret}"}),
    "what a provider repeats": _in_body(
        "POST", MESSAGE_PATH, lambda secret: {"message": f"hello {secret}", "agent_id": LOCAL}
    ),
    "metadata of a question": _in_body(
        "POST", MESSAGE_PATH, lambda secret: {"message": "hi", "metadata": {"key": secret}}
    ),
    "an option nobody knows": _in_body("POST", MESSAGE_PATH, lambda secret: {"message": "hi", "api_key": secret}),
    "a field of another kind": _in_body("POST", MESSAGE_PATH, lambda secret: {"message": {"content": [secret]}}),
    "a role that is none": _in_body(
        "POST", MESSAGES_PATH, lambda secret: {"messages": [{"role": secret, "content": "x"}]}
    ),
    "a file that is no base64": _in_body(
        "POST",
        MESSAGES_PATH,
        lambda secret: {
            "messages": [
                {"role": "user", "content": [{"type": "file", "media_type": "text/plain", "data": f"!{secret}"}]}
            ]
        },
    ),
    "an export that is none": _in_body("POST", "/sessions/import", lambda secret: {"data": secret}),
    "a line of an export": _in_body("POST", "/sessions/import", lambda secret: {"data": f'{{"{secret}": 1}}'}),
    "instructions": _in_body("POST", "/agents", lambda secret: {"instructions": secret, "provider": "echo"}),
    "an option of an agent": _in_body("POST", "/agents", lambda secret: {"provider": "echo", "api_key": secret}),
    "a directory": _in_body("PUT", "/sessions/{session}", lambda secret: {"work_dir": f"/{secret}"}),
    "a body cut off": _raw('{"messages": [{"role": "user", "content": "SECRET'),
    "a body with a name twice": _raw('{"SECRET": 1, "SECRET": 2}'),
    "a body of another kind": _raw('"SECRET"'),
    "a body that is too deep": _raw('{"messages": ' + "[" * 100 + '"SECRET"' + "]" * 100 + "}"),
}


class RepeatingHandler(BaseHTTPRequestHandler):
    """A provider that refuses, and repeats the key and the question while it does."""

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        asked = self.rfile.read(size).decode(errors="replace")
        text = f"Incorrect API key provided: {self.headers.get('Authorization')}. You asked: {asked}"
        body = json.dumps({"error": {"message": text, "code": "invalid_api_key"}}).encode()
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def start_provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), RepeatingHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def make_secret(rng: random.Random) -> str:
    """Something that no filter knows by its shape, and is found however it is written."""
    return "zq" + "".join(rng.choice("bcdfghjklmnpqrstvwxyz") for _ in range(14))


class SecretSearch:
    """Plants secrets and looks for them."""

    def __init__(self, process: SecuredProcess, caller: Caller, rng: random.Random) -> None:
        self._process, self._caller, self._rng = process, caller, rng
        self._planted: dict[str, str] = {}  # by secret: where
        self._session = COMMON
        self.failures: list[str] = []
        self.answers: Counter[int] = Counter()
        self.lines = 0  # of the log

    def plant(self, place: str) -> None:
        secret = make_secret(self._rng)
        self._planted[secret] = place
        asked = PLACES[place](secret, self._fresh_session())
        try:
            answer = self._caller.ask(asked.method, asked.target, asked.headers, asked.body)
        except ValueError:  # a header that this client refuses to send
            return
        self.answers[answer.status] += 1
        self._check(place, secret, asked, answer)

    def _fresh_session(self) -> str:
        """Not for ever the same one: turns that fail stay in its history."""
        if self._rng.random() < 0.2:
            self._session = self._caller.ask("POST", "/sessions", AUTHORIZED, {}).json["id"]
        return self._session

    def _check(self, place: str, secret: str, asked: PlantedRequest, answer: Answer) -> None:
        head, body = str(answer.headers), answer.body.decode(errors="replace")
        told = f"{place}: {asked.method} {asked.target} -> {answer.status} {body[:300]}"
        if asked.is_key and secret in head + body:
            self.complain(f"{told} repeats it")
        if place in UNEXPECTED:
            body += self._caller.ask("GET", f"{asked.target.partition('/message')[0]}/runs", AUTHORIZED).body.decode()
        if (answer.status >= 500 or place in UNEXPECTED) and secret in head + body and place not in FROM_OUTSIDE:
            self.complain(f"{told} repeats it")
        for each in (TOKEN, PROVIDER_KEY, PROVIDER_KEY[8:24]):
            if each in head + body:
                self.complain(f"{told} tells a key of the server")
        if "Traceback" in body:
            self.complain(f"{told} shows a traceback")

    def complain(self, text: str) -> None:
        """Once of each place."""
        if not any(each.startswith(text.partition(":")[0]) for each in self.failures):
            self.failures.append(text)

    def search_logs(self) -> None:
        """Search everything that is not an answer to the caller that planted the secret."""
        log = self._process.log
        shown, tracebacks = _separate_tool_tracebacks(log)
        sinks = {"the log": shown}
        for path in ("/metrics", "/openapi.json", "/", "/health", "/ready"):
            answer = self._caller.ask("GET", path, AUTHORIZED)
            sinks[path] = str(answer.headers) + answer.body.decode()
        for sink, text in sinks.items():
            found = [f"{secret} ({place})" for secret, place in self._planted.items() if secret in text.lower()]
            found += [f"the key {each[:10]}..." for each in (TOKEN, PROVIDER_KEY) if each in text]
            self.failures += [
                f"{sink} has {each}: {_quote_context(text, each.partition(' ')[0])}" for each in found[:5]
            ]
        is_shown = {secret: secret in tracebacks.lower() for secret in self._planted}
        others = [place for secret, place in self._planted.items() if place != TOOL and is_shown[secret]]
        self.failures += [f"the traceback of a tool has {place}" for place in others]
        if not any(is_shown[secret] for secret, place in self._planted.items() if place == TOOL):
            self.failures.append("the log has no traceback of the tool that failed")
        lines = [line for line in log.splitlines() if not line.startswith("holdfast serves ")]
        self.lines = len(lines)
        self.failures += [f"a line of the log is no JSON: {line[:300]}" for line in lines if not _is_json(line)]


# An exception of code, which may say anything; its text goes into no answer.
UNEXPECTED = ("what the code fails with", "the same, streamed")
# Words of a provider, or of a tool's author, about what the same caller sent: that caller gets them, shortened.
FROM_OUTSIDE = ("what a model fails with",)


def _separate_tool_tracebacks(log: str) -> tuple[str, str]:
    """The log without the tracebacks of the tool that fails, and those tracebacks."""
    rest, tracebacks = [], []
    for line in log.splitlines():
        found = json.loads(line) if _is_json(line) else {}
        if found.get("logger") == "holdfast" and found.get("tool") == "stumble":
            tracebacks += found.pop("traceback", [])
            line = json.dumps(found)
        rest.append(line)
    return "\n".join(rest), "\n".join(tracebacks)


def _quote_context(text: str, found: str) -> str:
    place = text.lower().find(found.lower())
    return repr(text[max(0, place - 150) : place + 50])


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@proof("B16", ci=800, long=50_000)
def server_secrets(size: int, seed: int) -> Report:
    """Secrets through every field, header, tool and exception of a real server: none in what others read."""
    rng = random.Random(seed)
    with make_scratch_directory(memory=True) as directory, start_provider() as url:
        environment = {"OPENAI_API_KEY": PROVIDER_KEY, "OPENAI_BASE_URL": url, "HOLDFAST_LOG_LEVEL": "debug"}
        with SecuredProcess(directory, **environment) as process, Caller(process.port) as caller:
            made = caller.ask("POST", "/agents", AUTHORIZED, {"id": LOCAL, "provider": "openai", "model": "gpt-4o"})
            search = SecretSearch(process, caller, rng)
            places = [*PLACES] * (size // len(PLACES) + 1)
            for place in places[:size]:
                search.plant(place)
            wire = [make_secret(rng) for _ in range(5)]
            for number, secret in enumerate(wire):  # what no parser gets through
                text = (
                    f"GET /{secret}\x00 HTTP/1.1",
                    f"{secret}",
                    f"GET / HTTP/{secret}",
                    f"X: {secret}\r\n",
                    secret * 2000,
                )
                with suppress(OSError):
                    send_and_receive(process.port, text[number].encode() + b"\r\n\r\n")
            search._planted |= dict.fromkeys(wire, "no request")
            search.search_logs()
            if made.status != 201:
                search.failures.append(f"the agent of the provider was not made: {made.status} {made.body[:200]!r}")
    answers = ", ".join(f"{number:,} x {status}" for status, number in sorted(search.answers.items()))
    figures = f"{len(PLACES)} places ({answers}), {search.lines:,} lines of log, {len(search.failures)} found"
    return Report(figures=figures, failures=search.failures)
