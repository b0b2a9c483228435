"""A TCP proxy on the loopback that loses things on purpose, in front of a real server.

What must stay true: a reply counts as lost only once the server has given it, so what was asked for has happened; a
request counts as cut only if the server did not get all of it, so nothing has happened.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from psycopg.conninfo import conninfo_to_dict

HOST = "127.0.0.1"
CHUNK = 65536
PATIENCE = 30.0

SSL_REQUEST, GSS_REQUEST = (80877103).to_bytes(4, "big"), (80877104).to_bytes(4, "big")
READY_FOR_QUERY = b"Z\0\0\0\5"  # and one byte of transaction status

Match = bytes | Callable[[bytes], bool]
Reader = Callable[[bytes], bytes]


@dataclass(slots=True, kw_only=True)
class _Rule:
    matches: Callable[[bytes], bool]
    forward: bool  # let the request through and lose its reply, rather than cut before it
    times: int | None


class Proxy:
    """Passes bytes between clients and a port of this machine, and loses some of them by a rule.

    A rule looks at a request: what a client has sent since the server last spoke. A new rule replaces the one before,
    and stands until it has cut `times` connections, or until `pass_all`.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.accepted = 0
        self.requests_cut = 0
        self.replies_lost = 0
        self.connections_cut = 0
        self._lock = threading.Lock()
        self._switched = threading.Condition(self._lock)
        self._rule: _Rule | None = None
        self._delay = 0.0
        self._links: list[_Link] = []
        self._running = False
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """Where clients connect."""
        if self._listener is None:
            raise RuntimeError("the proxy is not running")
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Listen on a free port."""
        if self._listener is not None:
            raise RuntimeError("the proxy is running already")
        self._running = True
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self._acceptor = threading.Thread(target=self._accept, args=[self._listener], name="proxy", daemon=True)
        self._acceptor.start()

    def stop(self) -> None:
        """Close every connection and wait for the threads to end; harmless when stopped already."""
        if self._listener is None or self._acceptor is None:
            return
        with self._lock:
            self._running = False
            self._switched.notify_all()
        socket.create_connection((HOST, self.port), PATIENCE).close()  # wakes the accepting thread
        self._acceptor.join()
        self._listener.close()
        self._listener = self._acceptor = None
        for link in self._links:
            link.sever()
            link.thread.join()
        self._links.clear()

    def pass_all(self) -> None:
        """Lose and delay nothing from now on."""
        with self._lock:
            self._rule, self._delay = None, 0.0
            self._switched.notify_all()

    def cut_before(self, match: Match, *, times: int | None = None) -> None:
        """Close a connection before a matching request reaches the server whole: nothing happens."""
        self._set_rule(match, forward=False, times=times)

    def cut_replies_after(self, match: Match, *, times: int | None = None) -> None:
        """Let the server answer a matching request, swallow the answer and close the connection: it happens unheard."""
        self._set_rule(match, forward=True, times=times)

    def delay(self, seconds: float) -> None:
        """Hold what clients send for so long, or until the delay is changed; then the rule applies."""
        with self._lock:
            self._delay = seconds
            self._switched.notify_all()

    def cut_all(self) -> int:
        """Close the connections that are open now; returns how many there were."""
        with self._lock:
            cut = sum(link.sever() for link in self._links)
            self.connections_cut += cut
            return cut

    def _reader(self) -> Reader:
        """What turns one client's bytes, piece by piece, into what a rule looks at."""
        return lambda chunk: chunk

    def _is_answered(self, reply: bytes | bytearray) -> bool:
        """Whether the server has said enough for the request to have happened."""
        return len(reply) > 0

    def _set_rule(self, match: Match, *, forward: bool, times: int | None) -> None:
        matches = match if callable(match) else lambda request: match in request
        with self._lock:
            self._rule = _Rule(matches=matches, forward=forward, times=times)

    def _hold(self) -> bool:
        """Wait as long as the delay says; returns whether to go on then."""
        with self._lock:
            delay = self._delay
            self._switched.wait_for(lambda: not self._running or self._delay != delay, timeout=delay)
            return self._running

    def _take_rule(self, request: bytes) -> _Rule | None:
        """The rule, if this request falls under it; that uses up one of its times."""
        with self._lock:
            rule = self._rule
            if rule is None or not request or not rule.matches(request):
                return None
            if rule.times is not None:
                rule.times -= 1
                if rule.times <= 0:
                    self._rule = None
            self.requests_cut += not rule.forward
            return rule

    def _lose_reply(self) -> None:
        with self._lock:
            self.replies_lost += 1

    def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            if not self._running:
                client.close()
                return
            with self._lock:
                self.accepted += 1
                self._links = [link for link in self._links if link.thread.is_alive()]
                self._links.append(_Link(self, client))


