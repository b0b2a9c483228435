"""The settings of a server in one table: the fields of `Config`.

Flags, environment variables and the table in the documentation are made from it, so they always agree. This module
imports only the standard library, because every command of the command line loads it.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from holdfast.data_dir import data_directory
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.stores.base import Store

MIB = 1024 * 1024
LEVELS = ("debug", "info", "warning", "error")
SHORTEST_TOKEN = 16
MOST_TEXTS = 64  # in one list
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
_ORIGIN = re.compile(r"https?://([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a server.

    A secret has no flag: every user of the machine can read a command line. A setting that removes authentication has
    no variable: an open server must be visible in its command.
    """

    name: str
    flag: str | None
    variable: str | None
    default: Any
    shown: str  # its default in words, for people
    help: str
    kind: type  # str, int, float, bool, or tuple for a list of texts
    separator: str  # between the texts of a list in a variable


def _config_field(
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
    metadata = {
        "variable": variable,
        "help": help,
        "flag": flag,
        "shown": shown,
        "separator": separator,
        "least": least,
    }
    return field(default=default, repr=repr, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of a server. `Config()` has all defaults; `from_env` also reads the environment."""

    host: str = _config_field("127.0.0.1", "HOLDFAST_HOST", "Address to listen on.")
    port: int = _config_field(2323, "HOLDFAST_PORT", "Port to listen on; 0: any free one.", least=0)
    store: str = _config_field(
        "memory:",
        "HOLDFAST_STORE",
        "URL of the store that keeps the sessions.",
        shown="a SQLite file in the data directory",
        repr=False,  # it may hold a password
    )
    data: str = _config_field(
        "",
        "HOLDFAST_DATA",
        "The data directory: the server's token and its SQLite file.",
        shown="`$XDG_DATA_HOME/holdfast`, else `~/.local/share/holdfast`",
    )
    token: str = _config_field(
        "",
        "HOLDFAST_TOKEN",
        "The server's own token, which has all rights.",
        flag=None,
        shown="created at the first start",
        repr=False,
    )
    token_file: str = _config_field(
        "", "HOLDFAST_TOKEN_FILE", "File with the server's token.", shown="`token` in the data directory"
    )
    open: bool = _config_field(
        False, None, "Require no key: every client that reaches the port has all rights. Loopback only."
    )
    work_roots: tuple[str, ...] = _config_field(
        (),
        "HOLDFAST_WORK_ROOTS",
        "Directory under which sessions may have their work_dir; may be given several times.",
        flag="--work-root",
        separator=os.pathsep,
    )
    names: tuple[str, ...] = _config_field(
        (),
        "HOLDFAST_NAMES",
        "Host name of the server besides localhost; may be given several times.",
        flag="--name",
    )
    origins: tuple[str, ...] = _config_field(
        (),
        "HOLDFAST_ORIGINS",
        "Origin of web pages that may call the server (CORS); may be given several times.",
        flag="--origin",
    )
    behind_proxy: bool = _config_field(
        False, "HOLDFAST_BEHIND_PROXY", "A proxy that speaks TLS is in front of this server."
    )
    tls_cert: str = _config_field("", "HOLDFAST_TLS_CERT", "File with the TLS certificate (PEM).")
    tls_key: str = _config_field("", "HOLDFAST_TLS_KEY", "File with the key of the TLS certificate (PEM).")
    runs: int = _config_field(
        32, "HOLDFAST_RUNS", "Turns of one tenant that run at the same time in this process.", least=1
    )
    queue: int = _config_field(100, "HOLDFAST_QUEUE", "Messages that may wait in one session.", least=1)
    body: int = _config_field(2 * MIB, "HOLDFAST_BODY", "Largest body of a request, in bytes.", least=1024)
    large_body: int = _config_field(
        24 * MIB,
        "HOLDFAST_LARGE_BODY",
        "Largest body of a message or an import, in bytes.",
        least=1024,
    )
    body_seconds: float = _config_field(30.0, "HOLDFAST_BODY_SECONDS", "Seconds for a body to arrive.", least=0.1)
    connections: int = _config_field(
        2000, "HOLDFAST_CONNECTIONS", "Connections at once; above this only /health and /ready are answered.", least=1
    )
    streams_per_key: int = _config_field(16, "HOLDFAST_STREAMS_PER_KEY", "Open streams of one key.", least=1)
    streams_per_tenant: int = _config_field(
        256, "HOLDFAST_STREAMS_PER_TENANT", "Open streams of all keys of one tenant.", least=1
    )
    runs_per_key: int = _config_field(
        8, "HOLDFAST_RUNS_PER_KEY", "Runs of one key that are queued or running.", least=1
    )
    runs_per_tenant: int = _config_field(
        64, "HOLDFAST_RUNS_PER_TENANT", "Runs of all keys of one tenant that are queued or running.", least=1
    )
    rate: float = _config_field(500.0, "HOLDFAST_RATE", "Requests a second of one key; 0: no limit.", least=0)
    burst: int = _config_field(1000, "HOLDFAST_BURST", "Requests of one key at once, before the rate applies.", least=1)
    quotas: tuple[str, ...] = _config_field(
        (),
        "HOLDFAST_QUOTAS",
        "Limit of every tenant (sessions=1000), or of one (acme:sessions=5000); may be given several times.",
        flag="--quota",
    )
    prices: tuple[str, ...] = _config_field(
        (),
        "HOLDFAST_PRICES",
        "Money per million tokens (input=2.5), for quotas of money; may be given several times.",
        flag="--price",
    )
    ping: float = _config_field(
        15.0, "HOLDFAST_PING", "Seconds of silence after which a stream sends a ping.", least=0.05
    )
    stream_life: float = _config_field(
        3600.0, "HOLDFAST_STREAM_LIFE", "Seconds after which a stream ends and its client reconnects.", least=1
    )
    drain: float = _config_field(
        10.0, "HOLDFAST_DRAIN", "Seconds that running turns get when the server is stopped.", least=0
    )
    sweep_every: float = _config_field(60.0, "HOLDFAST_SWEEP_EVERY", "Seconds between two sweeps; 0: none.", least=0)
    sign_every: float = _config_field(
        60.0,
        "HOLDFAST_SIGN_EVERY",
        "Seconds between two rounds of signing, if `HOLDFAST_SIGNING_KEY` is set; 0: none.",
        least=0,
    )
    anchor: str = _config_field(
        "",
        "HOLDFAST_ANCHOR",
        "Where signed heads are kept outside of the store: `file:/path`, or `command:` and a command.",
        repr=False,  # a command may hold a secret
    )
    poll: float = _config_field(
        0.25, "HOLDFAST_POLL", "Seconds between two polls for events of other servers.", least=0.01
    )
    lease_seconds: float = _config_field(
        15.0,
        "HOLDFAST_LEASE_SECONDS",
        "Seconds until the run of a dead server is taken over.",
        flag=None,
        least=0.2,
    )
    log_level: str = _config_field("info", "HOLDFAST_LOG_LEVEL", f"Lowest level that is logged: {', '.join(LEVELS)}.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Config:
        """Return the settings. A flag outranks its variable, and a variable the default; a flag that is None or empty
        was not given."""
        values: dict[str, Any] = {}
        if has_password(str(flags.get("store") or "")):
            raise InvalidArgument(
                "--store has a password, and every user of this machine can read a command line: put the URL into "
                "HOLDFAST_STORE, or leave the password to PGPASSFILE or a service file; then change the password"
            )
        for setting in SETTINGS:
            given = flags.pop(setting.name, None)
            if given is not None and given != () and given != "":
                values[setting.name] = tuple(given) if setting.kind is tuple else given  # type: ignore[arg-type]
            elif setting.variable and environ.get(setting.variable, "").strip():
                values[setting.name] = _parse_variable(setting, environ[setting.variable])
        if flags:
            raise InvalidArgument(f"unknown settings: {', '.join(sorted(flags))}")
        values.setdefault("data", str(data_directory(environ)))
        values.setdefault("store", f"sqlite:///{Path(values['data']).absolute() / 'sessions.db'}")
        values.setdefault("token_file", str(Path(values["data"]) / "token"))
        return cls(**values)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"

    def check(self) -> None:
        """Raise InvalidArgument for values that make no sense, or that would expose the server."""
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
        if self.anchor and not re.fullmatch(r"(file|command):.*\S.*", self.anchor):
            raise InvalidArgument("--anchor is not understood: use file:/path, or command: and a command")
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
        real = [Path(each).resolve() for each in self.work_roots]
        for path in real:
            if any(path != other and path.is_relative_to(other) for other in real):
                # The folder of a tenant in the outer root could be the inner root, which has folders of all tenants.
                raise InvalidArgument(f"--work-root {str(path)!r} is inside another work root: give one of them")
        if self.quotas or self.prices:
            from holdfast.server.quotas import Quotas

            Quotas(self)
        for setting in SETTINGS:
            if setting.kind is tuple and len(getattr(self, setting.name)) > MOST_TEXTS:
                raise InvalidArgument(f"{setting.flag} is given more than {MOST_TEXTS} times")

    def open_store(self) -> Store:
        """Open the store; create the data directory, readable by this user only, if the store is in it."""
        from holdfast.stores.urls import open_store

        self.make_store_directory()
        return open_store(self.store)

    def make_store_directory(self) -> None:
        """Create the data directory if the store is in it."""
        if self.data and self.store.startswith(f"sqlite:///{Path(self.data).absolute()}"):
            self.make_data_directory()

    def make_data_directory(self) -> Path:
        path = Path(self.data)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"the data directory {path} cannot be made: {error.strerror}") from error
        return path


def has_password(url: str) -> bool:
    """Whether the URL of a store holds a password. In doubt it does: the password itself may have '@', '/' or '?'."""
    user, at, _ = url.partition("://")[2].partition("@")
    fields = parse_qsl(url.partition("?")[2])
    is_named = any(name.lower() in ("password", "sslpassword") and value for name, value in fields)
    return (bool(at) and bool(user.partition(":")[2]) and not url.startswith("sqlite:")) or is_named


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may resolve to any address


def is_token(value: str) -> bool:
    """Whether a server's own token is long enough, and made of characters that a header keeps unchanged."""
    return SHORTEST_TOKEN <= len(value) <= 512 and _TOKEN.fullmatch(value) is not None


def settings_table() -> str:
    """Return the table of the documentation, in Markdown."""
    lines = ["| flag | variable | default | |", "|---|---|---|---|"]
    for setting in SETTINGS:
        flag = f"`{setting.flag}`" if setting.flag else ""
        variable = f"`{setting.variable}`" if setting.variable else ""
        lines.append(f"| {flag} | {variable} | {setting.shown} | {setting.help} |")
    return "\n".join(lines) + "\n"


def _format_default(default: object) -> str:
    if default in ("", ()):
        return "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _parse_variable(setting: Setting, text: str) -> object:
    """Return the value of a variable; raise InvalidArgument if it does not fit the setting."""
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


def _collect_settings() -> tuple[Setting, ...]:
    found = []
    for each in fields(Config):
        metadata = each.metadata
        flag = f"--{each.name.replace('_', '-')}" if metadata["flag"] == "" else metadata["flag"]
        found.append(
            Setting(
                name=each.name,
                flag=flag,
                variable=metadata["variable"],
                default=each.default,
                shown=metadata["shown"] or _format_default(each.default),
                help=metadata["help"],
                kind=type(each.default),
                separator=metadata["separator"],
            )
        )
    return tuple(found)


SETTINGS = _collect_settings()
