"""The kit itself: a server that breaks on request, and a proxy that loses only what it says."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.kit.postgres import PostgresFailed, PostgresServer
from tests.kit.proxy import PostgresProxy, Proxy

KILLED_OWNER = """
import signal, os
from tests.kit.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.directory, server.port, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail("it did not come true")
        time.sleep(0.01)


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True)


def read_notes(dsn: str) -> list[str]:
    with connect(dsn) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY id")]


def add_note(connection: psycopg.Connection, text: str) -> None:
    connection.execute("INSERT INTO note (text) VALUES (%s)", [text])


def is_refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class ProxiedConnection(NamedTuple):
    """A client and a server in this process, with a proxy between them."""

    client: socket.socket
    proxy: Proxy
    server: socket.socket


@pytest.fixture
def connection() -> Iterator[ProxiedConnection]:
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(listener.getsockname()[1]) as proxy:
        listener.settimeout(60)
        with socket.create_connection(("127.0.0.1", proxy.port), 60) as client, listener.accept()[0] as server:
            server.settimeout(60)
            yield ProxiedConnection(client, proxy, server)


@pytest.fixture
def server(postgres_server: PostgresServer) -> PostgresServer:
    return postgres_server


@pytest.fixture
def notes_dsn(server: PostgresServer) -> Iterator[str]:
    """A database with a table to write into."""
    dsn = server.database(tcp=True)
    with connect(dsn) as connection:
        connection.execute("CREATE TABLE note (id bigserial PRIMARY KEY, text text NOT NULL)")
    yield dsn
    server.drop(dsn)


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(server.port) as proxy:
        yield proxy


