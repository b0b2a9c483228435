"""The keys of a store's logs, and how rows are sealed and opened with them.

Every log has a key of its own, wrapped by the store's master key. A key and the place of a row (its log and its seq)
are bound to each other, so that a row that was copied elsewhere does not open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import KeyNeeded, SearchUnavailable, WrongKey
from holdfast.log.events import COMMITMENT_SIZE, Row
from holdfast.stores.encryption import DataKey, MasterKey, Vault, event_context

if TYPE_CHECKING:
    from holdfast.stores.base import Log

MAX_CACHED_KEYS = 50_000


class KeyRotation:
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
        self._needs_key = False  # the store is encrypted, and was opened without its key

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

    def check_fingerprint(self, stored: str | None) -> bool:
        """Whether the store has no master key yet; WrongKey if it has another one."""
        if stored is not None and stored != self.fingerprint:
            raise WrongKey(
                f"this store is encrypted with the master key {stored}, not with {self.fingerprint}: "
                "open it with that one (rotate_key changes it)"
            )
        return stored is None

    def note_encryption(self, stored: str | None) -> None:
        """Note whether the store is encrypted, so that a process without the key writes no plain text."""
        self._needs_key = stored is not None

    def refuse_plain(self) -> None:
        if self._needs_key:
            raise KeyNeeded("this store is encrypted: open it with key= (HOLDFAST_KEY) to make sessions in it")

    def rotation_to(self, master: MasterKey) -> KeyRotation:
        return KeyRotation(self.vault, Vault(master))

    def use_rotation(self, step: KeyRotation) -> None:
        self._vault = step.new

    def new_key(self, uid: str) -> tuple[bytes, DataKey]:
        return self.vault.new_key(uid.encode())

    def put_key(self, number: int, key: DataKey | None) -> None:
        if len(self._open) >= MAX_CACHED_KEYS:
            self._open.clear()
        self._open[number] = key

    def get_key(self, number: int, look: Callable[[], tuple[Any, ...] | None]) -> DataKey | None:
        """The key of a log; None if it is not encrypted. `look` gives its uid and its wrapped key."""
        try:
            return self._open[number]
        except KeyError:
            found = look()
        if found is None:
            return None  # the log was removed: there is nothing to decrypt
        uid, wrapped = found
        key = None if wrapped is None else self.vault.unwrap(wrapped, uid.encode())
        self.put_key(number, key)
        return key

    def forget_key(self, number: int) -> None:
        """Drop the cached key of a log: another process may have replaced it by an erasure."""
        self._open.pop(number, None)

    def clear_cache(self) -> None:
        """Drop all cached keys, after a failed transaction: a key that it created belongs to no log."""
        self._open.clear()

    def key_of_log(self, log: Log) -> DataKey:
        key = self.get_key(log.number, lambda: (log.uid, log.key))
        assert key is not None
        return key

    def check_readable(self, log: Log) -> Log:
        """The log; KeyNeeded if it is encrypted and there is no key."""
        if log.key is not None and self._vault is None:
            raise KeyNeeded(f"session {log.id!r} is encrypted: open the store with key=")
        return log

    def refuse_search(self, log: Log) -> None:
        if log.key is not None:
            raise SearchUnavailable(log.id)


def encrypt_row(key: DataKey, number: int, row: Row) -> Row:
    """A row as it is stored under a key: payload and tombstone closed, the chain's columns as they are."""
    body = None if row.body is None else key.seal(row.body, event_context(number, row.seq))
    tombstone = None if row.tombstone is None else encrypt_tombstone(key, number, row.seq, row.tombstone)
    return Row(row.seq, row.at, row.type, row.header, row.tokens, body, tombstone, row.hash)


def decrypt_row(key: DataKey | None, number: int, row: Row) -> Row:
    if key is not None:
        if row.body is not None:
            row.body = key.open(row.body, event_context(number, row.seq))
        row.tombstone = decrypt_tombstone(key, number, row.seq, row.tombstone)
    return row


def encrypt_tombstone(key: DataKey | None, number: int, seq: int, tombstone: bytes) -> bytes:
    """A tombstone: the commitment is no secret, what follows it may name things."""
    if key is None or len(tombstone) <= COMMITMENT_SIZE:
        return tombstone
    return tombstone[:COMMITMENT_SIZE] + key.seal(tombstone[COMMITMENT_SIZE:], event_context(number, seq))


def decrypt_tombstone(key: DataKey | None, number: int, seq: int, tombstone: bytes | None) -> bytes | None:
    if key is None or tombstone is None or len(tombstone) <= COMMITMENT_SIZE:
        return tombstone
    return tombstone[:COMMITMENT_SIZE] + key.open(tombstone[COMMITMENT_SIZE:], event_context(number, seq))


def keyed_digest(key: DataKey | None, value: bytes) -> bytes:
    """An idempotency key or a digest of content, so that it can be compared and not be read."""
    return value if key is None else key.digest_with_key(value)


def encrypt_name(key: DataKey | None, name: str) -> bytes:
    """A name of state or of a fact as it is stored: what it belongs to stays readable, for range look-ups."""
    if key is None or "/" not in name:
        return name.encode()
    scope, _, rest = name.partition("/")
    return scope.encode() + b"/" + key.encrypt_name(rest.encode())


def decrypt_name(key: DataKey | None, name: bytes) -> str:
    if key is None or b"/" not in name:
        return name.decode()
    scope, _, rest = name.partition(b"/")
    return f"{scope.decode()}/{key.decrypt_name(rest).decode()}"


def blob_name(key: DataKey | None, digest: str) -> str:
    return digest if key is None else key.digest_with_key(digest.encode()).hex()


def encrypt_blob(key: DataKey | None, digest: str, data: bytes) -> tuple[str, bytes]:
    return (digest, data) if key is None else (blob_name(key, digest), key.seal(data, digest.encode()))


def decrypt_blob(key: DataKey | None, digest: str, data: bytes) -> bytes:
    return data if key is None else key.open(data, digest.encode())