class PostgresProxy(Proxy):
    """A proxy that knows which SQL is run: rules look at the text of statements, prepared ones included, and their
    parameters; and a reply is not lost before the server has finished the statement.

    COPY FROM STDIN is the exception: its client waits for a reply halfway, which a rule that loses replies withholds.
    """

    def dsn(self, dsn: str) -> str:
        """The same database, through this proxy."""
        parts = conninfo_to_dict(dsn)
        return f"postgresql://{parts['user']}@{HOST}:{self.port}/{parts['dbname']}"

    def lose_reply_to(self, statement: bytes) -> None:
        """Lose the reply to the next statement that contains this, such as `b"INSERT INTO"` or `b"COMMIT"`."""
        self.cut_replies_after(statement, times=1)

    def _reader(self) -> Reader:
        return _Statements().read

    def _is_answered(self, reply: bytes | bytearray) -> bool:
        return reply[-6:-1] == READY_FOR_QUERY


class _Statements:
    """Reads what a PostgreSQL client sends and says what it runs.

    A driver prepares a statement once and then runs it by name. Preparing it must not count as running it, and running
    it must be recognised although its text is not sent again.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False
        self._prepared: dict[bytes, bytes] = {}

    def read(self, chunk: bytes) -> bytes:
        self._buffer += chunk
        return b"".join([self._run(kind, body) for kind, body in self._messages()])

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            head = 1 if self._started else 0  # the first messages of a connection have no type
            size = head + int.from_bytes(self._buffer[head : head + 4], "big")
            if len(self._buffer) < max(size, head + 4):
                return
            kind, body = bytes(self._buffer[:head]), bytes(self._buffer[head + 4 : size])
            del self._buffer[: max(size, head + 4)]
            if self._started:
                yield kind, body
            else:
                self._started = body not in (SSL_REQUEST, GSS_REQUEST)

    def _run(self, kind: bytes, body: bytes) -> bytes:
        if kind == b"Q":  # a simple query
            return body
        if kind == b"P":  # parse: name, text, ...
            name, text, _ = body.split(b"\0", 2)
            self._prepared[name] = text
        if kind == b"B":  # bind: portal, name, parameters
            _, name, parameters = body.split(b"\0", 2)
            return self._prepared.get(name, b"") + b"\0" + parameters
        return b""


class _Link:
    """One client's connection and its counterpart to the server, a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server: socket.socket | None = None
        self._lock = threading.Lock()
        self._open = True
        self._request = b""
        self._losing = False
        self.thread = threading.Thread(target=self._run, name="proxy-requests", daemon=True)
        self.thread.start()

    def sever(self) -> bool:
        """Close both ends, which also wakes the threads; returns whether they were open."""
        with self._lock:
            was_open, self._open = self._open, False
            if was_open:
                _shut(self._client, socket.SHUT_RDWR)
                if self._server is not None:
                    _shut(self._server, socket.SHUT_RDWR)
            return was_open

    def _run(self) -> None:
        with self._client:
            try:
                server = socket.create_connection((HOST, self._proxy.target), PATIENCE)
            except OSError:  # the server is down: the client finds its connection closed
                self.sever()
                return
            with server:
                for end in (self._client, server):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._server = server
                    is_open = self._open
                if is_open:
                    self._pass_both_ways(server)

    def _pass_both_ways(self, server: socket.socket) -> None:
        replies = threading.Thread(target=self._pass_replies, args=[server], name="proxy-replies", daemon=True)
        replies.start()
        try:
            self._pass_requests(server)
        except BaseException:
            self.sever()
            raise
        finally:
            replies.join()
            self.sever()  # before the sockets are closed: a later shutdown could hit a reused descriptor

    def _pass_requests(self, server: socket.socket) -> None:
        read = self._proxy._reader()
        while chunk := _receive(self._client):
            if not self._proxy._hold():
                return
            text = read(chunk)
            with self._lock:
                self._request += text
                request = self._request
            rule = None if self._losing else self._proxy._take_rule(request)
            if rule is not None and not rule.forward:
                self.sever()
                return
            if rule is not None:
                self._losing = True  # before the server can answer
            if not _send(server, chunk):
                break
        _shut(server, socket.SHUT_WR)

    def _pass_replies(self, server: socket.socket) -> None:
        kept = bytearray()
        while chunk := _receive(server):
            with self._lock:
                self._request = b""  # before the client can take the reply and go on to its next request
            if not self._losing:
                if not _send(self._client, chunk):
                    self.sever()
                    return
                continue
            kept += chunk
            if self._proxy._is_answered(kept):
                self._proxy._lose_reply()
                self.sever()
                return
        _shut(self._client, socket.SHUT_WR)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(CHUNK)
    except OSError:
        return b""


def _send(end: socket.socket, chunk: bytes) -> bool:
    try:
        end.sendall(chunk)
    except OSError:
        return False
    return True


def _shut(end: socket.socket, how: int) -> None:
    try:
        end.shutdown(how)
    except OSError:
        pass  # the other side was first
