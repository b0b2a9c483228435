"""B19 and B16: providers that fail in every way the wire allows, and secrets planted where they could leak.

Everything goes through a real socket to a server on the loopback that writes bytes as it pleases. What must stay true:
only whole replies become messages, only our own errors come out, and the next question finds a session that works; a
key is in no error, log line, representation or record.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import socketserver
import struct
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import quote

from holdfast import Agent, Response, Session, tool
from holdfast.clock import FixedClock
from holdfast.errors import AgentError, ProviderUnavailable
from holdfast.models import LanguageModel
from holdfast.models.base import ModelEvent, ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from tests.models.frames import Reply, encode_frame
from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.turns import find_session_faults

WIRES = ("openai", "anthropic")
NAMES = {"openai": "gpt-4o", "anthropic": "claude-sonnet-5"}
LARGEST = 200_000  # bytes of a reply that we take
SILENCE = 0.3  # seconds: real ones, where a provider says nothing at all
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WAYS = ("run", "stream", "run_async", "stream_async")

# -- a server that writes what it likes --------------------------------------------------------------------------------


@dataclass
class Answer:
    """Bytes to send, then an end: "keep" the connection, "close" or "reset" it, "hold" it open, or go on "endless"."""

    raw: bytes
    end: str = "close"
    whole: str | None = None  # the text that may become a message
    more: bytes = b""  # what an endless one repeats


class FaultyProvider:
    """A provider of both wire formats. Each request gets the next answer of the script, and then good answers."""

    def __init__(self) -> None:
        self.script: list[Callable[[str], Answer]] = []
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.whole: set[str] = set()
        self.numbers = count(1)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> FaultyProvider:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def make_reply(self, **more: Any) -> Reply:
        """A reply with a text that no other reply has."""
        number = next(self.numbers)
        return Reply(text=f"<{number} is what I have to say about this {number}>", **more)

    def answer(self, wire: str) -> Answer:
        make = self.script.pop(0) if self.script else None
        answer = make_good_answer(self.make_reply())(wire) if make is None else make(wire)
        if answer.whole is not None:
            self.whole.add(answer.whole)
        return answer


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    provider: FaultyProvider

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.connection.settimeout(20)
        while self._handle_request():
            pass

    def _handle_request(self) -> bool:
        line = self.rfile.readline()
        headers = {}
        while (header := self.rfile.readline().strip()) != b"":
            name, _, value = header.partition(b":")
            headers[name.lower()] = value.strip()
        if not line:
            return False
        body = json.loads(self.rfile.read(int(headers[b"content-length"])))
        wire = "anthropic" if b"/messages" in line else "openai"
        self.server.provider.bodies.append((wire, body))
        answer = self.server.provider.answer(wire)
        with suppress(OSError):
            self.wfile.write(answer.raw)
            while answer.end == "endless":
                self.wfile.write(answer.more)
            if answer.end == "hold":
                self.connection.settimeout(SILENCE * 10)
                self.connection.recv(1)  # until the client gives up
        if answer.end == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return answer.end == "keep"


def encode_chunks(frames: Sequence[bytes], *, ended: bool = True) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames)
    return body + (b"0\r\n\r\n" if ended else b"")


def make_good_answer(reply: Reply) -> Callable[[str], Answer]:
    return lambda wire: Answer(HEAD + encode_chunks(reply.frames(wire)), "keep", whole=reply.text)


# -- what can go wrong -------------------------------------------------------------------------------------------------

Fault = Callable[[FaultyProvider, random.Random], Callable[[str], Answer]]
FAULTS: dict[str, Fault] = {}


def register_fault(make: Fault) -> Fault:
    FAULTS[make.__name__] = make
    return make


@register_fault
def refused_for_now(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    status = rng.choice((408, 409, 425, 429, 429, 429, 500, 500, 502, 503, 504, 529))
    wait = rng.choice(("", "retry-after: 3\r\n", "retry-after-ms: 20\r\n", "retry-after: -1\r\n", "retry-after: x\r\n"))
    text = rng.choice(('{"error": {"message": "slow down", "type": "rate_limit_error"}}', "<html>", "", "[[[", '"no"'))
    return lambda wire: Answer(encode_http(status, text.encode(), f"content-type: application/json\r\n{wait}"))


@register_fault
def refused_for_good(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    status = rng.choice((300, 302, 400, 401, 402, 403, 404, 413, 418, 422))
    code = rng.choice(("context_length_exceeded", "invalid_api_key", "not_found_error", "insufficient_quota", ""))
    body = json.dumps({"type": "error", "error": {"message": "no", "type": code, "code": code}}).encode()
    return lambda wire: Answer(encode_http(status, body, "location: http://127.0.0.1:1/\r\n"))


@register_fault
def gone_before_a_word(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    end = rng.choice(("close", "reset"))
    return lambda wire: Answer(b"", end)


@register_fault
def cut_at_a_byte(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply, share, end = draw_reply(provider, rng), rng.random(), rng.choice(("close", "reset"))

    def answer(wire: str) -> Answer:
        raw = HEAD + encode_chunks(reply.frames(wire))
        kept = int(share * len(raw))
        return Answer(raw[:kept], end, whole=reply.text if has_stop(raw[:kept]) else None)

    return answer


@register_fault
def corrupt_frame(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply, place = draw_reply(provider, rng), rng.random()
    damage = rng.choice((b"}", b'"', b"data: ", b"\n\n", b"{"))

    def answer(wire: str) -> Answer:
        frames = reply.frames(wire)
        at = int(place * len(frames))
        frames[at] = frames[at].replace(damage, b"", 1)
        stopped = has_stop(b"".join(frames[:at]))
        # Without its mark a line is a comment to any reader, so a reply may lack one frame; not its stop reason.
        return Answer(
            HEAD + encode_chunks(frames), whole=reply.text if stopped else read_text_without(reply, frames, wire, at)
        )

    return answer


@register_fault
def nonsense_inside(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply, place = draw_reply(provider, rng), rng.random()
    junk = rng.choice(
        (
            b"data: null\n\n", b"data: []\n\n", b"data: 7\n\n", b"data: {}\n\n", b'data: {"choices": 3}\n\n',
            b'data: {"choices": [null]}\n\n', b"data: \xff\xfe\n\n", b": ping\n\n", b"event: error\ndata: x\n\n",
            b'data: {"choices": [{"delta": {"content": 3}}]}\n\n', b'data: {"type": "content_block_delta"}\n\n',
            b'data: {"usage": {"prompt_tokens": -1}, "choices": []}\n\n', b"data: " + b"[" * 5000 + b"\n\n",
            b'data: {"choices": [{"delta": {"tool_calls": [{"index": {}}]}}]}\n\n', b"\x00" * 50 + b"\n\n",
        )
    )  # fmt: skip

    def answer(wire: str) -> Answer:
        frames = reply.frames(wire)
        frames.insert(int(place * len(frames)), junk)
        return Answer(HEAD + encode_chunks(frames), whole=reply.text)

    return answer


@register_fault
def said_twice(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply, place = draw_reply(provider, rng), rng.random()

    def answer(wire: str) -> Answer:
        frames = reply.frames(wire)
        at = int(place * len(frames))
        frames.insert(at, frames[at])
        return Answer(HEAD + encode_chunks(frames), whole=read_text(frames, wire))

    return answer


@register_fault
def no_end(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply = provider.make_reply()
    kind = rng.choice(("text", "pings", "one line"))

    def answer(wire: str) -> Answer:
        frames = reply.frames(wire)
        at = next(index for index, frame in enumerate(frames) if b"say" in frame or b"what" in frame)
        more = {"text": frames[at], "pings": b": ping\n\n", "one line": b"x" * 1000}[kind]
        return Answer(
            HEAD + encode_chunks(frames[:at], ended=False), "endless", more=encode_chunks([more * 20], ended=False)
        )

    return answer


@register_fault
def nothing_in_it(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    raw = rng.choice(
        (HEAD + encode_chunks([]), HEAD + encode_chunks([b"data: [DONE]\n\n"]), encode_http(200, b"", ""), HEAD)
    )
    return lambda wire: Answer(raw)


@register_fault
def another_kind_of_answer(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply, kind = provider.make_reply(), rng.choice(("application/json", "text/html", "text/plain", "image/png", ""))
    encoding = rng.choice(("", "", "content-encoding: gzip\r\n", "content-encoding: br\r\n"))

    def answer(wire: str) -> Answer:
        body = rng.choice((b'{"choices": []}', b"<html>", reply.body(wire)))
        header = f"content-type: {kind}\r\n" if kind else ""
        return Answer(encode_http(200, body, header + encoding), whole=reply.text if body == reply.body(wire) else None)

    return answer


@register_fault
def no_http_at_all(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    raw = rng.choice(
        (
            b"\x16\x03\x01\x02\x00", b"NOT HTTP\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", HEAD + b"zz\r\nhello\r\n",
            HEAD + b"-5\r\nhello\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"\r\n" * 100,
            b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
            b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\nshort",
        )
    )  # fmt: skip
    return lambda wire: Answer(raw)


@register_fault
def error_inside(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply, place = draw_reply(provider, rng), rng.random()
    error = rng.choice(({"type": "overloaded_error", "message": "busy"}, {"code": 500}, "no", {"message": ["x"]}))

    def answer(wire: str) -> Answer:
        frames = reply.frames(wire)
        at = int(place * (len(frames) - 1))
        frame = (
            encode_frame({"error": error})
            if wire == "openai"
            else encode_frame({"type": "error", "error": error}, "error")
        )
        whole = reply.text if has_stop(b"".join(frames[:at])) else None
        return Answer(HEAD + encode_chunks([*frames[:at], frame, *frames[at:]]), whole=whole)

    return answer


@register_fault
def silent(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply, share = provider.make_reply(), rng.choice((0.0, 0.5))

    def answer(wire: str) -> Answer:
        raw = HEAD + encode_chunks(reply.frames(wire))
        return Answer(raw[: int(share * len(raw))], "hold")

    return answer


@register_fault
def strange_calls(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    calls = [
        (
            rng.choice(("same", "same", "", "x" * 300, "ü 1", f"call_{rng.randrange(100)}")),
            rng.choice(("note", "note", "note", "nobody", "", "no te", "ü" * 80)),
            rng.choice(
                ('{"n": 1}', '{"n": 2}', "{}", "", "null", "[1]", '{"n": "x"}', '{"n": ', '{"n": 1e400}', "NaN")
            ),
        )
        for _ in range(rng.randrange(1, 5))
    ]
    reply = provider.make_reply(calls=calls, stop=rng.choice(("", "", "length" if rng.random() < 0.5 else "stop")))
    return lambda wire: Answer(HEAD + encode_chunks(reply.frames(wire)), "keep", whole=reply.text)


@register_fault
def strange_words(provider: FaultyProvider, rng: random.Random) -> Callable[[str], Answer]:
    reply = provider.make_reply()
    strange = rng.choice((b"\\ud800", b"\\u0000", b"\\ud83d\\ude42", b"\xef\xbf\xbe", b"\xff", b"\r", b"\xe2\x80\xa8"))

    def answer(wire: str) -> Answer:
        frames = [frame.replace(b"what", strange, 1) for frame in reply.frames(wire)]
        raw = HEAD + encode_chunks(frames)
        try:
            text = read_text(frames, wire)
            text.encode()
        except ValueError:
            return Answer(raw)
        return Answer(raw, whole=text)

    return answer


def draw_reply(provider: FaultyProvider, rng: random.Random) -> Reply:
    """A reply with or without calls of the tool that exists."""
    if rng.random() < 0.5:
        return provider.make_reply()
    calls = [
        (f"c{rng.randrange(1000)}", "note", json.dumps({"n": rng.randrange(9)})) for _ in range(rng.choice((1, 2)))
    ]
    return provider.make_reply(calls=calls, thinking=rng.choice(("", "let me see")))


def encode_http(status: int, body: bytes, headers: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def has_stop(raw: bytes) -> bool:
    """Whether the stop reason is among these bytes: only then is it a reply."""
    openai = any(f'"finish_reason": "{reason}"'.encode() in raw for reason in ("stop", "tool_calls", "length"))
    return openai or any(f'"stop_reason": "{reason}"'.encode() in raw for reason in ("end_turn", "tool_use"))


def read_text(frames: Sequence[bytes], wire: str) -> str:
    """What a reader of all these frames has read, in any order."""
    text = ""
    for line in b"".join(frames).split(b"\n"):
        if line.startswith(b"data: {"):
            frame = json.loads(line[6:])
            if wire == "openai":
                text += "".join((choice["delta"].get("content") or "") for choice in frame["choices"])
            elif frame.get("type") == "content_block_delta":
                text += frame["delta"].get("text", "")
    return text


def read_text_without(reply: Reply, frames: Sequence[bytes], wire: str, at: int) -> str | None:
    """The text of a reply that lacks one frame, unless that was the one with the stop reason."""
    rest = [frame for index, frame in enumerate(frames) if index != at]
    return read_text(rest, wire) if has_stop(b"".join(rest)) else None


# -- what a provider was sent ------------------------------------------------------------------------------------------


def find_wire_faults(wire: str, body: dict[str, Any]) -> list[str]:
    """Why the real provider would refuse this request."""
    return _find_openai_faults(body["messages"]) if wire == "openai" else _find_anthropic_faults(body["messages"])


def _find_openai_faults(messages: Sequence[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    waiting: list[str] = []
    known: set[str] = set()
    for message in messages:
        if message["role"] != "tool" and waiting:
            found.append(f"{waiting} have no result")
            waiting = []
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                found.append(f"a result of {message['tool_call_id']!r}, which nobody called")
            else:
                waiting.remove(message["tool_call_id"])
        for called in message.get("tool_calls", []):
            json.loads(called["function"]["arguments"])
            if called["id"] in known or not called["id"] or not called["function"]["name"]:
                found.append(f"a call without a name or an id of its own: {called}")
            known.add(called["id"])
            waiting.append(called["id"])
        if not message.get("content") and not message.get("tool_calls") and message["role"] != "tool":
            found.append(f"an empty {message['role']} message")
    return found + ([f"{waiting} have no result"] if waiting else [])


def _find_anthropic_faults(messages: Sequence[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    waiting: list[str] = []
    known: set[str] = set()
    roles = [message["role"] for message in messages]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        found.append(f"roles: {roles}")
    for message in messages:
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if Counter(results) != Counter(waiting):
            found.append(f"results of {results} where {waiting} were called")
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        waiting = [block["id"] for block in calls]
        if len({*waiting}) < len(waiting) or known & {*waiting} or not all(block["name"] for block in calls):
            found.append(f"calls without a name or an id of their own: {calls}")
        known |= {*waiting}
        if not message["content"] or any(block.get("text") == "" for block in message["content"]):
            found.append("an empty message or text")
    return found + ([f"{waiting} have no result"] if waiting else [])


# -- the proof ---------------------------------------------------------------------------------------------------------


class TickingClock(FixedClock):
    """Waits are over at once, and each reading of the time moves it on a little."""

    def monotonic(self) -> float:
        self.time += 10
        return super().monotonic()


class LogRecorder(logging.Handler):
    """Everything that is logged, as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            text = f"{record.getMessage()} {record.args}"
            if record.exc_info:
                text += "".join(traceback.format_exception(*record.exc_info))
            self.lines.append((record.name, record.levelno, text))


