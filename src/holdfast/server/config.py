"""Everything a server can be told, in one table: the fields of `Config`.

Flags, environment variables and the documentation are all made from it, so that none of them can say something else.
Only the standard library is loaded here, because the command line reads this before anybody wants a server.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.stores.base import Store

MIB = 1024 * 1024
LEVELS = ("debug", "info", "warning", "error")
SHORTEST_TOKEN = 16
MOST_TEXTS = 64  # of one list
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
_ORIGIN = re.compile(r"https?://([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing a server can be told.

    A secret has no flag: a command line is shown to every user of the machine. What opens the door has no variable:
    nobody should have to search an environment for it.
    """

    name: str
    flag: str | None
    variable: str | None
    default: Any
    help: str
    kind: type  # str, int, float, bool, or tuple: several texts
    separator: str  # between them in a variable


def _told(
    default: Any,  # noqa: ANN401 - of the field's own type
    variable: str | None,
    help: str,
    *,
    flag: str | None = "",
    shown: str | None = None,
    separator: str = ",",
    least: float | None = None,
    repr: bool = True,
) -> Any:  # noqa: ANN401 - a dataclass field
    """`flag` "": the field's own name; `shown`: how a default that depends on the machine is written in the docs."""
    told = {
        "variable": variable,
        "help": help,
        "flag": flag,
        "shown": shown,
        "separator": separator,
        "least": least,
    }
    return field(default=default, repr=repr, metadata=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a server is told. `Config()` is the default of everything; `from_env` also looks at the environment."""

    host: str = _told("127.0.0.1", "HOLDFAST_HOST", "Address to listen on.")
    port: int = _told(2323, "HOLDFAST_PORT", "Port to listen on; 0: any free one.", least=0)
    store: str = _told(
        "memory:",
        "HOLDFAST_STORE",
        "Where sessions are kept, as a URL.",
        shown="a SQLite file in the data directory",
        repr=False,  # it may hold a password
    )
    data: str = _told(
        "",
        "HOLDFAST_DATA",
        "The data directory: the server's token and its SQLite file.",
        shown="`$XDG_DATA_HOME/holdfast`, else `~/.local/share/holdfast`",
    )
    token: str = _told(
        "",
        "HOLDFAST_TOKEN",
        "The server's own token, which may do everything.",
        flag=None,
        shown="made at the first start",
        repr=False,
    )
    token_file: str = _told(
        "", "HOLDFAST_TOKEN_FILE", "File with the server's token.", shown="`token` in the data directory"
    )
    open: bool = _told(False, None, "Ask nobody for a key: whoever reaches the port may do everything. Loopback only.")
    work_roots: tuple[str, ...] = _told(
        (),
        "HOLDFAST_WORK_ROOTS",
        "Directory under which sessions may have their work_dir; may be given several times.",
        flag="--work-root",
        separator=os.pathsep,
    )
    names: tuple[str, ...] = _told(
        (),
        "HOLDFAST_NAMES",
        "Name under which the server is reached besides localhost; may be given several times.",
        flag="--name",
    )
    origins: tuple[str, ...] = _told(
        (),
        "HOLDFAST_ORIGINS",
        "Origin of web pages that may call the server (CORS); may be given several times.",
        flag="--origin",
    )
    behind_proxy: bool = _told(False, "HOLDFAST_BEHIND_PROXY", "A proxy that speaks TLS is in front of this server.")
    tls_cert: str = _told("", "HOLDFAST_TLS_CERT", "File with the TLS certificate (PEM).")
    tls_key: str = _told("", "HOLDFAST_TLS_KEY", "File with the key of the TLS certificate (PEM).")
    runs: int = _told(32, "HOLDFAST_RUNS", "Turns that run at the same time in this process.", least=1)
    queue: int = _told(100, "HOLDFAST_QUEUE", "Messages that may wait in one session.", least=1)
    body: int = _told(2 * MIB, "HOLDFAST_BODY", "Largest body of a request, in bytes.", least=1024)
    large_body: int = _told(
        24 * MIB, "HOLDFAST_LARGE_BODY", "The same for messages and imports, which carry files.", least=1024
    )
    body_seconds: float = _told(30.0, "HOLDFAST_BODY_SECONDS", "Time for a body to arrive.", least=0.1)
    streams_per_key: int = _told(16, "HOLDFAST_STREAMS_PER_KEY", "Open streams of one key.", least=1)
    runs_per_key: int = _told(8, "HOLDFAST_RUNS_PER_KEY", "Requests of one key that wait for their run.", least=1)
    rate: float = _told(500.0, "HOLDFAST_RATE", "Requests a second of one key; 0: no limit.", least=0)
    burst: int = _told(1000, "HOLDFAST_BURST", "Requests of one key at once, before the rate holds.", least=1)
    ping: float = _told(15.0, "HOLDFAST_PING", "Seconds of silence after which a stream sends a ping.", least=0.05)
    stream_life: float = _told(
        3600.0, "HOLDFAST_STREAM_LIFE", "Seconds after which a stream ends; its reader comes back.", least=1
    )
    drain: float = _told(10.0, "HOLDFAST_DRAIN", "Seconds that running turns get when the server is stopped.", least=0)
    sweep_every: float = _told(60.0, "HOLDFAST_SWEEP_EVERY", "Seconds between two sweeps; 0: none.", least=0)
    poll: float = _told(0.25, "HOLDFAST_POLL", "Seconds between two looks at what other servers wrote.", least=0.01)
    lease_seconds: float = _told(
        15.0, "HOLDFAST_LEASE_SECONDS", "Seconds until the run of a dead server is taken over.", flag=None, least=0.2
    )
    log_level: str = _told("info", "HOLDFAST_LOG_LEVEL", f"What is logged: {', '.join(LEVELS)}.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Config:
        """A flag outranks its variable, and a variable the default. A flag that is None or empty was not given."""
        told: dict[str, Any] = {}
        for setting in SETTINGS:
            given = flags.pop(setting.name, None)
            if given is not None and given != () and given != "":
                told[setting.name] = tuple(given) if setting.kind is tuple else given  # type: ignore[arg-type]
            elif setting.variable and environ.get(setting.variable):
                told[setting.name] = _read(setting, environ[setting.variable])
        if flags:
            raise InvalidArgument(f"unknown settings: {', '.join(sorted(flags))}")
        told.setdefault("data", str(data_directory(environ)))
        told.setdefault("store", f"sqlite:///{Path(told['data']).absolute() / 'sessions.db'}")
        told.setdefault("token_file", str(Path(told["data"]) / "token"))
        return cls(**told)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"

    def check(self) -> None:
        """Refuse what makes no sense, and what would leave the door open."""
        if self.open and not self.is_loopback:
            raise InvalidArgument(
                f"--open asks nobody for a key, and {self.host} can be reached from outside: leave --open out, "
                "or listen on 127.0.0.1"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidArgument("--tls-cert and --tls-key belong together: give both, or none")
        if not self.is_loopback and not self.tls_cert and not self.behind_proxy:
            raise InvalidArgument(
                f"{self.host} can be reached from outside, and keys would travel in the clear: give --tls-cert and "
                "--tls-key, or --behind-proxy if a proxy in front speaks TLS; or listen on 127.0.0.1"
            )
        for setting in SETTINGS:
            _check_number(setting, getattr(self, setting.name))
        if self.port > 65535:
            raise InvalidArgument(f"--port {self.port} is no port: use 0 to 65535")
        if self.log_level not in LEVELS:
            raise InvalidArgument(f"--log-level {self.log_level!r} is none of {', '.join(LEVELS)}")
        if self.large_body < self.body:
            raise InvalidArgument("--large-body is smaller than --body: raise it")
        if self.token and not is_token(self.token):
            raise InvalidArgument(
                f"HOLDFAST_TOKEN is too weak, or cannot be sent in a header: use at least {SHORTEST_TOKEN} letters, "
                "digits, '-', '_' or '.'"
            )
        self._check_texts()

    def _check_texts(self) -> None:
        for each in self.names:
            if not _HOST.fullmatch(each.lower()):
                raise InvalidArgument(f"--name {each!r} is no host name: give it without scheme and port")
        for each in self.origins:
            if not _ORIGIN.fullmatch(each.lower()):
                raise InvalidArgument(f"--origin {each!r} is no origin: write it as 'https://app.example.com'")
        for each in self.work_roots:
            if not Path(each).is_absolute():
                raise InvalidArgument(f"--work-root {each!r} is not absolute")
            if not Path(each).is_dir():
                raise InvalidArgument(f"--work-root {each!r} is no directory: make it first")
        for setting in SETTINGS:
            if setting.kind is tuple and len(getattr(self, setting.name)) > MOST_TEXTS:
                raise InvalidArgument(f"{setting.flag} is given more than {MOST_TEXTS} times")

    def open_store(self) -> Store:
        """The store, in a data directory that nobody else can look into."""
        from holdfast.stores.urls import open_store

        if self.data and self.store.startswith(f"sqlite:///{Path(self.data).absolute()}"):
            self.make_data_directory()
        return open_store(self.store)

    def make_data_directory(self) -> Path:
        path = Path(self.data)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"the data directory {path} cannot be made: {error.strerror}") from error
        return path


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name: who knows where it leads


def is_token(value: str) -> bool:
    """Whether a server's own token is long enough, and of characters that travel in a header unchanged."""
    return SHORTEST_TOKEN <= len(value) <= 512 and _TOKEN.fullmatch(value) is not None


def data_directory(environ: Mapping[str, str]) -> Path:
    """Where this user's server keeps its things."""
    base = environ.get("XDG_DATA_HOME", "")
    if Path(base).is_absolute():  # the specification has relative ones ignored
        return Path(base) / "holdfast"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "share" / "holdfast"


def settings_table() -> str:
    """The table of the documentation, in Markdown."""
    lines = ["| flag | variable | default | |", "|---|---|---|---|"]
    for setting in SETTINGS:
        shown = next(each for each in fields(Config) if each.name == setting.name).metadata["shown"]
        flag = f"`{setting.flag}`" if setting.flag else ""
        variable = f"`{setting.variable}`" if setting.variable else ""
        lines.append(f"| {flag} | {variable} | {shown or _shown(setting.default)} | {setting.help} |")
    return "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    if default in ("", ()):
        return "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _read(setting: Setting, text: str) -> object:
    """What a variable says."""
    if setting.kind is tuple:
        return tuple(each.strip() for each in text.split(setting.separator) if each.strip())
    if setting.kind is bool:
        if text.strip().lower() not in _TRUE + _FALSE:
            raise InvalidArgument(f"{setting.variable}={text!r} is neither yes nor no: use 1 or 0")
        return text.strip().lower() in _TRUE
    try:
        return setting.kind(text)
    except ValueError as error:
        raise InvalidArgument(f"{setting.variable}={text!r} is no number") from error


def _check_number(setting: Setting, value: object) -> None:
    if setting.kind not in (int, float):
        return
    least = next(each for each in fields(Config) if each.name == setting.name).metadata["least"]
    name = setting.flag or setting.variable
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value or value in (1e999, -1e999):
        raise InvalidArgument(f"{name} {value!r} is no number")
    if value < least:
        raise InvalidArgument(f"{name} {value:g} is too small: use at least {least:g}")


def _settings() -> tuple[Setting, ...]:
    found = []
    for each in fields(Config):
        told = each.metadata
        flag = f"--{each.name.replace('_', '-')}" if told["flag"] == "" else told["flag"]
        found.append(
            Setting(
                name=each.name,
                flag=flag,
                variable=told["variable"],
                default=each.default,
                help=told["help"],
                kind=type(each.default),
                separator=told["separator"],
            )
        )
    return tuple(found)


SETTINGS = _settings()
