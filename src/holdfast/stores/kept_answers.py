"""Answers that a server keeps for repeated requests, as far as a store must know them: they go with what they show.

The key of an answer begins with the log that it shows. An answer that shows another log has a link under that log too.
A removal drops both in its own transaction, so no answer outlives the text in it. In an encrypted store an answer is
sealed with the key of the log that it shows, which an erasure replaces.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast.errors import WrongKey
from holdfast.log import codec
from holdfast.stores.encryption import WRAPPED

if TYPE_CHECKING:
    from holdfast.stores.base import Store
    from holdfast.stores.sql_reads import SQLConnection
    from holdfast.stores.statements import Statements

ANSWERS = "answers"  # space of key values
ANSWER_LINKS = "answers-about"
_PLAIN, _OWN_KEY, _KEY_OF_LOG = b"\0", b"\1", b"\2"

LogName = tuple[str, str]  # kind and id


def answers_prefix(log: LogName) -> str:
    """The beginning of the keys of all answers about a log. No id of a session has a line break in it."""
    kind, id = log
    return f"{id}\n" if kind == "session" else "\nlog " + sha256(codec.encode([kind, id])).hexdigest() + "\n"


def key_range(log: LogName) -> tuple[bytes, bytes]:
    """The keys that begin with the prefix of a log: from the first on, and before the second."""
    prefix = answers_prefix(log).encode()
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1])


def drop_answers(db: SQLConnection, sql: Statements, tenant: str, log: LogName) -> None:
    """Drop the answers about a log, inside the transaction that removes text from it."""
    first, end = key_range(log)
    db.execute(sql.DROP_LINKED_ANSWERS, (tenant, tenant, first, end))
    db.execute(sql.DROP_ANSWERS, (tenant, first, end))


def seal_answer(store: Store, log: LogName | None, value: bytes, place: str) -> bytes:
    """The bytes to store for an answer that shows a log, or none."""
    keys = getattr(store, "_keys", None)
    if keys is None or not keys.has_master:
        return _PLAIN + value
    found = None if log is None else store.find(*log)
    if log is not None and found is not None and found.key is not None:
        sealed: bytes = keys.key_of_log(found).seal(value, place.encode())
        return _KEY_OF_LOG + "\n".join(log).encode() + b"\n" + sealed
    wrapped, key = keys.vault.new_key(place.encode())
    return _OWN_KEY + bytes(wrapped) + bytes(key.seal(value, place.encode()))


def open_answer(store: Store, value: bytes, place: str) -> bytes | None:
    """The answer; None if its key was replaced since, by an erasure or by a rotation of the master key."""
    how, rest = value[:1], value[1:]
    if how == _PLAIN:
        return rest
    keys = store._keys  # type: ignore[attr-defined]
    try:
        if how == _OWN_KEY:
            key, sealed = keys.vault.unwrap(rest[:WRAPPED], place.encode()), rest[WRAPPED:]
        else:
            kind, id, sealed = rest.split(b"\n", 2)
            found = store.find(kind.decode(), id.decode())
            if found is None or found.key is None:
                return None
            keys.forget_key(found.number)
            key = keys.key_of_log(found)
        opened: bytes = key.open(sealed, place.encode())
    except WrongKey:
        return None
    return opened