class TestPostgresServer:
    def test_answers_on_its_socket_and_on_tcp(self, server: PostgresServer) -> None:
        for dsn, is_local in [(server.dsn, True), (server.tcp_dsn, False)]:
            with connect(dsn) as connection:
                row = connection.execute("SELECT inet_client_addr() IS NULL").fetchone()
            assert row == (is_local,)

    def test_stores_text_as_utf8_and_sorts_it_by_bytes(self, server: PostgresServer) -> None:
        with connect(server.dsn) as connection:
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
            assert connection.execute("SELECT 'Z' < 'a', 'z' < 'ä'").fetchone() == (True, True)

    def test_gives_each_caller_a_database_of_its_own(self, server: PostgresServer) -> None:
        first, second = server.database(), server.database(tcp=True)
        with connect(first) as connection:
            connection.execute("CREATE TABLE note (id int)")
        with connect(second) as connection, pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM note")
        for dsn in (first, second):
            server.drop(dsn)
            with pytest.raises(psycopg.OperationalError, match="does not exist"):
                psycopg.connect(dsn)

    def test_drops_a_database_that_is_in_use(self, server: PostgresServer) -> None:
        dsn = server.database()
        with closing(connect(dsn)) as connection:
            server.drop(dsn)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")

    def test_syncs_to_disk_only_where_durability_is_under_test(self, server: PostgresServer) -> None:
        with connect(server.dsn) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("off",)
        with PostgresServer(durable=True, max_connections=7) as durable, connect(durable.dsn) as connection:
            for setting, value in [("fsync", "on"), ("full_page_writes", "on"), ("max_connections", "7")]:
                assert connection.execute(f"SHOW {setting}").fetchone() == (value,)

    @pytest.mark.parametrize("mode", ["immediate", "fast"])
    def test_keeps_committed_rows_and_its_port_over_a_restart(self, mode: str) -> None:
        with PostgresServer(durable=True) as server:
            dsn, port, pid = server.database(tcp=True), server.port, server.pid
            with closing(connect(dsn)) as connection, closing(psycopg.connect(dsn)) as uncommitted:
                connection.execute("CREATE TABLE note (id bigserial PRIMARY KEY, text text NOT NULL)")
                add_note(connection, "committed")
                add_note(uncommitted, "uncommitted")
                server.restart("immediate" if mode == "immediate" else "fast")
                with pytest.raises(psycopg.OperationalError):
                    connection.execute("SELECT 1")
            assert read_notes(dsn) == ["committed"]
            assert server.port == port
            assert server.pid != pid
            assert ("was not properly shut down" in server.log_tail()) == (mode == "immediate")

    def test_ends_the_connections_of_all_clients(self) -> None:
        with PostgresServer() as server, closing(connect(server.dsn)) as one, closing(connect(server.tcp_dsn)) as other:
            assert server.terminate_backends() == 2
            for connection in (one, other):
                with pytest.raises(psycopg.errors.AdminShutdown):
                    connection.execute("SELECT 1")
            assert server.terminate_backends() == 0

    def test_leaves_nothing_behind(self) -> None:
        with PostgresServer() as server:
            pid, port, directory = server.pid, server.port, server.directory
        assert is_refused(port)
        assert not directory.exists()
        with pytest.raises(ProcessLookupError):  # not even as a zombie process
            os.kill(pid, 0)
        server.stop()
        with pytest.raises(PostgresFailed):
            _ = server.pid

    def test_does_not_outlive_a_killed_owner(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        owner = subprocess.run(
            [sys.executable, "-c", KILLED_OWNER], env=environment, capture_output=True, text=True, timeout=120
        )
        assert owner.returncode == -signal.SIGKILL, owner.stderr
        directory, port = owner.stdout.split()
        wait_until(lambda: not Path(directory).exists())
        assert is_refused(int(port))

    def test_says_why_it_cannot_start(self) -> None:
        server = PostgresServer(max_connections=-1)
        with pytest.raises(PostgresFailed, match='-1 is outside the valid range for parameter "max_connections"'):
            server.start()
        with pytest.raises(PostgresFailed, match="not been started"):
            _ = server.directory

    def test_looks_for_another_port_when_its_own_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            ports = iter([taken.getsockname()[1], taken.getsockname()[1]])
            find = sys.modules["tests.kit.postgres"]._free_port
            monkeypatch.setattr("tests.kit.postgres._free_port", lambda: next(ports, None) or find())
            with PostgresServer() as server, connect(server.tcp_dsn) as connection:
                assert server.port != taken.getsockname()[1]
                assert connection.execute("SELECT 1").fetchone() == (1,)


class TestPostgresProxy:
    def test_passes_everything_without_a_rule(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        long = "x" * 3_000_000
        with connect(proxy.dsn(notes_dsn)) as connection:
            add_note(connection, long)
            assert connection.execute("SELECT text FROM note").fetchone() == (long,)
        assert (proxy.accepted, proxy.requests_cut, proxy.replies_lost, proxy.connections_cut) == (1, 0, 0, 0)

    def test_loses_a_reply_although_the_row_was_committed(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        with closing(connect(proxy.dsn(notes_dsn))) as connection:
            add_note(connection, "heard")
            proxy.lose_reply_to(b"INSERT INTO")
            assert connection.execute("SELECT 1").fetchone() == (1,)
            with pytest.raises(psycopg.OperationalError):
                add_note(connection, "unheard")
        assert read_notes(notes_dsn) == ["heard", "unheard"]
        assert (proxy.replies_lost, proxy.requests_cut) == (1, 0)
        with connect(proxy.dsn(notes_dsn)) as connection:
            add_note(connection, "heard again")
        assert proxy.replies_lost == 1

    def test_loses_the_reply_to_a_commit(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        proxy.lose_reply_to(b"COMMIT")
        with closing(psycopg.connect(proxy.dsn(notes_dsn))) as connection:
            add_note(connection, "unheard")
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        assert read_notes(notes_dsn) == ["unheard"]
        assert proxy.replies_lost == 1

    def test_cuts_before_a_commit_so_that_nothing_is_stored(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        proxy.cut_before(b"COMMIT", times=1)
        with closing(psycopg.connect(proxy.dsn(notes_dsn))) as connection:
            add_note(connection, "never")
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        assert read_notes(notes_dsn) == []
        assert (proxy.requests_cut, proxy.replies_lost) == (1, 0)

    def test_cuts_before_a_statement_so_that_nothing_is_stored(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        proxy.cut_before(b"INSERT INTO")
        for _ in range(2):
            with closing(connect(proxy.dsn(notes_dsn))) as connection, pytest.raises(psycopg.OperationalError):
                add_note(connection, "x" * 500_000)
        assert proxy.requests_cut == 2
        proxy.pass_all()
        with connect(proxy.dsn(notes_dsn)) as connection:
            add_note(connection, "stored")
        assert read_notes(notes_dsn) == ["stored"]

    @pytest.mark.parametrize("runs_before", [0, 1, 2])
    def test_knows_a_prepared_statement_by_its_text(
        self, notes_dsn: str, proxy: PostgresProxy, runs_before: int
    ) -> None:
        with closing(connect(proxy.dsn(notes_dsn))) as connection:
            connection.prepare_threshold = 1  # the first run is not prepared, the second prepares, the third uses it
            for number in range(runs_before):
                add_note(connection, f"heard {number}")
            proxy.lose_reply_to(b"INSERT INTO")
            with pytest.raises(psycopg.OperationalError):
                add_note(connection, "unheard")
        assert read_notes(notes_dsn)[runs_before:] == ["unheard"]
        assert proxy.replies_lost == 1

    def test_chooses_what_to_lose_by_a_predicate(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        proxy.cut_replies_after(lambda statement: b"INSERT" in statement and b"second" in statement)
        with closing(connect(proxy.dsn(notes_dsn))) as connection:
            add_note(connection, "first")
            with pytest.raises(psycopg.OperationalError):
                add_note(connection, "second")
        assert read_notes(notes_dsn) == ["first", "second"]

    def test_waits_for_the_end_of_a_long_reply_before_it_is_lost(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        proxy.lose_reply_to(b"INSERT INTO")
        with closing(connect(proxy.dsn(notes_dsn))) as connection, pytest.raises(psycopg.OperationalError):
            connection.execute(
                "INSERT INTO note (text) SELECT repeat('x', 1000) FROM generate_series(1, 2000) RETURNING *"
            )
        assert len(read_notes(notes_dsn)) == 2000

    def test_cuts_all_connections_and_takes_new_ones(self, notes_dsn: str, proxy: PostgresProxy) -> None:
        with closing(connect(proxy.dsn(notes_dsn))) as one, closing(connect(proxy.dsn(notes_dsn))) as other:
            assert proxy.cut_all() == 2
            for connection in (one, other):
                with pytest.raises(psycopg.OperationalError):
                    connection.execute("SELECT 1")
        assert proxy.cut_all() == 0
        assert proxy.connections_cut == 2
        assert read_notes(proxy.dsn(notes_dsn)) == []

    def test_leaves_no_thread_behind(self, server: PostgresServer, notes_dsn: str) -> None:
        before = set(threading.enumerate())
        proxy = PostgresProxy(server.port)
        with proxy, closing(connect(proxy.dsn(notes_dsn))):
            assert set(threading.enumerate()) > before
        assert set(threading.enumerate()) == before
        proxy.stop()


class TestProxy:
    def test_sees_a_request_that_arrives_in_pieces(self, connection: ProxiedConnection) -> None:
        connection.proxy.cut_before(b"pattern")
        connection.client.sendall(b"pat")
        assert connection.server.recv(9) == b"pat"
        connection.client.sendall(b"tern")
        assert connection.client.recv(9) == connection.server.recv(9) == b""
        assert connection.proxy.requests_cut == 1

    def test_forgets_a_request_that_was_answered(self, connection: ProxiedConnection) -> None:
        connection.proxy.cut_before(b"pattern")
        connection.client.sendall(b"pat")
        assert connection.server.recv(9) == b"pat"
        connection.server.sendall(b"yes?")
        assert connection.client.recv(9) == b"yes?"
        connection.client.sendall(b"tern")
        assert connection.server.recv(9) == b"tern"

    def test_loses_the_first_words_of_a_reply(self, connection: ProxiedConnection) -> None:
        connection.proxy.cut_replies_after(b"ask")
        connection.client.sendall(b"ask")
        assert connection.server.recv(9) == b"ask"
        connection.server.sendall(b"answer")
        assert connection.client.recv(9) == connection.server.recv(9) == b""
        assert connection.proxy.replies_lost == 1

    def test_passes_on_that_one_side_has_finished(self, connection: ProxiedConnection) -> None:
        connection.client.sendall(b"all")
        connection.client.shutdown(socket.SHUT_WR)
        assert (connection.server.recv(9), connection.server.recv(9)) == (b"all", b"")
        connection.server.sendall(b"thanks")
        connection.server.close()
        assert (connection.client.recv(9), connection.client.recv(9)) == (b"thanks", b"")

    def test_holds_what_is_sent_until_the_delay_is_over(self, connection: ProxiedConnection) -> None:
        connection.proxy.delay(0.01)
        connection.client.sendall(b"soon")
        assert connection.server.recv(9) == b"soon"
        connection.proxy.delay(3600)
        connection.client.sendall(b"held")
        connection.server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.server.recv(9)
        connection.server.settimeout(60)
        connection.proxy.pass_all()
        assert connection.server.recv(9) == b"held"

    def test_stops_although_something_is_held(self, connection: ProxiedConnection) -> None:
        connection.proxy.delay(3600)
        connection.client.sendall(b"held")
        connection.proxy.stop()
        assert connection.client.recv(9) == connection.server.recv(9) == b""

    def test_closes_a_connection_when_the_server_is_down(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with Proxy(port) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 60) as client:
            assert client.recv(1) == b""
