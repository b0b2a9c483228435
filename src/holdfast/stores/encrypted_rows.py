"""The keys of a store's logs, and how rows are sealed and opened with them.

Every log has a key of its own, wrapped by the store's master key. A key and the place of a row (its log and its seq)
are bound to each other, so that a row that was copied elsewhere does not open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import KeyNeeded, SearchUnavailable, WrongKey
from holdfast.log.events import COMMITMENT, Row
from holdfast.stores.encryption import DataKey, MasterKey, Vault, context

if TYPE_CHECKING:
    from holdfast.stores.base import Log

MAX_KEPT = 50_000


class Rewrap:
    """The step from one master key to another."""

    def __init__(self, old: Vault, new: Vault) -> None:
        self.old, self.new, self.fingerprint = old, new, new.fingerprint

    def __call__(self, uid: str, wrapped: bytes) -> bytes:
        return self.old.rewrap(wrapped, uid.encode(), self.new)


class Keys:
    """The open keys of a store; none, if it has no master key."""

    def __init__(self, master: MasterKey | None) -> None:
        self._vault = None if master is None else Vault(master)
        self._open: dict[int, DataKey | None] = {}
        self._is_sealed = False  # the store is encrypted, and was opened without its key

    @property
    def has_master(self) -> bool:
        return self._vault is not None

    @property
    def vault(self) -> Vault:
        if self._vault is None:
            raise KeyNeeded("this store was opened without a key: open it with key=")
        return self._vault

    @property
    def fingerprint(self) -> str:
        return self.vault.fingerprint

    def agree(self, stored: str | None) -> bool:
        """Whether the store has no master key yet; WrongKey if it has another one."""
        if stored is not None and stored != self.fingerprint:
            raise WrongKey(
                f"this store is encrypted with the master key {stored}, not with {self.fingerprint}: "
                "open it with that one (rotate_key changes it)"
            )
        return stored is None

    def found(self, stored: str | None) -> None:
        """What the store says of itself to somebody without a key: it is not written in the open by mistake."""
        self._is_sealed = stored is not None

    def refuse_plain(self) -> None:
        if self._is_sealed:
            raise KeyNeeded("this store is encrypted: open it with key= (HOLDFAST_KEY) to make sessions in it")

    def to(self, master: MasterKey) -> Rewrap:
        return Rewrap(self.vault, Vault(master))

    def use(self, step: Rewrap) -> None:
        self._vault = step.new

    def new(self, uid: str) -> tuple[bytes, DataKey]:
        return self.vault.new_key(uid.encode())

    def put(self, number: int, key: DataKey | None) -> None:
        if len(self._open) >= MAX_KEPT:
            self._open.clear()
        self._open[number] = key

    def get(self, number: int, look: Callable[[], tuple[Any, ...] | None]) -> DataKey | None:
        """The key of a log; None if it is not encrypted. `look` gives its uid and its wrapped key."""
        try:
            return self._open[number]
        except KeyError:
            found = look()
        if found is None:
            return None  # gone meanwhile: there is nothing to open
        uid, wrapped = found
        key = None if wrapped is None else self.vault.unwrap(wrapped, uid.encode())
        self.put(number, key)
        return key

    def forget(self) -> None:
        """After a transaction that failed: a key that it made is nobody's."""
        self._open.clear()

    def of(self, log: Log) -> DataKey:
        key = self.get(log.number, lambda: (log.uid, log.key))
        assert key is not None
        return key

    def checked(self, log: Log) -> Log:
        """The log; KeyNeeded if it is encrypted and there is no key."""
        if log.key is not None and self._vault is None:
            raise KeyNeeded(f"session {log.id!r} is encrypted: open the store with key=")
        return log

    def refuse_search(self, log: Log) -> None:
        if log.key is not None:
            raise SearchUnavailable(log.id)


def sealed(key: DataKey, number: int, row: Row) -> Row:
    """A row as it is stored under a key: payload and tombstone closed, the chain's columns as they are."""
    body = None if row.body is None else key.seal(row.body, context(number, row.seq))
    tomb = None if row.tomb is None else sealed_tomb(key, number, row.seq, row.tomb)
    return Row(row.seq, row.at, row.type, row.header, row.tokens, body, tomb, row.hash)


def opened(key: DataKey | None, number: int, row: Row) -> Row:
    if key is not None:
        if row.body is not None:
            row.body = key.open(row.body, context(number, row.seq))
        row.tomb = opened_tomb(key, number, row.seq, row.tomb)
    return row


def sealed_tomb(key: DataKey | None, number: int, seq: int, tomb: bytes) -> bytes:
    """A tombstone: the commitment is no secret, what follows it may name things."""
    if key is None or len(tomb) <= COMMITMENT:
        return tomb
    return tomb[:COMMITMENT] + key.seal(tomb[COMMITMENT:], context(number, seq))


def opened_tomb(key: DataKey | None, number: int, seq: int, tomb: bytes | None) -> bytes | None:
    if key is None or tomb is None or len(tomb) <= COMMITMENT:
        return tomb
    return tomb[:COMMITMENT] + key.open(tomb[COMMITMENT:], context(number, seq))


def marked(key: DataKey | None, value: bytes) -> bytes:
    """An idempotency key or a digest of content, so that it can be compared and not be read."""
    return value if key is None else key.mark(value)


def hidden(key: DataKey | None, name: str) -> bytes:
    """A name of state or of a fact as it is stored: what it belongs to stays readable, for range look-ups."""
    if key is None or "/" not in name:
        return name.encode()
    scope, _, rest = name.partition("/")
    return scope.encode() + b"/" + key.name(rest.encode())


def shown(key: DataKey | None, name: bytes) -> str:
    if key is None or b"/" not in name:
        return name.decode()
    scope, _, rest = name.partition(b"/")
    return f"{scope.decode()}/{key.unname(rest).decode()}"


def blob_name(key: DataKey | None, digest: str) -> str:
    return digest if key is None else key.mark(digest.encode()).hex()


def sealed_blob(key: DataKey | None, digest: str, data: bytes) -> tuple[str, bytes]:
    return (digest, data) if key is None else (blob_name(key, digest), key.seal(data, digest.encode()))


def opened_blob(key: DataKey | None, digest: str, data: bytes) -> bytes:
    return data if key is None else key.open(data, digest.encode())
