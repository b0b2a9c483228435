"""Receipts: what was redacted, erased or purged, signed with a key outside of the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import SessionNotFound
from holdfast.stores.signing_keys import SigningKey

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store


def make_receipt(
    store: Store, what: str, logs: Iterable[Log], *, events: int, actor: str | None
) -> dict[str, Any] | None:
    """A receipt for what was removed from these logs, with the head of each afterwards; None without a signing key.

    It has no reason and no content: a receipt is kept for longer than what it is about.
    """
    key = SigningKey.from_environment()
    if key is None:
        return None
    return _sign(key, store, what, [_describe_log(store, log) for log in logs], events=events, actor=actor)


def sign_purges(store: Store, purges: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """A receipt for sessions that the sweep purged, each with its last head; None without a signing key."""
    key, sessions = SigningKey.from_environment(), list(purges)
    if key is None or not sessions:
        return None
    return _sign(key, store, "purge", sessions, events=sum(each["head"] for each in sessions), actor="sweep")


def _sign(
    key: SigningKey, store: Store, what: str, sessions: list[Any], *, events: int, actor: str | None
) -> dict[str, Any]:
    facts = {"what": what, "tenant": store.tenant, "sessions": sessions, "events": events, "actor": actor}
    return key.sign_receipt(facts | {"at": store.clock.now()})


def _describe_log(store: Store, log: Log) -> dict[str, Any]:
    found = {"id": log.id, "uid": log.uid}
    try:
        head = store.head(log)
    except SessionNotFound:
        return found  # deleted meanwhile
    return found | {"head": head.head, "hash": head.hash.hex()}