@contextmanager
def record_logs() -> Iterator[LogRecorder]:
    """Record every logger at its lowest level, and every thread that ends with an error."""
    handler, root = LogRecorder(), logging.getLogger()
    level, hook = root.level, threading.excepthook

    def record_thread_death(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "?"
        handler.lines.append((f"thread {name}", logging.ERROR, repr(args.exc_value)))

    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    threading.excepthook = record_thread_death
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        threading.excepthook = hook


def ask(session: Session, way: str, text: str) -> Response:
    if way == "run":
        return session.run(text)
    if way == "stream":
        return list(session.stream(text))[-1].response  # type: ignore[union-attr]
    if way == "run_async":
        return asyncio.run(session.run_async(text))

    async def streamed() -> Response:
        return [event async for event in session.stream_async(text)][-1].response  # type: ignore[union-attr]

    return asyncio.run(streamed())


@proof("B19", ci=200, long=50_000)
def provider_chaos(size: int, seed: int) -> Report:
    """Scripts of faults through the real wire, on two stores, asked four ways: nothing partial, nothing unhandled."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    with make_scratch_directory(memory=True) as directory, FaultyProvider() as provider, record_logs() as heard:
        stores: list[Store] = [MemoryStore(), SQLiteStore(directory / "chaos.db")]
        for number in range(size):
            rng = random.Random(f"{seed} {number}")
            found = run_disturbed_session(provider, stores[number % 2], rng, counts)
            failures += [f"script {number}: {failure}" for failure in found]
        stores[1].close()
        loud = [line for line in heard.lines if line[1] >= logging.ERROR]
        failures += [f"unhandled: {name}: {text}" for name, _, text in loud]
    kinds = ", ".join(f"{counts[name]} {name}" for name in ("answered", "failed", "tools", "requests"))
    figures = f"{size} scripts of {len(FAULTS)} faults: {kinds}; {len(failures)} partial, unhandled or stuck"
    return Report(figures=figures, failures=failures)


def run_disturbed_session(
    provider: FaultyProvider, store: Store, rng: random.Random, counts: Counter[str]
) -> list[str]:
    """One session with a provider that fails for a while."""
    failures: list[str] = []
    ran: list[int] = []

    @tool
    def note(n: int) -> str:
        """Note a number."""
        ran.append(n)
        return f"noted {n}"

    models: list[LanguageModel] = []
    wire, retries = rng.choice(WIRES), rng.randrange(3)

    def make_agent(timeout: float) -> Agent:
        model = LanguageModel(
            wire,
            NAMES[wire],
            api_key="sk-chaos-0123456789",
            base_url=provider.url,
            clock=TickingClock(),
            timeout=timeout,
            max_retries=retries,
            max_bytes=LARGEST,
        )
        models.append(model)
        return Agent(model=model, tools=[note], max_steps=6)

    session = Session(store=store, agent=make_agent(SILENCE))
    provider.whole.clear()
    provider.bodies.clear()
    for question in range(rng.randrange(1, 4)):
        names = [rng.choice([*FAULTS]) for _ in range(rng.randrange(1, 5))]
        if names.count("silent") > 1:  # those take real time
            names = [name for name in names if name != "silent"]
        provider.script = [FAULTS[name](provider, rng) for name in names]
        way = rng.choice(WAYS)
        try:
            ask(session, way, f"question {question}")
            counts["answered"] += 1
        except AgentError as error:
            counts["failed"] += 1
            if session.events(types=["turn.failed"])[-1].data["error"]["code"] != error.code:
                failures.append(f"{names}, {way}: {error!r} is not what the log tells")
        except BaseException as error:
            failures.append(f"{names}, {way}: {type(error).__name__}: {error}")
        failures += [f"{names}, {way}: {failure}" for failure in find_partial_messages(session, provider)]
    provider.script = []
    session = Session.open(session.id, store=store, agent=make_agent(60.0))  # nothing is silent now, only slow
    try:
        with suppress(ProviderUnavailable):  # a connection that was kept may be closed by now, and there is no retry
            ask(session, rng.choice(WAYS), "are you still there?")
        ask(session, rng.choice(WAYS), "are you there?")
    except Exception as error:
        failures.append(f"it does not go on: {type(error).__name__}: {error}")
    failures += find_partial_messages(session, provider)
    failures += find_session_faults(store, session)
    results = [event for event in session.events(types=["tool.returned"], limit=None) if event.data.get("effect")]
    if len(results) != len(ran):
        failures.append(f"{len(ran)} tools ran, {len(results)} have a result")
    for wired, body in provider.bodies:
        failures += [f"sent to {wired}: {problem}" for problem in find_wire_faults(wired, body)]
    counts["requests"] += len(provider.bodies)
    counts["tools"] += len(ran)
    for model in models:
        model.close()
    return failures


def find_partial_messages(session: Session, provider: FaultyProvider) -> list[str]:
    """Replies that became messages and were not whole."""
    said = [message.text for message in session.messages if message.role == "assistant"]
    return [f"{text!r} became a message" for text in said if text not in provider.whole]


# -- secrets -----------------------------------------------------------------------------------------------------------


@dataclass
class PlantedSecret:
    """A secret, and every text that was produced while it was in use."""

    secret: str
    provider: FaultyProvider
    random: random.Random
    records: list[tuple[str, str]] = field(default_factory=list)

    def record(self, where: str, value: object) -> None:
        self.records.append((where, value if isinstance(value, str) else repr(value)))

    def record_error(self, error: BaseException, *, cause: bool = True) -> None:
        """An error as it is printed, with what led to it, and the facts of ours."""
        printed = traceback.format_exception(error) if cause else traceback.format_exception_only(error)
        self.record("the error", "".join(printed))
        seen: list[BaseException | None] = [error]
        while seen:
            each = seen.pop()
            if isinstance(each, AgentError):
                self.record("the error's facts", f"{each!r} {each.args} {vars(each)}")
                seen += [each.__cause__, each.__context__] if cause else []

    def ask(self, agent: Agent, *, cause: bool = True) -> None:
        """Ask, and record every event, error and log line."""
        session = Session(store=MemoryStore(), agent=agent)
        try:
            ask(session, self.random.choice(WAYS), "hello")
        except AgentError as error:
            self.record_error(error, cause=cause)
        for thing in (agent, agent.model, session, session.store, agent.settings()):
            self.record(f"repr of {type(thing).__name__}", repr(thing))
        for event in session.events(limit=None):
            if event.type != "tool.returned":  # what a tool says is said to the model
                self.record(event.type, json.dumps(event.data))

    def model(self, **options: Any) -> LanguageModel:
        wire = self.random.choice(WIRES)
        settings: dict[str, Any] = {
            "base_url": self.provider.url,
            "ids": TickingClock(),
            "max_retries": 1,
            "timeout": SILENCE,
        } | options
        return LanguageModel(wire, NAMES[wire], **settings)

    @property
    def find_leaks(self) -> list[str]:
        """The places where the secret, or eight characters of it, were found."""
        pieces = {self.secret[at : at + 8] for at in range(len(self.secret) - 7)}
        pieces |= {quote(self.secret, safe="")}
        return sorted({where for where, text in self.records if any(piece in text for piece in pieces)})


CASES: list[Callable[[PlantedSecret], None]] = []


def register_case(play: Callable[[PlantedSecret], None]) -> Callable[[PlantedSecret], None]:
    CASES.append(play)
    return play


def list_echoing_answers(planted: PlantedSecret) -> list[Callable[[str], Answer]]:
    """A provider that says the key aloud, in some place."""
    rng, secret = planted.random, planted.secret
    said = rng.choice((f"Incorrect API key provided: {secret}", f"Bearer {secret}", f"{secret[:14]}***", secret))
    code = rng.choice(("invalid_api_key", "rate_limit_error", "api_error", "permission_error", "x"))
    error = {"message": said, "type": code, "code": code, "param": said}
    body = json.dumps({"type": "error", "error": error}).encode()
    status = rng.choice((400, 401, 403, 404, 422, 429, 500, 529))
    inside = encode_frame({"error": error, "type": "error"}, "error")
    raw = rng.choice(
        (
            encode_http(status, body, "content-type: application/json\r\n"),
            encode_http(status, said.encode(), f"x-request-id: {secret}\r\nlocation: https://{secret}@host/\r\n"),
            encode_http(302, b"", f"location: http://127.0.0.1:1/?key={secret}\r\n"),
            encode_http(200, said.encode(), "content-type: text/html\r\n"),
            encode_http(200, body, "content-type: application/json\r\n"),
            HEAD + encode_chunks([inside]),
            HEAD + encode_chunks([b"data: {" + said.encode() + b"\n\n"]),
            HEAD + encode_chunks([b"data: " + json.dumps(said).encode() + b"\n\n"]),
            b"HTTP/1.1 200 " + said.encode() + b"\r\n" + secret.encode() + b"\r\n\r\n",
            said.encode() + b"\r\n\r\n",
        )
    )
    return [lambda wire: Answer(raw)] * 3


@register_case
def echoed_by_the_provider(planted: PlantedSecret) -> None:
    planted.provider.script = list_echoing_answers(planted)
    planted.ask(Agent(model=planted.model(api_key=planted.secret)))


@register_case
def in_the_environment(planted: PlantedSecret) -> None:
    model = planted.model()
    name = f"{model.provider.upper()}_API_KEY"
    before = os.environ.get(name)
    os.environ[name] = planted.secret
    try:
        planted.provider.script = list_echoing_answers(planted) if planted.random.random() < 0.5 else []
        planted.ask(Agent(model=model))
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@register_case
def in_the_url(planted: PlantedSecret) -> None:
    port = planted.provider.url.split(":")[-1] if planted.random.random() < 0.5 else "1/v1"
    planted.provider.script = list_echoing_answers(planted)
    url = f"http://me:{quote(planted.secret, safe='')}@127.0.0.1:{port}"
    planted.ask(Agent(model=planted.model(base_url=url)))


@register_case
def in_a_url_that_is_none(planted: PlantedSecret) -> None:
    url = planted.random.choice(
        ("ftp://me:{}@host/v1", "http://me:{}@", "{}", "http://[me:{}@host/v1", "me:{}@host/v1")
    )
    try:
        planted.ask(Agent(model=planted.model(base_url=url.format(planted.secret))))
    except AgentError as error:
        planted.record_error(error)


@register_case
def in_a_header(planted: PlantedSecret) -> None:
    planted.provider.script = list_echoing_answers(planted) if planted.random.random() < 0.5 else []
    ending = planted.random.choice(("", "", "\r\nx: y", "é"))
    try:
        planted.ask(Agent(model=planted.model(headers={"x-gateway-key": planted.secret + ending})))
    except AgentError as error:
        planted.record_error(error)


@register_case
def with_a_line_end(planted: PlantedSecret) -> None:
    key = planted.random.choice(("{}\n", " {}", "{} {}", "\t{}é", "{}\x00")).format(planted.secret, planted.secret)
    planted.ask(Agent(model=planted.model(api_key=key)))


@register_case
def in_a_dsn(planted: PlantedSecret) -> None:
    secret = planted.random.choice((planted.secret, quote(planted.secret, safe="")))
    dsn = planted.random.choice(
        (
            "postgresql://me:{}@127.0.0.1:1/db", "postgres://me:{}@127.0.0.1:1/db?connect_timeout=1",
            "postgresql://me:{}@127.0.0.1:port/db", "postgresql://127.0.0.1:1/db?password={}",
            "postgresql://me:{}@[::1/db", "host=127.0.0.1 port=1 password={} user=me",
            "host=127.0.0.1 port=1 password='{} user=me", "postgresql://me:{}@127.0.0.1:1/db?nonsense=1",
        )
    )  # fmt: skip
    try:
        planted.record("the store", repr(PostgresStore(dsn.format(secret), patience=0.01)))
    except AgentError as error:
        planted.record_error(error)


@register_case
def in_the_name_of_a_store(planted: PlantedSecret) -> None:
    url = planted.random.choice(
        ("postgre://me:{}@host/db", "postgresql+psycopg://me:{}@host/db", "mysql://me:{}@host/db", "redis://:{}@host")
    )
    try:
        planted.record("the session", repr(Session(store=url.format(planted.secret))))
    except AgentError as error:
        planted.record_error(error)


@register_case
def raised_by_a_tool(planted: PlantedSecret) -> None:
    @tool
    def note(n: int) -> str:
        raise RuntimeError(f"401 for https://api/?key={planted.secret}")

    reply = Reply(calls=[("c", "note", '{"n": 1}')])
    planted.provider.script = [make_good_answer(reply), *list_echoing_answers(planted)]
    planted.ask(Agent(model=planted.model(api_key=planted.secret), tools=[note]))


@register_case
def raised_by_a_model_of_ones_own(planted: PlantedSecret) -> None:
    """Only its shape shows that this text is a key; the exception of the model's author stays the cause, unchanged."""

    class Broken(ScriptedModel):
        def stream(self, request: ModelRequest) -> Iterator[ModelEvent]:
            raise RuntimeError(f"Incorrect API key provided: sk-{planted.secret}")

        async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            for event in self.stream(request):
                yield event

    planted.ask(Agent(model=Broken([])), cause=False)


@proof("B16", ci=200, long=50_000)
def planted_secrets(size: int, seed: int) -> Report:
    """Keys and passwords in every place they can be given: none is in an error, a log line, a repr or a record."""
    failures: list[str] = []
    places: Counter[str] = Counter()
    with FaultyProvider() as provider, record_logs() as heard:
        for number in range(size):
            rng = random.Random(f"{seed} {number}")
            play = CASES[number % len(CASES)]
            word = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghjkmnpqrstuvwxyz0123456789", k=24))
            secret = rng.choice(("sk-{}", "sk-ant-api03-{}", "{}", "AIza{}", "p{}~z", "hf_{}")).format(word)
            planted = PlantedSecret(secret, provider, rng)
            heard.lines.clear()
            provider.script = []
            try:
                play(planted)
            except Exception as error:
                failures.append(f"{play.__name__}, {number}: not one of our errors: {error!r}")
            for name, _, text in heard.lines:
                if not (name.startswith("httpcore2") and "receive_response" in text):  # traces what the other side said
                    planted.record(f"the logger {name}", text)
            failures += [f"{play.__name__}, {number}: the secret is in {where}" for where in planted.find_leaks]
            places[play.__name__] += len(planted.records)
    figures = f"{size} secrets in {len(CASES)} ways, {sum(places.values())} texts searched; {len(failures)} leaks"
    return Report(figures=figures, failures=failures)
