"""The host names of the server, and the origins of web pages that may call it."""

from __future__ import annotations

import re

from holdfast.errors import Forbidden
from holdfast.server.config import Config

Headers = dict[bytes, list[bytes]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
WILDCARD_HOSTS = ("0.0.0.0", "::")  # addresses to listen on, which are no host names
MAX_CACHED_HOSTS = 1000
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, X-API-Key, Content-Type, Accept, Idempotency-Key, Last-Event-ID, X-Request-ID"
    ),
    "Access-Control-Max-Age": "600",
}
_AUTHORITY = re.compile(rb"(\[[0-9a-f:.]{2,45}\]|[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)(?::([0-9]{1,5}))?")
_SCHEMES = ((b"http://", 80), (b"https://", 443))

Authority = tuple[str, int | None]  # name and port


class OriginPolicy:
    """Decides about Host, Origin and Sec-Fetch-Site."""

    def __init__(self, config: Config) -> None:
        bind = () if config.host in WILDCARD_HOSTS else (f"[{config.host}]" if ":" in config.host else config.host,)
        self._names = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *config.names, *bind))
        self._origins = frozenset(origin.lower().encode() for origin in config.origins)
        self._authority_cache: dict[bytes, Authority] = {}
        self.has_origins = bool(config.origins)
        self.preflight = dict(PREFLIGHT)

    def check(self, headers: Headers) -> None:
        """Raise Forbidden for a request that a page of another site makes a browser send."""
        hosts = headers.get(b"host", [])
        here = self._authority_of_host(hosts[0]) if len(hosts) == 1 else None
        if here is None:
            raise Forbidden("the Host is not one of this server's: ask for localhost, or start it with --name NAME")
        origins = headers.get(b"origin")
        if origins is None:
            is_configured = False
        else:
            is_configured = self.match_origin(headers) is not None
            if not is_configured and (len(origins) != 1 or not _is_same_origin(origins[0], here)):
                raise Forbidden("web pages of this Origin may not call this server: start it with --origin ORIGIN")
        sites = headers.get(b"sec-fetch-site")
        if sites is not None and not is_configured and sites not in ([b"same-origin"], [b"none"]):
            raise Forbidden("a web page of another site sent this: start the server with --origin ORIGIN to allow it")

    def match_origin(self, headers: Headers) -> bytes | None:
        """Return the Origin if it is configured."""
        origins = headers.get(b"origin")
        if not self._origins or origins is None or len(origins) != 1:
            return None
        return origins[0] if origins[0] in self._origins else None

    def _authority_of_host(self, host: bytes) -> Authority | None:
        """Return name and port of a Host if the name is one of the server's."""
        known = self._authority_cache.get(host)
        if known is not None:
            return known
        found = _parse_authority(host)
        if found is None or found[0] not in self._names:
            return None
        if len(self._authority_cache) < MAX_CACHED_HOSTS:
            self._authority_cache[host] = found
        return found


def _parse_authority(text: bytes) -> Authority | None:
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    port = None if match.group(2) is None else int(match.group(2))
    return match.group(1).decode(), port


def _is_same_origin(origin: bytes, here: Authority) -> bool:
    """Whether a page was loaded from the name and port of this request."""
    for scheme, usual in _SCHEMES:
        if origin.startswith(scheme):
            there = _parse_authority(origin[len(scheme) :])
            return there is not None and (there[0], there[1] or usual) == (here[0], here[1] or usual)
    return False  # "null" is the origin of a page that hides where it comes from
